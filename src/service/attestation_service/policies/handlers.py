"""Policies: judged when they are written, immutable from then on, assigned where they shall apply."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query

from attestation.api import (
    EffectivePart,
    EffectivePolicy,
    PendingApproval,
    PolicyAssignmentRequest,
    PolicyChangeDetail,
    PolicyDetail,
    PolicyHistoryPage,
    PolicyList,
)
from attestation.api import PolicyAssignment as AssignmentDetail
from attestation.appraisal import KINDS
from attestation.errors import Forbidden, PolicyUnknown, RequestInvalid
from attestation.machines import DEFAULT_CLUSTER
from attestation.machines.dual_control import AppliedPolicy, of_policy_assignment
from attestation.reference import IDENTITY_ONLY, Policy, identifier, parse_policy
from attestation.reference.compose import compose, effective_document
from attestation.store import FLEET, PolicyAssignment, Scope, StoredPolicy, Tx
from attestation_service.auth import Operator, OperatorDep, VoterDep
from attestation_service.context.reach import demand_cluster, holds
from attestation_service.operators import dual_control
from attestation_service.policies.places import SCOPES, check_subject
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Id, Limit
from attestation_service.verifier import policy

SHIPPED_BY = "shipped"
SUBJECT_PATTERN = r"^[A-Za-z0-9*_.-]+$"
NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"

ScopePath = Annotated[Scope, Path()]
Subject = Annotated[str, Path(min_length=1, max_length=128, pattern=SUBJECT_PATTERN)]


async def list_policies(*, res: Res, operator: OperatorDep) -> PolicyList:
    """List all policies and where they apply.

    The shipped policy `identity-only` applies where nothing is assigned.
    """

    def work(tx: Tx) -> PolicyList:
        stored = [p for p in tx.policies.all() if p.ref != IDENTITY_ONLY.ref]
        return PolicyList(
            policies=[_shipped(), *map(_detail, stored)],
            assignments=[_assignment(a) for a in tx.policies.assignments() if _sees(operator, a)],
        )

    return await res.store.read(work)


def _sees(operator: Operator, assigned: PolicyAssignment) -> bool:
    """Return True if *operator* is shown *assigned*: in some clusters alone, nothing of single machines."""
    meets = assigned.scope in ("fleet", "role") or (
        assigned.scope == "cluster" and holds(operator, assigned.subject)
    )
    return operator.clusters is None or meets


def _demand_place(operator: Operator, scope: Scope | None, subject: str | None) -> None:
    """Check that *operator* may say, or see, what applies there.

    Raises:
        Forbidden: They may in some clusters alone, and this is none of them.
    """
    if operator.clusters is not None and scope != "cluster":
        raise Forbidden(
            f"{operator.cn} may do this for the clusters {', '.join(sorted(operator.clusters))} only"
        )
    if scope == "cluster":
        demand_cluster(operator, subject or DEFAULT_CLUSTER)


async def create(document: bytes, *, res: Resources, operator: Operator) -> PolicyDetail:
    """Judge and store a policy version.

    Raises:
        PolicyInvalid: With the rule of the format that it breaks.
        AlreadyExists: This name and version are taken; a change is a new version.
    """
    at = res.clock.now()
    judged = parse_policy(document)
    stored = StoredPolicy(
        name=judged.name,
        version=judged.version,
        sha256=judged.sha256,
        document=judged.document.decode("ascii"),
        created_at=at,
        created_by=operator.cn,
    )

    def work(tx: Tx) -> PolicyDetail:
        tx.policies.add(stored)
        tx.audit.append(operator.event("policy_create", detail=f"{judged.ref} sha256 {judged.sha256}"), at)
        return _detail(stored)

    return await res.store.write(work)


async def get(
    name: Annotated[str, Path(pattern=NAME_PATTERN)],
    version: Annotated[int, Path(ge=1, le=999_999_999)],
    *,
    res: Res,
) -> PolicyDetail:
    """Return one policy version.

    Its document is what was written; nothing ever changes in it.

    Raises:
        PolicyUnknown: No such policy.
    """
    ref = f"{name}@{version}"
    if ref == IDENTITY_ONLY.ref:
        return _shipped()
    return _detail(await res.store.read(lambda tx: tx.policies.get(ref)))


async def assign(
    scope: ScopePath, subject: Subject, request: PolicyAssignmentRequest, *, res: Res, operator: VoterDep
) -> AssignmentDetail | PendingApproval:
    """Let a policy apply to the fleet, a cluster, a role or one machine.

    What a narrower policy says wins: machine, role, cluster, fleet. What applies already changes nothing.

    Raises:
        PolicyUnknown: No such policy.
        MachineUnknown: No such machine.
        RequestInvalid: *subject* is none of this scope.
        BreakGlassCannotVote: Several people must agree to it.
    """

    def work(tx: Tx) -> AssignmentDetail | PendingApproval:
        answer = _change(tx, scope, subject, request.policy, res, operator, at)
        assert answer is not None
        return answer

    at = res.clock.now()
    check_subject(scope, subject)
    _demand_place(operator, scope, subject)
    about = subject if scope == "machine" else None
    return await dual_control.write(work, res=res, operator=operator, at=at, machine_id=about)


async def unassign(
    scope: ScopePath, subject: Subject, *, res: Res, operator: VoterDep
) -> PendingApproval | None:
    """End an assignment.

    What wider policies say applies again.

    Raises:
        PolicyUnknown: Nothing is assigned there.
        MachineUnknown: No such machine.
        RequestInvalid: *subject* is none of this scope.
        BreakGlassCannotVote: Several people must agree to it.
    """

    def work(tx: Tx) -> PendingApproval | None:
        answer = _change(tx, scope, subject, None, res, operator, at)
        assert not isinstance(answer, AssignmentDetail)
        return answer

    at = res.clock.now()
    check_subject(scope, subject)
    _demand_place(operator, scope, subject)
    about = subject if scope == "machine" else None
    return await dual_control.write(work, res=res, operator=operator, at=at, machine_id=about)


async def roll_back(
    scope: ScopePath, subject: Subject, *, res: Res, operator: VoterDep
) -> AssignmentDetail | PendingApproval | None:
    """Let what applied there before apply again.

    The same act as assigning that policy by name: votes for the one count for the other.

    Raises:
        PolicyUnknown: Nothing was ever assigned there.
        MachineUnknown: No such machine.
        RequestInvalid: *subject* is none of this scope.
        BreakGlassCannotVote: Several people must agree to it.
    """

    def work(tx: Tx) -> AssignmentDetail | PendingApproval | None:
        before = tx.policies.before(scope, subject)
        return _change(tx, scope, subject, before, res, operator, at, why="rollback")

    at = res.clock.now()
    check_subject(scope, subject)
    _demand_place(operator, scope, subject)
    about = subject if scope == "machine" else None
    return await dual_control.write(work, res=res, operator=operator, at=at, machine_id=about)


def _change(
    tx: Tx,
    scope: Scope,
    subject: str,
    ref: str | None,
    res: Resources,
    operator: Operator,
    at: datetime,
    *,
    why: str | None = None,
) -> AssignmentDetail | PendingApproval | None:
    """Let *ref* apply there, or nothing where it is None; or count a vote for that.

    Raises:
        PolicyUnknown: No such policy, or nothing is assigned that could end.
        MachineUnknown: No such machine.
        ClusterUnknown: A cluster that nobody declared.
    """
    machine = tx.machines.require(subject) if scope == "machine" else None
    # 1. What applies there now is part of what is agreed to: two who saw another state agree to something else.
    now = tx.policies.assigned(scope, subject)
    if now is None and ref is None:
        raise PolicyUnknown(f"nothing is assigned to {scope} {subject[:80]!r}")
    if ref is not None and scope == "cluster":
        tx.clusters.demand_known(subject)
    if ref is not None:
        _demand_agreement(tx, scope, policy.stored(tx, ref))
    # 2. Enough people agree to exactly this document, by its digest.
    proposal = of_policy_assignment(
        scope=scope,
        subject=subject,
        machine=machine,
        policy=None if ref is None else _applied(tx, ref),
        replaces=None if now is None else _applied(tx, now.policy),
    )
    # What applies already is no act, unless one operator assigned it and several must agree by now, or it was named.
    again = now is not None and now.policy == ref and (now.agreed or not dual_control.gates(proposal, res))
    if now is not None and again and operator.proposal is None:
        return _assignment(now)
    agreed = dual_control.gate(tx, proposal, operator, res, at)
    if isinstance(agreed, PendingApproval):
        return agreed
    # 3. Assignment, history and audit are one unit.
    about = machine.machine_id if machine is not None else None
    also = [*([f"instead of {now.policy}"] if now is not None else []), *([why] if why else [])]
    if ref is None:
        tx.policies.unassign(scope, subject, at=at, by=operator.cn)
        told = agreed.told("; ".join([f"{scope} {subject}", *also]))
        tx.audit.append(operator.event("policy_unassign", machine_id=about, detail=told), at)
        return None
    if ref == IDENTITY_ONLY.ref:
        _store_shipped(tx, IDENTITY_ONLY, at)
    assigned = PolicyAssignment(
        scope=scope,
        subject=subject,
        policy=ref,
        assigned_at=at,
        assigned_by=operator.cn,
        agreed=bool(agreed.voters),
    )
    tx.policies.assign(assigned)
    told = agreed.told("; ".join([f"{ref} to {scope} {subject}", *also]))
    tx.audit.append(operator.event("policy_assign", machine_id=about, detail=told), at)
    return _assignment(assigned)


def _demand_agreement(tx: Tx, scope: Scope, wanted: Policy) -> None:
    """Refuse a policy that contradicts one which can meet it in a machine: nothing could be judged there.

    Raises:
        PolicyInvalid: With both.
    """
    others = {(other.scope, other.policy) for other in tx.policies.assignments() if other.scope != scope}
    for place, ref in sorted(others):
        pair = sorted([(SCOPES.index(scope), wanted.ref), (SCOPES.index(place), ref)])
        compose([policy.stored(tx, each) for _, each in pair])


def _applied(tx: Tx, ref: str) -> AppliedPolicy:
    if ref == IDENTITY_ONLY.ref:
        return AppliedPolicy(ref=ref, sha256=IDENTITY_ONLY.sha256)
    return AppliedPolicy(ref=ref, sha256=tx.policies.get(ref).sha256)


async def effective(machine_id: Id, *, res: Res) -> EffectivePolicy:
    """Return what a machine is measured against, and where each rule comes from.

    All that is assigned to the fleet, its cluster, its role and itself, in one.

    Raises:
        MachineUnknown: No such machine.
        Unavailable: What is assigned contradicts itself.
    """

    def work(tx: Tx) -> EffectivePolicy:
        machine = tx.machines.require(machine_id)
        places: list[tuple[Scope, str]] = [("fleet", FLEET), ("cluster", machine.cluster_id)]
        if machine.role is not None:
            places.append(("role", machine.role.value))
        assigned = [tx.policies.assigned(*place) for place in (*places, ("machine", machine_id))]
        found = policy.in_force(tx, machine, res.settings)
        return EffectivePolicy(
            machine_id=machine_id,
            policy=found.ref,
            sha256=found.sha256,
            identifier=identifier(found),
            assigned=[
                EffectivePart(scope=each.scope, subject=each.subject, policy=each.policy, agreed=each.agreed)
                for each in assigned
                if each is not None
            ],
            document=effective_document(found),
            looks_away=[words for kind in KINDS.values() for words in kind.looks_away(found)],
        )

    return await res.store.read(work)


async def history(
    scope: Annotated[Scope | None, Query()] = None,
    subject: Annotated[str | None, Query(min_length=1, max_length=128, pattern=SUBJECT_PATTERN)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    *,
    res: Res,
    operator: OperatorDep,
) -> PolicyHistoryPage:
    """List what applied where and since when, newest first.

    Everywhere, in one scope, or in one place of it.

    Raises:
        RequestInvalid: A subject without its scope, or one that is none of it.
    """
    if subject is not None:
        if scope is None:
            raise RequestInvalid("subject: a subject needs its scope")
        check_subject(scope, subject)
    if operator.clusters is not None:
        _demand_place(operator, scope if subject is not None else None, subject)
    page = await res.store.scan(lambda tx: tx.policies.history(cursor, limit, scope=scope, subject=subject))
    return PolicyHistoryPage(
        items=[
            PolicyChangeDetail(
                scope=change.scope, subject=change.subject, policy=change.policy, at=change.at, by=change.by
            )
            for change in page.items
        ],
        next_cursor=page.next_cursor,
    )


def _store_shipped(tx: Tx, shipped: Policy, at: datetime) -> None:
    """Store the shipped policy, so that an assignment can refer to it."""
    try:
        tx.policies.get(shipped.ref)
    except PolicyUnknown:
        tx.policies.add(
            StoredPolicy(
                name=shipped.name,
                version=shipped.version,
                sha256=shipped.sha256,
                document=shipped.document.decode("ascii"),
                created_at=at,
                created_by=SHIPPED_BY,
            )
        )


def _shipped() -> PolicyDetail:
    return PolicyDetail(
        name=IDENTITY_ONLY.name,
        version=IDENTITY_ONLY.version,
        sha256=IDENTITY_ONLY.sha256,
        created_at=None,
        created_by=SHIPPED_BY,
        document=json.loads(IDENTITY_ONLY.document),
    )


def _detail(stored: StoredPolicy) -> PolicyDetail:
    return PolicyDetail(
        name=stored.name,
        version=stored.version,
        sha256=stored.sha256,
        created_at=stored.created_at,
        created_by=stored.created_by,
        document=json.loads(stored.document),
    )


def _assignment(assignment: PolicyAssignment) -> AssignmentDetail:
    return AssignmentDetail(
        scope=assignment.scope,
        subject=assignment.subject,
        policy=assignment.policy,
        assigned_at=assignment.assigned_at,
        assigned_by=assignment.assigned_by,
        agreed=assignment.agreed,
    )
