"""One thread that owns a device, and the queue in front of it: what the keys of tokens and of TPMs have in common.

Everything that was found in the device is that thread's; nobody else looks anything up or closes anything. Others
queue jobs and wait. A process that was forked from one with such a thread is refused: the thread is not in it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from attestation.errors import SignerBusy, SignerUnavailable

T = TypeVar("T")

QUEUE_JOBS: Final = 256


@dataclass(slots=True, kw_only=True, eq=False)
class Job(Generic[T]):
    """Something to do on a connection to the device; it may be done twice."""

    work: Callable[[Any], T]
    answer: Future[T] = field(default_factory=Future)


class OwnedThread(ABC):
    """The thread, its queue, and `close`. What is done with the device, and when it starts, a subclass says.

    Args:
        place: By which `Threads` know it.
        shown: The device, for messages.
        clock: Monotonic seconds.
        queue_jobs: Jobs that may wait.
    """

    def __init__(self, place: Hashable, shown: str, clock: Callable[[], float], queue_jobs: int) -> None:
        self.place, self.shown, self._clock = place, shown, clock
        self._pid = os.getpid()
        self._queue: queue.Queue[Job[Any] | None] = queue.Queue(queue_jobs)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=shown, daemon=True)

    # What callers do.

    def _answer_to(self, job: Job[T], deadline_seconds: float) -> T:
        """Queue *job* and wait for its result. A job that was not begun in time never is.

        Raises:
            SignerBusy: Too many jobs wait.
            SignerUnavailable: The device does not answer in time, or was closed.
        """
        if os.getpid() != self._pid:
            raise SignerUnavailable(
                f"keys of {self.shown} do not survive a fork; open them in the process that uses them"
            )
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            raise SignerBusy(f"{self._queue.maxsize} signatures are waiting for {self.shown}") from None
        if self._stopping.is_set():
            job.answer.cancel()
            raise SignerUnavailable(f"{self.shown} was closed")
        try:
            return job.answer.result(deadline_seconds)
        except FutureTimeout:
            if job.answer.cancel():
                raise SignerUnavailable(
                    f"{self.shown} had no time for a job within {deadline_seconds:g} s; it was dropped"
                ) from None
            raise SignerUnavailable(f"{self.shown} did not answer within {deadline_seconds:g} s") from None

    @property
    def is_alive(self) -> bool:
        """True while the thread may be in the device."""
        return self._thread.is_alive()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Let go of the device and end the thread."""
        if os.getpid() != self._pid:
            return
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(timeout_seconds)

    # What the thread does.

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                job = self._queue.get(timeout=self._patience_seconds())
            except queue.Empty:
                job = None
            if job is None:
                self._idle()
            elif job.answer.set_running_or_notify_cancel():
                self._answer(job)
        with contextlib.suppress(queue.Empty):
            while True:
                left = self._queue.get_nowait()
                if left is not None and left.answer.set_running_or_notify_cancel():
                    left.answer.set_exception(SignerUnavailable(f"{self.shown} was closed"))
        self._let_go()

    def _answer(self, job: Job[Any]) -> None:
        try:
            job.answer.set_result(self._do(job))
        except BaseException as e:  # noqa: BLE001 -- it is the caller's
            job.answer.set_exception(e)

    @abstractmethod
    def _patience_seconds(self) -> float | None:
        """Return how long to wait for a job before `_idle`; None: for ever."""

    @abstractmethod
    def _do(self, job: Any) -> Any:
        """Do a job, of the kind that the subclass queues, and return its result."""

    @abstractmethod
    def _idle(self) -> None:
        """Without a job: do what is due."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close every connection to the device; it is opened again when it is needed."""


W = TypeVar("W", bound=OwnedThread)


class Threads(dict[Hashable, W]):
    """The threads of this process by their places: each starts with its first user and ends with its last."""

    def __init__(self) -> None:
        super().__init__()
        self._users: Counter[Hashable] = Counter()
        self._locks: dict[Hashable, threading.Lock] = {}
        atexit.register(self._close_all)

    def acquire(self, place: Hashable, start: Callable[[], W]) -> W:
        """Return the thread at *place*, by *start* where there is none.

        Raises:
            SignerUnavailable: The last one was closed, but still hangs in the device.
        """
        with self._lock(place):
            thread = self.get(place)
            if thread is None or (not self._users[place] and not thread.is_alive):
                thread = self[place] = start()
            elif not self._users[place]:
                raise SignerUnavailable(f"{thread.shown} was closed and still hangs")
            self._users[place] += 1
            return thread

    def release(self, thread: W) -> None:
        """Let go of a thread; the last one to do so closes it, before another can start at its place."""
        with self._lock(thread.place):
            self._users[thread.place] -= 1
            if not self._users[thread.place]:
                thread.close()
                if not thread.is_alive:
                    self.pop(thread.place, None)

    def _lock(self, place: Hashable) -> threading.Lock:
        """Return the lock of *place*: a thread that hangs in one device holds up no other device."""
        return self._locks.setdefault(place, threading.Lock())

    def _close_all(self) -> None:
        for thread in list(self.values()):
            thread.close(timeout_seconds=2.0)
