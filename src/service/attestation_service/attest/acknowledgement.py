"""The acknowledgement of a directive: a quote that carries the outcome (PROTOCOL §§6, 8.4)."""

# Algorithms for: node-proof
from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from attestation.api import AckRequest, AckResponse
from attestation.appraisal.confidential import Hardware
from attestation.appraisal.tpm import parse_quote
from attestation.audit import AuditEvent
from attestation.errors import (
    AKNotActivated,
    AttestationError,
    EvidenceRejected,
    MachineRejected,
    MalformedEvidence,
    TransitionForbidden,
    Unavailable,
)
from attestation.evidence import tpm_quote
from attestation.keys import acknowledgement
from attestation.machines import Machine, NodeEvent, Status, Transition, next_status
from attestation.store import Challenge, Tx
from attestation.wire import hexdecode
from attestation_service.attest.refused import denied
from attestation_service.border import limits
from attestation_service.context.request import From, Origin
from attestation_service.entitlements import hardware
from attestation_service.entitlements.attempts import until_unchanged
from attestation_service.entitlements.events import emit
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Id
from attestation_service.verifier import challenges

REFUSALS = (
    MalformedEvidence,
    EvidenceRejected,
    AKNotActivated,
    MachineRejected,
    TransitionForbidden,
    Unavailable,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """An acknowledgement after its judgement: `refusal` is set where it proves nothing or fits nothing."""

    machine: Machine
    challenge: Challenge
    refusal: AttestationError | None = None
    pinned: bytes | None = None
    """The key set that was acknowledged in place of a directive."""


async def acknowledge(machine_id: Id, request: AckRequest, *, res: Res, origin: From) -> AckResponse:
    """Acknowledge a directive with a quote.

    A wipe is acknowledged before the reset call; only then its order is cleared.

    Raises:
        MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired: There is nothing to judge.
        MalformedEvidence, EvidenceRejected, AKNotActivated: It proves nothing; the challenge is spent.
        TransitionForbidden: Not for the last directive; the challenge is spent.
        MachineChanged: Operators changed the machine faster than it could be judged.
        RateLimited: Too often.
    """
    return await until_unchanged(lambda: _acknowledge(machine_id, request, res, origin))


async def _acknowledge(machine_id: str, request: AckRequest, res: Resources, origin: Origin) -> AckResponse:
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, machine_id)
    async with limits.CountRefusals(res.store, counted, at):
        judged = await res.store.read(lambda tx: _judge(tx, machine_id, request, counted, res, at))

    def conclude(tx: Tx) -> AckResponse | AttestationError:
        limits.take(tx, counted, at)
        tx.challenges.redeem(judged.challenge.challenge_id, "attest", machine_id, at)
        if judged.refusal is not None:
            limits.audit_denied(tx, denied(judged.machine, judged.refusal, origin, "ack"), at)
            return judged.refusal
        if judged.pinned is not None:
            return _record_keys(tx, judged.machine, judged.pinned)
        return _record(tx, judged.machine, request, origin, at)

    async with limits.CountRefusals(res.store, counted, at):
        answer = await res.store.write(conclude)
    if isinstance(answer, AttestationError):
        raise answer
    return answer


def _judge(
    tx: Tx,
    machine_id: str,
    request: AckRequest,
    counted: limits.Limits,
    res: Resources,
    at: datetime,
) -> _Judged:
    limits.check(tx, counted, at)
    machine = tx.machines.require(machine_id)
    challenge = challenges.open_challenge(tx, request.nonce_id, machine_id, at)
    assert challenge.nonce is not None
    directive = hexdecode(request.directive_sha256, "directive_sha256", size_bytes=32)
    try:
        # 1. By this machine's key, for this challenge, directive and outcome. Otherwise anybody could say
        #    that a stolen machine was wiped.
        key = machine.anchor.ak_public
        if key is None:
            raise AKNotActivated("this machine has no activated attestation key")
        said = acknowledgement(challenge.nonce, directive, request.outcome)
        if machine.tee is not None:
            _demand_own(
                tx,
                machine,
                hardware.statement(
                    tx,
                    machine.tee,
                    request.evidence,
                    nonce=said,
                    machine_id=machine_id,
                    spki=key,
                    res=res,
                    at=at,
                ),
            )
        else:
            _verify_quote(machine, request, said, challenge, directive, res)
        # 2. For the keys that it is told of. It believes them, or says so: to whoever knows the AK, it is the same.
        if request.outcome == "done" and hmac.compare_digest(directive, res.signer.sha256):
            if machine.status is Status.REJECTED:
                raise MachineRejected("an operator rejected this machine")
            return _Judged(machine=machine, challenge=challenge, pinned=directive)
        # 3. For the last directive that we sent. An operator's act makes the one before it void.
        next_status(machine.status, Transition.ACKNOWLEDGE)
        if machine.directive_sha256 is None or not hmac.compare_digest(machine.directive_sha256, directive):
            raise TransitionForbidden("this is not the last directive sent to this machine")
    except REFUSALS as refusal:
        return _Judged(machine=machine, challenge=challenge, refusal=refusal)
    return _Judged(machine=machine, challenge=challenge)


def _verify_quote(
    machine: Machine,
    request: AckRequest,
    said: bytes,
    challenge: Challenge,
    directive: bytes,
    res: Resources,
) -> None:
    assert challenge.nonce is not None
    assert machine.tpm.ak_public is not None
    if request.pcr_quote is None or request.pcr_signature is None or request.evidence:
        raise MalformedEvidence("a machine with a TPM acknowledges by a quote")
    quote = parse_quote(request.pcr_quote, request.pcr_signature)
    if res.settings.compat_protocol_1:
        # Had no prefix of its own. Nothing is believed by looking: the signature decides below.
        older = hashlib.sha256(challenge.nonce + directive + request.outcome.encode("ascii")).digest()
        said = older if quote.attest.extra_data == older else said
    tpm_quote.verify_acknowledgement(
        quote,
        qualifying_data=said,
        key=tpm_quote.enrolled_key(machine.tpm.ak_public, machine.tpm.ek_public),
        selection=challenges.selection(challenge),
    )


def _demand_own(tx: Tx, machine: Machine, found: Hardware) -> None:
    """Check that the machine's own hardware says so: its key alone would not tell a copy of its disk."""
    assert machine.tee is not None
    identity = tx.identities.of(machine.machine_id).get(hardware.TEE_KINDS[machine.tee].kind)
    if not hardware.is_own(machine, identity, found):
        raise EvidenceRejected("other hardware than that of this machine")


def _record_keys(tx: Tx, machine: Machine, pinned: bytes) -> AckResponse:
    """Note which keys the machine pinned, so that it is told no more; not in the audit, for nothing was decided."""
    if machine.pinned_keys != pinned:
        tx.machines.update(machine, pinned_keys=pinned)
    return AckResponse(machine_id=machine.machine_id, status=machine.status, message="recorded")


def _record(tx: Tx, machine: Machine, request: AckRequest, origin: Origin, at: datetime) -> AckResponse:
    # The directive is answered: the same acknowledgement again is for nothing.
    changes: dict[str, Any] = {"directive_sha256": None}
    wipe = machine.status is Status.REVOKED and machine.wipe_pending
    wiped = wipe and request.outcome == "done"
    if wiped:
        changes |= {"wipe_pending": False, "wiped_at": at}
    if machine.status is Status.ATTESTED and machine.unlock_pending and request.outcome == "done":
        # The act voided every directive before it, and nothing else is ordered until this: it was the unlock.
        changes |= {"unlock_pending": False}
    if (
        machine.status is Status.ATTESTED
        and machine.config_owed_since is not None
        and not machine.unlock_pending
    ):
        # Applied; somebody else's fetch with its token would not say so. Until then it is owed, and operators see why.
        changes |= (
            {"config_owed_since": None, "config_failure": None}
            if request.outcome == "done"
            else {
                # In quotes: what a machine says must not go on as if we said it.
                "config_failure": "the machine could not apply it: "
                + (json.dumps(request.detail, ensure_ascii=False) if request.detail else "it did not say why")
            }
        )
    after = tx.machines.update(machine, **changes)
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="wipe_ack" if wipe else "directive_ack",
            machine_id=machine.machine_id,
            prev_state=machine.status,
            new_state=after.status,
            detail=request.outcome + (f": {request.detail}" if request.detail else ""),
            source_ip=origin.address,
        ),
        at,
    )
    if wiped:
        emit(tx, NodeEvent.WIPED, after, at)
    return AckResponse(machine_id=after.machine_id, status=after.status, message="recorded")
