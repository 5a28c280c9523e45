"""Queries judged by Microsoft's own analyser: which are valid, which columns they have, where they are wrong.

Where ours is stricter, or means something else, it stands in `docs/protocol/kql.md`, and no such query is asked here.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attestation.errors import QueryInvalid
from tests.fixtures.kusto import Verdict, judged
from tests.fixtures.pipelines import expressions, pipelines
from tests.fixtures.queries import COLUMNS, plan
from tests.fixtures.query_corpus import INVALID, VALID

TABLES = {"T": "(" + ", ".join(f"{name}: {kind}" for name, kind in COLUMNS.items()) + ")"}
OURS_ALONE = {"t | take 3": "names of tables are case-insensitive here"}
"""Queries that are valid here and not there, and why."""
ELSEWHERE = {
    "T | where s == 'a": "a string without an end: said here where it begins, there where it should end"
}
"""Queries that are invalid in both, at places that differ, and why."""


def _places(verdict: Verdict) -> range:
    """Return the characters from the first to the last error, and one beside them."""
    begins = [offset for offset, _, _ in verdict.errors]
    ends = [offset + length for offset, length, _ in verdict.errors]
    return range(min(begins) - 1, max(ends) + 2)


@pytest.fixture(scope="module")
def generated() -> list[str]:
    """Pipelines that hypothesis made."""
    made: list[str] = []

    @settings(max_examples=300, phases=[Phase.generate], database=None)
    @given(text=st.one_of(pipelines(), expressions(count=6)))
    def gather(text: str) -> None:
        made.append(text)

    gather()
    return made


@pytest.mark.slow
def test_what_is_valid_has_the_same_columns(generated: list[str]) -> None:
    """Names and kinds of the columns of each construct, and of what hypothesis made of them."""
    asked = [*(text for text in VALID if text not in OURS_ALONE), *dict.fromkeys(generated)]
    differing = []
    for text, verdict in zip(asked, judged(asked, TABLES), strict=True):
        ours = tuple((column.name, str(column.kind)) for column in plan(text).columns)
        if verdict.errors or verdict.columns != ours:
            differing.append((text, verdict.errors or (verdict.columns, ours)))
    assert not differing


def test_what_is_invalid_is_so_there_and_at_the_same_place() -> None:
    """Both refuse it, and ours says a place within what it points at."""
    differing = []
    for text, verdict in zip(INVALID, judged(INVALID, TABLES), strict=True):
        with pytest.raises(QueryInvalid) as refused:
            plan(text)
        offset = refused.value.column - 1
        if text and text not in ELSEWHERE and (not verdict.errors or offset not in _places(verdict)):
            differing.append((text, offset, verdict.errors))
    assert not differing
