"""The identifier of a policy: equal exactly when the same is asked (CONFIDENTIAL.md §12.3)."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.reference import IDENTITY_ONLY, compose, identifier, parse_policy
from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS
from attestation.reference.identifier import asked
from tests.unit.reference.test_confidential_blocks import ALL
from tests.unit.reference.test_schema import FULL

TPM = {name: value for name, value in FULL.items() if name in ("bank", "pcrs", "secure_boot", "boot", "ima")}
WHOLE: dict[str, Any] = {"format": "itl-policy/2", "name": "whole", "version": 1, "tpm": TPM, **ALL}
RULES = [{"name": "a", "expression": "true"}, {"name": "b", "expression": "!sev_snp.debug"}]


def of(**changes: Any) -> str:
    """Return the identifier of a policy with *changes* at paths, dots written as two underscores."""
    document = copy.deepcopy(WHOLE)
    for path, value in changes.items():
        *above, last = path.split("__")
        place = document
        for name in above:
            place = place[name]
        if value is None:
            del place[last]
        else:
            place[last] = value
    return identifier(parse_policy(document))


def test_its_form() -> None:
    """RFC 6920 over SHA-384 of canonical JSON: sorted, without white space, UTF-8."""
    scheme, _, digest = identifier(IDENTITY_ONLY).partition(";")
    text = json.dumps(asked(IDENTITY_ONLY), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert scheme == "ni:///sha-384"
    assert base64.urlsafe_b64decode(digest) == hashlib.sha384(text.encode()).digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other", "version": 7, "description": "for people"},
        {"mode": "enforce"},
        {"sev_snp__measurement": ALL["sev_snp"]["measurement"][::-1]},
        {"sev_snp__measurement": ALL["sev_snp"]["measurement"] * 2},
        {"sev_snp__allow_debug": None},
        {"tdx__require_sept_ve_disable": None},
        {"tcb__accepted_status": ALL["tcb"]["accepted_status"][::-1]},
        {"rules": [ALL["rules"][0] | {"name": "renamed", "message": "in other words"}]},
        {"tpm__boot__command_lines": TPM["boot"]["command_lines"][::-1] * 2},
        {"max_age_seconds": 300},
    ],
    ids=str,
)
def test_the_same_is_asked(changes: dict[str, Any]) -> None:
    """Names, order, what is said twice, and defaults that are written out ask nothing."""
    assert of(**changes) == of()


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "report"},
        {"sev_snp__measurement": ALL["sev_snp"]["measurement"][:1]},
        {"sev_snp__allow_debug": True},
        {"sev_snp": None},
        {"tcb__min_tcb_date": "2025-02-13T00:00:00Z"},
        {"collateral__max_staleness_hours": 47},
        {"identity__mode": "registered"},
        {"rules": RULES},
        {"tdx__xfam": {"value": "00" * 8, "mask": "ff" * 8}},
        {"tdx__rtmr0": ALL["tdx"]["rtmr1"]},
        {"max_age_seconds": 301},
        {"reattest_seconds": 60},
        {"assurance": {"minimum": "tee"}},
        {"tpm": None},
        {"tpm__pcrs": {"7": {"any_of": ["cc" * 32]}}},
        {"tpm__clock": {"safe": "required"}},
    ],
    ids=str,
)
def test_something_else_is_asked(changes: dict[str, Any]) -> None:
    """Each difference tells, the mode of a rule too."""
    assert of(**changes) != of()


def test_rules_have_no_order() -> None:
    """Two of them, in either order and under other names."""
    other = [RULES[1] | {"name": "a"}, RULES[0] | {"name": "b"}]
    assert of(rules=RULES) == of(rules=other)


def test_both_formats_and_compositions_ask_the_same() -> None:
    """What two policies demand together is what one does."""
    flat = parse_policy(FULL)
    two = {name: value for name, value in FULL.items() if name not in ("bank", "pcrs")}
    common = ("name", "version", "mode", "description", "assurance", "max_age_seconds", "reattest_seconds")
    nested = {name: two.pop(name) for name in common if name in two}
    two.pop("format")
    written = parse_policy(
        {"format": "itl-policy/2", **nested, "tpm": {"bank": FULL["bank"], "pcrs": FULL["pcrs"], **two}}
    )
    assert identifier(flat) == identifier(written)
    head = {"format": "itl-policy/2", "version": 1}
    wide = parse_policy({**head, "name": "wide", "sgx": ALL["sgx"]})
    narrow = parse_policy({**head, "name": "narrow", "tcb": ALL["tcb"]})
    one = parse_policy({**head, "name": "one", "sgx": ALL["sgx"], "tcb": ALL["tcb"]})
    assert identifier(compose([wide, narrow])) == identifier(one)


@given(st.data())
def test_equal_exactly_when_the_same_is_asked(data: st.DataObject) -> None:
    """Of any two policies over these blocks: same rules, same identifier, and the other way round."""

    def drawn() -> dict[str, Any]:
        document: dict[str, Any] = {"format": "itl-policy/2", "version": 1}
        document["name"] = data.draw(st.sampled_from(["a", "b"]))
        document["mode"] = data.draw(st.sampled_from(["enforce", "report"]))
        document["sgx"] = {"mrenclave": data.draw(st.permutations(["aa" * 32, "bb" * 32]))}
        choices: dict[str, list[int]] = {"allow_debug": [False, True], "isv_prod_id": [0, 1]}
        for member, values in choices.items():
            value = data.draw(st.none() | st.sampled_from(values))
            if value is not None:
                document["sgx"][member] = value
        if data.draw(st.booleans()):
            status = data.draw(st.sampled_from([["UpToDate"], ["UpToDate", "OutOfDate"]]))
            document["tcb"] = {"accepted_status": status}
        return document

    def meaning(document: dict[str, Any]) -> object:
        report = document["mode"] == "report"
        sgx, tcb = document["sgx"], document.get("tcb", {})
        return (
            report,
            sgx.get("allow_debug", False),
            sgx.get("isv_prod_id"),
            frozenset(tcb.get("accepted_status", ["UpToDate"])),
        )

    one, other = drawn(), drawn()
    same = meaning(one) == meaning(other)
    assert (identifier(parse_policy(one)) == identifier(parse_policy(other))) is same


def test_every_block_is_asked() -> None:
    """And is there with its defaults where it is not stated."""
    told = asked(IDENTITY_ONLY)
    assert (BLOCKS.keys() | COMMON_BLOCKS.keys()) <= told.keys()
    assert told["sev_snp"]["signing_key"] == {"value": "vcek", "report": False}  # type: ignore[index]  # an object
