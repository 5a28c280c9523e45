"""What machines proved last, read over the fleet: the newest evidence of each, in pages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from attestation.errors import RequestInvalid
from attestation.machines import Role, Status
from attestation.results import Verdict
from attestation.store import (
    FLEET,
    Capture,
    CaptureFilter,
    PolicyAssignment,
    Store,
    StoredEvidence,
    StoredPolicy,
)
from tests.contract.store_samples import NOW, a_full_machine, a_machine, a_result

EVERYBODY = CaptureFilter()


def add(store: Store, number: int, **changes: Any) -> str:
    """Store a machine and return its id."""
    machine = a_machine(number, status=Status.ATTESTED, **changes)
    store.write_sync(lambda tx: tx.machines.add(machine))
    return machine.machine_id


def prove(store: Store, machine_id: str, number: int, verdict: Verdict, **evidence: Any) -> None:
    """Store a result of a machine; its PCR 7 is *number*."""
    known: dict[str, Any] = {"pcr_bank": "sha256", "pcr_values": {7: bytes([number]) * 32}}
    result = dataclasses.replace(a_result(number), verdict=verdict)
    kept = StoredEvidence(**(known | evidence))
    store.write_sync(lambda tx: tx.results.add(machine_id, result, kept))


def read(store: Store, wanted: CaptureFilter = EVERYBODY, limit: int = 2) -> list[Capture]:
    """Return every page in one."""
    found: list[Capture] = []
    cursor: str | None = None
    while True:
        page = store.read_sync(lambda tx, c=cursor: tx.captures.page(wanted, c, limit))  # type: ignore[misc]
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


def test_the_newest_evidence_of_each_machine_is_found(store: Store) -> None:
    """Later results without evidence hide none, and who never proved anything is among them."""
    first, second, third = (add(store, n) for n in (1, 2, 3))
    prove(store, first, 1, Verdict.VERIFIED)
    prove(store, first, 2, Verdict.FAILED, event_log_sha256="ab" * 32, ima_log_sha256="cd" * 32)
    prove(store, first, 3, Verdict.FAILED, pcr_bank=None, pcr_values={})
    prove(store, third, 4, Verdict.VERIFIED, ek_key_attested=True)
    one, two, three = read(store)
    assert [one.machine_id, two.machine_id, three.machine_id] == [first, second, third]
    assert (one.verdict, one.pcr_bank, one.pcr_values) == (Verdict.FAILED, "sha256", {7: b"\x02" * 32})
    assert one.at == a_result(2).at
    assert (one.event_log_sha256, one.ima_log_sha256) == ("ab" * 32, "cd" * 32)
    assert (two.at, two.verdict, two.pcr_bank, two.pcr_values) == (None, None, None, {})
    assert three.ek_key_attested is True
    good, _, same = read(store, CaptureFilter(verified_only=True))
    assert (good.verdict, good.pcr_values) == (Verdict.VERIFIED, {7: b"\x01" * 32})
    assert same == three
    # Whoever cannot read a whole page goes on behind any of its machines.
    rest = store.read_sync(lambda tx: tx.captures.page(EVERYBODY, one.cursor, 9))
    assert rest.items == (two, three)


def test_a_full_machine_is_read_whole(store: Store) -> None:
    """What is judged beside PCRs: assurance, firmware, clock, place."""
    machine = a_full_machine(1)
    store.write_sync(lambda tx: tx.machines.add(machine))
    [found] = read(store)
    assert machine.clock is not None
    assert (found.hostname, found.role, found.cluster_id) == (
        machine.hostname,
        machine.role,
        machine.cluster_id,
    )
    assert (found.assurance, found.firmware_version, found.clock_safe) == (
        machine.assurance,
        machine.clock.firmware_version,
        machine.clock.safe,
    )
    assert found.vendor is None


def test_machines_are_chosen(store: Store) -> None:
    """By role, cluster and id, together too; rejected and revoked ones never."""
    linux = add(store, 1, role=Role.LINUX, cluster_id="c1")
    other = add(store, 2, role=Role.LINUX, cluster_id="c2")
    worker = add(store, 3, role=Role.WORKER_APP, cluster_id="c1")
    for number, status in ((4, Status.REVOKED), (5, Status.REJECTED)):
        gone = a_machine(number, status=status)
        store.write_sync(lambda tx, m=gone: tx.machines.add(m))  # type: ignore[misc]
    for wanted, expected in (
        (EVERYBODY, [linux, other, worker]),
        (CaptureFilter(role=Role.LINUX), [linux, other]),
        (CaptureFilter(cluster_id="c1"), [linux, worker]),
        (CaptureFilter(role=Role.LINUX, cluster_id="c1"), [linux]),
        (CaptureFilter(machine_id=worker), [worker]),
        (CaptureFilter(machine_id="nobody"), []),
    ):
        assert [capture.machine_id for capture in read(store, wanted)] == expected
        assert store.read_sync(lambda tx, w=wanted: tx.captures.count(w)) == len(expected)  # type: ignore[misc]


def test_what_is_assigned_is_named_by_place(store: Store) -> None:
    """Fleet, cluster, role, machine, each with the digest of its document; null where nothing is."""
    machine_id = add(store, 1, role=Role.LINUX, cluster_id="c1")
    policy = StoredPolicy(
        name="p", version=1, sha256="ab" * 32, document="{}", created_at=NOW, created_by="a"
    )
    store.write_sync(lambda tx: tx.policies.add(policy))
    pin = f"p@1 {'ab' * 32}"
    places: list[tuple[Any, str]] = [("role", "linux"), ("fleet", FLEET), ("machine", machine_id)]
    told = [(None, None, pin, None), (pin, None, pin, None), (pin, None, pin, pin)]
    for (scope, subject), expected in zip(places, told, strict=True):
        assignment = PolicyAssignment(
            scope=scope, subject=subject, policy="p@1", assigned_at=NOW, assigned_by="a"
        )
        store.write_sync(lambda tx, a=assignment: tx.policies.assign(a))  # type: ignore[misc]
        assert read(store)[0].assigned == expected


@pytest.mark.parametrize("cursor", ["x", "YXVkaXQ6MQ", "Y2FwdHVyZXM6LTE"])
def test_a_strange_cursor_is_refused(store: Store, cursor: str) -> None:
    """One of another list, one that nobody gave out."""
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.captures.page(EVERYBODY, cursor, 2))
