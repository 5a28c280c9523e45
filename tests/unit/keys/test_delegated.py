"""Keys that a device holds: what is handed to it, what is refused, and that nothing waits on an event loop."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import pickle
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.errors import KeyUnsupported, SignerUnavailable
from attestation.keys import KeySigner
from attestation.keys.delegated import (
    DIGEST_INFO,
    DelegatedECKey,
    DelegatedRSAKey,
    HashName,
    RawSigner,
)
from tests.contract.signers import delegated

MESSAGE = b"what is signed"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256, P384, P521 = (ec.derive_private_key(9, curve()) for curve in (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1))
HASHES: dict[HashName, Any] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
ALL: list[Any] = [P384, RSA]
EC_384 = ec.ECDSA(hashes.SHA384())
PKCS1 = padding.PKCS1v15()


def pss(mgf: Any = None, salt: Any = padding.PSS.DIGEST_LENGTH) -> padding.PSS:
    return padding.PSS(padding.MGF1(mgf or hashes.SHA384()), salt)


class Answering(RawSigner):
    """A device that answers what it is told to, and remembers what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.given: list[Any] = []

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:
        """Answer."""
        self.given.append(digest)
        found: tuple[int, int] = self.answer
        return found

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:
        """Answer."""
        self.given.append(digest_info)
        return bytes(self.answer)


def sign(key: Any) -> bytes:
    """Sign as the CA does."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(MESSAGE, EC_384)
    signature: bytes = key.sign(MESSAGE, PKCS1, hashes.SHA384())
    return signature


@pytest.mark.threat("T86")
@pytest.mark.parametrize("name", HASHES)
def test_digest_info_is_that_of_the_standard(name: HashName) -> None:
    """Prefix and digest, as cryptography itself pads them: raising the signature to e shows it."""
    signature = RSA.sign(MESSAGE, PKCS1, HASHES[name])
    numbers = RSA.public_key().public_numbers()
    padded = pow(int.from_bytes(signature), numbers.e, numbers.n).to_bytes(256)
    given = Answering(signature)
    assert DelegatedRSAKey(given, RSA.public_key(), "x").sign(MESSAGE, PKCS1, HASHES[name]) == signature
    assert padded.endswith(b"\x00" + given.given[0])
    assert given.given[0] == DIGEST_INFO[name] + hashlib.new(name, MESSAGE).digest()


@pytest.mark.parametrize("name", HASHES)
@pytest.mark.parametrize("key", [P256, P384, P521], ids=["P-256", "P-384", "P-521"])
def test_the_digest_is_cut_to_the_curve(key: ec.EllipticCurvePrivateKey, name: HashName) -> None:
    """A device never gets more bytes than the order of its curve has; the rest goes as it is."""
    given = Answering((1, 1))
    DelegatedECKey(given, key.public_key(), "x").sign(MESSAGE, ec.ECDSA(HASHES[name]))
    digest = hashlib.new(name, MESSAGE).digest()
    assert given.given == [digest[: {256: 32, 384: 48, 521: 66}[key.key_size]]]


@pytest.mark.parametrize("name", HASHES)
def test_prehashed(name: HashName) -> None:
    """What was hashed before is not hashed again, and must have the length of its hash."""
    digest = hashlib.new(name, MESSAGE).digest()
    hashed = Prehashed(HASHES[name])
    rsa_key, ec_key = delegated(RSA), Answering((1, 1))
    assert isinstance(rsa_key, rsa.RSAPrivateKey)
    RSA.public_key().verify(rsa_key.sign(digest, PKCS1, hashed), MESSAGE, PKCS1, HASHES[name])
    DelegatedECKey(ec_key, P521.public_key(), "x").sign(digest, ec.ECDSA(hashed))
    assert ec_key.given == [digest]
    for wrong in (digest[:-1], digest + b"\0", b""):
        with pytest.raises(ValueError, match="digest"):
            rsa_key.sign(wrong, PKCS1, hashed)


def test_pss_is_salted_as_long_as_its_digest() -> None:
    """As a constant or as a number; and MGF1 has the same hash."""
    key = delegated(RSA)
    assert isinstance(key, rsa.RSAPrivateKey)
    for scheme in (pss(), pss(salt=48)):
        RSA.public_key().verify(
            key.sign(MESSAGE, scheme, hashes.SHA384()), MESSAGE, pss(salt=48), hashes.SHA384()
        )
    for refused in (pss(salt=32), pss(salt=0), pss(salt=padding.PSS.MAX_LENGTH), pss(hashes.SHA256())):
        with pytest.raises(ValueError, match="PSS signature"):
            key.sign(MESSAGE, refused, hashes.SHA384())


@pytest.mark.parametrize(
    "used", [hashes.SHA1(), hashes.SHA224(), hashes.SHA3_384(), hashes.SHA512_256(), None]
)
def test_other_hashes(used: Any) -> None:
    """SHA-1 and what nobody asked for."""
    for each in (used, Prehashed(used) if used else None):
        with pytest.raises(ValueError, match="SHA-256, SHA-384 or SHA-512"):
            DelegatedRSAKey(Answering(b""), RSA.public_key(), "x").sign(b"", PKCS1, each)
    if used:
        with pytest.raises(ValueError, match="SHA-256, SHA-384 or SHA-512"):
            DelegatedECKey(Answering((1, 1)), P384.public_key(), "x").sign(b"", ec.ECDSA(used))


def test_other_schemes() -> None:
    """Encryption padding, no ECDSA, deterministic ECDSA."""
    held: list[Any] = [delegated(key) for key in ALL]
    ec_key, rsa_key = held
    with pytest.raises(ValueError, match=r"PKCS#1 v1\.5 or PSS"):
        rsa_key.sign(
            MESSAGE, padding.OAEP(padding.MGF1(hashes.SHA384()), hashes.SHA384(), None), hashes.SHA384()
        )
    for scheme in (ec.ECDSA(hashes.SHA384(), deterministic_signing=True), ec.ECDH(), None):
        with pytest.raises(ValueError, match="plain ECDSA"):
            ec_key.sign(MESSAGE, scheme)


@pytest.mark.threat("T86")
@pytest.mark.parametrize("answer", [(0, 1), (1, 0), (1 << 384, 1), (1, 1 << 384), (-1, 1)])
def test_no_ecdsa_signature(answer: tuple[int, int]) -> None:
    """A device that answers nonsense is a device that does not work."""
    with pytest.raises(SignerUnavailable):
        sign(DelegatedECKey(Answering(answer), P384.public_key(), "x"))


@pytest.mark.threat("T86")
@pytest.mark.parametrize("answer", [b"", bytes(255), bytes(257)])
def test_no_other_signature(answer: bytes) -> None:
    """Likewise of RSA, which has one length."""
    with pytest.raises(SignerUnavailable):
        sign(DelegatedRSAKey(Answering(answer), RSA.public_key(), "x"))


@pytest.mark.threat("T86")
@pytest.mark.parametrize("key", ALL, ids=["EC", "RSA"])
def test_nobody_signs_on_an_event_loop(key: Any) -> None:
    """A device may take a second: on the loop that is a bug, and it shows at once. In a thread it is none."""

    async def on_the_loop() -> None:
        with pytest.raises(RuntimeError, match="event loop"):
            sign(delegated(key))
        await asyncio.to_thread(sign, delegated(key))

    asyncio.run(on_the_loop())


@pytest.mark.threat("T86")
@pytest.mark.parametrize("key", ALL, ids=["EC", "RSA"])
def test_nothing_leaves(key: Any) -> None:
    """No export in any form, no use but signing; copies are the key itself."""
    held: Any = delegated(key)
    with pytest.raises(KeyUnsupported):
        held.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TypeError):
        pickle.dumps(held)
    assert copy.copy(held) is held
    assert copy.deepcopy({"key": held})["key"] is held
    assert held.name in repr(held)
    for use in ("private_numbers", "decrypt", "exchange"):
        with pytest.raises(KeyUnsupported if hasattr(key, use) else AttributeError):
            getattr(held, use)()


@pytest.mark.parametrize("key", ALL, ids=["EC", "RSA"])
def test_it_is_the_key_that_it_says(key: Any) -> None:
    """Size, curve and public key are those of the native key; its signature verifies under it."""
    held: Any = delegated(key)
    assert held.public_key() == key.public_key()
    if hasattr(key, "key_size"):
        assert held.key_size == key.key_size
    if hasattr(key, "curve"):
        assert held.curve.name == key.curve.name
    signature = sign(held)
    arguments = {P384: (EC_384,), RSA: (PKCS1, hashes.SHA384())}[key]
    key.public_key().verify(signature, MESSAGE, *arguments)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(signature, MESSAGE + b".", *arguments)


def test_a_device_that_cannot() -> None:
    """What a back-end does not override, it does not do."""
    raw = type("Nothing", (RawSigner,), {})()
    for key in (
        DelegatedECKey(raw, P384.public_key(), "x"),
        DelegatedRSAKey(raw, RSA.public_key(), "x"),
    ):
        with pytest.raises(KeyUnsupported):
            sign(key)
    with pytest.raises(KeyUnsupported):
        DelegatedRSAKey(raw, RSA.public_key(), "x").sign(MESSAGE, pss(), hashes.SHA384())


def test_tokens_of_a_device_have_whole_coordinates() -> None:
    """R and s are 48 bytes each, also where they begin with zeros (RFC 7518 §3.4)."""
    token = KeySigner(DelegatedECKey(Answering((1, 2)), P384.public_key(), "x")).sign_jwt({}, typ="x")
    padded = token.rpartition(".")[2]
    assert len(padded) == 128
    assert padded == "A" * 63 + "B" + "A" * 63 + "C"
