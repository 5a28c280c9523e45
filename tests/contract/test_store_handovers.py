"""Events on their way to a subscriber: the first of each machine is due, and no other, whatever becomes of it."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta

import pytest
from sqlalchemy import bindparam, func, select, update

from attestation.clock import to_micros
from attestation.machines import NodeEvent
from attestation.store import OutboxEvent, Store, Tx
from attestation.store.purge import HANDOVER_KEPT
from attestation.store.sql import Prepared
from attestation.store.tables import HandoverRow, table_of
from tests.contract.store_samples import MINUTE, NOW

H = table_of(HandoverRow)
LATER = NOW + timedelta(days=1)
DUE = Prepared(select(func.count()).where(H.c.next_attempt_at <= bindparam("at")))
ALL_DUE = Prepared(update(H).values(next_attempt_at=bindparam("at")))


def fill(store: Store, *machines: str | None, subscriber: str = "one", at: datetime = NOW) -> None:
    """Let *subscriber* have an event of each of *machines*."""

    def work(tx: Tx) -> None:
        for machine in machines:
            tx.outbox.add(NodeEvent.ONLINE, machine, {}, at)
            (event,) = tx.outbox.claim(1, at)
            tx.outbox.done([event.id], at)
            tx.handovers.add(subscriber, event, at)

    store.write_sync(work)


def _fail(letter: OutboxEvent, tx: Tx) -> None:
    tx.handovers.failed("one", letter, None, "E")


def claim(store: Store, at: datetime = LATER) -> tuple[OutboxEvent, ...]:
    """Take what is due."""
    return store.write_sync(lambda tx: tx.handovers.claim("one", 9, at, hold=MINUTE))


def due(store: Store) -> int:
    """Return how many rows a claim looks at."""
    return int(store.read_sync(lambda tx: tx.of(lambda sql: sql.rows(DUE, at=to_micros(LATER))))[0][0])


def test_what_waits_behind_another_costs_a_claim_nothing(store: Store) -> None:
    """However much it is, it is not looked at; events of no machine wait for none."""
    fill(store, *["a"] * 50, "b", None, None)
    assert due(store) == 4
    assert len(claim(store)) == 4
    assert due(store) == 0
    assert claim(store, LATER - MINUTE) == ()


@pytest.mark.parametrize("outcome", ["done", "dead", "purged"])
def test_the_next_one_comes_when_the_first_is_gone(store: Store, outcome: str) -> None:
    """In order, whichever way it went; of this machine and this subscriber only."""
    fill(store, "a", at=NOW - HANDOVER_KEPT)
    fill(store, "a", "a", "b", "b")
    fill(store, "a", "a", subscriber="two")
    before = claim(store)[0]
    others = due(store)

    def end(tx: Tx) -> object:
        if outcome == "done":
            return tx.handovers.done("one", before)
        if outcome == "dead":
            return tx.handovers.failed("one", before, None, "E")
        return tx.purge(NOW + MINUTE).handovers

    assert store.write_sync(end) == 1
    assert due(store) == others + 1
    (after,) = claim(store)
    assert (after.machine_id, after.sequence) == ("a", before.sequence + 1)


def test_one_that_failed_stays_the_first(store: Store) -> None:
    """Until it is given up the others wait."""
    fill(store, "a", "a")
    (first,) = claim(store)
    assert store.write_sync(lambda tx: tx.handovers.failed("one", first, LATER + MINUTE, "E"))
    assert due(store) == 0
    (again,) = claim(store, LATER + MINUTE)
    assert (again.id, again.attempts) == (first.id, 2)


def test_dead_letters_come_back_in_order(store: Store) -> None:
    """One of each machine is due; those that came meanwhile come after them."""
    fill(store, *["a"] * 3, "b", None, None)
    while letters := claim(store):
        for letter in letters:
            store.write_sync(functools.partial(_fail, letter))
    fill(store, "a", "a")
    assert store.write_sync(lambda tx: tx.handovers.retry("one")) == 6
    seen = []
    while found := claim(store):
        seen += [(each.machine_id or "", each.sequence) for each in found]
        for each in found:
            assert store.write_sync(lambda tx, each=each: tx.handovers.done("one", each))  # type: ignore[misc]  # defaults bind
    assert [machine for machine, _ in sorted(seen)] == ["", "", *["a"] * 5, "b"]
    assert [each for each in seen if each[0] == "a"] == sorted(each for each in seen if each[0] == "a")


def test_one_dead_letter_is_seen_and_comes_back_alone(store: Store) -> None:
    """Of this subscriber; before what waits of its machine; what is no dead letter is none of them."""
    fill(store, "a", "a", "b")
    fill(store, "a", subscriber="two")
    letters = claim(store)
    for letter in letters:
        store.write_sync(functools.partial(_fail, letter))
    first = next(each for each in letters if each.machine_id == "a")
    found = store.read_sync(lambda tx: tx.handovers.dead_letter("one", first.id))
    assert found is not None
    assert (found.event.id, found.event.attempts, found.error) == (first.id, 1, "E")
    assert store.read_sync(lambda tx: tx.handovers.dead_letter("two", first.id)) is None
    assert store.write_sync(lambda tx: tx.handovers.retry("two", [first.id])) == 0
    assert store.write_sync(lambda tx: tx.handovers.retry("one", [])) == 0
    assert store.write_sync(lambda tx: tx.handovers.retry("one", [first.id, first.id, "none"])) == 1
    assert store.read_sync(lambda tx: tx.handovers.dead_letter("one", first.id)) is None
    assert store.read_sync(lambda tx: tx.handovers.waiting()["one"].dead) == 1
    (again,) = claim(store)
    assert (again.id, again.attempts) == (first.id, 1)


def test_rows_of_an_earlier_version_come_in_order(store: Store) -> None:
    """There all were due, and only the first was taken: so it is still."""
    fill(store, "a", "a")
    store.write_sync(lambda tx: tx.of(lambda sql: sql.run(ALL_DUE, at=to_micros(NOW))))
    assert len(claim(store)) == 1
    assert claim(store) == ()
