"""Activation: which keys may be introduced (N37-N47), and which proofs are believed (N61, N62, N67)."""

from __future__ import annotations

import hashlib
import hmac
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash

from attestation.errors import (
    ActivationFailed,
    AKAttributesRejected,
    EKTemplateRejected,
    MalformedEvidence,
)
from attestation.evidence import ak_activation
from attestation.tpm import parse_public
from attestation.tpm.credential import unwrap_identity, wrap_identity
from attestation.wire import Reader
from tests.vectors import SHARED, forge, needs_shared

EK = forge.ek_public("L-1")
MACHINE = "7a0e3c1e-6a43-4c5b-9d0a-000000000001"
CHALLENGE = "00112233445566778899aabbccddeeff"
SECRET = hashlib.sha256(b"own activation secret").digest()
KINDS = {"p256": "ak-p256", "p384": "ak-p384", "rsa": "ak-rsa2048"}


def ak(kind: str = "p256", **fields: object) -> bytes:
    """Return an AK's TPM2B_PUBLIC with *fields* changed."""
    return forge.public_area(forge.private(KINDS[kind]), **fields)


def refused(public: bytes, match: str = "") -> None:
    with pytest.raises(AKAttributesRejected, match=match):
        ak_activation.check_keys(EK, public)


# ---------------------------------------------------------------- the AK


@pytest.mark.parametrize("kind", forge.AKS)
@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_good_keys_of_every_kind_may_be_introduced(template: str, kind: str) -> None:
    """Any EK template with any AK kind; the template is named."""
    keys = ak_activation.check_keys(forge.ek_public(template), forge.AKS[kind].public)
    assert keys.template == template
    assert keys.ak.name == forge.AKS[kind].name


@pytest.mark.parametrize("free", [0x40, 0x80, 0x100, 0x200, 0x400, 0x7C0])
@pytest.mark.parametrize("kind", KINDS)
def test_free_attributes(kind: str, free: int) -> None:
    """userWithAuth, adminWithPolicy, noDA and the two *Limited bits do not matter."""
    ak_activation.check_keys(EK, ak(kind, attributes=0x00050032 | free))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n", "attributes"),
    [
        ("n37-not-restricted", 0x00040472),
        ("n38-no-fixed-tpm", 0x00050470),
        ("n39-no-fixed-parent", 0x00050462),
        ("n40-no-sensitive-data-origin", 0x00050452),
        ("n41-sign-and-decrypt", 0x00070472),
        ("n41-not-sign", 0x00010472),
        ("n42-encrypted-duplication", 0x00050C72),
        ("n43-software-key", 0x00060040),
        ("n43-software-signing-key", 0x00040040),
        ("st-clear", 0x00050476),
        ("x509-sign", 0x000D0472),
        ("nothing", 0),
        ("everything", 0x000F0FF6),
    ],
)
def test_n37_to_n43_attributes(kind: str, n: str, attributes: int) -> None:
    """A key that could leave its TPM, came from outside, or signs what others made is no AK."""
    refused(ak(kind, attributes=attributes), "attributes")


@pytest.mark.threat("T5")
def test_n37_to_n43_every_single_attribute_bit() -> None:
    """Each of the 32 bits changed in a good AK: accepted for the five free bits, refused for all others."""
    for bit in range(32):
        public = ak(attributes=0x00050472 ^ (1 << bit))
        if 1 << bit & 0x7C0:
            ak_activation.check_keys(EK, public)
        else:
            refused(public, "attributes")


def test_a_refusal_names_reserved_bits() -> None:
    """An operator reads which bits are wrong."""
    refused(ak(attributes=0x80050473), "reserved 0x80000001")
    refused(ak(attributes=0), "attributes are none")


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-3"])
def test_n44_the_ek_as_ak(template: str) -> None:
    """The EK's own public area, and its key under an AK's public area: refused."""
    ek = forge.ek_public(template)
    with pytest.raises(AKAttributesRejected, match="attributes"):
        ak_activation.check_keys(ek, ek)
    key = forge.private(forge.EK_TEMPLATE_FIELDS[template][0])
    disguised = forge.public_area(key)
    with pytest.raises(AKAttributesRejected, match="same key"):
        ak_activation.check_keys(ek, disguised)


X = bytes(31) + b"\1"


@pytest.mark.parametrize(
    ("n", "public", "match"),
    [
        ("rsa-1024", forge.public_area(forge.rsa_private("ak-rsa1024")), "1024 bits"),
        ("rsa-short-modulus", forge.rsa_public(b"\xff" * 255, bits=2048), "exact"),
        ("rsa-empty-modulus", forge.rsa_public(b"", bits=2048), "exact"),
        ("rsa-top-bit-clear", forge.rsa_public(b"\x7f" + b"\xff" * 255), "exact"),
        ("rsa-exponent-3", ak("rsa", exponent=3), "exponent 3"),
        ("p224", forge.ecc_public(X[4:], X[4:], curve=2), "curve 0x0002"),
        ("p192", forge.ecc_public(X[8:], X[8:], curve=1), "curve 0x0001"),
        ("bn-p256", forge.ecc_public(X, X, curve=0x10), "curve 0x0010"),
        ("bn-p638", forge.ecc_public(bytes(80), bytes(80), curve=0x11), "curve 0x0011"),
        ("sm2-p256", forge.ecc_public(X, X, curve=0x20), "curve 0x0020"),
        ("ecdaa", ak(scheme=forge.ECDAA), "scheme 0x001a"),
        ("sm2-scheme", ak(scheme=0x1B), "scheme 0x001b"),
        ("oaep", ak("rsa", scheme=0x17), "scheme 0x0017"),
        ("scheme-null", ak(scheme=forge.NULL), "no signing scheme"),
        ("scheme-null-rsa", ak("rsa", scheme=forge.NULL), "no signing scheme"),
        ("scheme-sha1", ak(hash_alg=forge.SHA1), "no signing scheme"),
        ("scheme-sha1-rsa", ak("rsa", hash_alg=forge.SHA1), "no signing scheme"),
        ("name-sha1", ak(name_alg=forge.SHA1), "nameAlg 0x0004"),
        ("name-sm3", ak(name_alg=forge.SM3), "nameAlg 0x0012"),
        ("symmetric", ak(symmetric=forge.aes_cfb(128)), "symmetric"),
        ("kdf", ak(kdf=b"\x00\x20\x00\x0b"), "key derivation"),
    ],
)
def test_n45_weak_or_unfit_keys(n: str, public: bytes, match: str) -> None:
    """Size, exponent, curve, scheme and hash each refuse on their own."""
    refused(public, match)


@pytest.mark.parametrize("attributes", [0x00050032, 0x00050472])
def test_n45_a_keyed_hash_is_no_ak(attributes: int) -> None:
    """An HMAC key with an AK's attributes: neither RSA nor ECC."""
    head = (
        b"\x00\x08\x00\x0b" + attributes.to_bytes(4) + b"\0\0" + b"\x00\x05\x00\x0b" + forge.tpm2b(bytes(32))
    )
    refused(forge.tpm2b(head), "neither")


@pytest.mark.parametrize("kind", ["p256", "p384"])
def test_n45_a_point_off_the_curve(kind: str) -> None:
    """Invalid curve points never become keys."""
    key = forge.private(KINDS[kind])
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    size = key.key_size // 8
    numbers = key.public_key().public_numbers()
    curve = 3 if size == 32 else 4
    for x, y in ((numbers.x, numbers.y ^ 1), (numbers.x ^ 1, numbers.y), (0, 0)):
        with pytest.raises(MalformedEvidence):
            ak_activation.check_keys(EK, forge.ecc_public(x.to_bytes(size), y.to_bytes(size), curve=curve))


def roca_modulus() -> bytes:
    """Return 2048 bits that lie in the subgroup of 65537 modulo every prime of the test."""
    product, prime = 1, 2
    while prime < 167:
        prime += 1
        if all(prime % q for q in range(2, prime)):
            product *= prime
    number = pow(65537, 1234567, product)
    return (number + product * (((0xC0 << 2040) - number) // product + 1)).to_bytes(256)


@pytest.mark.threat("T8")
def test_roca_keys_are_refused_as_ak_and_as_ek() -> None:
    """CVE-2017-15361: recognised by the modulus alone."""
    modulus = roca_modulus()
    refused(forge.rsa_public(modulus), "ROCA")
    fields = forge.EK_TEMPLATE_FIELDS["L-1"][1]
    with pytest.raises(EKTemplateRejected, match="ROCA"):
        ak_activation.check_keys(forge.rsa_public(modulus, **fields), ak())  # type: ignore[arg-type]  # passed on


@pytest.mark.parametrize("kind", KINDS)
def test_n46_trailing_bytes_or_a_second_structure(kind: str) -> None:
    """One TPM2B_PUBLIC and nothing behind it, outside or inside its size."""
    good = ak(kind)
    for data in (good + b"\0", good + good, good[:-1], forge.tpm2b(good[2:] + b"\0"), good[2:], b""):
        with pytest.raises(MalformedEvidence):
            ak_activation.check_keys(EK, data)
        with pytest.raises(MalformedEvidence):
            ak_activation.check_keys(data, good)


# ---------------------------------------------------------------- the EK


@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
@pytest.mark.parametrize(
    ("n", "change"),
    [
        ("attributes", {"attributes": 0x000300B0}),
        ("attributes-of-the-other-range", None),
        ("no-restricted", {"attributes": 0x000200B2}),
        ("policy-empty", {"policy": b""}),
        ("symmetric-null", {"symmetric": b"\x00\x10"}),
        ("symmetric-192", {"symmetric": forge.aes_cfb(192)}),
        ("name-alg", {"name_alg": 0, "policy": b""}),
        ("scheme", {"scheme": 0}),
    ],
)
def test_n47_every_field_of_a_template(template: str, n: str, change: dict[str, object] | None) -> None:
    """An EK that differs from its template in one field might be any decryption key: refused."""
    label, fields = forge.EK_TEMPLATE_FIELDS[template]
    if change is None:
        attributes = fields["attributes"]
        assert isinstance(attributes, int)
        change = {"attributes": attributes ^ 0x40}
    if n == "name-alg":
        change = {
            "name_alg": forge.SHA512 if fields["name_alg"] != forge.SHA512 else forge.SHA256,
            "policy": b"",
        }
    if n == "scheme":
        change = {"scheme": 0x17 if "rsa" in label else 0x19, "hash_alg": forge.SHA256}
    with pytest.raises(EKTemplateRejected):
        ak_activation.check_keys(forge.ek_public(template, **change), ak())


@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_n47_every_bit_of_a_policy(template: str) -> None:
    """No other authPolicy is an EK's."""
    policy = forge.EK_TEMPLATE_FIELDS[template][1]["policy"]
    assert isinstance(policy, bytes)
    for at in range(8 * len(policy)):
        changed = bytearray(policy)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(EKTemplateRejected):
            ak_activation.check_keys(forge.ek_public(template, policy=bytes(changed)), ak())


def test_n47_exponent_modulus_kdf_and_curve() -> None:
    """The rest of the public area."""
    for wrong in (
        forge.ek_public("L-1", exponent=65537),
        forge.ek_public("L-2", kdf=b"\x00\x20\x00\x0b"),
        forge.public_area(forge.private("ak-p384"), **forge.EK_TEMPLATE_FIELDS["L-2"][1]),
        forge.public_area(forge.rsa_private("ek-rsa3072"), **forge.EK_TEMPLATE_FIELDS["L-1"][1]),
        forge.rsa_public(b"\x7f" + b"\xff" * 255, **forge.EK_TEMPLATE_FIELDS["L-1"][1]),  # type: ignore[arg-type]  # passed on
        forge.rsa_public(b"\xff" * 255, bits=2048, **forge.EK_TEMPLATE_FIELDS["L-1"][1]),  # type: ignore[arg-type]  # passed on
        forge.rsa_public(b"", bits=2048, **forge.EK_TEMPLATE_FIELDS["L-1"][1]),  # type: ignore[arg-type]  # passed on
    ):
        with pytest.raises(EKTemplateRejected):
            ak_activation.check_keys(wrong, ak())


def test_an_sm2_ek_is_recognised_and_refused_by_name() -> None:
    """H-5 is a template, but SM2 is not used here."""
    policy = bytes.fromhex("167860a35f2c5c3567f9c927ac56c032f3b3a6462f8d037998e7a10f77fa454a")
    sm2 = forge.ecc_public(
        X, X, attributes=forge.EK_HIGH, name_alg=forge.SM3, policy=policy,
        symmetric=b"\x00\x13\x00\x80\x00\x43", scheme=forge.NULL, curve=0x20,
    )  # fmt: skip
    with pytest.raises(EKTemplateRejected, match="H-5 is not supported"):
        ak_activation.check_keys(sm2, ak())


# ---------------------------------------------------------------- the proof


def recovered(template: str, offer: ak_activation.Offer, ak_name: bytes) -> bytes:
    """Open an offer with the private half of our EK, as its TPM would."""
    ek = parse_public(forge.ek_public(template))
    key = forge.private(forge.EK_TEMPLATE_FIELDS[template][0])
    reader = Reader(offer.credential.encrypted_secret, "secret")
    body = reader.sized()
    reader.end()
    alg = ek.name_alg
    if isinstance(key, rsa.RSAPrivateKey):
        hashed = forge.crypto(alg)
        seed = key.decrypt(body, padding.OAEP(padding.MGF1(hashed), hashed, b"IDENTITY\0"))
    else:
        point = Reader(body, "point")
        x, y = point.sized(), point.sized()
        theirs = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, b"\4" + x + y)
        info = b"IDENTITY\0" + x + key.public_key().public_numbers().x.to_bytes(len(x))
        size = len(forge.digest(alg, b""))
        seed = ConcatKDFHash(forge.crypto(alg), size, info).derive(key.exchange(ec.ECDH(), theirs))
    return unwrap_identity(ek, seed, ak_name, offer.credential.credential_blob)


@cache
def offered(
    template: str = "L-1", kind: str = "p256"
) -> tuple[ak_activation.CheckedKeys, ak_activation.Offer]:
    keys = ak_activation.check_keys(forge.ek_public(template), forge.AKS[kind].public)
    offer = ak_activation.offer(keys, secret=SECRET, machine_id=MACHINE, challenge_id=CHALLENGE)
    return keys, offer


def check(proof: bytes, template: str = "L-1", kind: str = "p256") -> ak_activation.ActivationClaims:
    keys, offer = offered(template, kind)
    return ak_activation.verify(
        ak_activation.parse(proof),
        expected_sha256=offer.expected_sha256,
        ak_name=keys.ak.name,
        ek_fingerprint=keys.ek.fingerprint(),
    )


def own_proof(
    secret: bytes = SECRET,
    machine: str = MACHINE,
    challenge: str = CHALLENGE,
    ek: bytes = EK,
    name: bytes = forge.AKS["p256"].name,
    context: bytes = b"itl-ak-activate-v1",
) -> bytes:
    """The proof, written down again from PROTOCOL §2."""
    message = context + b"\0" + machine.encode() + b"\0" + challenge.encode() + b"\0"
    return hmac.new(secret, message + hashlib.sha256(ek).digest() + name, "sha256").digest()


@pytest.mark.parametrize("kind", forge.AKS)
@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_whoever_holds_the_ek_proves_it(template: str, kind: str) -> None:
    """Open the credential, make the proof, be believed; every hash is the EK's, whatever the AK's."""
    keys, offer = offered(template, kind)
    secret = recovered(template, offer, keys.ak.name)
    assert secret == SECRET
    proof = ak_activation.proof(
        secret, machine_id=MACHINE, challenge_id=CHALLENGE, ek_public=keys.ek.tpm2b(), ak_name=keys.ak.name
    )
    claims = check(proof, template, kind)
    assert (claims.ak_name, claims.ek_fingerprint) == (keys.ak.name, keys.ek.fingerprint())


def test_the_proof_is_the_protocols() -> None:
    """The same bytes as an independent reading of PROTOCOL §2; a literal pins both."""
    proof = ak_activation.proof(
        SECRET, machine_id=MACHINE, challenge_id=CHALLENGE, ek_public=EK, ak_name=forge.AKS["p256"].name
    )
    assert proof == own_proof()
    assert proof.hex() == "c768a74d09f5f2f5e9583dc373fd564d833504463f2a80c8be3a38d6e6443471"


@pytest.mark.threat("T7")
@pytest.mark.parametrize(
    "other",
    [
        {"machine_id": MACHINE[:-1] + "2"},
        {"challenge_id": CHALLENGE[:-1] + "e"},
        {"ek_public": forge.ek_public("L-2")},
        {"ak_name": forge.AKS["p384"].name},
        {"primary": "ab" * 48},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_proof_is_for_one_context(other: dict[str, Any]) -> None:
    """With the same secret, another machine, challenge, EK, AK or first EK makes another proof."""
    said: dict[str, Any] = {
        "machine_id": MACHINE,
        "challenge_id": CHALLENGE,
        "ek_public": EK,
        "ak_name": forge.AKS["p256"].name,
    }
    assert ak_activation.proof(SECRET, **said) != ak_activation.proof(SECRET, **said | other)


@pytest.mark.threat("T151")
def test_the_proof_of_a_further_ek_names_the_first() -> None:
    """Another prefix, and the fingerprint of the EK that it is shown beside: a literal reading of PROTOCOL §8.6."""
    keys, _ = offered("L-1", "p256")
    primary = "ab" * 48
    offer = ak_activation.offer(
        keys, secret=SECRET, machine_id=MACHINE, challenge_id=CHALLENGE, primary=primary
    )
    proof = own_proof(challenge=f"{CHALLENGE}\0{primary}", context=b"itl-ek-alternative-v1")
    assert offer.expected_sha256 == hashlib.sha256(proof).digest()


def test_the_offer_keeps_no_secret() -> None:
    """Only a digest of the proof is kept: neither secret nor proof stands in the offer."""
    _, offer = offered()
    kept = offer.expected_sha256 + offer.credential.credential_blob + offer.credential.encrypted_secret
    assert offer.expected_sha256 == hashlib.sha256(own_proof()).digest()
    assert SECRET not in kept
    assert own_proof() not in kept


@pytest.mark.threat("T7")
@pytest.mark.parametrize(
    ("n", "proof"),
    [
        ("n61-other-secret", own_proof(secret=bytes(32))),
        ("n61-empty-secret", own_proof(secret=b"")),
        ("n62-other-machine", own_proof(machine=MACHINE[:-1] + "2")),
        ("n62-other-challenge", own_proof(challenge=CHALLENGE[:-1] + "e")),
        ("n62-other-ek", own_proof(ek=forge.ek_public("L-2"))),
        ("n62-other-ak", own_proof(name=forge.AKS["p384"].name)),
        ("n65-other-purpose", own_proof(context=b"itl-attest-v1")),
        ("n65-no-context", own_proof(context=b"")),
        ("digest-of-the-proof", hashlib.sha256(own_proof()).digest()),
        ("the-expected-digest", offered()[1].expected_sha256),
        ("zeros", bytes(32)),
    ],
)
def test_n61_n62_n65_other_proofs(n: str, proof: bytes) -> None:
    """A proof is bound to secret, machine, challenge, EK, AK and purpose, and the stored digest is no proof."""
    with pytest.raises(ActivationFailed):
        check(proof)


def test_n61_no_flipped_bit_of_a_proof() -> None:
    """Every single bit, exhaustively."""
    good = own_proof()
    check(good)
    for at in range(256):
        changed = bytearray(good)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(ActivationFailed):
            check(bytes(changed))


@pytest.mark.parametrize("size", [0, 1, 31, 33, 64])
def test_a_proof_has_32_bytes(size: int) -> None:
    """Any other length is malformed."""
    with pytest.raises(MalformedEvidence, match=f"{size} bytes"):
        ak_activation.parse(bytes(size))


def test_n67_a_failed_proof_reveals_nothing() -> None:
    """The refusal says neither what was expected nor what was found (CVE-2023-38201)."""
    _, offer = offered()
    with pytest.raises(ActivationFailed) as refusal:
        check(bytes(32))
    said = str(refusal.value)
    for secret in (SECRET, own_proof(), offer.expected_sha256):
        assert secret.hex() not in said
        assert secret.hex()[:16] not in said


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-3"])
def test_n61_no_flipped_bit_of_a_credential(template: str) -> None:
    """Every single bit of the credential blob, exhaustively: the EK's TPM does not open it."""
    keys, _ = offered(template)
    ek = parse_public(forge.ek_public(template))
    seed = b"\x11" * len(forge.digest(ek.name_alg, b""))
    blob = wrap_identity(ek, seed, keys.ak.name, SECRET)
    assert unwrap_identity(ek, seed, keys.ak.name, blob) == SECRET
    for at in range(8 * len(blob)):
        changed = bytearray(blob)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(MalformedEvidence):
            unwrap_identity(ek, seed, keys.ak.name, bytes(changed))


@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_a_credential_opens_only_for_its_ak(template: str) -> None:
    """One changed bit of the Name, or another AK: nothing is recovered."""
    _, offer = offered(template)
    name = forge.AKS["p256"].name
    for other in (name[:-1] + bytes([name[-1] ^ 1]), forge.AKS["p384"].name, forge.AKS["rsassa"].name):
        with pytest.raises(MalformedEvidence, match="integrity"):
            recovered(template, offer, other)


@needs_shared
@pytest.mark.parametrize("kind", ["ecc", "rsa"])
def test_keys_of_swtpm_may_be_introduced(kind: str) -> None:
    """Real EK and AK; crossing RSA and ECC is fine too, an EK as AK is not."""
    base = SHARED / "tpm" / kind
    ek, key = ((base / f"{name}.tpm2b_public").read_bytes() for name in ("ek", "ak"))
    assert ak_activation.check_keys(ek, key).template == {"ecc": "L-2", "rsa": "L-1"}[kind]
    with pytest.raises(AKAttributesRejected):
        ak_activation.check_keys(ek, ek)
    with pytest.raises(EKTemplateRejected):
        ak_activation.check_keys(key, key)
