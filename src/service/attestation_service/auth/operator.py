"""The one dependency through which every operator route learns who asks.

Methods come one after another when there are more; a credential that is present but wrong ends the search:
it never falls through to another method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import structlog
from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from fastapi.security.base import SecurityBase

from attestation.audit import AuditEvent
from attestation.errors import OperatorAccessNotConfigured, Unauthenticated
from attestation.store import Tx
from attestation_service import limits
from attestation_service.auth import break_glass
from attestation_service.context import From, Res

log = structlog.get_logger("attestation_service.auth")

SCHEME = HTTPBearer(auto_error=False, scheme_name="operator", description="`Authorization: Bearer <token>`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A person who may act, or the break-glass identity.

    Args:
        cn: Name in the audit; `SYSTEM` for break-glass.
        sub: Stable subject where the method has one.
        source: Address the request came from.
    """

    cn: str
    sub: str | None
    source: str

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of an act of this operator."""
        return AuditEvent(
            operator_cn=self.cn, operator_sub=self.sub, action=action, source_ip=self.source, **members
        )


async def operator(
    request: Request,
    res: Res,
    origin: From,
    _documented: Annotated[SecurityBase | None, Security(SCHEME)],
) -> Operator:
    """Return who asks.

    Raises:
        OperatorAccessNotConfigured: There is no method by which anybody could be known.
        RateLimited: Too many wrong credentials from this address.
        Unauthenticated: No credential, or a wrong one.
    """
    token = res.settings.admin_token
    if token is None:
        raise OperatorAccessNotConfigured("no operator credential is configured")
    at = res.clock.now()
    counted = limits.of_credentials(origin.address)
    # 1. Before comparing: otherwise the limit would not slow a guesser down.
    await res.store.read(lambda tx: limits.check(tx, counted, at))
    presented = request.headers.getlist("authorization")
    if not presented:
        raise Unauthenticated("an operator credential is needed: Authorization: Bearer")
    # 2. One credential, and the right one.
    if len(presented) == 1 and break_glass.matches(presented[0], token):
        log.warning(
            "operator.break_glass", client=origin.address, method=request.method, path=request.url.path
        )
        return Operator(cn=break_glass.IDENTITY, sub=None, source=origin.address)

    def refuse(tx: Tx) -> None:
        limits.take(tx, counted, at)
        limits.audit_denied(
            tx,
            AuditEvent(
                operator_cn="unknown",
                action="denied",
                detail="wrong operator credential",
                source_ip=origin.address,
            ),
            at,
        )

    await res.store.write(refuse)
    log.warning("operator.denied", client=origin.address)
    raise Unauthenticated("the operator credential is not valid")


OperatorDep = Annotated[Operator, Depends(operator)]
