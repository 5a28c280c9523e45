"""Errors for a console: what Talos prints of an answer that it cannot use.

Its own fetch of a configuration sends no Accept header, and shows the first 32 bytes of what comes
(DELIVERY-AND-OPERATORS §1.2): a problem in JSON would say `{"type":"urn:itl:problem:` there. So each error
of `/config` is short text, whoever finds it, unless JSON is asked for (PROTOCOL §0).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from starlette.responses import Response

from attestation.api import Problem
from attestation.api.operations import PublicAPI

CONSOLE_BYTES: Final = 32
PATH: Final = "/api/v1/config"
_ENCRYPTED: Final = "encrypted delivery required"
_NOT_ACCEPTABLE: Final = 406


def is_shown(scope: MutableMapping[str, Any]) -> bool:
    """Return True if the answer to a request for a configuration is for a console."""
    path: str = scope["path"]
    if path != PATH and not path.startswith(PATH + "/"):
        return False
    accept = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"]
    return not asks_for_json(",".join(accept))


def error(problem: Problem, headers: Mapping[str, str]) -> Response:
    """Return *problem* as words for a console."""
    if problem.status == _NOT_ACCEPTABLE:
        # What to send instead stands where RFC 9110 §12.5.1 has it: it is longer than what a console shows.
        return text(_ENCRYPTED, problem.status, {**headers, "Accept": PublicAPI.fetch_config.accept})
    return text(problem.title.lower(), problem.status, headers)


def text(words: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return at most 32 bytes of *words*, which are ASCII."""
    return Response(
        words[:CONSOLE_BYTES], status_code=status, headers=dict(headers or {}), media_type="text/plain"
    )


def asks_for_json(header: str | None) -> bool:
    """Return True if *header* names JSON, or any media type that is JSON inside."""
    names = (part.partition(";")[0].strip().lower() for part in (header or "").split(","))
    return any(name == "application/json" or name.endswith("+json") for name in names)
