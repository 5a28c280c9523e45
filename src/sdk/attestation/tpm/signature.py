"""Signatures of a TPM: TPMT_SIGNATURE (Part 2, 11.3.4) and their verification under a public area."""

# Algorithms for: tpm-ak, tpm-hash
from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.errors import AKAttributesRejected, MalformedEvidence, SignatureInvalid
from attestation.tpm.constants import MAX_SIGNATURE_BYTES, Alg, Curve
from attestation.tpm.hashes import crypto_hash, digest_size
from attestation.tpm.public import Public
from attestation.wire import Reader, sized, u16

ACCEPTED_HASHES: Final = frozenset({Alg.SHA256, Alg.SHA384, Alg.SHA512})
"""Hashes of signatures and Names that we believe in; SHA-1 is not one of them."""

_ORDERS: Final[dict[int, int]] = {
    Curve.NIST_P256: int("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16),
    Curve.NIST_P384: int(
        "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
    ),
    Curve.NIST_P521: int(
        "01fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa"
        "51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409",
        16,
    ),
}
"""Orders n of the base points (FIPS 186-4, D.1.2)."""


class Signature(NamedTuple):
    """A parsed TPMT_SIGNATURE.

    Args:
        alg: RSASSA, RSAPSS, ECDSA or HMAC.
        hash_alg: Hash of the signature.
        signature: RSA: the signature. ECDSA: r. HMAC: the digest.
        s: ECDSA: s. Else empty.
    """

    alg: int
    hash_alg: int
    signature: bytes
    s: bytes = b""

    def serialise(self) -> bytes:
        """Return the TPMT_SIGNATURE written from the fields."""
        head = u16(self.alg) + u16(self.hash_alg)
        if self.alg == Alg.ECDSA:
            return head + sized(self.signature) + sized(self.s)
        return head + (self.signature if self.alg == Alg.HMAC else sized(self.signature))


def parse_signature(data: bytes) -> Signature:
    """Parse a TPMT_SIGNATURE: sigAlg u16, hashAlg u16, then by algorithm. At most 2 KiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if len(data) > MAX_SIGNATURE_BYTES:
        raise MalformedEvidence(f"TPMT_SIGNATURE of {len(data)} bytes, at most {MAX_SIGNATURE_BYTES} allowed")
    reader = Reader(data, "TPMT_SIGNATURE")
    alg = reader.u16()
    hash_alg = reader.u16()
    size = digest_size(hash_alg)
    if alg == Alg.ECDSA:
        signature = Signature(alg, hash_alg, reader.sized(66), reader.sized(66))
    elif alg in (Alg.RSASSA, Alg.RSAPSS):
        signature = Signature(alg, hash_alg, reader.sized(512))
    elif alg == Alg.HMAC:
        signature = Signature(alg, hash_alg, reader.take(size))
    else:
        raise MalformedEvidence(f"signature algorithm 0x{alg:04x} is never accepted")
    reader.end()
    return signature


class VerificationKey:
    """A signing key of a TPM, with algorithm and hash fixed by its public area.

    Nothing of the signature decides how it is verified: its header must agree with the key's scheme.

    Args:
        public: Public area with scheme RSASSA, RSAPSS or ECDSA.

    Raises:
        AKAttributesRejected: The scheme or its hash is not one that we verify.
        MalformedEvidence: The public area holds no valid key.
    """

    __slots__ = ("_check", "alg", "hash_alg")

    def __init__(self, public: Public) -> None:
        scheme = public.scheme
        if scheme is None or scheme.hash_alg not in ACCEPTED_HASHES:
            raise AKAttributesRejected("the key has no signing scheme with SHA-256, SHA-384 or SHA-512")
        self.alg = scheme.alg
        self.hash_alg: int = scheme.hash_alg
        key = public.key()
        algorithm = crypto_hash(scheme.hash_alg)
        if isinstance(key, ec.EllipticCurvePublicKey) and scheme.alg == Alg.ECDSA:
            self._check = _ecdsa(key, _ORDERS[public.curve], ec.ECDSA(algorithm))
        elif isinstance(key, rsa.RSAPublicKey) and scheme.alg == Alg.RSASSA:
            self._check = _rsa(key, padding.PKCS1v15(), algorithm)
        elif isinstance(key, rsa.RSAPublicKey) and scheme.alg == Alg.RSAPSS:
            pss = padding.PSS(padding.MGF1(algorithm), digest_size(scheme.hash_alg))
            self._check = _rsa(key, pss, algorithm)
        else:
            raise AKAttributesRejected(f"scheme 0x{scheme.alg:04x} is not RSASSA, RSAPSS or ECDSA")

    def verify(self, signature: Signature, message: bytes) -> None:
        """Check that *signature* over *message* was made by this key.

        Raises:
            SignatureInvalid: It was not; the message says no more than that.
        """
        # 1. Algorithm and hash are the key's, not the signature's choice.
        if signature.alg != self.alg or signature.hash_alg != self.hash_alg:
            raise SignatureInvalid(
                f"signature says 0x{signature.alg:04x}/0x{signature.hash_alg:04x}, "
                f"the key 0x{self.alg:04x}/0x{self.hash_alg:04x}"
            )
        try:
            self._check(signature, message)
        except InvalidSignature as e:
            raise SignatureInvalid("the signature does not verify under the enrolled key") from e


_Check = Callable[[Signature, bytes], None]


def _ecdsa(key: ec.EllipticCurvePublicKey, order: int, algorithm: ec.ECDSA) -> _Check:
    def check(signature: Signature, message: bytes) -> None:
        # 2. 1 ≤ r, s < n, before they become DER.
        r = int.from_bytes(signature.signature)
        s = int.from_bytes(signature.s)
        if not (0 < r < order and 0 < s < order):
            raise SignatureInvalid("ECDSA r or s is outside 1 … n-1")
        key.verify(encode_dss_signature(r, s), message, algorithm)

    return check


def _rsa(key: rsa.RSAPublicKey, scheme: padding.AsymmetricPadding, algorithm: hashes.HashAlgorithm) -> _Check:
    size = key.key_size // 8

    def check(signature: Signature, message: bytes) -> None:
        # 2. Exactly as long as the modulus: shorter ones are not what a TPM makes.
        if len(signature.signature) != size:
            raise SignatureInvalid("RSA signature is not as long as the modulus")
        key.verify(signature.signature, message, scheme, algorithm)

    return check
