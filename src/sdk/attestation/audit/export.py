"""An export: the whole log in one file that anybody can verify without the service.

JSON lines, ASCII, each ending in LF. The first line is the header:

    {"format":"itl-audit-export-v1","origin":…,"size":N,"vkeys":[…],"checkpoints":[…],"timestamps":[…]}

`vkeys` are the keys of the log and of its witnesses as the service names them: a hint for people, never a reason to
believe. `checkpoints` are signed notes, of rising size; the last one covers all N entries. `timestamps` are
{"size":…,"tsr":base64 of an RFC 3161 response over the SHA-256 of the text of the checkpoint of that size}.
N lines follow, one per entry:

    {"id":k,"entry_hash":"…","entry":{…}}

`entry` is the canonical form, byte for byte, so that whoever verifies hashes what stands there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from attestation.audit import checkpoint
from attestation.audit.checkpoint import SignedCheckpoint, UnverifiedCheckpoint
from attestation.audit.note import VerifierKey, check_name, parse_vkey
from attestation.audit.walk import KnownRoot, LogWalk
from attestation.errors import LogBroken, MalformedEvidence, MalformedNote, NoteRejected
from attestation.wire import b64decode, b64encode, named_once

FORMAT: Final = "itl-audit-export-v1"
MEDIA_TYPE: Final = "application/jsonl"

MAX_HEADER_BYTES: Final = 8 << 20
MAX_CHECKPOINTS: Final = 256
"""Most checkpoints in a header; where a log has more, it keeps the last one and some of the others."""

MAX_TIMESTAMPS: Final = 256
MAX_TIMESTAMP_BYTES: Final = 16_384
MAX_VKEYS: Final = 64
MAX_LINE_BYTES: Final = 65_535 + 128
"""An entry has at most 65 535 bytes; the rest is room for id, hash and names."""

# The canonical form and nothing else: one order, one way to escape, no lone surrogate. So an entry reads the same
# everywhere, and nobody hides a second member of the same name. Possessive, so that no input takes long.
_ESCAPE = (
    rb'\\(?:["\\bfnrt]|u(?:(?!00[2-6]|007[0-9a-e]|000[89acd]|d[89a-f])[0-9a-f]{4}'
    rb"|d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}))"
)
_STRING = rb'"[ !#-\[\]-~]*+(?:' + _ESCAPE + rb'[ !#-\[\]-~]*+)*+"'
_NULLABLE = rb"(?:null|" + _STRING + rb")"
_HASH = rb'"([0-9a-f]{64})"'
_INSTANT = rb'"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"'
_ENTRY = b"".join(
    (
        rb'\{"action":' + _STRING,
        rb',"detail":' + _NULLABLE,
        rb',"format":1',
        rb',"machine_id":' + _NULLABLE,
        rb',"new_state":' + _NULLABLE,
        rb',"operator_cn":' + _STRING,
        rb',"operator_sub":' + _NULLABLE,
        rb',"prev_hash":' + _HASH,
        rb',"prev_state":' + _NULLABLE,
        rb',"source_ip":' + _NULLABLE,
        rb',"timestamp":' + _INSTANT + rb"\}",
    )
)
_LINE = re.compile(rb'\{"id":([1-9][0-9]{0,18}),"entry_hash":' + _HASH + rb',"entry":(' + _ENTRY + rb")\}")
_LINE_ID = re.compile(rb'\{"id":([1-9][0-9]{0,18}),')
_LINE_FORMAT = re.compile(rb'"format":([0-9]{1,9}),')
_HEADER_MEMBERS: Final = {"format", "origin", "size", "vkeys", "checkpoints", "timestamps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Whom a verifier believes, from elsewhere than the file.

    Args:
        log_keys: Keys of the log, at least one; of each algorithm among them one must have signed.
        witnesses: Keys of witnesses.
        quorum: How many of them must have cosigned one checkpoint of the file. It need not be the last, which the
            log has perhaps just signed; the verdict says how far it goes.
    """

    log_keys: tuple[VerifierKey, ...]
    witnesses: tuple[VerifierKey, ...]
    quorum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStamp:
    """A time stamp in a header; whether it is good is for somebody else to see.

    Args:
        size: Size of the checkpoint whose text it is about.
        response: DER of the RFC 3161 TimeStampResp.
    """

    size: int
    response: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedHeader:
    """A parsed header. Nothing in it may be believed yet."""

    origin: str
    size: int
    vkeys: tuple[str, ...]
    checkpoints: tuple[UnverifiedCheckpoint, ...]
    timestamps: tuple[TimeStamp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """What was proven of a whole export; only `LogVerifier.finish` makes one.

    Args:
        origin: Name of the log.
        entries: How many entries there are.
        root: Root of their tree, 32 bytes.
        root_hash: `entry_hash` of the last entry; None where there is none.
        head: The last checkpoint, which covers all entries.
        checkpoints: Sizes at which a signed checkpoint of the file had the same root.
        earlier: Sizes at which a checkpoint of the verifier's own had the same root.
        witnessed: How many entries the largest checkpoint covers that a quorum cosigned; 0 where none was demanded.
            The entries behind it are signed by the log alone.
        pinned: The signatures are of keys that the verifier had; False if the file itself named the keys.
        timestamps: As they stand in the header, not verified.
    """

    origin: str
    entries: int
    root: bytes
    root_hash: str | None
    head: SignedCheckpoint
    checkpoints: tuple[int, ...]
    earlier: tuple[int, ...]
    witnessed: int
    pinned: bool
    timestamps: tuple[TimeStamp, ...]


def format_header(
    *,
    origin: str,
    size: int,
    vkeys: Sequence[VerifierKey],
    checkpoints: Sequence[str],
    timestamps: Sequence[TimeStamp],
) -> bytes:
    """Return the first line of an export.

    Args:
        origin: Name of the log.
        size: How many entries follow.
        vkeys: Keys of the log and its witnesses.
        checkpoints: Signed notes of rising size, at most 256; the last one has *size*.
        timestamps: What time-stamp authorities said.
    """
    members = {
        "format": FORMAT,
        "origin": origin,
        "size": size,
        "vkeys": [str(key) for key in vkeys],
        "checkpoints": list(checkpoints),
        "timestamps": [{"size": stamp.size, "tsr": b64encode(stamp.response)} for stamp in timestamps],
    }
    return json.dumps(members, separators=(",", ":")).encode("ascii") + b"\n"


def format_line(entry_id: int, entry_hash: str, data: bytes) -> bytes:
    """Return the line of the entry with the canonical bytes *data*."""
    return b'{"id":%d,"entry_hash":"%s","entry":%s}\n' % (entry_id, entry_hash.encode("ascii"), data)


def parse_header(line: bytes) -> UnverifiedHeader:
    """Read the first line of an export, without its LF.

    Raises:
        MalformedNote: Not such a line.
    """
    try:
        members = json.loads(line.decode("ascii"), object_pairs_hook=named_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise MalformedNote("the first line is not the header of an export: not JSON as it should be") from e
    if not isinstance(members, dict) or members.get("format") != FORMAT:
        raise MalformedNote(f"the first line is not the header of an export of format {FORMAT}")
    if members.keys() != _HEADER_MEMBERS:
        wrong = ", ".join(sorted(_HEADER_MEMBERS ^ members.keys()))
        raise MalformedNote(f"header of an export with members missing or unknown: {wrong[:200]}")
    origin = members["origin"]
    if not isinstance(origin, str):
        raise MalformedNote("origin of an export is no text")
    check_name(origin)
    size = _size(members["size"])
    vkeys = _list(members["vkeys"], "vkeys", MAX_VKEYS, str)
    notes = _list(members["checkpoints"], "checkpoints", MAX_CHECKPOINTS, str)
    stamps = _list(members["timestamps"], "timestamps", MAX_TIMESTAMPS, dict)
    # A lone surrogate, which JSON can express, becomes bytes that are not UTF-8, and so is refused.
    checkpoints = tuple(checkpoint.parse(note.encode("utf-8", "surrogatepass")) for note in notes)
    if any(signed.checkpoint.origin != origin for signed in checkpoints):
        raise MalformedNote(f"export of {origin} with a checkpoint of another log")
    sizes = [signed.checkpoint.size for signed in checkpoints]
    if any(a >= b for a, b in pairwise(sizes)) or sizes[-1:] != [size]:
        raise MalformedNote("checkpoints of an export do not rise to its size")
    return UnverifiedHeader(
        origin=origin,
        size=size,
        vkeys=tuple(vkeys),
        checkpoints=checkpoints,
        timestamps=tuple(_timestamp(stamp, sizes) for stamp in stamps),
    )


class LogVerifier:
    """Takes the bytes of an export in any pieces and holds one line at most, and some sixty hashes.

    Args:
        pinned: Whom to believe. None: whomever the file names, which proves only that the file fits itself.
        earlier: Checkpoints that the verifier kept from before; the log must still begin with them.

    After an error it is of no more use.
    """

    def __init__(self, *, pinned: Pinned | None, earlier: Sequence[UnverifiedCheckpoint]) -> None:
        self._pinned = pinned
        self._earlier = tuple(earlier)
        self._rest = b""
        self._begun: tuple[UnverifiedHeader, SignedCheckpoint] | None = None
        self._witnessed = 0
        self._walk = LogWalk(())

    @property
    def entries(self) -> int:
        """How many entries were good so far."""
        return self._walk.size

    @property
    def size(self) -> int | None:
        """How many entries the header announces; None before it was read."""
        return None if self._begun is None else self._begun[0].size

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            MalformedNote: The header cannot be read.
            NoteRejected: A checkpoint lacks a signature.
            LogBroken: Names the entry, and what is wrong with it.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self._begun is None and lines:
            self._begin(lines.pop(0))
        if self._begun is not None:
            size = self._begun[0].size
            self._walk.feed(self._entries_of(lines))
            if self._walk.size > size:
                first = size + 1
                raise LogBroken(
                    f"entry {first} stands behind the end: no checkpoint covers it", entry_id=first
                )
            if len(self._rest) > MAX_LINE_BYTES:
                raise _unreadable(self._walk.size + 1, self._rest)
        elif len(self._rest) > MAX_HEADER_BYTES:
            raise MalformedNote(f"header of an export longer than {MAX_HEADER_BYTES} bytes")

    def finish(self) -> VerifiedLog:
        """Return what was proven. Call it after the last byte.

        Raises:
            MalformedNote: There was no header.
            LogBroken: The end is missing.
        """
        if self._begun is None:
            raise MalformedNote("not an export: it has no header that ends in a new line")
        header, head = self._begun
        if self._rest:
            entry_id = self._walk.size + 1
            raise LogBroken(f"the file is cut off within the line of entry {entry_id}", entry_id=entry_id)
        root = self._walk.finish()
        return VerifiedLog(
            origin=header.origin,
            entries=self._walk.size,
            root=root,
            root_hash=self._walk.last_hash if self._walk.size else None,
            head=head,
            checkpoints=tuple(signed.checkpoint.size for signed in header.checkpoints),
            earlier=tuple(sorted(signed.checkpoint.size for signed in self._earlier)),
            witnessed=self._witnessed,
            pinned=self._pinned is not None,
            timestamps=header.timestamps,
        )

    def _begin(self, line: bytes) -> None:
        """Read the header; verify who signed each checkpoint, before an entry is read."""
        if len(line) > MAX_HEADER_BYTES:
            raise MalformedNote(f"header of an export longer than {MAX_HEADER_BYTES} bytes")
        header = parse_header(line)
        trusted = self._pinned or Pinned(log_keys=_named_keys(header), witnesses=(), quorum=0)
        # 1. The log signed each checkpoint. Otherwise anybody could make a log and say that it is this one.
        for signed in self._earlier:
            checkpoint.verify(signed, log_keys=trusted.log_keys, witnesses=(), quorum=0)
        proven = [
            checkpoint.verify(signed, log_keys=trusted.log_keys, witnesses=trusted.witnesses, quorum=0)
            for signed in header.checkpoints
        ]
        # 2. Witnesses saw one. The log alone could show everybody another history.
        if trusted.quorum:
            seen = [head.checkpoint.size for head in proven if len(head.witnesses) >= trusted.quorum]
            if not seen:
                most = max(len(head.witnesses) for head in proven)
                raise NoteRejected(
                    f"no checkpoint of the file is cosigned by {trusted.quorum} of the pinned witnesses; "
                    f"the best has {most}"
                )
            self._witnessed = seen[-1]
        known = [
            KnownRoot(size=head.size, root=head.root, source=source)
            for heads, source in (
                ((signed.checkpoint for signed in self._earlier), "the checkpoint given by you"),
                ((signed.checkpoint for signed in header.checkpoints), "the checkpoint of the file"),
            )
            for head in heads
        ]
        self._begun = header, proven[-1]
        self._walk = LogWalk(known)

    def _entries_of(self, lines: list[bytes]) -> Iterator[tuple[int, str, str, bytes]]:
        """Read whole lines for the walk."""
        match = _LINE.fullmatch
        expected = self._walk.size
        for line in lines:
            expected += 1
            found = match(line)
            if found is None or len(line) > MAX_LINE_BYTES:
                raise _unreadable(expected, line)
            entry_id, entry_hash, data, prev_hash = found.groups()
            yield int(entry_id), prev_hash.decode(), entry_hash.decode(), data


def _unreadable(expected: int, line: bytes) -> LogBroken:
    """Say why *line*, where entry *expected* belongs, is no entry."""
    started = _LINE_ID.match(line)
    entry_id = int(started[1]) if started else None
    form = _LINE_FORMAT.search(line[:MAX_LINE_BYTES])
    if len(line) > MAX_LINE_BYTES:
        why = f"it has more than {MAX_LINE_BYTES} bytes"
    elif not line:
        why = "it is empty"
    elif entry_id is None:
        why = "it does not begin as an entry does"
    elif form is not None and form[1] != b"1":
        why = f"it may be of format {form[1].decode()}, which this version does not know"
    else:
        why = "what stands there is not the canonical form of an entry"
    other = "" if entry_id in (None, expected) else f" and calls itself entry {entry_id}"
    return LogBroken(f"the line of entry {expected} cannot be read{other}: {why}", entry_id=expected)


def _named_keys(header: UnverifiedHeader) -> tuple[VerifierKey, ...]:
    """Return the keys that the file says are the log's."""
    return tuple(key for key in map(parse_vkey, header.vkeys) if key.name == header.origin)


def _timestamp(members: dict[str, Any], sizes: Sequence[int]) -> TimeStamp:
    if members.keys() != {"size", "tsr"} or not isinstance(members["tsr"], str):
        raise MalformedNote("a time stamp of an export is {size, tsr}")
    size = _size(members["size"])
    if size not in sizes:
        raise MalformedNote(f"time stamp for a checkpoint of size {size}, which the export does not have")
    try:
        response = b64decode(members["tsr"], "tsr", max_bytes=MAX_TIMESTAMP_BYTES)
    except MalformedEvidence as e:
        raise MalformedNote(str(e)) from e
    return TimeStamp(size=size, response=response)


def _size(value: object) -> int:
    # Which number is right, the checkpoints say. True is none, although Python counts it as 1.
    if type(value) is not int:
        raise MalformedNote("size in an export is no number of entries")
    return value


def _list(value: object, what: str, most: int, kind: type) -> list[Any]:
    if not isinstance(value, list) or len(value) > most or not all(isinstance(item, kind) for item in value):
        raise MalformedNote(f"{what} of an export: a list of at most {most} expected")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
