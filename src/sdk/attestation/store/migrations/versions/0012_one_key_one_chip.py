"""Keep for ever which EK an AK belongs to, and what marks a chip; weigh what machines that wait keep.

Every machine stays. Where two of them have the same AK, it is bound to the one that came first; the other one says so
in its `alarm`, and an operator decides.
"""

from __future__ import annotations

import contextlib

import sqlalchemy as sa
from alembic import op

from attestation.errors import MalformedEvidence
from attestation.evidence import ek_certificate
from attestation.machines.chips import chip_serial, marks_of

revision = "0012"
down_revision = "0021"

BATCH = 1000


def upgrade() -> None:
    """Create the tables and fill them from the machines that are there."""
    op.create_table(
        "ak_bindings",
        sa.Column("ak_name", sa.LargeBinary(), nullable=False),
        sa.Column("ek_fingerprint", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("bound_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("ak_name", name=op.f("pk_ak_bindings")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_ak_bindings_ek_fingerprint", "ak_bindings", ["ek_fingerprint"])
    op.create_table(
        "chip_marks",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("ended_as", sa.Text(), nullable=True),
        sa.Column("ended_believed", sa.Boolean(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('ek', 'ek-serial', 'hw-serial', 'hw-uuid')", name=op.f("ck_chip_marks_kind")
        ),
        sa.CheckConstraint(
            "ended_as IN ('pending_approval', 'registered', 'attested', 'rejected', 'locked', 'revoked')",
            name=op.f("ck_chip_marks_ended_as"),
        ),
        sa.PrimaryKeyConstraint("kind", "value", "machine_id", name=op.f("pk_chip_marks")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_chip_marks_machine_id", "chip_marks", ["machine_id"])
    op.add_column("machines", sa.Column("kept_bytes", sa.BigInteger(), server_default="0", nullable=False))
    op.drop_index("ix_machines_status_registered_from", "machines")
    op.create_index(
        "ix_machines_status_registered_from_kept_bytes",
        "machines",
        ["status", "registered_from", "kept_bytes"],
    )
    op.execute(
        "INSERT INTO ak_bindings (ak_name, ek_fingerprint, machine_id, bound_at) "
        "SELECT ak_name, ek_fingerprint, machine_id, COALESCE(ak_activated_at, registered_at) "
        "FROM machines WHERE id IN (SELECT MIN(id) FROM machines WHERE ak_name IS NOT NULL GROUP BY ak_name)"
    )
    op.execute(
        "UPDATE machines SET alarm = 'its attestation key belongs to the EK of another machine, ' || "
        "(SELECT b.machine_id FROM ak_bindings b WHERE b.ak_name = machines.ak_name) "
        "WHERE ak_name IS NOT NULL "
        "AND id NOT IN (SELECT MIN(id) FROM machines WHERE ak_name IS NOT NULL GROUP BY ak_name)"
    )
    op.execute(
        "UPDATE machines SET kept_bytes = COALESCE((SELECT LENGTH(e.certificate) + LENGTH(e.chain) + LENGTH(e.path) "
        "FROM ek_certificates e WHERE e.machine_id = machines.machine_id), 0)"
    )
    _mark()


def _mark() -> None:
    """Note what marks the chip of each machine."""
    connection = op.get_bind()
    marks = sa.table("chip_marks", sa.column("kind"), sa.column("value"), sa.column("machine_id"))
    rows = sa.text(
        "SELECT m.id, m.machine_id, m.ek_fingerprint, m.hw_serial, m.hw_uuid, m.ek_certificate_manufacturer, "
        "m.ek_certificate_model, e.certificate FROM machines m LEFT JOIN ek_certificates e "
        "ON e.machine_id = m.machine_id WHERE m.id > :after ORDER BY m.id LIMIT :rows"
    )
    after = 0
    while found := connection.execute(rows, {"after": after, "rows": BATCH}).all():
        after = found[-1][0]
        noted = [
            {"kind": mark.kind.value, "value": mark.value, "machine_id": machine_id}
            for _, machine_id, ek, hw_serial, hw_uuid, maker, model, certificate in found
            for mark in marks_of(
                eks=[ek],
                chip_serials=_serials(maker, model, certificate),
                hw_serial=hw_serial,
                hw_uuid=hw_uuid,
            )
        ]
        connection.execute(sa.insert(marks), noted)


def _serials(maker: str | None, model: str | None, certificate: bytes | None) -> list[str]:
    serial = None
    if certificate is not None:
        with contextlib.suppress(MalformedEvidence):
            serial = chip_serial(
                maker or "",
                model or "",
                ek_certificate.chip_serial(ek_certificate.parse(certificate).certificate),
            )
    return [] if serial is None else [serial]
