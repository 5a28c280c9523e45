"""Requests over httpx: for proxies, which the environment may name, and for the transports of tests."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping

import httpx

from attestation.client.carrier import CONNECT_SECONDS, READ_SECONDS
from attestation.client.errors import ServiceUnreachable
from attestation.client.plain import tls_failed

_TIMEOUT = httpx.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS, write=READ_SECONDS, pool=CONNECT_SECONDS)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


class HTTPXCarrier:
    """HTTP/1.1 over httpx.

    Args:
        url: Address of the service.
        tls: What https verifies with; None for http.
        transport: What carries the requests instead of the network.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None, transport: httpx.BaseTransport | None) -> None:
        self._url = url
        self._client = httpx.Client(
            verify=tls or True, timeout=_TIMEOUT, follow_redirects=False, transport=transport
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> HTTPXReply:
        """Send a request and read the head of the answer."""
        request = self._client.build_request(method, url, headers=dict(headers), content=body)
        try:
            return HTTPXReply(self._url, self._client.send(request, stream=True))
        except httpx.HTTPError as e:
            raise _unreachable(self._url, e) from e


class HTTPXReply:
    """An answer of `HTTPXCarrier`."""

    def __init__(self, url: str, response: httpx.Response) -> None:
        self._url, self._response = url, response
        self.status = response.status_code
        self.reason = response.reason_phrase
        self.headers: Mapping[str, str] = {k.lower(): v for k, v in response.headers.items()}

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it is."""
        try:
            # They are the bytes themselves: an answer in any encoding but identity is refused before it is read.
            yield from self._response.iter_bytes()
        except httpx.HTTPError as e:
            raise _unreachable(self._url, e) from e

    def close(self) -> None:
        """Give the connection back, or up."""
        self._response.close()


def _unreachable(url: str, error: httpx.HTTPError) -> ServiceUnreachable:
    sent = not isinstance(error, _NOT_SENT)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not (sent and isinstance(cause, ssl.SSLEOFError)):
            return tls_failed(url, cause)
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return ServiceUnreachable(f"{url} did not answer in time", sent=sent)
    if isinstance(error, httpx.ConnectError):
        return ServiceUnreachable(f"cannot connect to {url}: {_connect_reason(error)}", sent=sent)
    return ServiceUnreachable(f"the connection to {url} broke off", sent=sent)


def _connect_reason(error: BaseException) -> str:
    """Return the operating system's words, found at the bottom of the chain."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return "no connection"
