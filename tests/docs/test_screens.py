"""The screens of the documentation are what the command line prints."""

from __future__ import annotations

import re

import pytest

from tests.docs import screens
from tests.docs.pages import text


def test_the_page_is_what_is_printed() -> None:
    """`python -m tests.docs.screens` writes the page; whoever changes an output runs it, and looks."""
    assert text("docs/operate/screens.md") == screens.page()


@pytest.mark.parametrize(
    ("title", "command", "service"), screens.SCREENS, ids=[c for _, c, _ in screens.SCREENS]
)
@pytest.mark.parametrize("columns", [80, 160])
def test_screens_fit(title: str, command: str, service: object, columns: int) -> None:
    """No line is wider than the terminal, but what is copied whole, and CSV, which people do not read there."""
    assert callable(service)
    shown = screens.screen(command, service(), columns)
    assert shown
    assert "\x1b" not in shown
    for line in shown.splitlines():
        copied = re.match(r" {4}attestation |.*[0-9a-f]{96}", line)
        assert len(line) <= columns or copied or "csv" in command, line
