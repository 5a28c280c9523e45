"""In which clusters an operator's right holds, and what is in them.

Who may something everywhere has no reach (None); who may it in some clusters has those. A route is for the first
alone, unless it says that it keeps to the clusters of whoever asks (`routing.openapi.access`): so a new one is.

A machine that was admitted is in the cluster that operators decided. One that was not is nobody's yet: it is shown to,
and may be admitted or rejected by, the operators of the cluster that it asked for. That is its own word, and gives it
nothing: whose cluster it comes into, they decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from attestation.errors import ApprovalUnknown, Forbidden, MachineUnknown
from attestation.machines import DEFAULT_CLUSTER, Machine
from attestation.machines.dual_control import REGISTRATION_TOKEN
from attestation.store import AllowListRow
from attestation_service.context.identity import Operator

Reach = Literal["fleet", "cluster", "any"]
"""Of a route: for those alone whose right holds everywhere; keeps to the clusters of whoever asks; about no cluster."""

REACH_KEY: Final = "x-reach"


def cluster_of(machine: Machine) -> str:
    """Return in which cluster *machine* is, or would like to be as long as nobody admitted it."""
    wished = machine.desired_cluster_id or DEFAULT_CLUSTER
    return wished if machine.role is None else machine.cluster_id


def holds(operator: Operator, cluster_id: str | None) -> bool:
    """Return True if what *operator* does now, they may do in *cluster_id*; None is the default one."""
    return operator.clusters is None or (cluster_id or DEFAULT_CLUSTER) in operator.clusters


def demand_machine(operator: Operator, machine: Machine) -> None:
    """Check that *machine* is in a cluster of *operator*.

    Raises:
        MachineUnknown: It is in another one: they are told what is told where there is none.
    """
    if not holds(operator, cluster_of(machine)):
        raise MachineUnknown("no such machine")


def demand_cluster(operator: Operator, cluster_id: str | None) -> None:
    """Check that *operator* may put something into *cluster_id*; None is the default one.

    Raises:
        Forbidden: They may in others alone.
    """
    if not holds(operator, cluster_id):
        assert operator.clusters is not None
        raise Forbidden(
            f"{operator.cn} may do this in {', '.join(sorted(operator.clusters))} only, not in "
            f"{cluster_id or DEFAULT_CLUSTER}"
        )


def demand_ek(operator: Operator, entry: AllowListRow | None, machine: Machine | None) -> None:
    """Check that *operator* may list an EK: that of *machine*, in the place of *entry*, listed or removed long ago.

    Raises:
        Forbidden: One of the two is of a cluster that is none of theirs, and which one they are not told.
    """
    clusters = [entry.cluster_id] if entry is not None else []
    clusters += [cluster_of(machine)] if machine is not None else []
    if not all(holds(operator, each) for each in clusters):
        raise Forbidden(f"{operator.cn} may not say anything of this EK: it is known in another cluster")


def demand_proposal(operator: Operator, members: Mapping[str, Any]) -> None:
    """Check that a proposal is about clusters of *operator* alone.

    Raises:
        ApprovalUnknown: It is not: they are told what is told where there is none.
    """
    if not is_within(members, operator.clusters):
        raise ApprovalUnknown("no vote for this proposal lives")


def is_within(members: Mapping[str, Any], clusters: frozenset[str] | None) -> bool:
    """Return True if a proposal, as `Proposal.canonical` wrote it, is about nothing outside of *clusters*.

    What names no cluster concerns all. A machine that has no role yet comes from none.
    """
    if clusters is None:
        return True
    after = members["cluster_id"]
    if after is None and members["action"] == REGISTRATION_TOKEN:
        after = DEFAULT_CLUSTER
    before = members["current_cluster_id"] if members["machine_id"] and members["current_role"] else after
    return after in clusters and before in clusters
