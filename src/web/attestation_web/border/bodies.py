"""Bodies are read before a thread is taken for them: bounded, in time, so that slow senders hold nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

LONGEST_BYTES: Final = 2 << 20
"""A policy, an import of an allow-list; nothing that a form of ours sends is longer."""
SMALL_BYTES: Final = 64 << 10
"""Forms are; all connections may send one at the same time."""
MOST_LARGE_BYTES: Final = 64 << 20
"""What is longer has this together: strangers send it too."""
MOST_DROPPED_BYTES: Final = 32 << 20
SECONDS: Final = 20.0
WORDS: Final = {
    408: f"This did not arrive within {SECONDS:.0f} seconds. Nothing was done.\n",
    413: f"This is too long: at most {LONGEST_BYTES >> 20} MiB are read. Nothing was done. Go back, and send less.\n",
    503: "Too much is being sent at the same time. Nothing was done. Try again in a moment.\n",
}

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
        self._large = 0
        """Bytes of large bodies that are held now."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            async with asyncio.timeout(SECONDS):
                refused = await self._read(receive, body)
        except TimeoutError:
            refused = 408
        try:
            if refused is not None:
                await _refuse(send, refused)
                return
            pieces = [{"type": "http.request", "body": bytes(body), "more_body": False}]

            async def again() -> Message:
                return pieces.pop() if pieces else await receive()

            await self._app(scope, again, send)
        finally:
            self._large -= _beyond(body)

    async def _read(self, receive: Receive, body: bytearray) -> int | None:
        """Fill *body*; return the status with which it is refused, or None where it is whole."""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                # Half a form is none: nothing is done with it, and nobody reads why.
                return 408
            before = _beyond(body)
            body += message.get("body", b"")
            self._large += _beyond(body) - before
            refused = 413 if len(body) > LONGEST_BYTES else 503 if self._large > MOST_LARGE_BYTES else None
            if refused is not None:
                self._large -= _beyond(body)
                body.clear()
                return await self._dropped(receive, message, refused)
            if not message.get("more_body", False):
                return None

    @staticmethod
    async def _dropped(receive: Receive, message: Message, refused: int) -> int:
        """Read on to the end and drop it: a browser that is still sending reads no answer."""
        dropped = 0
        while message.get("more_body", False) and dropped < MOST_DROPPED_BYTES:
            message = await receive()
            dropped += len(message.get("body", b""))
        return refused


def _beyond(body: bytearray) -> int:
    return max(0, len(body) - SMALL_BYTES)


async def _refuse(send: Send, status: int) -> None:
    words = WORDS[status].encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"content-length", b"%d" % len(words)),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": words})
