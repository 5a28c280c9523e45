"""The Image Factory over HTTP: it is sent a schematic, and must call it what we call it (DELIVERY-AND-OPERATORS §6).

Only who asks for an image asks it. No approval, registration or bundle waits for it (R24).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from attestation.errors import FactoryAnswerInvalid, FactoryUnavailable, SchematicMismatch
from attestation.text import clean

if TYPE_CHECKING:
    import httpx

    from attestation.talos.schematic import Schematic

ANSWER_SECONDS: Final = 30.0
MAX_ANSWER_BYTES: Final = 256 << 10
MAX_ERROR_CHARACTERS: Final = 200
CREATED: Final = (200, 201)


class Factory(Protocol):
    """What makes images of schematics."""

    async def create(self, schematic: Schematic) -> str:
        """Make *schematic* known, and return its id, which is the one computed here.

        Raises:
            FactoryUnavailable: No answer in time, or it refuses.
            FactoryAnswerInvalid: An answer that no factory gives.
            SchematicMismatch: It calls the schematic otherwise.
            SchematicInvalid: The schematic has no id that can be said offline.
        """
        ...


class HTTPFactory:
    """A factory at an address, the public one or your own.

    Args:
        url: Its address, without a slash at its end.
        ca_file: PEM with the only CAs to trust for it; None: those of the system.
    """

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        self._url, self._ca_file = url, ca_file

    async def create(self, schematic: Schematic) -> str:
        """Implement `Factory`."""
        text = schematic.canonical()
        status, body = await self._post(text)
        if status not in CREATED:
            # Errors are plain text of somebody else: shown shortened, and as one line.
            said = clean(body[: 4 * MAX_ERROR_CHARACTERS].decode(errors="replace"))[:MAX_ERROR_CHARACTERS]
            raise FactoryUnavailable(f"the image factory answered {status}: {said}")
        found = _id_of(body)
        if found != schematic.id:
            raise SchematicMismatch(
                f"the image factory calls the schematic {found[:16]}…, its text has the id {schematic.id[:16]}…: "
                "its images are not used"
            )
        return found

    async def _post(self, text: bytes) -> tuple[int, bytes]:
        """Send a schematic and return status and body."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._client() as http:
                request = http.build_request(
                    "POST", f"{self._url}/schematics", content=text, headers={"Content-Type": "text/yaml"}
                )
                answer = await http.send(request, stream=True)
                try:
                    body = bytearray()
                    # Raw: what is compressed unasked cannot swell here.
                    async for piece in answer.aiter_raw():
                        body += piece
                        if len(body) > MAX_ANSWER_BYTES:
                            raise FactoryAnswerInvalid(
                                f"the image factory answers more than {MAX_ANSWER_BYTES} bytes"
                            )
                finally:
                    await answer.aclose()
        except _failures() as e:
            raise FactoryUnavailable(f"the image factory does not answer: {type(e).__name__}") from e
        return answer.status_code, bytes(body)

    def _client(self) -> httpx.AsyncClient:
        # Loaded when the first image is asked for: most workers never do.
        import httpx

        return httpx.AsyncClient(
            verify=ssl.create_default_context(cafile=self._ca_file),
            timeout=ANSWER_SECONDS,
            follow_redirects=False,
            trust_env=False,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )


def _failures() -> tuple[type[Exception], ...]:
    import httpx

    # OSError: also of a file of CAs that cannot be read.
    return httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError


def _id_of(body: bytes) -> str:
    """Return the id in an answer: `{id, schematic}`, of older factories `{id}`."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    name = found.get("id") if isinstance(found, dict) else None
    if not isinstance(name, str) or not name.isascii() or not name.isprintable() or len(name) > 128:
        raise FactoryAnswerInvalid("the image factory's answer has no id")
    return name
