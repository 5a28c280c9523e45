"""What a Node says of its machine (HSM-AND-KUBERNETES §19 step 14; docs/adr/0129).

The label `itl-attested` says `true`, or what the last attestation run found (docs/adr/0181), only while all of this
holds: somebody that no kubelet can pose as wrote whose the Node is; the service knows that machine under the Node's
name, and trusts it; and what it last said is still good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from attestation.api.node_csr import NodeTrust
from attestation.machines import Status
from attestation_operator.actions import Action, EmitEvent, PatchNode
from attestation_operator.nodes.objects import (
    ATTESTED_LABEL,
    CORDONED_LABEL,
    MACHINE_ID_LABEL,
    OWNER_LABEL,
    RUN_CORDONED_LABEL,
    RUN_VERDICT_LABEL,
    TAINT_KEY,
    Node,
)
from attestation_operator.nodes.policy import NodePolicy
from attestation_operator.objects import Raw

UNKNOWN_KEPT: Final = timedelta(minutes=5)
"""How long labels are left as they are after a start at which the service is away: nothing is known of leases then."""
CLOCK_SKEW: Final = timedelta(minutes=2)
"""Between the clocks of the cluster and the service, where a Node's age is compared."""


class Standing(StrEnum):
    """What is known of a Node's machine."""

    TRUSTED = "Trusted"
    UNCLAIMED = "Unclaimed"
    UNKNOWN_MACHINE = "UnknownMachine"
    OTHER_NAME = "OtherName"
    CONTRADICTED = "Contradicted"
    LAPSED = "TrustLapsed"
    BARRED = "MachineBarred"
    NOT_KNOWN = "NotKnown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the service last said of the machines of this cluster.

    Args:
        machines: By machine id; None before the service ever answered this process.
        at: When it said so, or when this process began to ask.
    """

    machines: Mapping[str, NodeTrust] | None
    at: datetime
    by_hostname: Mapping[str, tuple[NodeTrust, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, machines: Sequence[NodeTrust], at: datetime) -> Self:
        """Return *machines*, as they were listed at *at*."""
        named: dict[str, tuple[NodeTrust, ...]] = {}
        for machine in machines:
            if machine.hostname is not None:
                named[machine.hostname] = (*named.get(machine.hostname, ()), machine)
        return cls(machines={machine.machine_id: machine for machine in machines}, at=at, by_hostname=named)


def reconcile(node: Node, listing: Listing, policy: NodePolicy, at: datetime) -> tuple[Action, ...]:
    """Return what is to be changed on *node*; nothing where it says already what holds."""
    claim = None if node.labels.get(OWNER_LABEL) else _claim(node, listing)
    standing = judge(node, node.labels.get(OWNER_LABEL) or claim, listing, at)
    if standing is Standing.NOT_KNOWN:
        return ()
    trusted = standing is Standing.TRUSTED
    # Where attestation runs label Nodes, what the last one found counts while the machine is trusted (docs/adr/0181).
    verdict = node.labels.get(RUN_VERDICT_LABEL) if trusted else None
    worth = verdict or ("true" if trusted else "false")
    labels: dict[str, str | None] = {ATTESTED_LABEL: worth}
    if claim is not None and trusted:
        labels |= {OWNER_LABEL: claim, MACHINE_ID_LABEL: claim}
    taints = _taints(node, standing, policy)
    cordon = _cordon(node, standing, policy)
    if cordon is not None:
        labels[CORDONED_LABEL] = "true" if cordon else None
    changed = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    if not changed and taints is None and cordon is None:
        return ()
    patch = PatchNode(
        target=node.target,
        labels=changed,
        taints=taints,
        unschedulable=_unschedulable(node, cordon),
    )
    if ATTESTED_LABEL not in changed:
        return (patch,)
    # What is told is what the label says: a machine may be trusted whose last run failed.
    ran = "" if verdict is None else f"; the last attestation run: {verdict}"
    return (
        patch,
        EmitEvent(
            target=node.target,
            action="Label",
            reason=standing.value if verdict is None else f"Run{verdict.capitalize()}",
            note=f"{ATTESTED_LABEL}={worth}: {_WORDS[standing]}{ran}",
            type="Normal" if worth in ("true", "verified") else "Warning",
        ),
    )


def judge(node: Node, owner: str | None, listing: Listing, at: datetime) -> Standing:
    """Return what is known of *node*'s machine at *at*.

    Args:
        node: The Node.
        owner: Whose it is, as nobody else than we or an administrator wrote it.
        listing: What the service said last, however long ago.
        at: Now.
    """
    # 1. Nobody said whose the Node is.
    if owner is None:
        return Standing.UNCLAIMED
    # 2. The service has not answered since we started. A label is left for a while, not for ever: somebody who keeps
    #    us from the service must not keep a label alive.
    if listing.machines is None:
        return Standing.NOT_KNOWN if at < listing.at + UNKNOWN_KEPT else Standing.LAPSED
    # 3. The kubelet says that it is another's than we know.
    if node.labels.get(MACHINE_ID_LABEL, owner) != owner:
        return Standing.CONTRADICTED
    machine = listing.machines.get(owner)
    if machine is None:
        return Standing.UNKNOWN_MACHINE
    # 4. Locked or revoked: said before the name, because it is the worse.
    if machine.status in _BARRED:
        return Standing.BARRED
    # 5. The operators gave the name to another machine, or took it away.
    if machine.hostname != node.name:
        return Standing.OTHER_NAME
    # 6. Trusted when it was listed, and still: away or not, the service's word ends when it said that it would.
    if not machine.trusted or machine.trust_expires_at is None or machine.trust_expires_at <= at:
        return Standing.LAPSED
    return Standing.TRUSTED


def _claim(node: Node, listing: Listing) -> str | None:
    """Return whose an unclaimed Node is, as far as it is safe to say; None otherwise.

    Of the one machine that has its name, and got its first certificate before there was this Node. An older Node was
    made with another certificate: an administrator says whose it is. Of a machine that was locked or revoked in any
    case: whoever deletes its Node has it come back without labels and taints, for as long as its certificate lasts.
    """
    named = listing.by_hostname.get(node.name, ())
    if len(named) != 1:
        return None
    first = named[0].node_certificate_at
    younger = first is not None and node.created_at + CLOCK_SKEW >= first
    return named[0].machine_id if younger or named[0].status in _BARRED else None


def _taints(node: Node, standing: Standing, policy: NodePolicy) -> tuple[Raw, ...] | None:
    """Return the taints that the Node is to have; None where those that it has are right.

    The key is ours: whatever has it, we put there. Where the administrator wants no taints any more, they go.
    """
    effect = _EFFECTS.get(standing) if policy.taint else None
    wanted = [] if effect is None else [effect]
    ours = [taint.get("effect") for taint in node.taints if taint.get("key") == TAINT_KEY]
    if ours == wanted:
        return None
    others = tuple(taint for taint in node.taints if taint.get("key") != TAINT_KEY)
    return (*others, *({"key": TAINT_KEY, "effect": each} for each in wanted))


def _cordon(node: Node, standing: Standing, policy: NodePolicy) -> bool | None:
    """Return True to cordon, False to take back a cordon of ours, None to leave the Node as it is.

    Who cordoned is in a label that no kubelet can write. A Node that somebody else cordoned is not ours to open, and
    one that somebody opened again, although we had cordoned it, is cordoned again.
    """
    ours = CORDONED_LABEL in node.labels
    wanted = policy.cordon and standing in _EFFECTS
    if wanted and not node.unschedulable:
        return True
    if not wanted and ours:
        return False
    return None


def _unschedulable(node: Node, cordon: bool | None) -> bool | None:
    if cordon is False and RUN_CORDONED_LABEL in node.labels:
        return None  # an attestation run cordoned it too; a verified one lifts that
    return None if cordon is None or cordon == node.unschedulable else cordon


_BARRED: Final = frozenset({Status.LOCKED, Status.REVOKED, Status.REJECTED})
_EFFECTS: Final[Mapping[Standing, str]] = {
    Standing.LAPSED: "NoSchedule",
    Standing.CONTRADICTED: "NoSchedule",
    Standing.OTHER_NAME: "NoExecute",
    Standing.UNKNOWN_MACHINE: "NoExecute",
    Standing.BARRED: "NoExecute",
}
"""A lapse may pass: nothing new is put there. A machine that was locked, or has the name no more, loses its pods.
A Node that was never claimed is neither: most of them, while a cluster is being moved to this."""
_WORDS: Final[Mapping[Standing, str]] = {
    Standing.TRUSTED: "its machine is trusted",
    Standing.UNCLAIMED: "nobody said which machine it is",
    Standing.UNKNOWN_MACHINE: "the service does not know its machine",
    Standing.OTHER_NAME: "its machine has another name",
    Standing.CONTRADICTED: "it says that it is another machine",
    Standing.LAPSED: "its machine is not trusted now",
    Standing.BARRED: "its machine is locked, revoked or rejected",
}
