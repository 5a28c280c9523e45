"""What lists and answers take from the certificate of the CA key that stands behind them, byte for byte."""

# Algorithms for: ca-key
from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, padding, rsa

from attestation.endorsements import der
from attestation.errors import KeyUnsupported, MalformedEvidence
from attestation.pki.content import SigningKey

_SUBJECT_KEY_IDENTIFIER = "2.5.29.14"
# AlgorithmIdentifier: RFC 5758 §3.2 without parameters, RFC 4055 §5 with NULL, RFC 9881 §2 without.
_ECDSA_SHA384 = bytes.fromhex("300a06082a8648ce3d040303")
_RSA_SHA384 = bytes.fromhex("300d06092a864886f70d01010c0500")
_MLDSA_87 = bytes.fromhex("300b0609608648016503040313")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerIdentity:
    """A CA as lists and answers name it.

    Args:
        subject: Its Name, DER as in its certificate: verifiers compare it with what leaves say.
        key_bits: Content of the BIT STRING of its SubjectPublicKeyInfo, without the byte of unused bits: what
            CertID hashes (RFC 6960 §4.1.1).
        key_id: Its SubjectKeyIdentifier, usually 20 bytes: what the AuthorityKeyIdentifier of a list repeats.
    """

    subject: bytes
    key_bits: bytes = field(repr=False)
    key_id: bytes


def identity_of(certificate: bytes) -> IssuerIdentity:
    """Read *certificate*, one DER Certificate (RFC 5280 §4.1) of ours.

    Raises:
        MalformedEvidence: Not a certificate, or one without SubjectKeyIdentifier.
    """
    outer = der.only(certificate, der.SEQUENCE, "certificate")
    tbs = der.expect(certificate, outer.start, outer.stop, der.SEQUENCE, "certificate: signed part")
    # TBSCertificate ::= SEQUENCE { [0] version, serialNumber, signature, issuer, validity, subject,
    #                               subjectPublicKeyInfo, ..., [3] extensions }
    parts = list(der.elements(certificate, tbs.start, tbs.stop))
    tags = [part.tag for part in parts[:7]]
    if tags != [0xA0, der.INTEGER, *[der.SEQUENCE] * 5]:
        raise MalformedEvidence("certificate: not of version 3")
    subject, info = parts[5], parts[6]
    algorithm = der.expect(
        certificate, info.start, info.stop, der.SEQUENCE, "certificate: algorithm of the key"
    )
    key = der.expect(certificate, algorithm.stop, info.stop, der.BIT_STRING, "certificate: key")
    return IssuerIdentity(
        subject=certificate[subject.at : subject.stop],
        key_bits=der.whole_bytes(certificate, key),
        key_id=_key_id(certificate, parts[-1]),
    )


def _key_id(certificate: bytes, part: der.Element) -> bytes:
    if part.tag != 0xA3:
        raise MalformedEvidence("certificate: no extensions")
    listed = der.expect(certificate, part.start, part.stop, der.SEQUENCE, "certificate: extensions")
    for extension in der.elements(certificate, listed.start, listed.stop):
        members = list(der.elements(certificate, extension.start, extension.stop))
        if members and der.oid(certificate, members[0]) == _SUBJECT_KEY_IDENTIFIER:
            value = certificate[members[-1].start : members[-1].stop]
            found = der.only(value, der.OCTET_STRING, "certificate: SubjectKeyIdentifier")
            return value[found.start : found.stop]
    raise MalformedEvidence("certificate: no SubjectKeyIdentifier")


def algorithm_of(key: SigningKey) -> bytes:
    """Return the AlgorithmIdentifier, DER, with which `sign` signs (HSM §7.3).

    Raises:
        KeyUnsupported: Neither P-384 nor RSA nor ML-DSA-87.
    """
    if isinstance(key, rsa.RSAPrivateKey):
        return _RSA_SHA384
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        return _ECDSA_SHA384
    if isinstance(key, mldsa.MLDSA87PrivateKey):
        return _MLDSA_87
    raise KeyUnsupported(
        f"lists and answers are signed by P-384, RSA or ML-DSA-87, not by {type(key).__name__}"
    )


def sign(key: SigningKey, signed: bytes) -> bytes:
    """Return the signature over *signed*: ECDSA or PKCS#1 v1.5 with SHA-384, or ML-DSA-87 without context.

    It may ask a token or a TPM: never on the event loop.
    """
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(signed, padding.PKCS1v15(), hashes.SHA384())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(signed, ec.ECDSA(hashes.SHA384()))
    return key.sign(signed)


def bit_string(content: bytes) -> bytes:
    """Return *content* as a BIT STRING without unused bits, as signatures are."""
    return der.write(der.BIT_STRING, b"\0" + content)
