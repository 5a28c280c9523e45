"""The audit log by time: queries ask for the last hour, or for the newest first, of millions of entries."""

from __future__ import annotations

from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    """Add the index: by code point, whatever the language of the database, which is the order of time."""
    op.create_index(
        "ix_audit_log_timestamp", "audit_log", ["timestamp"], postgresql_ops={"timestamp": 'COLLATE "C"'}
    )
