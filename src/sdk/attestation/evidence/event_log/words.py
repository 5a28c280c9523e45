"""One line of words per event, for people. Nothing is decided by it.

What no digest covers is said to be so: `(unchecked)` stands behind a text that anybody could have written.
"""

from __future__ import annotations

import struct
from typing import Final

from attestation.errors import MalformedEvidence
from attestation.evidence.event_log import boot_chain, uefi
from attestation.evidence.event_log.event_types import Covers, EventType

_LONGEST: Final = 200
_VARIABLES: Final = frozenset(
    {
        EventType.EFI_VARIABLE_DRIVER_CONFIG,
        EventType.EFI_VARIABLE_BOOT,
        EventType.EFI_VARIABLE_BOOT2,
        EventType.EFI_VARIABLE_AUTHORITY,
    }
)
_IMAGES: Final = frozenset(
    {
        EventType.EFI_BOOT_SERVICES_APPLICATION,
        EventType.EFI_BOOT_SERVICES_DRIVER,
        EventType.EFI_RUNTIME_SERVICES_DRIVER,
    }
)
_ACTIONS: Final = frozenset({EventType.ACTION, EventType.EFI_ACTION})
_GPT: Final = frozenset({EventType.EFI_GPT_EVENT, EventType.EFI_GPT_EVENT2})
_DATABASES: Final = frozenset({"PK", "KEK", "db", "dbx"})


def event_text(pcr: int, event_type: int, data: bytes, covers: Covers) -> str:
    """Return what an event says, at most 200 characters."""
    text = _text(pcr, event_type, data, covers)
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    if covers is Covers.NOTHING and text and event_type != EventType.NO_ACTION:
        text += " (unchecked)"
    return text


def _text(pcr: int, event_type: int, data: bytes, covers: Covers) -> str:
    if event_type == EventType.NO_ACTION:
        return _no_action(data)
    if event_type == EventType.SEPARATOR:
        return "separator" if data == bytes(4) else f"separator {data[:8].hex()}"
    if event_type in _ACTIONS:
        return uefi.ascii_text(data[:_LONGEST])
    if event_type in _VARIABLES:
        return _variable(event_type, data, covers)
    if event_type in _IMAGES:
        return uefi.device_path_text(uefi.image_device_path(data)) or "image without a device path"
    if event_type in _GPT:
        return _partition_table(data)
    if event_type == EventType.IPL:
        return _loader_text(pcr, data, covers)
    if event_type == EventType.EVENT_TAG:
        return uefi.ascii_text(data[8 : 8 + _LONGEST])
    if event_type == EventType.EFI_PLATFORM_FIRMWARE_BLOB and len(data) == 16:
        base, size = struct.unpack("<QQ", data)
        return f"firmware volume at 0x{base:x}, {size} bytes"
    return _plain(data)


def _no_action(data: bytes) -> str:
    name = uefi.ascii_text(data[:16])
    return f"StartupLocality {data[16]}" if name == "StartupLocality" and len(data) == 17 else name


def _variable(event_type: int, data: bytes, covers: Covers) -> str:
    try:
        old_shim = covers is Covers.DATA_BUT_LAST_BYTE
        variable = uefi.parse_variable(data, slack_bytes=uefi.SHIM_SLACK if old_shim else 0)
    except MalformedEvidence:
        return "a UEFI variable that cannot be read"
    name = uefi.printable(variable.name)
    if event_type == EventType.EFI_VARIABLE_AUTHORITY:
        certificate = uefi.certificate_in(variable.value)
        if certificate is not None:
            return f"accepted by {name}: {uefi.certificate_subject(certificate)}"
        if variable.guid == uefi.SHIM and name == "SbatLevel":
            return f"{name}: {sbat_text(variable.value)}"
        return f"accepted by {name}"
    if name in _DATABASES:
        return f"{name}: {_entries(variable.value)}"
    if variable.guid == uefi.GLOBAL and name == "BootOrder":
        return f"BootOrder: {', '.join(boot_order(variable.value)) or 'empty'}"
    if variable.guid == uefi.GLOBAL and name.startswith("Boot") and len(name) == 8:
        return f"{name}: {boot_option(variable.value)}"
    if len(variable.value) == 1:
        return f"{name} = {variable.value[0]}"
    return f"{name}, {len(variable.value)} bytes"


def sbat_text(value: bytes) -> str:
    """Return the value of SbatLevel in one line."""
    return uefi.printable(value.decode("ascii", errors="replace").strip("\0\n").replace("\n", " "))


def _entries(value: bytes) -> str:
    try:
        count = uefi.parse_signature_lists(value).entries
    except MalformedEvidence:
        return "cannot be read"
    return f"{count} entr{'y' if count == 1 else 'ies'}"


def boot_order(value: bytes) -> list[str]:
    """Return the value of BootOrder as names of boot options, e.g. `Boot0001`."""
    return [f"Boot{int.from_bytes(value[i : i + 2], 'little'):04X}" for i in range(0, len(value) - 1, 2)]


def boot_option(value: bytes) -> str:
    """Return the description of an EFI_LOAD_OPTION: attributes u32, path length u16, description UTF-16 with NUL."""
    text = value[6:].decode("utf-16-le", errors="replace").partition("\0")[0]
    return uefi.printable(text) or "empty"


def _partition_table(data: bytes) -> str:
    """Return the name of a UEFI_GPT_DATA: header of 92 bytes (disk GUID at 56), number of partitions u64."""
    if len(data) < 100:
        return "partition table"
    guid = uefi.device_guid(data[56:72])
    return f"partition table {guid}, {int.from_bytes(data[92:100], 'little')} partitions"


def _loader_text(pcr: int, data: bytes, covers: Covers) -> str:
    if pcr == 11:
        name = uefi.utf16_text(data)
        return f"section name {name}" if covers is Covers.NAME else f"section {name}"
    if boot_chain.is_utf16(data):
        return uefi.utf16_text(data)
    return uefi.ascii_text(data)


def _plain(data: bytes) -> str:
    text = data[:_LONGEST]
    if boot_chain.is_utf16(data) and not any(data[1::2]):
        return uefi.utf16_text(text)
    stripped = text.rstrip(b"\0")
    return stripped.decode("ascii") if stripped.isascii() and stripped.decode("ascii").isprintable() else ""
