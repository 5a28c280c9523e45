"""What evidence of a run is judged to be: pure of writes, so it may run twice.

The same judge as that of an attestation, `appraise`, with what a run expects: the run's nonce in place of the
machine's challenge, the node's UID in place of the machine's id, and the policy that came with the run. What it
finds becomes a verdict by the same rule: any failure fails, whatever is open leaves it open. A policy that only
reports, none at all, a node that no machine is, and no reference value that matched are such open checks.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from attestation.api import RunBlob as ShownBlob
from attestation.api import RunCheck, RunEvidence, RunResult
from attestation.api.node import EvidenceItem
from attestation.api.operations import OperatorAPI
from attestation.appraisal import Appraisal, Case
from attestation.appraisal.appraise import EVIDENCE, POLICY
from attestation.appraisal.assurance import ASSURANCE
from attestation.appraisal.confidential import collateral_rules
from attestation.errors import AlgorithmForbidden, EvidenceRejected, MalformedEvidence
from attestation.machines import Machine, Status
from attestation.reference import identifier
from attestation.results import (
    Assurance,
    AttestationResult,
    Code,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Undecided,
    Verdict,
    conclude,
)
from attestation.results.ear import ear_claims
from attestation.store import Run, RunBlob, Tx
from attestation.text import clean
from attestation.wire import b64encode, jcs
from attestation_service import __version__
from attestation_service.keys import crypto_policy
from attestation_service.resources import Resources
from attestation_service.runs.attempts import AttemptContext, identity_of
from attestation_service.runs.backends import BACKENDS, Gathered, Sought
from attestation_service.runs.codes import CODES, MACHINE, REFERENCE, SOURCES, code_of_refusal, source_of
from attestation_service.verifier import nodes

MAX_WORDS: Final = 1024
_WAIT_FOR_COLLATERAL: Final = frozenset({"snp-vek", "snp-revocation", "tdx-collateral", "tdx-revocation"})
_ADMITTED: Final = (Status.REGISTERED, Status.ATTESTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An answer to a challenge after its judgement.

    Args:
        result: What was found, not signed yet.
        machine: By whose record it was judged, as that was read; None where there is none.
        blobs: The evidence that is kept with it.
        claims: What is to be signed for relying parties; None where nothing can be said of a machine.
        refusal: What the node is answered, where the evidence cannot be parsed.
        wanted: Names of collateral that was missing and may be asked for.
    """

    result: RunResult
    machine: Machine | None = None
    blobs: tuple[RunBlob, ...] = ()
    claims: dict[str, Any] | None = None
    refusal: MalformedEvidence | None = None
    wanted: tuple[str, ...] = ()


def judge(tx: Tx, request: RunEvidence, context: AttemptContext, res: Resources, at: datetime) -> Judged:
    """Return what the answer of a node is; a refusal is a value, because it still spends the challenge."""
    if request.unavailable is not None:
        # A node's own words, which people read on terminals.
        device = request.unavailable.model_copy(update={"detail": clean(request.unavailable.detail)})
        why = _words(f"{device.code}: {device.detail}")
        checks = (RunCheck(id=EVIDENCE.name, outcome="unavailable", actual=why),)
        return Judged(
            result=_result(context, at, "indeterminate", checks=checks, unavailable=device, notes=why)
        )
    machine = nodes.named_or_taken_back(tx, context.run.node_name, context.run.cluster_id)
    backend = BACKENDS[context.run.backend]
    try:
        item = _only_item(request, backend.media_type)
        gathered = backend.gather(item.value, Sought(context, machine, tx, res, at))
    except MalformedEvidence as refusal:
        failed = EVIDENCE.failed(f"evidence of {context.run.backend}", str(refusal))
        result = _result(
            context,
            at,
            "failed",
            checks=(_check(failed, None, None),),
            rejected=refusal.code,
            notes=_notes([failed]),
        )
        return Judged(result=result, refusal=refusal)
    appraisal = _appraised(gathered, context, machine, res, at)
    outcomes = _outcomes(appraisal, gathered, context, machine, res)
    verdict = conclude(outcomes)
    blob = _blob(item, context)
    error = appraisal.error if appraisal is not None else None
    proven = appraisal if error is None else None
    result = _result(
        context,
        at,
        verdict.value.lower(),
        rejected=error.code if error is not None else None,
        machine_id=machine.machine_id if machine is not None else None,
        quote=b64encode(gathered.quote),
        signature=b64encode(gathered.signature) if gathered.signature is not None else None,
        evidence=(
            ShownBlob(
                media_type=blob.media_type,
                sha256=blob.sha256,
                size=len(blob.content),
                url=_kept_at(context.run, res),
            ),
        ),
        measurements=backend.measurements(proven, context) if proven is not None else (),
        tcb=backend.tcb(proven) if proven is not None else None,
        checks=tuple(_check(each, gathered, error) for each in outcomes),
        notes=_notes(outcomes),
    )
    missing: tuple[str, ...] = ()
    if verdict is not Verdict.VERIFIED and collateral_rules(context.policy).allow_fetch:
        missing = res.collateral.missing(tx, backend.kind, gathered.evidence, at)
    return Judged(
        result=result,
        machine=machine,
        blobs=(blob,),
        claims=_claims(appraisal, outcomes, verdict, context, machine, res, at),
        wanted=missing,
    )


def _only_item(request: RunEvidence, media_type: str) -> EvidenceItem:
    """Return the one item that a run wants.

    Raises:
        MalformedEvidence: There is none, another one, or more than one.
    """
    types = [each.media_type for each in request.evidence]
    if types != [media_type]:
        raise MalformedEvidence(f"evidence: one item {media_type} is wanted, and no other")
    return request.evidence[0]


def _appraised(
    gathered: Gathered, context: AttemptContext, machine: Machine | None, res: Resources, at: datetime
) -> Appraisal | None:
    """Return the appraisal; None where nobody knows by which key the evidence would have to be signed."""
    if gathered.expected is None:
        return None
    return res.appraise(
        {gathered.kind: gathered.evidence},
        Case(
            expected={gathered.kind: gathered.expected},
            requested_policy=context.policy.ref,
            policy=context.policy,
            # Of a node that no machine is, the check `machine` says so; this one has nothing to compare.
            assurance=machine.assurance if machine is not None else Assurance.TOFU,
            role=machine.role if machine is not None else None,
            cluster=context.run.cluster_id,
        ),
        at,
    )


def _outcomes(
    appraisal: Appraisal | None,
    gathered: Gathered,
    context: AttemptContext,
    machine: Machine | None,
    res: Resources,
) -> list[Outcome]:
    """Return every outcome, that of the appraisal and what a run asks besides."""
    found = [_judge_machine(gathered, context, machine, res)]
    if identifier(context.policy) != context.run.policy_id:
        # By another version, or by who writes to the database: nobody asked what would be answered.
        found.append(POLICY.undecided("the policy is not what it was when the run was opened"))
    if appraisal is None:
        return found
    found += [each if context.enforced else _reported(each) for each in appraisal.result.outcomes]
    if appraisal.error is not None:
        return found
    if not context.enforced:
        found.append(POLICY.undecided("nothing is enforced: what was measured is recorded, not accepted"))
    elif not _matched(appraisal.result, context):
        found.append(REFERENCE.undecided("no reference value of the policy was compared and matched"))
    else:
        found.append(REFERENCE.passed())
    return found


def _reported(outcome: Outcome) -> Outcome:
    """Return an outcome where nothing is enforced: what a role demands by default is no policy of this run either."""
    if isinstance(outcome, Failed) and outcome.check == ASSURANCE.name:
        return ASSURANCE.told(outcome.expected, outcome.found, report=True)
    return outcome


def _judge_machine(
    gathered: Gathered, context: AttemptContext, machine: Machine | None, res: Resources
) -> Outcome:
    run = context.run
    if machine is None:
        return MACHINE.undecided(f"no machine of the cluster {run.cluster_id} is called {run.node_name}")
    if machine.status is Status.PENDING_APPROVAL:
        return MACHINE.undecided("the machine waits for an operator's approval")
    if machine.status not in _ADMITTED:
        return MACHINE.failed("a machine that is registered or attested", machine.status.value)
    if gathered.expected is None:
        return MACHINE.undecided(f"the machine has no key for evidence of the kind {run.backend}")
    if machine.tee is None and machine.anchor.ak_public is not None:
        try:
            crypto_policy.demand_keys_of(
                crypto_policy.of(res.settings), machine.anchor.ek_public, machine.anchor.ak_public
            )
        except AlgorithmForbidden as error:
            return MACHINE.failed("keys that the policy about algorithms allows", str(error))
    return MACHINE.passed()


def _matched(result: AttestationResult, context: AttemptContext) -> bool:
    """Return True if a reference value that is enforced was compared and is as expected."""
    if result.boot_state_appraised:
        return True
    pinned = {
        f"pcr{rule.index}" for rule in context.policy.tpm.rules if rule.ignore is None and not rule.report
    }
    return any(isinstance(each, Passed) and each.check in pinned for each in result.outcomes)


def _claims(
    appraisal: Appraisal | None,
    outcomes: list[Outcome],
    verdict: Verdict,
    context: AttemptContext,
    machine: Machine | None,
    res: Resources,
    at: datetime,
) -> dict[str, Any] | None:
    """Return the EAR of the result; None where the evidence proves nothing, or of nobody whom we know."""
    if appraisal is None or appraisal.error is not None or machine is None:
        return None
    told = replace(
        appraisal.result,
        verdict=verdict,
        outcomes=tuple(outcomes),
        boot_state_appraised=()
        if verdict is Verdict.INDETERMINATE
        else appraisal.result.boot_state_appraised,
    )
    return ear_claims(
        told,
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        assurance=appraisal.assurance,
        nonce=b64encode(context.nonce),
        issuer=res.settings.service_url,
        expires_at=at + timedelta(seconds=context.policy.max_age_seconds),
        build=__version__,
        policy_sha256=context.policy.sha256,
        policy_identifier=identifier(context.policy),
        tell_checks=True,
        codes=CODES,
    )


def _result(context: AttemptContext, at: datetime, verdict: Any, **found: Any) -> RunResult:
    return RunResult(
        run=identity_of(context.run),
        verdict=verdict,
        judged_at=at,
        policy_id=context.run.policy_id,
        policy_source=context.run.policy_source,
        mode=context.mode,
        **found,
    )


def _blob(item: EvidenceItem, context: AttemptContext) -> RunBlob:
    assert isinstance(item.value, dict)
    content = jcs(item.value)
    return RunBlob(
        challenge_id=context.attempt.challenge_id,
        position=0,
        run_id=context.run.run_id,
        media_type=item.media_type,
        sha256=hashlib.sha256(content).hexdigest(),
        content=content,
    )


def _check(outcome: Outcome, gathered: Gathered | None, error: EvidenceRejected | None) -> RunCheck:
    """Return an outcome as controllers and relying parties read it."""
    code, source = CODES.get(outcome.check), SOURCES.get(outcome.check)
    match outcome:
        case Passed(check, note):
            return RunCheck(id=check, outcome="pass", actual=_words(note) or None, source=source)
        case Failed(check, expected, found):
            foreign = gathered is not None and gathered.foreign
            refused = code_of_refusal(error, check, foreign=foreign)
            return RunCheck(
                id=check,
                outcome="fail",
                code=refused or code,
                expected=_words(expected),
                actual=_words(found),
                source=source_of(check, refused),
            )
        case Undecided(check, reason):
            waits = Code.COLLATERAL_UNAVAILABLE if check in _WAIT_FOR_COLLATERAL else None
            return RunCheck(id=check, outcome="unavailable", code=waits, actual=_words(reason), source=source)
        case Reported(check, expected, found):
            return RunCheck(
                id=check, outcome="skipped", expected=_words(expected), actual=_words(found), source=source
            )
        case Flagged(check, note):
            return RunCheck(id=check, outcome="skipped", actual=_words(note), source=source)


def _notes(outcomes: list[Outcome]) -> str | None:
    """Return for people what kept evidence from being verified, and what was noticed besides; None where nothing."""
    kept = [each for each in outcomes if isinstance(each, Failed | Undecided)]
    noticed = [each for each in outcomes if isinstance(each, Flagged | Reported)]
    told = "; ".join(f"{each.check}: {_told(each)}" for each in (*kept, *noticed))
    return _words(clean(told)) or None


def _told(outcome: Failed | Undecided | Flagged | Reported) -> str:
    match outcome:
        case Failed(_, expected, found) | Reported(_, expected, found):
            return f"expected {expected}, found {found}"
        case Undecided(_, reason):
            return reason
        case Flagged(_, note):
            return note


def _kept_at(run: Run, res: Resources) -> str:
    """Return where evidence of a run is to be had: within its sealed bundle, from the service while that keeps it."""
    path = OperatorAPI.run_bundle.path.format(uid=quote(run.run_uid, safe=""))
    return f"{res.settings.service_url}/api/v1{path}?cluster_id={quote(run.cluster_id, safe='')}"


def _words(text: str) -> str:
    """Return *text* as JSON and a database can hold it, of bounded length: some of it may be the node's."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= MAX_WORDS else text[: MAX_WORDS - 1] + "…"
