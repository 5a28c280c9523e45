"""What each function and operator of values does, with its null."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_service import kql
from attestation_service.kql import Kind
from attestation_service.kql.sqlite_functions import has
from tests.fixtures.queries import Run

NULL = "long(null)"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        # null: equals no value, differs from each, and against null is null
        (f"{NULL} == 1", False),
        (f"{NULL} != 1", True),
        (f"{NULL} == {NULL}", None),
        (f"{NULL} != {NULL}", None),
        (f"{NULL} < 1", None),
        (f"{NULL} + 1", None),
        (f"{NULL} in (1, 2)", False),
        (f"{NULL} !in (1, 2)", True),
        ("not(bool(null))", None),
        ("bool(null) and false", False),
        ("bool(null) or true", True),
        ("bool(null) and true", None),
        ("iff(bool(null), 1, 2)", 2),
        (f"isnull({NULL})", True),
        ("isnull('')", False),
        ("isempty('')", True),
        (f"isempty({NULL})", True),
        ("isnotempty('a')", True),
        (f"isnotnull({NULL})", False),
        (f"coalesce({NULL}, 2)", 2),
        ("coalesce('', 'a')", "a"),
        (f"strcat('a', {NULL}, 1)", "a1"),
        (f"tostring({NULL})", ""),
        # arithmetic
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("-7 % 3", 2),
        ("1 / 0", None),
        ("1 % 0", None),
        ("1.0 / 0.0", None),
        ("7 / 2.0", 3.5),
        ("9223372036854775807 + 1", None),
        ("0x10", 16),
        ("1 + 2 * 3", 7),
        ("-(1 - 2)", 1),
        ("1d / 2", "12:00:00"),
        ("1d / 1h", 24.0),
        ("1.5 * 1h", "01:30:00"),
        ("datetime(2026-01-02) - datetime(2026-01-01)", "1.00:00:00"),
        ("datetime(2026-01-01) + 90m", "2026-01-01T01:30:00.000000Z"),
        ("datetime(9999-12-31) + 1d", None),
        # texts
        ("'Abc' == 'abc'", False),
        ("'Abc' =~ 'aBC'", True),
        ("'É' =~ 'é'", False),
        ("'a' !~ 'A'", False),
        ("'xAbcx' contains 'aBC'", True),
        ("'xAbcx' contains_cs 'aBC'", False),
        ("'Abc' startswith 'aB'", True),
        ("'Abc' startswith_cs 'aB'", False),
        ("'Abc' endswith 'BC'", True),
        ("'Abc' endswith_cs 'BC'", False),
        ("'Abc' !endswith 'x'", True),
        ("'ab-cd ef' has 'CD'", True),
        ("'ab-cd ef' has 'c'", False),
        ("'ab_cd' has 'ab'", True),
        ("'abé' has 'ab'", False),
        ("'ab cd' has_any ('x', 'cd')", True),
        ("'ab cd' has_all ('x', 'cd')", False),
        ("'a' in ('b', 'A')", False),
        ("'a' in~ ('b', 'A')", True),
        ("3 between (1 .. 3)", True),
        ("3 !between (4 .. 5)", True),
        ("datetime(2026-01-01T12:00) between (datetime(2026-01-01) .. 1d)", True),
        ("'alpha' matches regex '^a.*a$'", True),
        ("'ALPHA' matches regex '(?i)^a'", True),
        ("tolower('ABÉ')", "abÉ"),
        ("toupper('abé')", "ABé"),
        ("strlen('é漢')", 2),
        ("split('a,b', ',')", ["a", "b"]),
        ("split('a,b', ',', 1)", ["b"]),
        ("split('', ',')", [""]),
        # kinds
        ("tolong(' 12 ')", 12),
        ("tolong('1.5')", None),
        ("tolong(-1.9)", -1),
        ("toint(3000000000)", None),
        ("toreal('1e3')", 1000.0),
        ("tobool('TRUE')", True),
        ("tobool('x')", None),
        ("tostring(true)", "True"),
        ("tostring(1.0)", "1.0"),
        ("tostring(1h)", "01:00:00"),
        ("tostring(datetime(2026-01-01))", "2026-01-01T00:00:00.0000000Z"),
        ("case(false, 'a', true, 'b', 'c')", "b"),
        ("iif(true, 1, 2)", 1),
        # time
        ("now()", "2026-01-02T03:04:05.678901Z"),
        ("ago(1d)", "2026-01-01T03:04:05.678901Z"),
        ("startofday(now())", "2026-01-02T00:00:00.000000Z"),
        ("startofweek(now())", "2025-12-28T00:00:00.000000Z"),
        ("startofmonth(now(), 1)", "2026-02-01T00:00:00.000000Z"),
        ("bin(-3, 4)", -4),
        ("bin(7.5, 2.0)", 6.0),
        ("bin(datetime(2026-01-02), 7d)", "2025-12-29T00:00:00.000000Z"),
        ("bin(3, 0)", None),
        # dynamic
        ('parse_json(\'{"a":[1,{"b":"x"}]}\').a[1].b', "x"),
        ("parse_json('[1,2]')[-1]", 2),
        ("parse_json('no JSON')", "no JSON"),
        ("isnull(parse_json('null'))", True),
        ("parse_json('{\"a\":1}').a == 1", True),
        ('tostring(parse_json(\'{"b": 1, "a": [1.50, 1e2]}\'))', '{"a":[1.50,100],"b":1}'),
        ("dynamic({'a': 1})['a']", 1),
    ],
)
def test_a_value(run: Run, written: str, value: Any) -> None:
    """Each is what the reference says."""
    assert run(f"T | take 1 | project x = {written}") == [[value]]


def test_values_of_an_answer() -> None:
    """What a database gave becomes JSON: true for 1, RFC 3339, timespans as Kusto prints them, dynamic parsed."""
    assert [
        kql.to_python(kind, value)
        for kind, value in (
            (Kind.BOOL, 1),
            (Kind.DATETIME, -1),
            (Kind.TIMESPAN, 93_784_567_000),
            (Kind.DYNAMIC, '{"a":1.5}'),
            (Kind.STRING, None),
            (Kind.LONG, None),
        )
    ] == [True, "1969-12-31T23:59:59.999999Z", "1.02:03:04.5670000", {"a": 1.5}, "", None]


@given(st.text("ab. ", max_size=200), st.text("ab.", max_size=4))
def test_a_term_is_found_where_it_stands(text: str, term: str) -> None:
    """With no letter or digit beside it, also where it overlaps itself."""
    edge = "[a-z0-9]"
    before = f"(?<!{edge})" if re.match(edge, term) else ""
    behind = f"(?!{edge})" if re.search(f"{edge}$", term) else ""
    assert has(text, term) == bool(re.search(before + re.escape(term) + behind, text))


@pytest.mark.threat("T262")
@pytest.mark.timeout(60)
def test_a_long_term_that_overlaps_itself_is_looked_for_in_one_pass() -> None:
    """A function of ours is not interrupted: what takes hours would hold its place for as long."""
    assert not has("a" * 400_000, "a" * 200_000)
