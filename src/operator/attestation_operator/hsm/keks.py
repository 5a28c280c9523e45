"""Keys that wrap, and CA keys that came wrapped, on the tokens of a controller. Everything here blocks.

A key that wraps (KEK) is RSA-3072, made on the token, and unwraps only. Its label says for which issuer it is, and for
which edition of its spec: another edition has another key.
"""

# Algorithms for: wrapped-key
from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import (
    CAInvalid,
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyURIInvalid,
    SignerUnavailable,
)
from attestation.hsm import OAEPHash
from attestation.keys.care import destroy_key
from attestation.keys.open import CAPublicKey, OpenKey
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.hsm.authority import demand_chain
from attestation_operator.hsm.tokens import KeyName, Tokens

T = TypeVar("T")


def kek_label(uid: str, generation: int) -> str:
    """Return the label of the KEK for one edition of an issuer's spec."""
    return f"{_begin(uid)}{generation}"


def _begin(uid: str) -> str:
    return f"kek-{uid}-"


class KEKs:
    """KEKs, and what they unwrap.

    Args:
        tokens: The tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def make(self, token: HardwareSecurityModuleSpec, label: str, oaep_hash: OAEPHash) -> bytes:
        """Make a KEK, unless it is there; return its SubjectPublicKeyInfo, DER.

        It was tried once: a hash that the token does not have would be found out by the key that is handed over, when
        its nonce is spent.

        Raises:
            KeyUnsupported: The token makes none, or does not unwrap so.
            KeyUnusable, SignerUnavailable: As `attestation.keys.pkcs11.provision.create_kek`.
        """
        from attestation.keys.pkcs11.provision import create_kek, rehearse_kek

        uri, options = self._tokens.named(token, label)
        made = _of_a_token(lambda: create_kek(uri, options))
        rehearse_kek(uri, options, oaep_hash=oaep_hash)
        return _spki(made)

    def find(self, token: HardwareSecurityModuleSpec, label: str) -> bytes:
        """Return the SubjectPublicKeyInfo of the KEK that is there, DER.

        Raises:
            KeyNotFound: There is none; others as `make`.
        """
        from attestation.keys.pkcs11.provision import kek_of

        uri, options = self._tokens.named(token, label)
        return _spki(_of_a_token(lambda: kek_of(uri, options)))

    def destroy(self, token: HardwareSecurityModuleSpec, label: str) -> None:
        """Destroy a KEK; nothing where there is none."""
        self._destroy(token, label, any_that_begins=False)

    def destroy_all(self, token: HardwareSecurityModuleSpec, uid: str) -> None:
        """Destroy the KEKs of all editions of an issuer."""
        self._destroy(token, _begin(uid), any_that_begins=True)

    def _destroy(self, token: HardwareSecurityModuleSpec, label: str, *, any_that_begins: bool) -> None:
        from attestation.keys.pkcs11.provision import destroy_keks

        uri, options = self._tokens.named(token, label)
        _of_a_token(lambda: destroy_keks(uri, options, any_that_begins=any_that_begins))

    def load(
        self,
        token: HardwareSecurityModuleSpec,
        label: str,
        kek: str,
        blob: bytes,
        *,
        oaep_hash: OAEPHash,
        chain: Sequence[bytes],
        at: datetime,
    ) -> None:
        """Bring the CA key in *blob* into the token: it is there afterwards, of this certificate, or nothing is.

        What an attempt before left there is found by its label, and taken where it is the key of the certificate.

        Args:
            token: Which token.
            label: Of the CA key there.
            kek: Label of the key that unwraps it.
            blob: Of `attestation.keys.wrapping.wrap_key`.
            oaep_hash: What the issuer names.
            chain: Certificates of the CA, DER, its own first.
            at: Now.

        Raises:
            UnwrapFailed: Anything is wrong with the blob.
            KeyMismatch: There is another key of that label.
            CAInvalid: The certificate is none with which a CA may issue.
            KeyUnusable, SignerUnavailable: As `attestation.keys.pkcs11.provision.unwrap_key`.
        """
        from attestation.keys.pkcs11.provision import unwrap_key

        try:
            certificate = x509.load_der_x509_certificate(chain[0])
            public = certificate.public_key()
        except ValueError as e:
            raise CAInvalid("the first certificate of the bundle cannot be read") from e
        uri, options = self._tokens.named(token, label)
        kek_uri, _ = self._tokens.named(token, kek)
        try:
            there = self._tokens.open(token, KeyName(label=label)).public_key
        except KeyNotFound:
            try:
                opened = unwrap_key(
                    uri,
                    blob,
                    kek_uri,
                    oaep_hash=oaep_hash,
                    certificate_or_public_key=certificate,
                    options=options,
                )
            except KeyAmbiguous as e:
                there = self._loaded_meanwhile(token, label, e)
            else:
                there = opened.public_key
                opened.close()
        if there != public:
            raise KeyMismatch("a key of this issuer's label is on the token, of another certificate")
        try:
            demand_chain(chain, at=at)
        except CAInvalid:
            self.discard(token, label)
            raise

    def _loaded_meanwhile(
        self, token: HardwareSecurityModuleSpec, label: str, error: KeyAmbiguous
    ) -> CAPublicKey:
        """Return the key that another controller loaded at the same moment: the same bundle ends well for both.

        Raises:
            KeyAmbiguous: There are two.
            SignerUnavailable: Both took theirs away again; it is to be tried once more.
        """
        try:
            return self._tokens.open(token, KeyName(label=label)).public_key
        except KeyNotFound:
            raise SignerUnavailable(f"another controller loaded a key at the same moment: {error}") from error

    def discard(self, token: HardwareSecurityModuleSpec, label: str) -> None:
        """Destroy a CA key that was brought into the token and is not to be used; one that was made there stays."""
        try:
            key: OpenKey = self._tokens.open(token, KeyName(label=label))
        except KeyNotFound:
            return
        if key.origin == "provisioned":
            self._tokens.forget(token, KeyName(label=label))
            uri, options = self._tokens.named(token, label)
            destroy_key(uri, options)


def _of_a_token(work: Callable[[], T]) -> T:
    try:
        return work()
    except KeyURIInvalid as e:
        raise KeyUnsupported("a CA key is handed over to a PKCS#11 token alone, not to a TPM") from e


def _spki(key: RSAPublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
