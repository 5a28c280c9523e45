"""Verdicts and assurance."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import pytest

from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Undecided,
    Verdict,
    conclude,
)

AT = datetime(2026, 11, 21, tzinfo=UTC)
GOOD, BAD = Passed("pcr7"), Failed("pcr4", "aa", "bb")
FLAG, OPEN = Flagged("reboot", "once"), Undecided("policy", "none")
TOLD = Reported("pcr2", "aa", "cc")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], Verdict.INDETERMINATE),
        ([FLAG], Verdict.INDETERMINATE),
        ([TOLD], Verdict.INDETERMINATE),
        ([GOOD], Verdict.VERIFIED),
        ([GOOD, TOLD], Verdict.VERIFIED),
        ([TOLD, BAD], Verdict.FAILED),
        ([GOOD, FLAG], Verdict.VERIFIED),
        ([BAD], Verdict.FAILED),
        ([OPEN], Verdict.INDETERMINATE),
        ([GOOD, OPEN], Verdict.INDETERMINATE),
        ([OPEN, GOOD], Verdict.INDETERMINATE),
        ([GOOD, BAD], Verdict.FAILED),
        ([BAD, GOOD], Verdict.FAILED),
        ([OPEN, BAD], Verdict.FAILED),
        ([BAD, OPEN, GOOD, FLAG], Verdict.FAILED),
    ],
)
def test_verdicts(outcomes: list[Outcome], verdict: Verdict) -> None:
    """No check is not success; one failed check is failure; one undecided check is not success either."""
    assert conclude(outcomes) is verdict


def test_every_combination_of_up_to_four() -> None:
    """Affirming only if something passed, nothing failed, nothing is undecided, in any order."""
    every: list[Outcome] = [GOOD, BAD, FLAG, TOLD, OPEN]
    for length in range(5):
        for outcomes in product(every, repeat=length):
            affirming = GOOD in outcomes and BAD not in outcomes and OPEN not in outcomes
            assert (conclude(outcomes) is Verdict.VERIFIED) == affirming
            assert (conclude(outcomes) is Verdict.FAILED) == (BAD in outcomes)


def result(*outcomes: Outcome) -> AttestationResult:
    return AttestationResult(
        verdict=conclude(outcomes),
        at=AT,
        policy="workers@3",
        outcomes=outcomes,
        boot_state_appraised=(),
        pcr_digest="00" * 32,
    )


def test_what_failed_in_one_line() -> None:
    """Failed and undecided checks by name, in order; None where there are none."""
    assert result(GOOD, FLAG).failed_line() is None
    assert result(GOOD, BAD, OPEN).failed_line() == "pcr4, policy"
    assert result(GOOD, BAD, OPEN).failed == (BAD,)
    assert result(GOOD, TOLD).failed_line() is None
    assert result(GOOD, TOLD, BAD).reported == (TOLD,)


def test_assurance_levels() -> None:
    """TPM.md §6: five words, five numbers; `tee` beside a vendor's chain."""
    assert {a.value: a.level for a in Assurance} == {
        "ek-allowlist": 4,
        "ek-chain": 3,
        "tee": 3,
        "ak-certified": 2,
        "tofu": 1,
        "none": 0,
    }
