"""The one dependency through which every operator route learns who asks, and whether they may.

In order: a bearer token (break-glass, then OpenID Connect), else a client certificate. A credential that is
present but wrong ends the search: it never falls through to another method. What a route needs it declares
itself; a route without a declaration lets nobody in.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

import structlog
from fastapi import Depends, Query, Request, Security
from fastapi.security import HTTPBearer
from fastapi.security.base import SecurityBase

from attestation.audit import AuditEvent
from attestation.errors import (
    AttestationError,
    Forbidden,
    MachineUnknown,
    OperatorAccessNotConfigured,
    Unauthenticated,
)
from attestation.store import Tx
from attestation_service.auth import break_glass, cross_site
from attestation_service.border import limits
from attestation_service.context.identity import RIGHTS, Duty, Method, Operator, Right, WithoutDuty
from attestation_service.context.logs import mask_path
from attestation_service.context.reach import REACH_KEY, demand_machine, is_within
from attestation_service.context.request import ACCESS_KEY, From, Origin
from attestation_service.operators import acts, votes
from attestation_service.resources import Res, Resources
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.auth")

SCHEME = HTTPBearer(auto_error=False, scheme_name="operator", description="`Authorization: Bearer <token>`")

NEEDED: Final = "an operator credential is needed: Authorization: Bearer, or a client certificate"


async def operator(
    request: Request,
    res: Res,
    origin: From,
    _documented: Annotated[SecurityBase | None, Security(SCHEME)],
) -> Operator:
    """Return who asks, where they may.

    Raises:
        OperatorAccessNotConfigured: There is no method by which anybody could be known.
        IdentityProviderUnavailable: A token cannot be judged now.
        RateLimited: Too many wrong credentials from this address, or too many uses of break-glass.
        Unauthenticated: No credential, or a wrong one.
        Forbidden: Known, but without the right that the route needs; or sent by a browser for another site.
        HTTPException: 415, an act of a media type that any web page could have had sent; 400, as `acts.permit`.
        ActInProgress, IdempotencyKeyReused: As `acts.permit`.
    """
    needed = declared(request)
    at = res.clock.now()
    who: Operator | None = None
    try:
        # Before anybody is recognised: what a browser adds for another site is not the operator's word.
        cross_site.refuse(request.headers, res.settings.service_url)
        who = await _recognise(request, res, origin, at)
        if who.reach(Right.ACT) is not None and who.sub is not None:
            await _end_votes(res, who.sub, at, who.reach(Right.ACT))
        _demand(needed, who, res.settings)
        who = await _within_reach(request, replace(who, clusters=who.reach(needed)), res)
        cross_site.demand_form(request.method, request.headers)
    except (Unauthenticated, Forbidden) as e:
        if isinstance(e, WithoutDuty):
            await _end_votes(res, e.sub, at)
        if who is not None or str(e) != NEEDED:
            await _record_denial(res, origin, request, e, who, at)
        raise
    if who.method is Method.BREAK_GLASS:
        use = f"{request.method} {mask_path(request.url.path)}"
        log.warning("operator.break_glass", client=origin.address, use=use)
        await res.store.write(lambda tx: break_glass.record(tx, who, use, res.settings, at))
    if needed is Right.ACT:
        await acts.permit(request, who, res)
    return who


def declared(request: Request) -> Right:
    """Return the right that the route of *request* declares.

    Raises:
        Forbidden: It declares none, or one that is not an operator's: default deny.
    """
    route = request.scope.get("route")
    word = (getattr(route, "openapi_extra", None) or {}).get(ACCESS_KEY, "")
    try:
        return Right(word)
    except ValueError:
        raise Forbidden("this route declares no right that an operator could have") from None


async def _recognise(request: Request, res: Resources, origin: Origin, at: datetime) -> Operator:
    settings = res.settings
    if settings.admin_token is None and res.oidc is None and res.mtls is None:
        raise OperatorAccessNotConfigured("no method by which operators could be known is configured")
    presented = request.headers.getlist("authorization")
    if not presented:
        certificate = res.mtls.presented(request.scope) if res.mtls else None
        if res.mtls is None or certificate is None:
            raise Unauthenticated(NEEDED)
        return await res.mtls.operator(certificate, origin, at)
    scheme, _, token = presented[0].partition(" ")
    token = token.strip()
    is_one = len(presented) == 1 and scheme.lower() == "bearer" and bool(token)
    holder = break_glass.holder(token, settings, origin, at) if is_one else None
    if holder is not None and not break_glass.is_short(settings):
        # Before the limit: who holds it is not locked out by whoever guesses from the same address. A token that could
        # be guessed is looked at after it: otherwise nothing would slow a guesser down.
        return holder
    if _may_be_a_guess(token, res):
        counted = limits.of_credentials(origin.address)
        await res.store.read(lambda tx: limits.check(tx, counted, at))
    if not is_one:
        raise Unauthenticated("one Authorization header with a bearer token is needed")
    if holder is not None:
        return holder
    if res.oidc is not None:
        return await res.oidc.operator(token, origin, at)
    raise Unauthenticated("the operator credential is not valid")


async def _end_votes(
    res: Resources, sub: str, at: datetime, clusters: frozenset[str] | None = frozenset()
) -> None:
    """End the votes of somebody of whom we learn now that they may not vote any more, but in *clusters*."""

    def work(tx: Tx) -> None:
        for approval in tx.approvals.every_live(at):
            if approval.vote.operator_sub == sub and not is_within(json.loads(approval.proposal), clusters):
                votes.told(
                    tx, tx.approvals.void_one(approval.id, at, "its voter is no operator any more"), at
                )

    # A read first: those who may only look come often, and hardly any of them ever voted.
    if await res.store.read(lambda tx: tx.approvals.has_live(sub, at)):
        await res.store.write(work)


async def _within_reach(request: Request, who: Operator, res: Resources) -> Operator:
    """Return *who*, where the route is for people whose right holds in some clusters, or theirs holds in all.

    Raises:
        Forbidden: It is about the whole fleet.
        MachineUnknown: The machine of its path is in no cluster of theirs, or gone. Acts ask again, in their unit.
    """
    if who.clusters is None:
        return who
    reach = (getattr(request.scope.get("route"), "openapi_extra", None) or {}).get(REACH_KEY)
    if reach not in ("cluster", "any"):
        where = ", ".join(sorted(who.clusters))
        raise Forbidden(f"{who.cn} may do this in {where} only, and it concerns every cluster")
    machine_id = request.path_params.get("machine_id")
    if machine_id is not None:
        machine = await res.store.read(lambda tx: tx.machines.by_id(str(machine_id)))
        if machine is None:
            raise MachineUnknown("no such machine")
        demand_machine(who, machine)
    return who


def _may_be_a_guess(token: str, res: Resources) -> bool:
    """Return True where *token* may be a try at break-glass.

    A signed token is none: it is verified, not compared. Without this, one dashboard with an expired session
    would lock out everybody behind its address.
    """
    secret = res.settings.admin_token
    if res.oidc is None or (secret is not None and secret.get_secret_value().count(".") == 2):
        return True
    return token.count(".") != 2


async def _record_denial(
    res: Resources,
    origin: Origin,
    request: Request,
    error: AttestationError,
    who: Operator | None,
    at: datetime,
) -> None:
    """Audit a refusal within bounds, and count it where it may have been a guess."""
    presented = request.headers.get("authorization")
    # Nobody guesses a certificate: one that has expired must not lock out those behind the same address.
    guessed = (
        presented is not None
        and isinstance(error, Unauthenticated)
        and _may_be_a_guess(presented.partition(" ")[2].strip(), res)
    )
    event = AuditEvent(
        operator_cn=who.cn if who else "unknown",
        operator_sub=who.sub if who else None,
        action="denied",
        detail=f"{request.method} {mask_path(request.url.path)}: {error}",
        source_ip=origin.address,
    )

    def work(tx: Tx) -> None:
        if guessed:
            limits.take(tx, limits.of_credentials(origin.address), at)
        limits.audit_denied(tx, event, at)

    # What is not counted costs a read only, once enough of it stands in the audit.
    if guessed or await res.store.read(lambda tx: limits.may_audit_denial(tx, event, at)):
        await res.store.write(work)
    log.warning("operator.denied", client=origin.address, code=error.code, reason=str(error))


def _demand(needed: Right, who: Operator, settings: Settings) -> None:
    """Refuse *who* without the right *needed* in any cluster; say which role would give it."""
    if who.reach(needed) != frozenset():
        return
    roles = {
        Duty.OPERATOR: settings.oidc_operator_role,
        Duty.VIEWER: settings.oidc_viewer_role,
        Duty.AUDITOR: settings.oidc_auditor_role,
        Duty.METRICS: settings.oidc_metrics_role,
    }
    giving = " or ".join(roles[duty] for duty, rights in RIGHTS.items() if needed in rights)
    raise Forbidden(f"{who.cn} may not do this: the role {giving} is needed")


OperatorDep = Annotated[Operator, Depends(operator)]


async def voter(
    who: OperatorDep,
    proposal: Annotated[
        str | None,
        Query(
            pattern=r"^[0-9a-f]{64}$",
            description="Digest of the proposal that the caller agrees to; anything else is refused",
        ),
    ] = None,
    new_proposal: Annotated[
        bool, Query(description="Open a proposal although another one about the same thing waits")
    ] = False,
) -> Operator:
    """Return who asks for an act that several may have to agree to, with which proposal they mean."""
    return replace(who, proposal=proposal, new_proposal=new_proposal)


VoterDep = Annotated[Operator, Depends(voter)]
