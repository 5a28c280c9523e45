"""Who watches requests: for `attestation -v`, and for programs that look for a fault.

What is told of a request is what may stand on a screen or in a ticket: no header, no body, no config token, which is
the one secret that stands in a path (PROTOCOL §5).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attestation.client.text import clean

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier, Reply

_CONFIG_TOKEN = re.compile(r"(/config/)[^/?]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and how it was answered; repeated ones are told each.

    Args:
        method: GET, POST, ….
        url: With its query, without a config token.
        milliseconds: From the sending to the head of the answer.
        status: HTTP status; None where nothing was answered.
        request_id: How the service calls the request in its log, clean; None where it does not say.
        failure: Why nothing was answered, clean, or None.
    """

    method: str
    url: str
    milliseconds: float
    status: int | None = None
    request_id: str | None = None
    failure: str | None = None


Watcher = Callable[[Exchange], None]
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell *watcher* of each request of clients that are made inside, in this thread or task."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(carrier: Carrier) -> Carrier:
    """Return *carrier*, under the eyes of who watches now."""
    watcher = _watcher.get()
    return carrier if watcher is None else _Watched(carrier, watcher)


class _Watched:
    """A carrier that tells of each request."""

    def __init__(self, carrier: Carrier, watcher: Watcher) -> None:
        self._carrier, self._watcher = carrier, watcher

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        start = time.monotonic()

        def tell(status: int | None, request_id: str | None, failure: str | None) -> None:
            self._watcher(
                Exchange(
                    method=method,
                    url=clean(_CONFIG_TOKEN.sub(r"\1***", url)),
                    milliseconds=(time.monotonic() - start) * 1000,
                    status=status,
                    request_id=None if request_id is None else clean(request_id),
                    failure=None if failure is None else clean(failure),
                )
            )

        try:
            reply = self._carrier.send(method, url, headers, body)
        except Exception as e:  # whatever ended it is told, and goes on its way
            tell(None, None, str(e))
            raise
        tell(reply.status, reply.headers.get("x-request-id"), None)
        return reply

    def close(self) -> None:
        self._carrier.close()
