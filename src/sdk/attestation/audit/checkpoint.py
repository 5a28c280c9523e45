"""Checkpoints: what a log says about itself at one size (C2SP tlog-checkpoint), and who signed that.

The text has exactly three lines: origin, size in decimal, root in base64. The origin names the log and is the
name of its keys. Lines of extension are refused: an ML-DSA-44 signature would not cover them.
"""

# Algorithms for: audit-note
from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from attestation.audit.merkle import EMPTY_ROOT, HASH_BYTES, MAX_SIZE
from attestation.audit.note import (
    SIGNATURE_BYTES,
    TYPE_NAMES,
    KeyType,
    NoteSignature,
    UnverifiedNote,
    VerifierKey,
    check_name,
    cosignature_message,
    ed25519_message,
    parse_note,
    subtree_message,
)
from attestation.errors import MalformedEvidence, MalformedNote, NoteRejected
from attestation.wire import b64decode, b64encode

LOG_TYPES: Final = (KeyType.ED25519, KeyType.ML_DSA_44)
"""How a log of ours signs: both, always."""

_SIZE = re.compile(r"(?:0|[1-9][0-9]{0,18})\Z", re.ASCII)
_TIME_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The text of a checkpoint.

    Args:
        origin: Name of the log.
        size: Number of leaves.
        root: Root of the tree of the first *size* leaves, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    def __str__(self) -> str:
        """Write the three lines that are signed."""
        return f"{self.origin}\n{self.size}\n{b64encode(self.root)}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedCheckpoint:
    """A parsed checkpoint with signatures. Nothing in it may be believed yet.

    Args:
        checkpoint: What it says.
        note: As it was read.
    """

    checkpoint: Checkpoint
    note: UnverifiedNote


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Somebody known who signed.

    Args:
        key: The pinned key.
        time: Seconds since 1970 that the signature states and covers; None for Ed25519 of a log.
    """

    key: VerifierKey
    time: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCheckpoint:
    """A checkpoint signed by its log; only `verify` builds one.

    Args:
        checkpoint: What it says.
        note: As it was read, with the signatures of strangers too.
        signers: Known keys with a good signature, the log's first.
    """

    checkpoint: Checkpoint
    note: UnverifiedNote
    signers: tuple[Signer, ...]

    @property
    def witnesses(self) -> frozenset[str]:
        """Names of the witnesses who cosigned: two keys of one count once, and the log is no witness of itself."""
        return frozenset(signer.key.name for signer in self.signers) - {self.checkpoint.origin}


def parse_text(text: str) -> Checkpoint:
    """Read the text of a checkpoint.

    Raises:
        MalformedNote: Not three lines, or one of them cannot be right.
    """
    lines = text.split("\n")
    if len(lines) != 4 or lines[3]:
        raise MalformedNote("a checkpoint has three lines: origin, size, root")
    origin, size, root = lines[:3]
    check_name(origin)
    if not _SIZE.match(size) or int(size) > MAX_SIZE:
        raise MalformedNote(f"size of a checkpoint is {size[:20]!r}")
    try:
        data = b64decode(root, "root", max_bytes=HASH_BYTES)
    except MalformedEvidence as e:
        raise MalformedNote(str(e)) from e
    if len(data) != HASH_BYTES:
        raise MalformedNote(f"root of {len(data)} bytes, expected {HASH_BYTES}")
    if size == "0" and data != EMPTY_ROOT:
        raise MalformedNote("an empty log has another root")
    return Checkpoint(origin=origin, size=int(size), root=data)


def parse(data: bytes) -> UnverifiedCheckpoint:
    """Read a signed checkpoint.

    Raises:
        MalformedNote: Not a note, or its text is not that of a checkpoint.
    """
    note = parse_note(data)
    return UnverifiedCheckpoint(checkpoint=parse_text(note.text), note=note)


def signed_message(key: VerifierKey, checkpoint: Checkpoint, time: int | None) -> bytes:
    """Return the bytes that *key* signs for *checkpoint*.

    Args:
        key: Its type decides the form, its name is covered where the form has room for it.
        checkpoint: What is signed.
        time: Seconds since 1970, None for Ed25519 of a log.
    """
    if key.type is KeyType.ED25519:
        return ed25519_message(str(checkpoint))
    if time is None:
        raise ValueError(f"{TYPE_NAMES[key.type]} signs a time")
    if key.type is KeyType.ED25519_COSIGNATURE:
        return cosignature_message(time, str(checkpoint))
    return subtree_message(key.name, time, checkpoint.origin, 0, checkpoint.size, checkpoint.root)


def verify_signatures(signed: UnverifiedCheckpoint, keys: Iterable[VerifierKey]) -> tuple[Signer, ...]:
    """Return who of *keys* signed; strangers are passed over.

    Raises:
        NoteRejected: A signature under a name and id of *keys* does not verify, or two keys have one id.
    """
    known: dict[tuple[str, bytes], VerifierKey] = {}
    for key in keys:
        if known.setdefault((key.name, key.key_id), key) != key:
            raise NoteRejected(f"two keys of {key.name} have the id {key.key_id.hex()}")
    signers: dict[tuple[str, bytes], Signer] = {}
    for line in signed.note.signatures:
        place = (line.name, line.key_id)
        if place in known:
            signer = _verify_line(known[place], line, signed.checkpoint)
            signers.setdefault(place, signer)
    return tuple(signers.values())


def verify(
    signed: UnverifiedCheckpoint,
    *,
    log_keys: Iterable[VerifierKey],
    witnesses: Iterable[VerifierKey],
    quorum: int,
) -> SignedCheckpoint:
    """Verify who signed *signed*.

    Args:
        signed: Result of `parse`.
        log_keys: Pinned keys of the log, all with one name: the origin. Of each algorithm among them one must
            have signed; a log that changes its key is pinned with both for a while.
        witnesses: Pinned keys of witnesses.
        quorum: How many witnesses, counted by name, must have cosigned; 0 for none.

    Raises:
        NoteRejected: Another log, or not signed by those who must.
    """
    pinned = tuple(log_keys)
    # 1. It speaks about the log whose keys are pinned. Otherwise one log's checkpoint could pass for another's.
    if {key.name for key in pinned} != {signed.checkpoint.origin}:
        names = ", ".join(sorted({key.name for key in pinned})) or "no log"
        raise NoteRejected(f"checkpoint of {signed.checkpoint.origin}; the pinned keys are of {names}")
    # 2. Each algorithm that is pinned has signed. Otherwise whoever breaks one of them forges both.
    signers = verify_signatures(signed, pinned)
    for kind in {key.type for key in pinned}:
        if not any(signer.key.type is kind for signer in signers):
            raise NoteRejected(
                f"checkpoint of size {signed.checkpoint.size} has no {TYPE_NAMES[kind]} signature of "
                f"{signed.checkpoint.origin} under a pinned key"
            )
    # 3. Enough witnesses saw it. A log alone could show everybody another history.
    cosigners = verify_signatures(signed, witnesses)
    proven = SignedCheckpoint(
        checkpoint=signed.checkpoint, note=signed.note, signers=tuple(dict.fromkeys(signers + cosigners))
    )
    if len(proven.witnesses) < quorum:
        raise NoteRejected(
            f"checkpoint of size {signed.checkpoint.size} is cosigned by {len(proven.witnesses)} of the pinned "
            f"witnesses, {quorum} are demanded"
        )
    return proven


def _verify_line(key: VerifierKey, line: NoteSignature, checkpoint: Checkpoint) -> Signer:
    """Verify one signature by *key*, whose name and id it bears."""
    time_bytes = _TIME_BYTES if key.type.timed else 0
    if len(line.value) != time_bytes + SIGNATURE_BYTES[key.type]:
        raise NoteRejected(f"signature of {key.name} has {len(line.value)} bytes")
    time = int.from_bytes(line.value[:time_bytes]) if key.type.timed else None
    message = signed_message(key, checkpoint, time)
    try:
        if key.type is KeyType.ML_DSA_44:
            MLDSA44PublicKey.from_public_bytes(key.key).verify(line.value[time_bytes:], message)
        else:
            Ed25519PublicKey.from_public_bytes(key.key).verify(line.value[time_bytes:], message)
    except InvalidSignature as e:
        raise NoteRejected(
            f"{TYPE_NAMES[key.type]} signature of {key.name} under the checkpoint of size "
            f"{checkpoint.size} does not verify"
        ) from e
    return Signer(key=key, time=time)
