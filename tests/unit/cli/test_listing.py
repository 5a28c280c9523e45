"""`--columns` and `--sort`: what of a list is shown and in which order, in every list alike."""

from __future__ import annotations

import csv
import io
import json

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import RequestInvalid
from attestation_cli.listing import arranged
from attestation_cli.main import cli
from attestation_cli.render import Cell, Column, cell, exact
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub, machine
from tests.unit.cli.test_help import BELOW

A, B, C = (f"{n}f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d" for n in "789")
COLUMNS = [Column("NAME"), Column("SEEN", drop=2), Column("EK FINGERPRINT", wide=True)]


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(*args: str) -> Result:
    service = Stub(
        machines=[
            machine(A, hostname="w-10", assigned_ip="10.0.0.9/24"),
            machine(B, hostname="w-2", assigned_ip="10.0.0.10/24"),
            machine(C, assigned_ip="10.0.0.1/24"),
        ]
    )
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=service.carrier))


def names(result: Result, column: str = "hostname") -> list[str]:
    assert result.exit_code == 0, result.output
    return [row[column] for row in csv.DictReader(io.StringIO(result.stdout))]


def rows_of(*values: str | None) -> list[list[Cell]]:
    return [[cell(value), cell(None), cell(str(n))] for n, value in enumerate(values)]


def test_columns_are_those_that_were_asked_for_in_their_order() -> None:
    """Also those that only `-o wide` shows, under the names that head the CSV."""
    listed = run("machine", "list", "--columns", "hostname, ek-fingerprint,ADDRESS")
    assert listed.stdout.splitlines()[0].split() == ["HOSTNAME", "EK", "FINGERPRINT", "ADDRESS"]
    assert A.replace("-", "") * 3 in listed.stdout
    assert A not in listed.stdout
    header = run("machine", "list", "--columns", "role,hostname", "-o", "csv").stdout.splitlines()[0]
    assert header == "role,hostname"


def test_rows_are_sorted_as_people_count() -> None:
    """By whole values, numbers in them by their size; whoever has none comes last, either way round."""
    assert names(run("machine", "list", "--sort", "hostname", "-o", "csv")) == ["w-2", "w-10", ""]
    assert names(run("machine", "list", "--sort", "-hostname", "-o", "csv")) == ["w-10", "w-2", ""]
    addresses = names(run("machine", "list", "--sort", "address", "-o", "csv"), "address")
    assert addresses == ["10.0.0.1/24", "10.0.0.9/24", "10.0.0.10/24"]


def test_one_column_may_be_sorted_by_and_another_one_shown() -> None:
    """What orders a list need not stand in it."""
    listed = run("machine", "list", "--sort", "address", "--columns", "hostname", "-o", "csv")
    assert names(listed) == ["", "w-10", "w-2"]


def test_a_second_column_decides_where_the_first_is_equal() -> None:
    """The first one named weighs most."""
    rows = [[Cell(a), Cell(b)] for a, b in (("b", "1"), ("a", "1"), ("a", "2"))]
    _, found = arranged([Column("X"), Column("Y")], rows, wanted=(), order=("x", "-y"))
    assert [(row[0].text, row[1].text) for row in found] == [("a", "2"), ("a", "1"), ("b", "1")]


@pytest.mark.parametrize("option", ["--columns", "--sort"])
def test_an_unknown_column_is_answered_with_those_that_there_are(option: str) -> None:
    """Exit code 2, and what to write instead."""
    wrong = run("machine", "list", option, "hostnam")
    assert wrong.exit_code == 2
    assert "there is no column 'hostnam' here; there are id, hostname, status" in " ".join(
        wrong.stderr.split()
    )
    assert run("machine", "list", option, " , ").exit_code == 2


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("option", ["--columns", "--sort"])
def test_a_document_is_what_the_service_said(option: str, form: str) -> None:
    """There an option that would do nothing is refused, and nothing is printed."""
    refused = run("machine", "list", option, "hostname", "-o", form)
    assert refused.exit_code == 2
    assert refused.stdout == ""
    text = json.loads(refused.stderr)["error"]["detail"] if form == "json" else refused.stderr
    assert "arrange tables" in " ".join(text.split())


def test_every_list_has_both() -> None:
    """Where a command is called `list`, or lists, it can be arranged; all by the same options."""
    lists = {
        *(words for words in BELOW if words[-1] in ("list", "history", "certificates", "refused-keys")),
        ("machine", "approvals"),
        ("auth", "cache-list"),
    }
    for words in lists:
        options = {o for p in BELOW[words].params if isinstance(p, click.Option) for o in p.opts}
        assert {"--columns", "--sort"} <= options, words


@given(st.lists(st.none() | st.text(max_size=12), max_size=8), st.booleans())
def test_sorting_loses_nothing(values: list[str | None], backwards: bool) -> None:
    """Whatever machines call themselves, digits of any length included, each row is there once."""
    rows = rows_of(*values)
    _, found = arranged(COLUMNS, rows, wanted=(), order=("-name" if backwards else "name",))
    assert sorted(row[2].text for row in found) == sorted(row[2].text for row in rows)
    told = [bool(exact(row[0])) for row in found]
    assert told == sorted(told, reverse=True)


def test_very_long_numbers_are_no_obstacle() -> None:
    """Python reads no number of more than 4,300 digits; machines choose their serial numbers."""
    rows = rows_of("9" * 5000, "1" + "0" * 5000)
    _, found = arranged(COLUMNS, rows, wanted=(), order=("name",))
    assert [row[2].text for row in found] == ["0", "1"]


def test_columns_must_exist() -> None:
    """The error is one of ours."""
    with pytest.raises(RequestInvalid, match="there are name, seen, ek_fingerprint"):
        arranged(COLUMNS, [], wanted=("nothing",), order=())
