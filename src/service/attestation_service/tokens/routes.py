"""HTTP of registration tokens."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.routing.openapi import operator_router, route
from attestation_service.tokens import handlers

router = operator_router("operator: registration tokens")

route(router, OperatorAPI.create_registration_token, "act", handlers.create, reach="cluster", done=201)
route(router, OperatorAPI.registration_tokens, "read", handlers.list_tokens, reach="cluster")
route(router, OperatorAPI.revoke_registration_token, "act", handlers.revoke, reach="cluster")
