"""What an operator reads when the answer to their act is lost, and what the printed command does."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from tests.unit.cli.stub import Stub, machine
from tests.unit.cli.test_cli import A, B, run


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between questions."""
    monkeypatch.setattr("attestation.client.acts.FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "x")


class Losing:
    """A service whose answers to acts are lost; remembers their keys."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response | None:
        """Lose the answer, or leave it to the stub."""
        if request.method == "GET":
            return None
        self.keys.append(request.headers["idempotency-key"])
        raise httpx.ReadTimeout("no")


def test_an_unknown_outcome_is_not_a_failure() -> None:
    """Its own exit code, and a whole command that asks again with the same key."""
    losing = Losing()
    done = run(Stub([machine(A, status="attested")], before=losing), "machine", "lock", A, "-r", "two words")
    assert done.exit_code == 7
    assert done.stderr.startswith("note: the answer was lost (")
    assert "error: unknown whether it happened" in done.stderr
    assert "not done twice" in done.stderr
    (line,) = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("attestation ")]
    again = shlex.split(line)
    assert again[:2] == ["attestation", "--again"]
    assert again[3:] == ["machine", "lock", A, "-r", "two words"]
    assert set(losing.keys) == {f'"{again[2]}.1"'}
    # The printed command, as it is: the same key.
    seen: list[str] = []

    def note(request: httpx.Request) -> None:
        if request.method != "GET":
            seen.append(request.headers["idempotency-key"])

    done = run(Stub([machine(A, status="attested")], before=note), *again[1:])
    assert done.exit_code == 0, done.output
    assert seen == losing.keys[:1]
    # And where it is lost again, the same command is printed.
    done = run(Stub([machine(A, status="attested")], before=Losing()), *again[1:])
    assert (done.exit_code, line in done.stderr) == (7, True)


def test_programs_read_it_too() -> None:
    """Code, key and command in one document."""
    done = run(Stub([machine(A, status="attested")], before=Losing()), "-o", "json", "machine", "lock", A)
    told = json.loads(done.stderr[done.stderr.index("{") :])["error"]
    assert (done.exit_code, told["code"]) == (7, "outcome-unknown")
    assert re.fullmatch(r"attestation --again [0-9a-f]{32} -o json machine lock .*", told["next_command"])


@pytest.mark.parametrize("key", ["", "a b", 'a"b', "k" * 65, "k.1"])
def test_a_key_is_copied_whole(key: str) -> None:
    """What is no key of ours is refused before anything is sent."""
    stub = Stub([machine(A, status="attested")])
    assert run(stub, "--again", key, "machine", "lock", A).exit_code == 2
    assert stub.acts == []


@pytest.mark.parametrize(
    "command",
    [
        ("approve", A, "--role", "worker-app"),
        ("role", A, "--role", "worker-app", "--hostname", "w-1", "-r", "moves", "--yes"),
        ("replace", B, A, "-r", "died", "--yes"),
    ],
    ids=lambda command: command[0],
)
def test_who_asks_again_asks_for_the_same(command: tuple[str, ...]) -> None:
    """An act makes a newer version of its machine: asked for that one, it would be another act."""
    asked: list[tuple[str, bytes]] = []

    def note(request: httpx.Request) -> None:
        if request.method != "GET":
            asked.append((request.headers["idempotency-key"], request.content))

    class Noting(Losing):
        def __call__(self, request: httpx.Request) -> httpx.Response | None:
            note(request)
            return super().__call__(request)

    def fleet(version: int) -> list[dict[str, object]]:
        return [machine(A, version=version), machine(B, status="attested", role="worker-app")]

    done = run(Stub(fleet(3), before=Noting()), "machine", *command)
    (line,) = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("attestation ")]
    run(Stub(fleet(4), before=note), *shlex.split(line)[1:])
    assert len(asked) > 1
    assert len(set(asked)) == 1
    assert json.loads(asked[-1][1])["expected_version"] == 3


def test_who_ends_the_wait_has_not_ended_the_act() -> None:
    """Ctrl-C before the answer: unknown, with the command that asks. Before the act: nothing was done."""

    def ended(method: str) -> Stub:
        def end(request: httpx.Request) -> None:
            if request.method == method:
                raise KeyboardInterrupt

        return Stub([machine(A, status="attested")], before=end)

    done = run(ended("POST"), "machine", "lock", A)
    assert done.exit_code == 7
    assert "you ended it" in done.stderr
    assert re.search(r"attestation --again [0-9a-f]{32} machine lock", done.stderr)
    done = run(ended("GET"), "machine", "lock", A[:8])
    assert (done.exit_code, "Aborted!" in done.stderr) == (1, True)


def test_an_answer_that_cannot_be_written_is_lost_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk behind `>`: of an act, the command that gets its answer again; of what only reads, the cause."""

    def full(text: str, *, err: bool = False, **_: object) -> None:
        if not err:
            raise OSError(28, "No space left on device")
        told.append(text)

    told: list[str] = []
    monkeypatch.setattr("attestation_cli.screen.click.echo", full)
    assert run(Stub([machine(A, status="attested")]), "machine", "lock", A).exit_code == 7
    assert "cannot be written: No space left on device" in told[-1]
    assert re.search(r"attestation --again [0-9a-f]{32} machine lock", told[-1])
    for form in ("table", "csv", "json"):
        assert run(Stub([machine(A)]), "machine", "list", "-o", form).exit_code == 2
        assert "cannot be written: No space left on device" in told[-1]


def test_a_token_that_cannot_be_kept_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is valid, and nobody has it: the printed command says which one is to be revoked."""
    monkeypatch.setattr(
        "attestation_cli.commands.token._new_file", lambda _: os.open("/dev/full", os.O_WRONLY)
    )
    out = tmp_path / "rack4.token"
    done = run(Stub([]), "token", "create", "--role", "worker-app", "--out", str(out))
    assert done.exit_code == 7
    assert f"{out} cannot be written: No space left on device" in done.stderr
    assert re.search(r"attestation --again [0-9a-f]{32} token create", done.stderr)


def test_who_closed_the_output_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """`>&-` in the shell: there is no stream, and no traceback."""
    monkeypatch.setattr("attestation_cli.screen.sys", SimpleNamespace(**{**vars(sys), "stdout": None}))
    assert run(Stub([machine(A)]), "machine", "list").exit_code == 0
