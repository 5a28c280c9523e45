"""What maintenance deletes: small batches by age, so that it never holds the write lock for long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Table, bindparam, delete, exists, or_, select, update

from attestation.clock import to_micros
from attestation.store.handovers import NEXT
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import (
    ActRow,
    Base,
    ChallengeRow,
    ConfigTokenRow,
    HandoverRow,
    LogRow,
    MachineRow,
    NodeChallengeRow,
    OutboxRow,
    RateLimitRow,
    ResultRow,
    table_of,
)

CHALLENGE_KEPT = timedelta(minutes=10)
"""For so long after its end a challenge still answers `challenge-used` or `challenge-expired`."""

CONFIG_TOKEN_KEPT = timedelta(hours=24)
"""For so long after its end a config token still answers `token-consumed`."""

OUTBOX_KEPT = timedelta(hours=24)
"""For so long a handled event stays visible."""

HANDOVER_KEPT = timedelta(days=30)
"""For so long an event waits for a subscriber that is not there, or that gave it up."""

ACT_KEPT = timedelta(hours=24)
"""For so long whoever asks again with the key of an act learns what became of it."""

LOG_KEPT = timedelta(hours=24)
"""For so long a measurement log stays after it was last known to be referred to; so often that is looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Rows deleted, or answers erased, by one `purge`."""

    challenges: int
    node_challenges: int
    config_tokens: int
    config_answers: int
    outbox: int
    handovers: int
    rate_limits: int
    acts: int
    logs: int

    @property
    def total(self) -> int:
        """All of them."""
        rows = (
            self.challenges
            + self.node_challenges
            + self.config_tokens
            + self.config_answers
            + self.outbox
            + self.rate_limits
        )
        return rows + self.handovers + self.acts + self.logs


def _delete_older(row: type[Base], key: str, age: str, *told: Column[Any]) -> Prepared:
    table: Table = table_of(row)
    column: Column[object] = table.c[age]
    batch = select(table.c[key]).where(column < bindparam("before")).limit(bindparam("rows"))
    return Prepared(delete(table).where(table.c[key].in_(batch)).returning(*told))


_CHALLENGES = _delete_older(ChallengeRow, "challenge_id", "expires_at")
_NODE_CHALLENGES = _delete_older(NodeChallengeRow, "challenge_id", "expires_at")
_CONFIG_TOKENS = _delete_older(ConfigTokenRow, "token_id", "expires_at")
_OUTBOX = _delete_older(OutboxRow, "sequence", "done_at")
_H = table_of(HandoverRow).c
_HANDOVERS = _delete_older(HandoverRow, "sequence", "created_at", _H.subscriber, _H.machine_id)
_RATE_LIMITS = _delete_older(RateLimitRow, "key", "tat_us")
_ACTS = _delete_older(ActRow, "key", "done_at")
_TOKENS = table_of(ConfigTokenRow)
_OVER = (
    select(_TOKENS.c.token_id).where(_TOKENS.c.answer_until < bindparam("before")).limit(bindparam("rows"))
)
_CONFIG_ANSWERS = Prepared(
    update(_TOKENS).where(_TOKENS.c.token_id.in_(_OVER)).values(answer=None, answer_until=None)
)
_LOGS = table_of(LogRow)
_RESULTS = table_of(ResultRow)
# The longest unexamined logs; those that are in use go to the end of the queue, the others go.
_EXAMINED = (
    select(_LOGS.c.sha256)
    .where(_LOGS.c.last_used_at < bindparam("before"))
    .order_by(_LOGS.c.last_used_at)
    .limit(bindparam("rows"))
)
_IN_USE = or_(
    exists().where(_RESULTS.c.event_log_sha256 == _LOGS.c.sha256),
    exists().where(_RESULTS.c.ima_log_sha256 == _LOGS.c.sha256),
    exists().where(table_of(MachineRow).c.event_log_sha256 == _LOGS.c.sha256),
)
_STILL_USED = Prepared(
    update(_LOGS).where(_LOGS.c.sha256.in_(_EXAMINED), _IN_USE).values(last_used_at=bindparam("at"))
)
_UNUSED = Prepared(delete(_LOGS).where(_LOGS.c.sha256.in_(_EXAMINED), ~_IN_USE))


def purge(sql: Executor, at: datetime, batch: int) -> Purged:
    """Delete up to *batch* rows of each kind that nothing needs at *at*; a full batch means there is more."""
    sql.run(_STILL_USED, before=to_micros(at - LOG_KEPT), rows=batch, at=to_micros(at))

    def run(statement: Prepared, kept: timedelta = timedelta(0)) -> int:
        return sql.run(statement, before=to_micros(at - kept), rows=batch)

    return Purged(
        challenges=run(_CHALLENGES, CHALLENGE_KEPT),
        node_challenges=run(_NODE_CHALLENGES, CHALLENGE_KEPT),
        config_tokens=run(_CONFIG_TOKENS, CONFIG_TOKEN_KEPT),
        config_answers=run(_CONFIG_ANSWERS),
        outbox=run(_OUTBOX, OUTBOX_KEPT),
        handovers=_purge_handovers(sql, to_micros(at - HANDOVER_KEPT), batch),
        rate_limits=run(_RATE_LIMITS),
        acts=run(_ACTS, ACT_KEPT),
        logs=run(_UNUSED, LOG_KEPT),
    )


def _purge_handovers(sql: Executor, before: int, batch: int) -> int:
    gone = sql.rows(_HANDOVERS, before=before, rows=batch)
    for subscriber, machine_id in {(row[0], row[1]) for row in gone}:
        sql.run(NEXT, subscriber=subscriber, machine_id=machine_id)
    return len(gone)
