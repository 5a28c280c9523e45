"""A route for the hot path: declared like any other, served without the framework's per-request machinery.

Matching every route, solving dependencies, validating an answer we built ourselves and four exit stacks cost
more than the signature check of an attestation. The framework still documents the route and answers it where
the border's lane does not lead there (another method, another spelling of the path).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from attestation_service import limits
from attestation_service.bodies import parse_json
from attestation_service.context import Origin, Resources, origin_of, resources_of

LeanEndpoint = Callable[[Any, Resources, Origin], Awaitable[Response]]


class LeanRoute(APIRoute):
    """A POST with a JSON body whose endpoint takes exactly `(request, res, origin)`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        hints = get_type_hints(endpoint)
        names = list(hints)
        assert names[1:] == ["res", "origin", "return"], f"{path} is not lean: {names}"
        self._model: type[BaseModel] = hints[names[0]]
        self._lean: LeanEndpoint = endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what it raises, the application's handlers answer."""
        if scope["method"] != "POST":
            await super().handle(scope, receive, send)
            return
        res, origin = resources_of(scope), origin_of(scope)
        body = await _body(receive)
        try:
            request = parse_json(self._model, body)
        except RequestValidationError as e:
            raise await limits.counted_refusal(e, res, origin) from None
        response = await self._lean(request, res, origin)
        await response(scope, receive, send)


RawEndpoint = Callable[[Request], Awaitable[Response]]


class RawRoute(APIRoute):
    """A route whose endpoint takes exactly `(request)`, and reads from it whatever it needs."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        assert list(get_type_hints(endpoint)) == ["request", "return"], f"{path} is not raw"
        self._raw: RawEndpoint = endpoint

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what it raises, the application's handlers answer."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self._raw(Request(scope, receive))
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


async def _body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
