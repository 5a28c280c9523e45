"""Machines sorted and by trust: pages together are what was asked for, in order, each machine once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attestation.errors import RequestInvalid
from attestation.machines import Machine, Role, Status, Trust
from attestation.results import Verdict
from attestation.store import MachineFilter, Store
from attestation.store.machine_lists import ORDERS
from tests.contract.store_samples import NOW, a_machine

ANY = MachineFilter()
INSTANTS = st.sampled_from([None, NOW, NOW + timedelta(minutes=1), NOW + timedelta(minutes=2)])
MACHINES = st.lists(
    st.fixed_dictionaries(
        {
            "status": st.sampled_from([Status.PENDING_APPROVAL, Status.ATTESTED]),
            "role": st.sampled_from([None, Role.CONTROLPLANE, Role.GENERIC]),
            "hostname": st.none() | st.text(st.sampled_from("ab0"), min_size=1, max_size=3),
            "shares_names": st.just(True),
            "last_verdict": st.sampled_from([None, *Verdict]),
            "attested_at": INSTANTS,
            "trust_expires_at": INSTANTS,
        }
    ),
    max_size=9,
)


def _sorted(machines: list[Machine], order: str) -> list[Machine]:
    """Sort as a list should be, independently of any SQL."""
    name = order.removeprefix("-")
    newest = machines[::-1]
    known = [m for m in newest if getattr(m, name) is not None]
    return [
        *sorted(known, key=lambda m: getattr(m, name), reverse=order.startswith("-")),
        *[m for m in newest if getattr(m, name) is None],
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=MACHINES,
    order=st.sampled_from(sorted(ORDERS)),
    trust=st.none() | st.sampled_from(list(Trust)),
    limit=st.integers(1, 4),
)
def test_sorted_pages_are_what_was_asked_for(
    store: Store, rows: list[dict[str, Any]], order: str, trust: Trust | None, limit: int
) -> None:
    """Among equals the newest first; who has no value comes last both ways; trust is that of the instant."""
    at = NOW + timedelta(seconds=90)

    def fill(tx: Any) -> list[Machine]:
        for old in tx.machines.page(ANY, None, 1000).items:
            tx.machines.delete(old.machine_id)
        machines = [a_machine(number, **row) for number, row in enumerate(rows, 1)]
        for machine in machines:
            tx.machines.add(machine)
        return machines

    machines = store.write_sync(fill)
    wanted = MachineFilter(trust=None if trust is None else (trust, at))
    fitting = [m for m in machines if trust is None or m.trust(at) is trust]
    found: list[Machine] = []
    cursor: str | None = None
    while True:
        page = store.read_sync(lambda tx, c=cursor: tx.machines.page(wanted, c, limit, order))  # type: ignore[misc]
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.items) == limit
    assert found == _sorted(fitting, order)


def test_a_cursor_leads_on_in_its_own_order(store: Store) -> None:
    """One of another order, one that was made up, and an order that there is not are the caller's fault."""
    for number in (1, 2):
        store.write_sync(lambda tx, n=number: tx.machines.add(a_machine(n, hostname=f"m{n}")))  # type: ignore[misc]
    cursor = store.read_sync(lambda tx: tx.machines.page(ANY, None, 1, "hostname")).next_cursor
    made_up = "bWFjaGluZXMgYnkgYXR0ZXN0ZWRfYXQ6MTp4"  # `machines by attested_at:1:x`
    for order, other in (
        ("-hostname", cursor),
        ("attested_at", cursor),
        (None, cursor),
        ("attested_at", made_up),
        ("machine_id", None),
    ):
        with pytest.raises(RequestInvalid):
            store.read_sync(lambda tx, c=other, o=order: tx.machines.page(ANY, c, 1, o))  # type: ignore[misc]


@pytest.mark.parametrize("wanted", [(3,), (1, 2, 5), (9,), (4, 4, 1, 9, 2)], ids=str)
def test_machines_are_listed_by_their_ids(store: Store, wanted: tuple[int, ...]) -> None:
    """Those that there are, each once, newest first, together with other filters and page by page."""
    for number in range(1, 6):
        status = Status.LOCKED if number == 2 else Status.ATTESTED
        store.write_sync(lambda tx, n=number, s=status: tx.machines.add(a_machine(n, status=s)))  # type: ignore[misc]
    ids = [a_machine(number).machine_id for number in wanted]

    def listed(**more: Any) -> list[str]:
        found, cursor = [], None
        while True:
            page = store.read_sync(
                lambda tx, c=cursor: tx.machines.page(MachineFilter(ids=ids, **more), c, 2)  # type: ignore[misc]
            )
            found += [m.machine_id for m in page.items]
            if (cursor := page.next_cursor) is None:
                return found

    there = sorted({n for n in wanted if n <= 5}, reverse=True)
    assert listed() == [a_machine(n).machine_id for n in there]
    assert listed(status=Status.ATTESTED) == [a_machine(n).machine_id for n in there if n != 2]
