"""Threads: each request waits for its turn, no longer than somebody would, and not for somebody who has left.

Where the service hangs, each page that asks it holds a thread for seconds. Then pages that ask by themselves leave half
of the threads to people, and who gave up before their turn takes none.
"""

from __future__ import annotations

import asyncio
from typing import Final

from attestation_web.border.bodies import Application, Message, Receive, Send

SECONDS: Final = 10.0
RETRY_SECONDS: Final = 5
BUSY: Final = (
    b"The dashboard is busy: everything that it asks takes long. Nothing was done. Try again in a moment.\n"
)
BY_ITSELF: Final = b"hx-request"


class Turns:
    """Lets so many requests through at a time.

    Args:
        app: What is served, an application of ASGI.
        threads: How many at a time.
    """

    def __init__(self, app: Application, threads: int) -> None:
        self._app = app
        self._all = asyncio.Semaphore(threads)
        self._by_themselves = asyncio.Semaphore(max(1, threads // 2))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, whose body comes in one piece."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        pieces = [await receive()]
        # Behind the body nothing comes, but that the browser has left.
        left = asyncio.ensure_future(receive())
        turns = [self._all]
        if any(name == BY_ITSELF for name, _ in scope["headers"]):
            turns.insert(0, self._by_themselves)
        turn = asyncio.ensure_future(_take(turns))
        try:
            await asyncio.wait((left, turn), timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                return
            if not turn.done():
                await _busy(send)
                return

            async def again() -> Message:
                return pieces.pop() if pieces else await asyncio.shield(left)

            await self._app(scope, again, send)
        finally:
            left.cancel()
            turn.cancel()
            await asyncio.wait((turn,))
            if not turn.cancelled():
                _give(turns)


async def _take(turns: list[asyncio.Semaphore]) -> None:
    taken: list[asyncio.Semaphore] = []
    try:
        for each in turns:
            await each.acquire()
            taken.append(each)
    except asyncio.CancelledError:
        _give(taken)
        raise


def _give(turns: list[asyncio.Semaphore]) -> None:
    for each in turns:
        each.release()


async def _busy(send: Send) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"retry-after", b"%d" % RETRY_SECONDS),
        (b"content-length", b"%d" % len(BUSY)),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": BUSY})
