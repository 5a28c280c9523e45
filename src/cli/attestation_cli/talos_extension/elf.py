"""What a compiled file asks of the system: its machine, its loader, the libraries that it names. Pure.

Layout: System V gABI, chapters 4 and 5, for 64 bits, little-endian; integers are unsigned. Nothing of a file is run.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from attestation.errors import RequestInvalid

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64"}
"""e_machine, by the names of `uname -m`."""

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SHT_SYMTAB = 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 0, 1, 5, 15, 29
_MAX_ENTRIES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What stands in the headers of a program or shared library.

    Args:
        machine: `x86_64` or `aarch64`.
        loader: Absolute path of the program that starts this one; None for a library.
        needed: Names of libraries, in the order in which they are looked for.
        folders: Where to look first, with `$ORIGIN` for the folder of the file itself.
        symbols: It has a symbol table, which nothing needs that runs it.
    """

    machine: str
    loader: str | None
    needed: tuple[str, ...]
    folders: tuple[str, ...]
    symbols: bool


def parse(data: bytes, name: str) -> Compiled:
    """Read the headers of *data*; *name* is for the words of an error.

    Raises:
        RequestInvalid: It is for another kind of machine, or broken.
    """
    try:
        return _parse(data, name)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, OverflowError) as e:
        raise RequestInvalid(f"{name}: its ELF headers are broken: {e}") from e


def _parse(data: bytes, name: str) -> Compiled:
    if data[:4] != MAGIC or data[4:6] != b"\x02\x01":
        raise RequestInvalid(f"{name}: not a little-endian ELF file of 64 bits")
    (number,) = struct.unpack_from("<H", data, 18)
    if number not in MACHINES:
        raise RequestInvalid(
            f"{name}: compiled for machine {number}; Talos runs on {', '.join(MACHINES.values())}"
        )
    program_at, section_at = struct.unpack_from("<QQ", data, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, program_at + n * program_size) for n in range(programs)]
    kinds = [struct.unpack_from("<I", data, section_at + n * section_size + 4)[0] for n in range(sections)]
    loader: str | None = None
    entries: list[tuple[int, int]] = []
    for kind, _flags, offset, _address, _physical, size in segments:
        if kind == _PT_INTERP:
            loader = data[offset : offset + size].rstrip(b"\0").decode("utf-8")
        elif kind == _PT_DYNAMIC:
            entries = _dynamic(data[offset : offset + size])
    strings = next((_offset(segments, value) for tag, value in entries if tag == _DT_STRTAB), 0)

    def texts(*tags: int) -> tuple[str, ...]:
        return tuple(_string(data, strings + value) for tag, value in entries if tag in tags)

    folders = [folder for text in texts(_DT_RPATH, _DT_RUNPATH) for folder in text.split(":") if folder]
    return Compiled(
        machine=MACHINES[number],
        loader=loader,
        needed=texts(_DT_NEEDED),
        folders=tuple(folders),
        symbols=_SHT_SYMTAB in kinds,
    )


def _dynamic(table: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for tag, value in struct.iter_unpack("<QQ", table[: len(table) // 16 * 16]):
        if tag == _DT_NULL:
            break
        found.append((tag, value))
        if len(found) > _MAX_ENTRIES:
            raise ValueError("too many dynamic entries")
    return found


def _offset(segments: list[tuple[int, ...]], address: int) -> int:
    """Return where in the file an address of the running program stands."""
    for kind, _flags, offset, start, _physical, size in segments:
        if kind == _PT_LOAD and start <= address < start + size:
            return offset + address - start
    raise ValueError(f"no segment holds address {address:#x}")


def _string(data: bytes, at: int) -> str:
    end = data.index(b"\0", at)
    return data[at:end].decode("utf-8")
