"""What operators may see of machines."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query

from attestation.api import (
    AKVouchingDetail,
    KeyBindingDetail,
    KeysDetail,
    MachineDetail,
    MachinePage,
    OpenActivation,
    RelativeDetail,
)
from attestation.api.base import CLUSTER_ID_PATTERN, MACHINE_IDS
from attestation.api.operations import MachineSort
from attestation.endorsements.certificate import parse_certificate
from attestation.machines import (
    Machine,
    Role,
    Status,
    Trust,
    labels,
)
from attestation.machines.chips import MarkKind
from attestation.machines.labels import MAX_SELECTOR
from attestation.store import MachineFilter, Tx
from attestation_service.auth import Operator, OperatorDep
from attestation_service.context.reach import cluster_of, holds
from attestation_service.machines.presentation import approved_of, machine_detail
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Id, Limit


async def list_machines(
    status: Annotated[Status | None, Query()] = None,
    role: Annotated[Role | None, Query()] = None,
    cluster_id: Annotated[str | None, Query(pattern=CLUSTER_ID_PATTERN)] = None,
    trust: Annotated[Trust | None, Query(description="What the last result is worth now")] = None,
    q: Annotated[
        str | None,
        Query(
            max_length=128,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="Part of hostname, serial, MAC or UUID; beginning of machine id or EK fingerprint",
        ),
    ] = None,
    with_labels: Annotated[
        str | None,
        Query(
            alias="labels",
            max_length=MAX_SELECTOR,
            description="Only with all of these labels: `rack=4,site=ams`; `site` alone is with any value",
        ),
    ] = None,
    ids: Annotated[
        str | None,
        Query(
            pattern=MACHINE_IDS,
            description="Only these, with commas between, 50 at most; each as it is shown alone",
        ),
    ] = None,
    sort: Annotated[
        MachineSort | None,
        Query(
            description="By what, with `-` before it downwards; who has no such value comes last both ways"
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
    operator: OperatorDep,
) -> MachinePage:
    """List machines, newest first, or sorted.

    Filters are combined; the cursor of a page leads to the next in the same order. What is not there is left out.
    """
    at = res.clock.now()
    wanted = MachineFilter(
        status=status,
        role=role,
        cluster_id=cluster_id,
        trust=None if trust is None else (trust, at),
        q=q,
        labels=labels.parse_selector(with_labels) if with_labels else {},
        ids=ids.split(",") if ids else (),
        within=operator.clusters,
    )

    def work(tx: Tx) -> MachinePage:
        page = tx.machines.page(wanted, cursor, limit, sort)
        if ids:
            items = [_whole(tx, each, res, operator, at) for each in page.items]
            return MachinePage(items=items, next_cursor=page.next_cursor)
        found = [m.machine_id for m in page.items]
        votes, worn = tx.approvals.live_of(found, at), tx.labels.of_each(found)
        return MachinePage(
            items=[
                machine_detail(
                    m,
                    dual_control.shown(
                        tx, votes.get(m.machine_id, []), res.settings, at, clusters=operator.clusters
                    ),
                    worn.get(m.machine_id, {}),
                    at,
                )
                for m in page.items
            ],
            next_cursor=page.next_cursor,
        )

    return await res.store.read(work)


async def get_machine(machine_id: Id, *, res: Res, operator: OperatorDep) -> MachineDetail:
    """Show one machine.

    Everything but tokens, nonces and keys.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> MachineDetail:
        return _whole(tx, tx.machines.require(machine_id), res, operator, at)

    return await res.store.read(work)


def _whole(tx: Tx, machine: Machine, res: Resources, operator: Operator, at: datetime) -> MachineDetail:
    """Return all that *operator* sees of *machine*: what a list leaves out too."""
    relatives = [each for each in _relatives(tx, machine) if _sees(tx, operator, each.machine_id)]
    found = detail_of(tx, machine, res, operator, at)
    codes = tx.console_codes.of_hardware(found.hw_uuid, found.hw_mac, found.hw_serial, at)
    return found.model_copy(update={"relatives": relatives, "console_codes": codes})


def _sees(tx: Tx, operator: Operator, machine_id: str) -> bool:
    """Return True if *operator* may see that a machine is or was there; one that is gone was in any cluster."""
    if operator.clusters is None:
        return True
    machine = tx.machines.by_id(machine_id)
    return machine is not None and holds(operator, cluster_of(machine))


async def get_keys(machine_id: Id, *, res: Res, operator: OperatorDep) -> KeysDetail:
    """Show where the activation of a machine's keys stands.

    Names and times; never a key, nonce or credential.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> KeysDetail:
        machine = tx.machines.require(machine_id)
        eks = [mark.value for mark in tx.chip_marks.of(machine_id) if mark.kind is MarkKind.EK]
        return KeysDetail(
            machine_id=machine_id,
            ek_fingerprint=machine.fingerprint,
            ek_template=machine.anchor.ek_template,
            ek_alternatives=[ek for ek in eks if ek != machine.fingerprint],
            ak_name=machine.key_name.hex() if machine.key_name else None,
            ak_activated_at=machine.anchor.ak_activated_at,
            earlier=[
                KeyBindingDetail(ak_name=b.ak_name.hex(), machine_id=b.machine_id, bound_at=b.bound_at)
                for b in tx.ak_bindings.of_ek(machine.fingerprint)
                if b.ak_name != machine.key_name
                and (b.machine_id == machine_id or _sees(tx, operator, b.machine_id))
            ],
            activations=[
                OpenActivation(issued_at=c.issued_at, expires_at=c.expires_at)
                for c in tx.challenges.open_of(machine.fingerprint, "activate", at)
            ],
            ak_certificate=_vouching(tx, machine),
        )

    return await res.store.read(work)


def _vouching(tx: Tx, machine: Machine) -> AKVouchingDetail | None:
    """Return who vouches for the attestation key, as it was judged last."""
    stored = tx.ak_certificates.get(machine.machine_id)
    if stored is None:
        return None
    read = parse_certificate(stored.certificate)
    counts = stored.ak_name == machine.key_name
    return AKVouchingDetail(
        subject=read.subject,
        issuer=read.issuer,
        sha256=read.sha256,
        ok=stored.validation.ok and counts,
        reason=stored.validation.reason if counts else "it is about another attestation key",
        anchor_sha256=stored.validation.anchor_sha256,
        judged_at=stored.judged_at,
    )


def detail_of(tx: Tx, machine: Machine, res: Resources, operator: Operator, at: datetime) -> MachineDetail:
    """Return what *operator* sees of *machine*."""
    votes = tx.approvals.live_of([machine.machine_id], at).get(machine.machine_id, [])
    shown = dual_control.shown(tx, votes, res.settings, at, clusters=operator.clusters)
    return machine_detail(machine, shown, tx.labels.of(machine.machine_id), at, approved_of(tx, machine))


def _relatives(tx: Tx, machine: Machine) -> list[RelativeDetail]:
    """Return who is or may be the same chip, those that are gone too."""
    found = [
        RelativeDetail(
            machine_id=each.machine_id,
            mark=each.mark.kind,
            same_chip=each.is_same_chip,
            status=each.status,
            deleted_at=each.deleted_at,
        )
        for each in tx.chip_marks.relatives(machine.machine_id, tx.chip_marks.of(machine.machine_id))
    ]
    known = {machine.machine_id, *(each.machine_id for each in found)}
    purged = [each for each, _ in tx.ak_bindings.machines_of(machine.fingerprint) if each not in known]
    return found + [
        RelativeDetail(machine_id=each, mark=MarkKind.EK, same_chip=True, status=None, deleted_at=None)
        for each in purged
    ]
