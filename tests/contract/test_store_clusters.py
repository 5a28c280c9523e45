"""Clusters in the store: declared ones, those that machines are in, and names that are neither."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from attestation.errors import AlreadyExists, ClusterUnknown
from attestation.machines import Role, Status
from attestation.store import Cluster, MachineFilter, Store, Tx
from tests.contract.store_samples import NOW, a_machine, a_registration_token, an_allow_list_row


def a_cluster(cluster_id: str = "prod", **changes: Any) -> Cluster:
    """Return a cluster that alice declared."""
    fields: dict[str, Any] = {
        "cluster_id": cluster_id,
        "description": "Racks 4 to 9",
        "talos_version": "v1.13.9",
        "created_at": NOW,
        "created_by": "alice",
        "changed_at": NOW,
        "changed_by": "alice",
    }
    return Cluster(**(fields | changes))


def put(store: Store, *clusters: Cluster) -> None:
    """Declare *clusters*."""
    for each in clusters:
        store.write_sync(lambda tx, one=each: tx.clusters.add(one))  # type: ignore[misc]


def joined(store: Store, number: int, cluster_id: str, **changes: Any) -> None:
    """Let a machine be in a cluster."""
    machine = a_machine(number, cluster_id=cluster_id, **changes)
    store.write_sync(lambda tx: tx.machines.add(machine))


def test_a_declared_cluster_is_there_and_changes(store: Store) -> None:
    """It is declared once; what changes is what is said of it, not since when and by whom."""
    put(store, a_cluster(), a_cluster("other"))
    assert store.read_sync(lambda tx: tx.clusters.require("prod")) == a_cluster()
    with pytest.raises(AlreadyExists):
        put(store, a_cluster(description="again"))
    later: dict[str, Any] = {"changed_at": NOW + timedelta(1), "changed_by": "bob"}
    changed = a_cluster(description=None, talos_version="v1.14.0", **later)
    store.write_sync(lambda tx: tx.clusters.change(replace(changed, created_by="bob")))
    assert store.read_sync(lambda tx: tx.clusters.get("prod")) == changed
    assert store.read_sync(lambda tx: tx.clusters.get("other")) == a_cluster("other")
    assert store.read_sync(lambda tx: tx.clusters.talos_version("prod")) == "v1.14.0"
    assert store.read_sync(lambda tx: tx.clusters.talos_version("none")) is None
    with pytest.raises(ClusterUnknown):
        store.read_sync(lambda tx: tx.clusters.require("none"))


def test_a_name_is_a_slip_once_others_are_declared(store: Store) -> None:
    """Before, any name is good; then those declared, those that machines are in, and the default."""

    def demand(cluster_id: str) -> None:
        store.read_sync(lambda tx: tx.clusters.demand_known(cluster_id))

    joined(store, 1, "edge")
    demand("prdo")
    put(store, a_cluster())
    for known in ("prod", "edge", "default"):
        demand(known)
        assert store.read_sync(lambda tx, one=known: tx.clusters.is_there(one))  # type: ignore[misc]
    with pytest.raises(ClusterUnknown, match="prdo"):
        demand("prdo")
    assert not store.read_sync(lambda tx: tx.clusters.is_there("prdo"))


def test_clusters_are_listed_and_counted(store: Store) -> None:
    """Declared or not, each once, in the order of their ids, one page after the other."""
    put(store, a_cluster(), a_cluster("empty"))
    joined(store, 1, "prod", status=Status.ATTESTED, role=Role.LINUX)
    joined(store, 2, "prod")
    joined(store, 3, "edge", status=Status.LOCKED, role=Role.WINDOWS)
    first = store.read_sync(lambda tx: tx.clusters.page(None, 2))
    second = store.read_sync(lambda tx: tx.clusters.page(first.next_cursor, 2))
    assert second.next_cursor is None
    found = [(each.cluster_id, each.machines, each.declared) for each in (*first.items, *second.items)]
    assert found == [("edge", 1, None), ("empty", 0, a_cluster("empty")), ("prod", 2, a_cluster())]
    counts = store.read_sync(lambda tx: tx.clusters.counts("prod"))
    assert counts.by_status == {Status.ATTESTED: 1, Status.PENDING_APPROVAL: 1}
    assert counts.by_role == {Role.LINUX: 1, None: 1}


def test_lists_keep_to_some_clusters(store: Store) -> None:
    """Machines that are there, or that nobody admitted and that wish for it; tokens, entries and clusters."""
    joined(store, 1, "prod", role=Role.LINUX, desired_cluster_id="edge")
    joined(store, 2, "edge", role=Role.LINUX, desired_cluster_id="prod")
    joined(store, 3, "default", desired_cluster_id="prod")
    joined(store, 4, "default", desired_cluster_id=None)
    for number, cluster in enumerate(("prod", "edge", None)):
        token = a_registration_token(number + 1, cluster_id=cluster)
        entry = an_allow_list_row(number + 1, cluster_id=cluster)
        store.write_sync(lambda tx, one=token: tx.registration_tokens.add(one))  # type: ignore[misc]
        store.write_sync(lambda tx, one=entry: tx.allow_list.put(one))  # type: ignore[misc]

    def seen(*clusters: str) -> tuple[set[str], set[str | None], set[str | None], set[str]]:
        within = frozenset(clusters)

        def work(tx: Tx) -> tuple[set[str], set[str | None], set[str | None], set[str]]:
            machines = tx.machines.page(MachineFilter(within=within), None, 9).items
            return (
                {each.machine_id[:8] for each in machines},
                {each.cluster_id for each in tx.registration_tokens.page(None, 9, within).items},
                {each.cluster_id for each in tx.allow_list.page(None, 9, within).items},
                {each.cluster_id for each in tx.clusters.page(None, 9, within).items},
            )

        return store.read_sync(work)

    def named(*numbers: int) -> set[str]:
        return {f"{number:08x}" for number in numbers}

    assert seen("prod") == (named(1, 3), {"prod"}, {"prod"}, {"prod"})
    assert seen("default") == (named(4), {None}, {None}, {"default"})
    assert seen("prod", "edge", "other") == (
        named(1, 2, 3),
        {"prod", "edge"},
        {"prod", "edge"},
        {"prod", "edge"},
    )
    assert seen() == (set(), set(), set(), set())
