"""The words of the language, for who writes queries: all of them, and those that fit where the cursor stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from attestation.api import QueryCompletion, QueryWord
from attestation_service.kql import Catalog
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.functions import FUNCTIONS
from attestation_service.kql.operators.table import OPERATORS

MOST: Final = 100
_TYPED: Final = re.compile(r"[A-Za-z_][\w-]*\Z", re.ASCII)
_NAME: Final = re.compile(r"[a-z_]\w*", re.ASCII)


def operators() -> list[QueryWord]:
    """Return the operators of pipelines."""
    return [
        QueryWord(name=name, description=each.description)
        for name, each in OPERATORS.items()
        if name == each.name
    ]


def functions() -> list[QueryWord]:
    """Return the functions and aggregates."""
    called = {
        name: each.description
        for name, each in FUNCTIONS.items()
        if name == each.name and _NAME.fullmatch(name)
    }
    called |= {name: each.description for name, each in AGGREGATES.items()}
    return [QueryWord(name=name, description=about) for name, about in sorted(called.items())]


def completions(text: str, offset: int, seen: Catalog) -> list[QueryCompletion]:
    """Return what begins as the word before *offset*: tables, after a bar operators, else columns and functions."""
    before = text[:offset]
    typed = found[0] if (found := _TYPED.search(before)) else ""
    fits = (
        each
        for each in _fitting(before.removesuffix(typed).rstrip(), seen)
        if each.text.casefold().startswith(typed.casefold())
    )
    return list({each.text: each for each in fits}.values())[:MOST]


def _fitting(before: str, seen: Catalog) -> Iterator[QueryCompletion]:
    if not before or before[-1] in ";(":
        for name in seen:
            yield QueryCompletion(text=seen[name].name, kind="table", detail=seen[name].description)
    if before.endswith("|"):
        for word in operators():
            yield QueryCompletion(text=word.name, kind="operator", detail=word.description)
    elif before:
        named = {word.casefold() for word in re.findall(r"\w+", before)}
        for name in seen:
            if name.casefold() in named:
                for column in seen[name].columns:
                    yield QueryCompletion(text=column.name, kind="column", detail=column.description)
        for word in functions():
            yield QueryCompletion(text=word.name, kind="function", detail=word.description)
