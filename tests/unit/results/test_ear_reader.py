"""A reader written from the draft reads what we write, and believes nothing that ours refuses for the draft's sake."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.appraisal import KINDS
from attestation.errors import ResultTokenRejected
from attestation.results import Outcome, Subject
from attestation.results.ear import EAR, parse_ear
from tests.unit.results.ear_reader import read
from tests.unit.results.test_ear import _JSON, _PLACES, BREAKS, GOOD, change, made

CHECKS = [check for kind in KINDS.values() for check in kind.checks]
OURS = ("iss", "sub", "exp")
"""What our tokens must have, and the draft does not ask for."""


def told(ear: EAR) -> dict[str, tuple[str, dict[str, int]]]:
    return {
        label: (each.status.value, {claim.value: value for claim, value in each.vector.items()})
        for label, each in ear.submods.items()
    }


def outcome(kind: int, check: Any) -> Outcome:
    makers: list[Callable[[], Outcome]] = [
        check.passed,
        lambda: check.failed("this", "that"),
        lambda: check.flagged("a note"),
        lambda: check.undecided("not at hand"),
        lambda: check.told("this", "that", report=True),
    ]
    return makers[kind]()


@given(
    st.lists(st.builds(outcome, st.integers(0, 4), st.sampled_from(CHECKS)), max_size=6),
    st.sets(st.sampled_from(list(Subject))),
)
def test_what_we_write_is_read_alike(outcomes: list[Outcome], appraised: set[Subject]) -> None:
    """Of every kind of evidence: the same parts, status and claims."""
    claims = made(*outcomes, appraised=tuple(appraised))
    assert read(claims) == told(parse_ear(claims)) != {}


@pytest.mark.parametrize(("break_it", "why"), [b for b in BREAKS if not b[1].startswith((*OURS, "iat"))])
def test_what_breaks_a_rule_is_refused_by_both(break_it: Callable[[dict[str, Any]], None], why: str) -> None:
    """Rules of the draft; those of ours alone stand aside."""
    claims = copy.deepcopy(GOOD)
    break_it(claims)
    assert read(claims) is None, why


@given(st.sampled_from(_PLACES), _JSON)
def test_nothing_is_read_that_the_draft_forbids(place: str, value: object) -> None:
    """Whatever stands anywhere: what ours reads, the other reads alike."""
    claims = copy.deepcopy(GOOD)
    change(place, value)(claims)
    try:
        ear = parse_ear(claims)
    except ResultTokenRejected:
        return
    assert read(claims) == told(ear)
