"""Key-encryption keys by URI: what extensions wrap the keys under that they keep in the database.

A copy of the database without the KEK opens nothing, nor does the KEK without the database.

    file:/…      64 hexadecimal digits (`openssl rand -hex 32`), mode 0600; wrapped = what `opener.seal` makes
    pkcs11:…     an RSA key on a token that unwraps and does nothing else; see `opener` for what is wrapped
    tpm2:…       an RSA key in a TPM that decrypts; likewise
"""

# Algorithms for: kept-secret
from __future__ import annotations

import contextlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from attestation.errors import KeyUnsupported, KeyUnusable
from attestation.keys.file import create_once, read_private
from attestation.keys.open import KeyOptions
from attestation.keys.opener import seal, unseal
from attestation.keys.uri import PKCS11Ref, TPM2Ref, parse_key_uri

KEK_BYTES: Final = 32
_TEXT: Final = re.compile(rb"([0-9A-Fa-f]{64})\r?\n?")


class KEK(Protocol):
    """A key-encryption key. Every method may ask a device and blocks: call them from a thread."""

    @property
    def key_id(self) -> str:
        """Its name, at most 64 characters of ASCII: the same wherever it is opened, and of no other key."""
        ...

    def wrap(self, plaintext: bytes, aad: bytes) -> bytes:
        """Return *plaintext*, 1 to 64 bytes, wrapped, and bound to *aad*: whose it is and what for.

        Raises:
            SignerUnavailable: The device does not answer now.
        """
        ...

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """Return what was wrapped with the same *aad*.

        Raises:
            UnwrapFailed: It was not wrapped so, or under another key.
            SignerUnavailable: The device does not answer now.
        """
        ...

    def close(self) -> None:
        """Let go of it; may be called twice."""
        ...


def open_kek(uri: str, options: KeyOptions | None = None) -> KEK:
    """Open the KEK that *uri* names; in the process that uses it, not before a fork.

    Raises:
        KeyURIInvalid: The URI breaks a rule.
        KeyNotFound: Nothing is there; nothing is made.
        KeyUnusable: It is no KEK, or others may read it.
    """
    options = options or KeyOptions()
    ref = parse_key_uri(uri)
    if isinstance(ref, PKCS11Ref):
        from attestation.keys.pkcs11 import kek as token  # here: the package it needs may be missing

        return token.open_kek(ref, options)
    if isinstance(ref, TPM2Ref):
        from attestation.keys.tpm2 import kek as tpm

        return tpm.open_kek(ref, options)
    if ref.passphrase_source is not None:
        raise KeyUnsupported("the file of a KEK is not encrypted")
    found = _TEXT.fullmatch(read_private(ref.path, copy=options.copies))
    if found is None:
        raise KeyUnusable(
            f"{ref.path} holds no KEK: 64 hexadecimal digits, as `openssl rand -hex 32` writes them"
        )
    return LocalKEK(bytes.fromhex(found[1].decode("ascii")))


def open_keks(uris: Iterable[str], options: KeyOptions | None = None) -> dict[str, KEK]:
    """Open the KEKs that *uris* name, the newest first; return each by its name, in this order.

    Raises:
        KeyURIInvalid, KeyNotFound, KeyUnusable: As `open_kek`; those that were opened before are closed.
    """
    found: dict[str, KEK] = {}
    with contextlib.ExitStack() as opened_so_far:
        for uri in uris:
            kek = open_kek(uri, options)
            opened_so_far.callback(kek.close)
            if found.setdefault(kek.key_id, kek) is not kek:
                kek.close()  # two URIs of one key
        opened_so_far.pop_all()
    return found


def create_kek(uri: str, options: KeyOptions | None = None) -> KEK:
    """Make a KEK where *uri* points unless one is there, and open it.

    Raises:
        KeyUnusable: Something else is there, or it cannot be made; subclasses say why.
    """
    options = options or KeyOptions()
    ref = parse_key_uri(uri)
    if isinstance(ref, PKCS11Ref):
        from attestation.keys.pkcs11.provision import create_kek as on_token  # here, likewise

        on_token(uri, options)
    elif isinstance(ref, TPM2Ref):
        from attestation.keys.tpm2 import kek as tpm

        tpm.create_kek(ref, options)
    else:
        create_once(ref.path, lambda: f"{secrets.token_hex(KEK_BYTES)}\n".encode("ascii"))
    return open_kek(uri, options)


class LocalKEK:
    """A KEK in memory; see `KEK`.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEK_BYTES:
            raise KeyUnusable(f"a KEK has {KEK_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)
        self._key_id = hmac.digest(key, b"itl-kek-id/1", "sha384")[:16].hex()

    @property
    def key_id(self) -> str:
        """The first 16 bytes of HMAC-SHA-384 of a fixed text under it, hex."""
        return self._key_id

    def wrap(self, plaintext: bytes, aad: bytes) -> bytes:
        """Wrap under a fresh nonce."""
        return seal(self._cipher, plaintext, aad)

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """Open, or refuse."""
        return unseal(self._cipher, wrapped, aad)

    def close(self) -> None:
        """Nothing is held but memory, which Python does not wipe."""

    def __repr__(self) -> str:
        return f"<LocalKEK {self._key_id}>"
