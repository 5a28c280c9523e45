"""What the machines of a cluster are worth now, for the controller of its Nodes."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Header, Response

from attestation.api import NodeTrust, NodeTrustPage
from attestation.machines import Machine, Status, Trust
from attestation.store import MachineFilter, Tx
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res
from attestation_service.routing.parameters import Cursor, Limit
from attestation_service.routing.replies import reply

TRUSTED = "Trusted"


async def trust(
    cursor: Cursor = None,
    limit: Limit = 200,
    *,
    if_none_match: Annotated[str | None, Header(max_length=1024)] = None,
    res: Res,
    who: ControllerDep,
) -> NodeTrustPage | Response:
    """List what the machines of the caller's cluster are worth now.

    The newest first. `ETag` names a page; with `If-None-Match` what did not change is `304`.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    at = res.clock.now()
    wanted = MachineFilter(cluster_id=who.cluster.cluster_id)

    def work(tx: Tx) -> NodeTrustPage:
        page = tx.machines.page(wanted, cursor, limit)
        items = []
        for machine in page.items:
            reason = _reason(machine, machine.trust(at))
            items.append(
                NodeTrust(
                    machine_id=machine.machine_id,
                    hostname=machine.hostname,
                    status=machine.status,
                    trusted=reason == TRUSTED,
                    reason=reason,
                    trust_expires_at=machine.trust_expires_at,
                    node_certificate_at=tx.node_csrs.first_approved(
                        who.cluster.cluster_id, machine.machine_id
                    ),
                )
            )
        return NodeTrustPage(items=items, next_cursor=page.next_cursor, at=at)

    page = await res.store.read(work)
    # Of what it says, not of when: unchanged is unchanged.
    said = page.model_dump_json(exclude={"at"}).encode()
    tag = f'"{hashlib.sha256(said).hexdigest()[:32]}"'
    if if_none_match is not None and tag in (each.strip() for each in if_none_match.split(",")):
        return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})
    answer = reply(page)
    answer.headers["ETag"] = tag
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _reason(machine: Machine, trust: Trust) -> str:
    """Return why a machine is trusted or not, in one word: of its status first, because an operator set that."""
    if machine.status is not Status.ATTESTED:
        return "".join(part.capitalize() for part in machine.status.split("_"))
    return TRUSTED if trust is Trust.VERIFIED else f"Trust{trust.value.capitalize()}"
