"""A CA whose key is on a token: its rules, its certificate by itself, and what proves that both belong together."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.api.hsm import HSMIssuer
from attestation.errors import CAInvalid
from attestation.keys.open import CAPrivateKey, OpenKey
from attestation.pki.content import SERIAL_BYTES, serial_of
from attestation.pki.external import IssuingCA, make_ca, read_ca
from attestation.pki.leaf import LeafPolicy
from attestation.pki.leaf_names import NameRules
from attestation_operator.crds.hsm import IssuerSpec
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.objects import distinguished


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A CA that signs now.

    Args:
        issuer_id: How the service calls its key.
        ca: Its certificate.
        chain: What certifies it, nearest first, DER; empty where it is self-signed.
        key: Its key.
        policy: What it certifies.
        crl_url: Where its list is, as certificates say it; None where they say nothing.
        ocsp_url: Likewise of OCSP.
        ca_url: Likewise of its certificate.
    """

    issuer_id: str
    ca: IssuingCA
    chain: tuple[bytes, ...]
    key: CAPrivateKey = field(repr=False)
    policy: LeafPolicy
    crl_url: str | None
    ocsp_url: str | None
    ca_url: str | None


def authority_of(spec: IssuerSpec, *, key: OpenKey, ca: IssuingCA, known: HSMIssuer) -> Authority:
    """Return the CA of an issuer that the service knows."""
    return Authority(
        issuer_id=known.issuer_id,
        ca=ca,
        chain=(),
        key=key.private_key,
        policy=policy_of(spec),
        crl_url=known.crl_url if spec.crl.distribution_point else None,
        ocsp_url=known.ocsp_url if spec.crl.ocsp else None,
        ca_url=known.ca_url if spec.crl.distribution_point or spec.crl.ocsp else None,
    )


def policy_of(spec: IssuerSpec) -> LeafPolicy:
    """Return what an issuer certifies. Where it lists any names, nothing else is certified."""
    names, said = spec.policy.names, spec.policy
    listed = (names.dns_domains, names.ip_ranges, names.uri_prefixes, names.email_domains)
    rules = NameRules()
    if any(listed):
        dns, addresses, uris, emails = listed
        rules = NameRules(dns_names=dns, ip_networks=addresses, uris=uris, emails=emails)
    return LeafPolicy(
        max_duration=parse_duration(said.max_duration),
        usages=frozenset(said.usages),
        allow_ca=said.allow_ca,
        max_path_length=spec.path_len - 1,
        names=rules,
        no_rev_avail=said.no_rev_avail,
    )


def self_signed(spec: IssuerSpec, key: OpenKey, *, at: datetime) -> bytes:
    """Return the certificate of a CA key by itself, DER. Blocks: its token signs.

    Raises:
        AttestationError: As `attestation.pki.external.make_ca`.
    """
    assert spec.subject is not None
    try:
        subject = x509.Name(
            [
                x509.NameAttribute(x509.ObjectIdentifier(oid), text)
                for oid, text in distinguished(spec.subject)
            ]
        )
    except ValueError as e:
        raise CAInvalid(f"spec.subject: {e}") from e
    return make_ca(
        subject=subject,
        spki=spki_of(key),
        key=key.private_key,
        serial=serial_of(secrets.token_bytes(SERIAL_BYTES)),
        at=at,
        duration=parse_duration(spec.ca_duration),
        path_length=spec.path_len,
    )


def spki_of(key: OpenKey) -> bytes:
    """Return the SubjectPublicKeyInfo of a key, DER."""
    from cryptography.hazmat.primitives.serialization import PublicFormat

    return key.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def proven_ca(pem: str, key: OpenKey, *, at: datetime, by_itself: bool) -> IssuingCA | None:
    """Return the CA of *pem*, None where it is of another key, or not by the key itself where it must be.

    The certificate stands in a status, which others may write: only the key's own signature makes it that of the CA.

    Raises:
        CAInvalid: It is of this key, and no certificate with which a CA may issue.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        der = certificate.public_bytes(Encoding.DER)
        if certificate.public_key() != key.public_key:
            return None
        if by_itself:
            certificate.verify_directly_issued_by(certificate)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return None
    return read_ca(der, at=at)


def pem_of(certificate: bytes) -> str:
    """Return a DER certificate as PEM."""
    return x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM).decode("ascii")
