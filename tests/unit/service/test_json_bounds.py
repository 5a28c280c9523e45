"""What a JSON text may make a parser do, found out before it parses."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError

from attestation.errors import BodyTooComplex
from attestation_service.border.bodies import LISTS, SMALL_BYTES, load_json
from attestation_service.border.json_bounds import MAX_ESCAPES, Bounds, demand

FEW = Bounds(values=100, depth=8)


def nested(depth: int) -> Any:
    """Return lists within one another, *depth* of them."""
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "honest",
    [
        {},
        0,
        "text",
        {f"m{i}": i for i in range(100)},
        list(range(99)),
        nested(8),
        # What stands in strings is no structure, however much of it there is.
        {"note": "[{," * 500},
        {"note": 'quoted "words", [lists] and {objects}, ' * 50},
        {"note": "\\" * 999 + '"' * 999},
        {"log": "A" * 4_000_000},
    ],
    ids=lambda value: str(value)[:24],
)
@pytest.mark.parametrize("indent", [None, 4])
def test_honest_texts_pass(honest: Any, indent: int | None) -> None:
    """Also pretty-printed, and where strings hold what looks like structure."""
    demand(json.dumps(honest, indent=indent).encode(), FEW)


@pytest.mark.threat("T123")
@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        ({f"m{i}": 0 for i in range(101)}, "values"),
        ([[]] * 101, "values"),
        ({"a": "x" * 10_000, "b": [0] * 100}, "values"),
        (nested(9), "levels"),
        ({"a": "x" * 10_000, "b": nested(8)}, "levels"),
        (b"9" * 8_000, "values"),
        ({"a": "\n" * (MAX_ESCAPES + 1)}, "escapes"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_hostile_texts_are_refused(hostile: Any, why: str) -> None:
    """One too many of anything that costs work."""
    text = hostile if isinstance(hostile, bytes) else json.dumps(hostile).encode()
    with pytest.raises(BodyTooComplex, match=why):
        demand(text, FEW)


@pytest.mark.parametrize(
    "unit", [b'"', b"\\", b"[", b"{", b",", b'"",', b'{"":', b"9", b" ", b'\\"', b'"\\"",']
)
def test_no_four_megabytes_take_long(unit: bytes) -> None:
    """Whatever they consist of. The ceiling is generous: it is milliseconds on any machine."""
    text = unit * ((4 << 20) // len(unit))
    began = time.thread_time()
    with contextlib.suppress(BodyTooComplex):
        demand(text, Bounds(values=1_024))
    assert time.thread_time() - began < 0.25


@pytest.mark.parametrize(
    "text", [b"NaN", b"-Infinity", b"9" * 5000, b'"\xff"', b'"\\ud800"', b"1 2", b'{"a":1', b""]
)
@pytest.mark.parametrize("blanks", [0, SMALL_BYTES])
def test_what_is_no_json(text: bytes, blanks: int) -> None:
    """Short or long, it is told where it ends to be JSON."""
    with pytest.raises(RequestValidationError) as caught:
        load_json(b" " * blanks + text, LISTS)
    (error,) = caught.value.errors()
    assert (error["type"], error["loc"]) == ("json_invalid", ("body",))
    assert re.fullmatch(r"not JSON: .+ at line 1 column \d+", error["msg"])
