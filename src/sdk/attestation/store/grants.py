"""What the role of the running service may do in PostgreSQL: what the code does, and no more."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import DBAPIError

from attestation.errors import StoreUnavailable
from attestation.store.look import OURS
from attestation.store.migrate import SUPPORT, connection_to, is_postgresql, place, says_revision

_RECORD: Final = frozenset(
    {"audit_log", "audit_nodes", "audit_checkpoints", "audit_countersignatures", "policy_history"}
)
"""Nothing in them is ever changed. Triggers guard most of them from everybody; this keeps the triggers out of reach."""

_TABLES: Final = """
    SELECT quote_ident(nspname), quote_ident(relname), pg_has_role(relowner, 'USAGE'), relname::text
    FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND nspname = current_schema() ORDER BY relname
"""


def _rights(table: str) -> str:
    if table == SUPPORT or says_revision(table):
        return "SELECT"
    return "SELECT, INSERT" if table in _RECORD else "SELECT, INSERT, UPDATE, DELETE"


def grant(url: str, role: str) -> int:
    """Let *role* do in the migrated database at *url* what a running service does, and nothing else of what it could.

    Args:
        url: Of the database, as the owner of its tables.
        role: Its name; it exists.

    Returns:
        Of how many tables.

    Raises:
        ValueError: Not a URL of PostgreSQL: no other database has roles. Or everybody is meant.
        StoreUnavailable: The database is not ours, or there is no such role, or the tables are somebody else's.
    """
    where = place(url)
    if not is_postgresql(url):
        raise ValueError("a file has no roles: who may use it is said by its mode and its owner")
    if role == "public":  # also in quotes PostgreSQL takes it for the word PUBLIC
        raise ValueError("public is everybody who reaches the server: name the role of the service")
    try:
        with connection_to(url) as connection:
            run = connection.exec_driver_sql
            rows = run(_TABLES).all()
            if OURS not in {name for *_, name in rows}:
                raise StoreUnavailable(f"{where} has no tables of this service: run db upgrade first")
            if not all(
                is_ours for _, _, is_ours, _ in rows
            ):  # else the server would only warn that it did nothing
                raise StoreUnavailable(f"{where}: only the owner of the tables can let others use them")
            whom = connection.dialect.identifier_preparer.quote_identifier(role)
            schema = rows[0][0]
            run(f"GRANT USAGE ON SCHEMA {schema} TO {whom}")
            # A backup says where each of them is.
            run(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {whom}")
            for _, table, _, name in rows:
                run(f"REVOKE ALL ON {schema}.{table} FROM {whom}")
                run(f"GRANT {_rights(name)} ON {schema}.{table} TO {whom}")
            connection.commit()
    except DBAPIError as e:
        raise StoreUnavailable(f"{where}: {str(e.orig).partition(chr(10))[0]}") from e
    return len(rows)
