"""Quotes of Intel's Trusted Certificate Issuer: read, judged, and of the lowest tier."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from dataclasses import replace
from datetime import timedelta
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import ChallengeMismatch, MalformedEvidence
from attestation.evidence import tcs_kmra
from attestation.quote import QuoteResult, appraise_quote
from attestation.reference import Policy, parse_policy
from attestation.results import Verdict
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.quote.quote_kit import POLICY, SPKI, case, envelope, evidence


def nonce(age: timedelta = timedelta(), random: bytes = b"r" * 28) -> bytes:
    """Return a nonce as the published code makes it."""
    return random + struct.pack("<I", int((AT - age).timestamp()))


@cache
def numbers(bits: int = 3072) -> tuple[bytes, bytes]:
    """Return exponent and modulus."""
    found = rsa.generate_private_key(65537, bits).public_key().public_numbers()
    return found.e.to_bytes(3), found.n.to_bytes(bits // 8)


def answer(given_nonce: bytes, *, exponent: bytes | None = None, modulus: bytes | None = None) -> bytes:
    """Return an answer of an enclave."""
    e, n = exponent or numbers()[0], modulus or numbers()[1]
    bare = tcs_kmra.UnverifiedAnswer(exponent=e, modulus=n, quote=b"")
    quote = evidence("sgx", tcs_kmra.report_data(bare, given_nonce))
    return struct.pack("<QQ", len(e), len(n)) + e + n + quote


def judged(
    data: bytes, given_nonce: bytes, *, spki: bytes | None = None, policy: Policy = POLICY
) -> QuoteResult:
    """Judge an answer, under the policy of the kit unless another one is given."""
    kind = "tcs-kmra-v1"
    asked = replace(
        envelope(data=data),
        evidence_type=kind,
        scheme=kind,
        hash_name="sha256",
        nonce=given_nonce,
        spki=spki or tcs_kmra.parse(data).spki,
    )
    return appraise_quote(
        asked, replace(case("sgx", nonce=given_nonce, policy=policy), evidence_type=kind), AT
    )


def test_an_answer_is_read_and_judged() -> None:
    """Verified as an enclave is, and of the tier that says that nothing else was bound."""
    result = judged(answer(nonce()), nonce())
    assert (result.verdict, result.tier) == (Verdict.VERIFIED, "compat")
    # Rules of a policy read that tier, too.
    mine = parse_policy(
        {
            "format": "itl-policy/2",
            "name": "compat",
            "version": 1,
            "sgx": {"mrenclave": [(b"\xe1" * 32).hex()]},
            "rules": [{"name": "tier", "expression": "key.tier == 'compat' && key.type == 'tcs-kmra-v1'"}],
        }
    )
    assert judged(answer(nonce()), nonce(), policy=mine).verdict is Verdict.VERIFIED
    assert len(tcs_kmra.report_data(tcs_kmra.parse(answer(nonce())), nonce())) == 64


def test_answers_that_prove_nothing() -> None:
    """About another key, over another nonce; constant, old or future nonces, though the quote is over them."""
    assert judged(answer(nonce()), nonce(), spki=SPKI).verdict is Verdict.FAILED
    assert judged(answer(nonce()), nonce(timedelta(seconds=1))).verdict is Verdict.FAILED
    for stale in (bytes(range(32)), nonce(timedelta(hours=25)), nonce(timedelta(seconds=-1))):
        assert judged(answer(stale), stale).verdict is Verdict.FAILED


def test_a_quote_of_the_variant_without_a_nonce() -> None:
    """Its report data is over the key alone: refused, whatever nonce stands beside it."""
    e, n = numbers()
    bare = tcs_kmra.UnverifiedAnswer(exponent=e, modulus=n, quote=b"")
    quote = evidence("sgx", tcs_kmra.report_data(bare, b""))
    data = struct.pack("<QQ", len(e), len(n)) + e + n + quote
    result = judged(data, nonce())
    assert (result.verdict, result.tier) == (Verdict.FAILED, "")


def test_a_key_in_other_forms_is_another_key() -> None:
    """Report data over the SubjectPublicKeyInfo, as ours is, or over 64 bytes of another digest: refused (§12)."""
    e, n = numbers()
    spki = tcs_kmra.parse(answer(nonce())).spki
    for over in (spki + nonce(), spki):
        quote = evidence("sgx", hashlib.sha256(over).digest() + bytes(32))
        data = struct.pack("<QQ", len(e), len(n)) + e + n + quote
        assert judged(data, nonce()).verdict is Verdict.FAILED
    good = tcs_kmra.report_data(tcs_kmra.parse(answer(nonce())), nonce())
    quote = evidence("sgx", good[:32] + b"\1" * 32)
    assert judged(struct.pack("<QQ", len(e), len(n)) + e + n + quote, nonce()).verdict is Verdict.FAILED


def test_which_nonces_are_fresh() -> None:
    """Of the last 24 hours; the variant without one is refused, and so is the constant at its own time."""
    for good in (nonce(), nonce(tcs_kmra.MAX_AGE)):
        tcs_kmra.check_nonce(good, at=AT)
    for bad, match in (
        (b"", "variant without"),
        (nonce() + b"x", "variant without"),
        (bytes(range(32)), "constant"),
        (nonce(tcs_kmra.MAX_AGE + timedelta(seconds=1)), "a nonce of"),
        (nonce(timedelta(seconds=-1)), "a nonce of"),
    ):
        with pytest.raises(ChallengeMismatch, match=match):
            tcs_kmra.check_nonce(bad, at=AT)


def test_what_is_no_answer() -> None:
    """Other lengths, no quote behind the key, numbers that are no key."""
    good = answer(nonce())
    for data in (
        b"",
        good[:16],
        good[: 16 + 3 + 384],
        struct.pack("<QQ", 0, 384) + good[16:],
        struct.pack("<QQ", 9, 384) + good[16:],
        struct.pack("<QQ", 3, 256) + good[16:],
        struct.pack(">QQ", 3, 384) + good[16:],
    ):
        with pytest.raises(MalformedEvidence):
            tcs_kmra.parse(data)
    with pytest.raises(MalformedEvidence, match="no RSA key"):
        _ = tcs_kmra.parse(answer(nonce(), exponent=b"\x00")).spki


@given(
    st.binary(max_size=600), st.sampled_from([b"", struct.pack("<QQ", 3, 384), struct.pack("<QQ", 1, 512)])
)
def test_parsing_fails_in_one_way_only(data: bytes, head: bytes) -> None:
    """Whatever arrives: an answer of these parts, or MalformedEvidence."""
    with contextlib.suppress(MalformedEvidence):
        found = tcs_kmra.parse(head + data)
        assert found.exponent + found.modulus + found.quote == (head + data)[16:]
        assert found.spki
