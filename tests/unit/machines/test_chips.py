"""Whether two machines are one chip: what proves it, what only hints at it, and what says nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.machines import Status
from attestation.machines.chips import (
    MOST_NAMED,
    Kinship,
    Mark,
    MarkKind,
    Relative,
    chip_serial,
    judge,
    marks_of,
    telling,
)
from tests.contract.store_samples import NOW

OTHER = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"


def relative(kind: MarkKind, status: Status, *, believed: bool = True, **more: object) -> Relative:
    """Return a machine with the same mark."""
    return Relative(mark=Mark(kind, "x"), machine_id=OTHER, status=status, believed=believed, **more)  # type: ignore[arg-type]


def test_nobody_is_no_relative() -> None:
    """Nothing waits for it, nobody hears of it."""
    assert judge([]) == Kinship(waits=False, alarm=None, about=None)


@pytest.mark.parametrize("kind", [MarkKind.EK, MarkKind.EK_SERIAL])
@pytest.mark.parametrize("status", list(Status))
def test_the_same_chip_waits(kind: MarkKind, status: Status) -> None:
    """Whatever the other one is: one chip is one machine; who only waits itself is no alarm."""
    found = judge([relative(kind, status)])
    assert found.waits
    assert (found.alarm is None) is (status is Status.PENDING_APPROVAL)
    if found.alarm is not None:
        assert found.about == OTHER
        assert f"one TPM with machine {OTHER} ({status})" in found.alarm


@pytest.mark.parametrize("kind", [MarkKind.HW_SERIAL, MarkKind.HW_UUID])
@pytest.mark.parametrize("status", list(Status))
def test_hints_decide_nothing(kind: MarkKind, status: Status) -> None:
    """They are told where they point at a revoked machine, and are no reason to wait."""
    found = judge([relative(kind, status)])
    assert not found.waits
    assert (found.alarm is not None) is (status is Status.REVOKED)


@pytest.mark.threat("T128")
@pytest.mark.parametrize("status", list(Status))
def test_a_certificate_that_nobody_vouches_for_hints(status: Status) -> None:
    """Anybody can write a serial number into a certificate of their own, to keep somebody else waiting."""
    found = judge([relative(MarkKind.EK_SERIAL, status, believed=False)])
    assert not found.waits
    assert (found.alarm is not None) is (status in (Status.REVOKED, Status.REJECTED, Status.LOCKED))


def test_an_alarm_says_enough_and_no_more() -> None:
    """Who was deleted is named so; of a crowd some are named."""
    found = judge([relative(MarkKind.EK, Status.REVOKED, deleted_at=NOW)])
    assert found.alarm == f"one TPM with machine {OTHER} (revoked, deleted): same endorsement key"
    many = judge([relative(MarkKind.EK, Status.REVOKED)] * (MOST_NAMED + 2))
    assert many.alarm is not None
    assert many.alarm.count(OTHER) == MOST_NAMED
    assert many.alarm.endswith("; and 2 more")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "unknown", "Unknown", "N/A", "None", "0", "00000000", "0000-0000", "FFFFFFFF", "........", "123",
        "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "To Be Filled By O.E.M.",
        "Default string", "System Serial Number", "03000200-0400-0500-0006-000700080009", "Not Specified", "123456789",
    ],
)  # fmt: skip
def test_placeholders_say_nothing(text: str) -> None:
    """Thousands of machines have them."""
    assert telling(text) is None
    assert marks_of(eks=(), chip_serials=(), hw_serial=text, hw_uuid=text) == ()


@given(st.text(max_size=200))
def test_spelling_does_not_count(text: str) -> None:
    """Case and surrounding blanks; what is compared is bounded."""
    value = telling(text)
    assert telling(f"  {text} ") == value or len(text) > 100
    assert value is None or (4 <= len(value) <= 128 and telling(value) is not None)


def test_marks() -> None:
    """Each once; a chip's serial number counts within its maker and model."""
    assert chip_serial("id:49465800", "SLB 9670", None) is None
    serial = chip_serial("id:49465800", "SLB 9670", "AB12-77")
    assert serial == "id:49465800 slb 9670 ab12-77"
    assert marks_of(
        eks=["e1", "e2", "e1"], chip_serials=[serial], hw_serial="8XK2M13", hw_uuid="unknown"
    ) == (
        Mark(MarkKind.EK, "e1"),
        Mark(MarkKind.EK, "e2"),
        Mark(MarkKind.EK_SERIAL, serial),
        Mark(MarkKind.HW_SERIAL, "8xk2m13"),
    )
