"""HTTP of operators' certificates."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query, Response

from attestation.api import (
    CertificateRevokeRequest,
    OperatorCertificate,
    OperatorCertificateDetail,
    OperatorCertificatePage,
    OperatorCertificateRequest,
)
from attestation.errors import (
    AlgorithmForbidden,
    BreakGlassCannotVote,
    CANotConfigured,
    CertificateNotConformant,
    CertificateUnknown,
    CSRInvalid,
    KeyUnusable,
    MalformedEvidence,
    RequestInvalid,
    SignerUnavailable,
    TransitionForbidden,
)
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.operator_certificates import handlers
from attestation_service.replies import reply

router = operator_router("operator: certificates of operators")

Serial = Annotated[str, Path(pattern=r"^[0-9a-f]{40}$", description="20 bytes, 40 lower-case hex")]
State = Annotated[Literal["reserved", "issued", "held", "revoked", "void"] | None, Query()]


@router.post(
    "/operator-certificates",
    operation_id="request_operator_certificate",
    summary="Issue a client certificate for a person",
    response_model=OperatorCertificate,
    status_code=201,
    responses=answers(
        CANotConfigured,
        MalformedEvidence,
        CSRInvalid,
        RequestInvalid,
        AlgorithmForbidden,
        CertificateNotConformant,
        KeyUnusable,
        SignerUnavailable,
        TransitionForbidden,
        BreakGlassCannotVote,
        body=True,
        gated=True,
        kind="act",
    ),
    openapi_extra=access("act"),
)
async def request_certificate(
    request: OperatorCertificateRequest, res: Res, operator: OperatorDep
) -> Response:
    """Several must agree where dual control is on; break-glass may not ask."""
    answer = await handlers.request_certificate(request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer, 201))


@router.get(
    "/operator-certificates",
    operation_id="list_operator_certificates",
    summary="List operators' certificates",
    response_model=OperatorCertificatePage,
    responses=answers(RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def list_certificates(
    res: Res, state: State = None, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Newest first; those that ended long ago are in the audit log only."""
    return reply(await handlers.list_certificates(state, cursor, limit, res=res))


@router.post(
    "/operator-certificates/{serial}/revoke",
    operation_id="revoke_operator_certificate",
    summary="Take an operator's certificate back",
    response_model=OperatorCertificateDetail,
    responses=answers(CertificateUnknown, TransitionForbidden, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def revoke(
    serial: Serial, request: CertificateRevokeRequest, res: Res, operator: OperatorDep
) -> Response:
    """One operator is enough, and it holds from the next request on."""
    return reply(await handlers.revoke(serial, request, res=res, operator=operator))
