"""Duplicates of HMAC keys: the layout of TPM.md §3.3, sealed by the recipe of §3.2 under another label."""

from __future__ import annotations

import hashlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.errors import MalformedEvidence
from attestation.tpm import parse_public, parse_tpmt_public
from attestation.tpm.credential import DUPLICATE, IDENTITY, wrap_identity
from attestation.tpm.duplicate import duplicate_hmac_key, hmac_key_public, open_hmac_key
from attestation.tpm.public import Public
from attestation.wire import sized
from attestation_testing import SoftwareEK
from attestation_testing.software_keys import recover_seed
from tests.vectors import SHARED, forge, needs_shared

KEY, SEED_VALUE = bytes(range(32)), bytes(range(100, 132))
PUBLIC = hmac_key_public(KEY, SEED_VALUE)
SENSITIVE = bytes.fromhex("0008 0000 0020") + SEED_VALUE + bytes.fromhex("0020") + KEY


def test_the_public_area_byte_by_byte() -> None:
    """KEYEDHASH, SHA-256, 00050440, no policy, HMAC with SHA-256, unique over seedValue and key."""
    unique = hashlib.sha256(SEED_VALUE + KEY).digest()
    assert PUBLIC.tpmt == bytes.fromhex("0008 000B 00050440 0000 0005 000B 0020") + unique
    assert PUBLIC.name == b"\x00\x0b" + hashlib.sha256(PUBLIC.tpmt).digest()
    assert parse_public(PUBLIC.tpm2b()) == PUBLIC


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-1", "H-2", "H-3", "H-4", "H-6"])
def test_the_holder_of_the_ek_gets_the_key(template: str) -> None:
    """What was sealed comes out, bit for bit as somebody else computes the wrapper; and only once per seed."""
    ek = parse_public(forge.ek_public(template))
    private = forge.private(forge.EK_TEMPLATE_FIELDS[template][0])
    made = duplicate_hmac_key(ek, KEY, SEED_VALUE)
    seed = recover_seed(ek, private, DUPLICATE, made.encrypted_seed)
    assert ek.symmetric is not None
    assert made.duplicate == forge.id_object(ek.name_alg, ek.symmetric.key_bits, seed, PUBLIC.name, SENSITIVE)
    assert open_hmac_key(ek, seed, PUBLIC, made.duplicate) == KEY
    again = duplicate_hmac_key(ek, KEY, SEED_VALUE)
    assert made.duplicate != again.duplicate
    assert made.encrypted_seed != again.encrypted_seed


@needs_shared
def test_seeds_of_go_tpm() -> None:
    """With the ephemeral keys of go-tpm's answers for DUPLICATE, our duplicates are sealed under its seeds."""
    path = SHARED / "tpm-kdf" / "ecc_labeled_encaps.json"
    lines = [line.rstrip(",\n") for line in path.read_text().splitlines() if line.startswith("{")]
    curves = {3: ec.SECP256R1(), 4: ec.SECP384R1(), 5: ec.SECP521R1()}
    tried = 0
    for case in map(json.loads, lines):
        parent = parse_tpmt_public(bytes.fromhex(case["PublicKey"]))
        if case["Label"] != "DUPLICATE" or parent.symmetric is None:
            continue
        tried += 1
        ephemeral = ec.derive_private_key(int(case["EphemeralPrivate"], 16), curves[parent.curve])
        made = duplicate_hmac_key(parent, KEY, SEED_VALUE, ephemeral=ephemeral)
        assert made.encrypted_seed == sized(bytes.fromhex(case["Ciphertext"])), case["Name"]
        seed = bytes.fromhex(case["Secret"])
        assert open_hmac_key(parent, seed, PUBLIC, made.duplicate) == KEY, case["Name"]
        expected = forge.id_object(parent.name_alg, parent.symmetric.key_bits, seed, PUBLIC.name, SENSITIVE)
        assert made.duplicate == expected, case["Name"]
    assert tried == 10


def test_a_credential_is_no_duplicate() -> None:
    """The label keeps the two protocols apart: a seed for MakeCredential opens nothing here."""
    ek = SoftwareEK("L-2")
    made = duplicate_hmac_key(ek.public, KEY, SEED_VALUE)
    seed = recover_seed(ek.public, ek.key, IDENTITY, made.encrypted_seed)
    with pytest.raises(MalformedEvidence):
        open_hmac_key(ek.public, seed, PUBLIC, made.duplicate)


@pytest.mark.parametrize("where", ["duplicate", "public", "parent"])
def test_whatever_is_changed_opens_nothing(where: str) -> None:
    """Every flipped bit of the duplicate, another object, another EK: refused."""
    ek, other = SoftwareEK("L-2"), SoftwareEK("H-3")
    made = duplicate_hmac_key(ek.public, KEY, SEED_VALUE)
    seed = recover_seed(ek.public, ek.key, DUPLICATE, made.encrypted_seed)
    tries: list[tuple[Public, Public, bytes]] = []
    if where == "duplicate":
        data = made.duplicate
        tries += [
            (ek.public, PUBLIC, data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :])
            for i in range(len(data))
            for bit in (1, 128)
        ]
    elif where == "public":
        tries.append((ek.public, hmac_key_public(SEED_VALUE, KEY), made.duplicate))
    else:
        tries.append((other.public, PUBLIC, made.duplicate))
    for parent, public, duplicate in tries:
        with pytest.raises(MalformedEvidence):
            open_hmac_key(parent, seed, public, duplicate)


@pytest.mark.parametrize(
    "sensitive",
    [
        SENSITIVE.replace(b"\x00\x08", b"\x00\x01", 1),
        bytes.fromhex("0008 0001 FF 0020") + SEED_VALUE + bytes.fromhex("0020") + KEY,
        SENSITIVE[:-1] + b"\xff",
        SENSITIVE + b"\x00",
        SENSITIVE[:20],
        b"",
    ],
)
def test_a_sensitive_area_that_does_not_fit(sensitive: bytes) -> None:
    """Another type, an authValue, another key, trailing or missing bytes: refused, though sealed correctly."""
    ek = SoftwareEK("L-2")
    duplicate = wrap_identity(ek.public, b"seed", PUBLIC.name, sensitive)
    with pytest.raises(MalformedEvidence):
        open_hmac_key(ek.public, b"seed", PUBLIC, duplicate)


@pytest.mark.parametrize(("key", "seed_value"), [(b"", SEED_VALUE), (KEY, b""), (KEY[1:], SEED_VALUE)])
def test_keys_have_one_length(key: bytes, seed_value: bytes) -> None:
    """A shorter key or seedValue is a mistake of the caller, not a weaker offer."""
    with pytest.raises(MalformedEvidence):
        duplicate_hmac_key(SoftwareEK("L-2").public, key, seed_value)
