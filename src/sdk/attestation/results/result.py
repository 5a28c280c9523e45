"""Outcomes of checks and the verdict over them (RFC 9334, Attestation Result).

The verdict starts at the worst and checks improve it: no check at all is not success, one failed check is
failure, one undecided check is not success either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Verdict(StrEnum):
    """The judgement over all checks. Only `VERIFIED` is affirming."""

    VERIFIED = "Verified"
    FAILED = "Failed"
    INDETERMINATE = "Indeterminate"


class Subject(StrEnum):
    """What of a boot can be compared with reference values (`attestation.results.appraised`)."""

    FIRMWARE = "firmware"
    FIRMWARE_SETTINGS = "firmware-settings"
    OPTION_ROMS = "option-roms"
    OPTION_ROM_SETTINGS = "option-rom-settings"
    PARTITION_TABLE = "partition-table"
    VENDOR_EVENTS = "vendor-events"
    SECURE_BOOT = "secure-boot"
    SECURE_BOOT_SETTINGS = "secure-boot-settings"
    SHIM_KEYS = "shim-keys"
    BOOT_LOADER = "boot-loader"
    KERNEL = "kernel"
    INITRD = "initrd"
    COMMAND_LINE = "command-line"
    SYSTEM_EXTENSIONS = "system-extensions"
    SYSTEM_IDENTITY = "system-identity"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class Passed:
    """A check that held. `note` says what was established, where that is not plain from the name."""

    check: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A check that did not hold, with what was expected and what was found."""

    check: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Flagged:
    """An observation that operators should see and that decides nothing."""

    check: str
    note: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A rule of a policy in mode `report` that does not hold: it would be Failed under `enforce`.

    It decides nothing. Of a boot state with such an outcome nothing counts as appraised.
    """

    check: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Undecided:
    """A check that could not be made; it releases nothing."""

    check: str
    reason: str


Outcome = Passed | Failed | Flagged | Reported | Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationResult:
    """One appraisal, with every check.

    Args:
        verdict: The judgement.
        at: The instant of the appraisal, UTC.
        policy: `name@version` of the policy applied, or None where there was none.
        outcomes: Every check made, in order.
        boot_state_appraised: What of the boot was compared with reference values and is as expected; empty where
            no rule about what booted was enforced, or one was only reported not to hold.
        pcr_digest: The quoted digest over the selected PCRs, hex, where a quote was verified.
    """

    verdict: Verdict
    at: datetime
    policy: str | None
    outcomes: tuple[Outcome, ...]
    boot_state_appraised: tuple[Subject, ...]
    pcr_digest: str | None

    @property
    def failed(self) -> tuple[Failed, ...]:
        """The checks that failed."""
        return tuple(o for o in self.outcomes if isinstance(o, Failed))

    @property
    def reported(self) -> tuple[Reported, ...]:
        """The rules of policies in mode `report` that do not hold."""
        return tuple(o for o in self.outcomes if isinstance(o, Reported))

    def failed_line(self) -> str | None:
        """Return the names of the failed and undecided checks in one line, or None."""
        if self.verdict is Verdict.VERIFIED:
            return None
        names = [o.check for o in self.outcomes if isinstance(o, (Failed, Undecided))]
        return ", ".join(names) or None


def conclude(outcomes: Sequence[Outcome]) -> Verdict:
    """Return the verdict over *outcomes*: at least one passed, none failed, none undecided, or no success."""
    passed = False
    undecided = False
    for outcome in outcomes:
        kind = type(outcome)
        if kind is Passed:
            passed = True
        elif kind is Failed:
            return Verdict.FAILED
        elif kind is Undecided:
            undecided = True
    return Verdict.VERIFIED if passed and not undecided else Verdict.INDETERMINATE
