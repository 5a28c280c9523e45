"""HTTP of introduction and activation."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from attestation.api import (
    ActivateRequest,
    ActivateResponse,
    IntroduceRequest,
    IntroduceResponse,
    RegisterRequest,
)
from attestation.api.base import MachineId
from attestation.errors import (
    ActivationFailed,
    AKAttributesRejected,
    AKConflict,
    AlgorithmForbidden,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    EKCertificateRejected,
    EKFingerprintMismatch,
    EKTemplateRejected,
    MachineChanged,
    MalformedEvidence,
    PendingQuotaExceeded,
    RegistrationForbidden,
    RegistrationTokenInvalid,
    RequestInvalid,
)
from attestation_service.context.request import From
from attestation_service.registration import handlers
from attestation_service.resources import Res
from attestation_service.routing.openapi import access, answers, machine_router
from attestation_service.routing.replies import reply

router = machine_router("node: registration")

INTRODUCTION = (
    MalformedEvidence,
    EKCertificateRejected,
    EKTemplateRejected,
    AKAttributesRejected,
    AKConflict,
    EKFingerprintMismatch,
    AlgorithmForbidden,
    RequestInvalid,
    PendingQuotaExceeded,
    RegistrationForbidden,
)


@router.post(
    "/self-register",
    operation_id="self_register",
    summary="Introduce a machine",
    response_model=IntroduceResponse,
    responses=answers(*INTRODUCTION, body=True),
    openapi_extra=access("machine"),
)
async def self_register(request: IntroduceRequest, res: Res, origin: From) -> Response:
    """Answer with a credential only the introduced TPM can open; nothing but the challenge is stored."""
    return reply(await handlers.introduce(request, res=res, origin=origin), exclude_unset=True)


@router.post(
    "/register",
    operation_id="register",
    summary="Introduce a machine, with an operator's registration token if it has one",
    response_model=IntroduceResponse,
    responses=answers(*INTRODUCTION, RegistrationTokenInvalid, body=True),
    openapi_extra=access("machine"),
)
async def register(request: RegisterRequest, res: Res, origin: From) -> Response:
    """As `self-register`; the token is spent by the activation."""
    return reply(await handlers.introduce(request, res=res, origin=origin), exclude_unset=True)


@router.post(
    "/machines/{machine_id}/ak-activate",
    operation_id="ak_activate",
    summary="Prove that the attestation key lives in the introduced TPM",
    response_model=ActivateResponse,
    responses=answers(
        MalformedEvidence,
        ActivationFailed,
        RegistrationTokenInvalid,
        ChallengeUnknown,
        ChallengeUsed,
        ChallengeExpired,
        AKConflict,
        MachineChanged,
        PendingQuotaExceeded,
        body=True,
    ),
    openapi_extra=access("machine"),
)
async def ak_activate(
    machine_id: Annotated[MachineId, Path()], request: ActivateRequest, res: Res, origin: From
) -> Response:
    """Spend the challenge; create the machine or confirm its attestation key."""
    return reply(await handlers.activate(machine_id, request, res=res, origin=origin), exclude_unset=True)
