"""A second reader of event logs and IMA lists: naive, for our own files, and without any code of `attestation`.

What it and the verifier agree on was written twice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

BANKS = {0x0004: "sha1", 0x000B: "sha256", 0x000C: "sha384", 0x000D: "sha512"}
NO_ACTION = 3


class Event(NamedTuple):
    """One event as it stands in the log."""

    start: int
    pcr: int
    type: int
    digests: dict[str, bytes]
    data: bytes


def first_event_size(raw: bytes) -> int:
    """Return the length of the first event."""
    (size,) = struct.unpack_from("<I", raw, 28)
    return 32 + int(size)


def events(raw: bytes) -> Iterator[Event]:
    """Read the events after the first, Spec ID."""
    at = first_event_size(raw)
    while at < len(raw):
        start = at
        pcr, kind, count = struct.unpack_from("<III", raw, at)
        at += 12
        digests = {}
        for _ in range(count):
            bank = BANKS[struct.unpack_from("<H", raw, at)[0]]
            size = hashlib.new(bank).digest_size
            digests[bank] = raw[at + 2 : at + 2 + size]
            at += 2 + size
        (size,) = struct.unpack_from("<I", raw, at)
        at += 4 + size
        yield Event(start, pcr, kind, digests, raw[at - size : at])


def pcrs(raw: bytes, bank: str) -> dict[int, bytes]:
    """Return the PCRs that the log extends; started at zero."""
    values: dict[int, bytes] = {}
    for event in events(raw):
        if event.type != NO_ACTION:
            before = values.get(event.pcr, bytes(hashlib.new(bank).digest_size))
            values[event.pcr] = hashlib.new(bank, before + event.digests[bank]).digest()
    return values


class Measured(NamedTuple):
    """One entry of an IMA list."""

    pcr: int
    digest: bytes
    template: str
    data: bytes


def ima(raw: bytes) -> Iterator[Measured]:
    """Read an IMA list."""
    at = 0
    while at < len(raw):
        pcr, digest, length = struct.unpack_from("<I20sI", raw, at)
        at += 28 + length
        template = raw[at - length : at].decode()
        (length,) = struct.unpack_from("<I", raw, at)
        at += 4 + length
        yield Measured(pcr, digest, template, raw[at - length : at])


def pcr10(raw: bytes, bank: str, *, padded_sha1: bool = False) -> bytes:
    """Return PCR 10 after the list, as Linux 5.8 and later extend it, or as older ones do."""
    size = hashlib.new(bank).digest_size
    value = bytes(size)
    for entry in ima(raw):
        digest = hashlib.new("sha1" if padded_sha1 else bank, entry.data).digest().ljust(size, b"\0")
        if entry.digest == bytes(20):
            digest = b"\xff" * size
        value = hashlib.new(bank, value + digest).digest()
    return value
