"""Certificates of attestation keys: AK and IAK (TPM.md §§2.3, 2.4, 6; HSM-AND-KUBERNETES §20).

Whoever issues one says that it looked: the key is restricted and cannot leave a TPM. No list of such issuers exists,
so every anchor is one that an operator configured, and for one use only. The reader is that of EK certificates, lenient
where published certificates are odd; the profile is not:

    ak-cert-profile    version 3, positive serial number, an issuer, no CA, KeyUsage digitalSignature,
                       ExtendedKeyUsage 2.23.133.8.3, a critical SAN where the subject is empty, nothing critical that
                       we do not process, no extension twice
    ak-cert-path       a path to one of the anchors given (`endorsements.path`)

What a certificate names stands beside: `OtherName`s are read here, and understood by `endorsements.node_identity`. A
directory name in its SAN is that of a TPM model, and names no machine.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from attestation.endorsements import der
from attestation.endorsements.certificate import (
    BASIC_CONSTRAINTS,
    EXTENDED_KEY_USAGE,
    KEY_USAGE,
    SUBJECT_ALT_NAME,
    Certificate,
    PublicKey,
    key_weakness,
    parse_certificate,
)
from attestation.endorsements.ek_trust import PathValidation
from attestation.endorsements.path import CertificateIndex, Expiry, PathFailure, SentIssuers, build_path
from attestation.errors import AKCertificateRejected, MalformedEvidence
from attestation.wire import der_of

MAX_OTHER_NAMES: Final = 8
"""So many otherNames are read; real certificates have one."""

PROFILE: Final = "ak-cert-profile"
PATH: Final = "ak-cert-path"

_EKU_AK: Final = "2.23.133.8.3"
_OTHER_NAME: Final = 0xA0
_UNDERSTOOD_IF_CRITICAL: Final = frozenset(
    {BASIC_CONSTRAINTS, KEY_USAGE, SUBJECT_ALT_NAME, EXTENDED_KEY_USAGE}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherName:
    """One otherName of a subject alternative name (RFC 5280, 4.2.1.6).

    Args:
        oid: Its type, in dots.
        value: DER of what stands in its [0], header included.
    """

    oid: str
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedAKCertificate:
    """A certificate cut out of whatever stood in NV. Nothing in it may be believed yet.

    Args:
        certificate: Its fields.
        other_names: The otherNames of its subject alternative name, in their order.
        padding_bytes: How many bytes followed it.
    """

    certificate: Certificate
    other_names: tuple[OtherName, ...]
    padding_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AKCertificateClaims:
    """What a certificate says of an attestation key, said by an anchor given; only `verify_ak_certificate` makes one.

    It says so of `spki` alone: whoever uses it compares that with the key at hand, or verifies by `public_key`.

    Args:
        certificate: Its fields.
        other_names: Its otherNames.
        validation: The path to the anchor.
    """

    certificate: Certificate
    other_names: tuple[OtherName, ...]
    validation: PathValidation

    @property
    def spki(self) -> bytes:
        """The certified key, canonical SubjectPublicKeyInfo DER."""
        return self.certificate.spki

    @property
    def public_key(self) -> PublicKey:
        """The certified key."""
        return self.certificate.public_key

    @property
    def sha256(self) -> str:
        """SHA-256 of the certificate's DER, 64 lower-case hex."""
        return self.certificate.sha256


class AKAnchors:
    """Certificates of CAs that an operator believes about attestation keys, for one use. Immutable.

    Args:
        anchors: Each is trusted for its subject and key, self-signed or not.
        distrusted: SPKI SHA-256, hex, of keys that lead nowhere, whoever signed for them.

    Attributes:
        sha256: SHA-256 over those of the anchors, hex: names the set, as the digest of a manifest names a bundle.

    Raises:
        AKCertificateRejected: One of them is no CA's: it would vouch for nothing but itself.
    """

    def __init__(self, anchors: Iterable[Certificate], *, distrusted: Collection[str] = ()) -> None:
        self._index = CertificateIndex(anchors)
        for each in self._index:
            if not each.is_ca:
                raise AKCertificateRejected(f"{each.subject}: not the certificate of a CA", check=PATH)
        self._distrusted = frozenset(distrusted)
        self.sha256: Final = hashlib.sha256(
            "".join(sorted(each.sha256 for each in self._index)).encode("ascii")
        ).hexdigest()

    def __len__(self) -> int:
        return len(self._index)

    def __iter__(self) -> Iterator[Certificate]:
        return iter(self._index)

    def get(self, sha256: str) -> Certificate | None:
        """Return the anchor whose DER has this SHA-256 (hex), or None."""
        return self._index.get(sha256)

    def without(self, distrusted: Collection[str]) -> AKAnchors:
        """Return the anchors but those *distrusted* (SHA-256, hex); the keys of these lead nowhere either."""
        keys = {each.spki_sha256 for each in self._index if each.sha256 in distrusted}
        return AKAnchors(
            (each for each in self._index if each.spki_sha256 not in keys), distrusted=self._distrusted | keys
        )

    def validate(
        self, certificate: Certificate, chain: Sequence[bytes], *, at: datetime, expiry: Expiry
    ) -> PathValidation:
        """Find a path from *certificate* to one of the anchors; its profile is not looked at.

        Args:
            certificate: Of the attestation key.
            chain: DER of intermediates that came with it; untrusted.
            at: The instant to judge at, UTC.
            expiry: What a certificate outside its validity does.
        """
        sent = _Sent(chain, self._distrusted)
        found = build_path(certificate, anchors=self._index, intermediates=[sent], at=at, expiry=expiry)
        if isinstance(found, PathFailure):
            return PathValidation(ok=False, reason=found.reason, path=found.judged, bundle_sha256=self.sha256)
        notes = f" ({'; '.join(found.notes)})" if found.notes else ""
        return PathValidation(
            ok=True,
            reason=f"chains to {found.anchor.subject}{notes}",
            anchor_sha256=found.anchor.sha256,
            path=found.judged,
            bundle_sha256=self.sha256,
        )


class _Sent(SentIssuers):
    """Certificates that came along, without those of distrusted keys."""

    def __init__(self, ders: Sequence[bytes], distrusted: frozenset[str]) -> None:
        super().__init__(ders)
        self._distrusted = distrusted

    def candidates(self, certificate: Certificate) -> Iterator[Certificate]:
        """Yield who may have signed *certificate* and is not distrusted."""
        return (c for c in super().candidates(certificate) if c.spki_sha256 not in self._distrusted)


def parse_ak_certificate(data: bytes) -> UnverifiedAKCertificate:
    """Cut the certificate out of PEM, DER, or the content of an NV index with padding.

    Raises:
        MalformedEvidence: The only way to fail; longer than 8 KiB, no certificate, or a subject alternative name that
            cannot be read.
    """
    certificate = parse_certificate(der_of(data, "AK certificate", "CERTIFICATE", "TRUSTED CERTIFICATE"))
    return UnverifiedAKCertificate(
        certificate=certificate,
        other_names=_other_names(certificate),
        padding_bytes=certificate.padding_bytes,
    )


def verify_ak_certificate(
    unverified: UnverifiedAKCertificate, *, anchors: AKAnchors, chain: Sequence[bytes], at: datetime
) -> AKCertificateClaims:
    """Hold a certificate against the profile of attestation keys, and find a path to one of *anchors*.

    That it is about the key at hand is for the caller to compare: `AKCertificateClaims.spki`.

    Args:
        unverified: Result of `parse_ak_certificate`.
        anchors: Pinned for this very use; those of another use never stand in for them.
        chain: DER of intermediates that came with it; untrusted.
        at: The instant to verify at, UTC; what has expired is refused.

    Raises:
        AKCertificateRejected: With the check that failed.
    """
    read = unverified.certificate
    # 1. ak-cert-profile: the issuer says that this is a key of a TPM which attests. Without it, any certificate of the
    #    same CA would do: that of an EK, of a web server, of the CA itself.
    broken = _profile_broken(read)
    if broken is not None:
        raise AKCertificateRejected(broken, check=PROFILE)
    # 2. ak-cert-path: somebody whom the operator believes about this says so.
    validation = anchors.validate(read, chain, at=at, expiry=Expiry.FAIL)
    if not validation.ok:
        raise AKCertificateRejected(validation.reason, check=PATH)
    return AKCertificateClaims(certificate=read, other_names=unverified.other_names, validation=validation)


def _profile_broken(read: Certificate) -> str | None:
    """Return the first rule of the profile that is broken, or None."""
    if read.version != 3:
        return f"certificate version v{read.version}, v3 expected"
    if read.serial <= 0:
        return "serial number is not positive"
    if not read.issuer_name.relative:
        return "issuer is empty"
    if read.repeated_extension is not None:
        return "an extension appears twice"
    unknown = sorted(
        oid for oid, each in read.extensions.items() if each.critical and oid not in _UNDERSTOOD_IF_CRITICAL
    )
    if unknown:
        return f"unknown critical extension {unknown[0]}"
    if read.is_ca:
        return "BasicConstraints say that it is a CA"
    if read.key_usage is None or "digital_signature" not in read.key_usage:
        return "KeyUsage does not contain digitalSignature"
    if _EKU_AK not in read.extended_key_usage:
        return f"ExtendedKeyUsage does not contain {_EKU_AK}"
    san = read.extensions.get(SUBJECT_ALT_NAME)
    if not read.subject_name.relative and (san is None or not san.critical):
        return "the SAN must be critical where the subject is empty"
    return key_weakness(read)


def _other_names(read: Certificate) -> tuple[OtherName, ...]:
    """Return each otherName ::= [0] SEQUENCE { type-id OBJECT IDENTIFIER, value [0] EXPLICIT ANY }."""
    extension = read.extensions.get(SUBJECT_ALT_NAME)
    if extension is None:
        return ()
    value = extension.value
    outer = der.only(value, der.SEQUENCE, "subject alternative name")
    found: list[OtherName] = []
    for name in der.elements(value, outer.start, outer.stop):
        if name.tag != _OTHER_NAME:
            continue
        if len(found) == MAX_OTHER_NAMES:
            raise MalformedEvidence(f"more than {MAX_OTHER_NAMES} otherNames")
        kind = der.element(value, name.start, name.stop)
        tagged = der.expect(value, kind.stop, name.stop, 0xA0, "otherName: value")
        inner = der.element(value, tagged.start, tagged.stop)
        if tagged.stop != name.stop or inner.stop != tagged.stop:
            raise MalformedEvidence("otherName: trailing bytes")
        found.append(OtherName(oid=der.oid(value, kind), value=value[inner.at : inner.stop]))
    return tuple(found)
