"""Rules of policies over what all evidence shows: as outcomes of a result (docs/protocol/policy.md)."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.appraisal.appraise import recalled
from attestation.appraisal.ruled import RULE, judge_rules
from attestation.reference import Policy, parse_policy
from attestation.results import Code, Failed, Outcome, Passed, Reported, TrustClaim, Undecided

SHOWN: dict[str, Any] = {"machine": {"role": "storage"}, "sev_snp": {"debug": True}}


def judged(expression: str, mode: str = "enforce", *missing: str, **more: str) -> Outcome:
    (outcome,) = judge_rules(policy(expression, mode, **more), SHOWN, frozenset(missing))
    return outcome


def policy(expression: str, mode: str = "enforce", **more: str) -> Policy:
    return parse_policy(
        {
            "format": "itl-policy/2",
            "name": "ruled",
            "version": 1,
            "mode": mode,
            "rules": [{"name": "one", "expression": expression, **more}],
        }
    )


def test_what_holds() -> None:
    """Passes under its name."""
    assert judged("machine.role == 'storage'") == Passed("rule", "one")


@pytest.mark.parametrize(("mode", "kind"), [("enforce", Failed), ("report", Reported)])
def test_what_does_not_hold(mode: str, kind: type[Failed | Reported]) -> None:
    """Fails, or is reported, with the expression, and with the words of who wrote it."""
    expression = "!sev_snp.debug"
    assert judged(expression, mode) == kind("rule", f"one: {expression}", "false")
    told = judged(expression, mode, message="debug guests read along")
    assert told == kind("rule", f"one: {expression}", "false (debug guests read along)")


def test_a_key_that_is_missing_is_a_rule_that_does_not_hold() -> None:
    """Also of a kind of which nothing came."""
    for expression in ("sev_snp.vmpl == 0", "tdx.debug == false"):
        outcome = judged(expression)
        assert isinstance(outcome, Failed)
        assert "cannot be told: KeyError" in outcome.found


def test_what_waits() -> None:
    """A rule over evidence that nobody vouches for yet is neither held nor broken; all others are."""
    outcome = judged("tdx.debug == false && sev_snp.debug", "enforce", "tdx")
    assert outcome == Undecided("rule", "one: nothing is known of tdx yet")
    assert isinstance(judged("machine.role == 'storage'", "enforce", "tdx"), Passed)


def test_what_it_says_of_trust() -> None:
    """Also when it was stored."""
    outcome = judged("false")
    assert outcome.says == (TrustClaim.CONFIGURATION, 96)
    assert RULE.code is Code.GUEST_POLICY
    assert recalled(Failed("rule", "", "")).says == outcome.says
