"""Pages by key: the cursor names the last row seen, so a page costs the same wherever it starts.

Rows that appear in between change no page that was begun: newest-first lists go by falling id.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from attestation.errors import RequestInvalid
from attestation.store.sql import Row

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

MAX_LIMIT = 1000
NEWEST = (1 << 63) - 1
"""Above every id: where newest-first lists begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T_co]):
    """Some rows, and where the next ones begin: opaque text, None at the end."""

    items: tuple[T_co, ...]
    next_cursor: str | None


def encode_cursor(kind: str, key: str) -> str:
    """Return *key* as opaque text that only lists of the same *kind* accept."""
    return base64.urlsafe_b64encode(f"{kind}:{key}".encode()).decode("ascii").rstrip("=")


def decode_cursor(kind: str, cursor: str) -> str:
    """Return the key in *cursor*.

    Raises:
        RequestInvalid: Not a cursor of ours, or one of another list.
    """
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found, _, key = raw.decode("utf-8").partition(":")
    except (ValueError, binascii.Error) as e:
        raise RequestInvalid("cursor: not one that this service gave out") from e
    if found != kind or encode_cursor(kind, key) != cursor:
        raise RequestInvalid("cursor: not one that this list gave out")
    return key


def before_id(kind: str, cursor: str | None) -> int:
    """Return the id below which a newest-first page begins.

    Raises:
        RequestInvalid: Not a cursor of this list.
    """
    if cursor is None:
        return NEWEST
    key = decode_cursor(kind, cursor)
    if not (key.isascii() and key.isdigit() and len(key) <= 19 and int(key) <= NEWEST):
        raise RequestInvalid("cursor: not one that this list gave out")
    return int(key)


def checked_limit(limit: int) -> int:
    """Return *limit* if a page may have that size.

    Raises:
        RequestInvalid: Not between 1 and 1000.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise RequestInvalid(f"limit: {limit} is not between 1 and {MAX_LIMIT}")
    return limit


def escaped(text: str) -> str:
    r"""Return *text* for LIKE with `\` as escape: no character is special."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def page_of(kind: str, rows: Sequence[Row], limit: int, decode: Callable[[Row], T]) -> Page[T]:
    """Return the page of the first *limit* of *rows*; its cursor is their last first column.

    Args:
        kind: The list, as in `encode_cursor`.
        rows: Up to *limit* + 1 rows; the one too many tells that there is more.
        limit: Size of the page.
        decode: From a row to an item.
    """
    more = len(rows) > limit
    return Page(
        items=tuple(decode(row) for row in rows[:limit]),
        next_cursor=encode_cursor(kind, str(rows[limit - 1][0])) if more else None,
    )
