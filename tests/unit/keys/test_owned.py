"""Threads that own a device: each place has its own, and waits for no other."""

from __future__ import annotations

import threading
import time
from typing import Any

from attestation.keys.owned import Job, OwnedThread, Threads


class Device(OwnedThread):
    """A device that does not let go before `gate` is set."""

    def __init__(self, place: str, gate: threading.Event) -> None:
        super().__init__(place, place, time.monotonic, 1)
        self.closing, self.gate = threading.Event(), gate
        self._thread.start()

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Close it, with time for a slow machine."""
        super().close(timeout_seconds)

    def _patience_seconds(self) -> None:
        return None

    def _do(self, job: Job[Any]) -> None:
        job.work(None)

    def _idle(self) -> None:
        pass

    def _let_go(self) -> None:
        self.closing.set()
        self.gate.wait()


def test_a_device_that_hangs_holds_up_no_other() -> None:
    """While one hangs in closing, another is opened and closed."""
    threads, gate, open_gate = Threads[Device](), threading.Event(), threading.Event()
    open_gate.set()
    hanging = threads.acquire("one", lambda: Device("one", gate))
    closing = threading.Thread(target=threads.release, args=(hanging,))
    closing.start()
    hanging.closing.wait()
    other = threads.acquire("another", lambda: Device("another", open_gate))
    threads.release(other)
    # 1. The hanging one has not been given up yet: opening the other did not wait for it.
    assert (closing.is_alive(), threads["one"], "another" in threads) == (True, hanging, False)
    gate.set()
    closing.join()
    assert threads == {}
