"""Indexes serve what operators ask of a long audit log: on both databases, as the migrations make them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from attestation.store import migrate
from attestation.store.tables import EKCertificateRow, table_of
from attestation_service import kql
from attestation_service.context.identity import Right
from attestation_service.query import catalog
from attestation_service.query.columns import Dialect
from tests.fixtures.stores import BACKENDS, on_server

AT = datetime(2026, 11, 26, tzinfo=UTC)
SORTS = re.compile("Sort|TEMP B-TREE")
Planned = Callable[[str], str]


def _asked(text: str, dialect: Dialect) -> kql.Statement:
    seen = catalog.catalog(frozenset(Right), AT, dialect=dialect)
    return kql.compiled(kql.analyse(text, seen, at=AT), dialect, rows=1001)


@pytest.fixture(scope="module", params=BACKENDS)
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planned]:
    """Return what says how a database would run a query."""
    if request.param == "postgresql":
        with on_server(request.getfixturevalue("postgres_server")) as made:
            yield from _on_postgresql(made().replace("+psycopg", ""))
    else:
        yield from _on_sqlite(tmp_path_factory.mktemp("plans") / "store.db")


def _on_sqlite(path: Path) -> Iterator[Planned]:
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        for name, (count, function) in kql.FUNCTIONS.items():
            connection.create_function(name, count, function, deterministic=True)

        def steps(text: str) -> str:
            written = _asked(text, "sqlite")
            asked = f"EXPLAIN QUERY PLAN {written.sql}"
            return "\n".join(row[3] for row in connection.execute(asked, dict(written.parameters)))

        yield steps


def _on_postgresql(url: str) -> Iterator[Planned]:
    with psycopg.connect(url, autocommit=True) as connection:
        # A table without rows is read whole; what is asked here is whether an index could serve.
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")

        def steps(text: str) -> str:
            written = _asked(text, "postgresql")
            asked = f"EXPLAIN {written.sql}".encode()
            return "\n".join(str(row[0]) for row in connection.execute(asked, written.parameters))

        yield steps


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("AuditLog | sort by ts desc | take 50", "ix_audit_log_timestamp"),
        ("AuditLog | top 50 by ts asc", "ix_audit_log_timestamp"),
        ("AuditLog | where ts > ago(1h) | sort by ts desc | take 100", "ix_audit_log_timestamp"),
        (
            "AuditLog | where ts between (ago(2h) .. 1h) | extend n = strlen(detail) | sort by ts",
            "ix_audit_log_timestamp",
        ),
        ("AuditLog | where ts > startofday(now()) | count", "ix_audit_log_timestamp"),
        ("AuditLog | summarize max(ts)", "ix_audit_log_timestamp"),
        (
            "let recent = AuditLog | where ts > ago(1d); recent | where actor != 'machine'",
            "ix_audit_log_timestamp",
        ),
        (
            "AuditLog | join kind=leftouter (Machines | project machine_id, hostname) on machine_id | top 50 by ts",
            "ix_audit_log_timestamp",
        ),
        ("AuditLog | where machine_id == 'x' | take 50", "ix_audit_log_machine_id_id"),
        (
            "AuditLog | where machine_id in ('x', 'y') and detail has 'z' | count",
            "ix_audit_log_machine_id_id",
        ),
        ("AuditLog | where action == 'approve' | take 20", "ix_audit_log_action_id"),
        ("AuditLog | where actor == 'anna' | sort by id desc | take 20", "ix_audit_log_operator_cn_id"),
        (
            "Attestations | where machine_id == 'x' | sort by id desc | take 20",
            "ix_attestation_results_machine_id_id",
        ),
        ("Machines | where status == 'attested' and cluster_id == 'a' | count", "ix_machines_"),
    ],
)
def test_an_index_serves(planned: Planned, text: str, index: str) -> None:
    """Rows are found by it, and are in order as it has them."""
    steps = planned(text)
    assert index in steps, steps
    assert not SORTS.search(steps), steps


def test_the_newest_entries_are_at_the_end(planned: Planned) -> None:
    """By number nothing is sorted: the table, or its key, is read from its end."""
    steps = planned("AuditLog | sort by id desc | take 50")
    assert not SORTS.search(steps), steps


def test_what_an_outer_join_leaves_out_may_be_missing() -> None:
    """A column that is never null in its own table is, where there is no row of it for a machine."""
    machines = catalog.catalog(frozenset(Right), AT)["Machines"]
    assert {"machine_id", "status", "registered_at"} <= machines.never_null
    assert not {"tpm_vendor", "ek_chain_reason", "hostname", "trust", "labels"} & machines.never_null
    assert not table_of(EKCertificateRow).c.reason.nullable
