"""Host names and addresses are unique in a cluster, among machines that are neither revoked nor rejected.

Every machine is kept. Of those that are called alike the oldest has the name; the others are marked, so that they are
outside of the constraint until an operator decides.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from attestation.machines import Status
from attestation.machines.names import NAMELESS, names_of

revision = "0015"
down_revision = "0010"

NAMED = "name_key IS NOT NULL"
ADDRESSED = "address_key IS NOT NULL"


def upgrade() -> None:
    """Add the names as they are compared, mark who shares one, then let the constraints hold for the others."""
    op.add_column(
        "machines", sa.Column("shares_names", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("machines", sa.Column("name_key", sa.Text(), nullable=True))
    op.add_column("machines", sa.Column("address_key", sa.Text(), nullable=True))
    _fill()
    for column, present in (("name_key", NAMED), ("address_key", ADDRESSED)):
        alone = sa.text(f"{present} AND NOT shares_names")
        op.create_index(
            f"uq_machines_cluster_id_{column}",
            "machines",
            ["cluster_id", column],
            unique=True,
            sqlite_where=alone,
            postgresql_where=alone,
        )
        called = sa.text(present)
        op.create_index(
            f"ix_machines_{column}", "machines", [column], sqlite_where=called, postgresql_where=called
        )


def _fill() -> None:
    machines = sa.table(
        "machines",
        *(sa.column(name) for name in ("id", "status", "cluster_id", "hostname", "assigned_ip")),
        *(sa.column(name) for name in ("name_key", "address_key")),
        sa.column("shares_names", sa.Boolean()),
    )
    bind = op.get_bind()
    rows = bind.execute(
        sa.select(*(machines.c[name] for name in ("id", "status", "cluster_id", "hostname", "assigned_ip")))
        .where(sa.or_(machines.c.hostname.is_not(None), machines.c.assigned_ip.is_not(None)))
        .order_by(machines.c.id)
    ).all()
    taken: set[tuple[str, str, str]] = set()
    for row_id, status, cluster_id, hostname, assigned_ip in rows:
        if Status(status) in NAMELESS:
            continue
        names = names_of(hostname, assigned_ip)
        claims = {
            (kind, cluster_id, value)
            for kind, value in (("name", names.hostname), ("address", names.address))
            if value is not None
        }
        shares = not claims.isdisjoint(taken)
        # Who shares one name holds none, so that the constraint need not know which of the two it was.
        taken |= set() if shares else claims
        bind.execute(
            sa.update(machines)
            .where(machines.c.id == row_id)
            .values(name_key=names.hostname, address_key=names.address, shares_names=shares)
        )
