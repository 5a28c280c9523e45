"""What witnesses and time stamping authorities have in common: they are asked, briefly, and may fail."""

from __future__ import annotations

from typing import Final, Protocol

import httpx

from attestation.errors import NotAuthentic
from attestation.store import CountersignatureKind, Store, StoredCheckpoint

TOLD_SECONDS: Final = 10.0
"""Longest that one of them may take, with all its requests."""

REQUEST_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 65_536


class CountersignatureRejected(NotAuthentic):
    """A witness or time stamping authority answered what does not verify, or nothing."""

    code = "countersignature-rejected"


class Countersigner(Protocol):
    """Somebody who says something about our checkpoints."""

    kind: CountersignatureKind
    name: str

    async def countersign(self, stored: StoredCheckpoint, store: Store) -> bytes:
        """Return what they say of *stored*, verified.

        Raises:
            CountersignatureRejected: They refused, or it does not verify.
            httpx.HTTPError: They could not be reached.
        """
        ...


def client() -> httpx.AsyncClient:
    """Return a client that waits briefly, follows nobody, and takes no proxy from the environment."""
    return httpx.AsyncClient(timeout=REQUEST_SECONDS, follow_redirects=False, trust_env=False)


async def post(
    http: httpx.AsyncClient, url: str, content: bytes, headers: dict[str, str]
) -> tuple[int, str, bytes]:
    """Send *content* and return status, media type and body, at most 64 KiB of it.

    Raises:
        CountersignatureRejected: The answer is longer.
        httpx.HTTPError: There is none.
    """
    async with http.stream("POST", url, content=content, headers=headers) as answer:
        body = b""
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MAX_ANSWER_BYTES:
                raise CountersignatureRejected(f"answer longer than {MAX_ANSWER_BYTES} bytes")
    return answer.status_code, answer.headers.get("content-type", "").partition(";")[0].strip().lower(), body
