"""Every link of the documentation leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, anchors, text

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    destination = (page.parent / path).resolve() if path else page
    return destination.exists() and (not anchor or anchor in anchors(destination.read_text(encoding="utf-8")))


def test_links_resolve() -> None:
    """A link inside the project names a file that exists, and a heading that the file has."""
    links = [
        (page, target)
        for page in PAGES
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert len(links) > 300
    broken = [f"{page.relative_to(ROOT)}: {to}" for page, to in links if not _leads_somewhere(page, to)]
    assert not broken, "\n".join(broken)


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


def test_the_map_names_every_page_once() -> None:
    """`docs/README.md` leads to each page beside it, and calls a decision by its title."""
    folder, page = ROOT / "docs", text("docs/README.md")
    named = [target for target in LINK.findall(page) if not target.startswith("../")]
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in {".md", ".json"}}
    assert set(named) == there - {"README.md"}
    assert len(named) == len(set(named))
    for number, target, title in re.findall(r"^- \[(\d+)\]\((.+?)\) (.+)$", page, flags=re.MULTILINE):
        assert text(f"docs/{target}").startswith(f"# {number}. {title}\n"), target
