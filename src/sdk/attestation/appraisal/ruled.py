"""Judging the block `rules` of a policy: expressions over what the evidence of every kind shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.reference import Policy
from attestation.reference.cel_rules import broken, compiled
from attestation.results import Check, Code, Outcome, TrustClaim

RULE: Final = Check(name="rule", claim=TrustClaim.CONFIGURATION, code=Code.GUEST_POLICY)


def judge_rules(
    policy: Policy, shown: Mapping[str, object], missing: frozenset[str] = frozenset()
) -> list[Outcome]:
    """Return the outcome of each rule of *policy*.

    Args:
        policy: The policy.
        shown: `machine`, and the name of each kind of which evidence came -> what it shows.
        missing: Kinds of which evidence came and could not be judged yet: rules that read them are undecided.
    """
    outcomes: list[Outcome] = []
    for rule in policy.blocks.get("rules", ()):
        waiting = missing.intersection(compiled(rule.expression).variables())
        if waiting:
            outcomes.append(RULE.undecided(f"{rule.name}: nothing is known of {min(waiting)} yet"))
            continue
        why = broken(rule, shown)
        if why is None:
            outcomes.append(RULE.passed(rule.name))
        else:
            found = f"{why} ({rule.message})" if rule.message else why
            outcomes.append(RULE.told(f"{rule.name}: {rule.expression}", found, report=rule.report))
    return outcomes
