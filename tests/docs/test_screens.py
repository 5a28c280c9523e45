"""The screens of the documentation are what the command line prints."""

from __future__ import annotations

import re

from tests.docs import screens
from tests.docs.pages import text


def test_the_page_is_what_is_printed() -> None:
    """`python -m tests.docs.screens` writes the page; whoever changes an output runs it, and looks."""
    assert text("docs/operate/screens.md") == screens.page()


def test_screens_fit() -> None:
    """No line is wider than the terminal, but what is copied whole, and CSV, which people do not read there."""
    assert len(screens.shown()) == 2 * len(screens.SCREENS)
    for (command, columns), shown in screens.shown().items():
        assert shown, command
        assert "\x1b" not in shown, command
        for line in shown.splitlines():
            copied = re.match(r" {4}attestation |.*[0-9a-f]{68}", line)
            assert len(line) <= columns or copied or "csv" in command, f"{command}: {line}"
