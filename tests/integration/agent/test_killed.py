"""The agent on Talos, killed at each line of apply and of wipe: it ends applied or wiped, or as if nothing had been."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attestation_agent.exits import Exit
from attestation_testing.talos.machined import Behaviour, Call, FakeMachined, Stage
from tests.fixtures.effort import often
from tests.fixtures.killed_agent import KILLED
from tests.unit.agent.world import CONFIG

LINES = ("orders", "all")[often(0, 1)]
"""Those that decide what is done, and in which order; before a release, all that carry it out."""
ROOT = Path(__file__).resolve().parents[3]


class Runner:
    """The process that is told where to kill."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> str:
        """Say *line*; return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()


@contextmanager
def running(directory: Path, talos: FakeMachined, what: str) -> Iterator[Runner]:
    """Yield a runner for *what*."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fixtures.killed_agent", directory, talos.path, what, LINES],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield Runner(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.threat("T20")
@pytest.mark.parametrize(("what", "at_least"), [("apply", often(50, 400)), ("wipe", often(25, 200))])
def test_killed_anywhere_it_goes_on_where_it_was(tmp_path: Path, what: str, at_least: int) -> None:
    """Never a wipe that the service has not heard of; never a file of a configuration; and the next run ends it."""
    with FakeMachined(tmp_path / "machine.sock") as talos, running(tmp_path, talos, what) as runner:
        acks = tmp_path / "acks"
        unheard: list[str] = []

        def look(call: Call) -> None:
            if call.method == "Reset" and "done" not in acks.read_text():
                unheard.append(acks.read_text())

        talos.behaviour = Behaviour(before=look)
        kill_at = killed = 1
        seen: set[object] = set()
        while killed:
            talos.begin_anew(CONFIG if what == "wipe" else None)
            assert runner.ask("again") == "ready"
            killed = runner.ask(str(kill_at)) == str(KILLED)
            assert unheard == []
            assert talos.config in (None, CONFIG)
            assert talos.named("Reset") == [] or what == "wipe"
            left = (what_is_left(tmp_path / "state"), acks.read_text(), len(talos.calls), talos.stage)
            kill_at += 1
            if LINES == "orders" and left in seen:
                # What the next run does follows from this alone.
                continue
            seen.add(left)
            # One more round, without a word from anybody.
            assert runner.ask("0") == str(int(Exit.OK if what == "apply" else Exit.REVOKED)), kill_at
            assert talos.stage is (Stage.CONFIGURED if what == "apply" else Stage.WIPED)
            assert talos.config == (CONFIG if what == "apply" else None)
            assert "done" in acks.read_text()
            assert unheard == []
            written = [p for p in tmp_path.rglob("*") if p.is_file()]
            assert not any(b"canary" in each.read_bytes() for each in written)
        assert kill_at > at_least
        assert len(seen) > 5


def what_is_left(directory: Path) -> object:
    """Return the files of the agent by their sizes: what differs in them beside that is drawn by lot."""
    return frozenset(
        (path.name[:-16] if path.name.startswith(".") else path.name, path.stat().st_size)
        for path in directory.iterdir()
    )
