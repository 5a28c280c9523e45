"""Outcomes of checks and the verdict over them (RFC 9334, Attestation Result).

The verdict starts at the worst and checks improve it: no check at all is not success, one failed check is
failure, one undecided check is not success either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from attestation.results.ar4si import TrustClaim
from attestation.results.codes import Code

Says = tuple[TrustClaim, int]
"""A claim of the trust vector, and the value that an outcome gives it."""


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
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True)
class Passed:
    """A check that held. `note` says what was established, where that is not plain from the name."""

    check: str
    note: str = ""
    says: Says | None = field(default=None, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """A check that did not hold, with what was expected and what was found."""

    check: str
    expected: str
    found: str
    says: Says | None = field(default=None, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Flagged:
    """An observation that operators should see and that decides nothing."""

    check: str
    note: str
    says: Says | None = field(default=None, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Reported:
    """A rule of a policy in mode `report` that does not hold: it would be Failed under `enforce`.

    It decides nothing. Of a boot state with such an outcome nothing counts as appraised.
    """

    check: str
    expected: str
    found: str
    says: Says | None = field(default=None, kw_only=True, compare=False)


@dataclass(frozen=True, slots=True)
class Undecided:
    """A check that could not be made; it releases nothing."""

    check: str
    reason: str
    says: Says | None = field(default=None, kw_only=True, compare=False)


Outcome = Passed | Failed | Flagged | Reported | Undecided
"""What a check found. `says` is what it says of trust; None where it speaks of no single claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its name, and what its outcomes say of trust. It makes them.

    Args:
        name: As in results.
        claim: The claim it speaks of; None where it speaks of none, or of all.
        if_failed: The value that it gives the claim where it fails.
        if_passed, if_flagged: Likewise; None where such an outcome says nothing.
        code: What a failure is called to machines (CONFIDENTIAL.md §12.4); None where its name says all.
    """

    name: str
    claim: TrustClaim | None = None
    if_failed: int = 96
    if_passed: int | None = None
    if_flagged: int | None = None
    code: Code | None = None

    def passed(self, note: str = "") -> Passed:
        """Return that it held."""
        return Passed(self.name, note, says=self._says(self.if_passed))

    def failed(self, expected: str, found: str) -> Failed:
        """Return that it did not hold."""
        return Failed(self.name, expected, found, says=self._says(self.if_failed))

    def told(self, expected: str, found: str, *, report: bool) -> Failed | Reported:
        """Return that it did not hold, as the mode of its policy tells it."""
        return Reported(self.name, expected, found) if report else self.failed(expected, found)

    def flagged(self, note: str) -> Flagged:
        """Return what operators should see."""
        return Flagged(self.name, note, says=self._says(self.if_flagged))

    def undecided(self, reason: str) -> Undecided:
        """Return that it could not be made."""
        return Undecided(self.name, reason)

    def again(self, outcome: Outcome) -> Outcome:
        """Return an *outcome* of this check that was read from where `says` is not kept."""
        values = {Passed: self.if_passed, Failed: self.if_failed, Flagged: self.if_flagged}
        return replace(outcome, says=self._says(values.get(type(outcome))))

    def _says(self, value: int | None) -> Says | None:
        return None if self.claim is None or value is None else (self.claim, value)


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
