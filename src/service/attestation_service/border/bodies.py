"""Bodies: how much of one is read, how long, in whose memory, and what it becomes.

Nothing of this is proof, and all of it is done for strangers, so each step is bounded before it is taken:

1. A route says what it may carry (`of_access`); what announces more is refused unread.
2. What goes beyond 16 KiB is charged to the sender's network before it is read: bytes, which stand for the work of
   reading and parsing them too, and memory for as long as the request lasts.
3. A body that comes too slowly is given up.
4. What a parser would build is bounded before it parses (`json_bounds.py`); beyond 16 KiB it parses on a thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from attestation_service.border import json_bounds
from attestation_service.border.json_bounds import Bounds

Model = TypeVar("Model", bound=BaseModel)

SMALL_BYTES: Final = 16 << 10
"""So much is read and parsed like any other bytes of a request: on the loop, charged to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a route may carry.

    Args:
        size_bytes: Of the body, as sent.
        bounds: Of what it says, where it is JSON.
    """

    size_bytes: int
    bounds: Bounds


NOTHING: Final = Allowed(size_bytes=SMALL_BYTES, bounds=Bounds(values=64))
"""Where no route is, or one that reads no body."""
OF_MACHINES: Final = Allowed(size_bytes=128 << 10, bounds=Bounds(values=1_024))
OF_OPERATORS: Final = Allowed(size_bytes=1 << 20, bounds=Bounds(values=16_384))
WITH_LOGS: Final = Allowed(size_bytes=4 << 20, bounds=Bounds(values=1_024))
"""Boot logs and measurement lists: few members, long strings."""
LISTS: Final = Bounds(values=65_536)
"""Lists of operators, read only after it is known who asks."""


def parse_json(model: type[Model], body: bytes, bounds: Bounds = LISTS) -> Model:
    """Return *body* as *model*; not on the event loop where it is long.

    Raises:
        BodyTooComplex: It holds more than *bounds*.
        RequestValidationError: Not JSON, or not of this form.
    """
    json_bounds.demand(body, bounds)
    try:
        # The faster of the two for what is short; for what is long it takes, and holds, four times as long.
        if len(body) <= SMALL_BYTES:
            return model.model_validate_json(body)
        return model.model_validate(_load(body))
    except ValidationError as e:
        errors = e.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**error, "loc": ("body", *error["loc"])} for error in errors]
        ) from None


def load_json(body: bytes, bounds: Bounds) -> Any:
    """Return what *body* says.

    Raises:
        BodyTooComplex: It holds more than *bounds*.
        RequestValidationError: Not JSON (RFC 8259), which knows no `NaN`.
    """
    json_bounds.demand(body, bounds)
    return _load(body)


def _load(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as e:  # also: not UTF-8, a number of thousands of digits
        error = {"type": "json_invalid", "loc": ("body",), "msg": f"not JSON: {e}"}
        raise RequestValidationError([error]) from None


class Parser:
    """Parses long bodies one at a time, beside the loop: side by side they would only share one interpreter lock."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    async def model(self, model: type[Model], body: bytes, bounds: Bounds) -> Model:
        """As `parse_json`."""
        if len(body) <= SMALL_BYTES:
            return parse_json(model, body, bounds)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, parse_json, model, body, bounds)

    async def load(self, body: bytes, bounds: Bounds) -> Any:
        """As `load_json`."""
        if len(body) <= SMALL_BYTES:
            return load_json(body, bounds)
        return await asyncio.get_running_loop().run_in_executor(self._thread, load_json, body, bounds)

    def close(self) -> None:
        """Begin nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def media_type(header: str | None) -> str:
    """Return the media type of a Content-Type header, without parameters, in lower case."""
    return (header or "").partition(";")[0].strip().lower()
