"""Who gets a disk key: the rules, without a database or a clock.

A request names a UUID, and nothing proves it: Talos shows no client identity. So the answer goes to the address from
which an attested machine with this UUID sent a quote a moment ago, and what is opened was sealed for that machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from attestation.extension import Machine, Status, Trust
from attestation_extensions.disk_kms.tables import Key, Waiting

Operation = Literal["seal", "unseal"]
NOBODY: Final = ""
"""Looked up where there is no machine: what a stranger asks costs what a machine's request costs."""
_NETWORK_BITS: Final = 64


class Refusal(StrEnum):
    """Why nothing was given; for operators. The caller is told the same sentence in each case."""

    UNKNOWN = "unknown"
    """No admitted machine has this UUID."""
    AMBIGUOUS = "ambiguous"
    """Two have it."""
    NOT_ATTESTED = "not_attested"
    """It is locked, or has not attested since it was admitted."""
    NOT_VERIFIED = "not_verified"
    """Its last result was negative, or its lease is over."""
    NOT_FRESH = "not_fresh"
    """It quoted too long ago."""
    OTHER_ADDRESS = "other_address"
    """It quoted from another address."""
    NOT_A_DISK_KEY = "not_a_disk_key"
    """What is to be sealed has another length."""
    NOT_ITS_KEY = "not_its_key"
    """Sealed under no key of this machine, or changed."""
    RETIRED = "retired"
    """Sealed under a key that an operator retired."""
    KEK_MISSING = "kek_missing"
    """The key that wraps its key is not among those that are set."""
    ROW_CHANGED = "row_changed"
    """What is kept of its key was not wrapped so by us: another program wrote to the database."""
    HELD = "held"
    """An operator must release it."""


OF_ANYBODY: Final = frozenset(
    {
        *(Refusal.UNKNOWN, Refusal.AMBIGUOUS, Refusal.NOT_ATTESTED, Refusal.NOT_VERIFIED),
        *(Refusal.NOT_FRESH, Refusal.OTHER_ADDRESS),
    }
)
"""What is said before it is known that who asks stands where the machine has just quoted from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: of whom, from where.

    Args:
        operation: What is asked for.
        readings: The UUID in both orders of its bytes (`sealing.readings_of`).
        address: Where it came from, `canonical`.
        key_id: Name of the key that what is to be opened lies under; None where it is no blob, or to be sealed.
    """

    operation: Operation
    readings: tuple[str, str]
    address: str
    key_id: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of it.

    Args:
        machines: The admitted machines with this UUID; two stand for any number above one.
        key: To open with, or to seal with.
        held: An operator is needed.
        waiting: What was released.
    """

    machines: Sequence[Machine]
    key: Key | None
    held: bool
    waiting: Waiting | None

    @property
    def machine(self) -> Machine | None:
        """The one machine that is meant."""
        return self.machines[0] if len(self.machines) == 1 else None


def judge(asked: Asked, case: Case, at: datetime, *, fresh: timedelta) -> Refusal | None:
    """Return why nothing is given, None where it is.

    Args:
        asked: The request.
        case: What is known.
        at: Now.
        fresh: How old the quote may be.
    """
    machine = case.machine
    # 1. One machine is meant. Else a machine that copies a UUID chooses whose standing counts.
    if machine is None:
        return Refusal.AMBIGUOUS if case.machines else Refusal.UNKNOWN
    # 2. Operators let it work, and it has proved what it runs. Without this, a lock would not reach its disks.
    if machine.status is not Status.ATTESTED:
        return Refusal.NOT_ATTESTED
    if machine.trust(at) is not Trust.VERIFIED or machine.last_result_at is None:
        return Refusal.NOT_VERIFIED
    # 3. A moment ago. Else a disk that is taken out opens elsewhere for as long as the lease lasts.
    if at - machine.last_result_at >= fresh:
        return Refusal.NOT_FRESH
    # 4. From the same address. Nothing else ties the caller to the machine that quoted.
    if not is_address(asked.address) or canonical(machine.last_result_from or "") != asked.address:
        return Refusal.OTHER_ADDRESS
    if asked.operation == "seal":
        return None  # nothing is given away, so no operator is asked
    # 5. Its own key. The rest is for the cipher to say.
    if case.key is None or case.key.key_id != asked.key_id:
        return Refusal.NOT_ITS_KEY
    if case.key.retired_at is not None:
        return Refusal.RETIRED
    # 6. Last, so that operators are asked only about what they may let pass.
    if case.held and (case.waiting is None or not case.waiting.is_released(asked.address, at)):
        return Refusal.HELD
    return None


def is_address(text: str) -> bool:
    """Return True for an IP address: `unix`, which each client on a Unix socket has, names no machine."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def canonical(address: str) -> str:
    """Return the one spelling of an IP address, IPv4 in IPv6 as IPv4; what is none, as it is."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)


def network_of(address: str) -> str:
    """Return what limits are counted by: an IPv4 address, the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return (
        address
        if found.version == 4
        else str(ipaddress.IPv6Network((int(found), _NETWORK_BITS), strict=False))
    )


def peer_address(peer: str) -> str | None:
    """Return the address in gRPC's name for a client, `ipv4:192.0.2.1:4711` or `ipv6:%5B2001:db8::1%5D:4711`.

    None where it names none: a client on a Unix socket has no address.
    """
    _, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    host, _, _ = rest.rpartition(":")
    try:
        return canonical(str(ipaddress.ip_address(host.strip("[]").partition("%")[0])))
    except ValueError:
        return None
