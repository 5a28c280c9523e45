"""What maintenance deletes: small batches by age, so that it never holds the write lock for long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Column, Table, bindparam, delete, select, update

from attestation.clock import to_micros
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import (
    Base,
    ChallengeRow,
    ConfigTokenRow,
    OutboxRow,
    RateLimitRow,
    table_of,
)

CHALLENGE_KEPT = timedelta(minutes=10)
"""For so long after its end a challenge still answers `challenge-used` or `challenge-expired`."""

CONFIG_TOKEN_KEPT = timedelta(hours=24)
"""For so long after its end a config token still answers `token-consumed`."""

OUTBOX_KEPT = timedelta(hours=24)
"""For so long a handled event stays visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """Rows deleted, or answers erased, by one `purge`."""

    challenges: int
    config_tokens: int
    config_answers: int
    outbox: int
    rate_limits: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.challenges + self.config_tokens + self.config_answers + self.outbox + self.rate_limits


def _delete_older(row: type[Base], key: str, age: str) -> Prepared:
    table: Table = table_of(row)
    column: Column[object] = table.c[age]
    batch = select(table.c[key]).where(column < bindparam("before")).limit(bindparam("rows"))
    return Prepared(delete(table).where(table.c[key].in_(batch)))


_CHALLENGES = _delete_older(ChallengeRow, "challenge_id", "expires_at")
_CONFIG_TOKENS = _delete_older(ConfigTokenRow, "token_id", "expires_at")
_OUTBOX = _delete_older(OutboxRow, "sequence", "done_at")
_RATE_LIMITS = _delete_older(RateLimitRow, "key", "tat_us")
_TOKENS = table_of(ConfigTokenRow)
_OVER = (
    select(_TOKENS.c.token_id).where(_TOKENS.c.answer_until < bindparam("before")).limit(bindparam("rows"))
)
_CONFIG_ANSWERS = Prepared(
    update(_TOKENS).where(_TOKENS.c.token_id.in_(_OVER)).values(answer=None, answer_until=None)
)


def purge(sql: Executor, at: datetime, batch: int) -> Purged:
    """Delete up to *batch* rows of each kind that nothing needs at *at*; a full batch means there is more."""

    def run(statement: Prepared, kept: timedelta = timedelta(0)) -> int:
        return sql.run(statement, before=to_micros(at - kept), rows=batch)

    return Purged(
        challenges=run(_CHALLENGES, CHALLENGE_KEPT),
        config_tokens=run(_CONFIG_TOKENS, CONFIG_TOKEN_KEPT),
        config_answers=run(_CONFIG_ANSWERS),
        outbox=run(_OUTBOX, OUTBOX_KEPT),
        rate_limits=run(_RATE_LIMITS),
    )
