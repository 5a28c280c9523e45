"""Operators' acts on machines: each is one unit of state change, audit entry and event (FAULTS R5, R21).

What is allowed in which status stands in `attestation.machines.lifecycle`; here stands what an act changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from attestation.api import (
    ApproveRequest,
    LockRequest,
    MachineDetail,
    MachinePage,
    PendingApproval,
    ReasonRequest,
    RelativeDetail,
    ReplaceRequest,
    RevokeRequest,
    RoleChangeRequest,
)
from attestation.errors import (
    AssuranceTooLow,
    MachineChanged,
    MachineUnknown,
    RequestInvalid,
    TransitionForbidden,
)
from attestation.machines import DEFAULT_CLUSTER, Machine, NodeEvent, Operation, Role, Status, next_status
from attestation.machines.chips import MarkKind
from attestation.machines.dual_control import MACHINE_ACTIONS, of_machine
from attestation.results import Assurance
from attestation.store import AllowListRow, MachineFilter, Tx
from attestation_service import certificates, dual_control, names, policy, votes
from attestation_service.auth import Operator
from attestation_service.certificates import Fate
from attestation_service.context import Resources
from attestation_service.events import emit
from attestation_service.machines.presentation import machine_detail
from attestation_service.settings import Settings

UNTRUSTED: dict[str, Any] = {
    "last_verdict": None,
    "last_result_at": None,
    "last_policy": None,
    "last_failed": None,
    "last_result_key": None,
    "trust_expires_at": None,
}
"""After these the next attestation is the first again."""

ACCEPTED_EK: dict[str, Any] = {"assurance": Assurance.EK_ALLOWLIST, "ek_allow_listed": True}
"""What an operator's word about this very EK makes of a machine."""

Answer = MachineDetail | PendingApproval
"""The machine after the act, or what the act still waits for."""


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
        accepts_ek: The EK is admitted by name.
        certificates: What becomes of the machine's certificates, or None.
    """

    operation: Operation
    action: str
    changes: dict[str, Any]
    detail: str | None = None
    event: NodeEvent | None = None
    meta: dict[str, Any] | None = None
    withdraws: bool = False
    expected_version: int | None = None
    accepts_ek: bool = False
    certificates: Fate | None = None


async def list_machines(
    wanted: MachineFilter, cursor: str | None, limit: int, *, res: Resources
) -> MachinePage:
    """Return machines, newest first."""
    at = res.clock.now()

    def work(tx: Tx) -> MachinePage:
        page = tx.machines.page(wanted, cursor, limit)
        votes = tx.approvals.live_of([m.machine_id for m in page.items], at)
        return MachinePage(
            items=[
                machine_detail(m, dual_control.shown(tx, votes.get(m.machine_id, []), res.settings, at), at)
                for m in page.items
            ],
            next_cursor=page.next_cursor,
        )

    return await res.store.read(work)


async def get_machine(machine_id: str, *, res: Resources) -> MachineDetail:
    """Return one machine.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> MachineDetail:
        machine = _machine(tx, machine_id)
        votes = tx.approvals.live_of([machine_id], at).get(machine_id, [])
        shown = dual_control.shown(tx, votes, res.settings, at)
        return machine_detail(machine, shown, at).model_copy(update={"relatives": _relatives(tx, machine)})

    return await res.store.read(work)


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
    purged = [each for each, _ in tx.ak_bindings.machines_of(machine.ek_fingerprint) if each not in known]
    return found + [
        RelativeDetail(machine_id=each, mark=MarkKind.EK, same_chip=True, status=None, deleted_at=None)
        for each in purged
    ]


async def approve(machine_id: str, request: ApproveRequest, *, res: Resources, operator: Operator) -> Answer:
    """Admit a pending machine; its config token comes with its first good attestation.

    Raises:
        AssuranceTooLow: Its TPM is not vouched for as well as the role demands, and its EK is not accepted.
    """
    granted = {
        "role": request.role,
        "hostname": request.hostname,
        "assigned_ip": request.assigned_ip,
        "cluster_id": request.cluster_id,
    }
    act = _admission(granted, request, request.reason)
    return await _perform(machine_id, lambda _: act, res, operator)


def _admission(granted: dict[str, Any], request: ApproveRequest | ReplaceRequest, why: str | None) -> Act:
    return Act(
        operation=Operation.APPROVE,
        action="approve",
        changes=granted | {"alarm": None} | (ACCEPTED_EK if request.accept_ek else {}),
        detail=_because(
            _told(granted, DEFAULT_CLUSTER) + ("; EK accepted" if request.accept_ek else ""),
            why,
        ),
        event=NodeEvent.PROVISIONED,
        expected_version=request.expected_version,
        accepts_ek=request.accept_ek,
    )


async def reject(machine_id: str, request: ReasonRequest, *, res: Resources, operator: Operator) -> Answer:
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
        certificates=certificates.WITHDRAWN,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def lock(machine_id: str, request: LockRequest, *, res: Resources, operator: Operator) -> Answer:
    """Suspend an attested machine: it is told at its next attestation, its tokens are void now."""
    at = res.clock.now()
    act = Act(
        operation=Operation.LOCK,
        action="lock",
        changes={"locked_at": at, "trust_expires_at": None, "unlock_pending": False},
        detail=request.reason,
        event=NodeEvent.LOCKED,
        meta={"reason": request.reason},
        withdraws=True,
        certificates=certificates.HELD,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def unlock(machine_id: str, request: LockRequest, *, res: Resources, operator: Operator) -> Answer:
    """End a lock; a configuration still needs a fresh quote, so the old lease is not given back.

    The machine is ordered to unlock itself until it has acknowledged that.
    """
    act = Act(
        operation=Operation.UNLOCK,
        action="unlock",
        changes={"locked_at": None, "trust_expires_at": None, "unlock_pending": True},
        detail=request.reason,
        event=NodeEvent.UNLOCKED,
        meta={"reason": request.reason},
        certificates=certificates.RELEASED,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def revoke(machine_id: str, request: RevokeRequest, *, res: Resources, operator: Operator) -> Answer:
    """End a machine's admission for good; a wipe is ordered at its next attestation."""
    act = _end(request, res.clock.now())
    return await _perform(machine_id, lambda _: act, res, operator)


def _end(request: RevokeRequest, at: datetime) -> Act:
    words = [request.reason or "", "wipe scheduled" if request.wipe else ""]
    return Act(
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
        certificates=certificates.WITHDRAWN,
    )


async def ak_reset(machine_id: str, request: ReasonRequest, *, res: Resources, operator: Operator) -> Answer:
    """Forget the attestation key, so that the machine can activate another one; its trust begins anew."""

    def act(machine: Machine) -> Act:
        old = machine.ak_name.hex() if machine.ak_name else "none"
        return Act(
            operation=Operation.AK_RESET,
            action="ak_reset",
            changes={"ak_public": None, "ak_name": None, "ak_activated_at": None, "clock": None, **UNTRUSTED},
            detail=f"{request.reason}; old AK {old}",
            withdraws=True,
            certificates=certificates.OTHER_KEY,
        )

    return await _perform(machine_id, act, res, operator)


async def redeliver(machine_id: str, *, res: Resources, operator: Operator) -> Answer:
    """Offer the configuration again, at the next good attestation and until the machine has it; an older one ends."""
    act = Act(operation=Operation.REDELIVER, action="redeliver", changes={"redeliver": True}, withdraws=True)
    return await _perform(machine_id, lambda _: act, res, operator)


async def change_role(
    machine_id: str, request: RoleChangeRequest, *, res: Resources, operator: Operator
) -> Answer:
    """Give an admitted machine another role or cluster; where it has a configuration, it gets the new one."""

    def act(machine: Machine) -> Act:
        granted = {
            "role": request.role,
            "hostname": request.hostname if request.hostname is not None else machine.hostname,
            "assigned_ip": request.assigned_ip if request.assigned_ip is not None else machine.assigned_ip,
            "cluster_id": request.cluster_id if request.cluster_id is not None else machine.cluster_id,
        }
        moved = f", cluster {machine.cluster_id}" if granted["cluster_id"] != machine.cluster_id else ""
        return Act(
            operation=Operation.ROLE_CHANGE,
            action="role_change",
            # The lease was given under the policy of the old role.
            changes={
                **granted,
                "redeliver": machine.redeliver or machine.status is not Status.REGISTERED,
                "trust_expires_at": None,
            },
            detail=f"{request.reason}; {_told(granted, machine.cluster_id)}; before: role {machine.role}{moved}",
            event=NodeEvent.ROLE_CHANGED,
            meta={"previous_role": machine.role, "new_role": request.role, "reason": request.reason},
            withdraws=True,
            certificates=certificates.OTHER_ROLE,
            expected_version=request.expected_version,
        )

    return await _perform(machine_id, act, res, operator)


async def take_over(old_id: str, request: ReplaceRequest, *, res: Resources, operator: Operator) -> Answer:
    """Revoke a machine, and admit one that waits in its place: role, cluster, host name and address are inherited.

    One act and one unit, for in between nobody would be called so, or two. It is agreed to as the role is.

    Raises:
        RequestInvalid: A machine cannot replace itself.
        MachineUnknown: No such machine.
        TransitionForbidden: The old one is not admitted, or the new one does not wait.
        MachineChanged: The new one is not at the version that the operator saw.
        AssuranceTooLow: The new one is not vouched for as well as the role demands.
        NameInUse: A third machine is called like the old one.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()
    if request.new == old_id:
        raise RequestInvalid("a machine cannot replace itself")

    def work(tx: Tx) -> Machine | PendingApproval:
        old, new = _machine(tx, old_id), _machine(tx, request.new)
        granted = {name: getattr(old, name) for name in ("role", "hostname", "assigned_ip", "cluster_id")}
        admission = _admission(granted, request, f"in place of machine {old_id}; {request.reason}")
        # 1. As of each act alone: what was seen, what the table says, who vouches, who else is called so.
        if request.expected_version not in (None, new.version):
            raise MachineChanged(f"the machine is at version {new.version}, not {request.expected_version}")
        ended = next_status(old.status, Operation.REVOKE)
        admitted = next_status(new.status, Operation.APPROVE)
        _demand_assurance(tx, new, admission, res.settings)
        names.demand_free(tx, res.settings, old_id, old.cluster_id, old.hostname, old.assigned_ip)
        # 2. The vote names both machines: for another one in the same place it does not count.
        agreed = _agreed(tx, admission, new, res, operator, at, replaces=old)
        if isinstance(agreed, PendingApproval):
            return agreed
        # 3. The name is free before it is given.
        why = RevokeRequest(reason=f"replaced by machine {new.machine_id}")
        _carry_out(tx, old, _end(why, at), ended, agreed, operator, at)
        return _carry_out(tx, new, admission, admitted, agreed, operator, at)

    answer = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=request.new)
    _make_lists(res)
    return answer if isinstance(answer, PendingApproval) else machine_detail(answer, [], at)


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
        certificates.decide(tx, machine_id, certificates.GONE, "delete", operator, at)
        believed = machine.ek_chain_ok or machine.ek_allow_listed or machine.role is not None
        tx.chip_marks.end(machine_id, machine.status, at, believed=believed)
        tx.machines.delete(machine_id)
        tx.audit.append(
            operator.event(
                "delete",
                machine_id=machine_id,
                prev_state=machine.status,
                detail=f"EK {machine.ek_fingerprint}",
            ),
            at,
        )

    await res.store.write(work)
    _make_lists(res)


async def _perform(
    machine_id: str, decide: Callable[[Machine], Act], res: Resources, operator: Operator
) -> Answer:
    """Do an act in one unit, or count the vote for it.

    Raises:
        MachineUnknown: No such machine.
        TransitionForbidden: Its status does not allow it.
        MachineChanged: It is not at the version that the operator saw.
        AssuranceTooLow: It is not vouched for as well as the role demands.
        NameInUse: Another machine of its cluster is called so.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()

    def work(tx: Tx) -> Machine | PendingApproval:
        before = _machine(tx, machine_id)
        act = decide(before)
        # 1. The operator decided about what was shown, not about what came since (CVE-2022-1053).
        if act.expected_version is not None and act.expected_version != before.version:
            raise MachineChanged(f"the machine is at version {before.version}, not {act.expected_version}")
        # 2. The one table says whether and whither.
        status = next_status(before.status, act.operation)
        # 3. A role is for machines that are vouched for well enough: said now, not at every attestation to come.
        _demand_assurance(tx, before, act, res.settings)
        _demand_names(tx, before, act, res.settings)
        # 4. What yields credentials of a role under dual control needs several to ask for the same.
        agreed = _agreed(tx, act, before, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        # 5. All or nothing.
        return _carry_out(tx, before, act, status, agreed, operator, at)

    answer = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=machine_id)
    _make_lists(res)
    return answer if isinstance(answer, PendingApproval) else machine_detail(answer, [], at)


def _carry_out(
    tx: Tx,
    before: Machine,
    act: Act,
    status: Status,
    agreed: dual_control.Agreed,
    operator: Operator,
    at: datetime,
) -> Machine:
    """Do an act that may be done."""
    if act.accepts_ek:
        tx.allow_list.put(_admitted(before, act, operator, at))
    # State, tokens, audit and event: all or nothing. A directive sent before is void from now on, and so
    # are other votes about the machine: it is not what they were cast about any more.
    moves = act.changes.get("cluster_id", before.cluster_id) != before.cluster_id
    after = tx.machines.update(
        before,
        **{
            "directive_sha256": None,
            # What was believed of it was believed under the policies of the cluster that it leaves.
            **({"trust_expires_at": None} if moves else {}),
            **act.changes,
            "status": status,
        },
    )
    ended = tx.approvals.void(before.machine_id, at)
    if act.withdraws or moves:
        tx.config_tokens.withdraw(before.machine_id, at)
    tx.audit.append(
        operator.event(
            act.action,
            machine_id=before.machine_id,
            prev_state=before.status,
            new_state=status,
            detail=agreed.told(act.detail),
        ),
        at,
    )
    votes.told(tx, ended, at)
    # Its certificates follow, in the same unit: no list or answer of any worker is from before.
    if act.certificates is not None:
        certificates.decide(tx, before.machine_id, act.certificates, act.action, operator, at)
    if act.event is not None:
        _emit(tx, act, after, at)
    return after


def _make_lists(res: Resources) -> None:
    if res.revocation is not None:
        res.revocation.changed()


def _demand_assurance(tx: Tx, before: Machine, act: Act, settings: Settings) -> None:
    """Check that a machine that gets a role is vouched for as well as the policies of that role demand.

    For a role under dual control, one operator's word about its EK counts for nothing.
    """
    role = act.changes.get("role")
    if role is None:
        return
    level: Assurance = act.changes.get("assurance", before.assurance)
    alone = level is Assurance.EK_ALLOWLIST and _is_word_of_one(tx, before, act, role, settings)
    if alone:
        level = Assurance.EK_CHAIN if before.ek_chain_ok else Assurance.TOFU
    after = replace(before, role=role, cluster_id=act.changes["cluster_id"])
    minimum = policy.in_force(tx, after, settings).assurance_minimum(role)
    if level.level < minimum.level and alone:
        raise AssuranceTooLow(
            f"{role} demands {minimum}, this machine has {level}, for one operator alone accepted its EK: list its EK "
            f"for {role}, which several must agree to, trust the CA that signed its certificate, or choose another role"
        )
    if level.level < minimum.level:
        raise AssuranceTooLow(
            f"{role} demands {minimum}, this machine has {level}: accept its EK, trust the CA that signed its "
            "certificate, or choose another role"
        )


def _is_word_of_one(tx: Tx, before: Machine, act: Act, role: Role, settings: Settings) -> bool:
    """Return True where *role* needs several and none but one operator may have admitted the EK by name."""
    rule = dual_control.rule_of(settings)
    if not rule.is_on or role not in rule.roles:
        return False
    # Several agree to this very EK in the act itself, or did when it was listed for such a role.
    entry = tx.allow_list.get(before.ek_fingerprint)
    return not act.accepts_ek and (entry is None or entry.role not in rule.roles)


def _demand_names(tx: Tx, before: Machine, act: Act, settings: Settings) -> None:
    """Check that nobody else is called as the machine shall be: before somebody votes for what cannot be done."""
    if "hostname" in act.changes:
        cluster_id = act.changes.get("cluster_id", before.cluster_id)
        names.demand_free(
            tx,
            settings,
            before.machine_id,
            cluster_id,
            act.changes["hostname"],
            act.changes["assigned_ip"],
        )


def _admitted(machine: Machine, act: Act, operator: Operator, at: datetime) -> AllowListRow:
    return AllowListRow(
        ek_fingerprint=machine.ek_fingerprint,
        role=act.changes["role"],
        hostname=act.changes["hostname"],
        assigned_ip=act.changes["assigned_ip"],
        cluster_id=act.changes["cluster_id"],
        note="accepted at its approval",
        created_at=at,
        created_by=operator.cn,
    )


def _agreed(
    tx: Tx,
    act: Act,
    before: Machine,
    res: Resources,
    operator: Operator,
    at: datetime,
    *,
    replaces: Machine | None = None,
) -> dual_control.Agreed | PendingApproval:
    if act.operation not in MACHINE_ACTIONS or not dual_control.rule_of(res.settings).is_on:
        return dual_control.Agreed()
    names = ("role", "hostname", "assigned_ip", "cluster_id")
    after = replace(before, **{name: act.changes[name] for name in names if name in act.changes})
    proposal = of_machine(
        act.operation,
        before,
        role=after.role,
        hostname=after.hostname,
        assigned_ip=after.assigned_ip,
        cluster_id=after.cluster_id,
        measured=policy.measured(tx, after, res.settings),
        accepts_ek=act.accepts_ek,
        replaces=replaces,
    )
    return dual_control.gate(tx, proposal, operator, res, at, note=act.detail)


def _emit(tx: Tx, act: Act, machine: Machine, at: datetime) -> None:
    node = {"config_url": None, "iso_url": None} if act.event is NodeEvent.PROVISIONED else {}
    assert act.event is not None
    emit(tx, act.event, machine, at, node=node, meta=act.meta)


def _told(granted: dict[str, Any], cluster_id: str) -> str:
    """Return what a machine gets, for the audit; its cluster where that is another one than *cluster_id*."""
    return ", ".join(
        f"{name.removesuffix('_id')} {value}"
        for name, value in granted.items()
        if value is not None and (name, value) != ("cluster_id", cluster_id)
    )


def _because(detail: str, reason: str | None) -> str:
    """Return what was done for the audit, with why where somebody said it. A vote does not bind the reason."""
    return detail if reason is None else f"{detail}; {reason}"


def _machine(tx: Tx, machine_id: str) -> Machine:
    machine = tx.machines.by_id(machine_id)
    if machine is None:
        raise MachineUnknown("no such machine")
    return machine
