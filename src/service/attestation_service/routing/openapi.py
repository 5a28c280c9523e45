"""How routes say what they answer: problems by error class, media types, who may ask.

The OpenAPI document is complete because an operation names the *errors* it can end in; statuses, codes and the
problem schema follow from `problems`.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import cache, wraps
from http import HTTPStatus
from types import NoneType
from typing import Any, Final, Literal, get_args

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from attestation.api import PendingApproval, Problem
from attestation.api.operation import Error, Operation
from attestation.errors import (
    ActInProgress,
    AnswerNotKept,
    ApprovalUnknown,
    AuthenticationTooOld,
    BreakGlassCannotVote,
    ClientCertificateUntrusted,
    ClusterNotConfigured,
    CrossSiteRequest,
    DeadlineExceeded,
    Forbidden,
    IdempotencyKeyReused,
    IdentityProviderUnavailable,
    InsecureTransport,
    OperatorAccessNotConfigured,
    ProposalDiffers,
    ProposalRival,
    RateLimited,
    RevocationUnknown,
    SignerUnavailable,
    StoreBusy,
    StoreUnavailable,
    Unauthenticated,
)
from attestation_service.auth import ControllerDuty, Right, VoterDep, controller, cross_site, operator, voter
from attestation_service.border import problems
from attestation_service.context.reach import REACH_KEY, Reach
from attestation_service.context.request import ACCESS_KEY, LOGS_KEY
from attestation_service.routing.lean import JSONRoute
from attestation_service.routing.replies import reply

Access = Literal[
    "public",
    "machine",
    "read",
    "act",
    "audit",
    "metrics",
    "query",
    "known",
    "attestation-approver",
    "attestation-signer",
    "attestation-controller",
    "attestation-runs",
    "attestation-run-agent",
    "attestation-hsm",
]
"""Who may ask: everybody; everybody, but the machine must prove itself inside; operators with that right; controllers
of a Kubernetes cluster with that duty."""

ACCESS: Final[dict[Access, str]] = {
    "public": "everybody",
    "machine": "everybody; the machine proves itself in the request",
    "read": "viewers and operators",
    "act": "operators",
    "audit": "auditors",
    "metrics": "those who count; viewers and operators",
    "query": "operators, viewers and auditors; each the tables that they may see",
    "known": "operators, viewers, auditors, and those who count",
    "attestation-approver": "the approver of a Kubernetes cluster",
    "attestation-signer": "the signer of a Kubernetes cluster",
    "attestation-controller": "the controller of a Kubernetes cluster's Nodes",
    "attestation-runs": "the controller of a Kubernetes cluster's attestation runs",
    "attestation-run-agent": "the agent of attestation runs on a node, about its own node",
    "attestation-hsm": "the controller of a Kubernetes cluster's CA keys in hardware",
}
"""The same in words, for people."""

DOCUMENT_PATH: Final = "/openapi.json"
EXAMPLE_INSTANCE: Final = "3f0c5b7a9d1e4c62b8f7a6d5c4b3a291"
_REF = "#/components/schemas/{model}"

Responses = dict[int | str, dict[str, Any]]


def machine_router(tag: str, route_class: type[APIRoute] = JSONRoute) -> APIRouter:
    """Return a router whose routes need no operator; what proves the machine stands in the request."""
    return APIRouter(prefix="/api/v1", tags=[tag], route_class=route_class)


def operator_router(tag: str) -> APIRouter:
    """Return a router every route of which passes the operator dependency."""
    return APIRouter(prefix="/api/v1", tags=[tag], dependencies=[Depends(operator)], route_class=JSONRoute)


def controller_router(tag: str) -> APIRouter:
    """Return a router every route of which passes the dependency for controllers."""
    return APIRouter(prefix="/api/v1", tags=[tag], dependencies=[Depends(controller)], route_class=JSONRoute)


def route(
    router: APIRouter,
    operation: Operation,
    kind: Access,
    handler: Callable[..., Awaitable[BaseModel | Response | None]],
    *,
    done: int = 200,
    omit: Literal["none", "unset"] | None = None,
    logs: bool = False,
    reach: Reach = "fleet",
    also: Responses | None = None,
    instead: Responses | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """Let *handler* serve *operation*; what is not said there and here, it says itself.

    Its signature: path, query and body; `VoterDep`, that several may have to agree. Its docstring up to `Raises:`:
    summary and description. Its answer: a model; a vote, with 202; None, with 204; a response as it is.

    Args:
        router: That of the feature.
        operation: What it is on the wire.
        kind: Who may ask.
        handler: The use case.
        done: The status of a model; of nothing to say, where that is not 204.
        omit: Which members of a model are left out: those that are null, or that the handler did not name.
        logs: The body may carry a boot log or a measurement list, and be long.
        reach: For whom whose right holds in some clusters only: nobody, or the handler keeps to those clusters.
        also: Answers to document beside those of *operation* and *handler*.
        instead: Answers to document in their place.
        extra: More for the OpenAPI document: a body that the handler reads itself.

    Raises:
        RuntimeError: Its signature says only half of that several may have to agree.
    """
    # With annotations that are values: the framework would make them of the text twice.
    signature = inspect.signature(handler, eval_str=True)
    takes = [each.annotation for each in signature.parameters.values()]
    says = get_args(signature.return_annotation) or (signature.return_annotation,)
    gated = VoterDep in takes
    if gated != (PendingApproval in says):
        # It would do something else than what the caller named, without a word.
        raise RuntimeError(
            f"{operation.path}: whether several must agree, and to which proposal, is not one answer"
        )
    shown = [each for each in says if each not in (None, NoneType, PendingApproval)]
    model = next((each for each in shown if issubclass(each, BaseModel)), None)
    # What is no JSONRoute reads the request, and refuses it, in a language of its own.
    has_body = issubclass(router.route_class, JSONRoute) and (
        "requestBody" in (extra or {})
        or any(
            isinstance(each, type) and issubclass(each, BaseModel)
            for hint in takes
            for each in get_args(hint) or (hint,)  # a body that may be left out is `Model | None`
        )
    )
    summary, _, more = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")

    nothing = 204 if done == 200 else done

    @wraps(handler)
    async def endpoint(**given: Any) -> Response:
        found = await handler(**given)
        if isinstance(found, Response):
            return found
        if found is None:
            return Response(status_code=nothing)
        return reply(
            found,
            exclude_none=omit == "none",
            exclude_unset=omit == "unset",
            status_code=202 if isinstance(found, PendingApproval) else done,
        )

    vars(endpoint)["__signature__"] = signature
    router.add_api_route(
        operation.path,
        endpoint,
        methods=[operation.method],
        operation_id=operation.operation_id,
        summary=summary.removesuffix("."),
        description=re.split(r"(?m)^Raises:$", more)[0].strip(),
        status_code=done if shown else nothing,
        response_model=model,
        response_class=Response if model is None else JSONResponse,
        responses={
            **(also or {}),
            **answers(
                *operation.errors,
                body=has_body,
                gated=gated,
                kind=kind,
                reads=operation.method == cross_site.READING,
            ),
            **(instead or {}),
        },
        openapi_extra={**access(kind, logs=logs, reach=reach), **(extra or {})},
    )


def access(kind: Access, *, logs: bool = False, reach: Reach = "fleet") -> dict[str, Any]:
    """Return the `openapi_extra` that declares who may ask; the operator dependency enforces it.

    Args:
        kind: Who.
        logs: The body may carry a boot log or a measurement list, and be long.
        reach: As `route` has it.
    """
    return {
        ACCESS_KEY: kind,
        **({LOGS_KEY: True} if logs else {}),
        **({REACH_KEY: reach} if reach != "fleet" else {}),
    }


def demand_access(app: FastAPI | APIRouter) -> None:
    """Refuse an application or router with a route that does not declare who may ask, or does not enforce it.

    Raises:
        RuntimeError: Names the route. Default deny: nobody finds out in production.
    """
    for route in iter_route_contexts(app.routes):
        if route.path == DOCUMENT_PATH:
            continue
        kind = (getattr(route, "openapi_extra", None) or {}).get(ACCESS_KEY)
        if kind not in get_args(Access):
            raise RuntimeError(f"{route.path}: the route does not declare who may ask")
        depends = getattr(getattr(route, "dependant", None), "dependencies", ())
        asked = any(dependency.call is operator for dependency in depends)
        if getattr(route, "body_field", None) is not None and not isinstance(route.original_route, JSONRoute):
            raise RuntimeError(f"{route.path}: its body is not bounded before it is parsed")
        if kind == Right.ACT and not isinstance(route.original_route, JSONRoute):
            raise RuntimeError(f"{route.path}: who asks again would have it done again")
        if kind == "machine" and not isinstance(route.original_route, JSONRoute):
            raise RuntimeError(f"{route.path}: it answers machines also without the service's keys")
        if asked != (kind in set(Right)):
            word = "are" if asked else "are not"
            raise RuntimeError(f"{route.path}: declared as {kind}, but operators {word} asked for")
        if any(dependency.call is controller for dependency in depends) != (kind in set(ControllerDuty)):
            raise RuntimeError(
                f"{route.path}: declared as {kind}, and controllers are asked for, or not, against it"
            )
        gated = 202 in (getattr(route, "responses", None) or {})
        if gated != any(dependency.call is voter for dependency in depends):
            # It would do something else than what the caller named, without a word.
            raise RuntimeError(
                f"{route.path}: whether several must agree, and to which proposal, is not one answer"
            )
        # A query is long, so it is posted; what somebody keeps for themselves is no act: twice is as once.
        if (
            asked
            and kind != Right.QUERY
            and (kind == Right.ACT) == (cross_site.READING in (route.methods or ()))
        ):
            # Whoever shows an operator a link or an image would act for them.
            raise RuntimeError(f"{route.path}: what changes something is no GET, and the rest is one")


def answers(
    *errors: Error, body: bool = False, gated: bool = False, kind: Access = "machine", reads: bool = False
) -> Responses:
    """Return the documented answers of a route beside its success.

    Args:
        errors: Error classes, or statuses of the framework.
        body: The route reads a body.
        gated: Dual control may answer 202 first.
        kind: Adds what every route of this access can answer.
        reads: It is a GET, which no form of another site could send as an act.
    """
    # The border refuses on every route whoever names a certificate that is not theirs, or comes by too weak a way.
    found: list[Error] = [
        *errors, 422, 500, StoreUnavailable, StoreBusy, ClientCertificateUntrusted, InsecureTransport,
    ]  # fmt: skip
    if gated:
        found += [BreakGlassCannotVote, AuthenticationTooOld, ApprovalUnknown, ProposalDiffers, ProposalRival]
    if body:
        found += [400, 413]
    if kind == "machine":
        found += [RateLimited, SignerUnavailable]
    elif kind in set(ControllerDuty):
        found += [Unauthenticated, Forbidden, RateLimited, ClusterNotConfigured, IdentityProviderUnavailable]
    elif kind != "public":
        found += [
            Unauthenticated,
            Forbidden,
            CrossSiteRequest,
            RateLimited,
        ]
        if kind == "act":
            found += [400, ActInProgress, AnswerNotKept, IdempotencyKeyReused, DeadlineExceeded]
        if not reads:
            found += [415]
        found += [OperatorAccessNotConfigured, IdentityProviderUnavailable, RevocationUnknown]
    by_status: dict[int, dict[str, str]] = defaultdict(dict)
    for error in found:
        if isinstance(error, int):
            by_status[error][problems.FRAMEWORK_CODES[error]] = HTTPStatus(error).phrase
        else:
            status = problems.status_of(error)
            assert status is not None
            by_status[status][error.code] = (error.__doc__ or error.code).splitlines()[0]
    vote: Responses = {202: {"model": PendingApproval, "description": "The vote counts; others must agree"}}
    documented: Responses = {
        status: _documented(status, tuple(codes.items())) for status, codes in sorted(by_status.items())
    }
    return {**(vote if gated else {}), **documented}


@cache
def _documented(status: int, explained: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Document one status; routes that share its codes share the object, which takes a megabyte less per worker."""
    codes = dict(explained)
    examples = {
        code: {
            "summary": text,
            "value": problems.problem(code, status, text, EXAMPLE_INSTANCE).model_dump(exclude_none=True),
        }
        for code, text in codes.items()
    }
    return {
        "description": ", ".join(f"`{code}`" for code in codes),
        "content": {
            problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}, "examples": examples}
        },
    }


def ok(model: type[BaseModel], description: str, *, media_type: str = "application/json") -> dict[str, Any]:
    """Return the documentation of a 200 whose body a handler writes itself."""
    return {
        "description": description,
        "content": {media_type: {"schema": {"$ref": _REF.format(model=model.__name__)}}},
    }


def as_it_is(operation: Operation, description: str, *, binary: bool = True) -> Responses:
    """Return the documentation of a 200 that is no JSON of ours."""
    schema = {"type": "string", "format": "binary"} if binary else {"type": "string"}
    return {200: {"description": description, "content": {operation.accept: {"schema": schema}}}}


def request_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the documentation of a JSON body that a route reads itself."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}},
        }
    }


def install(app: FastAPI, models: tuple[type[BaseModel], ...]) -> None:
    """Let *app* publish a document that also holds *models*, which routes only refer to by name."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            every: tuple[type[BaseModel], ...] = (Problem, *models)
            named: list[tuple[type[BaseModel], Literal["validation"]]] = [(m, "validation") for m in every]
            _, extra = models_json_schema(named, ref_template=_REF)
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for name, definition in extra["$defs"].items():
                components.setdefault(name, definition)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
