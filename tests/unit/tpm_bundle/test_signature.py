"""`manifest.json.sig`: only a key that the caller believes, over exactly this manifest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attestation.audit.note import KeyType, VerifierKey, ed25519_message, signature_line, signed_note
from attestation.endorsements.bundle import Manifest
from attestation.errors import BundleInvalid
from attestation.keys import NoteKey
from attestation.keys.notes import Ed25519NoteKey
from attestation.tpm_bundle import read_directory, read_shipped
from attestation.tpm_bundle.files import SIGNATURE, Contents
from attestation.tpm_bundle.signature import note_text, parse_keys, sign_manifest, verify_manifest
from attestation.tpm_bundle.writing import write_directory

NAME = "itl.example/tpm-bundle"
DOCUMENT = b'{"format": "itl-tpm-bundle/1"}\n'


def _key(seed: int) -> tuple[NoteKey, VerifierKey]:
    key = Ed25519NoteKey(Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32)))
    return key, VerifierKey(name=NAME, type=KeyType.ED25519, key=key.public_key)


OURS, OUR_KEY = _key(1)
THEIRS, THEIR_KEY = _key(2)


def contents(signature: bytes | None, document: bytes | None = DOCUMENT) -> Contents:
    """Return a bundle with that manifest and signature."""
    manifest = Manifest(version=1, created=datetime(2026, 11, 21, tzinfo=UTC), entries=())
    return Contents(where="there", manifest=manifest, certificates=(), document=document, signature=signature)


GOOD = sign_manifest(DOCUMENT, OURS, NAME)


def test_a_signature_of_a_known_key_is_believed() -> None:
    """One of the keys given is enough; its name is told."""
    assert verify_manifest(contents(GOOD), [OUR_KEY]) == OUR_KEY
    assert verify_manifest(contents(GOOD), [THEIR_KEY, OUR_KEY]) == OUR_KEY
    assert GOOD.decode().startswith("itl-tpm-bundle/1\n")


def _cosigned() -> bytes:
    """A cosignature by the same key, of another meaning, with a time in front."""
    key = VerifierKey(name=NAME, type=KeyType.ED25519_COSIGNATURE, key=OURS.public_key)
    text = note_text(DOCUMENT)
    return signed_note(text, [signature_line(key, OURS.sign(ed25519_message(text)), time=1)]).encode()


def _renamed() -> bytes:
    """Their signature under our name and key id: those only find the line."""
    text = note_text(DOCUMENT)
    return signed_note(text, [signature_line(OUR_KEY, THEIRS.sign(ed25519_message(text)))]).encode()


def _short() -> bytes:
    return signed_note(note_text(DOCUMENT), [signature_line(OUR_KEY, b"short")]).encode()


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    ("signature", "match"),
    [
        (None, "is missing"),
        (b"", "empty line"),
        (b"junk", "empty line"),
        (sign_manifest(DOCUMENT, THEIRS, NAME), "not signed by"),
        (sign_manifest(DOCUMENT, OURS, "other.example"), "not signed by"),
        (sign_manifest(DOCUMENT + b" ", OURS, NAME), "another manifest"),
        (_cosigned(), "not signed by"),
        (_renamed(), "not signed by"),
        (_short(), "not signed by"),
    ],
    ids=[
        "none",
        "empty",
        "junk",
        "stranger",
        "other name",
        "other manifest",
        "cosignature",
        "renamed",
        "short",
    ],
)
def test_anything_else_is_refused(signature: bytes | None, match: str) -> None:
    """No signature, a stranger's, one of another manifest or another meaning."""
    with pytest.raises(BundleInvalid, match=match):
        verify_manifest(contents(signature), [OUR_KEY])


def test_no_flipped_bit_of_a_signature_is_believed() -> None:
    """Every bit counts, of the text and of the signature."""
    for where in range(len(GOOD)):
        for bit in range(8):
            data = bytearray(GOOD)
            data[where] ^= 1 << bit
            with pytest.raises(BundleInvalid):
                verify_manifest(contents(bytes(data)), [OUR_KEY])


def test_without_a_manifest_nothing_can_be_signed() -> None:
    """The seed form has none, whatever lies beside it."""
    with pytest.raises(BundleInvalid, match="is missing"):
        verify_manifest(contents(GOOD, document=None), [OUR_KEY])


def test_keys_of_other_kinds_sign_no_bundle() -> None:
    """A cosigner's key, even of the same bytes, and no key at all."""
    other = replace(OUR_KEY, type=KeyType.ED25519_COSIGNATURE)
    text = note_text(DOCUMENT)
    relabelled = signed_note(text, [signature_line(other, OURS.sign(ed25519_message(text)))]).encode()
    for keys, signature in (([other], GOOD), ([other], relabelled), ([], GOOD)):
        with pytest.raises(BundleInvalid, match="not signed by"):
            verify_manifest(contents(signature), keys)
    with pytest.raises(BundleInvalid, match="Ed25519"):
        parse_keys([str(other)])
    with pytest.raises(BundleInvalid, match="vkey"):
        parse_keys(["junk"])
    assert parse_keys([f" {OUR_KEY}\n"]) == (OUR_KEY,)


def test_a_folder_is_read_only_with_the_signature_that_was_asked_for(tmp_path: Path) -> None:
    """From the file, beside a manifest as it was written; changed afterwards it is refused."""
    shipped = read_shipped()
    assert shipped.document is not None
    ders = {entry.sha256: der for entry, der in shipped.certificates}
    write_directory(
        tmp_path / "b",
        shipped.manifest,
        ders,
        document=shipped.document,
        signature=sign_manifest(shipped.document, OURS, NAME),
    )
    assert read_directory(tmp_path / "b", [OUR_KEY]).signature
    with pytest.raises(BundleInvalid, match="not signed by"):
        read_directory(tmp_path / "b", [THEIR_KEY])
    (tmp_path / "b" / "manifest.json").write_bytes(shipped.document.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(BundleInvalid, match="another manifest"):
        read_directory(tmp_path / "b", [OUR_KEY])
    (tmp_path / "b" / SIGNATURE).unlink()
    with pytest.raises(BundleInvalid, match="is missing"):
        read_directory(tmp_path / "b", [OUR_KEY])
    assert read_directory(tmp_path / "b").signature is None
