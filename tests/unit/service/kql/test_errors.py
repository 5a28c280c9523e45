"""What is no query is refused at its place, with what was probably meant."""

from __future__ import annotations

import pytest

from attestation.errors import QueryInvalid
from attestation_service.kql import Limits
from tests.fixtures.queries import plan
from tests.fixtures.query_corpus import INVALID


@pytest.mark.parametrize(
    ("text", "line", "column", "length", "suggestion"),
    [
        ("T | wher n > 1", 1, 5, 4, "where"),
        ("T\n| where\n  foo > 1", 3, 3, 3, None),
        ("T | where tolowr(s) == 'x'", 1, 11, 6, "tolower"),
        ("Tt | take 1", 1, 1, 2, "T"),
        ("T | project N", 1, 13, 1, "n"),
        ("T | join kind=iner T on n", 1, 15, 4, "inner"),
        ("T | render timchart", 1, 12, 8, "timechart"),
        ("T | where n > 'a'", 1, 13, 1, None),
        ('T | where s == "a\\q"', 1, 18, 2, None),
        ("T | where d > datetime(2026-02-30)", 1, 15, 20, None),
        ("T | where s matches regex 'a(?=b)'", 1, 27, 8, None),
        ("T | where t > 100ns", 1, 15, 5, None),
        ("T | where s == '\\0'", 1, 17, 2, None),
        ("T | where s == '\\u0000'", 1, 16, 8, None),
        ("T | where s == '\\ud800'", 1, 16, 8, None),
        ("T | where x\x00 > 1", 1, 12, 1, None),
        ("T | where (in(n))", 1, 12, 2, None),
    ],
)
def test_a_place(text: str, line: int, column: int, length: int, suggestion: str | None) -> None:
    """Line and column from 1, how long it is, and the nearest name."""
    with pytest.raises(QueryInvalid) as refused:
        plan(text)
    e = refused.value
    assert (e.line, e.column, e.length, e.suggestion) == (line, column, length, suggestion)
    assert str(e).startswith(f"line {line}, column {column}: {e.message}")


def test_nothing_is_passed_over() -> None:
    """No part of a query that is not understood is left out of what it means (R36)."""
    for text in INVALID:
        with pytest.raises(QueryInvalid):
            plan(text)


@pytest.mark.parametrize(
    "text",
    [
        "T | where s == '" + "a" * 8192 + "'",
        "T" + " | take 1" * 21,
        "T | where " + "(" * 51 + "b" + ")" * 51,
        "T | where " + "not(" * 51 + "b" + ")" * 51,
        "T | project " + "-" * 51 + "n",
        "T | project j" + ".a" * 60,
        "T | where " + " or ".join(["b"] * 102),
        "T | where n in " + "(T | where n in " * 51 + "(1)" + ")" * 51,
        "T" + " | join (T" * 51 + ") on n" * 51,
        # Little text that means much: all of it would be written down for the database.
        "let a0 = 1;"
        + "".join(f"let a{i} = a{i - 1} + a{i - 1};" for i in range(1, 30))
        + "T | extend x = a29",
        "let a = j.b.c; T | where n in (" + ",".join(["a"] * 3000) + ")",
        "T | where s has_all (" + ",".join(["'a'"] * 300) + ")",
        "T | extend x = strcat(" + ",".join(["s"] * 101) + ")",
        "union " + ",".join(["T"] * 1000),
        "let u = T;" + "let v = T | join kind=inner u on n;" + "union " + ",".join(["v"] * 500),
        "T | summarize " + ",".join(["arg_max(n, *)"] * 540),
        "T " + "".join("| extend " + ",".join(f"c{k}{i} = n" for i in range(40)) for k in range(18)),
    ],
)
def test_a_limit(text: str) -> None:
    """Size, operators, nesting and rows of operators are bounded before anything else is done."""
    with pytest.raises(QueryInvalid):
        plan(text)


def test_limits_can_be_set() -> None:
    """Each of them, where the caller says so."""
    for limits in (Limits(text_bytes=10), Limits(stages=1), Limits(nesting=2), Limits(meaning=2)):
        with pytest.raises(QueryInvalid):
            plan("T | where (((b))) | take 1", limits=limits)
