"""Kinds of routes: what reads a JSON body within bounds, and the hot path without the framework's machinery.

Matching every route, solving dependencies, validating an answer we built ourselves and four exit stacks cost
more than the signature check of an attestation. The framework still documents the route and answers it where
the border's lane does not lead there (another method, another spelling of the path).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, get_type_hints

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from attestation.errors import BodyTooComplex
from attestation_service.border import limits
from attestation_service.border.bodies import (
    NOTHING,
    OF_MACHINES,
    OF_OPERATORS,
    WITH_LOGS,
    Allowed,
    media_type,
)
from attestation_service.context.identity import Right
from attestation_service.context.request import ACCESS_KEY, LOGS_KEY, origin_of
from attestation_service.operators import acts
from attestation_service.resources import Resources, resources_of

JSON: Final = frozenset({"application/json"})
OF_ACCESS: Final[Mapping[str, Allowed]] = {
    "public": NOTHING, "machine": OF_MACHINES, "read": OF_OPERATORS, "act": OF_OPERATORS, "audit": OF_OPERATORS,
    "query": OF_OPERATORS, "attestation-runs": OF_OPERATORS, "attestation-hsm": OF_OPERATORS,
}  # fmt: skip
"""What a route may carry, by who may ask."""


class JSONRoute(APIRoute):
    """A route of the framework whose JSON body is bounded before it is parsed, and parsed beside the loop if long."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what serves one request."""
        handle = super().get_route_handler()
        if is_for_machines(self):
            handle = _with_keys(handle)
        if is_act(self):
            handle = acts.serving(self, handle)
        if self.body_field is None:
            return handle
        bounds = allowed_by(self).bounds

        async def bounded(request: Request) -> Response:
            read = _ReadRequest(request.scope, request.receive)
            if media_type(request.headers.get("content-type")) in JSON and (body := await read.body()):
                res = resources_of(request.scope)
                try:
                    read.says = await res.parser.load(body, bounds)
                except BodyTooComplex as e:
                    # It reaches no handler, so nobody else counts it; what is no JSON, the application's handler does.
                    raise await limits.counted_refusal(e, res, origin_of(request.scope)) from None
            return await handle(read)

        return bounded


class _ReadRequest(Request):
    """A request whose JSON body was parsed already."""

    says: Any = None

    async def json(self) -> Any:
        return self.says


def is_for_machines(route: APIRoute) -> bool:
    """Return True where machines ask *route*, not operators or the public."""
    return (route.openapi_extra or {}).get(ACCESS_KEY) == "machine"


def is_act(route: APIRoute) -> bool:
    """Return True where operators ask *route* for an act."""
    return (route.openapi_extra or {}).get(ACCESS_KEY) == Right.ACT


def demand_keys(res: Resources) -> None:
    """Refuse a machine before anything is done for it, where nothing that it would believe could be said to it.

    Raises:
        SignerUnavailable: One of the service's keys is away since the start.
    """
    res.service_keys.demand()


def _with_keys(
    handle: Callable[[Request], Coroutine[Any, Any, Response]],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def handle_with_keys(request: Request) -> Response:
        demand_keys(resources_of(request.scope))
        return await handle(request)

    return handle_with_keys


class LeanRoute(JSONRoute):
    """A POST with a JSON body whose endpoint takes exactly `(request, res, origin)`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        hints = get_type_hints(endpoint)
        assert list(hints) == ["request", "res", "origin", "return"], f"{path} is not lean: {[*hints]}"
        self._model: type[BaseModel] = hints["request"]
        self._lean: Callable[..., Awaitable[Response]] = endpoint
        self._bounds = allowed_by(self).bounds

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what it raises, the application's handlers answer."""
        if scope["method"] != "POST":
            await super().handle(scope, receive, send)
            return
        res, origin = resources_of(scope), origin_of(scope)
        demand_keys(res)
        body = await _body(receive)
        try:
            request = await res.parser.model(self._model, body, self._bounds)
        except (RequestValidationError, BodyTooComplex) as e:
            raise await limits.counted_refusal(e, res, origin) from None
        response = await self._lean(request=request, res=res, origin=origin)
        await response(scope, receive, send)


class RawRoute(APIRoute):
    """A route whose endpoint takes exactly `(request)`, and reads from it whatever it needs."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert list(get_type_hints(endpoint)) == ["request", "return"], f"{path} is not raw"
        self._raw: Callable[..., Awaitable[Response]] = endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what it raises, the application's handlers answer."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self._raw(request=Request(scope, receive))
        await response(scope, receive, send)


def lanes(*routers: APIRouter) -> dict[tuple[str, str], ASGIApp]:
    """Return method and path -> application of the lean and raw routes of *routers*, for the border to serve.

    Not of those whose path has a part that varies: these the framework finds.
    """
    found = [
        route for router in routers for route in router.routes if isinstance(route, LeanRoute | RawRoute)
    ]
    return {
        (m, route.path): route.handle for route in found for m in route.methods or () if "{" not in route.path
    }


def allowed_by(route: APIRoute) -> Allowed:
    """Return what *route* may carry; it follows from who may ask, and from whether it says that it carries logs."""
    extra = route.openapi_extra or {}
    return WITH_LOGS if extra.get(LOGS_KEY) else OF_ACCESS.get(extra.get(ACCESS_KEY, ""), NOTHING)


class AllowedBodies:
    """What the routes of an application may carry, for the border to ask before anything is read."""

    def __init__(self, *routers: APIRouter) -> None:
        self._exact: dict[tuple[str, str], Allowed] = {}
        self._patterns: list[tuple[str, re.Pattern[str], Allowed]] = []
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        for route in routes:
            for method in (route.methods or set()) - {"GET", "HEAD"}:
                self._exact[method, route.path] = allowed_by(route)
                if "{" in route.path:
                    self._patterns.append((method, route.path_regex, allowed_by(route)))

    def of(self, method: str, path: str) -> Allowed:
        """Return what a request may carry; next to nothing where no route is."""
        found = self._exact.get((method, path))
        if found is not None:
            return found
        matching = (each for verb, pattern, each in self._patterns if verb == method and pattern.match(path))
        return next(matching, NOTHING)


async def _body(receive: Receive) -> bytes:
    """Return the body, which the border has read."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    return body
