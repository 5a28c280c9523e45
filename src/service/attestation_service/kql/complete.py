"""Completion: what may stand where the cursor is, derived from the tables that the parser uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from attestation.errors import QueryInvalid
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.functions import FUNCTIONS
from attestation_service.kql.kinds import Catalog, Column
from attestation_service.kql.operators.table import OPERATORS
from attestation_service.kql.plan import analyse

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z", re.ASCII)
_STRING = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"")
_LATEST = datetime(2000, 1, 1, tzinfo=UTC)
MOST_TRIES = 10
"""Beginnings of a text that are read for the columns at the cursor; each costs as much as a query."""
MOST = 200
"""How many suggestions there are at most."""


class Suggested(StrEnum):
    """What a suggestion is."""

    TABLE = "table"
    COLUMN = "column"
    OPERATOR = "operator"
    FUNCTION = "function"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What could stand at the cursor, in place of the word that ends there."""

    text: str
    kind: Suggested
    detail: str


def complete(text: str, offset: int, catalog: Catalog) -> list[Suggestion]:
    """Return what could stand at a place in a query.

    Args:
        text: The query, as far as it is written; what follows the place is passed over.
        offset: The place, in characters from 0.
        catalog: The tables that exist for the reader.
    """
    before = text[: max(0, offset)]
    word = _WORD.search(before)
    prefix = word[0] if word else ""
    before = before[: len(before) - len(prefix)]
    found = _candidates(before, catalog)
    fitting = [each for each in found if each.text.casefold().startswith(prefix.casefold())]
    return fitting[:MOST]


def _candidates(before: str, catalog: Catalog) -> Iterator[Suggestion]:
    """Yield what could follow a part of a query."""
    trimmed = before.rstrip()
    if _inside_string(before):
        return
    if trimmed.endswith("|"):
        yield from _operators()
    elif not trimmed or (trimmed.endswith((";", "union", "(")) and "|" not in trimmed.rpartition(";")[2]):
        yield from _tables(catalog)
    elif "|" not in trimmed.rpartition(";")[2] and not re.search(r"\b(union|let)\b", trimmed):
        return
    else:
        yield from _columns(_columns_before(trimmed, catalog))
        operator, tail = trimmed.rpartition("|")[1:]
        if re.search(r"\b(join|union|in)\b", tail) or not operator:
            yield from _tables(catalog)
        if operator and re.match(r"\s*summarize\b", tail) and not re.search(r"\bby\b", tail):
            for each in AGGREGATES.values():
                yield Suggestion(text=each.name, kind=Suggested.AGGREGATE, detail=each.description)
        for name, function in FUNCTIONS.items():
            if not function.is_operator and name == function.name:
                yield Suggestion(text=name, kind=Suggested.FUNCTION, detail=function.description)


def _operators() -> Iterator[Suggestion]:
    for name, operator in OPERATORS.items():
        if name == operator.name:
            yield Suggestion(text=name, kind=Suggested.OPERATOR, detail=operator.description)


def _tables(catalog: Catalog) -> Iterator[Suggestion]:
    for name in catalog:
        yield Suggestion(text=name, kind=Suggested.TABLE, detail=catalog[name].description)


def _columns(columns: Iterable[Column]) -> Iterator[Suggestion]:
    for column in columns:
        detail = f"{column.kind}: {column.description}" if column.description else str(column.kind)
        yield Suggestion(text=column.name, kind=Suggested.COLUMN, detail=detail)


def _columns_before(text: str, catalog: Catalog) -> tuple[Column, ...]:
    """Return the columns of the rows that come into the operator where the text ends."""
    for _ in range(min(text.count("|"), MOST_TRIES)):
        text = text.rpartition("|")[0]
        try:
            return analyse(text, catalog, at=_LATEST).columns
        except QueryInvalid:
            # Inside parentheses: what is before the one that is open is no query, what is in it may be.
            inner = text.rpartition("(")[2]
            try:
                return analyse(inner, catalog, at=_LATEST).columns
            except QueryInvalid:
                continue
    return ()


def _inside_string(text: str) -> bool:
    """Tell whether a text ends inside of a string or a comment on its last line."""
    line = _STRING.sub("", text.rpartition("\n")[2])
    return "'" in line or '"' in line or "//" in line
