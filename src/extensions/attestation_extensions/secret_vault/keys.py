"""The keys of the vault: the key-encryption keys it was given, and the key of its marks, which lies under them.

A mark vouches for the terms of a secret and for a grant: a person who writes to the database and has no KEK can neither
let a machine have a secret nor take a rule away. A mark cannot tell an old row from the newest; the audit log can.
"""

# Algorithms for: kept-secret, master-key
from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from attestation.errors import KeyUnusable
from attestation.extension import Context, Store, canonical_json
from attestation.keys import KEK, KeyOptions, LocalKEK, open_keks
from attestation_extensions.secret_vault.records import Secrets

_KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_SCRYPT_N: Final = 1 << 16
"""64 MiB and about a fifth of a second, once for each start of a worker (RFC 7914)."""
_SCRYPT_MEMORY: Final = 128 << 20
_HEX: Final = re.compile(r"[0-9A-Fa-f]{64}")
_MARKS: Final = "marks"
_SALT: Final = "salt"
_AAD: Final = b"itl-secret-vault/1 marks"


class Keys:
    """See the module; made by `open_keys`."""

    def __init__(self, keks: Mapping[str, KEK]) -> None:
        self._keks = keks
        self.newest = next(iter(keks.values()))
        self._marks = b""

    async def begin(self, store: Store) -> None:
        """Open the key of the marks; make it where there is none, and bring it under the newest KEK.

        Raises:
            KeyUnusable: It lies under a KEK that is not set.
            UnwrapFailed: It is not what was wrapped.
            SignerUnavailable: A device does not answer.
        """
        newest = self.newest
        made = await asyncio.to_thread(newest.wrap, secrets.token_bytes(_KEY_BYTES), _AAD)
        kek_id, wrapped = await store.write(lambda tx: tx.of(Secrets).key(_MARKS, newest.key_id, made))
        self._marks = await asyncio.to_thread(self.of(kek_id).unwrap, wrapped, _AAD)
        if kek_id != newest.key_id:
            again = await asyncio.to_thread(newest.wrap, self._marks, _AAD)
            await store.write(
                lambda tx: tx.of(Secrets).rewrap_key(_MARKS, kek_id, kek_id=newest.key_id, wrapped=again)
            )

    def of(self, kek_id: str) -> KEK:
        """Return the KEK of this name.

        Raises:
            KeyUnusable: It is not set.
        """
        found = self._keks.get(kek_id)
        if found is None:
            raise KeyUnusable(f"secrets lie under a key-encryption key that is not set: {kek_id}")
        return found

    def mark(self, terms: Iterable[str | int | None]) -> bytes:
        """Return what vouches for *terms*: HMAC-SHA-384, 48 bytes."""
        return hmac.digest(self._marks, canonical_json({"terms": list(terms)}), "sha384")

    def vouches(self, mark: bytes, terms: Iterable[str | int | None]) -> bool:
        """Return True where *mark* was made here for *terms*."""
        return hmac.compare_digest(mark, self.mark(terms))

    def close(self) -> None:
        """Let go of them; may ask devices."""
        for each in self._keks.values():
            each.close()


class Vault(Protocol):
    """The extension, once it began."""

    context: Context
    keys: Keys


async def open_keys(
    store: Store, options: KeyOptions, *, uris: Sequence[str], master_key: str | None
) -> Keys:
    """Open the KEKs that *uris* name, the first of which is for what is new, then the master key, and begin.

    Args:
        store: Where the salt and the key of the marks are kept.
        options: PKCS#11 modules.
        uris: Key URIs.
        master_key: 64 hexadecimal digits, or a passphrase.

    Raises:
        KeyUnusable: There is none, or it does not open what is kept; subclasses say why.
        SignerUnavailable: A device does not answer.
    """
    opened = await asyncio.to_thread(open_keks, uris, options)
    with contextlib.ExitStack() as opened_so_far:
        for each in opened.values():
            opened_so_far.callback(each.close)
        if master_key:
            master = await _from_master_key(store, master_key)
            opened.setdefault(master.key_id, master)
        if not opened:
            raise KeyUnusable("the vault needs a key-encryption key: ITL_EXT_SECRET_VAULT_KEK names one")
        keys = Keys(opened)
        await keys.begin(store)
        opened_so_far.pop_all()
    return keys


async def _from_master_key(store: Store, text: str) -> KEK:
    if _HEX.fullmatch(text):
        return LocalKEK(bytes.fromhex(text))
    made = secrets.token_bytes(_SALT_BYTES)
    _, salt = await store.write(lambda tx: tx.of(Secrets).key(_SALT, "", made))
    key = await asyncio.to_thread(
        hashlib.scrypt,
        text.encode(),
        salt=salt,
        n=_SCRYPT_N,
        r=8,
        p=1,
        maxmem=_SCRYPT_MEMORY,
        dklen=_KEY_BYTES,
    )
    return LocalKEK(key)
