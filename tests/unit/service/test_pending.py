"""What machines that nobody admitted may keep here: bytes, rows and time are bounded (FAULTS R21)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from attestation.wire import b64encode
from attestation_service.entitlements import pending
from attestation_service.process import maintenance
from attestation_service.registration.introduction import MAX_CHAIN_BYTES, MAX_CHAIN_CERTIFICATES
from attestation_testing.certificates import CertificateAuthority
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


@pytest.mark.threat("T137")
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


@pytest.mark.threat("T137")
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


@pytest.mark.threat("T137")
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


@pytest.mark.threat("T157")
async def test_a_copied_certificate_uses_up_nobody_elses_room(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shown without its TPM from many networks, it takes a small part of what vouched ones have, then anybody's."""
    monkeypatch.setattr(pending, "KIB_PER_MIB", 16)
    monkeypatch.setattr(pending, "OF_ONE_EK_KIB", 8)
    service = await start(
        **FLOOD, tpm_ca_bundle_dir=start.bundle(), introduced_mib=4, introduced_mib_per_network=1
    )
    node, other = SoftwareNode(), SoftwareNode()
    found = []
    for last in range(10):
        service.http.headers["X-Forwarded-For"] = f"203.0.113.{last}"
        for _ in range(5):
            answer = await service.post(REGISTER, node.introduction(**vouched(node.ek)))
            found.append(answer.status_code)
    assert found.count(200) > 8
    assert 429 in found
    # Another machine of a vendor comes in, from anywhere.
    assert await comes_from(service, "203.0.113.1", other, **vouched(other.ek)) == 200
    # The one whose certificate it is does not, while that goes on: the part of its EK is gone, and anybody's room too.
    assert await comes_from(service, "198.51.100.7", node, **vouched(node.ek)) == 429
    service.clock.advance(660)
    assert await comes_from(service, "198.51.100.7", node, **vouched(node.ek)) == 200


@pytest.mark.threat("T137")
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
    other = SoftwareNode()
    full = await service.post(REGISTER, other.introduction(**vouched(other.ek)))
    assert (full.status_code, code(full)) == (429, "pending-quota-exceeded")


@pytest.mark.threat("T127", "T137")
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


@pytest.mark.threat("T138")
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


FLOOD: dict[str, Any] = {"trusted_proxies": ("192.0.2.0/24",)}
"""Every test comes by a trusted proxy, which names the client."""


async def comes_from(service: Service, address: str, node: SoftwareNode, **members: Any) -> int:
    """Introduce *node* from *address*, and activate it; return the last status."""
    service.http.headers["X-Forwarded-For"] = address
    answer = await service.post(REGISTER, node.introduction(**members))
    if answer.status_code != 200:
        return answer.status_code
    proof = node.activation(answer.json())
    return (await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", proof)).status_code


@pytest.mark.threat("T144")
async def test_a_flood_locks_no_vendors_machine_out(start: Starter) -> None:
    """Strangers fill what all strangers may have; a vendor's machine has a place of its own, from any network."""
    service = await start(
        **FLOOD, tpm_ca_bundle_dir=start.bundle(), pending_limit=3, pending_limit_per_address=2
    )
    for last in range(3):
        assert await comes_from(service, f"203.0.113.{last}", SoftwareNode()) == 200
    assert await comes_from(service, "203.0.113.9", SoftwareNode()) == 429
    node = SoftwareNode()
    assert await comes_from(service, "198.51.100.1", node, **vouched(node.ek)) == 200
    assert (await service.detail(node))["ek_chain_ok"]
    assert service.resources.room.is_proven("198.51.100.1")
    assert not service.resources.room.is_proven("203.0.113.1")


async def test_who_stands_on_the_list_is_proven_too(start: Starter) -> None:
    """An operator's entry is as good as a vendor's chain: what was activated has room of its own."""
    service, node = await start(**FLOOD), SoftwareNode()
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app"}
    assert (await service.operator("POST", "/allow-list", {"entries": [entry]})).status_code == 200
    assert await comes_from(service, "198.51.100.1", node) == 200
    assert service.resources.room.is_proven("198.51.100.1")


@pytest.mark.threat("T144")
async def test_a_network_of_ipv6_is_one_stranger(start: Starter) -> None:
    """Addresses without end within a /64, and networks without end within a /48, have one quota each."""
    service = await start(**FLOOD, pending_limit_per_address=1)
    assert await comes_from(service, "2001:db8:1:1::1", SoftwareNode()) == 200
    assert await comes_from(service, "2001:db8:1:1::2", SoftwareNode()) == 429
    found = [await comes_from(service, f"2001:db8:1:{i}::1", SoftwareNode()) for i in range(2, 7)]
    assert found == [200, 200, 200, 429, 429]
    assert await comes_from(service, "2001:db8:2:1::1", SoftwareNode()) == 200


@pytest.mark.threat("T144")
@pytest.mark.parametrize("path", ["attest/challenge", "config", "attest"])
async def test_requests_are_counted_by_network_and_site(start: Starter, path: str) -> None:
    """A new address for each request is no new client; the whole site has four times a network's rate."""
    limits: dict[str, Any] = {
        **FLOOD,
        "rate_limit_address_per_second": 0.001,
        "rate_limit_address_burst": 4,
        "rate_limit_machine_burst": 100,
    }
    service, node = await start(**limits), SoftwareNode()
    await comes_from(service, "198.51.100.1", node)

    async def ask(address: str) -> bool:
        service.http.headers["X-Forwarded-For"] = address
        if path == "attest":
            answer = await service.post("/api/v1/attest", node.attestation(CHALLENGE))
        else:
            answer = await service.get(f"/api/v1/{path}", params={"machine_id": node.machine_id})
        return answer.status_code == 429

    assert [await ask(f"2001:db8:1:1::{i}") for i in range(5)] == [False] * 4 + [True]
    assert [await ask(f"2001:db8:1:{i}::1") for i in range(2, 20)].count(False) == 12
    assert not await ask("2001:db8:2::1")


CHALLENGE = {
    "nonce_id": "0" * 32,
    "nonce": b64encode(bytes(32)),
    "expires_at": "2026-11-21T12:01:00Z",
    "pcr_selection": {"sha256": [0]},
    "event_log": "accepted",
    "evidence": ["tpm-quote"],
}
