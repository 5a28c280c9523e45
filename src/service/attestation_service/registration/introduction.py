"""What was judged at an introduction, kept with the challenge so that the activation is about exactly this."""

# Algorithms for: digest
from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Self

from attestation.api import EKAlternative, IntroduceRequest
from attestation.endorsements.certificate import MAX_CERTIFICATE_BYTES, Certificate, parse_certificate
from attestation.errors import EKFingerprintMismatch, MalformedEvidence, RequestInvalid
from attestation.evidence import ak_activation, ek_certificate
from attestation.evidence.ak_activation import CheckedKeys
from attestation.machines import EKCertificateInfo, Role
from attestation.machines.chips import Mark, chip_serial, marks_of
from attestation.wire import b64decode, b64encode

MAX_CHAIN_BYTES = 16 << 10
"""So much of a chain is kept of one machine, DER; real ones have two or three certificates of 1 KiB."""
MAX_CHAIN_CERTIFICATES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another EK that is said to be of the same chip.

    Args:
        ek_fingerprint: SHA-384 of its SPKI, hex.
        chip_serial: What its certificate says of the chip, or None.
        expected_sha256: SHA-256 of the only proof that it is in the same TPM as the AK, 64 hex.
    """

    ek_fingerprint: str
    chip_serial: str | None
    expected_sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """One machine as it introduced itself, after all checks that need no secret.

    Args:
        ek_public: TPM2B_PUBLIC of the EK, as sent.
        ek_fingerprint: SHA-384 of its SPKI, hex.
        ek_source: `cert` or `pub`; of a machine without a TPM `sev-snp` or `tdx`, all else as in `machines.Anchor`.
        ek_template: Name of the template it equals.
        certificate: What its certificate says, or None.
        certificate_der: The certificate, without wrapper and padding.
        chip_serial: What the certificate says of the chip, see `chips.chip_serial`; or None.
        chain: DER of the intermediates that it sent, as far as they may lead to its issuer; untrusted.
        alternatives: Other EKs of the same chip.
        ak_public: TPM2B_PUBLIC of the AK.
        ak_name: Its Name.
        hw: The four hardware hints.
        desired_role: A wish.
        cluster_id: Another wish.
        registration_token_sha256: SHA-256 of the token presented, or None.
        source: Address it came from.
        vouched: Somebody answers for its EK, and this EK has not used up its part of what such ones may keep.
    """

    ek_public: bytes
    ek_fingerprint: str
    ek_source: str
    ek_template: str
    certificate: EKCertificateInfo | None
    certificate_der: bytes | None
    chip_serial: str | None
    chain: tuple[bytes, ...]
    alternatives: tuple[Alternative, ...]
    ak_public: bytes
    ak_name: bytes
    hw: dict[str, str]
    desired_role: Role | None
    cluster_id: str
    registration_token_sha256: bytes | None
    source: str
    vouched: bool = False

    @property
    def vouched_ek(self) -> str | None:
        """Return the EK whose part it is kept in, or None where it is anybody's."""
        return self.ek_fingerprint if self.vouched else None

    @property
    def kept_bytes(self) -> int:
        """How much its certificates take where they are stored."""
        certificate = len(self.certificate_der or b"")
        return certificate + sum(len(b64encode(der)) for der in self.chain)

    def expecting(self, proofs_sha256: Sequence[bytes]) -> Self:
        """Return it with what the proofs of its alternatives must hash to, 32 bytes each, in their order."""
        pairs = zip(self.alternatives, proofs_sha256, strict=True)
        return replace(
            self, alternatives=tuple(replace(each, expected_sha256=digest.hex()) for each, digest in pairs)
        )

    def marks(self, proven: Sequence[Alternative]) -> tuple[Mark, ...]:
        """Return what marks the chip, with the alternatives whose proof was right."""
        serials = (self.chip_serial, *(each.chip_serial for each in proven))
        return marks_of(
            eks=[self.ek_fingerprint, *(each.ek_fingerprint for each in proven)],
            chip_serials=[serial for serial in serials if serial is not None],
            hw_serial=self.hw["hw_serial"],
            hw_uuid=self.hw["hw_uuid"],
        )

    def to_json(self) -> str:
        """Write it for the challenge row; bytes as base64."""
        members = {
            name: b64encode(value) if isinstance(value, bytes) else value
            for name, value in asdict(self).items()
        }
        return json.dumps({**members, "chain": [b64encode(der) for der in self.chain]})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        members: dict[str, Any] = json.loads(text)
        members["chain"] = tuple(b64decode(der, "chain") for der in members["chain"])
        members["alternatives"] = tuple(Alternative(**each) for each in members["alternatives"])
        for name in ("ek_public", "certificate_der", "ak_public", "ak_name", "registration_token_sha256"):
            if members[name] is not None:
                members[name] = b64decode(members[name], name)
        if members["certificate"] is not None:
            members["certificate"] = EKCertificateInfo(**members["certificate"])
        if members["desired_role"] is not None:
            members["desired_role"] = Role(members["desired_role"])
        return cls(**members)


def judge(
    request: IntroduceRequest,
    *,
    registration_token_sha256: bytes | None,
    source: str,
    at: datetime,
    allow_simulator: bool,
) -> tuple[Introduction, CheckedKeys, tuple[CheckedKeys, ...]]:
    """Parse and check everything in an introduction that can be checked without the TPM.

    Returns:
        The introduction, its keys, and the AK with each of the alternative EKs.

    Raises:
        MalformedEvidence: Some bytes cannot be parsed.
        EKTemplateRejected: The EK equals no TCG template.
        AKAttributesRejected: The AK is not a restricted signing key fixed to its TPM.
        EKCertificateRejected: The certificate is not one of this EK, or not a good one.
        EKFingerprintMismatch: The fingerprint sent is that of something else.
        RequestInvalid: `ek_source` and `ek_cert_pem` do not fit.
    """
    # 1. Two public areas that may be introduced as EK and AK.
    assert request.ek_public is not None
    assert request.ak_public is not None
    assert request.ek_fingerprint is not None
    ek_public = b64decode(request.ek_public, "ek_public")
    ak_public = b64decode(request.ak_public, "ak_public")
    keys = ak_activation.check_keys(ek_public, ak_public)
    fingerprint = keys.ek.fingerprint()
    # 2. The certificate, where there is one, is of this EK. `cert` without one would claim more than it shows.
    if (request.ek_source == "cert") != (request.ek_cert_pem is not None):
        raise RequestInvalid("ek_cert_pem belongs to ek_source=cert, and to nothing else")
    certificate_bytes = (
        b64decode(request.ek_cert_pem, "ek_cert_pem") if request.ek_cert_pem is not None else None
    )
    # 3. Whoever names another fingerprint means another machine. Compared, never believed.
    candidates = [fingerprint, hashlib.sha384(ek_public).hexdigest()]
    if certificate_bytes is not None:
        candidates.append(hashlib.sha384(certificate_bytes).hexdigest())
    if not named(request.ek_fingerprint, candidates):
        raise EKFingerprintMismatch("ek_fingerprint is not that of the EK sent")
    certificate = certificate_der = serial = None
    chain: tuple[bytes, ...] = ()
    if certificate_bytes is not None:
        parsed = ek_certificate.parse(certificate_bytes)
        claims = ek_certificate.verify(parsed, ek=keys.ek, at=at, allow_simulator=allow_simulator)
        certificate_der = parsed.der
        chain = leading(
            parsed.certificate,
            [b64decode(der, "ek_chain", max_bytes=MAX_CERTIFICATE_BYTES) for der in request.ek_chain],
        )
        serial = chip_serial(claims.manufacturer, claims.model, claims.chip_serial)
        certificate = EKCertificateInfo(
            subject=claims.subject,
            manufacturer=claims.vendor,
            model=claims.model,
            firmware=claims.firmware,
            sha256=claims.sha256,
        )
    # 4. Other EKs of the chip: each as good as the first, and none twice.
    others = [
        _alternative(each, ak_public, at=at, allow_simulator=allow_simulator)
        for each in request.ek_alternatives
    ]
    if len({fingerprint, *(each.ek_fingerprint for each, _ in others)}) != 1 + len(others):
        raise RequestInvalid("ek_alternatives names an EK twice")
    introduction = Introduction(
        ek_public=ek_public,
        ek_fingerprint=fingerprint,
        ek_source=request.ek_source,
        ek_template=keys.template,
        certificate=certificate,
        certificate_der=certificate_der,
        chip_serial=serial,
        chain=chain,
        alternatives=tuple(each for each, _ in others),
        ak_public=ak_public,
        ak_name=keys.ak.name,
        hw={
            "hw_uuid": request.hw_uuid,
            "hw_mac": request.hw_mac,
            "hw_serial": request.hw_serial,
            "hw_product": request.hw_product,
        },
        desired_role=request.desired_role,
        cluster_id=request.cluster_id,
        registration_token_sha256=registration_token_sha256,
        source=source,
    )
    return introduction, keys, tuple(each for _, each in others)


def _alternative(
    sent: EKAlternative, ak_public: bytes, *, at: datetime, allow_simulator: bool
) -> tuple[Alternative, CheckedKeys]:
    keys = ak_activation.check_keys(b64decode(sent.ek_public, "ek_alternatives.ek_public"), ak_public)
    serial = None
    if sent.ek_cert_pem is not None:
        parsed = ek_certificate.parse(b64decode(sent.ek_cert_pem, "ek_alternatives.ek_cert_pem"))
        claims = ek_certificate.verify(parsed, ek=keys.ek, at=at, allow_simulator=allow_simulator)
        serial = chip_serial(claims.manufacturer, claims.model, claims.chip_serial)
    return Alternative(ek_fingerprint=keys.ek.fingerprint(), chip_serial=serial), keys


def leading(certificate: Certificate, sent: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return those of *sent* that may lead from *certificate* upwards: each named as issuer by one before it.

    What else a stranger sends would only be kept. At most five, of 16 KiB together, without what follows them.
    """
    candidates = []
    for der in sent:
        with contextlib.suppress(MalformedEvidence):
            candidates.append(parse_certificate(der))
    found: dict[str, Certificate] = {}
    wanted, room = [certificate], MAX_CHAIN_BYTES
    while wanted:
        below = wanted.pop(0)
        for each in candidates:
            named = each.subject_key == below.issuer_key or (below.aki is not None and each.ski == below.aki)
            if (
                named
                and each.sha256 not in found
                and len(found) < MAX_CHAIN_CERTIFICATES
                and len(each.der) <= room
            ):
                found[each.sha256] = each
                room -= len(each.der)
                wanted.append(each)
    return tuple(each.der for each in found.values())


def named(sent: str, candidates: list[str]) -> bool:
    """Return True if *sent* equals one of *candidates*; every comparison takes the same time."""
    lowered = sent.lower().encode("ascii")
    found = False
    for candidate in candidates:
        found |= hmac.compare_digest(lowered, candidate.encode("ascii"))
    return found
