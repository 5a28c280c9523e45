"""What extensions are told of machines that operators admitted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from attestation.extension import MachineFacts, Tx
from attestation.machines import Status
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


def facts(tx: Tx, at: datetime) -> Iterator[MachineFacts]:
    """Go through the machines that operators admitted, as they are in this unit."""
    cursor: str | None = None
    while True:
        page = tx.machines.page(MachineFilter(), cursor, MAX_LIMIT)
        for machine in page.items:
            if machine.status not in _ADMITTED:
                continue
            newest = tx.results.page(machine.machine_id, None, 1).items
            yield MachineFacts(
                machine_id=machine.machine_id,
                hostname=machine.hostname,
                role=machine.role,
                cluster_id=machine.cluster_id,
                status=machine.status,
                trust=machine.trust(at),
                assurance=machine.assurance.value,
                vector=worst_of(newest[0].result, machine.assurance) if newest else {},
                quoted_at=machine.last_result_at,
            )
        cursor = page.next_cursor
        if cursor is None:
            return
