"""MakeCredential and what is below it, against known answers (TPM.md §1.4, §3.2, §10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from attestation.errors import MalformedEvidence
from attestation.tpm import encapsulate, kdfa, kdfe, make_credential, parse_public, parse_tpmt_public
from attestation.tpm.credential import IDENTITY, parse_id_object, unwrap_identity, wrap_identity
from attestation.wire import Reader, sized
from tests.vectors import OWN, SHARED, forge, needs_shared

OWN_ANSWERS = json.loads((OWN / "known-answers.json").read_text())
SECRET = bytes(range(32))
NAME = forge.AKS["p256"].name
h = bytes.fromhex


def cases(name: str) -> list[Any]:
    path = SHARED / "tpm-kdf" / f"{name}.json"
    return [json.loads(line.rstrip(",\n")) for line in path.read_text().splitlines() if line.startswith("{")]


# ---------------------------------------------------------------- derivation


@pytest.mark.parametrize("case", OWN_ANSWERS["kdf"], ids=lambda c: f"{c['hash']}-{c['bits']}")
def test_kdfa_and_kdfe_are_those_of_the_library(case: dict[str, Any]) -> None:
    """KDFa is SP 800-108 in counter mode, KDFe the concatenation KDF of SP 800-56A, as `cryptography` has them."""
    alg, key, u, v, bits = case["hash"], h(case["key"]), h(case["u"]), h(case["v"]), case["bits"]
    assert kdfa(alg, key, b"STORAGE", u, v, bits).hex() == case["kdfa_storage"]
    assert kdfe(alg, key, b"IDENTITY", u, v, bits).hex() == case["kdfe_identity"]


@pytest.mark.parametrize("bits", [0, 1, 7, 8, 9, 255, 256, 257])
def test_bits_that_fill_no_byte(bits: int) -> None:
    """⌈bits/8⌉ bytes; the unused high bits of the first are zero."""
    for derive in (kdfa, kdfe):
        out = derive(forge.SHA256, b"key", b"LABEL", b"u", b"v", bits)
        assert len(out) == (bits + 7) // 8
        if bits % 8:
            assert out[0] < 1 << bits % 8
    whole, cut = (kdfe(forge.SHA256, b"z", b"L", b"", b"", bits) for bits in (16, 12))
    assert cut == bytes([whole[0] & 0x0F]) + whole[1:]


@needs_shared
def test_kdfa_of_go_tpm() -> None:
    """50 answers, with bit lengths that fill no byte."""
    answers = cases("kdfa")
    assert len(answers) == 50
    for case in answers:
        contexts = h(case["ContextU"]), h(case["ContextV"])
        out = kdfa(case["HashAlg"], h(case["Key"]), case["Label"].encode(), *contexts, case["Bits"])
        assert out.hex() == case["Result"], case["Name"]


@needs_shared
def test_kdfe_of_go_tpm() -> None:
    """50 answers."""
    answers = cases("kdfe")
    assert len(answers) == 50
    for case in answers:
        contexts = h(case["ContextU"]), h(case["ContextV"])
        out = kdfe(case["HashAlg"], h(case["Z"]), case["Label"].encode(), *contexts, case["Bits"])
        assert out.hex() == case["Result"], case["Name"]


# ---------------------------------------------------------------- encapsulation


@needs_shared
def test_ecc_encapsulation_of_go_tpm() -> None:
    """50 answers with a fixed ephemeral key, over three curves."""
    answers = cases("ecc_labeled_encaps")
    assert len(answers) == 50
    curves = {3: ec.SECP256R1(), 4: ec.SECP384R1(), 5: ec.SECP521R1()}
    for case in answers:
        public = parse_tpmt_public(h(case["PublicKey"]))
        ephemeral = ec.derive_private_key(int(case["EphemeralPrivate"], 16), curves[public.curve])
        seed, secret = encapsulate(public, case["Label"].encode(), ephemeral=ephemeral)
        assert seed.hex() == case["Secret"], case["Name"]
        assert secret == sized(h(case["Ciphertext"])), case["Name"]


@needs_shared
def test_rsa_encapsulation_to_keys_of_go_tpm() -> None:
    """50 keys: what we encapsulate, their private half opens, with the hash and label of the TPM."""
    answers = cases("rsa_labeled_encaps")
    assert len(answers) == 50
    for case in answers:
        public = parse_tpmt_public(h(case["PublicKey"]))
        sensitive = Reader(h(case["PrivateKey"]), "sensitive")
        sensitive.take(2)
        sensitive.sized()
        sensitive.sized()
        p = int.from_bytes(sensitive.sized())
        key = forge.rsa_from_primes(p, int.from_bytes(public.modulus) // p)
        alg = public.scheme.hash_alg if public.scheme and public.scheme.hash_alg else public.name_alg
        hashed = forge.crypto(alg)
        label = case["Label"].encode()
        oaep = padding.OAEP(padding.MGF1(hashed), hashed, label + b"\0")
        assert key.decrypt(h(case["Ciphertext"]), oaep).hex() == case["Secret"], case["Name"]
        seed, secret = encapsulate(public, label)
        assert len(seed) == hashed.digest_size
        assert key.decrypt(secret[2:], oaep) == seed


@pytest.mark.parametrize(
    "public",
    [
        forge.ecc_public(bytes(31) + b"\1", bytes(31) + b"\1"),
        forge.ecc_public(bytes(28), bytes(28), curve=2),
        forge.rsa_public(bytes(256)),
        forge.tpm2b(b"\x00\x08\x00\x0b\0\0\0\0\0\0\x00\x10\0\0"),
        forge.public_area(forge.rsa_private("ak-rsa1024"), name_alg=forge.SHA512, scheme=forge.NULL),
        forge.public_area(forge.private("ak-p256"), name_alg=forge.SM3, scheme=forge.NULL),
        forge.public_area(forge.rsa_private("ek-rsa2048"), name_alg=forge.SM3, scheme=forge.NULL),
    ],
)
def test_keys_that_nothing_can_be_sent_to(public: bytes) -> None:
    """No valid key, too small for its hash, or a hash we do not compute: an error of ours, nothing released."""
    with pytest.raises(MalformedEvidence):
        encapsulate(parse_public(public), IDENTITY)


# ---------------------------------------------------------------- credentials


@pytest.mark.parametrize("case", OWN_ANSWERS["make_credential"], ids=lambda c: c["template"])
def test_credentials_with_fixed_randomness(case: dict[str, Any]) -> None:
    """Every template's hash and key size: the blob of an independent implementation, and back."""
    ek = parse_public(h(case["ek_public"]))
    seed, name, secret = h(case["seed"]), h(case["ak_name"]), h(case["secret"])
    assert wrap_identity(ek, seed, name, secret).hex() == case["id_object"]
    assert unwrap_identity(ek, seed, name, h(case["id_object"])) == secret
    if "ephemeral" in case:
        key = forge.private(forge.EK_TEMPLATE_FIELDS[case["template"]][0])
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        ephemeral = ec.derive_private_key(int(case["ephemeral"], 16), key.curve)
        made, encrypted = encapsulate(ek, IDENTITY, ephemeral=ephemeral)
        assert made == seed
        assert encrypted.hex() == case["encrypted_secret"]


@needs_shared
def test_credentials_that_libtpms_opened() -> None:
    """Both blobs were opened by TPM2_ActivateCredential in the TPM of these EKs; the recipe gives the same."""
    rsa_case, ecc_case, kdf_case = json.loads((SHARED / "tpm" / "makecredential-kat.json").read_text())
    for case in (rsa_case, ecc_case):
        ek = parse_public((SHARED / "tpm" / case["ek"]).read_bytes())
        blob = wrap_identity(ek, h(case["seed"]), h(case["ak_name"]), h(case["secret"]))
        assert blob.hex() == case["id_object"]
        parsed = parse_id_object(blob)
        assert parsed.integrity.hex() == case["outer"]
        assert parsed.encrypted_identity.hex() == case["encIdentity"]
    ephemeral = ec.derive_private_key(int(ecc_case["ephemeral_private"], 16), ec.SECP256R1())
    ek = parse_public((SHARED / "tpm" / ecc_case["ek"]).read_bytes())
    seed, secret = encapsulate(ek, IDENTITY, ephemeral=ephemeral)
    assert (seed.hex(), secret.hex()) == (ecc_case["seed"], ecc_case["encrypted_secret"])
    case = kdf_case["kdfa"]
    out = kdfa(forge.SHA256, h(case["key"]), case["label"].encode(), b"", b"", case["bits"])
    assert out.hex() == case["out"]


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-3"])
def test_two_credentials_are_never_the_same(template: str) -> None:
    """The seed is fresh each time: equal secrets do not show."""
    ek = parse_public(forge.ek_public(template))
    first, second = (make_credential(ek, NAME, SECRET) for _ in range(2))
    assert first.credential_blob != second.credential_blob
    assert first.encrypted_secret != second.encrypted_secret


@pytest.mark.parametrize(
    ("template", "most"), [("L-1", 32), ("L-2", 32), ("H-3", 48), ("H-4", 64), ("H-6", 48)]
)
def test_secrets_are_at_most_as_long_as_the_digest_of_the_ek(template: str, most: int) -> None:
    """One byte more, or none, is refused before anything is made."""
    ek = parse_public(forge.ek_public(template))
    make_credential(ek, NAME, bytes(most))
    for size in (0, most + 1):
        with pytest.raises(MalformedEvidence, match=f"secret of {size} bytes"):
            make_credential(ek, NAME, bytes(size))


@pytest.mark.parametrize("symmetric", [b"\x00\x10", b"\x00\x13\x00\x80\x00\x43"])
def test_eks_without_a_cipher_that_we_use(symmetric: bytes) -> None:
    """NULL or SM4: nothing is sealed to them."""
    with pytest.raises(MalformedEvidence, match="no symmetric algorithm"):
        make_credential(parse_public(forge.ek_public("L-2", symmetric=symmetric)), NAME, SECRET)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\1\0",
        forge.tpm2b(forge.tpm2b(bytes(65))),
        forge.tpm2b(forge.tpm2b(bytes(32)) + bytes(34)) + b"\0",
        forge.tpm2b(b"\0\x20" + bytes(31)),
        forge.tpm2b(bytes(2049)),
    ],
)
def test_what_is_no_id_object(data: bytes) -> None:
    """Sizes outside and inside."""
    with pytest.raises(MalformedEvidence):
        parse_id_object(data)


def test_a_credential_with_another_seed_does_not_open() -> None:
    """The integrity is checked before anything is decrypted."""
    ek = parse_public(forge.ek_public("L-1"))
    blob = wrap_identity(ek, bytes(32), NAME, SECRET)
    with pytest.raises(MalformedEvidence, match="integrity"):
        unwrap_identity(ek, b"\1" + bytes(31), NAME, blob)


def test_oaep_uses_the_hash_of_an_unrestricted_keys_scheme() -> None:
    """Scheme OAEP-SHA384 under nameAlg SHA-256: a seed of 48 bytes."""
    key = forge.rsa_private("ek-rsa2048")
    public = parse_public(forge.public_area(key, scheme=0x17, hash_alg=forge.SHA384))
    seed, secret = encapsulate(public, IDENTITY)
    assert len(seed) == 48
    hashed = forge.crypto(forge.SHA384)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.decrypt(secret[2:], padding.OAEP(padding.MGF1(hashed), hashed, b"IDENTITY\0")) == seed
