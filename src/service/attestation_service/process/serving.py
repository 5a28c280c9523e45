"""How one process serves and ends: uvicorn's server, which falls out of readiness first and ends in time.

After SIGTERM, in order:

1. `/readyz` is 503 and every answer ends its connection; whoever comes is still served, for as long as load balancers
   need to notice (ITL_SHUTDOWN_DELAY_SECONDS).
2. Who is connected already is let in, and nobody after; connections without a request end, a new one a moment later:
   its request may be on the way. Requests are finished.
3. What takes too long is cut: whatever it had not yet stored, it does not store.
4. Tasks, extensions, keys and database are closed.

Whatever hangs, the process is gone ITL_SHUTDOWN_SECONDS after the signal; a second signal ends it at once. Both are as
a power cut would be: what was answered is durable, what was not is wholly there or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Final

import structlog
import uvicorn

from attestation_service.border.life import Life
from attestation_service.process import notify
from attestation_service.process.supervisor import STARTUP_FAILED, UNUSABLE, Sign

log = structlog.get_logger("attestation_service")

_TICKS: Final = 10
"""Of the server's loop, 0.1 s each, between two signs of life."""


class Server(uvicorn.Server):
    """Serves one application until SIGTERM.

    Args:
        config: What is served, and where.
        life: That of the application.
    """

    def __init__(self, config: uvicorn.Config, life: Life) -> None:
        super().__init__(config)
        self._life = life
        life.served_by(self._end)

    def _end(self) -> None:
        self.should_exit = True

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; where that cannot be, or can be no more, end the process by an exit code that says so."""
        super().run(sockets)
        if not self.started:
            sys.exit(STARTUP_FAILED)
        if self._life.unusable:
            sys.exit(UNUSABLE)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; at once where it was told so before."""
        if self._captured_signals:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            notify.tell(notify.READY)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End in the order of the module."""
        life, began = self._life, time.monotonic()
        last = threading.Timer(life.shutdown_seconds, _cut)  # never taken back: the interpreter may hang too
        last.daemon = True
        last.start()
        # To close what is open takes its time too.
        requests_until = began + life.shutdown_seconds - min(1.0, life.shutdown_seconds / 4)
        life.stop(requests_until)
        notify.tell(notify.STOPPING)
        log.info("service.stopping", in_flight=life.count, delay_seconds=life.delay_seconds)
        if not life.unusable:
            await asyncio.sleep(life.delay_seconds)
        await self._close_the_door(sockets or [])
        left = max(0, requests_until - time.monotonic())
        self.config.timeout_graceful_shutdown = left  # type: ignore[assignment]  # any number will do
        await super().shutdown(sockets)
        self._captured_signals.clear()  # else uvicorn sends them to itself again: all is done, the exit code is 0

    async def _close_the_door(self, sockets: list[socket.socket]) -> None:
        """Let in whoever the system has connected, and nobody after.

        To close alone would reset them, with what they sent: no proxy sends a POST again that may have been read.
        """
        listening = [socket.socket(fileno=os.dup(each.fileno())) for s in self.servers for each in s.sockets]
        for server in self.servers:
            server.close()
        for each in sockets:
            each.close()
        await asyncio.sleep(0)  # uvloop closes what it listens on in the next round
        came: list[socket.socket] = []
        for each in listening:
            with each, contextlib.suppress(OSError):  # nobody is there, or there is no room for more files
                each.setblocking(False)
                while len(came) < self.config.backlog:
                    came.append(each.accept()[0])
        for each in came:
            each.setblocking(False)
            with contextlib.suppress(OSError):  # it left
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, each)

    def _connection(self) -> asyncio.Protocol:
        """Make what uvicorn makes for each that comes."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]  # any class, they say
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


class Worker(Server):
    """Serves under a supervisor: says that it serves, and each second that it lives.

    Args:
        config: See `Server`.
        life: See `Server`.
        say: What it says that to.
    """

    def __init__(self, config: uvicorn.Config, life: Life, say: Sign) -> None:
        super().__init__(config, life)
        self._say = say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so; end where nobody hears it."""
        await super().startup(sockets)
        if self.started and not self._say(True):
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Return True where the process is to end: the supervisor is gone, too."""
        gone = counter % _TICKS == 0 and not self._say(False)
        return await super().on_tick(counter) or gone


def _cut() -> None:
    log.error("service.cut", reason="ITL_SHUTDOWN_SECONDS are over, and something does not end")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
