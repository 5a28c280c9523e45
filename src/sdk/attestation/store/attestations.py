"""Everything that one attestation is judged by, in one statement.

Each statement gives the interpreter lock away and, under load, waits to get it back; five of them cost more than
the signature check. The join is by primary keys only, so it stays flat however large the fleet is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import and_, bindparam, select

from attestation.machines import Anchor, Identity, Machine
from attestation.reference.document import TPM
from attestation.store import challenges, machines, policies
from attestation.store.challenges import Challenge
from attestation.store.identities import Identities, has_any
from attestation.store.rate_limits import tat_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ChallengeRow, MachineRow, table_of

_M = table_of(MachineRow)
_C = table_of(ChallengeRow)
_MACHINE_COLUMNS = len(_M.c)
_CHALLENGE_COLUMNS = len(_C.c)


class AttestationCase(NamedTuple):
    """What is known of a machine and of the challenge that it answers.

    Args:
        machine: The machine.
        identities: Who it is to each kind of evidence, by the name of the kind: what is expected of it.
        challenge: The challenge of that id, whosever it is; None where there is none.
        policies: Every policy that is assigned to it, the widest first (`policies.applicable`).
        revision: Of what applies; compared where the judgement is written.
        address_tat_us: Theoretical arrival time of the address's rate limit; None where nothing was counted.
        machine_tat_us: Likewise of the machine's.
    """

    machine: Machine
    identities: Mapping[str, Anchor | Identity]
    challenge: Challenge | None
    policies: tuple[str, ...]
    revision: int
    address_tat_us: int | None
    machine_tat_us: int | None


_LOAD = Prepared(
    select(
        *_M.c,
        *_C.c,
        *policies.applicable(_M.c.machine_id, _M.c.role, _M.c.cluster_id),
        policies.revision_of_policies.label("revision"),
        tat_of("address_key").label("address_tat_us"),
        tat_of("machine_key").label("machine_tat_us"),
        has_any(_M.c.machine_id).label("others"),
    )
    .select_from(_M.outerjoin(_C, and_(_C.c.challenge_id == bindparam("challenge_id"))))
    .where(_M.c.machine_id == bindparam("of_machine"))
)


class Attestations:
    """Reads for the hot path, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def load(
        self, machine_id: str, challenge_id: str, *, address_key: str, machine_key: str
    ) -> AttestationCase | None:
        """Return the case of *machine_id* answering *challenge_id*; None where there is no such machine.

        Args:
            machine_id: UUID text.
            challenge_id: 32 hex.
            address_key: Key of the address's rate limit.
            machine_key: Key of the machine's.
        """
        row = self._sql.row(
            _LOAD,
            of_machine=machine_id,
            challenge_id=challenge_id,
            address_key=address_key,
            machine_key=machine_key,
        )
        if row is None:
            return None
        end = _MACHINE_COLUMNS + _CHALLENGE_COLUMNS
        challenge = row[_MACHINE_COLUMNS:end]
        machine = machines.decode(row[:_MACHINE_COLUMNS])
        identities: dict[str, Anchor | Identity] = {} if machine.tee is not None else {TPM: machine.tpm}
        if row[-1]:
            # None of them stands for its TPM, whatever it is called.
            identities |= Identities(self._sql).of(machine_id) | identities
        return AttestationCase(
            machine=machine,
            identities=identities,
            challenge=challenges.decode(challenge) if challenge[0] is not None else None,
            policies=tuple(filter(None, row[end:-4])),
            revision=row[-4],
            address_tat_us=row[-3],
            machine_tat_us=row[-2],
        )
