"""What a server of PostgreSQL must be, and what our role may do there: asked once, before anything is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from attestation.errors import StoreUnavailable

OLDEST: Final = 14
"""Oldest major version that we run on: the oldest with `pg_xact_status` and pipelines whose makers still mend it."""

ASKED: Final = """
    SELECT current_setting('server_version_num')::int / 10000, current_setting('server_version'),
        current_setting('server_encoding'), current_user::text, current_schema()::text,
        coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
        (SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
        coalesce(bool_and(pg_has_role(tableowner, 'USAGE')), false),
        array_agg(tablename::text ORDER BY tablename) FILTER (
            WHERE NOT has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), 'SELECT')
            OR NOT has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), 'INSERT')
            AND tablename NOT IN ('alembic_version', 'schema_support')
        )
    FROM pg_tables WHERE schemaname = current_schema()
"""
"""One row, which `Server.of` understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server as it answers us.

    Args:
        major: Its version.
        version: The same in its own words.
        encoding: Of the database.
        role: Who we are there.
        schema: Where our tables are; None where the search path names none that exists.
        may_create: The role may make tables there, and so migrate.
        tls: Version of TLS on this connection, None without.
        owns: The role may do with all tables what their owner may.
        lacks: Tables that it may not read, or not write to.
    """

    major: int
    version: str
    encoding: str
    role: str
    schema: str | None
    may_create: bool
    tls: str | None
    owns: bool = False
    lacks: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Any) -> Server:
        """Read the row that `ASKED` brings."""
        major, version, encoding, role, schema, may_create, tls, owns, lacks = row
        return cls(
            major=major,
            version=version,
            encoding=encoding,
            role=role,
            schema=schema,
            may_create=may_create,
            tls=tls,
            owns=owns,
            lacks=tuple(lacks or ()),
        )

    def demand_supported(self) -> None:
        """Refuse a server on which the store would not hold what it promises.

        Raises:
            StoreUnavailable: With what to do.
        """
        if self.major < OLDEST:
            raise StoreUnavailable(
                f"the server is PostgreSQL {self.version}; this service needs {OLDEST} or newer: upgrade the server"
            )
        if self.encoding != "UTF8":
            raise StoreUnavailable(
                f"the database has the encoding {self.encoding}, which cannot keep every name: make another one, "
                "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )
        if self.schema is None:
            raise StoreUnavailable(
                f"the search path of the role {self.role} names no schema that it may use: "
                f"ALTER ROLE {self.role} SET search_path = …, or GRANT USAGE on the schema"
            )
