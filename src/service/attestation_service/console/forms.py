"""Forms that OAuth clients send, and what they are answered: RFC 6749 §§5.1, 5.2, RFC 8628 §3.5."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import parse_qsl

from fastapi import Request, Response

from attestation_service.border.bodies import SMALL_BYTES, media_type

FORM: Final = "application/x-www-form-urlencoded"
FIELDS: Final = 32
"""Talos sends eleven at most."""
FIELD_LENGTH: Final = 128
BROWSERS: Final = ("origin", "sec-fetch-site")
"""Sent by each browser with what a page has it send, and by no machine."""
NO_CACHE: Final = {"Pragma": "no-cache"}
"""Beside the Cache-Control of the border (RFC 6749 §5.1)."""

ErrorCode = Literal[
    "invalid_request",
    "invalid_grant",
    "unsupported_grant_type",
    "authorization_pending",
    "slow_down",
    "access_denied",
    "expired_token",
    "temporarily_unavailable",
]


class Refused(Exception):
    """An error as OAuth clients read it.

    Args:
        code: Of RFC 6749 or RFC 8628.
        why: For people; ASCII without quotes and backslashes.
        status: Of HTTP.
        retry_after_seconds: When to come again, or None.
    """

    def __init__(
        self, code: ErrorCode, why: str, status: int = 400, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(why)
        self.code, self.why, self.status, self.retry_after_seconds = code, why, status, retry_after_seconds

    def response(self) -> Response:
        """Return it as an answer."""
        headers = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        return answer({"error": self.code, "error_description": self.why}, self.status, headers)


def answer(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return *body* as JSON that nobody keeps."""
    return Response(
        json.dumps(body),
        status_code=status,
        media_type="application/json",
        headers=NO_CACHE | dict(headers or {}),
    )


async def read(request: Request) -> dict[str, str]:
    """Return the members of a form, each once.

    Raises:
        Refused: It is no form, too large, or says something twice; or a browser sent it.
    """
    # A page of anybody has a browser send forms: codes would come from the network of whoever looks at it.
    if any(name in request.headers for name in BROWSERS):
        raise Refused("invalid_request", "a browser asked, and no machine")
    if media_type(request.headers.get("content-type")) != FORM:
        raise Refused("invalid_request", f"Content-Type: {FORM} is needed")
    body = await request.body()
    if len(body) > SMALL_BYTES:
        raise Refused("invalid_request", "the form is too large")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FIELDS
        )
    except ValueError:
        raise Refused("invalid_request", "the form cannot be read") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        # RFC 6749 §3.2: whoever reads the last of two, and whoever reads the first, would read two forms.
        raise Refused("invalid_request", "a parameter is there twice")
    return found


def shown(text: str | None) -> str | None:
    """Return what a machine says of itself as a person can read it without being fooled; None where that is nothing.

    Printable ASCII alone: no line breaks, no right-to-left marks, nothing that a terminal obeys.
    """
    clean = "".join(c if " " <= c <= "~" else "?" for c in (text or "").strip())[:FIELD_LENGTH]
    return clean or None
