"""The signed list: which images may be written. A C2SP signed note (Ed25519) around what `sha256sum` prints.

    # valid-until: 2027-03-01T00:00:00Z
    5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  talos-1.10.3.raw.xz

    — images.example nnnnQ…

The text is what `sha256sum -c` reads, too. A line `# valid-until:` is optional and counts; other remarks say nothing.
One signature of a key that the medium pins is enough; lines of keys that it does not pin are passed over.
"""

# Algorithms for: audit-note
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from attestation.audit.note import (
    KeyType,
    VerifierKey,
    ed25519_message,
    parse_note,
    parse_vkey,
    signature_line,
    signed_note,
)
from attestation.clock import parse_rfc3339, rfc3339
from attestation.errors import MalformedEvidence, MalformedNote
from attestation.keys.notes import NoteKey
from attestation_agent.exits import UsageError
from attestation_agent.kiosk.exits import ImageRejected

MAX_IMAGES: Final = 1000
MAX_KEYS: Final = 16
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9][A-Za-z0-9._-]{0,200})\Z")
_UNTIL = "# valid-until:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A verified list; only `verify` makes one.

    Args:
        sha256: 32 bytes by the name of the file, as it is served.
        signed_by: Name of the key.
    """

    sha256: Mapping[str, bytes]
    signed_by: str

    def digest_of(self, name: str) -> bytes:
        """Return the SHA-256 that the file *name* must have.

        Raises:
            ImageRejected: The list does not name it.
        """
        try:
            return self.sha256[name]
        except KeyError:
            raise ImageRejected(f"the signed list names no image {name!r}") from None


def parse_keys(text: str) -> tuple[VerifierKey, ...]:
    """Return the keys in *text*: vkeys with commas or white space between them; `#` begins a remark to its line's end.

    Raises:
        UsageError: None, too many, or something else.
    """
    words = [w for line in text.split("\n") for w in line.partition("#")[0].replace(",", " ").split()]
    if not 1 <= len(words) <= MAX_KEYS:
        raise UsageError(f"image keys: {len(words)} found, 1 to {MAX_KEYS} needed")
    try:
        keys = tuple(parse_vkey(word) for word in words)
    except MalformedNote as e:
        raise UsageError(f"image keys: {e}") from e
    if any(key.type is not KeyType.ED25519 for key in keys):
        raise UsageError("image keys: a list is signed by Ed25519, type 0x01")
    return keys


def verify(data: bytes, *, keys: Sequence[VerifierKey], at: datetime) -> Images:
    """Return the list in *data*, if a key of *keys* signed it.

    Args:
        data: A note, at most 128 KiB.
        keys: Those that the medium pins.
        at: Now, UTC.

    Raises:
        ImageRejected: Not signed by any of them, expired, or no list.
    """
    try:
        note = parse_note(data)
    except MalformedNote as e:
        raise ImageRejected(f"the list of images is no signed note: {e}") from e
    # 1. A pinned key signed exactly this text. Until this holds, no line of it is ours to read.
    signed_by = None
    for line in note.signatures:
        for key in keys:
            if (line.name, line.key_id) != (key.name, key.key_id):
                continue
            try:
                Ed25519PublicKey.from_public_bytes(key.key).verify(line.value, ed25519_message(note.text))
            except (InvalidSignature, ValueError) as e:
                raise ImageRejected(f"the list of images has a wrong signature of {key.name}") from e
            signed_by = key.name
    if signed_by is None:
        raise ImageRejected("the list of images is signed by no key that the medium pins")
    return Images(sha256=MappingProxyType(_read(note.text, at)), signed_by=signed_by)


def _read(text: str, at: datetime) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for line in text.split("\n"):
        if line.startswith(_UNTIL):
            # 2. In its time: an old list names old images, which have holes that everybody knows.
            try:
                until = parse_rfc3339(line.removeprefix(_UNTIL).strip())
            except ValueError as e:
                raise ImageRejected("the list of images has an end that is no time") from e
            if at >= until:
                raise ImageRejected(f"the list of images ended at {rfc3339(until)}; it is {rfc3339(at)} here")
        if not line or line.startswith("#"):
            continue
        named = _LINE.match(line)
        # 3. One meaning: a name twice could be read as either.
        if named is None or named[2] in found or len(found) >= MAX_IMAGES:
            raise ImageRejected("the list of images has a line that is none, a name twice, or too many")
        found[named[2]] = bytes.fromhex(named[1])
    if not found:
        raise ImageRejected("the list of images is empty")
    return found


def sign(
    digests: Iterable[tuple[str, bytes]], *, key: NoteKey, name: str, until: datetime | None
) -> tuple[str, VerifierKey]:
    """Return the signed list of *digests*, by name of file, and the key to pin.

    Raises:
        ImageRejected: It would not be read back.
        UsageError: *name* cannot be that of a key.
    """
    lines = [f"{_UNTIL} {rfc3339(until)}"] if until is not None else []
    text = "\n".join([*lines, *(f"{digest.hex()}  {file}" for file, digest in sorted(digests))]) + "\n"
    try:
        public = VerifierKey(name=name, type=KeyType.ED25519, key=key.public_key)
    except MalformedEvidence as e:
        raise UsageError(f"name of the key: {e}") from e
    note = signed_note(text, [signature_line(public, key.sign(ed25519_message(text)))])
    # What no kiosk would take is told to who signs.
    verify(note.encode(), keys=(public,), at=datetime.min.replace(tzinfo=UTC))
    return note, public
