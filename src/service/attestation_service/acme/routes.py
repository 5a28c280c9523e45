"""HTTP of ACME. Public, outside of /api/v1: whoever asks proves themselves in the request."""

from __future__ import annotations

import copy
from typing import Any, Final

from fastapi import APIRouter

from attestation.api.operation import Operation
from attestation.api.operations import OperatorAPI, PublicAPI
from attestation.errors import RateLimited
from attestation_service.acme import accounts, challenges, directory, finalize, issued, operators, orders
from attestation_service.acme.asked import JOSE, Handler, Keys, posted
from attestation_service.acme.issued import CHAIN
from attestation_service.acme.problems import MEDIA_TYPE, PREFIX, STATUS, Refused
from attestation_service.routing.openapi import Responses, answers, operator_router, route

router = operator_router("operator: ACME")
public = APIRouter(tags=["ACME"])

OBJECT: Final[dict[str, Any]] = {"application/json": {"schema": {"type": "object"}}}
SIGNED: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            JOSE: {"schema": {"type": "object", "description": "JWS, flattened JSON (RFC 8555 §6.2)"}}
        },
    }
}


def _refusals() -> Responses:
    """Document what a POST can be refused with: problems of ACME, and ours of the border, by status."""
    found: Responses = copy.deepcopy(answers(404, RateLimited, body=True, kind="public"))
    for kind, status in STATUS.items():
        document = Refused(kind, kind).document
        entry = found.setdefault(status, {"description": "", "content": {MEDIA_TYPE: {"examples": {}}}})
        content = entry["content"][MEDIA_TYPE]
        content["schema"] = {"anyOf": [{"$ref": "#/components/schemas/Problem"}, {"type": "object"}]}
        content["examples"][document["type"]] = {"summary": kind, "value": document}
        entry["description"] = ", ".join(f"`{name.removeprefix(PREFIX)}`" for name in content["examples"])
    return found


REFUSALS: Final = _refusals()


def _post(
    operation: Operation, handler: Handler, *, keys: Keys = "account", done: Responses | None = None
) -> None:
    answered = done or {200: {"description": "Done", "content": OBJECT}}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in operation.in_path
    ]
    extra = SIGNED | ({"parameters": parameters} if parameters else {})
    route(public, operation, "public", posted(keys)(handler), instead=answered | REFUSALS, extra=extra)


MADE: Final[Responses] = {
    201: {"description": "Made", "content": OBJECT},
    200: {"description": "It was there"},
}
FRESH: Final[dict[str, Any]] = {"description": "In the header Replay-Nonce"}
PEM: Final[dict[str, Any]] = {
    "description": "The certificate and its chain",
    "content": {CHAIN: {"schema": {"type": "string"}}},
}

route(public, PublicAPI.acme_directory, "public", directory.directory,
      instead={200: {"description": "RFC 8555 §7.1.1", "content": OBJECT}})  # fmt: skip
route(public, PublicAPI.acme_new_nonce, "public", directory.new_nonce, instead={200: FRESH})
route(public, PublicAPI.acme_get_nonce, "public", directory.get_nonce, done=204, instead={204: FRESH})
_post(PublicAPI.acme_new_account, accounts.new_account, keys="jwk", done=MADE)
_post(PublicAPI.acme_account, accounts.account)
_post(PublicAPI.acme_orders, accounts.orders)
_post(PublicAPI.acme_key_change, accounts.key_change)
_post(PublicAPI.acme_new_order, orders.new_order, done={201: MADE[201]})
_post(PublicAPI.acme_order, orders.order)
_post(PublicAPI.acme_authorization, orders.authorization)
_post(PublicAPI.acme_challenge, challenges.challenge)
_post(PublicAPI.acme_finalize, finalize.finalize)
_post(PublicAPI.acme_certificate, issued.certificate, done={200: PEM})
_post(PublicAPI.acme_revoke, issued.revoke, keys="either")

route(router, OperatorAPI.make_acme_key, "act", operators.make_key, done=201)
route(router, OperatorAPI.acme_keys, "read", operators.keys)
route(router, OperatorAPI.revoke_acme_key, "act", operators.revoke_key)
route(router, OperatorAPI.acme_accounts, "read", operators.accounts)
route(router, OperatorAPI.revoke_acme_account, "act", operators.revoke_account)
route(router, OperatorAPI.acme_orders, "read", operators.orders)
