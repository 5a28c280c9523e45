"""Keys of the TPM as certificates need them: a request signed by one, and the proof that it is there."""

# Algorithms for: certified-key, proof-of-possession
from __future__ import annotations

import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.x509.oid import NameOID

from attestation.device import KeyType, TPMKey
from attestation.errors import KeyUnsupported
from attestation.keys.delegated import DIGEST_INFO, DelegatedECKey, DelegatedRSAKey, RawSigner
from attestation.tpm import parse_public
from attestation_agent.shared_tpm import KeyTPM

DIGEST_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "ecdsa-sha256": 32,
        "ecdsa-sha384": 48,
        "rsa-pkcs1-sha256": 32,
        "rsa-pkcs1-sha384": 48,
        "rsa-pss-sha256": 32,
        "rsa-pss-sha384": 48,
    }
)
"""Algorithms of signatures -> length of the digest. The salt of PSS is as long as the digest."""

_BY_CURVE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"secp256r1": ("ecdsa-sha256",), "secp384r1": ("ecdsa-sha384",)}
)
_RSA: Final = tuple(name for name in DIGEST_BYTES if name.startswith("rsa"))
_CURVE_NAMES: Final = MappingProxyType({"secp256r1": "ecc-p256", "secp384r1": "ecc-p384"})


def key_type(setting: str) -> KeyType | None:
    """Return what `--certificate-key` means; None leaves it to the TPM."""
    return None if setting == "auto" else KeyType(setting)


def describe_key(key: TPMKey) -> str:
    """Return what kind of key it is, in the words of `--certificate-key`."""
    public = _public(key)
    if isinstance(public, rsa.RSAPublicKey):
        return f"rsa-{public.key_size}"
    return _CURVE_NAMES.get(public.curve.name, public.curve.name)


def algorithms_of(key: TPMKey) -> tuple[str, ...]:
    """Return what *key* can sign with."""
    public = _public(key)
    return _RSA if isinstance(public, rsa.RSAPublicKey) else _BY_CURVE.get(public.curve.name, ())


def sign_digest(tpm: KeyTPM, key: TPMKey, algorithm: str, digest: bytes) -> bytes:
    """Sign *digest*, as long as `DIGEST_BYTES` says, with *key*: ECDSA in DER, RSA as long as the modulus.

    Raises:
        DeviceError: The TPM refused or failed.
    """
    return tpm.sign(key, digest, pss=algorithm.startswith("rsa-pss"))


def proves_key(tpm: KeyTPM, key: TPMKey, public: object) -> bool:
    """True where the TPM signs with *key* what *public* verifies: 32 random bytes that nobody chose.

    Raises:
        TPMResponseError: The key is of another TPM, or from before this one was cleared.
        DeviceError: The TPM failed.
    """
    algorithm = hashes.SHA384() if algorithms_of(key)[:1] == ("ecdsa-sha384",) else hashes.SHA256()
    digest = secrets.token_bytes(algorithm.digest_size)
    signature = tpm.sign(key, digest)
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, digest, ec.ECDSA(utils.Prehashed(algorithm)))
        elif isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, digest, padding.PKCS1v15(), utils.Prehashed(algorithm))
        else:
            return False
    except InvalidSignature:
        return False
    return True


def make_request(tpm: KeyTPM, key: TPMKey, machine_id: str) -> x509.CertificateSigningRequest:
    """Return a PKCS#10 request for *key*, signed by it. Its subject is a courtesy: the service writes its own.

    Raises:
        DeviceError: The TPM refused or failed.
    """
    return request_for(tpm, key, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, machine_id)]))


def request_for(tpm: KeyTPM, key: TPMKey, subject: x509.Name) -> x509.CertificateSigningRequest:
    """Return a PKCS#10 request for *key* with *subject* and no extension, signed by it.

    Raises:
        DeviceError: The TPM refused or failed.
    """
    public = _public(key)
    signer = _InTPM(tpm, key)
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if isinstance(public, rsa.RSAPublicKey):
        return builder.sign(DelegatedRSAKey(signer, public, "tpm"), hashes.SHA256())
    algorithm = hashes.SHA384() if public.key_size > 256 else hashes.SHA256()
    return builder.sign(DelegatedECKey(signer, public, "tpm"), algorithm)


class _InTPM(RawSigner):
    """One key of the TPM, as cryptography's builders want it."""

    def __init__(self, tpm: KeyTPM, key: TPMKey) -> None:
        self._tpm = tpm
        self._key = key

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:
        return utils.decode_dss_signature(self._tpm.sign(self._key, digest))

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:
        # TPM2_Sign makes the DigestInfo itself, from the digest and the hash that its length tells.
        return self._tpm.sign(self._key, digest_info.removeprefix(DIGEST_INFO["sha256"]))


def _public(key: TPMKey) -> ec.EllipticCurvePublicKey | rsa.RSAPublicKey:
    public = parse_public(key.public).key()
    if not isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise KeyUnsupported("the key in the file is neither RSA nor ECC")
    return public
