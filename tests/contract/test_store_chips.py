"""Bindings of AKs and marks of chips outlive machines."""

from __future__ import annotations

import pytest

from attestation.machines import Machine, Status
from attestation.machines.chips import Mark, MarkKind
from attestation.store import AKBinding, Store, Tx
from tests.contract.store_samples import MINUTE, NOW, a_machine

SERIAL = Mark(MarkKind.HW_SERIAL, "s-4711")


def binding(number: int, ak: bytes = b"\0\x0bak", ek: str = "ab" * 48) -> AKBinding:
    """Return a binding that machine *number* proved."""
    return AKBinding(
        ak_name=ak, ek_fingerprint=ek, machine_id=a_machine(number).machine_id, bound_at=NOW + number * MINUTE
    )


def test_a_binding_is_for_ever(store: Store) -> None:
    """The first proof keeps the AK; another EK is told so, the same one again is fine, and what stands is the first."""
    assert store.read_sync(lambda tx: tx.ak_bindings.get(b"\0\x0bak")) is None
    assert store.write_sync(lambda tx: tx.ak_bindings.bind(binding(1)))
    assert store.write_sync(lambda tx: tx.ak_bindings.bind(binding(2)))
    assert not store.write_sync(lambda tx: tx.ak_bindings.bind(binding(3, ek="cd" * 48)))
    assert store.read_sync(lambda tx: tx.ak_bindings.get(b"\0\x0bak")) == binding(1)
    store.write_sync(lambda tx: tx.ak_bindings.bind(binding(4, ak=b"\0\x0bother")))
    ids = store.read_sync(lambda tx: tx.ak_bindings.machines_of("ab" * 48))
    assert ids == [(a_machine(n).machine_id, NOW + n * MINUTE) for n in (1, 4)]


def add(store: Store, machine: Machine, *marks: Mark) -> None:
    """Store a machine with marks."""

    def work(tx: Tx) -> None:
        tx.machines.add(machine)
        tx.chip_marks.put(machine.machine_id, marks)

    store.write_sync(work)


def test_relatives_outlive_their_machines(store: Store) -> None:
    """Whoever was deleted is known for what it was; nobody is its own relative; a forgotten mark is nobody's."""
    for number, status in ((1, Status.PENDING_APPROVAL), (2, Status.REVOKED), (3, Status.ATTESTED)):
        add(store, a_machine(number, status=status), SERIAL, SERIAL)
    ids = [a_machine(n).machine_id for n in (1, 2, 3)]

    def gone(tx: Tx) -> None:
        tx.chip_marks.end(ids[1], Status.REVOKED, NOW, believed=True)
        tx.machines.delete(ids[1])

    store.write_sync(gone)
    found = store.read_sync(lambda tx: tx.chip_marks.relatives(ids[0], [SERIAL]))
    assert [(each.machine_id, each.status, each.believed, each.deleted_at) for each in found] == [
        (ids[1], Status.REVOKED, True, NOW),
        (ids[2], Status.ATTESTED, False, None),
    ]
    assert (
        store.read_sync(lambda tx: tx.chip_marks.relatives(ids[0], [Mark(MarkKind.HW_UUID, "s-4711")])) == []
    )
    store.write_sync(lambda tx: tx.chip_marks.forget(ids[2]))
    assert store.read_sync(lambda tx: tx.chip_marks.of(ids[2])) == ()
    assert store.read_sync(lambda tx: tx.chip_marks.of(ids[0])) == (SERIAL,)


@pytest.mark.threat("T128")
def test_a_crowd_hides_nobody(store: Store) -> None:
    """Whoever was revoked is found behind any number of newcomers with the same mark."""
    for number in range(1, 40):
        add(
            store,
            a_machine(number, status=Status.REVOKED if number == 30 else Status.PENDING_APPROVAL),
            SERIAL,
        )
    first, *_ = store.read_sync(lambda tx: tx.chip_marks.relatives("", [SERIAL]))
    assert first.machine_id == a_machine(30).machine_id


def test_who_has_a_uuid_is_found_in_both_orders_of_its_bytes(store: Store) -> None:
    """Only whom operators admitted; of more than two, two: nobody asks how ambiguous it is."""
    one, other = "33221100-5544-7766-8899-aabbccddeeff", "00112233-4455-6677-8899-aabbccddeeff"
    statuses = (Status.PENDING_APPROVAL, Status.REJECTED, Status.REVOKED)
    for number, status in enumerate(statuses, start=1):
        add(store, a_machine(number, status=status), Mark(MarkKind.HW_UUID, one))
    add(store, a_machine(4, status=Status.ATTESTED), Mark(MarkKind.HW_SERIAL, one))

    def found() -> list[str]:
        machines = store.read_sync(lambda tx: tx.chip_marks.admitted_with_uuid(one, other))
        return [machine.machine_id for machine in machines]

    assert found() == []
    add(
        store,
        a_machine(5, status=Status.LOCKED),
        Mark(MarkKind.HW_UUID, one),
        Mark(MarkKind.HW_UUID, other),
    )
    assert found() == [a_machine(5).machine_id]
    add(store, a_machine(6, status=Status.ATTESTED), Mark(MarkKind.HW_UUID, other))
    add(store, a_machine(7, status=Status.REGISTERED), Mark(MarkKind.HW_UUID, other))
    assert found() == [a_machine(5).machine_id, a_machine(6).machine_id]
