"""Queries that operators keep: each their own by name, and those that others share."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from attestation.store import SavedQuery, Store
from tests.contract.store_samples import NOW


def a_query(owner: str = "issuer#alice", name: str = "stale", **changes: Any) -> SavedQuery:
    fields: dict[str, Any] = {
        "owner": owner,
        "owner_cn": owner.partition("#")[2],
        "name": name,
        "query": "Machines | where trust == 'stale'",
        "description": None,
        "shared": False,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return SavedQuery(**(fields | changes))


def keep(store: Store, *queries: SavedQuery) -> None:
    for each in queries:
        store.write_sync(lambda tx, saved=each: tx.saved_queries.put(saved))  # type: ignore[misc]


def got(store: Store, owner: str, name: str = "stale") -> SavedQuery | None:
    found = store.read_sync(lambda tx: tx.saved_queries.get(owner, name))
    return None if found is None else found[1]


def give(store: Store, number: int, to: str) -> None:
    store.write_sync(lambda tx: tx.saved_queries.give(number, f"issuer#{to}", to, NOW + timedelta(1)))


def test_who_saves_again_changes_what_is_theirs_alone(store: Store) -> None:
    """Since when it is there stays; nobody else's of the same name is touched."""
    mine, theirs = a_query(), a_query("issuer#bob", query="Events")
    later = a_query(query="Machines | count", description="all", shared=True, updated_at=NOW + timedelta(1))
    keep(store, mine, theirs)
    assert got(store, mine.owner) == mine
    keep(store, replace(later, created_at=NOW + timedelta(1)))
    assert got(store, mine.owner) == later
    assert got(store, "issuer#bob") == theirs
    assert got(store, "issuer#bob", "other") is None


def test_each_sees_theirs_and_what_is_shared(store: Store) -> None:
    """By name; of others nothing that they keep to themselves."""
    kept = [
        a_query(name="b"),
        a_query(name="a", shared=True),
        a_query("issuer#bob", "c"),
        a_query("issuer#bob", "a", shared=True),
    ]
    keep(store, *kept)

    def seen(owner: str, most: int = 9) -> list[tuple[str, str]]:
        return [
            (each.owner, each.name)
            for _, each in store.read_sync(lambda tx: tx.saved_queries.visible(owner, most))
        ]

    alice, bob = "issuer#alice", "issuer#bob"
    assert seen(alice) == [(alice, "a"), (bob, "a"), (alice, "b")]
    assert seen(bob) == [(alice, "a"), (bob, "a"), (bob, "c")]
    assert seen("issuer#carol") == [(alice, "a"), (bob, "a")]
    assert len(seen(alice, 2)) == 2
    assert store.read_sync(lambda tx: tx.saved_queries.count(alice)) == 2


def test_who_removes_one_removes_theirs(store: Store) -> None:
    """And is told where there is none."""
    keep(store, a_query(), a_query("issuer#bob"))
    assert store.write_sync(lambda tx: tx.saved_queries.remove("issuer#alice", "stale"))
    assert not store.write_sync(lambda tx: tx.saved_queries.remove("issuer#alice", "stale"))
    assert store.read_sync(lambda tx: tx.saved_queries.get("issuer#bob", "stale")) is not None


def test_a_view_is_listed_with_views_alone(store: Store) -> None:
    """And stays one where somebody saves a query in its place: what is kept under a name keeps its kind."""
    keep(store, a_query(name="q"), a_query(name="v", kind="view", query="status=locked"))
    seen = {
        kind: store.read_sync(lambda tx, kind=kind: tx.saved_queries.visible("issuer#alice", 9, kind))  # type: ignore[misc]
        for kind in ("query", "view")
    }
    assert {kind: [each.name for _, each in rows] for kind, rows in seen.items()} == {
        "query": ["q"],
        "view": ["v"],
    }
    keep(store, a_query(name="v", query="status=revoked"))
    kept = got(store, "issuer#alice", "v")
    assert kept is not None
    assert (kept.kind, kept.query) == ("view", "status=revoked")


def test_what_is_shared_can_be_given_to_another(store: Store) -> None:
    """By its number; what somebody keeps to themselves is not found by it."""
    keep(store, a_query(name="mine"), a_query(name="ours", shared=True))
    numbers = {
        each.name: number
        for number, each in store.read_sync(lambda tx: tx.saved_queries.visible("issuer#alice", 9))
    }
    assert store.read_sync(lambda tx: tx.saved_queries.shared(numbers["mine"])) is None
    for number in numbers.values():
        give(store, number, "bob")
    given = got(store, "issuer#bob", "ours")
    assert given == a_query("issuer#bob", "ours", shared=True, updated_at=NOW + timedelta(1))
    assert got(store, "issuer#alice", "mine") is not None
    assert got(store, "issuer#bob", "mine") is None
