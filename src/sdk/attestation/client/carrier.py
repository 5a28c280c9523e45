"""What carries requests: the contract. `plain` fulfils it with the standard library; a test may with anything.

Retries, limits, deadlines and the reading of answers stand above it, in `connection`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 15.0


class Reply(Protocol):
    """An answer whose head has been read.

    `headers` have names in lower case. `close` is called once, whether the chunks were read to their end or not.
    """

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def reason(self) -> str:
        """The words beside the status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Header fields, names in lower case."""
        ...

    def chunks(self) -> Iterator[bytes]:
        """Yield the body, as it is; raise `ServiceUnreachable` where it is cut off."""
        ...

    def close(self) -> None:
        """Give the connection back, or up."""
        ...


class Carrier(Protocol):
    """Sends one request and waits for the head of its answer; follows nothing, repeats nothing."""

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request.

        Args:
            method: GET, POST, ….
            url: With its query.
            headers: All but `Host` and `Content-Length`.
            body: The bytes, or None.

        Raises:
            ServiceUnreachable: No answer; `.sent` is False where nothing can have reached the service.
            TLSFailed: The peer could not prove who it is.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
