"""What cert-manager expects of an external issuer: its own cases, one by one."""

from __future__ import annotations

import pytest

from tests.unit.operator.hsm.issuer_lib import ISSUERS, REQUESTS, Row


@pytest.mark.parametrize("row", [*REQUESTS, *ISSUERS], ids=lambda row: row.name)
def test_a_case_ends_as_there_or_the_table_says_why_not(row: Row) -> None:
    """A reason without a difference is as wrong as a difference without a reason."""
    ours = row.ours()
    assert (ours == row.theirs) is (row.because is None), str(ours)


def test_no_case_stands_twice() -> None:
    """Each table has a case once."""
    for rows in (REQUESTS, ISSUERS):
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)
