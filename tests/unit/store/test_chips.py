"""Bindings of AKs and marks of chips: an old database gets them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from attestation.machines import EKCertificateInfo, Status
from attestation.machines.chips import Mark, MarkKind
from attestation.store import Tx, migrate, open_store
from attestation_testing.certificates import EKCertificateOptions, make_ek_certificate
from tests.contract.store_samples import a_machine
from tests.fixtures.vendor import IFX, ISSUER, MADE
from tests.unit.service.node import SoftwareNode
from tests.unit.store.test_migrate import revision_of


def test_an_old_database_gets_bindings_and_marks(tmp_path: Path) -> None:
    """Every machine stays; where two share an AK, the first one has it and the other one says so in words."""
    path, node = tmp_path / "old.db", SoftwareNode()
    revision_of(f"sqlite:///{path}", "0009")
    certificate = make_ek_certificate(
        node.ek, ISSUER, at=MADE, options=EKCertificateOptions(manufacturer=IFX, chip_serial="T-4711")
    )
    info = EKCertificateInfo(subject="", manufacturer=IFX, model="swtpm", firmware="1", sha256="ab" * 32)
    machines = [
        a_machine(1, hw_serial="8XK2M13", ek_certificate=info, status=Status.REVOKED),
        a_machine(2, ak_name=a_machine(1).tpm.ak_name, hw_uuid="unknown"),
        a_machine(3, ak_name=None, ak_public=None, ak_activated_at=None),
    ]
    migrate(f"sqlite:///{tmp_path}/today.db")
    today = open_store(f"sqlite:///{tmp_path}/today.db")

    def add(tx: Tx) -> None:
        for machine in machines:
            tx.machines.add(machine)

    today.write_sync(add)
    today.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("ATTACH ? AS today", (f"{tmp_path}/today.db",))
        columns = ", ".join(row[1] for row in db.execute("PRAGMA main.table_info(machines)"))
        # What today has no column for any more was no.
        copied = columns.replace("redeliver", "0")
        db.execute(f"INSERT INTO main.machines ({columns}) SELECT {copied} FROM today.machines")
        db.execute(
            "INSERT INTO ek_certificates (machine_id, certificate, chain, ok, reason, path, revocation, judged_at) "
            "VALUES (?, ?, '[]', 1, '', '[]', '', 0)",
            (machines[0].machine_id, certificate),
        )
        db.commit()
    migrate(f"sqlite:///{path}")
    store = open_store(f"sqlite:///{path}")
    ids = [machine.machine_id for machine in machines]
    found = store.read_sync(lambda tx: [tx.machines.by_id(each) for each in ids])
    alarms = [each.alarm for each in found if each is not None]
    assert alarms == [None, f"its attestation key belongs to the EK of another machine, {ids[0]}", None]
    bound = store.read_sync(lambda tx: tx.ak_bindings.get(machines[0].tpm.ak_name or b""))
    assert bound is not None
    assert (bound.ek_fingerprint, bound.machine_id) == (machines[0].tpm.ek_fingerprint, ids[0])
    assert store.read_sync(lambda tx: tx.chip_marks.of(ids[0])) == (
        Mark(MarkKind.EK, machines[0].tpm.ek_fingerprint),
        Mark(MarkKind.EK_SERIAL, f"{IFX} swtpm t-4711"),
        Mark(MarkKind.HW_SERIAL, "8xk2m13"),
        Mark(MarkKind.HW_UUID, "uuid-1"),
    )
    assert store.read_sync(lambda tx: [mark.kind for mark in tx.chip_marks.of(ids[1])]) == [
        MarkKind.EK,
        MarkKind.HW_SERIAL,
    ]
    assert found[0] is not None
    assert found[0].kept_bytes == len(certificate) + 4
    store.close()
