"""The one dependency through which every route for controllers of a Kubernetes cluster learns who asks.

Beside `operator.py`, never through it: a controller has one duty, which opens the route that declares it and no other;
an operator's credential opens none of these, and a controller's none of an operator's.
"""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from fastapi.security.base import SecurityBase

from attestation.audit import AuditEvent
from attestation.errors import AttestationError, ClusterNotConfigured, Forbidden, Unauthenticated
from attestation_service.border import limits
from attestation_service.context.identity import Controller
from attestation_service.context.logs import mask_path
from attestation_service.context.request import ACCESS_KEY, From, Origin
from attestation_service.kubernetes_clusters import ControllerDuty
from attestation_service.resources import Res, Resources

log = structlog.get_logger("attestation_service.auth")

SCHEME = HTTPBearer(
    auto_error=False,
    scheme_name="controller",
    description="`Authorization: Bearer <bound ServiceAccount token>`, audience `itl-attestation`",
)


async def controller(
    request: Request,
    res: Res,
    origin: From,
    _documented: Annotated[SecurityBase | None, Security(SCHEME)],
) -> Controller:
    """Return which controller asks, where it may.

    Raises:
        ClusterNotConfigured: No cluster is named in the settings.
        IdentityProviderUnavailable: A token cannot be judged now.
        Unauthenticated: No token, or one that proves nothing.
        Forbidden: Known, but of another duty than the route needs.
    """
    if res.service_accounts is None:
        raise ClusterNotConfigured("no Kubernetes cluster is named here; see ITL_KUBERNETES_CLUSTERS")
    try:
        who = await res.service_accounts.controller(_token(request), origin, res.clock.now())
        _demand(declared(request), who)
    except (Unauthenticated, Forbidden) as e:
        await _record_denial(res, origin, request, e)
        raise
    return who


def _token(request: Request) -> str:
    presented = request.headers.getlist("authorization")
    scheme, _, token = (presented[0] if len(presented) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("one bound ServiceAccount token is needed: Authorization: Bearer")
    return token.strip()


def _demand(needed: ControllerDuty, who: Controller) -> None:
    if who.duty is not needed:
        raise Forbidden(f"ServiceAccount {who.service_account} is {who.duty}; {needed} is needed")


def declared(request: Request) -> ControllerDuty:
    """Return the duty that the route of *request* declares.

    Raises:
        Forbidden: It declares none: default deny.
    """
    route = request.scope.get("route")
    word = (getattr(route, "openapi_extra", None) or {}).get(ACCESS_KEY, "")
    try:
        return ControllerDuty(word)
    except ValueError:
        raise Forbidden("this route declares no duty that a controller could have") from None


async def _record_denial(res: Resources, origin: Origin, request: Request, error: AttestationError) -> None:
    """Audit a refusal, within bounds."""
    event = AuditEvent(
        operator_cn="unknown",
        action="denied",
        detail=f"{request.method} {mask_path(request.url.path)}: {error}",
        source_ip=origin.address,
    )
    at = res.clock.now()
    # A read first: what is not recorded any more costs no write.
    if await res.store.read(lambda tx: limits.may_audit_denial(tx, event, at)):
        await res.store.write(lambda tx: limits.audit_denied(tx, event, at))
    log.warning("controller.denied", client=origin.address, code=error.code, reason=str(error))


ControllerDep = Annotated[Controller, Depends(controller)]
