"""Operators' acts on machines: each is one unit of state change, audit entry and event (FAULTS R5, R21).

What is allowed in which status stands in `attestation.machines.lifecycle`; here stands what an act changes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import Query

from attestation.api import (
    AKResetRequest,
    ApproveRequest,
    HardwareRequest,
    LabelsRequest,
    LockRequest,
    MachineDetail,
    PendingApproval,
    ReasonRequest,
    ReplaceRequest,
    RevokeRequest,
    RoleChangeRequest,
)
from attestation.api.base import ConfirmName
from attestation.errors import (
    MachineChanged,
    RequestInvalid,
    TransitionForbidden,
)
from attestation.machines import (
    DEFAULT_CLUSTER,
    Machine,
    NodeEvent,
    Status,
    Transition,
    labels,
    next_status,
)
from attestation.results import Assurance
from attestation.store import Tx
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.context.reach import demand_machine
from attestation_service.entitlements import fates, names
from attestation_service.machines.acting import (
    UNTRUSTED,
    Act,
    Answer,
    agree,
    because,
    carry_out,
    demand_assurance,
    demand_name,
    make_lists,
    perform,
    perform_alone,
    told,
    told_of,
)
from attestation_service.machines.presentation import approved_of, machine_detail
from attestation_service.machines.reading import detail_of
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Id

NO_REASON: Final = LockRequest()


NO_WIPE: Final = RevokeRequest()


async def label(machine_id: Id, request: LabelsRequest, *, res: Res, operator: OperatorDep) -> MachineDetail:
    """Write labels on a machine.

    In any status; no decision rests on them, so one operator is enough.

    Raises:
        MachineUnknown: No such machine.
        RequestInvalid: A label is both set and removed, or there would be too many.
    """
    at = res.clock.now()

    def work(tx: Tx) -> MachineDetail:
        machine = tx.machines.require(machine_id)
        demand_machine(operator, machine)
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
        return detail_of(tx, machine, res, operator, at)

    return await res.store.write(work)


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
    return await perform(
        machine_id, lambda machine: _admission(machine, granted, request, res), res, operator
    )


def _admission(
    machine: Machine,
    granted: dict[str, Any],
    request: ApproveRequest | ReplaceRequest,
    res: Resources,
    instead: str | None = None,
) -> Act:
    accepted = {"assurance": Assurance.EK_ALLOWLIST, "anchor": replace(machine.anchor, ek_allow_listed=True)}
    why = "; ".join(word for word in (instead, request.reason) if word is not None) or None
    return Act(
        transition=Transition.APPROVE,
        action="approve",
        changes=granted | {"alarm": None} | (accepted if request.accept_ek else {}),
        detail=because(
            told(granted, DEFAULT_CLUSTER)
            + ("; EK accepted" if request.accept_ek else "")
            + (f"; {told_of(machine.hardware)}" if machine.hardware is not None else ""),
            why,
        ),
        reason=request.reason,
        event=NodeEvent.PROVISIONED,
        node={"config_url": None, "iso_url": res.settings.iso_url or None},
        expected_version=request.expected_version,
        accepts_ek=request.accept_ek,
    )


async def reject(machine_id: Id, request: ReasonRequest, *, res: Res, operator: OperatorDep) -> MachineDetail:
    """Refuse a pending machine.

    It can be deleted afterwards, and then introduce itself again.
    """
    at = res.clock.now()
    act = Act(
        transition=Transition.REJECT,
        action="reject",
        changes={"rejected_at": at},
        detail=request.reason,
        event=NodeEvent.REJECTED,
        meta={"reason": request.reason},
        withdraws=True,
        certificates=fates.WITHDRAWN,
    )
    return await perform_alone(machine_id, act, res, operator)


async def lock(
    machine_id: Id, request: LockRequest = NO_REASON, *, res: Res, operator: OperatorDep
) -> MachineDetail:
    """Suspend an attested machine.

    Its config tokens are void at once.
    """
    at = res.clock.now()
    act = Act(
        transition=Transition.LOCK,
        action="lock",
        changes={"locked_at": at, "trust_expires_at": None, "unlock_pending": False},
        detail=request.reason,
        event=NodeEvent.LOCKED,
        meta={"reason": request.reason},
        withdraws=True,
        certificates=fates.HELD,
    )
    return await perform_alone(machine_id, act, res, operator)


async def unlock(machine_id: Id, request: LockRequest = NO_REASON, *, res: Res, operator: VoterDep) -> Answer:
    """End a lock.

    A configuration still needs a fresh quote.
    """
    act = Act(
        transition=Transition.UNLOCK,
        action="unlock",
        # The old lease is not given back, and the machine is told to unlock itself until it has acknowledged that.
        # Who unlocks it has looked at what it was locked for.
        changes={"locked_at": None, "trust_expires_at": None, "unlock_pending": True, "alarm": None},
        detail=request.reason,
        reason=request.reason,
        event=NodeEvent.UNLOCKED,
        meta={"reason": request.reason},
        certificates=fates.RELEASED,
    )
    return await perform(machine_id, lambda _: act, res, operator)


async def revoke(
    machine_id: Id, request: RevokeRequest = NO_WIPE, *, res: Res, operator: OperatorDep
) -> MachineDetail:
    """End a machine's admission for good.

    With `wipe`, the machine is told to erase itself at its next attestation.
    """
    act = _end(request, res.clock.now())
    return await perform_alone(machine_id, act, res, operator)


def _end(request: RevokeRequest, at: datetime) -> Act:
    words = [request.reason or "", "wipe scheduled" if request.wipe else ""]
    return Act(
        transition=Transition.REVOKE,
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
        confirm_name=request.confirm_name,
        certificates=fates.WITHDRAWN,
    )


async def ak_reset(machine_id: Id, request: AKResetRequest, *, res: Res, operator: VoterDep) -> Answer:
    """Let the machine activate another attestation key.

    After a cleared TPM or a reinstallation; trust begins anew.
    """

    def act(machine: Machine) -> Act:
        old = machine.key_name.hex() if machine.key_name else "none"
        return Act(
            transition=Transition.AK_RESET,
            action="ak_reset",
            changes={
                "anchor": replace(machine.anchor, ak_public=None, ak_name=None, ak_activated_at=None),
                # Who vouched for the machine vouched for this key.
                **({"assurance": Assurance.TOFU} if machine.assurance is Assurance.AK_CERTIFIED else {}),
                "clock": None,
                **UNTRUSTED,
            },
            detail=f"{request.reason}; old AK {old}",
            reason=request.reason,
            withdraws=True,
            confirm_name=request.confirm_name,
            certificates=fates.OTHER_KEY,
        )

    return await perform(machine_id, act, res, operator)


async def approve_hardware(
    machine_id: Id, request: HardwareRequest, *, res: Res, operator: VoterDep
) -> Answer:
    """Approve the confidential hardware that an admitted machine was seen on last.

    After a processor was replaced, or where the machine was admitted before its hardware was seen. The machine must
    prove it from then on.

    Raises:
        RequestInvalid: No authentic evidence of such hardware came yet, or it is not the one that is named.
    """

    def act(machine: Machine) -> Act:
        next_status(machine.status, Transition.APPROVE_HARDWARE)
        seen = machine.hardware
        if seen is None:
            raise RequestInvalid("no confidential hardware of this machine was seen yet")
        if request.chip is not None and request.chip != seen.chip.hex():
            raise RequestInvalid("the machine was seen on another chip than the one named")
        return Act(
            transition=Transition.APPROVE_HARDWARE,
            action="approve_hardware",
            # What was believed of it was believed of another chip.
            changes={"trust_expires_at": None, "vouched_by_hardware": False},
            detail=f"{request.reason}; {told_of(seen)}",
            reason=request.reason,
            withdraws=True,
            expected_version=request.expected_version,
        )

    return await perform(machine_id, act, res, operator)


async def redeliver(machine_id: Id, *, res: Res, operator: VoterDep) -> Answer:
    """Offer the configuration again.

    A new config token comes with every good attestation until one was used.
    """
    owed = {"config_owed_since": res.clock.now(), "config_failure": None}
    act = Act(transition=Transition.REDELIVER, action="redeliver", changes=owed, withdraws=True)
    return await perform(machine_id, lambda _: act, res, operator)


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
            transition=Transition.ROLE_CHANGE,
            action="role_change",
            # The lease was given under the policy of the old role.
            changes={
                **granted,
                "config_owed_since": None if machine.status is Status.REGISTERED else at,
                "config_failure": None,
                "trust_expires_at": None,
            },
            detail=f"{request.reason}; {told(granted, machine.cluster_id)}; before: role {machine.role}{moved}",
            reason=request.reason,
            event=NodeEvent.ROLE_CHANGED,
            meta={"previous_role": machine.role, "new_role": request.role, "reason": request.reason},
            withdraws=True,
            certificates=fates.OTHER_ROLE,
            expected_version=request.expected_version,
        )

    return await perform(machine_id, act, res, operator)


async def take_over(machine_id: Id, request: ReplaceRequest, *, res: Res, operator: VoterDep) -> Answer:
    """Let a machine that waits take the place of this one.

    This one is revoked; the answer is the new one, with its role, cluster, host name and address.

    Raises:
        RequestInvalid: A machine cannot replace itself.
        MachineUnknown: No such machine.
        TransitionForbidden: The old one is not admitted, or the new one does not wait.
        MachineChanged: The new one is not at the version that the operator saw, or the old one is not called as they
            typed.
        AssuranceTooLow: The new one is not vouched for as well as the role demands.
        NameInUse: A third machine is called like the old one.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()
    if request.new == machine_id:
        raise RequestInvalid("a machine cannot replace itself")

    # One act and one unit, for in between nobody would be called so, or two. It is agreed to as the role is.
    def work(tx: Tx) -> Answer:
        old, new = tx.machines.require(machine_id), tx.machines.require(request.new)
        for each in (old, new):
            demand_machine(operator, each)
        granted = {name: getattr(old, name) for name in ("role", "hostname", "assigned_ip", "cluster_id")}
        admission = _admission(new, granted, request, res, f"in place of machine {machine_id}")
        # 1. As of each act alone: what was seen, what the table says, who vouches, who else is called so.
        if request.expected_version not in (None, new.version):
            raise MachineChanged(f"the machine is at version {new.version}, not {request.expected_version}")
        demand_name(old, request.confirm_name)
        ended = _status_in_replace(old, Transition.REVOKE, "the old machine")
        admitted = _status_in_replace(new, Transition.APPROVE, "the new machine")
        demand_assurance(tx, new, admission, res.settings)
        names.demand_free(tx, res.settings, machine_id, old.cluster_id, old.hostname, old.assigned_ip)
        # 2. The vote names both machines: for another one in the same place it does not count.
        agreed = agree(tx, admission, new, res, operator, at, replaces=old)
        if isinstance(agreed, PendingApproval):
            return agreed
        # 3. The name is free before it is given.
        why = RevokeRequest(reason=f"replaced by machine {new.machine_id}")
        carry_out(tx, old, _end(why, at), ended, agreed, operator, at)
        after = carry_out(tx, new, admission, admitted, agreed, operator, at)
        return machine_detail(after, [], tx.labels.of(after.machine_id), at, approved_of(tx, after))

    answer = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=request.new)
    make_lists(res)
    return answer


def _status_in_replace(machine: Machine, transition: Transition, which: str) -> Status:
    """Return the status of a machine after its part of a replacement; a refusal speaks of what was asked for."""
    try:
        return next_status(machine.status, transition)
    except TransitionForbidden as e:
        raise TransitionForbidden(
            f"replace is not possible while {which} is {machine.status}: a machine that waits for approval takes the "
            "place of one that was admitted"
        ) from e


async def delete(
    machine_id: Id,
    *,
    confirm_name: Annotated[ConfirmName | None, Query()] = None,
    res: Res,
    operator: OperatorDep,
) -> None:
    """Delete a rejected or wiped machine.

    The audit is left as it is.

    Raises:
        MachineUnknown: No such machine.
        MachineChanged: It is not called as the operator typed.
        TransitionForbidden: It is neither rejected nor wiped.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        machine = tx.machines.require(machine_id)
        demand_machine(operator, machine)
        demand_name(machine, confirm_name)
        wiped = machine.status is Status.REVOKED and machine.wiped_at is not None
        if machine.status is not Status.REJECTED and not wiped:
            raise TransitionForbidden(
                f"only a rejected or wiped machine can be deleted; this one is {machine.status}"
            )
        fates.decide(tx, machine_id, fates.GONE, "delete", operator, at)
        believed = machine.anchor.ek_chain_ok or machine.anchor.ek_allow_listed or machine.role is not None
        tx.chip_marks.end(machine_id, machine.status, at, believed=believed)
        tx.machines.delete(machine_id)
        tx.audit.append(
            operator.event(
                "delete",
                machine_id=machine_id,
                prev_state=machine.status,
                detail=f"EK {machine.fingerprint}",
            ),
            at,
        )

    await res.store.write(work)
    make_lists(res)
