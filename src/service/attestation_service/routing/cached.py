"""Bodies that others may keep for a while: until when, and by which tag they are known (RFC 5019 §6, RFC 9111)."""

# Algorithms for: digest
from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256

from starlette.responses import Response

MOST_SECONDS = 60
"""How long a cache may go on showing a list or CA certificate that has been replaced here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """A body with what a cache must know of it.

    Args:
        body: Bytes of the answer.
        media_type: Its type.
        made_at: When it was made, UTC; None where that says nothing.
        useless_from: From this instant on nobody may use it (nextUpdate), UTC; None where it has no end.
        keep_seconds: A cache keeps it no longer than that; None: as long as it may be used.
        file_name: Under which name a person would save it, or None.
    """

    body: bytes = field(repr=False)
    media_type: str
    made_at: datetime | None
    useless_from: datetime | None = None
    keep_seconds: int | None = MOST_SECONDS
    file_name: str | None = None

    def lifetime_seconds(self, at: datetime) -> int:
        """Return for how long a cache may keep it from *at* on; never past its end."""
        limits = [] if self.keep_seconds is None else [self.keep_seconds]
        if self.useless_from is not None:
            limits.append(int((self.useless_from - at).total_seconds()))
        return max(0, min(limits, default=0))

    def response(self, at: datetime, if_none_match: str | None) -> Response:
        """Return the answer; 304 without a body where the asker has exactly this already.

        Args:
            at: Now.
            if_none_match: The header that came, or None.
        """
        seconds = self.lifetime_seconds(at)
        tag = f'"{sha256(self.body).hexdigest()[:32]}"'
        headers = {
            "Cache-Control": f"public, max-age={seconds}, must-revalidate, no-transform",
            "ETag": tag,
            "Expires": http_date(at + timedelta(seconds=seconds)),
        }
        if self.made_at is not None:
            headers["Last-Modified"] = http_date(self.made_at)
        if self.file_name is not None:
            headers["Content-Disposition"] = f'attachment; filename="{self.file_name}"'
        if if_none_match is not None and (if_none_match.strip() == "*" or tag in _tags(if_none_match)):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def _tags(header: str) -> frozenset[str]:
    """Return the entity tags of an If-None-Match; it compares weakly (RFC 9110 §13.1.2)."""
    return frozenset(tag.strip().removeprefix("W/") for tag in header.split(","))


def http_date(at: datetime) -> str:
    """Return an IMF-fixdate (RFC 9110 §5.6.7)."""
    return format_datetime(at.replace(microsecond=0), usegmt=True)
