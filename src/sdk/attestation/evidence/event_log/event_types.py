"""Types of events and which of them are measured by the hash of their data (TCG PFP, 10.4.1; TPM.md §4.3).

The type of an event is not measured. A reader believes it only where something that is measured agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class EventType(IntEnum):
    """EventType, u32."""

    PREBOOT_CERT = 0x0
    POST_CODE = 0x1
    NO_ACTION = 0x3
    SEPARATOR = 0x4
    ACTION = 0x5
    EVENT_TAG = 0x6
    S_CRTM_CONTENTS = 0x7
    S_CRTM_VERSION = 0x8
    CPU_MICROCODE = 0x9
    PLATFORM_CONFIG_FLAGS = 0xA
    TABLE_OF_DEVICES = 0xB
    COMPACT_HASH = 0xC
    IPL = 0xD
    IPL_PARTITION_DATA = 0xE
    NONHOST_CODE = 0xF
    NONHOST_CONFIG = 0x10
    NONHOST_INFO = 0x11
    OMIT_BOOT_DEVICE_EVENTS = 0x12
    POST_CODE2 = 0x13
    EFI_VARIABLE_DRIVER_CONFIG = 0x80000001
    EFI_VARIABLE_BOOT = 0x80000002
    EFI_BOOT_SERVICES_APPLICATION = 0x80000003
    EFI_BOOT_SERVICES_DRIVER = 0x80000004
    EFI_RUNTIME_SERVICES_DRIVER = 0x80000005
    EFI_GPT_EVENT = 0x80000006
    EFI_ACTION = 0x80000007
    EFI_PLATFORM_FIRMWARE_BLOB = 0x80000008
    EFI_HANDOFF_TABLES = 0x80000009
    EFI_PLATFORM_FIRMWARE_BLOB2 = 0x8000000A
    EFI_HANDOFF_TABLES2 = 0x8000000B
    EFI_VARIABLE_BOOT2 = 0x8000000C
    EFI_GPT_EVENT2 = 0x8000000D
    EFI_HCRTM_EVENT = 0x80000010
    EFI_VARIABLE_AUTHORITY = 0x800000E0
    EFI_SPDM_FIRMWARE_BLOB = 0x800000E1
    EFI_SPDM_FIRMWARE_CONFIG = 0x800000E2
    EFI_SPDM_DEVICE_POLICY = 0x800000E3
    EFI_SPDM_DEVICE_AUTHORITY = 0x800000E4


_NAMES: Final[Mapping[int, str]] = MappingProxyType({int(t): f"EV_{t.name}" for t in EventType})


def type_name(event_type: int) -> str:
    """Return e.g. `EV_SEPARATOR`, or `0x00000014` for a type without a name."""
    return _NAMES.get(event_type) or f"0x{event_type:08x}"


class Covers(IntEnum):
    """How much of an event's data its digest was seen to cover."""

    NOTHING = 0
    """Nothing of it: the digest is of something else, and the data are hearsay."""
    DATA = 1
    """All of it."""
    DATA_BUT_LAST_BYTE = 2
    """All but the last byte, which the writer put there by mistake (shim before 15.3)."""
    VALUE = 3
    """The value of the UEFI variable, not its name."""
    TEXT = 4
    """The text behind the label (GRUB, systemd-boot), not the label."""
    NAME = 5
    """The section name (systemd-stub), all of it, in ASCII."""


DIGEST_OF_DATA: Final = frozenset(
    {
        EventType.SEPARATOR,
        EventType.ACTION,
        EventType.S_CRTM_VERSION,
        EventType.PLATFORM_CONFIG_FLAGS,
        EventType.TABLE_OF_DEVICES,
        EventType.EFI_VARIABLE_DRIVER_CONFIG,
        EventType.EFI_GPT_EVENT,
        EventType.EFI_ACTION,
        EventType.EFI_VARIABLE_BOOT2,
        EventType.EFI_GPT_EVENT2,
        EventType.EFI_VARIABLE_AUTHORITY,
    }
)
"""Events whose digest is that of their data: the rows "yes" of the table of TPM.md §4.3."""

EXPECTED: Final[Mapping[int, frozenset[int]]] = MappingProxyType(
    {
        2: frozenset(
            {
                EventType.SEPARATOR,
                EventType.EFI_BOOT_SERVICES_DRIVER,
                EventType.EFI_RUNTIME_SERVICES_DRIVER,
                EventType.EFI_PLATFORM_FIRMWARE_BLOB,
                EventType.EFI_PLATFORM_FIRMWARE_BLOB2,
                EventType.EFI_SPDM_FIRMWARE_BLOB,
            }
        ),
        4: frozenset({EventType.SEPARATOR, EventType.EFI_ACTION, EventType.EFI_BOOT_SERVICES_APPLICATION}),
        7: frozenset(
            {
                EventType.SEPARATOR,
                EventType.EFI_ACTION,
                EventType.EFI_VARIABLE_DRIVER_CONFIG,
                EventType.EFI_VARIABLE_AUTHORITY,
                EventType.EFI_SPDM_DEVICE_POLICY,
                EventType.EFI_SPDM_DEVICE_AUTHORITY,
            }
        ),
    }
)
"""The types that firmware is expected to extend into PCR 2, 4 and 7 (TPM.md §4.4).

Any other is an error in PCR 7. In PCR 2 and 4 shipped machines have others (EV_OMIT_BOOT_DEVICE_EVENTS, EV_IPL,
EV_ACTION): they are extended and told, and support no claim.
"""


def is_unexpected(pcr: int, event_type: int) -> bool:
    """True for an event of a type that firmware is not expected to extend into *pcr*."""
    return pcr in EXPECTED and event_type not in EXPECTED[pcr]
