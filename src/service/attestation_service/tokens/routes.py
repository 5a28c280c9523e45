"""HTTP of registration tokens."""

from __future__ import annotations

from attestation.errors import NameInUse, RegistrationTokenUnknown, RequestInvalid
from attestation_service.routing.openapi import operator_router, route
from attestation_service.tokens import handlers

router = operator_router("operator: registration tokens")

# fmt: off
route(router, "create_registration_token", "POST /registration-tokens", "act", handlers.create,
      NameInUse, RequestInvalid, done=201)
route(router, "list_registration_tokens", "GET /registration-tokens", "read", handlers.list_tokens, RequestInvalid)
route(router, "revoke_registration_token", "DELETE /registration-tokens/{token_id}", "act", handlers.revoke,
      RegistrationTokenUnknown)
