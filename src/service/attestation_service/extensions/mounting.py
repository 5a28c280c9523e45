"""Routes of extensions, built as ours are: right, bounds, idempotency, problems and documentation come with it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import wraps
from typing import Annotated, Any, Final, get_args

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from attestation.api import Problem
from attestation.api.operation import Operation
from attestation.api.operations import NodeAPI
from attestation.errors import AttestationError, MachineNotAdmitted, Unavailable
from attestation.extension import (
    Access,
    AttestationExtension,
    AttestedMachine,
    Bearer,
    Caller,
    MachineRequest,
    Reply,
    Route,
    Router,
    Voter,
)
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.context.request import From
from attestation_service.extensions import asking
from attestation_service.extensions.enabled import Enabled, ExtensionInvalid, prefixes_of, strange
from attestation_service.extensions.listing import listing
from attestation_service.resources import Res
from attestation_service.routers import ONLY_NAMED, ROUTERS
from attestation_service.routing.openapi import (
    DOCUMENT_PATH,
    demand_access,
    machine_router,
    operator_router,
    route,
)

PREFIX: Final = "/api/v1"
PROOF: Final[tuple[type[AttestationError], ...]] = tuple(
    each for each in NodeAPI.attest.errors if not isinstance(each, int)
)
"""What a machine that sends a quote can be told, beside what the handler says."""
PATH: Final = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+")


def routers_of(
    extensions: Sequence[AttestationExtension], enabled: Enabled
) -> tuple[tuple[AttestationExtension, ...], tuple[APIRouter, ...]]:
    """Return the extensions whose routes can be served, their routers, and that of the list of them.

    Raises:
        ExtensionInvalid: Of one of ours a route is none, or stands where one of the service's does. Others are skipped.
    """
    usable: list[AttestationExtension] = []
    found = [listing(usable, enabled)]
    ours = _routes((*ROUTERS, *found))
    models = _models(ours) | {Problem, *ONLY_NAMED}
    for each in extensions:
        try:
            mounted = _mounted(each, ours, models, enabled)
        except ExtensionInvalid as e:
            enabled.skip(e)
            continue
        usable.append(each)
        found += mounted
        models |= _models(_routes(mounted))
    return tuple(usable), tuple(found)


def _mounted(
    extension: AttestationExtension, ours: Sequence[APIRoute], models: AbstractSet[type], enabled: Enabled
) -> list[APIRouter]:
    name = extension.name
    for prefix in prefixes_of(extension):
        if not PATH.fullmatch(prefix):
            raise ExtensionInvalid(name, f"takes the prefix {prefix!r}, which is no path")
        if any(_takes(prefix, path) for path in (DOCUMENT_PATH, *(each.path for each in ours))):
            raise ExtensionInvalid(name, f"has the name of routes of the service: {prefix}")
    with strange(name, "has routes that cannot be served"):
        router = extension.get_router()
        mounted = [_mount(extension, added, enabled) for added in (router or Router()).routes]
        _demand_own(_routes(mounted), models)
    return mounted


def _routes(routers: Iterable[APIRouter]) -> list[APIRoute]:
    return [each for router in routers for each in router.routes if isinstance(each, APIRoute)]


def _models(routes: Sequence[APIRoute]) -> AbstractSet[type]:
    # Here: `_compat` is private to FastAPI, and a service without extensions must not depend on it.
    from fastapi._compat import get_flat_models_from_fields
    from fastapi.openapi.utils import get_fields_from_routes

    return {*get_flat_models_from_fields(get_fields_from_routes(routes), known_models=set())}


def _demand_own(routes: Sequence[APIRoute], ours: AbstractSet[type]) -> None:
    """Refuse *routes* two of which are one to a client, and models that would rename one of *ours* in the document."""
    lines = [(route.methods, route.path_format) for route in routes]
    if twice := next((path for methods, path in lines if lines.count((methods, path)) > 1), None):
        raise ValueError(f"two are {twice}")
    ids = [route.operation_id for route in routes]
    if twice := next((each for each in ids if ids.count(each) > 1), None):
        raise ValueError(f"two are called {twice}: each has a function of its own")
    names = {each.__name__ for each in ours}
    if renamed := sorted(names & {each.__name__ for each in _models(routes) - ours}):
        raise ValueError(f"the service has another model {renamed[0]}")


def _takes(prefix: str, path: str) -> bool:
    """Return True where the *path* of ours stands below *prefix*, or both begin with the same word of ours."""
    return _first(prefix) == _first(path) or path.startswith(f"{prefix}/")


def _first(path: str) -> str:
    """Return the first word of *path* that is not the same for all of ours."""
    return path.removeprefix(f"{PREFIX}/").strip("/").split("/")[0]


def _path(extension: AttestationExtension, written: str) -> str:
    """Return the whole path: that of a declared prefix, or below the first."""
    prefixes = prefixes_of(extension)
    if any(written == each or written.startswith(f"{each}/") for each in prefixes):
        return written
    if written and not written.startswith("/"):
        raise ValueError(f"{written}: a path begins with /, below the prefix of the extension")
    return prefixes[0] + written


def _mount(extension: AttestationExtension, added: Route, enabled: Enabled) -> APIRouter:
    method, _, written = added.line.partition(" ")
    path = _path(extension, written)
    if added.access not in get_args(Access):
        raise ValueError(f"{added.line}: the right is one of {', '.join(get_args(Access))}")
    if added.access == "machine":
        if method not in ("GET", "POST"):
            raise ValueError(
                f"{added.line}: a machine asks by POST with a quote, or by GET with a certificate"
            )
    elif (method == "GET") == (added.access == "act"):
        raise ValueError(f"{added.line}: what changes something is an act and no GET, and the rest is one")
    tag = f"extension: {extension.name}"
    router = machine_router(tag) if added.access in ("public", "machine") else operator_router(tag)
    router.prefix = ""
    proof: tuple[type[AttestationError], ...] = ()
    if added.access == "machine":
        proof = (MachineNotAdmitted, *PROOF) if method == "POST" else asking.CERTIFIED
    operation = Operation(
        f"{extension.name}_{added.handler.__name__}",
        f"{method} {path}",
        *dict.fromkeys((*added.errors, *proof, Unavailable)),
    )
    serving = _Serving(extension.name, added, method, enabled)
    route(
        router,
        operation,
        added.access,
        serving.endpoint(),
        done=added.done,
        logs=added.access == "machine" and method == "POST",
    )
    demand_access(router)
    return router


class _Serving:
    """Lets a handler of an extension be served: who asks comes in, and what it answers goes out, as ours have it."""

    def __init__(self, name: str, added: Route, method: str, enabled: Enabled) -> None:
        self._name, self._added, self._method, self._enabled = name, added, method, enabled
        self._signature = inspect.signature(added.handler, eval_str=True)
        of = {word: each.annotation for word, each in self._signature.parameters.items()}
        self._voter = next((word for word, kind in of.items() if kind is Voter), None)
        self._machine = next((word for word, kind in of.items() if kind is AttestedMachine), None)
        self._proof = next(
            (
                word
                for word, kind in of.items()
                if isinstance(kind, type) and issubclass(kind, MachineRequest)
            ),
            None,
        )
        self._demand_one_proof()

    def _demand_one_proof(self) -> None:
        """Refuse a route of machines that does not look at who asks, and others that would."""
        asked, by_post = self._added.access == "machine", self._method == "POST"
        if (self._machine is not None) != asked:
            raise ValueError(
                f"{self._added.line}: a route of machines takes an AttestedMachine, and no other does"
            )
        if (self._proof is not None) != (asked and by_post):
            raise ValueError(
                f"{self._added.line}: a POST of machines takes a MachineRequest, and nothing else does"
            )

    def endpoint(self) -> Callable[..., Awaitable[BaseModel | Response | None]]:
        """Return what the service serves."""
        handler = self._added.handler

        @wraps(handler)
        async def answering(*, its_res: Res, its_origin: From, its_request: Request, **given: Any) -> Any:
            if self._name in self._enabled.skipped:
                raise Unavailable(f"the extension {self._name} could not begin")
            if self._voter is not None:
                given[self._voter] = asking.Voting(given[self._voter], self._name, its_res)
            if self._machine is not None:
                what = f"{self._method} {self._name} {handler.__name__}"
                given[self._machine] = (
                    await asking.by_quote(given[self._proof], self._name, what, its_res, its_origin)
                    if self._proof is not None
                    else await asking.by_certificate(its_request, self._name, what, its_res, its_origin)
                )
            found = await handler(**given)
            if isinstance(found, Reply):
                return Response(found.body, media_type=found.media_type, headers=dict(found.headers))
            return found

        shown = [
            each.replace(annotation=_OF.get(each.annotation, each.annotation))
            for each in self._signature.parameters.values()
            if each.annotation is not AttestedMachine
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        shown = [each.replace(kind=keyword) for each in shown]
        shown += [
            inspect.Parameter(word, keyword, annotation=kind)
            for word, kind in (("its_res", Res), ("its_origin", From), ("its_request", Request))
        ]
        answer = self._signature.return_annotation
        vars(answering)["__signature__"] = self._signature.replace(
            parameters=shown, return_annotation=Response if answer is Reply else answer
        )
        return answering


async def _bearer(request: Request) -> Bearer:
    """Return what the one `Authorization` carries, unjudged."""
    presented = request.headers.getlist("authorization")
    scheme, _, token = presented[0].partition(" ") if len(presented) == 1 else ("", "", "")
    return Bearer(token=token.strip() or None if scheme.lower() == "bearer" else None)


_OF: Final[dict[Any, Any]] = {
    Caller: OperatorDep,
    Voter: VoterDep,
    Bearer: Annotated[Bearer, Depends(_bearer)],
}
