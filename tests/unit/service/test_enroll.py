"""Enrolment with a certificate: it proves who holds it, changes nothing, and takes no other (FAULTS R5, R15)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence
from attestation.machines import Status
from attestation.store import Issuance, Tx
from attestation.wire import b64encode
from attestation_service.enrollment.presented import parse_certificate
from tests.fixtures.machine import refused as outcome_of
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode, rsa_key
from tests.unit.service.node_keys import NodeKey, ecc_key, sign_nonce
from tests.unit.service.test_enrollment import (
    NOBODY,
    WITH_CA,
    certificate_challenge,
    get_certificate,
    listed,
)

pytestmark = pytest.mark.anyio

UNTRUSTED = (403, "certificate-untrusted")
REJECTED = (403, "evidence-rejected")
NOT_ADMITTED = (403, "machine-not-admitted")


@pytest.fixture
async def ca(start: Starter) -> Service:
    """A service that issues certificates."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **WITH_CA)


@dataclass
class Holder:
    """A machine with its certificate and key."""

    service: Service
    node: SoftwareNode
    key: NodeKey
    pem: str
    serial: str

    async def body(self, **members: Any) -> dict[str, Any]:
        """Return an honest request with a fresh challenge; *members* replaces."""
        challenge = await certificate_challenge(self.service, self.node, "enroll")
        return {
            "cert_pem": self.pem,
            "nonce_id": challenge["nonce_id"],
            "nonce": challenge["nonce"],
            "nonce_signature": sign_nonce(self.key, challenge["nonce"]),
        } | members

    async def send(self, body: dict[str, Any]) -> httpx.Response:
        """Present it."""
        return await self.service.post("/api/v1/machines/enroll", body)


async def holder_of(service: Service, **members: Any) -> Holder:
    """Admit a machine, by the next free name, and get its certificate."""
    node, key = SoftwareNode(), ecc_key()
    known = (await service.operator("GET", "/machines")).json()["items"]
    await service.admitted(node, hostname=f"app-{len(known) + 1}")
    answer = await get_certificate(service, node, key, **members)
    return Holder(service, node, key, answer["enrollment_cert_pem"], answer["serial"])


@pytest.fixture
async def holder(ca: Service) -> Holder:
    """A machine with a certificate."""
    return await holder_of(ca)


@contextlib.asynccontextmanager
async def nothing_changes(holder: Holder, *details: str) -> AsyncIterator[None]:
    """Inside, machine and certificates stay as they are; the audit grows by `denied` with these details."""
    service, node = holder.service, holder.node
    before = (await service.detail(node), await listed(service, node))
    seen = len(await service.audit())
    yield
    assert (await service.detail(node), await listed(service, node)) == before
    audit = await service.audit()
    new = [(e["action"], e["detail"]) for e in audit[: len(audit) - seen]]
    assert new == [("denied", detail) for detail in reversed(details)]


async def test_it_says_how_the_machine_stands(holder: Holder) -> None:
    """And again, as often as one likes: each time with a challenge of its own."""
    async with nothing_changes(holder):
        for _ in range(2):
            answer = await holder.send(await holder.body())
            assert answer.status_code == 200, answer.text
            assert answer.json() == {
                "machine_id": holder.node.machine_id,
                "status": "attested",
                "hostname": "app-1",
                "role": "worker-app",
                "message": "the certificate is good and its key is here",
                "action": "none",
                "serial": holder.serial,
                "not_after": "2026-11-22T12:00:00Z",
            }


@pytest.mark.threat("T107")
async def test_a_challenge_is_good_once(holder: Holder) -> None:
    """What was captured proves nothing afterwards; of a hundred at once one is answered."""
    body = await holder.body()
    answers = await asyncio.gather(*(holder.send(body) for _ in range(100)))
    assert sorted(map(outcome_of, answers)) == [(200, "ok")] + [(409, "challenge-used")] * 99


async def test_a_challenge_ends_and_is_for_this(holder: Holder) -> None:
    """Expired, for a certificate instead of with one, of an attestation, of another machine: none counts."""
    service, other = holder.service, await holder_of(holder.service)
    async with nothing_changes(holder):
        for challenge in (
            await certificate_challenge(service, holder.node, "certify"),
            await service.challenge(holder.node),
            await certificate_challenge(service, other.node, "enroll"),
        ):
            signature = sign_nonce(holder.key, challenge["nonce"])
            body = await holder.body(
                nonce_id=challenge["nonce_id"], nonce=challenge["nonce"], nonce_signature=signature
            )
            assert outcome_of(await holder.send(body)) == (404, "challenge-unknown")
        body = await holder.body()
        service.clock.advance(60)
        assert outcome_of(await holder.send(body)) == (410, "challenge-expired")


@pytest.mark.threat("T107")
async def test_the_key_must_be_there(holder: Holder) -> None:
    """A certificate is public: a wrong signature, one of another key or over another text spends the challenge."""
    other = ecc_key()
    bad: list[Callable[[dict[str, Any]], dict[str, str]]] = [
        lambda body: {"nonce_signature": sign_nonce(other, body["nonce"])},
        lambda _: {"nonce_signature": sign_nonce(holder.key, b64encode(bytes(32)))},
        lambda _: {"nonce_signature": b64encode(bytes(64))},
        lambda _: {
            "nonce": b64encode(bytes(32)),
            "nonce_signature": sign_nonce(holder.key, b64encode(bytes(32))),
        },
    ]
    told = [
        f"enroll: {word}, certificate {holder.serial}"
        for word in ("signature-invalid", "signature-invalid", "signature-invalid", "challenge-mismatch")
    ]
    async with nothing_changes(holder, *told):
        for change in bad:
            body = await holder.body()
            assert outcome_of(await holder.send(body | change(body))) == REJECTED
            assert outcome_of(await holder.send(body)) == (409, "challenge-used")


def with_byte(pem: str) -> str:
    """Return the certificate with a zero byte behind it."""
    der = x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER)
    return f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der + bytes(1)).decode()}-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    "pem", ["rubbish", "two", "empty block", "a key", "not ascii", "a byte more", "spaces", "no base64"]
)
async def test_what_is_no_certificate_is_malformed(holder: Holder, pem: str) -> None:
    """One certificate in PEM, and nothing else."""
    text = {
        "rubbish": "x",
        "two": holder.pem + holder.pem,
        "empty block": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        "a key": holder.pem.replace("CERTIFICATE", "PUBLIC KEY"),
        "not ascii": "\N{SNOWMAN}" + holder.pem,
        "a byte more": with_byte(holder.pem),
        "spaces": "-----BEGIN CERTIFICATE-----\n" + " " * 20_000 + "\n-----END CERTIFICATE-----\n",
        "no base64": "-----BEGIN CERTIFICATE-----\nA=A=\n-----END CERTIFICATE-----\n",
    }[pem]
    async with nothing_changes(holder):
        assert outcome_of(await holder.send(await holder.body(cert_pem=text))) == (400, "malformed-evidence")


@given(st.binary(max_size=600) | st.integers(0, 20_000).map(lambda size: b" " * size), st.booleans())
def test_parse_fails_in_one_way_only(data: bytes, framed: bool) -> None:
    """Whatever arrives, in a frame of PEM or without, a caller sees a certificate or MalformedEvidence."""
    text = b64encode(data) if framed else data.decode("utf-8", "surrogateescape")
    if framed:
        lines = [text[i : i + 64] for i in range(0, len(text), 64)]
        text = "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----"])
    with contextlib.suppress(MalformedEvidence):
        parse_certificate(text)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_changed_certificate_is_malformed_or_another(where: int, bit: int) -> None:
    """No flipped bit of a certificate of ours stays the certificate of ours."""
    data = bytearray(SAMPLE)
    data[where % len(data)] ^= 1 << bit
    text = "".join(
        [
            "-----BEGIN CERTIFICATE-----\n",
            base64.encodebytes(bytes(data)).decode(),
            "-----END CERTIFICATE-----\n",
        ]
    )
    with contextlib.suppress(MalformedEvidence):
        assert parse_certificate(text).der != SAMPLE


@pytest.mark.parametrize("member", ["cert_pem", "nonce", "nonce_id", "nonce_signature"])
async def test_every_member_is_needed(holder: Holder, member: str) -> None:
    """Nothing that proves is optional; a nonce has at least 32 characters."""
    body = await holder.body()
    short = await holder.send(body | {"nonce": "A" * 31})
    del body[member]
    assert [outcome_of(a) for a in (short, await holder.send(body))] == [(422, "schema-violation")] * 2


def _sample() -> bytes:
    key = ec.generate_private_key(ec.SECP384R1())
    at = datetime(2026, 11, 21, tzinfo=UTC)
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(x509.Name([]))
    builder = builder.public_key(key.public_key()).serial_number(0x3F << 152)
    made = builder.not_valid_before(at).not_valid_after(at + timedelta(days=1)).sign(key, hashes.SHA384())
    return made.public_bytes(Encoding.DER)


SAMPLE = _sample()
PEM = f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(SAMPLE).decode()}-----END CERTIFICATE-----\n"


async def planted(
    holder: Holder,
    *,
    signed_by: ec.EllipticCurvePrivateKey | None = None,
    names: list[x509.GeneralName] | None = None,
    key: Any = None,
    serial: int | None = None,
    stored: bytes | None = None,
    **row: Any,
) -> str:
    """Put a certificate into the log that no issuance of ours would make, signed by our CA, and return it in PEM."""
    service = holder.service
    authority = service.resources.authority
    assert authority is not None
    issuer = (await service.store.read(lambda tx: tx.issuers.all()))[0]
    assert issuer.certificate is not None
    ca = x509.load_der_x509_certificate(issuer.certificate)
    opened = await authority.in_thread(lambda: authority.signing_key(issuer.issuer_id))
    template = x509.load_pem_x509_certificate(holder.pem.encode())
    at = service.clock.at
    builder = (
        x509.CertificateBuilder()
        .subject_name(template.subject)
        .issuer_name(ca.subject)
        .public_key(key or holder.key.private.public_key())
        .serial_number(serial or 0x3F << 152)
        .not_valid_before(row.get("not_before", at))
        .not_valid_after(row.get("not_after", at + timedelta(hours=1)))
    )
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = builder.sign(signed_by or opened.private_key, hashes.SHA384())
    number = f"{made.serial_number:040x}"
    planned: dict[str, Any] = {
        "serial": number,
        "issuer_id": issuer.issuer_id,
        "profile": "node-client",
        "state": "reserved",
        "machine_id": holder.node.machine_id,
        "subject": "CN=x",
        "spki_sha256": "0" * 64,
        "requester": "test",
        "key_tier": None,
        "assurance": None,
        "renews": None,
        "not_before": at,
        "not_after": at + timedelta(hours=1),
        "reserved_at": at,
    }

    def work(tx: Tx) -> None:
        tx.issuances.reserve(Issuance(**(planned | row)))
        assert tx.issuances.issued(number, stored or made.public_bytes(Encoding.DER), at)

    await service.store.write(work)
    return made.public_bytes(Encoding.PEM).decode()


def ek_name(fingerprint: str) -> x509.GeneralName:
    """Return the name of an EK."""
    return x509.UniformResourceIdentifier(f"urn:itl:ek:{fingerprint}")


@pytest.mark.threat("T107")
async def test_the_ek_must_be_named_and_the_machines(holder: Holder) -> None:
    """Missing, another machine's, doubled: refused, although our CA signed it (R15)."""
    own, other = holder.node.ek_fingerprint, SoftwareNode().ek_fingerprint
    good = await planted(holder, names=[ek_name(own)], serial=(0x3F << 152) + 1)
    assert (await holder.send(await holder.body(cert_pem=good))).status_code == 200
    cases: list[list[x509.GeneralName] | None] = [
        None,
        [x509.DNSName("app-1")],
        [ek_name(other)],
        [ek_name(own), ek_name(other)],
        [x509.UniformResourceIdentifier(own)],
    ]
    for number, names in enumerate(cases, start=2):
        pem = await planted(holder, names=names, serial=(0x3F << 152) + number)
        body = await holder.body(cert_pem=pem)
        assert outcome_of(await holder.send(body)) == UNTRUSTED, names
        assert outcome_of(await holder.send(body)) == (409, "challenge-used")


@pytest.mark.threat("T107")
async def test_only_our_own_certificates(holder: Holder) -> None:
    """Self-made with a serial of ours, unknown, by a foreign CA and planted in our log: each is refused."""
    own = [ek_name(holder.node.ek_fingerprint)]
    stranger = ec.generate_private_key(ec.SECP384R1())
    template = x509.load_pem_x509_certificate(holder.pem.encode())
    imitation = (
        x509.CertificateBuilder()
        .subject_name(template.subject)
        .issuer_name(template.issuer)
        .public_key(stranger.public_key())
        .serial_number(template.serial_number)
        .not_valid_before(template.not_valid_before_utc)
        .not_valid_after(template.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(own), critical=False)
        .sign(stranger, hashes.SHA384())
        .public_bytes(Encoding.PEM)
        .decode()
    )
    foreign = await planted(holder, names=own, signed_by=stranger, serial=(0x3F << 152) + 1)
    unknown = await planted(holder, names=own, serial=(0x3F << 152) + 2, stored=b"other")
    server = await planted(holder, names=own, serial=(0x3F << 152) + 3, profile="node-server")
    async with nothing_changes(holder, *["enroll: certificate-untrusted"] * 4):
        for pem in (imitation, foreign, unknown, server):
            body = await holder.body(cert_pem=pem)
            assert outcome_of(await holder.send(body)) == UNTRUSTED
            # Nobody knows whose challenge it would have been: it is still good.
            assert (await holder.send(body | {"cert_pem": holder.pem})).status_code == 200


async def test_every_attempt_counts(start: Starter) -> None:
    """Good ones, bad ones and what nobody issued: all of one address, and beyond its rate each waits."""
    limited = dict(WITH_CA) | {"rate_limits": True, "rate_limit_address_burst": 12}
    service = await start(tpm_ca_bundle_dir=start.bundle(), **limited)
    holder = await holder_of(service)
    service.clock.advance(60)
    good, bad = await holder.body(), await holder.body(nonce_signature=b64encode(bytes(64)))
    # The challenges were the first two of twelve.
    sent = [good, bad, *[good | {"cert_pem": PEM}] * 8, good]
    answers = [(await holder.send(body)).status_code for body in sent]
    assert answers == [200, 403, *[403] * 8, 429]


@pytest.mark.parametrize("first", [0x00, 0x7F, 0xC0])
async def test_a_serial_number_that_cannot_be(holder: Holder, first: int) -> None:
    """Zero, larger than any of ours, negative: no certificate of ours has it."""
    data = bytearray(SAMPLE)
    at = data.index(b"\x02\x14\x3f")
    data[at + 2] = first
    data[at + 3] = 0x80 if first == 0 else 0
    text = base64.encodebytes(bytes(data)).decode()
    pem = f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"
    assert outcome_of(await holder.send(await holder.body(cert_pem=pem))) == UNTRUSTED


async def test_a_ca_that_ended_is_none(holder: Holder) -> None:
    """After its retirement nothing that it signed is believed; while it retires, it is."""
    issuer = (await holder.service.store.read(lambda tx: tx.issuers.all()))[0]
    at = holder.service.clock.at
    await holder.service.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "active", "retiring", at))
    assert (await holder.send(await holder.body())).status_code == 200
    await holder.service.store.write(lambda tx: tx.issuers.move(issuer.issuer_id, "retiring", "retired", at))
    assert outcome_of(await holder.send(await holder.body())) == UNTRUSTED


async def test_keys_of_other_kinds(holder: Holder) -> None:
    """RSA as of old; a key that signs neither ECDSA nor RSA proves nothing here."""
    own = [ek_name(holder.node.ek_fingerprint)]
    private = rsa_key()
    assert isinstance(private, rsa.RSAPrivateKey)
    pem = await planted(holder, names=own, key=private.public_key(), serial=(0x3F << 152) + 1)
    legacy = NodeKey(private, holder.key.public, b"")
    body = await holder.body(cert_pem=pem)
    body["nonce_signature"] = sign_nonce(legacy, body["nonce"])
    assert (await holder.send(body)).status_code == 200
    body = await holder.body(cert_pem=pem)
    assert outcome_of(await holder.send(body)) == REJECTED
    other = ed25519.Ed25519PrivateKey.generate()
    pem = await planted(holder, names=own, key=other.public_key(), serial=(0x3F << 152) + 2)
    body = await holder.body(cert_pem=pem)
    body["nonce_signature"] = b64encode(other.sign(body["nonce"].encode()))
    assert outcome_of(await holder.send(body)) == REJECTED


@pytest.mark.threat("T107")
@pytest.mark.parametrize("state", ["revoked", "held", "expired"])
async def test_a_certificate_that_is_not_good_now(holder: Holder, state: str) -> None:
    """By our own log, and at once; only who holds the key hears it."""
    service, at = holder.service, holder.service.clock.at
    match state:
        case "revoked":
            await service.store.write(
                lambda tx: tx.issuances.revoke_serial(holder.serial, "keyCompromise", "test", at)
            )
        case "held":
            await service.store.write(lambda tx: tx.issuances.hold(holder.node.machine_id, "test", at))
        case "expired":
            service.clock.advance(24 * 3600)
    async with nothing_changes(holder, f"enroll: certificate-untrusted, certificate {holder.serial}"):
        body = await holder.body()
        assert outcome_of(await holder.send(body)) == UNTRUSTED
        assert outcome_of(await holder.send(body)) == (409, "challenge-used")
    other = await holder.body(nonce_signature=b64encode(bytes(64)))
    assert outcome_of(await holder.send(other)) == REJECTED


STATUSES: dict[Status, tuple[int, str]] = {
    Status.PENDING_APPROVAL: NOT_ADMITTED,
    Status.REGISTERED: NOT_ADMITTED,
    Status.ATTESTED: (200, "ok"),
    Status.LOCKED: NOT_ADMITTED,
    Status.REVOKED: NOT_ADMITTED,
    Status.REJECTED: (403, "machine-rejected"),
}


async def test_both_certificates_of_a_hybrid_ca_count(start: Starter) -> None:
    """Each is signed by a CA of ours, ECDSA the one and ML-DSA the other, for the same key."""
    service = await start(tpm_ca_bundle_dir=start.bundle(), enrollment_ca_algorithm="hybrid", **WITH_CA)
    node, key = SoftwareNode(), ecc_key()
    await service.admitted(node, hostname="app-1")
    answer = await get_certificate(service, node, key)
    for each in answer["certificates"]:
        holder = Holder(service, node, key, each["cert_pem"], each["serial"])
        found = await holder.send(await holder.body())
        assert found.json()["serial"] == each["serial"], found.text


async def test_a_certificate_that_is_not_good_yet(holder: Holder) -> None:
    """Its validity begins in an hour."""
    later = holder.service.clock.at + timedelta(hours=1)
    names = [ek_name(holder.node.ek_fingerprint)]
    ends = later + timedelta(hours=1)
    pem = await planted(holder, names=names, not_before=later, not_after=ends)
    assert outcome_of(await holder.send(await holder.body(cert_pem=pem))) == UNTRUSTED
    holder.service.clock.advance(3600)
    assert (await holder.send(await holder.body(cert_pem=pem))).status_code == 200


@pytest.mark.threat("T107")
@pytest.mark.parametrize("status", Status)
async def test_no_status_is_left_by_it(holder: Holder, status: Status) -> None:
    """Every status has its outcome, and is what it was afterwards: also where the log forgot to hold or revoke."""

    def stand(tx: Tx) -> None:
        machine = tx.machines.by_id(holder.node.machine_id)
        assert machine is not None
        tx.machines.update(machine, status=status)

    await holder.service.store.write(stand)
    outcome = STATUSES[status]
    told = [] if outcome[0] == 200 else [f"enroll: {outcome[1]}, certificate {holder.serial}"]
    async with nothing_changes(holder, *told):
        assert outcome_of(await holder.send(await holder.body())) == outcome
    assert (await holder.service.detail(holder.node))["status"] == status


def _held(tx: Tx, machine_id: str) -> None:
    machine = tx.machines.by_id(machine_id)
    assert machine is not None
    tx.issuances.hold(machine_id, "test", machine.registered_at)


def _deleted(tx: Tx, machine_id: str) -> None:
    tx.machines.delete(machine_id)


@pytest.mark.parametrize(("act", "outcome"), [(_held, UNTRUSTED), (_deleted, (404, "machine-unknown"))])
async def test_an_act_between_judgement_and_answer(
    holder: Holder,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Tx, str], None],
    outcome: tuple[int, str],
) -> None:
    """What is true when the challenge is redeemed counts."""
    body = await holder.body()
    store = holder.service.store
    original = store.read

    async def read(work: Callable[[Tx], Any]) -> Any:
        found = await original(work)
        await store.write(lambda tx: act(tx, holder.node.machine_id))
        return found

    monkeypatch.setattr(store, "read", read)
    assert outcome_of(await holder.send(body)) == outcome


@pytest.mark.threat("T107")
async def test_a_deleted_machine_is_unknown(holder: Holder) -> None:
    """Its certificate survives it, and enrols nobody (R15)."""
    service, node = holder.service, holder.node
    body = await holder.body()
    await service.act(node, "revoke", {"wipe": True})
    directive = (await service.attest(node))["directive"]
    ack = node.acknowledgement(await service.challenge(node), directive)
    assert (await service.post(f"/api/v1/machines/{node.machine_id}/ack", ack)).status_code == 200
    assert (await service.operator("DELETE", f"/machines/{node.machine_id}")).status_code == 204
    assert outcome_of(await holder.send(body)) == (404, "machine-unknown")
    answer = await service.get(f"/api/v1/machines/{node.machine_id}/challenge", params={"purpose": "enroll"})
    assert outcome_of(answer) == (404, "machine-unknown")
    assert node.machine_id != NOBODY
    assert len(await listed(service, node)) == 1
