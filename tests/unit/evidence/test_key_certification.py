"""Certified node keys: each step of the verification, the modes, and what is refused (N71-N77, HSM §24 a-h)."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import (
    AttestationError,
    AttestHeaderInvalid,
    ChallengeMismatch,
    EvidenceRejected,
    KeyCertificationRejected,
    KeyNotResident,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.evidence import key_certification
from attestation.evidence.key_certification import (
    CertifiedKey,
    KeyMode,
    compute_mode,
    csr_binding,
    key_binding,
    parse,
    verify,
)
from attestation.tpm import (
    TPM_GENERATED,
    AKParent,
    Alg,
    Attest,
    AttestType,
    CertifyInfo,
    CreationInfo,
    Curve,
    Hierarchy,
    PCRSelection,
    Public,
    QuoteInfo,
    Scheme,
    Signature,
    Symmetric,
    parse_public,
    parse_tpmt_public,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation_testing import SoftwareAK, SoftwareEK
from attestation_testing.software_keys import ak_template, with_key

NONCE = bytes(range(32))
INFO = b"the DER of a CertificationRequestInfo"
BINDING = csr_binding(NONCE, INFO)

RESIDENT, DECRYPT = 0x00040472, 0x00020472
EXTERNAL = 0x00040040
ALL = frozenset(KeyMode)
SIGNING = frozenset({KeyMode.RESIDENT})

EK = SoftwareEK("L-2", seed=5)
OTHER_EK = SoftwareEK("L-2", seed=6)
AK, OTHER_AK = SoftwareAK(seed=1), SoftwareAK(seed=2)


@cache
def rsa_ak(*, pss: bool = False) -> SoftwareAK:
    return SoftwareAK(
        ak_template(rsa_bits=2048, scheme=Scheme(alg=Alg.RSAPSS, hash_alg=Alg.SHA256) if pss else None)
    )


@cache
def private_key(kind: str) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    if kind.startswith("rsa"):
        return rsa.generate_private_key(65537, int(kind[3:]))
    curves: dict[str, ec.EllipticCurve] = {
        "p256": ec.SECP256R1(),
        "p384": ec.SECP384R1(),
        "p521": ec.SECP521R1(),
    }
    return ec.generate_private_key(curves[kind])


TWO_ZEROS = 40_393
"""Private key of a P-256 point whose X begins with two zero bytes; 65,536 tries on average."""

CURVES = {"p256": Curve.NIST_P256, "p384": Curve.NIST_P384, "p521": Curve.NIST_P521}


def bare(kind: str = "p256", *, attributes: int = RESIDENT, **changes: Any) -> Public:
    """Return the public area of a node key without its key."""
    is_rsa = kind.startswith("rsa")
    public = Public(
        type=Alg.RSA if is_rsa else Alg.ECC,
        name_alg=Alg.SHA256,
        attributes=attributes,
        auth_policy=b"",
        symmetric=None,
        scheme=None,
        key_bits=int(kind[3:]) if is_rsa else 0,
        curve=0 if is_rsa else CURVES[kind],
        tpmt=b"",
    )
    return replace(public, **changes)


def key(kind: str = "p256", **changes: Any) -> Public:
    """Return the public area of a node key, with *changes*."""
    return with_key(bare(kind, **changes), private_key(kind))


def written(public: Public) -> Public:
    """Return *public* with the bytes that its fields make."""
    return parse_tpmt_public(public.serialise())


KEY = key()
STORAGE = qualified_name_of_primary(Hierarchy.OWNER, b"\x00\x0b" + bytes(32))


def inside(public: Public) -> bytes:
    """Return the qualified name under a storage key of the owner hierarchy."""
    return qualified_name_of_child(STORAGE, public.name)


def statement(public: Public = KEY, ak: SoftwareAK = AK, **changes: Any) -> Attest:
    """Return what an honest TPM says about a key of its own, with *changes*."""
    return Attest(
        TPM_GENERATED,
        AttestType.CERTIFY,
        ak.qualified_name,
        BINDING,
        5_000,
        3,
        1,
        True,
        7,
        CertifyInfo(public.name, inside(public)),
    )._replace(**changes)


def sent(public: Public = KEY, ak: SoftwareAK = AK, **changes: Any) -> tuple[bytes, bytes, bytes]:
    """Return TPM2B_PUBLIC, TPMS_ATTEST, TPMT_SIGNATURE."""
    return (public.tpm2b(), *ak.attest(statement(public, ak, **changes)))


def external(public: Public, ak: SoftwareAK = AK) -> tuple[bytes, bytes, bytes]:
    """Return what a TPM says of a key that was brought in by TPM2_LoadExternal."""
    return sent(public, ak, attested=CertifyInfo(public.name, public.name))


def judge(parts: tuple[bytes, bytes, bytes], **changes: Any) -> CertifiedKey:
    parsed = parse(*parts)
    expected: dict[str, Any] = {
        "ak": AK.public,
        "ek": EK.public,
        "binding": BINDING,
        "spki": parsed.spki,
        "modes": ALL,
    }
    return verify(parsed, **{**expected, **changes})


@pytest.mark.parametrize("kind", ["p256", "p384", "p521", "rsa2048", "rsa3072"])
@pytest.mark.parametrize("ak", ["ecc", "rsassa", "rsapss"])
def test_a_resident_key(kind: str, ak: str) -> None:
    """Every kind of key under every kind of AK: the claims are computed from the bytes."""
    attestation_key = AK if ak == "ecc" else rsa_ak(pss=ak == "rsapss")
    public = key(kind)
    claims = judge(sent(public, attestation_key), ak=attestation_key.public, modes=SIGNING)
    assert claims == CertifiedKey(
        public=public,
        spki=public.spki_der(),
        name=public.name,
        mode=KeyMode.RESIDENT,
        attributes=RESIDENT,
        ak_parent=AKParent.ENDORSEMENT,
    )


@pytest.mark.parametrize("scheme", [None, Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA256)])
def test_a_resident_decryption_key(scheme: Scheme | None) -> None:
    """RSA, unrestricted, made in the TPM, scheme open or OAEP with SHA-256."""
    public = key("rsa2048", attributes=DECRYPT, scheme=scheme)
    assert judge(sent(public)).mode is KeyMode.RESIDENT_DECRYPT


@pytest.mark.parametrize("attributes", [EXTERNAL, 0x00060040, 0x00060000])
@pytest.mark.parametrize("kind", ["p256", "rsa2048"])
def test_an_external_key_is_labelled(attributes: int, kind: str) -> None:
    """A software key that the machine vouches for passes where policy allows it, and only as what it is."""
    public = key(kind, attributes=attributes)
    assert judge(external(public)).mode is KeyMode.EXTERNAL
    with pytest.raises(
        KeyNotResident, match="the key is certified-external; allowed here: tpm-resident"
    ) as e:
        judge(external(public), modes=SIGNING)
    assert e.value.computed == "certified-external"


def test_no_mode_is_allowed_by_default() -> None:
    """An empty set of modes allows nothing."""
    with pytest.raises(KeyNotResident, match="allowed here: none"):
        judge(sent(), modes=frozenset())


@pytest.mark.parametrize("attributes", [0x32, 0x72, 0xB2, 0x132, 0x232, 0x472, 0x7F2])
def test_what_is_free(attributes: int) -> None:
    """userWithAuth, adminWithPolicy, noDA and the two Limited bits say nothing of residency."""
    assert judge(sent(key(attributes=0x40000 | attributes))).mode is KeyMode.RESIDENT


# 1 and 2: the AK


@pytest.mark.threat("T92")
@pytest.mark.parametrize(
    "attributes", [0x40472, 0x70472, 0x50470, 0x50462, 0x50452, 0x50476, 0x60040, 0x58472]
)
def test_1_an_ak_that_is_none(attributes: int) -> None:
    """HSM §24 f, c: unrestricted, decrypting, not fixed, imported, reserved bits: its statements prove nothing."""
    bad = SoftwareAK(ak_template(attributes=attributes), seed=3)
    with pytest.raises(SignatureInvalid, match="proves nothing"):
        judge(sent(ak=bad), ak=bad.public)


def test_2_another_machines_ak() -> None:
    """HSM §24 f: certified by another AK than the activated one."""
    with pytest.raises(SignatureInvalid):
        judge(sent(ak=OTHER_AK))
    with pytest.raises(SignatureInvalid):
        judge(sent(ak=rsa_ak()))


def test_2_a_look_alike() -> None:
    """HSM §24 c: the same bytes signed by the certified key itself, or by nobody."""
    public, attest, signature = sent()
    look_alike = SoftwareAK(ak_template(attributes=RESIDENT), seed=9)
    with pytest.raises(SignatureInvalid):
        judge((public, attest, look_alike.sign(attest)))
    with pytest.raises(SignatureInvalid):
        judge((public, attest, Signature(Alg.ECDSA, Alg.SHA256, bytes(32), bytes(32)).serialise()))
    with pytest.raises(SignatureInvalid):
        judge((public, attest, Signature(Alg.HMAC, Alg.SHA256, bytes(32)).serialise()))
    with pytest.raises(SignatureInvalid):
        judge((public, sent(extra_data=bytes(32))[1], signature))


# 3: what the TPM says


def test_3_only_a_tpms_own_statement() -> None:
    """HSM §24 c: another magic, rightly signed."""
    with pytest.raises(AttestHeaderInvalid):
        judge(sent(magic=0xFF544346))


def test_3_only_a_certification() -> None:
    """N24, HSM §24 b: a quote, a creation or a time statement in its place, genuinely signed."""
    quoted = QuoteInfo(PCRSelection.from_names({"sha256": [0]}), bytes(32))
    for kind, attested in ((AttestType.QUOTE, quoted), (AttestType.CREATION, CreationInfo(KEY.name, b""))):
        with pytest.raises(MalformedEvidence, match="not a certification"):
            parse(*sent(type=kind, attested=attested))
    head = struct.pack(">IH", TPM_GENERATED, AttestType.TIME) + bytes(2 + 2 + 25 + 16)
    with pytest.raises(MalformedEvidence, match="never accepted"):
        parse(KEY.tpm2b(), head, AK.sign(head))
    parsed = parse(*sent())
    with pytest.raises(AttestHeaderInvalid):
        verify(
            replace(parsed, attest=parsed.attest._replace(type=AttestType.QUOTE)),
            ak=AK.public,
            ek=EK.public,
            binding=BINDING,
            spki=KEY.spki_der(),
            modes=ALL,
        )


# 4: for this use


@pytest.mark.threat("T92")
@pytest.mark.parametrize(
    "said",
    [
        b"",
        NONCE,
        BINDING[:-1],
        BINDING + b"\0",
        BINDING[::-1],
        csr_binding(NONCE[::-1], INFO),
        csr_binding(NONCE, INFO + b"\0"),
        key_binding(NONCE, KEY.spki_der()),
    ],
    ids=["empty", "nonce", "cut", "longer", "reversed", "other-nonce", "other-request", "other-use"],
)
def test_4_only_for_this_request(said: bytes) -> None:
    """N74, HSM §24 a: empty, the bare nonce, another nonce, another request, another use: refused."""
    with pytest.raises(ChallengeMismatch):
        judge(sent(extra_data=said))


def test_4_an_empty_binding_never_counts() -> None:
    """Not even where both sides have none."""
    with pytest.raises(ChallengeMismatch):
        judge(sent(extra_data=b""), binding=b"")


def test_bindings_are_those_of_the_specification() -> None:
    """Written out by hand: length-prefixed parts of the request, challenge ‖ SPKI for other keys."""
    digest = hashlib.sha256(INFO).digest()
    by_hand = b"\0\0\0\x0fitl-node-csr/v1" + b"\0\0\0\x20" + NONCE + b"\0\0\0\x20" + digest
    assert hashlib.sha256(by_hand).digest() == BINDING
    assert key_binding(NONCE, b"spki") == hashlib.sha256(NONCE + b"spki").digest()


@pytest.mark.parametrize("nonce", [b"", NONCE[:-1], NONCE + b"\0"])
def test_a_nonce_has_32_bytes(nonce: bytes) -> None:
    """An absent or cut challenge binds nothing."""
    with pytest.raises(MalformedEvidence):
        csr_binding(nonce, INFO)
    with pytest.raises(MalformedEvidence):
        key_binding(nonce, KEY.spki_der())


# 5: the signer


def test_5_where_the_ak_stands() -> None:
    """A primary of the endorsement hierarchy, a child of the EK, or elsewhere: recomputed and recorded."""
    under_ek = qualified_name_of_child(
        qualified_name_of_primary(Hierarchy.ENDORSEMENT, EK.public.name), AK.public.name
    )
    assert judge(sent()).ak_parent is AKParent.ENDORSEMENT
    assert judge(sent(qualified_signer=under_ek)).ak_parent is AKParent.EK
    assert judge(sent(qualified_signer=under_ek), ek=OTHER_EK.public).ak_parent is AKParent.OTHER
    elsewhere = qualified_name_of_primary(Hierarchy.OWNER, AK.public.name)
    assert judge(sent(qualified_signer=elsewhere)).ak_parent is AKParent.OTHER


@pytest.mark.parametrize("signer", [b"", AK.public.name], ids=["none", "name"])
def test_5_a_signer_outside_a_tpm(signer: bytes) -> None:
    """HSM §24 f: the bare Name of the AK for its qualified name, or none."""
    with pytest.raises(AttestHeaderInvalid, match="qualifiedSigner"):
        judge(sent(qualified_signer=signer))


# 6 and 7: about which key


@pytest.mark.threat("T92")
def test_6_another_public_area() -> None:
    """N71: a good certification beside the public area of another key, or the same key with other attributes."""
    _, attest, signature = sent(key("p384"))
    with pytest.raises(KeyCertificationRejected, match="another key was certified"):
        judge((KEY.tpm2b(), attest, signature))
    soft = key(attributes=EXTERNAL)
    _, attest, signature = external(soft)
    with pytest.raises(KeyCertificationRejected, match="another key was certified"):
        judge((key().tpm2b(), attest, signature))


@pytest.mark.threat("T92")
def test_7_the_key_of_the_request() -> None:
    """N72: the request asks for another key than the certified one."""
    with pytest.raises(KeyCertificationRejected, match="not the key of the request"):
        judge(sent(), spki=key("p384").spki_der())
    with pytest.raises(KeyCertificationRejected, match="not the key of the request"):
        judge(sent(), spki=b"")


# 8: how it stands


@pytest.mark.threat("T92")
@pytest.mark.parametrize(
    ("kind", "attributes"), [("p256", RESIDENT), ("rsa2048", RESIDENT), ("rsa2048", DECRYPT)]
)
@pytest.mark.parametrize("ak", ["ecc", "rsa"])
def test_8_a_software_key_that_says_it_is_resident(kind: str, attributes: int, ak: str) -> None:
    """N71, HSM §24 g: attributes of a resident key, but its qualified name is its Name: refused, and labelled."""
    attestation_key = AK if ak == "ecc" else rsa_ak()
    public = key(kind, attributes=attributes)
    with pytest.raises(KeyNotResident, match="external-as-resident: outside the TPM") as e:
        judge(external(public, attestation_key), ak=attestation_key.public)
    assert e.value.computed == "external-as-resident"


@pytest.mark.parametrize(
    ("attributes", "computed"),
    [
        (0x00040040, "exportable"),
        (0x00040062, "exportable"),
        (0x00040070, "exportable"),
        (0x00040052, "exportable"),
        (0x00050472, "restricted"),
        (0x00030472, "restricted"),
        (0x00060472, "of-another-use"),
        (0x00000472, "of-another-use"),
        (0x00020472, "of-another-use"),
        (0x000C0472, "of-another-use"),
        (0x00040476, "of-another-use"),
        (0x00040C72, "of-another-use"),
        (0x80040472, "of-another-use"),
    ],
)
def test_8_a_key_of_the_tpm_without_a_mode(attributes: int, computed: str) -> None:
    """N75: exportable, restricted, of two uses, none or another, stClear, x509sign, reserved bits."""
    with pytest.raises(KeyNotResident, match=computed) as e:
        judge(sent(key(attributes=attributes)))
    assert e.value.computed == computed


@pytest.mark.parametrize(
    "attributes", [0x00050040, 0x00020040, 0x00040050, 0x00040060, 0x000C0040, 0x80040040]
)
def test_8_an_external_key_that_does_not_sign(attributes: int) -> None:
    """Restricted, not signing, or with claims about where it was made: no mode."""
    with pytest.raises(KeyNotResident, match="external-unusable"):
        judge(external(key(attributes=attributes)))


@pytest.mark.parametrize("bit", range(32))
def test_8_every_attribute_counts(bit: int) -> None:
    """Flipping any attribute but the free ones takes the mode away."""
    changed = key(attributes=RESIDENT ^ 1 << bit)
    if 0x7C0 >> bit & 1:
        assert judge(sent(changed)).mode is KeyMode.RESIDENT
    else:
        with pytest.raises(KeyNotResident):
            judge(sent(changed))


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00\x0b", bytes(34), b"\x00\x0c" + bytes(48), KEY.name + b"\0"],
    ids=["empty", "algorithm", "zeros", "other-algorithm", "longer"],
)
def test_8_a_qualified_name_that_is_none(said: bytes) -> None:
    """Empty, cut, of another hash: the key is nowhere."""
    with pytest.raises(KeyNotResident, match="qualified name") as e:
        judge(sent(attested=CertifyInfo(KEY.name, said)))
    assert e.value.computed == "unknown"
    with pytest.raises(KeyNotResident):
        compute_mode(KEY, said)


# 10: a key worth certifying


def chosen(modulus: int) -> Public:
    return written(replace(bare("rsa2048"), modulus=modulus.to_bytes(256)))


@pytest.mark.parametrize(
    ("public", "said"),
    [
        (lambda: key(name_alg=Alg.SHA1), "nameAlg"),
        (lambda: key(symmetric=Symmetric(alg=Alg.AES, key_bits=128, mode=Alg.CFB)), "cipher"),
        (lambda: key(kdf=Scheme(alg=Alg.KDF1_SP800_56A, hash_alg=Alg.SHA256)), "key derivation"),
        (lambda: key("rsa1024"), "RSA key of 1024 bits"),
        (lambda: chosen((1 << 2047) - 1), "RSA key of 2048 bits"),
        (lambda: written(replace(bare("rsa2048"), modulus=b"\xff" * 255)), "RSA key of 2048 bits"),
        (lambda: key("rsa2048", exponent=3), "exponent 3"),
        (lambda: chosen(roca_modulus()), "ROCA"),
        (lambda: key(scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA1)), "scheme 0x0018"),
        (lambda: key(scheme=Scheme(alg=Alg.ECDAA, hash_alg=Alg.SHA256, count=0)), "scheme 0x001a"),
        (lambda: key("rsa2048", scheme=Scheme(alg=Alg.RSAES, hash_alg=None)), "scheme 0x0015"),
        (lambda: key("rsa2048", attributes=DECRYPT, scheme=Scheme(alg=Alg.RSAES, hash_alg=None)), "scheme"),
        (
            lambda: key("rsa2048", attributes=DECRYPT, scheme=Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA1)),
            "scheme",
        ),
    ],
)
def test_10_weak_keys(public: Any, said: str) -> None:
    """N45 for node keys: a hash, size, exponent, modulus, scheme that we do not certify."""
    with pytest.raises(KeyCertificationRejected, match=said):
        judge(sent(public()))


def roca_modulus() -> int:
    """Return a modulus with the fingerprint of the broken generator: a power of 65537 modulo their product."""
    primes = [p for p in range(3, 168) if all(p % q for q in range(2, p))]
    product = 1
    for p in primes:
        product *= p
    start = (1 << 2047) // product * product + pow(65537, 12345, product)
    return start + product


@pytest.mark.parametrize("kind", ["p256", "p384", "p521", "rsa2048"])
@pytest.mark.parametrize("hash_alg", [Alg.SHA256, Alg.SHA384, Alg.SHA512])
def test_10_a_scheme_may_be_fixed(kind: str, hash_alg: int) -> None:
    """A key that signs with one scheme and one good hash."""
    for alg in (Alg.RSASSA, Alg.RSAPSS) if kind.startswith("rsa") else (Alg.ECDSA,):
        public = key(kind, scheme=Scheme(alg=alg, hash_alg=hash_alg), name_alg=hash_alg)
        assert judge(sent(public)).mode is KeyMode.RESIDENT


@pytest.mark.parametrize("mode", ["external", "resident"])
@pytest.mark.parametrize("curve", ["p256", "p384"])
@pytest.mark.parametrize("which", ["x", "y"])
def test_10_leading_zeros(mode: str, curve: str, which: str) -> None:
    """HSM §24 h: X or Y begins with zero, padded or stripped, resident and external: one key, and it passes."""
    numbers = _with_leading_zero(curve, which)
    size = {"p256": 32, "p384": 48}[curve]
    area = bare(curve, attributes=RESIDENT if mode == "resident" else EXTERNAL)
    x, y = numbers.x.to_bytes(size), numbers.y.to_bytes(size)
    padded = written(replace(area, x=x, y=y))
    stripped = written(replace(area, x=x.lstrip(b"\0"), y=y.lstrip(b"\0")))
    assert padded.name != stripped.name
    assert padded.spki_der() == stripped.spki_der()
    make = sent if mode == "resident" else external
    for public in (padded, stripped):
        assert judge(make(public), spki=padded.spki_der()).name == public.name
    # Neither form for the other's certification, and no third form.
    _, attest, signature = make(padded)
    with pytest.raises(KeyCertificationRejected, match="another key"):
        judge((stripped.tpm2b(), attest, signature))


def test_10_no_third_form_of_a_coordinate() -> None:
    """Partly stripped, or empty where it is not zero: refused."""
    numbers = _with_leading_zero("p256", "x", zeros=2)
    x, y = numbers.x.to_bytes(32), numbers.y.to_bytes(32)
    partly = written(replace(bare(), x=x[1:], y=y))
    with pytest.raises(KeyCertificationRejected, match="coordinate"):
        judge(sent(partly))


@cache
def _with_leading_zero(curve: str, which: str, *, zeros: int = 1) -> ec.EllipticCurvePublicNumbers:
    """Return a point whose coordinate begins with zero bytes, found by counting up the private key."""
    chosen_curve = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1()}[curve]
    limit = 1 << chosen_curve.key_size - 8 * zeros
    if zeros == 2:
        numbers = ec.derive_private_key(TWO_ZEROS, chosen_curve).public_key().public_numbers()
        assert numbers.x < limit
        return numbers
    for d in range(1, 100_000):
        numbers = ec.derive_private_key(d, chosen_curve).public_key().public_numbers()
        if getattr(numbers, which) < limit:
            return numbers
    raise AssertionError("no such point")


# Bytes


@pytest.mark.parametrize("part", range(3))
def test_trailing_bytes(part: int) -> None:
    """N76, HSM §24 d: one byte more behind the public area, the statement, the signature."""
    parts = list(sent())
    parts[part] += b"\0"
    with pytest.raises(MalformedEvidence):
        parse(*parts)


@pytest.mark.parametrize("part", range(3))
def test_cut_anywhere(part: int) -> None:
    """Every prefix is malformed."""
    whole = sent()
    for size in range(len(whole[part])):
        parts = list(whole)
        parts[part] = parts[part][:size]
        with pytest.raises(MalformedEvidence):
            parse(*parts)


def test_public_areas_without_a_key_of_ours() -> None:
    """KEYEDHASH, P-224, a point off the curve: malformed before anything is believed."""
    hmac_key = parse_public(
        bytes.fromhex("0030") + bytes.fromhex("0008000b00040472 0000 0005000b 0020") + bytes(32)
    )
    off_curve = written(replace(KEY, y=bytes([*KEY.y[:-1], KEY.y[-1] ^ 1])))
    weak = written(replace(bare(), curve=Curve.NIST_P224, x=bytes(28), y=bytes(28)))
    for public in (hmac_key, off_curve, weak):
        with pytest.raises(MalformedEvidence):
            parse(public.tpm2b(), *sent()[1:])


GOOD = sent()
GOOD_RSA = sent(key("rsa2048"), rsa_ak())


@pytest.mark.threat("T92")
@given(st.integers(min_value=0), st.integers(0, 7), st.booleans())
def test_no_flipped_bit_is_accepted(where: int, bit: int, is_rsa: bool) -> None:
    """A certification, its signature or its public area with any single bit changed proves nothing."""
    good, public, ak = (GOOD_RSA, key("rsa2048"), rsa_ak()) if is_rsa else (GOOD, KEY, AK)
    place = where % sum(map(len, good))
    changed = [bytearray(part) for part in good]
    for part in changed:
        if place < len(part):
            part[place] ^= 1 << bit
            break
        place -= len(part)
    with pytest.raises(AttestationError):
        judge((bytes(changed[0]), bytes(changed[1]), bytes(changed[2])), ak=ak.public, spki=public.spki_der())


@given(st.integers(0, 0xFFFFFFFF), st.booleans())
def test_resident_is_what_the_table_says(attributes: int, external_key: bool) -> None:
    """For any attributes: resident only with the demanded bits, and never with the bare Name."""
    public = replace(KEY, attributes=attributes)
    public = replace(public, tpmt=public.serialise())
    qualified_name = public.name if external_key else inside(public)
    try:
        mode = compute_mode(public, qualified_name)
    except KeyNotResident:
        return
    if external_key:
        assert mode is KeyMode.EXTERNAL
        assert attributes & 0x00050032 == 0x00040000
    else:
        assert mode is KeyMode.RESIDENT
        assert attributes & ~0x7C0 == 0x00040032


@given(st.binary(max_size=120), st.binary(max_size=200), st.binary(max_size=80))
def test_parse_fails_in_one_way_only(public: bytes, attest: bytes, signature: bytes) -> None:
    """Whatever arrives, a caller sees a certification or MalformedEvidence."""
    for parts in ((public, attest, signature), (public, *GOOD[1:]), (GOOD[0], attest, GOOD[2])):
        with contextlib.suppress(MalformedEvidence):
            parse(*parts)


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=60))
def test_bindings_do_not_collide(nonce: bytes, info: bytes) -> None:
    """Another nonce or another request is another binding, and no CSR binding is one of a bare key."""
    binding = csr_binding(nonce, info)
    assert len(binding) == 32
    assert binding != csr_binding(nonce, info + b"\0")
    assert binding != key_binding(nonce, info)


def test_only_evidence_errors() -> None:
    """What a node may learn of a refusal is one code; what it was is the operator's to know."""
    for error in (
        SignatureInvalid,
        AttestHeaderInvalid,
        ChallengeMismatch,
        KeyCertificationRejected,
        KeyNotResident,
    ):
        assert issubclass(error, EvidenceRejected)
    assert key_certification.MEDIA_TYPE == "application/vnd.itl.tpm-key-certification"
    assert [str(mode) for mode in KeyMode] == ["tpm-resident", "tpm-resident-decrypt", "certified-external"]
