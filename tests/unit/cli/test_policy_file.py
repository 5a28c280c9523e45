"""Policies in files: YAML in which nothing is guessed, JSON, and nothing else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.client.policy_text import MAX_CHARACTERS, read_policy
from attestation.client.yaml_text import yaml_text
from attestation.errors import RequestInvalid
from attestation.reference import parse_policy

DIGITS = "1" * 64
FLOATING = "12e4" + "5" * 60


@pytest.mark.threat("T72")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0", 0),
        ("123456789", 123456789),
        ("1234567890", "1234567890"),
        ("007", "007"),
        ("-1", "-1"),
        ("1.0", "1.0"),
        ("1e3", "1e3"),
        ("0x10", "0x10"),
        (DIGITS, DIGITS),
        (FLOATING, FLOATING),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("12:30:15", "12:30:15"),
        ("2026-11-21", "2026-11-21"),
        (".inf", ".inf"),
        ("'7'", "7"),
        ('"true"', "true"),
        ("|\n    7\n", "7\n"),
    ],
)
def test_values_are_what_they_look_like(text: str, value: object) -> None:
    """A digest stays a digest, whatever its digits could mean to another reader."""
    assert read_policy(f"a: {text}", "f") == {"a": value}


def test_names_are_texts() -> None:
    """PCR 7 is PCR 7, with quotes or without."""
    plain = "pcrs:\n  7: {any_of: [x]}\n  11: {ignore: y}\n"
    quoted = "pcrs:\n  \"7\": {any_of: [x]}\n  '11': {ignore: y}\n"
    assert read_policy(plain, "f") == read_policy(quoted, "f")
    assert read_policy("true: x\nnull: y", "f") == {"true": "x", "null": "y"}


@pytest.mark.threat("T72")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &x 1\nb: *x", "line 1: anchors and aliases"),
        ("a: [&x [1, 1], *x]", "line 1: anchors and aliases"),
        ("&x a: 1", "line 1: anchors and aliases"),
        ("a: 1\nb: !!python/object/apply:os.system [x]", "line 2: tags"),
        ("!!map {a: 1}", "line 1: tags"),
        ("!x a: 1", "line 1: tags"),
        ("%TAG ! tag:x,2000:\n---\na: 1", "tags"),
        ("a: 1\n<<: {b: 1}", "line 2: merge keys"),
        ("a: 1\na: 2", "line 2: 'a' is named twice"),
        ("pcrs: {7: x, '7': y}", "'7' is named twice"),
        ('{"a": 1, "a": 2}', "'a' is named twice"),
        ("? [a]\n: 1", "line 1: a name of a member is a text"),
        ("a: 1\n---\nb: 1", "more than one document"),
        ("a: " + "[" * 20 + "]" * 20, "nested deeper than 16"),
        ("", "a policy is an object"),
        ("- 1", "a policy is an object"),
        ("just words", "a policy is an object"),
        ("a: [", "line 1: not YAML"),
        ("a: \x00", "not YAML"),
        ('{"a": ', "not JSON"),
        ("{" + '"a":{' * 5000, "not JSON"),
        ("a: b\n" * (MAX_CHARACTERS // 5 + 1), "longer than"),
    ],
)
def test_what_no_policy_needs_is_refused(text: str, why: str) -> None:
    """Nothing grows, nothing is built, nothing is overwritten in silence; the line is named."""
    with pytest.raises(RequestInvalid, match=r"^f") as told:
        read_policy(text, "f")
    assert why in str(told.value)


def test_a_merge_key_in_quotes_is_a_name() -> None:
    """It means nothing there."""
    assert read_policy('"<<": x', "f") == {"<<": "x"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(0, 999_999_999) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    )
)
def test_what_we_write_is_read_as_it_was(value: object) -> None:
    """`-o yaml` and `policy create` agree, and JSON says the same."""
    document = {"document": value}
    assert read_policy(yaml_text(document), "f") == document
    assert read_policy(json.dumps(document), "f") == document


@given(st.text(alphabet="ab1:-[]{}&*!|>'\"#,? \n\t%~<", max_size=60))
def test_whatever_is_in_a_file_there_is_one_error(text: str) -> None:
    """A document or `RequestInvalid`, never anything else."""
    with contextlib.suppress(RequestInvalid):
        assert isinstance(read_policy(text, "f"), dict)


def test_the_example_is_a_policy() -> None:
    """Comments, PCRs without quotes, values of digits only."""
    with Path(__file__).with_name("a_policy.yaml").open(encoding="utf-8") as file:
        policy = parse_policy(read_policy(file.read(), "a_policy.yaml"))
    assert [rule.index for rule in policy.tpm.rules] == [1, 7, 11]
