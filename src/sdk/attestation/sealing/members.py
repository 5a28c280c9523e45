"""Members of JSON that somebody else wrote: read with their type, or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from attestation.errors import MalformedEvidence
from attestation.wire import jcs

T = TypeVar("T")


def canonical_object(data: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object that *data* is, written as RFC 8785 has it.

    Of one object there is one text, so that no byte of it can be another without meaning something else.

    Raises:
        MalformedEvidence: It is none, or written otherwise.
    """
    try:
        found = json.loads(data.decode("utf-8"), parse_float=_refused, parse_constant=_refused)
        # A member that is named twice is not written twice.
        if isinstance(found, dict) and jcs(found) == data:
            return found
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence(f"{what} is not canonical JSON (RFC 8785)") from e
    raise MalformedEvidence(f"{what} is no JSON object in canonical form (RFC 8785)")


def exactly(found: object, what: str, **types: type | tuple[type, ...]) -> dict[str, Any]:
    """Return the object *found*, which has just the members named in *types*, each of its type.

    Raises:
        MalformedEvidence: It is no object, or has others.
    """
    if not isinstance(found, dict) or found.keys() != types.keys():
        raise MalformedEvidence(f"{what} is no object with just the members {', '.join(types)}")
    for name, kind in types.items():
        if not isinstance(found[name], kind) or isinstance(found[name], bool):
            raise MalformedEvidence(f"{what}: {name} is of another type")
    return found


def text(found: Mapping[str, Any], *path: str) -> str:
    """Return the text at *path*.

    Raises:
        MalformedEvidence: There is none.
    """
    said = optional_text(found, *path)
    if said is None:
        raise MalformedEvidence(f"{'.'.join(path)} is missing")
    return said


def optional_text(found: Mapping[str, Any], *path: str) -> str | None:
    """Return the text at *path*; None where it, or what it is in, is missing or null.

    Raises:
        MalformedEvidence: Something else is there.
    """
    at: object = found
    for name in path:
        if not isinstance(at, Mapping):
            raise MalformedEvidence(f"{'.'.join(path)} is not in an object")
        at = at.get(name)
        if at is None:
            return None
    if not isinstance(at, str):
        raise MalformedEvidence(f"{'.'.join(path)} is no text")
    return at


def _refused(number: str) -> NoReturn:
    raise ValueError(f"{number[:20]} is not a whole number")
