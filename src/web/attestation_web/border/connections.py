"""Connections: how many there are, and how long a browser may take over one; uvicorn by itself bounds neither.

- Where all are taken, the one that waits longest makes room: who opens connections and says nothing keeps nobody out.
- Heads and unread answers have a time each. (Bodies have theirs in `bodies.py`.)

The parser is h11, which reads 64 KiB of a head and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST: Final = 1_000
HEAD_SECONDS: Final = 20.0
WRITE_SECONDS: Final = 30.0
FILES_OF_OURS: Final = 128
"""Files that the process needs beside its connections: those to the service and the provider, templates, logs."""


class Protocol(H11Protocol):
    """One connection; uvicorn's protocol within the bounds of the module."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head: asyncio.TimerHandle | None = None
        """Ends the connection unless a request comes; None while one is answered."""
        self._unread: asyncio.TimerHandle | None = None
        """Ends the connection unless its answer is read; None while it is."""

    @property
    def waiting_until(self) -> float | None:
        """How long it may wait for a request, by the clock of the loop; None while one is answered."""
        return None if self._head is None else self._head.when()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # we listen on streams only
        """Make room for it, and begin to wait."""
        if len(self.connections) >= most():
            waits = {
                e.waiting_until: e for e in self.connections if isinstance(e, Protocol) and e.waiting_until
            }
            if not waits:
                # Every other one is being answered; the new one is not.
                super().connection_made(transport)
                self.abort()
                return
            waits[min(waits)].abort()
        super().connection_made(transport)
        self._look()

    def abort(self) -> None:
        """End it at once."""
        self.connections.discard(self)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        self._head = self._unread = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; a head that is whole is waited for no more."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The browser does not read."""
        super().pause_writing()
        self._unread = self.loop.call_later(WRITE_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """It does."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _look(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type forgets that there may be none
        waits = cycle is None or cycle.response_complete
        if waits and self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_SECONDS, self.abort)
        elif not waits and self._head is not None:
            self._head.cancel()
            self._head = None


def most() -> int:
    """Return how many connections there may be: as many as there are files for them."""
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a filter of system calls forbids the question
        return MOST
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft - FILES_OF_OURS))


def ask_for_files() -> None:
    """Ask for as many files as this process may have; often it is 1024 until somebody asks."""
    # Where it may not ask, it has what it was given.
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
