"""HTTP of the numbers."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.routing.openapi import operator_router, route
from attestation_service.stats import handlers

router = operator_router("operator: machines")

route(router, OperatorAPI.stats, "read", handlers.stats)
route(router, OperatorAPI.attention, "read", handlers.attention)
