"""Configurations as the database has them (AES-256-GCM). Pure.

    blob = version (1 byte, 0x01) ‖ nonce (12) ‖ ciphertext ‖ tag (16)

Each version has a secret of its own, 64 bytes, kept wrapped under the key-encryption key: the data key of its text, and
the key of the mark that lets it be delivered. The additional data of both name the place, the version, the SHA-256 of
the text and who imported it when: a row that is moved to another opens nothing. The mark is made when a version is
activated, so a person who writes to the database, and has no key-encryption key, can activate nothing that was never
activated here. That an older activation was put back, the audit log tells (docs/adr/0059).
"""

# Algorithms for: kept-secret
from __future__ import annotations

import hmac
import secrets
from dataclasses import asdict, dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from attestation.clock import rfc3339
from attestation.errors import UnwrapFailed
from attestation.keys import KEK
from attestation.store import ActiveConfiguration, Configuration, SealedConfiguration, WrappedConfiguration
from attestation.wire import canonical_json

VERSION: Final = b"\x01"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
_CONTEXT: Final = "itl-configuration/1"
_ACTIVE: Final = "itl-configuration-active/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A version that was opened.

    Args:
        text: The configuration, with its secrets.
        mark_key: Makes the mark that lets it be delivered.
    """

    text: bytes = field(repr=False)
    mark_key: bytes = field(repr=False)


def seal(text: bytes, about: Configuration, kek: KEK) -> SealedConfiguration:
    """Return *text* as it is kept. It may ask a device: call it from a thread.

    Args:
        text: Of the configuration.
        about: What it is; it names *kek*, and has the SHA-256 of *text*.
        kek: The key-encryption key.

    Raises:
        SignerUnavailable: The device of the key does not answer.
    """
    assert about.kek_id == kek.key_id
    secret, nonce, bound_to = secrets.token_bytes(2 * KEY_BYTES), secrets.token_bytes(NONCE_BYTES), _of(about)
    return SealedConfiguration(
        about=about,
        wrapped=kek.wrap(secret, bound_to),
        blob=VERSION + nonce + AESGCM(secret[:KEY_BYTES]).encrypt(nonce, text, bound_to),
    )


def unseal(sealed: SealedConfiguration, kek: KEK) -> Opened:
    """Return what was sealed for this place and version. It may ask a device: call it from a thread.

    Raises:
        UnwrapFailed: It was sealed for another one, under another key, or is changed.
        SignerUnavailable: The device of the key does not answer.
    """
    bound_to = _of(sealed.about)
    secret = kek.unwrap(sealed.wrapped, bound_to)
    head = len(VERSION) + NONCE_BYTES
    if len(secret) != 2 * KEY_BYTES or sealed.blob[: len(VERSION)] != VERSION:
        raise UnwrapFailed("not a configuration of this form")
    try:
        text = AESGCM(secret[:KEY_BYTES]).decrypt(
            sealed.blob[len(VERSION) : head], sealed.blob[head:], bound_to
        )
    except (InvalidTag, ValueError):  # also: shorter than a nonce
        raise UnwrapFailed("not a configuration that was sealed for this place and version") from None
    return Opened(text=text, mark_key=secret[KEY_BYTES:])


def rewrapped(sealed: WrappedConfiguration, old: KEK, new: KEK) -> bytes:
    """Return the secret of *sealed* under *new*; the text is not touched. Call it from a thread.

    Raises:
        UnwrapFailed: It does not lie under *old*, for this place and version.
        SignerUnavailable: A device does not answer.
    """
    bound_to = _of(sealed.about)
    return new.wrap(old.unwrap(sealed.wrapped, bound_to), bound_to)


def mark(opened: Opened, active: ActiveConfiguration) -> bytes:
    """Return what proves that *active*, but for its own mark, was written here: HMAC-SHA-384, 48 bytes."""
    members = {
        "context": _ACTIVE,
        **asdict(active.place),
        "version": active.version,
        "previous": active.previous,
        "sha256": active.sha256,
        "activated_at": rfc3339(active.activated_at),
        "activated_by": active.activated_by,
        "agreed": active.agreed,
    }
    return hmac.digest(opened.mark_key, canonical_json(members), "sha384")


def vouches(opened: Opened, active: ActiveConfiguration) -> bool:
    """Return True if the mark of *active* was made for it."""
    return hmac.compare_digest(active.mark, mark(opened, active))


def _of(about: Configuration) -> bytes:
    """Return what encryption binds of a version, canonical JSON: nothing runs into another.

    Not the name of the key-encryption key, which may be followed by another, nor the note.
    """
    return canonical_json(
        {
            "context": _CONTEXT,
            **asdict(about.place),
            "version": about.version,
            "sha256": about.sha256,
            "talos_version": about.talos_version,
            "created_at": rfc3339(about.created_at),
            "created_by": about.created_by,
        }
    )
