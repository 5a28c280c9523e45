"""Tokens are listed, and forgotten, by their end."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the index by which those are found that end first."""
    op.create_index(
        "extension_machine_identity_tokens_end", "extension_machine_identity_tokens", ["expires_at"]
    )
