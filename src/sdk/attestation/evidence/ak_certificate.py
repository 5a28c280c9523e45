"""A certificate of an attestation key, shown when a machine is introduced (TPM.md §§2.4, 3.4, 6; level `ak-certified`).

Where no maker vouches for the EK, somebody may vouch for an attestation key: the provider of a virtual machine for an
AK in its TPM, a maker for an IAK. That key is seldom the AK that we activated, so one mechanism serves all of them: *a
certified attestation key vouches for the AK*, by TPM2_Certify in the TPM that holds both. The certified key is
restricted, so the statement was made by its TPM; the Qualified Name in it says that the AK is inside, and not only
loaded.

    qualifyingData = SHA-256(LP("itl-ak-certificate/v1") ‖ LP(machine_id) ‖ LP(challenge_id) ‖ LP(proof))

LP(x) = u32 length, big-endian ‖ x. *proof* is that of the activation, which only this TPM can make: so the statement is
fresh, and for this machine. Where the certificate is that of the AK itself, the activation is all that is needed.

What it does not say: that the EK is in the same TPM. So the level is below that of a certified EK.
Layout: TCG TPM 2.0 Library, Part 2, TPMS_CERTIFY_INFO; Part 3, 18.2.
"""

# Algorithms for: node-proof
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.endorsements.ak_certificate import (
    AKAnchors,
    AKCertificateClaims,
    UnverifiedAKCertificate,
    parse_ak_certificate,
    verify_ak_certificate,
)
from attestation.errors import (
    AKAttributesRejected,
    AKCertificateRejected,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.tpm import (
    TPM_GENERATED,
    Attest,
    AttestType,
    CertifyInfo,
    Public,
    Signature,
    VerificationKey,
    parse_attest,
    parse_public,
    parse_signature,
)
from attestation.tpm.ak import check_ak
from attestation.wire import u32

MEDIA_TYPE = "application/vnd.itl.ak-certificate"

KEY: Final = "ak-cert-key"
STATEMENT: Final = "ak-cert-statement"
FRESH: Final = "ak-cert-fresh"
SUBJECT: Final = "ak-cert-subject"

_CONTEXT: Final = b"itl-ak-certificate/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedStatement:
    """What a certified attestation key is said to have signed about the AK.

    Args:
        public: Its public area.
        signed: The TPMS_ATTEST exactly as received.
        attest: Its fields.
        info: What it certifies.
        signature: The parsed TPMT_SIGNATURE.
    """

    public: Public
    signed: bytes
    attest: Attest
    info: CertifyInfo
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedVouching:
    """A certificate, and what its key says of the AK. Nothing in it may be believed yet.

    Args:
        certificate: Of an attestation key.
        statement: None where the certificate is to be that of the AK itself.
    """

    certificate: UnverifiedAKCertificate
    statement: UnverifiedStatement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VouchedAK:
    """Somebody whom the operator believes vouches for this AK; only `verify` says so.

    Args:
        ak_name: Name of the AK.
        certificate: What the certificate says, and its path.
        own: The certificate is that of the AK itself.
    """

    ak_name: bytes
    certificate: AKCertificateClaims
    own: bool


def binding(*, machine_id: str, challenge_id: str, proof: bytes) -> bytes:
    """Return the qualifyingData of the statement, 32 bytes.

    Args:
        machine_id: As answered at the introduction, ASCII.
        challenge_id: Likewise.
        proof: Of the activation (`ak_activation.proof`), 32 bytes.
    """
    parts = (_CONTEXT, machine_id.encode("ascii"), challenge_id.encode("ascii"), proof)
    return hashlib.sha256(b"".join(u32(len(part)) + part for part in parts)).digest()


def parse(certificate: bytes, statement: tuple[bytes, bytes, bytes] | None) -> UnverifiedVouching:
    """Parse a certificate and what its key says of the AK.

    Args:
        certificate: PEM, DER, or the content of an NV index with padding.
        statement: TPM2B_PUBLIC of the certified key, TPMS_ATTEST of type certify without a size, TPMT_SIGNATURE; None
            where the certificate is that of the AK itself.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    parsed = parse_ak_certificate(certificate)
    if statement is None:
        return UnverifiedVouching(certificate=parsed, statement=None)
    public, signed, signature = statement
    attest = parse_attest(signed)
    if not isinstance(attest.attested, CertifyInfo):
        raise MalformedEvidence(f"TPMS_ATTEST is of type 0x{attest.type:04x}, not a certification")
    return UnverifiedVouching(
        certificate=parsed,
        statement=UnverifiedStatement(
            public=parse_public(public),
            signed=signed,
            attest=attest,
            info=attest.attested,
            signature=parse_signature(signature),
        ),
    )


def verify(
    unverified: UnverifiedVouching,
    *,
    ak: Public,
    binding: bytes,
    anchors: AKAnchors,
    chain: Sequence[bytes],
    at: datetime,
) -> VouchedAK:
    """Verify that somebody whom the operator believes vouches for the AK that was activated.

    Args:
        unverified: Result of `parse`.
        ak: The AK, proven by this very activation.
        binding: `binding` of it.
        anchors: Those configured for introductions.
        chain: DER of intermediates that came along; untrusted.
        at: The instant to verify at, UTC.

    Raises:
        AKCertificateRejected: With the check that failed; no value of it is told.
    """
    statement = unverified.statement
    key = ak if statement is None else statement.public
    # 1. ak-cert-key: restricted, and fixed to its TPM. An IDevID, or any other key of the TPM, signs bytes that look
    #    like a statement of it, whoever certified the key.
    try:
        check_ak(key)
    except (AKAttributesRejected, MalformedEvidence) as e:
        raise AKCertificateRejected("the certified key is no attestation key", check=KEY) from e
    # 2. ak-cert-key: the certificate is that of this key. Otherwise anybody could show a stranger's.
    if not hmac.compare_digest(unverified.certificate.certificate.spki, key.spki_der()):
        raise AKCertificateRejected("the certificate is for another key", check=KEY)
    # 3. ak-cert-profile, ak-cert-path: somebody whom the operator believes says that the key is in a TPM.
    claims = verify_ak_certificate(unverified.certificate, anchors=anchors, chain=chain, at=at)
    if statement is not None:
        _check_statement(statement, ak=ak, expected=binding)
    return VouchedAK(ak_name=ak.name, certificate=claims, own=statement is None)


def _check_statement(statement: UnverifiedStatement, *, ak: Public, expected: bytes) -> None:
    attest, info, key = statement.attest, statement.info, statement.public
    # 4. ak-cert-statement: it signed exactly these bytes. Until this holds, no field is ours to read.
    try:
        VerificationKey(key).verify(statement.signature, statement.signed)
    except SignatureInvalid as e:
        raise AKCertificateRejected("the certified key did not sign the statement", check=STATEMENT) from e
    # 5. ak-cert-statement: its TPM made it, and the signer is inside: a key that is only loaded has its Name for a
    #    qualified name.
    if attest.magic != TPM_GENERATED or attest.type != AttestType.CERTIFY:
        raise AKCertificateRejected("not a certification of a TPM", check=STATEMENT)
    if attest.qualified_signer in (b"", key.name):
        raise AKCertificateRejected("the certified key is outside a TPM", check=STATEMENT)
    # 6. ak-cert-fresh: for this activation; constant time. An old statement would let the AK outlive its TPM's honesty,
    #    one for another machine would carry the certificate to it.
    if not hmac.compare_digest(attest.extra_data, expected):
        raise AKCertificateRejected("the statement answers another activation", check=FRESH)
    # 7. ak-cert-subject: it is about the AK. The Name is a digest over all of its public area.
    if not hmac.compare_digest(info.name, ak.name):
        raise AKCertificateRejected("the statement is about another key than the AK", check=SUBJECT)
    # 8. ak-cert-subject: the AK is inside this TPM. A public area that was only loaded has its Name for a qualified
    #    name; its private half may be anywhere.
    qualified = info.qualified_name
    if qualified == ak.name or len(qualified) != len(ak.name) or qualified[:2] != ak.name[:2]:
        raise AKCertificateRejected("the AK is not in the TPM of the certified key", check=SUBJECT)
