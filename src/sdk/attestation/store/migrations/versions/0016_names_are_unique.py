"""Host names and addresses are unique in a cluster, among machines that are neither revoked nor rejected.

Every machine is kept. Of those that are called alike the oldest has the name; the others are marked, so that they are
outside of the constraint until an operator decides. How names are spelled when they are compared is told here by the
rules of the day on which this revision was written.
"""

from __future__ import annotations

import ipaddress
import re

import idna
import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

NAMED = "name_key IS NOT NULL"
ADDRESSED = "address_key IS NOT NULL"
NAMELESS = ("revoked", "rejected")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


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
        if status in NAMELESS:
            continue
        name = None if hostname is None else _host(hostname)
        address = None if assigned_ip is None else _address(assigned_ip)
        claims = {
            (kind, cluster_id, value)
            for kind, value in (("name", name), ("address", address))
            if value is not None
        }
        shares = not claims.isdisjoint(taken)
        # Who shares one name holds none, so that the constraint need not know which of the two it was.
        taken |= set() if shares else claims
        bind.execute(
            sa.update(machines)
            .where(machines.c.id == row_id)
            .values(name_key=name, address_key=address, shares_names=shares)
        )


def _host(text: str) -> str:
    """Return A-labels in lower case without a dot at the end; of what is no host name, its letters in lower case."""
    name = text.lower()
    if len(text) <= 1024 and (not name.isascii() or "xn--" in name):
        try:
            name = idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
        except UnicodeError:
            return text.lower()
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(map(LABEL.fullmatch, labels)) or NUMBER.fullmatch(labels[-1]):
        return text.lower()
    return name


def _address(text: str) -> str:
    """Return the address without its prefix length, IPv4 in IPv6 as IPv4; of what is none, its letters as above."""
    if "%" in text or not text.isascii():
        return text.lower()
    prefixed = text if "/" in text else f"{text}/{128 if ':' in text else 32}"
    try:
        found = ipaddress.ip_interface(prefixed)
        mapped = getattr(found.ip, "ipv4_mapped", None)
        if mapped is not None:
            found = ipaddress.IPv4Interface((mapped, found.network.prefixlen - 96))
    except ValueError:
        return text.lower()
    return str(found.ip)
