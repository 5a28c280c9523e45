"""Judging how well the identity of a machine is vouched for (TPM.md §6): common to all kinds of evidence."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from attestation.appraisal.confidential import Approved, Hardware
from attestation.machines import Role
from attestation.reference import Policy
from attestation.results import Assurance, Check, Failed, Outcome, Subject, TrustClaim, Undecided
from attestation.results.codes import Code

ASSURANCE: Final = Check(name="assurance", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97)
GUEST: Final = Check(
    name="guest-name", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97, code=Code.MACHINE_NOT_ALLOWED
)


def judge_assurance(found: Assurance, role: Role | None, policy: Policy) -> Sequence[Outcome]:
    """Judge how well a machine is vouched for, by what is enforced and by what is only reported."""
    enforced = _judged(found, policy.assurance_minimum(role), "enforce")
    stated = policy.assurance
    if stated is None or not stated.report:
        return (enforced,)
    return enforced, _judged(found, stated.level, "report")


def judge_guest(seen: Hardware, guest: bytes | None) -> Sequence[Outcome]:
    """Compare what the launcher calls this guest with what it was called when it was introduced.

    Args:
        seen: What the evidence shows of the hardware.
        guest: HOST_DATA or MRCONFIGID then; None where the machine is known by its TPM.
    """
    if guest is None:
        return ()
    if hmac.compare_digest(seen.guest, guest):
        return (GUEST.passed(),)
    return (GUEST.failed(guest.hex(), seen.guest.hex()),)


def raised(
    known: Assurance,
    seen: Hardware,
    approved: Approved | None,
    judged: Sequence[Outcome],
    compared: Sequence[Subject],
) -> Assurance:
    """Return how well a machine is vouched for, with evidence of confidential hardware counted.

    That raises it where an operator approved this very chip, a reference value that is enforced matched what was
    launched, and nothing else of that kind is open.

    Args:
        known: Without it.
        seen: What the evidence shows of the hardware.
        approved: What an operator approved; None where nothing was.
        judged: What the kind found under the policy.
        compared: What is as the policy states it.
    """
    if approved is None or not any(seen.chip) or not compared:
        return known
    if (seen.chip, seen.csp_id) != (approved.chip, approved.csp_id):
        return known
    if any(isinstance(outcome, Failed | Undecided) for outcome in judged):
        return known
    return max(known, Assurance.TEE, key=lambda each: each.level)


@lru_cache(maxsize=64)
def _judged(found: Assurance, minimum: Assurance, mode: str) -> Outcome:
    if found.level >= minimum.level:
        return ASSURANCE.passed(f"{found}, at least {minimum} needed")
    return ASSURANCE.told(f"at least {minimum}", found.value, report=mode == "report")
