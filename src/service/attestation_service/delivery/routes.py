"""HTTP of delivery: content negotiation, the pending answer, errors that fit on a console.

Talos' own fetch sends no Accept header and prints the first 32 bytes of what it does not understand
(DELIVERY-AND-OPERATORS §1.2); such a client gets its errors as short text.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Header, Path, Query, Request, Response

from attestation.api import ConfigEnvelope
from attestation.api.base import NodeNonce
from attestation.api.operation import Operation
from attestation.api.operations import OperatorAPI, PublicAPI
from attestation.errors import (
    AttestationError,
    NotAcceptable,
    Unavailable,
)
from attestation.keys import CONFIG_SIGNATURE_HEADER, NODE_NONCE_HEADER
from attestation_service.border import problems
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

CONSOLE_BYTES: Final = 32
RETRY_SECONDS: Final = 60
AGENT: Final = "itl-tpm-register"

Hint = Annotated[str | None, Query(max_length=128, description="Selects a pending answer, nothing more")]


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
    config_token: Annotated[str, Path(max_length=256)],
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
    try:
        found = await handlers.fetch(config_token, wanted, node_nonce, res=res, origin=origin)
    except AttestationError as e:
        if asks_for_json(accept):
            raise
        return on_console(e, origin.request_id)
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
    accept = request.headers.get("accept")
    try:
        found = await handlers.pending(res=res, origin=origin)
    except AttestationError as e:
        if asks_for_json(accept):
            raise
        return on_console(e, origin.request_id)
    return pending_answer(found, accept, res)


def pending_answer(pending: Pending, accept: str | None, res: Resources) -> Response:
    """Return the non-secret answer that `ITL_PENDING_ANSWER` chooses."""
    if res.settings.pending_answer == "empty":
        return Response(status_code=204)
    if res.settings.pending_answer == "retry":
        if asks_for_json(accept):
            raise Unavailable(pending.words)
        return _text(pending.words, 503, {"Retry-After": str(RETRY_SECONDS)})
    return _text(partial_documents(res.settings.service_url), 200, {})


def partial_documents(service_url: str) -> str:
    """Return documents that start the agent; never a v1alpha1 one, which would have to be complete.

    `ExtensionServiceConfig` is known to every Talos version we support (DELIVERY-AND-OPERATORS §1.3).
    """
    return (
        "apiVersion: v1alpha1\n"
        "kind: ExtensionServiceConfig\n"
        f"name: {AGENT}\n"
        "environment:\n"
        f'  - "ITL_REG_URL={service_url}"\n'
    )


def on_console(error: AttestationError, instance: str) -> Response:
    """Return *error* as at most 32 bytes of text: what Talos prints."""
    problem, headers = problems.from_error(error, instance)
    words = "encrypted delivery required" if isinstance(error, NotAcceptable) else problem.title.lower()
    if isinstance(error, NotAcceptable):
        headers["X-Accept"] = SEALED
    return _text(words[:CONSOLE_BYTES], problem.status, headers)


def accepts(header: str | None, media_type: str) -> bool:
    """Return True if *header* names exactly *media_type*, not with q=0; wildcards do not count."""
    for part in (header or "").split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name == media_type:
            return not any(p.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for p in parameters)
    return False


def asks_for_json(header: str | None) -> bool:
    """Return True if *header* names JSON, or any media type that is JSON inside."""
    names = (part.partition(";")[0].strip().lower() for part in (header or "").split(","))
    return any(name == "application/json" or name.endswith("+json") for name in names)


def _text(words: str, status: int, headers: dict[str, str]) -> Response:
    return Response(words, status_code=status, headers=headers, media_type="text/plain")


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
