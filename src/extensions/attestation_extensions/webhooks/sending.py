"""One attempt: resolve, check, connect to what was checked, send, and read a little of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpcore

from attestation.errors import AttestationError
from attestation_extensions.webhooks.addresses import AddressRefused, Network, Target, demand_allowed

ATTEMPT_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 4096
RESOLVING: Final = 4
"""Names that one worker resolves at the same time."""
MOST_ADDRESSES: Final = 3
"""Of one name, that are tried one after the other."""
LONGEST_RETRY_AFTER: Final = 86_400

Resolve = Callable[[str, int], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an attempt.

    Args:
        status: Of HTTP; None where there was no answer.
        error: In words, where it failed before one.
        answer: The beginning of the body.
        retry_after: Seconds that the receiver asked for.
        milliseconds: How long it took.
    """

    status: int | None
    error: str | None
    answer: bytes
    retry_after: int | None
    milliseconds: int

    @property
    def ok(self) -> bool:
        """True where the receiver took it: 2xx only; a redirect is none."""
        return self.status is not None and 200 <= self.status < 300


def _addresses(host: str, port: int) -> list[str]:
    return [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Resolver:
    """Finds the addresses of hosts on threads of its own: a name server that drips holds up no other work."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVING, thread_name_prefix="webhooks-resolve")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of *host*."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, _addresses, host, port)

    def close(self) -> None:
        """Wait for none of them."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to an address that was checked a moment before: the name is not asked again in between."""

    def __init__(self, allowed: Sequence[Network], resolver: Resolve) -> None:
        self._inner, self._allowed, self._resolve = httpcore.AnyIOBackend(), allowed, resolver

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 -- the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not addresses:
            raise httpcore.ConnectError("the name has no address")
        # One that leads inside is enough to refuse all: a name of the internet has no reason for it.
        for each in addresses:
            demand_allowed(each, self._allowed)
        *first, last = dict.fromkeys(addresses[:MOST_ADDRESSES])
        for each in first:  # one of them may be a way that this network has not, IPv6 for example
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._inner.connect_tcp(each, port, timeout, local_address, socket_options)
        return await self._inner.connect_tcp(last, port, timeout, local_address, socket_options)


class Sender:
    """Sends deliveries; each on a connection of its own.

    Args:
        allowed: Networks beside the public internet.
        trust: Whose certificates are believed.
        proxy: URL of an egress proxy, which then does the connecting; it is the deployment's, so it is not checked.
        resolver: Finds the addresses of a host.
    """

    def __init__(
        self,
        *,
        allowed: Sequence[Network],
        trust: ssl.SSLContext,
        proxy: str | None = None,
        resolver: Resolve,
    ) -> None:
        self._allowed, self._trust, self._proxy, self._resolver = allowed, trust, proxy, resolver

    async def send(self, target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> Outcome:
        """Send once; each failure is an outcome too."""
        began = time.monotonic()
        status: int | None = None
        answer, retry_after, error = b"", None, None
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                if self._proxy is not None:
                    # The proxy connects; a name that leads inside is refused here all the same.
                    for each in await self._resolver(target.host, target.port):
                        demand_allowed(each, self._allowed)
                async with self._pool() as pool:
                    status, retry_after, answer = await _exchange(pool, target, headers, body)
        except TimeoutError:
            error = f"no answer within {ATTEMPT_SECONDS:.0f} s"
        except AddressRefused as e:
            error = str(e)
        except OSError as e:
            error = f"cannot be reached: {e.strerror or type(e).__name__}"
        except Exception as e:  # noqa: BLE001 -- httpcore's, anyio's, h11's: none of them may end the task
            error = str(e) if isinstance(e, AttestationError) else in_words(e)
        return Outcome(
            status=status if error is None else None,
            error=error,
            answer=answer,
            retry_after=retry_after,
            milliseconds=int((time.monotonic() - began) * 1000),
        )

    def _pool(self) -> httpcore.AsyncConnectionPool:
        if self._proxy is not None:
            return httpcore.AsyncHTTPProxy(self._proxy, ssl_context=self._trust, http1=True)
        return httpcore.AsyncConnectionPool(
            ssl_context=self._trust, network_backend=_Checked(self._allowed, self._resolver), http1=True
        )


def in_words(error: BaseException) -> str:
    """Return what a person needs to know of an attempt that failed: the cause, which httpcore wraps."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not believed: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS fails: {cause.reason or type(cause).__name__}"
        if isinstance(cause, OSError) and cause.errno is not None:
            return f"cannot be reached: {os.strerror(cause.errno)}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpcore.TimeoutException):
        return "no connection, or no answer, in time"
    if isinstance(error, httpcore.ProtocolError):
        return "what it answers is no HTTP"
    return f"failed: {type(error).__name__}"


async def _exchange(
    pool: httpcore.AsyncConnectionPool, target: Target, headers: Sequence[tuple[str, str]], body: bytes
) -> tuple[int, int | None, bytes]:
    times = dict.fromkeys(("connect", "pool"), CONNECT_SECONDS) | dict.fromkeys(
        ("read", "write"), ATTEMPT_SECONDS
    )
    fields = [*headers, ("content-length", str(len(body))), ("connection", "close")]
    async with pool.stream(
        "POST",
        target.url,
        headers=[("host", _host(target)), *fields],
        content=body,
        extensions={"timeout": times},
    ) as response:
        told = {name.lower(): value for name, value in response.headers}
        answer = b""
        async for chunk in response.aiter_stream():
            answer = (answer + chunk)[:MAX_ANSWER_BYTES]
            if len(answer) == MAX_ANSWER_BYTES:
                break
        return response.status, _seconds(told.get(b"retry-after", b"")), answer


def _host(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    usual = 443 if target.scheme == "https" else 80
    return host if target.port == usual else f"{host}:{target.port}"


def _seconds(text: bytes) -> int | None:
    """Return the seconds that `Retry-After` names, as a number or a date; None where it names none."""
    word = text[:64].decode("latin-1").strip()
    if word.isascii() and word.isdigit() and len(word) < 10:
        return min(int(word), LONGEST_RETRY_AFTER)
    try:
        return max(0, min(int(parsedate_to_datetime(word).timestamp() - time.time()), LONGEST_RETRY_AFTER))
    except (ValueError, OverflowError, TypeError):
        return None
