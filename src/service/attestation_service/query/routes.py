"""HTTP of queries."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.query import handlers, saved
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: query")

route(router, OperatorAPI.query, "query", handlers.run)
route(router, OperatorAPI.validate_query, "query", handlers.validate)
route(router, OperatorAPI.query_schema, "query", handlers.schema)
route(router, OperatorAPI.saved_queries, "query", saved.list_saved)
route(router, OperatorAPI.save_query, "query", saved.save)
route(router, OperatorAPI.delete_query, "query", saved.delete)
route(router, OperatorAPI.take_over_query, "act", saved.take_over)
route(router, OperatorAPI.delete_shared_query, "act", saved.delete_shared)
