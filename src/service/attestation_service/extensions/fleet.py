"""What extensions are told of machines that operators admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from attestation.extension import MachineFacts, Tx
from attestation.machines import Machine, Status
from attestation.results import Assurance, AttestationResult
from attestation.results.submods import TPM, parts_of
from attestation.results.vector import vector_of
from attestation.store import MAX_LIMIT, MachineFilter

_ADMITTED = frozenset({Status.REGISTERED, Status.ATTESTED, Status.LOCKED})


def worst_of(result: AttestationResult, assurance: Assurance) -> dict[str, int]:
    """Return the AR4SI claims of *result*, of several parts the worst."""
    found: dict[str, int] = {}
    for part, (outcomes, subjects) in parts_of(result).items():
        for claim, value in vector_of(outcomes, subjects, assurance if part == TPM else None).items():
            found[claim.value] = max(value, found.get(claim.value, value))
    return found


def facts(tx: Tx, at: datetime, machine_id: str | None = None) -> Iterator[MachineFacts]:
    """Go through the machines that operators admitted, as they are in this unit; only *machine_id* where it is given.

    A page of machines costs two queries, whoever they are.
    """
    if machine_id is not None:
        machine = tx.machines.by_id(machine_id)
        yield from _told(tx, [] if machine is None else [machine], at)
        return
    cursor: str | None = None
    while True:
        page = tx.machines.page(MachineFilter(), cursor, MAX_LIMIT)
        yield from _told(tx, page.items, at)
        cursor = page.next_cursor
        if cursor is None:
            return


def _told(tx: Tx, machines: Iterable[Machine], at: datetime) -> Iterator[MachineFacts]:
    admitted = [machine for machine in machines if machine.status in _ADMITTED]
    newest = tx.results.newest_of_each([machine.machine_id for machine in admitted])
    for machine in admitted:
        found = newest.get(machine.machine_id)
        yield MachineFacts(
            machine_id=machine.machine_id,
            hostname=machine.hostname,
            role=machine.role,
            cluster_id=machine.cluster_id,
            status=machine.status,
            trust=machine.trust(at),
            assurance=machine.assurance.value,
            vector={} if found is None else worst_of(found.result, machine.assurance),
            quoted_at=machine.last_result_at,
        )
