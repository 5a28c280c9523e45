"""One audit entry and its canonical bytes (DELIVERY-AND-OPERATORS §19.1, ITL-REFERENCE §13).

Canonical form: a JSON object of every column but `id` and `entry_hash`, keys sorted, separators `,` and `:`,
ASCII escapes, UTF-8, nulls written as null. `entry_hash` is the SHA-256 of those bytes, lower-case hex;
`prev_hash` is the `entry_hash` before it, 64 zeros for the first.
"""

# Algorithms for: audit-hash
from __future__ import annotations

import hashlib
import json
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.audit.merkle import leaf_hash
from attestation.clock import rfc3339
from attestation.wire import canonical_json

FORMAT = 1
"""Number of the set of members that enters the hash; a new set gets a new number, old entries keep theirs."""

GENESIS_HASH = "0" * 64

MAX_DETAIL_BYTES = 32_768
"""Longest `detail`, in bytes of its canonical form without the quotes; a whole entry stays below 65 535 bytes."""

MAX_NAME_CHARACTERS = 256
MAX_SUBJECT_CHARACTERS = 1_024
MAX_WORD_CHARACTERS = 64
"""Longest `operator_cn`, `operator_sub`, and other members: at twelve bytes each they leave room for `detail`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """What somebody did, before it has its place in the chain.

    Args:
        operator_cn: Who: an operator's name, `SYSTEM` for break-glass, `machine` for a machine's own act.
        action: Lower-case word, e.g. `approve`, `attest_failed`.
        operator_sub: Stable subject of the operator where the method of authentication has one.
        machine_id: Which machine, where one is concerned.
        prev_state: Status before, where it is about a status.
        new_state: Status after, likewise.
        detail: Free text or JSON; never a secret, token or key.
        source_ip: Address the request came from.
    """

    operator_cn: str
    action: str
    operator_sub: str | None = None
    machine_id: str | None = None
    prev_state: str | None = None
    new_state: str | None = None
    detail: str | None = None
    source_ip: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry in its place. `timestamp` is RFC 3339 with six digits of fraction and `Z`."""

    timestamp: str
    operator_cn: str
    operator_sub: str | None
    action: str
    machine_id: str | None
    prev_state: str | None
    new_state: str | None
    detail: str | None
    source_ip: str | None
    format: int
    prev_hash: str
    entry_hash: str


def entry_hash(entry: AuditEntry) -> str:
    """Return the SHA-256, 64 lower-case hex, over the canonical bytes of *entry*."""
    return hash_of(canonical_bytes(entry))


def hash_of(data: bytes) -> str:
    """Return the SHA-256, 64 lower-case hex, over the canonical bytes of an entry."""
    return hashlib.sha256(data).hexdigest()


def canonical_bytes(entry: AuditEntry) -> bytes:
    """Return what is hashed of *entry*: for the chain, and as its leaf in the tree."""
    return canonical_members(
        timestamp=entry.timestamp,
        operator_cn=entry.operator_cn,
        operator_sub=entry.operator_sub,
        action=entry.action,
        machine_id=entry.machine_id,
        prev_state=entry.prev_state,
        new_state=entry.new_state,
        detail=entry.detail,
        source_ip=entry.source_ip,
        format=entry.format,
        prev_hash=entry.prev_hash,
    )


def chain(event: AuditEvent, *, at: datetime, prev_hash: str) -> AuditEntry:
    """Give *event* its place behind the entry whose hash is *prev_hash*."""
    return linked(event, at=at, prev_hash=prev_hash)[0]


def linked(event: AuditEvent, *, at: datetime, prev_hash: str) -> tuple[AuditEntry, bytes]:
    """Give *event* its place behind the entry whose hash is *prev_hash*; return its canonical bytes too."""
    members = {
        "timestamp": rfc3339(at),
        "operator_cn": _cleaned(event.operator_cn, MAX_NAME_CHARACTERS),
        "operator_sub": _cleaned(event.operator_sub, MAX_SUBJECT_CHARACTERS),
        "action": _cleaned(event.action, MAX_WORD_CHARACTERS),
        "machine_id": _cleaned(event.machine_id, MAX_WORD_CHARACTERS),
        "prev_state": _cleaned(event.prev_state, MAX_WORD_CHARACTERS),
        "new_state": _cleaned(event.new_state, MAX_WORD_CHARACTERS),
        "detail": _capped(event.detail),
        "source_ip": _cleaned(event.source_ip, MAX_WORD_CHARACTERS),
        "format": FORMAT,
        "prev_hash": prev_hash,
    }
    data = canonical_members(**members)  # type: ignore[arg-type]  # one dict, both uses
    return AuditEntry(**members, entry_hash=hashlib.sha256(data).hexdigest()), data  # type: ignore[arg-type]  # one dict, both uses


def leaf_hash_of(entry: AuditEntry) -> bytes:
    """Return the hash of *entry* as a leaf of the tree, 32 bytes."""
    return leaf_hash(canonical_bytes(entry))


_text: Final = json.encoder.encode_basestring_ascii  # of the C accelerator, where there is one


def canonical_members(
    *,
    timestamp: str,
    operator_cn: str,
    operator_sub: str | None,
    action: str,
    machine_id: str | None,
    prev_state: str | None,
    new_state: str | None,
    detail: str | None,
    source_ip: str | None,
    format: int,  # noqa: A002 - the name of the column
    prev_hash: str,
) -> bytes:
    """Return the canonical bytes of the members: what `canonical_json` makes, in a quarter of its time."""
    try:
        return (
            f'{{"action":{_text(action)}'
            f',"detail":{"null" if detail is None else _text(detail)}'
            f',"format":{format:d}'
            f',"machine_id":{"null" if machine_id is None else _text(machine_id)}'
            f',"new_state":{"null" if new_state is None else _text(new_state)}'
            f',"operator_cn":{_text(operator_cn)}'
            f',"operator_sub":{"null" if operator_sub is None else _text(operator_sub)}'
            f',"prev_hash":{_text(prev_hash)}'
            f',"prev_state":{"null" if prev_state is None else _text(prev_state)}'
            f',"source_ip":{"null" if source_ip is None else _text(source_ip)}'
            f',"timestamp":{_text(timestamp)}}}'
        ).encode("ascii")
    except (TypeError, ValueError):
        # A row that somebody changed may have any type in any column; it still has one form, and one hash.
        return canonical_json(
            {
                "timestamp": timestamp,
                "operator_cn": operator_cn,
                "operator_sub": operator_sub,
                "action": action,
                "machine_id": machine_id,
                "prev_state": prev_state,
                "new_state": new_state,
                "detail": detail,
                "source_ip": source_ip,
                "format": format,
                "prev_hash": prev_hash,
            }
        )


def _cleaned(text: str | None, most: int) -> str | None:
    """Return *text* with at most *most* characters, none of which controls a terminal or is no character.

    Names come from certificates, tokens and proxies; whoever chooses one shall not write lines of a list, nor
    make an entry that is too long for its place. Ordinary text stays as it is.
    """
    if text is None or (len(text) <= most and text.isprintable()):
        return text
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join("\ufffd" if unicodedata.category(c) in _CONTROLS else c for c in cut)


_CONTROLS: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def _capped(detail: str | None) -> str | None:
    """Cut *detail* to its longest prefix within the limit, and to text that UTF-8 can carry."""
    if detail is None:
        return None
    text = detail.encode("utf-8", "replace").decode("utf-8")
    if 12 * len(text) <= MAX_DETAIL_BYTES or _written_bytes(text) <= MAX_DETAIL_BYTES:
        return text
    room = MAX_DETAIL_BYTES - _written_bytes("…")
    lengths = range(min(len(text), room) + 1)
    return text[: bisect_right(lengths, room, key=lambda length: _written_bytes(text[:length])) - 1] + "…"


def _written_bytes(text: str) -> int:
    """Return how many bytes *text* has in the canonical form: escapes make up to twelve of one character."""
    return len(canonical_json({"": text})) - len(canonical_json({"": ""}))
