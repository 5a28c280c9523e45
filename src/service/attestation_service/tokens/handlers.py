"""Registration tokens: whoever presents one and proves a TPM is admitted in the role it names."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Path

from attestation.api import (
    PendingApproval,
    RegistrationTokenCreated,
    RegistrationTokenDetail,
    RegistrationTokenPage,
    RegistrationTokenRequest,
)
from attestation.errors import RegistrationTokenUnknown, RequestInvalid
from attestation.machines import DEFAULT_CLUSTER
from attestation.machines.dual_control import of_registration_token
from attestation.store import RegistrationToken, Tx
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.context.reach import demand_cluster, holds
from attestation_service.entitlements import config_tokens, names
from attestation_service.operators import dual_control
from attestation_service.resources import Res
from attestation_service.routing.parameters import Cursor, Limit

TOKEN_BYTES = 32


async def create(
    request: RegistrationTokenRequest, *, res: Res, operator: VoterDep
) -> RegistrationTokenCreated | PendingApproval:
    """Issue a registration token.

    The secret is in this answer and nowhere else.

    Raises:
        RequestInvalid: A host name or address for several machines.
        NameInUse: A machine is called so already.
        ClusterUnknown: A cluster that nobody declared.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()
    if request.uses > 1 and (request.hostname is not None or request.assigned_ip is not None):
        raise RequestInvalid("a host name or an address is for one machine: such a token has one use")
    proposal = of_registration_token(**request.model_dump())

    def work(tx: Tx) -> RegistrationTokenCreated | PendingApproval:
        demand_cluster(operator, request.cluster_id)
        tx.clusters.demand_known(request.cluster_id or DEFAULT_CLUSTER)
        # Told now; asked again when it is used, for much may happen until then.
        names.demand_free(
            tx, res.settings, "", request.cluster_id or DEFAULT_CLUSTER, request.hostname, request.assigned_ip
        )
        agreed = dual_control.gate(tx, proposal, operator, res, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        # Made when the last voter asks: only that one sees it, and stored is its SHA-256.
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        token = RegistrationToken(
            token_id=secrets.token_hex(8),
            token_sha256=config_tokens.sha256(secret),
            role=request.role,
            hostname=request.hostname,
            assigned_ip=request.assigned_ip,
            cluster_id=request.cluster_id,
            minimum_assurance=request.minimum_assurance,
            uses=request.uses,
            uses_left=request.uses,
            created_at=at,
            created_by=operator.cn,
            expires_at=at + timedelta(seconds=request.expires_in_seconds),
        )
        tx.registration_tokens.add(token)
        told = (
            f"registration token {token.token_id}: role {token.role}, {token.uses} uses, "
            f"cluster {token.cluster_id or DEFAULT_CLUSTER}, assurance at least {token.minimum_assurance}"
        )
        tx.audit.append(operator.event("token_issued", detail=agreed.told(told)), at)
        return RegistrationTokenCreated(token=secret, jwks_sha256=res.signer.sha256.hex(), **_members(token))

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def list_tokens(
    cursor: Cursor = None, limit: Limit = 50, *, res: Res, operator: OperatorDep
) -> RegistrationTokenPage:
    """List registration tokens, newest first.

    Without their secrets, which nobody has.
    """
    page = await res.store.read(lambda tx: tx.registration_tokens.page(cursor, limit, operator.clusters))
    return RegistrationTokenPage(
        items=[RegistrationTokenDetail(**_members(token)) for token in page.items],
        next_cursor=page.next_cursor,
    )


async def revoke(
    token_id: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")], *, res: Res, operator: OperatorDep
) -> None:
    """Revoke a registration token.

    Machines that it admitted stay; revoking twice changes nothing.

    Raises:
        RegistrationTokenUnknown: No such token.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        token = tx.registration_tokens.revoke(token_id, at)
        if not holds(operator, token.cluster_id):
            # The unit is undone.
            raise RegistrationTokenUnknown("no such registration token")
        tx.audit.append(operator.event("token_revoked", detail=f"registration token {token_id}"), at)

    await res.store.write(work)


def _members(token: RegistrationToken) -> dict[str, Any]:
    return {name: getattr(token, name) for name in RegistrationTokenDetail.model_fields}
