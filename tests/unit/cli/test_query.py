"""`attestation query`: rows in the form that was asked for, mistakes shown where they stand, queries kept and found."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub, problem

RESULT: dict[str, Any] = {
    "columns": [
        {"name": "hostname", "kind": "string"},
        {"name": "seen_At", "kind": "datetime"},
        {"name": "count_", "kind": "long"},
        {"name": "ok", "kind": "bool"},
        {"name": "labels", "kind": "dynamic"},
    ],
    "rows": [
        ["cp-1", "2026-11-21T04:00:00.123456Z", 3, True, {"rack": "4"}],
        ["=cmd()\x1b[31m", None, None, False, None],
    ],
    "truncated": False,
    "render": None,
    "elapsed_ms": 4,
    "explanation": None,
}


def kept(name: str, owner: str = "anna", *, mine: bool = True, shared: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "owner": owner,
        "mine": mine,
        "query": f"Machines | where hostname == '{owner}'",
        "description": None,
        "shared": shared,
        "kind": "query",
        "id": 7,
        "created_at": "2026-11-21T04:00:00Z",
        "updated_at": "2026-11-21T04:00:00Z",
    }


Answer = Callable[[str, Any], httpx.Response | None]


def answering(answers: dict[tuple[str, str], Any]) -> Stub:
    """Return a service that answers these requests so: a document, a response, or what a function makes of the body."""

    def before(request: httpx.Request) -> httpx.Response | None:
        path = request.url.path.removeprefix("/api/v1")
        found = answers.get((request.method, path))
        if callable(found):
            found = found(json.loads(request.content))
        if found is None or isinstance(found, httpx.Response):
            return found
        return httpx.Response(200, json=found)

    return Stub(before=before)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(service: Stub, *args: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["query", *args], obj=Session(carrier=service.carrier), **more)


def asked(service: Stub) -> list[Any]:
    return [json.loads(request.content) for request in service.requests if request.content]


def test_rows_are_a_table_a_csv_or_objects() -> None:
    """Under the very names of the columns; nothing in them is a command for a terminal or a spreadsheet."""
    service = answering({("POST", "/query"): RESULT})
    table = run(service, "Machines")
    assert table.exit_code == 0
    heading, first, second = table.stdout.splitlines()
    assert heading.split() == ["hostname", "seen_At", "count_", "ok", "labels"]
    assert first.split(None, 4) == ["cp-1", "2026-11-21T04:00:00Z", "3", "true", '{"rack": "4"}']
    assert "\x1b" not in second
    assert second.split()[1:] == ["-", "-", "false", "-"]
    rows = list(csv.reader(io.StringIO(run(service, "Machines", "-o", "csv").stdout)))
    assert rows[0] == ["hostname", "seen_At", "count_", "ok", "labels"]
    assert rows[1] == ["cp-1", "2026-11-21T04:00:00.123456Z", "3", "true", '{"rack": "4"}']
    assert rows[2][0].startswith("'=cmd()")
    assert rows[2][1:] == ["", "", "false", ""]
    document = json.loads(run(service, "Machines", "-o", "json").stdout)
    assert document[0] == {
        "hostname": "cp-1",
        "seen_At": "2026-11-21T04:00:00.123456Z",
        "count_": 3,
        "ok": True,
        "labels": {"rack": "4"},
    }
    assert document[1]["count_"] is None


def test_what_is_left_out_is_said_on_stderr() -> None:
    """A program that reads stdout is not disturbed."""
    service = answering({("POST", "/query"): {**RESULT, "truncated": True}})
    done = run(service, "Machines", "--rows", "2", "-o", "csv")
    assert asked(service) == [{"query": "Machines", "rows": 2, "explain": False}]
    assert "there is more than these 2 rows" in done.stderr
    assert "there is more" not in done.stdout


def test_a_query_comes_from_where_it_is_said(tmp_path: Path) -> None:
    """As an argument, from stdin, from a file, by its name; one of them."""
    service = answering({("POST", "/query"): RESULT, ("GET", "/query/saved"): {"queries": [kept("stale")]}})
    file = tmp_path / "a.kql"
    file.write_text("Events\n| count\n")
    run(service, "-", input="Machines\n| count")
    run(service, "--file", str(file))
    run(service, "--saved", "stale")
    assert [each["query"] for each in asked(service)] == [
        "Machines\n| count",
        "Events\n| count\n",
        "Machines | where hostname == 'anna'",
    ]
    for args in ((), ("Machines", "--saved", "stale"), ("Machines", "--share")):
        assert run(service, *args).exit_code == 2


def test_a_mistake_is_shown_where_it_stands() -> None:
    """With what was meant, perhaps; and nothing was run."""
    error = {
        "message": "there is no operator wher",
        "line": 2,
        "column": 3,
        "length": 4,
        "suggestion": "where",
    }
    service = answering(
        {
            ("POST", "/query"): problem(400, "query-invalid", "there is no operator wher"),
            ("POST", "/query/validate"): {"valid": False, "error": error},
        }
    )
    done = run(service, "Machines\n| wher hostname == 'a'")
    assert done.exit_code == 2
    assert "why: line 2, column 3: there is no operator wher; did you mean where?" in done.stderr
    lines = done.stderr.splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith("| wher hostname == 'a'"))
    assert lines[at + 1].index("^") == lines[at].index("wher")
    assert lines[at + 1].strip() == "^^^^"
    assert "attestation query --tables" in done.stderr


def test_queries_are_kept_listed_and_forgotten() -> None:
    """To keep one is not to run it."""
    service = answering(
        {
            ("PUT", "/query/saved/stale"): kept("stale", shared=True),
            ("GET", "/query/saved"): {"queries": [kept("a"), kept("a", "bob", mine=False, shared=True)]},
        }
    )
    done = run(service, "Machines", "--save", "stale", "--share", "--describe", "for the morning")
    assert done.stdout == "stale: kept; everybody who may ask sees it\n"
    assert asked(service) == [
        {"query": "Machines", "description": "for the morning", "shared": True, "kind": "query"}
    ]
    assert [line.split()[:3] for line in run(service, "--list").stdout.splitlines()[1:]] == [
        ["a", "you", "no"],
        ["a", "bob", "yes"],
    ]
    assert run(service, "--delete", "stale").stdout == "stale: forgotten\n"
    assert (service.requests[-1].method, service.requests[-1].url.path) == (
        "DELETE",
        "/api/v1/query/saved/stale",
    )


def test_what_somebody_shares_is_taken_over_or_forgotten() -> None:
    """With its owner before its name it is theirs that is meant, by its number."""
    service = answering(
        {
            ("GET", "/query/saved"): {
                "queries": [kept("a"), kept("a", "bob", mine=False, shared=True) | {"id": 9}]
            },
            ("POST", "/query/shared/9/take-over"): kept("a", shared=True),
        }
    )
    assert run(service, "--take-over", "bob/a").stdout == "a: yours\n"
    assert run(service, "--delete", "bob/a").stdout == "bob/a: forgotten\n"
    assert [(r.method, r.url.path) for r in service.requests if r.method != "GET"] == [
        ("POST", "/api/v1/query/shared/9/take-over"),
        ("DELETE", "/api/v1/query/shared/9"),
    ]


def test_mine_goes_before_what_others_share() -> None:
    """Among those of others the owner decides; what nobody keeps is told."""
    shared = [kept("b", who, mine=False, shared=True) for who in ("bob", "carol")]
    service = answering(
        {
            ("POST", "/query"): RESULT,
            ("GET", "/query/saved"): {"queries": [kept("a", "bob", mine=False), kept("a"), *shared]},
        }
    )
    run(service, "--saved", "a")
    run(service, "--saved", "carol/b")
    assert [each["query"].split("'")[1] for each in asked(service)] == ["anna", "carol"]
    several = run(service, "--saved", "b")
    assert several.exit_code == 5
    assert "bob/b, carol/b" in several.stderr
    assert run(service, "--saved", "c").exit_code == 3


def test_what_may_be_asked_is_listed() -> None:
    """Each column with its kind and what it says."""
    column = {"name": "ts", "kind": "datetime", "description": "When"}
    tables = [{"name": "Events", "description": "", "columns": [column]}]
    service = answering({("GET", "/query/schema"): {"tables": tables, "functions": [], "operators": []}})
    assert run(service, "--tables").stdout.splitlines()[1].split() == ["Events", "ts", "datetime", "When"]


def test_an_explanation_is_printed_and_no_rows() -> None:
    """What it is compiled to, and the steps."""
    plan = {"sql": "SELECT 1\nFROM t", "steps": ["SCAN t"]}
    service = answering({("POST", "/query"): {**RESULT, "rows": [], "explanation": plan}})
    assert run(service, "Machines", "--explain").stdout.splitlines() == ["SELECT 1", "FROM t", "", "SCAN t"]


def test_a_query_is_no_act() -> None:
    """Ended or lost, there is nothing to ask about again."""
    service = answering({("POST", "/query"): RESULT})
    run(service, "Machines")
    assert "idempotency-key" not in service.requests[-1].headers


def test_words_of_the_language_are_completed() -> None:
    """At the end of what is typed, as the service knows them; nothing that a shell would take for its own."""

    def fits(body: Any) -> Any:
        assert body["offset"] == len(body["query"])
        words = ("where", "hostname", "$(reboot)", "take")
        return {
            "valid": False,
            "completions": [{"text": w, "kind": "operator", "detail": "d"} for w in words],
        }

    service = answering(
        {
            ("POST", "/query/validate"): fits,
            ("GET", "/query/saved"): {"queries": [kept("stale"), kept("st2", "bob", mine=False)]},
        }
    )

    def offered(words: list[str], incomplete: str) -> list[str]:
        completer = ShellComplete(cli, {"obj": Session(carrier=service.carrier)}, "attestation", "_X")
        return [item.value for item in completer.get_completions(["query", *words], incomplete)]

    assert offered([], "'Machines | wh") == ["'Machines | where"]
    assert offered([], "Machines | ") == ["Machines | where", "Machines | hostname", "Machines | take"]
    assert offered(["--saved"], "st") == ["stale", "st2"]
    assert offered(["--delete"], "st") == ["stale"]
