"""The proof of one entry, in one file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attestation.audit.entry import leaf_hash_of
from attestation.audit.export import Pinned
from attestation.audit.merkle import inclusion_proof
from attestation.audit.proof import MAX_PROOF_BYTES, Inclusion, members, prove, read_head, read_proof
from attestation.errors import MalformedNote, NoteRejected, ProofRejected
from attestation.wire import b64encode
from tests.unit.audit.log_kit import (
    LOG_VKEYS,
    WITNESS_VKEYS,
    WITNESSES,
    MemoryTree,
    bundle,
    checkpoint,
    entries,
    signed,
)

LOG = entries(12)
PINNED = Pinned(log_keys=tuple(LOG_VKEYS), witnesses=(), quorum=0)


def proof_of(entry_id: int, note: str | None = None) -> Inclusion:
    """Return the proof of an entry of `LOG`."""
    head = read_head((note or signed(checkpoint(LOG))).encode(), PINNED)
    hashes = inclusion_proof(MemoryTree.over([leaf_hash_of(each) for each in LOG]), entry_id - 1, 12)
    return prove(entry_id, bundle(LOG)[entry_id - 1], hashes, head)


def changed(**members: Any) -> bytes:
    """Return the file of entry 4 with other members."""
    return json.dumps(proof_of(4).document() | members).encode()


@pytest.mark.threat("T49")
def test_a_proof_is_read_again_as_it_was_made() -> None:
    """The file says all that a reader needs, who believes the keys that they have."""
    made = proof_of(4)
    again = read_proof(json.dumps(made.document()).encode(), PINNED)
    assert again == made
    assert (again.entry["operator_cn"], again.head.checkpoint.size) == (LOG[3].operator_cn, 12)
    assert {each.key for each in again.head.signers} == set(LOG_VKEYS)
    assert read_proof(changed(), None).head.signers == ()


@pytest.mark.threat("T49")
@pytest.mark.parametrize(
    "file",
    [
        changed(leaf=b64encode(bundle(LOG)[4])),
        changed(id=5),
        changed(id=0),
        changed(id=13),
        changed(hashes=[]),
        changed(entry={**proof_of(4).entry, "operator_cn": "mallory"}),
    ],
    ids=["other bytes", "other place", "no place", "beyond the end", "no path", "other words"],
)
def test_a_proof_of_something_else_is_refused(file: bytes) -> None:
    """What is shown is what was hashed, at the place that is said, in the log that was signed."""
    with pytest.raises(ProofRejected):
        read_proof(file, PINNED)


@pytest.mark.threat("T49")
def test_a_checkpoint_that_the_log_did_not_sign_proves_nothing() -> None:
    """Whoever writes a file of their own has a tree of their own, and not the keys."""
    forged = signed(checkpoint(LOG), WITNESSES)
    with pytest.raises(NoteRejected):
        read_proof(changed(checkpoint=forged), PINNED)
    pinned = Pinned(log_keys=tuple(LOG_VKEYS), witnesses=tuple(WITNESS_VKEYS), quorum=1)
    with pytest.raises(NoteRejected):
        read_proof(changed(), pinned)


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"[]",
        b'{"id":4,"id":5}',
        b" " * (MAX_PROOF_BYTES + 1),
        changed(id=True),
        changed(id="4"),
        changed(leaf=4),
        changed(leaf="*"),
        changed(checkpoint=None),
        changed(checkpoint="\ud800"),
        changed(hashes="AAAA"),
        changed(hashes=[1]),
        changed(hashes=["A" * 44] * 65),
        changed(hashes=["*"]),
    ],
)
def test_what_is_no_proof_is_not_read(file: bytes) -> None:
    """Any file ends in one way."""
    with pytest.raises(MalformedNote):
        read_proof(file, PINNED)


def test_bytes_that_are_no_entry_are_not_shown() -> None:
    """A leaf that is proven may still be nothing that can be read."""
    for data in (b"[]", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(MalformedNote):
            members(data)
