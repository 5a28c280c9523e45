"""Versions of configurations: numbered without gaps, immutable, and one of a place is delivered."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.errors import AlreadyExists, ConfigurationUnknown
from attestation.store import ActiveConfiguration, Configuration, Place, SealedConfiguration, Store, Tx
from tests.contract.store_samples import NOW, a_machine

pytestmark = pytest.mark.anyio

BASE = Place(cluster_id="default", role="worker-app")
OTHER = Place(cluster_id="default", role="controlplane")


def sealed(version: int = 1, place: Place = BASE, **changes: Any) -> SealedConfiguration:
    """Return a version."""
    values: dict[str, Any] = {
        "place": place,
        "version": version,
        "sha256": f"{version:064x}",
        "size_bytes": 7,
        "talos_version": "v1.9.5",
        "note": None,
        "created_at": NOW,
        "created_by": "grace",
        "kek_id": "old",
    }
    about = Configuration(**(values | changes))
    return SealedConfiguration(about=about, wrapped=b"wrapped-%d" % version, blob=b"blob-%d" % version)


def active(version: int = 1, place: Place = BASE, **changes: Any) -> ActiveConfiguration:
    """Return what lets a version be delivered."""
    values: dict[str, Any] = {
        "place": place,
        "version": version,
        "previous": None,
        "sha256": f"{version:064x}",
        "activated_at": NOW,
        "activated_by": "grace",
        "agreed": True,
        "mark": b"mark",
    }
    return ActiveConfiguration(**(values | changes))


async def test_versions_of_a_place_are_numbered_and_one_is_delivered(store: Store) -> None:
    """Each place by itself; a number that is taken, or leaves a gap, is refused; what is stored comes back whole."""

    def work(tx: Tx) -> None:
        for each in (sealed(1), sealed(2, note="why"), sealed(1, OTHER)):
            tx.configurations.add(each)
        for wrong in (1, 2, 4):
            with pytest.raises(AlreadyExists):
                tx.configurations.add(sealed(wrong))
        assert (tx.configurations.next_version(BASE), tx.configurations.next_version(OTHER)) == (3, 2)
        assert tx.configurations.get(BASE, 2) == sealed(2, note="why")
        with pytest.raises(ConfigurationUnknown):
            tx.configurations.get(OTHER, 2)
        assert tx.configurations.bases() == (
            sealed(1, OTHER).about,
            sealed(1).about,
            sealed(2, note="why").about,
        )
        assert tx.configurations.of_place(BASE) == (sealed(1).about, sealed(2, note="why").about)
        assert tx.configurations.delivered(BASE) is None
        tx.configurations.activate(active(1))
        tx.configurations.activate(active(2, previous=1, agreed=False))
        assert tx.configurations.active_bases() == (active(2, previous=1, agreed=False),)
        assert tx.configurations.delivered(BASE) == (
            sealed(2, note="why"),
            active(2, previous=1, agreed=False),
        )
        assert tx.configurations.active(OTHER) is None

    await store.write(work)


async def test_data_keys_go_under_another_key(store: Store) -> None:
    """Once; of two that do it at the same time the second changes nothing."""

    def work(tx: Tx) -> None:
        for version in (1, 2):
            tx.configurations.add(sealed(version))
        assert tx.configurations.kek_ids() == ("old",)
        (found,) = tx.configurations.under_other_keks("new", 1)
        assert tx.configurations.rewrap(found, kek_id="new", wrapped=b"again")
        assert not tx.configurations.rewrap(found, kek_id="new", wrapped=b"and again")
        assert tx.configurations.get(BASE, 1).wrapped == b"again"
        assert tx.configurations.get(BASE, 1).about.kek_id == "new"
        assert tx.configurations.kek_ids() == ("new", "old")
        (left,) = tx.configurations.under_other_keks("new", 9)
        assert (left.about, left.wrapped) == (sealed(2).about, sealed(2).wrapped)
        assert not isinstance(left, SealedConfiguration), (
            "no text is read for it: of many that would be too much"
        )

    await store.write(work)


async def test_what_lies_under_other_keys_is_walked_place_by_place(store: Store) -> None:
    """From the one behind the last, whatever became of those before; each once."""
    places = (
        Place(machine_id="m"),
        Place(cluster_id="a", role="worker-app"),
        Place(cluster_id="b", role="worker-app"),
    )

    def work(tx: Tx) -> None:
        for place in places:
            for version in (1, 2):
                tx.configurations.add(sealed(version, place))
        seen: list[str] = []
        last: Configuration | None = None
        while found := tx.configurations.under_other_keks("new", 2, last):
            seen += [each.about.ref for each in found]
            tx.configurations.rewrap(found[0], kek_id="new", wrapped=b"again")
            last = found[-1].about
        assert seen == [f"{place}@{version}" for place in places for version in (1, 2)]

    await store.write(work)


async def test_a_machine_takes_its_patches_with_it(store: Store) -> None:
    """And nobody else's; a patch is no base."""
    machine = a_machine(1)
    place = Place(machine_id=machine.machine_id)

    def work(tx: Tx) -> None:
        tx.machines.add(machine)
        for each in (place, BASE):
            tx.configurations.add(sealed(1, each))
            tx.configurations.activate(active(1, each))
        assert tx.configurations.bases() == (sealed(1).about,)
        assert tx.machines.delete(machine.machine_id)
        assert tx.configurations.delivered(place) is None
        assert tx.configurations.of_place(place) == ()
        assert tx.configurations.delivered(BASE) is not None

    await store.write(work)
