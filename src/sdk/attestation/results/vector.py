"""The trustworthiness vector of a result: what its outcomes say, claim by claim (draft-ietf-rats-ar4si §2.3).

A vector has at most one value per claim; a claim of which nothing is said is left out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attestation.results.ar4si import Tier, TrustClaim, tier_of, worst
from attestation.results.assurance import Assurance
from attestation.results.result import AttestationResult, Failed, Outcome, Reported, Subject, Verdict

BOOTED: Final = frozenset({Subject.BOOT_LOADER, Subject.KERNEL, Subject.INITRD, Subject.COMMAND_LINE})
"""What decides which programs ran during the boot; one of them unknown, and any could have."""
RESTS_ON: Final[tuple[tuple[TrustClaim, int, frozenset[Subject]], ...]] = (
    (TrustClaim.EXECUTABLES, 2, BOOTED | {Subject.FILES}),
    (TrustClaim.EXECUTABLES, 3, BOOTED),
    (
        TrustClaim.CONFIGURATION,
        2,
        frozenset({Subject.FIRMWARE_SETTINGS, Subject.SECURE_BOOT_SETTINGS}),
    ),
    (TrustClaim.CONFIGURATION, 3, frozenset({Subject.SECURE_BOOT})),
)
"""What must have been compared for a claim to be affirmed with a value; the first row that holds decides.

Less affirms nothing: a claim over part of the boot would be read as one over all of it.
"""


def trust_vector(result: AttestationResult, assurance: Assurance) -> dict[TrustClaim, int]:
    """Return what all outcomes of *result* say (`vector_of`)."""
    return vector_of(result.outcomes, frozenset(result.boot_state_appraised), assurance)


def vector_of(
    outcomes: Iterable[Outcome], appraised: frozenset[Subject], assurance: Assurance | None
) -> dict[TrustClaim, int]:
    """Return what *outcomes* say, claim by claim; what they say nothing of is left out.

    Of several values of one claim the highest counts: it is the worst. What the machine booted is affirmed only by
    what was compared (`RESTS_ON`). A failed check that speaks of no single claim withdraws that; a rule that was
    only reported affirms nothing either.

    Args:
        outcomes: Of an appraisal of authentic evidence, or of one part of a machine.
        appraised: What of its boot was compared with reference values and is as expected.
        assurance: How well the identity of the machine is vouched for; None: that says nothing of this part.
    """
    said: dict[TrustClaim, int] = {}
    withdrawn = False
    for outcome in outcomes:
        if outcome.says is not None:
            claim, value = outcome.says
            said[claim] = max(value, said.get(claim, value))
        elif isinstance(outcome, (Failed, Reported)):
            withdrawn = True
    compared = frozenset[Subject]() if withdrawn else appraised
    for claim, value, needed in RESTS_ON:
        if needed <= compared:
            said.setdefault(claim, value)
    if assurance in _GENUINE:
        said.setdefault(TrustClaim.HARDWARE, 2)
    return {claim: said[claim] for claim in TrustClaim if claim in said}


_GENUINE: Final = frozenset({Assurance.EK_CHAIN, Assurance.EK_ALLOWLIST})
"""Levels with which a vendor, or the import of this very EK, vouches for a TPM; `TEE` speaks of a processor."""
_TIERS: Final = {
    Verdict.VERIFIED: Tier.AFFIRMING,
    Verdict.FAILED: Tier.CONTRAINDICATED,
    Verdict.INDETERMINATE: Tier.NONE,
}


def status_of(verdict: Verdict, vector: Mapping[TrustClaim, int]) -> Tier:
    """Return the status of a result: that of its verdict, and never better than the worst claim (EAR §3.1)."""
    return worst([_TIERS[verdict], *map(tier_of, vector.values())])
