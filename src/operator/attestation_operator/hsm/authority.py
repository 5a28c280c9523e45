"""A CA whose key is on a token: its rules, its certificate by itself, and what proves that both belong together."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.api.hsm import HSMIssuer
from attestation.errors import CAInvalid
from attestation.keys.open import CAPrivateKey, OpenKey
from attestation.pki.content import SERIAL_BYTES, serial_of
from attestation.pki.external import IssuingCA, demand_parent, make_ca, read_ca
from attestation.pki.leaf import LeafPolicy
from attestation_operator.crds.hsm import IssuerSpec
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.objects import distinguished

MAX_COMMON_NAME: Final = 64
RENEWED_BEFORE: Final = timedelta(days=30)
"""So long before the last moment a CA's certificate by itself is made anew, for relying parties to fetch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A CA that signs now.

    Args:
        issuer_id: How the service calls its key.
        ca: Its certificate.
        chain: What is handed out behind a leaf: itself and what certifies it, nearest first, without a certificate
            that is by itself; DER.
        key: Its key.
        policy: What it certifies.
        crl_url: Where its list is, as certificates say it; None where they say nothing.
        ocsp_url: Likewise of OCSP.
        ca_url: Likewise of its certificate.
        trusted: Certificates of the issuer's keys that sign no more, or not yet, DER: relying parties know them too.
    """

    issuer_id: str
    ca: IssuingCA
    chain: tuple[bytes, ...]
    key: CAPrivateKey = field(repr=False)
    policy: LeafPolicy
    crl_url: str | None
    ocsp_url: str | None
    ca_url: str | None
    trusted: tuple[bytes, ...] = ()


def authority_of(
    spec: IssuerSpec, *, key: OpenKey, ca: IssuingCA, known: HSMIssuer, chain: Sequence[bytes] = ()
) -> Authority:
    """Return the CA of an issuer that the service knows; *chain* is its certificate and those above it, DER."""
    return Authority(
        issuer_id=known.issuer_id,
        ca=ca,
        chain=tuple(each for each in chain if not _is_by_itself(each)),
        key=key.private_key,
        policy=policy_of(spec),
        crl_url=known.crl_url if spec.crl.distribution_point else None,
        ocsp_url=known.ocsp_url if spec.crl.ocsp else None,
        ca_url=known.ca_url if spec.crl.distribution_point or spec.crl.ocsp else None,
    )


def policy_of(spec: IssuerSpec) -> LeafPolicy:
    """Return what an issuer certifies."""
    said = spec.policy
    return LeafPolicy(
        max_duration=parse_duration(said.max_duration),
        usages=frozenset(said.usages),
        allow_ca=said.allow_ca,
        max_path_length=spec.path_len - 1,
        names=said.names.rules(),
        no_rev_avail=said.no_rev_avail,
    )


def self_signed(
    spec: IssuerSpec, key: OpenKey, *, at: datetime, number: int = 1, subject: x509.Name | None = None
) -> bytes:
    """Return the certificate of a CA key by itself, DER. Blocks: its token signs.

    Args:
        spec: What it says.
        key: The key.
        at: Now.
        number: Of the key: from the second on it stands in the name, so that no two keys share one.
        subject: The name that the key has already: lists and certificates say it.

    Raises:
        AttestationError: As `attestation.pki.external.make_ca`.
    """
    return make_ca(
        subject=subject if subject is not None else _subject(spec, number),
        spki=spki_of(key),
        key=key.private_key,
        serial=serial_of(secrets.token_bytes(SERIAL_BYTES)),
        at=at,
        duration=parse_duration(spec.ca_duration),
        path_length=spec.path_len,
    )


def _subject(spec: IssuerSpec, number: int) -> x509.Name:
    assert spec.subject is not None
    named = spec.subject
    if number > 1:
        behind = f" G{number}"
        common = f"{named.common_name[: MAX_COMMON_NAME - len(behind)]}{behind}"
        named = named.model_copy(update={"common_name": common})
    try:
        parts = [x509.NameAttribute(x509.ObjectIdentifier(oid), text) for oid, text in distinguished(named)]
    except ValueError as e:
        raise CAInvalid(f"spec.subject: {e}") from e
    return x509.Name(parts)


def renewal_due(spec: IssuerSpec, ca: IssuingCA, *, at: datetime) -> bool:
    """Whether a CA's certificate by itself is to be made anew, under the same key and name.

    Early enough that no certificate is cut short by it, and that everybody has the new one before the old one ends;
    and not before half of its life. So is one that has not begun: it was made by a clock that was ahead.
    """
    if at < ca.not_before:
        return True
    said = spec.rotation.renew_before
    before = parse_duration(said) if said else parse_duration(spec.policy.max_duration) + RENEWED_BEFORE
    return at >= ca.not_after - min(before, (ca.not_after - ca.not_before) / 2)


def subject_of(pem: str) -> x509.Name:
    """Return the name of a CA."""
    return x509.load_pem_x509_certificate(pem.encode()).subject


def within(pem: str, at: datetime) -> datetime:
    """Return the instant of a certificate's life that is nearest to *at*; where it is none, others find that out."""
    try:
        found = x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        return at
    return min(max(at, found.not_valid_before_utc), found.not_valid_after_utc)


def fingerprint_of(key: OpenKey) -> str:
    """Return SHA-256 of a key's SubjectPublicKeyInfo, hex."""
    return hashlib.sha256(spki_of(key)).hexdigest()


def spki_of(key: OpenKey) -> bytes:
    """Return the SubjectPublicKeyInfo of a key, DER."""
    return key.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def proven_ca(pem: str, key: OpenKey, *, at: datetime, by_itself: bool) -> IssuingCA | None:
    """Return the CA of *pem*, None where it is of another key, or not by the key itself where it must be.

    The certificate stands in a status, which others may write: only the key's own signature makes it that of the CA.

    Raises:
        CAInvalid: It is of this key, and no certificate with which a CA may issue.
    """
    try:
        chain = chain_of(pem)
        certificate = x509.load_der_x509_certificate(chain[0])
        if certificate.public_key() != key.public_key:
            return None
        if by_itself:
            certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return None
    return demand_chain(chain, at=at)


def demand_chain(chain: Sequence[bytes], *, at: datetime) -> IssuingCA:
    """Return the CA whose certificate is the first of *chain*, DER; each of them may issue, and issued the one before.

    Raises:
        CAInvalid: One is none with which a CA may issue now, or a certificate that is not by itself stands alone.
    """
    ca = read_ca(chain[0], at=at)
    for each in chain[1:]:
        demand_parent(each, at=at)
    if len(chain) == 1 and not _is_by_itself(chain[0]):
        raise CAInvalid("the CA certificate is by another CA, whose certificate must stand behind it")
    for lower, upper in pairwise(map(x509.load_der_x509_certificate, chain)):
        try:
            lower.verify_directly_issued_by(upper)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as e:
            raise CAInvalid(
                f"the CA certificate {upper.subject.rfc4514_string()} did not issue the one before it"
            ) from e
    return ca


def _is_by_itself(certificate: bytes) -> bool:
    found = x509.load_der_x509_certificate(certificate)
    return found.issuer == found.subject


def chain_of(pem: str) -> list[bytes]:
    """Return certificates in PEM as DER, in their order.

    Raises:
        ValueError: There is none.
    """
    return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(pem.encode())]


def pem_of(certificate: bytes) -> str:
    """Return a DER certificate as PEM."""
    return x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM).decode("ascii")
