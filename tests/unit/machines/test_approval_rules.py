"""What a rule of approval calls the machines that it lets in."""

from __future__ import annotations

import pytest

from attestation.errors import RequestInvalid
from attestation.machines.approval_rules import PLACES, checked_pattern, hostname_of

KNOWN = {"serial": "SN 12/AB", "uuid": "4C4C4544-0042", "mac": "aa:bb:cc:00:11:22"}


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("w-{serial}", "w-sn-12-ab"),
        ("W-{mac}", "w-aa-bb-cc-00-11-22"),
        ("w-{serial}-{uuid}", "w-sn-12-ab-4c4c4544-0042"),
    ],
)
def test_a_name_is_made_of_what_a_machine_says(pattern: str, name: str) -> None:
    """In small letters, and with what no host name has replaced."""
    assert hostname_of(checked_pattern(pattern), KNOWN) == name


@pytest.mark.parametrize("place", PLACES)
def test_what_a_machine_does_not_say_names_nothing(place: str) -> None:
    """Nor does what has no letter or digit."""
    assert hostname_of(f"w-{{{place}}}", KNOWN | {place: ""}) is None
    assert hostname_of(f"w-{{{place}}}", KNOWN | {place: "-/-"}) is None


@pytest.mark.parametrize(
    "pattern", ["worker", "w-{hostname}", "w-{serial}{x}", "{serial}", "{serial}-w", "w_{serial}!"]
)
def test_patterns_that_are_none(pattern: str) -> None:
    """Without a place, with one that is unknown, all of it the machine's own choice, or never a host name."""
    with pytest.raises(RequestInvalid):
        checked_pattern(pattern)
