"""HTTP of the votes of dual control."""

from __future__ import annotations

from attestation.errors import ApprovalUnknown, Forbidden, MachineUnknown, RequestInvalid
from attestation_service.approvals import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: dual control")

# fmt: off
route(router, "list_proposals", "GET /approvals", "read", handlers.proposals, RequestInvalid)
route(router, "get_proposal", "GET /approvals/{proposal_digest}/proposal", "read", handlers.proposal, ApprovalUnknown)
route(router, "list_machine_approvals", "GET /machines/{machine_id}/approvals", "read", handlers.of_machine,
      MachineUnknown, RequestInvalid)
route(router, "withdraw_approval", "DELETE /approvals/{approval_id}", "act", handlers.withdraw,
      ApprovalUnknown, Forbidden)
route(router, "object_to_proposal", "POST /approvals/{proposal_digest}/object", "act", handlers.object_to,
      ApprovalUnknown)
