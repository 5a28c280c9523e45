"""Signed notes and vkeys: the published examples, and every way of being malformed."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from attestation.audit.note import (
    KEY_BYTES,
    MAX_NAME_BYTES,
    MAX_NOTE_BYTES,
    MAX_SIGNATURES,
    MAX_VKEY_CHARACTERS,
    KeyType,
    NoteSignature,
    VerifierKey,
    cosignature_message,
    ed25519_message,
    parse_note,
    parse_signature,
    parse_vkey,
    signed_note,
    subtree_message,
)
from attestation.errors import MalformedNote
from attestation.wire import b64encode

# From the documentation of golang.org/x/mod/sumdb/note, by which C2SP signed-note was written.
GO_VKEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
)
GO_NOTE = (
    GO_TEXT + "\n— PeterNeumann "
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
SIGNATURE = "— a " + b64encode(bytes(68))


def test_the_published_example() -> None:
    """Key, id and signature of somebody else's documentation."""
    key, note = parse_vkey(GO_VKEY), parse_note(GO_NOTE.encode())
    assert (key.name, key.type, key.key_id.hex(), str(key)) == ("PeterNeumann", 1, "c74f20a3", GO_VKEY)
    assert (note.text, str(note)) == (GO_TEXT, GO_NOTE)
    (line,) = note.signatures
    assert (line.name, line.key_id) == (key.name, key.key_id)
    Ed25519PublicKey.from_public_bytes(key.key).verify(line.value, ed25519_message(note.text))


@pytest.mark.parametrize("kind", list(KeyType))
def test_a_vkey_is_read_as_it_is_written(kind: KeyType) -> None:
    """Each type, with the length that its keys have."""
    key = VerifierKey(name="log.example/é", type=kind, key=bytes(range(32)) * (KEY_BYTES[kind] // 32))
    assert parse_vkey(str(key)) == key
    with pytest.raises(MalformedNote, match="bytes"):
        VerifierKey(name="a", type=kind, key=key.key[1:])


@pytest.mark.parametrize(
    ("vkey", "why"),
    [
        ("", "name\\+id\\+key"),
        ("PeterNeumann+c74f20a3", "name\\+id\\+key"),
        (GO_VKEY.replace("Peter", "Pater"), "says id"),
        (GO_VKEY.replace("c74f", "C74F"), "says id"),
        (GO_VKEY.replace("c74f20a3", "c74f20a"), "says id"),
        (GO_VKEY.replace("ARpc", "ARpd"), "says id"),
        (GO_VKEY.replace("ARpc", "AhpcX"), "base64"),
        (GO_VKEY.replace("+ARpc", "+Ahpc"), "0x02"),
        ("a+00000000+", "unknown type \\(0x-"),
        (GO_VKEY + "=", "base64"),
        (GO_VKEY + "\n", "base64"),
        (GO_VKEY.replace("PeterNeumann", ""), "0 bytes"),
        ("a b+00000000+AQ" + "A" * 42, "white space"),
        ("a\x01b+00000000+AQ" + "A" * 42, "control"),
        ("x" * (MAX_VKEY_CHARACTERS + 1), "characters"),
        (f"a+00000000+{b64encode(bytes([1]) + bytes(31))}", "key of 31 bytes"),
    ],
)
def test_a_malformed_vkey(vkey: str, why: str) -> None:
    """A key that was mistyped is refused by its id; nothing else is guessed."""
    with pytest.raises(MalformedNote, match=why):
        parse_vkey(vkey)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty line"),
        (b"text\n" + SIGNATURE.encode() + b"\n", "empty line"),
        (b"\n\n" + SIGNATURE.encode() + b"\n", "empty line"),
        (b"text\n\n", "not ending"),
        (b"text\n\n" + SIGNATURE.encode(), "not ending"),
        (b"text\n\n\n", "not ending"),
        (b"text\xff\n\n" + SIGNATURE.encode() + b"\n", "UTF-8"),
        (b"te\rxt\n\n" + SIGNATURE.encode() + b"\n", "control"),
        (b"te\0xt\n\n" + SIGNATURE.encode() + b"\n", "control"),
        (b"text\n\n- a AAAA\n", "not '"),
        ("text\n\n— a\n".encode(), "not '"),
        ("text\n\n— a  AAAAAAAA\n".encode(), "base64"),
        ("text\n\n— a AAAAAAAA \n".encode(), "base64"),
        ("text\n\n— a AAAAAAB=\n".encode(), "base64"),
        ("text\n\n—  AAAAAAAA\n".encode(), "0 bytes"),
        ("text\n\n— a+b AAAAAAAA\n".encode(), "'\\+'"),
        ("text\n\n— a\u00a0b AAAAAAAA\n".encode(), "white space"),
        ("text\n\n— a AAAAAA==\n".encode(), "without a signature"),
        (f"text\n\n— a {b64encode(bytes(17_000))}\n".encode(), "longer than"),
        (f"text\n\n— {'é' * 128} AAAAAAAA\n".encode(), "256 bytes"),
        (b"text\n\n" + (SIGNATURE.encode() + b"\n") * (MAX_SIGNATURES + 1), "33 signatures"),
        (b"x" * (MAX_NOTE_BYTES + 1), "131073 bytes"),
    ],
)
def test_a_malformed_note(data: bytes, why: str) -> None:
    """Each is refused with the reason."""
    with pytest.raises(MalformedNote, match=why):
        parse_note(data)


def test_a_note_may_have_many_signatures_and_empty_lines() -> None:
    """The last empty line parts text from signatures; C2SP demands that at least 16 signatures are read."""
    lines = [parse_signature(SIGNATURE.replace(" a ", f" a{i} ")) for i in range(MAX_SIGNATURES)]
    text = "one\n\n\ntwo\n"
    note = parse_note(signed_note(text, lines).encode())
    assert (note.text, note.signatures) == (text, tuple(lines))


def test_a_name_that_utf8_cannot_carry() -> None:
    """A lone surrogate is refused, not replaced."""
    with pytest.raises(MalformedNote, match="UTF-8"):
        VerifierKey(name="a\ud800", type=KeyType.ED25519, key=bytes(32))
    assert VerifierKey(name="x" * MAX_NAME_BYTES, type=KeyType.ED25519, key=bytes(32)).key_id


def test_signed_bytes_are_pinned() -> None:
    """These forms never change: what was signed must verify for ever."""
    text = "log.example\n2\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
    assert ed25519_message(text) == text.encode()
    assert cosignature_message(1_700_000_000, text) == b"cosignature/v1\ntime 1700000000\n" + text.encode()
    assert subtree_message("wé", 5, "log", 0, 2, bytes(32)) == (
        b"subtree/v1\n\x00" + b"\x03w\xc3\xa9" + b"\0\0\0\0\0\0\0\x05" + b"\x03log"
        + b"\0\0\0\0\0\0\0\0" + b"\0\0\0\0\0\0\0\x02" + bytes(32)
    )  # fmt: skip
    assert str(NoteSignature(name="a", key_id=b"\1\2\3\4", value=b"s")) == "— a AQIDBHM="
