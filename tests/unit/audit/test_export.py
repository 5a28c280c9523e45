"""An export: what was changed, removed, moved, inserted or cut off is named, whoever recomputed which hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest

from attestation.audit import AuditEntry, chain
from attestation.audit.checkpoint import Checkpoint, UnverifiedCheckpoint, parse
from attestation.audit.export import (
    FORMAT,
    MAX_HEADER_BYTES,
    MAX_LINE_BYTES,
    LogVerifier,
    Pinned,
    TimeStamp,
    VerifiedLog,
    format_header,
    parse_header,
)
from attestation.audit.note import KeyType
from attestation.audit.walk import KnownRoot, LogWalk
from attestation.errors import AttestationError, LogBroken, MalformedNote, NoteRejected
from tests.unit.audit import log_kit
from tests.unit.audit.log_kit import (
    AT,
    EVENT,
    LOG_KEYS,
    LOG_VKEYS,
    ORIGIN,
    WITNESS_VKEYS,
    WITNESSES,
    Key,
    entries,
    export,
    format_entry,
    frontier,
    signed,
)

LENGTH = 12
SIZES = (3, 7)
LOG = entries(LENGTH)
LINES = export(LOG, SIZES)
PINNED = Pinned(log_keys=LOG_VKEYS, witnesses=WITNESS_VKEYS, quorum=2)
ONLY_LAST = export(LOG)


def verify(
    lines: Sequence[bytes],
    pinned: Pinned | None = PINNED,
    earlier: Sequence[UnverifiedCheckpoint] = (),
    piece: int = 1 << 20,
) -> VerifiedLog:
    """Verify *lines* in pieces."""
    verifier = LogVerifier(pinned=pinned, earlier=earlier)
    data = b"".join(lines)
    for at in range(0, len(data), piece):
        verifier.feed(data[at : at + piece])
    return verifier.finish()


def kept(size: int, log: Sequence[AuditEntry] = LOG) -> UnverifiedCheckpoint:
    """Return a checkpoint that an auditor kept from when the log had *size* entries."""
    return parse(signed(log_kit.checkpoint(log, size)).encode())


def rechained(log: Sequence[AuditEntry], at: int, detail: str) -> list[AuditEntry]:
    """Return *log* with the entry at *at* changed and every hash from there on computed anew."""
    made = list(log[:at])
    for number, entry in enumerate(log[at:], at):
        made.append(
            chain(
                replace(EVENT, detail=detail if number == at else entry.detail),
                at=AT,
                prev_hash=made[-1].entry_hash if made else "0" * 64,
            )
        )
    return made


def broken(lines: Sequence[bytes], **kwargs: object) -> LogBroken:
    """Return how *lines* fail."""
    with pytest.raises(LogBroken) as caught:
        verify(lines, **kwargs)  # type: ignore[arg-type]  # whatever `verify` takes
    return caught.value


# ---------------------------------------------------------------- what holds


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_a_good_export(piece: int) -> None:
    """Everything that was proven, whatever pieces the file came in."""
    verdict = verify(LINES, earlier=[kept(12), kept(5), kept(3)], piece=piece)
    assert (verdict.origin, verdict.entries, verdict.pinned) == (ORIGIN, LENGTH, True)
    assert verdict.root == frontier(LOG).root() == verdict.head.checkpoint.root
    assert verdict.root_hash == LOG[-1].entry_hash
    assert (verdict.checkpoints, verdict.earlier) == ((3, 7, 12), (3, 5, 12))
    assert [signer.key for signer in verdict.head.signers] == [*LOG_VKEYS, *WITNESS_VKEYS]


def test_an_empty_log() -> None:
    """It has a checkpoint too."""
    verdict = verify(export([]))
    assert (verdict.entries, verdict.root_hash, verdict.checkpoints) == (0, None, (0,))


def test_progress_is_seen() -> None:
    """How much there is, once the header was read, and how much was good."""
    verifier = LogVerifier(pinned=PINNED, earlier=())
    assert (verifier.size, verifier.entries) == (None, 0)
    verifier.feed(LINES[0] + LINES[1] + LINES[2][:9])
    assert (verifier.size, verifier.entries) == (LENGTH, 1)


def test_without_pinned_keys_the_file_proves_only_itself() -> None:
    """Said in the verdict; keys of witnesses do not sign for the log."""
    verdict = verify(LINES, pinned=None)
    assert not verdict.pinned
    assert [signer.key for signer in verdict.head.signers] == list(LOG_VKEYS)
    nameless = export(LOG, keys=WITNESSES)
    with pytest.raises(NoteRejected, match="no log"):
        verify(nameless, pinned=None)


def test_a_line_is_the_canonical_form() -> None:
    """Whoever verifies hashes the bytes that stand there."""
    assert (
        LINES[1]
        == b'{"id":1,"entry_hash":"%s","entry":{"action":"approve","detail":"step 0","format":1,"machine_id":'
        b'"7a0e3c1e-6a43-4c5b-9d0a-000000000001","new_state":"registered","operator_cn":"alice","operator_sub":'
        b'"https://id.example/realms/itl#sub-1","prev_hash":"%s","prev_state":"pending_approval",'
        b'"source_ip":"192.0.2.1","timestamp":"2026-11-21T03:42:00.000000Z"}}\n'
        % (LOG[0].entry_hash.encode(), b"0" * 64)
    )
    assert json.loads(LINES[0])["format"] == FORMAT


@pytest.mark.parametrize("detail", [None, "", '\0\x1f\x7f\\"/\b\f\n\r\té\u2028😀', "x" * 40_000])
def test_whatever_an_entry_says_it_is_read(detail: str | None) -> None:
    """Every escape that the canonical form has."""
    log = [chain(replace(EVENT, detail=detail, source_ip=None), at=AT, prev_hash="0" * 64)]
    assert verify(export(log)).entries == 1


# ---------------------------------------------------------------- entries


@pytest.mark.threat("T46")
@pytest.mark.parametrize("at", range(LENGTH))
def test_a_changed_entry_is_named(at: int) -> None:
    """Changed in place, and the same with its own hash computed anew."""
    line = LINES[at + 1].replace(b"alice", b"mallo")
    error = broken([*LINES[: at + 1], line, *LINES[at + 2 :]])
    assert (error.entry_id, str(error)) == (
        at + 1,
        f"entry {at + 1} was changed: it does not have the entry_hash that stands beside it",
    )
    data = line[line.index(b'"entry":') + 8 : -2]
    forged = line.replace(LOG[at].entry_hash.encode(), hashlib.sha256(data).hexdigest().encode())
    error = broken([*ONLY_LAST[: at + 1], forged, *ONLY_LAST[at + 2 :]])
    assert error.entry_id == (at + 2 if at < LENGTH - 1 else 1)
    assert "does not follow" in str(error) or "entries 1 to 12" in str(error)


@pytest.mark.parametrize("at", range(LENGTH))
def test_a_removed_entry_is_named(at: int) -> None:
    """By the gap; and where the ids were closed up, by what no longer follows."""
    error = broken([*LINES[: at + 1], *LINES[at + 2 :]])
    assert error.entry_id == at + 1
    assert "missing" in str(error)
    closed = [*LOG[:at], *LOG[at + 1 :]]
    error = broken([ONLY_LAST[0], *(format_entry(i, entry) for i, entry in enumerate(closed, 1))])
    assert error.entry_id == (at + 1 if at < LENGTH - 1 else LENGTH)
    assert ("does not follow" if at < LENGTH - 1 else "is missing") in str(error)


def test_several_removed_entries_are_named() -> None:
    """As a range."""
    assert str(broken([*LINES[:4], *LINES[7:]])).startswith("entries 4 to 6 are missing")


@pytest.mark.parametrize("at", range(LENGTH - 1))
def test_a_moved_or_repeated_entry_is_named(at: int) -> None:
    """Two swapped, one twice."""
    swapped = [*LINES[: at + 1], LINES[at + 2], LINES[at + 1], *LINES[at + 3 :]]
    assert broken(swapped).entry_id == at + 1
    error = broken([*LINES[: at + 2], *LINES[at + 1 :]])
    assert str(error) == (f"entry {at + 1} stands where entry {at + 2} belongs: repeated, inserted or moved")
    assert error.entry_id == at + 1
    renumbered = [*LOG[:at], LOG[at + 1], LOG[at], *LOG[at + 2 :]]
    error = broken([ONLY_LAST[0], *(format_entry(i, entry) for i, entry in enumerate(renumbered, 1))])
    assert (error.entry_id, "does not follow" in str(error)) == (at + 1, True)


@pytest.mark.parametrize("at", range(LENGTH + 1))
def test_an_inserted_entry_is_named(at: int) -> None:
    """It does not fit where it stands, or does not fit what comes after it."""
    previous = LOG[at - 1].entry_hash if at else "0" * 64
    inserted = [*LOG[:at], chain(EVENT, at=AT, prev_hash=previous), *LOG[at:]]
    error = broken([ONLY_LAST[0], *(format_entry(i, entry) for i, entry in enumerate(inserted, 1))])
    # Behind entry 11 it is the checkpoint of 12 that does not fit, before the chain is seen to break at 13.
    assert error.entry_id == {11: 1, 12: 13}.get(at, at + 2)


@pytest.mark.parametrize("left", range(LENGTH))
def test_a_truncated_log_is_named(left: int) -> None:
    """The end is missing: whole lines, or the last one in part."""
    error = broken(LINES[: left + 1])
    assert error.entry_id == left + 1
    assert str(error).endswith(f"the log ends with entry {left}, the checkpoint of the file covers 12")
    error = broken([*LINES[: left + 1], LINES[left + 1][:-1]])
    assert str(error) == f"the file is cut off within the line of entry {left + 1}"
    assert error.entry_id == left + 1


@pytest.mark.threat("T49")
def test_a_log_truncated_with_its_checkpoint_is_found_by_an_older_one() -> None:
    """Whoever kept a checkpoint of 12 is not satisfied with a good export of 9."""
    short = export(LOG[:9])
    assert verify(short, earlier=[kept(5)]).entries == 9
    error = broken(short, earlier=[kept(12)])
    assert (error.entry_id, str(error)) == (
        10,
        "entries 10 to 12 are missing: the log ends with entry 9, the checkpoint given by you covers 12",
    )
    assert str(broken(short, earlier=[kept(10)])).startswith("entry 10 is missing")


def test_entries_behind_the_end() -> None:
    """Nobody signed them."""
    more = entries(LENGTH + 2)
    error = broken([*LINES, format_entry(13, more[12]), format_entry(14, more[13])])
    assert (error.entry_id, "no checkpoint covers it" in str(error)) == (13, True)


# ---------------------------------------------------------------- rewritten logs


@pytest.mark.threat("T46")
@pytest.mark.parametrize(
    ("at", "first", "last"), [(0, 1, 3), (2, 1, 3), (3, 4, 7), (6, 4, 7), (7, 8, 12), (11, 8, 12)]
)
def test_a_rewritten_log_is_named_by_its_range(at: int, first: int, last: int) -> None:
    """All hashes computed anew: the checkpoints signed before say between which sizes it was done."""
    forged = rechained(LOG, at, "forged")
    error = broken([LINES[0], *(format_entry(i, entry) for i, entry in enumerate(forged, 1))])
    assert error.entry_id == first
    assert f"among the entries {first} to {last} at least one was rewritten" in str(error)
    assert ("that of size" in str(error)) == (first > 1)


@pytest.mark.threat("T49")
@pytest.mark.parametrize("at", [4, 5, 6])
def test_a_rewritten_log_signed_by_its_own_keys_is_found_by_an_older_checkpoint(at: int) -> None:
    """The thief of the keys signs a new history; whoever kept a checkpoint sees that it is another one."""
    forged = export(rechained(LOG, at, "forged"), SIZES)
    assert verify(forged).entries == LENGTH
    assert verify(forged, earlier=[kept(4)]).entries == LENGTH
    error = broken(forged, earlier=[kept(4), kept(10)])
    assert error.entry_id == 8
    assert "among the entries 8 to 10" in str(error)
    assert "the checkpoint given by you of size 10 has another root, that of size 7 fits" in str(error)
    dense = broken(forged, earlier=[kept(size) for size in range(1, 13)])
    assert str(dense).startswith(f"entry {at + 1} was rewritten together with its hash")
    assert dense.entry_id == at + 1


def test_known_roots_in_any_order() -> None:
    """And two at one size, of which one is wrong."""
    rows = [
        (i, e.prev_hash, e.entry_hash, d)
        for i, (e, d) in enumerate(zip(LOG, log_kit.bundle(LOG), strict=True), 1)
    ]
    good = [KnownRoot(size=n, root=frontier(LOG[:n]).root(), source="x") for n in (9, 0, 4, 12, 4)]
    walk = LogWalk(good)
    walk.feed(rows[:4])
    walk.feed(rows[4:])
    assert (walk.finish(), walk.size, walk.last_hash) == (good[3].root, 12, LOG[-1].entry_hash)
    with pytest.raises(LogBroken, match="x of size 4"):
        LogWalk([*good, replace(good[2], root=bytes(32))]).feed(rows)


# ---------------------------------------------------------------- who signed


@pytest.mark.parametrize("size", [3, 7, 12])
@pytest.mark.parametrize("which", [0, 1])
def test_each_checkpoint_must_be_signed_by_both(size: int, which: int) -> None:
    """In the file and kept: Ed25519 and ML-DSA-44."""
    header = json.loads(LINES[0])
    at = (3, 7, 12).index(size)
    note = signed(log_kit.checkpoint(LOG, size), [LOG_KEYS[which], *WITNESSES])
    header["checkpoints"][at] = note
    with pytest.raises(NoteRejected, match=f"size {size} has no"):
        verify([json.dumps(header).encode() + b"\n", *LINES[1:]])
    with pytest.raises(NoteRejected, match=f"size {size} has no"):
        verify(LINES, earlier=[parse(note.encode())])


def test_a_quorum_is_demanded_of_one_checkpoint() -> None:
    """The last one was perhaps signed just now; the verdict says how far witnesses saw the log."""
    alone = export(LOG, SIZES, keys=LOG_KEYS)
    with pytest.raises(NoteRejected, match=r"no checkpoint of the file is cosigned by 2 .* the best has 0"):
        verify(alone)
    assert verify(alone, replace(PINNED, quorum=0)).witnessed == 0
    assert verify(LINES).witnessed == LENGTH
    header, cosigned = json.loads(alone[0]), json.loads(LINES[0])["checkpoints"]
    for at, size in ((1, 7), (0, 7), (2, 12)):
        header["checkpoints"][at] = cosigned[at]
        verdict = verify([json.dumps(header).encode() + b"\n", *alone[1:]])
        assert (verdict.witnessed, len(verdict.head.signers)) == (size, 4 if at == 2 else 2)
    header["checkpoints"][2] = signed(log_kit.checkpoint(LOG), (*LOG_KEYS, WITNESSES[0]))
    assert verify([json.dumps(header).encode() + b"\n", *alone[1:]]).witnessed == 7


def test_another_log_is_another_log() -> None:
    """An export of a log with other keys, or with another name."""
    stranger = [Key(ORIGIN, KeyType.ED25519, 9), Key(ORIGIN, KeyType.ML_DSA_44, 9)]
    with pytest.raises(NoteRejected, match="has no"):
        verify(export(LOG, keys=stranger))
    assert verify(export(LOG, keys=stranger), pinned=None).entries == LENGTH
    other = Key("other.example", KeyType.ED25519)
    with pytest.raises(NoteRejected, match=r"other\.example"):
        verify(LINES, pinned=replace(PINNED, log_keys=(other.public,)))
    foreign = Checkpoint(origin="other.example", size=3, root=frontier(LOG[:3]).root())
    with pytest.raises(NoteRejected, match=r"other\.example"):
        verify(LINES, earlier=[parse(signed(foreign, [other]).encode())])


# ---------------------------------------------------------------- hostile files

STAMP = TimeStamp(size=7, response=b"\x30\x00")


def changed(**members: object) -> bytes:
    """Return the header with *members* changed; None takes a member away."""
    header = {**json.loads(LINES[0]), **members}
    return json.dumps({k: v for k, v in header.items() if v is not None}).encode()


@pytest.mark.threat("T46")
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf" + LINES[0][:-1],
        LINES[0][:-1] + b"x",
        LINES[0][:-2] + b',"size":12}',
        LINES[0].replace(b'"size":12', b'"size":NaN')[:-1],
        LINES[0].replace(b'"size":12', b'"size":' + b"9" * 5000)[:-1],
        b"[" * 100_000,
        changed(format="itl-audit-export-v2"),
        changed(format=None),
        changed(extra=1),
        changed(timestamps=None),
        changed(origin=5),
        changed(origin="a b"),
        changed(origin="other.example"),
        changed(size="12"),
        changed(size=True),
        changed(size=12.0),
        changed(size=-1),
        changed(size=2**63),
        changed(size=11),
        changed(vkeys={}),
        changed(vkeys=[1]),
        changed(vkeys=["x"] * 65),
        changed(checkpoints=[]),
        changed(checkpoints=["x"]),
        changed(checkpoints=["\ud800"]),
        changed(checkpoints=json.loads(LINES[0])["checkpoints"][::-1]),
        changed(checkpoints=json.loads(LINES[0])["checkpoints"][-1:] * 2),
        changed(checkpoints=json.loads(LINES[0])["checkpoints"] * 86),
        changed(timestamps=[1]),
        changed(timestamps=[{"size": 7}]),
        changed(timestamps=[{"size": 7, "tsr": 1}]),
        changed(timestamps=[{"size": "7", "tsr": ""}]),
        changed(timestamps=[{"size": 8, "tsr": ""}]),
        changed(timestamps=[{"size": 7, "tsr": "?"}]),
    ],
    ids=count(),  # ML-DSA signatures differ each time, and so would the names
)
def test_a_hostile_header(line: bytes) -> None:
    """Refused in one way, before an entry is read."""
    with pytest.raises(MalformedNote):
        parse_header(line)
    with pytest.raises(MalformedNote):
        verify([line + b"\n", *LINES[1:]])


def test_a_key_in_the_file_that_is_none() -> None:
    """Matters only where the file's keys are used."""
    lines = [changed(vkeys=["x"]) + b"\n", *LINES[1:]]
    assert verify(lines).entries == LENGTH
    with pytest.raises(MalformedNote, match="vkey"):
        verify(lines, pinned=None)


def test_time_stamps_are_handed_on() -> None:
    """Not verified here: that needs the authority's certificate."""
    assert verify(export(LOG, SIZES, timestamps=[STAMP])).timestamps == (STAMP,)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_header_without_end(end: bytes) -> None:
    """Not more of it is held than a header may have."""
    verifier = LogVerifier(pinned=PINNED, earlier=())
    with pytest.raises(MalformedNote, match="longer than"):
        verifier.feed(b"x" * (MAX_HEADER_BYTES + 1) + end)


@pytest.mark.parametrize("data", [b"", b"x", LINES[0][:-1]], ids=count())
def test_no_header(data: bytes) -> None:
    """A file that ends before its first line does is no export."""
    with pytest.raises(MalformedNote, match="no header"):
        verify([data])


def test_a_line_without_end() -> None:
    """Not more of it is held than a line may have; a whole line that is longer is refused too."""
    for end in (b"", b"\n"):
        error = broken([*LINES[:3], LINES[3][:-1] + b" " * MAX_LINE_BYTES + end])
        assert (error.entry_id, "more than" in str(error)) == (3, True)
    long = chain(EVENT, at=AT, prev_hash=LOG[1].entry_hash)
    line = format_entry(3, replace(long, detail="x" * MAX_LINE_BYTES))
    assert "more than" in str(broken([*LINES[:3], line]))


LINE = LINES[4][:-1]
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda line: b"",
    "carriage return": lambda line: line + b"\r",
    "space before": lambda line: b" " + line,
    "space behind": lambda line: line + b" ",
    "trailing data": lambda line: line + b"{}",
    "space inside": lambda line: line.replace(b'"entry":', b'"entry": '),
    "id as text": lambda line: line.replace(b'"id":4', b'"id":"4"'),
    "id with zero": lambda line: line.replace(b'"id":4', b'"id":04'),
    "id as float": lambda line: line.replace(b'"id":4', b'"id":4.0'),
    "huge id": lambda line: line.replace(b'"id":4', b'"id":' + b"4" * 30),
    "id twice": lambda line: line.replace(b'"id":4,', b'"id":4,"id":4,'),
    "upper-case hash": lambda line: re.sub(b'(?<=entry_hash":")[0-9a-f]+', lambda m: m[0].upper(), line),
    "short hash": lambda line: line.replace(LOG[3].entry_hash.encode(), LOG[3].entry_hash[1:].encode()),
    "member twice": lambda line: line.replace(b'"format":1,', b'"format":1,"format":1,'),
    "member added": lambda line: line.replace(b'"format":1,', b'"format":1,"forged":1,'),
    "member missing": lambda line: line.replace(b'"format":1,', b""),
    "null operator": lambda line: line.replace(b'"alice"', b"null"),
    "number": lambda line: line.replace(b'"alice"', b"1"),
    "object": lambda line: line.replace(b'"alice"', b"{}"),
    "needless escape": lambda line: line.replace(b"alice", b"\\u0061lice"),
    "escaped slash": lambda line: line.replace(b"alice", b"al\\/ice"),
    "long escape of a tab": lambda line: line.replace(b"alice", b"al\\u0009ice"),
    "upper-case escape": lambda line: line.replace(b"alice", b"al\\u00E9ce"),
    "lone high surrogate": lambda line: line.replace(b"alice", b"al\\ud83dce"),
    "lone low surrogate": lambda line: line.replace(b"alice", b"al\\ude00ce"),
    "raw UTF-8": lambda line: line.replace(b"alice", "alicé".encode()),
    "raw control": lambda line: line.replace(b"alice", b"al\tce"),
    "raw delete": lambda line: line.replace(b"alice", b"al\x7fce"),
    "null byte": lambda line: line.replace(b"alice", b"al\0ce"),
    "another time": lambda line: line.replace(b"000Z", b"000+00:00"),
    "nested": lambda line: b"[" * 60_000,
}


@pytest.mark.threat("T46")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line(name: str) -> None:
    """One form, byte for byte: no second reading of an entry, whatever its hash."""
    line = HOSTILE[name](LINE)
    assert line != LINE
    data = line[line.find(b'"entry":') + 8 : -1]
    line = line.replace(LOG[3].entry_hash.encode(), hashlib.sha256(data).hexdigest().encode())
    error = broken([*LINES[:4], line + b"\n", *LINES[5:]])
    assert error.entry_id == 4
    assert str(error).startswith("the line of entry 4 cannot be read")


def test_a_format_of_a_later_version() -> None:
    """Said so, since then a newer program is what helps; and whose line it says it is."""
    assert "format 2" in str(broken([*LINES[:4], LINES[4].replace(b'"format":1', b'"format":2')]))
    spaced = LINES[4].replace(b'"entry":', b'"entry": ')
    assert "not the canonical form" in str(broken([*LINES[:4], spaced]))
    assert str(broken([*LINES[:4], b"\n"])).endswith("it is empty")
    assert str(broken([*LINES[:4], b"nothing of ours\n"])).endswith("it does not begin as an entry does")
    assert "calls itself entry 6" in str(broken([*LINES[:4], b'{"id":6,"x"\n']))


@pytest.mark.parametrize("seed", range(40))
def test_any_changed_byte_is_an_error(seed: int) -> None:
    """In whatever place, of whatever member: refused with one of our errors."""
    data = bytearray(b"".join(ONLY_LAST))
    at = int.from_bytes(hashlib.sha256(bytes([seed])).digest()[:4]) % len(data)
    data[at] ^= 1 << (seed % 7)
    kept_all = [kept(size) for size in range(1, 13)]
    hint = ONLY_LAST[0].index(b'"vkeys"') < at < ONLY_LAST[0].index(b'"checkpoints"')
    if hint:  # nobody believes these
        return
    with pytest.raises(AttestationError):
        verify([bytes(data)], earlier=kept_all)


def test_a_header_is_written_as_it_is_read() -> None:
    """What the service writes, a verifier reads."""
    line = export(LOG, SIZES, timestamps=[STAMP])[0]
    header = parse_header(line[:-1])
    again = format_header(
        origin=header.origin,
        size=header.size,
        vkeys=[*LOG_VKEYS, *WITNESS_VKEYS],
        checkpoints=[str(signed_.note) for signed_ in header.checkpoints],
        timestamps=header.timestamps,
    )
    assert again == line
