"""`machine watch`: every change once, the terminal as it was, Ctrl-C at any moment."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attestation.client import Record
from attestation_cli.main import cli
from attestation_cli.session import Session
from attestation_cli.watch import Change, Watch, changes
from tests.unit.cli.stub import Stub, machine, problem

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
B = "c0ffee00-0f0e-4c55-9d4a-3f6f0e1b2c3d"
HOSTILE = "\x1b[2J\u202e\r\nx"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def looked(*machines: dict[str, Any]) -> dict[str, Record]:
    return {m["machine_id"]: Record(m) for m in machines}


def test_what_changed_between_two_looks() -> None:
    """Added, changed, removed; what is not followed is no change."""
    before = looked(machine(A, hostname="cp-1"), machine(B))
    after = looked(machine(A, hostname="cp-1", status="attested", trust="verified", version=9))
    assert list(changes(before, after)) == [
        Change(
            "changed",
            A,
            "cp-1 (7f3ad3ac)",
            {"status": ("pending_approval", "attested"), "trust": ("unknown", "verified")},
        ),
        Change("removed", B, "c0ffee00", {}),
    ]
    assert list(changes(after, after)) == []
    assert [c.event for c in changes({}, before)] == ["added", "added"]
    assert list(changes(before, looked(machine(A, hostname="cp-1", version=99), machine(B)))) == []


class Story:
    """What the service says at each look; afterwards somebody presses Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[Stub], None]) -> None:
        self.stub = Stub([machine(A, hostname="cp-1")])
        self._steps = iter(steps)
        monkeypatch.setattr("attestation_cli.watch.time.sleep", self._next)
        # The default of the argument was bound before.
        monkeypatch.setattr(Watch.__init__, "__defaults__", (self._next,))

    def _next(self, seconds: float) -> None:
        step = next(self._steps, None)
        if step is None:
            raise KeyboardInterrupt
        step(self.stub)

    def run(self, *args: str) -> Result:
        """Type the command."""
        session = Session(carrier=self.stub.carrier)
        return CliRunner().invoke(cli, ["machine", "watch", *args], obj=session, catch_exceptions=False)


def approve(stub: Stub) -> None:
    stub.machines[0] |= {"status": "registered", "role": "worker-app"}


def appear(stub: Stub) -> None:
    stub.machines.append(machine(B, hostname=HOSTILE))


def nothing(stub: Stub) -> None:
    return


def test_into_a_pipe_each_change_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """First what is there, then what changes, nothing where nothing does; Ctrl-C is the end, not a failure."""
    done = Story(monkeypatch, nothing, approve, nothing, appear).run()
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert [re.sub(r"^\S+  ", "", line) for line in lines] == [
        "added    cp-1 (7f3ad3ac)  status pending_approval, trust unknown, hostname cp-1, assurance tofu",
        "changed  cp-1 (7f3ad3ac)  status pending_approval → registered, role - → worker-app",
        lines[2].partition("  ")[2],
    ]
    assert "added" in lines[2]
    assert "\x1b" not in done.output
    assert "\u202e" not in done.output


def test_as_json_each_change_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object a line, so that programs can follow."""
    done = Story(monkeypatch, approve).run("-o", "json")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["event"], first["machine_id"]) == ("added", A)
    assert second["event"] == "changed"
    assert second["changes"] == {
        "status": ["pending_approval", "registered"],
        "role": [None, "worker-app"],
    }


@pytest.mark.parametrize("form", ["csv", "yaml"])
def test_forms_that_cannot_follow_are_refused(form: str) -> None:
    """A table of a file has an end."""
    service = Stub()
    session = Session(carrier=service.carrier)
    done = CliRunner().invoke(cli, ["machine", "watch", "-o", form], obj=session)
    assert done.exit_code == 2
    assert service.requests == []


def test_a_service_that_goes_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One remark on stderr, then the change that was missed."""

    def away(stub: Stub) -> None:
        stub.before = lambda request: problem(503, "unavailable", "restarting")

    def back(stub: Stub) -> None:
        stub.before = lambda request: None
        approve(stub)

    # The client's own pauses between attempts go through the same sleep.
    monkeypatch.setattr("attestation.client.retries.Retries.pause", lambda *arguments: None)
    done = Story(monkeypatch, away, nothing, back).run()
    assert done.exit_code == 0
    assert done.stderr.count("waiting:") == 1
    assert "changed" in done.stdout


def test_who_may_not_look_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first look, and also when a login ends while watching."""
    refused = Story(monkeypatch)
    refused.stub.before = lambda request: problem(403, "forbidden", "no role")
    assert refused.run().exit_code == 4

    def expire(stub: Stub) -> None:
        stub.before = lambda request: problem(401, "unauthenticated", "expired")

    assert Story(monkeypatch, expire).run().exit_code == 4


def test_the_screen_fits_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line too long, no line too many, however small the window; what is not shown is counted."""
    ids = [f"{number:08x}-0f0e-4c55-9d4a-3f6f0e1b2c3d" for number in range(40)]
    fleet = [Record(machine(i, hostname=f"worker-{i}", hw_product=HOSTILE * 9)) for i in ids]
    watch = Watch(Session(), lambda: fleet, 5)
    watch._observe()
    for columns in (20, 40, 80, 160, 300):
        for rows in (1, 3, 10, 24, 100):
            screen = watch._screen(columns, rows)
            assert len(screen) <= rows
            if columns >= 80:
                assert max(map(len, screen)) <= columns
            assert not [line for line in screen if "\x1b" in line or "\r" in line]
    assert "… and 20 more" in watch._screen(80, 24)[-1]
    assert "more" not in watch._screen(80, 100)[-1]


SERVED = """
import sys
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub, machine
stub = Stub([machine("7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d", hostname="cp-1", cluster_id="a-long-name-of-a-cluster")])
cli(["machine", "watch", "-i", "0.3"], prog_name="attestation", obj=Session(carrier=stub.carrier))
"""


def test_on_a_terminal_it_redraws_resizes_and_leaves_no_trace() -> None:
    """A real pseudo-terminal: the alternate screen is entered and left, the cursor is back, a resize is followed."""
    primary, secondary = pty.openpty()
    _resize(secondary, 24, 80)
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVED],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        cwd=root,
        # A shell that exports COLUMNS does not keep it from following the terminal.
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(root), "COLUMNS": "80"},
        start_new_session=True,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(secondary)
    try:
        seen = _read(primary, lambda text: text.count("cp-1") >= 2, 20)
        assert "\x1b[?1049h\x1b[?25l" in seen
        assert "ADDRESS" not in seen
        assert "PowerEdge SN1" not in seen
        _resize(primary, 24, 160)
        _read(primary, lambda text: "PowerEdge SN1" in text, 20)
        process.send_signal(signal.SIGINT)
        end = _read(primary, lambda text: "\x1b[?1049l" in text, 20)
        assert end.endswith("\x1b[?25h\x1b[?1049l")
        assert process.wait(60) == 0
        assert "Traceback" not in seen + end
    finally:
        process.kill()
        process.wait(60)
        os.close(primary)


def test_an_interrupt_that_is_lost_still_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised while a finaliser runs is swallowed by the interpreter; one Ctrl-C is enough all the same."""

    class Swallows:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # the handler runs between two instructions of this loop
                pass

    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    before = signal.getsignal(signal.SIGINT)

    def swallow(_: Stub) -> None:
        Swallows()

    done = Story(monkeypatch, swallow, nothing, nothing, appear).run()
    assert done.exit_code == 0
    assert lost
    assert len(done.stdout.splitlines()) == 1
    assert signal.getsignal(signal.SIGINT) is before


def _resize(terminal: int, rows: int, columns: int) -> None:
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read(terminal: int, enough: Callable[[str], bool], seconds: float) -> str:
    text, deadline = "", time.monotonic() + seconds
    while not enough(text):
        assert time.monotonic() < deadline, f"not seen: {text[-2000:]!r}"
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
    return text
