"""A private key wrapped for a token: the offline half, opened again by cryptography alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap_with_padding
from cryptography.hazmat.primitives.serialization import load_der_private_key
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import KeyUnsupported
from attestation.hsm import OAEPHash
from attestation.keys.wrapping import wrap_key

HASHES = {"sha256": hashes.SHA256(), "sha1": hashes.SHA1()}


@cache
def kek() -> rsa.RSAPrivateKey:
    """The private half, which a token has in earnest."""
    return rsa.generate_private_key(65537, 3072)


@cache
def key(kind: str) -> Any:
    """A CA's key."""
    if kind == "ecdsa-p384":
        return ec.generate_private_key(ec.SECP384R1())
    return rsa.generate_private_key(65537, 4096)


def opened(blob: bytes, oaep_hash: OAEPHash = "sha256", *, label: bytes | None = None) -> bytes:
    """Open a blob as the specification says."""
    hashing = HASHES[oaep_hash]
    aes_key = kek().decrypt(blob[:384], padding.OAEP(padding.MGF1(hashing), hashing, label))
    assert len(aes_key) == 32
    return aes_key_unwrap_with_padding(aes_key, blob[384:])


@pytest.mark.parametrize("oaep_hash", ["sha256", "sha1"])
@pytest.mark.parametrize(("kind", "size"), [("ecdsa-p384", 584), ("rsa-4096", 2768)])
def test_sizes_and_round_trip(kind: str, size: int, oaep_hash: OAEPHash) -> None:
    """The sizes of the specification, and the same key again."""
    blob = wrap_key(key(kind), kek().public_key(), oaep_hash=oaep_hash)
    assert len(blob) == size
    back: Any = load_der_private_key(opened(blob, oaep_hash), None)
    assert back.public_key() == key(kind).public_key()


def test_the_hash_is_sha256_unless_sha1_is_named() -> None:
    """A blob of the default does not open with SHA-1."""
    blob = wrap_key(key("ecdsa-p384"), kek().public_key())
    opened(blob)
    with pytest.raises(ValueError, match=r"[Dd]ecryption"):
        opened(blob, "sha1")


def test_no_aes_key_is_used_twice() -> None:
    """Two blobs of a key share nothing."""
    one, two = (wrap_key(key("ecdsa-p384"), kek().public_key()) for _ in range(2))
    assert one[:384] != two[:384]
    assert one[384:] != two[384:]


def test_what_is_not_wrapped() -> None:
    """Short KEKs, KEKs and keys of other kinds, other hashes."""
    wrap: Any = wrap_key
    private, public = key("ecdsa-p384"), kek().public_key()
    for short in (rsa.generate_private_key(65537, 2048).public_key(), private.public_key()):
        with pytest.raises(KeyUnsupported, match="at least 3072 bits"):
            wrap(private, short)
    with pytest.raises(KeyUnsupported, match="only EC and RSA"):
        wrap(ed25519.Ed25519PrivateKey.generate(), public)
    for other in ("sha384", "md5", ""):
        with pytest.raises(KeyUnsupported, match="sha256 or sha1"):
            wrap(private, public, oaep_hash=other)


@given(st.integers(0, 584 * 8 - 1))
def test_no_flipped_bit_opens(bit: int) -> None:
    """Wherever it is."""
    blob = bytearray(_blob())
    blob[bit // 8] ^= 1 << bit % 8
    with pytest.raises((ValueError, InvalidUnwrap)):
        opened(bytes(blob))


@cache
def _blob() -> bytes:
    return wrap_key(key("ecdsa-p384"), kek().public_key())
