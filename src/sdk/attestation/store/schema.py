"""Which code may run on the schema of this database: during a rolling upgrade, also code that is older than it."""

from __future__ import annotations

from sqlalchemy import bindparam, exists, literal, select

from attestation.errors import StoreUnavailable
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import SchemaSupportRow, table_of

_T = table_of(SchemaSupportRow)
_C = _T.c

_SUPPORTS = Prepared(
    select(literal(1)).where(
        exists().where(_C.branch == bindparam("branch"), _C.revision == bindparam("revision"))
    )
)


class SchemaContracted(StoreUnavailable):
    """Somebody upgraded the database to a schema that this version cannot use."""


class Schema:
    """The schema's own word, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def supports(self, revision: str, branch: str = "") -> bool:
        """Return True if code whose newest revision is *revision*, of a branch or of ours, may run here."""
        return self._sql.row(_SUPPORTS, branch=branch, revision=revision) is not None

    def demand(self, revision: str) -> None:
        """Raise where code whose newest revision is *revision* may not run here any more.

        Raises:
            SchemaContracted: With what to do.
        """
        if not self.supports(revision):
            raise SchemaContracted(
                f"the database was upgraded, and its schema no longer serves this version, whose newest revision is "
                f"{revision}: a newer version took away what this one uses. Start that version; going back means a "
                "backup from before it"
            )
