"""Signatures: layouts, and verification under a public area (TPM.md §1.3, check 16)."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from attestation.errors import AKAttributesRejected, MalformedEvidence, SignatureInvalid
from attestation.tpm import Signature, VerificationKey, parse_public, parse_signature
from tests.vectors import forge

MESSAGE = b"what a TPM signed"
ORDERS = {
    "p256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "p384": 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
    "p521": int(
        "01fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa"
        "51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409",
        16,
    ),
}
KEYS = {**forge.AKS, "p521": forge.AK("ak-p521", forge.ECDSA, forge.SHA512, forge.SHA512)}
HMAC = b"\x00\x05\x00\x0b" + bytes(range(32))


def key_of(kind: str) -> VerificationKey:
    return VerificationKey(parse_public(KEYS[kind].public))


@pytest.mark.parametrize("data", [*(ak.sign(MESSAGE) for ak in KEYS.values()), HMAC])
def test_what_is_read_is_written_again(data: bytes) -> None:
    """Byte for byte; cut anywhere or followed by anything it is malformed."""
    assert parse_signature(data).serialise() == data
    for cut in range(len(data)):
        with pytest.raises(MalformedEvidence):
            parse_signature(data[:cut])
    for more in (b"\0", data):
        with pytest.raises(MalformedEvidence, match="trailing"):
            parse_signature(data + more)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x1a\x00\x0b\0\0\0\0",
        b"\x00\x1b\x00\x0b\0\0\0\0",
        b"\x00\x10",
        b"\x00\x10\x00\x0b",
        b"\xff\xff\x00\x0b",
        b"\x00\x18\x00\x27\0\0\0\0",
        b"\x00\x18\x00\x10\0\0\0\0",
        b"\x00\x18\x00\x0b" + forge.tpm2b(bytes(67)) + b"\0\0",
        b"\x00\x18\x00\x0b\0\0" + forge.tpm2b(bytes(67)),
        b"\x00\x14\x00\x0b" + forge.tpm2b(bytes(513)),
        bytes(2049),
    ],
)
def test_what_no_signature_may_say(data: bytes) -> None:
    """Algorithms we never verify, hashes we do not know, numbers longer than any key."""
    with pytest.raises(MalformedEvidence):
        parse_signature(data)


@pytest.mark.parametrize("kind", KEYS)
def test_a_signature_verifies_under_its_key_only(kind: str) -> None:
    """The same message and no other; the same key and no other."""
    signature = parse_signature(KEYS[kind].sign(MESSAGE))
    key_of(kind).verify(signature, MESSAGE)
    with pytest.raises(SignatureInvalid):
        key_of(kind).verify(signature, MESSAGE + b".")
    for other in KEYS.keys() - {kind}:
        with pytest.raises(SignatureInvalid):
            key_of(other).verify(signature, MESSAGE)


@pytest.mark.parametrize("kind", ORDERS)
def test_n22_r_and_s_are_from_1_to_n_minus_1(kind: str) -> None:
    """Zero, n and everything above are refused before any curve arithmetic, n - 1 is merely wrong."""
    ak, n = KEYS[kind], ORDERS[kind]
    r, s = (int.from_bytes(number) for number in ak.ecdsa(MESSAGE))
    size = (n.bit_length() + 7) // 8 + (0 if kind == "p521" else 1)

    def verify(r: int, s: int) -> None:
        signature = Signature(ak.scheme, ak.hash_alg, r.to_bytes(size), s.to_bytes(size))
        key_of(kind).verify(signature, MESSAGE)

    verify(r, s)
    for bad in (0, n, n + 1):
        for pair in ((bad, s), (r, bad), (bad, bad)):
            with pytest.raises(SignatureInvalid, match="outside"):
                verify(*pair)
    with pytest.raises(SignatureInvalid, match="outside"):
        verify(r, s + n)
    for pair in ((n - 1, s), (r, n - 1), (1, 1)):
        with pytest.raises(SignatureInvalid, match="does not verify"):
            verify(*pair)


@pytest.mark.parametrize("kind", ORDERS)
def test_the_other_half_of_an_ecdsa_signature_says_the_same(kind: str) -> None:
    """(r, n - s) verifies for the same message: freshness never rests on signature bytes (TPM.md §4.1)."""
    ak, n = KEYS[kind], ORDERS[kind]
    r, s = ak.ecdsa(MESSAGE)
    other = (n - int.from_bytes(s)).to_bytes(len(s))
    key_of(kind).verify(Signature(ak.scheme, ak.hash_alg, r, other), MESSAGE)


@pytest.mark.parametrize(
    ("label", "fields"),
    [
        ("ak-p256", {"scheme": forge.NULL}),
        ("ak-p256", {"hash_alg": forge.SHA1}),
        ("ak-p256", {"hash_alg": forge.SM3}),
        ("ak-p256", {"scheme": forge.ECDAA}),
        ("ak-p256", {"scheme": 0x19}),
        ("ak-rsa2048", {"scheme": 0x17}),
        ("ak-rsa2048", {"scheme": forge.NULL}),
        ("ak-rsa2048", {"hash_alg": forge.SHA1}),
    ],
)
def test_keys_without_a_scheme_that_we_verify(label: str, fields: dict[str, int]) -> None:
    """No scheme, SHA-1, or a scheme for something else: no verification key is made."""
    with pytest.raises(AKAttributesRejected):
        VerificationKey(parse_public(forge.public_area(forge.private(label), **fields)))


def test_an_rsaes_key_has_no_hash() -> None:
    """A scheme without hash signs nothing."""
    rsaes = b"\x00\x01\x00\x0b\x00\x02\x00\x72\0\0\x00\x10\x00\x15\x08\x00\0\0\0\0" + forge.tpm2b(
        b"\xff" * 256
    )
    with pytest.raises(AKAttributesRejected):
        VerificationKey(parse_public(forge.tpm2b(rsaes)))


def test_n22_pss_salt_has_the_length_of_the_digest() -> None:
    """A PSS signature with another salt length is refused, though the key made it."""
    ak = KEYS["rsapss"]
    assert isinstance(ak.key, rsa.RSAPrivateKey)
    hashed = forge.crypto(ak.hash_alg)
    for salt in (0, 20, 31, 33, padding.PSS.MAX_LENGTH):
        raw = ak.key.sign(MESSAGE, padding.PSS(padding.MGF1(hashed), salt), hashed)
        with pytest.raises(SignatureInvalid):
            key_of("rsapss").verify(Signature(ak.scheme, ak.hash_alg, raw), MESSAGE)
    raw = ak.key.sign(MESSAGE, padding.PSS(padding.MGF1(hashed), 32), hashed)
    key_of("rsapss").verify(Signature(ak.scheme, ak.hash_alg, raw), MESSAGE)


def test_signatures_have_at_most_2_kib() -> None:
    """The cap stands before any parsing."""
    with pytest.raises(MalformedEvidence, match="2049 bytes, at most 2048"):
        parse_signature(bytes(2049))


@pytest.mark.parametrize("kind", KEYS)
def test_n21_the_header_must_agree_with_the_key(kind: str) -> None:
    """A true signature whose header names another algorithm or hash: refused, for the header's sake."""
    good = parse_signature(KEYS[kind].sign(MESSAGE))
    for wrong in (good._replace(hash_alg=forge.SHA1), good._replace(alg=0x05)):
        with pytest.raises(SignatureInvalid, match="the key 0x"):
            key_of(kind).verify(wrong, MESSAGE)


@pytest.mark.parametrize("kind", ["rsassa", "rsapss"])
def test_n22_rsa_signatures_have_the_length_of_the_modulus(kind: str) -> None:
    """Leading zeros added: the number is the same, the signature is none."""
    good = parse_signature(KEYS[kind].sign(MESSAGE))
    for wrong in (b"\0" + good.signature, good.signature[1:], b""):
        with pytest.raises(SignatureInvalid, match="as long as the modulus"):
            key_of(kind).verify(good._replace(signature=wrong), MESSAGE)
