"""The lifecycle, written out once more: every status with every operation."""

from __future__ import annotations

import pytest

from attestation.errors import MachineRejected, TransitionForbidden
from attestation.machines import ALLOWED, Role, Status, Transition, next_status

NO, SHUT = "forbidden", "machine-rejected"
COLUMNS = (
    "activate", "attest", "acknowledge", "approve", "reject", "lock", "unlock", "revoke", "ak_reset", "redeliver",
    "role_change", "approve_hardware",
)  # fmt: skip
EXPECTED = {
    "pending_approval": (
        "pending_approval", "pending_approval", NO, "registered", "rejected", NO, NO, NO, "pending_approval", NO,
        NO, NO,
    ),
    "registered": (
        "registered", "attested", NO, NO, NO, NO, NO, "revoked", "registered", NO,
        "registered", "registered",
    ),
    "attested": (
        "attested", "attested", "attested", NO, NO, "locked", NO, "revoked", "attested", "attested",
        "attested", "attested",
    ),
    "locked": (
        "locked", "locked", "locked", NO, NO, NO, "attested", "revoked", "locked", NO,
        "locked", "locked",
    ),
    "revoked": (
        "revoked", "revoked", "revoked", NO, NO, NO, NO, NO, NO, NO,
        NO, NO,
    ),
    "rejected": (
        "rejected", SHUT, SHUT, NO, NO, NO, NO, NO, NO, NO,
        NO, NO,
    ),
}  # fmt: skip
PAIRS = [
    (status, operation, after)
    for status, row in EXPECTED.items()
    for operation, after in zip(COLUMNS, row, strict=True)
]


def test_the_expected_table_is_complete() -> None:
    """Six statuses, twelve transitions, seventy-two pairs; the words are API."""
    assert [s.value for s in Status] == [*list(EXPECTED)[:3], "rejected", "locked", "revoked"]
    assert tuple(o.value for o in Transition) == COLUMNS
    assert len(PAIRS) == 72


@pytest.mark.threat("T24")
@pytest.mark.parametrize(("status", "operation", "after"), PAIRS)
def test_every_pair(status: str, operation: str, after: str) -> None:
    """What the table says happens; everything else is refused, with the right error."""
    if after in (NO, SHUT):
        error = MachineRejected if after == SHUT else TransitionForbidden
        with pytest.raises(error):
            next_status(Status(status), Transition(operation))
    else:
        assert next_status(Status(status), Transition(operation)) is Status(after)


def test_a_refusal_names_both() -> None:
    """An operator reads what was asked of a machine in which status."""
    with pytest.raises(TransitionForbidden, match="unlock is not possible while the machine is revoked"):
        next_status(Status.REVOKED, Transition.UNLOCK)


@pytest.mark.threat("T24")
def test_only_an_operator_leaves_where_an_operator_put_a_machine() -> None:
    """FAULTS R5: activation, attestation and acknowledgement never leave these four."""
    machines_own = (Transition.ACTIVATE, Transition.ATTEST, Transition.ACKNOWLEDGE)
    for status in (Status.PENDING_APPROVAL, Status.LOCKED, Status.REVOKED, Status.REJECTED):
        for operation in machines_own:
            try:
                after = next_status(status, operation)
            except (TransitionForbidden, MachineRejected):
                continue
            assert after is status, (status, operation)


def test_nothing_leaves_revoked_or_rejected() -> None:
    """Both are the end."""
    for status in (Status.REVOKED, Status.REJECTED):
        assert set(ALLOWED[status].values()) == {status}


def test_the_table_cannot_be_changed_at_run_time() -> None:
    """Nobody adds a transition while the service runs."""
    with pytest.raises(TypeError):
        ALLOWED[Status.REVOKED] = {}  # type: ignore[index]  # that is the point
    with pytest.raises(TypeError):
        ALLOWED[Status.REVOKED][Transition.UNLOCK] = Status.ATTESTED  # type: ignore[index]  # likewise


def test_roles_are_api() -> None:
    """The words of ITL-REFERENCE §5."""
    assert [r.value for r in Role] == [
        "controlplane",
        "worker-infra",
        "worker-app",
        "generic",
        "windows",
        "linux",
    ]
