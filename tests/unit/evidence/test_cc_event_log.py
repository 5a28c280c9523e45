"""Event logs of confidential guests: every rule of CONFIDENTIAL.md §10, and the log of a real TD."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence
from attestation.evidence.cc_event_log import CCEL, parse, parse_table
from attestation.evidence.dcap import TDReport, parse_quote
from tests.vectors.confidential import SHARED, needs_vectors

Events = Sequence[tuple[int, int, bytes]]
ONE, TWO = hashlib.sha384(b"1").digest(), hashlib.sha384(b"2").digest()
SHA256, SHA384 = (0x000B, 32), (0x000C, 48)


def spec_id(algorithms: Sequence[tuple[int, int]] = (SHA384,), **changed: object) -> bytes:
    """Return the first event."""
    body = struct.pack(
        "<16sIBBBBI", b"Spec ID Event03\0", 0, 0, 2, 0, 2, changed.get("count", len(algorithms))
    )
    body += b"".join(struct.pack("<HH", *each) for each in algorithms) + b"\0"
    body = changed.get("body", body)  # type: ignore[assignment]  # bytes where it is given
    return struct.pack("<II20sI", 1, changed.get("type", 3), changed.get("digest", b""), len(body)) + body


def event(
    index: int, kind: int, digest: bytes, data: bytes = b"", more: bytes = b"", count: int = 1
) -> bytes:
    """Return one event of SHA-384, with *more* digests before it."""
    head = struct.pack("<III", index, kind, count) + more + struct.pack("<H", 0x000C) + digest
    return head + struct.pack("<I", len(data)) + data


def log(*events: bytes) -> bytes:
    """Return a log."""
    return spec_id() + b"".join(events)


def extended(*digests: bytes) -> bytes:
    """Return a register."""
    value = bytes(48)
    for each in digests:
        value = hashlib.sha384(value + each).digest()
    return value


def test_what_a_replay_gives() -> None:
    """In order; EV_NO_ACTION and MRTD extend nothing; a register without events must be zero."""
    found = parse(
        log(event(1, 1, ONE), event(3, 3, TWO), event(1, 1, TWO), event(0, 1, ONE), event(4, 5, TWO))
    )
    assert found.replay() == (extended(ONE, TWO), None, None, extended(TWO))
    good = [extended(ONE, TWO), bytes(48), bytes(48), extended(TWO)]
    assert found.mismatches(good) == []
    for i in range(4):
        wrong = [*good]
        wrong[i] = b"\x01" * 48
        (words,) = found.mismatches(wrong)
        assert words.startswith(f"RTMR{i} is 0101")
    assert len(found.mismatches([bytes(48)] * 4)) == 2


@pytest.mark.parametrize("fill", [b"", b"\xff" * 4, b"\xff" * 100, bytes(100), b"\xff" * 4 + b"anything"])
def test_where_a_log_ends(fill: bytes) -> None:
    """With the data, an index of FF, or zeros to the end."""
    whole = log(event(1, 1, ONE, b"data"))
    found = parse(whole + fill)
    assert (len(found.events), found.used_bytes) == (1, len(whole))
    assert found.events[0].data == b"data"


def test_digests_of_other_algorithms_stand_beside() -> None:
    """Each that is listed, once."""
    whole = spec_id((SHA256, SHA384)) + event(2, 1, ONE, more=struct.pack("<H", 0x000B) + bytes(32), count=2)
    assert parse(whole).replay()[1] == extended(ONE)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        spec_id()[:-1],
        spec_id(type=4),
        spec_id(digest=b"\x01"),
        spec_id(body=b""),
        spec_id(body=b"Spec ID Event02\0" + spec_id()[48:]),
        spec_id(count=2),
        spec_id(count=7),
        spec_id((SHA256,)),
        spec_id((SHA384, SHA384)),
        spec_id(((0x000C, 32),)),
        spec_id((SHA384, (0x0099, 4))),
        spec_id(body=spec_id()[32:] + b"x"),
        log(event(5, 1, ONE)),
        log(event(1, 1, ONE)[:-1]),
        log(event(1, 1, ONE, count=2)),
        log(event(1, 1, ONE, count=0)),
        log(b"\x01\0\0\0\x01"),
        log(bytes(8) + b"\x01"),
        log(struct.pack("<IIIH", 1, 1, 1, 0x000B) + bytes(36)),
        spec_id((SHA256, SHA384)) + event(2, 1, ONE, more=struct.pack("<H", 0x000C) + ONE, count=2),
        log(event(1, 1, ONE)[:-4] + b"\xff\xff\xff\xff"),
        log(*[event(1, 1, ONE)] * 5000),
    ],
)
def test_what_is_no_log(data: bytes) -> None:
    """Refused, in one way."""
    with pytest.raises(MalformedEvidence):
        parse(data)


def test_too_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where they are short."""
    monkeypatch.setattr("attestation.evidence.cc_event_log.MAX_EVENTS", 2)
    assert len(parse(log(*[event(1, 1, ONE)] * 2)).events) == 2
    with pytest.raises(MalformedEvidence, match="more than 2 events"):
        parse(log(*[event(1, 1, ONE)] * 3))


def test_the_table() -> None:
    """56 bytes, by signature and length."""
    table = struct.pack("<4sI28sBBHQQ", b"CCEL", 56, bytes(28), 2, 1, 0, 4096, 0x1000)
    assert parse_table(table) == CCEL(2, 1, 4096, 0x1000)
    for wrong in (b"", table + b"\0", b"CCEM" + table[4:], table[:4] + b"\x39" + table[5:]):
        with pytest.raises(MalformedEvidence):
            parse_table(wrong)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_readers_fail_in_one_way(data: bytes, place: int) -> None:
    """Whatever bytes, also in the middle of a good log."""
    good = log(event(1, 1, ONE, b"data"), event(2, 3, TWO))
    for each in (data, good[:place] + data, good[:place] + data + good[place + len(data) :]):
        try:
            parse(each).replay()
        except MalformedEvidence:
            continue


@needs_vectors
def test_the_log_of_a_real_td() -> None:
    """Its replay gives the registers of the quote; one changed digest does not."""
    data, quote = ((SHARED / f"ccel/gce-cos113.{name}.bin").read_bytes() for name in ("ccel", "quote"))
    found, body = parse(data), parse_quote(quote).body
    assert isinstance(body, TDReport)
    assert (len(found.events), found.used_bytes) == (43, 18101)
    assert found.mismatches(body.rtmrs) == []
    assert found.replay()[3] is None
    place = data.index(found.events[10].digest)
    changed = data[:place] + b"\x01" + data[place + 1 :]
    assert len(parse(changed).mismatches(body.rtmrs)) == 1
    assert parse_table((SHARED / "ccel/gce-cos113.ccel-acpi-table.bin").read_bytes()).log_bytes == len(data)
