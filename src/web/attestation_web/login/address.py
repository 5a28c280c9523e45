"""From which address a person asks: that of the connection, or what a proxy of ours says of it.

`X-Forwarded-For` is read from the right, as long as who wrote it is a trusted proxy: what stands left of the first
address that is none is only claimed. Nothing here is decided by it: the service is told, and believes it or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def address_of(peer: str | None, forwarded: Iterable[str], trusted: Collection[Network]) -> str | None:
    """Return the address of who asks; None where nobody knows it.

    Args:
        peer: The other end of the connection.
        forwarded: Each `X-Forwarded-For`, in their order.
        trusted: Where our own proxies are.
    """
    known = None
    claimed = [part.strip() for value in forwarded for part in value.split(",")]
    for candidate in [peer or "", *reversed(claimed)]:
        try:
            found = ip_address(candidate)
        except ValueError:
            return known
        # A socket that listens on `::` sees IPv4 peers so.
        found = getattr(found, "ipv4_mapped", None) or found
        known = str(found)
        if not any(found in network for network in trusted):
            return known
    return known
