"""HTTP of collateral."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.collateral import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: collateral")

route(router, OperatorAPI.collateral, "read", handlers.show)
route(router, OperatorAPI.import_collateral, "act", handlers.keep)
route(router, OperatorAPI.refresh_collateral, "act", handlers.refresh)
