"""Keep for ever which EK an AK belongs to, and what marks a chip; weigh what machines that wait keep.

Every machine stays. Where two of them have the same AK, it is bound to the one that came first; the other one says so
in its `alarm`, and an operator decides.

What marks a chip is told here by the rules of the day on which this revision was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

BATCH = 1000

PLACEHOLDERS = frozenset(
    {
        "unknown", "none", "null", "n/a", "na", "default", "default string", "default-string", "invalid", "empty",
        "not specified", "not applicable", "not available", "not set", "to be filled by o.e.m.", "tobefilledbyo.e.m.",
        "to be filled by oem", "o.e.m.", "oem", "system serial number", "chassis serial number",
        "base board serial number",
        "serial number", "serialnumber", "system serial", "board serial", "123456789", "1234567890", "0123456789",
        "12345678", "123456", "1234", "xxxxxxxxxxx", "qemu", "vmware", "virtualbox", "xen",
        # UUIDs that many boards share.
        "03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc", "12345678-1234-5678-90ab-cdefaabbccdd",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
    }
)  # fmt: skip

# Tags of strings: UTF8, Numeric, Printable, Teletex, IA5, Visible, Universal, BMP.
STRINGS = {
    0x0C: "utf-8",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
    **dict.fromkeys((0x12, 0x13, 0x14, 0x16, 0x1A), "latin-1"),
}


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
            {"kind": kind, "value": value, "machine_id": machine_id}
            for _, machine_id, ek, hw_serial, hw_uuid, maker, model, certificate in found
            for kind, value in (
                ("ek", ek),
                ("ek-serial", _chip_serial(maker, model, certificate)),
                ("hw-serial", _telling(hw_serial)),
                ("hw-uuid", _telling(hw_uuid)),
            )
            if value is not None
        ]
        connection.execute(sa.insert(marks), noted)


def _telling(text: str) -> str | None:
    """Return *text* as it is compared; None where it is short, a placeholder, or one sign repeated."""
    value = text.strip().casefold()[:128]
    if len(value) < 4 or value in PLACEHOLDERS or len(set(re.sub(r"[\s._:/-]+", "", value))) < 2:
        return None
    return value


def _chip_serial(maker: str | None, model: str | None, certificate: bytes | None) -> str | None:
    """Return maker, model and number of the chip; None where its certificate gives no number."""
    number = _telling(_subject_serial(certificate) or "") if certificate is not None else None
    return None if number is None else f"{(maker or '').lower()} {(model or '').lower()} {number}"


def _subject_serial(certificate: bytes) -> str | None:
    """Return the serialNumber (X.520, 2.5.4.5) in the subject of a certificate (DER), which was read when it came."""
    # Certificate { tbsCertificate { [0] version?, serial, signature, issuer, validity, subject, … } (RFC 5280, 4.1).
    tbs = next((value for _, value in _der(next((value for _, value in _der(certificate)), b""))), b"")
    fields = [value for tag, value in _der(tbs) if tag != 0xA0]
    for _, relative in _der(fields[4] if len(fields) > 4 else b""):
        for _, attribute in _der(relative):
            match list(_der(attribute)):
                case [(0x06, b"\x55\x04\x05"), (tag, text)] if tag in STRINGS:
                    return text.decode(STRINGS[tag], errors="replace")
    return None


def _der(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of the values in *data*, up to the first that is cut."""
    at = 0
    while at + 2 <= len(data):
        tag, size, at = data[at], data[at + 1], at + 2
        if size >= 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count]), at + count
        if at + size > len(data):
            return
        yield tag, data[at : at + size]
        at += size
