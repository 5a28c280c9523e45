"""HTTP of challenge, attestation and acknowledgement."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from attestation.api import AckRequest, AckResponse, AttestRequest, AttestResponse, QuoteChallenge
from attestation.api.base import MachineId
from attestation.errors import (
    AgentTooOld,
    AKNotActivated,
    AlgorithmForbidden,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    EKFingerprintMismatch,
    EvidenceRejected,
    MachineChanged,
    MachineRejected,
    MachineUnknown,
    MalformedEvidence,
    TransitionForbidden,
)
from attestation_service.attest import acknowledgement, handlers
from attestation_service.context.request import From
from attestation_service.resources import Res
from attestation_service.routing.lean import LeanRoute
from attestation_service.routing.openapi import access, answers, machine_router
from attestation_service.routing.replies import reply

router = machine_router("node: attestation")

CHALLENGED = (MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired, MachineChanged)


hot = machine_router("node: attestation", route_class=LeanRoute)


@hot.post(
    "/attest",
    operation_id="attest",
    summary="Attest with a quote over a fresh challenge",
    response_model=AttestResponse,
    responses=answers(
        *CHALLENGED,
        MalformedEvidence,
        EvidenceRejected,
        EKFingerprintMismatch,
        AlgorithmForbidden,
        AKNotActivated,
        MachineRejected,
        AgentTooOld,
        body=True,
    ),
    openapi_extra=access("machine", logs=True),
)
async def attest(request: AttestRequest, res: Res, origin: From) -> Response:
    """Spend the challenge, appraise the evidence, say what to do and give the next challenge."""
    return reply(await handlers.attest(request, res=res, origin=origin), exclude_none=True)


@router.get(
    "/attest/challenge",
    operation_id="attest_challenge",
    summary="Get a fresh challenge",
    response_model=QuoteChallenge,
    responses=answers(MachineUnknown),
    openapi_extra=access("machine"),
)
async def challenge(machine_id: Annotated[MachineId, Query()], res: Res, origin: From) -> Response:
    """Single use, bound to the machine; works whichever worker or replica answers."""
    return reply(await handlers.challenge(machine_id, res=res, origin=origin), exclude_none=True)


@router.post(
    "/machines/{machine_id}/ack",
    operation_id="acknowledge",
    summary="Acknowledge a directive with a quote",
    response_model=AckResponse,
    responses=answers(
        *CHALLENGED,
        MalformedEvidence,
        EvidenceRejected,
        AKNotActivated,
        MachineRejected,
        TransitionForbidden,
        body=True,
    ),
    openapi_extra=access("machine"),
)
async def acknowledge(
    machine_id: Annotated[MachineId, Path()], request: AckRequest, res: Res, origin: From
) -> Response:
    """A wipe is acknowledged before the reset call; only then its order is cleared."""
    return reply(await acknowledgement.acknowledge(machine_id, request, res=res, origin=origin))
