"""What was decided of requests of nodes, for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from attestation.api import NodeCSRDecisionDetail, NodeCSRDecisionPage
from attestation.api.base import MachineId
from attestation.store import NodeCSR
from attestation_service.node_csr.handlers import shown
from attestation_service.resources import Res
from attestation_service.routing.parameters import Cursor, Limit


async def decisions(
    machine_id: Annotated[MachineId | None, Query(description="Only of this machine")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
) -> NodeCSRDecisionPage:
    """List what was decided of certificate requests of Kubernetes nodes, newest first.

    Refusals are kept for a day, approvals as long as certificates are.

    Raises:
        RequestInvalid: A cursor that cannot be.
    """
    page = await res.store.scan(lambda tx: tx.node_csrs.page(machine_id, cursor, limit))
    return NodeCSRDecisionPage(items=list(map(_detail, page.items)), next_cursor=page.next_cursor)


def _detail(row: NodeCSR) -> NodeCSRDecisionDetail:
    return NodeCSRDecisionDetail(
        **shown(row).model_dump(),
        cluster_id=row.cluster_id,
        csr_name=row.csr_name,
        csr_uid=row.csr_uid,
        signer_name=row.signer_name,
        at=row.at,
        serial=row.serial,
    )
