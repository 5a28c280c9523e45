"""Bodies are read before a thread is taken for them: bounded, in time, so that slow senders hold nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

LONGEST_BYTES: Final = 2 << 20
"""A policy, an import of an allow-list; nothing that a form of ours sends is longer."""
SECONDS: Final = 20.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


class Bodies:
    """Reads each body to its end and hands it over in one piece.

    Args:
        app: What is served, an application of ASGI.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(SECONDS):
                body = await _whole(receive)
        except TimeoutError:
            await _refuse(send, 408)
            return
        if body is None:
            await _refuse(send, 413)
            return
        pieces = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return pieces.pop() if pieces else await receive()

        await self._app(scope, again, send)


async def _whole(receive: Receive) -> bytes | None:
    """Return a body; None where it is too long."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > LONGEST_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
