"""Evidence of TPMs and HSMs for a key, and policies that hold whole: rules, other evidence, where the key is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.certificate import parse_certificate
from attestation.evidence.hsm_key import PROOF
from attestation.quote import Purpose, QuoteResult, appraise_quote
from attestation.reference import Policy, parse_policy
from attestation.results import Failed, Flagged, Undecided, Verdict
from attestation.tpm import PCRSelection, bank_name
from attestation.wire import u32
from attestation_testing import SoftwareAK, yubihsm
from attestation_testing.yubihsm import DECRYPT_OAEP, Device
from tests.unit.evidence import test_hsm_key as hsm_kit
from tests.unit.evidence import test_key_certification as tpm_kit
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.quote.quote_kit import SPKI, binding, case, envelope, judged
from tests.unit.quote.test_appraise_quote import failed, in_a_tpm

BOOT: Final = {"bank": "sha256", "pcrs": {"7": {"any_of": [(b"\x07" * 32).hex()]}}}


def document(**members: Any) -> Policy:
    """Return a policy as somebody writes it."""
    return parse_policy({"format": "itl-policy/2", "name": "keys", "version": 1, **members})


def rule(expression: str) -> dict[str, Any]:
    """Return the block of one rule."""
    return {"rules": [{"name": "one", "expression": expression}]}


BOOTED: Final = document(tpm=BOOT)


# ---------------------------------------------------------------- tpm-quote


def quoted(
    extra: bytes | None = None,
    *,
    ak: SoftwareAK = tpm_kit.AK,
    values: bytes | None = None,
    pcr: bytes = b"\x07",
) -> bytes:
    """Return evidence of type tpm-quote that names the key of the kit."""
    bound = binding("tpm-quote", tpm=True) if extra is None else extra
    selection = PCRSelection.from_names({"sha256": [7]})
    made = ak.quote(bound, selection, {"sha256": {7: pcr * 32}}, clock_ms=1)
    told = {"sha256": {"7": (pcr * 32).hex()}}
    parts = (made.attest, made.signature, json.dumps(told).encode() if values is None else values)
    return b"".join(u32(len(part)) + part for part in parts)


def by_a_machine(data: bytes | None = None, **changes: Any) -> QuoteResult:
    """Judge a quote for the good question, with *changes* of the case."""
    given_ = replace(
        envelope(),
        evidence_type="tpm-quote",
        hash_name="sha256",
        data=quoted() if data is None else data,
    )
    known = {"ak": tpm_kit.AK.public, "ek": tpm_kit.EK.public, "policy": BOOTED}
    return appraise_quote(given_, case("tpm-quote", **(known | changes)), AT)


def test_a_machine_names_a_key() -> None:
    """It booted as expected and names the key; where the key is, tier, claims and checks say that nobody says."""
    result = by_a_machine()
    assert (result.verdict, failed(result), result.tier) == (Verdict.VERIFIED, [], "tpm-machine")
    assert result.claims["resident"] == "not known"
    assert "quote-key-resident" in [each.check for each in result.outcomes if isinstance(each, Flagged)]


def test_a_policy_that_wants_the_key_in_hardware_refuses_a_quote() -> None:
    """By a rule over what is shown of the key; a certification of the TPM meets it."""
    wanted = document(tpm=BOOT, **rule("key.resident"))
    assert failed(by_a_machine(policy=wanted)) == ["rule"]
    assert in_a_tpm(policy=document(**rule("key.resident"))).verdict is Verdict.VERIFIED


def test_a_quote_is_judged_as_a_machines() -> None:
    """By the PCRs of the policy, and not without one that compares what booted."""
    assert "pcr7" in " ".join(failed(by_a_machine(quoted(pcr=b"\x08"))))
    for policy in (None, document(**rule("key.tier == 'tpm-machine'"))):
        assert by_a_machine(policy=policy).verdict is not Verdict.VERIFIED
    log = document(tpm=BOOT | {"event_log": "required"})
    assert failed(by_a_machine(policy=log))


def test_quotes_that_prove_nothing() -> None:
    """For another question or key, by another AK or one that nobody knows, with other values, no quote at all."""
    for data in (
        quoted(binding("tpm-quote", tpm=True, nonce=bytes(32))),
        quoted(binding("tpm-quote", tpm=True, signer_uid="another")),
        quoted(binding("tpm-quote", tpm=True, purpose="CsrAttestation")),
        quoted(binding("tpm-quote", tpm=True, subject_spki=b"another")),
        quoted(binding("tpm-certify", tpm=True)),
        quoted(ak=tpm_kit.OTHER_AK),
        quoted(values=json.dumps({"sha256": {"7": "00" * 32}}).encode()),
        quoted(values=b"{"),
        b"\0",
    ):
        assert failed(by_a_machine(data)) == ["quote-evidence"]
    assert by_a_machine(ak=None).verdict is Verdict.INDETERMINATE
    assert bank_name(tpm_kit.AK.public.name_alg) == "sha256"


@given(st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_of_a_quote_is_verified(where: int, bit: int) -> None:
    """Of what is signed, of the signature, of the values."""
    data = bytearray(GOOD_QUOTE)
    data[where % len(data)] ^= 1 << bit
    assert by_a_machine(bytes(data)).verdict is not Verdict.VERIFIED


GOOD_QUOTE: Final = quoted()

# ---------------------------------------------------------------- hsm-x509

OURS: Final = document(**rule("key.hwserial == '7150001' && key.resident"))


def in_an_hsm(
    *,
    purpose: Purpose = Purpose.CSR_ATTESTATION,
    bound: dict[str, Any] | None = None,
    said: dict[str, Any] | None = None,
    **changes: Any,
) -> QuoteResult:
    """Judge a key of a device, with *said* in its certificate, *bound* in its signature, *changes* of the case."""
    key = hsm_kit.KEY
    spki = yubihsm.spki(key)
    good = {"kind": "hsm-x509", "purpose": purpose.value, "subject_spki": spki}
    signed = binding(**(good | (bound or {})))
    given_ = replace(
        envelope(),
        evidence_type="hsm-x509",
        evidence_format="yubihsm2",
        purpose=purpose,
        spki=spki,
        chain=hsm_kit.DEVICE.chain,
        data=hsm_kit.evidence(signed=PROOF + signed, **(said or {})),
    )
    known = {"endorsements": hsm_kit.ROOTS, "policy": OURS, "purpose": purpose}
    return appraise_quote(given_, case("hsm-x509", **(known | changes)), AT)


def test_a_key_in_an_hsm() -> None:
    """Made there, for signatures; which device it is, the policy says."""
    result = in_an_hsm()
    assert (result.verdict, failed(result), result.tier) == (Verdict.VERIFIED, [], "hsm-resident")
    assert (result.claims["hwserial"], result.claims["extractable"]) == ("7150001", "false")
    assert result.claims["domains"] == "1, 3"


def test_no_key_is_wrapped_for_a_yubihsm() -> None:
    """Its wrap keys are certified by nobody; what another key decrypts comes out of the device."""
    for capabilities in (DECRYPT_OAEP, yubihsm.SIGN_ECDSA):
        result = in_an_hsm(purpose=Purpose.KEY_PROVISIONING, said={"capabilities": capabilities})
        assert failed(result) == ["quote-key-use"]


def test_a_key_of_an_hsm_that_signs_nothing() -> None:
    """It is for no certification request, whatever made the signature beside it."""
    for capabilities in (DECRYPT_OAEP, 0):
        assert failed(in_an_hsm(said={"capabilities": capabilities})) == ["quote-key-use"]


@pytest.mark.parametrize(
    "bound",
    [
        {"signer_uid": "another"},
        {"purpose": "KeyProvisioning"},
        {"nonce": bytes(32)},
        {"subject_spki": SPKI},
        {"kind": "sgx"},
    ],
)
def test_a_certificate_is_not_replayed(bound: dict[str, Any]) -> None:
    """What the key signed for another question counts for no other, though the certificate is good."""
    assert failed(in_an_hsm(bound=bound)) == ["quote-evidence"]


def test_whose_hsm_it_is_says_the_policy() -> None:
    """Another serial fails; a policy that reads nothing of the key, or only reports it, leaves it open; none too."""
    assert failed(in_an_hsm(policy=document(**rule("key.hwserial == '1'")))) == ["rule"]
    reported = document(mode="report", **rule("key.hwserial == '7150001'"))
    for policy in (None, document(**rule("size(machine) == 0")), reported):
        result = in_an_hsm(policy=policy)
        assert result.verdict is Verdict.INDETERMINATE
        assert [each.check for each in result.outcomes if isinstance(each, Undecided)] == ["quote-policy"]


def test_without_a_root_of_the_maker_nothing_is_decided() -> None:
    """None is pinned, or something else is; another maker's root refuses."""
    empty = type(hsm_kit.ROOTS)([])
    for anchors in (None, empty):
        result = in_an_hsm(endorsements=anchors)
        assert (result.verdict, result.tier) == (Verdict.INDETERMINATE, "")
    other = type(hsm_kit.ROOTS)([parse_certificate(Device(maker="Other", seed=7).root)])
    assert failed(in_an_hsm(endorsements=other)) == ["quote-evidence"]


# ---------------------------------------------------------------- policies hold whole


def test_rules_hold_for_every_type() -> None:
    """They read the key, and what evidence of the kind shows."""
    enclave = {"sgx": {"mrenclave": [(b"\xe1" * 32).hex()]}}
    good = document(**enclave, **rule("key.type == 'sgx' && size(sgx.mrenclave) == 64 && !key.resident"))
    assert judged("sgx", policy=good).verdict is Verdict.VERIFIED
    assert failed(judged("sgx", policy=document(**enclave, **rule("key.resident")))) == ["rule"]
    assert failed(in_a_tpm(policy=document(**rule("key.mode == 'tpm-resident'")))) == ["rule"]


def test_what_a_policy_says_of_other_evidence_is_not_met() -> None:
    """As for a machine: a policy for a TPM and an enclave is not met by the enclave alone."""
    both = document(sgx={"mrenclave": [(b"\xe1" * 32).hex()]}, tpm=BOOT)
    result = judged("sgx", policy=both)
    assert failed(result) == ["evidence"]
    assert [each.expected for each in result.outcomes if isinstance(each, Failed)] == ["tpm"]
    assert failed(in_a_tpm(policy=BOOTED)) == ["evidence"]


def test_a_policy_about_machines_is_not_met_by_a_key() -> None:
    """How well a machine is vouched for is not known of a key: open, never passed over."""
    about = document(assurance={"minimum": "ek-chain"}, **rule("key.resident"))
    assert in_a_tpm(policy=about).verdict is Verdict.INDETERMINATE
