"""Change the Secure Boot databases in a file of OVMF firmware variables.

    variables.py IN OUT [--PK CERT] [--KEK CERT] [--db CERT] [--MokList CERT] [--dbx HEX]...

A certificate (PEM or DER) replaces a database; each --dbx appends one SHA-256 hash. Nothing else changes.
No signature is needed: this is the flash of the emulated machine, not a variable service.

Layout, little-endian: firmware volume header (its length: u16 at 48), variable store header of 28 bytes (GUID 16, size
u32 of the store, format, state, 6 reserved), then per variable 60 bytes: 0x55AA u16, state u8, reserved u8,
attributes u32, monotonic count u64, time 16, key index u32, name size u32, data size u32, vendor GUID 16; then name
(UTF-16LE with NUL) and data, the next one aligned to 4 (EDK II, MdeModulePkg VariableFormat.h).
"""

from __future__ import annotations

import argparse
import base64
import struct
import uuid
from pathlib import Path
from typing import NamedTuple

AUTHENTICATED_STORE = uuid.UUID("aaf32c78-947b-439a-a180-2e144ec37792")
GLOBAL = uuid.UUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
DATABASE = uuid.UUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
SHA256_ENTRY = uuid.UUID("c1c41626-504c-4092-aca9-41f936934328")
X509_ENTRY = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
OWNER = uuid.UUID("6e6f6465-0000-4000-8000-000000000003")
SHIM = uuid.UUID("605dab50-e046-4300-abb6-3dd810dd8b23")
VENDOR = {"PK": GLOBAL, "KEK": GLOBAL, "db": DATABASE, "dbx": DATABASE, "MokList": SHIM}

_HEADER = struct.Struct("<HBBIQ16sIII16s")
_START, _ADDED = 0x55AA, 0x3F
_TIME_BASED = 0x27
"""Non-volatile, boot service, run time, time-based authenticated write access."""
_OF_SHIM = 0x03
"""Non-volatile, boot service: shim believes a MokList of no other kind."""
_WRITTEN_AT = struct.pack("<HBBBBBBIhBB", 2026, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0)


class Variable(NamedTuple):
    """One firmware variable, its fields as stored."""

    attributes: int
    monotonic: int
    time: bytes
    key: int
    vendor: bytes
    name: bytes
    data: bytes

    def serialise(self) -> bytes:
        """Return header, name and data, aligned."""
        sizes = len(self.name), len(self.data)
        head = _START, _ADDED, 0, self.attributes, self.monotonic, self.time, self.key
        header = _HEADER.pack(*head, *sizes, self.vendor)
        raw = header + self.name + self.data
        return raw + b"\xff" * (-len(raw) % 4)


def read_store(flash: bytes) -> tuple[int, int, list[Variable]]:
    """Return where the variables begin and end in *flash*, and those that are not deleted."""
    (start,) = struct.unpack_from("<H", flash, 48)
    if uuid.UUID(bytes_le=flash[start : start + 16]) != AUTHENTICATED_STORE:
        raise SystemExit("no store of authenticated variables")
    (size,) = struct.unpack_from("<I", flash, start + 16)
    position, end = start + 28, start + size
    found = []
    while flash[position : position + 2] == struct.pack("<H", _START):
        _, state, _, attributes, count, time, key, name_size, data_size, vendor = _HEADER.unpack_from(
            flash, position
        )
        name_at = position + _HEADER.size
        data_at = name_at + name_size
        if state == _ADDED:
            name, data = flash[name_at:data_at], flash[data_at : data_at + data_size]
            found.append(Variable(attributes, count, time, key, vendor, name, data))
        position = (data_at + data_size + 3) & ~3
    return start + 28, end, found


def signature_list(kind: uuid.UUID, data: bytes) -> bytes:
    """Return an EFI_SIGNATURE_LIST with one entry (UEFI 32.4.1)."""
    return kind.bytes_le + struct.pack("<III", 28 + 16 + len(data), 0, 16 + len(data)) + OWNER.bytes_le + data


def change(flash: bytes, *, certificates: dict[str, bytes], revoked: list[bytes]) -> bytes:
    """Return *flash* with databases replaced by one certificate each, and hashes appended to dbx."""
    start, end, variables = read_store(flash)
    by_name = {(v.vendor, v.name): v for v in variables}

    def put(name: str, data: bytes, *, append: bool) -> None:
        key = VENDOR[name].bytes_le, (name + "\0").encode("utf-16-le")
        new = (_OF_SHIM, 0, bytes(16)) if name == "MokList" else (_TIME_BASED, 0, _WRITTEN_AT)
        old = by_name.get(key) or Variable(*new, 0, *key, b"")
        by_name[key] = old._replace(data=(old.data if append else b"") + data)

    for name, certificate in certificates.items():
        put(name, signature_list(X509_ENTRY, certificate), append=False)
    for digest in revoked:
        put("dbx", signature_list(SHA256_ENTRY, digest), append=True)
    raw = b"".join(v.serialise() for v in by_name.values())
    if start + len(raw) > end:
        raise SystemExit("the variables do not fit")
    return flash[:start] + raw.ljust(end - start, b"\xff") + flash[end:]


def certificate_der(path: Path) -> bytes:
    """Return the DER of a certificate file."""
    raw = path.read_bytes()
    if not raw.startswith(b"-----BEGIN"):
        return raw
    return base64.b64decode(b"".join(line for line in raw.splitlines() if not line.startswith(b"-----")))


def main() -> None:
    """Change a file as the command line says."""
    parser = argparse.ArgumentParser(description="Change Secure Boot databases in OVMF variables")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    for name in ("PK", "KEK", "db", "MokList"):
        parser.add_argument(f"--{name}", type=Path, help="certificate that replaces it")
    parser.add_argument("--dbx", type=bytes.fromhex, action="append", default=[], help="hash to append")
    said = parser.parse_args()
    named = {name: getattr(said, name) for name in ("PK", "KEK", "db", "MokList")}
    certificates = {name: certificate_der(path) for name, path in named.items() if path is not None}
    said.target.write_bytes(change(said.source.read_bytes(), certificates=certificates, revoked=said.dbx))


if __name__ == "__main__":
    main()
