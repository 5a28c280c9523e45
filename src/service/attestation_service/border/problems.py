"""Errors as RFC 9457 problems: the only place that knows which HTTP status an error of ours has.

The codes are the stable API (PROTOCOL §0). What this module does not know becomes a 500 without detail.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from attestation.api import FieldError, Problem
from attestation.api.said import said
from attestation.errors import (
    AgentTooOld,
    AttestationError,
    Conflict,
    EvidenceRejected,
    Expired,
    FactoryAnswerInvalid,
    Forbidden,
    KeyUnusable,
    MalformedEvidence,
    NotAcceptable,
    NotAuthentic,
    QueryInvalid,
    RateLimited,
    RequestInvalid,
    Unauthenticated,
    Unavailable,
    Unknown,
)
from attestation_service.border import console, limits
from attestation_service.context.request import origin_of, request_id
from attestation_service.resources import resources_of

log = structlog.get_logger("attestation_service")

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:itl:problem:"
RETRY_UNAVAILABLE_SECONDS: Final = 5
NODE_PROTOCOL: Final = "itl-node/2"
MAX_FIELD_ERRORS: Final = 10

STATUS: Final[Mapping[type[AttestationError], int]] = {
    MalformedEvidence: 400,
    NotAuthentic: 403,
    Unknown: 404,
    Conflict: 409,
    Expired: 410,
    QueryInvalid: 400,
    RequestInvalid: 422,
    RateLimited: 429,
    NotAcceptable: 406,
    AgentTooOld: 426,
    Unauthenticated: 401,
    Forbidden: 403,
    FactoryAnswerInvalid: 502,
    Unavailable: 503,
    KeyUnusable: 503,
}
"""HTTP status by branch of the error tree; a leaf inherits the status of its branch."""

FRAMEWORK_CODES: Final[Mapping[int, str]] = {
    400: "malformed-request",
    404: "route-unknown",
    405: "method-not-allowed",
    408: "request-too-slow",
    413: "body-too-large",
    415: "unsupported-media-type",
    422: "schema-violation",
    431: "head-too-large",
    500: "internal-error",
}
"""Codes of what the framework finds wrong before a handler runs."""

_NOT_IN_QUOTES: Final = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")
"""What an `error_description` may not contain (RFC 6750 §3)."""

INTERNAL: Final = "the service failed; the request id leads to the reason in its log"


def status_of(error: type[AttestationError]) -> int | None:
    """Return the HTTP status of a class of errors, or None where it is not meant for a client."""
    return next((STATUS[kind] for kind in error.__mro__ if kind in STATUS), None)


def from_error(error: AttestationError, instance: str) -> tuple[Problem, dict[str, str]]:
    """Return the problem for *error*, with the headers that belong to its status."""
    status = status_of(type(error))
    if status is None:
        return internal(instance), {}
    code, detail = error.code, str(error)
    if isinstance(error, EvidenceRejected):
        # Which check failed is for the log and the audit: an attacker shall not learn it (PROTOCOL §4).
        code, detail = EvidenceRejected.code, "the evidence was refused"
    headers: dict[str, str] = {}
    if isinstance(error, RateLimited):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="itl-attestation"'
    elif isinstance(error, AgentTooOld):
        # RFC 9110 §15.5.22: an answer with this status says what to upgrade to.
        headers |= {"Upgrade": NODE_PROTOCOL, "Connection": "Upgrade"}
    elif isinstance(error, Unavailable | KeyUnusable):
        headers["Retry-After"] = str(RETRY_UNAVAILABLE_SECONDS)
    return problem(code, status, detail, instance), headers


def problem(
    code: str, status: int, detail: str, instance: str, errors: list[FieldError] | None = None
) -> Problem:
    """Build a problem; its title is the code in words."""
    return Problem(
        type=TYPE_PREFIX + code,
        title=code.replace("-", " ").capitalize(),
        status=status,
        detail=detail,
        instance=instance,
        errors=errors,
    )


def internal(instance: str) -> Problem:
    """Build the problem that says nothing but that we failed."""
    return problem(FRAMEWORK_CODES[500], 500, INTERNAL, instance)


def response(body: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """Return *body* as `application/problem+json`."""
    return Response(
        body.model_dump_json(exclude_none=True),
        status_code=body.status,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )


def told(
    scope: MutableMapping[str, Any], body: Problem, headers: Mapping[str, str] | None = None
) -> Response:
    """Return *body* as whoever sent the request of *scope* can read it: JSON, or words for a console."""
    if console.is_shown(scope):
        return console.error(body, headers or {})
    return response(body, headers)


def log_failure(error: BaseException) -> None:
    """Log an error nobody expected, with where it arose.

    The message of a foreign exception may quote what it was given, so only our own are logged in words.
    """
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    log.error(
        "request.failed",
        kind=f"{type(error).__module__}.{type(error).__qualname__}",
        message=str(error) if isinstance(error, AttestationError) else None,
        frames=[f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames],
    )


def answer(error: Exception, scope: MutableMapping[str, Any]) -> Response | None:
    """Return the answer to *error* while serving *scope*; None where nobody expected it."""
    if isinstance(error, AttestationError):
        body, headers = from_error(error, request_id(scope))
        if isinstance(error, Unauthenticated) and _presented(scope):
            # RFC 6750 §3: only where a token came with the request is there an error to name.
            words = _NOT_IN_QUOTES.sub("'", body.detail)
            headers["WWW-Authenticate"] += f', error="invalid_token", error_description="{words}"'
        if body.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log_failure(error)
        elif body.status > HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("request.unavailable", code=error.code)
        else:
            log.info("request.refused", code=error.code, detail=str(error))
        return told(scope, body, headers)
    if isinstance(error, HTTPException):
        code = FRAMEWORK_CODES.get(error.status_code, "http-error")
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allowed_methods(scope) or headers.get("Allow", "")
        return told(scope, problem(code, error.status_code, str(error.detail), request_id(scope)), headers)
    if isinstance(error, RequestValidationError):
        words = "the request does not have the form that this route demands"
        errors = _field_errors(error.errors())
        return told(scope, problem(FRAMEWORK_CODES[422], 422, words, request_id(scope), errors))
    return None


def _presented(scope: MutableMapping[str, Any]) -> bool:
    """Return True if the request carried an Authorization header."""
    return any(name == b"authorization" for name, _ in scope["headers"])


def _allowed_methods(scope: MutableMapping[str, Any]) -> str:
    """Return every documented method of the path asked for; the framework names those of one route only."""
    found: set[str] = set()
    for template, operations in scope["app"].openapi()["paths"].items():
        if compile_path(template)[0].match(scope["path"]):
            found |= {method.upper() for method in operations}
    return ", ".join(sorted(found))


async def _on_expected(request: Request, error: Exception) -> Response:
    found = answer(error, request.scope)
    assert found is not None
    return found


async def _on_invalid(request: Request, error: Exception) -> Response:
    # It reached no handler, so nobody counted it yet.
    scope = request.scope
    refused = await limits.counted_refusal(error, resources_of(scope), origin_of(scope))
    found = answer(refused, scope)
    assert found is not None
    return found


def _field_errors(errors: Iterable[Any]) -> list[FieldError]:
    """Name each member and what is wrong with it; what was sent is never repeated."""
    found = [
        FieldError(field=".".join(str(part) for part in e["loc"])[:256] or "body", message=said(e)[:256])
        for e in errors
    ]
    return found[:MAX_FIELD_ERRORS]


def install(app: FastAPI) -> None:
    """Answer every error of *app* as a problem."""
    for expected in (AttestationError, HTTPException):
        app.add_exception_handler(expected, _on_expected)
    app.add_exception_handler(RequestValidationError, _on_invalid)
