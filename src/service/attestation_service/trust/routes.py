"""HTTP of the trust bundle."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.routing.openapi import operator_router, route
from attestation_service.trust import handlers

router = operator_router("operator: trust")

route(router, OperatorAPI.trust_bundle, "read", handlers.show_bundle)
route(router, OperatorAPI.trusted_certificate, "read", handlers.show_certificate)
route(router, OperatorAPI.trust_certificate, "act", handlers.add, done=201)
route(router, OperatorAPI.distrust_certificate, "act", handlers.distrust)
route(router, OperatorAPI.restore_certificate, "act", handlers.restore)
route(router, OperatorAPI.verify_ek_certificate, "act", handlers.verify)
route(router, OperatorAPI.unknown_issuers, "read", handlers.list_unknown_issuers)
route(router, OperatorAPI.advisories, "read", handlers.list_advisories)
route(router, OperatorAPI.endorsement, "read", handlers.endorsement)
