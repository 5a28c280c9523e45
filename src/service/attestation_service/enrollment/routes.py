"""HTTP of certificates for machines."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Response

from attestation.api import (
    CertificateChallenge,
    CertRequest,
    CertResponse,
    EnrollRequest,
    EnrollResponse,
)
from attestation.errors import (
    AKNotActivated,
    AlgorithmForbidden,
    CANotConfigured,
    CertificateNotConformant,
    CertificateUntrusted,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    CSRInvalid,
    EvidenceRejected,
    MachineChanged,
    MachineNotAdmitted,
    MachineRejected,
    MachineUnknown,
    MalformedEvidence,
    NameInUse,
    RequestInvalid,
    SignerBusy,
    SignerUnavailable,
)
from attestation_service.context.request import From
from attestation_service.enrollment import handlers, presented
from attestation_service.resources import Res
from attestation_service.routing.openapi import access, answers, machine_router, operator_router, route
from attestation_service.routing.parameters import Id
from attestation_service.routing.replies import reply

machines = machine_router("node: certificates")
router = operator_router("operator: certificates")

CHALLENGED = (MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired)
REFUSED = (MalformedEvidence, EvidenceRejected, MachineRejected, MachineNotAdmitted)


@machines.get(
    "/machines/{machine_id}/challenge",
    operation_id="certificate_challenge",
    summary="Get a fresh challenge for a certificate",
    response_model=CertificateChallenge,
    responses=answers(MachineUnknown, CANotConfigured),
    openapi_extra=access("machine"),
)
async def challenge(
    machine_id: Id,
    purpose: Annotated[
        Literal["certify", "enroll"],
        Query(description="To be given a certificate, or to present one"),
    ],
    res: Res,
    origin: From,
) -> Response:
    """Single use, bound to the machine, its EK and the purpose."""
    return reply(await handlers.challenge(machine_id, purpose, res=res, origin=origin))


@machines.post(
    "/machines/{machine_id}/request-cert",
    operation_id="request_certificate",
    summary="Get or renew a certificate for a key of the TPM",
    response_model=CertResponse,
    responses=answers(
        *CHALLENGED,
        *REFUSED,
        CSRInvalid,
        AlgorithmForbidden,
        AKNotActivated,
        RequestInvalid,
        MachineChanged,
        NameInUse,
        CANotConfigured,
        CertificateNotConformant,
        SignerUnavailable,
        SignerBusy,
        body=True,
    ),
    openapi_extra=access("machine"),
)
async def request_cert(machine_id: Id, request: CertRequest, res: Res, origin: From) -> Response:
    """Only for an attested machine within its lease; role, host name and address are those of its record."""
    return reply(await handlers.request_cert(machine_id, request, res=res, origin=origin), exclude_none=True)


@machines.post(
    "/machines/enroll",
    operation_id="enroll",
    summary="Present a certificate, with a challenge signed by its key",
    response_model=EnrollResponse,
    responses=answers(*CHALLENGED, *REFUSED, CertificateUntrusted, CANotConfigured, body=True),
    openapi_extra=access("machine"),
)
async def enroll(request: EnrollRequest, res: Res, origin: From) -> Response:
    """Says how the machine stands, and changes nothing."""
    return reply(await presented.enroll(request, res=res, origin=origin), exclude_none=True)


# fmt: off
route(router, "list_machine_certificates", "GET /machines/{machine_id}/certificates", "read", handlers.listed,
      RequestInvalid)
