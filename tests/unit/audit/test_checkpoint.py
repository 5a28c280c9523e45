"""Checkpoints: both algorithms must sign, enough witnesses must cosign, and nothing else counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attestation.audit.checkpoint import (
    Checkpoint,
    Signer,
    parse,
    parse_text,
    signed_message,
    verify,
    verify_signatures,
)
from attestation.audit.merkle import EMPTY_ROOT, MAX_SIZE
from attestation.audit.note import KeyType, NoteSignature, signature_line, signed_note, subtree_message
from attestation.errors import MalformedNote, NoteRejected
from attestation.wire import b64encode
from tests.unit.audit.log_kit import (
    LOG_KEYS,
    LOG_VKEYS,
    ORIGIN,
    TIME,
    WITNESS_VKEYS,
    WITNESSES,
    Key,
    signed,
)

CHECKPOINT = Checkpoint(origin=ORIGIN, size=20_852_163, root=bytes(range(32)))
TEXT = f"{ORIGIN}\n20852163\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
EVERYBODY = (*LOG_KEYS, *WITNESSES)


def test_the_text() -> None:
    """Three lines; read as written."""
    assert str(CHECKPOINT) == TEXT
    assert parse_text(TEXT) == CHECKPOINT
    empty = Checkpoint(origin=ORIGIN, size=0, root=EMPTY_ROOT)
    assert parse_text(str(empty)) == empty
    largest = replace(CHECKPOINT, size=MAX_SIZE)
    assert parse_text(str(largest)) == largest


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "three lines"),
        (TEXT[:-1], "three lines"),
        (TEXT + "extension\n", "three lines"),
        (TEXT + "extension", "three lines"),
        (TEXT.replace(ORIGIN, ""), "0 bytes"),
        (TEXT.replace(ORIGIN, "a log"), "white space"),
        (TEXT.replace("20852163", ""), "size"),
        (TEXT.replace("20852163", "020852163"), "size"),
        (TEXT.replace("20852163", "-1"), "size"),
        (TEXT.replace("20852163", "1_0"), "size"),
        (TEXT.replace("20852163", "+1"), "size"),
        (TEXT.replace("20852163", "٣"), "size"),
        (TEXT.replace("20852163", str(MAX_SIZE + 1)), "size"),
        (TEXT.replace("20852163", "9" * 5000), "size"),
        (TEXT.replace("20852163", "0"), "empty log"),
        (TEXT.replace("Hh8=", "Hh9="), "base64"),
        (TEXT.replace("AAEC", ""), "root of 29 bytes"),
        (TEXT.replace("AAEC", "AAECAAEC"), "longer"),
    ],
)
def test_a_malformed_text(text: str, why: str) -> None:
    """One way of writing it; lines of extension are refused, since ML-DSA-44 would not cover them."""
    with pytest.raises(MalformedNote, match=why):
        parse_text(text)
    with pytest.raises(MalformedNote):
        parse(f"{text}\n{LOG_KEYS[0].sign(CHECKPOINT)}\n".encode())


def test_signed_by_all() -> None:
    """Who signed and when, in the order of the lines; strangers are passed over and kept."""
    stranger = Key("stranger.example", KeyType.ED25519, 9)
    note = signed(CHECKPOINT, (stranger, *EVERYBODY))
    proven = verify(parse(note.encode()), log_keys=LOG_VKEYS, witnesses=WITNESS_VKEYS, quorum=2)
    assert proven.checkpoint == CHECKPOINT
    assert str(proven.note) == note
    assert proven.signers == tuple(
        Signer(key=key.public, time=TIME if key.public.type.timed else None) for key in EVERYBODY
    )


@pytest.mark.threat("T47")
@pytest.mark.parametrize("missing", [0, 1])
def test_both_algorithms_must_have_signed(missing: int) -> None:
    """Whoever breaks one of them has not yet forged a checkpoint."""
    note = signed(CHECKPOINT, [key for key in EVERYBODY if key is not LOG_KEYS[missing]])
    with pytest.raises(NoteRejected, match=r"has no (Ed25519|ML-DSA-44) signature"):
        verify(parse(note.encode()), log_keys=LOG_VKEYS, witnesses=(), quorum=0)
    verify(parse(note.encode()), log_keys=[LOG_VKEYS[1 - missing]], witnesses=(), quorum=0)


def test_without_a_pinned_key_nothing_is_signed() -> None:
    """No keys is not success."""
    with pytest.raises(NoteRejected, match="of no log"):
        verify(parse(signed(CHECKPOINT).encode()), log_keys=(), witnesses=(), quorum=0)


@pytest.mark.threat("T47")
def test_a_key_of_another_log() -> None:
    """A key pinned for one log says nothing about another, nor beside the right one."""
    other = Key("other.example", KeyType.ED25519)
    note = parse(signed(CHECKPOINT, (*EVERYBODY, other)).encode())
    for keys in ([other.public], [*LOG_VKEYS, other.public]):
        with pytest.raises(NoteRejected, match=r"pinned keys are of .*other\.example"):
            verify(note, log_keys=keys, witnesses=(), quorum=0)


def test_a_log_that_changes_its_key() -> None:
    """With the old and the new key pinned, a signature of either is enough."""
    new = Key(ORIGIN, KeyType.ED25519, 7)
    note = parse(signed(CHECKPOINT, (new, LOG_KEYS[1])).encode())
    proven = verify(note, log_keys=[*LOG_VKEYS, new.public], witnesses=(), quorum=0)
    assert {signer.key for signer in proven.signers} == {new.public, LOG_VKEYS[1]}


@pytest.mark.parametrize("which", range(len(EVERYBODY)))
def test_one_bad_signature_of_a_known_key_rejects_the_note(which: int) -> None:
    """Also where enough others are good: somebody tampered with it."""
    lines = [key.sign(CHECKPOINT) for key in EVERYBODY]
    for at in (0, 5, -1):
        value = bytearray(lines[which].value)
        value[at] ^= 1
        bad = [*lines[:which], replace(lines[which], value=bytes(value)), *lines[which + 1 :]]
        with pytest.raises(NoteRejected, match=f"of {EVERYBODY[which].public.name} .*does not verify"):
            verify(
                parse(signed_note(TEXT, bad).encode()),
                log_keys=LOG_VKEYS,
                witnesses=WITNESS_VKEYS,
                quorum=0,
            )
    for value2 in (lines[which].value + b"\0", lines[which].value[:-1], b"\0"):
        bad = [*lines[:which], replace(lines[which], value=value2), *lines[which + 1 :]]
        with pytest.raises(NoteRejected, match=f"has {len(value2)} bytes"):
            verify_signatures(parse(signed_note(TEXT, bad).encode()), [key.public for key in EVERYBODY])


@pytest.mark.parametrize("key", EVERYBODY, ids=lambda key: key.public.type.name)
def test_a_signature_is_for_one_checkpoint(key: Key) -> None:
    """Origin, size and root are covered, and the time where one is stated."""
    line = key.sign(CHECKPOINT)
    for other in (
        replace(CHECKPOINT, size=5),
        replace(CHECKPOINT, root=bytes(32)),
        replace(CHECKPOINT, origin=ORIGIN + "x"),
    ):
        note = parse(signed_note(str(other), [line]).encode())
        with pytest.raises(NoteRejected, match="does not verify"):
            verify_signatures(note, [key.public])


@pytest.mark.threat("T47")
def test_a_quorum_counts_witnesses_not_signatures() -> None:
    """Two keys of one witness count once, and the log is no witness of itself."""
    second = Key(WITNESSES[0].public.name, KeyType.ML_DSA_44, 5)
    itself = Key(ORIGIN, KeyType.ED25519_COSIGNATURE, 6)
    note = parse(signed(CHECKPOINT, (*LOG_KEYS, WITNESSES[0], second, itself)).encode())
    pinned = [*WITNESS_VKEYS, second.public, itself.public]
    verify(note, log_keys=LOG_VKEYS, witnesses=pinned, quorum=1)
    with pytest.raises(NoteRejected, match="cosigned by 1 of the pinned witnesses, 2 are demanded"):
        verify(note, log_keys=LOG_VKEYS, witnesses=pinned, quorum=2)


def test_the_same_line_twice_counts_once() -> None:
    """And each of the two must be good."""
    line = LOG_KEYS[0].sign(CHECKPOINT)
    note = parse(signed_note(TEXT, [line, line]).encode())
    assert len(verify_signatures(note, LOG_VKEYS)) == 1
    bad = replace(line, value=bytes(64))
    with pytest.raises(NoteRejected):
        verify_signatures(parse(signed_note(TEXT, [line, bad]).encode()), LOG_VKEYS)


def test_an_id_that_points_to_two_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bytes can collide; then nobody can say who signed. The same key twice is no matter."""
    note = parse(signed(CHECKPOINT).encode())
    assert len(verify_signatures(note, [*LOG_VKEYS, *LOG_VKEYS])) == 2
    monkeypatch.setattr(type(LOG_VKEYS[0]), "key_id", b"same")
    with pytest.raises(NoteRejected, match="two keys"):
        verify_signatures(note, LOG_VKEYS)


def test_each_type_signs_its_own_bytes() -> None:
    """So that a cosignature never passes for the log's own signature, nor the other way round."""
    (plain, lattice), witness = LOG_VKEYS, WITNESS_VKEYS[0]
    assert signed_message(plain, CHECKPOINT, None) == TEXT.encode()
    assert signed_message(witness, CHECKPOINT, 7) == b"cosignature/v1\ntime 7\n" + TEXT.encode()
    size = CHECKPOINT.size
    expected = subtree_message(ORIGIN, 7, ORIGIN, 0, size, CHECKPOINT.root)
    assert signed_message(lattice, CHECKPOINT, 7) == expected


def test_a_timed_signature_needs_a_time() -> None:
    """Nobody signs one without by mistake."""
    with pytest.raises(ValueError, match="signs a time"):
        signed_message(WITNESS_VKEYS[0], CHECKPOINT, None)
    line = signature_line(LOG_VKEYS[0], b"s" * 64)
    assert isinstance(line, NoteSignature)
    assert b64encode(line.key_id + b"s" * 64) in str(line)
