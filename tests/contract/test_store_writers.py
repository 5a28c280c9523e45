"""What one writer reads and then writes on, no other changes in between. Processes: `tests/integration/store`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from attestation.errors import AttestationError, NameInUse
from attestation.machines import Machine, NodeEvent
from attestation.machines.dual_control import Vote
from attestation.store import Act, PolicyAssignment, RateLimit, Store, StoredPolicy, Tx, open_store
from tests.contract.store_samples import MINUTE, NOW, a_machine
from tests.contract.test_store_approvals import a_proposal

WRITERS = 4


def race(url: str, work: Callable[[Tx, int], Any]) -> list[Any]:
    """Let four writers, each with connections of its own, run *work* at once, after the same look at the database.

    Returns:
        What each returned, or the error of ours that it met.
    """
    gate = threading.Barrier(WRITERS)

    def one(number: int) -> Any:
        def unit(tx: Tx) -> Any:
            value = work(tx, number)
            time.sleep(0.02)  # long enough for any other to look before this is committed
            return value

        with closing(open_store(url)) as store:
            gate.wait(60)
            try:
                return store.write_sync(unit)
            except AttestationError as e:
                return e

    with ThreadPoolExecutor(WRITERS) as threads:
        return list(threads.map(one, range(WRITERS)))


def kinds(found: list[Any]) -> list[str]:
    """Return the names of the types of what writers got, sorted."""
    return sorted(type(each).__name__ for each in found)


def test_an_event_is_claimed_by_one(store: Store, store_url: str) -> None:
    """In the outbox and on its way to a subscriber; of one machine only the first that waits."""

    def fill(tx: Tx) -> None:
        for machine in ("a", "a", "b"):
            tx.outbox.add(NodeEvent.ONLINE, machine, {}, NOW)
        for event in tx.outbox.claim(9, NOW, hold=timedelta(0)):
            tx.handovers.add("one", event, NOW)

    store.write_sync(fill)
    for found in (
        race(store_url, lambda tx, _: tx.outbox.claim(9, NOW)),
        race(store_url, lambda tx, _: tx.handovers.claim("one", 9, NOW, hold=MINUTE)),
    ):
        assert sorted(map(len, found)) == [0] * (WRITERS - 1) + [2]


def test_an_operator_votes_once_and_every_vote_counts(store: Store, store_url: str) -> None:
    """Two sessions of one operator are one vote; each of several operators sees those before theirs."""

    def cast(tx: Tx, name: str) -> tuple[int | None, int]:
        before = tx.approvals.live(a_proposal().digest(), NOW)
        vote = Vote(operator_cn=name, operator_sub=name, created_at=NOW, expires_at=NOW + MINUTE)
        return tx.approvals.cast(a_proposal(), vote), len(before)

    found = race(store_url, lambda tx, _: cast(tx, "anna"))
    assert sum(cast_now is not None for cast_now, _ in found) == 1
    assert sorted(before for _, before in race(store_url, lambda tx, n: cast(tx, f"op-{n}"))) == [1, 2, 3, 4]


@pytest.mark.threat("T142")
def test_a_name_is_given_to_one(store: Store, store_url: str) -> None:
    """Whoever looks whether a name is free, and then takes it, is alone in between."""

    def add(tx: Tx, number: int) -> None:
        tx.machines.add(a_machine(number, hostname="cp-1", cluster_id="c"))

    assert kinds(race(store_url, add)) == [NameInUse.__name__] * (WRITERS - 1) + ["NoneType"]


def test_what_is_counted_is_counted_once_each(store: Store, store_url: str) -> None:
    """Acts of an operator are numbered, requests counted, and policies' changes too."""
    limit = RateLimit(requests=WRITERS, per_seconds=60)
    policy = StoredPolicy(
        name="p", version=1, sha256="0" * 64, document="{}", created_at=NOW, created_by="anna"
    )
    store.write_sync(lambda tx: tx.policies.add(policy))

    def work(tx: Tx, number: int) -> bool:
        act = Act(
            key=bytes([number]) * 32,
            operator=bytes(32),
            request=bytes(32),
            entry_id=1,
            status=None,
            answer=None,
            done_at=NOW,
        )
        tx.acts.put(act)
        passes = tx.rate_limits.check("key", NOW, limit) is None
        tx.rate_limits.take("key", NOW, limit)
        assigned = PolicyAssignment(
            scope="cluster", subject=str(number), policy="p@1", assigned_at=NOW, assigned_by="anna"
        )
        tx.policies.assign(assigned)
        return passes

    assert race(store_url, work) == [True] * WRITERS
    assert store.read_sync(lambda tx: tx.rate_limits.check("key", NOW, limit)) is not None
    store.read_sync(lambda tx: tx.policies.demand_revision(WRITERS))


def test_a_machine_is_changed_by_who_saw_it_last(store: Store, store_url: str) -> None:
    """Each change rests on the one before, as a unit reads the machine and then writes it."""
    store.write_sync(lambda tx: tx.machines.add(a_machine()))

    def lock(tx: Tx, number: int) -> Machine:
        return tx.machines.update(tx.machines.require(a_machine().machine_id), alarm=str(number))

    assert sorted(machine.version for machine in race(store_url, lock)) == [2, 3, 4, 5]
