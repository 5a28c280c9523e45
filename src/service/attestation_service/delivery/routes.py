"""HTTP of delivery: content negotiation, the pending answer, errors that fit on a console.

Talos' own fetch sends no Accept header and prints the first 32 bytes of what it does not understand
(DELIVERY-AND-OPERATORS §1.2); such a client gets its errors as short text.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

from fastapi import Header, Path, Query, Request, Response

from attestation.api import ConfigEnvelope
from attestation.api.base import NodeNonce
from attestation.api.operation import Operation
from attestation.api.operations import OperatorAPI, PublicAPI
from attestation.errors import Unavailable
from attestation.keys import CONFIG_SIGNATURE_HEADER, NODE_NONCE_HEADER
from attestation_service.border import console
from attestation_service.border.console import CONSOLE_BYTES
from attestation_service.context.request import From
from attestation_service.delivery import handlers, offline_bundle
from attestation_service.delivery.handlers import PLAIN, SEALED, Pending
from attestation_service.resources import Res, Resources
from attestation_service.routing.openapi import (
    Responses,
    answers,
    machine_router,
    ok,
    operator_router,
    route,
)

router = machine_router("node: delivery")
operators = operator_router("operator: machines")

RETRY_SECONDS: Final = 60
AGENT: Final = "itl-tpm-register"

Hint = Annotated[str | None, Query(description="Selects a pending answer, nothing more")]


def _delivered() -> Responses:
    sealed = ok(ConfigEnvelope, "The sealed configuration, or the pending answer", media_type=SEALED)
    sealed["content"][PLAIN] = {"schema": {"type": "string"}}
    sealed["content"]["text/plain"] = {"schema": {"type": "string"}}
    sealed["headers"] = {
        CONFIG_SIGNATURE_HEADER: {
            "description": "Compact JWS `itl-config+jwt`: token_id and config_sha256, for this TPM and request",
            "schema": {"type": "string"},
        }
    }
    return {**_pending(), 200: sealed}


def _pending() -> Responses:
    return {
        200: {
            "description": "The pending answer: documents without a secret",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        204: {"description": "The pending answer where `ITL_PENDING_ANSWER=empty`"},
    }


def _errors(operation: Operation) -> Responses:
    """Return the documented errors, each also as text for a console."""
    text = {"text/plain": {"schema": {"type": "string", "maxLength": CONSOLE_BYTES}}}
    # Copies: other routes share what `answers` returns.
    return {
        status: {**answer, "content": {**answer["content"], **text}}
        for status, answer in answers(*operation.errors).items()
    }


async def fetch(
    config_token: Annotated[str, Path()],
    request: Request,
    res: Res,
    origin: From,
    node_nonce: Annotated[NodeNonce | None, Header(alias=NODE_NONCE_HEADER)] = None,
) -> Response:
    """Fetch the configuration once, sealed to the TPM.

    The same answer may be fetched again for a few minutes; then `token-consumed`.
    """
    accept = request.headers.get("accept")
    wanted: handlers.Wanted = "sealed" if accepts(accept, SEALED) else "plain"
    found = await handlers.fetch(config_token, wanted, node_nonce, res=res, origin=origin)
    if isinstance(found, Pending):
        return pending_answer(found, accept, res)
    headers = {CONFIG_SIGNATURE_HEADER: found.signature} if found.signature is not None else {}
    return Response(found.body, media_type=found.media_type, headers=headers)


async def pending(
    request: Request,
    res: Res,
    origin: From,
    mac: Hint = None,  # noqa: ARG001 -- what Talos can put into a URL; the answer is the same for all of them
    uuid: Hint = None,  # noqa: ARG001 -- likewise
    serial: Hint = None,  # noqa: ARG001 -- likewise
) -> Response:
    """The answer for whoever cannot prove anything.

    MAC, UUID and serial release nothing, and do not even tell whether we know the machine.
    """
    found = await handlers.pending(bearer(request.headers.get("authorization")), res=res, origin=origin)
    return pending_answer(found, request.headers.get("accept"), res)


def pending_answer(pending: Pending, accept: str | None, res: Resources) -> Response:
    """Return the non-secret answer that `ITL_PENDING_ANSWER` chooses."""
    if res.settings.pending_answer == "empty":
        return Response(status_code=204)
    if res.settings.pending_answer == "retry" and not pending.at_console:
        if console.asks_for_json(accept):
            raise Unavailable(pending.words)
        return console.text(pending.words, 503, {"Retry-After": str(RETRY_SECONDS)})
    return Response(partial_documents(res.settings.service_url), media_type="text/plain")


def partial_documents(service_url: str) -> str:
    """Return documents that start the agent; never a v1alpha1 one, which would have to be complete.

    `ExtensionServiceConfig` is known to every Talos version we support (DELIVERY-AND-OPERATORS §1.3).
    """
    return (
        "apiVersion: v1alpha1\n"
        "kind: ExtensionServiceConfig\n"
        f"name: {AGENT}\n"
        "environment:\n"
        f"  - {json.dumps(f'ITL_REG_URL={service_url}')}\n"  # which is YAML too
    )


def bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header; None where there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def accepts(header: str | None, media_type: str) -> bool:
    """Return True if *header* names exactly *media_type*, not with q=0; wildcards do not count."""
    for part in (header or "").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name == media_type:
            return not any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for p in parameters)
    return False


route(
    router, PublicAPI.fetch_config, "machine", fetch, instead=_errors(PublicAPI.fetch_config) | _delivered()
)
route(
    router,
    PublicAPI.pending_config,
    "machine",
    pending,
    instead=_errors(PublicAPI.pending_config) | _pending(),
)
route(operators, OperatorAPI.offline_bundle, "act", offline_bundle.build)
