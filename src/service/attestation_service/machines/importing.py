"""A receipt becomes a machine that is expected: visible, and admitted by nothing but a proof (D&O §8, ADR 208).

A receipt has the fingerprint of an EK and no key, and whoever carries it can have written it. So the row waits, cannot
be approved, and is completed when a machine proves that EK: then it is judged as one that nobody knew.
"""

from __future__ import annotations

import json
import uuid
from datetime import datetime
from typing import Final, Literal

from attestation.api import ImportedMachine, ReceiptImport
from attestation.clock import rfc3339
from attestation.machines import DEFAULT_CLUSTER, Anchor, Machine, Status
from attestation.machines.chips import Mark, MarkKind
from attestation.machines.chips import judge as kinship_of
from attestation.results import Assurance
from attestation.store import Tx
from attestation_service.auth import OperatorDep
from attestation_service.entitlements import alarms
from attestation_service.resources import Res

HINTS: Final = ("hw_uuid", "hw_mac", "hw_serial", "hw_product")
EXPECTED: Final = "expected: it waits until a machine proves this EK"
LISTED: Final = "expected, and on the allow-list: it is admitted when it proves this EK"


async def import_receipt(request: ReceiptImport, *, res: Res, operator: OperatorDep) -> ImportedMachine:
    """Expect the machine of a receipt.

    It waits until it proves its EK, and cannot be approved before. A machine that is known stays as it is.

    Raises:
        EKConflict: Another request was faster; ask again.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ImportedMachine:
        listed = tx.allow_list.get(request.ek_fingerprint) is not None
        known = tx.machines.by_ek(request.ek_fingerprint)
        if known is not None:
            differs = [name for name in HINTS if getattr(known, name) != getattr(request, name)]
            return _answer("known", known, listed, differs, f"known already: {known.status}")
        # 1. A TPM that was known before is told of, as when it comes by itself.
        marks = [Mark(MarkKind.EK, request.ek_fingerprint)]
        kinship = kinship_of(tx.chip_marks.relatives("", marks))
        machine = _expected(request, kinship.alarm, at)
        words = LISTED if listed else EXPECTED
        if request.dry_run:
            return _answer("would-add", machine, listed, [], words)
        # 2. All or nothing.
        tx.machines.add(machine)
        detail = {
            "ek_fingerprint": request.ek_fingerprint,
            "install_mode": request.install_mode,
            "wished_role": request.role,
            "installed_at": request.installed_at and rfc3339(request.installed_at),
            "said_machine_id": request.machine_id,
        }
        tx.audit.append(
            operator.event(
                "import",
                machine_id=machine.machine_id,
                new_state=machine.status,
                detail=json.dumps(detail, separators=(",", ":")),
            ),
            at,
        )
        if kinship.alarm is not None:
            assert kinship.about is not None
            told = f"machine {machine.machine_id} (a receipt): {kinship.alarm}"
            alarms.sound(tx, told, at, subject=kinship.about, machine=machine)
        return _answer("added", machine, listed, [], words)

    return await (res.store.read(work) if request.dry_run else res.store.write(work))


def _answer(
    result: Literal["added", "known", "would-add"],
    machine: Machine,
    listed: bool,
    differs: list[str],
    words: str,
) -> ImportedMachine:
    return ImportedMachine(
        result=result,
        machine_id=None if result == "would-add" else machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        status=machine.status,
        role=machine.role,
        admitted_in_advance=listed and machine.expected,
        differs=differs,
        message=words,
    )


def _expected(request: ReceiptImport, alarm: str | None, at: datetime) -> Machine:
    """Return a machine of which nothing is proven: no key, no level, an id of its own."""
    return Machine(
        machine_id=str(uuid.uuid4()),
        version=1,
        status=Status.PENDING_APPROVAL,
        role=None,
        cluster_id=DEFAULT_CLUSTER,
        anchor=Anchor(
            ek_fingerprint=request.ek_fingerprint,
            ek_public=b"",
            ek_source=request.ek_source,
            ek_template="unknown",
            ek_certificate=None,
            ek_chain_ok=False,
            ek_allow_listed=False,
            ak_public=None,
            ak_name=None,
            ak_activated_at=None,
        ),
        assurance=Assurance.NONE,
        **{name: getattr(request, name) for name in HINTS},
        desired_role=request.role,
        hostname=None,
        assigned_ip=None,
        registered_from=None,
        registered_at=at,
        attested_at=None,
        locked_at=None,
        revoked_at=None,
        rejected_at=None,
        wipe_pending=False,
        wiped_at=None,
        config_owed_since=None,
        clock=None,
        last_verdict=None,
        last_result_at=None,
        last_policy=None,
        last_failed=None,
        last_result_key=None,
        trust_expires_at=None,
        directive_sha256=None,
        alarm=alarm,
    )
