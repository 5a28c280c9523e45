"""What is kept: webhooks with their secrets, wrapped, and deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Literal

from sqlalchemy import BigInteger, Index, LargeBinary, Text, bindparam, delete, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.extension import Executor, Prepared, from_micros, to_micros

State = Literal["waiting", "delivered", "dead"]
KEPT: Final = timedelta(days=30)
"""So long a delivery that is over is shown."""


class Base(DeclarativeBase):
    """Base of the tables; instants are microseconds."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text(), bytes: LargeBinary()}


class WebhookRow(Base):
    """An endpoint; `events` are divided by commas."""

    __tablename__ = "extension_webhooks"

    webhook_id: Mapped[str] = mapped_column(primary_key=True)
    url: Mapped[str]
    events: Mapped[str]
    enabled: Mapped[int]
    disabled_why: Mapped[str | None]
    kek_id: Mapped[str]
    secret: Mapped[bytes]
    previous_kek_id: Mapped[str | None]
    previous_secret: Mapped[bytes | None]
    previous_until: Mapped[int | None]
    created_at: Mapped[int]
    created_by: Mapped[str]
    last_triggered_at: Mapped[int | None]
    trigger_count: Mapped[int]
    failure_count: Mapped[int]


class DeliveryRow(Base):
    """An event on its way to an endpoint, or there, or given up."""

    __tablename__ = "extension_webhook_deliveries"
    __table_args__ = (
        Index("extension_webhook_deliveries_due", "next_attempt_at"),
        Index("extension_webhook_deliveries_of", "webhook_id", "created_at"),
        Index("extension_webhook_deliveries_age", "created_at"),
    )

    delivery_id: Mapped[str] = mapped_column(primary_key=True)
    webhook_id: Mapped[str]
    event_type: Mapped[str]
    payload: Mapped[bytes]
    created_at: Mapped[int]
    attempts: Mapped[int]
    next_attempt_at: Mapped[int | None]
    status: Mapped[str]
    response_status: Mapped[int | None]
    response_body: Mapped[bytes | None]
    error: Mapped[str | None]
    delivered_at: Mapped[int | None]
    duration_ms: Mapped[int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An endpoint. `secret` and `previous_secret` are wrapped, each under the KEK of its name."""

    webhook_id: str
    url: str
    events: tuple[str, ...]
    enabled: bool
    disabled_why: str | None
    kek_id: str
    secret: bytes
    previous_kek_id: str | None
    previous_secret: bytes | None
    previous_until: datetime | None
    created_at: datetime
    created_by: str
    last_triggered_at: datetime | None
    trigger_count: int
    failure_count: int

    def wants(self, event: str) -> bool:
        """Return True where it is told of *event*: by its whole name, or of all."""
        return self.enabled and (event in self.events or "*" in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event on its way to an endpoint, or there, or given up."""

    delivery_id: str
    webhook_id: str
    event_type: str
    payload: bytes
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    status: str
    response_status: int | None
    response_body: bytes | None
    error: str | None
    delivered_at: datetime | None
    duration_ms: int | None


_WEBHOOKS: Final = Base.metadata.tables[WebhookRow.__tablename__]
_W: Final = _WEBHOOKS.c
_DELIVERIES: Final = Base.metadata.tables[DeliveryRow.__tablename__]
_D: Final = _DELIVERIES.c
_EDITED: Final = (
    *("url", "events", "enabled", "disabled_why", "kek_id", "secret"),
    *("previous_kek_id", "previous_secret", "previous_until"),
)

_ADD: Final = Prepared(
    lambda insert: insert(_WEBHOOKS).values({name: bindparam(name) for name in _W.keys()})  # noqa: SIM118 -- of columns
)
_GET: Final = Prepared(select(_WEBHOOKS).where(_W.webhook_id == bindparam("webhook_id")))
_ALL: Final = Prepared(select(_WEBHOOKS).order_by(_W.created_at, _W.webhook_id))
_CHANGE: Final = Prepared(
    update(_WEBHOOKS)
    .where(_W.webhook_id == bindparam("of_webhook"))
    .values({name: bindparam(name) for name in _EDITED})
)
_DELETE: Final = Prepared(delete(_WEBHOOKS).where(_W.webhook_id == bindparam("of_webhook")))
_DELETE_OF: Final = Prepared(delete(_DELIVERIES).where(_D.webhook_id == bindparam("of_webhook")))
_TRIGGERED: Final = Prepared(
    update(_WEBHOOKS)
    .where(_W.webhook_id == bindparam("of_webhook"))
    .values(
        last_triggered_at=bindparam("at"),
        trigger_count=_W.trigger_count + 1,
        failure_count=_W.failure_count + bindparam("failed"),
    )
)
_DISABLE: Final = Prepared(
    update(_WEBHOOKS)
    .where(_W.webhook_id == bindparam("of_webhook"), _W.enabled == 1)
    .values(enabled=0, disabled_why=bindparam("why"))
)
_QUEUE: Final = Prepared(
    lambda insert: (
        insert(_DELIVERIES)
        .values({name: bindparam(name) for name in _D.keys()})  # noqa: SIM118 -- likewise
        .on_conflict_do_nothing()
    )
)
_IS_DUE: Final = Prepared(select(_D.delivery_id).where(_D.next_attempt_at <= bindparam("at")).limit(1))
_CLAIM: Final = Prepared(
    update(_DELIVERIES)
    .where(
        _D.delivery_id.in_(
            select(_D.delivery_id)
            .where(_D.next_attempt_at <= bindparam("at"))
            .order_by(_D.next_attempt_at, _D.delivery_id)
            .limit(bindparam("rows"))
        )
    )
    .values(attempts=_D.attempts + 1, next_attempt_at=bindparam("again_at"))
    .returning(*_D)
)
_TOLD: Final = Prepared(
    update(_DELIVERIES)
    .where(
        _D.delivery_id == bindparam("of_delivery"),
        _D.attempts == bindparam("of_attempt"),
        _D.status == "waiting",
    )
    .values(
        {
            name: bindparam(name)
            for name in (
                *("status", "next_attempt_at", "response_status", "response_body", "error"),
                *("delivered_at", "duration_ms"),
            )
        }
    )
)
_PUT_OFF: Final = Prepared(
    update(_DELIVERIES)
    .where(_D.webhook_id == bindparam("of_webhook"), _D.next_attempt_at <= bindparam("at"))
    .values(next_attempt_at=bindparam("until"))
)
_OF: Final = Prepared(
    select(_DELIVERIES)
    .where(_D.webhook_id == bindparam("webhook_id"), _D.status.like(bindparam("like")))
    .order_by(_D.created_at.desc(), _D.delivery_id)
    .limit(bindparam("rows"))
)
_COUNT_OF: Final = Prepared(
    select(func.count()).where(_D.webhook_id == bindparam("webhook_id"), _D.status.like(bindparam("like")))
)
_ONE: Final = Prepared(
    select(_DELIVERIES).where(
        _D.webhook_id == bindparam("webhook_id"), _D.delivery_id == bindparam("delivery_id")
    )
)
_REPLAY: Final = Prepared(
    update(_DELIVERIES)
    .where(_D.webhook_id == bindparam("of_webhook"), _D.delivery_id == bindparam("of_delivery"))
    .values(status="waiting", attempts=0, next_attempt_at=bindparam("at"), delivered_at=None)
)
_REPLAY_DEAD: Final = Prepared(
    update(_DELIVERIES)
    .where(_D.webhook_id == bindparam("of_webhook"), _D.status == "dead")
    .values(status="waiting", attempts=0, next_attempt_at=bindparam("at"), delivered_at=None)
)
_FORGET: Final = Prepared(
    delete(_DELIVERIES).where(
        _D.delivery_id.in_(
            select(_D.delivery_id)
            .where(_D.status != "waiting", _D.created_at <= bindparam("before"))
            .order_by(_D.created_at)
            .limit(bindparam("rows"))
        )
    )
)

DELIVERIES: Final = select(
    _D.delivery_id,
    _D.webhook_id,
    _D.event_type,
    _D.created_at,
    _D.status,
    _D.attempts,
    _D.next_attempt_at,
    _D.response_status,
    _D.delivered_at,
    _D.duration_ms,
)
"""What the query language sees of them."""


class Webhooks:
    """Webhooks and deliveries, inside one unit of work."""

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    # Webhooks

    def add(self, webhook: Webhook) -> None:
        """Keep a new one."""
        self._sql.do(
            _ADD,
            webhook_id=webhook.webhook_id,
            created_at=to_micros(webhook.created_at),
            created_by=webhook.created_by,
            last_triggered_at=None,
            trigger_count=0,
            failure_count=0,
            **_edited(webhook),
        )

    def get(self, webhook_id: str) -> Webhook | None:
        """Return one."""
        return _webhook(self._sql.row(_GET, webhook_id=webhook_id))

    def all(self) -> list[Webhook]:
        """Return all, the oldest first."""
        return [found for row in self._sql.rows(_ALL) if (found := _webhook(row))]

    def change(self, webhook: Webhook) -> None:
        """Write what may be changed of it."""
        self._sql.do(_CHANGE, of_webhook=webhook.webhook_id, **_edited(webhook))

    def delete(self, webhook_id: str) -> bool:
        """Forget it with its deliveries; False where there is none."""
        self._sql.do(_DELETE_OF, of_webhook=webhook_id)
        return self._sql.run(_DELETE, of_webhook=webhook_id) == 1

    def disable(self, webhook_id: str, why: str) -> bool:
        """Send nothing to it any more; False where that was so."""
        return self._sql.run(_DISABLE, of_webhook=webhook_id, why=why) == 1

    def triggered(self, webhook_id: str, at: datetime, *, failed: bool) -> None:
        """Count an attempt."""
        self._sql.do(_TRIGGERED, of_webhook=webhook_id, at=to_micros(at), failed=int(failed))

    # Deliveries

    def queue(self, *, delivery_id: str, webhook_id: str, event: str, payload: bytes, at: datetime) -> None:
        """Let an event be delivered; the same twice is once."""
        self._sql.do(
            _QUEUE,
            delivery_id=delivery_id,
            webhook_id=webhook_id,
            event_type=event,
            payload=payload,
            created_at=to_micros(at),
            attempts=0,
            next_attempt_at=to_micros(at),
            status="waiting",
            response_status=None,
            response_body=None,
            error=None,
            delivered_at=None,
            duration_ms=None,
        )

    def is_due(self, at: datetime) -> bool:
        """Return True where something is to be sent."""
        return self._sql.row(_IS_DUE, at=to_micros(at)) is not None

    def claim(self, at: datetime, *, rows: int, hold: timedelta) -> list[Delivery]:
        """Take some that are due, for as long as *hold*; then they are due again."""
        found = self._sql.rows(_CLAIM, at=to_micros(at), rows=rows, again_at=to_micros(at + hold))
        return [_delivery(row) for row in found]

    def told(
        self,
        delivery: Delivery,
        *,
        status: State,
        again_at: datetime | None,
        response_status: int | None,
        response_body: bytes | None,
        error: str | None,
        delivered_at: datetime | None,
        duration_ms: int,
    ) -> bool:
        """Write what became of an attempt; False where another worker has claimed it since."""
        done = self._sql.run(
            _TOLD,
            of_delivery=delivery.delivery_id,
            of_attempt=delivery.attempts,
            status=status,
            next_attempt_at=None if again_at is None else to_micros(again_at),
            response_status=response_status,
            response_body=response_body,
            error=error,
            delivered_at=None if delivered_at is None else to_micros(delivered_at),
            duration_ms=duration_ms,
        )
        return done == 1

    def put_off(self, webhook_id: str, at: datetime, *, until: datetime) -> None:
        """Let what is due at an endpoint wait until then; it is no attempt."""
        self._sql.run(_PUT_OFF, of_webhook=webhook_id, at=to_micros(at), until=to_micros(until))

    def deliveries(self, webhook_id: str, status: str | None, limit: int) -> tuple[list[Delivery], int]:
        """Return the newest deliveries to one, and how many there are."""
        asked = {"webhook_id": webhook_id, "like": status or "%"}
        count = self._sql.row(_COUNT_OF, **asked)
        assert count is not None
        return [_delivery(row) for row in self._sql.rows(_OF, **asked, rows=limit)], int(count[0])

    def delivery(self, webhook_id: str, delivery_id: str) -> Delivery | None:
        """Return one."""
        row = self._sql.row(_ONE, webhook_id=webhook_id, delivery_id=delivery_id)
        return None if row is None else _delivery(row)

    def replay(self, webhook_id: str, delivery_id: str | None, at: datetime) -> int:
        """Send one again, with its id; or all that were given up. Return how many."""
        if delivery_id is None:
            return self._sql.run(_REPLAY_DEAD, of_webhook=webhook_id, at=to_micros(at))
        return self._sql.run(_REPLAY, of_webhook=webhook_id, of_delivery=delivery_id, at=to_micros(at))

    def forget(self, at: datetime, limit: int) -> int:
        """Forget up to *limit* of what has been over for long, the oldest first; return how many it were."""
        return self._sql.run(_FORGET, before=to_micros(at - KEPT), rows=limit)


def _edited(webhook: Webhook) -> dict[str, Any]:
    until = webhook.previous_until
    return {name: getattr(webhook, name) for name in _EDITED} | {
        "events": ",".join(webhook.events),
        "enabled": int(webhook.enabled),
        "previous_until": None if until is None else to_micros(until),
    }


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _webhook(row: Sequence[Any] | None) -> Webhook | None:
    if row is None:
        return None
    found = dict(zip(_W.keys(), row, strict=True))
    previous = found["previous_secret"]
    return Webhook(
        **found
        | {
            "events": tuple(found["events"].split(",")),
            "enabled": bool(found["enabled"]),
            "secret": bytes(found["secret"]),
            "previous_secret": None if previous is None else bytes(previous),
            "previous_until": _instant(found["previous_until"]),
            "created_at": from_micros(found["created_at"]),
            "last_triggered_at": _instant(found["last_triggered_at"]),
        }
    )


def _delivery(row: Sequence[Any]) -> Delivery:
    found = dict(zip(_D.keys(), row, strict=True))
    answer = found["response_body"]
    return Delivery(
        **found
        | {
            "payload": bytes(found["payload"]),
            "response_body": None if answer is None else bytes(answer),
            "created_at": from_micros(found["created_at"]),
            "next_attempt_at": _instant(found["next_attempt_at"]),
            "delivered_at": _instant(found["delivered_at"]),
        }
    )
