"""Numbers about the fleet and the service, for Prometheus.

All of them come from the database, so they are the same whichever worker is asked, and survive its end: gauges are
counted when somebody asks, counters grow in the unit that confirms an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import BigInteger, Text, bindparam, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.extension import (
    AttestationExtension,
    Confirm,
    Event,
    Executor,
    Handler,
    Migrations,
    NodeEvent,
    OperatorEvent,
    OutboxEvent,
    Prepared,
    Reply,
    Router,
    Status,
    Trust,
    Tx,
)

EVENTS: Final[Sequence[Event]] = (*NodeEvent, *OperatorEvent)


class Base(DeclarativeBase):
    """Base of the tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text()}


class EventRow(Base):
    """How many events of a kind there were since the extension was enabled."""

    __tablename__ = "extension_metrics_events"

    event: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


_T: Final = EventRow.metadata.tables[EventRow.__tablename__]
_COUNT: Final = Prepared(
    lambda upsert: (
        upsert(_T)
        .values(event=bindparam("event"), total=1)
        .on_conflict_do_update(index_elements=["event"], set_={"total": _T.c.total + 1})
    )
)
_TOTALS: Final = Prepared(select(_T.c.event, _T.c.total))


class Events:
    """The counters, inside one unit of work."""

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def count(self, event: Event) -> None:
        """Count one."""
        self._sql.run(_COUNT, event=event.value)

    def totals(self) -> Mapping[str, int]:
        """Return how many of each kind there were; kinds that there were none of are left out."""
        return {row[0]: row[1] for row in self._sql.rows(_TOTALS)}


class Metrics(AttestationExtension):
    """The extension."""

    contract = 1
    name = "metrics"
    version = "1.0.0"
    description = "Numbers about the fleet and the service, for Prometheus."
    migrations = Migrations(scripts="attestation_extensions.metrics:revisions", head="0001")

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return the counters."""
        return (EventRow,)

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """Count every event."""
        return dict.fromkeys(EVENTS, self.count)

    async def count(self, event: OutboxEvent) -> Confirm:
        """Count *event* in the unit that confirms it: once, however often it is told."""
        return lambda tx: tx.of(Events).count(event.event)

    def get_router(self) -> Router:
        """Return the one route."""
        router = Router()
        router.add("GET", "read", self.show)
        return router

    async def show(self) -> Reply:
        """Show the metrics.

        Of all workers, in the text format of Prometheus. Labels are words of closed lists: no ids, no names.
        """
        at = self.context.clock.now()
        found = await self.context.store.scan(lambda tx: measure(tx, at))
        return Reply(body=exposition(found), media_type=CONTENT_TYPE_LATEST)


def measure(tx: Tx, at: datetime) -> list[Metric]:
    """Return the metrics at *at*."""
    counts = tx.machines.counts(at)
    waiting, oldest = tx.outbox.lag()
    handovers = tx.handovers.waiting()
    proposals = {vote.proposal_digest for vote in tx.approvals.every_live(at)}
    totals = tx.of(Events).totals()
    return [
        _gauge(
            "attestation_machines_by_status",
            "Machines, by status.",
            "status",
            {status: counts.by_status.get(status, 0) for status in Status},
        ),
        _gauge(
            "attestation_machines_by_trust",
            "Machines, by what their last result is worth now.",
            "trust",
            {trust: counts.by_trust.get(trust, 0) for trust in Trust},
        ),
        GaugeMetricFamily("attestation_approvals_pending", "Proposals that wait for votes.", len(proposals)),
        GaugeMetricFamily("attestation_outbox_pending", "Events that were not handed over yet.", waiting),
        GaugeMetricFamily(
            "attestation_outbox_oldest_age_seconds",
            "Age of the oldest of them; 0 where there is none.",
            max(0.0, (at - oldest).total_seconds()) if oldest else 0.0,
        ),
        _gauge(
            "attestation_handovers_pending",
            "Events on their way to an extension.",
            "extension",
            {name: each.pending for name, each in handovers.items()},
        ),
        _gauge(
            "attestation_dead_letters",
            "Events that an extension could not handle.",
            "extension",
            {name: each.dead for name, each in handovers.items()},
        ),
        _gauge(
            "attestation_collateral_seconds_until_expiry",
            "Until the first piece of collateral of each kind expires; negative where it has.",
            "kind",
            {kind: int((until - at).total_seconds()) for kind, until in tx.collateral.expiring().items()},
        ),
        _counter(
            "attestation_events",
            "Events since the extension was enabled.",
            "event",
            {event: totals.get(event, 0) for event in EVENTS},
        ),
    ]


def _gauge(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    return _labelled(GaugeMetricFamily(name, help_text, labels=[label]), values)


def _counter(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    return _labelled(CounterMetricFamily(name, help_text, labels=[label]), values)


def _labelled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, int]) -> Metric:
    for word, value in values.items():
        family.add_metric([str(word)], value)
    return family


class _Measured:
    """Gives a registry what was measured."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def exposition(found: Iterable[Metric]) -> bytes:
    """Return *found* in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Measured(found))
    return generate_latest(registry)
