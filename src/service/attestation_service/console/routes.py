"""HTTP of console approval. What machines ask stands also where Talos looks for it by default: outside of /api/v1."""

from __future__ import annotations

import copy
from typing import Any, Final

from fastapi import APIRouter

from attestation.api.operation import Operation
from attestation.api.operations import OperatorAPI, PublicAPI
from attestation.errors import RateLimited
from attestation_service.console import device, handlers
from attestation_service.console.forms import FORM
from attestation_service.routing.openapi import Responses, answers, as_it_is, operator_router, route

router = operator_router("operator: consoles")
public = APIRouter(tags=["consoles"])
versioned = APIRouter(prefix="/api/v1", tags=["consoles"])

_OBJECT: Final[dict[str, Any]] = {"application/json": {"schema": {"type": "object"}}}
_BODY: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {FORM: {"schema": {"type": "object"}}}}
}


def _answers(done: str) -> Responses:
    """Document an answer, and refusals: errors of OAuth, and problems of the border by status."""
    found: Responses = copy.deepcopy(answers(404, RateLimited, body=True, kind="public"))
    for status, said in {
        400: "an error of RFC 6749 §5.2 or RFC 8628 §3.5",
        429: "`temporarily_unavailable`",
        503: "`temporarily_unavailable`",
    }.items():
        entry = found.setdefault(status, {"description": "", "content": {}})
        entry["description"] = "; ".join(filter(None, (entry["description"], said)))
        entry["content"] |= _OBJECT
    return {200: {"description": done, "content": _OBJECT}} | found


def _asked(where: APIRouter, code: Operation, token: Operation) -> None:
    route(where, code, "public", device.code, instead=_answers("RFC 8628 §3.2"), extra=_BODY)
    route(where, token, "public", device.token, instead=_answers("RFC 6749 §5.1"), extra=_BODY)


_asked(public, PublicAPI.device_code, PublicAPI.device_token)
_asked(versioned, PublicAPI.device_code_v1, PublicAPI.device_token_v1)
route(public, PublicAPI.device_page, "public", device.page,
      instead=answers(404, kind="public")
      | as_it_is(PublicAPI.device_page, "What to do with the code of a console", binary=False))  # fmt: skip

route(router, OperatorAPI.console_codes, "read", handlers.list_codes)
route(router, OperatorAPI.console_code, "read", handlers.show)
route(router, OperatorAPI.approve_console_code, "act", handlers.approve)
route(router, OperatorAPI.deny_console_code, "act", handlers.deny)
