"""The same on both databases: each construct, each literal with what could end it, and what is deep or long."""

# ruff: noqa: E501  # a query is one line

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attestation.clock import rfc3339
from tests.fixtures.pipelines import expressions, pipelines, quoted
from tests.fixtures.postgres import Server
from tests.fixtures.queries import AS_NUMBERS, AS_TEXT, EDGES, ROWS, Run, on_postgresql, on_sqlite
from tests.fixtures.query_corpus import VALID


@pytest.fixture(scope="module")
def sqlite() -> Iterator[Run]:
    """Queries on SQLite."""
    with on_sqlite() as run:
        yield run


@pytest.fixture(scope="module")
def postgresql(postgres_server: Server) -> Iterator[Run]:
    """Queries on PostgreSQL."""
    with on_postgresql(postgres_server.create("kql")) as run:
        yield run
    postgres_server.drop("kql")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def run(request: pytest.FixtureRequest) -> Run:
    """Queries on each."""
    found: Run = request.getfixturevalue(request.param)
    return found


def _same(text: str, sqlite: Run, postgresql: Run) -> None:
    assert sorted(map(repr, postgresql(text))) == sorted(map(repr, sqlite(text))), text


def test_each_construct_means_the_same(sqlite: Run, postgresql: Run) -> None:
    """What one database has a function of ours for, the other has an expression for."""
    for text in VALID:
        if "take" not in text and "limit" not in text:
            _same(text, sqlite, postgresql)


EXTREMES = (
    "datetime(0001-01-01)",
    "datetime(9999-12-31T23:59:59.999999)",
    "datetime(1969-12-31T23:59:59.999999)",
    "datetime(null)",
)


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"T | project startofday({at}), startofweek({at}, -1), startofmonth({at}), startofmonth({at}, 1), bin({at}, 7d),"
            f" tostring({at}), tolong({at}), {at} + 1d, {at} - 1d, {at} - datetime(0001-01-01)"
            for at in EXTREMES
        ),
        "T | project 9223372036854775807 + n, -9223372036854775807 - n, n * 9223372036854775807, n / -1, n / 0, n % 0",
        "T | project r * 1e150, r * 1e150 * 1e150, r / 1e-150, r / 1e150 / 1e150, r / 0.0, 1e150 + r, toreal('1e999')",
        "T | project tolong('9223372036854775808'), tolong('-9223372036854775807'), toint(n * 1000000000), tolong(r * 1e19)",
        "T | project tostring(r * 1e15), tostring(r / 1e6), tostring(t * 1000), t * 1e10, t * 9e18, t / 0, t / 0s, t % 1s",
        "T | project strlen('漢字é'), 'É' =~ 'é', tolower('ÀB'), '漢字' contains '字', 'é' has 'é', 'aé' has 'a', s2 has s",
        "T | summarize sum(n * 1000000), make_set(s), make_list(r), make_list(b), make_list(t), make_list(d), make_set(j)",
        "T | sort by s asc, r | summarize make_list(s2) by b",
        "T | sort by n asc | extend m = n | where m > 0 or isnull(m) | project m",
        "Empty | summarize count(), sum(n), avg(r), max(s), min(d), dcount(n), make_list(n), arg_max(n, s), max(b)",
        "Empty | count",
        'T | project parse_json(s2), parse_json(\'{"b":1,"a":1.50,"c":1e2}\'), tostring(parse_json(\' [1, {"a": null}] \')), j[0]',
        r"T | project tostring(parse_json('\"\\u0000\"')), tostring(parse_json('1e400')), tostring(parse_json('[1')), parse_json('')",
        "T | project j.a == 1, tostring(j.a), tolong(j.a), j.b[0] == 'x', isnull(j.b[1]), isempty(j), tobool(j.a), j has 'text'",
        "T | where s matches regex '(?i)^ALPHA' | project s",
        "T | where s matches regex @'[^a-z ]|\\bq\\b|é{1,2}' | project s",
        "T | join kind=inner (T) on n, b | count",
        "T | join kind=leftouter (T | where n > 1 | project n, x = r, y = s) on n | project n, x, y",
        "T | join (T | project n, x = s) on n | project s, x",
    ],
)
def test_what_is_hard_means_the_same(sqlite: Run, postgresql: Run, text: str) -> None:
    """Bounds of each kind, texts beyond ASCII, JSON that is none, groups of nothing: and nothing of it fails."""
    _same(text, sqlite, postgresql)


@pytest.mark.slow
def test_pipelines_mean_the_same(sqlite: Run, postgresql: Run) -> None:
    """Hundreds of pipelines, and of expressions ten at a time."""

    @settings(max_examples=400, phases=[Phase.generate], database=None)
    @given(text=st.one_of(pipelines(), expressions(count=10)))
    def compare(text: str) -> None:
        if (
            " avg(" not in text and "sum(" not in text
        ):  # reals are added in another order: the judge compares twelve digits
            _same(text, sqlite, postgresql)

    compare()


@pytest.mark.slow
def test_how_datetimes_are_kept_changes_nothing(run: Run) -> None:
    """Pipelines over a table whose datetimes are text give what they give over one where they are numbers."""

    @settings(max_examples=100, phases=[Phase.generate], database=None)
    @given(text=pipelines())
    def compare(text: str) -> None:
        if " avg(" not in text and "sum(" not in text:  # as above
            assert sorted(map(repr, run(text, AS_TEXT))) == sorted(map(repr, run(text, AS_NUMBERS))), text

    compare()


def test_the_order_of_texts_is_that_of_time(postgres_server: Server) -> None:
    """By code point PostgreSQL sorts the texts of the audit log as the instants, whatever it does in a language."""
    instants = [
        *EDGES,
        *(EDGES[3] + timedelta(days=number * 4_001, microseconds=number) for number in range(800)),
    ]
    with psycopg.connect(postgres_server.url("postgres")) as connection:
        asked = 'SELECT text FROM unnest(%s::text[]) AS of_texts(text) ORDER BY text COLLATE "C"'
        found = [text for (text,) in connection.execute(asked, [[rfc3339(at) for at in instants]])]
    assert found == [rfc3339(at) for at in sorted(instants)]


HOSTILE = (
    "'",
    '"',
    "''",
    "\\",
    "\\'",
    "--",
    "/*",
    "*/",
    "//",
    ";",
    "]",
    "[",
    "')",
    '")',
    "%",
    "%s",
    "%(x)s",
    ":x",
    ":1",
    "?",
    "$1",
    "{}",
    "' OR '1'='1",
    "'; DROP TABLE kql_t; --",
    '" OR 1=1 --',
    "x' UNION SELECT * FROM kql_t --",
    "\n",
    "\r\n",
    "\t",
    "\x01",
    "\x1f",
    "\x7f",
    "\u2028",
    "\u202e",
    "\ufeff",
    "é漢",
    "\U0001f600",
    "a" * 500,
)
"""What could end a literal in SQL, begin a comment, or be a parameter; and control characters."""

FORMS: dict[str, Callable[[str], str]] = {
    "in quotes": quoted,
    "in apostrophes": lambda text: "'" + quoted(text)[1:-1].replace("'", "\\'") + "'",
    "verbatim": lambda text: '@"' + text.replace('"', '""') + '"',
    "in escapes": lambda text: '"' + "".join(f"\\U{ord(each):08x}" for each in text) + '"',
    "fenced": lambda text: f"```{text}```",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_literal_is_its_characters(run: Run, form: str) -> None:
    """Whatever a text has in it, each position of a literal gets that text: no more rows, no other value."""
    for text in HOSTILE:
        if form == "verbatim" and ("\n" in text or "\r" in text):
            continue  # a literal of that form ends with its line
        if form == "in escapes" and len(text) > 100:
            continue  # ten characters for each: more than a query has
        literal = FORMS[form](text)
        value = f"x = {literal}, n = strlen({literal}), c = strcat('a', {literal}, 'b'), l = split({literal}, '\\x02')"
        assert run(f"T | take 1 | project {value}") == [[text, len(text), f"a{text}b", [text]]], text
        for condition in (
            f"s == {literal}",
            f"s contains_cs {literal} and s == {literal}",
            f"s startswith {literal} and s == {literal}",
            f"s endswith {literal} and s == {literal}",
            f"s has {literal} and s == {literal}",
            f"s in ({literal})",
            f"s in~ ({literal}, {literal})",
            f"s has_any ({literal}) and s == {literal}",
            f"iff(s == {literal}, {literal}, '') == {literal} and s == {literal}",
            f"tostring(j[{literal}]) == 'no such member'",
            f"tostring(parse_json({literal})) == 'no such text'",
        ):
            assert run(f"T | where {condition}") == [], (text, condition)
        assert run(f"T | where {literal} == {literal} | count") == [[len(ROWS)]], text
        assert run(f"T | summarize by x = {literal}") == [[text]], text
        assert run(f"let y = {literal}; T | take 1 | project y") == [[text]], text


def test_a_name_is_no_sql(run: Run) -> None:
    """A column may be called anything: only the answer has its name."""
    for name in ("a b", 'x"y', "x'y", "x]y", "c0", "o", "select", "x; DROP TABLE kql_t", "--", "%s", ":x"):
        mark = '"' if '"' not in name else "'"
        assert run(f"T | extend [{mark}{name}{mark}] = 1 | where [{mark}{name}{mark}] == 1 | count") == [
            [len(ROWS)]
        ]


DEEP = {
    "parentheses": "T | project x = " + "(" * 40 + "n" + " + 1)" * 40,
    "functions": "T | project x = " + "tolower(" * 45 + "s" + ")" * 45,
    "conversions": "T | project x = " + "tolong(tostring(" * 22 + "n" + "))" * 22,
    "conditions": "T | project x = " + "iff(n > 1, n, " * 45 + "n" + ")" * 45,
    "a chain": "T | where " + " or ".join(f"n == {number}" for number in range(100)),
    "a sum": "T | project x = " + " + ".join(["n"] * 100),
    "doubling": "T" + " | extend n = n + n" * 19,
    "operators": "T" + " | where n > 1 or true | sort by n" * 9,
    "joins": "T | project n" + " | join kind=leftsemi (T | project n) on n" * 9,
    "shared": "let a = T; let b = union a, a; let c = union b, b; let d = union c, c; union d, d | count",
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_deep_is_answered(sqlite: Run, postgresql: Run, name: str) -> None:
    """At the limits of the language neither database runs out of what its parser or planner has."""
    _same(DEEP[name], sqlite, postgresql)


def test_a_term_is_the_same_written_and_computed(sqlite: Run, postgresql: Run) -> None:
    """Of a literal the pattern is made before the query, of another text by the database: they find the same."""
    for term in (*HOSTILE, "", "a", "Ab-C", "é", "a.c", "漢", "_", "x y"):
        text = f"T | project s, n, w = strcat(s2, {quoted(term)}) | extend x = strcat('-', {quoted(term)}, '.', s, w)"
        written = f"{text} | project s has {quoted(term)}, x has {quoted(term)}, w has {quoted(term)}"
        computed = (
            f"{text} | extend t = strcat({quoted(term)}, tolower('')) | project s has t, x has t, w has t"
        )
        assert postgresql(written) == sqlite(written) == postgresql(computed) == sqlite(computed), term
