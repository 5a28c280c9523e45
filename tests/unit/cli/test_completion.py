"""Completion: scripts that shells accept, machines from the service, and never a disturbance."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from attestation_cli import complete
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub, machine, problem

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
B = "c0ffee00-0f0e-4c55-9d4a-3f6f0e1b2c3d"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def offered(service: Stub, words: list[str], incomplete: str) -> list[str]:
    completer = ShellComplete(cli, {"obj": Session(carrier=service.carrier)}, "attestation", "_X")
    return [item.value for item in completer.get_completions(words, incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_accepted_by_its_shell(shell: str) -> None:
    """It names this program; where the shell is installed, it finds no fault."""
    done = CliRunner().invoke(cli, ["completion", shell], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"_ATTESTATION_COMPLETE={shell}_complete" in done.stdout
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=done.stdout, text=True, check=True, timeout=240)


def test_commands_and_options_are_completed() -> None:
    """The tree itself needs no service."""
    service = Stub()
    assert {"machine", "auth", "stats", "completion"} <= set(offered(service, [], ""))
    assert "approve" in offered(service, ["machine"], "app")
    assert "pending_approval" in offered(service, ["machine", "list", "--status"], "p")
    assert "yaml" in offered(service, ["machine", "list", "-o"], "y")
    assert service.requests == []


def test_machines_are_completed_by_name_and_id() -> None:
    """What begins so: the hostname where there is one, else the id."""
    service = Stub([machine(A, hostname="cp-1"), machine(B)])
    assert offered(service, ["machine", "get"], "") == ["cp-1", B]
    assert offered(service, ["machine", "approve"], "cp") == ["cp-1"]
    assert offered(service, ["machine", "approve"], "c0f") == [B]
    assert offered(service, ["machine", "explain"], "7f3") == [A]
    assert offered(service, ["policy", "assign", "x@1", "--machine"], "cp") == ["cp-1"]


@pytest.mark.threat("T58")
@pytest.mark.parametrize("name", ["$(reboot)", "a b", "a\x1b[2J", "\u202ex"])
def test_a_hostile_name_does_not_reach_the_shell(name: str) -> None:
    """The service refuses such names; a false service is not believed either."""
    values = offered(Stub([machine(A, hostname=name)]), ["machine", "get"], "")
    assert values in ([A], [])


@pytest.mark.threat("T58")
def test_what_is_told_of_a_machine_is_clean() -> None:
    """Shells print it beside the name: what the service says of it is text and nothing else."""
    service = Stub([machine(A, hostname="cp-1", status="attested\x1b[2J\n")])
    completer = ShellComplete(cli, {"obj": Session(carrier=service.carrier)}, "attestation", "_X")
    (item,) = completer.get_completions(["machine", "get"], "cp")
    assert "attested" in str(item.help)
    assert str(item.help).isprintable()


def test_nothing_that_fails_is_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No login, a refusal, nonsense, a panic of compiled code: an empty list, and not one byte on the terminal."""
    refusing = Stub(before=lambda request: problem(500, "x", "y"))
    assert offered(refusing, ["machine", "get"], "cp") == []

    def panic(_: object) -> NoReturn:
        raise GeneratorExit  # what is no `Exception`, and no end of the program

    assert offered(Stub(before=panic), ["machine", "get"], "cp") == []
    monkeypatch.delenv("ITL_ADMIN_TOKEN")
    assert offered(Stub([machine(A)]), ["machine", "get"], "7f3") == []
    monkeypatch.setenv("ITL_PROFILE", "no-such-profile")
    assert offered(Stub([machine(A)]), ["machine", "get"], "7f3") == []
    assert capfd.readouterr() == ("", "")


def test_no_passphrase_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL would ask for it in the middle of the line."""
    file = tmp_path / "operator.pem"
    file.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    monkeypatch.setenv("ITL_API_CLIENT_CERT", str(file))
    monkeypatch.setenv("ITL_API_URL", "https://attest.example")
    service = Stub([machine(A)])
    assert offered(service, ["machine", "get"], "7f3") == []
    assert service.requests == []


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_finger_does_not_wait(silent: str, tmp_path: Path) -> None:
    """A service that says nothing is left after a second, by the whole process: the time-out of a read never comes."""
    never = "from attestation.client import plain; plain.READ_SECONDS = 3600.0"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", f"{never}; from attestation_cli.main import main; main()"],
        env={
            **environment,
            "ITL_API_URL": silent,
            "COMP_WORDS": "attestation machine get ",
            "COMP_CWORD": "3",
            "_ATTESTATION_COMPLETE": "bash_complete",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_every_argument_that_names_a_policy_completes() -> None:
    """No command was forgotten; a file is completed by the shell itself."""
    group = cli.get_command(click.Context(cli), "policy")
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.name not in ("file", "machine"):
                assert parameter._custom_shell_complete is complete.complete_policy, name


def test_every_argument_that_names_a_machine_completes() -> None:
    """No command was forgotten."""
    group = cli.get_command(click.Context(cli), "machine")
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        for parameter in command.params:
            # The number of a result is none, nor is a label; files are completed by the shell itself.
            if isinstance(parameter, click.Argument) and parameter.name not in ("number", "changes", "files"):
                assert parameter._custom_shell_complete is complete.complete_machine, name
