"""What a token says (docs/operate/identity.md)."""

# Algorithms for: machine-token
from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key
from joserfc.jwk import ECKey, RSAKey

from attestation.extension import AttestedMachine, Tx

PROFILE: Final = "node-client"
"""Certificates whose key the machine's TPM holds and signs with."""
EK_URI: Final = "urn:itl:ek:"
"""In the names of a certificate: whose TPM it is."""
_CERTIFICATES: Final = 8

Bound = tuple[str, str]
"""Thumbprint of a key of the machine's TPM, and what it is: `certificate` or `ak`."""


def bound_key(tx: Tx, machine: AttestedMachine, at: datetime) -> Bound:
    """Return the key that a token of *machine* is bound to: that of its newest certificate, else its AK.

    The AK signs nothing that anybody brings: possession of it is shown by a quote alone.
    """
    for row in tx.issuances.live(machine.machine_id, PROFILE, at, _CERTIFICATES):
        issuer = tx.issuers.get(row.issuer_id)
        if row.state != "issued" or row.certificate is None or issuer is None or issuer.certificate is None:
            continue
        certificate = x509.load_der_x509_certificate(row.certificate)
        # The row is one of a table, and could have been written by another program: the signature could not.
        try:
            certificate.verify_directly_issued_by(x509.load_der_x509_certificate(issuer.certificate))
        except (ValueError, TypeError, InvalidSignature):
            continue
        # Nor could the machine that it names, though the row may say another. And only of a key in its TPM is it true
        # that nobody else has it.
        if row.key_tier is None or f"{EK_URI}{machine.ek_fingerprint}" not in _uris(certificate):
            continue
        return thumbprint(certificate.public_key()), "certificate"
    return thumbprint(load_der_public_key(machine.key_spki)), "ak"


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def thumbprint(key: object) -> str:
    """Return the thumbprint of a public key by RFC 7638 with SHA-256."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return ECKey(key, key).thumbprint()
    assert isinstance(key, rsa.RSAPublicKey)
    return RSAKey(key, key).thumbprint()


def claims_for(
    machine: AttestedMachine, *, issuer: str, audience: str, bound: Bound, at: datetime, lifetime: timedelta
) -> dict[str, Any]:
    """Return the claims of a new token."""
    now, (key_thumbprint, kind) = int(at.timestamp()), bound
    claims: dict[str, Any] = {
        "iss": issuer,
        "sub": f"machine:{machine.machine_id}",
        "aud": audience,
        "iat": now,
        "nbf": now,
        "exp": now + int(lifetime.total_seconds()),
        "jti": secrets.token_hex(16),
        "cluster": machine.cluster_id,
        "role": machine.role.value,
        "assurance": machine.assurance,
        "trust_vector": dict(machine.vector),
        "attested_at": int(machine.quoted_at.timestamp()),
        "cnf": {"jkt": key_thumbprint},
        "cnf_key": kind,
    }
    if machine.hostname is not None:
        claims["hostname"] = machine.hostname
    return claims


def document(issuer: str) -> Mapping[str, Any]:
    """Return what discovery says (OpenID Connect Discovery 1.0 §3): there is nowhere to log in."""
    return {
        "issuer": issuer,
        "jwks_uri": f"{issuer}/jwks.json",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256", "RS256"],
        "claims_supported": [
            *("iss", "sub", "aud", "iat", "nbf", "exp", "jti", "cluster", "role", "hostname"),
            *("assurance", "trust_vector", "attested_at", "cnf", "cnf_key"),
        ],
    }
