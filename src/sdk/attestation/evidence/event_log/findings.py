"""What a reader must know about a log besides its events."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Something about a log, or about one PCR of it.

    Args:
        code: Stable word.
        pcr: The PCR it is about; None where it is about the log.
        event: Index of the event; None where it is about no single one.
        text: In words.
        fault: The log describes this PCR in a way in which no firmware does: nothing is claimed of it, and a
            quote of the PCR makes `verify` refuse the log.
    """

    code: str
    pcr: int | None
    event: int | None
    text: str
    fault: bool = False
