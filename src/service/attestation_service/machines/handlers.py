"""Operators' acts on machines: each is one unit of state change, audit entry and event (FAULTS R5, R21).

What is allowed in which status stands in `attestation.machines.lifecycle`; here stands what an act changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query

from attestation.api import (
    ApproveRequest,
    KeyBindingDetail,
    KeysDetail,
    LabelsRequest,
    LockRequest,
    MachineDetail,
    MachinePage,
    OpenActivation,
    PendingApproval,
    ReasonRequest,
    RelativeDetail,
    ReplaceRequest,
    RevokeRequest,
    RoleChangeRequest,
)
from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.errors import (
    AssuranceTooLow,
    MachineChanged,
    MachineUnknown,
    RequestInvalid,
    TransitionForbidden,
)
from attestation.machines import (
    DEFAULT_CLUSTER,
    Machine,
    NodeEvent,
    Operation,
    Role,
    Status,
    labels,
    next_status,
)
from attestation.machines.chips import MarkKind
from attestation.machines.dual_control import MACHINE_ACTIONS, of_machine
from attestation.machines.labels import MAX_SELECTOR
from attestation.results import Assurance
from attestation.store import AllowListRow, MachineFilter, Tx
from attestation_service import certificates, dual_control, names, policy, votes
from attestation_service.auth import Operator, OperatorDep, VoterDep
from attestation_service.certificates import Fate
from attestation_service.events import emit
from attestation_service.machines.presentation import machine_detail
from attestation_service.parameters import Cursor, Id, Limit
from attestation_service.resources import Res, Resources
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

NO_REASON: Final = LockRequest()
NO_WIPE: Final = RevokeRequest()

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
        reason: Why, in the operator's words.
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
    reason: str | None = None
    event: NodeEvent | None = None
    meta: dict[str, Any] | None = None
    withdraws: bool = False
    expected_version: int | None = None
    accepts_ek: bool = False
    certificates: Fate | None = None


async def list_machines(
    status: Annotated[Status | None, Query()] = None,
    role: Annotated[Role | None, Query()] = None,
    cluster_id: Annotated[str | None, Query(pattern=CLUSTER_ID_PATTERN)] = None,
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
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
) -> MachinePage:
    """List machines, newest first.

    Filters are combined; the cursor of a page leads to the next.
    """
    wanted = MachineFilter(
        status=status,
        role=role,
        cluster_id=cluster_id,
        q=q,
        labels=labels.parse_selector(with_labels) if with_labels else {},
    )
    at = res.clock.now()

    def work(tx: Tx) -> MachinePage:
        page = tx.machines.page(wanted, cursor, limit)
        ids = [m.machine_id for m in page.items]
        votes, worn = tx.approvals.live_of(ids, at), tx.labels.of_each(ids)
        return MachinePage(
            items=[
                machine_detail(
                    m,
                    dual_control.shown(tx, votes.get(m.machine_id, []), res.settings, at),
                    worn.get(m.machine_id, {}),
                    at,
                )
                for m in page.items
            ],
            next_cursor=page.next_cursor,
        )

    return await res.store.read(work)


async def get_machine(machine_id: Id, *, res: Res) -> MachineDetail:
    """Show one machine.

    Everything but tokens, nonces and keys.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> MachineDetail:
        machine = _machine(tx, machine_id)
        return _detail(tx, machine, res, at).model_copy(update={"relatives": _relatives(tx, machine)})

    return await res.store.read(work)


async def get_keys(machine_id: Id, *, res: Res) -> KeysDetail:
    """Show where the activation of a machine's keys stands.

    Names and times; never a key, nonce or credential.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> KeysDetail:
        machine = _machine(tx, machine_id)
        eks = [mark.value for mark in tx.chip_marks.of(machine_id) if mark.kind is MarkKind.EK]
        return KeysDetail(
            machine_id=machine_id,
            ek_fingerprint=machine.ek_fingerprint,
            ek_template=machine.ek_template,
            ek_alternatives=[ek for ek in eks if ek != machine.ek_fingerprint],
            ak_name=machine.ak_name.hex() if machine.ak_name else None,
            ak_activated_at=machine.ak_activated_at,
            earlier=[
                KeyBindingDetail(ak_name=b.ak_name.hex(), machine_id=b.machine_id, bound_at=b.bound_at)
                for b in tx.ak_bindings.of_ek(machine.ek_fingerprint)
                if b.ak_name != machine.ak_name
            ],
            activations=[
                OpenActivation(issued_at=c.issued_at, expires_at=c.expires_at)
                for c in tx.challenges.open_of(machine.ek_fingerprint, "activate", at)
            ],
        )

    return await res.store.read(work)


def _detail(tx: Tx, machine: Machine, res: Resources, at: datetime) -> MachineDetail:
    votes = tx.approvals.live_of([machine.machine_id], at).get(machine.machine_id, [])
    shown = dual_control.shown(tx, votes, res.settings, at)
    return machine_detail(machine, shown, tx.labels.of(machine.machine_id), at)


async def label(machine_id: Id, request: LabelsRequest, *, res: Res, operator: OperatorDep) -> MachineDetail:
    """Write labels on a machine.

    In any status; no decision rests on them, so one operator is enough.

    Raises:
        MachineUnknown: No such machine.
        RequestInvalid: A label is both set and removed, or there would be too many.
    """
    at = res.clock.now()

    def work(tx: Tx) -> MachineDetail:
        machine = _machine(tx, machine_id)
        before = tx.labels.of(machine_id)
        after = labels.changed(before, request.set, request.remove)
        if after != before:
            tx.labels.replace(machine_id, before, after)
            came = labels.told(dict(after.items() - before.items()))
            went = labels.told(dict(before.items() - after.items()))
            detail = "; ".join(words for words in (came, f"before: {went}" if went else "") if words)
            tx.audit.append(
                operator.event(
                    "label",
                    machine_id=machine_id,
                    prev_state=machine.status,
                    new_state=machine.status,
                    detail=detail,
                ),
                at,
            )
        return _detail(tx, machine, res, at)

    return await res.store.write(work)


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


async def approve(machine_id: Id, request: ApproveRequest, *, res: Res, operator: VoterDep) -> Answer:
    """Admit a pending machine in a role.

    The configuration follows the machine's next good attestation.

    Raises:
        AssuranceTooLow: Its TPM is not vouched for as well as the role demands, and its EK is not accepted.
    """
    granted = {
        "role": request.role,
        "hostname": request.hostname,
        "assigned_ip": request.assigned_ip,
        "cluster_id": request.cluster_id,
    }
    act = _admission(granted, request)
    return await _perform(machine_id, lambda _: act, res, operator)


def _admission(
    granted: dict[str, Any], request: ApproveRequest | ReplaceRequest, instead: str | None = None
) -> Act:
    why = "; ".join(word for word in (instead, request.reason) if word is not None) or None
    return Act(
        operation=Operation.APPROVE,
        action="approve",
        changes=granted | {"alarm": None} | (ACCEPTED_EK if request.accept_ek else {}),
        detail=_because(
            _told(granted, DEFAULT_CLUSTER) + ("; EK accepted" if request.accept_ek else ""),
            why,
        ),
        reason=request.reason,
        event=NodeEvent.PROVISIONED,
        expected_version=request.expected_version,
        accepts_ek=request.accept_ek,
    )


async def reject(machine_id: Id, request: ReasonRequest, *, res: Res, operator: OperatorDep) -> MachineDetail:
    """Refuse a pending machine.

    It can be deleted afterwards, and then introduce itself again.
    """
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
    return await _perform_alone(machine_id, act, res, operator)


async def lock(
    machine_id: Id, request: LockRequest = NO_REASON, *, res: Res, operator: OperatorDep
) -> MachineDetail:
    """Suspend an attested machine.

    Its config tokens are void at once.
    """
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
    return await _perform_alone(machine_id, act, res, operator)


async def unlock(machine_id: Id, request: LockRequest = NO_REASON, *, res: Res, operator: VoterDep) -> Answer:
    """End a lock.

    A configuration still needs a fresh quote.
    """
    act = Act(
        operation=Operation.UNLOCK,
        action="unlock",
        # The old lease is not given back, and the machine is told to unlock itself until it has acknowledged that.
        changes={"locked_at": None, "trust_expires_at": None, "unlock_pending": True},
        detail=request.reason,
        reason=request.reason,
        event=NodeEvent.UNLOCKED,
        meta={"reason": request.reason},
        certificates=certificates.RELEASED,
    )
    return await _perform(machine_id, lambda _: act, res, operator)


async def revoke(
    machine_id: Id, request: RevokeRequest = NO_WIPE, *, res: Res, operator: OperatorDep
) -> MachineDetail:
    """End a machine's admission for good.

    With `wipe`, the machine is told to erase itself at its next attestation.
    """
    act = _end(request, res.clock.now())
    return await _perform_alone(machine_id, act, res, operator)


def _end(request: RevokeRequest, at: datetime) -> Act:
    words = [request.reason or "", "wipe scheduled" if request.wipe else ""]
    return Act(
        operation=Operation.REVOKE,
        action="revoke",
        changes={
            "revoked_at": at,
            "wipe_pending": request.wipe,
            "trust_expires_at": None,
            "config_owed_since": None,
            "config_failure": None,
        },
        detail="; ".join(word for word in words if word) or None,
        event=NodeEvent.DECOMMISSIONED,
        meta={"reason": request.reason},
        withdraws=True,
        certificates=certificates.WITHDRAWN,
    )


async def ak_reset(machine_id: Id, request: ReasonRequest, *, res: Res, operator: VoterDep) -> Answer:
    """Let the machine activate another attestation key.

    After a cleared TPM or a reinstallation; trust begins anew.
    """

    def act(machine: Machine) -> Act:
        old = machine.ak_name.hex() if machine.ak_name else "none"
        return Act(
            operation=Operation.AK_RESET,
            action="ak_reset",
            changes={"ak_public": None, "ak_name": None, "ak_activated_at": None, "clock": None, **UNTRUSTED},
            detail=f"{request.reason}; old AK {old}",
            reason=request.reason,
            withdraws=True,
            certificates=certificates.OTHER_KEY,
        )

    return await _perform(machine_id, act, res, operator)


async def redeliver(machine_id: Id, *, res: Res, operator: VoterDep) -> Answer:
    """Offer the configuration again.

    A new config token comes with every good attestation until one was used.
    """
    owed = {"config_owed_since": res.clock.now(), "config_failure": None}
    act = Act(operation=Operation.REDELIVER, action="redeliver", changes=owed, withdraws=True)
    return await _perform(machine_id, lambda _: act, res, operator)


async def change_role(machine_id: Id, request: RoleChangeRequest, *, res: Res, operator: VoterDep) -> Answer:
    """Give an admitted machine another role.

    It gets the configuration of the new role at its next good attestation.
    """
    at = res.clock.now()

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
                "config_owed_since": None if machine.status is Status.REGISTERED else at,
                "config_failure": None,
                "trust_expires_at": None,
            },
            detail=f"{request.reason}; {_told(granted, machine.cluster_id)}; before: role {machine.role}{moved}",
            reason=request.reason,
            event=NodeEvent.ROLE_CHANGED,
            meta={"previous_role": machine.role, "new_role": request.role, "reason": request.reason},
            withdraws=True,
            certificates=certificates.OTHER_ROLE,
            expected_version=request.expected_version,
        )

    return await _perform(machine_id, act, res, operator)


async def take_over(machine_id: Id, request: ReplaceRequest, *, res: Res, operator: VoterDep) -> Answer:
    """Let a machine that waits take the place of this one.

    This one is revoked; the answer is the new one, with its role, cluster, host name and address.

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
    if request.new == machine_id:
        raise RequestInvalid("a machine cannot replace itself")

    # One act and one unit, for in between nobody would be called so, or two. It is agreed to as the role is.
    def work(tx: Tx) -> Answer:
        old, new = _machine(tx, machine_id), _machine(tx, request.new)
        granted = {name: getattr(old, name) for name in ("role", "hostname", "assigned_ip", "cluster_id")}
        admission = _admission(granted, request, f"in place of machine {machine_id}")
        # 1. As of each act alone: what was seen, what the table says, who vouches, who else is called so.
        if request.expected_version not in (None, new.version):
            raise MachineChanged(f"the machine is at version {new.version}, not {request.expected_version}")
        ended = _status_in_replace(old, Operation.REVOKE, "the old machine")
        admitted = _status_in_replace(new, Operation.APPROVE, "the new machine")
        _demand_assurance(tx, new, admission, res.settings)
        names.demand_free(tx, res.settings, machine_id, old.cluster_id, old.hostname, old.assigned_ip)
        # 2. The vote names both machines: for another one in the same place it does not count.
        agreed = _agreed(tx, admission, new, res, operator, at, replaces=old)
        if isinstance(agreed, PendingApproval):
            return agreed
        # 3. The name is free before it is given.
        why = RevokeRequest(reason=f"replaced by machine {new.machine_id}")
        _carry_out(tx, old, _end(why, at), ended, agreed, operator, at)
        after = _carry_out(tx, new, admission, admitted, agreed, operator, at)
        return machine_detail(after, [], tx.labels.of(after.machine_id), at)

    answer = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=request.new)
    _make_lists(res)
    return answer


def _status_in_replace(machine: Machine, operation: Operation, which: str) -> Status:
    """Return the status of a machine after its part of a replacement; a refusal speaks of what was asked for."""
    try:
        return next_status(machine.status, operation)
    except TransitionForbidden as e:
        raise TransitionForbidden(
            f"replace is not possible while {which} is {machine.status}: a machine that waits for approval takes the "
            "place of one that was admitted"
        ) from e


async def delete(machine_id: Id, *, res: Res, operator: OperatorDep) -> None:
    """Delete a rejected or wiped machine.

    The audit is left as it is.

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

    def work(tx: Tx) -> Answer:
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
        after = _carry_out(tx, before, act, status, agreed, operator, at)
        return machine_detail(after, [], tx.labels.of(machine_id), at)

    answer = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=machine_id)
    _make_lists(res)
    return answer


async def _perform_alone(machine_id: str, act: Act, res: Resources, operator: Operator) -> MachineDetail:
    """Do an act that nobody else must agree to."""
    answer = await _perform(machine_id, lambda _: act, res, operator)
    assert isinstance(answer, MachineDetail)
    return answer


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
        return dual_control.alone(operator)
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
    return dual_control.gate(tx, proposal, operator, res, at, reason=act.reason, note=act.detail)


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
