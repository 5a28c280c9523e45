"""The rules that a policy can state, each as read: typed, with where it comes from (TPM.md §4.6).

A rule says what is expected; `attestation.appraisal` compares. `report` is the mode of the policy that states
it: such a rule decides nothing, and what does not hold is Reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from attestation.reference.patterns import CommandPattern, Glob
from attestation.results import Assurance, Flagged, Outcome, Passed
from attestation.results.tpm_checks import PCR

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PCRRule:
    """What is expected of one PCR: one of several values, only approved events, no measurement; or it is ignored.

    Exactly one of `any_of`, `approved` and `ignore` is set.

    Args:
        index: 0-15.
        any_of: Accepted values; of a PCR that must be empty, those that hold no measurement; None where it is not
            judged by its value.
        approved: Digests of the events that may be in it; None where it is not judged by its events.
        ignore: Why it is ignored; None where it is judged.
        expected: `any_of` in words, for results.
        held: The outcome where it holds, or is ignored; made once.
        report: It is only reported where it does not hold.
    """

    index: int
    any_of: frozenset[bytes] | None
    approved: frozenset[bytes] | None
    ignore: str | None
    expected: str
    held: Passed | Flagged
    report: bool

    def judge(self, value: bytes | None) -> Outcome:
        """Return the outcome for the quoted *value*; an absent one fails. Only for a rule by value."""
        if self.any_of is None or value in self.any_of:
            return self.held
        found = value.hex() if value is not None else "absent"
        return PCR[self.index].told(self.expected, found, report=self.report)


@dataclass(frozen=True, slots=True)
class Demand(Generic[T]):
    """One member of a policy: what it demands, and whether it is only reported."""

    value: T
    report: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureBootRules:
    """What is expected of the Secure Boot state in PCR 7 (TPM.md §4.5).

    Args:
        required: Secure Boot must be on.
        db: SHA-256 of the signers and images that db may hold, hex: nothing else, and at least one.
        dbx_min: SHA-256 hashes that dbx must hold, hex.
        authorities: SHA-256 of the authority events that may occur, hex: nothing else, and at least one.
        debug_forbidden: UEFI debug mode fails; else it is flagged.
        empty_is_off: A SecureBoot variable of length 0 means off; else it is a fault of the firmware.
    """

    required: Demand[bool]
    db: Demand[frozenset[str]] | None
    dbx_min: Demand[frozenset[str]] | None
    authorities: Demand[frozenset[str]] | None
    debug_forbidden: Demand[bool]
    empty_is_off: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRules:
    """What may be started, by the digests that were extended. What was extended beside it is refused.

    Args:
        loaders: Digests of boot loaders and drivers, PCR 4.
        kernels: Digests of kernels, PCR 4 or 9.
        initrds: Digests of initial RAM disks, PCR 9.
        command_lines: Patterns of kernel command lines and boot loader commands, PCR 8, 9 and 12.
    """

    loaders: Demand[frozenset[bytes]] | None
    kernels: Demand[frozenset[bytes]] | None
    initrds: Demand[frozenset[bytes]] | None
    command_lines: Demand[tuple[CommandPattern, ...]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IMARules:
    """What the kernel may have measured while it ran, PCR 10.

    Args:
        allow: Digests of files, hex, of any path.
        exclude: Patterns of paths that are not compared.
        violations_fail: A violation (a file changed while it was measured) fails; else it is flagged.
    """

    allow: Demand[frozenset[str]]
    exclude: tuple[Glob, ...]
    violations_fail: Demand[bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirmwareRules:
    """What is expected of the TPM's firmware (TPM.md §7).

    Args:
        on_blocklist: True: whatever an advisory says of it fails. False: it is only flagged. None: as the
            list of advisories says.
        minimum: Registered name of a vendor -> its lowest accepted version, four u16.
    """

    on_blocklist: Demand[bool] | None
    minimum: Mapping[str, Demand[tuple[int, int, int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a rule comes from.

    Args:
        policy: `name@version`.
        report: That policy is in mode `report`.
    """

    policy: str
    report: bool


@dataclass(frozen=True, slots=True)
class Stated:
    """One member as a policy states it.

    Args:
        value: As read: typed, judged fit for use.
        written: As written in the document.
        source: The policy that states it.
    """

    value: object
    written: object
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumAssurance:
    """How well a machine must be vouched for.

    Args:
        level: The lowest accepted.
        report: It is only reported.
    """

    level: Assurance
    report: bool
