"""Workers are left alone while they start, killed when they hang, and started again, later each time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from attestation_service import main
from attestation_service.process import supervisor
from attestation_service.process.supervisor import Supervisor, how_it_ended
from attestation_service.settings import Settings


class Process:
    """A process as `multiprocessing` shows it."""

    made: list[Process]

    def __init__(self, target: Any, args: tuple[Any, Any, Any], name: str) -> None:
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
    for worker in made._workers():
        worker.life.close()


def look(by: Supervisor, now: float) -> None:
    """Let it look after its workers at second *now*."""
    for slot in by._slots:
        by._look_after(slot, now)


@pytest.mark.threat("T124")
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


@pytest.mark.parametrize(
    ("exit_code", "serves", "ends"), [(3, False, True), (3, True, False), (-signal.SIGKILL, False, False)]
)
def test_where_none_ever_serves_the_service_ends(
    processes: list[Process],
    monkeypatch: pytest.MonkeyPatch,
    exit_code: int,
    *,
    serves: bool,
    ends: bool,
) -> None:
    """As with one worker, after some tries; not where one served, nor where the host ended them."""
    made, passes = Supervisor(lambda _: None, count=2, shutdown_seconds=1), 0

    def fail(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes > 2 * supervisor.START_TRIES:
            made._told.append(signal.SIGTERM)
        for slot in made._slots:
            slot.due = 0
        for each in processes:
            if each.exitcode is None:
                if serves and each.pid == 1000:
                    each.say(b"r")
                each.end(0 if made._told else exit_code)

    monkeypatch.setattr(supervisor, "demand_alone", lambda: None)
    monkeypatch.setattr(made, "_wait", fail)
    with structlog.testing.capture_logs() as said:
        assert made.run() is not ends
    assert any(each["event"] == "service.unusable" for each in said) == ends
    assert len(processes) <= 2 * supervisor.START_TRIES or not ends


@pytest.mark.threat("T161")
def test_a_host_without_room_for_a_worker_is_tried_again(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the fork says is an outcome like any other: later, with words; the other one serves."""

    def full(_: Process) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    made = Supervisor(lambda _: None, count=2, shutdown_seconds=1)
    made._fill(made._slots[0], 0)
    with monkeypatch.context() as patched, structlog.testing.capture_logs() as said:
        patched.setattr(Process, "start", full)
        look(made, 0)
    assert [(each["event"], each["again_in_seconds"]) for each in said] == [("worker.not_started", 0.5)]
    look(made, 0.25)
    assert len(made._workers()) == 1
    look(made, 0.5)
    assert len(made._workers()) == 2
    for worker in made._workers():
        worker.life.close()


@pytest.mark.parametrize(
    "fork",
    [
        lambda: Supervisor(lambda _: None, count=1, shutdown_seconds=1).run(),
        lambda: main._prepared_elsewhere(Settings()),
    ],
    ids=["workers", "preparation"],
)
def test_who_has_threads_does_not_fork(fork: Callable[[], object]) -> None:
    """Said by an error of its own, also where Python runs without assertions."""
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(RuntimeError, match="threads"):
            fork()
    finally:
        done.set()
        other.join()


ALONE = """
import os, sys, time
from attestation_service.process.supervisor import Supervisor

def serve(say):
    say(True)
    while say(False):
        time.sleep(0.02)

print(os.getpid(), flush=True)
Supervisor(serve, count=3, shutdown_seconds=1).run()
"""


def pipes(pid: int) -> set[str]:
    """Return the pipes from which *pid* reads without waiting: those in which workers say that they live."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            about = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            (flags,) = (int(line.split()[1], 8) for line in about.splitlines() if line.startswith("flags:"))
            if not flags & os.O_ACCMODE and flags & os.O_NONBLOCK:
                found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("pipe:")}


@pytest.mark.threat("T161")
def test_a_worker_has_nothing_of_its_supervisor() -> None:
    """Of three, each says its word to the supervisor alone: once that is killed, all are gone at their next word.

    What one worker inherited of another would keep the pipe of that one open.
    """
    with subprocess.Popen([sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        children = Path(f"/proc/{pid}/task/{pid}/children")
        until(lambda: len(children.read_text().split()) == 3 and len(pipes(pid)) == 3)
        workers = [int(each) for each in children.read_text().split()]
        try:
            until(lambda: not any(pipes(each) for each in workers))
        finally:
            process.kill()
    until(lambda: not any(Path(f"/proc/{each}").exists() for each in workers))


@pytest.mark.threat("T161")
def test_a_worker_whose_supervisor_is_gone_before_its_first_word_ends() -> None:
    """It need not have seen who its parent was."""
    reader, writer = supervisor._fork.Pipe(duplex=False)
    heard: list[bool] = []
    before = {number: signal.getsignal(number) for number in supervisor._SIGNALS}
    try:
        supervisor._be_worker(lambda say: heard.extend((say(True), say(False))), writer, (reader,))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert heard == [False, False]


def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
