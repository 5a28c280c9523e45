"""Whatever arrives, a caller sees a value or the documented error; what was read is written again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attestation.clock import parse_rfc3339
from attestation.errors import MalformedEvidence
from attestation.wire import b64decode, hexdecode
from tests.fuzz.targets import TARGETS

SLOW = {"machine_config": 40, "ek_certificate": 80}


@st.composite
def mutations(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Return a seed with a few changes where a structure would feel them: bits, lengths, cuts, splices."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "length", "cut", "insert", "splice"]))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "length":
            data[at : at + 2] = draw(st.sampled_from([0, 1, 0x7FFF, 0xFFFF, len(data)])).to_bytes(2)
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=8))
        else:
            other = draw(st.sampled_from(seeds))
            start = draw(st.integers(0, len(other)))
            data[at : at + draw(st.integers(0, 40))] = other[start : start + draw(st.integers(0, 40))]
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_arbitrary_bytes(name: str) -> None:
    """Only the documented error leaves, and reading and writing agree."""

    @settings(max_examples=SLOW.get(name, 200))
    @given(st.binary(max_size=600))
    @example(b"")
    def check(data: bytes) -> None:
        TARGETS[name].check(data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_good_bytes_changed(name: str) -> None:
    """The same, near what is good: where a parser has got far before it meets the change."""
    seeds = TARGETS[name].seeds()

    @settings(max_examples=SLOW.get(name, 300))
    @given(mutations(seeds))
    def check(data: bytes) -> None:
        TARGETS[name].check(data)

    check()


@pytest.mark.parametrize("name", ["base64", "rfc3339"])
def test_arbitrary_text(name: str) -> None:
    """Parsers of text, with every character there is."""
    readers: tuple[Callable[[str], Any], ...] = (
        (lambda text: b64decode(text, "field"), lambda text: hexdecode(text, "field"))
        if name == "base64"
        else (parse_rfc3339,)
    )
    allowed: type[Exception] = MalformedEvidence if name == "base64" else ValueError

    @given(st.text(max_size=60))
    def check(text: str) -> None:
        for read in readers:
            try:
                read(text)
            except allowed:
                continue

    check()
