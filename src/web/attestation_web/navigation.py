"""The navigation: what there is in `pages/`, in the order of their places, for who may see it."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import groupby

from flask import request

from attestation.errors import AttestationError
from attestation_web import pages
from attestation_web.login.current import may, session_or_none
from attestation_web.page import Page


@cache
def areas() -> Sequence[Page]:
    """Return the area of each file in `pages/`, by place, then by name.

    Raises:
        TypeError: A file without an area.
    """
    found = []
    for module in pkgutil.iter_modules(pages.__path__):
        area = getattr(import_module(f"{pages.__name__}.{module.name}"), "page", None)
        if not isinstance(area, Page):
            raise TypeError(f"pages/{module.name}.py: no `page = Page(__name__, …)`")
        found.append(area)
    return sorted(found, key=lambda area: (area.place is None, area.place or 0, area.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the navigation: its area, its words, its address, and whether we are there."""

    name: str
    title: str
    href: str
    is_here: bool


def shown() -> Sequence[tuple[str, Sequence[Entry]]]:
    """Return groups of entries for who asks; nothing where nobody is logged in, or it is not known what they may."""
    if session_or_none() is None:
        return []
    try:
        mine = [area for area in areas() if area.place is not None and may(area.right)]
    except AttestationError:
        # This page tells of it already, or is the one that does.
        return []
    return [(group, [_entry(area) for area in members]) for group, members in groupby(mine, key=_group)]


def _group(area: Page) -> str:
    return area.group


def _entry(area: Page) -> Entry:
    here = next((each for each in areas() if each.name == request.blueprint), None)
    return Entry(
        name=area.name,
        title=area.title,
        href=area.url_prefix or "/",
        is_here=here is not None and area.name in (here.name, here.under),
    )
