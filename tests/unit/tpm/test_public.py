"""Public areas: layouts, Names, canonical SPKI (TPM.md §1.3-1.4)."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import MalformedEvidence
from attestation.tpm import Alg, Public, Scheme, Symmetric, parse_public, parse_tpmt_public
from attestation.wire import sized
from tests.vectors import SHARED, forge, needs_shared

X = bytes(31) + b"\1"
GOOD = [
    *(forge.ek_public(template) for template in forge.EK_TEMPLATE_FIELDS),
    *(ak.public for ak in forge.AKS.values()),
    forge.public_area(forge.private("ak-p256"), scheme=forge.ECDAA),
    forge.public_area(forge.private("ak-p256"), kdf=b"\x00\x20\x00\x0b"),
    forge.public_area(forge.private("ak-rsa2048"), scheme=0x17),
    forge.rsa_public(bytes(256), scheme=forge.NULL, symmetric=forge.aes_cfb(192)),
    forge.rsa_public(b"", bits=1024, exponent=65537),
    forge.ecc_public(X[4:], X[4:], curve=2),
    forge.ecc_public(b"", b"", curve=0x11),
    forge.ecc_public(X, X, curve=0x20, name_alg=forge.SM3, symmetric=b"\x00\x13\x00\x80\x00\x43"),
    forge.tpm2b(b"\x00\x08\x00\x0b\x00\x05\x04\x40\0\0\x00\x05\x00\x0b" + forge.tpm2b(bytes(32))),
    forge.tpm2b(b"\x00\x08\x00\x0b\x00\x05\x04\x40\0\0\x00\x10\0\0"),
]
RSAES = forge.tpm2b(
    b"\x00\x01\x00\x0b\x00\x02\x00\x72\0\0\x00\x10\x00\x15\x08\x00\0\0\0\0" + forge.tpm2b(bytes(256))
)


@pytest.mark.parametrize("data", [*GOOD, RSAES])
def test_what_is_read_is_written_again(data: bytes) -> None:
    """parse, then serialise: byte for byte the same."""
    public = parse_public(data)
    assert public.tpm2b() == data
    assert sized(public.serialise()) == data
    assert parse_tpmt_public(data[2:]) == public


def test_every_field_is_where_it_belongs() -> None:
    """One RSA and one ECC area, field by field."""
    rsa = parse_public(forge.ek_public("L-1"))
    assert (rsa.type, rsa.name_alg, rsa.attributes) == (Alg.RSA, Alg.SHA256, 0x000300B2)
    assert rsa.auth_policy == forge.POLICY_A
    assert rsa.symmetric == Symmetric(alg=Alg.AES, key_bits=128, mode=Alg.CFB)
    assert (rsa.scheme, rsa.key_bits, rsa.exponent) == (None, 2048, 0)
    assert rsa.modulus == forge.rsa_private("ek-rsa2048").public_key().public_numbers().n.to_bytes(256)
    ecc = parse_public(forge.AKS["p384"].public)
    assert (ecc.type, ecc.curve, ecc.kdf, ecc.symmetric) == (Alg.ECC, 4, None, None)
    assert ecc.scheme == Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA384)
    assert len(ecc.x) == len(ecc.y) == 48
    hmac_key = parse_public(GOOD[-2])
    assert hmac_key.unique == bytes(32)
    assert hmac_key.scheme == Scheme(alg=Alg.HMAC, hash_alg=Alg.SHA256)
    assert parse_public(RSAES).scheme == Scheme(alg=Alg.RSAES, hash_alg=None)


@pytest.mark.parametrize("data", [*GOOD, RSAES], ids=range(len(GOOD) + 1))
def test_cut_anywhere_or_followed_by_anything(data: bytes) -> None:
    """Every length but the right one is malformed, for the outer and the inner structure."""
    for cut in range(len(data)):
        with pytest.raises(MalformedEvidence):
            parse_public(data[:cut])
        if cut < len(data) - 2:
            with pytest.raises(MalformedEvidence):
                parse_tpmt_public(data[2 : 2 + cut])
    for more in (data + b"\0", forge.tpm2b(data[2:] + b"\0")):
        with pytest.raises(MalformedEvidence):
            parse_public(more)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("type", forge.tpm2b(b"\x00\x25" + forge.ek_public("L-2")[4:])),
        ("nameAlg", forge.ecc_public(X, X, name_alg=0x27)),
        ("authPolicy of 31", forge.ecc_public(X, X, policy=bytes(31))),
        ("authPolicy of 33", forge.ecc_public(X, X, policy=bytes(33))),
        ("authPolicy of another hash", forge.ecc_public(X, X, policy=bytes(20))),
        ("symmetric", forge.ecc_public(X, X, symmetric=b"\x00\x26\x00\x80\x00\x43")),
        ("symmetric bits", forge.ecc_public(X, X, symmetric=forge.aes_cfb(129))),
        ("symmetric mode", forge.ecc_public(X, X, symmetric=b"\x00\x06\x00\x80\x00\x44")),
        ("scheme", forge.ecc_public(X, X, scheme=0x99)),
        ("RSA scheme of an ECC key", forge.ecc_public(X, X, scheme=forge.RSASSA)),
        ("RSAES of an ECC key", forge.ecc_public(X, X, scheme=0x15)),
        ("ECC scheme of an RSA key", forge.rsa_public(bytes(256), scheme=forge.ECDSA)),
        ("scheme hash", forge.ecc_public(X, X, hash_alg=0x27)),
        ("curve", forge.ecc_public(X, X, curve=0x40)),
        ("x too long", forge.ecc_public(b"\0" + X, X)),
        ("y too long", forge.ecc_public(X, b"\0" + X)),
        ("kdf", forge.ecc_public(X, X, kdf=b"\x00\x14\x00\x0b")),
        ("kdf hash", forge.ecc_public(X, X, kdf=b"\x00\x20\x00\x27")),
        ("key bits", forge.rsa_public(bytes(256), bits=2047)),
        ("key bits 512", forge.rsa_public(bytes(64))),
        ("modulus too long", forge.rsa_public(bytes(257), bits=2048)),
        ("keyed hash scheme", forge.tpm2b(b"\x00\x08\x00\x0b\0\0\0\0\0\0\x00\x18\x00\x0b\0\0")),
        ("keyed hash unique", forge.tpm2b(b"\x00\x08\x00\x0b\0\0\0\0\0\0\x00\x10" + forge.tpm2b(bytes(65)))),
    ],
)
def test_what_no_public_area_may_say(what: str, data: bytes) -> None:
    """Unknown algorithms and impossible sizes are malformed."""
    with pytest.raises(MalformedEvidence):
        parse_public(data)


def test_the_type_and_the_key_are_named() -> None:
    """An operator reads what is wrong."""
    with pytest.raises(MalformedEvidence, match="object type 0x0025"):
        parse_public(forge.tpm2b(b"\x00\x25" + forge.ek_public("L-2")[4:]))
    with pytest.raises(MalformedEvidence, match="no valid key"):
        parse_public(forge.ecc_public(X, X)).key()
    with pytest.raises(MalformedEvidence, match="not supported"):
        parse_public(forge.ecc_public(X, X, curve=0x20)).key()


def test_public_areas_have_at_most_2_kib() -> None:
    """The cap stands before any parsing."""
    with pytest.raises(MalformedEvidence, match="2049 bytes"):
        parse_public(bytes(2049))
    with pytest.raises(MalformedEvidence, match="2049 bytes"):
        parse_tpmt_public(bytes(2049))


@pytest.mark.parametrize("label", ["ak-p256", "ak-p384", "ek-p521", "ak-rsa2048", "ek-rsa4096"])
def test_spki_is_the_librarys(label: str) -> None:
    """The canonical SPKI and its fingerprint, against `cryptography` loading the key by itself."""
    key = forge.private(label)
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public = parse_public(forge.public_area(key))
    assert public.spki_der() == der
    assert public.fingerprint() == hashlib.sha384(der).hexdigest()


def test_coordinates_with_leading_zeros_left_out_are_the_same_key() -> None:
    """TPMs differ in this: keys are compared by SPKI, never by bytes."""
    key = next(
        k
        for k in (forge.ec_private(f"short-{i}-p256", 3) for i in range(5000))
        if k.public_key().public_numbers().x < 1 << 248
    )
    full = forge.public_area(key)
    numbers = key.public_key().public_numbers()
    short = forge.ecc_public(numbers.x.to_bytes(31), numbers.y.to_bytes(32))
    assert parse_public(short).spki_der() == parse_public(full).spki_der()
    assert parse_public(short).name != parse_public(full).name


def test_an_rsa_exponent_of_zero_is_65537() -> None:
    """Both are one key."""
    key = forge.private("ak-rsa2048")
    spkis = {parse_public(forge.public_area(key, exponent=e)).spki_der() for e in (0, 65537)}
    assert spkis == {forge.spki(key)}


@pytest.mark.parametrize(
    "data",
    [
        forge.ecc_public(X, X),
        forge.ecc_public(b"", b""),
        forge.ecc_public(b"\xff" * 32, b"\xff" * 32),
        forge.ecc_public(X[4:], X[4:], curve=2),
        forge.ecc_public(X, X, curve=0x20),
        forge.rsa_public(bytes(256)),
        forge.rsa_public(b"", bits=2048),
        forge.rsa_public(b"\xff" * 256, exponent=2),
        forge.rsa_public(b"\xff" * 256, exponent=1),
        GOOD[-1],
    ],
)
def test_what_parses_but_is_no_key(data: bytes) -> None:
    """Points off the curve, impossible numbers, curves we do not use: an error of ours."""
    public = parse_public(data)
    with pytest.raises(MalformedEvidence):
        public.key()
    with pytest.raises(MalformedEvidence):
        public.fingerprint()


def test_a_name_with_a_hash_we_do_not_compute() -> None:
    """SM3 is known, so that H-5 can be recognised, and not computed."""
    public = parse_public(forge.ecc_public(X, X, name_alg=forge.SM3))
    with pytest.raises(MalformedEvidence, match="not computed"):
        _ = public.name


def test_the_name_is_over_the_bytes_received() -> None:
    """Two areas that differ in one free bit have two Names."""
    public = parse_public(forge.AKS["p256"].public)
    assert public.name == forge.AKS["p256"].name
    other = parse_public(forge.public_area(forge.private("ak-p256"), attributes=0x00050432))
    assert other.name != public.name


def test_a_public_area_cannot_be_changed() -> None:
    """Frozen: what was checked is what is used."""
    public = parse_public(forge.AKS["p256"].public)
    with pytest.raises(AttributeError):
        public.attributes = 0  # type: ignore[misc]  # that is the point
    assert isinstance(replace(public), Public)


@needs_shared
@pytest.mark.parametrize("kind", ["ecc", "rsa"])
def test_names_and_fingerprints_of_swtpm(kind: str) -> None:
    """Name, SPKI and fingerprint as the TPM and tpm2-tools wrote them."""
    base = SHARED / "tpm"
    expected = json.loads((base / "expected.json").read_text())["identities"][kind]
    ek = parse_public((base / kind / "ek.tpm2b_public").read_bytes())
    ak = parse_public((base / kind / "ak.tpm2b_public").read_bytes())
    assert ek.name.hex() == expected["ek_name"]
    assert ek.fingerprint() == expected["ek_fingerprint"]
    assert ak.name == (base / kind / "ak.name").read_bytes()
    assert hex(ek.attributes) == expected["ek_attributes"]
    assert hex(ak.attributes) == expected["ak_attributes"]


@pytest.mark.skipif(which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("label", ["ak-p256", "ak-rsa2048"])
def test_openssl_reads_the_spki(label: str, tmp_path: Path) -> None:
    """An independent reader takes our DER and writes the same."""
    der = parse_public(forge.public_area(forge.private(label))).spki_der()
    (tmp_path / "key.der").write_bytes(der)
    command = [
        "openssl",
        "pkey",
        "-pubin",
        "-inform",
        "DER",
        "-outform",
        "DER",
        "-in",
        str(tmp_path / "key.der"),
    ]
    assert subprocess.run(command, capture_output=True, check=True).stdout == der
