"""docs/operate/cryptography.md says what `attestation.algorithms` says."""

from __future__ import annotations

from tests.docs.cryptography_page import PAGE, page


def test_the_page_is_that_of_the_inventory() -> None:
    """Who changes the inventory writes the page anew: `python -m tests.docs.cryptography_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()
