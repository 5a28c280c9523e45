"""Whether two machines are one chip: what marks a TPM, what proves it, and what only hints at it (PROTOCOL §8.6).

A revoked machine comes back under the second endorsement key of the same TPM. Two things prove that: an EK that it
showed beside another one, each activated, and the serial number of the chip where the makers' certificates carry
one. What the firmware tables say (serial, UUID) is copied as easily as it is changed: it raises an alarm, no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from attestation.machines.lifecycle import Status


class MarkKind(StrEnum):
    """What marks a chip."""

    EK = "ek"
    """Fingerprint of an EK that was activated in it, 96 lower-case hex."""
    EK_SERIAL = "ek-serial"
    """Manufacturer, model and serial number of the chip, as an EK certificate says."""
    HW_SERIAL = "hw-serial"
    """Serial number of the mainboard or chassis, as the firmware tables say."""
    HW_UUID = "hw-uuid"
    """UUID of the system, likewise."""


WORDS: Final = {
    MarkKind.EK: "endorsement key",
    MarkKind.EK_SERIAL: "serial number in the EK certificate",
    MarkKind.HW_SERIAL: "hardware serial number",
    MarkKind.HW_UUID: "hardware UUID",
}

ENDED: Final = frozenset({Status.REVOKED, Status.REJECTED, Status.LOCKED})
MOST_NAMED: Final = 5
"""So many machines are named in one alarm."""
MAX_HINT_CHARACTERS: Final = 128
MIN_SERIAL_CHARACTERS: Final = 4

_PLACEHOLDERS: Final = frozenset(
    {
        "unknown", "none", "null", "n/a", "na", "default", "default string", "default-string", "invalid", "empty",
        "not specified", "not applicable", "not available", "not set", "to be filled by o.e.m.", "tobefilledbyo.e.m.",
        "to be filled by oem", "o.e.m.", "oem", "system serial number", "chassis serial number",
        "base board serial number",
        "serial number", "serialnumber", "system serial", "board serial", "123456789", "1234567890", "0123456789",
        "12345678", "123456", "1234", "xxxxxxxxxxx", "qemu", "vmware", "virtualbox", "xen",
        # UUIDs that many boards share.
        "03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009",
        "12345678-1234-5678-90ab-cddeefaabbcc", "12345678-1234-5678-90ab-cdefaabbccdd",
        "fefefefe-fefe-fefe-fefe-fefefefefefe",
    }
)  # fmt: skip
_FILLING: Final = re.compile(r"[\s._:/-]+")


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark of a chip; equal marks have equal kind and value."""

    kind: MarkKind
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """Another machine with the same mark.

    Args:
        mark: The mark that both have.
        machine_id: The other one.
        status: Its status; of one that was deleted, its last.
        believed: Somebody answers for what its certificate says: a vendor's chain, or an operator who admitted it.
        deleted_at: When it was deleted, or None.
    """

    mark: Mark
    machine_id: str
    status: Status
    believed: bool
    deleted_at: datetime | None = None

    @property
    def is_same_chip(self) -> bool:
        """True where the mark proves that both are one TPM."""
        return self.mark.kind is MarkKind.EK or (self.mark.kind is MarkKind.EK_SERIAL and self.believed)


@dataclass(frozen=True, slots=True)
class Kinship:
    """What follows from the relatives of a machine.

    Args:
        waits: An operator decides about it, whatever a token or the allow-list says.
        alarm: What operators must hear, in one sentence, or None.
        about: Id of the first machine that the alarm names, or None.
    """

    waits: bool
    alarm: str | None
    about: str | None


def marks_of(
    *, eks: Iterable[str], chip_serials: Iterable[str], hw_serial: str, hw_uuid: str
) -> tuple[Mark, ...]:
    """Return what marks a chip, each once.

    Args:
        eks: Fingerprints of the EKs that were activated in it.
        chip_serials: What `chip_serial` made of its certificates.
        hw_serial: As the firmware tables say.
        hw_uuid: Likewise.
    """
    found = [Mark(MarkKind.EK, each) for each in eks]
    found += [Mark(MarkKind.EK_SERIAL, each) for each in chip_serials]
    for kind, text in ((MarkKind.HW_SERIAL, hw_serial), (MarkKind.HW_UUID, hw_uuid)):
        value = telling(text)
        if value is not None:
            found.append(Mark(kind, value))
    return tuple(dict.fromkeys(found))


def chip_serial(manufacturer: str, model: str, serial: str | None) -> str | None:
    """Return what names one chip of one maker, or None where the certificate names none."""
    value = telling(serial or "")
    return None if value is None else f"{manufacturer.lower()} {model.lower()} {value}"


def telling(text: str) -> str | None:
    """Return *text* as it is compared, or None where it says nothing: empty, a placeholder, one sign repeated."""
    value = text.strip().casefold()[:MAX_HINT_CHARACTERS]
    signs = set(_FILLING.sub("", value))
    if len(value) < MIN_SERIAL_CHARACTERS or value in _PLACEHOLDERS or len(signs) < 2:
        return None
    return value


def judge(relatives: Iterable[Relative]) -> Kinship:
    """Return what follows from *relatives*.

    One chip is one machine: whoever proves to be the chip of another one waits, and where that one is more than
    waiting itself, operators hear of it. A hint that points at a revoked machine is an alarm and decides nothing.
    """
    waits, about, told = False, None, []
    for relative in relatives:
        ended = relative.status in ENDED
        if relative.is_same_chip:
            waits = True
            worth = relative.status is not Status.PENDING_APPROVAL
        else:
            # A certificate that nobody vouches for hints as much as a firmware table.
            worth = relative.status is Status.REVOKED or (relative.mark.kind is MarkKind.EK_SERIAL and ended)
        if worth:
            about = about or relative.machine_id
            gone = ", deleted" if relative.deleted_at is not None else ""
            what = "one TPM with" if relative.is_same_chip else "a hint at"
            told.append(
                f"{what} machine {relative.machine_id} ({relative.status}{gone}): same {WORDS[relative.mark.kind]}"
            )
    more = f"; and {len(told) - MOST_NAMED} more" if len(told) > MOST_NAMED else ""
    return Kinship(waits, "; ".join(told[:MOST_NAMED]) + more if told else None, about)
