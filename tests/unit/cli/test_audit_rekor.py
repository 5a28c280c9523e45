"""Checkpoints in a Rekor log: what is sent is taken, and nothing is believed but what the log proves."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.audit.checkpoint import Checkpoint, Signer, parse
from attestation.audit.note import KeyType, VerifierKey, signature_line, signed_note
from attestation.audit.proof import Head
from attestation.client.errors import ServiceUnreachable
from attestation.errors import ProofRejected, RequestInvalid, Unavailable
from attestation_cli import audit_rekor
from attestation_cli.audit_rekor import Rekor, Statement, publish_once, read_key, statement_of, verify
from tests.fixtures.rekor import ENTRIES, Refused, RekorLog, canonical, canonical_body, rekor

ORIGIN = "log.example/1"
SIGNING = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def head_of(size: int) -> tuple[Head, bytes]:
    """Return a checkpoint of a log, as `read_head` returns one that it verified, and its bytes."""
    key = VerifierKey(name=ORIGIN, type=KeyType.ED25519, key=SIGNING.public_key().public_bytes_raw())
    found = Checkpoint(origin=ORIGIN, size=size, root=hashlib.sha256(bytes([size])).digest())
    line = signature_line(key, SIGNING.sign(str(found).encode()))
    note = signed_note(str(found), [line]).encode()
    signer = Signer(key=key, time=None)
    return Head(checkpoint=found, note=parse(note).note, signers=(signer,)), note


STATEMENT: Statement = statement_of(head_of(7)[0])


@pytest.fixture
def log() -> Iterator[RekorLog]:
    """The double."""
    with rekor() as running:
        yield running


@pytest.fixture
def key(log: RekorLog, tmp_path: Path) -> ec.EllipticCurvePublicKey:
    """The log's key, from a file."""
    (tmp_path / "rekor.pem").write_bytes(log.pem)
    return read_key(tmp_path / "rekor.pem")


def test_a_checkpoint_is_published_once(
    log: RekorLog, key: ec.EllipticCurvePublicKey, tmp_path: Path
) -> None:
    """What is noted is verified again and not sent again; a newer one is."""
    folder = tmp_path / "kept"
    with Rekor(log.url, key) as client:
        first, new = publish_once(client, folder, *head_of(7))
        assert (new, first.index, first.uuid) == (True, 1002, next(iter(log.answer(2))))
        assert publish_once(client, folder, *head_of(7)) == (first, False)
        assert log.asked == [("POST", ENTRIES)]
        assert publish_once(client, folder, *head_of(8))[1]
    assert (folder / "latest").read_bytes() == head_of(8)[1]
    assert (folder / "000000000007.checkpoint").read_bytes() == head_of(7)[1]
    kept = json.loads((folder / "000000000007.rekor.json").read_text())
    assert kept["rekor"] == log.url
    assert verify(kept["entry"], STATEMENT, uuid=None, key=key) == first


def test_a_note_that_was_lost_publishes_nothing_twice(
    log: RekorLog, key: ec.EllipticCurvePublicKey, tmp_path: Path
) -> None:
    """The log has the entry, says where, and that is verified; so it is with a note that proves nothing."""
    noted = tmp_path / "000000000007.rekor.json"
    with Rekor(log.url, key) as client:
        first, _ = publish_once(client, tmp_path, *head_of(7))
        for lost in (None, "{}", "no JSON", json.dumps({"rekor": log.url, "entry": log.answer(0)})):
            noted.unlink() if lost is None else noted.write_text(lost)
            found, new = publish_once(client, tmp_path, *head_of(7))
            assert (found.uuid, found.index, new) == (first.uuid, first.index, False)
            assert json.loads(noted.read_text())["entry"] == found.document
    assert len(log.entries) == 3
    # What is in one log is not in another.
    with rekor() as another, Rekor(another.url, _key_of(another)) as client:
        assert publish_once(client, tmp_path, *head_of(7))[1]


def _key_of(log: RekorLog) -> ec.EllipticCurvePublicKey:
    return log.key.public_key()


def test_what_is_sent_is_what_rekor_takes() -> None:
    """A log of ours signs with Ed25519: with the statement Rekor verifies that, with a digest alone it does not."""
    assert canonical_body(STATEMENT.proposal()) == canonical(STATEMENT.body())
    hashed = STATEMENT.proposal() | {"kind": "hashedrekord"}
    hashed["spec"]["data"] = STATEMENT.body()["spec"]["data"]
    with pytest.raises(Refused, match="ed25519"):
        canonical_body(hashed)
    other = STATEMENT.proposal()
    other["spec"]["data"]["content"] = base64.b64encode(b"other").decode()
    with pytest.raises(Refused, match="invalid signature"):
        canonical_body(other)


def _entry(document: dict[str, Any]) -> dict[str, Any]:
    (entry,) = document.values()
    found: dict[str, Any] = entry
    return found


def _renamed(document: dict[str, Any]) -> None:
    (name,) = document
    document["0" * 80] = document.pop(name)


def _of_another(document: dict[str, Any], log: RekorLog) -> None:
    """All is proven, but of what somebody else published."""
    document.clear()
    document.update(log.answer(1))


def _other_tree(document: dict[str, Any], log: RekorLog) -> None:
    """The proof fits a tree that the log's checkpoint does not name."""
    proof = _entry(document)["verification"]["inclusionProof"]
    log.entries.append(b"newer")
    proof["checkpoint"] = _entry(log.answer(2))["verification"]["inclusionProof"]["checkpoint"]


def _forged_tree(document: dict[str, Any], _: RekorLog) -> None:
    """A tree of this one entry, in a checkpoint that nobody signed."""
    proof = _entry(document)["verification"]["inclusionProof"]
    leaf = hashlib.sha256(b"\0" + base64.b64decode(_entry(document)["body"])).digest()
    lines = proof["checkpoint"].split("\n")
    lines[1:3] = ["1", base64.b64encode(leaf).decode()]
    proof.update(checkpoint="\n".join(lines), hashes=[], logIndex=0, rootHash=leaf.hex(), treeSize=1)


def _no_path(document: dict[str, Any], _: RekorLog) -> None:
    _entry(document)["verification"]["inclusionProof"]["hashes"][0] = "00" * 32


def _earlier(document: dict[str, Any], _: RekorLog) -> None:
    _entry(document)["integratedTime"] -= 1


def _of_another_log(document: dict[str, Any], _: RekorLog) -> None:
    _entry(document)["logID"] = "00" * 32


HOSTILE: dict[str, tuple[Callable[[dict[str, Any], RekorLog], None], str]] = {
    "another statement": (_of_another, "another statement"),
    "another name": (lambda document, _: _renamed(document), "the name of another"),
    "another tree": (_other_tree, "another tree than its proof"),
    "a tree that nobody signed": (_forged_tree, "checkpoint is not signed"),
    "another path": (_no_path, "does not lead"),
    "another time": (_earlier, "not signed by the key"),
    "another log": (_of_another_log, "a log with another key"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_does_not_prove_it_is_refused(log: RekorLog, key: ec.EllipticCurvePublicKey, name: str) -> None:
    """Each part of the answer is there for a reason; nothing is noted of one that lacks it."""
    at, _ = log.add(STATEMENT.proposal())
    document = log.answer(at)
    assert verify(document, STATEMENT, uuid=None, key=key).index == 1002
    spoil, words = HOSTILE[name]
    spoil(document, log)
    with pytest.raises(ProofRejected, match=words):
        verify(document, STATEMENT, uuid=None, key=key)


def test_what_is_no_entry_is_refused(log: RekorLog, key: ec.EllipticCurvePublicKey) -> None:
    """In one way, whatever is missing."""
    at, _ = log.add(STATEMENT.proposal())
    good = log.answer(at)
    (uuid,) = good
    broken: list[object] = [None, [], {}, {uuid: None}, {uuid: []}, "x", {**good, "x": {}}]
    for path in (
        *(("body",), ("integratedTime",), ("logID",), ("logIndex",), ("verification",)),
        *(("verification", "signedEntryTimestamp"), ("verification", "inclusionProof")),
        *(
            ("verification", "inclusionProof", each)
            for each in ("checkpoint", "hashes", "logIndex", "treeSize")
        ),
        ("verification", "inclusionProof", "rootHash"),
    ):
        wrong: object
        for wrong in (None, "", "x", -1, float("inf"), [], {}):
            document = copy.deepcopy(good)
            place = document[uuid]
            for each in path[:-1]:
                place = place[each]
            place[path[-1]] = wrong
            broken.append(document)
    for document_ in broken:
        with pytest.raises(ProofRejected):
            verify(document_, STATEMENT, uuid=None, key=key)
    # Who asks by name gets that entry.
    with pytest.raises(ProofRejected, match="the name of another"):
        verify(good, STATEMENT, uuid="0" * 80, key=key)
    with pytest.raises(ProofRejected, match="the name of another"):
        verify(good, STATEMENT, uuid="f" * 16 + uuid[16:], key=key)
    assert verify(good, STATEMENT, uuid=uuid[16:], key=key).uuid == uuid


def test_an_answer_of_another_log_is_not_noted(log: RekorLog, tmp_path: Path) -> None:
    """The key that was given decides, not the address."""
    mine = ec.generate_private_key(ec.SECP256R1()).public_key()
    with Rekor(log.url, mine) as client, pytest.raises(ProofRejected):
        publish_once(client, tmp_path / "kept", *head_of(7))
    assert not (tmp_path / "kept").exists()


def test_a_log_that_refuses_or_is_away_says_so(
    log: RekorLog, key: ec.EllipticCurvePublicKey, tmp_path: Path
) -> None:
    """In the log's words; nothing is noted."""
    with Rekor(log.url, key) as client:
        log.broken = 400
        with pytest.raises(RequestInvalid, match="400: unexpected result"):
            client.publish(STATEMENT)
        log.broken = 503
        with pytest.raises(Unavailable, match="503"):
            publish_once(client, tmp_path / "kept", *head_of(7))
    with Rekor("http://127.0.0.1:1", key) as client, pytest.raises(ServiceUnreachable):
        client.publish(STATEMENT)
    assert not (tmp_path / "kept").exists()
    for url in ("http://rekor.example", "https://a@rekor.example", "rekor.example"):
        with pytest.raises(RequestInvalid):
            Rekor(url, key)


def test_keys_that_cannot_be_used_are_refused_in_words(tmp_path: Path) -> None:
    """A file that is no key, another curve, a log without Ed25519."""
    file = tmp_path / "key"
    with pytest.raises(RequestInvalid, match="No such file"):
        read_key(file)
    file.write_text("x")
    with pytest.raises(RequestInvalid, match="not a public key"):
        read_key(file)
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    file.write_bytes(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(RequestInvalid, match="P-256"):
        read_key(file)
    head, _ = head_of(7)
    with pytest.raises(RequestInvalid, match="Ed25519"):
        audit_rekor.statement_of(Head(checkpoint=head.checkpoint, note=head.note, signers=()))
