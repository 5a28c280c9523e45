"""The lifecycle of a machine as one table; everything absent from it is forbidden.

Only an operator's act leaves `pending_approval`, `locked`, `revoked` or `rejected` (FAULTS R5).
`revoked` is terminal: the only way out is the deletion of a wiped row.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from attestation.errors import MachineRejected, TransitionForbidden


class Status(StrEnum):
    """Where a machine stands; the words are API (ITL-REFERENCE §5)."""

    PENDING_APPROVAL = "pending_approval"
    REGISTERED = "registered"
    ATTESTED = "attested"
    REJECTED = "rejected"
    LOCKED = "locked"
    REVOKED = "revoked"


class Role(StrEnum):
    """What an operator lets a machine become (ITL-REFERENCE §5)."""

    CONTROLPLANE = "controlplane"
    WORKER_INFRA = "worker-infra"
    WORKER_APP = "worker-app"
    GENERIC = "generic"
    WINDOWS = "windows"
    LINUX = "linux"


class Operation(StrEnum):
    """What can be done to a machine.

    `ACTIVATE`, `ATTEST` (with an affirming result) and `ACKNOWLEDGE` are the machine's own; the rest are
    operators' acts.
    """

    ACTIVATE = "activate"
    ATTEST = "attest"
    ACKNOWLEDGE = "acknowledge"
    APPROVE = "approve"
    REJECT = "reject"
    LOCK = "lock"
    UNLOCK = "unlock"
    REVOKE = "revoke"
    AK_RESET = "ak_reset"
    REDELIVER = "redeliver"
    ROLE_CHANGE = "role_change"


MACHINE_OPERATIONS = frozenset({Operation.ACTIVATE, Operation.ATTEST, Operation.ACKNOWLEDGE})

_P, _G, _A, _X, _L, _R = (
    Status.PENDING_APPROVAL,
    Status.REGISTERED,
    Status.ATTESTED,
    Status.REJECTED,
    Status.LOCKED,
    Status.REVOKED,
)
_O = Operation

ALLOWED: Mapping[Status, Mapping[Operation, Status]] = MappingProxyType(
    {
        _P: MappingProxyType(
            {_O.ACTIVATE: _P, _O.ATTEST: _P, _O.APPROVE: _G, _O.REJECT: _X, _O.AK_RESET: _P}
        ),
        _G: MappingProxyType(
            {_O.ACTIVATE: _G, _O.ATTEST: _A, _O.REVOKE: _R, _O.AK_RESET: _G, _O.ROLE_CHANGE: _G}
        ),
        _A: MappingProxyType(
            {
                _O.ACTIVATE: _A,
                _O.ATTEST: _A,
                _O.ACKNOWLEDGE: _A,
                _O.LOCK: _L,
                _O.REVOKE: _R,
                _O.AK_RESET: _A,
                _O.REDELIVER: _A,
                _O.ROLE_CHANGE: _A,
            }
        ),
        _L: MappingProxyType(
            {
                _O.ACTIVATE: _L,
                _O.ATTEST: _L,
                _O.ACKNOWLEDGE: _L,
                _O.UNLOCK: _A,
                _O.REVOKE: _R,
                _O.AK_RESET: _L,
                _O.ROLE_CHANGE: _L,
            }
        ),
        _R: MappingProxyType({_O.ACTIVATE: _R, _O.ATTEST: _R, _O.ACKNOWLEDGE: _R}),
        _X: MappingProxyType({_O.ACTIVATE: _X}),
    }
)


def next_status(status: Status, operation: Operation) -> Status:
    """Return the status after *operation*.

    Raises:
        MachineRejected: A rejected machine tried anything but to be told so.
        TransitionForbidden: The table has no such pair.
    """
    after = ALLOWED[status].get(operation)
    if after is not None:
        return after
    if status is Status.REJECTED and operation in MACHINE_OPERATIONS:
        raise MachineRejected("an operator rejected this machine")
    raise TransitionForbidden(f"{operation} is not possible while the machine is {status}")
