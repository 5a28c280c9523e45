"""Private keys that somebody else holds, as cryptography's own classes.

The builders of certificates, CRLs, requests and OCSP responses demand real subclasses of the private-key classes
(pyca/cryptography #5921, #11616). These hash in software and hand the rest to a `RawSigner`. Nothing is ever
exported, copies are the key itself, and nobody signs on the thread of an event loop: devices take their time.
"""

# Algorithms for: device-key
from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, Protocol, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, utils
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurve,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    EllipticCurveSignatureAlgorithm,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from attestation.errors import KeyUnsupported, SignerUnavailable

HashName = Literal["sha256", "sha384", "sha512"]

DIGEST_INFO: Final = MappingProxyType(
    {
        "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
        "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
        "sha512": bytes.fromhex("3051300d060960864801650304020305000440"),
    }
)
"""DER of DigestInfo up to the digest (RFC 8017 §9.2 note 1)."""


_HASH_NAMES: Final[Mapping[type, HashName]] = {
    hashes.SHA256: "sha256",
    hashes.SHA384: "sha384",
    hashes.SHA512: "sha512",
}


class RawSigner(Protocol):
    """What a back-end offers for one key: the private operation, nothing around it.

    A back-end inherits from this and overrides what its key can do. All of it blocks, and may be called by any
    thread but that of an event loop.
    """

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:  # noqa: ARG002 -- what back-ends override
        """Return (r, s) over *digest*, which is not longer than the order of the curve.

        Raises:
            SignerUnavailable: Not now.
        """
        raise KeyUnsupported("this key does not sign with ECDSA")

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:  # noqa: ARG002 -- what back-ends override
        """Return the signature with PKCS#1 v1.5 over *digest_info*, the DER of a DigestInfo; as long as the modulus.

        Raises:
            SignerUnavailable: Not now.
        """
        raise KeyUnsupported("this key does not sign with RSA PKCS#1 v1.5")

    def sign_rsa_pss(self, digest: bytes, hash_name: HashName, salt_bytes: int) -> bytes:  # noqa: ARG002 -- what back-ends override
        """Return the PSS signature over *digest*: MGF1 with the same hash, salt as long as the digest.

        Raises:
            SignerUnavailable: Not now.
        """
        raise KeyUnsupported("this key does not sign with RSA PSS")


class _Delegated:
    """What keys of all kinds have in common.

    Args:
        raw: Signs.
        public_key: The native public key; `attestation.keys.selftest` proves that it belongs to it.
        name: The URI without its query, for messages.
    """

    _name: str

    @property
    def name(self) -> str:
        """The URI of the key without its query."""
        return self._name

    def private_bytes(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the key does not leave its device."""
        self._never("is not exported")

    private_numbers = private_bytes

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[Any, Any]) -> Self:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key in a device cannot be pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    def _never(self, what: str) -> NoReturn:
        raise KeyUnsupported(f"the private key {self._name} {what}")


class DelegatedECKey(_Delegated, EllipticCurvePrivateKey):
    """An ECDSA private key whose signatures somebody else makes."""

    def __init__(self, raw: RawSigner, public_key: EllipticCurvePublicKey, name: str) -> None:
        self._raw, self._public, self._name = raw, public_key, name

    def public_key(self) -> EllipticCurvePublicKey:
        """Return the native public key."""
        return self._public

    @property
    def curve(self) -> EllipticCurve:
        """The curve."""
        return self._public.curve

    @property
    def key_size(self) -> int:
        """Bits of the curve's order."""
        return self._public.key_size

    def sign(self, data: Any, signature_algorithm: EllipticCurveSignatureAlgorithm) -> bytes:
        """Return the DER signature (ECDSA-Sig-Value) over *data*.

        The digest is cut to the length of the curve (FIPS 186-5 §6.4.1): all our curves are whole bytes long, but
        P-521, and that is longer than any digest.

        Raises:
            ValueError: Not ECDSA, deterministic, or a digest of the wrong length.
            RuntimeError: Called on the thread of an event loop.
            SignerUnavailable: Not now.
        """
        _off_the_loop()
        if not isinstance(signature_algorithm, ECDSA) or signature_algorithm.deterministic_signing:
            raise ValueError("a key in a device signs with plain ECDSA")
        _, digest = _digest(bytes(data), signature_algorithm.algorithm)
        r, s = self._raw.sign_digest_ecdsa(digest[: (self.key_size + 7) // 8])
        if not (0 < r < 1 << self.key_size and 0 < s < 1 << self.key_size):
            raise SignerUnavailable(f"the device of {self._name} answered with what is no signature")
        return utils.encode_dss_signature(r, s)

    def exchange(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the key signs."""
        self._never("only signs")


class DelegatedRSAKey(_Delegated, RSAPrivateKey):
    """An RSA private key whose signatures somebody else makes."""

    def __init__(self, raw: RawSigner, public_key: RSAPublicKey, name: str) -> None:
        self._raw, self._public, self._name = raw, public_key, name

    def public_key(self) -> RSAPublicKey:
        """Return the native public key."""
        return self._public

    @property
    def key_size(self) -> int:
        """Bits of the modulus."""
        return self._public.key_size

    def sign(self, data: Any, padding: Any, algorithm: Any) -> bytes:
        """Return the signature over *data*, as long as the modulus.

        Raises:
            ValueError: Neither PKCS#1 v1.5 nor PSS with MGF1 of the same hash and a salt as long as the digest; a
                hash other than SHA-256, SHA-384, SHA-512; a digest of the wrong length.
            RuntimeError: Called on the thread of an event loop.
            SignerUnavailable: Not now.
        """
        _off_the_loop()
        hash_name, digest = _digest(bytes(data), algorithm)
        signature = self._padded(padding, hash_name, digest)
        if len(signature) != (self.key_size + 7) // 8:
            raise SignerUnavailable(f"the device of {self._name} answered with what is no signature")
        return signature

    def _padded(self, scheme: object, hash_name: HashName, digest: bytes) -> bytes:
        if isinstance(scheme, padding.PKCS1v15):
            return self._raw.sign_rsa_pkcs1(DIGEST_INFO[hash_name] + digest)
        if not isinstance(scheme, padding.PSS):
            raise ValueError("a key in a device signs with PKCS#1 v1.5 or PSS")  # noqa: TRY004 -- as cryptography does
        # cryptography shows neither the hash of MGF1 nor the length of the salt in public.
        mgf, salt = getattr(scheme.mgf, "_algorithm", None), getattr(scheme, "_salt_length", None)
        if getattr(mgf, "name", None) != hash_name:
            raise ValueError("MGF1 of a PSS signature uses the hash of the signature")
        if salt is not padding.PSS.DIGEST_LENGTH and salt != len(digest):
            raise ValueError("the salt of a PSS signature is as long as the digest")
        return self._raw.sign_rsa_pss(digest, hash_name, len(digest))

    def decrypt(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the key signs."""
        self._never("only signs")


def delegated(
    raw: RawSigner, public_key: EllipticCurvePublicKey | RSAPublicKey, name: str
) -> DelegatedECKey | DelegatedRSAKey:
    """Return *raw* as a private key of cryptography's."""
    if isinstance(public_key, EllipticCurvePublicKey):
        return DelegatedECKey(raw, public_key, name)
    return DelegatedRSAKey(raw, public_key, name)


def _digest(data: bytes, algorithm: object) -> tuple[HashName, bytes]:
    """Return the name of the hash, and the digest of *data*; with `Prehashed`, *data* is the digest.

    Raises:
        ValueError: Another hash than SHA-256, SHA-384, SHA-512, or a digest of the wrong length.
    """
    prehashed = isinstance(algorithm, utils.Prehashed)
    used = algorithm._algorithm if isinstance(algorithm, utils.Prehashed) else algorithm  # noqa: SLF001 -- it has no public name
    name = _HASH_NAMES.get(type(used))
    if name is None or not isinstance(used, hashes.HashAlgorithm):
        raise ValueError("a key in a device signs with SHA-256, SHA-384 or SHA-512")
    if prehashed:
        if len(data) != used.digest_size:
            raise ValueError(f"a digest of {used.name} has {used.digest_size} bytes")
        return name, data
    hashing = hashes.Hash(used)
    hashing.update(data)
    return name, hashing.finalize()


def _off_the_loop() -> None:
    """Refuse to block an event loop: a programming error, so nothing of ours catches it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("a key in a device signs in a thread, never on an event loop")
