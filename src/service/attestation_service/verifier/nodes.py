"""Which machine is a node of Kubernetes: the one that operators called so in that cluster."""

from __future__ import annotations

from attestation.machines import Machine
from attestation.machines.names import names_of
from attestation.store import Tx


def named(tx: Tx, hostname: str | None, cluster_id: str) -> Machine | None:
    """Return the machine of a cluster that operators called *hostname*; None where none or several are called so."""
    found = _called(tx, hostname, cluster_id)
    return tx.machines.by_id(found[0]) if len(found) == 1 else None


def named_or_taken_back(tx: Tx, hostname: str, cluster_id: str) -> Machine | None:
    """As `named`; where nobody is called so, the machine that was, until operators revoked or rejected it."""
    if _called(tx, hostname, cluster_id):
        return named(tx, hostname, cluster_id)
    return tx.machines.once_called(hostname, cluster_id)


def _called(tx: Tx, hostname: str | None, cluster_id: str) -> list[str]:
    """Return the ids of the machines of a cluster that are called *hostname*."""
    if hostname is None:
        return []
    return [
        each.machine_id
        for each in tx.machines.namesakes(names_of(hostname, None), besides="")
        if each.cluster_id == cluster_id
    ]
