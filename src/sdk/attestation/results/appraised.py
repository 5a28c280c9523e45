"""What of a boot was compared with reference values, and is as expected.

A log that replays and a register that is quoted say what there is, not that anybody expects it; only a rule that
held does. What was compared depends on the boot path, and the quoted values tell it: GRUB extends PCR 8 and 9, a
unified kernel image PCR 11, systemd-boot PCR 12. So a subject needs the registers that carry it, *and* every other
one that was used to carry it. A register that holds no measurement carries nothing, whatever rule it keeps.

docs/protocol/results.md has the same tables; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from attestation.results.result import Failed, Outcome, Passed, Reported, Subject, Undecided
from attestation.tpm.unmeasured import measured

OF_PCR: Final[Mapping[int, Subject]] = {
    0: Subject.FIRMWARE,
    1: Subject.FIRMWARE_SETTINGS,
    2: Subject.OPTION_ROMS,
    3: Subject.OPTION_ROM_SETTINGS,
    4: Subject.BOOT_LOADER,
    5: Subject.PARTITION_TABLE,
    6: Subject.VENDOR_EVENTS,
    7: Subject.SECURE_BOOT_SETTINGS,
    13: Subject.SYSTEM_EXTENSIONS,
    14: Subject.SHIM_KEYS,
    15: Subject.SYSTEM_IDENTITY,
}
"""What one PCR alone carries ([PFP] 2.3.4; systemd-stub)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Which PCRs carry a subject.

    Args:
        always: These must be compared.
        one_of: At least one of these must be compared.
        used: Those of these that hold a measurement must be compared, too.
    """

    always: frozenset[int]
    one_of: frozenset[int]
    used: frozenset[int]


BY_PATH: Final[Mapping[Subject, Carried]] = {
    Subject.KERNEL: Carried(always=frozenset({4}), one_of=frozenset({9, 11}), used=frozenset({9, 11})),
    Subject.INITRD: Carried(always=frozenset(), one_of=frozenset({9, 11}), used=frozenset({9, 11})),
    Subject.COMMAND_LINE: Carried(
        always=frozenset(), one_of=frozenset({8, 11, 12}), used=frozenset({8, 11, 12})
    ),
}
"""What another PCR carries on another boot path: GRUB 4, 8, 9; systemd-boot 4, 9, 12; a unified kernel image 4, 11."""
_CLOSED_BY: Final[Mapping[int, tuple[str, ...]]] = {
    4: ("pcr4", "boot-loaders", "boot-kernels"),
    9: ("pcr9", "boot-initrds", "boot-kernels"),
}
"""The checks each of which compares all that was extended into a PCR; of any other PCR only the rule over it does."""
_CHECKS: Final = {pcr: frozenset(_CLOSED_BY.get(pcr, (f"pcr{pcr}",))) for pcr in range(32)}
_LINES: Final = "command-lines"
_LINE_PCRS: Final = frozenset({8, 12})
_STATE: Final = "secure-boot"
_FILES: Final = "ima"
_OVERRIDES: Final = 12
"""Where a unified kernel image, whose own command line is in PCR 11, measures the one that replaces it."""


def appraised(outcomes: Iterable[Outcome], quoted: Mapping[int, bytes], bank: int) -> tuple[Subject, ...]:
    """Return what was compared and is as expected, in the order of `Subject`.

    Nothing is where a rule of the boot was only reported not to hold: nobody who reads the result shall be told
    that it was good.

    Args:
        outcomes: Of every check of the boot.
        quoted: PCR -> verified value.
        bank: TPM_ALG_ID of their bank.
    """
    held: set[str] = set()
    broken: set[str] = set()
    for outcome in outcomes:
        kind = type(outcome)
        if kind is Passed:
            held.add(outcome.check)
        elif kind is Failed or kind is Undecided:
            broken.add(outcome.check)
        elif kind is Reported:
            return ()
    there = frozenset(measured(quoted, bank))
    return _subjects(frozenset(held), frozenset(broken), there, _OVERRIDES in quoted)


@lru_cache(maxsize=256)
def _subjects(
    held: frozenset[str], broken: frozenset[str], there: frozenset[int], overrides_quoted: bool
) -> tuple[Subject, ...]:
    """Return what checks that held, and registers *there*, stand for; a fleet has few different answers."""
    compared = frozenset(
        pcr for pcr in there if not held.isdisjoint(_CHECKS[pcr]) and broken.isdisjoint(_CHECKS[pcr])
    )
    found = {OF_PCR[pcr] for pcr in compared if pcr in OF_PCR}
    if _LINES in held:
        compared |= _LINE_PCRS & there
    if 11 in compared and not overrides_quoted:
        there |= {_OVERRIDES}
    found |= {subject for subject, carried in BY_PATH.items() if _is_carried(carried, compared, there)}
    kept = [check for check in held if not any(each.startswith(check) for each in broken)]
    if _STATE in kept and 7 in there:
        found.add(Subject.SECURE_BOOT)
    if _FILES in kept:
        found.add(Subject.FILES)
    return tuple(subject for subject in Subject if subject in found)


def _is_carried(carried: Carried, compared: frozenset[int], there: frozenset[int]) -> bool:
    return (
        carried.always <= compared
        and not carried.one_of.isdisjoint(compared)
        and carried.used & there <= compared
    )
