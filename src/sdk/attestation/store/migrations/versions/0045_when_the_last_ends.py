"""When the last certificate of a CA key in hardware ends is asked by its controller, by metrics and by `doctor`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    """Add the index."""
    op.create_index(
        "ix_hsm_certificates_ends",
        "hsm_certificates",
        ["issuer_id", "not_after"],
        sqlite_where=sa.text("state != 'void'"),
        postgresql_where=sa.text("state != 'void'"),
    )
