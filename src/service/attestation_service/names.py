"""Who was called like another machine before names had to be unique: told at every start, until somebody decides."""

from __future__ import annotations

from typing import Final

import structlog

from attestation_service.context import Resources

MOST: Final = 50
"""So many are named; the list of machines marks them all."""

log = structlog.get_logger("attestation_service.names")


async def report(res: Resources) -> None:
    """Name the machines that share a host name or an address with an older one of their cluster."""
    found = await res.store.read(lambda tx: tx.machines.sharing(MOST))
    if found:
        log.warning(
            "names.shared",
            machines=[f"{m.machine_id} ({m.hostname or m.assigned_ip}, {m.cluster_id})" for m in found],
            advice="revoke or replace one of the two, or give one another name; until then neither gets a "
            "server certificate",
        )
