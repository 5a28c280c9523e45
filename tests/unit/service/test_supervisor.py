"""Workers are left alone while they start, killed when they hang, and started again, later each time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from attestation_service import supervisor
from attestation_service.supervisor import Supervisor, how_it_ended


class Process:
    """A process as `multiprocessing` shows it."""

    made: list[Process]

    def __init__(self, target: Any, args: tuple[Any, Any], name: str) -> None:
        self.life = os.dup(args[1].fileno())
        self.exitcode: int | None = None
        self.asked = False
        self.pid = 1000 + len(self.made)
        self.sentinel = self.life
        self.made.append(self)

    def start(self) -> None:
        """Begin."""

    def is_alive(self) -> bool:
        """Return True until it ended."""
        return self.exitcode is None

    def say(self, what: bytes) -> None:
        """Say something to the supervisor."""
        os.write(self.life, what)

    def end(self, exit_code: int) -> None:
        """End."""
        self.exitcode = exit_code

    def kill(self) -> None:
        """End by SIGKILL."""
        self.end(-signal.SIGKILL)

    def terminate(self) -> None:
        """Be asked to end."""
        self.asked = True

    def join(self) -> None:
        """Be waited for."""

    def close(self) -> None:
        """Be forgotten."""
        os.close(self.life)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """What was started."""
    made: list[Process] = []
    Process.made = made
    monkeypatch.setattr(supervisor._fork, "Process", Process)
    yield made
    for each in made:
        if each.exitcode is None:
            each.close()


@pytest.fixture
def two(processes: list[Process]) -> Iterator[Supervisor]:
    """A supervisor of two workers, both started at second 0."""
    made = Supervisor(lambda _: None, count=2, shutdown_seconds=1)
    look(made, 0)
    yield made
    for slot in made._slots:
        if slot.life is not None:
            slot.life.close()


def look(by: Supervisor, now: float) -> None:
    """Let it look after its workers at second *now*."""
    for slot in by._slots:
        by._look_after(slot, now)


def test_who_starts_is_left_alone(two: Supervisor, processes: list[Process]) -> None:
    """Two minutes without a word: on a busy host imports take many seconds. Then it is killed, the other one not."""
    processes[0].say(b"r")
    for second in range(0, 121, 10):
        processes[0].say(b".")
        look(two, second)
    assert [each.exitcode for each in processes] == [None, None]
    processes[0].say(b".")
    look(two, supervisor.START_SECONDS + 1)
    assert [each.exitcode for each in processes] == [None, -signal.SIGKILL]


def test_who_serves_and_stands_still_is_killed(two: Supervisor, processes: list[Process]) -> None:
    """Half a minute without a sign from the event loop; signs that the supervisor was late to read count."""
    for each in processes:
        each.say(b"r")
    look(two, 1)
    processes[0].say(b"....")
    look(two, 1 + supervisor.SILENT_SECONDS + 1)
    assert [each.exitcode for each in processes] == [None, -signal.SIGKILL]


def test_who_fails_is_tried_again_later_each_time(two: Supervisor, processes: list[Process]) -> None:
    """After 0.5, 1, 2, … at most 30 s, for ever, with words; the other one serves and is left alone."""
    processes[0].say(b"r")
    look(two, 0)
    now, waited = 0.0, []
    with structlog.testing.capture_logs() as said:
        for _ in range(9):
            processes[-1].end(3)
            look(two, now)
            count = len(processes)
            began = now
            while len(processes) == count:
                now += 0.25
                processes[0].say(b".")
                look(two, now)
            waited.append(now - began)
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert processes[0].exitcode is None
    assert said[0] == {
        "event": "worker.ended", "log_level": "error", "pid": 1001, "how": "exit code 3", "served": False,
        "failures": 1, "again_in_seconds": 0.5, "others_serving": 1,
    }  # fmt: skip


def test_who_served_well_is_back_at_once(two: Supervisor, processes: list[Process]) -> None:
    """Killed after half a minute of service: no delay; killed sooner: a short one."""
    processes[0].say(b"r")
    look(two, 0)
    processes[0].say(b".")
    look(two, supervisor.STEADY_SECONDS)
    processes[0].kill()
    look(two, supervisor.STEADY_SECONDS)
    look(two, supervisor.STEADY_SECONDS)
    assert len(processes) == 3
    processes[2].say(b"r")
    look(two, supervisor.STEADY_SECONDS)
    processes[2].kill()
    look(two, supervisor.STEADY_SECONDS)
    look(two, supervisor.STEADY_SECONDS)
    assert len(processes) == 3
    look(two, supervisor.STEADY_SECONDS + supervisor.FIRST_DELAY_SECONDS)
    assert len(processes) == 4


def test_a_rolling_restart_ends_one_after_another(two: Supervisor, processes: list[Process]) -> None:
    """The second worker is asked to end when the first one's successor serves; nobody waits."""
    two._replacing = list(two._slots)
    two._replace_next()
    assert [each.asked for each in processes] == [False, False]
    for each in processes:
        each.say(b"r")
    look(two, 1)
    two._replace_next()
    two._replace_next()
    assert [each.asked for each in processes] == [False, True]
    processes[1].end(-signal.SIGTERM)
    look(two, 2)
    two._replace_next()
    look(two, 2)
    two._replace_next()
    assert [each.asked for each in processes] == [False, True, False]
    processes[2].say(b"r")
    look(two, 3)
    two._replace_next()
    assert [each.asked for each in processes] == [True, True, False]
    processes[0].end(0)
    look(two, 4)


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "signal SIGKILL"),
        (-40, "signal 40"),
        (None, "exit code None"),
    ],
)
def test_how_a_worker_ended(exit_code: int | None, words: str) -> None:
    """In words for people."""
    assert how_it_ended(exit_code) == words
