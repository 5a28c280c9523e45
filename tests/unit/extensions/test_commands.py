"""What commands of extensions read from an operator, before any service is asked."""

from __future__ import annotations

import io
import sys

import pytest

from attestation.errors import RequestInvalid
from attestation_extensions.commands import secrets
from attestation_extensions.secret_vault.sealing import MAX_VALUE_BYTES


@pytest.mark.parametrize(
    ("end", "words"),
    [(b"", ""), (b"\n", ""), (b"\r\n", ""), (b"\r\nmore", "not more"), (b"\n\r\n", "not more")],
)
def test_a_value_is_taken_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, end: bytes, words: str
) -> None:
    """Of the greatest size too: what goes on after the end of its line is seen. Cut, it would open nothing."""
    value = "x" * MAX_VALUE_BYTES
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(value.encode() + end)))
    if words:
        with pytest.raises(RequestInvalid, match=words):
            secrets._read(None)
    else:
        assert secrets._read(None) == {"value": value, "encoding": "utf-8"}


def test_no_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty line is none."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    with pytest.raises(RequestInvalid, match="not none"):
        secrets._read(None)
