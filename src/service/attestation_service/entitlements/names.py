"""Names that a machine may not have: this service's own; and who shares one from before names had to be unique.

The CA certifies what a machine is called. Whoever is called like this service has a certificate with which they are it,
to every program that trusts the CA.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import structlog

from attestation.errors import NameInUse
from attestation.machines import Machine
from attestation.machines.names import Names, names_of
from attestation.store import Namesake, Tx
from attestation_service.resources import Resources
from attestation_service.settings import Settings

MOST: Final = 50
"""So many are named; the list of machines marks them all."""

log = structlog.get_logger("attestation_service.names")


def demand_free(
    tx: Tx,
    settings: Settings,
    machine_id: str,
    cluster_id: str,
    hostname: str | None,
    assigned_ip: str | None,
) -> None:
    """Check that the machine can be called so in that cluster; it need not exist yet.

    Raises:
        NameInUse: This service is called so, or another machine; the message says which, for operators only.
    """
    demand_not_ours(settings, hostname, assigned_ip)
    tx.machines.demand_free(machine_id, cluster_id, hostname, assigned_ip)


def demand_not_ours(settings: Settings, hostname: str | None, assigned_ip: str | None) -> None:
    """Check that no machine is called like this service, in whatever cluster.

    Raises:
        NameInUse: It is.
    """
    ours = _ours(settings.service_url, settings.revocation_url)
    names = names_of(hostname, assigned_ip)
    for name in (names.hostname, names.address):
        if name is not None and name in ours:
            raise NameInUse(f"{name} is this service (ITL_SERVICE_URL, ITL_PKI_URL): no machine is called so")


@lru_cache(maxsize=8)
def _ours(*urls: str) -> frozenset[str]:
    """Return the hosts of *urls*, each as host name and as address: in the spelling in which they are compared."""
    hosts = [urlsplit(url).hostname or "" for url in urls]
    found = [names_of(host, host) for host in hosts if host]
    return frozenset(name for each in found for name in (each.hostname, each.address) if name is not None)


async def report(res: Resources) -> None:
    """Name the machines that share a host name or an address with an older one of their cluster, or with this service.

    The latter are from before that was refused, or the service has moved since.
    """

    def work(tx: Tx) -> tuple[list[Machine], list[Namesake]]:
        ours = _ours(res.settings.service_url, res.settings.revocation_url)
        called = [
            other
            for name in sorted(ours)
            for other in tx.machines.namesakes(Names(hostname=name, address=name), besides="")
        ]
        return tx.machines.sharing(MOST), called[:MOST]

    found, called = await res.store.read(work)
    if called:
        log.warning(
            "names.ours",
            machines=[f"{m.machine_id} ({m.names.told()}, {m.cluster_id})" for m in called],
            advice="this service is called so: give them another name, or revoke them; server certificates that they "
            "have already are good for that name until they are revoked or end",
        )
    if found:
        log.warning(
            "names.shared",
            machines=[f"{m.machine_id} ({m.hostname or m.assigned_ip}, {m.cluster_id})" for m in found],
            advice="revoke or replace one of the two, or give one another name; until then neither gets a "
            "server certificate",
        )
