"""HTTP of operators' certificates."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.operator_certificates import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: certificates of operators")

route(router, OperatorAPI.request_operator_certificate, "act", handlers.request_certificate, done=201)
route(router, OperatorAPI.operator_certificates, "read", handlers.list_certificates)
route(router, OperatorAPI.revoke_operator_certificate, "act", handlers.revoke)
