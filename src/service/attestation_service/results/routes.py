"""HTTP of single results."""

from __future__ import annotations

from attestation.api.operations import OperatorAPI
from attestation_service.results import handlers
from attestation_service.routing.openapi import as_it_is, operator_router, route

router = operator_router("operator: machines")

LOG = as_it_is(OperatorAPI.event_log, "The log as the machine sent it")
TOKEN = as_it_is(OperatorAPI.result_token, "An EAR as a JWT, verifiable with `/service-keys`", binary=False)

route(router, OperatorAPI.results, "read", handlers.results, reach="cluster")
route(router, OperatorAPI.result, "read", handlers.report, reach="cluster")
route(router, OperatorAPI.event_log, "read", handlers.event_log, reach="cluster", also=LOG)
route(router, OperatorAPI.ima_log, "read", handlers.ima_log, reach="cluster", also=LOG)
route(router, OperatorAPI.result_token, "read", handlers.token, reach="cluster", also=TOKEN)
