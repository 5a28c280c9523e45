"""EK templates, Names, hashes and the ROCA test (TPM.md §2.4, §1.4, §7)."""

from __future__ import annotations

import hashlib
import json

import pytest

from attestation.errors import MalformedEvidence
from attestation.tpm import (
    EK_TEMPLATES,
    Alg,
    EKTemplate,
    Hierarchy,
    bank_alg,
    bank_name,
    crypto_hash,
    digest_size,
    hash_new,
    match_ek_template,
    parse_public,
    parse_tpmt_public,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation.tpm.hashes import hmac_digest
from attestation.tpm.roca import is_roca_weak
from tests.vectors import SHARED, forge, needs_shared

NV = {
    "L-1": 0x01C00002,
    "L-2": 0x01C0000A,
    "H-1": 0x01C00012,
    "H-2": 0x01C00014,
    "H-3": 0x01C00016,
    "H-4": 0x01C00018,
    "H-5": 0x01C0001A,
    "H-6": 0x01C0001C,
    "H-7": 0x01C0001E,
}


def test_the_nine_templates_and_where_their_certificates_are() -> None:
    """Names and NV indices of the EK profile."""
    assert {t.name: t.nv_index for t in EK_TEMPLATES} == NV
    assert [t.name for t in EK_TEMPLATES if not t.supported] == ["H-5"]
    assert [t.name for t in EK_TEMPLATES if t.low_range] == ["L-1", "L-2"]


@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_each_template_is_matched_by_its_keys(template: str) -> None:
    """Whatever `unique` holds, and nothing else may differ."""
    assert match_ek_template(parse_public(forge.ek_public(template))).name == template


@pytest.mark.parametrize("template", EK_TEMPLATES, ids=lambda t: t.name)
def test_the_two_forms_for_create_primary(template: EKTemplate) -> None:
    """Empty and zero-filled `unique`: the same template, another EK."""
    empty, zeros = (parse_tpmt_public(template.tpmt(zeros=z)) for z in (False, True))
    assert (empty.modulus, empty.x, empty.y) == (b"", b"", b"")
    if zeros.type == Alg.RSA:
        assert zeros.modulus == bytes(zeros.key_bits // 8)
    else:
        size = {3: 32, 4: 48, 5: 66, 0x20: 32}[zeros.curve]
        assert (zeros.x, zeros.y) == (bytes(size), bytes(size))
    assert empty.tpmt == template.public.tpmt
    assert empty.attributes == zeros.attributes == template.public.attributes


@needs_shared
def test_templates_are_those_of_the_vectors() -> None:
    """All nine, byte for byte: computed there by an independent implementation, three confirmed on real keys."""
    expected = json.loads((SHARED / "tpm" / "templates.json").read_text())
    by_name = {t.name: t for t in EK_TEMPLATES}
    for case in expected["ek_templates"]:
        template = by_name[case["template"]]
        zeros = template.low_range
        assert template.tpmt(zeros=zeros).hex() == case["tpmt_public"]
        assert f"0x{template.nv_index:08x}" == case["certificate_nv"]
        assert template.public.auth_policy.hex() == case["auth_policy"]


def test_policies_recomputed_from_their_definitions() -> None:
    """A = PolicySecret(endorsement); B = PolicyOR(A, PolicyAuthorizeNV(I-n)), from Part 1 by hand."""
    for alg, size, index in ((Alg.SHA256, 32, 1), (Alg.SHA384, 48, 2), (Alg.SHA512, 64, 3)):

        def digest(data: bytes, alg: int = alg) -> bytes:
            return hashlib.new(forge.HASHES[alg], data).digest()

        endorsement = bytes.fromhex("4000000b")
        a = digest(digest(bytes(size) + bytes.fromhex("00000151") + endorsement))
        nv = (0x01C07F00 + index).to_bytes(4) + alg.to_bytes(2) + bytes.fromhex("220f1008")
        nv += forge.tpm2b(a) + (size + 2).to_bytes(2)
        c = digest(bytes(size) + bytes.fromhex("00000192") + alg.to_bytes(2) + digest(nv))
        b = digest(bytes(size) + bytes.fromhex("00000171") + a + c)
        found = {t.public.auth_policy for t in EK_TEMPLATES if t.public.name_alg == alg}
        assert found == ({a, b} if alg == Alg.SHA256 else {b})


# ---------------------------------------------------------------- Names


@pytest.mark.parametrize("kind", forge.AKS)
def test_qualified_names(kind: str) -> None:
    """A child's over its parent's, a primary's over its hierarchy; hash of the child's nameAlg."""
    ek, ak = forge.ek_public(forge.EK_OF[kind]), forge.AKS[kind].public
    primary = qualified_name_of_primary(Hierarchy.ENDORSEMENT, forge.name_of(ek))
    assert qualified_name_of_child(primary, forge.name_of(ak)) == forge.qualified_name(ek, ak)
    assert qualified_name_of_primary(Hierarchy.OWNER, forge.name_of(ek)) != primary


def test_names_of_unknown_hashes_have_no_qualified_name() -> None:
    """An error of ours."""
    for name in (b"\x00\x27" + bytes(32), b"\x00\x12" + bytes(32), b""):
        with pytest.raises(MalformedEvidence):
            qualified_name_of_primary(Hierarchy.ENDORSEMENT, name)
        with pytest.raises(MalformedEvidence):
            qualified_name_of_child(b"", name)


# ---------------------------------------------------------------- hashes


@pytest.mark.parametrize(
    ("alg", "name", "size"), [(4, "sha1", 20), (11, "sha256", 32), (12, "sha384", 48), (13, "sha512", 64)]
)
def test_hashes(alg: int, name: str, size: int) -> None:
    """Id, bank name, size and object belong together."""
    assert digest_size(alg) == size
    assert (bank_name(alg), bank_alg(name)) == (name, alg)
    assert hash_new(alg, b"x").digest() == hashlib.new(name, b"x").digest()
    assert crypto_hash(alg).name == name
    assert len(hmac_digest(alg, b"k", b"m")) == size


def test_sm3_is_known_and_not_computed() -> None:
    """Banks and EKs that name it can be read."""
    assert (digest_size(Alg.SM3_256), bank_name(Alg.SM3_256), bank_alg("sm3_256")) == (32, "sm3_256", 0x12)
    for refuse in (hash_new, crypto_hash):
        with pytest.raises(MalformedEvidence, match="not computed"):
            refuse(Alg.SM3_256)
    with pytest.raises(MalformedEvidence, match="not computed"):
        hmac_digest(Alg.SM3_256, b"", b"")


@pytest.mark.parametrize("alg", [0, 0x10, 0x27, 0xFFFF])
def test_unknown_hashes(alg: int) -> None:
    """An error of ours, that names the id."""
    for refuse in (digest_size, bank_name):
        with pytest.raises(MalformedEvidence, match=f"{alg:04x}"):
            refuse(alg)
    with pytest.raises(MalformedEvidence):
        bank_alg("x" * 1000)


# ---------------------------------------------------------------- ROCA


def test_roca_finds_its_own_and_no_other() -> None:
    """Any power of 65537 modulo the product of the primes is suspect; keys from other generators are not."""
    product = 1
    primes = [p for p in range(3, 168) if all(p % q for q in range(2, p))]
    assert len(primes) == 38
    for p in primes:
        product *= p
    for exponent in (0, 1, 12345, 999_999_999):
        assert is_roca_weak(pow(65537, exponent, product) + product)
    for label in ("ek-rsa2048", "ak-rsa2048", "ek-rsa3072", "ek-rsa4096"):
        assert not is_roca_weak(forge.rsa_private(label).public_key().public_numbers().n)
    assert not is_roca_weak(pow(65537, 12345, product) + 2)
