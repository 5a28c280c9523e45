"""PINs and authValues that a device refused: none is tried again, by this process or by one that it starts.

What holds a device open ends with its last key, and a key that cannot be opened leaves none. So what was refused is
kept here: whoever looks every few seconds whether a key can be opened again would lock the device otherwise.
"""

# Algorithms for: refused-pin
from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """What a process knows, and hands to those that it starts.

    Args:
        salt: Of the marks, 32 bytes; another one at each start, so a mark says nothing elsewhere.
        marks: HMAC-SHA-256 of the secret that was refused last, by the place that refused it.
    """

    salt: bytes = field(repr=False)
    marks: Mapping[str, bytes] = field(repr=False)


_salt = secrets.token_bytes(32)
_marks: dict[str, bytes] = {}


def mark(secret: bytes) -> bytes:
    """Return what stands for *secret* here: 32 bytes that say nothing of it."""
    return hmac.digest(_salt, secret, hashlib.sha256)


def known(place: str, marked: bytes) -> bool:
    """Return True where *place*, a token or a key, refused just what is *marked*."""
    return hmac.compare_digest(_marks.get(place, b""), marked)


def remember(place: str, marked: bytes) -> None:
    """Note that *place* refused what is *marked*."""
    _marks[place] = marked


def forget(place: str) -> None:
    """Note that *place* let somebody in."""
    _marks.pop(place, None)


def hand_over() -> Refusals:
    """Return what a process that is about to be started shall know."""
    return Refusals(salt=_salt, marks=dict(_marks))


def take_over(found: Refusals) -> None:
    """Begin with what the process knew that started this one."""
    global _salt
    _salt = found.salt
    _marks.clear()
    _marks.update(found.marks)
