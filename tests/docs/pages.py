"""The pages of the documentation, as the tests read them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/*/README.md")])


def text(path: str) -> str:
    """Return the text of a page of the project."""
    return (ROOT / path).read_text(encoding="utf-8")


def shell_lines(page: str) -> list[str]:
    """Return the lines of all code blocks, without comments and line ends that go on."""
    lines: list[str] = []
    for block in re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        lines += [re.sub(r"\s+#.*", "", line).strip() for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as a forge makes them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
