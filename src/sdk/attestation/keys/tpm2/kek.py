"""Data keys opened by an RSA key in a TPM: TPM2_RSA_Decrypt with OAEP and SHA-256."""

# Algorithms for: kept-secret, wrapped-key
from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from attestation.device import KeyType
from attestation.device.keys import DECRYPTION_ATTRIBUTES, is_unsupported, key_template
from attestation.errors import KeyUnusable, PINRejected, TPMResponseError, UnwrapFailed
from attestation.keys.open import KeyOptions
from attestation.keys.opener import CEK_BYTES, REFUSED, Opener
from attestation.keys.tpm2 import DEFAULT_TCTI, auth_of, found, make_once
from attestation.keys.tpm2.thread import HeldTPM, StoredKey, acquire, release
from attestation.keys.uri import KeyRef, TPM2Ref
from attestation.tpm import Alg, Attr, commands
from attestation.tpm.public import Public, Scheme

_OAEP: Final = Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA256)


def open_kek(ref: KeyRef, options: KeyOptions) -> Opener:
    """Open the KEK in the TPM; see `attestation.keys.kek.open_kek`."""
    assert isinstance(ref, TPM2Ref)
    thread = acquire(ref.tcti or DEFAULT_TCTI)
    try:
        where, public = found(thread, ref)
        key = _rsa(public, ref.shown)
        stored = StoredKey(shown=ref.shown, where=where, name=public.name, auth=auth_of(ref, options, where))

        pad = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
        probe = key.encrypt(bytes(CEK_BYTES), pad)

        def opened(connection: HeldTPM, sealed: bytes) -> bytes:
            loaded, auth_value = connection.use(stored)
            command = commands.rsa_decrypt(loaded.entity, sealed, _OAEP)
            return connection.tpm.execute(command, loaded.authorise(auth_value))

        def work(connection: HeldTPM, sealed: bytes) -> bytes:
            try:
                return opened(connection, sealed)
            except TPMResponseError:
                # Of what does not decrypt, TPMs say many things, also that they have failed. Then nothing decrypts.
                opened(connection, probe)
                raise UnwrapFailed(REFUSED) from None

        def decrypt(sealed: bytes) -> bytes:
            try:
                return thread.run(lambda connection: work(connection, sealed), shown=ref.shown)
            except PINRejected:
                stored.auth.refuse()
                raise

        decrypt(probe)
    except BaseException:
        release(thread)
        raise
    return Opener(key, pad, decrypt, close=lambda: release(thread))


def _rsa(public: Public, shown: str) -> RSAPublicKey:
    key = public.key()
    if (
        not isinstance(key, RSAPublicKey)
        or not public.attributes & Attr.DECRYPT
        or public.attributes & Attr.RESTRICTED
    ):
        raise KeyUnusable(f"{shown} is no RSA key that decrypts what it is given")
    return key


def create_kek(ref: KeyRef, options: KeyOptions) -> None:
    """Make a KEK where *ref* points unless one is there: RSA-3072 where the TPM makes such keys, else RSA-2048."""
    assert isinstance(ref, TPM2Ref)
    thread = acquire(ref.tcti or DEFAULT_TCTI)
    try:
        try:
            make_once(thread, ref, options, key_template(KeyType.RSA_3072, attributes=DECRYPTION_ATTRIBUTES))
        except TPMResponseError as e:
            if not is_unsupported(e):
                raise
            make_once(thread, ref, options, key_template(KeyType.RSA_2048, attributes=DECRYPTION_ATTRIBUTES))
    finally:
        release(thread)
