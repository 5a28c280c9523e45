"""HTTP of the trust bundle."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from attestation.api import (
    EndorsementDetail,
    TrustBundleDetail,
    TrustCertificateDetail,
    TrustCertificateRequest,
    TrustReasonRequest,
    TrustVerdict,
    TrustVerifyRequest,
)
from attestation.api.base import MachineId
from attestation.errors import (
    AlreadyExists,
    BundleInvalid,
    MachineUnknown,
    MalformedEvidence,
    TransitionForbidden,
    TrustCertificateUnknown,
)
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.openapi import access, answers, operator_router
from attestation_service.replies import reply
from attestation_service.trust import handlers

router = operator_router("operator: trust")

Sha256 = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the DER")]
Id = Annotated[MachineId, Path()]


@router.get(
    "/trust/bundle",
    operation_id="show_trust_bundle",
    summary="Show the trust bundle in force",
    response_model=TrustBundleDetail,
    responses=answers(kind="read"),
    openapi_extra=access("read"),
)
async def show_bundle(res: Res) -> Response:
    """Shipped certificates, those of the folder, and what operators added or distrusted."""
    return reply(await handlers.show_bundle(res=res))


@router.get(
    "/trust/certificates/{sha256}",
    operation_id="show_trust_certificate",
    summary="Show one certificate of the trust bundle",
    response_model=TrustCertificateDetail,
    responses=answers(TrustCertificateUnknown, kind="read"),
    openapi_extra=access("read"),
)
async def show_certificate(sha256: Sha256, res: Res) -> Response:
    """Where it comes from, and whether it is trusted."""
    return reply(await handlers.show_certificate(sha256, res=res))


@router.post(
    "/trust/certificates",
    operation_id="trust_certificate",
    summary="Trust a vendor's certificate",
    status_code=201,
    response_model=TrustCertificateDetail,
    responses=answers(BundleInvalid, AlreadyExists, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def add(request: TrustCertificateRequest, res: Res, operator: OperatorDep) -> Response:
    """An anchor needs several operators under dual control; an intermediate must chain to one."""
    answer = await handlers.add(request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer, done=201))


@router.post(
    "/trust/certificates/{sha256}/distrust",
    operation_id="distrust_certificate",
    summary="Distrust a certificate at once",
    response_model=TrustCertificateDetail,
    responses=answers(TrustCertificateUnknown, TransitionForbidden, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def distrust(sha256: Sha256, request: TrustReasonRequest, res: Res, operator: OperatorDep) -> Response:
    """Machines that it vouched for fall in the same moment."""
    return reply(await handlers.distrust(sha256, request, res=res, operator=operator))


@router.post(
    "/trust/certificates/{sha256}/restore",
    operation_id="restore_certificate",
    summary="Trust a distrusted certificate again",
    response_model=TrustCertificateDetail,
    responses=answers(TrustCertificateUnknown, TransitionForbidden, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def restore(sha256: Sha256, request: TrustReasonRequest, res: Res, operator: OperatorDep) -> Response:
    """As hard as adding an anchor."""
    answer = await handlers.restore(sha256, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.post(
    "/trust/verify",
    operation_id="verify_ek_certificate",
    summary="Ask what the bundle says of an EK certificate",
    response_model=TrustVerdict,
    responses=answers(MalformedEvidence, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def verify(request: TrustVerifyRequest, res: Res) -> Response:
    """Nothing is stored."""
    return reply(await handlers.verify(request, res=res))


@router.get(
    "/machines/{machine_id}/endorsement",
    operation_id="show_endorsement",
    summary="Show who vouches for the TPM of a machine",
    response_model=EndorsementDetail,
    responses=answers(MachineUnknown, TrustCertificateUnknown, kind="read"),
    openapi_extra=access("read"),
)
async def endorsement(machine_id: Id, res: Res) -> Response:
    """Every certificate of the path with its verdict, and where the path ended."""
    return reply(await handlers.endorsement(machine_id, res=res))
