"""What changes between two policies, as data and in words."""

from __future__ import annotations

from typing import Any

from attestation.reference import Policy, diff, parse_policy

A, B, C = ("aa" * 32, "bb" * 32, "cc" * 32)


def policy(version: int = 1, **members: Any) -> Policy:
    base = {"pcrs": {"7": {"any_of": [A]}}}
    return parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "workers",
            "version": version,
            "bank": "sha256",
            **base,
            **members,
        }
    )


def test_values_that_come_and_go() -> None:
    """Lists are compared as sets; the values stand in the change, shortened in its words."""
    found = diff(policy(1), policy(2, pcrs={"7": {"any_of": [B, C]}}))
    (change,) = found.changes
    assert (change.member, change.added, change.removed) == ("pcrs.7", (B, C), (A,))
    assert (change.before, change.after) == ({"any_of": [A]}, {"any_of": [B, C]})
    assert change.text == "PCR 7: +2 (bbbbbbbbbbbb…, cccccccccccc…), -1 (aaaaaaaaaaaa…)"
    assert (found.before, found.after) == ("workers@1", "workers@2")


def test_every_kind_of_change_in_words() -> None:
    """New, gone, another rule, another word; PCRs come first, by number."""
    before = policy(
        1,
        pcrs={
            "7": {"any_of": [A]},
            "11": {"ignore": "not used"},
            "4": {"events": "approved-digests", "digests": [A]},
        },
        max_age_seconds=300,
        firmware={"min": {"IFX": "7.63"}},
    )
    after = policy(
        2,
        mode="report",
        pcrs={
            "7": {"ignore": "judged by secure_boot"},
            "4": {"events": "approved-digests", "digests": [A, B]},
            "0": {"any_of": [A, B, C, "dd" * 32]},
            "12": {"empty": True},
        },
        secure_boot={"required": True, "dbx_min": [A]},
        boot={"command_lines": ["ro quiet"]},
        max_age_seconds=600,
    )
    assert diff(before, after).words == (
        "mode: enforce -> report",
        "PCR 0: new: one of 4 (aaaaaaaaaaaa…, bbbbbbbbbbbb…, cccccccccccc…, …)",
        "PCR 4: +1 (bbbbbbbbbbbb…)",
        "PCR 7: one of aaaaaaaaaaaa… -> ignored (judged by secure_boot)",
        "PCR 11: not demanded any more (was ignored (not used))",
        "PCR 12: new: no measurement",
        "boot: command lines: new: ro quiet",
        "firmware: min: IFX: not demanded any more (was 7.63)",
        "max age seconds: 300 -> 600",
        "secure boot: dbx min: new: aaaaaaaaaaaa…",
        "secure boot: required: new: yes",
    )
    assert (
        diff(after, policy(3, secure_boot={"required": False})).words[-1]
        == "secure boot: required: yes -> no"
    )


def test_a_rule_of_another_kind_is_no_list_of_values() -> None:
    """The same digest as a value and as an event are two things."""
    (change,) = diff(policy(1), policy(2, pcrs={"7": {"events": "approved-digests", "digests": [A]}})).changes
    assert (change.added, change.removed) == ((), ())
    assert change.text == "PCR 7: one of aaaaaaaaaaaa… -> only events aaaaaaaaaaaa…"


def test_nothing_changes() -> None:
    """Another version of the same, and another order, which is written otherwise and means the same."""
    assert diff(policy(1), policy(2)).words == ("workers@1 and workers@2 demand the same",)
    found = diff(policy(1, pcrs={"7": {"any_of": [A, B]}}), policy(2, pcrs={"7": {"any_of": [B, A]}}))
    assert found.words == ("PCR 7: the same values, written otherwise",)


def test_another_bank() -> None:
    """All values are others, and the bank is named."""
    other = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "workers",
            "version": 2,
            "bank": "sha384",
            "pcrs": {"7": {"any_of": ["dd" * 48]}},
        }
    )
    assert diff(policy(1), other).words[0] == "bank: sha256 -> sha384"
