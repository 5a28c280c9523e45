"""QuoteAttestations: judged, written down with their audit entry, and what became of the key, step by step.

What was asked is the service's word: the nonce names issuer and purpose, and is one QuoteAttestation's alone. What was
decided stays decided; what could not be decided is judged again. A bundle is accepted once for a nonce, and only where
the evidence was verified.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import structlog
from fastapi import Path

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
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.sgx import SGX
from attestation.appraisal.tdx import TDX
from attestation.errors import (
    ChallengeExpired,
    ChallengeUnknown,
    HSMDiffers,
    HSMQuoteUnknown,
    MalformedEvidence,
    PolicyUnknown,
    RateLimited,
    RequestInvalid,
)
from attestation.quote import Envelope, Purpose, QuoteCase, QuoteResult, appraise_quote, parse_envelope
from attestation.reference import Policy
from attestation.results import Failed, Outcome, Passed, Undecided, Verdict
from attestation.store import HSMQuote, HSMStep, HSMVerdict, RateLimit, Tx
from attestation.wire import b64encode, canonical_json
from attestation_service import __version__
from attestation_service.auth import Controller, ControllerDep
from attestation_service.hsm.nonces import digest_of
from attestation_service.resources import Res, Resources
from attestation_service.verifier import policy

log = structlog.get_logger("attestation_service.hsm")

QuoteUID = Annotated[ObjectUID, Path(description="`metadata.uid` of the QuoteAttestation")]

JUDGED: Final = RateLimit(requests=60, per_seconds=3_600)
"""So many QuoteAttestations of one cluster are taken in an hour: each is kept with its evidence."""
MAX_STEPS: Final = 64
MESSAGE_CHARACTERS: Final = 1024
ENDED: Final[frozenset[HSMStep]] = frozenset({"loaded", "failed", "expired"})
AFTER: Final[Mapping[HSMStep | None, frozenset[HSMStep]]] = {
    None: frozenset({"accepted", "bundle-accepted", "bundle-rejected", "failed", "expired"}),
    "accepted": frozenset({"bundle-accepted", "bundle-rejected", "failed", "expired"}),
    "bundle-rejected": frozenset({"bundle-accepted", "bundle-rejected", "failed", "expired"}),
    "bundle-accepted": frozenset({"bundle-rejected", "loaded", "failed", "expired"}),
}
"""Which step may follow which; nothing follows an end."""
_HARDWARE: Final[Mapping[str, tuple[Any, str]]] = {
    "sgx": (SGX, "quote"), "tdx": (TDX, "quote"), "sev-snp": (SEV_SNP, "report"),
}  # fmt: skip
_VERDICTS: Final[Mapping[Verdict, HSMVerdict]] = {
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
        HSMDiffers: Another QuoteAttestation is known under this UID.
        MalformedEvidence: Not an envelope.
    """
    at = res.clock.now()
    envelope, said = await asyncio.to_thread(_read, request)
    known, case = await res.store.read(lambda tx: _load(tx, uid, said, envelope, request.spec, who, res, at))
    if known is not None and known.verdict != "indeterminate":
        return QuoteVerdict.model_validate_json(known.result)
    result = await asyncio.to_thread(appraise_quote, envelope, case, at)
    told = _told(result, at)

    def conclude(tx: Tx) -> QuoteVerdict:
        return _conclude(tx, uid, said, envelope, request, told, who, res, at)

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
        HSMDiffers: The step cannot follow what was written down, or the evidence was not verified.
        HSMQuoteUnknown: No such QuoteAttestation of the caller's cluster.
        RequestInvalid: A bundle and its signers are missing, or there are too many steps.
    """
    at = res.clock.now()
    if request.step == "bundle-accepted" and not (request.bundle_sha256 and request.signers):
        raise RequestInvalid("bundle-accepted: which bundle, and who signed it")
    if len(set(request.signers)) != len(request.signers):
        raise RequestInvalid("signers: one stands twice")
    said = request.model_dump(mode="json")

    def work(tx: Tx) -> str:
        row = tx.hsm_quotes.get(who.cluster.cluster_id, uid)
        if row is None:
            raise HSMQuoteUnknown("no such QuoteAttestation of this cluster, or it is kept no longer")
        steps = json.loads(row.steps)
        for each in steps:
            if each["said"] == said:
                return str(each["entry"])
        _demand_follows(row, request, steps, at)
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
    case = await res.store.read(
        lambda tx: _case(tx, envelope, request.spec, envelope.purpose, envelope.signer_uid, res)
    )
    told = _told(await asyncio.to_thread(appraise_quote, envelope, case, at), at)
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


def _load(
    tx: Tx,
    uid: str,
    said: str,
    envelope: Envelope,
    spec: Mapping[str, Any],
    who: Controller,
    res: Resources,
    at: datetime,
) -> tuple[HSMQuote | None, QuoteCase]:
    known = _known(tx, uid, said, who)
    if known is not None:
        return known, _case(tx, envelope, spec, Purpose(known.purpose), known.signer_uid, res)
    nonce = tx.hsm_quotes.nonce(digest_of(envelope.nonce))
    # 1. Ours, and of this cluster: else the evidence is fresh for somebody else.
    if nonce is None or nonce.cluster_id != who.cluster.cluster_id:
        raise ChallengeUnknown("no such nonce was given out in this cluster")
    if at >= nonce.expires_at:
        raise ChallengeExpired("the nonce is over")
    # 2. Issuer and purpose are those that the nonce was given out for, whatever the envelope says.
    return None, _case(tx, envelope, spec, Purpose(nonce.purpose), nonce.signer_uid, res)


def _known(tx: Tx, uid: str, said: str, who: Controller) -> HSMQuote | None:
    known = tx.hsm_quotes.get(who.cluster.cluster_id, uid)
    if known is not None and known.content_sha256 != said:
        raise HSMDiffers("another QuoteAttestation is known under this UID")
    return known


def _case(
    tx: Tx, envelope: Envelope, spec: Mapping[str, Any], purpose: Purpose, signer_uid: str, res: Resources
) -> QuoteCase:
    kind, member = _HARDWARE.get(envelope.evidence_type, (None, ""))
    endorsements = None
    if kind is not None:
        try:
            evidence = kind.parse({member: b64encode(envelope.data)})
        except MalformedEvidence:
            evidence = None  # the judge says so
        endorsements = res.collateral.endorsements(tx, kind.name, evidence)
    return QuoteCase(
        evidence_type=envelope.evidence_type,
        purpose=purpose,
        signer_uid=signer_uid,
        nonce=envelope.nonce,
        policy=_policy(tx, spec.get("policyRef")),
        endorsements=endorsements,
    )


def _policy(tx: Tx, ref: object) -> Policy | None:
    """Return the policy `name@version`, or the newest of a name; None where there is none: then nothing is decided."""
    name = ref.get("name") if isinstance(ref, Mapping) else ref
    if not isinstance(name, str):
        return None
    if "@" not in name:
        versions = [each.ref for each in tx.policies.all() if each.name == name]
        if not versions:
            return None
        name = versions[-1]
    try:
        return policy.stored(tx, name)
    except PolicyUnknown:
        return None


def _told(result: QuoteResult, at: datetime) -> QuoteVerdict:
    worst = [each for each in result.outcomes if isinstance(each, Failed | Undecided)]
    verdict = _VERDICTS[result.verdict]
    words = {"verified": "Verified", "failed": "EvidenceFailed", "indeterminate": "Indeterminate"}
    return QuoteVerdict(
        verdict=verdict,
        reason=words[verdict],
        message="; ".join(each.check for each in worst)[:MESSAGE_CHARACTERS] or "every check passed",
        checks=[_check(each) for each in result.outcomes],
        claims=dict(result.claims),
        tier=result.tier,
        verifier=QuoteVerifier(name="itl-attestation-service", version=__version__, at=at),
        evidence_digest=result.evidence_digest.hex(),
        bound_key_fingerprint=result.bound_key_fingerprint.hex(),
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
    told: QuoteVerdict,
    who: Controller,
    res: Resources,
    at: datetime,
) -> QuoteVerdict:
    known = _known(tx, uid, said, who)
    if known is not None and known.verdict != "indeterminate":
        return QuoteVerdict.model_validate_json(known.result)
    cluster_id = who.cluster.cluster_id
    if known is None and res.settings.rate_limits:
        counted = f"hsm-quotes:{cluster_id}"
        seconds = tx.rate_limits.check(counted, at, JUDGED)
        if seconds is not None:
            raise RateLimited("too many QuoteAttestations of this cluster", retry_after_seconds=seconds)
        tx.rate_limits.take(counted, at, JUDGED)
    before = QuoteVerdict.model_validate_json(known.result) if known is not None else None
    if before is not None and told.verdict == before.verdict:
        entry_hash = before.audit_entry_hash
    else:
        detail = (
            f"QuoteAttestation {request.namespace}/{request.name} ({uid}) for {envelope.signer_uid}: {told.verdict}, "
            f"{envelope.evidence_type} evidence {told.evidence_digest}, key {told.bound_key_fingerprint}; "
            f"{told.message}"
        )
        entry_hash = tx.audit.append(who.event("hsm_quote_judged", detail=detail), at).entry_hash
    told = told.model_copy(update={"audit_entry_hash": entry_hash})
    result = told.model_dump_json()
    if known is not None:
        tx.hsm_quotes.judged(cluster_id, uid, told.verdict, result)
        return told
    nonce_sha256 = digest_of(envelope.nonce)
    # The second of two QuoteAttestations with one nonce ends here: the first one's key is the one it was asked for.
    tx.hsm_quotes.claim(nonce_sha256, uid)
    nonce = tx.hsm_quotes.nonce(nonce_sha256)
    assert nonce is not None
    tx.hsm_quotes.add(
        HSMQuote(
            cluster_id=cluster_id,
            uid=uid,
            namespace=request.namespace,
            name=request.name,
            content_sha256=said,
            spec=canonical_json(request.spec).decode(),
            purpose=nonce.purpose,
            signer_uid=nonce.signer_uid,
            evidence_type=envelope.evidence_type,
            nonce_sha256=nonce_sha256,
            received_at=at,
            expires_at=envelope.expires_at,
            verdict=told.verdict,
            result=result,
        )
    )
    return told


def _demand_follows(row: HSMQuote, request: QuoteStep, steps: list[dict[str, Any]], at: datetime) -> None:
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
