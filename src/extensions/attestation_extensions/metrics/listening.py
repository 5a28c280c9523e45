"""A listener of its own for the numbers: an address that only Prometheus reaches, instead of a credential.

It reads one request of HTTP/1, answers and closes. Each worker listens at the same address: all show the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

REQUEST_BYTES: Final = 8 * 1024
SECONDS: Final = 5.0
AT_ONCE: Final = 16
"""Connections; who comes beyond them is closed at once."""

Answer = Callable[[str | None], Awaitable[tuple[HTTPStatus, str, bytes]]]
"""Given what stands in `Authorization`, return status, media type and body."""


def parse(head: bytes) -> tuple[HTTPStatus, str | None]:
    """Read the *head* of a request, up to the empty line.

    Returns:
        OK and what stands in its one `Authorization`, else the status that refuses it.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1"):
        return HTTPStatus.BAD_REQUEST, None
    if words[1].partition("?")[0] != "/metrics":
        return HTTPStatus.NOT_FOUND, None
    if words[0] != "GET":
        return HTTPStatus.METHOD_NOT_ALLOWED, None
    headers = [line.partition(":") for line in lines[1:] if line]
    found = [value.strip() for name, _, value in headers if name.lower() == "authorization"]
    return HTTPStatus.OK, found[0] if len(found) == 1 else None


class Listener:
    """Listens.

    Args:
        answer: What is shown, to whom.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._open = 0

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Begin at *host* and *port*, together with the other workers."""
        return await asyncio.start_server(self._serve, host, port, reuse_port=True, limit=REQUEST_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= AT_ONCE:
                async with asyncio.timeout(SECONDS):
                    await self._talk(reader, writer)
        except (TimeoutError, OSError):
            pass
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, authorization = parse(await reader.readuntil(b"\r\n\r\n"))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, authorization = HTTPStatus.BAD_REQUEST, None
        media_type, body = "text/plain; charset=utf-8", b""
        if status is HTTPStatus.OK:
            status, media_type, body = await self._answer(authorization)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {media_type}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
        )
        if status is HTTPStatus.UNAUTHORIZED:
            head += "WWW-Authenticate: Bearer\r\n"
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
