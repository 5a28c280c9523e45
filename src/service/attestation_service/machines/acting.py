"""How an act on a machine is carried out: vote, state, audit entry and event, in one unit (FAULTS R5, R21)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from attestation.api import (
    MachineDetail,
    PendingApproval,
)
from attestation.errors import (
    AssuranceTooLow,
    MachineChanged,
    TransitionForbidden,
)
from attestation.machines import (
    Machine,
    NodeEvent,
    Role,
    SeenHardware,
    Status,
    Transition,
    next_status,
)
from attestation.machines.dual_control import MACHINE_ACTIONS, of_machine
from attestation.machines.names import typed_name
from attestation.results import Assurance
from attestation.store import AllowListRow, Tx
from attestation_service.auth import Operator
from attestation_service.context.reach import demand_cluster, demand_ek, demand_machine
from attestation_service.entitlements import ephemeral, fates, names
from attestation_service.entitlements.events import emit
from attestation_service.entitlements.fates import Fate
from attestation_service.machines.presentation import approved_of, machine_detail
from attestation_service.operators import dual_control, votes
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from attestation_service.verifier import policy

UNTRUSTED: dict[str, Any] = {
    "last_verdict": None,
    "last_result_at": None,
    "last_policy": None,
    "last_failed": None,
    "last_result_key": None,
    "trust_expires_at": None,
    "last_result_from": None,
}
"""After these the next attestation is the first again."""


APPROVES_HARDWARE: Final = frozenset({Transition.APPROVE, Transition.APPROVE_HARDWARE})
"""After these the machine must prove the hardware that it was seen on: what a vote saw, the proposal binds."""

Answer = MachineDetail | PendingApproval
"""The machine after the act, or what the act still waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Args:
        transition: What the lifecycle calls it.
        action: What the audit calls it.
        changes: Fields it sets beside the status.
        detail: For the audit.
        reason: Why, in the operator's words.
        event: Event it emits, or None.
        node: What the event says of the machine, beside what every event says.
        meta: About the event itself.
        withdraws: The machine's config tokens lose their right.
        expected_version: The version the operator saw, or None.
        confirm_name: What the operator typed to confirm it, or None.
        accepts_ek: The EK is admitted by name.
        certificates: What becomes of the machine's certificates, or None.
    """

    transition: Transition
    action: str
    changes: dict[str, Any]
    detail: str | None = None
    reason: str | None = None
    event: NodeEvent | None = None
    node: dict[str, Any] | None = None
    meta: dict[str, Any] | None = None
    withdraws: bool = False
    expected_version: int | None = None
    confirm_name: str | None = None
    accepts_ek: bool = False
    certificates: Fate | None = None


async def perform(
    machine_id: str, decide: Callable[[Machine], Act], res: Resources, operator: Operator
) -> Answer:
    """Do an act in one unit, or count the vote for it.

    Raises:
        MachineUnknown: No such machine.
        TransitionForbidden: Its status does not allow it.
        MachineChanged: It is not at the version that the operator saw, or not called as they typed.
        AssuranceTooLow: It is not vouched for as well as the role demands.
        NameInUse: Another machine of its cluster is called so.
        ClusterUnknown: It would be in a cluster that nobody declared.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()

    def work(tx: Tx) -> Answer:
        before = tx.machines.require(machine_id)
        # 0. Theirs also now, in the unit: it may have been given to another cluster since they were let in.
        demand_machine(operator, before)
        act = decide(before)
        # 1. The operator decided about what was shown, not about what came since (CVE-2022-1053).
        if act.expected_version is not None and act.expected_version != before.version:
            raise MachineChanged(f"the machine is at version {before.version}, not {act.expected_version}")
        demand_name(before, act.confirm_name)
        # 2. The one table says whether and whither.
        status = next_status(before.status, act.transition)
        # 3. A role is for machines that are vouched for well enough: said now, not at every attestation to come.
        if act.changes.get("cluster_id") is not None:
            demand_cluster(operator, act.changes["cluster_id"])
            tx.clusters.demand_known(act.changes["cluster_id"])
        demand_assurance(tx, before, act, res.settings)
        _demand_names(tx, before, act, res.settings)
        # 4. What yields credentials of a role under dual control needs several to ask for the same.
        agreed = agree(tx, act, before, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        # 5. All or nothing.
        after = carry_out(tx, before, act, status, agreed, operator, at)
        return machine_detail(after, [], tx.labels.of(machine_id), at, approved_of(tx, after))

    answer = await dual_control.write(work, res=res, operator=operator, at=at, machine_id=machine_id)
    make_lists(res)
    return answer


async def perform_alone(machine_id: str, act: Act, res: Resources, operator: Operator) -> MachineDetail:
    """Do an act that nobody else must agree to."""
    answer = await perform(machine_id, lambda _: act, res, operator)
    assert isinstance(answer, MachineDetail)
    return answer


def carry_out(
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
    if act.transition in APPROVES_HARDWARE and before.hardware is not None:
        seen = before.hardware
        tx.identities.approve(before.machine_id, seen.kind, chip=seen.chip, csp_id=seen.csp_id)
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
        fates.decide(tx, before.machine_id, act.certificates, act.action, operator, at)
    if act.event is not None:
        emit(tx, act.event, after, at, node=act.node, meta=act.meta)
    return after


def demand_name(machine: Machine, typed: str | None) -> None:
    """Check that *machine* is called as somebody *typed* who confirms an act; None where nobody was asked to.

    Raises:
        MachineChanged: It is called otherwise: the person decided about another one, or about what it was.
    """
    called = typed_name(machine.hostname, machine.machine_id)
    if typed is not None and typed != called:
        raise MachineChanged(f"the machine is called {called}, which is not what was typed to confirm it")


def make_lists(res: Resources) -> None:
    """Have revocation lists made that say what was decided."""
    if res.revocation is not None:
        res.revocation.changed()


def demand_assurance(tx: Tx, before: Machine, act: Act, settings: Settings) -> None:
    """Check that a machine that gets a role is vouched for as well as the policies of that role demand.

    For a role under dual control, one operator's word about its EK counts for nothing.
    """
    role = act.changes.get("role")
    if role is None:
        return
    if before.expected:
        # Its fingerprint is somebody's word. Who answers for it lists the EK, and the proof is still waited for.
        raise TransitionForbidden(
            "a receipt alone tells of this machine: it cannot be approved before it proves its EK; "
            "`attestation allow-list import` admits the EK in advance"
        )
    ephemeral.demand_allowed(before, role, settings)
    level: Assurance = act.changes.get("assurance", before.assurance)
    alone = level is Assurance.EK_ALLOWLIST and _is_word_of_one(tx, before, act, role, settings)
    if alone:
        vouched = tx.ak_certificates.vouches(before.machine_id, before.key_name)
        level = Assurance.AK_CERTIFIED if vouched else Assurance.TOFU
        level = Assurance.EK_CHAIN if before.anchor.ek_chain_ok else level
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
    entry = tx.allow_list.get(before.fingerprint)
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
        ek_fingerprint=machine.fingerprint,
        role=act.changes["role"],
        hostname=act.changes["hostname"],
        assigned_ip=act.changes["assigned_ip"],
        cluster_id=act.changes["cluster_id"],
        note="accepted at its approval",
        created_at=at,
        created_by=operator.cn,
    )


def agree(
    tx: Tx,
    act: Act,
    before: Machine,
    res: Resources,
    operator: Operator,
    at: datetime,
    *,
    replaces: Machine | None = None,
) -> dual_control.Agreed | PendingApproval:
    """Count the vote of *operator* for an act that several may have to agree to.

    Raises:
        Forbidden: It would accept an EK of which others said what it is, for a cluster that is none of theirs.
    """
    if act.accepts_ek:
        demand_ek(operator, tx.allow_list.ever(before.fingerprint), before)
    if act.transition not in MACHINE_ACTIONS or not dual_control.rule_of(res.settings).is_on:
        return dual_control.alone(operator)
    names = ("role", "hostname", "assigned_ip", "cluster_id")
    after = replace(before, **{name: act.changes[name] for name in names if name in act.changes})
    proposal = of_machine(
        act.transition,
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


def told(granted: dict[str, Any], cluster_id: str) -> str:
    """Return what a machine gets, for the audit; its cluster where that is another one than *cluster_id*."""
    return ", ".join(
        f"{name.removesuffix('_id')} {value}"
        for name, value in granted.items()
        if value is not None and (name, value) != ("cluster_id", cluster_id)
    )


def told_of(seen: SeenHardware) -> str:
    """Return the hardware that an act approves, for the audit."""
    chip = f"chip {seen.chip.hex()}" if any(seen.chip) else "chip hidden"
    return f"{seen.kind} {chip}" + (f", provider {seen.csp_id}" if seen.csp_id is not None else "")


def because(detail: str, reason: str | None) -> str:
    """Return what was done for the audit, with why where somebody said it. A vote does not bind the reason."""
    return detail if reason is None else f"{detail}; {reason}"
