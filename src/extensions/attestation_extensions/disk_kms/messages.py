"""The two messages of Talos' KMS protocol, read strictly and written: protocol buffers, proto3.

    message Request  { string node_uuid = 1; bytes data = 2; }
    message Response { bytes data = 1; }

Encoding: protobuf.dev/programming-guides/encoding. Every reader of the format agrees with us on what we accept, and we
refuse what two readers could read differently: a field of ours twice (the last would win), of another wire type (it
would be skipped), a number in more bytes than it needs, text that is no UTF-8. Fields that we do not know are skipped,
as the format wants it, a few of them; groups, which no compiler writes any more, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from attestation.errors import MalformedEvidence

MAX_BYTES: Final = 1024
"""Of a request. An honest one has 38 bytes of UUID, at most 71 of data, and nothing else."""
MAX_FIELDS: Final = 16
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_NODE_UUID: Final = 1
_DATA: Final = 2
_MAX_FIELD_NUMBER: Final = (1 << 29) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a node asks for: who it says that it is, and what it wants sealed or opened. None of it is proven."""

    node_uuid: str
    data: bytes


def parse_request(data: bytes) -> Request:
    """Read a request; a member that is not there is empty.

    Raises:
        MalformedEvidence: It is none, or could be read in two ways.
    """
    if len(data) > MAX_BYTES:
        raise MalformedEvidence(f"a request has at most {MAX_BYTES} bytes, not {len(data)}")
    found: dict[int, bytes] = {}
    at, fields = 0, 0
    while at < len(data):
        if (fields := fields + 1) > MAX_FIELDS:
            raise MalformedEvidence(f"a request has at most {MAX_FIELDS} fields")
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _MAX_FIELD_NUMBER:
            raise MalformedEvidence(f"a field has the number {number}, not one from 1 to {_MAX_FIELD_NUMBER}")
        value, at = _value(data, at, wire_type)
        if number not in (_NODE_UUID, _DATA):
            continue
        if value is None:
            raise MalformedEvidence(f"field {number} has wire type {wire_type}, not {_LENGTH}")
        if number in found:
            raise MalformedEvidence(f"field {number} is there twice")
        found[number] = value
    try:
        node_uuid = found.get(_NODE_UUID, b"").decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedEvidence("node_uuid is no UTF-8") from None
    return Request(node_uuid=node_uuid, data=found.get(_DATA, b""))


def encode_response(data: bytes) -> bytes:
    """Write a response as every compiler does: a member that is empty is left out."""
    return bytes([1 << 3 | _LENGTH]) + _encoded(len(data)) + data if data else b""


def _value(data: bytes, at: int, wire_type: int) -> tuple[bytes | None, int]:
    """Return what stands at *at*, None where it is no run of bytes, and where the next field begins."""
    if wire_type == _VARINT:
        return None, _varint(data, at)[1]
    if wire_type == _LENGTH:
        size, at = _varint(data, at)
    elif wire_type == _FIXED64:
        size = 8
    elif wire_type == _FIXED32:
        size = 4
    else:
        raise MalformedEvidence(f"a field has wire type {wire_type}")
    if size > len(data) - at:
        raise MalformedEvidence("a field ends behind its message")
    return (data[at : at + size] if wire_type == _LENGTH else None), at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at *at*, below 2^64, and where it ends."""
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if byte == 0 and i > 0:
                raise MalformedEvidence("a number has more bytes than it needs")
            if number >= 1 << 64:
                raise MalformedEvidence("a number has more than 64 bits")
            return number, at + i + 1
    raise MalformedEvidence("a number does not end")


def _encoded(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
