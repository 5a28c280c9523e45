"""The decision of a witness about `add-checkpoint` (C2SP tlog-witness).

A witness cosigns a checkpoint only if the log begins with the last one that it cosigned. So a log that shows two
histories needs as many accomplices as its readers demand cosignatures.

    old <size that the witness has>
    <base64 hash of the consistency proof>      (at most 63 such lines)
    <empty line>
    <signed checkpoint>

| Answer | When |
|---|---|
| 200 | cosignature lines; only after the new state is kept |
| 400 | not such a request, or old is greater than the checkpoint |
| 403 | not signed by the keys that the witness has of this log |
| 404 | a log that the witness does not know |
| 409 | the witness has another size (the body is that size, text/x.tlog.size), or another root at the same size |
| 422 | the proof does not lead from the one to the other |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from attestation.audit import checkpoint
from attestation.audit.checkpoint import Checkpoint, UnverifiedCheckpoint
from attestation.audit.merkle import EMPTY_ROOT, HASH_BYTES, MAX_PROOF_HASHES, MAX_SIZE, verify_consistency
from attestation.audit.note import MAX_NOTE_BYTES, VerifierKey
from attestation.errors import MalformedEvidence, MalformedNote, NoteRejected, ProofRejected
from attestation.wire import b64decode, b64encode

MAX_REQUEST_BYTES: Final = MAX_NOTE_BYTES + 4096
SIZE_MEDIA_TYPE: Final = "text/x.tlog.size"
TEXT_MEDIA_TYPE: Final = "text/plain; charset=utf-8"

_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCheckpoint:
    """A parsed request. Nothing in it may be believed yet.

    Args:
        old: The size that the log believes the witness to have.
        proof: Hashes of the consistency proof from *old* to the checkpoint.
        signed: The checkpoint.
    """

    old: int
    proof: tuple[bytes, ...]
    signed: UnverifiedCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosign:
    """Keep *checkpoint* as the newest of its log, durably; then sign it and answer 200."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Sign nothing, keep nothing.

    Args:
        status: HTTP status.
        body: What to answer.
        media_type: Of the body.
        why: For the log of the witness.
    """

    status: int
    body: str
    media_type: str
    why: str


def format_request(old: int, proof: Sequence[bytes], note: str) -> str:
    """Return the body by which a log asks for cosignatures of *note*."""
    return f"old {old}\n" + "".join(f"{b64encode(h)}\n" for h in proof) + f"\n{note}"


def parse_request(data: bytes) -> AddCheckpoint:
    """Read the body of a request.

    Raises:
        MalformedNote: Not such a body.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise MalformedNote(f"request of {len(data)} bytes, at most {MAX_REQUEST_BYTES} allowed")
    # The first empty line ends the proof; the checkpoint has one of its own.
    head, gap, note = data.partition(b"\n\n")
    try:
        first, *lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError as e:
        raise MalformedNote("request: size and proof are not ASCII") from e
    old = _OLD.match(first)
    if not gap or old is None or int(old[1]) > MAX_SIZE:
        raise MalformedNote("request does not begin with 'old' and a size, ended by an empty line")
    if len(lines) > MAX_PROOF_HASHES:
        raise MalformedNote(f"proof of {len(lines)} hashes, at most {MAX_PROOF_HASHES} allowed")
    return AddCheckpoint(old=int(old[1]), proof=tuple(map(_hash, lines)), signed=checkpoint.parse(note))


def consider(
    data: bytes, *, logs: Iterable[VerifierKey], newest: Mapping[str, Checkpoint]
) -> Cosign | Refuse:
    """Decide about one request. The caller holds the lock on *newest* from before until it has kept the result.

    Args:
        data: Body of the request.
        logs: Pinned keys of the logs that this witness watches.
        newest: By origin, the last checkpoint that it cosigned; absent where it never did.
    """
    # 1. It is a request about a log that we watch.
    try:
        request = parse_request(data)
    except MalformedNote as e:
        return _refuse(400, str(e))
    new = request.signed.checkpoint
    keys = [key for key in logs if key.name == new.origin]
    if not keys:
        return _refuse(404, "this witness does not know the log")
    # 2. The log itself signed it. Otherwise a stranger's entries would be cosigned, and the log stopped by 409.
    try:
        checkpoint.verify(request.signed, log_keys=keys, witnesses=(), quorum=0)
    except NoteRejected as e:
        return _refuse(403, str(e))
    # 3. It starts from what we cosigned last. Otherwise a log could make us forget it.
    if request.old > new.size:
        return _refuse(400, f"old size {request.old} is greater than the checkpoint's {new.size}")
    last = newest.get(new.origin) or Checkpoint(origin=new.origin, size=0, root=EMPTY_ROOT)
    if request.old != last.size:
        why = f"the log says {request.old}, this witness has {last.size}"
        return Refuse(status=409, body=f"{last.size}\n", media_type=SIZE_MEDIA_TYPE, why=why)
    if new.size == last.size and new.root != last.root:
        return _refuse(409, f"another root at the same size {new.size}: the log has two histories")
    # 4. It only adds to it. This is what a cosignature says.
    try:
        verify_consistency(last.size, new.size, last.root, new.root, request.proof)
    except ProofRejected as e:
        return _refuse(422, str(e))
    return Cosign(checkpoint=new)


def _refuse(status: int, why: str) -> Refuse:
    return Refuse(status=status, body=f"{why}\n", media_type=TEXT_MEDIA_TYPE, why=why)


def _hash(line: str) -> bytes:
    try:
        data = b64decode(line, "proof", max_bytes=HASH_BYTES)
    except MalformedEvidence as e:
        raise MalformedNote(str(e)) from e
    if len(data) != HASH_BYTES:
        raise MalformedNote(f"proof: hash of {len(data)} bytes, expected {HASH_BYTES}")
    return data
