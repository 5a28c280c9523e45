"""Reading TCG event logs: the crypto-agile format, and the SHA-1 format for tools (TCG PFP, 10.2; TPM.md §4.3).

Integers are little-endian. Nothing is allocated by a length from the log before it was compared with what is
there; counts are compared before anything is repeated.
"""

# Algorithms for: event-log
from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence
from attestation.evidence.event_log.event_types import EventType
from attestation.tpm import Alg, digest_size

MAX_LOG_BYTES: Final = 1 << 20
MAX_EVENTS: Final = 20_000
MAX_DIGESTS: Final = 8
MAX_PCR: Final = 23

_HEADER: Final = struct.Struct("<II20sI")  # TCG_PCR_EVENT: pcrIndex, eventType, SHA-1 digest, eventSize
_SPEC_ID: Final = struct.Struct(
    "<16sIBBBBI"
)  # signature, platformClass, minor, major, errata, uintnSize, count
_SPEC_ID_SIGNATURE: Final = b"Spec ID Event03\0"
_NO_ACTION: Final = int(EventType.NO_ACTION)


class SpecID(NamedTuple):
    """TCG_EfiSpecIDEvent: what the rest of the log looks like.

    Args:
        platform_class: u32; 0 client, 1 server.
        version: Major and minor version of the format.
        errata: u8.
        uintn_size: 1 for 4 bytes, 2 for 8.
        vendor_info: At most 255 bytes.
    """

    platform_class: int
    version: tuple[int, int]
    errata: int
    uintn_size: int
    vendor_info: bytes


class Record(NamedTuple):
    """One event as written: where its data are, not what they say.

    Args:
        pcr: 0-23; anything for EV_NO_ACTION, which is never extended.
        event_type: u32.
        digests: One per bank, in the order of `UnverifiedEventLog.banks`; empty where the event has none.
        start: Offset of its data in the log.
        stop: Offset behind them.
    """

    pcr: int
    event_type: int
    digests: tuple[bytes, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedEventLog:
    """A parsed log. Nothing in it may be believed yet.

    Args:
        data: The log as received, padding included.
        sha256: Of `data`, hex.
        spec_id: The first event; None for a log of the SHA-1 format, which is never accepted as evidence.
        banks: TPM_ALG_ID of the banks it has digests for.
        records: Every event, the Spec ID event included (as one digest of 20 zero bytes).
        padding_bytes: Bytes of 00 or FF behind the last event.
    """

    data: bytes
    sha256: str
    spec_id: SpecID | None
    banks: tuple[int, ...]
    records: tuple[Record, ...]
    padding_bytes: int


def parse(data: bytes, *, log_padding: bool = False) -> UnverifiedEventLog:
    """Parse an event log of at most 1 MiB and 20 000 events.

    Args:
        data: What the kernel shows as `binary_bios_measurements`.
        log_padding: Accept 00 or FF behind the last event, to the end; reported as `padding_bytes`.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    size = len(data)
    if size > MAX_LOG_BYTES:
        raise MalformedEvidence(f"event log of {size} bytes, at most {MAX_LOG_BYTES} allowed")
    pcr, event_type, digest, event_size = _header(data, 0, size)
    stop = _HEADER.size + event_size
    if data[_HEADER.size : min(stop, _HEADER.size + 16)] != _SPEC_ID_SIGNATURE:
        records, end = _sha1_records(data, size, log_padding=log_padding)
        return _log(data, None, (int(Alg.SHA1),), records, end)
    if pcr != 0 or event_type != _NO_ACTION or digest != bytes(20):
        raise MalformedEvidence("event log: the Spec ID event is not EV_NO_ACTION of PCR 0 with digest zero")
    spec_id, algorithms = _parse_spec_id(data[_HEADER.size : stop])
    records = [Record(0, _NO_ACTION, (digest,), _HEADER.size, stop)]
    end = _agile_records(data, stop, size, algorithms, records, log_padding=log_padding)
    return _log(data, spec_id, algorithms, records, end)


def _log(
    data: bytes, spec_id: SpecID | None, banks: tuple[int, ...], records: list[Record], end: int
) -> UnverifiedEventLog:
    return UnverifiedEventLog(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        spec_id=spec_id,
        banks=banks,
        records=tuple(records),
        padding_bytes=len(data) - end,
    )


def _header(data: bytes, offset: int, size: int) -> tuple[int, int, bytes, int]:
    """Return pcrIndex, eventType, digest and eventSize of the TCG_PCR_EVENT at *offset*, data complete."""
    if offset + _HEADER.size > size:
        raise MalformedEvidence(f"event log: {size - offset} bytes at offset {offset} are no event")
    pcr, event_type, digest, event_size = _HEADER.unpack_from(data, offset)
    if event_size > size - offset - _HEADER.size:
        raise MalformedEvidence(
            f"event log: event at offset {offset} announces {event_size} bytes,"
            f" {size - offset - _HEADER.size} are there"
        )
    return pcr, event_type, digest, event_size


def _parse_spec_id(event: bytes) -> tuple[SpecID, tuple[int, ...]]:
    """Parse the data of the first event: algorithms with their sizes, vendor information to the last byte."""
    if len(event) < _SPEC_ID.size:
        raise MalformedEvidence(f"event log: Spec ID event of {len(event)} bytes")
    _, platform_class, minor, major, errata, uintn_size, count = _SPEC_ID.unpack_from(event)
    if not 1 <= count <= MAX_DIGESTS:
        raise MalformedEvidence(f"event log: {count} algorithms announced, 1 to {MAX_DIGESTS} allowed")
    offset = _SPEC_ID.size + 4 * count
    if offset + 1 > len(event):
        raise MalformedEvidence("event log: the Spec ID event ends before its algorithms do")
    pairs = struct.unpack_from(f"<{2 * count}H", event, _SPEC_ID.size)
    algorithms = pairs[::2]
    for alg, announced in zip(algorithms, pairs[1::2], strict=True):
        if digest_size(alg) != announced:
            raise MalformedEvidence(f"event log: digests of 0x{alg:04x} announced with {announced} bytes")
    if len(set(algorithms)) != count:
        raise MalformedEvidence("event log: an algorithm is announced twice")
    vendor_size = event[offset]
    vendor_info = event[offset + 1 :]
    if len(vendor_info) != vendor_size:
        raise MalformedEvidence(
            f"event log: vendor information of {vendor_size} bytes announced, {len(vendor_info)} are there"
        )
    return SpecID(platform_class, (major, minor), errata, uintn_size, vendor_info), algorithms


def _agile_records(
    data: bytes,
    offset: int,
    size: int,
    algorithms: tuple[int, ...],
    records: list[Record],
    *,
    log_padding: bool,
) -> int:
    """Append every TCG_PCR_EVENT2 from *offset* on to *records*; return the offset behind the last.

    An event that has each announced algorithm exactly once, in the announced order, has a fixed part of one
    size: it is read at once. Others are read digest by digest.
    """
    count = len(algorithms)
    fixed = struct.Struct("<III" + "".join(f"H{digest_size(alg)}s" for alg in algorithms) + "I")
    unpack, fixed_size = fixed.unpack_from, fixed.size
    last = 3 + 2 * count  # index of eventSize
    append, room = records.append, MAX_EVENTS - len(records)
    while offset < size:
        if log_padding and _is_padding(data, offset):
            break
        start = offset + fixed_size
        fields = unpack(data, offset) if start <= size else ()
        if fields and fields[2] == count and fields[3:last:2] == algorithms:
            pcr, event_type, event_size = fields[0], fields[1], fields[last]
            digests = fields[4:last:2]
        else:
            pcr, event_type, digests, start, event_size = _unusual(data, offset, size, algorithms)
        offset = start + event_size
        if offset > size:
            raise MalformedEvidence(
                f"event log: event announces {event_size} bytes at offset {start}, {size - start} are there"
            )
        if pcr > MAX_PCR and event_type != _NO_ACTION:
            raise MalformedEvidence(f"event log: event for PCR {pcr}")
        room -= 1
        if room < 0:
            raise MalformedEvidence(f"event log: more than {MAX_EVENTS} events")
        append(Record(pcr, event_type, digests, start, offset))
    return offset


def _unusual(
    data: bytes, offset: int, size: int, algorithms: tuple[int, ...]
) -> tuple[int, int, tuple[bytes, ...], int, int]:
    """Return PCR, type, digests in the announced order, offset of the data, and size announced for them.

    Digests may stand in another order. One that is missing is empty here: the log cannot be replayed in that
    bank, and is no evidence in any.
    """
    if offset + 12 > size:
        raise MalformedEvidence(f"event log: {size - offset} bytes at offset {offset} are no event")
    pcr, event_type, count = struct.unpack_from("<III", data, offset)
    if not 1 <= count <= len(algorithms):
        raise MalformedEvidence(
            f"event log: event at offset {offset} has {count} digests, {len(algorithms)} announced"
        )
    found: dict[int, bytes] = {}
    position = offset + 12
    for _ in range(count):
        alg = int.from_bytes(data[position : position + 2], "little")
        if alg not in algorithms or alg in found:
            raise MalformedEvidence(
                f"event log: event at offset {offset} has not each announced algorithm exactly once"
            )
        stop = position + 2 + digest_size(alg)
        found[alg] = data[position + 2 : stop]
        position = stop
    if position + 4 > size:
        raise MalformedEvidence(f"event log: the event at offset {offset} ends before its size")
    event_size = int.from_bytes(data[position : position + 4], "little")
    return pcr, event_type, tuple(found.get(alg, b"") for alg in algorithms), position + 4, event_size


def _sha1_records(data: bytes, size: int, *, log_padding: bool) -> tuple[list[Record], int]:
    """Return every TCG_PCR_EVENT of a log of the SHA-1 format, and the offset behind the last."""
    records: list[Record] = []
    offset = 0
    while offset < size:
        if log_padding and records and _is_padding(data, offset):
            break
        pcr, event_type, digest, event_size = _header(data, offset, size)
        if pcr > MAX_PCR and event_type != _NO_ACTION:
            raise MalformedEvidence(f"event log: event for PCR {pcr}")
        if len(records) == MAX_EVENTS:
            raise MalformedEvidence(f"event log: more than {MAX_EVENTS} events")
        start = offset + _HEADER.size
        offset = start + event_size
        records.append(Record(pcr, event_type, (digest,), start, offset))
    return records, offset


def _is_padding(data: bytes, offset: int) -> bool:
    """Tell whether nothing but 00, or nothing but FF, follows."""
    # An event says within its first 16 bytes of what PCR and type it is, and how many digests it has: the rest is
    # not copied for each one, which would take a time that grows with the square of the log.
    head = data[offset : offset + 16]
    if head.strip(b"\0") and head.strip(b"\xff"):
        return False
    rest = data[offset:]
    return rest in (bytes(len(rest)), b"\xff" * len(rest))
