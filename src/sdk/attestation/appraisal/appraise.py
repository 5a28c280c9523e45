"""Judging one machine's evidence, of all kinds that are expected of it: every check is made, every outcome is kept.

Evidence that is not authentic proves nothing about the machine: it ends the appraisal with `error`, and nothing in it
may change what is known of the machine. Authentic evidence that is not as expected is a Failed result, with each check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

from attestation.appraisal.assurance import ASSURANCE, GUEST, judge_assurance, judge_guest, raised
from attestation.appraisal.confidential import Hardware
from attestation.appraisal.kind import Appraisal, Findings, Kind
from attestation.appraisal.kinds import KINDS
from attestation.appraisal.ruled import RULE, judge_rules
from attestation.errors import EndorsementMissing, EvidenceRejected, HardwareEvidenceRejected
from attestation.machines import Role
from attestation.reference import Policy
from attestation.results import (
    Assurance,
    AttestationResult,
    Check,
    Outcome,
    Subject,
    TrustClaim,
    Verdict,
    conclude,
)

POLICY: Final = Check(name="policy")
EVIDENCE: Final = Check(name="evidence", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What we know and expect of the machine that sent it.

    Args:
        expected: Name of each kind that must come -> what it is compared with, as its kind wants it.
        requested_policy: `name@version` of the policy in force when the challenge was issued.
        policy: The policy in force now; None where there is none.
        assurance: How well the machine's identity is vouched for.
        role: What an operator lets it become; None before the approval.
        cluster: Id of the cluster that it belongs to; empty where it belongs to none.
    """

    expected: Mapping[str, Any]
    requested_policy: str
    policy: Policy | None
    assurance: Assurance
    role: Role | None
    cluster: str = ""


def appraise(evidence: Mapping[str, Any], case: Case, at: datetime) -> Appraisal:
    """Appraise *evidence*, by the names of its kinds, for *case* at the instant *at*.

    Raises nothing that it can express.
    """
    policy = case.policy
    outcomes: list[Outcome] = []
    found: dict[str, Findings] = {}
    hardware: dict[str, Hardware] = {}
    assurance = case.assurance
    digest: str | None = None
    undecided: set[str] = set()
    answered: set[str] = set()
    verified: list[tuple[Kind[Any, Any, Any], Any, Any, Any]] = []
    for name, expected in case.expected.items():
        kind, sent = KINDS[name], evidence.get(name)
        try:
            claims = kind.verify(sent, expected) if sent is not None else _absent(name)
        except HardwareEvidenceRejected as error:
            return _refused(at, case, error.failed, error)
        except EvidenceRejected as error:
            return _refused(at, case, [kind.check.failed(kind.expects, f"{error.code}: {error}")], error)
        except EndorsementMissing as missing:
            # Neither believed nor refused: it tells nothing, and the verdict waits for what would vouch for it.
            undecided.add(name)
            answered |= kind.answers(None)
            outcomes += missing.undecided
            continue
        verified.append((kind, claims, sent, expected))
        answered |= kind.answers(claims)
        outcomes.append(kind.held)
        seen = kind.hardware(claims)
        if seen is not None:
            hardware[name] = seen
            outcomes += judge_guest(seen, expected.guest)
        followed, told = kind.follow(claims, expected, policy)
        outcomes += followed
        found[name] = told
        digest = digest or told.digest
    if not verified and not undecided:
        # No check is not success.
        nothing = EvidenceRejected("no evidence is expected of this machine")
        return _refused(at, case, [EVIDENCE.failed("evidence of a kind", str(nothing))], nothing)
    subjects: tuple[Subject, ...] = ()
    if policy is None:
        outcomes.append(POLICY.undecided("no policy applies to this machine"))
    elif policy.ref != case.requested_policy:
        # The challenge asked for the evidence of another policy; a new challenge asks for the right one.
        outcomes.append(POLICY.undecided(f"{policy.ref} replaced {case.requested_policy} meanwhile"))
    else:
        ruled: list[Outcome] = []
        for kind, claims, sent, expected in verified:
            judged, compared = kind.judge(claims, sent, expected, policy)
            ruled += judged
            subjects += compared
            if kind.name in hardware:
                assurance = raised(assurance, hardware[kind.name], expected.approved, judged, compared)
        outcomes += judge_assurance(assurance, case.role, policy)
        outcomes += ruled
        if "rules" in policy.blocks:
            machine = {"role": case.role or "", "cluster": case.cluster, "assurance": assurance.value}
            shown = {kind.name: kind.shown(found[kind.name]) for kind, *_ in verified}
            outcomes += judge_rules(policy, {"machine": machine, **shown}, frozenset(undecided))
        for name in policy.kinds.keys() - answered:
            # Rules about evidence that is not even expected hold for nobody.
            outcomes.append(EVIDENCE.told(name, "absent", report=policy.kinds[name]))
    verdict = conclude(outcomes)
    result = AttestationResult(
        verdict=verdict,
        at=at,
        policy=policy.ref if policy is not None else None,
        outcomes=tuple(outcomes),
        boot_state_appraised=() if verdict is Verdict.INDETERMINATE else subjects,
        pcr_digest=digest,
    )
    return Appraisal(result, None, found, hardware, assurance)


def _absent(name: str) -> NoReturn:
    raise EvidenceRejected(f"no evidence of the kind {name}")


def _refused(at: datetime, case: Case, outcomes: Sequence[Outcome], error: EvidenceRejected) -> Appraisal:
    result = AttestationResult(
        verdict=conclude(outcomes),
        at=at,
        policy=case.policy.ref if case.policy is not None else None,
        outcomes=tuple(outcomes),
        boot_state_appraised=(),
        pcr_digest=None,
    )
    return Appraisal(result, error, {}, {}, case.assurance)


def recalled(outcome: Outcome) -> Outcome:
    """Return an *outcome* that was stored, with what it says of trust: that follows from its check."""
    for check in (POLICY, ASSURANCE, EVIDENCE, RULE, GUEST):
        if check.name == outcome.check:
            return check.again(outcome)
    for kind in KINDS.values():
        for check in kind.checks:
            if check.name == outcome.check:
                return check.again(outcome)
    return outcome
