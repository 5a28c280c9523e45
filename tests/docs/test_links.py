"""Every link of the documentation leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    """A link inside the project names a file that exists, and a heading that the file has."""
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        destination = (page.parent / path).resolve() if path else page
        assert destination.exists(), f"{target}: no such file"
        if anchor:
            assert anchor in anchors(destination.read_text(encoding="utf-8")), f"{target}: no such heading"


def test_decisions_are_numbered_once() -> None:
    """Each record has a number of its own, a status, a date, options, a decision and how we would notice."""
    records = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(numbers) == len(set(numbers))
    for record in records:
        page = record.read_text(encoding="utf-8")
        assert page.startswith(f"# {int(record.name[:4])}. "), record.name
        for part in ("## Question", "## Options", "## Decision", "## What follows"):
            assert part in page, f"{record.name}: {part}"
        assert "## How we would notice" in page, record.name
        assert re.search(r"^Status: .*\b20\d\d-\d\d-\d\d$", page, flags=re.MULTILINE), record.name
