"""Bounds of JSON, against what a parser really finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import BodyTooComplex
from attestation_service.border.json_bounds import Bounds, demand

TEXTS = st.text(alphabet=st.sampled_from('{}[],:"\\ \nau0é'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)


def counted(value: Any) -> tuple[int, int]:
    """Return how many members and items *value* has, each with those of its own, and how deep it is."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 0, 0
    found = [counted(each) for each in inner]
    # An empty object or list is counted as if it had one member.
    return max(len(inner), 1) + sum(n for n, _ in found), 1 + max((depth for _, depth in found), default=0)


@pytest.mark.threat("T123")
@given(VALUES, st.sampled_from([None, 2]), st.booleans(), st.integers(1, 12), st.integers(1, 4))
def test_exactly_what_is_there_is_counted(
    value: Any, indent: int | None, ascii_only: bool, values: int, depth: int
) -> None:
    """A text passes if, and only if, it is within the bounds: nothing honest is refused for its strings."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    has, deep = counted(value)
    try:
        demand(text, Bounds(values=values, depth=depth))
    except BodyTooComplex:
        assert has > values or deep > depth or len(text) > 64 * values
    else:
        assert has <= values
        assert deep <= depth


@given(st.binary(max_size=2048))
def test_anything_is_bounded_or_refused(text: bytes) -> None:
    """Also what is no JSON: there is one error, and nothing that passes is parsed into more than the bounds."""
    try:
        demand(text, Bounds(values=8, depth=4))
        found = counted(json.loads(text))
    except (BodyTooComplex, ValueError):
        return
    assert found <= (8, 4) or found[0] <= 8
