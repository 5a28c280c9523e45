"""Private keys in files: PEM, PKCS#8, of mode 0600, encrypted unless the deployment says that they need not be.

A new key is encrypted with PBES2 (RFC 8018 §6.2): PBKDF2 with HMAC-SHA-384 and 210,000 iterations, AES-256 in CBC
mode. Any EncryptedPrivateKeyInfo that cryptography can decrypt is read. It appears complete or not at all, once,
however many processes make it at the same time.
"""

# Algorithms for: ca-key, machine-token, key-file
from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.padding import PKCS7
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from attestation.errors import KeyMismatch, KeyNotFound, KeyUnsupported, KeyUnusable, PINRejected
from attestation.keys.open import Algorithm, CAPrivateKey, KeyOptions, OpenKey
from attestation.keys.secrets import SecretSource, secret_source
from attestation.keys.uri import FileRef, KeyRef
from attestation.wire import pem, tlv

MAX_KEY_FILE_BYTES: Final = 65_536
PBKDF2_ITERATIONS: Final = 210_000
"""Costs about 0.1 s each time a key is opened."""

_ENCRYPTED: Final = "ENCRYPTED PRIVATE KEY"

_MAKE: Final[dict[Algorithm, Callable[[], CAPrivateKey]]] = {
    "ecdsa-p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ecdsa-p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "rsa-4096": lambda: rsa.generate_private_key(public_exponent=65537, key_size=4096),
    "ml-dsa-87": MLDSA87PrivateKey.generate,
}


def open_key(ref: KeyRef, options: KeyOptions) -> OpenKey:
    """Open the key in the file; see `attestation.keys.open.open_key`."""
    assert isinstance(ref, FileRef)
    key = load_private_key(ref, options)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | MLDSA87PrivateKey):
        raise KeyUnsupported(f"the key in {ref.path} is of a kind that signs no certificates")
    return OpenKey(key, ref=ref, origin="file", backend="file")


def create_key(ref: KeyRef, algorithm: Algorithm, options: KeyOptions) -> OpenKey:
    """Make the file unless it is there, then open it; see `attestation.keys.open.create_key`."""
    assert isinstance(ref, FileRef)
    make_once(ref, _MAKE[algorithm], options)
    opened = open_key(ref, options)
    if opened.algorithm != algorithm:
        raise KeyMismatch(f"the key in {ref.path} is {opened.algorithm}; {algorithm} expected")
    return opened


def load_private_key(ref: FileRef, options: KeyOptions) -> PrivateKeyTypes:
    """Return the private key in the file, of whatever kind it is.

    Raises:
        KeyNotFound: There is no such file.
        PINRejected: The passphrase is not that of the file.
        KeyUnusable: Unreadable, readable by others, plaintext where that is not allowed, or no private key.
    """
    pem = read_private(ref.path, copy=options.copies)
    encrypted = _ENCRYPTED.encode() in pem
    if not encrypted and not options.allow_unencrypted:
        raise KeyUnusable(f"the key in {ref.path} is not encrypted")
    passphrase = _passphrase(ref, options) if encrypted else None
    if encrypted and passphrase is None:
        raise KeyUnusable(f"the key in {ref.path} is encrypted, and nothing says with which passphrase")
    try:
        return load_pem_private_key(pem, password=passphrase() if passphrase else None)
    except UnsupportedAlgorithm as e:
        raise KeyUnsupported(f"the key in {ref.path} is of a kind or encryption that is not supported") from e
    except (ValueError, TypeError) as e:
        if encrypted:
            raise PINRejected(f"the passphrase does not decrypt the key in {ref.path}") from e
        raise KeyUnusable(f"{ref.path} holds no PEM private key") from e


def make_once(ref: FileRef, make: Callable[[], PrivateKeyTypes], options: KeyOptions) -> None:
    """Put a new key of *make* where *ref* points, unless there is a file.

    Raises:
        KeyUnusable: Nothing says how to encrypt it, and plaintext is not allowed; or it cannot be written.
    """
    if ref.path.exists():
        return
    passphrase = _passphrase(ref, options)
    if passphrase is None and not options.allow_unencrypted:
        raise KeyUnusable(f"no key is made in {ref.path}: nothing says with which passphrase to encrypt it")
    # Read before anything is made, so that a source that gives nothing leaves nothing behind.
    secret = passphrase() if passphrase else None
    create_once(ref.path, lambda: pem_of(make(), secret))


def pem_of(key: PrivateKeyTypes, passphrase: bytes | None) -> bytes:
    """Return *key* as PKCS#8 PEM, encrypted where there is a *passphrase*."""
    if passphrase is None:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pkcs8 = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return pem(_ENCRYPTED, _encrypted(pkcs8, passphrase)).encode()


def create_once(path: Path, make: Callable[[], bytes]) -> None:
    """Write what *make* returns to *path* unless somebody else has meanwhile; complete or not at all, mode 0600.

    Raises:
        KeyUnusable: It cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (path.parent / f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write(path, make())
    except OSError as e:
        raise KeyUnusable(f"no key can be written to {path}: {e.strerror}") from e


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.new")
    # A file that a crash left, or a stranger put there, may be open elsewhere: the key goes into a new one.
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_private(path: Path, *, copy: bool = False) -> bytes:
    """Return the content of *path*, judged by the file that was opened, not by the name.

    Args:
        path: Where it lies.
        copy: It is tried, not used: owner and mode do not matter.

    Raises:
        KeyNotFound: There is no such file.
        KeyUnusable: It cannot be read, others may read it, or it belongs to somebody else.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not copy and status.st_mode & 0o077:
                raise KeyUnusable(f"{path} may be read by others; its mode must be 0600: chmod 0600 {path}")
            if not copy and status.st_uid not in (os.geteuid(), 0):
                raise KeyUnusable(
                    f"{path} belongs to user {status.st_uid}, and the service runs as {os.geteuid()}: run it as the "
                    f"owner, or chown {os.geteuid()} {path}"
                )
            content = file.read(MAX_KEY_FILE_BYTES + 1)
    except FileNotFoundError as e:
        raise KeyNotFound(f"{path} cannot be read: {e.strerror}") from e
    except OSError as e:
        raise KeyUnusable(f"{path} cannot be read: {e.strerror}") from e
    if len(content) > MAX_KEY_FILE_BYTES:
        raise KeyUnusable(f"{path} is longer than any key")
    return content


def _passphrase(ref: FileRef, options: KeyOptions) -> SecretSource | None:
    return secret_source(ref.passphrase_source) if ref.passphrase_source else options.passphrase


# ---------------------------------------------------------------- EncryptedPrivateKeyInfo (RFC 5958 §3)

_PBES2: Final = bytes.fromhex("06092a864886f70d01050d")
_PBKDF2: Final = bytes.fromhex("06092a864886f70d01050c")
_HMAC_SHA384: Final = bytes.fromhex("06082a864886f70d020a0500")
"""OBJECT IDENTIFIER id-hmacWithSHA384, NULL."""
_AES256_CBC: Final = bytes.fromhex("060960864801650304012a")
_INTEGER, _OCTETS, _SEQUENCE = 0x02, 0x04, 0x30
_SALT_BYTES: Final = 32


def _encrypted(pkcs8: bytes, passphrase: bytes) -> bytes:
    """Return the DER of EncryptedPrivateKeyInfo around *pkcs8*, the DER of a PrivateKeyInfo."""
    salt, iv = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(16)
    kdf = PBKDF2HMAC(hashes.SHA384(), 32, salt, PBKDF2_ITERATIONS)
    cipher = Cipher(algorithms.AES256(kdf.derive(passphrase)), modes.CBC(iv)).encryptor()
    padding = PKCS7(128).padder()
    padded = padding.update(pkcs8) + padding.finalize()
    parameters = (
        tlv(_OCTETS, salt) + tlv(_INTEGER, PBKDF2_ITERATIONS.to_bytes(3)) + tlv(_SEQUENCE, _HMAC_SHA384)
    )
    derivation = tlv(_SEQUENCE, _PBKDF2 + tlv(_SEQUENCE, parameters))
    encryption = tlv(_SEQUENCE, _AES256_CBC + tlv(_OCTETS, iv))
    algorithm = tlv(_SEQUENCE, _PBES2 + tlv(_SEQUENCE, derivation + encryption))
    return tlv(_SEQUENCE, algorithm + tlv(_OCTETS, cipher.update(padded) + cipher.finalize()))
