"""Codes of consoles, as people type them."""

from __future__ import annotations

import pytest

from attestation.machines.console_code import typed


@pytest.mark.parametrize("text", ["wdjbmjht", "WDJB-MJHT", " wdjb mjht ", "w.d.j.b:mjht"])
def test_a_code_is_its_letters(text: str) -> None:
    """However it is typed (RFC 8628 §6.1)."""
    assert typed(text) == "WDJB-MJHT"
