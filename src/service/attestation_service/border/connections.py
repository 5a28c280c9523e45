"""Connections: who gets one, how long they may take over it, and what a request may look like before it is one.

Everything here happens before a request exists, so nothing behind it can help: no route, no limit, no log of access.

- A process has a number of connections, and a network has its part of it. Where all are taken, the one that waits
  longest makes room; trusted proxies and the unix socket speak for many, so only the whole is counted for them.
- Handshake, head and unread answers have a time each. (Bodies have theirs in `room.py`.)
- A head has a size, a number of fields and one `Host`; HTTP is 1.0 or 1.1; what follows a body is not read as a head.
- What the parser refuses is a problem like every other; only where an answer is under way already, the connection ends.

The parser is llhttp (httptools), which bounds nothing: this class counts what it is fed, and what it finds.
TLS of our own begins here, not in the server, whose handshakes nobody could count.
"""

from __future__ import annotations

import asyncio
import resource
import secrets
from collections import Counter
from typing import Any, Final, cast

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr

from attestation.api import Problem
from attestation_service.border import problems
from attestation_service.border.middleware import HEADERS
from attestation_service.border.networks import network_of
from attestation_service.border.proxies import LINE_BYTES, within
from attestation_service.border.tls import Reloading, ServerTLS, extension, negotiated_suite
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.connections")

PROTOCOL: Final = "attestation_service.border.connections:Protocol"
"""Import name of the protocol class: workers are other processes."""
STATE_KEY: Final = "itl.door"
"""Where the lifespan leaves the door of its process (ASGI lifespan state)."""

HEAD_BYTES: Final = 16 << 10
FIELDS: Final = 100
CHUNKS: Final = 4_096
"""Pieces of one body; 4 MiB in pieces of a KiB."""
PIPELINED: Final = 8
"""Requests that wait behind the one that is being served."""
LINGER_SECONDS: Final = 2.0
LINGER_BYTES: Final = 1 << 20
"""So long, and so much, is read and dropped after a refusal, so that the client gets to read it."""
HELLO_SECONDS: Final = 2.0
"""So long a connection that never asked is kept when the server stops: its request may be on the way."""
SHUTDOWN_SECONDS: Final = 5.0
GOODBYE_SECONDS: Final = 0.1
FILES_OF_OURS: Final = 128
"""Files that a process needs beside its connections."""


class Refused(Exception):
    """What came is not served: a status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Door:
    """What the connections of one process share.

    Args:
        settings: How many there may be, and how long they may wait.
        tls: What they speak; None for plain HTTP.
    """

    def __init__(self, settings: Settings, tls: ServerTLS | None = None) -> None:
        self.wait_seconds = settings.head_seconds
        self.write_seconds = settings.write_seconds
        self.context = Reloading(tls).context if tls is not None else None
        self._of_all = min(settings.connections, _files() - FILES_OF_OURS)
        self._of_one = settings.connections_per_address
        self._proxies = settings.trusted_proxies
        self._open: dict[Protocol, str | None] = {}
        self._of: Counter[str] = Counter()
        self._full: set[str] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def enter(self, connection: Protocol, address: str | None) -> bool:
        """Let a connection in; False where there is no room for it."""
        network = None if address is None or within(address, self._proxies) else network_of(address)
        if network is not None and self._of[network] >= self._of_one:
            if network not in self._full:  # said once, not for each of thousands
                self._full.add(network)
                log.warning("connections.of_one", client=network, open=self._of[network])
            return False
        if len(self._open) >= self._of_all:
            waiting = next((each for each in self._open if each.waits), None)
            log.warning("connections.of_all", open=len(self._open), client=address)
            if waiting is None:
                return False
            waiting.abort()
            self.leave(waiting)
        self._open[connection] = network
        if network is not None:
            self._of[network] += 1
        if self._sweep is None:
            self._sweep = connection.loop.call_later(1.0, self._look, connection.loop)
        return True

    def leave(self, connection: Protocol) -> None:
        """Forget a connection; more than once is no harm."""
        network = self._open.pop(connection, None)
        if network is None:
            return
        self._of[network] -= 1
        if not self._of[network]:
            del self._of[network]
            self._full.discard(network)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End every connection that took too long; once a second, and only while there is one."""
        now = loop.time()
        for connection in [each for each in self._open if each.overdue(now)]:
            connection.abort()
            self.leave(connection)
        self._sweep = loop.call_later(1.0, self._look, loop) if self._open else None


class Protocol(HttpToolsProtocol):
    """One connection; uvicorn's protocol within the bounds of the module."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._door: Door = self.app_state[STATE_KEY]
        self._below: asyncio.Transport | None = None
        """The connection, without TLS of ours until the handshake is over."""
        self._begun = False
        """True once requests may come."""
        self._early: list[bytes] = []
        """What came before TLS was there to take it, then what TLS had to give before we were there."""
        self._securing: asyncio.Task[None] | None = None
        self._tls: dict[object, object] | None = None
        self._until: float | None = None
        """When the handshake or head must be here; None while neither is awaited."""
        self._written_until: float | None = None
        self._in_head = True
        self._fed = 0
        """Bytes fed since a head began; 0 where none did."""
        self._head_bytes = 0
        self._fields = 0
        self._chunks = 0
        self._refusal: Refused | None = None
        self._parted = 0
        """After the last answer: 1, and the bytes dropped since."""

    # A connection begins and ends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # we listen on streams only
        """Count it; then shake hands where TLS is ours."""
        self._below = transport
        peer = get_remote_addr(transport)
        if not self._door.enter(self, peer[0] if peer else None):
            self._parted = 1
            transport.abort()
            return
        self.connections.add(self)
        self._until = self.loop.time() + self._door.wait_seconds
        if self._door.context is None:
            self._begin(transport)
            return
        self._securing = self.loop.create_task(self._secure(transport))

    async def _secure(self, plain: asyncio.Transport) -> None:
        context = self._door.context
        assert context is not None
        # uvloop reads from a new connection whatever its protocol said: only now does it listen.
        plain.pause_reading()
        before, self._early = self._early, []
        handshake = self.loop.create_task(
            self.loop.start_tls(
                plain,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._door.wait_seconds,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        )
        # Its first step puts TLS below us and has it begin in the next round; behind that goes what came before.
        await asyncio.sleep(0)
        if before:
            self.loop.call_soon(_feed, plain, b"".join(before))
        try:
            secured = await handshake
        except (OSError, RuntimeError):  # also: every failure of TLS, its time-out; a connection that is gone
            secured = None
        if secured is None or secured.is_closing():
            self._left()
            return
        self._begin(secured)
        suite = negotiated_suite(secured)
        if suite is None:
            log.warning("tls.suite_refused", client=self.client[0] if self.client else "unix")
            self.abort()
            return
        self._tls = extension(secured.get_extra_info("ssl_object"), suite)
        self._until = self.loop.time() + self._door.wait_seconds
        for data in self._early:
            self.data_received(data)
        self._early = []

    def _begin(self, transport: asyncio.Transport) -> None:
        self._below, self._begun = transport, True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._left()
        if self._begun:
            super().connection_lost(exc)

    def _left(self) -> None:
        self._until = self._written_until = None
        self.connections.discard(self)
        self._door.leave(self)

    def abort(self) -> None:
        """End it at once, whatever is under way."""
        self._parted = self._parted or 1
        if self._below is not None:
            self._below.abort()

    def shutdown(self) -> None:
        """End it as soon as what was accepted is answered: the server stops."""
        if not self._begun or self.cycle is None:
            # Every answer ends its connection now.
            self.loop.call_later(HELLO_SECONDS, self._end_without_hello)
            return
        self._end()

    def _end_without_hello(self) -> None:
        if self._begun:
            self._end()
        else:
            self.abort()

    def _end(self) -> None:
        idle = self._tls is not None and self.waits and not self.transport.get_write_buffer_size()
        super().shutdown()
        if idle:
            # Goodbye is said; that the client says it too is waited for by TLS, for seconds, and by nobody else.
            self.loop.call_later(GOODBYE_SECONDS, self.abort)

    @property
    def waits(self) -> bool:
        """True while no request of it is being served or read."""
        return self._in_head and not _under_way(self.cycle)

    def overdue(self, now: float) -> bool:
        """Return True where the client took too long over a handshake, a head or an answer."""
        return any(until is not None and until < now for until in (self._until, self._written_until))

    def pause_writing(self) -> None:
        """The client does not read."""
        self._written_until = self.loop.time() + self._door.write_seconds
        super().pause_writing()

    def resume_writing(self) -> None:
        """It does."""
        self._written_until = None
        super().resume_writing()

    # What comes

    def data_received(self, data: bytes) -> None:
        """Feed the parser, no more of a head at a time than a head may have."""
        if not self._begun and not self._parted:
            self._early.append(data)
            return
        while data and not self._parted:
            if not self._in_head:
                super().data_received(data)
                return
            if self._until is None:
                self._until = self.loop.time() + self._door.wait_seconds
            piece, data = data[:HEAD_BYTES], data[HEAD_BYTES:]
            self._fed += len(piece)
            super().data_received(piece)
            if self._fed > 2 * HEAD_BYTES and not self._parted:
                # One field without end: the parser has told us nothing of it yet.
                self._refusal = Refused(431, f"at most {HEAD_BYTES} bytes of head are read")
                self.send_400_response("")
        if self._parted:
            self._parted += len(data)
            if self._parted > LINGER_BYTES:
                self.abort()

    def on_message_begin(self) -> None:
        """Begin a request."""
        if len(self.pipeline) >= PIPELINED:
            self._refuse(400, f"at most {PIPELINED} requests may wait for their answers")
        super().on_message_begin()
        self._fed = self._head_bytes = self._fields = self._chunks = 0
        if self._tls is not None:
            self.scope["extensions"] = {"tls": self._tls}

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._count(len(url), len(self.url) + len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; one behind the body counts and is dropped: nobody looked at it when it could have mattered."""
        self._fields += 1
        if self._fields > FIELDS:
            self._refuse(431, f"at most {FIELDS} fields are read")
        size = len(name) + len(value)
        self._count(size, size)
        if self._in_head:
            super().on_header(name, value)

    def _count(self, size: int, line: int) -> None:
        self._head_bytes += size
        if line > LINE_BYTES:
            self._refuse(431, f"at most {LINE_BYTES} bytes of one field are read")
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, f"at most {HEAD_BYTES} bytes of head are read")

    def on_headers_complete(self) -> None:
        """Hand the request on if it is one."""
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            self._refuse(400, "HTTP 1.1 is spoken here")
        if sum(name == b"host" for name, _ in self.headers) != 1:
            self._refuse(400, "a request names its Host, once")
        super().on_headers_complete()
        self._in_head = False
        self._fed = 0
        self._until = None

    def on_chunk_header(self) -> None:
        """Count a piece of the body."""
        self._chunks += 1
        if self._chunks > CHUNKS:
            self._refuse(400, f"at most {CHUNKS} pieces of a body are read")

    def on_message_complete(self) -> None:
        """End a request; what follows is the next one's head."""
        super().on_message_complete()
        self._in_head = True
        self._fed = 0

    def on_response_complete(self) -> None:
        """Go on with the next request, unless this one was answered before it was all here."""
        super().on_response_complete()
        if not self._in_head and self.cycle.response_complete:
            self._part()

    # What is refused

    def _refuse(self, status: int, reason: str) -> None:
        self._refusal = Refused(status, reason)
        raise self._refusal

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 -- the signature is uvicorn's
        """Answer what is no request with a problem, where an answer may still be written."""
        refusal = self._refusal or Refused(400, "not HTTP/1.1")
        request_id = f"connection-{secrets.token_hex(8)}"
        code = problems.FRAMEWORK_CODES[refusal.status]
        client = self.client[0] if self.client else "unix"
        log.info("connection.refused", client=client, code=code, detail=str(refusal), request_id=request_id)
        if _under_way(self.cycle) or self.pipeline:
            # In the middle of an answer, another one would be taken for a part of it.
            self.abort()
            return
        body = problems.problem(code, refusal.status, str(refusal), request_id)
        self.transport.write(_on_the_wire(body, request_id))
        self._part()

    def _part(self) -> None:
        """Say no more, and drop what still comes for a while: ending at once would take our answer back."""
        self._parted = self._parted or 1
        self._until = self.loop.time() + LINGER_SECONDS
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


def _on_the_wire(body: Problem, request_id: str) -> bytes:
    answer = problems.response(body, {"connection": "close", "x-request-id": request_id})
    fields = [*answer.raw_headers, *HEADERS]
    head = [STATUS_LINE[body.status], *(b"%s: %s\r\n" % field for field in fields), b"\r\n"]
    return b"".join([*head, bytes(answer.body)])


def _feed(transport: asyncio.Transport, data: bytes) -> None:
    """Give *data* to the protocol of *transport* as if it had come by it now."""
    # TLS, of asyncio or of uvloop: a buffered protocol, though the latter's class does not say so.
    protocol = cast("asyncio.BufferedProtocol", transport.get_protocol())
    if transport.is_closing() or not hasattr(protocol, "get_buffer"):
        return
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


def _under_way(cycle: RequestResponseCycle | None) -> bool:
    return cycle is not None and not cycle.response_complete


def _files() -> int:
    """Return how many files this process may open, after asking for as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
