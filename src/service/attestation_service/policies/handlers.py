"""Policies: judged when they are written, immutable from then on, assigned where they shall apply."""

from __future__ import annotations

import json
import re

from attestation.api import PolicyAssignment as AssignmentDetail
from attestation.api import PolicyDetail, PolicyList
from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.errors import MachineUnknown, PolicyUnknown, RequestInvalid
from attestation.machines import Role
from attestation.reference import IDENTITY_ONLY, Policy, parse_policy
from attestation.store import FLEET, PolicyAssignment, Scope, StoredPolicy, Tx
from attestation_service.auth import Operator
from attestation_service.context import Resources

SHIPPED_BY = "shipped"


async def list_policies(*, res: Resources) -> PolicyList:
    """Return every policy version, the shipped one first, and all assignments."""

    def work(tx: Tx) -> PolicyList:
        stored = [p for p in tx.policies.all() if p.ref != IDENTITY_ONLY.ref]
        return PolicyList(
            policies=[_shipped(), *map(_detail, stored)],
            assignments=[_assignment(a) for a in tx.policies.assignments()],
        )

    return await res.store.read(work)


async def create(document: bytes, *, res: Resources, operator: Operator) -> PolicyDetail:
    """Judge and store a policy version.

    Raises:
        PolicyInvalid: With the rule of the format that it breaks.
        AlreadyExists: This name and version are taken; a change is a new version.
    """
    at = res.clock.now()
    policy = parse_policy(document)
    stored = StoredPolicy(
        name=policy.name,
        version=policy.version,
        sha256=policy.sha256,
        document=policy.document.decode("ascii"),
        created_at=at,
        created_by=operator.cn,
    )

    def work(tx: Tx) -> None:
        tx.policies.add(stored)
        tx.audit.append(operator.event("policy_create", detail=f"{policy.ref} sha256 {policy.sha256}"), at)

    await res.store.write(work)
    return _detail(stored)


async def assign(
    scope: Scope, subject: str, ref: str, *, res: Resources, operator: Operator
) -> AssignmentDetail:
    """Let a policy apply there from now on; machines learn it with their next challenge.

    Raises:
        PolicyUnknown: No such policy.
        MachineUnknown: No such machine.
        RequestInvalid: *subject* is none of this scope.
    """
    at = res.clock.now()
    _check_subject(scope, subject)
    assignment = PolicyAssignment(
        scope=scope, subject=subject, policy=ref, assigned_at=at, assigned_by=operator.cn
    )

    def work(tx: Tx) -> None:
        if scope == "machine" and tx.machines.by_id(subject) is None:
            raise MachineUnknown("no such machine")
        if ref == IDENTITY_ONLY.ref:
            _store_shipped(tx, IDENTITY_ONLY, assignment)
        tx.policies.assign(assignment)
        tx.audit.append(
            operator.event(
                "policy_assign",
                machine_id=subject if scope == "machine" else None,
                detail=f"{ref} to {scope} {subject}",
            ),
            at,
        )

    await res.store.write(work)
    return _assignment(assignment)


async def unassign(scope: Scope, subject: str, *, res: Resources, operator: Operator) -> None:
    """Let the next wider assignment apply there again.

    Raises:
        PolicyUnknown: Nothing is assigned there.
        RequestInvalid: *subject* is none of this scope.
    """
    at = res.clock.now()
    _check_subject(scope, subject)

    def work(tx: Tx) -> None:
        tx.policies.unassign(scope, subject)
        tx.audit.append(
            operator.event(
                "policy_unassign",
                machine_id=subject if scope == "machine" else None,
                detail=f"{scope} {subject}",
            ),
            at,
        )

    await res.store.write(work)


def _check_subject(scope: Scope, subject: str) -> None:
    good = {
        "fleet": subject == FLEET,
        "cluster": re.fullmatch(CLUSTER_ID_PATTERN, subject) is not None,
        "role": subject in set(Role),
        "machine": len(subject) <= 36,
    }
    if not good[scope]:
        raise RequestInvalid(f"{subject[:80]!r} is not a {scope}; the fleet is {FLEET!r}")


def _store_shipped(tx: Tx, policy: Policy, assignment: PolicyAssignment) -> None:
    """Store the shipped policy, so that an assignment can refer to it."""
    try:
        tx.policies.get(policy.ref)
    except PolicyUnknown:
        tx.policies.add(
            StoredPolicy(
                name=policy.name,
                version=policy.version,
                sha256=policy.sha256,
                document=policy.document.decode("ascii"),
                created_at=assignment.assigned_at,
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


def _detail(policy: StoredPolicy) -> PolicyDetail:
    return PolicyDetail(
        name=policy.name,
        version=policy.version,
        sha256=policy.sha256,
        created_at=policy.created_at,
        created_by=policy.created_by,
        document=json.loads(policy.document),
    )


def _assignment(assignment: PolicyAssignment) -> AssignmentDetail:
    return AssignmentDetail(
        scope=assignment.scope,
        subject=assignment.subject,
        policy=assignment.policy,
        assigned_at=assignment.assigned_at,
        assigned_by=assignment.assigned_by,
    )
