"""Labels: their syntax is that of Kubernetes, and who reads a selector reads it in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import RequestInvalid
from attestation.machines.labels import (
    MAX_LABELS,
    MAX_SELECTOR,
    changed,
    checked_key,
    checked_value,
    parse_selector,
    told,
)


@pytest.mark.parametrize(
    "key",
    ["rack", "R", "4", "a.b_c-d", "a" * 63, "example.org/rack", "a/b", f"{'a.' * 126}a/b", "xitl.io/rack"],
)
def test_keys(key: str) -> None:
    """A name, or a name below a DNS name."""
    assert checked_key(key) == key


@pytest.mark.threat("T168")
@pytest.mark.parametrize(
    "key",
    [
        *("", "-a", "a-", ".a", "a_", "a b", "a/b/c", "/a", "a/", "é", "a" * 64, "rack\n", "a=b", "a,b"),
        *("Example.org/rack", "-a.b/c", f"{'a.' * 126}aa/b", "a..b/c", "a_b/c"),
        *("itl.io/attested", "node.itl.io/x", "kubernetes.io/hostname", "node.kubernetes.io/itl", "k8s.io/a"),
    ],
)  # fmt: skip
def test_what_is_no_key_is_refused(key: str) -> None:
    """Also what programs believe where they read it: ours, and Kubernetes' own."""
    with pytest.raises(RequestInvalid):
        checked_key(key)


def test_values() -> None:
    """Empty, or made as names are."""
    for value in ("", "4", "ams", "1.2.3", "a" * 63):
        assert checked_value(value) == value
    for value in ("-", "a b", "a" * 64, "a/b", "4\n", "ü"):
        with pytest.raises(RequestInvalid):
            checked_value(value)


def test_selectors() -> None:
    """Everything that is named must be there; what has no value may have any."""
    assert parse_selector("rack=4, example.org/site,spare=") == {
        "rack": "4", "example.org/site": None, "spare": "",
    }  # fmt: skip
    for wrong in ("", ",", "rack=4,", "rack=4,rack", "rack!=4", "=4", "rack=a b", "a" * (MAX_SELECTOR + 1)):
        with pytest.raises(RequestInvalid):
            parse_selector(wrong)
    assert len(parse_selector(",".join(f"k{n}" for n in range(MAX_LABELS)))) == MAX_LABELS
    with pytest.raises(RequestInvalid, match="at most 32 labels"):
        parse_selector(",".join(f"k{n}" for n in range(MAX_LABELS + 1)))


def test_what_is_not_named_stays() -> None:
    """Setting replaces, removing what is not there is no error, and a machine has a bounded number."""
    before = {"rack": "4", "site": "ams"}
    assert changed(before, {"rack": "5"}, ["site", "gone"]) == {"rack": "5"}
    assert before == {"rack": "4", "site": "ams"}
    with pytest.raises(RequestInvalid, match="rack is both set and removed"):
        changed({}, {"rack": "4"}, ["rack"])
    full = {f"k{n}": "" for n in range(MAX_LABELS)}
    assert changed(full, {"k0": "x"}, []) == full | {"k0": "x"}
    with pytest.raises(RequestInvalid, match="at most 32 labels; this would make 33"):
        changed(full, {"one-more": ""}, [])


KEYS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9])?", fullmatch=True)
VALUES = st.just("") | KEYS


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_what_is_shown_can_be_asked_for(labels: dict[str, str]) -> None:
    """A list of labels as it is printed is the selector that finds its machine."""
    assert parse_selector(told(labels)) == labels


@given(st.text(max_size=64))
def test_a_selector_is_read_or_refused(text: str) -> None:
    """In one way, and what was read is made of good keys and values."""
    try:
        wanted = parse_selector(text)
    except RequestInvalid:
        return
    for key, value in wanted.items():
        assert checked_key(key) == key
        assert value is None or checked_value(value) == value
