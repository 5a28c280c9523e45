"""The decision of a witness: it cosigns what only adds to what it cosigned, and nothing else."""

from __future__ import annotations

import pytest

from attestation.audit import leaf_hash_of
from attestation.audit.checkpoint import Checkpoint
from attestation.audit.merkle import MAX_PROOF_HASHES, MAX_SIZE, consistency_proof
from attestation.audit.witness import (
    MAX_REQUEST_BYTES,
    Cosign,
    Refuse,
    consider,
    format_request,
    parse_request,
)
from attestation.errors import MalformedNote
from attestation.wire import b64encode
from tests.unit.audit.log_kit import (
    LOG_KEYS,
    LOG_VKEYS,
    ORIGIN,
    Key,
    MemoryTree,
    checkpoint,
    entries,
    signed,
)

LOG = entries(30)
TREE = MemoryTree.over([leaf_hash_of(entry) for entry in LOG])
OTHER = entries(30, "forged")
OTHER_TREE = MemoryTree.over([leaf_hash_of(entry) for entry in OTHER])
AT_7 = {ORIGIN: checkpoint(LOG, 7)}
GOOD = format_request(7, consistency_proof(TREE, 7, 20), signed(checkpoint(LOG, 20)))


def decide(body: str, newest: dict[str, Checkpoint] | None = None) -> Cosign | Refuse:
    """Let a witness that is at 7 decide."""
    return consider(body.encode(), logs=LOG_VKEYS, newest=AT_7 if newest is None else newest)


def refused(decision: Cosign | Refuse, status: int, why: str) -> Refuse:
    """Return *decision*, which must be a refusal with *status*."""
    assert isinstance(decision, Refuse)
    assert decision.status == status
    assert why in decision.why
    return decision


@pytest.mark.parametrize(("old", "new"), [(0, 1), (0, 30), (7, 8), (7, 7), (7, 30), (16, 17), (0, 0)])
def test_it_cosigns_what_only_adds(old: int, new: int) -> None:
    """From nothing, from what it has, and once more the same."""
    newest = {ORIGIN: checkpoint(LOG, old)} if old else {}
    body = format_request(old, consistency_proof(TREE, old, new), signed(checkpoint(LOG, new)))
    assert decide(body, newest) == Cosign(checkpoint=checkpoint(LOG, new))


@pytest.mark.parametrize("old", [0, 6, 8, 20])
def test_from_another_size_it_tells_its_own(old: int) -> None:
    """So that the log can ask again with the right proof; also where the log would go back."""
    body = format_request(old, consistency_proof(TREE, old, 20), signed(checkpoint(LOG, 20)))
    decision = refused(decide(body), 409, f"says {old}")
    assert (decision.body, decision.media_type) == ("7\n", "text/x.tlog.size")


def test_another_root_at_the_same_size() -> None:
    """Two histories: the proof is empty and would pass."""
    body = format_request(7, [], signed(checkpoint(OTHER, 7)))
    assert refused(decide(body), 409, "two histories").media_type.startswith("text/plain")


def test_another_history() -> None:
    """A log that was rewritten has no proof from what the witness saw."""
    for proof in (consistency_proof(OTHER_TREE, 7, 20), consistency_proof(TREE, 7, 20), []):
        refused(decide(format_request(7, proof, signed(checkpoint(OTHER, 20)))), 422, "")
    refused(decide(format_request(7, [b"\0" * 32], signed(checkpoint(LOG, 7)))), 422, "nothing to prove")


def test_a_log_that_goes_back() -> None:
    """A smaller checkpoint than the old size cannot be right."""
    refused(decide(format_request(7, [], signed(checkpoint(LOG, 5)))), 400, "greater than")


def test_an_unknown_log_and_a_stranger() -> None:
    """404 for a log that it does not watch, 403 where the log did not sign with all its keys."""
    foreign = Checkpoint(origin="other.example", size=1, root=bytes(32))
    refused(decide(format_request(0, [], signed(foreign))), 404, "does not know")
    refused(consider(GOOD.encode(), logs=(), newest={}), 404, "does not know")
    proof = consistency_proof(TREE, 7, 20)
    stranger = Key(ORIGIN, LOG_VKEYS[0].type, 9)
    for keys in (LOG_KEYS[:1], LOG_KEYS[1:], [stranger], [stranger, LOG_KEYS[1]]):
        refused(decide(format_request(7, proof, signed(checkpoint(LOG, 20), keys))), 403, "has no")
    broken = GOOD.replace("\n20\n", "\n21\n")
    refused(decide(broken), 403, "does not verify")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "begin"),
        ("old 7", "begin"),
        (GOOD.replace("old 7", "old"), "begin"),
        (GOOD.replace("old 7", "old 07"), "begin"),
        (GOOD.replace("old 7", "old -7"), "begin"),
        (GOOD.replace("old 7", "old 7 "), "begin"),
        (GOOD.replace("old 7", "OLD 7"), "begin"),
        (GOOD.replace("old 7", f"old {MAX_SIZE + 1}"), "begin"),
        (GOOD.replace("old 7", "old 7\r"), "begin"),
        (GOOD.replace("old 7", "old ٧"), "ASCII"),
        (GOOD.replace("old 7\n", "old 7\n\n"), "MalformedNote|signature|base64|lines|text"),
        (GOOD.replace("old 7\n", "old 7\nAAAA\n"), "hash of 3 bytes"),
        (GOOD.replace("old 7\n", "old 7\n?\n"), "base64"),
        (GOOD.replace("old 7\n", f"old 7\n{b64encode(bytes(33))}\n"), "longer"),
        (format_request(7, [bytes(32)] * (MAX_PROOF_HASHES + 1), signed(checkpoint(LOG, 20))), "64 hashes"),
        ("old 7\n\nnot a note\n", "empty line"),
        ("x" * (MAX_REQUEST_BYTES + 1), "bytes"),
    ],
)
def test_a_malformed_request(body: str, why: str) -> None:
    """Answered with 400, and with nothing else."""
    decision = decide(body)
    assert isinstance(decision, Refuse)
    assert decision.status == 400
    assert any(word in decision.why for word in why.split("|"))
    with pytest.raises(MalformedNote):
        parse_request(body.encode())


def test_a_request_is_read_as_it_is_written() -> None:
    """The longest proof too."""
    note = signed(checkpoint(LOG, 20))
    proof = (bytes(32),) * MAX_PROOF_HASHES
    request = parse_request(format_request(7, proof, note).encode())
    assert (request.old, request.proof, str(request.signed.note)) == (7, proof, note)
