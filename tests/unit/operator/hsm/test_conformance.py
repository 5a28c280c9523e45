"""What cert-manager expects of an external issuer: its own cases, one by one."""

from __future__ import annotations

import pytest

from tests.unit.operator.hsm.issuer_lib import TABLES, Row


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{title}-{row.name}") for title, _, rows in TABLES for row in rows]
)
def test_a_case_ends_as_there_or_the_table_says_why_not(row: Row) -> None:
    """A reason without a difference is as wrong as a difference without a reason."""
    ours = row.ours()
    assert (ours == row.theirs) is (row.because is None), str(ours)


def test_no_case_stands_twice() -> None:
    """Each table has a case once."""
    for _, _, rows in TABLES:
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)
