"""A CA key is wrapped only for hardware whose evidence was verified here, and only with its own certificate."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import hashes, keywrap
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_private_key

from attestation.errors import BundleRejected, CAInvalid, KeyMismatch, KeyUnsupported
from attestation.keys.provisioning import Bundle, BundleCase, fingerprint, match, read_bundle, sign_bundle
from attestation.pki.external import make_ca
from attestation.quote import Envelope, Purpose, QuoteResult, appraise_quote, case_of, wrap_for
from attestation.results import Verdict
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.pki.leaf_kit import CA_NAME, SERIAL
from tests.unit.quote.quote_kit import SPKI, binding, case, envelope, evidence

CA_KEY: Final = ec.derive_private_key(21, ec.SECP384R1())
ADMIN: Final = ec.derive_private_key(22, ec.SECP384R1())


@cache
def kek() -> rsa.RSAPrivateKey:
    """Return the wrapping key of an enclave."""
    return rsa.generate_private_key(65537, 3072)


def spki(key: Any) -> bytes:
    """Return the SubjectPublicKeyInfo of a private key, DER."""
    found: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


@cache
def asked() -> tuple[Envelope, QuoteResult]:
    """Return a QuoteAttestation about the wrapping key, and how it was judged."""
    bound = spki(kek())
    given = envelope(data=evidence("sgx", binding("sgx", subject_spki=bound)), spki=bound)
    return given, appraise_quote(given, case(), AT)


@cache
def certificate() -> bytes:
    """Return that of the CA."""
    return make_ca(
        subject=CA_NAME,
        spki=spki(CA_KEY),
        key=CA_KEY,
        serial=SERIAL,
        at=AT,
        duration=timedelta(days=9),
        path_length=0,
    )


def wrapped(given: Envelope | None = None, result: QuoteResult | None = None, **changes: Any) -> Bundle:
    """Wrap the CA key for the enclave."""
    how: dict[str, Any] = {
        "private_key": CA_KEY,
        "chain": (certificate(),),
        "at": AT,
        "valid_for": timedelta(hours=1),
    }
    return wrap_for(given or asked()[0], result or asked()[1], qa_uid="qa-uid", **(how | changes))


def test_from_evidence_to_the_key() -> None:
    """Verified, wrapped, signed, read, matched, and opened by the private half alone (§13, in order)."""
    given, result = asked()
    assert result.verdict is Verdict.VERIFIED
    text = wrapped().serialise()
    signers = frozenset({fingerprint(ADMIN.public_key())})
    signed = read_bundle(text, [sign_bundle(text, ADMIN)], signers=signers, required=1)
    question = BundleCase(
        signer_uid=given.signer_uid,
        qa_uid="qa-uid",
        nonce=given.nonce,
        evidence_digest=result.evidence_digest,
        bound_key_fingerprint=result.bound_key_fingerprint,
        oaep_hash="sha256",
        expires_at=given.expires_at,
        ca_certificate_sha256=None,
    )
    bundle = match(signed, question, at=AT)
    hash_ = hashes.SHA256()
    aes = kek().decrypt(bundle.blob[:384], OAEP(MGF1(hash_), hash_, None))
    opened = load_der_private_key(keywrap.aes_key_unwrap_with_padding(aes, bundle.blob[384:]), None)
    assert spki(opened) == spki(CA_KEY)
    assert (bundle.chain, bundle.not_after) == ((certificate(),), AT + timedelta(hours=1))


def test_what_a_second_administrator_compares() -> None:
    """All of the question and the CA; only of evidence that was verified and asks for a key."""
    given, result = asked()
    question = case_of(given, result, qa_uid="qa-uid", ca_certificate=certificate())
    text = wrapped().serialise()
    signers = frozenset({fingerprint(ADMIN.public_key())})
    signed = read_bundle(text, [sign_bundle(text, ADMIN)], signers=signers, required=1)
    assert match(signed, question, at=AT).serialise() == text
    other = case_of(given, result, qa_uid="qa-uid", ca_certificate=b"another")
    with pytest.raises(BundleRejected, match="another CA certificate"):
        match(signed, other, at=AT)
    refused: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"verdict": Verdict.INDETERMINATE}),
        ({"purpose": Purpose.CSR_ATTESTATION}, {}),
        ({"oaep_hash": None}, {}),
    ]
    for asks, judged in refused:
        with pytest.raises(BundleRejected):
            case_of(
                replace(given, **asks),
                replace(result, **judged),
                qa_uid="qa-uid",
                ca_certificate=certificate(),
            )


def test_a_bundle_ends_with_its_question() -> None:
    """However long it is to count."""
    assert wrapped(valid_for=timedelta(days=9)).not_after == asked()[0].expires_at


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.INDETERMINATE])
def test_nothing_for_what_was_not_verified(verdict: Verdict) -> None:
    """Failed, and undecided likewise (K10)."""
    with pytest.raises(BundleRejected, match="nothing is handed over"):
        wrapped(result=replace(asked()[1], verdict=verdict))


def test_nothing_for_other_evidence() -> None:
    """A result is about its own evidence and key; one of the lowest tier is for nobody, one for a CSR asks for none."""
    changes: list[dict[str, Any]] = [{"evidence_digest": bytes(48)}, {"bound_key_fingerprint": bytes(48)}]
    for change in changes:
        with pytest.raises(BundleRejected, match="other evidence"):
            wrapped(result=replace(asked()[1], **change))
    with pytest.raises(BundleRejected, match="compat"):
        wrapped(result=replace(asked()[1], tier="compat"))
    # That would have been accepted, too, were it named.
    with pytest.raises(BundleRejected, match="compat"):
        wrapped(result=replace(asked()[1], tier="compat"), accepted=frozenset({"compat"}))
    asking: list[dict[str, Any]] = [{"purpose": Purpose.CSR_ATTESTATION}, {"oaep_hash": None}]
    for asks in asking:
        with pytest.raises(BundleRejected, match="asks for no key"):
            wrapped(replace(asked()[0], **asks))


@pytest.mark.parametrize("tier", ["tpm-machine", "none", ""])
def test_nothing_for_a_key_of_which_nobody_knows_where_it_is(tier: str) -> None:
    """Unless the administrator accepts this very tier."""
    result = replace(asked()[1], tier=tier)
    for accepted in (frozenset[str](), frozenset({"another"})):
        with pytest.raises(BundleRejected, match="does not prove that hardware holds the key"):
            wrapped(result=result, accepted=accepted)
    assert wrapped(result=result, accepted=frozenset({tier})).qa_uid == "qa-uid"


def test_the_key_is_that_of_a_ca() -> None:
    """And its certificate is in date."""
    with pytest.raises(KeyMismatch):
        wrapped(private_key=ADMIN)
    with pytest.raises(CAInvalid):
        wrapped(at=AT + timedelta(days=10))


def test_the_bound_key_must_wrap() -> None:
    """An elliptic curve wraps nothing, nor does what is no key."""
    for key in (SPKI, b"no key"):
        given = envelope(data=evidence("sgx", binding("sgx", subject_spki=key)), spki=key)
        with pytest.raises(KeyUnsupported):
            wrapped(given, appraise_quote(given, case(), AT))
