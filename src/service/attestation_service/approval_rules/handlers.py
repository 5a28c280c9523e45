"""Approval rules: made and enabled by several people, tried by anyone, disabled by one.

What a rule says never changes: those who agreed to enable it agreed to every word. No rule gives a role that is under
dual control; what was enabled before the role came under it is passed over (`registration.admission`).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query

from attestation.api import (
    ApprovalRuleCreate,
    ApprovalRuleDetail,
    ApprovalRulePage,
    ApprovalRuleTrial,
    ApprovalRuleTried,
    PendingApproval,
)
from attestation.api.approval_rules import RULE_NAME_PATTERN, HostnamePattern
from attestation.errors import AlreadyExists, RequestInvalid
from attestation.machines import Role, Status
from attestation.machines.dual_control import of_approval_rule
from attestation.results import Assurance
from attestation.store import ApprovalRule, MachineFilter, Tx
from attestation_service.auth import Operator, OperatorDep, VoterDep
from attestation_service.entitlements import approval_rules
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit
from attestation_service.settings import Settings

MOST_TRIED = 500
PAGE = 100

RuleName = Annotated[str, Path(pattern=RULE_NAME_PATTERN)]


async def list_rules(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> ApprovalRulePage:
    """List approval rules.

    In the order of their names.
    """
    page = await res.store.read(lambda tx: tx.approval_rules.page(cursor, limit))
    return ApprovalRulePage(items=[_detail(rule) for rule in page.items], next_cursor=page.next_cursor)


async def create(
    request: ApprovalRuleCreate, *, res: Res, operator: VoterDep
) -> ApprovalRuleDetail | PendingApproval:
    """Make an approval rule.

    It approves nobody before it is enabled. Several people must agree, whatever the role.

    Raises:
        AlreadyExists: One is called so.
        ClusterUnknown: A cluster that nobody declared.
        RequestInvalid: Its expression, or its role is under dual control, or there are too many.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()
    _demand_role(request.role, res.settings)
    approval_rules.demand_expression(request.expression)
    rule = ApprovalRule(
        **request.model_dump(),
        used=0,
        enabled=False,
        created_at=at,
        created_by=operator.cn,
        changed_at=at,
        changed_by=operator.cn,
    )

    def work(tx: Tx) -> ApprovalRuleDetail | PendingApproval:
        tx.clusters.demand_known(rule.cluster_id)
        if tx.approval_rules.get(rule.name) is not None:
            raise AlreadyExists(f"an approval rule is called {rule.name} already")
        if tx.approval_rules.count(approval_rules.MOST_RULES) == approval_rules.MOST_RULES:
            raise RequestInvalid(f"there are {approval_rules.MOST_RULES} approval rules: remove one")
        agreed = _agreed(tx, "make", rule, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        tx.approval_rules.add(rule)
        tx.audit.append(operator.event("approval_rule_create", detail=agreed.told(_told(rule))), at)
        return _detail(rule)

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def enable(name: RuleName, *, res: Res, operator: VoterDep) -> ApprovalRuleDetail | PendingApproval:
    """Let a rule approve machines from now on.

    Several people must agree to all that it says.

    Raises:
        ApprovalRuleUnknown: None is called so.
        RequestInvalid: Its role is under dual control.
        BreakGlassCannotVote: Several people must agree to it.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ApprovalRuleDetail | PendingApproval:
        rule = tx.approval_rules.require(name)
        if rule.enabled:
            return _detail(rule)
        _demand_role(rule.role, res.settings)
        agreed = _agreed(tx, "enable", rule, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        return _switched(tx, rule, operator, at, enabled=True, told=agreed.told(_told(rule)))

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def disable(name: RuleName, *, res: Res, operator: OperatorDep) -> ApprovalRuleDetail:
    """Let a rule approve nobody any more.

    One operator is enough: less is let in.

    Raises:
        ApprovalRuleUnknown: None is called so.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ApprovalRuleDetail:
        rule = tx.approval_rules.require(name)
        if not rule.enabled:
            return _detail(rule)
        return _switched(tx, rule, operator, at, enabled=False, told=_told(rule))

    return await res.store.write(work)


async def remove(name: RuleName, *, res: Res, operator: OperatorDep) -> None:
    """Remove a rule.

    Machines that it approved stay.

    Raises:
        ApprovalRuleUnknown: None is called so.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        rule = tx.approval_rules.require(name)
        tx.approval_rules.remove(name)
        tx.audit.append(operator.event("approval_rule_remove", detail=_told(rule)), at)

    await res.store.write(work)


async def try_rule(
    expression: Annotated[str, Query(min_length=1, max_length=512)],
    minimum_assurance: Annotated[Assurance, Query()] = Assurance.EK_CHAIN,
    hostname: Annotated[HostnamePattern | None, Query()] = None,
    *,
    res: Res,
) -> ApprovalRuleTried:
    """Return what a rule would approve of the machines that wait.

    Nothing is changed, and nothing promised: policies, names and what is left of a rule count when a machine comes.

    Raises:
        RequestInvalid: Its expression.
    """
    approval_rules.demand_expression(expression)

    def work(tx: Tx) -> ApprovalRuleTried:
        items: list[ApprovalRuleTrial] = []
        cursor: str | None = None
        waiting = MachineFilter(status=Status.PENDING_APPROVAL)
        while len(items) < MOST_TRIED:
            page = tx.machines.page(waiting, cursor, PAGE)
            for machine in page.items:
                facts = approval_rules.facts_of_machine(machine)
                said = approval_rules.judge(expression, minimum_assurance, hostname, facts)
                items.append(
                    ApprovalRuleTrial(
                        machine_id=machine.machine_id,
                        approves=not said.why,
                        hostname=said.hostname,
                        why=said.why,
                    )
                )
            cursor = page.next_cursor
            if cursor is None:
                break
        return ApprovalRuleTried(items=items[:MOST_TRIED])

    return await res.store.scan(work)


def _demand_role(role: Role, settings: Settings) -> None:
    if role in settings.dual_control_roles:
        raise RequestInvalid(
            f"the role {role} is under dual control: several people approve each machine of it"
        )


def _agreed(
    tx: Tx, step: str, rule: ApprovalRule, res: Resources, operator: Operator, at: datetime
) -> dual_control.Agreed | PendingApproval:
    names = (
        "name",
        "expression",
        "role",
        "cluster_id",
        "hostname",
        "minimum_assurance",
        "max_count",
        "priority",
    )
    proposal = of_approval_rule(step=step, **{name: getattr(rule, name) for name in names})
    return dual_control.gate(tx, proposal, operator, res, at, rule=dual_control.always(res.settings))


def _switched(
    tx: Tx, rule: ApprovalRule, operator: Operator, at: datetime, *, enabled: bool, told: str | None
) -> ApprovalRuleDetail:
    changed = replace(rule, enabled=enabled, changed_at=at, changed_by=operator.cn)
    tx.approval_rules.switch(changed)
    if enabled:
        tx.audit.append(operator.event("approval_rule_enable", detail=told), at)
    else:
        tx.audit.append(operator.event("approval_rule_disable", detail=told), at)
    return _detail(changed)


def _told(rule: ApprovalRule) -> str:
    names = "" if rule.hostname is None else f", called {rule.hostname}"
    return (
        f"approval rule {rule.name}: {rule.max_count - rule.used} machines become {rule.role} of {rule.cluster_id}"
        f"{names}, vouched for as {rule.minimum_assurance} at least, where {rule.expression}"
    )


def _detail(rule: ApprovalRule) -> ApprovalRuleDetail:
    return ApprovalRuleDetail(**asdict(rule))
