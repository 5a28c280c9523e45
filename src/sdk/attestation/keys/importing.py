"""A CA key that exists already, brought to where the CA's keys are: into a token, or into an encrypted file.

    import_kek     the key under which it is wrapped (RSA-3072): its private half never leaves the token, or is a file
                   beside the CA's, encrypted as they are
    wrap_key       elsewhere and offline (`attestation.keys.wrapping`)
    import_key     opens the blob, and keeps the key only if it is that of the certificate

Whatever is wrong with a blob is `UnwrapFailed` with the same words, as in `attestation.keys.pkcs11.provision`.
"""

# Algorithms for: ca-key, wrapped-key, key-file
from __future__ import annotations

from dataclasses import replace
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import keywrap
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_private_key

from attestation.errors import KeyAmbiguous, KeyUnsupported, KeyUnusable, UnwrapFailed
from attestation.hsm import OAEPHash
from attestation.keys import file
from attestation.keys.care import destroy_key
from attestation.keys.open import CAPublicKey, KeyOptions, OpenKey
from attestation.keys.uri import FileRef, KeyRef, PKCS11Ref, parse_key_uri
from attestation.keys.wrapping import HASHES, KEK_BITS, REFUSED

KEK_NAME: Final = "itl-import-kek"
"""Label of the key under which others are wrapped, or name of its file."""


def import_kek(base: KeyRef, options: KeyOptions) -> RSAPublicKey:
    """Return the key under which a CA key is wrapped for the place *base*; make it where there is none. Blocks.

    Args:
        base: A folder, or a token.
        options: For the back-ends.

    Raises:
        KeyUnsupported: A TPM, or a token that makes no such keys.
        KeyUnusable: It cannot be made, or what is there is none.
    """
    ref = _kek_ref(base)
    if isinstance(ref, FileRef):
        file.make_once(ref, lambda: rsa.generate_private_key(65537, KEK_BITS), options)
        return _kek(ref, options).public_key()
    from attestation.keys.pkcs11.provision import create_kek

    return create_kek(str(ref), options)


def import_key(
    uri: str,
    blob: bytes,
    base: KeyRef,
    *,
    oaep_hash: OAEPHash,
    public_key: CAPublicKey,
    options: KeyOptions,
) -> OpenKey:
    """Bring the key in *blob* to where *uri* points, and open it. Blocks.

    Args:
        uri: A place that no key has.
        blob: Of `attestation.keys.wrapping.wrap_key`, under the key of `import_kek`.
        base: As for `import_kek`.
        oaep_hash: As the blob was made.
        public_key: Whose private key it must be: it proves itself before it is kept.
        options: For the back-ends.

    Raises:
        UnwrapFailed: Anything is wrong with the blob; nothing of it is left.
        KeyAmbiguous: Something is there already.
        KeyUnsupported: A TPM, or a token that does not unwrap so.
        KeyUnusable: The key under which it is wrapped is not there, or cannot be used.
    """
    ref, kek_ref = parse_key_uri(uri), _kek_ref(base)
    if isinstance(ref, FileRef) and isinstance(kek_ref, FileRef):
        return _into_file(ref, blob, _kek(kek_ref, options), oaep_hash, public_key, options)
    if not isinstance(ref, PKCS11Ref) or not isinstance(kek_ref, PKCS11Ref):
        raise KeyUnsupported("the key under which it is wrapped is not where the key is to be")
    from attestation.keys.pkcs11.provision import unwrap_key

    if not isinstance(public_key, EllipticCurvePublicKey | RSAPublicKey):
        raise KeyUnsupported("only EC and RSA keys are brought into a token")
    return unwrap_key(
        uri, blob, str(kek_ref), oaep_hash=oaep_hash, certificate_or_public_key=public_key, options=options
    )


def drop_key(opened: OpenKey, uri: str, options: KeyOptions) -> None:
    """Take away a key that was brought, and that nobody agreed to. Blocks."""
    opened.close()
    if isinstance(ref := parse_key_uri(uri), FileRef):
        ref.path.unlink(missing_ok=True)
    else:
        destroy_key(uri, options)


def _kek_ref(base: KeyRef) -> FileRef | PKCS11Ref:
    if isinstance(base, FileRef):
        return replace(base, path=base.path / f"{KEK_NAME}.pem")
    if isinstance(base, PKCS11Ref):
        return base.with_object(KEK_NAME, None)
    raise KeyUnsupported("no key is brought into a TPM here: make the CA's keys in it instead")


def _kek(ref: FileRef, options: KeyOptions) -> RSAPrivateKey:
    found = file.load_private_key(ref, options)
    if not isinstance(found, RSAPrivateKey) or found.key_size < KEK_BITS:
        raise KeyUnusable(f"{ref.path} is no RSA key of at least {KEK_BITS} bits")
    return found


def _into_file(
    ref: FileRef,
    blob: bytes,
    kek: RSAPrivateKey,
    oaep_hash: OAEPHash,
    public_key: CAPublicKey,
    options: KeyOptions,
) -> OpenKey:
    if ref.path.exists():
        raise KeyAmbiguous(f"{ref.path} is there already; a key is never replaced")
    key = _unwrapped(blob, kek, oaep_hash)
    if key is None or key.public_key() != public_key:
        raise UnwrapFailed(REFUSED)
    file.make_once(ref, lambda: key, options)
    try:
        opened = file.open_key(ref, options)
        opened.self_test(public_key)
    except BaseException:
        ref.path.unlink(missing_ok=True)
        raise
    return opened


def _unwrapped(
    blob: bytes, kek: RSAPrivateKey, oaep_hash: OAEPHash
) -> EllipticCurvePrivateKey | RSAPrivateKey | None:
    """Return the key in *blob*; None for each fault, for who may send blobs would learn from a difference."""
    hashing, sealed = HASHES[oaep_hash], kek.key_size // 8
    try:
        aes_key = kek.decrypt(blob[:sealed], OAEP(MGF1(hashing), hashing, None))
        content = keywrap.aes_key_unwrap_with_padding(aes_key, blob[sealed:])
        key = load_der_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm, keywrap.InvalidUnwrap):
        return None
    return key if isinstance(key, EllipticCurvePrivateKey | RSAPrivateKey) else None
