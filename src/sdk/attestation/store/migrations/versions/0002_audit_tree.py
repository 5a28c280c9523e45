"""The Merkle tree over the audit log, its signed checkpoints, and what others said of them.

The tree is filled from the entries that are there: in pages, so in constant memory, and only if they are the
chain that they claim to be. A tree over a log with a gap or a changed entry would make somebody's tampering
part of what is signed from now on; such a database stays at 0001 until its backup is restored.
"""

# Algorithms for: audit-hash
from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

from attestation.errors import StoreUnavailable

revision = "0002"
down_revision = "0001"

PAGE = 1000
TILE_WIDTH = 256
GENESIS = "0" * 64
APPEND_ONLY_TABLES = ("audit_nodes", "audit_checkpoints", "audit_countersignatures")

# Canonical members of format 1 (DELIVERY-AND-OPERATORS §19.1), as they were when this revision was written.
MEMBERS = (
    "timestamp",
    "operator_cn",
    "operator_sub",
    "action",
    "machine_id",
    "prev_state",
    "new_state",
    "detail",
    "source_ip",
    "format",
    "prev_hash",
)


def _append_only(table: str) -> dict[str, tuple[str, ...]]:
    return {
        "sqlite": tuple(
            f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            for verb in ("UPDATE", "DELETE")
        ),
        "postgresql": (
            (
                f"CREATE FUNCTION {table}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ "
                f"BEGIN RAISE EXCEPTION '{table} is append-only' "
                "USING ERRCODE = 'integrity_constraint_violation'; END $$"
            ),
            (
                f"CREATE TRIGGER {table}_refuses_change BEFORE UPDATE OR DELETE ON {table} "
                f"FOR EACH ROW EXECUTE FUNCTION {table}_is_append_only()"
            ),
            (
                f"CREATE TRIGGER {table}_refuses_truncate BEFORE TRUNCATE ON {table} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_is_append_only()"
            ),
        ),
    }


# A leaf's place in the tree is its id less one, so ids have no gap: by the database itself.
WITHOUT_GAP = {
    "sqlite": (
        """CREATE TRIGGER audit_log_refuses_gap BEFORE INSERT ON audit_log
        WHEN NEW.id IS NOT (SELECT COALESCE(MAX(id), 0) + 1 FROM audit_log)
        BEGIN SELECT RAISE(ABORT, 'audit_log ids have no gap'); END""",
    ),
    "postgresql": (
        """CREATE FUNCTION audit_log_has_no_gap() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.id IS DISTINCT FROM (SELECT COALESCE(MAX(id), 0) + 1 FROM audit_log) THEN
                RAISE EXCEPTION 'audit_log ids have no gap' USING ERRCODE = 'integrity_constraint_violation';
            END IF;
            RETURN NEW;
        END $$""",
        """CREATE TRIGGER audit_log_refuses_gap BEFORE INSERT ON audit_log
        FOR EACH ROW EXECUTE FUNCTION audit_log_has_no_gap()""",
    ),
}


def upgrade() -> None:
    """Add the three tables, fill the tree, and forbid gaps and changes."""
    op.create_table(
        "audit_nodes",
        sa.Column("level", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(hash) = 32", name=op.f("ck_audit_nodes_hash")),
        sa.PrimaryKeyConstraint("level", "position", name=op.f("pk_audit_nodes")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "audit_checkpoints",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("length(root) = 32", name=op.f("ck_audit_checkpoints_root")),
        sa.CheckConstraint("size >= 0", name=op.f("ck_audit_checkpoints_size")),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_audit_checkpoints")),
    )
    op.create_table(
        "audit_countersignatures",
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("signer", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('cosignature', 'timestamp')", name=op.f("ck_audit_countersignatures_kind")
        ),
        sa.ForeignKeyConstraint(
            ["size"], ["audit_checkpoints.size"], name=op.f("fk_audit_countersignatures_size")
        ),
        sa.PrimaryKeyConstraint("size", "kind", "signer", name=op.f("pk_audit_countersignatures")),
    )
    _fill(op.get_bind())
    dialect = op.get_context().dialect.name
    for table in APPEND_ONLY_TABLES:
        for statement in _append_only(table)[dialect]:
            op.execute(statement)
    for statement in WITHOUT_GAP[dialect]:
        op.execute(statement)


def _fill(connection: sa.Connection) -> None:
    page = sa.text(
        # MEMBERS is ours, above.
        f"SELECT id, entry_hash, {', '.join(MEMBERS)} FROM audit_log "  # noqa: S608
        "WHERE id > :after ORDER BY id LIMIT :rows"
    )
    insert = sa.text("INSERT INTO audit_nodes (level, position, hash) VALUES (:level, :position, :hash)")
    incomplete: list[list[bytes]] = [[]]  # by level: the nodes of the tile that is not full yet
    done, prev_hash = 0, GENESIS
    while rows := connection.execute(page, {"after": done, "rows": PAGE}).fetchall():
        nodes: list[dict[str, object]] = []
        for row_id, entry_hash, *values in rows:
            members = dict(zip(MEMBERS, values, strict=True))
            data = json.dumps(members, sort_keys=True, separators=(",", ":")).encode("ascii")
            if row_id != done + 1:
                raise StoreUnavailable(
                    f"the audit log cannot become a tree: after entry {done} comes {row_id}; restore a backup"
                )
            if members["prev_hash"] != prev_hash or hashlib.sha256(data).hexdigest() != entry_hash:
                raise StoreUnavailable(
                    f"the audit log cannot become a tree: entry {row_id} does not fit the chain; "
                    "restore a backup"
                )
            _add(nodes, incomplete, done, hashlib.sha256(b"\x00" + data).digest())
            done, prev_hash = row_id, entry_hash
        connection.execute(insert, nodes)


def _add(nodes: list[dict[str, object]], incomplete: list[list[bytes]], position: int, leaf: bytes) -> None:
    """Collect the rows that a new *leaf* adds: its own, and one for each tile that it completes."""
    level, node = 0, leaf
    while True:
        nodes.append({"level": level, "position": position, "hash": node})
        tile = incomplete[level]
        tile.append(node)
        if len(tile) < TILE_WIDTH:
            return
        node, position, level = _root(tile), position // TILE_WIDTH, level + 1
        tile.clear()
        if level == len(incomplete):
            incomplete.append([])


def _root(tile: list[bytes]) -> bytes:
    while len(tile) > 1:
        tile = [
            hashlib.sha256(b"\x01" + left + right).digest()
            for left, right in zip(tile[::2], tile[1::2], strict=True)
        ]
    return tile[0]
