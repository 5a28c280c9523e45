"""A JSON object of an answer, read member by member: for listings that must appear at once.

Building the pydantic models of the API costs a fifth of a second, once per command. Who only prints what the
service says needs no model: each member is checked where it is used, and one that is missing or of another
type is `AnswerInvalid`, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from attestation.client.errors import AnswerInvalid


class Record(Mapping[str, Any]):
    """A JSON object of an answer. As a mapping it is what the service said, members unknown to us included."""

    __slots__ = ("_members", "_what")

    def __init__(self, members: Mapping[str, Any], what: str = "the answer") -> None:
        self._members, self._what = members, what

    def __getitem__(self, name: str) -> Any:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def text(self, name: str) -> str:
        """Return the text *name*.

        Raises:
            AnswerInvalid: It is missing or no text; the same holds for the methods below.
        """
        value = self._members.get(name)
        return value if isinstance(value, str) else self._not(name, "a text")

    def optional_text(self, name: str) -> str | None:
        """Return the text *name*, or None where it is null."""
        return None if self._null(name) else self.text(name)

    def number(self, name: str) -> int:
        """Return the whole number *name*."""
        value = self._members.get(name)
        return value if type(value) is int else self._not(name, "a whole number")

    def instant(self, name: str) -> datetime:
        """Return the instant *name* (RFC 3339) in UTC."""
        try:
            at = datetime.fromisoformat(self.text(name))
        except ValueError:
            self._not(name, "an instant")
        return at.astimezone(UTC) if at.tzinfo is not None else self._not(name, "an instant")

    def optional_instant(self, name: str) -> datetime | None:
        """Return the instant *name*, or None where it is null."""
        return None if self._null(name) else self.instant(name)

    def optional_record(self, name: str) -> Record | None:
        """Return the object *name*, or None where it is null."""
        if self._null(name):
            return None
        value = self._members[name]
        return Record(value, name) if isinstance(value, dict) else self._not(name, "an object")

    def records(self, name: str) -> list[Record]:
        """Return the list of objects *name*."""
        value = self._members.get(name)
        if not isinstance(value, list):
            self._not(name, "a list")
        return [
            Record(item, f"{name}.{number}")
            if isinstance(item, dict)
            else self._not(f"{name}.{number}", "an object")
            for number, item in enumerate(value)
        ]

    def counts(self, name: str) -> dict[str, int]:
        """Return the object *name* of names and whole numbers."""
        value = self._members.get(name)
        if not isinstance(value, dict) or not all(type(count) is int for count in value.values()):
            self._not(name, "an object of whole numbers")
        return value

    def _null(self, name: str) -> bool:
        if name not in self._members:
            self._not(name, "there")
        return self._members[name] is None

    def _not(self, name: str, wanted: str) -> NoReturn:
        raise AnswerInvalid(f"{self._what}: {name} is not {wanted}")


def parse_record(body: bytes, what: str) -> Record:
    """Read *body* as one JSON object.

    Raises:
        AnswerInvalid: Not JSON (RFC 8259: no NaN, no infinity), or no object.
    """
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise AnswerInvalid(f"{what}: not JSON") from e
    if not isinstance(value, dict):
        raise AnswerInvalid(f"{what}: not an object")
    return Record(value, what)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
