"""Know who is still to be told of an unlock, and which keys of the service a machine pinned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add both, of nobody; who has a configuration that was not fetched yet is offered it until it was."""
    op.add_column(
        "machines", sa.Column("unlock_pending", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("machines", sa.Column("pinned_keys", sa.LargeBinary(), nullable=True))
    op.execute(
        "UPDATE machines SET redeliver = TRUE WHERE status = 'attested' AND machine_id IN "
        "(SELECT machine_id FROM config_tokens WHERE used_at IS NULL AND withdrawn_at IS NULL)"
    )
