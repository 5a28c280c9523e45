"""Quotes: what is believed, and N1-N36 of TPM.md §9 with RSA and ECC keys, of our own and of swtpm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from attestation.errors import (
    AKAttributesRejected,
    AttestationError,
    AttestHeaderInvalid,
    ChallengeMismatch,
    EvidenceRejected,
    MalformedEvidence,
    PCRDigestMismatch,
    SelectionMismatch,
    SignatureInvalid,
)
from attestation.evidence import tpm_quote
from attestation.evidence.tpm_quote import AttestationKey, QuoteClaims, enrolled_key
from attestation.tpm import AKParent, Alg, PCRSelection
from attestation.wire import Reader
from tests.vectors import OWN, SHARED, forge

SHA1, SHA256, SHA384, SHA512, SM3 = (
    int(alg) for alg in (Alg.SHA1, Alg.SHA256, Alg.SHA384, Alg.SHA512, Alg.SM3_256)
)
OWN_KINDS = ("p256", "p384", "rsassa", "rsapss")


@dataclass(frozen=True)
class Vector:
    """A good quote, and what it was asked for."""

    name: str
    ak: bytes
    ek: bytes
    attest: bytes
    signature: bytes
    challenge: bytes
    selection: PCRSelection
    values: dict[int, dict[int, bytes]]

    @property
    def key(self) -> AttestationKey:
        """The enrolled key."""
        return enrolled_key(self.ak, self.ek)

    def verify(self) -> QuoteClaims:
        """Parse and verify, as the service does."""
        return tpm_quote.verify(
            tpm_quote.parse(self.attest, self.signature),
            challenge=self.challenge,
            key=self.key,
            selection=self.selection,
            pcr_values=self.values,
        )


def own(kind: str) -> Vector:
    folder = OWN / kind
    asked = json.loads((OWN / "pcrs.json").read_text())
    return Vector(
        kind,
        (folder / "ak.tpm2b_public").read_bytes(),
        (folder / "ek.tpm2b_public").read_bytes(),
        (folder / "quote.msg").read_bytes(),
        (folder / "quote.sig").read_bytes(),
        bytes.fromhex(asked["nonce"]),
        PCRSelection.from_names(asked["selection"]),
        tpm_quote.parse_pcr_values(asked["pcr_values"]),
    )


def shared() -> list[Vector]:
    base = SHARED / "tpm"
    if not (base / "expected.json").exists():
        return []
    every = json.loads((base / "pcrs.json").read_text())["sha256"]
    found = []
    for case in json.loads((base / "expected.json").read_text())["quotes"]:
        indices = case["selection"]["sha256"]
        values = {"sha256": {str(i): every[str(i)] for i in indices}}
        found.append(
            Vector(
                case["id"],
                (base / case["ak"]).read_bytes(),
                (base / Path(case["ak"]).parent / "ek.tpm2b_public").read_bytes(),
                (base / case["attest"]).read_bytes(),
                (base / case["signature"]).read_bytes(),
                bytes.fromhex(case["challenge"]),
                PCRSelection.from_names(case["selection"]),
                tpm_quote.parse_pcr_values(values),
            )
        )
    return found


VECTORS = [own(kind) for kind in OWN_KINDS] + shared()
every_vector = pytest.mark.parametrize("v", VECTORS, ids=lambda v: v.name)
P256 = own("p256")


def test_the_quotes_of_swtpm_are_beside_the_project() -> None:
    """Without them only quotes of software keys are tested; say so."""
    if not shared():
        pytest.skip("the vectors of swtpm are not beside the project (../shared/vectors)")
    assert len(shared()) == 5


# ---------------------------------------------------------------- what is believed


@every_vector
def test_a_good_quote_is_believed(v: Vector) -> None:
    """Claims hold exactly the quoted PCRs, and the fields of the signed statement."""
    claims = v.verify()
    assert claims.pcrs == v.values
    assert claims.ak_parent is AKParent.EK
    assert claims.firmware_version is not None
    assert claims.safe


def test_the_claims_are_the_fields_of_the_statement() -> None:
    """Every number is the one that was signed."""
    claims = P256.verify()
    assert (claims.clock_ms, claims.reset_count, claims.restart_count) == (123_456, 7, 2)
    assert claims.firmware_version == forge.FIRMWARE
    assert claims.pcr_digest == forge.pcr_digest(SHA256, [forge.PCRS[i] for i in forge.SELECTED])


def made(**fault: object) -> Vector:
    """Return a quote of our P-256 AK, signed as it stands."""
    attest, signature = forge.quote("p256", **fault)  # type: ignore[arg-type]  # passed on
    return replace(P256, attest=attest, signature=signature)


def test_an_endorsement_primary_is_recognised() -> None:
    """The AK itself may stand under the endorsement hierarchy."""
    name = forge.AKS["p256"].name
    signer = name[:2] + forge.digest(SHA256, (0x4000000B).to_bytes(4) + name)
    assert made(signer=signer).verify().ak_parent is AKParent.ENDORSEMENT


@pytest.mark.parametrize("signer", [b"\0\x0b" + bytes(32), b"\x40\0\0\x0b"])
def test_a_signer_elsewhere_claims_no_firmware(signer: bytes) -> None:
    """Outside the endorsement hierarchy counters and firmware are obfuscated: nothing is claimed of firmware."""
    claims = made(signer=signer).verify()
    assert claims.ak_parent is AKParent.OTHER
    assert claims.firmware_version is None


def test_bitmaps_of_four_bytes_are_equal() -> None:
    """A 4-byte bitmap with the same bits is the same selection."""
    assert made(bitmap_bytes=4).verify().pcrs == P256.values


def test_an_empty_bank_beside_the_requested_one_is_nothing() -> None:
    """Some TPMs list banks without PCRs."""
    attest = made(banks=[(SHA1, ()), (SHA256, forge.SELECTED)])
    assert attest.verify().pcrs == P256.values


def test_two_banks_are_hashed_in_signed_order() -> None:
    """The digest is over the values in the order of the signed selection, whatever order was requested."""
    wide = {i: forge.digest(SHA384, b"wide %d" % i) for i in (0, 4)}
    values = {SHA256: {7: forge.PCRS[7]}, SHA384: wide}
    v = made(banks=[(SHA384, (0, 4)), (SHA256, (7,))], values=[wide[0], wide[4], forge.PCRS[7]])
    asked = PCRSelection.from_names({"sha256": [7], "sha384": [0, 4]})
    assert replace(v, selection=asked, values=values).verify().pcrs == values
    swapped = made(banks=[(SHA384, (0, 4)), (SHA256, (7,))], values=[forge.PCRS[7], wide[0], wide[4]])
    with pytest.raises(PCRDigestMismatch):
        replace(swapped, selection=asked, values=values).verify()


def test_the_digest_uses_the_hash_of_the_signing_scheme() -> None:
    """A SHA-384 AK over a SHA-256 bank: the digest has 48 bytes."""
    assert len(own("p384").verify().pcr_digest) == 48


# ---------------------------------------------------------------- N1-N24


@every_vector
@pytest.mark.parametrize(
    ("n", "change"),
    [
        ("n1-wrong", lambda c: bytes([c[0] ^ 1]) + c[1:]),
        ("n1-zeros", lambda c: bytes(len(c))),
        ("n2-empty", lambda c: b""),
        ("n3-truncated", lambda c: c[:-1]),
        ("n3-one-byte", lambda c: c[:1]),
        ("n4-longer", lambda c: c + b"\0"),
    ],
)
def test_n1_to_n4_another_challenge(v: Vector, n: str, change: Callable[[bytes], bytes]) -> None:
    """A quote answers its own challenge, whole, and no other."""
    with pytest.raises(ChallengeMismatch):
        replace(v, challenge=change(v.challenge)).verify()


def test_n2_an_empty_nonce_never_answers_an_empty_challenge() -> None:
    """Equal and empty is still no freshness."""
    with pytest.raises(ChallengeMismatch):
        replace(made(nonce=b""), challenge=b"").verify()


def test_n5_the_signature_of_another_quote_of_the_same_ak() -> None:
    """Signatures do not travel between statements."""
    attest, signature = forge.quote("p256", clock=1)
    replace(P256, attest=attest, signature=signature).verify()
    with pytest.raises(SignatureInvalid):
        replace(P256, signature=signature).verify()
    with pytest.raises(SignatureInvalid):
        replace(P256, attest=attest).verify()


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_n6_the_right_quote_by_another_ak(kind: str) -> None:
    """Only the enrolled key counts, even against a key of the same kind."""
    v = own(kind)
    other = forge.AK("other-p256" if kind.startswith("p") else "ek-rsa2048", 0x18, SHA256)
    scheme = forge.AKS[kind]
    if kind.startswith("p"):
        other = forge.AK(f"other-{kind}", scheme.scheme, scheme.hash_alg, scheme.name_alg)
    else:
        other = forge.AK("ek-rsa2048", scheme.scheme, scheme.hash_alg, scheme.name_alg)
    with pytest.raises(SignatureInvalid):
        replace(v, signature=other.sign(v.attest)).verify()
    with pytest.raises(SignatureInvalid):
        replace(v, ak=other.public).verify()


FIELDS = {
    "n7-magic": (0, 4),
    "n8-type": (4, 6),
    "n9-qualified-signer": (6, 42),
    "n10-extra-data": (42, 76),
    "n11-clock-info": (76, 93),
    "n12-firmware-version": (93, 101),
    "n13-pcr-select": (101, 111),
    "n14-pcr-digest": (111, 145),
}
"""Offsets in a TPMS_ATTEST whose signer has 34 and whose challenge has 32 bytes."""


@pytest.mark.parametrize("n", FIELDS)
@pytest.mark.parametrize("kind", ["p256", "rsassa", "rsapss"])
def test_n7_to_n14_no_flipped_bit_of_a_field(kind: str, n: str) -> None:
    """Every single bit of every field of the statement: refused."""
    v = own(kind)
    assert len(v.attest) == FIELDS["n14-pcr-digest"][1]
    for at in range(8 * FIELDS[n][0], 8 * FIELDS[n][1]):
        with pytest.raises((MalformedEvidence, EvidenceRejected)):
            replace(v, attest=flipped(v.attest, at)).verify()


@pytest.mark.threat("T10")
@every_vector
def test_n7_to_n14_no_flipped_bit_of_the_statement(v: Vector) -> None:
    """Every single bit of TPMS_ATTEST, exhaustively: refused."""
    for at in range(8 * len(v.attest)):
        with pytest.raises((MalformedEvidence, EvidenceRejected)):
            replace(v, attest=flipped(v.attest, at)).verify()


@pytest.mark.threat("T10")
@every_vector
def test_n15_n16_no_flipped_bit_of_the_signature(v: Vector) -> None:
    """Every single bit of TPMT_SIGNATURE, header and body, exhaustively: refused."""
    for at in range(8 * len(v.signature)):
        with pytest.raises((MalformedEvidence, EvidenceRejected)):
            replace(v, signature=flipped(v.signature, at)).verify()


@every_vector
def test_n17_to_n20_other_lengths(v: Vector) -> None:
    """Cut at every byte, or followed by one: malformed, whichever of the two it is."""
    for field in ("attest", "signature"):
        good: bytes = getattr(v, field)
        for cut in range(len(good)):
            with pytest.raises(MalformedEvidence):
                with_bytes(v, field, good[:cut]).verify()
        for more in (b"\0", good):
            with pytest.raises(MalformedEvidence):
                with_bytes(v, field, good + more).verify()


def with_bytes(v: Vector, field: str, data: bytes) -> Vector:
    return replace(v, attest=data) if field == "attest" else replace(v, signature=data)


def flipped(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


@pytest.mark.threat("T12")
@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.parametrize(
    ("alg", "hash_alg"),
    [
        (0x14, 0x0B),
        (0x14, 0x0C),
        (0x16, 0x0B),
        (0x16, 0x0C),
        (0x18, 0x0B),
        (0x18, 0x0C),
        (0x18, 0x04),
        (5, 11),
    ],
)
def test_n21_the_signature_does_not_choose_how_it_is_verified(kind: str, alg: int, hash_alg: int) -> None:
    """Algorithm and hash in the signature's header other than the AK's: refused."""
    v = own(kind)
    if (alg, hash_alg) == (forge.AKS[kind].scheme, forge.AKS[kind].hash_alg):
        replace(v, signature=forge.u16(alg) + forge.u16(hash_alg) + v.signature[4:]).verify()
        return
    with pytest.raises((SignatureInvalid, MalformedEvidence)):
        replace(v, signature=forge.u16(alg) + forge.u16(hash_alg) + v.signature[4:]).verify()


def test_n21_rsassa_does_not_pass_for_rsapss() -> None:
    """A true RSASSA signature under an AK whose scheme is RSAPSS, and the reverse: refused."""
    v = own("rsapss")
    pkcs1 = forge.AKS["rsassa"].sign(v.attest)
    with pytest.raises(SignatureInvalid):
        replace(v, signature=pkcs1).verify()
    with pytest.raises(SignatureInvalid):
        replace(v, signature=v.signature[:2] + pkcs1[2:]).verify()


def test_n21_a_sha1_ak_is_never_enrolled() -> None:
    """No verification key is made for SHA-1, nor for a scheme that is none."""
    for scheme, hash_alg in ((forge.ECDSA, forge.SHA1), (forge.NULL, SHA256), (forge.ECDAA, SHA256)):
        weak = forge.public_area(forge.private("ak-p256"), scheme=scheme, hash_alg=hash_alg)
        with pytest.raises(AKAttributesRejected):
            AttestationKey(weak, P256.ek)


@pytest.mark.parametrize("kind", ["rsassa", "rsapss"])
@pytest.mark.parametrize("size", [0, 1, 255, 257, 512])
def test_n22_rsa_signatures_are_as_long_as_the_modulus(kind: str, size: int) -> None:
    """A number with leading zeros added or removed is another signature: refused."""
    v = own(kind)
    number = int.from_bytes(v.signature[6:])
    body = number.to_bytes(size) if size > 256 else v.signature[6:][256 - size :]
    with pytest.raises(SignatureInvalid, match="as long as the modulus"):
        replace(v, signature=v.signature[:4] + forge.tpm2b(body)).verify()


def test_n24_a_quote_is_no_other_statement() -> None:
    """The parser of statements says what it is: there is no certify verifier that a quote could reach."""
    quote = tpm_quote.parse(P256.attest, P256.signature)
    assert quote.attest.type == 0x8018
    for name in ("quote-is-certify", "quote-is-creation"):
        attest, signature = hostile(name)
        with pytest.raises(MalformedEvidence, match="not a quote"):
            tpm_quote.parse(attest, signature)


# ---------------------------------------------------------------- the hostile vectors


def hostile(name: str) -> tuple[bytes, bytes]:
    reader = Reader((OWN / "hostile" / f"{name}.bin").read_bytes(), name)
    return reader.sized(), reader.sized()


HOSTILE: dict[str, type[AttestationError]] = {
    "quote-wrong-magic": AttestHeaderInvalid,
    "quote-is-certify": MalformedEvidence,
    "quote-is-creation": MalformedEvidence,
    "quote-is-time": MalformedEvidence,
    "quote-signer-empty": AttestHeaderInvalid,
    "quote-signer-bare-name": AttestHeaderInvalid,
    "quote-nonce-wrong": ChallengeMismatch,
    "quote-nonce-empty": ChallengeMismatch,
    "quote-nonce-truncated": ChallengeMismatch,
    "quote-nonce-longer": ChallengeMismatch,
    "quote-safe-is-2": MalformedEvidence,
    "quote-selection-empty": SelectionMismatch,
    "quote-selection-no-pcr": SelectionMismatch,
    "quote-selection-subset": SelectionMismatch,
    "quote-selection-superset": SelectionMismatch,
    "quote-selection-other-bank": SelectionMismatch,
    "quote-selection-sha1-only": SelectionMismatch,
    "quote-selection-bank-twice": MalformedEvidence,
    "quote-selection-five-banks": MalformedEvidence,
    "quote-selection-resettable": SelectionMismatch,
    "quote-selection-unknown-bank": MalformedEvidence,
    "quote-bitmap-2-bytes": MalformedEvidence,
    "quote-digest-of-other-values": PCRDigestMismatch,
    "quote-trailing-byte": MalformedEvidence,
    "quote-truncated": MalformedEvidence,
    "quote-digest-65-bytes": MalformedEvidence,
    "quote-count-huge": MalformedEvidence,
    "signature-by-other-ak": SignatureInvalid,
    "signature-of-other-quote": SignatureInvalid,
    "signature-r-zero": SignatureInvalid,
    "signature-s-zero": SignatureInvalid,
    "signature-r-is-n": SignatureInvalid,
    "signature-s-is-n": SignatureInvalid,
    "signature-r-plus-n": SignatureInvalid,
    "signature-says-sha384": SignatureInvalid,
    "signature-says-sm2": MalformedEvidence,
    "signature-truncated": MalformedEvidence,
    "signature-trailing-byte": MalformedEvidence,
}


@pytest.mark.parametrize(("name", "error"), HOSTILE.items())
def test_each_hostile_vector_is_refused_for_its_fault(name: str, error: type[AttestationError]) -> None:
    """All else about it is right, so only the check for this fault can refuse it."""
    attest, signature = hostile(name)
    with pytest.raises(error):
        replace(P256, attest=attest, signature=signature).verify()


def test_every_hostile_vector_has_its_error() -> None:
    """No vector is left out of the table."""
    assert {path.stem for path in (OWN / "hostile").glob("*.bin")} == set(HOSTILE)


# ---------------------------------------------------------------- N25-N36


@pytest.mark.threat("T10")
@every_vector
def test_n25_no_flipped_bit_of_a_value(v: Vector) -> None:
    """Every single bit of every PCR value sent, exhaustively: refused."""
    for index, value in v.values[SHA256].items():
        for bit in range(8 * len(value)):
            values = {SHA256: {**v.values[SHA256], index: flipped(value, bit)}}
            with pytest.raises(PCRDigestMismatch):
                replace(v, values=values).verify()


@every_vector
def test_n26_a_value_is_missing(v: Vector) -> None:
    """Each one in turn, and all of them."""
    for index in v.values[SHA256]:
        rest = {i: value for i, value in v.values[SHA256].items() if i != index}
        with pytest.raises(SelectionMismatch):
            replace(v, values={SHA256: rest}).verify()
    nothings: tuple[dict[int, dict[int, bytes]], ...] = ({SHA256: {}}, {})
    for nothing in nothings:
        with pytest.raises(SelectionMismatch):
            replace(v, values=nothing).verify()


@pytest.mark.threat("T11")
@every_vector
def test_n27_an_extra_value_that_was_not_quoted(v: Vector) -> None:
    """Values outside the quote never become claims: they refuse it (CVE-2022-0317)."""
    with pytest.raises(SelectionMismatch):
        replace(v, values={SHA256: {**v.values[SHA256], 23: bytes(32)}}).verify()
    with pytest.raises(SelectionMismatch):
        replace(v, values={**v.values, SHA384: {0: bytes(48)}}).verify()
    with pytest.raises(SelectionMismatch):
        replace(v, values={**v.values, SHA1: {}}).verify()


@every_vector
@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b""])
def test_n28_a_value_of_another_length(v: Vector, change: Callable[[bytes], bytes]) -> None:
    """Each value has exactly its bank's length."""
    for index, value in v.values[SHA256].items():
        with pytest.raises(SelectionMismatch):
            replace(v, values={SHA256: {**v.values[SHA256], index: change(value)}}).verify()


@pytest.mark.threat("T11")
def test_n29_two_values_split_into_four() -> None:
    """The same bytes under other indices: a quote of two PCRs never speaks of four."""
    v = made(banks=[(SHA256, (0, 1))])
    both = forge.PCRS[0] + forge.PCRS[1]
    quarters = {i: both[16 * i : 16 * i + 16] for i in range(4)}
    for asked in ({"sha256": [0, 1]}, {"sha256": [0, 1, 2, 3]}):
        with pytest.raises(SelectionMismatch):
            replace(v, selection=PCRSelection.from_names(asked), values={SHA256: quarters}).verify()


def test_n30_two_values_joined_into_one() -> None:
    """64 bytes as PCR 0: the digest would agree, the length does not."""
    v = made(banks=[(SHA256, (0, 1))])
    joined = {0: forge.PCRS[0] + forge.PCRS[1]}
    for asked in ({"sha256": [0, 1]}, {"sha256": [0]}):
        with pytest.raises(SelectionMismatch):
            replace(v, selection=PCRSelection.from_names(asked), values={SHA256: joined}).verify()
    shifted = {0: forge.PCRS[0][:31], 1: forge.PCRS[0][31:] + forge.PCRS[1]}
    with pytest.raises(SelectionMismatch, match="32 bytes"):
        replace(v, selection=PCRSelection.from_names({"sha256": [0, 1]}), values={SHA256: shifted}).verify()


@pytest.mark.threat("T11")
def test_n31_resettable_pcrs_relabelled_as_boot_pcrs() -> None:
    """A quote over PCR 16 and 23, holding what an attacker wrote there, never passes for PCR 0 and 1."""
    v = made(banks=[(SHA256, (16, 23))], values=[forge.PCRS[0], forge.PCRS[1]])
    asked = PCRSelection.from_names({"sha256": [0, 1]})
    # Under the names of boot PCRs, and under their own: the signed selection is compared before any value.
    for indices in ((0, 1), (16, 23)):
        values = {SHA256: dict(zip(indices, (forge.PCRS[0], forge.PCRS[1]), strict=True))}
        with pytest.raises(SelectionMismatch, match="requested"):
            replace(v, selection=asked, values=values).verify()


def test_n32_another_bank() -> None:
    """SHA-384 values for a SHA-256 request, or SHA-256 values presented as SHA-384: refused."""
    wide = {i: forge.digest(SHA384, b"%d" % i) for i in forge.SELECTED}
    v = made(banks=[(SHA384, forge.SELECTED)], values=list(wide.values()))
    with pytest.raises(SelectionMismatch):
        replace(v, values={SHA384: wide}).verify()
    with pytest.raises(SelectionMismatch):
        replace(P256, values={SHA384: P256.values[SHA256]}).verify()


@pytest.mark.threat("T12")
def test_n32_sha1_alone_is_never_enough() -> None:
    """Even where SHA-1 PCRs were requested, and quoted, and right."""
    values = {0: forge.digest(SHA1, b"0")}
    v = made(banks=[(SHA1, (0,))], values=list(values.values()))
    asked = PCRSelection.from_names({"sha1": [0]})
    with pytest.raises(SelectionMismatch, match="SHA-1"):
        replace(v, selection=asked, values={SHA1: values}).verify()


def test_n34_an_empty_selection_is_refused_even_where_it_was_requested() -> None:
    """A quote over nothing proves nothing."""
    for banks in ([], [(SHA256, ())]):
        v = made(banks=banks, values=[])
        with pytest.raises(SelectionMismatch, match="nothing"):
            replace(v, selection=PCRSelection(()), values={}).verify()


@every_vector
def test_n35_n36_subset_and_superset_of_the_request(v: Vector) -> None:
    """Fewer or more PCRs than requested, with right values for what was quoted: refused."""
    indices = sorted(v.values[SHA256])
    for asked in (indices[:-1], indices[1:], [*indices, 16], [16]):
        selection = PCRSelection.from_names({"sha256": asked})
        with pytest.raises(SelectionMismatch):
            replace(v, selection=selection).verify()
        values = {SHA256: {i: v.values[SHA256].get(i, bytes(32)) for i in asked}}
        with pytest.raises(SelectionMismatch):
            replace(v, selection=selection, values=values).verify()


@pytest.mark.skipif(
    not shared(), reason="the vectors of swtpm are not beside the project (../shared/vectors)"
)
def test_n5_n6_swtpm_quotes_do_not_mix() -> None:
    """Signature of quote3 under quote, and the RSA AK for an ECC quote: refused, as the vectors demand."""
    by_name = {v.name: v for v in shared()}
    quote, quote3, rsa = by_name["ecc-quote"], by_name["ecc-quote3"], by_name["rsa-quote"]
    for wrong in (replace(quote, signature=quote3.signature), replace(quote, ak=rsa.ak, ek=rsa.ek)):
        with pytest.raises(SignatureInvalid):
            wrong.verify()


# ---------------------------------------------------------------- values as text, keys, acknowledgements


@pytest.mark.parametrize(
    "values",
    [
        {"sha3": {"0": "00" * 32}},
        {"SHA256": {"0": "00" * 32}},
        {"sha256": {"32": "00" * 32}},
        {"sha256": {"-1": "00" * 32}},
        {"sha256": {"00": "00" * 32}},
        {"sha256": {" 0": "00" * 32}},
        {"sha256": {"٠": "00" * 32}},
        {"sha256": {"": "00" * 32}},
        {"sha256": {"0": "00" * 31}},
        {"sha256": {"0": "00" * 33}},
        {"sha256": {"0": "AB" * 32}},
        {"sha256": {"0": "zz" * 32}},
        {"sha256": {"0": "00" * 31 + " 00"}},
        {"sha256": {"0": " " + "00" * 32}},
        {"sha256": {"0": "0x" + "00" * 32}},
        {"sha384": {"0": "00" * 32}},
        {"sha256": {"0": ""}},
    ],
)
def test_pcr_values_are_canonical_text(values: dict[str, dict[str, str]]) -> None:
    """One way to write a bank, an index and a digest."""
    with pytest.raises(MalformedEvidence):
        tpm_quote.parse_pcr_values(values)


def test_pcr_values_of_several_banks() -> None:
    """Every bank that a TPM may have, every index it may quote."""
    read = tpm_quote.parse_pcr_values({"sha1": {"31": "01" * 20}, "sm3_256": {"0": "02" * 32}, "sha512": {}})
    assert read == {SHA1: {31: b"\1" * 20}, SM3: {0: b"\2" * 32}, SHA512: {}}


def test_an_enrolled_key_is_remembered_by_its_bytes() -> None:
    """The same bytes give the same object; other bytes never do."""
    assert enrolled_key(P256.ak, P256.ek) is enrolled_key(bytes(bytearray(P256.ak)), P256.ek)
    assert enrolled_key(P256.ak, own("p384").ek) is not enrolled_key(P256.ak, P256.ek)


def acknowledge(v: Vector, qualifying_data: bytes) -> None:
    tpm_quote.verify_acknowledgement(
        tpm_quote.parse(v.attest, v.signature),
        qualifying_data=qualifying_data,
        key=v.key,
        selection=v.selection,
    )


@pytest.mark.parametrize("kind", OWN_KINDS)
def test_an_acknowledgement_is_held_to_the_same_checks(kind: str) -> None:
    """Signature, header, qualifying data, selection: each refuses."""
    v = own(kind)
    acknowledge(v, v.challenge)
    for other in (b"", v.challenge[:-1], v.challenge + b"\0", bytes(32)):
        with pytest.raises(ChallengeMismatch):
            acknowledge(v, other)
    with pytest.raises(SignatureInvalid):
        acknowledge(replace(v, signature=flipped(v.signature, 8 * len(v.signature) - 1)), v.challenge)
    with pytest.raises(SelectionMismatch):
        acknowledge(replace(v, selection=PCRSelection.from_names({"sha256": [0]})), v.challenge)


def test_an_acknowledgement_with_an_empty_message_or_a_forged_header() -> None:
    """Empty equals empty, but is no message; a statement that no TPM made is none."""
    with pytest.raises(ChallengeMismatch):
        acknowledge(made(nonce=b""), b"")
    attest, signature = hostile("quote-wrong-magic")
    with pytest.raises(AttestHeaderInvalid):
        acknowledge(replace(P256, attest=attest, signature=signature), P256.challenge)


@every_vector
def test_no_flipped_bit_is_acknowledged(v: Vector) -> None:
    """Every single bit of the statement, exhaustively."""
    for at in range(8 * len(v.attest)):
        with pytest.raises((MalformedEvidence, EvidenceRejected)):
            acknowledge(replace(v, attest=flipped(v.attest, at)), v.challenge)


def test_values_as_json_are_those_of_the_api() -> None:
    """One form: ASCII of at most 16 KiB without escapes, each member once; whatever else is malformed."""
    good = b'{"sha256": {"7": "%s"}}' % (b"11" * 32)
    assert tpm_quote.parse_pcr_json(good) == {Alg.SHA256: {7: b"\x11" * 32}}
    longest = good + b" " * (tpm_quote.MAX_PCR_JSON_BYTES - len(good))
    assert tpm_quote.parse_pcr_json(longest) == tpm_quote.parse_pcr_json(good)
    for data in (
        longest + b" ",
        b"",
        b"[]",
        b"{",
        b"[" * 16_000,
        b'{"sha256": {}, "sha256": {}}',
        b'{"sha256": {"\\u0037": "%s"}}' % (b"11" * 32),
        good.decode().encode("utf-16"),
        '{"sha256": {"\u0667": "00"}}'.encode(),
    ):
        with pytest.raises(MalformedEvidence):
            tpm_quote.parse_pcr_json(data)
