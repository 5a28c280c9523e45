"""Judging how well the identity of a machine is vouched for (TPM.md §6): common to all kinds of evidence."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from attestation.machines import Role
from attestation.reference import Policy
from attestation.results import Assurance, Check, Outcome, TrustClaim

ASSURANCE: Final = Check(name="assurance", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97)


def judge_assurance(found: Assurance, role: Role | None, policy: Policy) -> Iterable[Outcome]:
    """Judge how well a machine is vouched for, by what is enforced and by what is only reported."""
    yield _judged(found, policy.assurance_minimum(role), report=False)
    stated = policy.assurance
    if stated is not None and stated.report:
        yield _judged(found, stated.level, report=True)


@lru_cache(maxsize=64)
def _judged(found: Assurance, minimum: Assurance, *, report: bool) -> Outcome:
    if found.level >= minimum.level:
        return ASSURANCE.passed(f"{found}, at least {minimum} needed")
    return ASSURANCE.told(f"at least {minimum}", found.value, report=report)
