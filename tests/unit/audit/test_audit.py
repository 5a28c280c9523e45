"""The audit log: one canonical form, one chain, every change of it seen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.audit import (
    FORMAT,
    GENESIS_HASH,
    MAX_DETAIL_BYTES,
    AuditEntry,
    AuditEvent,
    ChainVerifier,
    canonical_bytes,
    chain,
    entry_hash,
    verify_chain,
)

AT = datetime(2026, 11, 21, 3, 42, tzinfo=UTC)
EVENT = AuditEvent(
    operator_cn="alice",
    operator_sub="sub-1",
    action="approve",
    machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
    prev_state="pending_approval",
    new_state="registered",
    detail='{"role":"worker-app","note":"é😀"}',
    source_ip="192.0.2.1",
)
CANONICAL = (
    b'{"action":"approve","detail":"{\\"role\\":\\"worker-app\\",\\"note\\":\\"\\u00e9\\ud83d\\ude00\\"}",'
    b'"format":1,"machine_id":"7a0e3c1e-6a43-4c5b-9d0a-000000000001","new_state":"registered",'
    b'"operator_cn":"alice","operator_sub":"sub-1","prev_hash":"' + b"0" * 64 + b'",'
    b'"prev_state":"pending_approval","source_ip":"192.0.2.1","timestamp":"2026-11-21T03:42:00.000000Z"}'
)


def log(length: int = 6) -> list[tuple[int, AuditEntry]]:
    """Return a good chain; row ids need not be consecutive."""
    entries: list[tuple[int, AuditEntry]] = []
    last = GENESIS_HASH
    for i in range(length):
        entry = chain(replace(EVENT, detail=f"step {i}"), at=AT + timedelta(seconds=i), prev_hash=last)
        entries.append((10 * i + 7, entry))
        last = entry.entry_hash
    return entries


def test_the_canonical_form_is_pinned() -> None:
    """These bytes and this hash never change: logs of released versions must verify for ever."""
    entry = chain(EVENT, at=AT, prev_hash=GENESIS_HASH)
    assert entry.entry_hash == hashlib.sha256(CANONICAL).hexdigest()
    assert entry.entry_hash == "feccb2a98dda8b9869265260bcabf1e59e64cba17c0f82b35b1d87e6325c9654"
    assert (FORMAT, GENESIS_HASH) == (1, "0" * 64)


def test_nulls_are_written_as_null() -> None:
    """An event with nothing optional, its hash written down."""
    entry = chain(AuditEvent(operator_cn="SYSTEM", action="start"), at=AT, prev_hash=GENESIS_HASH)
    assert json.loads(CANONICAL).keys() == {f.name for f in fields(AuditEntry)} - {"entry_hash"}
    members = {
        **dict.fromkeys(json.loads(CANONICAL)),
        **{k: v for k, v in asdict(entry).items() if k != "entry_hash"},
    }
    written = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    assert written.count(b":null") == 6
    assert entry.entry_hash == hashlib.sha256(written).hexdigest()


def test_an_entry_keeps_what_the_event_said() -> None:
    """Every field, the time in its written form, the place in the chain."""
    entry = chain(EVENT, at=AT, prev_hash="ab" * 32)
    assert {k: v for k, v in asdict(entry).items() if k in asdict(EVENT)} == asdict(EVENT)
    assert (entry.timestamp, entry.format, entry.prev_hash) == ("2026-11-21T03:42:00.000000Z", 1, "ab" * 32)
    assert entry_hash(entry) == entry.entry_hash


def test_a_good_chain() -> None:
    """All entries, the last hash as root; an empty log is valid and has no root."""
    entries = log()
    walk = verify_chain(entries)
    assert (walk.valid, walk.entries, walk.root_hash) == (True, 6, entries[-1][1].entry_hash)
    assert (walk.first_invalid_id, walk.error) == (None, None)
    empty = verify_chain([])
    assert (empty.valid, empty.entries, empty.root_hash) == (True, 0, None)


@pytest.mark.parametrize("name", [f.name for f in fields(AuditEntry)])
@pytest.mark.parametrize("at", [0, 2, 5])
def test_every_change_of_every_field_is_seen(name: str, at: int) -> None:
    """One field of one entry changed: named at that entry."""
    entries = log()
    row, entry = entries[at]
    value = getattr(entry, name)
    for other in (2, None) if name == "format" else (value + "x", value[1:], value.upper() + " ", None, ""):
        if other == value:
            continue
        changes: dict[str, Any] = {name: other}
        changed = replace(entry, **changes)
        walk = verify_chain([*entries[:at], (row, changed), *entries[at + 1 :]])
        assert not walk.valid
        assert (walk.first_invalid_id, walk.entries, walk.root_hash) == (row, at, None)
        expected = "prev_hash mismatch" if name == "prev_hash" else "entry_hash mismatch"
        assert walk.error == f"{expected} at entry {row}"


@pytest.mark.parametrize("at", range(5))
def test_a_changed_entry_hashed_anew_breaks_its_successor(at: int) -> None:
    """Whoever rewrites an entry must rewrite all that follow."""
    entries = log()
    row, entry = entries[at]
    forged = chain(replace(EVENT, detail="forged"), at=AT, prev_hash=entry.prev_hash)
    walk = verify_chain([*entries[:at], (row, forged), *entries[at + 1 :]])
    assert walk.first_invalid_id == entries[at + 1][0]
    assert walk.error == f"prev_hash mismatch at entry {entries[at + 1][0]}"


def test_removal_insertion_repetition_and_order() -> None:
    """Entries taken out, put in, doubled or swapped, anywhere but behind the last."""
    good = log()
    for at in range(5):
        removed = good[:at] + good[at + 1 :]
        assert verify_chain(removed).first_invalid_id == good[at + 1][0]
        swapped = [*good[:at], good[at + 1], good[at], *good[at + 2 :]]
        assert verify_chain(swapped).first_invalid_id == good[at + 1][0]
    for at in range(6):
        doubled = [*good[: at + 1], (99, good[at][1]), *good[at + 1 :]]
        assert verify_chain(doubled).first_invalid_id == 99
        stranger = chain(EVENT, at=AT, prev_hash="ff" * 32)
        assert verify_chain([*good[:at], (98, stranger), *good[at:]]).first_invalid_id == 98
    assert not verify_chain(reversed(good)).valid
    assert not verify_chain(good[1:]).valid


def test_a_fork_is_seen() -> None:
    """Two successors of one entry: the second does not fit."""
    good = log(3)
    fork = chain(replace(EVENT, detail="fork"), at=AT, prev_hash=good[1][1].entry_hash)
    assert verify_chain([*good, (50, fork)]).first_invalid_id == 50


def test_a_log_is_walked_in_pages() -> None:
    """Any cut into pages gives the same walk; after the first break nothing more is believed."""
    good = log()
    for size in (1, 2, 5, 6):
        verifier = ChainVerifier()
        assert all(verifier.feed(good[at : at + size]) for at in range(0, 6, size))
        assert verifier.walk() == verify_chain(good)
    verifier = ChainVerifier()
    assert not verifier.feed(good[1:])
    first = verifier.walk()
    assert not verifier.feed(good)
    assert verifier.walk() == first
    assert first.entries == 0


# ---------------------------------------------------------------- detail


def written(detail: str | None) -> int:
    return len(json.dumps(detail)) - 2


@pytest.mark.parametrize("character", ["x", "\0", '"', "é", "€", "😀", "\u2028"])
def test_detail_is_cut_to_its_longest_prefix(character: str) -> None:
    """In bytes of the canonical form: whatever needs to be escaped, an entry stays below 65 535 bytes."""
    each = written(character)
    fits = character * (MAX_DETAIL_BYTES // each)
    assert chain(replace(EVENT, detail=fits), at=AT, prev_hash=GENESIS_HASH).detail == fits
    long = chain(replace(EVENT, detail=fits + character * 1000), at=AT, prev_hash=GENESIS_HASH)
    assert long.detail is not None
    assert long.detail == fits[: len(long.detail) - 1] + "…"
    assert MAX_DETAIL_BYTES - each < written(long.detail) <= MAX_DETAIL_BYTES
    assert long.entry_hash == entry_hash(long)
    whole = json.dumps({k: v for k, v in asdict(long).items() if k != "entry_hash"})
    assert len(whole) < 65_535


@pytest.mark.parametrize("detail", ["\ud800", "a\udfffb"])
def test_lone_surrogates_never_reach_the_log(detail: str) -> None:
    """UTF-8 cannot carry them: replaced, so that what is stored is what was hashed."""
    entry = chain(replace(EVENT, detail=detail), at=AT, prev_hash=GENESIS_HASH)
    assert entry.detail is not None
    assert entry.detail.encode().decode() == entry.detail
    assert "?" in entry.detail


def test_no_detail_stays_none() -> None:
    """None and the empty text are two things."""
    none, empty = (chain(replace(EVENT, detail=d), at=AT, prev_hash=GENESIS_HASH) for d in (None, ""))
    assert (none.detail, empty.detail) == (None, "")
    assert none.entry_hash != empty.entry_hash


@pytest.mark.threat("T45")
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("anna.admin", "anna.admin"),
        ("Ærøskøbing \u4e09 \U0001f511", "Ærøskøbing \u4e09 \U0001f511"),
        ("non\u00a0breaking", "non\u00a0breaking"),
        ("a\x1b[2Jb\nc\x00\u2028\u202e\ud800", "a\ufffd[2Jb\ufffdc\ufffd\ufffd\ufffd\ufffd"),
        ("x" * 256, "x" * 256),
        ("x" * 257, "x" * 255 + "…"),
    ],
)
def test_names_write_no_lines_and_have_an_end(given: str, kept: str) -> None:
    """Whoever chooses their name chooses no more than that; ordinary names are kept letter by letter."""
    entry = chain(AuditEvent(operator_cn=given, action="x"), at=AT, prev_hash=GENESIS_HASH)
    assert entry.operator_cn == kept
    assert entry_hash(entry) == entry.entry_hash


def test_no_event_makes_an_entry_that_is_too_long() -> None:
    """An entry has at most 65 535 bytes, whatever stands in all its members at once: a bundle has no more room."""
    worst = "\U0001f511" * 70_000
    event = AuditEvent(**dict.fromkeys(AuditEvent.__slots__, worst))
    entry = chain(event, at=AT, prev_hash=GENESIS_HASH)
    assert len(canonical_bytes(entry)) <= 65_535
    for name, most in (("operator_sub", 1024), ("action", 64), ("source_ip", 64), ("machine_id", 64)):
        assert len(getattr(entry, name)) == most
