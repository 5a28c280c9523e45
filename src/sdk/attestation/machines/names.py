"""Host names and addresses: which spellings are the same name, and who may be called by one.

Two machines of one cluster never have the same: a certificate, a kubeconfig or a person that looks for the one would
find the other. So names are compared after they were brought into one form, whatever they were written in.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from attestation.errors import RequestInvalid
from attestation.machines.lifecycle import Status
from attestation.text import SHORT_ID

NAMELESS: Final = frozenset({Status.REVOKED, Status.REJECTED})
"""Machines in these keep the words in their record, but nobody is called so any more."""

MAX_HOSTNAME: Final = 253
_MAX_SPELLING: Final = 1024
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAPPED_BITS: Final = 96
"""Before an IPv4 address in an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a machine is called, in the form in which names are compared; None where it has none."""

    hostname: str | None
    address: str | None

    def told(self) -> str:
        """Return them in words."""
        said = (("host name", self.hostname), ("address", self.address))
        return " and ".join(f"{kind} {value}" for kind, value in said if value is not None)


def typed_name(hostname: str | None, machine_id: str) -> str:
    """Return what is typed by who confirms what cannot be undone to a machine: its host name, else its short id.

    Never what a machine says of itself: that may be the host name of another one, or nothing that a keyboard has.
    """
    return hostname or machine_id[:SHORT_ID]


def canonical_hostname(text: str) -> str:
    """Return the one spelling of a host name: ASCII (A-labels, RFC 5890), lower case, no dot at the end.

    Raises:
        RequestInvalid: Not a host name; or one that programs read as an address, or that only looks like an A-label.
    """
    if len(text) > _MAX_SPELLING:
        raise RequestInvalid(f"a host name has at most {MAX_HOSTNAME} characters")
    name = text.lower()
    if not name.isascii() or "xn--" in name:
        name = _idna(text)
    name = name.removesuffix(".")
    labels = name.split(".")
    if len(name) > MAX_HOSTNAME or not all(map(_LABEL.fullmatch, labels)):
        raise RequestInvalid("a host name is made of letters, digits and hyphens, 1 to 63 between dots")
    # What ends in a number is an IPv4 address to resolvers, and would be compared with none.
    if _NUMBER.fullmatch(labels[-1]):
        raise RequestInvalid("a host name that ends in a number would be read as an address")
    return name


def _idna(text: str) -> str:
    # Here: few names need it, and its tables take longer to load than all the rest of a command line.
    import idna

    try:
        return idna.encode(text, uts46=True, std3_rules=True).decode("ascii")
    except UnicodeError:
        raise RequestInvalid(
            "a host name has letters or an xn-- label that IDNA 2008 does not allow"
        ) from None


def canonical_interface(text: str) -> str:
    """Return the one spelling of an address with its prefix length; IPv4 in IPv6 is IPv4.

    Raises:
        RequestInvalid: Not an address with a prefix length.
    """
    found = _interface(text)
    return f"{found.ip}/{found.network.prefixlen}"


def canonical_address(text: str) -> str:
    """Return the address alone, of text with or without a prefix length: that is what a machine is reached by.

    Raises:
        RequestInvalid: Not an address.
    """
    return str(_interface(text if "/" in text else f"{text}/{128 if ':' in text else 32}").ip)


def _interface(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    if "/" not in text or "%" in text or not text.isascii():
        raise RequestInvalid("an address with its prefix length is needed, e.g. 10.0.0.11/24")
    try:
        found = ipaddress.ip_interface(text)
        mapped = getattr(found.ip, "ipv4_mapped", None)
        if mapped is None:
            return found
        return ipaddress.IPv4Interface((mapped, found.network.prefixlen - _MAPPED_BITS))
    except ValueError:
        raise RequestInvalid("not an address with its prefix length, e.g. 10.0.0.11/24") from None


def names_of(hostname: str | None, assigned_ip: str | None) -> Names:
    """Return what is compared. What cannot be read (it is from before these rules) is compared by its letters."""
    name, address = hostname, assigned_ip
    if hostname is not None:
        try:
            name = canonical_hostname(hostname)
        except RequestInvalid:
            name = hostname.lower()
    if assigned_ip is not None:
        try:
            address = canonical_address(assigned_ip)
        except RequestInvalid:
            address = assigned_ip.lower()
    return Names(hostname=name, address=address)
