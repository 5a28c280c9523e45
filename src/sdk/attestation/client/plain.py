"""Requests over the standard library's HTTP client, which loads in a tenth of the time of httpx (docs/adr/0092)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from attestation.client.carrier import CONNECT_SECONDS, READ_SECONDS
from attestation.client.errors import NotTLS, ServiceUnreachable, TLSFailed
from attestation.errors import RequestInvalid

IDLE_SECONDS: Final = 3.0
"""A connection that nobody used for so long is not used again: servers end theirs after five."""
MAX_IDLE: Final = 4
CHUNK_BYTES: Final = 1 << 16


class PlainCarrier:
    """HTTP/1.1 to one host, connections kept between requests; may be used by several threads.

    Args:
        url: Address of the service.
        tls: What https verifies with; None for http.
        proxy: `[http://][user:password@]host[:port]` of what stands between; None for nothing. Of https it carries
            what it cannot read.

    Raises:
        RequestInvalid: *proxy* is not the address of a proxy of HTTP.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None, proxy: str | None = None) -> None:
        self._url = url
        parsed = urlsplit(url)
        assert parsed.hostname is not None
        assert (tls is not None) == (parsed.scheme == "https")
        self._tls = tls
        self._service = self._peer = (parsed.hostname, parsed.port or (443 if tls else 80))
        self._to_proxy: dict[str, str] = {}
        # Only the path and query are sent: a connection knows the rest. A proxy is told all of what it can read.
        self._origin = f"{parsed.scheme}://{parsed.netloc}"
        self._tunnelled = proxy is not None and tls is not None
        if proxy is not None:
            self._peer, self._to_proxy = _read_proxy(proxy)
            self._origin = self._origin if tls else ""
        # Appending and popping are atomic: two threads never hold one connection.
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._closed = False

    def close(self) -> None:
        """Close all connections; one that another thread still uses is closed when it gives it back."""
        self._closed = True
        while self._idle:
            self._idle.pop()[1].close()

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> PlainReply:
        """Send a request and read the head of the answer."""
        connection = self._used_before() or self._connect()
        try:
            told = dict(headers) if self._tunnelled else {**headers, **self._to_proxy}
            connection.request(method, url.removeprefix(self._origin), body=body, headers=told)
            response = connection.getresponse()
            assert isinstance(response, _Response)
        except (OSError, http.client.HTTPException) as e:
            connection.close()
            raise unreachable(self._url, e, sent=True) from e
        return PlainReply(self, connection, response)

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep *connection*, whose answer was read to its end, for the next request."""
        if len(self._idle) < MAX_IDLE and connection.sock is not None:
            self._idle.append((time.monotonic(), connection))
            if self._closed:
                self.close()
        else:
            connection.close()

    @property
    def url(self) -> str:
        """Address of the service, for messages."""
        return self._url

    def _used_before(self) -> http.client.HTTPConnection | None:
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:  # another thread was faster
                return None
            # Readable without a question asked: the peer closed it, or says what nobody wants to hear.
            if time.monotonic() - since < IDLE_SECONDS and not _readable(connection):
                return connection
            connection.close()
        return None

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            connection = http.client.HTTPConnection(*self._peer, timeout=CONNECT_SECONDS)
        else:
            connection = http.client.HTTPSConnection(*self._peer, timeout=CONNECT_SECONDS, context=self._tls)
        if self._tunnelled:
            connection.set_tunnel(*self._service, self._to_proxy)
        try:
            # What a proxy says to CONNECT, Python 3.11.2 leaves open, and with it the socket.
            with contextlib.ExitStack() as said:

                class Said(_Response):
                    def __init__(self, *args: Any, **more: Any) -> None:
                        super().__init__(*args, **more)
                        said.callback(self.close)

                connection.response_class = Said
                connection.connect()
                connection.response_class = _Response
        except (OSError, http.client.HTTPException, UnicodeError) as e:
            connection.close()
            raise unreachable(self._url, e, sent=False) from e
        connection.sock.settimeout(READ_SECONDS)
        return connection


def _read_proxy(proxy: str) -> tuple[tuple[str, int], dict[str, str]]:
    """Return host and port of *proxy*, and the header that it knows us by.

    Raises:
        RequestInvalid: Not the address of a proxy that speaks HTTP, unencrypted.
    """
    wrong = RequestInvalid("the proxy that the environment names must be http://host:port")
    try:
        parsed = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = parsed.hostname, parsed.port or 80
    except ValueError:
        raise wrong from None
    if not host or parsed.scheme != "http":
        raise wrong
    if parsed.username is None:
        return (host, port), {}
    known = f"{unquote(parsed.username)}:{unquote(parsed.password or '')}".encode()
    return (host, port), {"Proxy-Authorization": f"Basic {base64.b64encode(known).decode('ascii')}"}


class _InTime(io.RawIOBase):
    """What comes over a socket within `READ_SECONDS` of `restart`: its own timeout begins anew with each byte."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self.restart()

    def restart(self) -> None:
        """Begin another step."""
        self._until = time.monotonic() + READ_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._until:
            raise TimeoutError
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer, also of a proxy, whose head ends in time, and each piece of its body."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.in_time = _InTime(self.fp.detach())
        self.fp = io.BufferedReader(self.in_time)


class PlainReply:
    """An answer of `PlainCarrier`."""

    def __init__(
        self,
        carrier: PlainCarrier,
        connection: http.client.HTTPConnection,
        response: _Response,
    ) -> None:
        self._carrier, self._connection, self._response = carrier, connection, response
        self._whole = False
        self.status = response.status
        self.reason = response.reason
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.getheaders()}

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it is."""
        try:
            self._response.in_time.restart()
            while chunk := self._response.read1(CHUNK_BYTES):
                yield chunk
                self._response.in_time.restart()
            # Without this, a body that is cut off would look whole: `read1` only notices in chunked ones.
            if self._response.length:
                raise http.client.IncompleteRead(b"", self._response.length)
        except (OSError, http.client.HTTPException) as e:
            raise unreachable(self._carrier.url, e, sent=True) from e
        self._whole = True

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, else close it."""
        # Behind an interim answer the real one comes: it must not be read as that of the next request.
        again = self._whole and not self._response.will_close and self.status >= 200
        self._response.close()
        if again:
            self._carrier.give_back(self._connection)
        else:
            self._connection.close()


_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
"""What OpenSSL says of a first record that is none; the middle one since 3.2."""
_AT_ANOTHER_TIME: Final = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED: judged by the clock of this computer."""


def tls_failed(url: str, error: ssl.SSLError) -> TLSFailed:
    """Return what *error* of a handshake with *url* means."""
    reason = getattr(error, "reason", None) or ""
    if reason in _NOT_TLS:
        return NotTLS(f"{url} does not speak TLS")
    if "ALERT" in reason:
        words = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
        return TLSFailed(f"{url} refused our side of TLS: {words}")
    said = getattr(error, "verify_message", "") or reason.replace("_", " ").lower() or "TLS failed"
    if getattr(error, "verify_code", 0) in _AT_ANOTHER_TIME:
        said += f", by the clock of this computer, which says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return TLSFailed(f"{url} could not prove who it is: {said}")


def unreachable(url: str, error: BaseException, *, sent: bool) -> ServiceUnreachable:
    """Return what *error* of the standard library means."""
    # Who ends a connection that stood, without a word, proved before who they are.
    if isinstance(error, ssl.SSLError) and not (sent and isinstance(error, ssl.SSLEOFError)):
        return tls_failed(url, error)
    if isinstance(error, TimeoutError):
        return ServiceUnreachable(f"{url} did not answer in time", sent=sent)
    if not sent:
        reason = getattr(error, "strerror", None) or "no connection"
        return ServiceUnreachable(f"cannot connect to {url}: {reason}", sent=False)
    return ServiceUnreachable(f"the connection to {url} broke off", sent=True)


def _readable(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN | select.POLLERR | select.POLLHUP)
    return bool(poll.poll(0))
