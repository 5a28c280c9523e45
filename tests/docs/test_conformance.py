"""docs/kubernetes/cert-manager-conformance.md says what the table of cases says."""

from __future__ import annotations

from tests.docs.conformance_page import PAGE, page


def test_the_page_is_that_of_the_table() -> None:
    """Who changes a case writes it anew: `python -m tests.docs.conformance_page`."""
    assert PAGE.read_text(encoding="utf-8") == page()
