"""docs/operate/cryptography.md and `attestation crypto inventory` say what tables and modules say."""

from __future__ import annotations

from tests.docs.cryptography_page import PAGE, WHERE, page, where_file


def test_the_page_is_that_of_the_inventory() -> None:
    """Who changes the inventory writes the page anew: `python -m tests.docs.cryptography_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_command_tells_where_as_the_modules_do() -> None:
    """The same program writes it."""
    assert WHERE.read_text(encoding="utf-8") == where_file()
