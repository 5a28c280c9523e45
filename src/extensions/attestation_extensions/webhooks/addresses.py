"""Where a webhook may point: which URLs are read, and which addresses are connected to. Pure.

A service that sends what operators ask for can be asked to knock at what only it reaches: itself, its network, the
metadata of a cloud. So an address must be one of the public internet, or of a network that the deployment names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from attestation.errors import RequestInvalid

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

MAX_URL: Final = 2048
_VISIBLE: Final = re.compile(rf"[\x21-\x7e]{{1,{MAX_URL}}}")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\.?")
_AUTHORITY: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_PUBLIC6: Final = ip_network("2000::/3")
_EMBEDDING: Final = tuple(map(ip_network, ("2001::/23", "2002::/16", "2001:db8::/32", "3fff::/20")))
"""Of 2000::/3, what is no host of its own: Teredo and other protocols, 6to4, documentation."""
_SERVICES: Final = tuple(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
"""Of the public range, what is no host of the internet: what Azure gives each guest of its host; the block of
protocols, which older Pythons call public, and in which Oracle's older cloud has its metadata; relays of 6to4."""


class WebhookURLInvalid(RequestInvalid):
    """The URL cannot be one of a webhook."""

    code = "webhook-url-invalid"


class AddressRefused(RequestInvalid):
    """What the name points to is not to be connected to."""

    code = "webhook-address-refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A URL that was read; `host` is a name, or an address without brackets."""

    url: str
    scheme: str
    host: str
    port: int


def read_url(text: str, *, allow_http: bool) -> Target:
    """Read the URL of a webhook.

    Args:
        text: Visible ASCII, 1 to 2048 characters: `https`, a host, no user and no fragment.
        allow_http: `http` may be.

    Raises:
        WebhookURLInvalid: It is not such a URL.
    """
    if not _VISIBLE.fullmatch(text) or "\\" in text:
        raise WebhookURLInvalid(
            f"a URL of 1 to {MAX_URL} visible ASCII characters without \\ is expected, not this one of {len(text)}"
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise WebhookURLInvalid("the host or the port cannot be read") from None
    if parts.scheme != "https" and not (allow_http and parts.scheme == "http"):
        raise WebhookURLInvalid(f"a URL of https is expected, not of {parts.scheme[:16]!r}")
    if "@" in parts.netloc or "#" in text:
        raise WebhookURLInvalid("a URL without user (@) and fragment (#) is expected")
    # One spelling only, so that no other reader finds another host or port.
    if port == 0 or not _AUTHORITY.fullmatch(parts.netloc):
        raise WebhookURLInvalid("a port from 1 to 65535 is needed")
    address = _literal(host)
    if address is None and not (_HOST.fullmatch(host) and _is_name(host)):
        raise WebhookURLInvalid("a host is needed: a name, or an address as it is usually written")
    return Target(
        url=text, scheme=parts.scheme, host=host, port=port or (443 if parts.scheme == "https" else 80)
    )


def demand_allowed(address: str, allowed: Sequence[Network]) -> None:
    """Check an address that a host resolved to.

    Raises:
        AddressRefused: It is none of the public internet, nor of a network that is *allowed*.
    """
    found = _literal(address.partition("%")[0])
    if found is None:
        raise AddressRefused("not an address")
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if any(found.version == each.version and found in each for each in allowed):
        return
    if not _is_public(found):
        raise AddressRefused("an address that is not of the public internet is not connected to")


def _is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or address.is_unspecified or not address.is_global:
        return False
    if isinstance(address, IPv4Address):
        return not any(address in each for each in _SERVICES)
    return address in _PUBLIC6 and not any(address in each for each in _EMBEDDING)


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_name(host: str) -> bool:
    """Return False for what some resolvers take for an address: 127.1, 0x7f000001, 2130706433."""
    last = host.rstrip(".").rpartition(".")[2]
    return not last.isdigit() and not last.lower().startswith("0x")
