"""The JSON Schema of policies says what their reader says (docs/protocol/policy.md)."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attestation.errors import PolicyInvalid
from attestation.reference import diff, effective_document, parse_policy
from attestation.reference.document import VENDORS, flattened, nested
from attestation.reference.schema import either, schema, schema_2
from attestation.results import Assurance

WRITTEN = Path(__file__).parents[3] / "docs" / "protocol" / "itl-tpm-policy-1.schema.json"
WRITTEN_2 = WRITTEN.with_name("itl-policy-2.schema.json")
VALIDATOR_2 = jsonschema_rs.Draft202012Validator(schema_2())
VALIDATOR = jsonschema_rs.Draft202012Validator(schema())
A, B = "aa" * 32, "bb" * 32
FULL: dict[str, Any] = {
    "format": "itl-tpm-policy/1",
    "name": "full",
    "version": 7,
    "description": "every member",
    "mode": "report",
    "bank": "sha256",
    "pcrs": {
        "7": {"any_of": [A, B]},
        "4": {"events": "approved-digests", "digests": [A]},
        "1": {"ignore": "serial numbers"},
        "12": {"empty": True},
    },
    "secure_boot": {
        "required": True,
        "db_sha256": [A],
        "dbx_min": [A],
        "authorities": [B],
        "debug": "forbid",
        "empty_variable": "refuse",
    },
    "boot": {"loaders": [A], "kernels": [A], "initrds": [B], "command_lines": ["/vmlinuz* root=UUID=* ro"]},
    "ima": {"allow": [A, "cc" * 48], "exclude": ["/tmp/*"], "violations": "flag"},
    "event_log": "required",
    "log_padding": "accepted",
    "clock": {"safe": "required"},
    "firmware": {"on_blocklist": "fail", "min": {"IFX": "7.63", "STM": "1.2.3.4"}},
    "ek_key_attestation": "required",
    "assurance": {"minimum": "ek-chain"},
    "max_age_seconds": 300,
    "reattest_seconds": 60,
}


def accepted(document: Any) -> bool:
    try:
        parse_policy(document)
    except PolicyInvalid:
        return False
    return True


def test_every_member_is_accepted_by_both() -> None:
    """One document with all of them, and each without one that is not required."""
    assert parse_policy(json.dumps(FULL).encode()).ref == "full@7"
    VALIDATOR.validate(FULL)
    assert set(schema()["properties"]) == set(FULL)  # type: ignore[call-overload]  # an object
    for name in FULL:
        one_less = {k: v for k, v in FULL.items() if k != name}
        needed = name in ("format", "name", "version", "bank", "pcrs")
        assert accepted(one_less) is VALIDATOR.is_valid(one_less) is not needed, name


def test_what_is_written_is_what_is_said() -> None:
    """The file in docs is the schema."""
    assert json.loads(WRITTEN.read_text()) == schema()
    jsonschema_rs.meta.validate(schema())
    assert json.loads(WRITTEN_2.read_text()) == schema_2()
    jsonschema_rs.meta.validate(schema_2())


def test_one_schema_accepts_either_format() -> None:
    """That which the service serves: each document is of one of them, and of no third."""
    judge = jsonschema_rs.Draft202012Validator(either())
    jsonschema_rs.meta.validate(either())
    for document in (FULL, nested(FULL)):
        judge.validate(document)
        assert not judge.is_valid({**document, "format": "itl-policy/3"})
        assert not judge.is_valid({**document, "pcr": {}})


def test_both_formats_demand_the_same() -> None:
    """Format 2 is the common members and a block; each keeps the digest of what was written."""
    second = nested(FULL)
    old, new = parse_policy(FULL), parse_policy(second)
    VALIDATOR_2.validate(second)
    assert flattened(second) == {**FULL, "format": "itl-policy/2"}
    assert sorted(second) == sorted(
        [
            "format",
            "name",
            "version",
            "description",
            "mode",
            "assurance",
            "max_age_seconds",
            "reattest_seconds",
            "tpm",
        ]
    )
    assert old.sha256 != new.sha256
    assert json.loads(new.document) == second
    assert replace(new, document=old.document, sha256=old.sha256) == old
    assert diff(old, new).changes == ()
    shown, before = effective_document(new), effective_document(old)
    assert {n: v for n, v in shown.items() if n != "policies"} == {
        n: v for n, v in before.items() if n != "policies"
    }


@pytest.mark.threat("T69")
def test_each_member_stands_in_its_place() -> None:
    """A common member in the block, one of the block beside it, an unknown block or none: refused by name."""
    second = nested(FULL)
    block = second["tpm"]
    assert isinstance(block, dict)
    common = {name: value for name, value in second.items() if name != "tpm"}
    for name, value in common.items():
        wrong = {**second, "tpm": {**block, name: value}}
        assert not accepted(wrong), name
        assert not VALIDATOR_2.is_valid(wrong), name
    for name, value in block.items():
        for wrong in (
            {**second, name: value},
            {**common, "tpm": {n: v for n, v in block.items() if n != name}},
        ):
            assert accepted(wrong) == VALIDATOR_2.is_valid(wrong), name
    blocks: tuple[dict[str, object], ...] = ({"sevSnp": {}}, {"tpm": {}}, {"tpm": None}, {"tpm": []})
    for more in blocks:
        assert not accepted({**common, **more})
        assert not VALIDATOR_2.is_valid({**common, **more})
    with pytest.raises(PolicyInvalid, match="sevSnp"):
        parse_policy({**second, "sevSnp": {"x": 1}})
    alone = {"format": "itl-policy/2", "name": "who", "version": 1, "assurance": {"minimum": "ek-chain"}}
    assert parse_policy(alone).tpm.selection.to_names() == {"sha256": [*range(10), 11, 12, 14]}
    VALIDATOR_2.validate(alone)


digests = st.sampled_from([A, B, "cc" * 48, "dd" * 64, "AA" * 32, "aa", "", 7, None])
lists = st.lists(digests, max_size=3)
words = st.sampled_from(
    ["required", "accepted", "flag", "fail", "warn", "forbid", "refuse", "off", "refused", "report", ""]
)
levels = st.sampled_from([*map(str, Assurance), "best"])
lines = st.lists(
    st.sampled_from(["/vmlinuz ro", "a  b", " a", "", "*", "/tmp/*", "tmp", "a\tb", "*" * 9, "x" * 2049, 3])
)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 700_000) | words | digests,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)


def objects(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    either = {name: value | anything for name, value in members.items()}
    return st.fixed_dictionaries({}, optional=either | {"surprise": st.none()}) | anything


rules = (
    st.fixed_dictionaries({"any_of": lists})
    | st.fixed_dictionaries({"events": st.sampled_from(["approved-digests", "all"]), "digests": lists})
    | st.fixed_dictionaries({"empty": st.sampled_from([True, False, 1, None])})
    | st.fixed_dictionaries({"ignore": st.sampled_from(["because", "", "x" * 257])})
    | objects(any_of=lists, events=words, digests=lists, ignore=words)
)
documents = st.fixed_dictionaries(
    {
        "format": st.just("itl-tpm-policy/1"),
        "name": st.sampled_from(["a", "workers-1", "", "A", "-a", "a" * 63, "a" * 64]),
        "version": st.sampled_from([1, 999_999_999, 0, 10**9, True, "1"]),
        "bank": st.sampled_from(["sha256", "sha384", "sha512", "sha1"]),
        "pcrs": st.dictionaries(st.sampled_from(["0", "7", "15", "16", "07", "24", "x"]), rules, max_size=2),
    },
    optional={
        "description": st.sampled_from(["text", "", "x" * 1025]),
        "mode": words | st.just("enforce"),
        "secure_boot": objects(
            required=st.booleans(),
            db_sha256=lists,
            dbx_min=lists,
            authorities=lists,
            debug=words,
            empty_variable=words,
        ),
        "boot": objects(loaders=lists, kernels=lists, initrds=lists, command_lines=lines),
        "ima": objects(allow=lists, exclude=lines, violations=words),
        "event_log": words,
        "log_padding": words,
        "clock": objects(safe=words),
        "firmware": objects(
            on_blocklist=words,
            min=st.dictionaries(
                st.sampled_from([*sorted(VENDORS)[:3], "XXX"]),
                st.sampled_from(["7.63", "1.2.3.4", "1.2.3.4.5", "01", "65535", "", 7]),
            ),
        ),
        "ek_key_attestation": words,
        "assurance": objects(minimum=levels),
        "max_age_seconds": st.sampled_from([30, 300, 604_800, 29, 604_801, "60", True]),
        "reattest_seconds": st.sampled_from([5, 30, 86_400, 4, 86_401, None]),
        "surprise": st.none(),
    },
)


@settings(max_examples=400)
@given(documents)
def test_the_schema_accepts_what_the_reader_accepts(document: dict[str, Any]) -> None:
    """Who checks with the schema first never refuses a policy that the service would take."""
    if accepted(document):
        VALIDATOR.validate(document)
        assert accepted(nested(document))
        VALIDATOR_2.validate(nested(document))


@settings(max_examples=400)
@given(documents)
def test_the_reader_refuses_only_what_the_schema_refuses_or_says(document: dict[str, Any]) -> None:
    """Every other refusal is one of those that the `$comment` of the schema names."""
    if not VALIDATOR.is_valid(document):
        assert not accepted(document)
        return
    with contextlib.suppress(PolicyInvalid):
        parse_policy(document)
        return
    with pytest.raises(PolicyInvalid, match=ONLY_THE_READER):
        parse_policy(document)


ONLY_THE_READER = (
    "nothing else is demanded|contradicts the rules that read it|reattest_seconds .* is longer than"
    "|printable characters|not a pattern|larger than 65535"
)


def test_a_number_that_is_no_integer() -> None:
    """JSON knows no integers: 3.0 is one for the schema and none for the reader."""
    assert VALIDATOR.is_valid({**FULL, "version": 3.0})
    assert not accepted({**FULL, "version": 3.0})


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in *value*."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in _places(item, (*path, key)))]


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("wrong", [None, 7, "x" * 3000, [], {}, {"x": 1}, [None], True], ids=repr)
def test_each_place_with_something_else(wrong: object) -> None:
    """At every place of the full document: both refuse it, or both take it."""
    for path in _places(FULL):
        document = _with(FULL, path, wrong)
        if isinstance(document, dict):
            # An empty clock and an empty pcrs say nothing, and are older than the rule against it.
            assert accepted(document) == VALIDATOR.is_valid(document), path


@pytest.mark.threat("T69")
def test_each_object_with_one_member_more() -> None:
    """An unknown member is refused everywhere."""
    for path in _places(FULL):
        place: Any = FULL
        for key in path:
            place = place[key]
        if isinstance(place, dict):
            document = _with(FULL, path, {**place, "surprise": 1})
            assert not accepted(document), path
            assert not VALIDATOR.is_valid(document), path
