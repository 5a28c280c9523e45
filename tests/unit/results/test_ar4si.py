"""Trust vectors: what is affirmed, what is warned of, and what nothing is said of."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import pytest

from attestation.appraisal import recalled
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Subject,
    Undecided,
    Verdict,
    conclude,
)
from attestation.results.ar4si import (
    ANY,
    HIGHEST,
    LOWEST,
    MEANINGS,
    Tier,
    TrustClaim,
    in_words,
    tier_of,
    worst,
)
from attestation.results.tpm_checks import ALL, PCR
from attestation.results.vector import BOOTED, status_of, trust_vector

QUOTE = Passed("tpm-quote")
SETTINGS = {Subject.FIRMWARE_SETTINGS, Subject.SECURE_BOOT_SETTINGS}
WARNED = Flagged("firmware-blocklist", "CVE-2023-1017")


def result(*outcomes: Outcome, appraised: Collection[Subject] = ()) -> AttestationResult:
    return AttestationResult(
        verdict=conclude(outcomes),
        at=datetime(2026, 11, 21, tzinfo=UTC),
        policy="workers@3",
        outcomes=tuple(map(recalled, outcomes)),
        boot_state_appraised=tuple(appraised),
        pcr_digest="00" * 32,
    )


def vector(
    *outcomes: Outcome, appraised: Collection[Subject] = (), assurance: Assurance = Assurance.TOFU
) -> dict[str, int]:
    return {str(k): v for k, v in trust_vector(result(*outcomes, appraised=appraised), assurance).items()}


def test_tiers_of_every_value() -> None:
    """AR4SI §2.3.2: -1…1 none, 2…31 and -32…-2 affirming, 32…95 and -96…-33 warning, the rest contraindicated."""
    expected = {
        **dict.fromkeys(range(-128, -96), Tier.CONTRAINDICATED),
        **dict.fromkeys(range(-96, -32), Tier.WARNING),
        **dict.fromkeys(range(-32, -1), Tier.AFFIRMING),
        **dict.fromkeys(range(-1, 2), Tier.NONE),
        **dict.fromkeys(range(2, 32), Tier.AFFIRMING),
        **dict.fromkeys(range(32, 96), Tier.WARNING),
        **dict.fromkeys(range(96, 128), Tier.CONTRAINDICATED),
    }
    assert {value: tier_of(value) for value in range(LOWEST, HIGHEST + 1)} == expected


def test_the_worst_tier() -> None:
    """Bad news wins; no news is worse than good news; nothing at all is no trust."""
    assert worst([Tier.AFFIRMING, Tier.NONE]) is Tier.NONE
    assert worst([Tier.NONE, Tier.WARNING, Tier.AFFIRMING]) is Tier.WARNING
    assert worst([Tier.CONTRAINDICATED, Tier.WARNING]) is Tier.CONTRAINDICATED
    assert worst([]) is Tier.NONE


@pytest.mark.threat("T76", "T126")
@pytest.mark.parametrize(
    ("outcomes", "appraised", "expected"),
    [
        # Who it is.
        ((QUOTE,), (), {"instance-identity": 2}),
        ((), (), {}),
        ((Passed("clock"),), (), {}),
        ((Failed("tpm-quote", "a", "b"),), (), {"instance-identity": 99}),
        ((QUOTE, Failed("clock-regressed", "a", "b")), (), {"instance-identity": 96}),
        ((QUOTE, Failed("assurance", "a", "b")), (), {"instance-identity": 97}),
        (
            (QUOTE, Failed("assurance", "a", "b"), Failed("clock-safe", "a", "b")),
            (),
            {"instance-identity": 97},
        ),
        ((QUOTE, Failed("ek-key-attestation", "a", "b")), (), {"instance-identity": 99}),
        ((QUOTE, Undecided("policy", "none")), (), {"instance-identity": 2}),
        # What it booted.
        ((QUOTE, Passed("pcr4")), BOOTED, {"instance-identity": 2, "executables": 3}),
        ((QUOTE, Passed("pcr4")), {Subject.BOOT_LOADER}, {"instance-identity": 2}),
        ((QUOTE, Passed("event-log")), set(), {"instance-identity": 2}),
        ((QUOTE, Passed("pcr0")), {Subject.FIRMWARE}, {"instance-identity": 2}),
        *(((QUOTE,), BOOTED - {missing}, {"instance-identity": 2}) for missing in sorted(BOOTED)),
        ((QUOTE,), BOOTED | {Subject.FILES}, {"instance-identity": 2, "executables": 2}),
        ((QUOTE,), {Subject.FILES}, {"instance-identity": 2}),
        ((QUOTE, Failed("pcr4", "a", "b")), (), {"instance-identity": 2, "executables": 33}),
        ((QUOTE, Failed("pcr0", "a", "b")), BOOTED, {"instance-identity": 2, "executables": 33}),
        ((QUOTE, Failed("event-log", "a", "b")), (), {"instance-identity": 2, "executables": 33}),
        # How it is set up.
        ((QUOTE,), SETTINGS, {"instance-identity": 2, "configuration": 2}),
        ((QUOTE,), {Subject.SECURE_BOOT_SETTINGS}, {"instance-identity": 2}),
        ((QUOTE,), {Subject.PARTITION_TABLE, Subject.SHIM_KEYS}, {"instance-identity": 2}),
        ((QUOTE,), {Subject.SECURE_BOOT}, {"instance-identity": 2, "configuration": 3}),
        ((QUOTE, Failed("secure-boot", "a", "b")), SETTINGS, {"instance-identity": 2, "configuration": 96}),
        (
            (QUOTE, Failed("pcr7", "a", "b")),
            BOOTED,
            {"instance-identity": 2, "executables": 3, "configuration": 96},
        ),
        # A failure that speaks of no single claim, and a rule that was only reported, affirm nothing of the boot.
        ((QUOTE, Failed("max-age", "a", "b")), Subject, {"instance-identity": 2}),
        ((QUOTE, Reported("pcr0", "a", "b")), Subject, {"instance-identity": 2}),
        # What it is made of.
        ((QUOTE, Failed("firmware-blocklist", "a", "b")), (), {"instance-identity": 2, "hardware": 96}),
        ((QUOTE, WARNED), (), {"instance-identity": 2, "hardware": 32}),
        ((QUOTE, Flagged("firmware-changed", "1 -> 2")), (), {"instance-identity": 2}),
        ((QUOTE, Flagged("firmware-note", "faulTPM")), (), {"instance-identity": 2}),
    ],
)
def test_vectors(
    outcomes: tuple[Outcome, ...], appraised: Collection[Subject], expected: dict[str, int]
) -> None:
    """What is affirmed of the boot was compared; what no check speaks of is left out."""
    assert vector(*outcomes, appraised=appraised) == expected


@pytest.mark.parametrize("assurance", Assurance)
def test_hardware_is_genuine_where_its_maker_says_so(assurance: Assurance) -> None:
    """Only a vendor's chain or an import of this very EK makes the hardware genuine; a warning stays a warning."""
    genuine = assurance in (Assurance.EK_CHAIN, Assurance.EK_ALLOWLIST)
    assert vector(QUOTE, assurance=assurance).get("hardware", 0) == (2 if genuine else 0)
    assert vector(QUOTE, WARNED, assurance=assurance)["hardware"] == 32


def test_what_a_check_is_about() -> None:
    """PCRs of settings speak of the configuration, the others of executables; an unknown name of nothing."""
    configuration = {i for i, check in enumerate(PCR) if check.claim is TrustClaim.CONFIGURATION}
    assert configuration == {1, 3, 5, 7, 12, 14}
    assert PCR[4].claim is TrustClaim.EXECUTABLES
    assert recalled(Failed("pcr-selection", "a", "b")).says is None


def test_an_outcome_that_was_stored_says_what_it_said() -> None:
    """Of each check, and of each kind of outcome; names are unique."""
    assert len({check.name for check in ALL}) == len(ALL)
    for check in ALL:
        made = (
            check.passed("a"),
            check.failed("a", "b"),
            check.told("a", "b", report=True),
            check.flagged("a"),
            check.undecided("a"),
        )
        for outcome in made:
            bare = type(outcome)(*(getattr(outcome, name) for name in outcome.__match_args__))
            assert bare == outcome
            assert recalled(bare).says == outcome.says
        assert made[1].says == (None if check.claim is None else (check.claim, check.if_failed))
        assert made[2].says is made[4].says is None


@pytest.mark.parametrize(
    ("verdict", "values", "status"),
    [
        (Verdict.VERIFIED, {}, Tier.AFFIRMING),
        (Verdict.VERIFIED, {TrustClaim.HARDWARE: 2}, Tier.AFFIRMING),
        (Verdict.VERIFIED, {TrustClaim.HARDWARE: 32}, Tier.WARNING),
        (Verdict.VERIFIED, {TrustClaim.HARDWARE: 96}, Tier.CONTRAINDICATED),
        (Verdict.FAILED, {TrustClaim.EXECUTABLES: 33}, Tier.CONTRAINDICATED),
        (Verdict.INDETERMINATE, {TrustClaim.INSTANCE_IDENTITY: 2}, Tier.NONE),
        (Verdict.INDETERMINATE, {TrustClaim.HARDWARE: 32}, Tier.WARNING),
    ],
)
def test_status(verdict: Verdict, values: dict[TrustClaim, int], status: Tier) -> None:
    """The status is never better than the verdict, and never better than the worst claim."""
    assert status_of(verdict, values) is status


def test_every_value_has_words() -> None:
    """A value is told in words: of its claim, of all claims, or of its tier."""
    for claim in TrustClaim:
        for value in range(LOWEST, HIGHEST + 1):
            words = in_words(claim, value)
            known = MEANINGS[claim].get(value) or ANY.get(value)
            assert words == (known or f"{tier_of(value)} ({value})")
    assert in_words(TrustClaim.HARDWARE, 99) == "a signature or digest is wrong"
    assert in_words(TrustClaim.HARDWARE, 40) == "warning (40)"
