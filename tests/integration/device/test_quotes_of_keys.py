"""QuoteAttestations of a TPM (swtpm): a key that was made there, and a machine that merely names one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from attestation.device import KeyType, NodeTPM
from attestation.quote import Purpose, QuoteResult, appraise_quote
from attestation.reference import Policy, parse_policy
from attestation.results import Failed, Verdict
from attestation.tpm import PCRSelection, parse_public
from attestation.wire import u32
from attestation_testing import SoftwareTPM
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.quote.quote_kit import binding, case, envelope

pytestmark = pytest.mark.swtpm


def policy(**members: Any) -> Policy:
    """Return a policy that wants keys in hardware, unless *members* say otherwise."""
    wanted = {"rules": [{"name": "resident", "expression": "key.resident"}]}
    return parse_policy({"format": "itl-policy/2", "name": "keys", "version": 1} | (members or wanted))


def judged(
    node: NodeTPM, kind: str, spki: bytes, parts: tuple[bytes, ...], purpose: Purpose, by: Policy
) -> QuoteResult:
    """Judge evidence of the TPM."""
    asked = replace(
        envelope(),
        evidence_type=kind,
        hash_name="sha256",
        purpose=purpose,
        spki=spki,
        data=b"".join(u32(len(part)) + part for part in parts),
    )
    known: dict[str, Any] = {
        "ak": parse_public(node.ak_public()),
        "ek": parse_public(node.identify().ek_public),
        "purpose": purpose,
        "policy": by,
    }
    return appraise_quote(asked, case(kind, **known), AT)


def test_a_key_that_was_made_in_the_tpm(blank_tpm: SoftwareTPM) -> None:
    """One that decrypts is for a CA key to be wrapped under, one that signs for a request; neither is the other."""
    with blank_tpm.node() as node:
        for key, purpose in (
            (node.create_decryption_key(), Purpose.KEY_PROVISIONING),
            (node.create_signing_key(KeyType.ECC_P384), Purpose.CSR_ATTESTATION),
        ):
            spki = parse_public(key.public).spki_der()
            for asked in Purpose:
                bound = binding("tpm-certify", purpose=asked.value, subject_spki=spki, tpm=True)
                made = node.certify_key(key, bound)
                parts = (key.public, made.certify_info, made.signature)
                result = judged(node, "tpm-certify", spki, parts, asked, policy())
                good = (Verdict.VERIFIED, "tpm-resident")
                assert ((result.verdict, result.tier) == good) == (asked is purpose)


def test_a_machine_that_names_a_key(blank_tpm: SoftwareTPM) -> None:
    """Verified by its PCRs, unless the policy wants the key in hardware: the quote does not say so."""
    blank_tpm.extend_pcr(7, b"\x07" * 32)
    with blank_tpm.node() as node:
        spki = parse_public(node.create_decryption_key().public).spki_der()
        bound = binding("tpm-quote", subject_spki=spki, tpm=True)
        quote = node.quote(bound, PCRSelection.from_names({"sha256": [7]}))
        values = {
            bank: {str(index): value.hex() for index, value in each.items()}
            for bank, each in quote.pcr_values.items()
        }
        parts = (quote.attest, quote.signature, json.dumps(values).encode())
        tpm = {"bank": "sha256", "pcrs": {"7": {"any_of": [values["sha256"]["7"]]}}}
        result = judged(node, "tpm-quote", spki, parts, Purpose.KEY_PROVISIONING, policy(tpm=tpm))
        assert (result.verdict, result.tier) == (Verdict.VERIFIED, "tpm-machine")
        wants = policy(tpm=tpm, rules=[{"name": "resident", "expression": "key.resident"}])
        refused = judged(node, "tpm-quote", spki, parts, Purpose.KEY_PROVISIONING, wants)
        assert [each.check for each in refused.outcomes if isinstance(each, Failed)] == ["rule"]
