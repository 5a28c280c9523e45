"""Signed notes and the keys that verify them (C2SP signed-note, tlog-cosignature).

A note is text that ends in LF, an empty line, and one line per signature:

    — <name> <base64(key id (4 bytes) ‖ signature)>

A key is written as a *vkey*: `<name>+<key id, 8 lower-case hex>+<base64(type (1 byte) ‖ key)>`, where
key id = SHA-256(name ‖ 0x0A ‖ type ‖ key)[:4].

| Type | Key | Signature | Signed bytes |
|---|---|---|---|
| 0x01 Ed25519 | 32 bytes | 64 bytes | the text |
| 0x04 Ed25519 cosignature | 32 bytes | u64 time ‖ 64 bytes | `cosignature/v1`, time, text |
| 0x06 ML-DSA-44 cosignature | 1312 bytes | u64 time ‖ 2420 bytes | the subtree message below |

Integers are big-endian, times are seconds since 1970-01-01T00:00:00Z.
"""

# Algorithms for: audit-note
from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from attestation.errors import MalformedEvidence, MalformedNote
from attestation.wire import b64decode, b64encode, u64

MAX_NOTE_BYTES: Final = 131_072
MAX_SIGNATURES: Final = 32
"""Most signature lines read; C2SP asks for at least 16."""

MAX_NAME_BYTES: Final = 255
"""Longest name of a key in UTF-8: the subtree message has one byte for its length."""

MAX_SIGNATURE_BYTES: Final = 16_384
"""Of algorithms that we do not know: a stranger's line is passed over, not a reason to refuse."""

MAX_VKEY_CHARACTERS: Final = 4096

_KEY_ID_BYTES: Final = 4
_DASH: Final = "\u2014 "


class KeyType(IntEnum):
    """First byte of a key: algorithm and meaning of its signatures."""

    ED25519 = 0x01
    ED25519_COSIGNATURE = 0x04
    ML_DSA_44 = 0x06

    @property
    def timed(self) -> bool:
        """A signature starts with the time of signing, u64, in seconds."""
        return self is not KeyType.ED25519


KEY_BYTES: Final = {KeyType.ED25519: 32, KeyType.ED25519_COSIGNATURE: 32, KeyType.ML_DSA_44: 1312}
SIGNATURE_BYTES: Final = {KeyType.ED25519: 64, KeyType.ED25519_COSIGNATURE: 64, KeyType.ML_DSA_44: 2420}
"""Without the time."""

TYPE_NAMES: Final = {
    KeyType.ED25519: "Ed25519",
    KeyType.ED25519_COSIGNATURE: "Ed25519 cosignature",
    KeyType.ML_DSA_44: "ML-DSA-44",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierKey:
    """A public key with a name: of a log, whose name is its origin, or of a witness.

    Args:
        name: 1 to 255 bytes of UTF-8, no white space, no `+`, no control character.
        type: Algorithm and meaning.
        key: The raw public key; 32 bytes for Ed25519, 1312 for ML-DSA-44 (FIPS 204).

    Raises:
        MalformedNote: The name or the length of the key is not possible.
    """

    name: str
    type: KeyType
    key: bytes

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(self.key) != KEY_BYTES[self.type]:
            raise MalformedNote(
                f"key of {len(self.key)} bytes; {TYPE_NAMES[self.type]} has {KEY_BYTES[self.type]}"
            )

    @property
    def key_id(self) -> bytes:
        """The four bytes that point from a signature to this key; a hint, not a proof."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.type]) + self.key).digest()[
            :_KEY_ID_BYTES
        ]

    def __str__(self) -> str:
        """Write the vkey."""
        return f"{self.name}+{self.key_id.hex()}+{b64encode(bytes([self.type]) + self.key)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteSignature:
    """One signature line. Nothing in it may be believed yet.

    Args:
        name: Name of the key that is said to have signed.
        key_id: Its four bytes.
        value: The signature; for timed types u64 time ‖ signature.
    """

    name: str
    key_id: bytes
    value: bytes

    def __str__(self) -> str:
        """Write the line without its LF."""
        return f"{_DASH}{self.name} {b64encode(self.key_id + self.value)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedNote:
    """A parsed note.

    Args:
        text: What is signed; ends in LF.
        signatures: In the order of their lines; who made them is not yet known.
    """

    text: str
    signatures: tuple[NoteSignature, ...]

    def __str__(self) -> str:
        """Write the note, as it was read."""
        return self.text + "\n" + "".join(f"{line}\n" for line in self.signatures)


def parse_vkey(text: str) -> VerifierKey:
    """Read a vkey.

    Raises:
        MalformedNote: Not `name+id+key`, an unknown type, a wrong length, or an id that is not that of the key.
    """
    if len(text) > MAX_VKEY_CHARACTERS:
        raise MalformedNote(f"vkey of {len(text)} characters, at most {MAX_VKEY_CHARACTERS} allowed")
    parts = text.split("+", 2)
    if len(parts) != 3:
        raise MalformedNote("a vkey is name+id+key")
    name, key_id, encoded = parts
    data = _b64(encoded, "vkey")
    try:
        kind = KeyType(data[0])
    except (ValueError, IndexError) as e:
        raise MalformedNote(f"vkey of an unknown type (0x{data[:1].hex() or '-'})") from e
    key = VerifierKey(name=name, type=kind, key=data[1:])
    # The id covers name, type and key: a name or key mistyped by hand does not go unnoticed.
    if key.key_id.hex() != key_id:
        raise MalformedNote(f"vkey says id {key_id[:8]!r}, its key has {key.key_id.hex()}")
    return key


def parse_note(data: bytes) -> UnverifiedNote:
    """Read a signed note, at most 128 KiB with at most 32 signatures.

    Raises:
        MalformedNote: Not UTF-8, control characters, no text, no signature, or a line that is none.
    """
    if len(data) > MAX_NOTE_BYTES:
        raise MalformedNote(f"note of {len(data)} bytes, at most {MAX_NOTE_BYTES} allowed")
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise MalformedNote("note is not UTF-8") from e
    if any(c < " " and c != "\n" for c in whole):
        raise MalformedNote("note contains a control character")
    text, _, tail = whole.rpartition("\n\n")
    if not text:
        raise MalformedNote("note without an empty line between text and signatures")
    if not tail.endswith("\n"):
        raise MalformedNote("note without signatures, or not ending in a new line")
    lines = tail[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise MalformedNote(f"{len(lines)} signatures, at most {MAX_SIGNATURES} allowed")
    return UnverifiedNote(text=text + "\n", signatures=tuple(parse_signature(line) for line in lines))


def parse_signature(line: str) -> NoteSignature:
    """Read one signature line without its LF.

    Raises:
        MalformedNote: It is none.
    """
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space:
        raise MalformedNote("signature line is not '— name base64'")
    check_name(name)
    data = _b64(encoded, "signature")
    if len(data) <= _KEY_ID_BYTES:
        raise MalformedNote("signature line without a signature")
    return NoteSignature(name=name, key_id=data[:_KEY_ID_BYTES], value=data[_KEY_ID_BYTES:])


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a key.

    Raises:
        MalformedNote: Empty, longer than 255 bytes of UTF-8, or with white space, `+` or a control character.
    """
    try:
        size = len(name.encode("utf-8"))
    except UnicodeEncodeError as e:
        raise MalformedNote("name of a key is not UTF-8") from e
    if not 0 < size <= MAX_NAME_BYTES:
        raise MalformedNote(f"name of a key has {size} bytes, 1 to {MAX_NAME_BYTES} allowed")
    if any(c <= " " or c == "+" or c.isspace() for c in name):
        raise MalformedNote("name of a key contains white space, a control character or '+'")


def signature_line(key: VerifierKey, signature: bytes, time: int | None = None) -> NoteSignature:
    """Return the line that carries *signature* by *key*; *time* where the type is timed."""
    value = signature if time is None else u64(time) + signature
    return NoteSignature(name=key.name, key_id=key.key_id, value=value)


def signed_note(text: str, signatures: Iterable[NoteSignature]) -> str:
    """Return *text* as a note with *signatures*."""
    return str(UnverifiedNote(text=text, signatures=tuple(signatures)))


def ed25519_message(text: str) -> bytes:
    """Return what an Ed25519 key of a log (0x01) signs: the text itself."""
    return text.encode()


def cosignature_message(time: int, text: str) -> bytes:
    """Return what an Ed25519 cosigner (0x04) signs at *time*, seconds since 1970."""
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def subtree_message(name: str, time: int, origin: str, start: int, end: int, root: bytes) -> bytes:
    r"""Return what an ML-DSA-44 key (0x06) signs, with an empty context (FIPS 204).

    12 bytes `subtree/v1\n\0`, u8 length and name, u64 time, u8 length and origin, u64 start, u64 end, root of
    32 bytes. A checkpoint is the subtree from 0 to its size.
    """
    named, logged = name.encode(), origin.encode()
    return b"".join(
        (
            b"subtree/v1\n\0",
            bytes([len(named)]),
            named,
            u64(time),
            bytes([len(logged)]),
            logged,
            u64(start),
            u64(end),
            root,
        )
    )


def _b64(text: str, what: str) -> bytes:
    try:
        return b64decode(text, what, max_bytes=_KEY_ID_BYTES + MAX_SIGNATURE_BYTES)
    except MalformedEvidence as e:
        raise MalformedNote(str(e)) from e
