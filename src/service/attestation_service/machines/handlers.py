"""Operators' acts on machines: each is one unit of state change, audit entry and event (FAULTS R5, R21).

What is allowed in which status stands in `attestation.machines.lifecycle`; here stands what an act changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from attestation.api import (
    ApproveRequest,
    LockRequest,
    MachineDetail,
    MachinePage,
    ReasonRequest,
    ResultPage,
    RevokeRequest,
)
from attestation.errors import MachineChanged, MachineUnknown, TransitionForbidden
from attestation.machines import Machine, NodeEvent, Operation, Status, next_status
from attestation.store import MachineFilter, Tx
from attestation_service.auth import Operator
from attestation_service.context import Resources
from attestation_service.events import emit
from attestation_service.machines.presentation import machine_detail, result_detail

UNTRUSTED: dict[str, Any] = {
    "last_verdict": None,
    "last_result_at": None,
    "last_policy": None,
    "last_failed": None,
    "last_result_key": None,
    "trust_expires_at": None,
}
"""After these the next attestation is the first again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Args:
        operation: What the lifecycle calls it.
        action: What the audit calls it.
        changes: Fields it sets beside the status.
        detail: For the audit.
        event: Event it emits, or None.
        meta: About the event.
        withdraws: The machine's config tokens lose their right.
        expected_version: The version the operator saw, or None.
    """

    operation: Operation
    action: str
    changes: dict[str, Any]
    detail: str | None = None
    event: NodeEvent | None = None
    meta: dict[str, Any] | None = None
    withdraws: bool = False
    expected_version: int | None = None


async def list_machines(
    wanted: MachineFilter, cursor: str | None, limit: int, *, res: Resources
) -> MachinePage:
    """Return machines, newest first."""
    at = res.clock.now()
    page = await res.store.read(lambda tx: tx.machines.page(wanted, cursor, limit))
    return MachinePage(items=[machine_detail(m, at) for m in page.items], next_cursor=page.next_cursor)


async def get_machine(machine_id: str, *, res: Resources) -> MachineDetail:
    """Return one machine.

    Raises:
        MachineUnknown: No such machine.
    """
    machine = await res.store.read(lambda tx: _machine(tx, machine_id))
    return machine_detail(machine, res.clock.now())


async def results(machine_id: str, cursor: str | None, limit: int, *, res: Resources) -> ResultPage:
    """Return the stored results of a machine, newest first.

    Raises:
        MachineUnknown: No such machine.
    """

    def work(tx: Tx) -> ResultPage:
        _machine(tx, machine_id)
        page = tx.results.page(machine_id, cursor, limit)
        return ResultPage(items=[result_detail(r) for r in page.items], next_cursor=page.next_cursor)

    return await res.store.read(work)


async def approve(
    machine_id: str, request: ApproveRequest, *, res: Resources, operator: Operator
) -> MachineDetail:
    """Admit a pending machine; its config token comes with its first good attestation."""
    granted = {"role": request.role, "hostname": request.hostname, "assigned_ip": request.assigned_ip}
    act = Act(
        operation=Operation.APPROVE,
        action="approve",
        changes=granted,
        detail=", ".join(f"{name} {value}" for name, value in granted.items() if value is not None),
        event=NodeEvent.PROVISIONED,
        expected_version=request.expected_version,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def reject(
    machine_id: str, request: ReasonRequest, *, res: Resources, operator: Operator
) -> MachineDetail:
    """Refuse a pending machine."""
    at = res.clock.now()
    act = Act(
        operation=Operation.REJECT,
        action="reject",
        changes={"rejected_at": at},
        detail=request.reason,
        event=NodeEvent.REJECTED,
        meta={"reason": request.reason},
        withdraws=True,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def lock(machine_id: str, request: LockRequest, *, res: Resources, operator: Operator) -> MachineDetail:
    """Suspend an attested machine: it is told at its next attestation, its tokens are void now."""
    at = res.clock.now()
    act = Act(
        operation=Operation.LOCK,
        action="lock",
        changes={"locked_at": at, "trust_expires_at": None},
        detail=request.reason,
        event=NodeEvent.LOCKED,
        meta={"reason": request.reason},
        withdraws=True,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def unlock(machine_id: str, *, res: Resources, operator: Operator) -> MachineDetail:
    """End a lock; a configuration still needs a fresh quote, so the old lease is not given back."""
    act = Act(
        operation=Operation.UNLOCK,
        action="unlock",
        changes={"locked_at": None, "trust_expires_at": None},
        event=NodeEvent.UNLOCKED,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def revoke(
    machine_id: str, request: RevokeRequest, *, res: Resources, operator: Operator
) -> MachineDetail:
    """End a machine's admission for good; a wipe is ordered at its next attestation."""
    at = res.clock.now()
    words = [request.reason or "", "wipe scheduled" if request.wipe else ""]
    act = Act(
        operation=Operation.REVOKE,
        action="revoke",
        changes={
            "revoked_at": at,
            "wipe_pending": request.wipe,
            "trust_expires_at": None,
            "redeliver": False,
        },
        detail="; ".join(word for word in words if word) or None,
        event=NodeEvent.DECOMMISSIONED,
        meta={"reason": request.reason},
        withdraws=True,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def ak_reset(
    machine_id: str, request: ReasonRequest, *, res: Resources, operator: Operator
) -> MachineDetail:
    """Forget the attestation key, so that the machine can activate another one; its trust begins anew."""

    def act(machine: Machine) -> Act:
        old = machine.ak_name.hex() if machine.ak_name else "none"
        return Act(
            operation=Operation.AK_RESET,
            action="ak_reset",
            changes={"ak_public": None, "ak_name": None, "ak_activated_at": None, "clock": None, **UNTRUSTED},
            detail=f"{request.reason}; old AK {old}",
            withdraws=True,
        )

    return await _perform(machine_id, act, res, operator)


async def redeliver(machine_id: str, *, res: Resources, operator: Operator) -> MachineDetail:
    """Offer the configuration again, at the next good attestation and until it was fetched."""
    act = Act(operation=Operation.REDELIVER, action="redeliver", changes={"redeliver": True})
    return await _perform(machine_id, lambda _: act, res, operator)


async def delete(machine_id: str, *, res: Resources, operator: Operator) -> None:
    """Delete a rejected or wiped machine; the audit keeps what happened.

    Raises:
        MachineUnknown: No such machine.
        TransitionForbidden: It is neither rejected nor wiped.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        machine = _machine(tx, machine_id)
        wiped = machine.status is Status.REVOKED and machine.wiped_at is not None
        if machine.status is not Status.REJECTED and not wiped:
            raise TransitionForbidden(
                f"only a rejected or wiped machine can be deleted; this one is {machine.status}"
            )
        tx.audit.append(
            operator.event(
                "delete",
                machine_id=machine_id,
                prev_state=machine.status,
                detail=f"EK {machine.ek_fingerprint}",
            ),
            at,
        )
        tx.machines.delete(machine_id)

    await res.store.write(work)


async def _perform(
    machine_id: str, decide: Callable[[Machine], Act], res: Resources, operator: Operator
) -> MachineDetail:
    """Do an act in one unit.

    Raises:
        MachineUnknown: No such machine.
        TransitionForbidden: Its status does not allow it.
        MachineChanged: It is not at the version that the operator saw.
    """
    at = res.clock.now()

    def work(tx: Tx) -> Machine:
        before = _machine(tx, machine_id)
        act = decide(before)
        # 1. The operator decided about what was shown, not about what came since (CVE-2022-1053).
        if act.expected_version is not None and act.expected_version != before.version:
            raise MachineChanged(f"the machine is at version {before.version}, not {act.expected_version}")
        # 2. The one table says whether and whither.
        status = next_status(before.status, act.operation)
        # 3. State, tokens, audit and event: all or nothing. A directive sent before is void from now on.
        after = tx.machines.update(before, **{"directive_sha256": None, **act.changes, "status": status})
        if act.withdraws:
            tx.config_tokens.withdraw(machine_id, at)
        tx.audit.append(
            operator.event(
                act.action,
                machine_id=machine_id,
                prev_state=before.status,
                new_state=status,
                detail=act.detail,
            ),
            at,
        )
        if act.event is not None:
            _emit(tx, act, after, at)
        return after

    return machine_detail(await res.store.write(work), at)


def _emit(tx: Tx, act: Act, machine: Machine, at: datetime) -> None:
    node = {"config_url": None, "iso_url": None} if act.event is NodeEvent.PROVISIONED else {}
    assert act.event is not None
    emit(tx, act.event, machine, at, node=node, meta=act.meta)


def _machine(tx: Tx, machine_id: str) -> Machine:
    machine = tx.machines.by_id(machine_id)
    if machine is None:
        raise MachineUnknown("no such machine")
    return machine
