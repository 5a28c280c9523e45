"""Any text is a plan or refused; whatever is a plan compiles for both databases."""

from __future__ import annotations

import contextlib

import re2
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import QueryInvalid
from attestation_service import kql
from attestation_service.kql import complete, regex
from tests.fixtures.pipelines import pipelines
from tests.fixtures.queries import CATALOG, plan
from tests.fixtures.query_corpus import INVALID, VALID

WORDS = sorted({word for text in (*VALID, *INVALID) for word in text.split()})


def _holds(text: str) -> None:
    with contextlib.suppress(QueryInvalid):
        found = plan(text)
        kql.compiled(found, "sqlite")
        kql.compiled(found, "postgresql")


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    """Characters in any order."""
    _holds(text)
    complete(text, len(text), CATALOG)


@given(st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join))
def test_any_words(text: str) -> None:
    """Words of the language in any order."""
    _holds("T | " + text)


@given(pipelines(), st.data())
def test_a_pipeline_that_is_broken_off(text: str, data: st.DataObject) -> None:
    """A query in the midst of being written."""
    at = data.draw(st.integers(0, len(text)))
    _holds(text[:at])
    complete(text, at, CATALOG)


@given(st.text(alphabet="ab()[]{}|*+?.^$\\-,:1dwsbxAé\n", max_size=30))
def test_any_pattern(pattern: str) -> None:
    """A regular expression is one that RE2 takes, or refused with a place inside of it."""
    try:
        regex.check(pattern)
    except regex.Unsupported as e:
        place = e.at
    else:
        re2.compile(regex.to_re2(pattern))
        return
    assert 0 <= place <= len(pattern)
