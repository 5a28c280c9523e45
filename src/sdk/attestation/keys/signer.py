"""The service's signing key, named by a URI."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from attestation.errors import AttestationError

ALGORITHM: Final = "ES384"


class KeyUnusable(AttestationError):
    """A key URI names no key that we can use."""

    code = "key-unusable"


class Signer(Protocol):
    """Something that signs JWTs with ES384 and shows the public half."""

    def sign_jwt(self, claims: dict[str, Any], *, typ: str) -> str:
        """Return *claims* as a compact JWS with header `alg`, `kid`, `typ`."""
        ...

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JWK set (RFC 7517)."""
        ...


class FileSigner:
    """A P-384 key in a PEM file of mode 0600.

    Args:
        pem: PKCS#8 or SEC1 PEM, unencrypted.

    Raises:
        KeyUnusable: Not a P-384 private key.
    """

    def __init__(self, pem: bytes) -> None:
        try:
            key = ECKey.import_key(pem)
        except (ValueError, TypeError, JoseError) as e:
            raise KeyUnusable("the signing key is not a PEM private key on P-384") from e
        if key.curve_name != "P-384" or not key.is_private:
            raise KeyUnusable(f"the signing key is on {key.curve_name}; a private key on P-384 expected")
        self.kid = key.thumbprint()
        self._key = key

    def sign_jwt(self, claims: dict[str, Any], *, typ: str) -> str:
        """Return *claims* as a compact JWS; costs about 0.25 ms, so nothing is signed that nobody asked for."""
        header = {"alg": ALGORITHM, "kid": self.kid, "typ": typ}
        return jwt.encode(header, claims, self._key, algorithms=[ALGORITHM])

    def jwks(self) -> dict[str, Any]:
        """Return the public key as a JWK set; `kid` is the RFC 7638 thumbprint."""
        public = self._key.as_dict(private=False)
        return {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": ALGORITHM}]}


def load_signer(uri: str, *, create: bool = False) -> Signer:
    """Return the signer that *uri* names.

    Args:
        uri: `file:/absolute/path`.
        create: Make the key where the file does not exist: once, however many processes start at the same
            time, mode 0600, synced before anybody uses it.

    Raises:
        KeyUnusable: Unknown scheme, no file, readable by others, or no such key in it.
    """
    return FileSigner(read_key_file(uri, make=_new_p384 if create else None))


def read_key_file(uri: str, *, make: Callable[[], bytes] | None) -> bytes:
    """Return the content of the private key file that *uri* names.

    Args:
        uri: `file:/absolute/path`.
        make: Returns the PEM of a new key, for where the file does not exist: called once, however many
            processes start at the same time; mode 0600, synced before anybody uses it. None: never make one.

    Raises:
        KeyUnusable: Unknown scheme, no file, or readable by others.
    """
    scheme, _, rest = uri.partition(":")
    if scheme in ("pkcs11", "tpm2"):
        raise KeyUnusable(f"{scheme}: keys are not supported by this version; use file:/path")
    if scheme != "file" or not rest.startswith("/"):
        raise KeyUnusable("a key is named by file:/absolute/path")
    path = Path(rest)
    if make is not None and not path.exists():
        _create_once(path, make)
    try:
        if path.stat().st_mode & 0o077:
            raise KeyUnusable(f"{path} may be read by others; its mode must be 0600")
        return path.read_bytes()
    except OSError as e:
        raise KeyUnusable(f"{path} cannot be read: {e.strerror}") from e


def _new_p384() -> bytes:
    return ec.generate_private_key(ec.SECP384R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def _create_once(path: Path, make: Callable[[], bytes]) -> None:
    """Write a new key to *path* unless somebody else has meanwhile; complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (path.parent / f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        pem = make()
        temporary = path.with_name(f".{path.name}.new")
        # A file that a crash left, or a stranger put there, may be open elsewhere: the key goes into a new one.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
