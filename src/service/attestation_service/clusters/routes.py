"""HTTP of clusters."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.clusters import handlers
from attestation_service.routing.openapi import operator_router, route

router = operator_router("operator: clusters")

route(router, OperatorAPI.clusters, "read", handlers.list_clusters, reach="cluster")
route(router, OperatorAPI.create_cluster, "act", handlers.create, done=201)
route(router, OperatorAPI.cluster, "read", handlers.get, reach="cluster")
route(router, OperatorAPI.change_cluster, "act", handlers.change, reach="cluster")
