"""HTTP of the CAs, for operators."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query, Response

from attestation.api import (
    CACheck,
    CADetail,
    CertificateDetail,
    CertificatePage,
    CertificateRevokeRequest,
    RefusedKeyDetail,
    RefusedKeyPage,
    RefusedKeyRequest,
    RotationRequest,
)
from attestation.api.base import MachineId
from attestation.errors import (
    AlgorithmForbidden,
    AlreadyExists,
    CANotConfigured,
    CertificateUnknown,
    KeyUnusable,
    RequestInvalid,
    RotationForbidden,
    SignerUnavailable,
    TransitionForbidden,
)
from attestation.pki.profiles import ProfileName
from attestation.store import CertificateFilter
from attestation_service.auth import OperatorDep
from attestation_service.ca import handlers
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.replies import reply

router = operator_router("operator: ca")

Serial = Annotated[str, Path(pattern=r"^[0-9a-f]{40}$", description="20 bytes, 40 lower-case hex")]
State = Literal["reserved", "issued", "held", "revoked", "void"]


@router.get(
    "/ca",
    operation_id="show_ca",
    summary="Show every key of the CAs",
    response_model=CADetail,
    responses=answers(CANotConfigured, kind="read"),
    openapi_extra=access("read"),
)
async def show(res: Res) -> Response:
    """Oldest first, with their certificates, states and instants; where a key is, never a secret."""
    return reply(await handlers.show(res=res))


@router.get(
    "/ca/check",
    operation_id="check_ca",
    summary="Let the CAs' keys prove themselves",
    response_model=CACheck,
    responses=answers(CANotConfigured, SignerUnavailable, kind="read"),
    openapi_extra=access("read"),
)
async def check(res: Res) -> Response:
    """Each key in use signs a test value, which its certificate must verify; and what a backup of it needs."""
    return reply(await handlers.check(res=res))


@router.post(
    "/ca/rotation",
    operation_id="rotate_ca",
    summary="Take one step of a rotation",
    response_model=CADetail,
    responses=answers(
        CANotConfigured,
        RotationForbidden,
        AlgorithmForbidden,
        RequestInvalid,
        KeyUnusable,
        SignerUnavailable,
        body=True,
        gated=True,
        kind="act",
    ),
    openapi_extra=access("act"),
)
async def rotate(request: RotationRequest, res: Res, operator: OperatorDep) -> Response:
    """Several operators must agree under dual control. `force` does not wait for relying parties to follow."""
    answer = await handlers.rotate(request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.get(
    "/ca/certificates",
    operation_id="list_certificates",
    summary="List the issuance log",
    response_model=CertificatePage,
    responses=answers(CANotConfigured, RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def certificates(
    res: Res,
    machine_id: Annotated[MachineId | None, Query()] = None,
    state: Annotated[State | None, Query()] = None,
    profile: Annotated[ProfileName | None, Query()] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Newest first; every serial number that was ever reserved, until long after its end."""
    wanted = CertificateFilter(
        machine_id=machine_id, state=state, profile=profile.value if profile is not None else None
    )
    return reply(await handlers.certificates(wanted, cursor, limit, res=res))


@router.get(
    "/ca/certificates/{serial}",
    operation_id="show_certificate",
    summary="Show one certificate",
    response_model=CertificateDetail,
    responses=answers(CANotConfigured, CertificateUnknown, kind="read"),
    openapi_extra=access("read"),
)
async def certificate(serial: Serial, res: Res) -> Response:
    """What became of a serial number, and the certificate itself."""
    return reply(await handlers.certificate(serial, res=res))


@router.post(
    "/ca/certificates/{serial}/revoke",
    operation_id="revoke_certificate",
    summary="Revoke one certificate",
    response_model=CertificateDetail,
    responses=answers(
        CANotConfigured, CertificateUnknown, TransitionForbidden, body=True, gated=True, kind="act"
    ),
    openapi_extra=access("act"),
)
async def revoke(
    serial: Serial, request: CertificateRevokeRequest, res: Res, operator: OperatorDep
) -> Response:
    """For good and at once: the next list and every answer say so. That of a CA is an act of several operators."""
    answer = await handlers.revoke(serial, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.get(
    "/ca/refused-keys",
    operation_id="list_refused_keys",
    summary="List the keys that never get a certificate again",
    response_model=RefusedKeyPage,
    responses=answers(CANotConfigured, RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def refused_keys(res: Res, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Of revocations with the reason keyCompromise, and of operators."""
    return reply(await handlers.refused_keys(cursor, limit, res=res))


@router.post(
    "/ca/refused-keys",
    operation_id="refuse_key",
    summary="Let a key never get a certificate again",
    response_model=RefusedKeyDetail,
    responses=answers(CANotConfigured, AlreadyExists, TransitionForbidden, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def refuse_key(request: RefusedKeyRequest, res: Res, operator: OperatorDep) -> Response:
    """For good; the certificates that it has are revoked."""
    return reply(await handlers.refuse_key(request, res=res, operator=operator))
