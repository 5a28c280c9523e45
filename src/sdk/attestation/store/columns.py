"""How values are stored: the type of a column says it.

Instants, words, flags and texts are known by the annotation of the column (`tables.Base`), the others have names here.
SQLAlchemy runs no statement (docs/adr/0003), so what is bound by hand is encoded by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NoReturn, TypeVar

from sqlalchemy import BigInteger, Boolean, Text, TypeDecorator
from sqlalchemy.orm import mapped_column
from sqlalchemy.types import TypeEngine

from attestation.appraisal import recalled
from attestation.clock import from_micros, to_micros
from attestation.endorsements import PathCertificate
from attestation.machines import Event, event_named
from attestation.results import Failed, Flagged, Outcome, Passed, Reported, Subject, Undecided
from attestation.wire import b64decode, b64encode

Coder = Callable[[Any], Any]
T = TypeVar("T")


class Stored(TypeDecorator[Any]):
    """The type of a column that holds its values in another form; NULL is None in both.

    Args:
        held: Type of what the database holds.
        encode: From a value to what is held.
        decode: The way back.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = Text
    cache_ok = True

    def __init__(self, held: TypeEngine[Any], encode: Coder, decode: Coder) -> None:
        super().__init__()
        self.impl = held
        self.encode = encode
        self.decode = decode


def signed(value: int) -> int:
    """Return the unsigned 64-bit *value* as the signed number with the same bits."""
    if not 0 <= value < 1 << 64:
        raise OverflowError(f"{value} is not an unsigned 64-bit number")
    return value - (1 << 64) if value >= 1 << 63 else value


def unsigned(value: int) -> int:
    """Return the signed 64-bit *value* as the unsigned number with the same bits."""
    return value & 0xFFFF_FFFF_FFFF_FFFF


_VALUE = attrgetter("_value_")
"""As `value` of an enumeration, which is a property written in Python."""


class Words(dict[str, T]):
    """What each word stands for; asked for another, it raises ValueError."""

    def __missing__(self, word: str) -> NoReturn:
        raise ValueError(f"{word!r} is none of {', '.join(self)}")


def word(kind: type[StrEnum]) -> Stored:
    """Return the type of a column that holds one of the words of *kind*."""
    return Stored(Text(), _VALUE, Words({each.value: each for each in kind}).__getitem__)


def as_json(plain: Coder, read: Coder) -> Stored:
    """Return the type of a column that holds JSON text; *plain* makes what JSON knows of a value, *read* undoes it."""
    return Stored(Text(), lambda value: json.dumps(plain(value)), lambda held: read(json.loads(held)))


FLAG = Stored(Boolean(), bool, bool)
"""Databases without truth values hold 0 and 1."""
INSTANT = Stored(BigInteger(), to_micros, from_micros)
"""Microseconds since 1970; see `attestation.clock`."""

_EVENT = Stored(Text(), attrgetter("value"), event_named)
EventWord = Annotated[Event, mapped_column(_EVENT)]

_PAYLOAD = Stored(Text(), partial(json.dumps, separators=(",", ":")), json.loads)
Payload = Annotated[Mapping[str, Any], mapped_column(_PAYLOAD)]
"""A JSON object."""

_UNSIGNED = Stored(BigInteger(), signed, unsigned)
Unsigned = Annotated[int, mapped_column(_UNSIGNED)]
"""64 bits as two's complement; nothing compares them in SQL."""

_BLOBS = as_json(
    lambda blobs: [b64encode(blob) for blob in blobs],
    lambda texts: tuple(b64decode(text, "stored bytes") for text in texts),
)
Blobs = Annotated[tuple[bytes, ...], mapped_column(_BLOBS)]
"""A JSON list of base64."""

_PATH = as_json(
    lambda path: [asdict(each) for each in path], lambda path: tuple(PathCertificate(**each) for each in path)
)
Path = Annotated[tuple[PathCertificate, ...], mapped_column(_PATH)]
"""How a chain was judged: a JSON list of objects."""

_KINDS: Words[type[Outcome]] = Words(
    passed=Passed, failed=Failed, flagged=Flagged, reported=Reported, undecided=Undecided
)
_WORDS = {kind: word for word, kind in _KINDS.items()}
_OUTCOMES = as_json(
    lambda outcomes: [
        [_WORDS[type(each)], *(getattr(each, name) for name in each.__match_args__)] for each in outcomes
    ],
    lambda lists: tuple(recalled(_KINDS[kind](*texts)) for kind, *texts in lists),
)
Outcomes = Annotated[tuple[Outcome, ...], mapped_column(_OUTCOMES)]
"""A JSON list of lists: what came of a check, its name, its texts. What it says of trust follows from the check."""

_SUBJECTS = as_json(list, lambda words: tuple(map(Subject, words)))
Subjects = Annotated[tuple[Subject, ...], mapped_column(_SUBJECTS)]
"""A JSON list of words."""

_DIGESTS = as_json(
    lambda values: {index: value.hex() for index, value in values.items()},
    lambda texts: {int(index): bytes.fromhex(text) for index, text in texts.items()},
)
Digests = Annotated[Mapping[int, bytes], mapped_column(_DIGESTS)]
"""PCRs: a JSON object of hex."""
