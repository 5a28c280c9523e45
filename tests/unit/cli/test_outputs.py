"""The five forms of output: what people read, what programs read, and what nobody may smuggle in."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from attestation.client.csv_line import FORMULA, csv_line
from attestation.client.yaml_text import yaml_text
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import HASH, NOW, Stub, audit_entry, machine, result, vote

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
B = "c0ffee00-0f0e-4c55-9d4a-3f6f0e1b2c3d"
HOSTILE = "SN\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r\nroot"
FORMS = ("table", "wide", "csv", "yaml", "json")

LISTINGS = (
    "machine list",
    f"machine results {A}",
    f"machine approvals {A}",
    "approval list",
    "token list",
    "allow-list list",
    "audit list",
    "policy list",
    "tpm-bundle list",
    "policy history",
    "extension list",
    "extension dead-letters webhooks",
    f"policy effective {A}",
)
DETAILS = (
    f"machine get {A}",
    f"machine explain {A}",
    "stats",
    "health",
    "version",
    "config show",
    "audit verify",
    "tpm-bundle verify",
    "policy show workers@1",
    "policy test workers@2",
    "policy learn --fleet",
    "extension dead-letter webhooks e1",
    "policy diff workers@1 tests/unit/cli/a_policy.yaml",
)
ACTS = (
    f"machine approve {A} --role generic",
    f"machine reject {A} -r why --yes",
    f"machine lock {A}",
    f"machine unlock {A}",
    f"machine role {A} --role generic -r why --yes",
    f"machine revoke {A} --yes",
    f"machine wipe {A} --yes",
    f"machine ak-reset {A} -r why --yes",
    f"machine approve-hardware {A} -r why --yes",
    f"machine redeliver {A}",
    f"machine delete {A} --yes",
    f"machine withdraw {A} --yes",
    "approval withdraw 17 --yes",
    "token create --role generic",
    "extension retry webhooks",
    "extension retry webhooks e1 e2",
    "token revoke t1 --yes",
    "policy assign workers@1 --fleet",
    "policy activate workers@1 --role worker-app",
    "policy rollback --role worker-app --yes",
    "policy unassign --fleet --yes",
)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def stub() -> Stub:
    last = {"verdict": "Verified", "at": NOW, "policy": "workers@1", "failed": None}
    return Stub(
        machines=[
            machine(A, hostname="cp-1", hw_serial=HOSTILE, last_result=last, status="attested"),
            machine(B, hw_product='=HYPERLINK("http://evil.example")'),
        ],
        results=[result(A)],
        audit=[audit_entry(2, operator_cn="@SUM(A1)", detail=HOSTILE), audit_entry(1)],
        allow_list=[
            {
                "ek_fingerprint": "ab" * 48,
                "role": "generic",
                "created_at": NOW,
                "created_by": "anna",
                "note": "-1",
            }
            | {"hostname": None, "assigned_ip": None, "cluster_id": None}
        ],
        approvals=[vote(17, A)],
    )


def run(service: Stub, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=service.carrier), catch_exceptions=False)


@pytest.mark.threat("T58")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", LISTINGS + DETAILS + ACTS)
def test_every_command_prints_every_form(command: str, form: str) -> None:
    """Each form is readable by what reads it, and none lets a control character through."""
    done = run(stub(), *command.split(), "-o", form)
    assert done.exit_code in (0, 1), done.output
    assert done.stdout
    assert not [c for c in done.output if c != "\n" and c != "\r" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0)]
    assert "\u202e" not in done.output
    if form == "json":
        json.loads(done.stdout)
    if form == "yaml":
        assert YAML(typ="safe").load(done.stdout) is not None
    if form == "csv":
        rows = list(csv.reader(io.StringIO(done.stdout, newline=""), strict=True))
        assert len({len(row) for row in rows}) == 1
        assert len(rows) >= 2
        assert len(set(rows[0])) == len(rows[0])
        assert not [value for row in rows for value in row if value.startswith(FORMULA)]


@pytest.mark.parametrize("command", LISTINGS + DETAILS + ACTS)
def test_yaml_says_what_json_says(command: str) -> None:
    """One document in two spellings."""
    as_json = json.loads(run(stub(), *command.split(), "-o", "json").stdout)
    as_yaml = YAML(typ="safe").load(run(stub(), *command.split(), "-o", "yaml").stdout)
    for document in (as_json, as_yaml):
        if isinstance(document, dict):
            document.pop("answered_in_milliseconds", None)
            document.get("settings", {}).pop("output", None)
    assert as_yaml == as_json


def test_wide_and_csv_are_exact_and_whole() -> None:
    """Full ids, instants instead of ages, nothing shortened, no column left out."""
    table = run(stub(), "machine", "list").stdout
    assert A not in table
    assert "FINGERPRINT" not in table
    for form in ("wide", "csv"):
        shown = run(stub(), "machine", "list", "-o", form).stdout
        for whole in (A, A.replace("-", "") * 3, "2026-11-21T04:00:00Z", "default"):
            assert whole in shown
        assert "ago" not in shown


def test_an_empty_listing() -> None:
    """A heading as CSV, an empty list as JSON and YAML, a sentence to people."""
    for form, expected in (("json", "[]\n"), ("yaml", "[]\n"), ("table", ""), ("wide", "")):
        done = run(Stub(), "machine", "list", "-o", form)
        assert done.stdout == expected
        assert ("No machines." in done.stderr) == (form in ("table", "wide"))
    done = run(Stub(), "machine", "list", "-o", "csv")
    assert done.stdout.startswith("id,hostname,status,")
    assert done.stdout.count("\n") == 1


@pytest.mark.threat("T58", "T180")
@pytest.mark.parametrize("start", [*FORMULA, "\x00=", " =", "\u00a0="])
def test_no_cell_starts_a_formula(start: str) -> None:
    """An apostrophe makes it a text again; the value itself stays readable."""
    (row,) = csv.reader(io.StringIO(csv_line([f"{start}1+1", "plain"]), newline=""))
    assert row[0].startswith("'")
    assert row[0].endswith("1+1")
    assert row[1] == "plain"


@pytest.mark.threat("T180")
def test_no_cell_starts_a_formula_where_semicolons_part_them() -> None:
    """Where commas are decimal points, a spreadsheet reads a quote in the middle of a field as a quote, and parts."""
    line = csv_line(["7", "GET /api/v1/policies/x;=1+1; =2+2;z: refused", 'a";-1'])
    parts = next(csv.reader(io.StringIO(line, newline=""), delimiter=";"))
    assert len(parts) == 5
    assert not [part for part in parts if part.strip().startswith(FORMULA)]


@given(st.lists(st.text(), min_size=2, max_size=5))
def test_csv_comes_back(values: list[str]) -> None:
    """RFC 4180: whatever stands in a cell, a record stays one record, and no cell calculates."""
    line = csv_line(values)
    assert line.endswith("\r\n")
    (row,) = csv.reader(io.StringIO(line, newline=""), strict=True)
    assert len(row) == len(values)
    assert not [value for value in row if value.startswith(FORMULA)]


JSON_VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("version", [(1, 1), (1, 2)])
@given(value=st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_yaml_comes_back(version: tuple[int, int], value: Any) -> None:
    """The same to readers of either version, `no`, `12:30` and `1e3` included."""
    text = yaml_text(value)
    assert text.isascii()
    reader = YAML(typ="safe", pure=True)
    reader.version = version
    assert reader.load(text) == value


WORDS = (
    *(
        "no",
        "Yes",
        "ON",
        "n",
        "null",
        "~",
        "12:30:15",
        "1e3",
        "0x1f",
        "010",
        "1_000",
        ".5",
        "-",
        "2026-11-21",
    ),
    *("<<", "=", "", " a", "a: b", "#x", "10:11:22:33:44:55"),
)


@pytest.mark.parametrize("word", WORDS)
def test_yaml_words_stay_words(word: str) -> None:
    """What YAML 1.1 would take for something else stands in quotes."""
    for version in ((1, 1), (1, 2)):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(yaml_text({"key": word, word: "x"})) == {"key": word, word: "x"}


# 202: dual control


AGAIN = f"attestation approval approve {HASH[:16]}"


@pytest.mark.parametrize(
    "command",
    [
        "machine approve cp-1 --role controlplane --hostname cp-9 --ip 10.0.0.9/24",
        "machine unlock cp-1",
        "machine role cp-1 --role generic -r moves --yes",
        "machine ak-reset cp-1 -r board --yes",
        "machine approve-hardware cp-1 -r board --yes",
        "machine redeliver cp-1",
        "token create --role controlplane --hostname cp-9 --expires-in 2h",
    ],
)
def test_a_vote_says_what_is_missing_and_what_the_others_call(command: str) -> None:
    """1 of 2, until when, and the call that agrees to this very proposal; exit 0, and a status in JSON."""
    service = stub()
    service.voters = ("anna",)
    done = run(service, *command.split())
    assert done.exit_code == 0
    assert "1 of 2 approvals" in done.stdout
    assert "nothing is changed yet" in done.stdout
    assert f"another operator must run\n    {AGAIN}\n" in done.stdout
    assert "attestation approval withdraw 17" in done.stdout
    document = json.loads(run(service, *command.split(), "-o", "json").stdout)
    assert document["status"] == "pending_second_approval"
    assert (document["approvals_received"], document["approvals_required"]) == (1, 2)
    assert document["next_command"] == f"attestation approval approve {HASH}"
    assert all("new_proposal" not in request.url.params for request in service.requests)
    run(service, *command.split(), "--new-proposal")
    assert service.requests[-1].url.params["new_proposal"] == "true"


def test_a_token_that_waits_for_votes_leaves_no_file(tmp_path: Any) -> None:
    """There is no secret yet, so there is no file of it."""
    service = stub()
    service.voters = ("anna",)
    out = tmp_path / "rack.token"
    done = run(service, "token", "create", "--role", "generic", "--out", str(out))
    assert done.exit_code == 0
    assert not out.exists()
    assert AGAIN in done.stdout


def test_an_import_that_waits_for_votes(tmp_path: Any) -> None:
    """The second operator sees the entries, and agrees to them."""
    service = stub()
    service.voters = ("anna",)
    file = tmp_path / "list.csv"
    file.write_text(f"ek_fingerprint,role\n{'ab' * 48},controlplane\n")
    done = run(service, "allow-list", "import", str(file))
    assert done.exit_code == 0
    assert "allow-list, entries 1: 1 of 2 approvals" in done.stdout
    assert AGAIN in done.stdout


def test_several_live_votes_are_told_apart() -> None:
    """Which one is mine is not guessed."""
    service = stub()
    service.approvals = [vote(17, A), vote(18, A, operator_cn="berta"), vote(3, A, live=False, consumed=True)]
    done = run(service, "machine", "withdraw", A, "--yes")
    assert done.exit_code == 5
    assert "--vote 18  berta" in done.stderr
    assert "vote 18: withdrawn" in run(service, "machine", "withdraw", A, "--vote", "18", "--yes").stdout
    assert service.acts == [("DELETE", "/approvals/18", None)]
    for number in ("3", "99"):
        assert run(service, "machine", "withdraw", A, "--vote", number, "--yes").exit_code == 3
    service.approvals = []
    assert run(service, "machine", "withdraw", A, "--yes").exit_code == 3
