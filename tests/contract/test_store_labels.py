"""Labels beside machines: found by them, gone with them, and no part of what a machine is."""

from __future__ import annotations

import dataclasses

import pytest

from attestation.machines import Machine, Status
from attestation.store import MachineFilter, Store
from tests.contract.store_samples import a_machine

IDS = [a_machine(n).machine_id for n in range(4)]


def add(store: Store, machine: Machine) -> None:
    """Store a machine."""
    store.write_sync(lambda tx: tx.machines.add(machine))


def label(store: Store, number: int, after: dict[str, str]) -> None:
    """Make the labels of machine *number* these."""
    machine_id = IDS[number]
    store.write_sync(lambda tx: tx.labels.replace(machine_id, tx.labels.of(machine_id), after))


def found(store: Store, labels: dict[str, str | None], **more: object) -> list[str]:
    """Return the ids of the machines that a filter finds, by two pages of one."""
    ids: list[str] = []
    cursor: str | None = None
    while True:
        wanted = MachineFilter(labels=labels, **more)  # type: ignore[arg-type]  # whatever a test names
        page = store.read_sync(lambda tx: tx.machines.page(wanted, cursor, 1))  # noqa: B023 -- run at once
        ids += [m.machine_id for m in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return ids


def test_labels_find_machines_and_go_with_them(store: Store) -> None:
    """All of a selector must hold, with the other filters; what is deleted is found by nothing any more."""
    for number in range(4):
        status = Status.REJECTED if number == 2 else Status.ATTESTED
        add(store, a_machine(number, status=status))
    label(store, 0, {"rack": "4", "site": "ams"})
    label(store, 1, {"rack": "5", "site": "ams"})
    label(store, 2, {"rack": "4"})
    assert found(store, {"rack": "4"}) == [IDS[2], IDS[0]]
    assert found(store, {"rack": "4", "site": "ams"}) == [IDS[0]]
    assert found(store, {"site": None}) == [IDS[1], IDS[0]]
    assert found(store, {"rack": None}, status=Status.REJECTED) == [IDS[2]]
    assert found(store, {"rack": None}, q=IDS[1]) == [IDS[1]]
    assert found(store, {"rack": ""}) == []
    assert found(store, {}) == [*reversed(IDS)]

    label(store, 0, {"rack": "5", "tray": ""})
    assert store.read_sync(lambda tx: tx.labels.of(IDS[0])) == {"rack": "5", "tray": ""}
    assert store.read_sync(lambda tx: tx.labels.of_each(IDS[:3])) == {
        IDS[0]: {"rack": "5", "tray": ""},
        IDS[1]: {"rack": "5", "site": "ams"},
        IDS[2]: {"rack": "4"},
    }
    assert store.read_sync(lambda tx: tx.labels.of_each([])) == {}
    store.write_sync(lambda tx: tx.machines.delete(IDS[0]))
    assert store.read_sync(lambda tx: tx.labels.of(IDS[0])) == {}
    assert found(store, {"rack": "5"}) == [IDS[1]]


@pytest.mark.threat("T168")
def test_no_rule_can_rest_on_a_label(store: Store) -> None:
    """What judges reads a `Machine`, and that has none; labelling leaves it as it was, its version too."""
    assert "labels" not in {field.name for field in dataclasses.fields(Machine)}
    add(store, a_machine(0))
    before = store.read_sync(lambda tx: tx.machines.by_id(IDS[0]))
    label(store, 0, {"rack": "4"})
    assert store.read_sync(lambda tx: tx.machines.by_id(IDS[0])) == before
