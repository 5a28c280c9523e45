r"""`manifest.json.sig`: a signed note (C2SP signed-note) over the SHA-256 of `manifest.json`.

Its text is two lines, `itl-tpm-bundle/1` and 64 lower-case hex digits; keys are Ed25519 (type 0x01), written as
vkeys. The first line keeps it apart from everything else that a key of notes may sign.
"""

# Algorithms for: trust-bundle
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
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
from attestation.endorsements.bundle import FORMAT
from attestation.errors import BundleInvalid, MalformedNote
from attestation.keys import NoteKey
from attestation.tpm_bundle.files import SIGNATURE, Contents

SIGNATURE_BYTES: Final = 64


def note_text(document: bytes) -> str:
    """Return what is signed for the manifest *document*."""
    return f"{FORMAT}\n{hashlib.sha256(document).hexdigest()}\n"


def verify_manifest(contents: Contents, keys: Sequence[VerifierKey]) -> VerifierKey:
    """Return the key of *keys* that signed the manifest.

    Args:
        contents: A bundle as read, in the layout with a manifest.
        keys: Whom to believe; one of them must have signed.

    Raises:
        BundleInvalid: None of them did.
    """
    what = f"{contents.where}/{SIGNATURE}"
    if contents.document is None or contents.signature is None:
        raise BundleInvalid(f"{what}: is missing, and a signature was asked for")
    try:
        note = parse_note(contents.signature)
    except MalformedNote as e:
        raise BundleInvalid(f"{what}: {e}") from e
    # 1. It speaks of these bytes. Otherwise a signature of an older bundle, or of something else, would do.
    if note.text != note_text(contents.document):
        raise BundleInvalid(f"{what}: speaks of another manifest")
    # 2. One of the keys that the caller believes made it. Names and key ids only find the line.
    for key in keys:
        if key.type is not KeyType.ED25519:
            continue
        for line in note.signatures:
            if (line.name, line.key_id) == (key.name, key.key_id) and _is_signed(key, line.value, note.text):
                return key
    raise BundleInvalid(f"{what}: not signed by {', '.join(key.name for key in keys) or 'anybody'}")


def sign_manifest(document: bytes, key: NoteKey, name: str) -> bytes:
    """Return `manifest.json.sig` for *document*, signed by an Ed25519 *key* under *name*."""
    text = note_text(document)
    verifier = VerifierKey(name=name, type=KeyType.ED25519, key=key.public_key)
    return signed_note(text, [signature_line(verifier, key.sign(ed25519_message(text)))]).encode()


def parse_keys(lines: Iterable[str]) -> tuple[VerifierKey, ...]:
    """Read vkeys, one a line.

    Raises:
        BundleInvalid: A line is none, or is not one of Ed25519.
    """
    keys = []
    for line in lines:
        try:
            key = parse_vkey(line.strip())
        except MalformedNote as e:
            raise BundleInvalid(f"key of a bundle: {e}") from e
        if key.type is not KeyType.ED25519:
            raise BundleInvalid(f"key of a bundle: {key.name} is not a key of Ed25519")
        keys.append(key)
    return tuple(keys)


def _is_signed(key: VerifierKey, signature: bytes, text: str) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key.key).verify(signature, ed25519_message(text))
    except (InvalidSignature, ValueError):
        return False
    return True
