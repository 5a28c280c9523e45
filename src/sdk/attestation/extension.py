"""The contract of extensions, whole: what an extension says of itself, what it is given, what it may rely on.

    [project.entry-points.attestation_extensions]
    visits = "example_visits:Visits"                  # a subclass of `AttestationExtension`

Installed is not enabled: the service loads those that `ITL_EXTENSIONS` names, and none that it cannot use. An
extension runs inside the service, with its rights: there is no sandbox. See docs/extend/writing-an-extension.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import DeclarativeBase

from attestation.audit import AuditEvent
from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation.machines import Event, NodeEvent, OperatorEvent, Status, Trust
from attestation.store import OutboxEvent, Store, Tx
from attestation.store.sql import Executor, Prepared

__all__ = [
    "CONTRACT",
    "GROUP",
    "Access",
    "AttestationExtension",
    "Caller",
    "Confirm",
    "Context",
    "Event",
    "Executor",
    "Handler",
    "Migrations",
    "NoSettings",
    "NodeEvent",
    "OperatorEvent",
    "OutboxEvent",
    "Prepared",
    "Reply",
    "Route",
    "Router",
    "Status",
    "Store",
    "Trust",
    "Tx",
]

CONTRACT: Final = 1
"""Version of this contract. It changes when an extension that was written for it would no longer work."""

GROUP: Final = "attestation_extensions"
"""The entry points by which extensions are found; the name of the point is that of the extension."""

Access = Literal["public", "read", "act", "audit", "known"]
"""Who may ask: everybody, or operators with that right."""


Confirm = Callable[[Tx], object]
"""What is done in the unit that confirms an event: with it, or not at all. A plain function, and statements only: it
holds up every other write of the service."""

Handler = Callable[[OutboxEvent], Awaitable[Confirm | None]]
"""What handles an event. It may come again, with the same `id`: what the handler does to others must bear that. What it
returns is done once. It has ten seconds; what it raises brings the event back later, and after the last time to the
dead letters."""


class Caller(Protocol):
    """The operator who asks; a handler that has a parameter of this type is told."""

    @property
    def cn(self) -> str:
        """Their name, as the audit log shows it."""
        ...

    @property
    def sub(self) -> str | None:
        """What stays the same when names change; None for break-glass."""
        ...

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of an act of theirs, for `tx.audit.append` in the unit of the act."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that is no JSON."""

    body: bytes
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation: `line` is method and path below the prefix of the extension."""

    line: str
    access: Access
    handler: Callable[..., Awaitable[BaseModel | Reply | None]]
    errors: tuple[type[AttestationError], ...]


class Router:
    """The routes of one extension; the service puts them under `/api/v1/<name>`."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(
        self,
        line: str,
        access: Access,
        handler: Callable[..., Awaitable[BaseModel | Reply | None]],
        *errors: type[AttestationError],
    ) -> None:
        """Add an operation.

        Args:
            line: Method and path, `GET /things/{thing_id}`; the path begins with `/` or is empty.
            access: Who may ask. There is no default.
            handler: Its parameters are the path, the query, at most one model as body, and a `Caller`; its answer is a
                model, a `Reply`, or None. Its docstring is the documentation.
            errors: What it ends in beside what every route can.
        """
        self.routes.append(Route(line=line, access=access, handler=handler, errors=errors))


class NoSettings(BaseModel):
    """The settings of an extension that has none; the base of the others. What is not declared stops the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations:
    """How the tables came to be.

    Args:
        scripts: Folder of Alembic revisions, `example_visits:revisions`. They are run with the service's own and
            written down apart from them, and make only tables called `extension_<name>_…`.
        head: The newest of them.
    """

    scripts: str
    head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an extension is given when the service starts; it is closed after `on_shutdown`."""

    store: Store
    clock: Clock


class AttestationExtension(ABC):
    """An extension of the service.

    It is made once before the workers are forked, so making it opens nothing. In each worker then: `on_startup`,
    requests, `on_shutdown`. What any of it raises before requests are served stops the start.

    Args:
        settings: Of the class that `Settings` names, read from `ITL_EXT_<NAME>_…`.
    """

    contract: ClassVar[int]
    """The `CONTRACT` that it was written for."""

    migrations: ClassVar[Migrations | None] = None

    Settings: ClassVar[type[BaseModel]] = NoSettings

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self.context: Context

    @property
    @abstractmethod
    def name(self) -> str:
        """Letters, digits and `_`, the same as its entry point: its prefix, and the settings' and tables'."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Version of the extension, as semantic versioning has it."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What it does, in a sentence, for operators."""

    def get_router(self) -> Router | None:
        """Return its routes; asked once, before the application is built."""
        return None

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return the classes of its tables."""
        return ()

    def get_subscriptions(self) -> Mapping[Event, Handler]:
        """Return what handles which event; asked once, before the application is built."""
        return {}

    async def on_startup(self, context: Context) -> None:
        """Begin in this worker; at most ten seconds."""
        self.context = context

    async def on_shutdown(self) -> None:  # noqa: B027 -- a hook that most leave as it is
        """End in this worker; at most ten seconds. The last that began ends first, also where its begin failed."""
