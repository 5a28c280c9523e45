"""Each threat of SECURITY.md has a control, tests that are marked with it, and deletions that fit the tree."""

from __future__ import annotations

from tests.docs.pages import text
from tools.controls.__main__ import deletions, marked, threats

THREATS = threats(text("SECURITY.md"))


def test_threats_are_numbered_once() -> None:
    """Each number from 1 on stands in one table once: an id is neither lost nor used for two things."""
    numbers = sorted(int(threat[1:]) for threat in THREATS)
    assert sorted(set(numbers)) == numbers
    # Those of the extensions are numbered apart, until all of them are here.
    assert [each for each in numbers if each < 210] == list(range(1, 210))


def test_every_threat_has_a_test() -> None:
    """A threat without a marked test is named, and a marker with a threat that does not exist."""
    assert set(THREATS) == set(marked())


def test_what_the_exercise_deletes_stands_there() -> None:
    """Each control that `tools/controls` takes out on trial stands where it is looked for, and its tests are marked."""
    known, written = marked(), list(deletions())
    assert written
    assert [(d.threat, d.file, wrong) for d in written if (wrong := d.wrong(known))] == []
