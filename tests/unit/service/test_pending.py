"""What machines that nobody admitted may keep here: bytes, rows and time are bounded (FAULTS R21)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from attestation.testing.certificates import CertificateAuthority
from attestation.wire import b64encode
from attestation_service import maintenance, pending
from attestation_service.registration.introduction import MAX_CHAIN_BYTES, MAX_CHAIN_CERTIFICATES
from tests.fixtures.vendor import ISSUER, ROOT, vouched
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import REGISTER, code, start_client, token

pytestmark = pytest.mark.anyio


def payloads(service: Service) -> list[int]:
    """Return the sizes of what introductions keep now."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        rows = db.execute("SELECT LENGTH(payload) FROM challenges WHERE payload IS NOT NULL")
        return [row[0] for row in rows]


async def test_only_what_may_lead_to_the_issuer_is_kept(service: Service) -> None:
    """Sixteen certificates of 8 KiB were kept of anybody for eleven minutes, and of who waits for ever."""
    node = SoftwareNode()
    strangers = [b64encode(CertificateAuthority(f"S{i}", seed=100 + i).certificate) for i in range(12)]
    junk = [b64encode(bytes([0x30, 0x82, 0x1F, 0x00]) + bytes(8188)), b64encode(b"\xff" * 8192)]
    members = vouched(node.ek) | {
        "ek_chain": [*junk, *strangers, b64encode(ISSUER.certificate), b64encode(ROOT.certificate)]
    }
    answer = await service.post(REGISTER, node.introduction(**members))
    assert answer.status_code == 200
    (size,) = payloads(service)
    assert size < 8 << 10
    url = f"/api/v1/machines/{answer.json()['machine_id']}/ak-activate"
    assert (await service.post(url, node.activation(answer.json()))).status_code == 200
    assert payloads(service) == []
    stored = await service.store.read(lambda tx: tx.ek_certificates.get(node.machine_id))
    assert stored is not None
    assert stored.chain == (ISSUER.certificate, ROOT.certificate)
    assert (await service.detail(node))["ek_chain_ok"]


async def test_a_chain_made_to_be_kept_is_bounded(service: Service) -> None:
    """Any number of certificates that name one another: five, of 16 KiB together."""
    node = SoftwareNode()
    rivals = [
        b64encode(CertificateAuthority("Infineon Test Issuer", seed=200 + i).certificate) for i in range(16)
    ]
    await service.introduce(node, **vouched(node.ek) | {"ek_chain": rivals})
    stored = await service.store.read(lambda tx: tx.ek_certificates.get(node.machine_id))
    assert stored is not None
    assert len(stored.chain) == MAX_CHAIN_CERTIFICATES
    assert sum(map(len, stored.chain)) <= MAX_CHAIN_BYTES
    machine = await service.store.read(lambda tx: tx.machines.by_id(node.machine_id))
    assert machine is not None
    assert machine.kept_bytes == len(stored.certificate) + sum(len(b64encode(der)) for der in stored.chain)


async def test_introductions_are_bounded_in_bytes(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network and of all; what is answered gives its room back, and time gives it back to the others."""
    monkeypatch.setattr(pending, "KIB_PER_MIB", 8)
    service = await start(tpm_ca_bundle_dir=start.bundle(), introduced_mib=2, introduced_mib_per_network=1)
    answered = 0
    while True:
        node = SoftwareNode()
        answer = await service.post(REGISTER, node.introduction())
        if answer.status_code != 200:
            break
        url = f"/api/v1/machines/{answer.json()['machine_id']}/ak-activate"
        if answered < 20:  # more than there is room for at once
            assert (await service.post(url, node.activation(answer.json()))).status_code == 200
        answered += 1
    assert 20 < answered < 40
    assert (code(answer), answered - 20) == ("rate-limited", len(payloads(service)))
    assert sum(payloads(service)) <= 9 << 10
    # Another network has its own room, until all of it is taken.
    elsewhere = Service(
        service.app, await start_client(service, "192.0.2.8"), service.clock, service.directory
    )
    assert (await elsewhere.post(REGISTER, SoftwareNode().introduction())).status_code == 200
    statuses = {
        (await elsewhere.post(REGISTER, SoftwareNode().introduction())).status_code for _ in range(20)
    }
    assert statuses == {200, 429}
    third = Service(service.app, await start_client(service, "192.0.2.9"), service.clock, service.directory)
    assert code(await third.post(REGISTER, SoftwareNode().introduction())) == "rate-limited"
    # Strangers do not use up what those have for whom somebody answers.
    known = SoftwareNode()
    assert (await service.post(REGISTER, known.introduction(**vouched(known.ek)))).status_code == 200
    service.clock.advance(660)
    assert (await third.post(REGISTER, SoftwareNode().introduction())).status_code == 200


@pytest.mark.parametrize("limit", ["pending_mib", "pending_mib_per_address"])
async def test_machines_that_wait_are_bounded_in_bytes(start: Starter, limit: str) -> None:
    """Not only in number: a certificate may be small or large."""
    chosen: dict[str, Any] = {limit: 1}
    service = await start(tpm_ca_bundle_dir=start.bundle(), **chosen)
    node = SoftwareNode()
    await service.introduce(node, **vouched(node.ek))
    machine = await service.store.read(lambda tx: tx.machines.by_id(node.machine_id))
    assert machine is not None
    await service.store.write(lambda tx: tx.machines.update(machine, kept_bytes=(1 << 20) - 1))
    await service.introduce(SoftwareNode())
    later = await service.store.read(lambda tx: tx.machines.by_id(node.machine_id))
    assert later is not None
    await service.store.write(lambda tx: tx.machines.update(later, kept_bytes=1 << 20))
    full = await service.post(REGISTER, SoftwareNode().introduction())
    assert (full.status_code, code(full)) == (429, "pending-quota-exceeded")


async def test_who_is_not_decided_about_goes(start: Starter) -> None:
    """After days, with an audit entry; the key stays bound, and who comes back waits whatever token it has."""
    clock = HeldClock()
    service = await start(clock, pending_days=2)
    node, approved, young = SoftwareNode(), SoftwareNode(), SoftwareNode()
    await service.introduce(node)
    await service.introduce(approved)
    await service.act(approved, "approve", {"role": "worker-app"})
    clock.advance(86_400)
    await service.introduce(young)
    clock.advance(86_400)
    await maintenance.once(service.resources)
    assert await service.audit(action="pending_purged") == []
    clock.advance(1)
    await maintenance.once(service.resources)
    (entry,) = await service.audit(action="pending_purged")
    assert (entry["machine_id"], entry["prev_state"]) == (node.machine_id, "pending_approval")
    left = {m["machine_id"] for m in (await service.operator("GET", "/machines")).json()["items"]}
    assert left == {approved.machine_id, young.machine_id}
    first = node.machine_id
    assert await service.store.read(lambda tx: tx.chip_marks.of(first)) == ()
    thief = SoftwareNode()
    thief._ak, thief.ak = node._ak, node.ak
    assert code(await service.post(REGISTER, thief.introduction())) == "ak-conflict"
    issued = await token(service)
    assert (await service.introduce(node, registration_token=issued["token"]))["status"] == "pending_approval"
    detail = await service.detail(node)
    assert [(each["machine_id"], each["status"]) for each in detail["relatives"]] == [(first, None)]
    assert detail["alarm"] is None


# Who may introduce machines at all


@pytest.mark.parametrize(
    ("nets", "address", "allowed"),
    [
        (("10.20.0.0/16", "fd00:20::/64"), "10.20.3.4", True),
        (("10.20.0.0/16", "fd00:20::/64"), "fd00:20::7", True),
        (("10.20.0.0/16",), "::ffff:10.20.3.4", True),
        (("10.20.0.0/16", "fd00:20::/64"), "10.21.3.4", False),
        (("10.20.0.0/16", "fd00:20::/64"), "fd00:21::7", False),
        (("10.20.0.0/16",), "unknown", False),
    ],
)
async def test_networks_from_which_machines_are_introduced(
    start: Starter, nets: Any, address: str, allowed: bool
) -> None:
    """From elsewhere neither door opens; it is recorded, and a machine that is known still attests."""
    service = await start(registration_nets=nets)
    client = await start_client(service, address)
    there = Service(service.app, client, service.clock, service.directory)
    answers = [
        await there.post(route, SoftwareNode().introduction()) for route in (REGISTER, "/api/v1/register")
    ]
    assert {answer.status_code for answer in answers} == {200 if allowed else 403}
    if not allowed:
        assert {code(answer) for answer in answers} == {"registration-forbidden"}
        (entry, *_) = await service.audit(action="denied")
        assert entry["detail"] == "introduce: registration-forbidden"
        inside = Service(
            service.app, await start_client(service, "10.20.0.1"), service.clock, service.directory
        )
        node = SoftwareNode()
        await inside.introduce(node)
        assert (await there.try_attest(node)).status_code == 200
