"""The file of a sealed bundle, `<bundle UID>.intoto.jsonl`: lines of canonical JSON (RFC 8785), each ended by LF.

    {"dsseEnvelope":{…},"key":{JWK},"logEntry":{…},"mediaType":"application/vnd.dev.sigstore.bundle+dsse"}
    {"content":base64,"digest":{"sha256":hex},"mediaType":…,"name":…}        for each subject, in the statement's order

`dsseEnvelope` is that of DSSE v1: `payload` (base64 of the statement), `payloadType`, and one of `signatures`, ECDSA on
P-384 with SHA-384, DER, the lower s. `logEntry` has `origin`, `index`, `treeSize`, `rootHash`, `hashes` (RFC 6962
§2.1.1, lowest first), `checkpoint` (C2SP signed note with the signatures of the log alone, Ed25519 first) and `entry`,
the canonical bytes of the audit entry, which are the leaf. Every byte of the file counts: of what it says there is one
spelling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from attestation.audit.merkle import HASH_BYTES, MAX_PROOF_HASHES, MAX_SIZE
from attestation.audit.note import MAX_NOTE_BYTES
from attestation.audit.proof import MAX_LEAF_BYTES
from attestation.errors import MalformedEvidence
from attestation.sealing.keys import ServiceKey, in_one_spelling, service_key
from attestation.sealing.members import canonical_object, exactly
from attestation.sealing.statement import (
    MAX_CONTENT_BYTES,
    MAX_SUBJECTS,
    PAYLOAD_TYPE,
    Statement,
    Subject,
)
from attestation.wire import b64decode, b64encode, jcs

MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle+dsse"
SUFFIX: Final = ".intoto.jsonl"

MAX_STATEMENT_BYTES: Final = 1 << 18
MAX_BUNDLE_LINE_BYTES: Final = 1 << 20
"""The first line: a statement in base64, a note, an entry and a proof."""
MAX_SUBJECT_LINE_BYTES: Final = MAX_CONTENT_BYTES // 3 * 4 + (1 << 16)
MAX_FILE_BYTES: Final = 64 << 20
MIN_LINES: Final = 4
"""The bundle, event, result and policy; evidence there may be none."""
MAX_SIGNATURE_BYTES: Final = 128
"""DER of two numbers of 48 bytes is at most 104."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProof:
    """Where the audit log has the statement's digest. Nothing in it may be believed yet.

    Args:
        entry: Canonical bytes of the entry, which are the leaf.
        origin: Name of the log.
        index: Of the leaf, from 0.
        tree_size: Of the tree whose checkpoint it is.
        root: Its root, 32 bytes.
        hashes: The audit path, lowest first, 32 bytes each.
        checkpoint: The signed note, with the log's own signatures alone.
    """

    entry: bytes
    origin: str
    index: int
    tree_size: int
    root: bytes
    hashes: tuple[bytes, ...]
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedSeal:
    """A file that was read. Nothing in it may be believed yet.

    Args:
        statement: The payload of the envelope.
        signature: DER.
        key_id: Of the key that is said to have signed.
        key: The key in the file.
        log: Where the log has it.
        subjects: What the lines carry: descriptor and bytes.
    """

    statement: bytes
    signature: bytes
    key_id: str
    key: ServiceKey
    log: LogProof
    subjects: tuple[Subject, ...]


def write(statement: Statement, *, signature: bytes, key: ServiceKey, log: LogProof) -> bytes:
    """Return the file: the same bytes each time."""
    bundle = {
        "mediaType": MEDIA_TYPE,
        "dsseEnvelope": {
            "payload": b64encode(statement.data),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": key.key_id, "sig": b64encode(in_one_spelling(signature))}],
        },
        "key": dict(key.jwk),
        "logEntry": {
            "origin": log.origin,
            "index": log.index,
            "treeSize": log.tree_size,
            "rootHash": b64encode(log.root),
            "hashes": [b64encode(each) for each in log.hashes],
            "checkpoint": log.checkpoint,
            "entry": b64encode(log.entry),
        },
    }
    lines = [
        bundle,
        *({**each.descriptor(), "content": b64encode(each.content)} for each in statement.subjects),
    ]
    return b"".join(jcs(line) + b"\n" for line in lines)


def parse(data: bytes) -> UnverifiedSeal:
    """Read the file *data*, at most 64 MiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_FILE_BYTES:
        raise MalformedEvidence(f"a sealed bundle of {len(data)} bytes, at most {MAX_FILE_BYTES} allowed")
    first, *rest = _lines(data)
    if len(first) > MAX_BUNDLE_LINE_BYTES:
        raise MalformedEvidence(f"first line of {len(first)} bytes, at most {MAX_BUNDLE_LINE_BYTES} allowed")
    found = exactly(
        canonical_object(first, "the first line"),
        "the first line",
        dsseEnvelope=dict,
        key=dict,
        logEntry=dict,
        mediaType=str,
    )
    if found["mediaType"] != MEDIA_TYPE:
        raise MalformedEvidence(f"mediaType is not {MEDIA_TYPE}")
    statement, key_id, signature = _envelope(found["dsseEnvelope"])
    return UnverifiedSeal(
        statement=statement,
        signature=signature,
        key_id=key_id,
        key=service_key(found["key"]),
        log=_log(found["logEntry"]),
        subjects=tuple(_subject(line, number) for number, line in enumerate(rest, 2)),
    )


def _lines(data: bytes) -> Sequence[bytes]:
    # Counted before they are made: a file of nothing but LF is millions of them.
    count = data.count(b"\n")
    if not data.endswith(b"\n") or not MIN_LINES <= count <= 1 + MAX_SUBJECTS:
        raise MalformedEvidence(
            f"a sealed bundle has {MIN_LINES} to {1 + MAX_SUBJECTS} lines, each ended by LF"
        )
    return data[:-1].split(b"\n")


def _envelope(found: dict[str, Any]) -> tuple[bytes, str, bytes]:
    said = exactly(found, "dsseEnvelope", payload=str, payloadType=str, signatures=list)
    if said["payloadType"] != PAYLOAD_TYPE:
        raise MalformedEvidence(f"payloadType is not {PAYLOAD_TYPE}")
    if len(said["signatures"]) != 1:
        raise MalformedEvidence("an envelope of ours has one signature")
    signed = exactly(said["signatures"][0], "the signature", keyid=str, sig=str)
    return (
        b64decode(said["payload"], "payload", max_bytes=MAX_STATEMENT_BYTES),
        signed["keyid"],
        b64decode(signed["sig"], "sig", max_bytes=MAX_SIGNATURE_BYTES),
    )


def _log(found: dict[str, Any]) -> LogProof:
    said = exactly(
        found,
        "logEntry",
        checkpoint=str,
        entry=str,
        hashes=list,
        index=int,
        origin=str,
        rootHash=str,
        treeSize=int,
    )
    hashes = said["hashes"]
    if len(hashes) > MAX_PROOF_HASHES or not all(isinstance(each, str) for each in hashes):
        raise MalformedEvidence(f"hashes are at most {MAX_PROOF_HASHES} texts")
    if not 0 <= said["index"] < said["treeSize"] <= MAX_SIZE:
        raise MalformedEvidence("there is no such entry in a tree of that size")
    if len(said["checkpoint"]) > MAX_NOTE_BYTES:
        raise MalformedEvidence(f"checkpoint of more than {MAX_NOTE_BYTES} characters")
    return LogProof(
        entry=b64decode(said["entry"], "entry", max_bytes=MAX_LEAF_BYTES),
        origin=said["origin"],
        index=said["index"],
        tree_size=said["treeSize"],
        root=_hash(said["rootHash"]),
        hashes=tuple(map(_hash, hashes)),
        checkpoint=said["checkpoint"],
    )


def _hash(text: str) -> bytes:
    data = b64decode(text, "hash", max_bytes=HASH_BYTES)
    if len(data) != HASH_BYTES:
        raise MalformedEvidence(f"hash of {len(data)} bytes, expected {HASH_BYTES}")
    return data


def _subject(line: bytes, number: int) -> Subject:
    what = f"line {number}"
    if len(line) > MAX_SUBJECT_LINE_BYTES:
        raise MalformedEvidence(f"{what} of {len(line)} bytes, at most {MAX_SUBJECT_LINE_BYTES} allowed")
    said = exactly(canonical_object(line, what), what, content=str, digest=dict, mediaType=str, name=str)
    exactly(said["digest"], f"{what}: digest", sha256=str)
    subject = Subject(
        name=said["name"],
        media_type=said["mediaType"],
        content=b64decode(said["content"], f"{what}: content", max_bytes=MAX_CONTENT_BYTES),
    )
    if subject.sha256 != said["digest"]["sha256"]:
        raise MalformedEvidence(f"{what}: its digest is not that of its content")
    return subject
