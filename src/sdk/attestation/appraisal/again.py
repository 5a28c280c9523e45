"""Judging stored evidence under a policy that was not in force when it came: what that policy would say.

The evidence was authentic when it was stored; nothing here makes a result of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attestation.appraisal.appraise import EVIDENCE
from attestation.appraisal.assurance import judge_assurance
from attestation.appraisal.kinds import KINDS
from attestation.appraisal.ruled import judge_rules
from attestation.machines import Role
from attestation.reference import Policy
from attestation.results import Assurance, Outcome


def judge_again(
    kept: Mapping[str, Any], assurance: Assurance, role: Role | None, policy: Policy, cluster: str = ""
) -> tuple[Outcome, ...]:
    """Return the outcome of every rule of *policy* for what is stored of a machine.

    Args:
        kept: Name of each kind of which evidence is stored -> what is, as its kind wants it.
        assurance: How well the identity of the machine is vouched for.
        role: Its role, or None.
        policy: The policy.
        cluster: Id of its cluster; empty where it belongs to none.
    """
    outcomes = [*judge_assurance(assurance, role, policy)]
    for name, stored in kept.items():
        outcomes += KINDS[name].again(stored, policy)
    if "rules" in policy.blocks:
        states = {name: stored for name, stored in kept.items() if isinstance(stored, Mapping)}
        machine = {"role": role or "", "cluster": cluster, "assurance": assurance.value}
        # Quotes are kept in another form than rules read.
        unknown = frozenset(kept.keys() - states.keys())
        outcomes += judge_rules(policy, {"machine": machine, **states}, unknown)
    absent = sorted(policy.kinds.keys() - kept.keys())
    return (
        *outcomes,
        *(EVIDENCE.undecided(f"{name}: not asked for with the stored evidence") for name in absent),
    )
