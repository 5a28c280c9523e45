"""Step 12: what booted. The judge is that of every attestation; here stands what a request brings to it, and lacks."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from attestation.appraisal.appraise import Case as BootCase
from attestation.appraisal.appraise import appraise as appraise_evidence
from attestation.appraisal.assurance import judge_assurance
from attestation.appraisal.node_csr.case import Case
from attestation.appraisal.node_csr.result import BOOT, Reason
from attestation.appraisal.tpm import TPM, Expected, UnverifiedEvidence
from attestation.errors import (
    AttestHeaderInvalid,
    ChallengeMismatch,
    EvidenceRejected,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.evidence import event_log, tpm_quote
from attestation.evidence.event_log import ReplayedLog
from attestation.evidence.node_csr import Layout, UnverifiedContainer
from attestation.evidence.tpm_quote import PCRValues, UnverifiedQuote
from attestation.machines import Machine, Trust
from attestation.reference import Policy
from attestation.results import AttestationResult, Failed, Outcome, Verdict
from attestation.tpm import Attest

MAX_EVENTS: Final = 2500
"""Of a log in a request. Machines log one to three hundred; each more is work for whoever judges many requests."""


class Quoted(NamedTuple):
    """The quote of a request, parsed.

    Args:
        quote: The quote.
        pcr_values: What was sent beside it.
    """

    quote: UnverifiedQuote
    pcr_values: PCRValues


class Boot(NamedTuple):
    """What is said of the boot.

    Args:
        outcomes: In order.
        reason: Why the request is denied; None where it is not, or an outcome is undecided.
        quoted: A quote of this request is as the policy expects.
        result: The appraisal of the quote, where there was one.
    """

    outcomes: tuple[Outcome, ...]
    reason: Reason | None = None
    quoted: bool = False
    result: AttestationResult | None = None


_REASONS: Final[tuple[tuple[type[EvidenceRejected], Reason], ...]] = (
    (SignatureInvalid, Reason.SIGNATURE_INVALID),
    (AttestHeaderInvalid, Reason.SIGNATURE_INVALID),
    (ChallengeMismatch, Reason.EVIDENCE_STALE),
    (EvidenceRejected, Reason.POLICY_FAILED),
)
"""What it means that a quote is not authentic; other PCRs than requested, or other values than quoted, are the last."""


def read_quote(container: UnverifiedContainer) -> Quoted | None:
    """Parse the quote in *container*; None where there is none.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if container.quote is None or container.quote_signature is None:
        return None
    return Quoted(
        tpm_quote.parse(container.quote, container.quote_signature),
        tpm_quote.parse_pcr_values(container.pcr_values),
    )


def judge_boot(
    container: UnverifiedContainer,
    quoted: Quoted | None,
    case: Case,
    machine: Machine,
    nonce: bytes,
    certified: Attest,
    at: datetime,
) -> Boot:
    """Judge what booted.

    Args:
        container: The request.
        quoted: Its quote.
        case: What is known of it.
        machine: Whose it is.
        nonce: That the quote must answer.
        certified: The statement about the key, verified.
        at: The instant, UTC.
    """
    if quoted is None:
        return _without_quote(container, case, machine, at)
    if case.policy is None:
        return Boot((BOOT.undecided("no policy applies to this machine"),))
    if case.policy.ref != case.requested_policy:
        # The challenge asked for the evidence of another policy; a new challenge asks for the right one.
        return _failed(Reason.EVIDENCE_STALE, "evidence for the policy in force", "for the one before it")
    assert machine.tpm.ak_public is not None
    rules, elsewhere = _judged_here(case.policy)
    try:
        log = _log(container, case, rules)
    except MalformedEvidence as error:
        return _failed(Reason.EVIDENCE_MALFORMED, "an event log", str(error))
    expected = Expected(
        ak_public=machine.tpm.ak_public,
        ek_public=machine.tpm.ek_public,
        challenge=nonce,
        # A bucket of time asks for nothing: then it is what the policy in force reads.
        selection=case.selection if container.nonce_id is not None else rules.tpm.selection,
        clock=machine.clock,
        ek_vendor=case.ek_vendor,
        event_log_requested=True,
        ek_certification_requested=True,
        firmware_attested=machine.firmware_attested,
        firmware=case.firmware,
    )
    appraisal = appraise_evidence(
        {TPM.name: UnverifiedEvidence(quoted.quote, quoted.pcr_values, log)},
        BootCase(
            expected={TPM.name: expected},
            requested_policy=case.requested_policy,
            policy=rules,
            assurance=machine.assurance,
            role=machine.role,
        ),
        at,
    )
    result, refusal = appraisal.result, appraisal.error
    if refusal is not None:
        reason = next(reason for kind, reason in _REASONS if isinstance(refusal, kind))
        return Boot(
            (*result.outcomes, _told("a quote of this machine, for this challenge")), reason, result=result
        )
    if result.verdict is Verdict.FAILED:
        outcomes = (*result.outcomes, _told("a boot as the policy expects"))
        return Boot(outcomes, Reason.POLICY_FAILED, result=result)
    if result.verdict is not Verdict.VERIFIED:
        undecided = BOOT.undecided("the policy could not be judged by now")
        return Boot((*result.outcomes, undecided), result=result)
    # Of one boot: otherwise the quote speaks of a boot that was good, and the key was certified in another.
    now, then = quoted.quote.attest, certified
    if (now.reset_count, now.restart_count) != (then.reset_count, then.restart_count):
        outcomes = (*result.outcomes, BOOT.failed("quote and certification of one boot", "of two"))
        return Boot(outcomes, Reason.POLICY_FAILED, result=result)
    if elsewhere and machine.trust(at) is not Trust.VERIFIED:
        told = BOOT.failed("an attestation within its lease", "none, and the policy has rules that need it")
        return Boot((*result.outcomes, told), Reason.POLICY_FAILED, result=result)
    return Boot((*result.outcomes, BOOT.passed("quoted")), quoted=True, result=result)


def _without_quote(container: UnverifiedContainer, case: Case, machine: Machine, at: datetime) -> Boot:
    """Judge a machine by its last attestation, where a quote in the request is not demanded."""
    if case.rules.quote_required:
        return _failed(Reason.POLICY_FAILED, "a quote", "absent")
    if machine.trust(at) is Trust.VERIFIED:
        return Boot((BOOT.passed("attested within its lease"),))
    # A machine of gke-v1 may have no agent of ours that ever attests. One that has, and stopped, is not let through.
    if container.layout is not Layout.GKE_V1 or machine.last_verdict is not None:
        return _failed(Reason.POLICY_FAILED, "a quote, or an attestation within its lease", "neither")
    if case.policy is None:
        return Boot((BOOT.undecided("no policy applies to this machine"),))
    assured = tuple(judge_assurance(machine.assurance, machine.role, case.policy))
    if any(isinstance(outcome, Failed) for outcome in assured):
        return Boot((*assured, _told("a machine that is vouched for well enough")), Reason.POLICY_FAILED)
    return Boot((*assured, BOOT.flagged("boot state not appraised")))


def _judged_here(policy: Policy) -> tuple[Policy, bool]:
    """Return *policy* without what a request cannot show, and whether that was anything.

    An IMA list grows with every file that is opened, and other kinds of evidence have no block in a container: both
    are judged at each attestation, so with such rules an attestation within its lease is needed beside the quote.
    """
    if policy.tpm.ima is None and not policy.kinds.keys() - {TPM.name}:
        return policy, False
    mine = {name: report for name, report in policy.kinds.items() if name == TPM.name}
    return replace(policy, tpm=replace(policy.tpm, ima=None), kinds=mine), True


def _log(container: UnverifiedContainer, case: Case, policy: Policy) -> ReplayedLog | None:
    """Return the log to judge by. One that no rule reads is not read here: it would only be work."""
    if policy.tpm.event_log is None:
        return None
    if container.event_log is None:
        return case.kept_log
    log = event_log.parse(container.event_log, log_padding=True)
    if len(log.records) > MAX_EVENTS:
        raise MalformedEvidence(f"event log of {len(log.records)} events, at most {MAX_EVENTS} in a request")
    return event_log.replay(log, policy.tpm.bank)


def _failed(reason: Reason, expected: str, found: str) -> Boot:
    return Boot((BOOT.failed(expected, found),), reason)


def _told(expected: str) -> Outcome:
    return BOOT.failed(expected, "see the checks before")
