"""Signatures by their AlgorithmIdentifier, over the bytes received (RFC 5754, 5758, 4055, 8410, 9881)."""

# Algorithms for: certified-key, proof-of-possession
from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from attestation.endorsements import der
from attestation.endorsements.certificate import signature_scheme
from attestation.errors import CSRInvalid, SignatureInvalid
from attestation.tpm.roca import is_roca_weak

MLDSAPublicKey = mldsa.MLDSA44PublicKey | mldsa.MLDSA65PublicKey | mldsa.MLDSA87PublicKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey | MLDSAPublicKey

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
RSA_EXPONENT: Final = 65537

_CURVES: Final[Mapping[str, str]] = {
    "secp256r1": "ecdsa-p256",
    "secp384r1": "ecdsa-p384",
    "secp521r1": "ecdsa-p521",
}
_BARE: Final[tuple[tuple[type, str, str], ...]] = (
    # Kind of key, its name, and the OID of its one signature algorithm, which has no parameters.
    (ed25519.Ed25519PublicKey, "ed25519", "1.3.101.112"),
    (mldsa.MLDSA44PublicKey, "ml-dsa-44", "2.16.840.1.101.3.4.3.17"),
    (mldsa.MLDSA65PublicKey, "ml-dsa-65", "2.16.840.1.101.3.4.3.18"),
    (mldsa.MLDSA87PublicKey, "ml-dsa-87", "2.16.840.1.101.3.4.3.19"),
)


def load_spki(spki: bytes) -> tuple[PublicKey, str]:
    """Return the key of a SubjectPublicKeyInfo, DER, and its algorithm, like `ecdsa-p384`, `rsa-3072`, `ml-dsa-87`.

    Only kinds that we certify (HSM-AND-KUBERNETES §7.1), and only in the one form that each key has: two ways to
    write a key would be two fingerprints of it.

    Raises:
        CSRInvalid: No key, a kind or size that is not certified, weak, or not in its canonical form.
    """
    try:
        key = load_der_public_key(spki)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise CSRInvalid("no public key of a kind that we know") from e
    if not isinstance(key, PublicKey):
        raise CSRInvalid("key of a kind that is not certified: ECC, RSA, Ed25519 or ML-DSA expected")
    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name not in _CURVES:
            raise CSRInvalid(f"key on {key.curve.name}; P-256, P-384 or P-521 expected")
        algorithm = _CURVES[key.curve.name]
    elif isinstance(key, rsa.RSAPublicKey):
        algorithm = _rsa(key)
    else:
        algorithm = _bare(key)[0]
    if key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != spki:
        raise CSRInvalid("the public key is not in the form that its algorithm prescribes")
    return key, algorithm


def _rsa(key: rsa.RSAPublicKey) -> str:
    numbers = key.public_numbers()
    if not MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        raise CSRInvalid(f"RSA key of {key.key_size} bits, {MIN_RSA_BITS} to {MAX_RSA_BITS} expected")
    if numbers.e != RSA_EXPONENT:
        raise CSRInvalid(f"RSA exponent other than {RSA_EXPONENT}")
    if is_roca_weak(numbers.n):
        raise CSRInvalid("the RSA modulus has the ROCA fingerprint (CVE-2017-15361)")
    return f"rsa-{key.key_size}"


def _bare(key: ed25519.Ed25519PublicKey | MLDSAPublicKey) -> tuple[str, str]:
    """Return the name of the kind of *key*, and the OID of its signature algorithm."""
    return next((name, oid) for kind, name, oid in _BARE if isinstance(key, kind))


def verify_signature(key: PublicKey, *, algorithm: bytes, signature: bytes, signed: bytes) -> None:
    """Verify *signature* over *signed*.

    Args:
        key: Whose it should be.
        algorithm: AlgorithmIdentifier, DER, header included.
        signature: As in the BIT STRING.
        signed: The bytes received, never a re-encoding.

    Raises:
        SignatureInvalid: It is not, or by an algorithm that proves nothing or belongs to another kind of key.
        MalformedEvidence: *algorithm* is no AlgorithmIdentifier.
    """
    scheme = signature_scheme(algorithm)
    refused = SignatureInvalid(f"signature algorithm {scheme.name} is not one for this key")
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            if scheme.kind != "ecdsa" or scheme.null_parameters or not _is_good(scheme.hash):
                raise refused
            assert scheme.hash is not None
            key.verify(signature, signed, ec.ECDSA(scheme.hash))
        elif isinstance(key, rsa.RSAPublicKey):
            if scheme.kind not in ("rsa", "pss") or not _is_good(scheme.hash):
                raise refused
            assert scheme.hash is not None
            if scheme.kind == "rsa":
                key.verify(signature, signed, padding.PKCS1v15(), scheme.hash)
                return
            if scheme.mgf_hash is None or scheme.mgf_hash.name != scheme.hash.name:
                raise refused
            pss = padding.PSS(mgf=padding.MGF1(scheme.mgf_hash), salt_length=scheme.salt_bytes)
            key.verify(signature, signed, pss, scheme.hash)
        else:
            # One algorithm fits, and nothing stands behind its OID.
            outer = der.only(algorithm, der.SEQUENCE, "signature algorithm")
            name = der.element(algorithm, outer.start, outer.stop)
            if scheme.name != _bare(key)[1] or name.stop != outer.stop:
                raise refused
            key.verify(signature, signed)
    except (InvalidSignature, ValueError) as e:
        raise SignatureInvalid("not signed by this key") from e


def _is_good(hash_: hashes.HashAlgorithm | None) -> bool:
    return isinstance(hash_, hashes.SHA256 | hashes.SHA384 | hashes.SHA512)
