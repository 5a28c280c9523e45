"""What witnesses and time stamping authorities have in common: they are asked, briefly, and may fail.

httpx is loaded when the first of them is asked: without any, a worker saves three megabytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from attestation.errors import NotAuthentic, Unavailable
from attestation.store import CountersignatureKind, Store, StoredCheckpoint

if TYPE_CHECKING:
    import httpx

TOLD_SECONDS: Final = 10.0
"""Longest that one of them may take, with all its requests."""

REQUEST_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 65_536


class CountersignatureRejected(NotAuthentic):
    """A witness or time stamping authority answered what does not verify, or nothing."""

    code = "countersignature-rejected"


class CountersignerUnreachable(Unavailable):
    """A witness or time stamping authority did not answer."""

    code = "countersigner-unreachable"


class Countersigner(Protocol):
    """Somebody who says something about our checkpoints."""

    kind: CountersignatureKind
    name: str

    async def countersign(self, stored: StoredCheckpoint, store: Store) -> bytes:
        """Return what they say of *stored*, verified.

        Raises:
            CountersignatureRejected: They refused, or it does not verify.
            CountersignerUnreachable: They could not be reached.
        """
        ...


def client() -> httpx.AsyncClient:
    """Return a client that waits briefly, follows nobody, and takes no proxy from the environment."""
    import httpx

    return httpx.AsyncClient(timeout=REQUEST_SECONDS, follow_redirects=False, trust_env=False)


async def post(
    http: httpx.AsyncClient, url: str, content: bytes, headers: dict[str, str]
) -> tuple[int, str, bytes]:
    """Send *content* and return status, media type and body, at most 64 KiB of it.

    Raises:
        CountersignatureRejected: The answer is longer.
        CountersignerUnreachable: There is none.
    """
    import httpx

    try:
        async with http.stream("POST", url, content=content, headers=headers) as answer:
            body = b""
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise CountersignatureRejected(f"answer longer than {MAX_ANSWER_BYTES} bytes")
    except httpx.HTTPError as e:
        raise CountersignerUnreachable(type(e).__name__) from e
    return answer.status_code, answer.headers.get("content-type", "").partition(";")[0].strip().lower(), body
