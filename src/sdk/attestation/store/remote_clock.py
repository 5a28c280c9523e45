"""The clock of another computer: of several hosts that share a database, its server's counts (docs/adr/0107)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Final

from attestation.clock import from_micros, to_micros


def boot_micros() -> int:
    """Return microseconds since this computer started: nobody sets them, and they pass while it sleeps, too."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


DRIFT: Final = 1e-4
"""Two clocks that nobody sets part by less than this, in seconds per second."""


class RemoteClock:
    """The clock of another computer, carried on by one of ours that nobody sets: however wrong ours is, they agree.

    It is right to within half the time that one question took, of those asked lately the quickest. Where the other
    clock was set, the first answer after that counts (docs/adr/0107).

    Args:
        ticks: Microseconds that only grow.
    """

    def __init__(self, ticks: Callable[[], int] = boot_micros) -> None:
        self._ticks = ticks
        # When it was heard, and between which bounds the other clock is ahead of our ticks. One value: threads read it.
        self._heard: tuple[int, float, float] | None = None

    def asking(self) -> int:
        """Return what `hear` is to be told of when a question went out."""
        return self._ticks()

    def hear(self, said: datetime, asked: int) -> None:
        """Take the answer to a question that went out at *asked*."""
        heard, micros = self._ticks(), to_micros(said)
        least, most = float(micros - heard), float(micros - asked)
        if self._heard is not None:
            before, low, high = self._heard
            parted = DRIFT * (heard - before)
            low, high = low - parted, high + parted
            if low <= most and least <= high and high - low < most - least:
                return  # no news, and heard with less delay than this
        self._heard = heard, least, most

    def now(self) -> datetime:
        """Return the present instant by the other clock, aware, UTC; it must have been heard."""
        assert self._heard is not None
        _, least, most = self._heard
        return from_micros(self._ticks() + round((least + most) / 2))
