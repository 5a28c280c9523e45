"""What is said of one part."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from attestation.text import clean


class Level(StrEnum):
    """How a part is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one part.

    Args:
        part: Which.
        level: FAILED where a start would not serve, or would not do what the settings ask for.
        what: What was found, and why it matters.
        todo: What to do; empty where there is nothing, or *what* says it.
    """

    part: str
    level: Level
    what: str
    todo: str = ""


_LEVEL_WIDTH: Final = max(map(len, Level)) + 2
_PART_WIDTH: Final = 16


def as_text(findings: Sequence[Finding], width: int, good: str, bad: str) -> str:
    """Return *findings* as lines of at most *width* characters, and *good*, or *bad* where one failed."""
    lines = []
    for each in findings:
        head = f"{each.level:<{_LEVEL_WIDTH}}{each.part:<{_PART_WIDTH}}"
        for text in filter(None, (each.what, each.todo and f"To do: {each.todo}")):
            lines += _folded(text, head, width)
            head = ""
    failed, warned = (
        sum(each.level is level for each in findings) for level in (Level.FAILED, Level.WARNING)
    )
    verdict = f"{bad}: {failed} FAILED." if failed else good
    return "\n".join([*map(clean, lines), "", f"{verdict} Warnings: {warned}. Nothing was changed.", ""])


def _folded(text: str, head: str, width: int) -> list[str]:
    indent = " " * (_LEVEL_WIDTH + _PART_WIDTH)
    return textwrap.wrap(
        text,
        max(width, len(indent) + 24),
        initial_indent=head or indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_json(findings: Sequence[Finding]) -> str:
    """Return *findings* as one JSON object: `ok`, and the list."""
    ok = not any(each.level is Level.FAILED for each in findings)
    return json.dumps({"ok": ok, "findings": [asdict(each) for each in findings]}, indent=1) + "\n"
