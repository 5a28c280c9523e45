"""Judging a QuoteAttestation: bound to one key, issuer, purpose and nonce, and as the policy expects."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.intel import Endorsements
from attestation.errors import MalformedEvidence
from attestation.evidence.key_certification import KeyMode
from attestation.quote import TYPES, Purpose, QuoteResult, appraise_quote, evidence_digest, key_fingerprint
from attestation.quote.appraise import CHECKS
from attestation.quote.tpm import split_certification, split_quote
from attestation.reference.confidential import SgxRules
from attestation.reference.rules import Demand
from attestation.results import Failed, Flagged, Undecided, Verdict
from attestation.wire import u32
from tests.unit.evidence import test_key_certification as tpm_kit
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.quote.quote_kit import KINDS, ROOT, binding, case, envelope, evidence, judged, policy

KINDS_OF_HARDWARE = sorted(KINDS)


def failed(result: QuoteResult) -> list[str]:
    """Return which checks failed; the verdict says so."""
    found = [each.check for each in result.outcomes if isinstance(each, Failed)]
    assert (result.verdict is Verdict.FAILED) == bool(found)
    return found


@pytest.mark.parametrize("kind", KINDS_OF_HARDWARE)
def test_a_key_in_hardware_that_is_as_expected(kind: str) -> None:
    """Verified, with what the evidence proves, and the names of evidence and key."""
    given_ = envelope(kind)
    result = appraise_quote(given_, case(kind), AT)
    assert (result.verdict, failed(result), result.tier) == (Verdict.VERIFIED, [], "hardware")
    assert result.evidence_digest == evidence_digest(given_)
    assert result.bound_key_fingerprint == key_fingerprint(given_.spki)
    assert result.claims
    assert not any("None" in value for value in result.claims.values())


@pytest.mark.parametrize("kind", KINDS_OF_HARDWARE)
@pytest.mark.parametrize(
    "bound",
    [
        {"signer_uid": "another"},
        {"purpose": "CsrAttestation"},
        {"nonce": bytes(32)},
        {"subject_spki": b"another key"},
        {"kind": "another"},
    ],
)
def test_evidence_for_something_else_proves_nothing(kind: str, bound: dict[str, Any]) -> None:
    """No substitution of the key, no replay across issuers, purposes, kinds or questions."""
    result = judged(kind, evidence(kind, binding(**({"kind": kind} | bound))))
    assert failed(result)
    assert (dict(result.claims), result.tier) == ({}, "")


@pytest.mark.threat("T290")
@pytest.mark.parametrize(
    "change",
    [
        {"evidence_type": "tdx"},
        {"scheme": "tcs-kmra-v1"},
        {"hash_name": "sha256"},
        {"purpose": Purpose.CSR_ATTESTATION},
        {"signer_uid": "another"},
        {"nonce": bytes(32)},
    ],
)
def test_the_issuer_chooses_the_question(change: dict[str, Any]) -> None:
    """An envelope that says another one fails, whatever its evidence proves."""
    assert failed(appraise_quote(replace(envelope(), **change), case(), AT)) == ["quote-question"]


def test_a_type_that_nobody_judges() -> None:
    """No evidence at all (`null`), and what is unknown: failed, never skipped (K10)."""
    for kind in ("null", "more"):
        given_ = replace(envelope(), evidence_type=kind)
        assert failed(appraise_quote(given_, case(evidence_type=kind), AT)) == ["quote-evidence"]
    assert "more" not in TYPES


def test_no_evidence_where_somebody_accepted_that() -> None:
    """For trying out: it is flagged, of no tier, and a policy holds all the same."""
    given_ = replace(envelope(), evidence_type="null")
    result = appraise_quote(given_, case(evidence_type="null", accept_null=True), AT)
    assert (result.verdict, result.tier, dict(result.claims)) == (Verdict.VERIFIED, "none", {})
    flagged = [each.check for each in result.outcomes if isinstance(each, Flagged)]
    assert flagged == ["quote-evidence"]
    bare = appraise_quote(given_, case(evidence_type="null", accept_null=True, policy=None), AT)
    assert bare.verdict is Verdict.INDETERMINATE
    # It stands in for nothing else.
    assert failed(appraise_quote(given_, case(accept_null=True), AT))


def test_an_envelope_ends() -> None:
    """It counts in its last second, and no longer."""
    given_ = envelope()
    end = given_.expires_at
    assert appraise_quote(replace(given_, expires_at=AT), case(), AT).verdict is Verdict.VERIFIED
    late = appraise_quote(given_, case(), end + timedelta(seconds=1))
    assert "quote-expiry" in failed(late)


@pytest.mark.parametrize("kind", KINDS_OF_HARDWARE)
def test_without_a_policy_nothing_is_handed_over(kind: str) -> None:
    """Nor with one that says nothing of this kind, or compares nothing of what runs there (K10)."""
    for rules in (None, policy(), policy(sgx=SgxRules(min_isv_svn=Demand(0, report=True)))):
        result = judged(kind, policy=rules)
        assert result.verdict is Verdict.INDETERMINATE
        assert [each.check for each in result.outcomes if isinstance(each, Undecided)] == ["quote-policy"]


def test_another_program_fails() -> None:
    """Genuine hardware, but not what the policy expects in it."""
    assert failed(judged("sgx", evidence("sgx", at_64=b"\x99" * 32))) == ["sgx-mrenclave"]
    debug = evidence("sgx", at_48=b"\x07")
    assert "sgx-memory" in failed(judged("sgx", debug))


def test_what_vouches_is_not_at_hand() -> None:
    """Then it is undecided: tried again later, and nothing handed over meanwhile."""
    bare = judged("sgx", endorsements=Endorsements(root=ROOT, collateral=None))
    assert bare.verdict is Verdict.INDETERMINATE
    without = appraise_quote(envelope("sev-snp", chain=()), case("sev-snp"), AT)
    assert without.verdict is Verdict.INDETERMINATE
    assert without.tier == ""


def test_bytes_that_are_no_evidence() -> None:
    """They fail under the check of the evidence."""
    for kind in KINDS_OF_HARDWARE:
        assert failed(judged(kind, b"\x00" * 64)) == ["quote-evidence"]


@given(st.sampled_from(KINDS_OF_HARDWARE), st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_is_verified(kind: str, where: int, bit: int) -> None:
    """Of what is signed: anything else behind it is no part of the evidence."""
    data = bytearray(GOOD[kind])
    data[where % SIGNED[kind]] ^= 1 << bit
    assert judged(kind, bytes(data)).verdict is not Verdict.VERIFIED


SIGNED = {"sgx": 432, "tdx": 632, "sev-snp": 672}
"""Bytes at the beginning of the evidence that its signature covers."""
GOOD = {kind: evidence(kind) for kind in KINDS_OF_HARDWARE}


def test_checks_have_one_name_each() -> None:
    """And none is that of a kind."""
    names = [check.name for check in CHECKS]
    assert len({*names}) == len(names)
    assert not {*names} & {check.name for kind in KINDS.values() for check in kind.checks}


# ---------------------------------------------------------------- a TPM


def certified(public: Any, **changes: Any) -> bytes:
    """Return evidence of type tpm-certify about *public*."""
    parts = tpm_kit.sent(public, **changes)
    return b"".join(u32(len(part)) + part for part in parts)


def test_cut_certifications() -> None:
    """Three parts, and nothing behind them."""
    assert split_certification(b"\0\0\0\1a\0\0\0\0\0\0\0\2bc") == (b"a", b"", b"bc")
    for data in (b"", b"\0\0\0\1", b"\0\0\0\1a\0\0\0\0\0\0\0\2bcd"):
        with pytest.raises(MalformedEvidence, match="tpm-certify"):
            split_certification(data)
        with pytest.raises(MalformedEvidence, match="tpm-quote"):
            split_quote(data)


KEK = tpm_kit.key("rsa3072", attributes=tpm_kit.DECRYPT)


def in_a_tpm(public: Any = KEK, data: bytes | None = None, **changes: Any) -> QuoteResult:
    """Judge a certification of *public* for the good question, with *changes* of the case."""
    spki = public.spki_der()
    bound = binding("tpm-certify", subject_spki=spki, tpm=True)
    given_ = replace(
        envelope(),
        evidence_type="tpm-certify",
        hash_name="sha256",
        spki=spki,
        data=certified(public, extra_data=bound) if data is None else data,
        purpose=changes.get("purpose", Purpose.KEY_PROVISIONING),
    )
    known = {"ak": tpm_kit.AK.public, "ek": tpm_kit.EK.public}
    return appraise_quote(given_, case("tpm-certify", **(known | changes)), AT)


def test_a_key_in_a_tpm() -> None:
    """Made in it, fixed to it, for decryption: a key can be wrapped under it. It waits for a policy, as all else."""
    result = in_a_tpm()
    assert (result.verdict, failed(result), result.tier) == (Verdict.VERIFIED, [], "tpm-resident")
    assert in_a_tpm(policy=None).verdict is Verdict.INDETERMINATE
    assert result.claims["mode"] == KeyMode.RESIDENT_DECRYPT


def test_a_key_that_signs_in_a_tpm() -> None:
    """For a request, and not for wrapping; the other way round likewise."""
    signs = tpm_kit.key("p384")
    bound = binding("tpm-certify", purpose="CsrAttestation", subject_spki=signs.spki_der(), tpm=True)
    good = certified(signs, extra_data=bound)
    assert in_a_tpm(signs, good, purpose=Purpose.CSR_ATTESTATION).verdict is Verdict.VERIFIED
    assert failed(in_a_tpm(signs)) == ["quote-evidence"]
    assert failed(in_a_tpm(signs, certified(signs, extra_data=binding("tpm-certify", tpm=True)))) == [
        "quote-evidence"
    ]


def test_certifications_that_prove_nothing() -> None:
    """By an AK that nobody knows or another one, for another question, about another key, no certification."""
    for missing in ({"ak": None}, {"ek": None}):
        unknown = in_a_tpm(**missing)
        assert unknown.verdict is Verdict.INDETERMINATE
        assert [each.check for each in unknown.outcomes if isinstance(each, Undecided)] == [
            "quote-attestation-key"
        ]
    assert failed(in_a_tpm(ak=tpm_kit.OTHER_AK.public)) == ["quote-evidence"]
    assert failed(in_a_tpm(nonce=bytes(32))) == ["quote-question", "quote-evidence"]
    other = tpm_kit.key("rsa2048", attributes=tpm_kit.DECRYPT)
    bound = binding("tpm-certify", subject_spki=KEK.spki_der(), tpm=True)
    assert failed(in_a_tpm(data=certified(other, extra_data=bound))) == ["quote-evidence"]
    assert failed(in_a_tpm(data=b"\0")) == ["quote-evidence"]
    soft = binding("tpm-certify", subject_spki=KEK.spki_der())
    assert failed(in_a_tpm(data=certified(KEK, extra_data=soft))) == ["quote-evidence"]
