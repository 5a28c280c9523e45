"""Clusters: declared, listed, and the version of Talos that each runs.

A cluster needs no declaration: one that machines are in is listed. Once one is declared, no act puts a machine into
another that is not (`attestation.store.clusters`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path

from attestation.api import (
    ClusterChange,
    ClusterConfiguration,
    ClusterCreate,
    ClusterDetail,
    ClusterPage,
    ClusterSummary,
    EffectivePart,
    PendingApproval,
)
from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.api.clusters import SERVICE_VERSION
from attestation.errors import AlreadyExists, BaseConfigInvalid, BaseConfigMissing, ClusterUnknown
from attestation.machines import Role, Status
from attestation.machines.dual_control import of_cluster_version
from attestation.store import FLEET, Cluster, Scope, Tx
from attestation_service.auth import Operator, OperatorDep, VoterDep
from attestation_service.context.reach import demand_cluster, holds
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources
from attestation_service.routing.parameters import Cursor, Limit
from attestation_service.settings import Settings

ClusterPath = Annotated[str, Path(pattern=CLUSTER_ID_PATTERN)]


async def list_clusters(
    cursor: Cursor = None, limit: Limit = 50, *, res: Res, operator: OperatorDep
) -> ClusterPage:
    """List clusters that are declared or that machines are in.

    In the order of their ids.
    """
    page = await res.store.scan(lambda tx: tx.clusters.page(cursor, limit, operator.clusters))
    return ClusterPage(
        items=[
            ClusterSummary(**_summary(each.cluster_id, each.declared, each.machines, res.settings))
            for each in page.items
        ],
        next_cursor=page.next_cursor,
    )


async def get(cluster_id: ClusterPath, *, res: Res, operator: OperatorDep) -> ClusterDetail:
    """Return one cluster.

    What is declared of it, its machines by status and role, and the policies that they meet.

    Raises:
        ClusterUnknown: Nobody declared it, and no machine is in it.
    """

    def work(tx: Tx) -> ClusterDetail:
        if not holds(operator, cluster_id) or not tx.clusters.is_there(cluster_id):
            raise ClusterUnknown(f"no operator declared a cluster {cluster_id}, and no machine is in it")
        return _detail(tx, cluster_id, res.settings)

    return await _with_files(await res.store.scan(work), res.settings)


async def create(request: ClusterCreate, *, res: Res, operator: VoterDep) -> ClusterDetail | PendingApproval:
    """Declare a cluster.

    From the first one on, acts put machines into clusters that are declared, or have machines, and no others.

    Raises:
        AlreadyExists: It is declared.
        BreakGlassCannotVote: It says a version of Talos, and several people must agree to that.
    """
    at = res.clock.now()
    cluster = Cluster(
        **request.model_dump() | {"description": request.description or None},
        created_at=at,
        created_by=operator.cn,
        changed_at=at,
        changed_by=operator.cn,
    )

    def work(tx: Tx) -> ClusterDetail | PendingApproval:
        if tx.clusters.get(cluster.cluster_id) is not None:
            raise AlreadyExists(f"cluster {cluster.cluster_id} is declared already")
        agreed = _agreed(tx, cluster, None, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        tx.clusters.add(cluster)
        tx.audit.append(operator.event("cluster_create", detail=agreed.told(_told(cluster))), at)
        return _detail(tx, cluster.cluster_id, res.settings)

    done = await dual_control.write(work, res=res, operator=operator, at=at)
    return await _with_files(done, res.settings) if isinstance(done, ClusterDetail) else done


async def change(
    cluster_id: ClusterPath, request: ClusterChange, *, res: Res, operator: VoterDep
) -> ClusterDetail | PendingApproval:
    """Change what is declared of a cluster.

    By the version of Talos the configurations of its machines are written and judged, from their next delivery on.

    Raises:
        ClusterUnknown: Nobody declared it.
        BreakGlassCannotVote: Another version of Talos, and several people must agree to that.
    """
    at = res.clock.now()
    said = request.model_dump(exclude_none=True)
    if said.get("talos_version") == SERVICE_VERSION:
        said["talos_version"] = None
    if said.get("description") == "":
        said["description"] = None

    def work(tx: Tx) -> ClusterDetail | PendingApproval:
        demand_cluster(operator, cluster_id)
        before = tx.clusters.require(cluster_id)
        after = replace(before, **said)
        agreed = _agreed(tx, after, before, res, operator, at)
        if isinstance(agreed, PendingApproval):
            return agreed
        if after != before:
            tx.clusters.change(replace(after, changed_at=at, changed_by=operator.cn))
            told = f"{_told(after)}; before: {_told(before)}"
            tx.audit.append(operator.event("cluster_change", detail=agreed.told(told)), at)
        return _detail(tx, cluster_id, res.settings)

    done = await dual_control.write(work, res=res, operator=operator, at=at)
    return await _with_files(done, res.settings) if isinstance(done, ClusterDetail) else done


def _agreed(
    tx: Tx, after: Cluster, before: Cluster | None, res: Resources, operator: Operator, at: datetime
) -> dual_control.Agreed | PendingApproval:
    """Ask dual control where the version of Talos changes: what its machines are given follows from it.

    Also of a cluster without machines: nobody prepares alone what several let a machine into later.
    """
    now = None if before is None else before.talos_version
    if after.talos_version == now:
        return dual_control.alone(operator)
    same = before is not None and before.description == after.description
    proposal = of_cluster_version(
        cluster=after.cluster_id,
        description=None if same else after.description or "",
        talos_version=after.talos_version or SERVICE_VERSION,
        replaces=None if before is None else before.talos_version or SERVICE_VERSION,
    )
    return dual_control.gate(tx, proposal, operator, res, at)


def _told(cluster: Cluster) -> str:
    version = cluster.talos_version or SERVICE_VERSION
    words = f"cluster {cluster.cluster_id}, Talos {version}"
    return words if cluster.description is None else f"{words}, {cluster.description}"


def _summary(cluster_id: str, declared: Cluster | None, machines: int, settings: Settings) -> dict[str, Any]:
    version = None if declared is None else declared.talos_version
    return {
        "cluster_id": cluster_id,
        "declared": declared is not None,
        "description": None if declared is None else declared.description,
        "talos_version": version or settings.talos_version,
        "talos_version_declared": version is not None,
        "machines": machines,
        "created_at": None if declared is None else declared.created_at,
        "created_by": None if declared is None else declared.created_by,
    }


def _detail(tx: Tx, cluster_id: str, settings: Settings) -> ClusterDetail:
    declared, counts = tx.clusters.get(cluster_id), tx.clusters.counts(cluster_id)
    roles = sorted(role for role in counts.by_role if role is not None)
    places: list[tuple[Scope, str]] = [
        ("fleet", FLEET),
        ("cluster", cluster_id),
        *(("role", r) for r in roles),
    ]
    assigned = [tx.policies.assigned(*place) for place in places]
    return ClusterDetail(
        **_summary(cluster_id, declared, sum(counts.by_status.values()), settings),
        by_status={status: counts.by_status.get(status, 0) for status in Status},
        by_role={role: counts.by_role.get(role, 0) for role in Role},
        without_role=counts.by_role.get(None, 0),
        policies=[
            EffectivePart(scope=each.scope, subject=each.subject, policy=each.policy, agreed=each.agreed)
            for each in assigned
            if each is not None
        ],
        configurations=_configurations(tx, cluster_id, roles),
        changed_at=None if declared is None else declared.changed_at,
        changed_by=None if declared is None else declared.changed_by,
    )


def _configurations(tx: Tx, cluster_id: str, roles: Iterable[Role]) -> list[ClusterConfiguration]:
    """Return which version is active for each of *roles*, and for others of the cluster; files are looked for later."""
    active = {
        Role(each.place.role): each.version
        for each in tx.configurations.active_bases()
        if each.place.cluster_id == cluster_id
    }
    return [
        ClusterConfiguration(
            role=role, source="none" if role not in active else "version", version=active.get(role)
        )
        for role in sorted({*roles, *active})
    ]


async def _with_files(found: ClusterDetail, settings: Settings) -> ClusterDetail:
    """Return *found* with the files that stand in where no version is active; they are read on a thread."""
    if settings.keeps_configurations and not settings.config_file_fallback:
        return found

    # Here: who asks for no cluster needs no YAML.
    from attestation_service.configs.files import load_base

    def look(each: ClusterConfiguration) -> ClusterConfiguration:
        if each.source != "none":
            return each
        try:
            load_base(settings.config_cache_dir, each.role, found.cluster_id)
        except (BaseConfigMissing, BaseConfigInvalid):
            return each
        return each.model_copy(update={"source": "file"})

    looked = await asyncio.to_thread(lambda: list(map(look, found.configurations)))
    return found.model_copy(update={"configurations": looked})
