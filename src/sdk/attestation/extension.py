"""The contract of extensions, whole: what an extension says of itself, what it is given, what it may rely on.

    [project.entry-points.attestation_extensions]
    visits = "example_visits:Visits"                  # a subclass of `AttestationExtension`

Installed is not enabled: the service loads those that `ITL_EXTENSIONS` names, and none that it cannot use. An
extension runs inside the service, with its rights: there is no sandbox. See docs/extend/writing-an-extension.md.
"""

# Longer than 500 lines: all that the author of an extension has to read.
from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from sqlalchemy import Select
from sqlalchemy.orm import DeclarativeBase

from attestation.api import AttestRequest, PendingApproval, Sealed
from attestation.api.base import Wire
from attestation.api.node import Action
from attestation.audit import AuditEvent
from attestation.clock import Clock, from_micros, rfc3339, to_micros
from attestation.errors import AttestationError, KeyURIInvalid
from attestation.keys import KeyOptions, parse_key_uri
from attestation.machines import (
    OWN_EVENTS,
    Event,
    ExtensionEvent,
    LogEvent,
    Machine,
    NodeEvent,
    OperatorEvent,
    Role,
    Status,
    Trust,
    event_named,
)
from attestation.reference.cel_rules import MAX_EXPRESSION, broken, compiled
from attestation.runs import Backend as RunBackend
from attestation.runs import Verdict as RunVerdict
from attestation.store import OutboxEvent, RateLimit, Store, Tx
from attestation.store.sql import Executor, Prepared
from attestation.wire import canonical_json

__all__ = [
    "CONTRACT",
    "GROUP",
    "OWN_EVENTS",
    "SEMANTIC_VERSION",
    "Access",
    "Action",
    "AttestationExtension",
    "AttestedMachine",
    "AuditEvent",
    "Bearer",
    "Caller",
    "Clock",
    "Confirm",
    "Context",
    "Emit",
    "Event",
    "Executor",
    "ExtensionEvent",
    "Fleet",
    "Handler",
    "KeyURI",
    "KeyURIs",
    "LogEvent",
    "Machine",
    "MachineFacts",
    "MachineRequest",
    "Migrations",
    "NoSettings",
    "NodeEvent",
    "Observer",
    "OperatorEvent",
    "OutboxEvent",
    "PendingApproval",
    "Prepared",
    "QueryTable",
    "RateLimit",
    "Reply",
    "Role",
    "Route",
    "Router",
    "Rule",
    "RunBackend",
    "RunVerdict",
    "Sealed",
    "Status",
    "Store",
    "Trust",
    "Tx",
    "Voter",
    "Wire",
    "canonical_json",
    "event_named",
    "from_micros",
    "rfc3339",
    "to_micros",
]

CONTRACT: Final = 1
"""Version of this contract. It changes when an extension that was written for it would no longer work."""

GROUP: Final = "attestation_extensions"
"""The entry points by which extensions are found; the name of the point is that of the extension."""

_NUMBER: Final = r"(0|[1-9][0-9]*)"
_PRE: Final = rf"({_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+"
SEMANTIC_VERSION: Final = re.compile(
    rf"(?=.{{1,64}}\Z){_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+{_BUILD}(\.{_BUILD})*)?\Z"
)
"""A version of an extension: Semantic Versioning 2.0.0 §§2, 9, 10, of 64 characters at most."""

Access = Literal["public", "read", "act", "audit", "metrics", "known", "machine"]
"""Who may ask: everybody; operators with that right; a machine that proves itself in the request."""


Confirm = Callable[[Tx], object]
"""What is done in the unit that confirms an event: with it, or not at all. A plain function, and statements only: it
holds up every other write of the service."""

Handler = Callable[[OutboxEvent], Awaitable[Confirm | None]]
"""What handles an event. It may come again, with the same `id`: what the handler does to others must bear that. What it
returns is done once. It has ten seconds; what it raises brings the event back later, and after the last time to the
dead letters."""


class Observer(Protocol):
    """Counts what was done: told on the event loop, in the path of requests, so it does nothing else."""

    def __call__(self, what: str, how: Mapping[str, str], value: float = 1) -> None:
        """Count.

        Args:
            what: A word.
            how: Words of closed lists, by the name of the list.
            value: What was measured, where it is no count.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The token that a request on a public route carries in `Authorization: Bearer`; it is not judged yet."""

    token: str | None = field(repr=False)


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


class Voter(Caller, Protocol):
    """The operator who asks for an act that several may have to agree to; the answer may be a `PendingApproval`."""

    def agree(
        self,
        tx: Tx,
        action: str,
        at: datetime,
        *,
        terms: Mapping[str, str | int | None],
        machine_id: str | None = None,
        always: bool = False,
    ) -> PendingApproval | None:
        """Let the act go on (None), or count the caller's vote for it and say what is missing.

        Args:
            tx: The unit of the act: what is done here and there is one.
            action: What is to be done, a word; `<name>.` is put before it.
            at: Now.
            terms: Everything else that the act rests on. Who votes for other terms votes for something else.
            machine_id: The machine that it is about, whose role decides whether several must agree; without one it
                concerns machines of every role.
            always: Several must agree for each role of a machine.

        Raises:
            MachineUnknown: No such machine.
            ProposalDiffers, ApprovalUnknown, ProposalRival, RateLimited, BreakGlassCannotVote, AuthenticationTooOld:
                As for the acts of the service.
        """
        ...


class MachineRequest(AttestRequest):
    """What a machine sends with a POST: a quote over a fresh challenge (PROTOCOL §4); subclasses add members.

    The TPM signs the challenge, not the members: who must be sure of them relies on TLS.
    """


class AttestedMachine(Protocol):
    """The machine that asks: attested, verified by the evidence in this request, and not locked.

    With a GET it came with a client certificate for a key that its TPM certified, and was verified when it attested
    last, within its lease.
    """

    @property
    def machine_id(self) -> str:
        """UUID."""
        ...

    @property
    def hostname(self) -> str | None:
        """What operators called it."""
        ...

    @property
    def role(self) -> Role:
        """What operators made of it."""
        ...

    @property
    def cluster_id(self) -> str:
        """The cluster that operators put it into."""
        ...

    @property
    def ek_fingerprint(self) -> str:
        """Name of its TPM or its hardware, 96 lower-case hex."""
        ...

    @property
    def assurance(self) -> str:
        """How well its identity is vouched for (`Assurance`)."""
        ...

    @property
    def vector(self) -> Mapping[str, int]:
        """AR4SI trustworthiness claims of the evidence, the worst of its parts; empty with a certificate."""
        ...

    @property
    def key_public(self) -> bytes:
        """TPMT_PUBLIC of its AK; without a TPM, SPKI of its subject key, DER."""
        ...

    @property
    def key_spki(self) -> bytes:
        """SubjectPublicKeyInfo of the same key, DER."""
        ...

    @property
    def quoted_at(self) -> datetime:
        """When the evidence that it is verified by was judged."""
        ...

    @property
    def address(self) -> str:
        """Where the request came from; never identity."""
        ...

    @property
    def certificate(self) -> str | None:
        """Serial number of its client certificate, 40 hex; None where it sent a quote."""
        ...

    def still(self, tx: Tx) -> None:
        """Check, in the unit that gives something to it, that it may still have it.

        A policy that operators wrote since then counts at its next quote.

        Raises:
            MachineNotAdmitted: It was locked, revoked or replaced, got another role or cluster, or failed, since then.
        """
        ...

    def event(self, action: str, **members: str | None) -> AuditEvent:
        """Return the audit event of what it was given, for `tx.audit.append` in the unit that gives it."""
        ...

    async def seal(self, plaintext: bytes, *, token_id: str, what: str) -> Sealed:
        """Seal *plaintext* to it, signed for this request.

        Args:
            plaintext: At most 1 MiB.
            token_id: 16 lower-case hex, names what is sealed.
            what: What it is, in a word; `<name>.` is put before it. The machine knows by it what it asked for.

        Raises:
            Unavailable: Nothing can be sealed to its key.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTable:
    """A table for the query language: a name and what is looked up, without secrets.

    Args:
        name: As it is written in a query, `WebhookDeliveries`.
        statement: Columns with the names that they have there. Texts, flags and numbers; a whole number whose name ends
            in `_at` is microseconds since 1970 (`to_micros`), a `datetime` in the language.
        right: Who may ask for it.
        description: What its rows are.
        columns: What a column says, by its name, for who writes queries.
    """

    name: str
    statement: Select[Any]
    right: Literal["read", "audit"] = "read"
    description: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer that is no JSON, or has headers of its own."""

    body: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation: `line` is method and path below the prefix of the extension."""

    line: str
    access: Access
    handler: Callable[..., Awaitable[BaseModel | Reply | None]]
    errors: tuple[type[AttestationError], ...]
    done: int = 200


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
        done: int = 200,
    ) -> None:
        """Add an operation.

        Args:
            line: Method and path, `GET /things/{thing_id}`. The path begins with `/` or is empty, and stands below the
                extension's own prefix, or begins with one of `prefixes`.
            access: Who may ask. There is no default.
            handler: Its parameters are the path, the query, at most one model as body, and who asks: a `Caller`, a
                `Voter`, the `Bearer` of a public route, or on a route of machines an `AttestedMachine`, whose body is a
                `MachineRequest`. Its answer is a model, a `Reply`, or None. Its docstring is the documentation.
            errors: What it ends in beside what every route can.
            done: The status of a model: 201 where it made something.
        """
        self.routes.append(Route(line=line, access=access, handler=handler, errors=errors, done=done))


class NoSettings(BaseModel):
    """The settings of an extension that has none; the base of the others. What is not declared stops the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _key_uri(text: str) -> str:
    try:
        parse_key_uri(text)
    except KeyURIInvalid as e:
        raise ValueError(str(e)) from None
    return text


KeyURI = Annotated[str, AfterValidator(_key_uri)]
"""A setting that names a key: `file:`, `pkcs11:` or `tpm2:` (docs/operate/hsm.md)."""
KeyURIs = Annotated[
    tuple[KeyURI, ...], BeforeValidator(lambda text: text.split() if isinstance(text, str) else text)
]
"""Several of them, separated by blanks."""


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


class Emit(Protocol):
    """Writes an event that the extension declares, in the unit of the change."""

    def __call__(
        self,
        tx: Tx,
        event: str,
        at: datetime,
        *,
        machine_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Write *event* to the outbox: each subscriber is told after the commit.

        Args:
            tx: The unit of the change.
            event: One of `events`.
            at: Now.
            machine_id: The machine that it is about, or None.
            meta: More about it, JSON, thin and without secrets.

        Raises:
            ValueError: It is not declared.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What is known of a machine that operators admitted: what a rule about machines is tried on.

    Args:
        machine_id: UUID.
        hostname: What operators called it.
        role: What operators made of it.
        cluster_id: Its cluster.
        status: Where it stands.
        trust: What its last result is worth now.
        assurance: How well its identity is vouched for.
        vector: AR4SI trustworthiness claims of its last result, the worst of its parts.
        quoted_at: When that was judged; None before the first.
    """

    machine_id: str
    hostname: str | None
    role: Role | None
    cluster_id: str
    status: Status
    trust: Trust
    assurance: str
    vector: Mapping[str, int]
    quoted_at: datetime | None


class Fleet(Protocol):
    """Goes through the machines that operators admitted, in a unit that reads."""

    def __call__(self, tx: Tx, machine_id: str | None = None) -> Iterable[MachineFacts]:
        """Go through all of them, or look at *machine_id* alone: none where it is not admitted."""
        ...


class Rule:
    """An expression of CEL over what it names, bounded so that it holds up nothing (docs/adr/0138).

    Args:
        expression: 1 to `MAX_CHARACTERS` printable characters.
        names: What it may read, each a map or a value.

    Raises:
        PolicyInvalid: It is no such expression; in words.
    """

    MAX_CHARACTERS: ClassVar[int] = MAX_EXPRESSION

    def __init__(self, expression: str, names: tuple[str, ...]) -> None:
        compiled(expression, names)
        self.expression, self.names = expression, names

    def broken(self, values: Mapping[str, object]) -> str | None:
        """Return why it does not hold over *values*; None where it does. An error is a rule that does not hold."""
        return broken(self.expression, values, self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an extension is given when the service starts; it is closed after `on_shutdown`."""

    store: Store
    clock: Clock
    service_url: str
    key_options: KeyOptions
    """What keys are opened with: the PKCS#11 modules of the service."""
    fleet: Fleet
    emit: Emit
    observe: Observer
    """Tell those who count what no event and no entry of the audit log tells."""
    high_assurance: bool
    """No control may be weakened (`ITL_HIGH_ASSURANCE`)."""
    provider_keys_stale: Callable[[], bool]
    """True where this worker has no keys of the identity provider, or older ones than it should."""


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

    prefixes: ClassVar[Sequence[str]] = ()
    """Paths that its routes stand below, from the root; without any, `/api/v1/<name>` alone."""

    tables: ClassVar[Sequence[str]] = ()
    """Names of tables that begin with `extension_`, and not with `extension_<name>_`."""

    variables: ClassVar[Mapping[str, str]] = {}
    """Variables of the environment that set a field of `Settings`, beside `ITL_EXT_<NAME>_<FIELD>`."""

    events: ClassVar[Sequence[str]] = ()
    """What it tells of, `<word>.<word>`; others subscribe to it by that name. The first word is its own."""

    cli_groups: ClassVar[Sequence[str]] = ()
    """Command groups that operators get with it; without any, the name with `-` for `_`."""

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
        """Version of the extension, a `SEMANTIC_VERSION`."""

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

    def get_query_tables(self) -> Sequence[QueryTable]:
        """Return what the query language may look up of it."""
        return ()

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """Return what handles which event; asked once, before the application is built.

        Events of other extensions are named by their words, whether those are enabled or not. `*` is every event that
        no other key names: the service's, and those that enabled extensions declare.
        """
        return {}

    def get_observer(self) -> Observer | None:
        """Return what counts; asked once, before the application is built."""
        return None

    async def on_startup(self, context: Context) -> None:
        """Begin in this worker; at most ten seconds."""
        self.context = context

    async def on_shutdown(self) -> None:  # noqa: B027 -- a hook that most leave as it is
        """End in this worker; at most ten seconds. The last that began ends first, also where its begin failed."""
