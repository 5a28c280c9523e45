"""The few messages that go to machined and come back: protocol buffers, proto3, written and read by hand.

    message ApplyConfigurationRequest { bytes data = 1; Mode mode = 4; bool dry_run = 5;
                                        Duration try_mode_timeout = 6; }
    message ResetPartitionSpec        { string label = 1; bool wipe = 2; }
    message ResetRequest              { bool graceful = 1; bool reboot = 2;
                                        repeated ResetPartitionSpec system_partitions_to_wipe = 3;
                                        repeated string user_disks_to_wipe = 4; WipeMode mode = 5; }
    message ...Response               { repeated ... messages = 1; }
    message ApplyConfiguration        { Metadata metadata = 1; repeated string warnings = 2; Mode mode = 3;
                                        string mode_details = 4; }
    message Reset                     { Metadata metadata = 1; string actor_id = 2; }
    message Version                   { Metadata metadata = 1; VersionInfo version = 2; ... }
    message VersionInfo               { string tag = 1; ... }
    message Metadata                  { string hostname = 1; string error = 2; Status status = 3; }

Numbers: siderolabs/talos, api/machine/machine.proto and api/common/common.proto. Encoding:
protobuf.dev/programming-guides/encoding. A member that has its default value is not written; a zero that says something
here (`graceful`, `mode` of Reset) is said by its absence, as every compiler of the format says it.

What comes back is read for whether it is a success and for a version, and for nothing else: `mode_details` and
`warnings` quote the configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from attestation_agent.talos.errors import MachinedAnswerRefused, MachinedRefused

MAX_FIELDS: Final = 4096
"""Of one message: more are not read."""
MAX_TAG_BYTES: Final = 64
"""Of a version's name."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_FIELD_NUMBER: Final = (1 << 29) - 1


class Mode(IntEnum):
    """How a configuration is applied."""

    REBOOT = 0
    AUTO = 1
    NO_REBOOT = 2
    STAGED = 3
    TRY = 4


def apply_request(config: bytes, *, mode: Mode, dry_run: bool) -> bytes:
    """Write an ApplyConfigurationRequest."""
    return _bytes(1, config) + _number(4, mode) + _number(5, dry_run)


def wipe_request(labels: Sequence[str]) -> bytes:
    """Write a ResetRequest that wipes the partitions named *labels* and reboots, at once and whatever etcd says.

    `graceful` is false: a machine that is to be wiped may not be held up by what runs on it. No list of partitions
    would mean all disks, and no `reboot` a machine that is off (R39): neither can be left out here.

    Raises:
        ValueError: No partition is named.
    """
    if not labels:
        raise ValueError("no partition is named: that would be all of them")
    specs = [_bytes(1, label.encode("ascii")) + _number(2, 1) for label in labels]
    return _number(2, 1) + b"".join(_bytes(3, spec) for spec in specs)


def check_answer(data: bytes) -> int:
    """Return how many machines say that it is done: at least one, each without an error.

    Args:
        data: An ApplyConfigurationResponse or a ResetResponse.

    Raises:
        MachinedAnswerRefused: It is none.
        MachinedRefused: One of them says that it failed. Its words are not repeated.
    """
    return len(_answers(data))


def version_of(data: bytes) -> str:
    """Return the tag of the one version in a VersionResponse, e.g. `v1.13.9`.

    Raises:
        MachinedAnswerRefused: There is none.
        MachinedRefused: It says that it failed.
    """
    for answer in _answers(data):
        for info in _members(answer, 2):
            for tag in _members(info, 1):
                if 0 < len(tag) <= MAX_TAG_BYTES and tag.isascii() and tag.decode("ascii").isprintable():
                    return tag.decode("ascii")
    raise MachinedAnswerRefused("the answer of machined names no version")


def _answers(data: bytes) -> list[bytes]:
    found = _members(data, 1)
    if not found:
        raise MachinedAnswerRefused("the answer of machined is empty")
    for answer in found:
        for metadata in _members(answer, 1):
            # `status` is there where a call failed behind a proxy; there is no proxy on this socket, and no reason to
            # believe an answer that has one.
            if any(_members(metadata, 2)) or _members(metadata, 3):
                raise MachinedRefused("machined answers that it failed")
    return found


def _members(data: bytes, wanted: int) -> list[bytes]:
    """Return the members numbered *wanted*, which are runs of bytes."""
    found = []
    for number, value in _fields(data):
        if number == wanted:
            if value is None:
                raise MachinedAnswerRefused(f"field {number} in the answer of machined is no run of bytes")
            found.append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield number and bytes of each field; None for a number, which nothing here reads."""
    at = fields = 0
    while at < len(data):
        if (fields := fields + 1) > MAX_FIELDS:
            raise MachinedAnswerRefused(f"a message of machined has more than {MAX_FIELDS} fields")
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number <= _MAX_FIELD_NUMBER:
            raise MachinedAnswerRefused(f"a field in the answer of machined has the number {number}")
        value, at = _value(data, at, wire_type)
        yield number, value


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
        raise MachinedAnswerRefused(f"a field in the answer of machined has wire type {wire_type}")
    if size > len(data) - at:
        raise MachinedAnswerRefused("a field in the answer of machined ends behind its message")
    return (data[at : at + size] if wire_type == _LENGTH else None), at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at *at*, below 2^64, and where it ends."""
    number = 0
    for i, byte in enumerate(data[at : at + 10]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if number >= 1 << 64:
                break
            return number, at + i + 1
    raise MachinedAnswerRefused("a number in the answer of machined does not end")


def _bytes(number: int, value: bytes) -> bytes:
    return _written(number << 3 | _LENGTH) + _written(len(value)) + value if value else b""


def _number(number: int, value: int) -> bytes:
    return _written(number << 3 | _VARINT) + _written(value) if value else b""


def _written(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
