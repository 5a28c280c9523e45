"""Trust vectors: what is affirmed, what is warned of, and what nothing is said of."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import pytest

from attestation.appraisal import recalled
from attestation.appraisal.appraise import EVIDENCE, POLICY
from attestation.appraisal.assurance import ASSURANCE
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
from attestation.results.tpm_checks import ALL
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


SAID = {
    # Claim, and its value where the check failed, passed, was flagged.
    ("instance-identity", 99, 2, None): "tpm-quote",
    ("instance-identity", 99, None, None): "ek-key-attestation evidence",
    ("instance-identity", 97, None, None): "assurance",
    ("instance-identity", 96, None, None): "clock clock-safe clock-regressed",
    ("hardware", 96, None, 32): "firmware-blocklist",
    ("hardware", 96, None, None): "firmware-note firmware-minimum firmware-changed firmware-regressed",
    ("configuration", 96, None, None): (
        "secure-boot secure-boot-debug secure-boot-db secure-boot-dbx secure-boot-authorities command-lines "
        "pcr1 pcr3 pcr5 pcr7 pcr12 pcr14"
    ),
    ("executables", 33, None, None): (
        "boot-state boot-loaders boot-kernels boot-initrds event-log event-log-findings ima ima-violations "
        "pcr0 pcr2 pcr4 pcr6 pcr8 pcr9 pcr10 pcr11 pcr13 pcr15 pcr16 pcr17 pcr18 pcr19 pcr20 pcr21 pcr22 pcr23"
    ),
    (None, None, None, None): "policy reboot pcrs",
}


def test_what_each_check_says() -> None:
    """Equality of outcomes passes over it, so it stands here once more; an unknown name says nothing."""
    expected = {name: said for said, names in SAID.items() for name in names.split()}
    found = {}
    for check in (*ALL, POLICY, ASSURANCE, EVIDENCE):
        says = check.failed("a", "b").says, check.passed().says, check.flagged("a").says
        assert {of for of, _ in filter(None, says)} == {check.claim} - {None}
        found[check.name] = (check.claim, *(each and each[1] for each in says))
    assert found == expected
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
