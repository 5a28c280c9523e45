"""A lean HTTP/1.1 client: keep-alive connections, nothing but what a load generator needs.

httpx costs more per request than the service; the two cores are shared, so the generator must be cheap.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self.head = b""
        """Of the newest answer, in lower case."""
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Collect until the body is complete."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        self.head = lower = head.lower()
        at = lower.find(b"content-length:")
        size = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) < size:
            return
        self._buffer = b""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result((int(head[9:12]), body[:size]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("closed by the server"))

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: str = "",
        *,
        content_type: str = "application/json",
    ) -> tuple[int, bytes]:
        """Return status and body of one request."""
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError("closed by the server")
        self._waiting = asyncio.get_running_loop().create_future()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: {content_type}\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode("ascii") + body)
        return await self._waiting

    async def json(self, method: str, path: str, members: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Return status and parsed body of one request."""
        body = b"" if members is None else json.dumps(members).encode()
        status, answer = await self.request(method, path, body)
        return status, json.loads(answer)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> Connection:
    """Return an open connection to 127.0.0.1:*port*."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def spread(
    port: int, concurrency: int, jobs: Sequence[Callable[[Connection], Awaitable[None]]], *, rounds: int = 1
) -> None:
    """Run *jobs* over *concurrency* connections, *rounds* times.

    Each job belongs to one connection, so the same machine never has two requests on their way.
    """

    async def worker(own: Sequence[Callable[[Connection], Awaitable[None]]]) -> None:
        connection = await connect(port)
        try:
            for _ in range(rounds):
                for job in own:
                    await job(connection)
        finally:
            connection.close()

    await asyncio.gather(*(worker(jobs[number::concurrency]) for number in range(concurrency)))
