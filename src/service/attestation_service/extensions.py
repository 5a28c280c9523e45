"""Extensions: found by entry point, enabled by name, tried before anything is served (docs/adr/0079).

The service knows the contract (`attestation.extension`) and no extension.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, get_args

import structlog
from fastapi import APIRouter, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from attestation.api import (
    DeadLetterDetail,
    DeadLetterList,
    ExtensionDetail,
    ExtensionList,
    Problem,
    Retried,
)
from attestation.api.operation import Operation
from attestation.api.operations import ExtensionAPI
from attestation.api.said import said
from attestation.errors import ExtensionUnknown
from attestation.extension import (
    CONTRACT,
    GROUP,
    Access,
    AttestationExtension,
    Caller,
    Context,
    Event,
    Handler,
    NodeEvent,
    OperatorEvent,
    Reply,
    Route,
    Router,
)
from attestation.store import MAX_LIMIT, Branch, Tx, Waiting, migrate_branch
from attestation_service.auth import OperatorDep
from attestation_service.resources import Res, Resources
from attestation_service.routing.openapi import demand_access, machine_router, operator_router, route
from attestation_service.settings import Settings, SettingsInvalid

log = structlog.get_logger("attestation_service.extensions")

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
HOOK_SECONDS: Final = 10.0
NOTHING: Final = Waiting()
PREFIX: Final = "/api/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enabled:
    """The extensions that are enabled, in their order, what they serve, and what handles which event, by extension."""

    extensions: tuple[AttestationExtension, ...] = ()
    routers: tuple[APIRouter, ...] = ()
    handlers: Mapping[str, Mapping[Event, Handler]] = field(default_factory=dict)


NONE: Final = Enabled()


class ExtensionInvalid(SettingsInvalid):
    """An extension that is enabled cannot be used; the text names it and says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the extension {name} (ITL_EXTENSIONS) {why}")


def load(settings: Settings) -> Enabled:
    """Make the extensions that *settings* enable, and ask what they add; nothing of any other is imported.

    Raises:
        ExtensionInvalid: One is named twice, is not installed, fails, or does not keep the contract.
        SettingsInvalid: A setting of an extension that is not enabled.
    """
    names = settings.extensions
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ExtensionInvalid(twice, "is named twice")
    for name in names:
        # Settings and tables of the one could be those of the other.
        if other := next((each for each in names if name.startswith(f"{each}_")), None):
            raise ExtensionInvalid(name, f"cannot be enabled with {other}: its name begins as that one's")
    given = _settings_of(names, settings.extension_values)
    made = tuple(_load(name, given[name]) for name in names)
    return Enabled(extensions=made, routers=_routers(made), handlers=_subscriptions(made)) if made else NONE


def _load(name: str, given: Mapping[str, str]) -> AttestationExtension:
    if not NAME.fullmatch(name):
        raise ExtensionInvalid(name, "has a name that none can have: small letters, digits and _")
    from importlib.metadata import entry_points  # here: a service without extensions need not load it

    points = list(entry_points(group=GROUP, name=name))
    if not points:
        found = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        raise ExtensionInvalid(name, f"is not installed; installed: {found}")
    if len(points) > 1:
        raise ExtensionInvalid(name, f"is installed twice: {', '.join(each.value for each in points)}")
    try:
        kind = points[0].load()
    # A stranger's code may do anything while it is imported, also try to end the program.
    except (Exception, SystemExit) as e:
        raise ExtensionInvalid(name, f"cannot be imported: {_words(e)}") from e
    if not isinstance(kind, type) or not issubclass(kind, AttestationExtension):
        raise ExtensionInvalid(name, f"is no AttestationExtension: {points[0].value}")
    if (contract := getattr(kind, "contract", None)) != CONTRACT:
        raise ExtensionInvalid(name, f"was written for contract {contract}; this service has {CONTRACT}")
    try:
        made = kind(_chosen(name, kind.Settings, given))
        said_name, about = made.name, (made.version, made.description)
        _demand_tables(name, made)
    except ExtensionInvalid:
        raise
    except (Exception, SystemExit) as e:
        raise ExtensionInvalid(name, f"cannot be made: {_words(e)}") from e
    if said_name != name:
        raise ExtensionInvalid(name, f"calls itself {said_name!r}")
    if not all(about):
        raise ExtensionInvalid(name, "says nothing of its version or of what it does")
    return made


def _settings_of(names: Sequence[str], values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the values of each of *names*, by the name of the field.

    Raises:
        SettingsInvalid: There is one that belongs to none of them.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for variable, value in sorted(values.items()):
        rest = variable.removeprefix(Settings.EXTENSION_PREFIX).lower()
        name = next((each for each in names if rest.startswith(f"{each}_")), None)
        if name is None:
            raise SettingsInvalid(f"unknown setting {variable}; it belongs to no extension of ITL_EXTENSIONS")
        found[name][rest.removeprefix(f"{name}_")] = value
    return found


def _chosen(name: str, model: type[BaseModel], given: Mapping[str, str]) -> BaseModel:
    prefix = f"{Settings.EXTENSION_PREFIX}{name.upper()}_"
    if unknown := sorted(given.keys() - model.model_fields.keys()):
        raise ExtensionInvalid(name, f"has no setting {prefix}{unknown[0].upper()}")
    try:
        return model(**given)
    except ValidationError as e:
        # The variable, never its value: it may be a secret.
        faults = [
            f"{prefix}{str(each['loc'][0]).upper() if each['loc'] else ''}: {said(each)}"
            for each in e.errors()
        ]
        raise ExtensionInvalid(name, "; ".join(faults)) from None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------- routes


def _routers(extensions: Sequence[AttestationExtension]) -> tuple[APIRouter, ...]:
    """Return the routers of *extensions* and of the list of them.

    Raises:
        ExtensionInvalid: A route is none, or stands where one of ours does.
    """
    from attestation_service.routers import (  # here: a check without extensions needs none of them
        ONLY_NAMED,
        ROUTERS,
    )

    found = [_listing(extensions)]
    ours = [each for router in (*ROUTERS, *found) for each in router.routes if isinstance(each, APIRoute)]
    taken, models = {_first(each.path) for each in ours}, _models(ours) | {Problem, *ONLY_NAMED}
    for each in extensions:
        if each.name in taken:
            raise ExtensionInvalid(each.name, f"has the name of routes of the service: {PREFIX}/{each.name}")
        try:
            router = each.get_router()
            mounted = [_mounted(each.name, added) for added in (router or Router()).routes]
            _demand_own([r for each in mounted for r in each.routes if isinstance(r, APIRoute)], models)
        except (Exception, SystemExit) as e:
            raise ExtensionInvalid(each.name, f"has routes that cannot be served: {_words(e)}") from e
        found += mounted
    return tuple(found)


def _models(routes: Sequence[APIRoute]) -> AbstractSet[type]:
    # Here: the first is nobody's promise, and a service without extensions does not hang on it.
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


def _first(path: str) -> str:
    return path.removeprefix(f"{PREFIX}/").split("/")[0]


def _mounted(name: str, added: Route) -> APIRouter:
    method, _, path = added.line.partition(" ")
    if path and not path.startswith("/"):
        raise ValueError(f"{added.line}: a path begins with /, below the prefix of the extension")
    if added.access not in get_args(Access):
        raise ValueError(f"{added.line}: the right is one of {', '.join(get_args(Access))}")
    if (method == "GET") == (added.access == "act"):
        raise ValueError(f"{added.line}: what changes something is an act and no GET, and the rest is one")
    tag = f"extension: {name}"
    router = machine_router(tag) if added.access == "public" else operator_router(tag)
    operation = Operation(f"{name}_{added.handler.__name__}", f"{method} /{name}{path}", *added.errors)
    route(router, operation, added.access, _answering(added.handler))
    demand_access(router)
    return router


def _answering(
    handler: Callable[..., Awaitable[Any]],
) -> Callable[..., Awaitable[BaseModel | Response | None]]:
    """Let *handler* be served: who asks comes in, and what it answers goes out, as our own handlers have it."""

    @wraps(handler)
    async def answering(**given: Any) -> BaseModel | Response | None:
        found = await handler(**given)
        if isinstance(found, Reply):
            return Response(found.body, media_type=found.media_type)
        answered: BaseModel | Response | None = found
        return answered

    signature = inspect.signature(handler, eval_str=True)
    vars(answering)["__signature__"] = signature.replace(
        parameters=[
            each.replace(annotation=OperatorDep) if each.annotation is Caller else each
            for each in signature.parameters.values()
        ],
        return_annotation=Response if signature.return_annotation is Reply else signature.return_annotation,
    )
    return answering


def _listing(extensions: Sequence[AttestationExtension]) -> APIRouter:
    """Let operators see what is enabled and what it could not handle, and have it handled again."""

    async def list_extensions(*, res: Res) -> ExtensionList:
        """List the extensions that are enabled, and what waits for them."""
        waiting = await res.store.read(lambda tx: tx.handovers.waiting())
        found = [
            ExtensionDetail(
                name=each.name,
                version=each.version,
                description=each.description,
                pending=waiting.get(each.name, NOTHING).pending,
                dead_letters=waiting.get(each.name, NOTHING).dead,
            )
            for each in extensions
        ]
        return ExtensionList(extensions=found, total=len(found))

    def demand_enabled(name: str) -> None:
        if name not in (each.name for each in extensions):
            raise ExtensionUnknown(f"no extension {name} is enabled")

    async def dead_letters(name: str, *, res: Res) -> DeadLetterList:
        """List the newest events that the extension could not handle."""
        demand_enabled(name)
        found = await res.store.scan(lambda tx: tx.handovers.dead_letters(name, MAX_LIMIT))
        return DeadLetterList(
            items=[
                DeadLetterDetail(
                    event_id=each.event.id,
                    event=each.event.event,
                    machine_id=each.event.machine_id,
                    created_at=each.event.created_at,
                    attempts=each.event.attempts,
                    error=each.error,
                )
                for each in found
            ]
        )

    async def retry(name: str, *, res: Res, who: OperatorDep) -> Retried:
        """Have the extension handle its dead letters again."""
        demand_enabled(name)
        at = res.clock.now()

        def work(tx: Tx) -> Retried:
            again = tx.handovers.retry(name)
            tx.audit.append(who.event("extension_retry", detail=f"{name}: {again} events"), at)
            return Retried(events=again)

        return await res.store.write(work)

    router = operator_router("operator: extensions")
    route(router, ExtensionAPI.extensions, "read", list_extensions)
    route(router, ExtensionAPI.dead_letters, "read", dead_letters)
    route(router, ExtensionAPI.retry_dead_letters, "act", retry)
    return router


# ---------------------------------------------------------------- tables


def _demand_tables(name: str, made: AttestationExtension) -> None:
    """Refuse tables whose names could be somebody else's, and those that nothing makes."""
    prefix = f"extension_{name}_"
    for model in made.get_models():
        if not model.__tablename__.startswith(prefix):
            raise ExtensionInvalid(name, f"has a table {model.__tablename__}; its are called {prefix}…")
        if made.migrations is None:
            raise ExtensionInvalid(name, "has tables and no migrations")


def branch_of(extension: AttestationExtension) -> Branch:
    """Return the revisions of the tables of *extension*, which has some."""
    assert extension.migrations is not None
    return Branch(
        name=extension.name,
        scripts=extension.migrations.scripts,
        head=extension.migrations.head,
        tables=frozenset(model.__tablename__ for model in extension.get_models()),
    )


def migrate(settings: Settings, extensions: Sequence[AttestationExtension]) -> None:
    """Bring the tables of *extensions* to their newest revision, in the database that was migrated.

    Raises:
        ExtensionInvalid: Revisions of one fail; then nothing of them was done.
    """
    for each in extensions:
        if each.migrations is None:
            continue
        try:
            migrate_branch(settings.db_url, branch_of(each))
        except (Exception, SystemExit) as e:
            raise ExtensionInvalid(each.name, f"has tables that cannot be migrated: {_words(e)}") from e


# ---------------------------------------------------------------- events


def _subscriptions(extensions: Sequence[AttestationExtension]) -> dict[str, Mapping[Event, Handler]]:
    """Return what handles which event, by extension.

    Raises:
        ExtensionInvalid: One fails, or handles what is no event.
    """
    found: dict[str, Mapping[Event, Handler]] = {}
    for each in extensions:
        try:
            wanted: dict[Any, Any] = dict(each.get_subscriptions())  # its word for it
        except (Exception, SystemExit) as e:
            raise ExtensionInvalid(each.name, f"has no subscriptions: {_words(e)}") from e
        for event, handler in wanted.items():
            if not isinstance(event, NodeEvent | OperatorEvent) or not callable(handler):
                raise ExtensionInvalid(
                    each.name, f"subscribes to {event!r}, which is no event, or not with a function"
                )
        if wanted:
            found[each.name] = wanted
    return found


def by_event(subscribed: Mapping[str, Mapping[Event, Handler]]) -> dict[Event, list[str]]:
    """Return who is told of which event."""
    found: dict[Event, list[str]] = defaultdict(list)
    for name, handlers in subscribed.items():
        for event in handlers:
            found[event].append(name)
    return dict(found)


# ---------------------------------------------------------------- life


@asynccontextmanager
async def running(extensions: Sequence[AttestationExtension], res: Resources) -> AsyncIterator[None]:
    """Begin them in this worker, in order, and end them in the opposite one.

    Raises:
        ExtensionInvalid: One fails or hangs while it begins; those before it were ended.
    """
    begun: list[AttestationExtension] = []
    try:
        for each in extensions:
            begun.append(each)
            try:
                async with asyncio.timeout(HOOK_SECONDS):
                    await each.on_startup(Context(store=res.store, clock=res.clock))
            except (Exception, SystemExit) as e:  # noqa: BLE001 -- a stranger's
                # Its kind only: in the words of a connection that failed there may be a password.
                invalid = ExtensionInvalid(each.name, f"cannot begin: {type(e).__name__}")
                log.error("service.unusable", reason=str(invalid))  # noqa: TRY400 -- no trace: it has the words
                raise invalid from None
            log.info("extension.started", name=each.name, version=each.version)
        yield
    finally:
        for each in reversed(begun):
            ending = asyncio.create_task(_end(each))
            # Twice: it may swallow that it is cancelled after the first.
            if (await asyncio.wait([ending], timeout=2 * HOOK_SECONDS))[1]:
                log.error("extension.stop_failed", name=each.name, kind="TimeoutError")


async def _end(made: AttestationExtension) -> None:
    try:
        async with asyncio.timeout(HOOK_SECONDS):
            await made.on_shutdown()
    except (Exception, SystemExit) as e:  # noqa: BLE001 -- a stranger's; the others must end too
        log.error("extension.stop_failed", name=made.name, kind=type(e).__name__)  # noqa: TRY400 -- its words may be secret
