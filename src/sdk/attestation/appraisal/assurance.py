"""Judging how well the identity of a machine is vouched for (TPM.md §6): common to all kinds of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from attestation.machines import Role
from attestation.reference import Policy
from attestation.results import Assurance, Check, Outcome, TrustClaim

ASSURANCE: Final = Check(name="assurance", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97)


def judge_assurance(found: Assurance, role: Role | None, policy: Policy) -> Sequence[Outcome]:
    """Judge how well a machine is vouched for, by what is enforced and by what is only reported."""
    enforced = _judged(found, policy.assurance_minimum(role), "enforce")
    stated = policy.assurance
    if stated is None or not stated.report:
        return (enforced,)
    return enforced, _judged(found, stated.level, "report")


@lru_cache(maxsize=64)
def _judged(found: Assurance, minimum: Assurance, mode: str) -> Outcome:
    if found.level >= minimum.level:
        return ASSURANCE.passed(f"{found}, at least {minimum} needed")
    return ASSURANCE.told(f"at least {minimum}", found.value, report=mode == "report")
