"""Certificates for keys of a TPM over HTTP: who gets one, what it says, and who does not (FAULTS R2, R6, R10)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.api import CertResponse
from attestation.clock import parse_rfc3339
from attestation.envelope import WrappedKey, unwrap_key
from attestation.errors import CertificateNotConformant
from attestation.machines import NodeEvent, Status
from attestation.store import OutboxEvent, Tx
from attestation.tpm import CertifyInfo
from attestation.wire import b64decode, b64encode
from attestation_service.authority import issuance
from attestation_service.entitlements import attempts, certificates
from attestation_service.keys import server_keys
from tests.fixtures.machine import refused as outcome_of
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import (
    EXTERNAL,
    RESIDENT,
    NodeKey,
    cert_request,
    certify,
    csr_binding,
    decryption_key,
    ecc_key,
    open_wrapped,
    server_key_request,
)

pytestmark = pytest.mark.anyio

NOBODY = "00000000-0000-4000-8000-000000000000"
NOW = parse_rfc3339("2026-11-21T12:00:00.000000Z")
WITH_CA: dict[str, Any] = {"enrollment_ca_unencrypted": True, "rate_limits": False}


@pytest.fixture
async def ca(start: Starter) -> Service:
    """A service that issues certificates."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **WITH_CA)


async def certificate_challenge(
    service: Service, node: SoftwareNode, purpose: str = "certify"
) -> dict[str, Any]:
    """Fetch a challenge."""
    path = f"/api/v1/machines/{node.machine_id}/challenge"
    answer = await service.get(path, params={"purpose": purpose})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def send(service: Service, node: SoftwareNode, body: dict[str, Any]) -> httpx.Response:
    """Ask for a certificate."""
    return await service.post(f"/api/v1/machines/{node.machine_id}/request-cert", body)


async def try_certificate(
    service: Service, node: SoftwareNode, key: NodeKey | None = None, **members: Any
) -> httpx.Response:
    """Ask for a certificate as a good node does."""
    challenge = await certificate_challenge(service, node)
    return await send(service, node, cert_request(node, challenge, key or ecc_key(), **members))


async def get_certificate(
    service: Service, node: SoftwareNode, key: NodeKey | None = None, **members: Any
) -> dict[str, Any]:
    """Get a certificate; it must be given."""
    answer = await try_certificate(service, node, key, **members)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def listed(service: Service, node: SoftwareNode) -> list[dict[str, Any]]:
    """Return the certificates of a machine as operators see them."""
    answer = await service.operator("GET", f"/machines/{node.machine_id}/certificates")
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


@contextlib.asynccontextmanager
async def refused(service: Service, node: SoftwareNode, *details: str) -> AsyncIterator[None]:
    """Inside, nothing changes but challenges, and the audit grows by `cert_refused` with these details."""
    before = (await service.detail(node), await listed(service, node), await service.audit())
    yield
    detail, certificates, audit = (
        await service.detail(node),
        await listed(service, node),
        await service.audit(),
    )
    assert (detail, certificates) == before[:2]
    new = audit[: len(audit) - len(before[2])] if len(audit) < 50 else audit
    assert [(e["action"], e["detail"]) for e in new] == [("cert_refused", d) for d in reversed(details)]
    assert all(e["machine_id"] == node.machine_id and e["source_ip"] == "192.0.2.7" for e in new)


# What is issued


async def test_a_certificate_says_what_the_record_says(ca: Service) -> None:
    """Nothing of the request but its key: name, role and EK are the machine's, whatever the CSR claims."""
    node, key = SoftwareNode(), ecc_key()
    await ca.admitted(node, hostname="app-1", assigned_ip="10.0.0.7/24")
    answer = CertResponse.model_validate(await get_certificate(ca, node, key))
    certificate = x509.load_pem_x509_certificate(answer.enrollment_cert_pem.encode())
    assert certificate.subject.rfc4514_string() == f"CN={node.machine_id},OU=worker-app,O=ITL Usions,C=NL"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier(f"urn:itl:ek:{node.ek_fingerprint}")]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert spki == key.public.spki_der()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(answer.enrollment_ca_pem.encode()))
    assert (answer.role, answer.profile, answer.assurance) == ("worker-app", "node-client", "tofu")
    assert answer.serial == f"{certificate.serial_number:040x}"
    assert answer.not_after == certificate.not_valid_after_utc == ca.clock.at + timedelta(hours=24)
    assert answer.not_before == ca.clock.at - timedelta(minutes=5)
    assert answer.renew_after == answer.not_before + (answer.not_after - answer.not_before) * 2 / 3
    assert (answer.valid_days, answer.message, answer.compat) == (1, "issued", None)
    assert [each.cert_pem for each in answer.certificates] == [answer.enrollment_cert_pem]
    assert answer.enrollment_key_encrypted_b64 is None


async def test_a_server_is_called_by_its_record(ca: Service) -> None:
    """Host name and address; a machine that has neither gets none, and its challenge is spent."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1", assigned_ip="10.0.0.7/24")
    answer = await get_certificate(ca, node, profile="node-server")
    certificate = x509.load_pem_x509_certificate(answer["enrollment_cert_pem"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["app-1"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.0.0.7"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    nameless = SoftwareNode()
    await ca.admitted(nameless)
    challenge = await certificate_challenge(ca, nameless)
    body = cert_request(nameless, challenge, ecc_key(), profile="node-server")
    async with refused(ca, nameless, "request-invalid"):
        assert outcome_of(await send(ca, nameless, body)) == (422, "request-invalid")
        assert outcome_of(await send(ca, nameless, body)) == (409, "challenge-used")
    await get_certificate(ca, nameless)


async def test_der_in_base64_is_a_request_too(ca: Service) -> None:
    """The member takes both forms of PKCS#10."""
    node, key = SoftwareNode(), ecc_key()
    await ca.admitted(node)
    challenge = await certificate_challenge(ca, node)
    csr = key.csr()
    der = x509.load_pem_x509_csr(csr.encode()).public_bytes(Encoding.DER)
    body = {
        "nonce_id": challenge["nonce_id"],
        "csr_pem": b64encode(der),
        **certify(node, key, csr_binding(challenge, csr)),
    }
    assert (await send(ca, node, body)).status_code == 200


async def test_a_hybrid_ca_gives_two_certificates_for_one_key(start: Starter) -> None:
    """One of each algorithm, same key; the first stands in the members of old."""
    service = await start(tpm_ca_bundle_dir=start.bundle(), enrollment_ca_algorithm="hybrid", **WITH_CA)
    node = SoftwareNode()
    await service.admitted(node)
    answer = await get_certificate(service, node)
    assert [each["algorithm"] for each in answer["certificates"]] == ["ecdsa-p384", "ml-dsa-87"]
    found = [x509.load_pem_x509_certificate(each["cert_pem"].encode()) for each in answer["certificates"]]
    assert found[0].public_key() == found[1].public_key()
    assert answer["serial"] == answer["certificates"][0]["serial"] != answer["certificates"][1]["serial"]
    for each, certificate in zip(answer["certificates"], found, strict=True):
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(each["ca_pem"].encode()))
    assert len(await listed(service, node)) == 2
    entry = (await service.audit(action="cert_issued"))[0]
    assert all(each["serial"] in entry["detail"] for each in answer["certificates"])


async def test_what_is_known_of_the_key_is_its_tier(ca: Service) -> None:
    """Quoted since it booted: 4. Rebooted within its lease, the quote speaks of another boot: 3."""
    node = SoftwareNode()
    await ca.admitted(node)
    assert (await get_certificate(ca, node))["key_tier"] == 4
    node.reset_count += 1
    assert (await get_certificate(ca, node))["key_tier"] == 3
    await ca.attest(node)
    assert (await get_certificate(ca, node))["key_tier"] == 4
    assert [row["key_tier"] for row in await listed(ca, node)] == [4, 3, 4]


async def test_everything_is_written_down(ca: Service) -> None:
    """The log, the audit entry, and for a renewal the event, in the unit that makes it good."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1")
    first = await get_certificate(ca, node)
    entry = (await ca.audit(action="cert_issued"))[0]
    assert (entry["operator_cn"], entry["machine_id"]) == ("machine", node.machine_id)
    assert (entry["prev_state"], entry["new_state"]) == ("attested", "attested")
    assert entry["detail"] == (
        f"node-client {first['serial']} (ecdsa-p384), key tier 4, assurance tofu, until 2026-11-22T12:00:00.000000Z"
    )
    assert await events(ca) == []
    ca.clock.advance(60)
    second = await get_certificate(ca, node)
    assert second["message"] == "renewed"
    assert (await ca.audit(action="cert_issued"))[0]["detail"].endswith(f"; renews {first['serial']}")
    rows = await listed(ca, node)
    assert [(r["serial"], r["state"], r["renews"]) for r in rows] == [
        (second["serial"], "issued", first["serial"]),
        (first["serial"], "issued", None),
    ]
    assert {r["requester"] for r in rows} == {node.machine_id}
    (event,) = await events(ca)
    assert event["node"] == {
        "machine_id": node.machine_id,
        "hostname": "app-1",
        "role": "worker-app",
        "serial": second["serial"],
        "not_after": "2026-11-22T12:01:00.000000Z",
    }
    assert event["meta"] == {"profile": "node-client", "renews": first["serial"]}
    # A certificate of the other profile follows none.
    assert (await get_certificate(ca, node, profile="node-server"))["message"] == "issued"


async def events(service: Service) -> list[dict[str, Any]]:
    """Take every event out of the outbox and return the payloads of `node.cert_renewed`."""

    def take(tx: Tx) -> list[OutboxEvent]:
        claimed = list(tx.outbox.claim(100, service.clock.at))
        tx.outbox.done([event.id for event in claimed], service.clock.at)
        return claimed

    found: list[dict[str, Any]] = []
    while claimed := await service.store.write(take):
        found += [dict(each.payload) for each in claimed if each.event is NodeEvent.CERT_RENEWED]
    return found


async def test_a_renewal_carries_the_role_of_now(ca: Service) -> None:
    """Without an operator; and role, host name and status are looked at again."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1")
    await get_certificate(ca, node)
    await ca.act(node, "role", {"role": "worker-infra", "hostname": "infra-1", "reason": "moved"})
    # Trust was given under the policy of the old role.
    assert outcome_of(await try_certificate(ca, node)) == (403, "machine-not-admitted")
    await ca.attest(node)
    answer = await get_certificate(ca, node)
    assert answer["role"] == "worker-infra"
    subject = x509.load_pem_x509_certificate(answer["enrollment_cert_pem"].encode()).subject
    assert subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)[0].value == "worker-infra"


# The challenge


@pytest.mark.threat("T106")
async def test_a_challenge_is_for_one_machine_and_purpose(ca: Service) -> None:
    """32 fresh bytes, a minute, one machine, one purpose; whoever else names it finds none."""
    node, other = SoftwareNode(), SoftwareNode()
    await ca.admitted(node)
    await ca.admitted(other)
    one, two = await certificate_challenge(ca, node), await certificate_challenge(ca, node)
    assert one["nonce"] != two["nonce"]
    assert len(b64decode(one["nonce"], "nonce")) == 32
    assert parse_rfc3339(one["expires_at"]) == ca.clock.at + timedelta(seconds=60)
    stored = await ca.store.read(lambda tx: tx.challenges.get(one["nonce_id"]))
    assert stored is not None
    assert (stored.purpose, stored.machine_id) == ("certify", node.machine_id)
    assert stored.ek_fingerprint == node.ek_fingerprint
    foreign = [
        await certificate_challenge(ca, other),
        await certificate_challenge(ca, node, "enroll"),
        await ca.challenge(node),
    ]
    async with refused(ca, node):
        for challenge in foreign:
            answer = await send(ca, node, cert_request(node, challenge, ecc_key()))
            assert outcome_of(answer) == (404, "challenge-unknown")
    # Nobody spent them by trying.
    ids = [challenge["nonce_id"] for challenge in foreign]
    spent = await ca.store.read(lambda tx: [tx.challenges.get(each) for each in ids])
    assert [c.used_at for c in spent if c is not None] == [None, None, None]
    quote = node.attestation(one, pcr_values={}) if "pcr_selection" in one else None
    assert quote is None, "a challenge for a certificate asks for no quote"


@pytest.mark.threat("T106")
async def test_a_challenge_ends(ca: Service) -> None:
    """After a minute it is expired; maintenance forgets it."""
    node = SoftwareNode()
    await ca.admitted(node)
    challenge = await certificate_challenge(ca, node)
    body = cert_request(node, challenge, ecc_key())
    ca.clock.advance(60)
    async with refused(ca, node):
        assert outcome_of(await send(ca, node, body)) == (410, "challenge-expired")
    ca.clock.advance(3600)
    await ca.store.write(lambda tx: tx.purge(ca.clock.at))
    assert outcome_of(await send(ca, node, body)) == (404, "challenge-unknown")


@pytest.mark.parametrize("purpose", ["activate", "attest", "", "certify,enroll"])
async def test_no_other_purposes(ca: Service, purpose: str) -> None:
    """What the other routes give is not given here."""
    node = SoftwareNode()
    await ca.admitted(node)
    path = f"/api/v1/machines/{node.machine_id}/challenge"
    assert (await ca.get(path, params={"purpose": purpose})).status_code == 422
    assert (await ca.get(path)).status_code == 422


async def test_unknown_machines(ca: Service) -> None:
    """Neither a challenge nor a certificate."""
    node = SoftwareNode()
    await ca.admitted(node)
    challenge = await certificate_challenge(ca, node)
    body = cert_request(node, challenge, ecc_key())
    for purpose in ("certify", "enroll"):
        answer = await ca.get(f"/api/v1/machines/{NOBODY}/challenge", params={"purpose": purpose})
        assert outcome_of(answer) == (404, "machine-unknown")
    assert outcome_of(await ca.post(f"/api/v1/machines/{NOBODY}/request-cert", body)) == (
        404,
        "machine-unknown",
    )


@pytest.mark.threat("T108")
async def test_strangers_are_slowed_down(start: Starter) -> None:
    """The routes count like all public ones: per address, and per machine and address."""
    limited = dict(WITH_CA) | {"rate_limits": True, "rate_limit_machine_burst": 5}
    service = await start(tpm_ca_bundle_dir=start.bundle(), **limited)
    node = SoftwareNode()
    await service.admitted(node)
    service.clock.advance(60)
    path = f"/api/v1/machines/{node.machine_id}"
    challenges = [await service.get(f"{path}/challenge", params={"purpose": "certify"}) for _ in range(6)]
    assert [a.status_code for a in challenges] == [200] * 5 + [429]
    service.clock.advance(60)
    await service.attest(node)
    body = cert_request(node, await certificate_challenge(service, node), ecc_key(), key_public="AAAA")
    answers = [await service.post(f"{path}/request-cert", body) for _ in range(6)]
    assert [a.status_code for a in answers[:1]] == [400]
    assert answers[-1].status_code == 429


async def test_what_is_given_counts_too(start: Starter) -> None:
    """Three challenges and two certificates are five; the sixth waits."""
    limited = dict(WITH_CA) | {"rate_limits": True, "rate_limit_machine_burst": 5}
    service = await start(tpm_ca_bundle_dir=start.bundle(), **limited)
    node = SoftwareNode()
    await service.admitted(node)
    service.clock.advance(60)
    challenges = [await certificate_challenge(service, node) for _ in range(3)]
    answers = [await send(service, node, cert_request(node, each, ecc_key())) for each in challenges]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_what_is_refused_counts_too(start: Starter) -> None:
    """Three challenges and two forgeries are five; the sixth waits."""
    limited = dict(WITH_CA) | {"rate_limits": True, "rate_limit_machine_burst": 5}
    service = await start(tpm_ca_bundle_dir=start.bundle(), **limited)
    node = SoftwareNode()
    await service.admitted(node)
    service.clock.advance(60)
    challenges = [await certificate_challenge(service, node) for _ in range(3)]
    answers = [await send(service, node, forged(node, node, each)) for each in challenges]
    assert [answer.status_code for answer in answers] == [403, 403, 429]


async def test_without_a_ca_nothing_is_issued(start: Starter) -> None:
    """503 with its own code, on each route."""
    service = await start(tpm_ca_bundle_dir=start.bundle())
    node = SoftwareNode()
    await service.admitted(node)
    path = f"/api/v1/machines/{node.machine_id}"
    challenge = {"nonce_id": "0" * 32, "nonce": b64encode(bytes(32))}
    asked = [
        await service.get(f"{path}/challenge", params={"purpose": "certify"}),
        await service.post(f"{path}/request-cert", cert_request(node, challenge, ecc_key())),
        await service.post(
            "/api/v1/machines/enroll",
            {"cert_pem": "x", "nonce_id": "0" * 32, "nonce": "A" * 44, "nonce_signature": "AA=="},
        ),
    ]
    assert [outcome_of(a) for a in asked] == [(503, "ca-not-configured")] * 3


# Who gets none


@dataclass(frozen=True, slots=True)
class Attack:
    """What somebody sends, and how it ends.

    Args:
        body: Makes the request of a node, with the other node and a fresh challenge at hand.
        wire: Status and code of the answer.
        told: Detail of the audit entry.
    """

    body: Callable[[SoftwareNode, SoftwareNode, dict[str, Any]], dict[str, Any]]
    wire: tuple[int, str]
    told: str


REJECTED = (403, "evidence-rejected")
MALFORMED = (400, "malformed-evidence")


def with_other_ak(node: SoftwareNode, other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Let the AK of another machine certify, in the name of this one's."""
    key = ecc_key()
    csr = key.csr()
    signed = certify(other, key, csr_binding(challenge, csr))
    return {"nonce_id": challenge["nonce_id"], "csr_pem": csr, **signed}


def forged(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Write a certification by hand for a software key, and sign it with a software AK."""
    imitation = SoftwareNode()
    imitation.machine_id, imitation.ak = node.machine_id, node.ak
    return cert_request(imitation, challenge, ecc_key())


def with_key(
    make: Callable[[], NodeKey],
) -> Callable[[SoftwareNode, SoftwareNode, dict[str, Any]], dict[str, Any]]:
    """Ask honestly, for a key of another kind."""
    return lambda node, _other, challenge: cert_request(node, challenge, make())


def captured(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Send what answered another nonce."""
    earlier = challenge | {"nonce": b64encode(hashlib.sha256(b"earlier").digest())}
    return cert_request(node, earlier, ecc_key())


def other_csr_key(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Have a resident key certified for the request of a software key."""
    csr = ecc_key().csr()
    signed = certify(node, ecc_key(), csr_binding(challenge, csr))
    return {"nonce_id": challenge["nonce_id"], "csr_pem": csr, **signed}


def changed_csr(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Exchange the request after the certification, same key."""
    key = ecc_key()
    return cert_request(node, challenge, key) | {"csr_pem": key.csr(unit="worker-app")}


def unsigned_csr(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Send a request that its key did not sign."""
    key = ecc_key()
    csr = x509.load_pem_x509_csr(key.csr().encode()).public_bytes(Encoding.DER)
    broken = b64encode(csr[:-1] + bytes([csr[-1] ^ 1]))
    return cert_request(node, challenge, key) | {"csr_pem": broken}


def quote_for_certify(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Offer a quote in its place (N24)."""
    key = ecc_key()
    csr = key.csr()
    quote = node.quote({"sha256": [0]}, csr_binding(challenge, csr))
    return cert_request(node, challenge, key, csr_pem=csr) | {
        "certify_info": quote["pcr_quote"],
        "certify_signature": quote["pcr_signature"],
    }


def statement(**changes: Any) -> Callable[[SoftwareNode, SoftwareNode, dict[str, Any]], dict[str, Any]]:
    """Let the AK sign a statement with these parts."""

    def body(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
        key = ecc_key()
        csr = key.csr()
        made = {name: value(node, key) if callable(value) else value for name, value in changes.items()}
        signed = certify(node, key, csr_binding(challenge, csr), **made)
        return {"nonce_id": challenge["nonce_id"], "csr_pem": csr, **signed}

    return body


def members(**changes: str) -> Callable[[SoftwareNode, SoftwareNode, dict[str, Any]], dict[str, Any]]:
    """Ask honestly, but with these members."""
    return lambda node, _other, challenge: cert_request(node, challenge, ecc_key()) | changes


def longer(member: str) -> Callable[[SoftwareNode, SoftwareNode, dict[str, Any]], dict[str, Any]]:
    """Append a byte to a member (N76)."""

    def body(node: SoftwareNode, _other: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
        honest = cert_request(node, challenge, ecc_key())
        return honest | {member: b64encode(base64.b64decode(honest[member]) + b"\0")}

    return body


ATTACKS = {
    "a software key with a forged certification": Attack(forged, REJECTED, "signature-invalid"),
    "certified by another machine's AK": Attack(with_other_ak, REJECTED, "signature-invalid"),
    "an external key": Attack(
        with_key(lambda: ecc_key(EXTERNAL, external=True)), REJECTED, "key-not-resident (certified-external)"
    ),
    "an external key that claims to be resident (N71)": Attack(
        with_key(lambda: ecc_key(RESIDENT, external=True)),
        REJECTED,
        "key-not-resident (external-as-resident)",
    ),
    "an exportable key (N75)": Attack(
        with_key(lambda: ecc_key(0x00040060)), REJECTED, "key-not-resident (exportable)"
    ),
    "a restricted key (N75)": Attack(
        with_key(lambda: ecc_key(0x00050072)), REJECTED, "key-not-resident (restricted)"
    ),
    "a decryption key": Attack(with_key(decryption_key), REJECTED, "key-not-resident (tpm-resident-decrypt)"),
    "a captured certification with another nonce (N74)": Attack(captured, REJECTED, "challenge-mismatch"),
    "another key in the request (N72)": Attack(other_csr_key, REJECTED, "key-certification-rejected"),
    "another request than was certified": Attack(changed_csr, REJECTED, "challenge-mismatch"),
    "a request that its key did not sign (N73)": Attack(unsigned_csr, (422, "csr-invalid"), "csr-invalid"),
    "a quote in its place": Attack(quote_for_certify, MALFORMED, "malformed-evidence"),
    "no statement of a TPM": Attack(statement(magic=0xFF544348), REJECTED, "attest-header-invalid"),
    "a signer outside a TPM": Attack(
        statement(qualified_signer=lambda node, _key: node.ak.name), REJECTED, "attest-header-invalid"
    ),
    "an empty binding": Attack(statement(extra_data=b""), REJECTED, "challenge-mismatch"),
    "about another key": Attack(
        statement(attested=lambda _node, key: CertifyInfo(ecc_key().public.name, key.qualified_name)),
        REJECTED,
        "key-certification-rejected",
    ),
    "no request at all": Attack(members(csr_pem="-----BEGIN NOTHING-----"), MALFORMED, "malformed-evidence"),
    "a request that is no base64": Attack(members(csr_pem="%%%%"), MALFORMED, "malformed-evidence"),
    "two requests (N76)": Attack(
        lambda node, _other, challenge: (
            (honest := cert_request(node, challenge, ecc_key()))
            | {"csr_pem": honest["csr_pem"] + ecc_key().csr()}
        ),
        MALFORMED,
        "malformed-evidence",
    ),
    **{
        f"a byte more in {member} (N76)": Attack(longer(member), MALFORMED, "malformed-evidence")
        for member in ("key_public", "certify_info", "certify_signature")
    },
    **{
        f"{member} that is no base64": Attack(members(**{member: "a"}), MALFORMED, "malformed-evidence")
        for member in ("key_public", "certify_info", "certify_signature")
    },
}


@pytest.mark.threat("T104")
@pytest.mark.parametrize("name", ATTACKS)
async def test_attacks_end_in_a_spent_challenge(ca: Service, name: str) -> None:
    """Each is refused under its own name in the audit; nothing changes, and the challenge cannot be tried again."""
    attack = ATTACKS[name]
    node, other = SoftwareNode(), SoftwareNode()
    await ca.admitted(node)
    await ca.admitted(other)
    challenge = await certificate_challenge(ca, node)
    body = attack.body(node, other, challenge)
    async with refused(ca, node, attack.told):
        answer = await send(ca, node, body)
        assert outcome_of(answer) == attack.wire
        assert "resident" not in answer.text, "which check refused it is for operators"
        again = await send(ca, node, cert_request(node, challenge, ecc_key()))
        assert outcome_of(again) == (409, "challenge-used")
    await get_certificate(ca, node)


@pytest.mark.threat("T108")
async def test_strangers_do_not_fill_the_audit(ca: Service) -> None:
    """Refusals are recorded up to a bound; the log has the rest."""
    node = SoftwareNode()
    await ca.admitted(node)
    for _ in range(14):
        challenge = await certificate_challenge(ca, node)
        assert outcome_of(await send(ca, node, forged(node, node, challenge))) == REJECTED
    assert len(await ca.audit(action="cert_refused")) == 10


async def test_the_log_says_why(ca: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """Operators find machine, address, code and label of what the wire hides."""
    node = SoftwareNode()
    await ca.admitted(node)
    assert outcome_of(await try_certificate(ca, node, ecc_key(EXTERNAL, external=True))) == REJECTED
    (line,) = [text for text in capsys.readouterr().err.splitlines() if '"cert.refused"' in text]
    assert '"label": "certified-external"' in line
    assert '"code": "key-not-resident"' in line
    assert node.machine_id in line


@pytest.mark.parametrize("profile", ["operator", "ca", "ocsp-signing", "controlplane"])
async def test_no_profile_but_those_of_nodes(ca: Service, profile: str) -> None:
    """Machines' issuance can never make an operator (R16): not by asking."""
    node = SoftwareNode()
    await ca.admitted(node)
    async with refused(ca, node):
        assert outcome_of(await try_certificate(ca, node, profile=profile)) == (422, "schema-violation")


@pytest.mark.threat("T105")
async def test_no_machine_becomes_an_operator(ca: Service) -> None:
    """Nor by a record that says so: the profile knows the roles there are, and nothing is signed."""
    node = SoftwareNode()
    await ca.admitted(node)
    machine = await ca.store.read(lambda tx: tx.machines.by_id(node.machine_id))
    assert machine is not None
    corrupt = replace(machine, role="operator")  # type: ignore[arg-type]  # no such role; that is the point
    plan = certificates.wanted(
        corrupt, "node-client", ecc_key().public.spki_der(), ca.resources.settings, key_tier=4, renews=None
    )
    assert ca.resources.authority is not None
    with pytest.raises(CertificateNotConformant):
        await ca.resources.authority.issue(
            plan, at=ca.clock.at, admit=lambda _tx: None, conclude=lambda _tx, _issued: None
        )
    assert [row["state"] for row in await listed(ca, node)] == ["void"]


@pytest.mark.threat("T104")
@pytest.mark.parametrize("member", ["key_public", "certify_info", "certify_signature", "nonce_id"])
async def test_without_evidence_there_is_no_certificate(ca: Service, member: str) -> None:
    """R10: 422, whatever else is there."""
    node = SoftwareNode()
    await ca.admitted(node)
    body = cert_request(node, await certificate_challenge(ca, node), ecc_key())
    del body[member]
    async with refused(ca, node):
        assert outcome_of(await send(ca, node, body)) == (422, "schema-violation")


@pytest.mark.threat("T106")
async def test_one_challenge_one_certificate(ca: Service) -> None:
    """A hundred at once: one is issued, the others hear that it was used."""
    node, key = SoftwareNode(), ecc_key()
    await ca.admitted(node)
    body = cert_request(node, await certificate_challenge(ca, node), key)
    answers = await asyncio.gather(*(send(ca, node, body) for _ in range(100)))
    assert sorted(outcome_of(a) for a in answers) == [(200, "ok")] + [(409, "challenge-used")] * 99
    assert [row["state"] for row in await listed(ca, node)] == ["issued"]
    assert len(await ca.audit(action="cert_issued", machine_id=node.machine_id)) == 1


@pytest.mark.threat("T108")
async def test_live_certificates_are_limited(ca: Service) -> None:
    """One machine cannot fill the log; when some have ended there is room again. Each profile counts for itself."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1")
    for _ in range(certificates.LIVE_CERTIFICATES):
        await get_certificate(ca, node)
    async with refused(ca, node, "rate-limited"):
        answer = await try_certificate(ca, node)
        assert outcome_of(answer) == (429, "rate-limited")
        assert int(answer.headers["retry-after"]) == 3600
    await get_certificate(ca, node, profile="node-server")
    ca.clock.advance(24 * 3600)
    await ca.attest(node)
    await get_certificate(ca, node)


async def test_the_last_place_is_given_once(ca: Service) -> None:
    """Six ask at once with a challenge each, and there is room for one."""
    node = SoftwareNode()
    await ca.admitted(node)
    for _ in range(certificates.LIVE_CERTIFICATES - 1):
        await get_certificate(ca, node)
    bodies = [cert_request(node, await certificate_challenge(ca, node), ecc_key()) for _ in range(6)]
    answers = await asyncio.gather(*(send(ca, node, body) for body in bodies))
    assert sorted(map(outcome_of, answers)) == [(200, "ok")] + [(429, "rate-limited")] * 5
    assert len(await listed(ca, node)) == certificates.LIVE_CERTIFICATES


# In every status (R5)

WAYS: dict[str, tuple[str, ...]] = {
    "pending_approval": (),
    "pending_approval, trusted": ("attest",),
    "registered": ("approve",),
    "attested": ("approve", "attest"),
    "lease over": ("approve", "attest", "wait"),
    "attestation failed": ("approve", "attest", "fail"),
    "another policy since": ("approve", "attest", "policy"),
    "locked": ("approve", "attest", "lock"),
    "locked, trusted": ("approve", "attest", "lock", "attest"),
    "unlocked": ("approve", "attest", "lock", "unlock"),
    "revoked": ("approve", "attest", "revoke"),
    "revoked, trusted": ("approve", "attest", "revoke", "attest"),
    "AK reset": ("approve", "attest", "ak-reset"),
    "rejected": ("reject",),
}
NOT_ADMITTED = (403, "machine-not-admitted")
OUTCOME = dict.fromkeys(WAYS, NOT_ADMITTED) | {
    "attested": (200, "ok"),
    "AK reset": (403, "ak-not-activated"),
    "rejected": (403, "machine-rejected"),
}


async def brought(service: Service, node: SoftwareNode, steps: tuple[str, ...]) -> None:
    """Lead a machine somewhere."""
    await service.introduce(node)
    for step in steps:
        match step:
            case "approve":
                await service.act(node, "approve", {"role": "worker-app", "hostname": "app-1"})
            case "attest":
                await service.attest(node)
            case "wait":
                service.clock.advance(3600)
            case "policy" | "fail":
                document = {
                    "format": "itl-tpm-policy/1",
                    "name": "strict",
                    "version": 1,
                    "bank": "sha256",
                    "pcrs": {"7": {"any_of": ["00" * 32]}},
                    "max_age_seconds": 120,
                }
                assert (await service.operator("POST", "/policies", document)).status_code == 201
                path = f"/policies/assignments/machine/{node.machine_id}"
                assert (await service.operator("PUT", path, {"policy": "strict@1"})).status_code == 200
                if step == "fail":
                    await service.attest(node)
            case _:
                await service.act(node, step, {"reason": "test"})


@pytest.mark.threat("T105")
@pytest.mark.parametrize("way", WAYS)
async def test_only_attested_machines_within_their_lease(ca: Service, way: str) -> None:
    """Every status has its outcome; whoever holds the AK hears how the machine stands, and nothing else."""
    node = SoftwareNode()
    await brought(ca, node, WAYS[way])
    if OUTCOME[way] == (200, "ok"):
        await get_certificate(ca, node)
        return
    async with refused(ca, node, OUTCOME[way][1]):
        answer = await try_certificate(ca, node)
        assert outcome_of(answer) == OUTCOME[way]
    assert await listed(ca, node) == []


@pytest.mark.threat("T105")
@pytest.mark.parametrize("way", [w for w in WAYS if w != "AK reset"])
async def test_strangers_learn_nothing_of_a_status(ca: Service, way: str) -> None:
    """Whoever cannot sign for the AK gets one answer, however the machine stands."""
    node = SoftwareNode()
    await brought(ca, node, WAYS[way])
    challenge = await certificate_challenge(ca, node)
    assert outcome_of(await send(ca, node, forged(node, node, challenge))) == REJECTED


def _locked(tx: Tx, machine_id: str) -> None:
    machine = tx.machines.by_id(machine_id)
    assert machine is not None
    tx.machines.update(machine, status=Status.LOCKED)


def _other_role(tx: Tx, machine_id: str) -> None:
    machine = tx.machines.by_id(machine_id)
    assert machine is not None
    tx.machines.update(machine, hostname="other-1")


def _revoked(tx: Tx, machine_id: str) -> None:
    _locked(tx, machine_id)
    tx.issuances.void_machine(machine_id, "revoke", NOW)


@pytest.mark.threat("T106")
@pytest.mark.parametrize("act", [_locked, _other_role, _revoked])
async def test_an_act_while_it_is_being_signed(
    ca: Service, monkeypatch: pytest.MonkeyPatch, act: Callable[[Tx, str], None]
) -> None:
    """Between the two units the machine is locked, renamed or revoked: the certificate reaches nobody."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1")
    real = issuance.sign

    def slow(*arguments: Any) -> bytes:
        ca.store.write_sync(lambda tx: act(tx, node.machine_id))
        return real(*arguments)

    monkeypatch.setattr("attestation_service.authority.authority.sign", slow)
    answer = await try_certificate(ca, node)
    assert outcome_of(answer) == NOT_ADMITTED
    assert "BEGIN" not in answer.text
    assert [row["state"] for row in await listed(ca, node)] == ["void"]
    assert [e["action"] for e in await ca.audit(machine_id=node.machine_id)][:1] == ["cert_refused"]
    assert await ca.audit(action="cert_issued", machine_id=node.machine_id) == []


@pytest.mark.threat("T106")
@pytest.mark.parametrize(("act", "outcome"), [(_locked, NOT_ADMITTED), (_other_role, (200, "ok"))])
async def test_an_act_before_it_is_reserved(
    ca: Service,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Tx, str], None],
    outcome: tuple[int, str],
) -> None:
    """Between judgement and the first unit: locked is refused, renamed is judged anew and gets the new name."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1")
    real = certificates.wanted
    done: list[bool] = []

    def planned(*arguments: Any, **more: Any) -> Any:
        if not done:
            done.append(True)
            ca.store.write_sync(lambda tx: act(tx, node.machine_id))
        return real(*arguments, **more)

    monkeypatch.setattr(certificates, "wanted", planned)
    answer = await try_certificate(ca, node, profile="node-server")
    assert outcome_of(answer) == outcome
    if outcome == (200, "ok"):
        certificate = x509.load_pem_x509_certificate(answer.json()["enrollment_cert_pem"].encode())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["other-1"]
    else:
        assert await listed(ca, node) == []
        assert (await ca.audit())[0]["action"] == "cert_refused"


async def test_operators_who_never_stop(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed at every attempt: it ends, and the challenge is still there for the next."""
    node = SoftwareNode()
    await ca.admitted(node, hostname="app-1")
    real = certificates.wanted
    count: list[bool] = []

    def planned(*arguments: Any, **more: Any) -> Any:
        count.append(True)
        name = f"other-{len(count)}"

        def rename(tx: Tx) -> None:
            machine = tx.machines.by_id(node.machine_id)
            assert machine is not None
            tx.machines.update(machine, hostname=name)

        ca.store.write_sync(rename)
        return real(*arguments, **more)

    monkeypatch.setattr(certificates, "wanted", planned)
    challenge = await certificate_challenge(ca, node)
    body = cert_request(node, challenge, ecc_key())
    assert outcome_of(await send(ca, node, body)) == (409, "machine-changed")
    assert len(count) == attempts.ATTEMPTS
    monkeypatch.setattr(certificates, "wanted", real)
    assert (await send(ca, node, body)).status_code == 200


# Which algorithms


@pytest.mark.parametrize(
    ("policy", "curve", "outcome"),
    [
        ("default", ec.SECP256R1(), (200, "ok")),
        ("cnsa1", ec.SECP256R1(), (422, "algorithm-forbidden")),
        ("cnsa1", ec.SECP384R1(), (200, "ok")),
    ],
)
async def test_the_policy_about_algorithms_is_asked(
    ca: Service, policy: str, curve: ec.EllipticCurve, outcome: tuple[int, str]
) -> None:
    """A key of a forbidden kind is refused with its name, before anything is signed."""
    node = SoftwareNode()
    await ca.admitted(node)
    under(ca, policy)
    answer = await try_certificate(ca, node, ecc_key(curve=curve))
    assert outcome_of(answer) == outcome
    if outcome[0] != 200:
        assert "ecdsa-p256" in answer.json()["detail"]
        assert await listed(ca, node) == []


def under(service: Service, policy: str) -> None:
    """Let another policy about algorithms apply; from the start it would also refuse this machine's own keys."""
    settings = service.resources.settings.model_copy(update={"crypto_policy": policy})
    service.app.state.resources = replace(service.resources, settings=settings)


# Compatibility: a key made by the service


@pytest.mark.threat("T109")
async def test_by_default_no_key_is_made_here(ca: Service) -> None:
    """422 with a spent challenge: keys are made in the TPM (R10)."""
    node = SoftwareNode()
    await ca.admitted(node)
    body = server_key_request(node, await certificate_challenge(ca, node), decryption_key())
    async with refused(ca, node, "request-invalid"):
        assert outcome_of(await send(ca, node, body)) == (422, "request-invalid")


@pytest.fixture
async def compat(start: Starter) -> Service:
    """A service that makes keys where it is asked to."""
    return await start(tpm_ca_bundle_dir=start.bundle(), compat_server_keys=True, **WITH_CA)


@pytest.mark.threat("T109")
async def test_a_key_made_here_travels_wrapped(compat: Service) -> None:
    """Only the TPM's RSA key opens it; it is labelled everywhere, and its certificate names no key tier."""
    node, key = SoftwareNode(), decryption_key()
    await compat.admitted(node)
    answer = await send(
        compat, node, server_key_request(node, await certificate_challenge(compat, node), key)
    )
    assert answer.status_code == 200, answer.text
    assert "PRIVATE" not in answer.text
    found = CertResponse.model_validate_json(answer.content)
    assert (found.compat, found.key_tier, found.enrollment_key_format) == (
        "server-key",
        None,
        "itl-server-key-v1",
    )
    wrapped = WrappedKey(
        wrapped_key=b64decode(found.enrollment_key_wrapped_b64 or "", "wrapped"),
        iv=b64decode(found.enrollment_key_iv_b64 or "", "iv"),
        ciphertext=b64decode(found.enrollment_key_encrypted_b64 or "", "ciphertext"),
    )
    opened = unwrap_key(wrapped, open_wrapped(key, wrapped), machine_id=found.machine_id, serial=found.serial)
    private = load_der_private_key(opened, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(found.enrollment_cert_pem.encode())
    assert certificate.public_key() == private.public_key()
    entry = (await compat.audit(action="cert_issued"))[0]
    assert "key tier none" in entry["detail"]
    assert entry["detail"].endswith("; compat: key made by the service")
    assert [row["key_tier"] for row in await listed(compat, node)] == [None]


@pytest.mark.threat("T109")
async def test_a_key_made_here_claims_no_residency(start: Starter) -> None:
    """With an OID arc, the certificate says how well the EK is vouched for, and nothing of the key."""
    service = await start(
        tpm_ca_bundle_dir=start.bundle(),
        compat_server_keys=True,
        assurance_oid_arc="1.3.6.1.4.1.99999",
        **WITH_CA,
    )
    node = SoftwareNode()
    await service.admitted(node)
    made = await send(
        service, node, server_key_request(node, await certificate_challenge(service, node), decryption_key())
    )
    resident = await get_certificate(service, node)
    oids = []
    for pem in (made.json()["enrollment_cert_pem"], resident["enrollment_cert_pem"]):
        certificate = x509.load_pem_x509_certificate(pem.encode())
        policies = certificate.extensions.get_extension_for_class(x509.CertificatePolicies).value
        oids.append([policy.policy_identifier.dotted_string for policy in policies])
    assert oids == [
        ["1.3.6.1.4.1.99999.1.1"],
        ["1.3.6.1.4.1.99999.1.1", "1.3.6.1.4.1.99999.2.4"],
    ]


async def test_a_short_key_to_wrap_to_is_forbidden_where_the_policy_says_so(compat: Service) -> None:
    """RSA-2048 is no key of CNSA 1.0; with the setting in the environment, the service would not even start."""
    node = SoftwareNode()
    await compat.admitted(node)
    under(compat, "cnsa1")
    body = server_key_request(node, await certificate_challenge(compat, node), decryption_key())
    async with refused(compat, node, "algorithm-forbidden"):
        assert outcome_of(await send(compat, node, body)) == (422, "algorithm-forbidden")


@pytest.mark.threat("T109")
@pytest.mark.parametrize("name", ["signing key", "external", "replayed", "other AK"])
async def test_a_made_key_goes_only_to_a_proven_tpm(compat: Service, name: str) -> None:
    """The RSA key must be one that only the TPM can use, vouched for by its AK, for this challenge."""
    node, other = SoftwareNode(), SoftwareNode()
    await compat.admitted(node)
    await compat.admitted(other)
    challenge = await certificate_challenge(compat, node)
    key = decryption_key()
    external = replace(key, qualified_name=key.public.name)
    body, told = {
        "signing key": (server_key_request(node, challenge, ecc_key()), "key-not-resident (tpm-resident)"),
        "external": (
            server_key_request(node, challenge, external),
            "key-not-resident (external-as-resident)",
        ),
        "replayed": (
            server_key_request(node, challenge | {"nonce": b64encode(bytes(32))}, key),
            "challenge-mismatch",
        ),
        "other AK": (server_key_request(other, challenge, key), "signature-invalid"),
    }[name]
    async with refused(compat, node, told):
        assert outcome_of(await send(compat, node, body)) == REJECTED


async def test_a_certification_of_one_use_is_none_of_the_other(compat: Service) -> None:
    """What was signed for a request proves no decryption key, and the other way round."""
    node, key = SoftwareNode(), ecc_key()
    await compat.admitted(node)
    challenge = await certificate_challenge(compat, node)
    body = cert_request(node, challenge, key)
    del body["csr_pem"]
    async with refused(compat, node, "challenge-mismatch"):
        assert outcome_of(await send(compat, node, body)) == REJECTED


@pytest.mark.threat("T109")
async def test_what_cannot_be_wrapped_is_not_sent(compat: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error, never plaintext."""
    node = SoftwareNode()
    await compat.admitted(node)

    def fails(*_arguments: Any, **_more: Any) -> WrappedKey:
        raise ValueError("no")

    monkeypatch.setattr(server_keys, "wrap_key", fails)
    body = server_key_request(node, await certificate_challenge(compat, node), decryption_key())
    answer = await send(compat, node, body)
    assert answer.status_code == 500
    assert "PRIVATE" not in answer.text
    assert "enrollment" not in answer.text


async def test_lists_are_pages(ca: Service) -> None:
    """Newest first, without certificates in them; also of machines that are gone."""
    node = SoftwareNode()
    await ca.admitted(node)
    serials = [(await get_certificate(ca, node))["serial"] for _ in range(3)]
    path = f"/machines/{node.machine_id}/certificates"
    first = (await ca.operator("GET", path, params={"limit": 2})).json()
    rest = (await ca.operator("GET", path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [row["serial"] for row in first["items"] + rest["items"]] == serials[::-1]
    assert rest["next_cursor"] is None
    assert all(row["certificate"] is None for row in first["items"])
    nothing = await ca.operator("GET", f"/machines/{NOBODY}/certificates")
    assert nothing.json() == {"items": [], "next_cursor": None}
