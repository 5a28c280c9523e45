"""The second protocol: each step of the verification, and that nothing passes when it is not the EK's word (N77)."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import (
    AttestationError,
    AttestHeaderInvalid,
    ChallengeMismatch,
    KeyCertificationRejected,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.evidence import ek_key_attestation
from attestation.evidence.ek_key_attestation import KeyCertificationClaims, offer, parse, verify
from attestation.tpm import (
    TPM_GENERATED,
    Alg,
    Attest,
    AttestType,
    CertifyInfo,
    CreationInfo,
    Hierarchy,
    PCRSelection,
    QuoteInfo,
    Signature,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation.tpm.duplicate import hmac_key_public
from attestation_testing import SoftwareAK, SoftwareEK

SECRET = bytes(range(64))
NONCE = b"\x2a" * 32
FIRMWARE = 0x0007_003D_0AE1_0000


@cache
def ek_of(template: str) -> SoftwareEK:
    return SoftwareEK(template)


EK, OTHER_EK = ek_of("L-2"), SoftwareEK("L-2", seed=7)
AK, OTHER_AK = SoftwareAK(seed=1), SoftwareAK(seed=2)


def statement(ak: SoftwareAK = AK, **changes: Any) -> Attest:
    """Return what an honest TPM says, with *changes*."""
    good = Attest(
        TPM_GENERATED,
        AttestType.CERTIFY,
        b"",
        NONCE,
        5_000,
        3,
        1,
        True,
        FIRMWARE,
        CertifyInfo(ak.public.name, ak.qualified_name),
    )
    return good._replace(**changes)


def answer(attest: Attest, *, ek: SoftwareEK = EK, secret: bytes = SECRET) -> tuple[bytes, bytes]:
    """Return what the TPM of *ek* answers to an offer of *secret*."""
    offered = offer(ek.public, secret)
    made = ek.certify((offered.object_public, offered.duplicate, offered.in_sym_seed), attest)
    return made.certify_info, made.signature


def judge(sent: tuple[bytes, bytes], **changes: Any) -> KeyCertificationClaims:
    expected: dict[str, Any] = {"secret": SECRET, "challenge": NONCE, "ek": EK.public, "ak": AK.public}
    return verify(parse(*sent), **{**expected, **changes})


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-3", "H-4"])
def test_the_ek_vouches(template: str) -> None:
    """RSA and ECC, low and high range: the claims are those of the statement."""
    ek = ek_of(template)
    claims = judge(answer(statement(), ek=ek), ek=ek.public)
    assert claims == KeyCertificationClaims(
        ak_name=AK.public.name,
        ek_fingerprint=ek.public.fingerprint(),
        firmware_version=FIRMWARE,
        clock_ms=5_000,
        reset_count=3,
        restart_count=1,
        safe=True,
    )


def test_the_ak_may_stand_under_the_ek_or_beside_it() -> None:
    """A child of the EK, a primary key, or a key elsewhere in this TPM: all are in it."""
    under_ek = qualified_name_of_child(
        qualified_name_of_primary(Hierarchy.ENDORSEMENT, EK.public.name), AK.public.name
    )
    elsewhere = qualified_name_of_primary(Hierarchy.OWNER, AK.public.name)
    for qualified_name in (under_ek, elsewhere):
        judge(answer(statement(attested=CertifyInfo(AK.public.name, qualified_name))))


@pytest.mark.threat("T78")
def test_1_another_key() -> None:
    """N77: a statement made with another K, or K of another offer, proves nothing."""
    with pytest.raises(SignatureInvalid):
        judge(answer(statement(), secret=SECRET[::-1]))
    with pytest.raises(SignatureInvalid):
        judge(answer(statement()), secret=SECRET[:32][::-1] + SECRET[32:])
    attest, signature = answer(statement())
    with pytest.raises(SignatureInvalid):
        judge((attest, signature[:-1] + bytes([signature[-1] ^ 1])))
    # An HMAC over the bytes themselves is not what a TPM makes.
    plain = hmac.digest(SECRET[:32], attest, "sha256")
    with pytest.raises(SignatureInvalid):
        judge((attest, Signature(Alg.HMAC, Alg.SHA256, plain).serialise()))


def test_1_the_signature_does_not_choose_how() -> None:
    """Another hash or a signature of the AK is refused by its header, whatever is in it."""
    attest, _ = answer(statement())
    mac = hmac.digest(SECRET[:32], hashlib.sha384(attest).digest(), "sha384")
    for forged in (Signature(Alg.HMAC, Alg.SHA384, mac).serialise(), AK.sign(attest)):
        with pytest.raises(SignatureInvalid, match="no HMAC"):
            judge((attest, forged))


def test_2_only_a_tpms_own_statement() -> None:
    """A magic that is not a TPM's, rightly signed: refused."""
    with pytest.raises(AttestHeaderInvalid, match="magic"):
        judge(answer(statement(magic=0xFF544346)))


def test_3_only_a_certification() -> None:
    """A quote or a creation statement under K is no certification; nor is one that only claims to be."""
    quoted = QuoteInfo(PCRSelection.from_names({"sha256": [0]}), bytes(32))
    for kind, attested in ((AttestType.QUOTE, quoted), (AttestType.CREATION, CreationInfo(b"", b""))):
        sent = answer(statement(type=kind, attested=attested))
        with pytest.raises(MalformedEvidence):
            parse(*sent)
    sent = answer(statement())
    parsed = parse(*sent)
    with pytest.raises(AttestHeaderInvalid, match="no certification"):
        verify(
            replace(parsed, attest=parsed.attest._replace(type=AttestType.QUOTE)),
            secret=SECRET,
            challenge=NONCE,
            ek=EK.public,
            ak=AK.public,
        )


@pytest.mark.threat("T78")
@pytest.mark.parametrize("said", [b"", NONCE[:-1], NONCE + b"\0", b"\x2b" * 32])
def test_4_only_for_this_challenge(said: bytes) -> None:
    """Another, shorter, longer or empty challenge: refused."""
    with pytest.raises(ChallengeMismatch):
        judge(answer(statement(extra_data=said)))


def test_4_an_empty_challenge_never_counts() -> None:
    """Not even where both sides have none."""
    with pytest.raises(ChallengeMismatch):
        judge(answer(statement(extra_data=b"")), challenge=b"")


@pytest.mark.threat("T78")
def test_5_only_about_the_activated_ak() -> None:
    """Another key of the same TPM is not what was asked for."""
    with pytest.raises(KeyCertificationRejected, match="another key"):
        judge(answer(statement(OTHER_AK)))


@pytest.mark.threat("T78")
@pytest.mark.parametrize("qualified_name", [b"", AK.public.name])
def test_6_never_about_an_external_key(qualified_name: bytes) -> None:
    """A key that was brought in by TPM2_LoadExternal has its bare Name, or none: refused."""
    with pytest.raises(KeyCertificationRejected, match="outside"):
        judge(answer(statement(attested=CertifyInfo(AK.public.name, qualified_name))))


@pytest.mark.threat("T78")
def test_7_only_under_this_ek() -> None:
    """N77: K loaded elsewhere, a bare Name, another EK's child: the EK does not vouch."""
    name = hmac_key_public(SECRET[:32], SECRET[32:]).name
    other_ek = qualified_name_of_primary(Hierarchy.ENDORSEMENT, OTHER_EK.public.name)
    as_owner = qualified_name_of_primary(Hierarchy.OWNER, EK.public.name)
    for signer in (
        name,
        qualified_name_of_primary(Hierarchy.ENDORSEMENT, name),
        qualified_name_of_child(other_ek, name),
        qualified_name_of_child(as_owner, name),
        qualified_name_of_child(
            qualified_name_of_primary(Hierarchy.ENDORSEMENT, EK.public.name), AK.public.name
        ),
    ):
        with pytest.raises(AttestHeaderInvalid, match="qualifiedSigner"):
            judge(answer(statement(qualified_signer=signer)))
    with pytest.raises(AttestHeaderInvalid, match="qualifiedSigner"):
        judge(answer(statement()), ek=OTHER_EK.public)


def test_another_tpm_cannot_answer() -> None:
    """Only the TPM of the EK opens the offer; another one recovers no key."""
    offered = offer(EK.public, SECRET)
    with pytest.raises(MalformedEvidence):
        OTHER_EK.certify((offered.object_public, offered.duplicate, offered.in_sym_seed), statement())


def test_offers_differ_and_tell_nothing() -> None:
    """The key is in no member of the offer; two offers of one key have only the public area in common."""
    first, second = offer(EK.public, SECRET), offer(EK.public, SECRET)
    assert first.object_public == second.object_public
    assert first.duplicate != second.duplicate
    assert first.in_sym_seed != second.in_sym_seed
    for member in (first.object_public, first.duplicate, first.in_sym_seed):
        assert SECRET[:32] not in member
        assert SECRET[32:] not in member


@pytest.mark.parametrize("secret", [b"", SECRET[:-1], SECRET + b"\0"])
def test_a_secret_has_64_bytes(secret: bytes) -> None:
    """A missing or cut secret is an error and never an empty key."""
    with pytest.raises(MalformedEvidence):
        offer(EK.public, secret)
    with pytest.raises(MalformedEvidence):
        judge(answer(statement()), secret=secret)


GOOD = answer(statement())


@pytest.mark.threat("T78")
@given(st.integers(min_value=0), st.integers(0, 7))
def test_no_flipped_bit_is_accepted(where: int, bit: int) -> None:
    """A statement or signature with any single bit changed proves nothing."""
    sizes = [len(part) for part in GOOD]
    place = where % sum(sizes)
    part, offset = (0, place) if place < sizes[0] else (1, place - sizes[0])
    changed = [bytearray(each) for each in GOOD]
    changed[part][offset] ^= 1 << bit
    with pytest.raises(AttestationError):
        judge((bytes(changed[0]), bytes(changed[1])))


@given(st.binary(max_size=300), st.binary(max_size=80))
def test_parse_fails_in_one_way_only(attest: bytes, signature: bytes) -> None:
    """Whatever arrives, a caller sees a certification or MalformedEvidence."""
    with contextlib.suppress(MalformedEvidence):
        parse(attest, signature)


def test_it_is_named() -> None:
    """Media type and word on the wire are those of TPM.md §3.3."""
    assert ek_key_attestation.MEDIA_TYPE == "application/vnd.itl.tpm-ek-certify"
    assert ek_key_attestation.KIND == "tpm-ek-certify"
