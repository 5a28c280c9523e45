"""`http-01` (RFC 8555, 8.3): what answers at a host name knows the key authorization.

The service goes out to a host that somebody else's resolver names, so it goes nowhere but into
`ITL_ACME_HTTP_NETWORKS`: every address of the name must lie there, it connects to one that was checked and not to the
name again, follows no redirect, uses no proxy, and reads a few hundred bytes.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import structlog

from attestation.errors import RateLimited
from attestation_service.acme.problems import PREFIX
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.acme")

SECONDS: Final = 10.0
"""For all of it, the resolver included; and for its turn as long again."""
MAX_BYTES: Final = 512
MOST_ADDRESSES: Final = 4
AT_ONCE: Final = 8
"""So many are looked at side by side: each may take its whole time."""
_TURNS: Final = asyncio.Semaphore(AT_ONCE)
_RESOLVERS: Final = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="http-01")
"""A resolver that hangs holds its thread for as long as it likes: none that other work of the service needs."""


class _NotThere(Exception):
    """What is to be told of a host: the type of the problem, and words."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


async def look(hostname: str, token: str, expected: str, settings: Settings) -> dict[str, Any] | None:
    """Return None where the host has the key authorization; else why not, a problem.

    Raises:
        RateLimited: So many others are looked at that its turn did not come. Of the host that says nothing.
    """
    try:
        async with asyncio.timeout(SECONDS):
            await _TURNS.acquire()
    except TimeoutError:
        raise RateLimited("too many host names are looked at", retry_after_seconds=int(SECONDS) + 1) from None
    try:
        async with asyncio.timeout(SECONDS):
            found = await _ask(hostname, await _addresses(hostname, settings), token, settings)
    except TimeoutError:
        return _problem("connection", f"the host did not answer within {SECONDS:.0f} seconds")
    except _NotThere as e:
        log.info("acme.http01_failed", hostname=hostname, reason=str(e))
        return _problem(e.kind, str(e))
    finally:
        _TURNS.release()
    if not hmac.compare_digest(found.rstrip(), expected.encode("ascii")):
        return _problem("incorrectResponse", "the host answers something else than the key authorization")
    return None


async def resolve(hostname: str, port: int) -> list[str]:
    """Return the addresses of a host name."""
    look_up = partial(socket.getaddrinfo, hostname, port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look_up)
    except OSError:
        raise _NotThere("dns", "the host name leads to no address") from None
    return [str(each[4][0]) for each in found]


async def _addresses(hostname: str, settings: Settings) -> list[str]:
    """Return the first addresses of a host, all of which lie where the service may go."""
    addresses = await resolve(hostname, settings.acme_http_port)
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        if not any((mapped or address) in network for network in settings.acme_http_networks):
            # Not which: the resolver's answer is not for whoever asks.
            raise _NotThere("rejectedIdentifier", "the host name leads out of ITL_ACME_HTTP_NETWORKS")
    return list(dict.fromkeys(addresses))[:MOST_ADDRESSES]


async def _ask(hostname: str, addresses: list[str], token: str, settings: Settings) -> bytes:
    """Return what the first address says that answers at all: a host may listen on one of two families."""
    *before, last = addresses
    for address in before:
        try:
            return await _fetch(hostname, address, token, settings)
        except _NotThere as e:
            if e.kind != "connection":
                raise
    return await _fetch(hostname, last, token, settings)


async def _fetch(hostname: str, address: str, token: str, settings: Settings) -> bytes:
    # Here: few services look at hosts.
    import httpx

    host = f"[{address}]" if ":" in address else address
    port = settings.acme_http_port
    url = f"http://{host}:{port}/.well-known/acme-challenge/{token}"
    named = hostname if port == 80 else f"{hostname}:{port}"
    found = b""
    try:
        # No proxy and no certificate of the environment; nothing is kept open.
        async with (
            httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=SECONDS) as client,
            client.stream("GET", url, headers={"Host": named, "Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status_code != 200:
                raise _NotThere("unauthorized", f"the host answers {answer.status_code}")
            async for chunk in answer.aiter_raw():
                found += chunk
                if len(found) > MAX_BYTES:
                    raise _NotThere("unauthorized", f"the host answers more than {MAX_BYTES} bytes")
    except httpx.HTTPError:
        raise _NotThere("connection", "the host does not answer on the port") from None
    return found


def _problem(kind: str, words: str) -> dict[str, Any]:
    return {"type": PREFIX + kind, "detail": words, "status": 403}
