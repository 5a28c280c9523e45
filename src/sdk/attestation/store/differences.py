"""Whether a schema is the one that the revisions make: tables, columns, constraints, indexes, triggers, functions.

A scratch schema is made by the same revisions and both catalogues are compared: of SQLite in memory, of PostgreSQL in
the same database, in a transaction that is undone.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from attestation.errors import StoreUnavailable
from attestation.store.migrate import Branch, catalogue, connection_to, make_schema, place

_WORDS: Final = re.compile(r"[^\s,()]+")
_NOT_ENTITLED: Final = "42501"

Made = dict[tuple[str, str], list[str]]


def differences(url: str, branches: Sequence[Branch]) -> list[str]:
    """Return what is missing, is other, or is there besides in the schema at *url*, in words.

    Raises:
        StoreUnavailable: The role may not make a scratch schema.
    """
    if isinstance(place(url), Path):
        with connection_to(url) as connection:
            there = _made(catalogue(connection))
        engine = create_engine("sqlite://", creator=_in_memory, poolclass=NullPool)
        with engine.connect() as connection:
            make_schema(connection, branches)
            wanted = _made(catalogue(connection))
        engine.dispose()
    else:
        there, wanted = _of_server(url, branches)
    both = wanted.keys() & there.keys()
    return sorted(
        [f"{kind} {name} is missing" for kind, name in wanted.keys() - there.keys()]
        + [f"{kind} {name} is another" for kind, name in both if wanted[kind, name] != there[kind, name]]
        + [f"{kind} {name} is there besides" for kind, name in there.keys() - wanted.keys()]
    )


def _in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def _of_server(url: str, branches: Sequence[Branch]) -> tuple[Made, Made]:
    with connection_to(url) as connection:
        ours = str(connection.exec_driver_sql("SELECT current_schema()").scalar_one())
        there = _made(catalogue(connection), ours)
        fires = str(connection.exec_driver_sql("SHOW session_replication_role").scalar_one())
        there["setting", "session_replication_role"] = [fires]  # else not all triggers fire
        scratch = f"itl_scratch_{secrets.token_hex(8)}"
        try:
            connection.exec_driver_sql(f"CREATE SCHEMA {scratch}")
        except DBAPIError as e:
            if getattr(e.orig, "sqlstate", None) == _NOT_ENTITLED:
                raise StoreUnavailable("the role may not make a scratch schema to compare with") from e
            raise
        connection.exec_driver_sql(f"SET LOCAL search_path TO {scratch}")
        make_schema(connection, branches)
        wanted = _made(catalogue(connection), scratch)
        wanted["setting", "session_replication_role"] = ["origin"]
        connection.rollback()
    return there, wanted


def _made(rows: Iterable[tuple[str | None, ...]], schema: str = "") -> Made:
    """Return how each object was made, by kind and name: its words, sorted, because constraints have no order."""
    found: Made = {}
    for table, kind, name, made in rows:
        if table and not table.startswith("sqlite_") and made is not None:
            of = f"{table}.{name}" if kind == "column" else str(name)
            words = _WORDS.findall(made.replace(f"{schema}.", "") if schema else made)
            found[str(kind), of] = sorted(words)
    return found
