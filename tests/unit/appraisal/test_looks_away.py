"""What a policy looks away from: derived from it alone, by the tables with which results are told."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.appraisal.tpm.looks_away import WORDS, looks_away
from attestation.reference import IDENTITY_ONLY, parse_policy
from attestation.results import Subject

A = "aa" * 32
VALUE = {"any_of": [A]}
EMPTY = {"empty": True}
BOOT = {
    "loaders": [A],
    "kernels": [A],
    "initrds": [A],
    "command_lines": ["/vmlinuz ro"],
}
REST = ("FIRMWARE", "OPTION_ROMS", "SECURE_BOOT_SETTINGS", "SHIM_KEYS")


def unseen(**members: Any) -> set[str]:
    """Return the names of the subjects that a policy of *members* looks away from."""
    document = {
        "format": "itl-tpm-policy/1",
        "name": "p",
        "version": 1,
        "bank": "sha256",
        "pcrs": {},
        **members,
    }
    found = looks_away(parse_policy(document))
    return {subject.name for subject, words in WORDS.items() if words in found}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"pcrs": {"4": VALUE, "8": VALUE, "9": VALUE}}, set(REST)),
        ({"pcrs": {"4": VALUE, "11": VALUE, "12": EMPTY}}, set(REST)),
        ({"pcrs": {"4": VALUE, "11": VALUE}}, {*REST, "COMMAND_LINE"}),
        ({"pcrs": {"4": VALUE, "9": VALUE}}, {*REST, "COMMAND_LINE"}),
        ({"pcrs": {"4": VALUE, "8": VALUE, "9": {"ignore": "long"}}}, {*REST, "KERNEL", "INITRD"}),
        ({"pcrs": {"4": VALUE, "11": {"any_of": ["00" * 32]}}}, {*REST, "KERNEL", "INITRD", "COMMAND_LINE"}),
        ({"pcrs": {str(pcr): VALUE for pcr in (0, 4, 7, 8, 9, 14)} | {"2": EMPTY}}, set()),
        ({"boot": BOOT, "secure_boot": {"required": True}}, {"FIRMWARE", "OPTION_ROMS", "SHIM_KEYS"}),
        ({"boot": {"loaders": [A]}}, {*REST, "KERNEL", "INITRD", "COMMAND_LINE"}),
        ({"boot": BOOT, "secure_boot": {"required": False, "dbx_min": [A]}}, set(REST)),
        ({"boot": BOOT, "pcrs": {"0": VALUE}, "mode": "report"}, {subject.name for subject in WORDS}),
    ],
)
def test_what_is_not_compared(members: dict[str, Any], expected: set[str]) -> None:
    """On whatever boot path the rules fit; what only reports compares nothing."""
    assert unseen(**members) == expected


def test_the_shipped_policy_sees_nothing() -> None:
    """And each line says where to look."""
    assert looks_away(IDENTITY_ONLY) == tuple(WORDS.values())
    assert all("PCR" in words for words in WORDS.values())
    assert set(WORDS) < set(Subject)
