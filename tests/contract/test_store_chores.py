"""Chores and known keys: what processes that share a database agree on."""

from __future__ import annotations

from datetime import timedelta

from attestation.store import Chore, Store
from tests.contract.store_samples import NOW

UNTIL = NOW + timedelta(seconds=12)
SECOND = timedelta(seconds=1)


def take(store: Store, holder: str, at_second: int) -> bool:
    """Ask for the chore, for twelve seconds."""
    at = NOW + at_second * SECOND
    wanted = Chore(name="maintenance", holder=holder, until=at + 12 * SECOND)
    return store.write_sync(lambda tx: tx.chores.take(wanted, at))


def test_a_chore_has_one_holder_until_it_ends(store: Store) -> None:
    """Its holder keeps it by asking again; others get it when it ends, or is given up, and not by asking."""
    assert take(store, "a", 0)
    assert not take(store, "b", 11)
    assert take(store, "a", 11)
    assert not take(store, "b", 22)
    assert take(store, "b", 23)
    assert not take(store, "a", 23)
    store.write_sync(lambda tx: tx.chores.give_up("maintenance", "a"))
    assert not take(store, "a", 24)
    assert [(each.holder, each.until) for each in store.read_sync(lambda tx: tx.chores.all())] == [
        ("b", NOW + 35 * SECOND)
    ]
    store.write_sync(lambda tx: tx.chores.give_up("maintenance", "b"))
    assert take(store, "a", 24)


def test_keys_are_known_by_purpose_until_others_are_put(store: Store) -> None:
    """Each once, the oldest first."""
    store.write_sync(lambda tx: tx.known_keys.put("service", ["b"], NOW))
    store.write_sync(lambda tx: tx.known_keys.put("service", ["a", "b"], UNTIL))
    store.write_sync(lambda tx: tx.known_keys.put("log", ["c"], NOW))

    def known() -> tuple[tuple[str, ...], ...]:
        return store.read_sync(lambda tx: (tx.known_keys.of("service"), tx.known_keys.of("log")))

    assert known() == (("b", "a"), ("c",))
    store.write_sync(lambda tx: tx.known_keys.put("service", ["a"], NOW))
    assert known() == (("a",), ("c",))
    store.write_sync(lambda tx: tx.known_keys.forget())
    assert known() == ((), ())
