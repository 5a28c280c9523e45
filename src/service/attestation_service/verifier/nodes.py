"""Which machine is a node of Kubernetes: the one that operators called so in that cluster."""

from __future__ import annotations

from attestation.machines import Machine
from attestation.machines.names import names_of
from attestation.store import Tx


def named(tx: Tx, hostname: str | None, cluster_id: str) -> Machine | None:
    """Return the machine of a cluster that operators called *hostname*; None where none or several are called so."""
    if hostname is None:
        return None
    found = [
        each
        for each in tx.machines.namesakes(names_of(hostname, None), besides="")
        if each.cluster_id == cluster_id
    ]
    return tx.machines.by_id(found[0].machine_id) if len(found) == 1 else None


def taken_back(tx: Tx, hostname: str, cluster_id: str) -> Machine | None:
    """Return the machine that was called *hostname* until operators revoked or rejected it; None where none was."""
    return tx.machines.once_called(hostname, cluster_id)
