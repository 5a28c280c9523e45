"""Acts of operators: each is done once or not at all, and whoever asks again learns which (docs/adr/0070).

What a request for an act brings beside the act, and what is done with it; every route that declares `act` passes here,
whatever it does:

- `Idempotency-Key`: the unit that writes the act writes down the key too. Where the key is known already, nothing is
  done: the answer of the first time is given again.
- `Itl-Deadline-Ms`: how long the caller waits. A unit that comes to its turn after that, or after the connection ended,
  is not begun.

The unit of the act is the one with an entry of the operator in the audit log. Refusals change nothing and are judged
anew.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.types import Receive

from attestation.api import PendingApproval
from attestation.api.base import Wire
from attestation.audit.authority import words_of
from attestation.clock import Clock, rfc3339
from attestation.errors import (
    ActInProgress,
    AnswerNotKept,
    DeadlineExceeded,
    IdempotencyKeyReused,
)
from attestation.store import Act, Store, Tx
from attestation_service.border.bodies import media_type
from attestation_service.context.identity import Operator
from attestation_service.context.request import BEGAN_KEY
from attestation_service.resources import Resources, resources_of

T = TypeVar("T")

KEY_HEADER: Final = "idempotency-key"
DEADLINE_HEADER: Final = "itl-deadline-ms"
ENTRY_HEADER: Final = "itl-audit-entry"
"""Number of the audit entry of what was done; `Doing` says which of several."""
REPLAYED: Final = {"Idempotent-Replayed": "true"}

KEY: Final = re.compile(r'"([\x21\x23-\x5b\x5d-\x7e]{1,128})"')
"""A string of RFC 8941 without spaces and escapes (draft-ietf-httpapi-idempotency-key-header)."""
DEADLINE: Final = re.compile(r"[1-9][0-9]{0,5}")
"""Milliseconds, up to a quarter of an hour."""

MOST_KEPT_CHARACTERS: Final = 16_384
"""A longer answer is not kept: it can be asked for."""

DENIED: Final = "denied"
"""What the audit calls an act that was not done."""


class _Done(Exception):
    """It was done before; ends the request wherever that is found out."""

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.act = act


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """By what an act is known again.

    Args:
        key: SHA-256 of who asks and of their key: nobody meets the key of another.
        operator: SHA-256 of who asks.
        request: SHA-256 of everything that is asked for.
    """

    key: bytes
    operator: bytes
    request: bytes

    def judge(self, found: Act | None) -> None:
        """Go on only with what was not done yet.

        Raises:
            IdempotencyKeyReused: The key was given to something else.
            _Done: It was.
        """
        if found is None:
            return
        if found.request != self.request:
            raise IdempotencyKeyReused(
                f"this idempotency key was given to another request, which was carried out at {rfc3339(found.done_at)}"
            )
        raise _Done(found)


class Doing:
    """An act while it is being served.

    Args:
        status: With which the route answers what was done.
        is_silent: Where there is nothing to say, it answers 204.
    """

    def __init__(self, *, status: int, is_silent: bool) -> None:
        self._status = status
        self._is_silent = is_silent
        self._operator: Operator | None = None
        self._ticket: Ticket | None = None
        self._until: float | None = None
        self._gone = False
        self._begun = False
        self._written = False
        self.entry_id: int | None = None
        self._ends = contextlib.ExitStack()

    @property
    def is_permitted(self) -> bool:
        """It is known who asks, and that they may: what is written from now on is their act."""
        return self._operator is not None

    def end(self) -> None:
        """Let go of what it held."""
        self._ends.close()

    async def permit(self, request: Request, who: Operator, res: Resources) -> None:
        """Note that *who* may, and find out whether they did already.

        Raises:
            HTTPException: 400, a header that cannot be read.
            ActInProgress: This process is doing it now.
            IdempotencyKeyReused: The key was given to something else.
            _Done: It was done.
        """
        waits_ms = parse_deadline(request.headers.getlist(DEADLINE_HEADER))
        if waits_ms is not None:
            self._until = request.scope[BEGAN_KEY] + waits_ms / 1000
        key = parse_key(request.headers.getlist(KEY_HEADER))
        body = await request.body()
        watching = asyncio.create_task(self._watch(request.receive))
        self._ends.callback(watching.cancel)
        # Who left while somebody else held the write lock (a use of break-glass is recorded before) is seen here:
        # the first step of the task, which comes before any unit of the act.
        await asyncio.sleep(0)
        if key is not None:
            ticket = self._ticket = _ticket(key, who, request, body)
            # In another process both come to the write lock, and the second finds what the first wrote.
            if ticket.key in res.running:
                raise ActInProgress("a request with this idempotency key is being carried out")
            res.running.add(ticket.key)
            self._ends.callback(res.running.discard, ticket.key)
            ticket.judge(await res.store.read(lambda tx: tx.acts.get(ticket.key)))
        self._operator = who

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True

    async def write(self, store: Store, work: Callable[[Tx], T], clock: Clock) -> T:
        """Run a unit of the act, with what is to be remembered of it."""
        at = clock.now()
        written = False
        entries: list[int | None] = []

        def unit(tx: Tx) -> T:
            nonlocal written
            written = False
            # 1. Here the write lock is ours: nothing but the commit is waited for any more.
            self._begin()
            # 2. Somebody else may have done it since `permit`; what this request wrote is its own.
            if self._ticket is not None and not self._written:
                self._ticket.judge(tx.acts.get(self._ticket.key))
            value = work(tx)
            # 3. Key and act are in one unit: all or none.
            entry_id = self._entry(tx)
            entries.append(entry_id)
            if self._ticket is not None and entry_id is not None:
                status, answer = self._kept(value)
                tx.acts.put(
                    Act(
                        key=self._ticket.key,
                        operator=self._ticket.operator,
                        request=self._ticket.request,
                        entry_id=entry_id,
                        status=status,
                        answer=answer,
                        done_at=at,
                    )
                )
                written = True
            return value

        value = await store.write(unit)
        # The last time that the unit ran is the one that was written.
        self.entry_id = entries[-1] or self.entry_id
        self._written = self._written or written
        return value

    def _begin(self) -> None:
        """Begin only for a caller who still waits; what was begun is finished for anybody.

        Raises:
            DeadlineExceeded: They do not.
        """
        if not self._begun and self._gone:
            raise DeadlineExceeded("the connection ended before this was begun: nothing was done")
        if not self._begun and self._until is not None and time.perf_counter() > self._until:
            raise DeadlineExceeded("this waited here for longer than the caller does: nothing was done")
        self._begun = True

    def _entry(self, tx: Tx) -> int | None:
        """Return the number of the last entry of this unit that tells of an act of the operator, or None."""
        who = self._operator
        assert who is not None
        found = None
        for number, event in tx.audit.appended:
            if (event.operator_cn, event.operator_sub) == (who.cn, who.sub) and event.action != DENIED:
                found = number
        return found

    def _kept(self, value: object) -> tuple[int | None, str | None]:
        """Return status and body of the answer that the route makes of the unit's *value*; None where none is kept."""
        if value is None and self._is_silent:
            return 204, None
        if not isinstance(value, BaseModel) or (isinstance(value, Wire) and value.SHOWN_ONCE):
            return None, None
        text = value.model_dump_json()
        if len(text) > MOST_KEPT_CHARACTERS:
            return None, None
        return 202 if isinstance(value, PendingApproval) else self._status, text


CURRENT: Final[ContextVar[Doing | None]] = ContextVar("act", default=None)
"""The act that this request asks for."""


async def permit(request: Request, who: Operator, res: Resources) -> None:
    """Let *who* do what *request* asks for, once; asked when it is known that they may. See `Doing.permit`."""
    doing = CURRENT.get()
    assert doing is not None  # `openapi.demand_access`: each route that declares `act` is served by `serving`
    await doing.permit(request, who, res)


Handle = Callable[[Request], Coroutine[Any, Any, Response]]


def serving(route: APIRoute, handle: Handle) -> Handle:
    """Return what serves a request for the act of *route*."""
    status = route.status_code or 200
    is_silent = 204 in (status, *route.responses)

    async def serve(request: Request) -> Response:
        doing = Doing(status=status, is_silent=is_silent)
        token = CURRENT.set(doing)
        try:
            response = await handle(request)
            if doing.entry_id is not None:
                response.headers[ENTRY_HEADER] = str(doing.entry_id)
        except _Done as e:
            return await _again(e.act, resources_of(request.scope))
        else:
            return response
        finally:
            CURRENT.reset(token)
            doing.end()

    return serve


async def _again(act: Act, res: Resources) -> Response:
    """Give the answer of the first time.

    Raises:
        AnswerNotKept: It is not kept; the entry of the audit log says what was done.
    """
    if act.status is not None:
        kind = None if act.answer is None else "application/json"
        return Response(act.answer, act.status, REPLAYED | {ENTRY_HEADER: str(act.entry_id)}, kind)
    ((number, entry),) = await res.store.read(lambda tx: tx.audit.entries(act.entry_id - 1, 1))
    words = words_of(entry.detail)
    raise AnswerNotKept(
        f"this was done at {rfc3339(act.done_at)} and is not done again; its answer is not kept; "
        f"audit entry {number}: {entry.action}{f': {words}' if words else ''}"
    )


class ActStore:
    """The store of the service: what is written while an act is served, is written as a part of it.

    Args:
        store: The store behind it.
        clock: What tells the time.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock, self.clock = store, clock, store.clock
        self.dialect, self.look_up = store.dialect, store.look_up
        self.read, self.scan = store.read, store.scan
        self.read_sync, self.write_sync = store.read_sync, store.write_sync
        self.aclose, self.close = store.aclose, store.close

    def write(self, work: Callable[[Tx], T]) -> Coroutine[Any, Any, T]:
        """See `Store.write`. A request that is no act's has not a frame more for this."""
        doing = CURRENT.get()
        if doing is None or not doing.is_permitted:
            return self._store.write(work)
        return doing.write(self._store, work, self._clock)


def parse_deadline(given: Sequence[str]) -> int | None:
    """Return the milliseconds that headers `Itl-Deadline-Ms` say; None where there is none.

    A span, not an instant: nobody's clock need be right.

    Raises:
        HTTPException: 400, several, or no short number.
    """
    if not given:
        return None
    if len(given) > 1 or not DEADLINE.fullmatch(given[0]):
        raise HTTPException(400, "Itl-Deadline-Ms: one number of milliseconds, 1 to 999999")
    return int(given[0])


def parse_key(given: Sequence[str]) -> str | None:
    """Return the key that headers `Idempotency-Key` say; None where there is none.

    Raises:
        HTTPException: 400, several, or no short string in double quotes.
    """
    if not given:
        return None
    found = KEY.fullmatch(given[0]) if len(given) == 1 else None
    if found is None:
        raise HTTPException(
            400, 'Idempotency-Key: one string in double quotes, 1 to 128 visible characters without " and \\'
        )
    return found[1]


def _ticket(key: str, who: Operator, request: Request, body: bytes) -> Ticket:
    scope = request.scope
    # By the stable subject: a name may be somebody else's tomorrow. Break-glass has none, and is one for all.
    operator = _digest(b"operator", who.method.encode() if who.sub is None else b"", (who.sub or "").encode())
    return Ticket(
        key=_digest(b"key", operator, key.encode()),
        operator=operator,
        request=_digest(
            b"request",
            scope["method"].encode(),
            scope["path"].encode("utf-8", "surrogateescape"),
            scope["query_string"],
            media_type(request.headers.get("content-type")).encode(),
            body,
        ),
    )


def _digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of *parts*, each behind its length, 8 bytes big-endian."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
