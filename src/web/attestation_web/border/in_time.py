"""The service is asked for one page for so long, and then no more: a person waits, and a thread with them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from flask import Flask, g, has_request_context
from werkzeug.wrappers import Response

from attestation.client.errors import ServiceUnreachable

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier, Reply

SECONDS: Final = 30.0
"""With the last answer, which has its own time, less than proxies wait by default (60 s)."""


class InTime:
    """Carries what a page asks; acts and what is streamed have times of their own.

    Args:
        carrier: Carries it.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request, unless its page takes too long already.

        Raises:
            ServiceUnreachable: It does; or as the carrier does.
        """
        if method == "GET" and has_request_context():
            at = time.monotonic()
            until = g.setdefault("asks_until", at + SECONDS)
            if until is not None and at > until:
                raise ServiceUnreachable(
                    f"it is slow: what this page asks took longer than {SECONDS:.0f} s", sent=False
                )
        return self._carrier.send(method, url, headers, body)

    def close(self) -> None:
        """Close the connections."""
        self._carrier.close()


def install(app: Flask) -> None:
    """Let what *app* streams take as long as it takes: it is read meanwhile."""

    @app.after_request
    def streams(response: Response) -> Response:
        g.asks_until = None
        return response
