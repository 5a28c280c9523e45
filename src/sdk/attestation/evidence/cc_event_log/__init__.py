"""Event logs of confidential guests (UEFI 2.10 §38.4.1, ACPI table CCEL; CONFIDENTIAL.md §10).

The firmware of a TD measures into its RTMRs and writes down what, in the crypto-agile form of the TCG. The log is
signed by nobody: it is believed as far as its replay gives the registers of an authentic quote, and no further. Beside
the reader of TPM logs there is this one, since indices, ends and what counts differ (ADR 136). Integers little-endian.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence

MEDIA_TYPE: Final = "application/vnd.itl.tdx-quote"
"""The item that carries it."""
TABLE_BYTES: Final = 56
MAX_LOG_BYTES: Final = 262144
MAX_EVENTS: Final = 20_000
REGISTERS: Final = 4
REGISTER_BYTES: Final = 48
TDX: Final = 2
"""Type of the table: Intel TDX."""
_NO_ACTION: Final = 3
_SHA384: Final = 0x000C
_DIGEST_BYTES: Final = {0x0004: 20, 0x000B: 32, 0x000C: 48, 0x000D: 64, 0x0012: 32}
_TABLE: Final = struct.Struct("<4sI28sBBHQQ")
_FIRST: Final = struct.Struct("<II20sI")
_SPEC_ID: Final = struct.Struct("<16sIBBBBI")
_SIGNATURE: Final = b"Spec ID Event03\0"
_END: Final = 0xFFFFFFFF


class CCEL(NamedTuple):
    """The ACPI table that says where the log is.

    Attributes:
        tee: 2 for TDX.
        subtype: u8.
        log_bytes: Length of the area that firmware keeps for the log.
        address: Its physical address.
    """

    tee: int
    subtype: int
    log_bytes: int
    address: int


class Event(NamedTuple):
    """One event as written.

    Attributes:
        register: 0 MRTD, 1 to 4 RTMR0 to RTMR3.
        event_type: u32.
        digest: SHA-384 that was extended.
        data: What it was of, as told: it counts only where its hash is recomputed.
    """

    register: int
    event_type: int
    digest: bytes
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedCCEventLog:
    """A log as read. Nothing in it may be believed yet.

    Args:
        events: In order, EV_NO_ACTION too, the first event not.
        used_bytes: How much of the area is log.
    """

    events: tuple[Event, ...]
    used_bytes: int

    def replay(self) -> tuple[bytes | None, ...]:
        """Return the values that RTMR0 to RTMR3 have if the log is right; None for one that no event extends.

        r = SHA-384(r ‖ digest), from 48 zero bytes; EV_NO_ACTION extends nothing.
        """
        values: list[bytes | None] = [None] * REGISTERS
        for event in self.events:
            if event.event_type != _NO_ACTION and event.register:
                before = values[event.register - 1] or bytes(REGISTER_BYTES)
                values[event.register - 1] = hashlib.sha384(before + event.digest).digest()
        return tuple(values)

    def mismatches(self, registers: Sequence[bytes]) -> list[str]:
        """Return what of RTMR0 to RTMR3 the replay does not give, in words; one without events must be zero."""
        found = []
        for i, (told, value) in enumerate(zip(self.replay(), registers, strict=True)):
            if told is None and any(value):
                found.append(f"RTMR{i} is {value.hex()}, and no event extends it")
            elif told is not None and told != value:
                found.append(f"RTMR{i} is {value.hex()}, the log gives {told.hex()}")
        return found


def parse_table(data: bytes) -> CCEL:
    """Read the ACPI table CCEL.

    Raises:
        MalformedEvidence: Not 56 bytes with that signature and length.
    """
    if len(data) != TABLE_BYTES:
        raise MalformedEvidence(f"CCEL table of {len(data)} bytes, {TABLE_BYTES} expected")
    signature, length, _, tee, subtype, _, log_bytes, address = _TABLE.unpack(data)
    if signature != b"CCEL" or length != TABLE_BYTES:
        raise MalformedEvidence("not a CCEL table")
    return CCEL(tee, subtype, log_bytes, address)


def parse(data: bytes) -> UnverifiedCCEventLog:
    """Read a log of at most 256 KiB; it ends with the index 0xFFFFFFFF, in zeros, or with the data.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_LOG_BYTES:
        raise MalformedEvidence(f"CC event log of {len(data)} bytes, at most {MAX_LOG_BYTES} allowed")
    at, sizes = _spec_id(data)
    events: list[Event] = []
    for event, stop in _events(data, at, sizes):
        if len(events) == MAX_EVENTS:
            raise MalformedEvidence(f"CC event log: more than {MAX_EVENTS} events")
        events.append(event)
        at = stop
    return UnverifiedCCEventLog(events=tuple(events), used_bytes=at)


def _take(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise MalformedEvidence(f"CC event log: an event at offset {at} is cut")
    return data[at : at + size]


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(_take(data, at, 4), "little")


def _spec_id(data: bytes) -> tuple[int, dict[int, int]]:
    """Return where the first event ends, and the digests that each later one has: algorithm -> bytes."""
    _, event_type, digest, size = _FIRST.unpack(_take(data, 0, _FIRST.size))
    body = _take(data, _FIRST.size, size)
    if event_type != _NO_ACTION or any(digest) or len(body) < _SPEC_ID.size:
        raise MalformedEvidence("CC event log: the first event is no Spec ID event")
    signature, *_, count = _SPEC_ID.unpack_from(body)
    stop = _SPEC_ID.size + 4 * count
    if signature != _SIGNATURE or count > len(_DIGEST_BYTES) or stop >= len(body):
        raise MalformedEvidence("CC event log: not of the crypto-agile form")
    sizes = dict(struct.iter_unpack("<HH", body[_SPEC_ID.size : stop]))
    known = all(_DIGEST_BYTES.get(algorithm) == each for algorithm, each in sizes.items())
    if not known or len(sizes) != count or _SHA384 not in sizes or stop + 1 + body[stop] != len(body):
        raise MalformedEvidence("CC event log: digests that are not known, stand twice, or lack SHA-384")
    return _FIRST.size + size, sizes


def _events(data: bytes, at: int, sizes: dict[int, int]) -> Iterator[tuple[Event, int]]:
    """Yield each event, and where it stops."""
    while at < len(data):
        index = _u32(data, at)
        # Firmware fills the rest of the area with FF or with zeros. What stands behind is no part of the log.
        if index == _END or (index == 0 and not any(data[at:])):
            return
        event_type, count = _u32(data, at + 4), _u32(data, at + 8)
        if index > REGISTERS or count != len(sizes):
            raise MalformedEvidence(f"CC event log: index {index} with {count} digests at offset {at}")
        place, digests = at + 12, {}
        for _ in range(count):
            algorithm = int.from_bytes(_take(data, place, 2), "little")
            size = sizes.get(algorithm)
            if size is None or algorithm in digests:
                raise MalformedEvidence(f"CC event log: algorithm 0x{algorithm:04x} at offset {place}")
            digests[algorithm] = _take(data, place + 2, size)
            place += 2 + size
        size = _u32(data, place)
        at = place + 4 + size
        yield Event(index, event_type, digests[_SHA384], _take(data, place + 4, size)), at
