"""Evidence of a TPM for a key: a certification of the key itself, or a quote that merely names it.

tpm-certify     LP of TPM2B_PUBLIC, TPMS_ATTEST and TPMT_SIGNATURE of the key: the TPM made it and never lets it go
tpm-quote       LP of TPMS_ATTEST, of TPMT_SIGNATURE and of PCR values in JSON: this machine booted as quoted and
names the key. Where the key is, nobody says
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from attestation.appraisal.tpm import TPM, Expected, UnverifiedEvidence, no_advisories
from attestation.errors import EndorsementMissing
from attestation.evidence import key_certification, tpm_quote
from attestation.evidence.key_certification import KeyMode
from attestation.quote.case import AK, RESIDENT, Judged, QuoteCase, binding_of, in_words, key_shown
from attestation.quote.envelope import Envelope, Purpose
from attestation.results import Outcome
from attestation.tpm import Public
from attestation.wire import Reader

RESIDENT_TIER: Final = "tpm-resident"
MACHINE_TIER: Final = "tpm-machine"
"""Of a quote: a machine names the key, no hardware vouches for where it is."""

_MODES: Final = {
    Purpose.KEY_PROVISIONING: frozenset({KeyMode.RESIDENT_DECRYPT}),
    Purpose.CSR_ATTESTATION: frozenset({KeyMode.RESIDENT}),
}


def _of_the_machine(case: QuoteCase) -> tuple[Public, Public]:
    """Return AK and EK.

    Raises:
        EndorsementMissing: None is known: no statement counts, and none is refused.
    """
    if case.ak is None or case.ek is None:
        raise EndorsementMissing([AK.undecided("no attestation key is known whose statements count")])
    return case.ak, case.ek


def judge_certification(envelope: Envelope, case: QuoteCase, at: datetime) -> Judged:  # noqa: ARG001 -- of every judge
    """Judge a certification of the bound key by the AK of a machine (§19 steps 5 to 9)."""
    ak, ek = _of_the_machine(case)
    public, attest, signature = split_certification(envelope.data)
    claims = key_certification.verify(
        key_certification.parse(public, attest, signature),
        ak=ak,
        ek=ek,
        binding=binding_of(envelope, case),
        spki=envelope.spki,
        modes=_MODES[case.purpose],
    )
    said = {
        "mode": claims.mode.value,
        "name": claims.name.hex(),
        "attributes": f"0x{claims.attributes:08x}",
        "ak_name": ak.name.hex(),
        "ak_parent": str(claims.ak_parent),
    }
    return Judged(
        outcomes=[RESIDENT.passed()],
        claims={"resident": "true", **said},
        tier=RESIDENT_TIER,
        shown={"key": key_shown(case, RESIDENT_TIER, resident=True, **said)},
    )


def split_certification(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return TPM2B_PUBLIC, TPMS_ATTEST and TPMT_SIGNATURE of `evidence.data`: LP of each, nothing behind.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    return _three(data, "tpm-certify")


def split_quote(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return TPMS_ATTEST, TPMT_SIGNATURE and the JSON of PCR values of `evidence.data`: LP of each, nothing behind.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    return _three(data, "tpm-quote")


def _three(data: bytes, what: str) -> tuple[bytes, bytes, bytes]:
    reader = Reader(data, what)
    first, second, third = (reader.take(reader.u32()) for _ in range(3))
    reader.end()
    return first, second, third


def judge_quote(envelope: Envelope, case: QuoteCase, at: datetime) -> Judged:  # noqa: ARG001 -- of every judge
    """Judge a quote whose qualifyingData names the key, as a quote of a machine is judged.

    No event log comes with it: a policy whose rules read one is not met.
    """
    ak, ek = _of_the_machine(case)
    attest, signature, values = split_quote(envelope.data)
    quote = tpm_quote.parse(attest, signature)
    evidence = UnverifiedEvidence(quote, tpm_quote.parse_pcr_json(values))
    policy = case.policy
    expected = Expected(
        ak_public=ak.tpm2b(),
        ek_public=ek.tpm2b(),
        challenge=binding_of(envelope, case),
        # Nothing is decided without a policy; until then it is enough that the values are those that were quoted.
        selection=policy.tpm.selection if policy is not None else quote.info.selection,
        clock=None,
        ek_vendor=None,
        event_log_requested=policy is not None and policy.tpm.event_log_required,
        ek_certification_requested=False,
        firmware_attested=None,
        firmware=no_advisories,
    )
    claims = TPM.verify(evidence, expected)
    followed, found = TPM.follow(claims, expected, policy)
    outcomes: list[Outcome] = [
        *followed,
        # Whoever booted as expected may have made the key in software.
        RESIDENT.flagged("a quote says nothing of where the key is"),
    ]
    uncompared = ""
    if policy is not None:
        judged, compared = TPM.judge(claims, evidence, expected, policy)
        outcomes += judged
        uncompared = "" if compared else "the policy compares nothing of what booted"
    shown = TPM.shown(found)
    key = key_shown(case, MACHINE_TIER, resident=False, ak_name=ak.name.hex())
    return Judged(
        outcomes=outcomes,
        claims=in_words(
            {
                "resident": "not known",
                "ak_name": ak.name.hex(),
                "pcr_digest": found.digest,
                **{name: value for name, value in shown.items() if name != "pcrs"},
            }
        ),
        tier=MACHINE_TIER,
        shown={"key": key, TPM.name: dict(shown)},
        answers=TPM.answers(claims),
        uncompared=uncompared,
    )
