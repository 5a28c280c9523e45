"""Whose request this is, as far as an address can say: the unit that limits are counted by.

One subscriber of IPv6 has at least a /64 and changes addresses within it at will, so an address alone limits nobody.
Whole sites have a /48. An IPv4 address is a unit of its own, also when it comes mapped into IPv6.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache

NETWORK_BITS = 64
SITE_BITS = 48


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return the network of *address*: the /64 of an IPv6 address, anything else as it is."""
    parsed = _v6(address)
    if parsed is None:
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed), NETWORK_BITS), strict=False))


@lru_cache(maxsize=4096)
def site_of(address: str) -> str | None:
    """Return the /48 of an IPv6 address; None for anything else."""
    parsed = _v6(address)
    if parsed is None or parsed.ipv4_mapped is not None:
        return None
    return str(ipaddress.IPv6Network((int(parsed), SITE_BITS), strict=False))


def is_inside(address: str, networks: Collection[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    """Return True if *address* is in one of *networks*; what is no address is in none, a mapped one is IPv4."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return any((mapped or parsed) in network for network in networks)


def _v6(address: str) -> ipaddress.IPv6Address | None:
    try:
        return ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return None
