"""HTTP of single results."""

from __future__ import annotations

from attestation.errors import MachineUnknown, RequestInvalid, ResultUnknown
from attestation.results.ear import MEDIA_TYPE as EAR_MEDIA_TYPE
from attestation_service.results import handlers
from attestation_service.routing.openapi import Responses, operator_router, route

router = operator_router("operator: machines")

NO_RESULT = (MachineUnknown, ResultUnknown)
LOG: Responses = {
    200: {
        "description": "The log as the machine sent it",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
TOKEN: Responses = {
    200: {
        "description": "An EAR as a JWT, verifiable with `/service-keys`",
        "content": {EAR_MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}

# fmt: off
route(router, "list_results", "GET /machines/{machine_id}/results", "read", handlers.results,
      MachineUnknown, RequestInvalid)
route(router, "get_result", "GET /machines/{machine_id}/results/{result_id}", "read", handlers.report, *NO_RESULT)
route(router, "get_event_log", "GET /machines/{machine_id}/results/{result_id}/event-log", "read", handlers.event_log,
      *NO_RESULT, also=LOG)
route(router, "get_ima_log", "GET /machines/{machine_id}/results/{result_id}/ima-log", "read", handlers.ima_log,
      *NO_RESULT, also=LOG)
route(router, "get_result_token", "GET /machines/{machine_id}/results/{result_id}/token", "read", handlers.token,
      *NO_RESULT, also=TOKEN)
