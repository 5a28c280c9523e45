"""QuoteAttestations: judged, written down with their audit entry, and what became of the key, step by step.

What was asked is the service's word (`questions`): it stands beside the nonce, which is one QuoteAttestation's alone.
What was decided stays decided; what could not be decided is judged again. A bundle is accepted once for a nonce, and
only where the evidence was verified.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import structlog
from fastapi import Path

from attestation import hsm
from attestation.api import (
    QuoteAttestationPut,
    QuoteCheck,
    QuoteJudge,
    QuoteStep,
    QuoteStepRecorded,
    QuoteVerdict,
    QuoteVerifier,
)
from attestation.api.node_csr import ObjectUID
from attestation.errors import (
    ChallengeExpired,
    ChallengeUnknown,
    HSMDiffers,
    HSMQuoteUnknown,
    MalformedEvidence,
    RequestInvalid,
)
from attestation.quote import Envelope, QuoteCase, QuoteResult, appraise_quote, parse_envelope
from attestation.reference import Policy
from attestation.results import Failed, Outcome, Passed, Undecided, Verdict
from attestation.results import conclude as verdict_of
from attestation.store import HSMNonce, HSMQuote, Tx
from attestation.wire import canonical_json
from attestation_service import __version__
from attestation_service.auth import Controller, ControllerDep
from attestation_service.hsm import bounds, questions
from attestation_service.hsm.nonces import digest_of
from attestation_service.resources import Res, Resources

log = structlog.get_logger("attestation_service.hsm")

QuoteUID = Annotated[ObjectUID, Path(description="`metadata.uid` of the QuoteAttestation")]

KIB: Final = 1024
MAX_STEPS: Final = 64
MESSAGE_CHARACTERS: Final = 1024
ENDED: Final[frozenset[hsm.Step]] = frozenset({"loaded", "failed", "expired"})
AFTER: Final[Mapping[hsm.Step | None, frozenset[hsm.Step]]] = {
    None: frozenset({"accepted", "bundle-accepted", "bundle-rejected", "failed", "expired"}),
    "accepted": frozenset({"bundle-accepted", "bundle-rejected", "failed", "expired"}),
    "bundle-rejected": frozenset({"bundle-accepted", "bundle-rejected", "failed", "expired"}),
    "bundle-accepted": frozenset({"bundle-rejected", "loaded", "failed", "expired"}),
}
"""Which step may follow which; nothing follows an end."""
_VERDICTS: Final[Mapping[Verdict, hsm.QuoteVerdict]] = {
    Verdict.VERIFIED: "verified", Verdict.FAILED: "failed", Verdict.INDETERMINATE: "indeterminate",
}  # fmt: skip


async def put(uid: QuoteUID, request: QuoteAttestationPut, *, res: Res, who: ControllerDep) -> QuoteVerdict:
    """Have the evidence of a QuoteAttestation judged.

    Verified or failed, it stays so; what could not be decided is judged again each time. The same answer has the same
    audit entry.

    Raises:
        ChallengeExpired: Its nonce is.
        ChallengeUnknown: No such nonce was given out in this cluster.
        ChallengeUsed: The nonce is another QuoteAttestation's.
        HSMDiffers: Another QuoteAttestation is known under this UID, or it names another purpose, issuer or policy than
            was asked for.
        MalformedEvidence: Not an envelope.
        RateLimited: The cluster brings too many, or has them judged too often.
        RequestInvalid: It ends later than its nonce.
    """
    at = res.clock.now()
    envelope, said = await asyncio.to_thread(_read, request)

    def load(tx: Tx) -> tuple[HSMQuote | None, QuoteCase | None]:
        known = _known(tx, uid, said, who)
        if known is not None and known.verdict != "indeterminate":
            return known, None
        bounds.demand(tx, _judged_key(who), bounds.QUOTES_JUDGED, "judgements", res.settings, at)
        asked = _asked(tx, envelope, request.spec, who, at, known=known)
        return known, questions.case_of(tx, envelope, asked, res)

    known, case = await res.store.read(load)
    if case is None:
        assert known is not None
        return QuoteVerdict.model_validate_json(known.result)
    result = await asyncio.to_thread(appraise_quote, envelope, case, at)

    def conclude(tx: Tx) -> QuoteVerdict:
        return _conclude(tx, uid, said, envelope, request, (case, result), who, res, at)

    verdict = await res.store.write(conclude)
    log.info("hsm.quote_judged", uid=uid, cluster_id=who.cluster.cluster_id, verdict=verdict.verdict)
    return verdict


async def step(uid: QuoteUID, request: QuoteStep, *, res: Res, who: ControllerDep) -> QuoteStepRecorded:
    """Write down what became of the key that a QuoteAttestation asked for.

    `bundle-accepted` spends the nonce: of any number of bundles one is accepted. The same step has the same entry.

    Raises:
        ChallengeExpired: The QuoteAttestation, or its nonce, is over.
        ChallengeUnknown: Its nonce is kept no longer.
        ChallengeUsed: Another bundle spent the nonce.
        HSMDiffers: The step cannot follow what was written down, or the evidence was not verified, or the machine whose
            TPM has the key is not to be trusted any more.
        HSMQuoteUnknown: No such QuoteAttestation of the caller's cluster.
        RequestInvalid: A bundle and its signers are missing, or there are too many steps.
    """
    at = res.clock.now()
    if request.step == "bundle-accepted" and not (request.bundle_sha256 and request.signers):
        raise RequestInvalid("bundle-accepted: which bundle, and who signed it")
    if len(set(request.signers)) != len(request.signers):
        raise RequestInvalid("signers: one stands twice")
    said = _digest(request.model_dump(mode="json"))

    def work(tx: Tx) -> str:
        row = tx.hsm_quotes.get(who.cluster.cluster_id, uid)
        if row is None:
            raise HSMQuoteUnknown("no such QuoteAttestation of this cluster, or it is kept no longer")
        # The same again has its entry. There are at most `MAX_STEPS` and an end, each by its digest alone.
        steps = json.loads(row.steps)
        for each in steps:
            if said == (each["said"] if isinstance(each["said"], str) else _digest(each["said"])):
                return str(each["entry"])
        _demand_follows(tx, row, request, steps, at)
        if request.step == "bundle-accepted":
            assert request.bundle_sha256 is not None
            tx.hsm_quotes.spend(row.nonce_sha256, request.bundle_sha256, at)
        told = f"QuoteAttestation {row.namespace}/{row.name} ({uid}) for {row.signer_uid}: {request.step}"
        if request.bundle_sha256:
            told += f", bundle {request.bundle_sha256} by {', '.join(request.signers) or 'nobody'}"
        if request.detail:
            told += f"; {request.detail}"
        entry = tx.audit.append(who.event("hsm_key_step", detail=told), at)
        steps.append({"said": said, "entry": entry.entry_hash})
        tx.hsm_quotes.stepped(who.cluster.cluster_id, uid, json.dumps(steps), request.step)
        return entry.entry_hash

    return QuoteStepRecorded(audit_entry_hash=await res.store.write(work))


async def judge(request: QuoteJudge, *, res: Res) -> QuoteVerdict:
    """Have an envelope judged, without Kubernetes; nothing is kept of it.

    Issuer, purpose and nonce are taken from the envelope itself: whether it is fresh, and for whom, the caller knows.

    Raises:
        MalformedEvidence: Not an envelope.
    """
    at = res.clock.now()
    envelope = await asyncio.to_thread(parse_envelope, request.spec)
    named = questions.policy_said(request.spec)
    case = await res.store.read(lambda tx: questions.case_of_anybody(tx, envelope, named, res))
    told = _told(await asyncio.to_thread(appraise_quote, envelope, case, at), case.policy, at)
    unasked = QuoteCheck(
        name="quote-freshness", outcome="note", detail="no nonce of this service was asked for"
    )
    return told.model_copy(update={"checks": [*told.checks, unasked]})


def _read(request: QuoteAttestationPut) -> tuple[Envelope, str]:
    """Return the envelope, and what names all that was said.

    Raises:
        MalformedEvidence: Not an envelope.
    """
    try:
        content = canonical_json(request.model_dump(mode="json"))
    except ValueError:
        # 1e400 is read as infinity, which JSON cannot say again.
        raise MalformedEvidence("spec: a number in it is none") from None
    return parse_envelope(request.spec), hashlib.sha256(content).hexdigest()


def _digest(said: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(said)).hexdigest()


def _judged_key(who: Controller) -> str:
    return f"hsm-judged:{who.cluster.cluster_id}"


def _asked(
    tx: Tx,
    envelope: Envelope,
    spec: Mapping[str, Any],
    who: Controller,
    at: datetime,
    *,
    known: HSMQuote | None,
) -> HSMNonce:
    """Return what was asked when the nonce of an envelope was given out.

    Raises:
        ChallengeExpired, ChallengeUnknown, HSMDiffers, RequestInvalid: See `put`.
    """
    nonce = tx.hsm_quotes.nonce(digest_of(envelope.nonce))
    # 1. Ours, and of this cluster: else the evidence is fresh for somebody else.
    if nonce is None or nonce.cluster_id != who.cluster.cluster_id:
        raise ChallengeUnknown("no such nonce was given out in this cluster")
    # 2. In time, and for no longer than was asked: what was written down is judged to its own end.
    if known is None and at >= nonce.expires_at:
        raise ChallengeExpired("the nonce is over")
    if envelope.expires_at > nonce.expires_at:
        raise RequestInvalid("expiresAt: later than its nonce ends")
    # 3. For that purpose and issuer. Otherwise whoever reads a nonce in an object takes it away from whom it was given
    #    to, by one of their own that proves nothing.
    if (envelope.purpose, envelope.signer_uid) != (nonce.purpose, nonce.signer_uid):
        raise HSMDiffers("purpose or signerRef: the nonce was given out for another question")
    # 4. Under the name of the policy that it is judged by: whoever reads the object reads what was compared.
    if questions.policy_said(spec) != nonce.policy_ref:
        raise HSMDiffers(f"policyRef: the nonce was given out for {nonce.policy_ref or 'no policy'}")
    return nonce


def _known(tx: Tx, uid: str, said: str, who: Controller) -> HSMQuote | None:
    known = tx.hsm_quotes.get(who.cluster.cluster_id, uid)
    if known is not None and known.content_sha256 != said:
        raise HSMDiffers("another QuoteAttestation is known under this UID")
    return known


def _told(
    result: QuoteResult, judged_by: Policy | None, at: datetime, more: Sequence[Outcome] = ()
) -> QuoteVerdict:
    """Return a result as it is told; *more* was found besides by the service itself."""
    outcomes = [*result.outcomes, *more]
    worst = [each for each in outcomes if isinstance(each, Failed | Undecided)]
    verdict = _VERDICTS[verdict_of(outcomes)]
    words = {"verified": "Verified", "failed": "EvidenceFailed", "indeterminate": "Indeterminate"}
    return QuoteVerdict(
        verdict=verdict,
        reason=words[verdict],
        message="; ".join(each.check for each in worst)[:MESSAGE_CHARACTERS] or "every check passed",
        checks=[_check(each) for each in outcomes],
        claims=dict(result.claims),
        tier=result.tier,
        verifier=QuoteVerifier(name="itl-attestation-service", version=__version__, at=at),
        evidence_digest=result.evidence_digest.hex(),
        bound_key_fingerprint=result.bound_key_fingerprint.hex(),
        policy=judged_by.ref if judged_by is not None else None,
        policy_sha256=judged_by.sha256 if judged_by is not None else None,
    )


def _check(outcome: Outcome) -> QuoteCheck:
    match outcome:
        case Passed(check=name, note=note):
            return QuoteCheck(name=name, outcome="pass", detail=note)
        case Failed(check=name, expected=expected, found=found):
            return QuoteCheck(name=name, outcome="fail", detail=f"expected {expected}, found {found}")
        case Undecided(check=name):
            return QuoteCheck(name=name, outcome="indeterminate", detail=str(outcome))
        case _:
            return QuoteCheck(name=outcome.check, outcome="note", detail=str(outcome))


def _conclude(
    tx: Tx,
    uid: str,
    said: str,
    envelope: Envelope,
    request: QuoteAttestationPut,
    judged: tuple[QuoteCase, QuoteResult],
    who: Controller,
    res: Resources,
    at: datetime,
) -> QuoteVerdict:
    known = _known(tx, uid, said, who)
    if known is not None and known.verdict != "indeterminate":
        return QuoteVerdict.model_validate_json(known.result)
    cluster_id = who.cluster.cluster_id
    bounds.take(tx, _judged_key(who), bounds.QUOTES_JUDGED, "judgements", res.settings, at)
    if known is None:
        size_kib = len(request.model_dump_json()) // KIB + 1
        for counted, limit, units in (
            (f"hsm-quotes:{cluster_id}/{request.namespace}", bounds.QUOTES_OF_NAMESPACE, 1),
            (f"hsm-quotes:{cluster_id}", bounds.QUOTES_TAKEN, 1),
            (f"hsm-evidence:{cluster_id}", bounds.QUOTES_KIB, size_kib),
        ):
            bounds.take(tx, counted, limit, "QuoteAttestations", res.settings, at, units=units)
    case, result = judged
    asked = _asked(tx, envelope, request.spec, who, at, known=known)
    # In the unit that writes the verdict: a machine that was locked a moment ago is none that is attested.
    told = _told(result, case.policy, at, questions.judge_machine(tx, asked, at))
    before = QuoteVerdict.model_validate_json(known.result) if known is not None else None
    if before is not None and told.verdict == before.verdict:
        entry_hash = before.audit_entry_hash
    else:
        by = f"policy {told.policy} sha256 {told.policy_sha256}" if told.policy is not None else "no policy"
        detail = (
            f"QuoteAttestation {request.namespace}/{request.name} ({uid}) for {asked.signer_uid}: {told.verdict} by "
            f"{by}, {asked.evidence_type} evidence {told.evidence_digest}, key {told.bound_key_fingerprint}; "
            f"{told.message}"
        )
        entry_hash = tx.audit.append(who.event("hsm_quote_judged", detail=detail), at).entry_hash
    told = told.model_copy(update={"audit_entry_hash": entry_hash})
    text = told.model_dump_json()
    if known is not None:
        tx.hsm_quotes.judged(cluster_id, uid, told.verdict, text)
        return told
    # The second of two QuoteAttestations with one nonce ends here: the first one's key is the one it was asked for.
    tx.hsm_quotes.claim(asked.nonce_sha256, uid)
    tx.hsm_quotes.add(
        HSMQuote(
            cluster_id=cluster_id,
            uid=uid,
            namespace=request.namespace,
            name=request.name,
            content_sha256=said,
            spec=canonical_json(request.spec).decode(),
            purpose=asked.purpose,
            signer_uid=asked.signer_uid,
            evidence_type=asked.evidence_type,
            nonce_sha256=asked.nonce_sha256,
            received_at=at,
            expires_at=envelope.expires_at,
            verdict=told.verdict,
            result=text,
        )
    )
    return told


def _demand_follows(tx: Tx, row: HSMQuote, request: QuoteStep, steps: Sequence[object], at: datetime) -> None:
    """Check that a step may follow what was written down.

    Raises:
        ChallengeExpired, HSMDiffers, RequestInvalid: See `step`.
    """
    if request.step not in AFTER.get(row.last_step, frozenset()):
        raise HSMDiffers(f"{request.step} does not follow {row.last_step or 'nothing'}")
    if len(steps) >= MAX_STEPS and request.step not in ENDED:
        raise RequestInvalid(f"more than {MAX_STEPS} steps")
    if request.step != "bundle-accepted":
        return
    if row.verdict != "verified" or row.purpose != "KeyProvisioning":
        # Nothing is ever handed to hardware that proved nothing, or was asked for something else.
        raise HSMDiffers(f"the evidence is {row.verdict}, for {row.purpose}: no bundle is accepted")
    if at >= row.expires_at:
        raise ChallengeExpired("the QuoteAttestation is over")
    # Days may have passed since the verdict: nothing is handed to a machine that was locked in them.
    asked = tx.hsm_quotes.nonce(row.nonce_sha256)
    found = questions.judge_machine(tx, asked, at) if asked is not None else []
    if any(not isinstance(each, Passed) for each in found):
        raise HSMDiffers("; ".join(map(str, found)))
