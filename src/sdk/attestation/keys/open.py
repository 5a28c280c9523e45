"""Private keys opened and made by URI, whatever holds them.

One table says which module serves a scheme. A back-end is a module with two functions, `open_key(ref, options)`
and `create_key(ref, algorithm, options)`, and is imported when the first key of its scheme is asked for: a
service with keys in files loads no PKCS#11 library.
"""

# Algorithms for: ca-key, machine-token
from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast, get_args

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey, MLDSA87PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from attestation.errors import (
    AttestationError,
    KeyNotFound,
    KeyUnsupported,
    ModuleNotListed,
    ModuleUnusable,
    PINRejected,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.hsm import KeyOrigin, KeyType
from attestation.keys.secrets import SecretSource
from attestation.keys.selftest import self_test
from attestation.keys.uri import FileRef, KeyRef, PKCS11Ref, TPM2Ref, parse_key_uri

Algorithm = KeyType
"""What is made. Others are opened, too: what a back-end cannot sign with is `KeyUnsupported`."""

ALGORITHMS: Final[tuple[Algorithm, ...]] = get_args(Algorithm)

Origin = KeyOrigin
"""`generated`: made inside the token and never outside; `provisioned`: brought into it."""

CAPrivateKey = EllipticCurvePrivateKey | RSAPrivateKey | MLDSA87PrivateKey
CAPublicKey = EllipticCurvePublicKey | RSAPublicKey | MLDSA87PublicKey


def _no_opinion(algorithm: str) -> None:
    """Allow every algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """What the deployment, not the URI, decides.

    Args:
        passphrase: Of a file, where its URI names no source. Also the PIN or authorization value of another
            back-end, likewise.
        allow_unencrypted: A file may lie there in plaintext; without a passphrase new ones do.
        modules: PKCS#11 modules by name; no URI names a library.
        test_key: Label of a key beside those on a PKCS#11 token that makes the test signatures in their place.
        allowed: Raises AlgorithmForbidden for the name of an algorithm that the policy in force forbids.
        copies: Copies are tried, not used: whose a file is and who may read it is not asked. What was unpacked by root
            belongs to the user of a service, and media without owners say nothing.
    """

    passphrase: SecretSource | None = None
    allow_unencrypted: bool = False
    modules: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    test_key: str | None = None
    allowed: Callable[[str], None] = _no_opinion
    copies: bool = False


class OpenKey:
    """A private key that can sign now.

    Args:
        private_key: A subclass of cryptography's private-key class: certificates, CRLs, requests and OCSP
            responses are built with it as with any other. Where a device holds it, `sign` blocks and refuses to
            run on the thread of an event loop.
        ref: What named it.
        origin: Where it was made.
        backend: Who signs: `file`, `pkcs11`, `tpm2`.
        close: Lets go of what the back-end holds for this key; called once.
    """

    def __init__(
        self,
        private_key: CAPrivateKey,
        *,
        ref: KeyRef,
        origin: Origin,
        backend: str,
        close: Callable[[], None] | None = None,
    ) -> None:
        self.private_key = private_key
        self.ref = ref
        self.origin: Origin = origin
        self.backend = backend
        self._close = close

    @property
    def public_key(self) -> CAPublicKey:
        """The public half: a native object of cryptography."""
        return self.private_key.public_key()

    @property
    def uri(self) -> str:
        """The URI without its query."""
        return self.ref.shown

    @property
    def algorithm(self) -> str:
        """Name of its algorithm as `algorithm_of` gives it."""
        return algorithm_of(self.public_key)

    def self_test(self, public_key: CAPublicKey) -> None:
        """Sign a fresh test message and verify it under *public_key*, e.g. that of the CA's certificate.

        Blocks as a signature does: call it from a thread.

        Raises:
            KeyMismatch: The key is another one.
            SignerUnavailable: Its device does not sign now.
        """
        self_test(self.private_key, public_key)

    def close(self) -> None:
        """Let go of the key; may be called twice."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __repr__(self) -> str:
        return f"<OpenKey {self.uri} {self.algorithm} {self.origin}>"


class Backend(Protocol):
    """The two functions of a module that serves a scheme."""

    def open_key(self, ref: KeyRef, options: KeyOptions) -> OpenKey:
        """Open the key that is there.

        Raises:
            KeyNotFound: Nothing is there.
        """
        ...

    def create_key(self, ref: KeyRef, algorithm: Algorithm, options: KeyOptions) -> OpenKey:
        """Make a key, unless one is there."""
        ...


BACKENDS: Final[Mapping[type, str]] = MappingProxyType(
    {
        FileRef: "attestation.keys.file",
        PKCS11Ref: "attestation.keys.pkcs11",
        TPM2Ref: "attestation.keys.tpm2",
    }
)


def open_key(uri: str, options: KeyOptions) -> OpenKey:
    """Open the private key that *uri* names.

    Raises:
        KeyURIInvalid: The URI breaks a rule; PINInURI where it carries a secret.
        KeyNotFound: Nothing is there. Other subclasses of KeyUnusable: see `attestation.errors`.
        AlgorithmForbidden: The policy in force forbids its algorithm.
        SignerUnavailable: Its device does not answer now.
    """
    ref = parse_key_uri(uri)
    return _permitted(_backend(ref).open_key(ref, options), options)


def create_key(uri: str, algorithm: Algorithm, options: KeyOptions) -> OpenKey:
    """Make a key of *algorithm* where *uri* points and open it; one that is there already is opened instead.

    However many processes do this at the same time, all of them get the same key.

    Raises:
        KeyMismatch: There is one, of another algorithm.
        KeyUnsupported: The back-end cannot make such keys.
        KeyUnusable: As `open_key`.
        AlgorithmForbidden: The policy in force forbids *algorithm*; nothing was made.
    """
    options.allowed(algorithm)
    ref = parse_key_uri(uri)
    return _permitted(_backend(ref).create_key(ref, algorithm, options), options)


def _permitted(key: OpenKey, options: KeyOptions) -> OpenKey:
    try:
        options.allowed(key.algorithm)
    except BaseException:
        key.close()
        raise
    return key


def is_away(uri: str, error: AttestationError) -> bool:
    """Return True where *error*, met while opening the key that *uri* names, may pass without other settings.

    A device that does not answer, is not plugged in, shows nothing for the moment, or refuses a PIN whose file may
    say another soon: whoever needs the key goes without it and asks again. A file is there or is not.
    """
    if isinstance(error, SignerUnavailable):
        return True
    if isinstance(error, ModuleNotListed):
        return False
    return not isinstance(parse_key_uri(uri), FileRef) and isinstance(error, _PASSING)


_PASSING: Final = (TokenAbsent, PINRejected, KeyNotFound, ModuleUnusable)


def algorithm_of(key: CAPublicKey) -> str:
    """Return the name of the algorithm of *key*, for example `ecdsa-p384`, `rsa-4096`, `ml-dsa-87`."""
    if isinstance(key, EllipticCurvePublicKey):
        return f"ecdsa-p{key.key_size}"
    if isinstance(key, RSAPublicKey):
        return f"rsa-{key.key_size}"
    return "ml-dsa-87"


def _backend(ref: KeyRef) -> Backend:
    name = BACKENDS[type(ref)]
    try:
        return cast("Backend", importlib.import_module(name))
    except ModuleNotFoundError as e:
        raise KeyUnsupported(
            f"{ref.shown.partition(':')[0]}: keys need a package that is not installed ({e.name})"
        ) from e
