"""The service's signing key, named by a URI: JWS and DSSE envelopes with ECDSA on P-384 and SHA-384."""

# Algorithms for: service-key, kept-key
from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc.jwk import ECKey

from attestation.errors import KeyUnsupported, KeyUnusable
from attestation.keys.open import KeyOptions, create_key, open_key
from attestation.wire import pae

ALGORITHM: Final = "ES384"

PLAINTEXT_ALLOWED: Final = KeyOptions(allow_unencrypted=True)
"""Keys of the service and of its audit log may lie in plaintext, mode 0600: they are its own identity, and a
passphrase beside them would guard nothing. A URI that names a passphrase has them encrypted."""


class Signer(Protocol):
    """Something that signs JWTs and envelopes with ES384 and shows the public half."""

    def sign_jwt(self, claims: dict[str, Any], *, typ: str) -> str:
        """Return *claims* as a compact JWS with header `alg`, `kid`, `typ`; blocks: never on an event loop.

        Raises:
            SignerUnavailable: The device that holds the key does not sign now.
        """
        ...

    def sign_dsse(self, payload: bytes, *, payload_type: str) -> bytes:
        """Return the signature of a DSSE envelope over *payload*, DER; blocks as `sign_jwt`.

        Raises:
            SignerUnavailable: As there.
        """
        ...

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JWK set (RFC 7517)."""
        ...

    def secret(self, purpose: bytes) -> bytes | None:
        """Return 32 bytes that only this key gives, others for each *purpose*; None where its device only signs."""
        ...


class KeySigner:
    """A private key on P-384, wherever it is.

    Args:
        key: The key; `attestation.keys.delegated` has those of devices.

    Raises:
        KeyUnusable: It is of another kind or curve.
    """

    def __init__(self, key: object) -> None:
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
            raise KeyUnusable("the signing key is no private key on P-384")
        self._key = key
        native = key.public_key()
        public = ECKey(native, native)
        self.kid = public.thumbprint()
        self._jwk = {**public.as_dict(private=False), "kid": self.kid, "use": "sig", "alg": ALGORITHM}

    def sign_jwt(self, claims: dict[str, Any], *, typ: str) -> str:
        """Return *claims* as a compact JWS; from a file about 0.25 ms, so nothing is signed that nobody asked for.

        The signature is r ‖ s, 48 bytes each, big-endian (RFC 7518 §3.4).
        """
        header = {"alg": ALGORITHM, "kid": self.kid, "typ": typ}
        signed = b".".join(
            _b64(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims)
        )
        r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA384())))
        return b".".join((signed, _b64(r.to_bytes(48) + s.to_bytes(48)))).decode()

    def sign_dsse(self, payload: bytes, *, payload_type: str) -> bytes:
        """Return the signature over the PAE of *payload*, DER.

        What begins with `DSSEv1` is no JWS: neither can be taken for the other.
        """
        return self._key.sign(pae(payload_type, payload), ec.ECDSA(hashes.SHA384()))

    def jwks(self) -> dict[str, Any]:
        """Return the public key as a JWK set; `kid` is the RFC 7638 thumbprint."""
        return {"keys": [dict(self._jwk)]}

    def secret(self, purpose: bytes) -> bytes | None:
        """Return 32 bytes by HKDF-SHA-384 from the private scalar, 48 bytes; None where a device holds it."""
        try:
            scalar = self._key.private_numbers().private_value
        except KeyUnsupported:
            return None
        return HKDF(hashes.SHA384(), length=32, salt=None, info=purpose).derive(scalar.to_bytes(48))


class FileSigner(KeySigner):
    """A P-384 key in PEM.

    Args:
        pem: PKCS#8 or SEC1 PEM, unencrypted.

    Raises:
        KeyUnusable: Not a P-384 private key.
    """

    def __init__(self, pem: bytes) -> None:
        super().__init__(_loaded(pem))


def load_signer(uri: str, *, create: bool = False, options: KeyOptions = PLAINTEXT_ALLOWED) -> Signer:
    """Return the signer that *uri* names.

    Args:
        uri: `file:`, `pkcs11:` or `tpm2:` (`attestation.keys.uri`).
        create: Make the key where there is none: once, however many processes start at the same time, durable
            before anybody uses it.
        options: See `KeyOptions`. A file may be unencrypted whatever they say.

    Raises:
        KeyUnusable: Unknown scheme, no key, readable by others, or of another kind; see `attestation.errors`.
        AlgorithmForbidden: The policy in force forbids ECDSA on P-384.
        SignerUnavailable: Its device does not answer now.
    """
    options = replace(options, allow_unencrypted=True)
    opened = create_key(uri, "ecdsa-p384", options) if create else open_key(uri, options)
    return KeySigner(opened.private_key)


def _loaded(pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as e:
        raise KeyUnusable("the signing key is no PEM private key on P-384") from e


def _b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
