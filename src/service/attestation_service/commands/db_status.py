"""`db status`: where the database is, at which revision, how large, and what is in it; changes nothing."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from attestation.clock import from_micros, rfc3339
from attestation.store import is_postgresql, place
from attestation.store.copying import Source, source
from attestation.store.migrate import HEAD
from attestation.text import clean
from attestation_service.settings import Settings

COUNTED: Final = ("machines", "attestation_results", "certificates", "audit_log")
"""Tables whose rows are told."""


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Tell it.

    Raises:
        ValueError: No URL of a database that we support.
        AttestationError: It cannot be read.
    """
    with source(settings.db_url, alone=False) as db:
        told = _status(settings, db)
    if options.output == "json":
        sys.stdout.write(json.dumps(told, indent=1) + "\n")
    else:
        for name, value in told.items():
            sys.stdout.write(clean(f"{name.replace('_', ' '):<22}{_shown(value)}") + "\n")
    return 0


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)


def _status(settings: Settings, db: Source) -> dict[str, Any]:
    server = is_postgresql(settings.db_url)
    revision = db.revisions.get("alembic_version")
    told: dict[str, Any] = {
        "database": str(place(settings.db_url)),
        "server": f"PostgreSQL {db.value('SHOW server_version')}"
        if server
        else f"SQLite {db.value('SELECT sqlite_version()')}",
        "revision": revision,
        "newest_revision": HEAD,
        "a_start_migrates": revision != HEAD,
        "bytes": db.value(
            "SELECT pg_database_size(current_database())"
            if server
            else "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        ),
    }
    for table, at in db.revisions.items():
        if table != "alembic_version":
            told[table.removesuffix("_version")] = at
    for table in COUNTED:
        if table in db.tables:
            told[table] = db.value(f"SELECT count(*) FROM {table}")  # noqa: S608 -- names of ours
    if "audit_checkpoints" in db.tables:
        newest = db.value("SELECT max(created_at) FROM audit_checkpoints")
        told["newest_checkpoint"] = None if newest is None else rfc3339(from_micros(newest))
    if revision == HEAD:
        told["moved_to"] = db.value("SELECT moved_to FROM database_identity")
    return told
