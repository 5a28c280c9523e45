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


class Transition(StrEnum):
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
    APPROVE_HARDWARE = "approve_hardware"


MACHINE_TRANSITIONS = frozenset({Transition.ACTIVATE, Transition.ATTEST, Transition.ACKNOWLEDGE})

_P, _G, _A, _X, _L, _R = (
    Status.PENDING_APPROVAL,
    Status.REGISTERED,
    Status.ATTESTED,
    Status.REJECTED,
    Status.LOCKED,
    Status.REVOKED,
)
_T = Transition

ALLOWED: Mapping[Status, Mapping[Transition, Status]] = MappingProxyType(
    {
        _P: MappingProxyType(
            {_T.ACTIVATE: _P, _T.ATTEST: _P, _T.APPROVE: _G, _T.REJECT: _X, _T.AK_RESET: _P}
        ),
        _G: MappingProxyType(
            {
                _T.ACTIVATE: _G,
                _T.ATTEST: _A,
                _T.REVOKE: _R,
                _T.AK_RESET: _G,
                _T.ROLE_CHANGE: _G,
                _T.APPROVE_HARDWARE: _G,
            }
        ),
        _A: MappingProxyType(
            {
                _T.ACTIVATE: _A,
                _T.ATTEST: _A,
                _T.ACKNOWLEDGE: _A,
                _T.LOCK: _L,
                _T.REVOKE: _R,
                _T.AK_RESET: _A,
                _T.REDELIVER: _A,
                _T.ROLE_CHANGE: _A,
                _T.APPROVE_HARDWARE: _A,
            }
        ),
        _L: MappingProxyType(
            {
                _T.ACTIVATE: _L,
                _T.ATTEST: _L,
                _T.ACKNOWLEDGE: _L,
                _T.UNLOCK: _A,
                _T.REVOKE: _R,
                _T.AK_RESET: _L,
                _T.ROLE_CHANGE: _L,
                _T.APPROVE_HARDWARE: _L,
            }
        ),
        _R: MappingProxyType({_T.ACTIVATE: _R, _T.ATTEST: _R, _T.ACKNOWLEDGE: _R}),
        _X: MappingProxyType({_T.ACTIVATE: _X}),
    }
)


def next_status(status: Status, transition: Transition) -> Status:
    """Return the status after *transition*.

    Raises:
        MachineRejected: A rejected machine tried anything but to be told so.
        TransitionForbidden: The table has no such pair.
    """
    after = ALLOWED[status].get(transition)
    if after is not None:
        return after
    if status is Status.REJECTED and transition in MACHINE_TRANSITIONS:
        raise MachineRejected("an operator rejected this machine")
    raise TransitionForbidden(f"{transition} is not possible while the machine is {status}")
