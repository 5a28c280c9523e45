"""HTTP of policies."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request, Response

from attestation.api import PolicyDetail
from attestation.errors import AlreadyExists, MachineUnknown, PolicyInvalid, PolicyUnknown, RequestInvalid
from attestation.reference import FORMAT
from attestation.reference.schema import schema as document_schema
from attestation_service.auth import OperatorDep
from attestation_service.policies import handlers, learning, trials
from attestation_service.resources import Res
from attestation_service.routing.openapi import Responses, operator_router, route

router = operator_router("operator: policies")

SCHEMA_TYPE = "application/schema+json"
SCHEMA_TEXT = json.dumps(document_schema(), indent=2)
SCHEMA: Responses = {200: {"content": {SCHEMA_TYPE: {"schema": {"type": "object"}}}}}
NOTHING_BEFORE: Responses = {204: {"description": "Nothing was assigned there before, and nothing is now"}}


def _schema() -> dict[str, Any]:
    """Return the schema for the OpenAPI document, where it is no document of its own."""
    return {name: value for name, value in document_schema().items() if name not in ("$schema", "$id")}


DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": _schema(),
                "example": {
                    "format": FORMAT,
                    "name": "workers",
                    "version": 1,
                    "bank": "sha256",
                    "pcrs": {"7": {"any_of": ["ab" * 32]}, "1": {"ignore": "serial numbers"}},
                },
            }
        },
    }
}


async def create(request: Request, res: Res, operator: OperatorDep) -> PolicyDetail:
    """Store a policy version.

    Immutable from then on; what this version cannot evaluate is refused by name.
    """
    return await handlers.create(await request.body(), res=res, operator=operator)


async def schema() -> Response:
    """Return the JSON Schema of a policy document.

    Draft 2020-12; for editors and for checks before a document is sent.
    """
    return Response(SCHEMA_TEXT, media_type=SCHEMA_TYPE)


# fmt: off
route(router, "list_policies", "GET /policies", "read", handlers.list_policies)
route(router, "create_policy", "POST /policies", "act", create, PolicyInvalid, AlreadyExists, done=201, extra=DOCUMENT)
route(router, "list_policy_history", "GET /policies/history", "read", handlers.history, RequestInvalid)
route(router, "test_policy", "POST /policies/test", "act", trials.test,
      PolicyInvalid, PolicyUnknown, MachineUnknown, RequestInvalid)
route(router, "learn_policy", "POST /policies/learn", "act", learning.learn,
      PolicyInvalid, MachineUnknown, RequestInvalid)
route(router, "get_policy_schema", "GET /policies/schema", "read", schema, also=SCHEMA)
route(router, "get_effective_policy", "GET /machines/{machine_id}/policy", "read", handlers.effective, MachineUnknown)
route(router, "get_policy", "GET /policies/{name}/{version}", "read", handlers.get, PolicyUnknown)
route(router, "assign_policy", "PUT /policies/assignments/{scope}/{subject}", "act", handlers.assign,
      PolicyUnknown, PolicyInvalid, MachineUnknown, RequestInvalid)
route(router, "unassign_policy", "DELETE /policies/assignments/{scope}/{subject}", "act", handlers.unassign,
      PolicyUnknown, MachineUnknown, RequestInvalid)
route(router, "roll_back_policy", "POST /policies/assignments/{scope}/{subject}/rollback", "act", handlers.roll_back,
      PolicyUnknown, PolicyInvalid, MachineUnknown, RequestInvalid, also=NOTHING_BEFORE)
