"""HTTP of the votes of dual control."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.approvals import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: dual control")

route(router, OperatorAPI.proposals, "read", handlers.proposals, reach="cluster")
route(router, OperatorAPI.proposal, "read", handlers.proposal, reach="cluster")
route(router, OperatorAPI.machine_approvals, "read", handlers.of_machine, reach="cluster")
route(router, OperatorAPI.withdraw_approval, "act", handlers.withdraw, reach="any")
route(router, OperatorAPI.object_to_proposal, "act", handlers.object_to, reach="cluster")
