"""Bars and donuts as geometry, which templates draw as SVG without any style in it (CSP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from attestation_web.page.badges import Look

RADIUS: Final = 15.9154943
"""Of a circle whose circumference is 100: a length along it is a percentage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part of a whole.

    Args:
        label: What it is.
        count: How many.
        look: How it looks.
        percent: Of the whole, 0 to 100.
        begins: Where it begins, percent of the whole.
        href: Where its machines are listed, or None.
    """

    label: str
    count: int
    look: Look
    percent: float
    begins: float
    href: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Parts of a whole, which a screen reader gets as a sentence."""

    title: str
    total: int
    pieces: Sequence[Piece]

    @property
    def words(self) -> str:
        """What it shows, for who does not see it."""
        parts = ", ".join(f"{p.label} {p.count}" for p in self.pieces if p.count)
        return f"{self.title}: {parts or 'nothing'}"


def _chart(title: str, parts: Sequence[tuple[str, int, Look] | tuple[str, int, Look, str | None]]) -> Chart:
    total = sum(part[1] for part in parts)
    pieces, begins = [], 0.0
    for part in parts:
        label, count, look = part[:3]
        percent = 100 * count / total if total else 0.0
        href = part[3] if len(part) == 4 else None
        pieces.append(Piece(label=label, count=count, look=look, percent=percent, begins=begins, href=href))
        begins += percent
    return Chart(title=title, total=total, pieces=pieces)


def bar(title: str, parts: Sequence[tuple[str, int, Look] | tuple[str, int, Look, str | None]]) -> Chart:
    """Return parts of a whole for the macro `bar`: label, count, look and perhaps an address of each."""
    return _chart(title, parts)


def donut(title: str, parts: Sequence[tuple[str, int, Look] | tuple[str, int, Look, str | None]]) -> Chart:
    """Return the same for the macro `donut`."""
    return _chart(title, parts)
