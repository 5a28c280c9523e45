"""Certificates of machines without the machines: issued by the service's CA, or written into its log by hand."""

from __future__ import annotations

import base64
import hashlib
import secrets
from datetime import timedelta
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx
from asn1crypto import crl as asn1_crl
from asn1crypto import ocsp as asn1_ocsp
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.pki.issuer import identity_of
from attestation.pki.names import machine_subject
from attestation.pki.ocsp import REQUEST_MEDIA_TYPE
from attestation.pki.profiles import ProfileName
from attestation.store import Issuance, Issuer, IssuerAlgorithm, Tx
from attestation_service.authority import Issued, Wanted
from tests.unit.service.conftest import Service

WITH_CA: dict[str, Any] = {"enrollment_ca_unencrypted": True}


@cache
def spki(name: str = "leaf") -> bytes:
    """Return a public key, SubjectPublicKeyInfo DER."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


async def issue(service: Service, machine_id: str, **changed: Any) -> tuple[Issued, ...]:
    """Let the CA issue a client certificate for *machine_id*; nobody checks whether it may."""
    authority = service.resources.authority
    assert authority is not None
    wanted = Wanted(
        **{
            "profile": ProfileName.NODE_CLIENT,
            "subject": machine_subject(
                country="NL", organization="ITL Usions", role="worker-app", machine_id=machine_id
            ),
            "spki": spki(),
            "requester": machine_id,
            "machine_id": machine_id,
            "uris": (f"urn:itl:ek:{'ab' * 48}",),
            **changed,
        }
    )
    return await authority.issue(
        wanted, at=service.clock.now(), admit=lambda _: None, conclude=lambda _tx, _issued: None
    )


async def active(service: Service, algorithm: IssuerAlgorithm = "ecdsa-p384") -> Issuer:
    """Return the key of machines' certificates."""
    found = await service.store.read(lambda tx: tx.issuers.active("machine", algorithm))
    assert found is not None
    return found


async def write_down(
    service: Service, machine_id: str, state: str, *, hours: float = 24, **changed: Any
) -> str:
    """Put a certificate into the issuance log as if it had come to *state*; return its serial."""
    issuer = await active(service)
    at = service.clock.now()
    serial = f"{secrets.randbelow(127) + 1:02x}{secrets.token_hex(19)}"
    row = Issuance(
        **{
            "serial": serial,
            "issuer_id": issuer.issuer_id,
            "profile": "node-client",
            "state": "reserved",
            "machine_id": machine_id,
            "subject": f"CN={machine_id}",
            "spki_sha256": hashlib.sha256(spki()).hexdigest(),
            "requester": machine_id,
            "key_tier": None,
            "assurance": None,
            "renews": None,
            "not_before": at - timedelta(minutes=5),
            "not_after": at + timedelta(hours=hours),
            "reserved_at": at,
            **changed,
        }
    )

    def work(tx: Tx) -> None:
        tx.issuances.reserve(row)
        if state == "void":
            tx.issuances.void(serial, "test", at)
        if state in ("issued", "held", "revoked"):
            tx.issuances.issued(serial, b"der", at)
        if state == "held":
            tx.issuances.hold(machine_id, "test", at)
        if state == "revoked":
            tx.issuances.revoke_serial(serial, "superseded", "test", at)

    await service.store.write(work)
    return serial


async def state_of(service: Service, serial: str) -> tuple[str, str | None]:
    """Return what the issuance log says of a serial: state and reason."""
    row = await service.store.read(lambda tx: tx.issuances.get(serial))
    assert row is not None
    return row.state, row.reason


def ask(issuer: bytes, *serials: str, hash_name: str = "sha1", nonce: bytes | None = None) -> bytes:
    """Return an OCSP request about certificates that the CA key with the certificate *issuer* signed."""
    identity = identity_of(issuer)
    listed = [
        {
            "req_cert": {
                "hash_algorithm": {"algorithm": hash_name},
                "issuer_name_hash": hashlib.new(hash_name, identity.subject).digest(),
                "issuer_key_hash": hashlib.new(hash_name, identity.key_bits).digest(),
                "serial_number": int(serial, 16),
            }
        }
        for serial in serials
    ]
    tbs: dict[str, object] = {"request_list": listed}
    if nonce is not None:
        tbs["request_extensions"] = [{"extn_id": "nonce", "critical": False, "extn_value": nonce}]
    data: bytes = asn1_ocsp.OCSPRequest({"tbs_request": tbs}).dump()
    return data


async def post_ocsp(service: Service, request: bytes, **more: Any) -> httpx.Response:
    """Ask by POST."""
    headers = {"Content-Type": REQUEST_MEDIA_TYPE} | more.pop("headers", {})
    return await service.http.post("/pki/ocsp", content=request, headers=headers, **more)


async def get_ocsp(service: Service, request: bytes, **more: Any) -> httpx.Response:
    """Ask by GET, everything escaped that may be."""
    return await service.get(f"/pki/ocsp/{quote(base64.b64encode(request).decode(), safe='')}", **more)


def words_of(answer: httpx.Response) -> list[str]:
    """Return the status of each certificate in an OCSP answer, with the reason where it was revoked."""
    read = asn1_ocsp.OCSPResponse.load(answer.content)
    if read["response_status"].native != "successful":
        return [read["response_status"].native]
    return [
        single["cert_status"].name
        if single["cert_status"].name != "revoked"
        else single["cert_status"].chosen["revocation_reason"].native or "unspecified"
        for single in read.response_data["responses"]
    ]


async def status(service: Service, serial: str, **asked: Any) -> str:
    """Return what OCSP says of a serial."""
    issuer = await active(service)
    assert issuer.certificate is not None
    (word,) = words_of(await post_ocsp(service, ask(issuer.certificate, serial, **asked)))
    return word


def listed(data: bytes) -> dict[str, str]:
    """Return the entries of a revocation list: serial to reason."""
    read = asn1_crl.CertificateList.load(data)["tbs_cert_list"]["revoked_certificates"]
    return {
        f"{entry['user_certificate'].native:040x}": entry.crl_reason_value.native
        if entry.crl_reason_value
        else "unspecified"
        for entry in read
    }


async def crl(service: Service, issuer_id: str | None = None) -> dict[str, str]:
    """Fetch a revocation list and return its entries."""
    answer = await service.get("/pki/crl" if issuer_id is None else f"/pki/crl/{issuer_id}")
    assert answer.status_code == 200, answer.text
    return listed(answer.content)


def number_of(data: bytes) -> int:
    """Return the CRLNumber of a list."""
    found = x509.load_der_x509_crl(data)
    return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
