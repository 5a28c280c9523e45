"""Manifests of backups: what is written is read, all else is refused, and no name leads out of the folder."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_service.commands.manifest import Manifest, parse, serialise

GOOD = Manifest(
    made_at="2026-11-23T00:00:00Z",
    revision="0029",
    database="ab" * 16,
    entries=3,
    root="cd" * 32,
    files={"database.sqlite": "ef" * 32, "keys/ca/a b.pem": "01" * 32},
)
MEMBERS = json.loads(serialise(GOOD))


@given(st.binary() | st.from_type(type(MEMBERS)).map(json.dumps).map(str.encode))
def test_anything_is_a_manifest_or_refused_in_words(data: bytes) -> None:
    """Whatever arrives, a caller sees a manifest or ValueError."""
    with contextlib.suppress(ValueError):
        assert parse(serialise(parse(data))) == parse(data)


def test_what_is_written_is_read() -> None:
    assert parse(serialise(GOOD)) == GOOD


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "itl-backup-v2"},
        {"more": 1},
        {"entries": "3"},
        {"entries": True},
        {"root": "XY"},
        {"database": None},
        {"made_at": "\x1b[2J"},
        {"files": {"keys/ca/x": "ab"}},
        *(
            {"files": {"database.sqlite": "ab", name: "ab"}}
            for name in ("../x", "/x", "a/../../x", ".", "a//b", "a\0")
        ),
    ],
)
def test_what_says_more_or_leads_elsewhere_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"its manifest\.json cannot be read"):
        parse(json.dumps(MEMBERS | wrong).encode())
