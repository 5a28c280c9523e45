"""Writes YAML 1.2: mappings, sequences and scalars of JSON, in their order; nothing else is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z./][A-Za-z0-9./_-]*( [A-Za-z0-9./_(-][A-Za-z0-9./_()-]*)*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def document(value: Any) -> str:
    """Return *value* as a document."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _member(f"{_scalar(key)}:", each)
    elif isinstance(value, list | tuple) and value:
        for each in value:
            first, *rest = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _member(head: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list | tuple) and value:
        yield head
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    """Return JSON, which is YAML, or a word that can only be a text."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
