"""Evidence of an HSM for a key: the certificate that the device made of it, and a signature of the key itself."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.endorsements.path import CertificateIndex
from attestation.errors import EndorsementMissing
from attestation.evidence import hsm_key
from attestation.quote.case import RESIDENT, Judged, QuoteCase, binding_of, in_words, key_shown
from attestation.quote.envelope import Envelope, Purpose
from attestation.reference import Policy
from attestation.reference.cel_rules import compiled
from attestation.results import Check, Outcome

TIER: Final = "hsm-resident"
FORMAT: Final = "yubihsm2"
ROOT: Final = Check(name="quote-vendor-root")
USE: Final = Check(name="quote-key-use")


def judge_hsm(envelope: Envelope, case: QuoteCase, at: datetime) -> Judged:
    """Judge the certificate of a key object under the pinned roots of makers."""
    anchors = case.endorsements
    if not isinstance(anchors, CertificateIndex) or not len(anchors):
        raise EndorsementMissing([ROOT.undecided("no root of a maker of HSMs is pinned")])
    claims = hsm_key.verify(
        hsm_key.parse(envelope.data),
        anchors=anchors,
        chain=envelope.chain,
        binding=binding_of(envelope, case),
        spki=envelope.spki,
        at=at,
    )
    said = claims.shown
    use: Outcome
    if case.purpose is Purpose.KEY_PROVISIONING:
        # What such a key decrypts comes out of the device: a CA key that is wrapped under it would be in software.
        use = USE.failed("a key that unwraps into the device", f"one for {', '.join(claims.said.purposes)}")
    elif "sign" in claims.said.purposes:
        use = USE.passed()
    else:
        use = USE.failed("a key that signs", f"one for {', '.join(claims.said.purposes) or 'nothing'}")
    compares = case.policy is not None and reads_key(case.policy)
    return Judged(
        outcomes=[RESIDENT.passed(), use],
        claims={"resident": "true", **in_words(said)},
        tier=TIER,
        shown={"key": key_shown(case, TIER, resident=True, **said)},
        # A genuine device of anybody's holds a key of anybody's.
        uncompared="" if compares else "no rule of the policy says which device is expected",
    )


def reads_key(policy: Policy) -> bool:
    """Return True where a rule that is enforced reads what evidence says of the bound key."""
    rules = policy.blocks.get("rules", ())
    return any(not rule.report and "key" in compiled(rule.expression).variables() for rule in rules)
