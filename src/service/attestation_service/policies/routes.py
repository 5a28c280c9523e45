"""HTTP of policies."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request, Response

from attestation.api import PolicyDetail
from attestation.api.operations import OperatorAPI
from attestation.reference import FORMAT, FORMAT_2
from attestation.reference.schema import either
from attestation_service.auth import OperatorDep
from attestation_service.policies import handlers, learning, trials
from attestation_service.resources import Res
from attestation_service.routing.openapi import Responses, operator_router, route

router = operator_router("operator: policies")

SCHEMA_TYPE = "application/schema+json"
SCHEMA_TEXT = json.dumps(either(), indent=2)
SCHEMA: Responses = {200: {"content": {SCHEMA_TYPE: {"schema": {"type": "object"}}}}}
NOTHING_BEFORE: Responses = {204: {"description": "Nothing was assigned there before, and nothing is now"}}


def _within(found: Any) -> Any:
    """Return the schema *found* for the OpenAPI document, where neither it nor a part is a document of its own."""
    if isinstance(found, dict):
        return {name: _within(value) for name, value in found.items() if name not in ("$schema", "$id")}
    return [_within(each) for each in found] if isinstance(found, list) else found


_RULES = {"bank": "sha256", "pcrs": {"7": {"any_of": ["ab" * 32]}, "1": {"ignore": "serial numbers"}}}
DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": _within(either()),
                "examples": {
                    FORMAT_2: {"value": {"format": FORMAT_2, "name": "workers", "version": 2, "tpm": _RULES}},
                    FORMAT: {"value": {"format": FORMAT, "name": "workers", "version": 1, **_RULES}},
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
    """Return the JSON Schema of a policy document, of either format.

    Draft 2020-12; for editors and for checks before a document is sent.
    """
    return Response(SCHEMA_TEXT, media_type=SCHEMA_TYPE)


route(router, OperatorAPI.policies, "read", handlers.list_policies, reach="cluster")
route(router, OperatorAPI.create_policy, "act", create, done=201, extra=DOCUMENT)
route(router, OperatorAPI.policy_history, "read", handlers.history, reach="cluster")
route(router, OperatorAPI.test_policy, "act", trials.test)
route(router, OperatorAPI.learn_policy, "act", learning.learn)
route(router, OperatorAPI.policy_schema, "read", schema, reach="any", also=SCHEMA)
route(router, OperatorAPI.effective_policy, "read", handlers.effective, reach="cluster")
route(router, OperatorAPI.policy, "read", handlers.get, reach="any")
route(router, OperatorAPI.assign_policy, "act", handlers.assign, reach="cluster")
route(router, OperatorAPI.unassign_policy, "act", handlers.unassign, reach="cluster")
route(router, OperatorAPI.roll_back_policy, "act", handlers.roll_back, reach="cluster", also=NOTHING_BEFORE)
