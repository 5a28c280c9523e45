"""Data of UEFI inside events: variables, signature lists, device paths (UEFI 2.10, 8.2, 10.3, 32.4.1).

Integers are little-endian; GUIDs are in the mixed-endian order of UEFI.
"""

# Algorithms for: event-log
from __future__ import annotations

import hashlib
import struct
import uuid
from functools import lru_cache
from typing import Final, NamedTuple

from attestation.endorsements.certificate import parse_certificate
from attestation.errors import MalformedEvidence

_VARIABLE: Final = struct.Struct("<16sQQ")  # VariableName, UnicodeNameLength (characters), VariableDataLength
_LIST: Final = struct.Struct("<16sIII")  # SignatureType, ListSize, HeaderSize, SignatureSize
_IMAGE: Final = struct.Struct("<QQQQ")  # address, length, link time address, length of the device path
_OWNER_SIZE: Final = 16
_COMMON_NAME: Final = "2.5.4.3"
SHIM_SLACK: Final = 8
"""Old shims compute the size of an authority event from C structures with padding: up to so many bytes follow."""

GLOBAL: Final = uuid.UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c").bytes_le
"""EFI_GLOBAL_VARIABLE: SecureBoot, PK, KEK, BootOrder, Boot####."""
SECURITY: Final = uuid.UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f").bytes_le
"""EFI_IMAGE_SECURITY_DATABASE: db, dbx."""
SHIM: Final = uuid.UUID("605dab50-e046-4300-abb6-3dd810dd8b23").bytes_le
"""The shim boot loader: Shim, MokListRT, SbatLevel."""

CERT_X509: Final = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
CERT_SHA256: Final = uuid.UUID("c1c41626-504c-4092-aca9-41f936934328").bytes_le


class Variable(NamedTuple):
    """UEFI_VARIABLE_DATA: GUID 16 bytes, nameLength u64, dataLength u64, UTF-16LE name, data."""

    guid: bytes
    name: str
    value: bytes


def parse_variable(data: bytes, *, slack_bytes: int = 0) -> Variable:
    """Parse UEFI_VARIABLE_DATA to the last byte.

    Args:
        data: The structure.
        slack_bytes: How many bytes may follow it.

    Raises:
        MalformedEvidence: Lengths that do not add up to *data*, or a name that is not UTF-16.
    """
    size = len(data)
    if size < _VARIABLE.size:
        raise MalformedEvidence(f"UEFI variable of {size} bytes")
    guid, characters, value_size = _VARIABLE.unpack_from(data)
    if not 0 <= size - _VARIABLE.size - 2 * characters - value_size <= slack_bytes:
        raise MalformedEvidence(
            f"UEFI variable: name of {characters} characters and {value_size} bytes announced,"
            f" {size - _VARIABLE.size} bytes are there"
        )
    middle = _VARIABLE.size + 2 * characters
    try:
        name = data[_VARIABLE.size : middle].decode("utf-16-le")
    except UnicodeDecodeError as e:
        raise MalformedEvidence("UEFI variable: the name is not UTF-16") from e
    return Variable(guid, name, data[middle : middle + value_size])


class SignatureDatabase(NamedTuple):
    """The contents of PK, KEK, db or dbx.

    Args:
        sha256: Hex: SHA-256 hashes that it lists, and the SHA-256 of each certificate.
        certificates: Certificates as stored, DER.
        others: Entries of other kinds, as pairs of the type's GUID and the hex of the data.
    """

    sha256: frozenset[str]
    certificates: tuple[bytes, ...]
    others: frozenset[tuple[str, str]]

    @property
    def entries(self) -> int:
        """Number of different entries."""
        return len(self.sha256) + len(self.others)


def check_signature_lists(data: bytes) -> None:
    """Check that *data* is a sequence of EFI_SIGNATURE_LIST to the last byte, without reading the entries.

    Raises:
        MalformedEvidence: A size that does not fit the bytes that are there.
    """
    for _ in _lists(data):
        pass


def is_signature_lists(data: bytes) -> bool:
    """Tell whether *data* is what a database holds; an authority is one entry of it, which is no list."""
    try:
        check_signature_lists(data)
    except MalformedEvidence:
        return False
    return True


@lru_cache(maxsize=64)
def parse_signature_lists(data: bytes) -> SignatureDatabase:
    """Parse a sequence of EFI_SIGNATURE_LIST.

    Each: GUID of the type, list size u32, header size u32, signature size u32, header, signatures.

    A pure function, remembered: a fleet has few different databases.

    Raises:
        MalformedEvidence: As `check_signature_lists`.
    """
    hashes: set[str] = set()
    certificates: list[bytes] = []
    others: set[tuple[str, str]] = set()
    for kind, signature_size, start, stop in _lists(data):
        for offset in range(start, stop, signature_size):
            entry = data[offset + _OWNER_SIZE : offset + signature_size]
            if kind == CERT_X509:
                certificates.append(entry)
                hashes.add(hashlib.sha256(entry).hexdigest())
            elif kind == CERT_SHA256:
                hashes.add(entry.hex())
            else:
                others.add((str(uuid.UUID(bytes_le=kind)), entry.hex()))
    return SignatureDatabase(frozenset(hashes), tuple(certificates), frozenset(others))


def _lists(data: bytes) -> list[tuple[bytes, int, int, int]]:
    """Return type, size of a signature, and start and stop of the signatures of every list."""
    found = []
    offset, end = 0, len(data)
    while offset < end:
        if end - offset < _LIST.size:
            raise MalformedEvidence(f"signature list: {end - offset} bytes at offset {offset} are no list")
        kind, list_size, header_size, signature_size = _LIST.unpack_from(data, offset)
        if not _LIST.size <= list_size <= end - offset:
            raise MalformedEvidence(f"signature list of {list_size} bytes, {end - offset} are there")
        room = list_size - _LIST.size - header_size
        if room < 0 or signature_size <= _OWNER_SIZE or room % signature_size:
            raise MalformedEvidence(
                f"signature list of {list_size} bytes with a header of {header_size}"
                f" and signatures of {signature_size} bytes"
            )
        if kind == CERT_SHA256 and signature_size != _OWNER_SIZE + 32:
            raise MalformedEvidence(f"signature list: SHA-256 hashes of {signature_size - _OWNER_SIZE} bytes")
        found.append((kind, signature_size, offset + list_size - room, offset + list_size))
        offset += list_size
    return found


def certificate_in(data: bytes) -> bytes | None:
    """Return the certificate in an EFI_SIGNATURE_DATA, with or without its owner; None where it is none.

    A certificate is told by its first bytes: a SEQUENCE with a two-byte length that ends where the data do.
    """
    for start in (_OWNER_SIZE, 0):
        length = int.from_bytes(data[start + 2 : start + 4])
        if data[start : start + 2] == b"\x30\x82" and length == len(data) - start - 4:
            return data[start:]
    return None


@lru_cache(maxsize=256)
def certificate_subject(der: bytes) -> str:
    """Return the common name of a certificate, else its subject in words; its SHA-256 where it cannot be read."""
    try:
        subject = parse_certificate(der).subject_name
    except MalformedEvidence:
        return f"a certificate that cannot be read (SHA-256 {hashlib.sha256(der).hexdigest()[:16]}…)"
    common = [attribute.text for attribute in subject.attributes if attribute.oid == _COMMON_NAME]
    return printable(common[0] if common else subject.text)


def image_device_path(data: bytes) -> bytes:
    """Return the device path of a UEFI_IMAGE_LOAD_EVENT; empty where there is none. Never measured."""
    if len(data) < _IMAGE.size:
        return b""
    size = _IMAGE.unpack_from(data)[3]
    return data[_IMAGE.size :][:size]


def device_path_text(path: bytes) -> str:
    """Return a device path in words, e.g. `PciRoot(0)/Pci(2,0)/HD(1,GPT,…)`. For people; never fails."""
    parts: list[str] = []
    offset = 0
    while offset + 4 <= len(path):
        kind, subtype = path[offset], path[offset + 1]
        size = int.from_bytes(path[offset + 2 : offset + 4], "little")
        if kind == 0x7F or size < 4 or offset + size > len(path):
            break
        parts.append(_node(kind, subtype, path[offset + 4 : offset + size]))
        offset += size
    return "/".join(parts)


def _node(kind: int, subtype: int, data: bytes) -> str:
    if (kind, subtype) == (4, 4):
        return utf16_text(data)
    if (kind, subtype) in ((4, 6), (4, 7)) and len(data) == 16:
        return f"{'FvFile' if subtype == 6 else 'Fv'}({uuid.UUID(bytes_le=data)})"
    if (kind, subtype) == (4, 1) and len(data) == 38:
        number = int.from_bytes(data[:4], "little")
        if data[37] == 2:
            return f"HD({number},GPT,{uuid.UUID(bytes_le=data[20:36])})"
        return f"HD({number})"
    if (kind, subtype) == (1, 1) and len(data) == 2:
        return f"Pci({data[1]:x},{data[0]:x})"
    if (kind, subtype) == (2, 1) and len(data) == 8:
        hid, uid = struct.unpack("<II", data)
        return f"PciRoot({uid:x})" if hid == 0x0A0341D0 else f"Acpi({hid:08x},{uid:x})"
    if (kind, subtype) == (3, 24):
        return f"Uri({ascii_text(data)})"
    if (kind, subtype) == (3, 11) and len(data) == 33:
        return f"MAC({data[:6].hex()})"
    if (kind, subtype) == (3, 23) and len(data) == 12:
        return f"NVMe({int.from_bytes(data[:4], 'little')})"
    if (kind, subtype) == (3, 18) and len(data) == 6:
        return f"Sata({int.from_bytes(data[:2], 'little')})"
    if (kind, subtype) == (3, 5) and len(data) == 2:
        return f"Usb({data[0]},{data[1]})"
    if (kind, subtype) == (3, 2) and len(data) == 4:
        return "Scsi({},{})".format(*struct.unpack("<HH", data))
    return f"Path({kind},{subtype})"


def utf16_text(data: bytes) -> str:
    """Return UTF-16LE as printable text, without trailing NULs; what is not printable becomes `?`."""
    return printable(data.decode("utf-16-le", errors="replace").rstrip("\0"))


def ascii_text(data: bytes) -> str:
    """Return UTF-8 as printable text, without trailing NULs; what is not printable becomes `?`."""
    return printable(data.decode("utf-8", errors="replace").rstrip("\0"))


def printable(text: str) -> str:
    """Return *text* with everything replaced that is not printable: it goes to terminals and pages."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def device_guid(data: bytes) -> str:
    """Return 16 bytes as the text of a GUID."""
    return str(uuid.UUID(bytes_le=data))
