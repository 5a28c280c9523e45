"""The command line: what it asks, what it prints, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli import failures
from attestation_cli.groups import GROUPS
from attestation_cli.main import cli
from attestation_cli.render import display_width
from attestation_cli.session import Session
from tests.fixtures.over_httpx import answering
from tests.unit.cli.stub import (
    HASH,
    NOW,
    Stub,
    audit_entry,
    certificate,
    machine,
    problem,
    proposal,
    result,
    vote,
)

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
B = "7f3ad3ff-0f0e-4c55-9d4a-3f6f0e1b2c3d"
C = "c0ffee00-0f0e-4c55-9d4a-3f6f0e1b2c3d"
HOSTILE = "SN\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r\nroot"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits in front of it."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)


def run(stub: Stub, *args: str, answer: str | None = None) -> Result:
    session = Session(carrier=stub.carrier)
    return CliRunner().invoke(cli, list(args), obj=session, input=answer, catch_exceptions=False)


def commands() -> list[tuple[str, click.Command]]:
    ctx = click.Context(cli)
    found = []
    for name in GROUPS:
        command = cli.get_command(ctx, name)
        assert command is not None
        found += below(name, command)
    return found


def below(name: str, command: click.Command) -> list[tuple[str, click.Command]]:
    """Return what is called by *name*: a command, or those of a group and of groups in it."""
    if not isinstance(command, click.Group):
        return [(name, command)]
    return [one for sub, under in command.commands.items() for one in below(f"{name} {sub}", under)]


COMMANDS = commands()


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[n for n, _ in COMMANDS])
def test_every_command_explains_itself_and_prints_json(name: str, command: click.Command) -> None:
    """Each has help, and `-o` of its own where it prints what programs may read."""
    assert command.help
    assert any("--output" in p.opts for p in command.params) or name in ("completion", "witness serve")


def test_the_issued_commands_exist() -> None:
    """The commands that the documentation promises."""
    assert {n for n, _ in COMMANDS} >= {
        "approval list",
        "approval withdraw",
        "completion",
        "config path",
        "config set",
        "config show",
        "health",
        "machine approvals",
        "machine role",
        "machine watch",
        "machine wipe",
        "machine withdraw",
        "stats",
        "version",
        "auth login",
        "auth logout",
        "auth whoami",
        "auth refresh",
        "auth cache-list",
        "auth clear-cache",
        "machine list",
        "machine get",
        "machine explain",
        "machine approve",
        "machine reject",
        "machine lock",
        "machine unlock",
        "machine revoke",
        "machine results",
        "machine ak-reset",
        "machine approve-hardware",
        "machine redeliver",
        "machine offline-bundle",
        "machine delete",
        "token create",
        "token list",
        "token revoke",
        "acme key-create",
        "acme keys",
        "acme key-revoke",
        "acme accounts",
        "acme account-revoke",
        "acme orders",
        "allow-list import",
        "allow-list list",
        "allow-list remove",
        "extension list",
        "extension dead-letter",
        "extension dead-letters",
        "extension retry",
        "audit list",
        "audit verify",
        "policy list",
        "policy create",
        "policy assign",
        "policy unassign",
        "policy activate",
        "policy diff",
        "policy effective",
        "policy history",
        "policy learn",
        "policy rollback",
        "policy show",
        "policy test",
        "policy import-corim",
        "policy validate",
    }


SECRET_WORDS = re.compile(r"secret|password|passwd|passphrase|token|credential|private|pin\b|key$")
NOT_SECRET = {
    "--token-file": "the name of a file",
    "--client-id": "",
    "--vkey": "a public key: what verifies, and signs nothing",
}


@pytest.mark.threat("T29", "T58")
def test_no_option_takes_a_secret() -> None:
    """What stands on a command line is read by every user of the computer: files, prompts and stdin instead.

    An argument with such a name may only name a file or say whether; a new exception is a decision, made here.
    """
    for name, command in [("", cli), *COMMANDS]:
        for parameter in command.params:
            for option in parameter.opts:
                told = SECRET_WORDS.search(option.lower())
                harmless = (
                    isinstance(parameter.type, click.Path | click.File)
                    or getattr(parameter, "is_flag", False)
                    or option in NOT_SECRET
                    # The public name of a token, not the token.
                    or (name == "token revoke" and option == "token_id")
                )
                assert not told or harmless, f"{name} {option}"


def test_help_loads_neither_pydantic_nor_httpx() -> None:
    """`--help` starts fast."""
    code = (
        "import sys; from attestation_cli.main import cli\n"
        "try: cli(['machine', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('pydantic', 'httpx', 'cryptography') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stderr.strip() == "[]"


# Who asks


def test_without_a_token_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credential: exit 4, and a text that says where to put one."""
    monkeypatch.delenv("ITL_ADMIN_TOKEN")
    stub = Stub()
    done = run(stub, "machine", "list")
    assert done.exit_code == 4
    assert "ITL_ADMIN_TOKEN" in done.stderr
    assert stub.requests == []


def test_the_token_file_wins_and_must_be_private(tmp_path: Path) -> None:
    """A file given on purpose is used; one that others can read is warned of."""
    file = tmp_path / "token"
    file.write_text("from-file\n")
    file.chmod(0o644)
    stub = Stub()
    done = run(stub, "--token-file", str(file), "machine", "list")
    assert stub.requests[0].headers["Authorization"] == "Bearer from-file"
    assert "chmod 600" in done.stderr
    file.chmod(0o600)
    assert "chmod" not in run(stub, "--token-file", str(file), "machine", "list").stderr


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_token_file_that_cannot_be_used_ends_the_command(tmp_path: Path, content: bytes | None) -> None:
    """Absent, empty or binary: no fall-back to the environment."""
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    stub = Stub()
    assert run(stub, "--token-file", str(file), "machine", "list").exit_code in (2, 4)
    assert stub.requests == []


def test_the_token_is_never_printed() -> None:
    """Not in an answer, not in an error, not with any output."""
    stub = Stub(before=lambda r: problem(401, "unauthenticated", "wrong token"))
    for output in ("table", "json"):
        done = run(stub, "-o", output, "machine", "list")
        assert done.exit_code == 4
        assert "t0p-s3cret" not in done.output


@pytest.mark.threat("T177")
def test_a_clock_that_is_wrong_is_named_where_a_token_is_refused() -> None:
    """With what the service's clock says; a difference that explains nothing, or a service without a clock, is not."""

    def refuse(status: int, code: str, **ago: float) -> str:
        answer = problem(status, code, "the token has expired")
        if ago:
            said = datetime.now(UTC) - timedelta(**ago)
            answer.headers["Date"] = said.strftime("%a, %d %b %Y %H:%M:%S GMT")
        return run(Stub(before=lambda r: answer), "machine", "list").stderr

    assert "this computer is 60 min ahead of that of the service" in refuse(401, "unauthenticated", hours=1)
    assert "this computer is 60 min behind that of the service" in refuse(401, "unauthenticated", hours=-1)
    for status, code, ago in (
        (401, "unauthenticated", {"seconds": 60}),
        (401, "unauthenticated", {}),
        (403, "forbidden", {"hours": 1}),
    ):
        assert "clock" not in refuse(status, code, **ago)


def test_a_file_that_is_no_certificate_is_told_by_its_name(tmp_path: Path) -> None:
    """Not by tags of DER, unless DER is what it is."""
    file = tmp_path / "ek.der"
    said = "certificate: tag 0x2d, 0x30 expected"
    stub = Stub(before=lambda r: problem(400, "malformed-evidence", said))
    file.write_bytes(b"-- nothing --")
    done = run(stub, "trust", "verify", str(file))
    assert done.exit_code == 2
    assert f"{file} is no certificate that can be read: neither PEM" in done.stderr
    assert "0x" not in done.stderr.replace(str(file), "")  # whose name is partly chance
    # The command that "says more" says it too.
    more = run(Stub(), "tpm-bundle", "verify", str(file))
    assert more.exit_code == 2
    assert f"{file} is no certificate that can be read: neither PEM" in more.stderr
    file.write_bytes(bytes.fromhex("3003020101"))
    assert (
        f"{file} is no certificate that can be read: {said}" in run(stub, "trust", "verify", str(file)).stderr
    )


def test_the_token_does_not_travel_in_the_clear() -> None:
    """Plain HTTP to another computer ends with a text, unless allowed."""
    stub = Stub()
    done = run(stub, "--api-url", "http://attest.example", "machine", "list")
    assert done.exit_code == 2
    assert "not encrypted" in done.stderr
    assert "https://" in done.stderr
    assert (
        run(stub, "--api-url", "http://attest.example", "--allow-plain-http", "machine", "list").exit_code
        == 0
    )


def test_an_error_fits_the_terminal_and_keeps_commands_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 80 columns no line is broken by the terminal, and a command can be copied."""
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "80")
    told = failures._fold(
        "what to do:", f"{'word ' * 13}`attestation auth login --method device` {'word ' * 20}"
    )
    assert all(display_width(click.unstyle(line)) <= 80 for line in told.splitlines())
    assert len(told.splitlines()) > 2
    assert "`attestation auth login --method device`" in told


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """ITL_API_URL, and the older ATTESTATION_API_URL."""
    stub = Stub()
    monkeypatch.setenv("ATTESTATION_API_URL", "https://older.example")
    run(stub, "machine", "list")
    monkeypatch.setenv("ITL_API_URL", "https://newer.example")
    run(stub, "machine", "list")
    run(stub, "--api-url", "https://flag.example", "machine", "list")
    assert [r.url.host for r in stub.requests] == ["older.example", "newer.example", "flag.example"]


# Names of machines


@pytest.mark.parametrize("name", [A, A[:13], A[:9], A.upper(), "cp-1", "7f3ad3ac"])
def test_a_machine_is_named_by_id_prefix_or_hostname(name: str) -> None:
    """Whatever is unambiguous."""
    stub = Stub([machine(A, hostname="cp-1"), machine(B), machine(C)])
    done = run(stub, "-o", "json", "machine", "get", name)
    assert json.loads(done.stdout)["machine_id"] == A


def test_an_ambiguous_prefix_lists_the_candidates_and_does_nothing() -> None:
    """No guess is made, least of all for an act."""
    stub = Stub([machine(A), machine(B)])
    done = run(stub, "machine", "revoke", "7f3ad3", "--yes")
    assert done.exit_code == 5
    assert A in done.stderr
    assert B in done.stderr
    assert stub.acts == []


def test_a_prefix_and_a_hostname_that_disagree_are_ambiguous() -> None:
    """A machine called like the beginning of another's id cannot be mistaken for it."""
    stub = Stub([machine(A), machine(C, hostname="7f3ad3ac")])
    done = run(stub, "machine", "lock", "7f3ad3ac")
    assert done.exit_code == 5
    assert stub.acts == []


def test_what_the_search_finds_elsewhere_is_no_match() -> None:
    """A serial number that contains the prefix does not make a machine the one meant."""
    stub = Stub([machine(C, hw_serial="7f3ad3ac")])
    done = run(stub, "machine", "get", "7f3ad3ac")
    assert done.exit_code == 3


def test_a_prefix_of_a_few_characters_is_refused() -> None:
    """Three hex digits mean too many machines one day; a hostname is whole, however short."""
    stub = Stub([machine(A), machine(C, hostname="w-1")])
    assert run(stub, "machine", "lock", "7f3").exit_code == 3
    assert run(stub, "machine", "lock", "").exit_code == 2
    assert stub.acts == []
    assert run(stub, "machine", "lock", "w-1").exit_code == 0


# What is printed


def test_the_list_shows_assurance_for_every_machine() -> None:
    """How well an identity is vouched for stands beside it."""
    stub = Stub([machine(A), machine(C, assurance="ek-allowlist", status="attested", trust="verified")])
    lines = run(stub, "machine", "list").stdout.splitlines()
    assert lines[0].split()[:5] == ["ID", "HOSTNAME", "STATUS", "TRUST", "ASSURANCE"]
    assert "tofu" in lines[1]
    assert "ek-allowlist" in lines[2]


@pytest.mark.parametrize("command", ["get", "explain", "approve", "lock", "results"])
def test_assurance_is_shown_wherever_a_machine_is(command: str) -> None:
    """`tofu` or `ek-allowlist`, with its meaning or without."""
    stub = Stub([machine(A, last_result={"verdict": "Verified", "at": NOW, "policy": "p@1", "failed": None})])
    stub.results = [result(A)]
    more = {"approve": ["--role", "generic"], "results": ["--checks"]}.get(command, [])
    assert "tofu" in run(stub, "machine", command, A, *more).stdout


@pytest.mark.threat("T28")
@pytest.mark.parametrize("command", ["list", "get", "explain"])
def test_what_a_machine_says_of_itself_cannot_steer_the_terminal(command: str) -> None:
    """Escape sequences, line breaks and direction changes in hw_serial or hostname are made harmless."""
    stub = Stub([machine(A, hw_serial=HOSTILE, hostname=HOSTILE)])
    stub.results = [result(A, "Failed", checks=[{"check": HOSTILE, "outcome": "failed", "found": HOSTILE}])]
    for output in ("table", "json"):
        args = ["machine", command, "-o", output, *([] if command == "list" else [A])]
        printed = run(stub, *args).output
        assert not [c for c in printed if c != "\n" and not c.isprintable()]
        assert "\nroot" not in printed


def test_what_an_error_says_cannot_steer_the_terminal() -> None:
    """The same for the texts of a problem."""
    stub = Stub(before=lambda r: problem(409, "transition-forbidden", HOSTILE))
    for output in ("table", "json"):
        printed = run(stub, "-o", output, "machine", "unlock", A).stderr
        assert not [c for c in printed if c != "\n" and not c.isprintable()]


def test_json_goes_before_and_after_the_command() -> None:
    """`-o json` is found in both places; the later one wins."""
    stub = Stub([machine(A)])
    for args in (["-o", "json", "machine", "list"], ["machine", "list", "-o", "json"]):
        assert json.loads(run(stub, *args).stdout)[0]["machine_id"] == A
    assert run(stub, "-o", "json", "machine", "list", "-o", "table").stdout.startswith("ID")


def test_an_empty_list_is_an_empty_list() -> None:
    """JSON on stdout stays JSON; the remark for people goes to stderr."""
    assert json.loads(run(Stub(), "-o", "json", "machine", "list").stdout) == []
    done = run(Stub(), "machine", "list")
    assert done.stdout == ""
    assert "No machines." in done.stderr


def test_no_colour_without_a_terminal() -> None:
    """Pipes and files get plain text."""
    assert "\x1b" not in run(Stub([machine(A)]), "machine", "list").output


def test_filters_reach_the_service() -> None:
    """The service chooses, so that a large fleet is not fetched for one row."""
    stub = Stub()
    run(stub, "machine", "list", "--status", "locked", "--role", "generic", "--cluster-id", "c1", "-q", "x")
    asked = dict(stub.requests[0].url.params)
    assert asked == {"status": "locked", "role": "generic", "cluster_id": "c1", "q": "x", "limit": "200"}


# Acts


@pytest.mark.threat("T125")
def test_an_objection_is_to_one_proposal() -> None:
    """Named by the beginning of its digest or the number of a vote; what names none, or two, ends none."""
    other = {
        **proposal(),
        "proposal_digest": "abcd" * 16,
        "approvals": [vote(18, "m")],
        "overtaken": ["measured"],
    }
    stub = Stub(proposals=[proposal(), other])
    for named, digest in (("ABAB", HASH), ("17", HASH), ("abcd", "abcd" * 16), ("18", "abcd" * 16)):
        result = run(stub, "approval", "object", named, "--reason", "no", "--yes")
        assert result.exit_code == 0, result.output
        assert stub.acts.pop() == ("POST", f"/approvals/{digest}/object", {"reason": "no"})
    for named in ("ab", "aba", "abc", "1", "19", "ffff", HASH + "00"):
        assert run(stub, "approval", "object", named, "--reason", "no", "--yes").exit_code != 0
        assert run(stub, "approval", "show", named).exit_code != 0
    both = Stub(proposals=[proposal(), {**other, "proposal_digest": "ab" * 31 + "cd"}])
    assert "2 proposals" in run(both, "approval", "object", "abab", "--reason", "no", "--yes").output
    assert stub.acts == both.acts == []
    assert "void, changed since: measured" in run(stub, "approval", "show", "abcd").output
    assert "1 of 2" in run(stub, "approval", "show", "abab").output


def test_approval_is_of_the_version_that_was_looked_at() -> None:
    """A machine that changed meanwhile is refused by the service."""
    stub = Stub([machine(A, version=7)])
    done = run(
        stub, "machine", "approve", A, "--role", "worker-app", "--hostname", "w-1", "--ip", "10.0.0.5/24"
    )
    assert done.exit_code == 0
    assert stub.acts == [
        (
            "POST",
            f"/machines/{A}/approve",
            {
                "role": "worker-app",
                "hostname": "w-1",
                "assigned_ip": "10.0.0.5/24",
                "cluster_id": "default",
                "accept_ek": False,
                "expected_version": 7,
            },
        )
    ]


@pytest.mark.parametrize("wrong", [["--hostname", "UPPER"], ["--ip", "10.0.0.5"], ["--role", "king"]])
def test_a_wrong_value_is_refused_before_anything_is_sent(wrong: list[str]) -> None:
    """Hostname, address and role have a form."""
    stub = Stub([machine(A)])
    assert run(stub, "machine", "approve", A, "--role", "generic", *wrong).exit_code == 2
    assert stub.acts == []


def test_an_approval_can_be_bound_to_the_fingerprint_read_at_the_machine() -> None:
    """Another TPM with the same id in a list is not approved by mistake."""
    stub = Stub([machine(A)])
    assert run(stub, "machine", "approve", A, "--role", "generic", "--fingerprint", "00" * 8).exit_code == 2
    assert run(stub, "machine", "approve", A, "--role", "generic", "--fingerprint", "short").exit_code == 2
    assert stub.acts == []
    good = A.replace("-", "")[:16].upper()
    assert run(stub, "machine", "approve", A, "--role", "generic", "--fingerprint", good).exit_code == 0


DESTRUCTIVE = [
    ["machine", "revoke", A],
    ["machine", "revoke", A, "--wipe"],
    ["machine", "reject", A, "-r", "why"],
    ["machine", "ak-reset", A, "-r", "why"],
    ["machine", "approve-hardware", A, "-r", "why"],
    ["machine", "delete", A],
    ["token", "revoke", "t0000001"],
    ["allow-list", "remove", "ab" * 48],
    ["policy", "unassign", "--fleet"],
    ["policy", "rollback", "--fleet"],
]


@pytest.mark.parametrize("args", DESTRUCTIVE, ids=" ".join)
def test_what_destroys_asks_first(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal: refused with 2. No: nothing happens, 1. --yes: it is done."""
    stub = Stub([machine(A)])
    done = run(stub, *args)
    assert (done.exit_code, stub.acts) == (2, [])
    assert "--yes" in done.stderr
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    done = run(stub, *args, answer="n\n")
    assert (done.exit_code, stub.acts) == (1, [])
    assert "Nothing was changed" in done.stderr
    assert run(stub, *args, "--yes").exit_code == 0
    assert len(stub.acts) == 1


@pytest.mark.usefixtures("at_terminal")
def test_a_wipe_wants_the_name_typed_out() -> None:
    """`y` erases nobody's disks; the service compares what was typed too. With --yes nothing was."""
    stub = Stub([machine(A, hostname="cp-1")])
    assert run(stub, "machine", "revoke", A, "--wipe", answer="y\n").exit_code == 1
    assert stub.acts == []
    assert run(stub, "machine", "revoke", A, "--wipe", answer="cp-1\n").exit_code == 0
    path = f"/machines/{A}/revoke"
    assert stub.acts == [("POST", path, {"wipe": True, "confirm_name": "cp-1"})]
    assert run(stub, "machine", "wipe", A, "--yes").exit_code == 0
    assert stub.acts[1:] == [("POST", path, {"wipe": True})]


@pytest.mark.parametrize("reason", ["", "a\nb", "x" * 1025])
def test_a_reason_has_a_form(reason: str) -> None:
    """One line of at most 1024 characters."""
    stub = Stub([machine(A)])
    assert run(stub, "machine", "reject", A, "--yes", "-r", reason).exit_code == 2
    assert stub.acts == []


# Failures


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "unauthenticated", 4),
        (403, "forbidden", 4),
        (503, "operator-access-not-configured", 4),
        (404, "machine-unknown", 3),
        (409, "transition-forbidden", 5),
        (409, "machine-changed", 5),
        (422, "request-invalid", 2),
        (400, "malformed-evidence", 2),
        (429, "rate-limited", 6),
        (503, "store-unavailable", 6),
        (500, "internal", 6),
        (418, "brand-new", 6),
    ],
)
def test_each_meaning_has_its_exit_code(status: int, code: str, exit_code: int) -> None:
    """Scripts can tell them apart; people read what, why and what to do."""
    stub = Stub(before=lambda r: problem(status, code, "because of this"))
    done = run(stub, "machine", "unlock", A)
    assert done.exit_code == exit_code
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "why: because of this" in done.stderr
    assert "what to do: " in done.stderr
    assert f"code: {code}, request req-1" in done.stderr


def test_a_route_that_is_not_there_may_be_of_an_extension() -> None:
    """What is wrong is the address, or an extension that is not enabled: both are told."""
    stub = Stub(before=lambda r: problem(404, "route-unknown", "Not Found"))
    told = " ".join(run(stub, "machine", "list").stderr.split())
    assert "enabled in the service: `attestation extension list`" in told
    assert "else check --api-url" in told


def test_a_failure_as_json() -> None:
    """The same for programs, on stderr."""
    stub = Stub(before=lambda r: problem(409, "transition-forbidden", "no"))
    told = json.loads(run(stub, "-o", "json", "machine", "unlock", A).stderr)["error"]
    assert (told["code"], told["status"], told["request_id"]) == ("transition-forbidden", 409, "req-1")


def test_what_does_not_come_by_waiting_is_not_waited_for() -> None:
    """Each 503 says when to ask again; a setting that is missing is missing then, too."""

    def later(request: httpx.Request) -> httpx.Response:
        answer = problem(503, "configurations-not-kept", "no")
        answer.headers["Retry-After"] = "5"
        return answer

    told = run(Stub(before=later), "machine", "unlock", A).stderr
    assert "set ITL_CONFIG_KEK of the service" in told
    assert "try again" not in told


def test_an_unreachable_service_is_named_with_where_its_address_came_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most failures of the first minute are a wrong address."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("no")

    monkeypatch.setenv("ITL_ADMIN_TOKEN", "x")
    done = CliRunner().invoke(
        cli,
        ["--api-url", "https://attest.example", "machine", "unlock", A],
        obj=Session(carrier=answering(refuse)),
    )
    assert done.exit_code == 6
    assert "https://attest.example" in done.stderr
    assert "--api-url" in done.stderr


# Tokens, allow-list, audit, policies


def test_a_token_is_shown_once_or_written_to_a_private_file(tmp_path: Path) -> None:
    """To the terminal, or to a new file of mode 0600 and nowhere else."""
    stub = Stub()
    done = run(stub, "token", "create", "--role", "worker-app", "--expires-in", "12h", "--uses", "2")
    assert "s3cr3t-token" in done.stdout
    assert "ab" * 32 in "".join(done.stdout.split())
    asked = {"role": "worker-app", "uses": 2, "expires_in_seconds": 43_200}
    assert stub.acts[0][2] == {**asked, "minimum_assurance": "ek-chain"}
    file = tmp_path / "token"
    done = run(stub, "token", "create", "--role", "worker-app", "--out", str(file))
    assert "s3cr3t-token" not in done.output
    # As the agent reads it: the token, and whom to believe.
    assert file.read_text() == f"s3cr3t-token {'ab' * 32}\n"
    assert file.stat().st_mode & 0o777 == 0o600


def test_no_token_is_issued_that_cannot_be_kept(tmp_path: Path) -> None:
    """An existing file is not overwritten, and nothing is created for it."""
    file = tmp_path / "token"
    file.write_text("precious")
    stub = Stub()
    assert run(stub, "token", "create", "--role", "generic", "--out", str(file)).exit_code == 2
    assert file.read_text() == "precious"
    assert stub.acts == []


@pytest.mark.parametrize("text", ["", "1", "1w", "-1h", "0h", "1.5h", "5s"])
def test_a_lifetime_has_a_unit(text: str) -> None:
    """`90s`, `30m`, `12h`, `7d`; at least a minute."""
    stub = Stub()
    assert run(stub, "token", "create", "--role", "generic", "--expires-in", text).exit_code == 2
    assert stub.acts == []


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "text",
    [
        "ek_fingerprint,role,hostname\n"
        + "AB" * 48
        + ",generic,h-1\n\n# a remark\n"
        + "cd" * 48
        + ", generic,\n",
        json.dumps(
            [
                {"ek_fingerprint": "ab" * 48, "role": "generic", "hostname": "h-1"},
                {"ek_fingerprint": "cd" * 48, "role": "generic"},
            ]
        ),
        json.dumps(
            {
                "entries": [
                    {"ek_fingerprint": "ab" * 48, "role": "generic", "hostname": "h-1"},
                    {"ek_fingerprint": "cd" * 48, "role": "generic"},
                ]
            }
        ),
    ],
)
def test_an_allow_list_is_imported_from_csv_and_json(tmp_path: Path, text: str) -> None:
    """The same entries, whatever the form."""
    stub = Stub()
    done = run(stub, "allow-list", "import", write(tmp_path / "list", text))
    assert done.exit_code == 0, done.output
    assert stub.acts[0][2] == {
        "entries": [
            {"ek_fingerprint": "ab" * 48, "role": "generic", "hostname": "h-1"},
            {"ek_fingerprint": "cd" * 48, "role": "generic"},
        ]
    }
    assert "2 added" in done.stdout


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "no entry"),
        ("ek_fingerprint,role\n", "no entry"),
        ("fingerprint,role\nx,generic\n", "line 1"),
        ("ek_fingerprint,role\n" + "ab" * 48 + ",king\n", "line 2: role"),
        ("ek_fingerprint,role\nab,generic\n", "line 2: ek_fingerprint"),
        ("ek_fingerprint,role\n" + "ab" * 48 + ",generic,more\n", "line 2"),
        (
            "ek_fingerprint,role\n" + "ab" * 48 + ",generic\n" + "ab" * 48 + ",generic\n",
            "line 3: the same EK as in line 2",
        ),
        ("ek_fingerprint,role,role\n", "line 1"),
        ('[{"ek_fingerprint": "ab"}]', "entry 1"),
        ("[1]", "entry 1"),
        ('{"a": 1}', "list of entries"),
        ("[", "not JSON"),
    ],
)
def test_a_list_with_a_fault_is_refused_whole_and_its_place_named(
    tmp_path: Path, text: str, where: str
) -> None:
    """Nothing of it is sent."""
    stub = Stub()
    done = run(stub, "allow-list", "import", write(tmp_path / "list", text))
    assert done.exit_code == 2
    assert where in done.stderr
    assert stub.acts == []


def test_a_long_list_is_sent_in_parts_that_fit() -> None:
    """A request may have 1 MiB."""
    rows = "".join(f"{i:096x},generic,{'h' * 63},10.0.0.1/24,c,{'n' * 250}\n" for i in range(2500))
    stub = Stub()
    text = "ek_fingerprint,role,hostname,assigned_ip,cluster_id,note\n" + rows
    done = run(stub, "allow-list", "import", "-", answer=text)
    assert "2500 added" in done.stdout
    assert len(stub.acts) == 3
    assert max(len(r.content) for r in stub.requests) < 1 << 20


def test_an_allow_list_entry_is_removed_by_its_beginning() -> None:
    """Found in the list; ambiguous or unknown beginnings remove nothing."""
    entries = [
        {"ek_fingerprint": f * 48, "role": "generic", "created_at": NOW, "created_by": "SYSTEM"}
        for f in ("ab", "cd")
    ] + [{"ek_fingerprint": "cd" * 47 + "ff", "role": "generic", "created_at": NOW, "created_by": "SYSTEM"}]
    stub = Stub(allow_list=entries)
    assert run(stub, "allow-list", "remove", "abababab", "--yes").exit_code == 0
    assert stub.acts == [("DELETE", f"/allow-list/{'ab' * 48}", None)]
    assert run(stub, "allow-list", "remove", "cdcdcdcd", "--yes").exit_code == 5
    assert run(stub, "allow-list", "remove", "00000000", "--yes").exit_code == 3
    assert run(stub, "allow-list", "remove", "ab", "--yes").exit_code == 2
    assert len(stub.acts) == 1


@pytest.mark.parametrize(("valid", "exit_code"), [(True, 0), (False, 1)])
def test_an_invalid_chain_ends_with_1(*, valid: bool, exit_code: int) -> None:
    """A monitoring script needs no parser; a reader learns where it breaks."""
    done = run(Stub(valid=valid), "audit", "verify")
    assert done.exit_code == exit_code
    assert ("VALID" if valid else "INVALID") in done.stdout
    assert ("prev_hash differs" in done.stdout) is not valid


def test_rows_without_entries_are_named() -> None:
    """What an intruder wrote to the database is told row by row, with what to do; each is clean text."""
    row = {"kind": "allow-list", "key": f"{'ab' * 48}", "problem": "no entry tells of it", "entry_id": None}
    stub = Stub(
        valid=False, state={"rows": 9, "adopted": 4, "unproven": [row, row | {"key": "\x1b[2J"}], "more": 3}
    )
    done = run(stub, "audit", "verify")
    assert done.exit_code == 1
    for part in (
        "INVALID",
        f"allow-list {'ab' * 48}: no entry tells of it",
        "and 3 more",
        "lock what these rows",
    ):
        assert part in done.stdout
    assert "4 rows that an upgrade found" in done.stdout
    assert "\x1b[2J" not in done.stdout
    good = run(Stub(state={"rows": 9, "adopted": 0, "unproven": [], "more": 0}), "audit", "verify")
    assert (good.exit_code, "upgrade" in good.stdout) == (0, False)


def test_rows_of_an_entry_are_for_programs() -> None:
    """A reader sees the words."""
    told = audit_entry(1) | {"detail": 'role worker-app; authority [["machine","a",null,"b"]]'}
    listed = run(Stub(audit=[told]), "audit", "list").stdout
    assert "role worker-app" in listed
    assert "authority" not in listed


def test_the_audit_is_listed_with_who_and_what() -> None:
    """Time, action, operator, change."""
    done = run(Stub(audit=[audit_entry(2), audit_entry(1)]), "audit", "list", "--limit", "1")
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert "2026-11-21 04:00:00Z" in lines[1]
    assert "pending_approval → registered" in lines[1]


def test_the_audit_is_asked_for_a_time_and_a_text() -> None:
    """Days and instants are UTC; what is none is refused before anything is asked."""
    stub = Stub()
    args = ("--since", "2026-11-01", "--until", "2026-11-02T06:00", "--text", "10.0.0.7")
    assert run(stub, "audit", "list", *args).exit_code == 0
    asked = stub.requests[0].url.params
    assert asked["since"] == "2026-11-01T00:00:00.000000Z"
    assert (asked["until"], asked["text"]) == ("2026-11-02T06:00:00.000000Z", "10.0.0.7")
    assert run(stub, "audit", "list", "--since", "yesterday").exit_code == 2


def test_certificates_that_end_first_are_asked_for() -> None:
    """From now on, in the order of their ends; without it in that of the log."""
    stub = Stub()
    assert run(stub, "ca", "certificates", "--ending").exit_code == 0
    assert stub.requests[-1].url.params["sort"] == "not_after"
    assert stub.requests[-1].url.params["ends_from"].endswith("Z")
    run(stub, "ca", "certificates")
    assert not {"sort", "ends_from"} & set(stub.requests[-1].url.params)


@pytest.mark.usefixtures("at_terminal")
@pytest.mark.parametrize("unseen", [True, False])
def test_who_revokes_what_nobody_asks_about_is_told(unseen: bool) -> None:
    """noRevAvail: before and after, that it is believed until its end; of any other certificate nothing."""
    shown = certificate("4b" * 20, "issued", no_rev_avail=unseen)
    stub = Stub(before=lambda _: httpx.Response(200, json=shown))
    done = run(stub, "ca", "revoke", "4b" * 20, "--reason", "keyCompromise", answer="y\n")
    assert done.exit_code == 0, done.output
    assert done.output.count("do not ask about it (noRevAvail)") == 2 * unseen
    seen = run(stub, "ca", "certificate", "4b" * 20)
    assert ("nobody can ask" in seen.output) is unseen


def test_advisories_are_listed_by_vendor() -> None:
    """With the versions that each applies to, and what follows."""
    told = {"affects": "memory", "severity": "high", "action": "warn", "fixed": None, "origin": "shipped"}
    advisories = [
        told | {"advisory": name, "vendor": vendor, "versions": ["7.0-7.61", "15.1"]}
        for name, vendor in (("CVE-1", "IFX"), ("CVE-2", "STM"))
    ]
    stub = Stub(before=lambda _: httpx.Response(200, json={"sha256": "00" * 32, "advisories": advisories}))
    lines = run(stub, "trust", "advisories", "--vendor", "IFX").stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:2] == ["CVE-1", "IFX"]
    assert "7.0-7.61, 15.1" in lines[1]


def test_issuers_that_nobody_holds_are_listed_as_text() -> None:
    """With the machine that named each: a stranger's words, which move no cursor."""
    told = {
        "machine_id": A,
        "hw_serial": "SN",
        "issuer": "CN=\x1b[2JRoot",
        "claimed_vendor": "IFX",
        "role": "anchor",
    }
    page = {"items": [told], "looked_at": 1, "next_cursor": None}
    done = run(Stub(before=lambda _: httpx.Response(200, json=page)), "trust", "unknown")
    assert "anchor" in done.stdout
    assert A[:8] in done.stdout
    assert "\x1b" not in done.stdout


def test_the_audit_of_a_deleted_machine_is_found_by_its_full_id() -> None:
    """The record is gone, the entries are not."""
    stub = Stub()
    assert run(stub, "audit", "list", "--machine-id", A).exit_code == 0
    assert stub.requests[0].url.params["machine_id"] == A


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (["--fleet"], "/policies/assignments/fleet/*"),
        (["--cluster", "c1"], "/policies/assignments/cluster/c1"),
        (["--role", "generic"], "/policies/assignments/role/generic"),
        (["--machine", A[:8]], f"/policies/assignments/machine/{A}"),
    ],
)
def test_a_policy_is_assigned_to_one_place(args: list[str], path: str) -> None:
    """Fleet, cluster, role or machine."""
    stub = Stub([machine(A)])
    assert run(stub, "policy", "assign", "workers@1", *args).exit_code == 0
    assert stub.acts == [("PUT", path, {"policy": "workers@1"})]


@pytest.mark.parametrize("args", [[], ["--fleet", "--role", "generic"]])
def test_a_policy_is_not_assigned_to_none_or_several(args: list[str]) -> None:
    """The place must be plain."""
    stub = Stub()
    assert run(stub, "policy", "assign", "workers@1", *args).exit_code == 2
    assert stub.acts == []


def test_a_policy_is_created_from_json(tmp_path: Path) -> None:
    """The document goes as it is; what is no object is not sent."""
    stub = Stub()
    assert run(stub, "policy", "create", write(tmp_path / "p.json", '{"name": "workers"}')).exit_code == 0
    assert stub.acts == [("POST", "/policies", {"name": "workers"})]
    for bad in ("[]", "{", "1"):
        assert run(stub, "policy", "create", write(tmp_path / "p.json", bad)).exit_code == 2
    assert len(stub.acts) == 1


def test_policies_are_listed_with_where_they_apply() -> None:
    """An operator sees what measures whom."""
    assert "fleet" in run(Stub(), "policy", "list").stdout


@pytest.mark.parametrize("args", [["token", "list"], ["allow-list", "list"], ["machine", "results", A]])
def test_lists_print_as_table_and_json(args: list[str]) -> None:
    """Both forms of every list."""
    entry: dict[str, Any] = {
        "ek_fingerprint": "ab" * 48,
        "role": "generic",
        "created_at": NOW,
        "created_by": "SYSTEM",
    }
    stub = Stub([machine(A)], results=[result(A)], allow_list=[entry])
    assert len(run(stub, *args).stdout.splitlines()) == 2
    assert len(json.loads(run(stub, *args, "-o", "json").stdout)) == 1


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("login", "'auth login'?"),
        ("approve", "'machine approve' or 'approval approve' or 'console approve'?"),
        ("polcy", "'policy'?"),
    ],
)
def test_a_command_that_stands_in_a_group_is_named(typed: str, meant: str) -> None:
    """Before one that is only spelt alike."""
    done = run(Stub(), typed)
    assert done.exit_code == 2
    assert f"Did you mean {meant}" in " ".join(done.stderr.split())


def test_an_address_without_its_beginning_is_told_with_an_example() -> None:
    """`--api-url attest.example` asks nobody."""
    done = run(Stub(), "--api-url", "attest.example", "machine", "list")
    assert done.exit_code == 2
    assert "name a host, like https://attest.example:8443" in " ".join(done.stderr.split())
