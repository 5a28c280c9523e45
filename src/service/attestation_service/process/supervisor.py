"""Several workers behind one socket: forked, watched, forked again. One that fails never ends the others that serve.

    starting ──says that it serves──► serving ──ends, or says nothing for long──► due again, later each time
        └──────ends, or takes too long──────────────────────────────────────────►

The application is imported and built once, here; each worker begins with a copy and opens what it owns: database,
keys, tokens. So a worker costs a fraction of a second of CPU, and one that was killed is back at once. Until it
serves it is left alone for `START_SECONDS`; then it says each second, from its event loop, that it lives. It says so
into a pipe that only its supervisor reads: when that is gone, the worker knows at the next word, and ends. So no worker
stays behind on the port.

Whoever forks must be alone: nothing that runs before may leave a thread, a connection or a PKCS#11 library behind. That
is why `main` tries keys and database in a process of their own.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Final

import structlog

from attestation_service.process import notify

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

log = structlog.get_logger("attestation_service.supervisor")

START_SECONDS: Final = 120.0
"""How long a worker may take until it serves: imports, migrations of others, devices that do not answer."""

SILENT_SECONDS: Final = 30.0
"""A worker whose event loop does nothing for so long hangs, and is killed."""

STEADY_SECONDS: Final = 30.0
"""Who served so long had started well: the next start is not delayed."""

FIRST_DELAY_SECONDS: Final = 0.5
MAX_DELAY_SECONDS: Final = 30.0

KILL_MARGIN_SECONDS: Final = 2.0
"""A worker ends by itself in the time that it has; so much later those that did not are killed."""

STARTUP_FAILED: Final = 3
"""Exit code of a worker that says that it cannot serve, and of a service none of whose workers can."""

UNUSABLE: Final = 4
"""Exit code of a process that served and can do so no more, nor can another one like it."""

START_TRIES: Final = 5
"""So often in a row one may say so while none has ever served; then the service ends, as with one worker."""

_READY: Final = b"r"
_ALIVE: Final = b"."

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_fork = multiprocessing.get_context("fork")


@dataclass(slots=True)
class _Worker:
    """One that was started.

    Args:
        process: It.
        life: Where it says that it lives.
        began: When it was started.
        heard: When it said something.
        ready_at: When it said that it serves, or None.
        asked: It was told to end.
    """

    process: ForkProcess
    life: Connection
    began: float
    heard: float
    ready_at: float | None = None
    asked: bool = False


@dataclass(slots=True)
class _Slot:
    """A place for a worker."""

    worker: _Worker | None = None
    failures: int = 0
    due: float = 0.0


class Supervisor:
    """Keeps *count* workers alive until it is told to stop.

    Args:
        serve: What each of them does: serve until SIGTERM, and call the function it is given when it serves and each
            second from then on. That returns False where it must end.
        count: How many.
        shutdown_seconds: How long a worker may take to end after SIGTERM.
        listening: The socket that the workers share: ours is closed with theirs, so that nobody waits at it in vain.
    """

    def __init__(
        self,
        serve: Callable[[Sign], None],
        *,
        count: int,
        shutdown_seconds: float,
        listening: socket.socket | None = None,
    ) -> None:
        self._serve = serve
        self._slots = [_Slot() for _ in range(count)]
        self._patience = shutdown_seconds + KILL_MARGIN_SECONDS
        self._listening = listening
        self._told: list[int] = []
        self._replacing: list[_Slot] = []
        self._served = self._hopeless = False
        self._ours: tuple[socket.socket, ...] = ()

    def run(self) -> bool:
        """Serve until SIGTERM or SIGINT; SIGHUP replaces the workers one after another.

        Returns:
            False where it ended because no worker can serve.

        Raises:
            RuntimeError: This process has other threads: what they hold at the fork, the workers would wait for.
        """
        demand_alone()
        gc.collect()
        gc.freeze()  # what is here is shared with the workers, as long as nobody writes to it
        with self._signals() as woken:
            while not (self._hopeless or {signal.SIGTERM, signal.SIGINT}.intersection(self._told)):
                if signal.SIGHUP in self._told:
                    self._told.clear()
                    self._replacing = list(self._slots)
                for slot in self._slots:
                    self._look_after(slot, time.monotonic())
                self._replace_next()
                self._wait(woken, 0.5)
            if self._hopeless:
                log.error(
                    "service.unusable",
                    reason="no worker can serve any more: one said why, and ended"
                    if self._served
                    else f"no worker can serve: {START_TRIES} times one said why, and ended",
                )
            log.info("service.stopping", workers=len(self._workers()))
            notify.tell(notify.STOPPING)
            self._stop(woken)
        return not self._hopeless

    def _workers(self) -> list[_Worker]:
        return [slot.worker for slot in self._slots if slot.worker is not None]

    def _look_after(self, slot: _Slot, now: float) -> None:
        worker = slot.worker
        if worker is None:
            if now >= slot.due:
                self._fill(slot, now)
            return
        self._listen(worker, now)
        if not worker.process.is_alive():
            self._ended(slot, worker, now)
        elif worker.ready_at is None and now - worker.began > START_SECONDS:
            self._kill(worker, f"it does not serve after {START_SECONDS:g} s")
        elif worker.ready_at is not None and now - worker.heard > SILENT_SECONDS:
            self._kill(worker, f"its event loop stood still for {SILENT_SECONDS:g} s")

    def _fill(self, slot: _Slot, now: float) -> None:
        """Start a worker; where the host has no room for one, try again later: the others serve."""
        try:
            slot.worker = self._start(now)
        except OSError as e:
            slot.failures += 1
            slot.due = now + _delay(slot.failures)
            again = _delay(slot.failures)
            log.error("worker.not_started", reason=e.strerror, again_in_seconds=again)  # noqa: TRY400 -- a trace says nothing more

    def _start(self, now: float) -> _Worker:
        ours, theirs = _fork.Pipe(duplex=False)
        os.set_blocking(ours.fileno(), False)
        # What the fork copies and only we may have: who else could read would keep a pipe alive after us.
        foreign = (ours, *self._ours, *(worker.life for worker in self._workers()))
        process = _fork.Process(
            target=_be_worker, args=(self._serve, theirs, foreign), name="attestation-worker"
        )
        # A signal that came between the fork and the worker's own handlers would be lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            theirs.close()  # the worker's end closes with it
        return _Worker(process=process, life=ours, began=now, heard=now)

    def _listen(self, worker: _Worker, now: float) -> None:
        with contextlib.suppress(BlockingIOError):
            said = os.read(worker.life.fileno(), 65_536)
            if said:
                worker.heard = now
            if _READY in said:
                worker.ready_at = now
                if not self._served:
                    notify.tell(notify.READY)
                self._served = True

    def _ended(self, slot: _Slot, worker: _Worker, now: float) -> None:
        """Note that a worker is gone, and when the next one begins."""
        steady = worker.ready_at is not None and now - worker.ready_at >= STEADY_SECONDS
        slot.failures = 0 if steady or worker.asked else slot.failures + 1
        delay = _delay(slot.failures)
        refused = worker.process.exitcode == STARTUP_FAILED and slot.failures >= START_TRIES
        self._hopeless = (
            self._hopeless or (refused and not self._served) or worker.process.exitcode == UNUSABLE
        )
        if not worker.asked:
            log.error(
                "worker.ended",
                pid=worker.process.pid,
                how=how_it_ended(worker.process.exitcode),
                served=worker.ready_at is not None,
                failures=slot.failures,
                again_in_seconds=delay,
                others_serving=sum(
                    each.ready_at is not None for each in self._workers() if each is not worker
                ),
            )
        worker.process.join()
        worker.process.close()
        worker.life.close()
        slot.worker = None
        slot.due = now + delay

    def _kill(self, worker: _Worker, why: str) -> None:
        log.error("worker.killed", pid=worker.process.pid, why=why)
        worker.process.kill()

    def _replace_next(self) -> None:
        """While a rolling restart lasts: end one more worker, once all serve."""
        serving = [each for each in self._workers() if each.ready_at is not None and not each.asked]
        if self._replacing and len(serving) == len(self._slots):
            worker = self._replacing.pop().worker
            if worker is not None:
                _ask(worker)

    def _stop(self, woken: socket.socket) -> None:
        """Ask every worker to end, and kill those that do not, or all of them after a second signal."""
        self._told.clear()
        until = time.monotonic() + self._patience
        if self._listening is not None:
            self._listening.close()
        for worker in self._workers():
            _ask(worker)
        while alive := [each for each in self._workers() if each.process.is_alive()]:
            if self._told or time.monotonic() >= until:
                for worker in alive:
                    self._kill(worker, "it did not end")
                self._told.clear()
            self._wait(woken, 0.5)
        for slot in self._slots:
            if slot.worker is not None:
                self._ended(slot, slot.worker, time.monotonic())

    def _wait(self, woken: socket.socket, seconds: float) -> None:
        """Sleep until a worker ends or says that it serves, a signal comes, or the time is over."""
        sentinels = [worker.process.sentinel for worker in self._workers()]
        starting = [worker.life for worker in self._workers() if worker.ready_at is None]
        wait([woken, *sentinels, *starting], seconds)
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Note signals in `_told`; what is returned can be read from when one came."""
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        self._ours = (reader, writer)
        before = {
            number: signal.signal(number, lambda number, _: self._told.append(number)) for number in _SIGNALS
        }
        before_fd = signal.set_wakeup_fd(writer.fileno())
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before_fd)
            for number, handler in before.items():
                signal.signal(number, handler)
            reader.close()
            writer.close()


def demand_alone() -> None:
    """Raise RuntimeError where this process has other threads: what they hold at a fork, the child would wait for."""
    if threading.active_count() != 1:
        raise RuntimeError("a process with threads must not fork")


def _delay(failures: int) -> float:
    """Return how long to wait after so many failures in a row."""
    if not failures:
        return 0.0
    return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 20))


def _ask(worker: _Worker) -> None:
    worker.asked = True
    worker.process.terminate()


def how_it_ended(exit_code: int | None) -> str:
    """Say how a process ended, by what `multiprocessing` calls its exit code: below 0 the signal."""
    if exit_code is None or exit_code >= 0:
        return f"exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-exit_code).name}"
    return f"signal {-exit_code}"


Sign = Callable[[bool], bool]
"""Says to the supervisor that a worker serves (True: for the first time); False where nobody is there any more."""


def _be_worker(
    serve: Callable[[Sign], None], life: Connection, foreign: Sequence[Connection | socket.socket]
) -> None:
    """Live the life of a worker.

    Args:
        serve: What it does.
        life: Where it says that it lives.
        foreign: What came along with the fork and is the supervisor's.
    """
    signal.set_wakeup_fd(-1)
    notify.leave_it_to_the_supervisor()
    for each in foreign:
        each.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A terminal sends these to all of the group; the supervisor says SIGTERM to its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.set_blocking(life.fileno(), False)

    def say(first: bool) -> bool:
        try:
            os.write(life.fileno(), _READY if first else _ALIVE)
        except BlockingIOError:
            return True  # nobody reads just now
        except BrokenPipeError:
            return False  # nobody will: the supervisor is gone
        return True

    serve(say)
