"""CA keys in hardware as their controller asks about them; here they are software, and certify with `cryptography`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from attestation.pki.crl import REASONS, CRLEntry, build_crl
from attestation.wire import b64decode, b64encode
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.test_service_accounts import claims, cluster, token

UID = "0f6b3c1e-0000-4000-8000-0000000000aa"


async def serving(start: Starter, clock: HeldClock | None = None, **changed: Any) -> Service:
    """Start a service that knows one cluster, or what `clusters` says."""
    rules = changed.pop("clusters", None) or [cluster()]
    chosen: dict[str, Any] = {"service_url": "https://attest.example", "rate_limits": False} | changed
    return await start(clock, kubernetes_clusters=json.dumps(rules), **chosen)


def bearer(service: Service, key: Any = None) -> dict[str, str]:
    """Return the credential of the controller; *key* signs, of another cluster than the first."""
    return {"Authorization": f"Bearer {token(claims(service.clock, 'itl:hsm'), key)}"}


def spki_of(key: Any) -> bytes:
    """Return the SubjectPublicKeyInfo of a key, DER."""
    found: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def a_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key of a leaf."""
    return ec.generate_private_key(ec.SECP256R1())


@dataclass
class Issuer:
    """An issuer: its key, its certificate, and what the service called it."""

    at: datetime
    name: str = "Seed CA"
    key: Any = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))
    issuer_id: str = ""
    made: x509.Certificate | None = None

    def certificate(self, **changes: Any) -> x509.Certificate:
        """Return the certificate of the CA, always the same; `changes` make another one."""
        if self.made is not None and not changes:
            return self.made
        name = x509.Name.from_rfc4514_string(f"CN={self.name}")
        usage = {"digital_signature": False, "content_commitment": False, "key_encipherment": False,
                 "data_encipherment": False, "key_agreement": False, "key_cert_sign": True,
                 "crl_sign": changes.get("sign_lists", True), "encipher_only": False,
                 "decipher_only": False}  # fmt: skip
        by = changes.get("by", self)
        issuer = x509.Name.from_rfc4514_string(f"CN={by.name}")
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(self.key.public_key())
            .serial_number(changes.get("serial", 7))
            .not_valid_before(self.at - timedelta(hours=1))
            .not_valid_after(self.at + timedelta(days=changes.get("days", 3650)))
            .add_extension(x509.BasicConstraints(changes.get("ca", True), None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
        )
        made = builder.sign(by.key, hashes.SHA384())
        if not changes:
            self.made = made
        return made

    def put(self, **changes: Any) -> dict[str, Any]:
        """Return what its controller says of it."""
        made = changes.pop("certificate", None) or self.certificate()
        said: dict[str, Any] = {
            "kind": "HsmIssuer",
            "namespace": "seed",
            "name": "ca",
            "certificate": b64encode(made.public_bytes(Encoding.DER)),
            "key_origin": "generated",
            "module": "softhsm",
            "token_label": "seed",
        }
        return {name: value for name, value in (said | changes).items() if value is not None}

    def leaf(self, serial: str, said: dict[str, Any], key: Any, /, **changes: Any) -> bytes:
        """Return the certificate for what was reserved, DER; `changes` falsify it."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name.from_rfc4514_string(changes.get("subject", said["subject"])))
            .issuer_name(x509.Name.from_rfc4514_string(changes.get("issuer", f"CN={self.name}")))
            .public_key(changes.get("key", key).public_key())
            .serial_number(int(changes.get("serial", serial), 16))
            .not_valid_before(datetime.fromisoformat(said["not_before"]))
            .not_valid_after(changes.get("not_after", datetime.fromisoformat(said["not_after"])))
            .add_extension(x509.BasicConstraints(changes.get("ca", False), None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("w-1.example")]), critical=False)
        )
        return builder.sign(changes.get("by", self.key), hashes.SHA384()).public_bytes(Encoding.DER)

    def crl(self, begun: dict[str, Any], **changes: Any) -> bytes:
        """Return the list that was begun, signed, DER; `changes` falsify it."""
        entries = [
            CRLEntry(
                serial=int(each["serial"], 16),
                at=datetime.fromisoformat(each["at"]),
                reason=REASONS[each["reason"]],
            )
            for each in changes.get("entries", begun["entries"])
        ]
        return build_crl(
            self.certificate().public_bytes(Encoding.DER),
            changes.get("by", self.key),
            number=changes.get("number", begun["number"]),
            entries=entries,
            this_update=datetime.fromisoformat(begun["this_update"]),
            next_update=changes.get("next_update", datetime.fromisoformat(begun["next_update"])),
        )

    def responder(self, asked: dict[str, Any], **changes: Any) -> bytes:
        """Return the certificate of the key that is to answer OCSP, DER; `changes` falsify it."""
        csr = x509.load_der_x509_csr(b64decode(asked["request"], "request"))
        builder = (
            x509.CertificateBuilder()
            .subject_name(csr.subject)
            .issuer_name(x509.Name.from_rfc4514_string(f"CN={self.name}"))
            .public_key(changes.get("key", csr.public_key()))
            .serial_number(int(changes.get("serial", asked["serial"]), 16))
            .not_valid_before(self.at - timedelta(minutes=5))
            .not_valid_after(self.at + timedelta(days=changes.get("days", 7)))
            .add_extension(
                x509.ExtendedKeyUsage([changes.get("purpose", ExtendedKeyUsageOID.OCSP_SIGNING)]),
                critical=False,
            )
        )
        if changes.get("key_id", True):
            key_id = x509.SubjectKeyIdentifier.from_public_key(csr.public_key())
            builder = builder.add_extension(key_id, critical=False)
        if changes.get("nocheck", True):
            builder = builder.add_extension(x509.OCSPNoCheck(), critical=False)
        return builder.sign(changes.get("by", self.key), hashes.SHA384()).public_bytes(Encoding.DER)


def request(service: Service, key: Any, uid: str = "request-1", **changes: Any) -> dict[str, Any]:
    """Return a certificate that is about to be signed."""
    at = service.clock.at.replace(microsecond=0)
    return {
        "request_uid": uid,
        "kind": "CertificateRequest",
        "namespace": "seed",
        "name": uid,
        "spki_sha256": hashlib.sha256(spki_of(key)).hexdigest(),
        "subject": "CN=w-1",
        "names": ["DNS:w-1.example"],
        "requester": "system:serviceaccount:cert-manager:cert-manager",
        "not_before": (at - timedelta(minutes=5)).isoformat(),
        "not_after": (at + timedelta(days=30)).isoformat(),
    } | changes


async def ask(service: Service, method: str, path: str, body: Any = None, key: Any = None) -> httpx.Response:
    """Ask as the controller."""
    return await service.http.request(method, f"/api/v1/hsm{path}", json=body, headers=bearer(service, key))


async def good(service: Service, method: str, path: str, body: Any = None) -> Any:
    """Ask for what must succeed, and return the answer."""
    answer = await ask(service, method, path, body)
    assert answer.status_code in (200, 204), answer.text
    return answer.json() if answer.status_code == 200 else None


async def registered(service: Service, uid: str = UID, **changes: Any) -> Issuer:
    """Return an issuer that the service knows."""
    issuer = Issuer(service.clock.at, **changes)
    issuer.issuer_id = (await good(service, "PUT", f"/issuers/{uid}", issuer.put()))["issuer_id"]
    return issuer


async def reserve(service: Service, issuer: Issuer, *said: dict[str, Any]) -> list[dict[str, Any]]:
    """Take serial numbers."""
    path = f"/issuers/{issuer.issuer_id}/certificates"
    found: list[dict[str, Any]] = (await good(service, "POST", path, {"requests": said}))["reserved"]
    return found


async def record(service: Service, issuer: Issuer, *made: tuple[str, bytes]) -> httpx.Response:
    """Hand in certificates by the UIDs of their requests."""
    certificates = [{"request_uid": uid, "certificate": b64encode(der)} for uid, der in made]
    path = f"/issuers/{issuer.issuer_id}/certificates/issued"
    return await ask(service, "POST", path, {"certificates": certificates})


async def issued(service: Service, issuer: Issuer, uid: str = "request-1") -> str:
    """Have a certificate issued; return its serial number."""
    key = a_key()
    said = request(service, key, uid)
    (found,) = await reserve(service, issuer, said)
    answer = await record(service, issuer, (uid, issuer.leaf(found["serial"], said, key)))
    assert answer.status_code == 200, answer.text
    serial: str = found["serial"]
    return serial


async def revoke(service: Service, issuer: Issuer, serial: str) -> httpx.Response:
    """Revoke a certificate as an operator."""
    body = {"issuer_id": issuer.issuer_id, "reason": "keyCompromise"}
    return await service.operator("POST", f"/hsm/certificates/{serial}/revoke", body)


async def listed(service: Service, issuer: Issuer) -> x509.CertificateRevocationList:
    """Make the list that is due; return what is served."""
    path = f"/issuers/{issuer.issuer_id}/crl"
    begun = await good(service, "GET", path)
    if begun["due"]:
        await good(service, "PUT", path, {"number": begun["number"], "crl": b64encode(issuer.crl(begun))})
    served = await service.get(f"/pki/hsm/{issuer.issuer_id}.crl")
    assert served.status_code == 200, served.text
    return x509.load_der_x509_crl(served.content)


def code(answer: httpx.Response) -> str:
    """Return the code of a problem."""
    return str(answer.json()["type"]).removeprefix("urn:itl:problem:")
