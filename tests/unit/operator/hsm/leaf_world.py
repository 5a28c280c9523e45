"""HsmCertificates, their keys, requests and Secrets as values: what the pure decisions are given."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.clock import rfc3339
from attestation_operator.actions import EmitEvent, SetStatus
from attestation_operator.crds.leaves import HsmCertificateSpec
from attestation_operator.hsm.leaf_objects import Ask, Case, Leaf, Looked, Seen, read_leaf
from attestation_operator.hsm.leaf_request import made_request, wanted_of
from attestation_operator.hsm.leaves import reconcile
from attestation_operator.hsm.objects import Absent
from attestation_operator.objects import FINALIZER
from tests.unit.operator.hsm.world import AT, module

UID: Final = "0badcafe-0f0e-4c55-9d4a-3f6f0e1b2c3d"
SPEC: Final[dict[str, Any]] = {
    "issuerRef": {"name": "payments"},
    "hsmRef": {"name": "softhsm"},
    "subject": {"commonName": "Pay", "organizations": ["Example"]},
    "dnsNames": ["pay.example.org"],
    "ipAddresses": ["10.0.0.1", "2001:DB8::1"],
    "uriSANs": ["spiffe://cluster.local/pay"],
    "emailAddresses": ["pay@example.org"],
    "usages": ["digital signature", "server auth"],
    "duration": "24h",
    "secretName": "pay-tls",
}


def condition(type_: str, status: str, reason: str, *, generation: int = 1) -> dict[str, Any]:
    """Return a condition."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "said",
        "observedGeneration": generation,
        "lastTransitionTime": "2026-11-26T11:00:00Z",
    }


SEEN: Final = [condition("Ready", "Unknown", "Initializing")]
OPEN: Final[dict[str, Any]] = {"conditions": SEEN, "requestNumber": 1, "keyRevision": 1}


def issued(at: datetime = AT, **more: Any) -> dict[str, Any]:
    """Return a status with a certificate that was issued at a time."""
    return {
        "conditions": [condition("Ready", "True", "Issued"), condition("Issuing", "False", "Issued")],
        "observedGeneration": 1,
        "requestNumber": 1,
        "revision": 1,
        "keyRevision": 1,
        "failures": 0,
        "issuedBy": "attestation.itl.io/HsmIssuer/payments",
        "serialNumber": "a",
        "notAfter": rfc3339(at + timedelta(hours=24)),
        **more,
    }


def leaf(
    status: Mapping[str, Any] | None = None,
    *,
    held: bool = True,
    deleting: bool = False,
    generation: int = 1,
    **spec: Any,
) -> Leaf:
    """Return an HsmCertificate; None takes a member of its spec away."""
    metadata: dict[str, Any] = {
        "name": "pay",
        "namespace": "default",
        "uid": UID,
        "resourceVersion": "5",
        "generation": generation,
        "finalizers": [FINALIZER] if held else [],
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-26T11:59:00Z"
    said = {name: value for name, value in (SPEC | spec).items() if value is not None}
    status = {"conditions": SEEN} if status is None else status
    return read_leaf({"metadata": metadata, "spec": said, "status": status})


def private(name: str = "leaf") -> ec.EllipticCurvePrivateKey:
    """Return a key; the same for the same name."""
    return _private(name)


@cache
def _private(name: str) -> ec.EllipticCurvePrivateKey:
    del name
    return ec.generate_private_key(ec.SECP256R1())


def spki(name: str = "leaf") -> bytes:
    """Return its public half."""
    return private(name).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key(name: str = "leaf", **spec: Any) -> Seen:
    """Return a key on the token, with a request for what is wanted."""
    wanted = wanted_of(HsmCertificateSpec.model_validate(SPEC | spec))
    return Seen(
        spki=spki(name),
        algorithm="ecdsa-p256",
        uri=f"pkcs11:token=hsm;object={UID}-1;type=private",
        request=made_request(wanted, private(name)),
    )


NAMES: Final[tuple[x509.GeneralName, ...]] = (
    x509.DNSName("pay.example.org"),
    x509.IPAddress(ip_address("10.0.0.1")),
    x509.IPAddress(ip_address("2001:db8::1")),
    x509.UniformResourceIdentifier("spiffe://cluster.local/pay"),
    x509.RFC822Name("pay@example.org"),
)
SUBJECT: Final = ((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "Pay"))


def certificate(
    name: str = "leaf",
    *,
    at: datetime = AT,
    life: timedelta = timedelta(hours=24),
    names: tuple[x509.GeneralName, ...] = NAMES,
    subject: tuple[tuple[x509.ObjectIdentifier, str], ...] = SUBJECT,
    purposes: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.SERVER_AUTH,),
    signs: bool = True,
    ca: bool = False,
) -> str:
    """Return a certificate as a stranger might issue it, PEM."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(oid, text) for oid, text in subject]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "CA")]))
        .public_key(private(name).public_key())
        .serial_number(10)
        .not_valid_before(at - timedelta(minutes=5))
        .not_valid_after(at + life)
        .add_extension(
            x509.KeyUsage(signs, False, not signs, False, False, False, False, False, False), critical=True
        )
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    made = builder.sign(private("ca"), hashes.SHA256())
    return made.public_bytes(Encoding.PEM).decode()


def encoded(text: str | bytes) -> str:
    """Return base64."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def owner(uid: str = UID) -> list[dict[str, Any]]:
    """Return what an object of ours says."""
    return [{"kind": "HsmCertificate", "name": "pay", "uid": uid, "controller": True}]


def request(
    ready: tuple[str, str] | None = None,
    *,
    pem: str | None = None,
    denied: bool = False,
    invalid: bool = False,
    uid: str = UID,
    made: Seen | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a CertificateRequest of ours, as its issuer left it."""
    conditions = [] if ready is None else [condition("Ready", *ready)]
    conditions += [condition("Denied", "True", "policy")] if denied else []
    conditions += [condition("InvalidRequest", "True", "policy")] if invalid else []
    ref = {"name": "payments", "kind": "HsmIssuer", "group": "attestation.itl.io"}
    said = {
        "issuerRef": ref,
        "request": encoded((made or key()).request),
        "usages": ["digital signature", "server auth"],
        "duration": "24h0m0s",
        "isCA": False,
    }
    return {
        "metadata": {
            "name": f"pay-{UID[:8]}-1",
            "namespace": "default",
            "uid": "u-cr",
            "resourceVersion": "7",
            "ownerReferences": owner(uid),
        },
        "spec": said | spec,
        "status": {
            "conditions": conditions,
            **({"certificate": encoded(pem), "ca": encoded(pem)} if pem else {}),
        },
    }


def secret(pem: str | None = None, *, uid: str = UID, **more: Any) -> dict[str, Any]:
    """Return a Secret that holds a certificate."""
    data = {"tls.crt": encoded(pem or certificate()), "key-uri": encoded(key().uri)}
    return {
        "metadata": {
            "name": "pay-tls",
            "namespace": "default",
            "uid": "u-secret",
            "resourceVersion": "8",
            "ownerReferences": owner(uid),
            "labels": {"theirs": "stays"},
        },
        "type": "attestation.itl.io/hsm-certificate",
        "data": data,
        **more,
    }


def look(
    status: Mapping[str, Any] | None = None,
    answers: Mapping[Ask, Any] | None = None,
    *,
    at: datetime = AT,
    token: Any = "good",
    **more: Any,
) -> Looked:
    """Return what follows."""
    case = Case(
        leaf=leaf(status, **more),
        module=module() if token == "good" else token,
        at=at,
        answers={Ask.TLS: Absent(), **(answers or {})},
    )
    return reconcile(case)


def without_answer(status: Mapping[str, Any] | None, ask: Ask) -> Looked:
    """Return what follows where one thing is not known."""
    case = Case(leaf=leaf(status), module=module(), at=AT, answers={Ask.TLS: Absent()})
    return reconcile(replace(case, answers={k: v for k, v in case.answers.items() if k is not ask}))


def said(looked: Looked) -> dict[str, tuple[str, str]]:
    """Return the conditions that are written: type -> status, reason."""
    return {each["type"]: (each["status"], each["reason"]) for each in status_of(looked)["conditions"]}


def status_of(looked: Looked) -> dict[str, Any]:
    """Return the status that is written: only if the object is as it was read."""
    [found] = [each for each in looked.actions if isinstance(each, SetStatus)]
    assert (found.manager, found.exact) == ("attestation-operator-hsm", True)
    return dict(found.status)


def events(looked: Looked) -> list[str]:
    """Return the reasons of its Events."""
    return [each.reason for each in looked.actions if isinstance(each, EmitEvent)]
