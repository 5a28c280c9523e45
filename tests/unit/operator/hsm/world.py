"""Issuers, tokens and requests as values: what the pure decisions are given."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.api.hsm import HSMIssuer
from attestation.keys.open import OpenKey
from attestation.keys.uri import parse_key_uri
from attestation_operator.crds.hsm import IssuerSpec
from attestation_operator.hsm.authority import Authority, authority_of, pem_of, proven_ca, self_signed
from attestation_operator.hsm.objects import Issuer, Module, read_issuer, read_module
from attestation_operator.objects import FINALIZER, HSM_CLUSTER_ISSUER, HSM_ISSUER

AT: Final = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
UID: Final = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
SPEC: Final[dict[str, Any]] = {
    "hsmRef": {"name": "softhsm"},
    "mode": "SelfSigned",
    "subject": {"commonName": "Test CA", "organizations": ["Example"], "countries": ["DE"]},
}


def ready(status: str = "True", reason: str = "Checked", *, generation: int = 1) -> list[dict[str, Any]]:
    """Return conditions with this Ready alone."""
    return [
        {
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": "said",
            "observedGeneration": generation,
            "lastTransitionTime": "2026-11-26T11:00:00Z",
        }
    ]


def module(status: str = "True", *, generation: int = 1, **spec: Any) -> Module:
    """Return a token, as its status says."""
    said = {"module": "softhsm", "tokenLabel": "hsm", "allowedNamespaces": ["default"]}
    return read_module(
        {
            "metadata": {
                "name": "softhsm",
                "uid": "u-hsm",
                "resourceVersion": "3",
                "generation": generation,
            },
            "spec": said | spec,
            "status": {"conditions": ready(status)},
        }
    )


def issuer_raw(
    status: dict[str, Any] | None = None, *, deleting: bool = False, held: bool = True, **spec: Any
) -> dict[str, Any]:
    """Return an issuer as an API server shows it."""
    metadata: dict[str, Any] = {
        "name": "payments",
        "namespace": "default",
        "uid": UID,
        "resourceVersion": "5",
        "generation": 1,
        "finalizers": [FINALIZER] if held else [],
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-26T11:59:00Z"
    said = {name: value for name, value in (SPEC | spec).items() if value is not None}
    return {
        "metadata": metadata,
        "spec": said,
        "status": {"conditions": ready("Unknown", "Initializing")} if status is None else status,
    }


def issuer(status: dict[str, Any] | None = None, **more: Any) -> Issuer:
    """Return an issuer."""
    return read_issuer(HSM_ISSUER, issuer_raw(status, **more))


def cluster_issuer(status: dict[str, Any] | None = None, **more: Any) -> Issuer:
    """Return an issuer of the whole cluster, which may name a key that is there already."""
    raw = issuer_raw(status, **more)
    del raw["metadata"]["namespace"]
    return read_issuer(HSM_CLUSTER_ISSUER, raw)


def key(name: str = "ca") -> OpenKey:
    """Return an open key of P-384; the same for the same name."""
    return _key(name)


@cache
def _key(name: str) -> OpenKey:
    ref = parse_key_uri(f"pkcs11:token=hsm;object={name};type=private")
    return OpenKey(ec.generate_private_key(ec.SECP384R1()), ref=ref, origin="generated", backend="pkcs11")


@cache
def ca_pem(name: str = "ca") -> str:
    """Return the certificate of a key by itself."""
    return pem_of(self_signed(IssuerSpec.model_validate(SPEC), key(name), at=AT))


@cache
def ca_pem_by_another() -> str:
    """Return a certificate of the CA's name and key that another key signed: it could issue, and is not its own."""
    ca = x509.load_pem_x509_certificate(ca_pem().encode())
    builder = x509.CertificateBuilder(
        ca.issuer, ca.subject, ca.public_key(), 1, ca.not_valid_before_utc, ca.not_valid_after_utc
    )
    for each in ca.extensions:
        builder = builder.add_extension(each.value, each.critical)
    other: ec.EllipticCurvePrivateKey = key("other").private_key  # type: ignore[assignment]  # P-384
    return builder.sign(other, hashes.SHA384()).public_bytes(Encoding.PEM).decode("ascii")


def known(number: int = 0) -> HSMIssuer:
    """Return what the service knows of the CA."""
    return HSMIssuer(
        issuer_id="ab" * 8,
        uid=UID,
        crl_url="http://service.example/pki/hsm/abababababababab.crl",
        ocsp_url="http://service.example/ocsp",
        ca_url="http://service.example/pki/hsm/abababababababab.crt",
        revision=0,
        crl_number=number,
    )


def authority(**spec: Any) -> Authority:
    """Return a CA that signs."""
    ca = proven_ca(ca_pem(), key(), at=AT, by_itself=True)
    assert ca is not None
    return authority_of(IssuerSpec.model_validate(SPEC | spec), key=key(), ca=ca, known=known())


@cache
def csr(*names: str, bad: bool = False) -> bytes:
    """Return a request for these DNS names, PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    pem = made.public_bytes(Encoding.PEM)
    return b"-----BEGIN NOTHING-----\n" if bad else pem


def request_raw(
    *conditions: tuple[str, str, str], age: timedelta = timedelta(), **spec: Any
) -> dict[str, Any]:
    """Return a CertificateRequest with conditions (type, status, reason), created so long ago."""
    said = {
        "issuerRef": {"name": "payments", "kind": "HsmIssuer", "group": "attestation.itl.io"},
        "request": base64.b64encode(csr("a.example")).decode(),
        "usages": ["digital signature", "server auth"],
        "duration": "1h",
        "username": "somebody",
    }
    times = {"lastTransitionTime": "2026-11-26T11:00:00Z", "message": "said"}
    return {
        "metadata": {
            "name": "cr-1",
            "namespace": "default",
            "uid": "u-cr",
            "resourceVersion": "9",
            "generation": 1,
            "creationTimestamp": (AT - age).isoformat().replace("+00:00", "Z"),
        },
        "spec": said | spec,
        "status": {
            "conditions": [
                {"type": type_, "status": status, "reason": reason, **times}
                for type_, status, reason in conditions
            ]
        },
    }
