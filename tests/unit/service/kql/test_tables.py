"""One table of each: what parser, binder, reference and completion know is the same, and the page says it."""

from __future__ import annotations

import re
import sys

import pytest

from attestation.errors import QueryInvalid
from attestation_service import kql
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.expressions import POWERS
from attestation_service.kql.functions import FUNCTIONS
from attestation_service.kql.operators.table import OPERATORS
from attestation_service.kql.sqlite_functions import FUNCTIONS as OF_SQLITE
from tests.docs.pages import ROOT
from tests.fixtures.queries import CATALOG, plan

PAGE = (ROOT / "docs" / "protocol" / "kql.md").read_text(encoding="utf-8")


def test_each_operator_of_the_parser_means_something() -> None:
    """What binds in an expression is a function, and each operator of values binds."""
    assert set(POWERS) == {name for name, each in FUNCTIONS.items() if each.is_operator} - {"-1", "+1"}


def test_no_name_is_taken_twice() -> None:
    """A name is an aggregate or a function, and belongs to one of them."""
    assert not set(AGGREGATES) & set(FUNCTIONS)
    for table in (FUNCTIONS, OPERATORS):
        aliases = [
            name for each in {id(each): each for each in table.values()}.values() for name in each.aliases
        ]
        assert len(set(table)) == len({id(each) for each in table.values()}) + len(aliases)


def test_the_page_has_the_tables() -> None:
    """docs/protocol/kql.md lists what there is, in the words of the code."""
    for described in (*kql.operators(), *kql.functions(), *kql.aggregates()):
        written = described.written.replace("|", "\\|")
        names = "".join(f", also `{alias}`" for alias in described.aliases)
        assert f"| `{written}`{names} | {described.description} |" in PAGE, described.name


def test_every_function_of_sqlite_is_deterministic_and_asked_for() -> None:
    """The connection knows no function that no query calls."""
    sources = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src/service/attestation_service/kql").glob("sqlite.py")
    )
    called = (
        set(re.findall(r"kql_[a-z_]+", sources))
        | {f"kql_{name}" for name in ("add", "subtract", "multiply", "divide", "modulo")}
        | {f"kql_{kind}_text" for kind in ("real", "datetime", "timespan", "dynamic")}
    )
    assert called - {"kql_"} == set(OF_SQLITE)


def test_a_statement_has_nothing_of_the_text() -> None:
    """Names and literals of a query are not in the SQL of either database."""
    found = plan("T | extend secretname = 'secretvalue' | where secretname == 'othervalue' and n == 4711")
    for dialect in ("sqlite", "postgresql"):
        written = kql.compiled(found, dialect)
        assert not re.search("secret|othervalue|4711", written.sql)
        assert {"secretvalue", "othervalue", 4711} <= set(written.parameters.values())


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", "T"),
        ("T | ", "where"),
        ("T | wh", "where"),
        ("T | where s", "s"),
        ("T | project x = n | where ", "x"),
        ("T | summarize dc", "dcount"),
        ("T | where tol", "tolower"),
        ("T | join kind=inner (T | where ", "i"),
        ("let a = 1; ", "T"),
        (r"T | where s == 'a\'b' and ", "i"),
    ],
)
def test_completion(text: str, first: str) -> None:
    """What may stand at the cursor: tables, operators, columns of the rows that come in, functions, aggregates."""
    assert kql.complete(text, len(text), CATALOG)[0].text == first


@pytest.mark.parametrize("text", ["T | where s == 'a", "T // a", 'T | where s == "x | '])
def test_nothing_completes_a_string(text: str) -> None:
    """Inside a string or a comment nothing of the language stands."""
    assert kql.complete(text, len(text), CATALOG) == []


@pytest.mark.threat("T262")
def test_completion_reads_a_few_beginnings_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many operators stand in it: each beginning costs as much as a query."""
    read: list[str] = []

    def analyse(text: str, *_: object, **__: object) -> kql.Plan:
        read.append(text)
        raise QueryInvalid("none", line=1, column=1, length=1)

    monkeypatch.setattr(sys.modules["attestation_service.kql.complete"], "analyse", analyse)
    kql.complete("T" + "|a" * 4000 + " ", 8002, CATALOG)
    assert 0 < len(read) <= 20
