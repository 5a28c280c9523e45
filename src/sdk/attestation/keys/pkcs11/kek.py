"""Data keys opened by a key-encryption key on a token: RSA-OAEP by C_UnwrapKey, which is all that such a key may do.

The AES key that comes out is one of the session, extractable, and gone with it. `provision` makes and checks the KEK.
"""

# Algorithms for: kept-secret, wrapped-key
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass
from pkcs11.exceptions import PKCS11Error

from attestation.errors import (
    KeyNotFound,
    KeyUnsupported,
    ModuleUnusable,
    SignerUnavailable,
    TokenAbsent,
    UnwrapFailed,
)
from attestation.hsm import OAEPHash
from attestation.keys.open import KeyOptions
from attestation.keys.opener import CEK_BYTES, REFUSED, Opener
from attestation.keys.pkcs11 import names_of
from attestation.keys.pkcs11 import thread as threads
from attestation.keys.pkcs11.ladder import name_of, step_for
from attestation.keys.pkcs11.modules import module_of
from attestation.keys.pkcs11.provision import OAEP, find_kek, no_such_parameter
from attestation.keys.uri import KeyRef, PKCS11Ref

_HASHES: Final[dict[OAEPHash, type[hashes.HashAlgorithm]]] = {"sha256": hashes.SHA256, "sha1": hashes.SHA1}


def open_kek(ref: KeyRef, options: KeyOptions) -> Opener:
    """Open the KEK on the token; see `attestation.keys.kek.open_kek`.

    OAEP has SHA-256 where the token knows it, else SHA-1 (SoftHSM 2.6).
    """
    assert isinstance(ref, PKCS11Ref)
    token, name = names_of(ref, options)
    thread = threads.acquire(*module_of(ref, options.modules))

    def unwrap(chosen: OAEPHash, sealed: bytes) -> bytes:
        def work(connection: threads.TokenSession) -> bytes:
            kek, _ = find_kek(connection.session, name)
            try:
                made = kek.unwrap_key(
                    ObjectClass.SECRET_KEY,
                    KeyType.AES,
                    sealed,
                    mechanism=Mechanism.RSA_PKCS_OAEP,
                    mechanism_param=OAEP[chosen],
                    store=False,
                    template={Attribute.SENSITIVE: False, Attribute.EXTRACTABLE: True},
                )
            except PKCS11Error as e:
                if no_such_parameter(e):
                    raise KeyUnsupported(f"the token of {ref.shown} does no OAEP with {chosen}") from e
                if (
                    step_for(e) is not None and name_of(e) != "GeneralError"
                ):  # which SoftHSM says of what it refuses
                    raise  # the session is gone, not the key: tried once more in another
                raise UnwrapFailed(REFUSED) from None
            try:
                return bytes(made[Attribute.VALUE])
            finally:
                with contextlib.suppress(PKCS11Error):
                    made.destroy()

        return thread.run(token, work)

    try:
        public = thread.run(token, lambda connection: find_kek(connection.session, name)[1])
        chosen, pad = _hash_of(unwrap, public, ref.shown)
    except BaseException:
        threads.release(thread)
        raise

    def unwrap_later(sealed: bytes) -> bytes:
        try:
            return unwrap(chosen, sealed)
        except (TokenAbsent, KeyNotFound, ModuleUnusable) as e:
            # It was there: it may come back, as a TPM that does not answer.
            raise SignerUnavailable(f"{ref.shown} cannot be used now: {e}") from e

    return Opener(public, pad, unwrap_later, close=lambda: threads.release(thread))


def _hash_of(
    unwrap: Callable[[OAEPHash, bytes], bytes], public: RSAPublicKey, shown: str
) -> tuple[OAEPHash, padding.OAEP]:
    """Return the first hash with which the token opens what was encrypted to *public*."""
    for chosen, made in _HASHES.items():
        pad = padding.OAEP(padding.MGF1(made()), made(), None)
        with contextlib.suppress(KeyUnsupported, UnwrapFailed):
            unwrap(chosen, public.encrypt(bytes(CEK_BYTES), pad))
            return chosen, pad
    raise KeyUnsupported(f"the token of {shown} unwraps no AES key with RSA-OAEP")
