"""Trust that expires: leases lapse once, tokens go with them, and machines come again at their own pace."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from attestation.reference import IDENTITY_ONLY
from attestation_service.entitlements import leases
from attestation_service.process import maintenance
from attestation_service.settings import Settings
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

LEASE, GRACE = 180, 30


def events(service: Service, word: str) -> list[dict[str, Any]]:
    """Return the payloads of the events of this name, oldest first."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        rows = db.execute("select payload from outbox where event = ?", (word,)).fetchall()
    return sorted((json.loads(row[0]) for row in rows), key=lambda event: event["timestamp"])


async def audited(service: Service, action: str) -> list[dict[str, Any]]:
    """Return the audit entries of this action, newest first."""
    return await service.audit(action=action)


@pytest.mark.threat("T77")
async def test_a_lapse_is_noticed_once(service: Service) -> None:
    """Trust ends with the lease; after the grace, one event and one audit entry, however often one looks."""
    node = SoftwareNode()
    await service.admitted(node)
    service.clock.advance(LEASE - 1)
    assert (await service.detail(node))["trust"] == "verified"
    service.clock.advance(1)
    assert (await service.detail(node))["trust"] == "stale"
    await maintenance.once(service.resources)
    service.clock.advance(GRACE - 1)
    await maintenance.once(service.resources)
    assert await audited(service, "heartbeat_missed") == []
    service.clock.advance(1)
    for _ in range(3):
        await maintenance.once(service.resources)
        service.clock.advance(3_600)
    (entry,) = await audited(service, "heartbeat_missed")
    assert (entry["machine_id"], entry["operator_cn"]) == (node.machine_id, "service")
    assert (entry["prev_state"], entry["new_state"]) == ("attested", "attested")
    assert entry["detail"] == "trust ended 2026-11-21T12:03:00.000000Z"
    (event,) = events(service, "node.heartbeat_missed")
    assert event["node"]["machine_id"] == node.machine_id
    assert event["node"]["last_seen_at"] == "2026-11-21T12:00:00.000000Z"
    assert event["meta"] == {"trust_expired_at": "2026-11-21T12:03:00.000000Z", "missed_count": 1}
    assert (await service.detail(node))["status"] == "attested"


async def test_a_machine_that_is_back_is_told_of_and_may_be_missed_again(service: Service) -> None:
    """The next Verified result clears it: audit, event; the next lapse is another one."""
    node = SoftwareNode()
    await service.admitted(node)
    for round_ in (1, 2):
        service.clock.advance(LEASE + GRACE)
        await maintenance.once(service.resources)
        assert len(await audited(service, "heartbeat_missed")) == round_
        await service.attest(node)
        assert (await service.detail(node))["trust"] == "verified"
        assert len(await audited(service, "heartbeat_resumed")) == round_
    online = events(service, "node.online")
    assert [event["meta"] for event in online] == [
        {},
        {"missed_since": "2026-11-21T12:03:30.000000Z"},
        {"missed_since": "2026-11-21T12:07:00.000000Z"},
    ]
    await service.attest(node)
    assert len(await audited(service, "heartbeat_resumed")) == 2


@pytest.mark.threat("T77")
async def test_a_bad_result_does_not_clear_it(service: Service) -> None:
    """A machine that comes back with evidence that fails is still missed: only a Verified result renews a lease."""
    node = SoftwareNode()
    await service.admitted(node)
    service.clock.advance(LEASE + GRACE)
    await maintenance.once(service.resources)
    node.reset_count -= 1
    await service.attest(node)
    detail = await service.detail(node)
    assert (detail["trust"], detail["heartbeat_missed_at"]) == ("failed", "2026-11-21T12:03:30Z")
    assert await audited(service, "heartbeat_resumed") == []
    await maintenance.once(service.resources)
    assert len(await audited(service, "heartbeat_missed")) == 1


async def test_a_machine_that_was_locked_meanwhile_is_not_announced(service: Service) -> None:
    """It comes back and is told to lock; nobody is told that it is online."""
    node = SoftwareNode()
    await service.admitted(node)
    service.clock.advance(LEASE + GRACE)
    await maintenance.once(service.resources)
    await service.act(node, "lock", {"reason": "test"})
    assert (await service.attest(node))["action"] == "lock"
    assert await audited(service, "heartbeat_resumed") == []
    assert [event["meta"] for event in events(service, "node.online")] == [{}]
    # Unlocked and verified it is like any other, and may be missed again.
    await service.act(node, "unlock")
    await service.attest(node)
    service.clock.advance(LEASE + GRACE)
    await maintenance.once(service.resources)
    assert len(await audited(service, "heartbeat_missed")) == 2


async def test_who_renews_is_never_missed(service: Service) -> None:
    """A machine in its rhythm causes nothing, for as long as it keeps it."""
    node = SoftwareNode()
    await service.admitted(node)
    before = len(await service.audit())
    for _ in range(20):
        service.clock.advance(45)
        await service.attest(node)
        await maintenance.once(service.resources)
    assert len(await service.audit()) == before
    assert events(service, "node.heartbeat_missed") == []


@pytest.mark.threat("T77")
async def test_tokens_go_with_the_lease(service: Service) -> None:
    """What was not fetched is withdrawn; the machine gets a new token when it is back, without an operator."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    service.clock.advance(LEASE + GRACE)
    await maintenance.once(service.resources)
    answer = await service.attest(node)
    assert answer["action"] == "apply-config"
    assert (await service.fetch(token)).status_code == 410
    assert (await service.fetch(answer["config_token"])).status_code == 200
    acknowledged = node.acknowledgement(answer["next_challenge"], answer["directive"])
    assert (await service.post(f"/api/v1/machines/{node.machine_id}/ack", acknowledged)).status_code == 200
    # Applied: a further lapse orders no further delivery.
    service.clock.advance(3 * LEASE)
    await maintenance.once(service.resources)
    assert (await service.attest(node))["action"] == "none"


async def test_an_answer_that_may_be_repeated_goes_too(service: Service) -> None:
    """The window in which a delivery may be fetched again ends with the lease."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    assert (await service.fetch(token)).status_code == 200
    service.clock.advance(LEASE + GRACE)
    await maintenance.once(service.resources)
    await service.attest(node)
    assert (await service.fetch(token)).status_code == 410


async def test_only_attested_machines_are_missed(service: Service) -> None:
    """Pending, locked and failed machines have no lease that could lapse."""
    pending, locked, failed = SoftwareNode(), SoftwareNode(), SoftwareNode()
    await service.introduce(pending)
    await service.attest(pending)
    await service.admitted(locked)
    await service.act(locked, "lock", {"reason": "test"})
    await service.admitted(failed)
    failed.reset_count -= 1
    await service.attest(failed)
    service.clock.advance(7 * 86_400)
    await maintenance.once(service.resources)
    assert await audited(service, "heartbeat_missed") == []


@pytest.mark.threat("T77")
async def test_several_workers_notice_each_lapse_once(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four workers over one database, batches smaller than the fleet: every machine once."""
    monkeypatch.setattr(leases, "BATCH", 3)
    clock = HeldClock()
    workers = [await start(clock, tpm_ca_bundle_dir=start.bundle()) for _ in range(4)]
    nodes = [SoftwareNode() for _ in range(8)]
    for node in nodes:
        await workers[0].admitted(node)
    clock.advance(LEASE + GRACE)
    await asyncio.gather(*(leases.watch(worker.resources) for worker in workers))
    missed = events(workers[0], "node.heartbeat_missed")
    assert sorted(e["node"]["machine_id"] for e in missed) == sorted(n.machine_id for n in nodes)
    assert len(await audited(workers[0], "heartbeat_missed")) == 8


async def test_a_machine_that_came_meanwhile_is_not_missed(service: Service) -> None:
    """Between reading who is overdue and noting it, an attestation wins; so does another worker."""
    node = SoftwareNode()
    await service.admitted(node)
    machine_id = node.machine_id
    service.clock.advance(LEASE + GRACE)
    now, store = service.clock.now(), service.store
    assert await store.write(lambda tx: tx.machines.miss(machine_id, now, now))
    assert not await store.write(lambda tx: tx.machines.miss(machine_id, now, now))
    await service.attest(node)
    assert not await store.write(lambda tx: tx.machines.miss(machine_id, now, now))
    overdue = await store.read(lambda tx: tx.machines.by_id(machine_id))
    assert overdue is not None
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("attestation.store.machines.Machines.lapsed", lambda *_: [overdue])
        assert await store.write(lambda tx: leases.note(tx, now, now)) == 0
    assert await audited(service, "heartbeat_missed") == []


async def test_grace_may_be_none(start: Starter) -> None:
    """With no grace a lapse is noticed at the instant at which trust ends."""
    service = await start(heartbeat_grace_seconds=0, tpm_ca_bundle_dir=start.bundle())
    await service.admitted(SoftwareNode())
    service.clock.advance(LEASE)
    await maintenance.once(service.resources)
    assert len(await audited(service, "heartbeat_missed")) == 1


async def test_the_interval_is_spread_by_machine(service: Service) -> None:
    """45 s, up to a tenth up or down, the same for one machine at each answer, and not the same for all."""
    told = []
    for _ in range(12):
        node = SoftwareNode()
        await service.introduce(node)
        answers = [(await service.attest(node))["reattest_after_seconds"] for _ in range(2)]
        assert len(set(answers)) == 1
        told.append(answers[0])
    assert all(40 <= seconds <= 50 for seconds in told)
    assert len(set(told)) > 3


async def test_a_role_may_have_its_own_interval(service: Service) -> None:
    """What a policy of the role says is told to machines in it, and its lease is as long as it says."""
    patient, other = SoftwareNode(), SoftwareNode()
    document = {
        "format": "itl-tpm-policy/1",
        "name": "patient",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [patient.pcrs[7].hex()]}},
        "max_age_seconds": 7200,
        "reattest_seconds": 1800,
    }
    assert (await service.operator("POST", "/policies", document)).status_code == 201
    assigned = await service.operator(
        "PUT", "/policies/assignments/role/worker-infra", {"policy": "patient@1"}
    )
    assert assigned.status_code == 200, assigned.text
    answer = await service.admitted(patient, role="worker-infra")
    assert 1620 <= answer["reattest_after_seconds"] <= 1980
    assert (await service.admitted(other))["reattest_after_seconds"] <= 50
    service.clock.advance(LEASE + GRACE)
    await maintenance.once(service.resources)
    (entry,) = await audited(service, "heartbeat_missed")
    assert entry["machine_id"] == other.machine_id
    # Its challenge ended long ago: it comes for a fresh one.
    service.clock.advance(1500)
    await service.attest(patient)
    assert (await service.detail(patient))["trust"] == "verified"


class _Machine:
    """As much of a machine as the interval needs."""

    def __init__(self, number: int) -> None:
        self.machine_id = f"00000000-0000-4000-8000-{number:012x}"


def intervals(settings: Settings, **changed: Any) -> list[int]:
    policy = replace(IDENTITY_ONLY, **changed)
    return [leases.interval_seconds(_Machine(i), policy, settings) for i in range(400)]  # type: ignore[arg-type]  # an id is all it asks for


def test_intervals() -> None:
    """A policy goes before the setting; the spread is even, bounded, and may be switched off."""
    found = intervals(Settings(), max_age_seconds=36_000, reattest_seconds=1000)
    assert (min(found) >= 900, max(found) <= 1100) == (True, True)
    assert 980 < sum(found) / len(found) < 1020
    assert len(set(found)) > 100
    exact = intervals(Settings(reattest_spread_percent=0), max_age_seconds=36_000, reattest_seconds=1000)
    assert set(exact) == {1000}
    # Without a policy's word: the setting.
    assert set(intervals(Settings(reattest_spread_percent=0))) == {45}


def test_an_interval_never_outlives_the_lease() -> None:
    """However long somebody asked for: a machine comes before its trust ends."""
    assert max(intervals(Settings(), max_age_seconds=600, reattest_seconds=590)) == 540
    assert set(intervals(Settings(), max_age_seconds=30)) == {27}


def test_the_spread_costs_no_second_round_trip() -> None:
    """Where the interval fits the life of a challenge, so does the spread interval; a longer one may exceed it."""
    assert max(intervals(Settings(reattest_seconds=52))) == 54
    assert max(intervals(Settings(reattest_seconds=54))) == 54
    assert max(intervals(Settings(reattest_seconds=56))) > 56
    assert min(intervals(Settings(reattest_seconds=1))) == 1
