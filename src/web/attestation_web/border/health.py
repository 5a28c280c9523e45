"""Whether the process serves: answered to anybody, whatever host they ask for, without a thread."""

from __future__ import annotations

from typing import Final

from attestation_web.border.bodies import Application, Message, Receive, Send

PATH: Final = "/healthz"
_HEADERS: Final = [
    (b"content-type", b"text/plain"),
    (b"cache-control", b"no-store"),
    (b"content-length", b"3"),
]


class Health:
    """Answers probes, which know addresses and no names; all else is for the application.

    Args:
        app: What is served, an application of ASGI.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": b"ok\n"})
