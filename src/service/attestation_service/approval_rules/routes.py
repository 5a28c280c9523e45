"""HTTP of approval rules."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.approval_rules import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: approval rules")

route(router, OperatorAPI.approval_rules, "read", handlers.list_rules)
route(router, OperatorAPI.create_approval_rule, "act", handlers.create, done=201)
route(router, OperatorAPI.try_approval_rule, "read", handlers.try_rule)
route(router, OperatorAPI.enable_approval_rule, "act", handlers.enable)
route(router, OperatorAPI.disable_approval_rule, "act", handlers.disable)
route(router, OperatorAPI.remove_approval_rule, "act", handlers.remove)
