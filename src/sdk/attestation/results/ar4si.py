"""The words in which a result speaks of trust: AR4SI claims, their values and tiers (draft-ietf-rats-ar4si §2.3).

A vector has at most one value per claim; a claim of which nothing is said is left out, never 0. What the
values mean here, and from which checks they come, stands in docs/protocol/results.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from attestation.results.assurance import Assurance
from attestation.results.result import (
    AttestationResult,
    Failed,
    Flagged,
    Passed,
    Reported,
    Subject,
    Verdict,
)


class Tier(StrEnum):
    """How much a claim, or a whole result, may be trusted: best first."""

    AFFIRMING = "affirming"
    NONE = "none"
    WARNING = "warning"
    CONTRAINDICATED = "contraindicated"

    @property
    def badness(self) -> int:
        """0 is best. `none` is no trust, but no bad news either: it stands between affirming and warning."""
        return _BADNESS[self]


_BADNESS: Final = {Tier.AFFIRMING: 0, Tier.NONE: 1, Tier.WARNING: 2, Tier.CONTRAINDICATED: 3}


class TrustClaim(StrEnum):
    """The eight claims of a trustworthiness vector (AR4SI §2.3.4), in the order of their CBOR keys 0-7."""

    INSTANCE_IDENTITY = "instance-identity"
    CONFIGURATION = "configuration"
    EXECUTABLES = "executables"
    FILE_SYSTEM = "file-system"
    HARDWARE = "hardware"
    RUNTIME_OPAQUE = "runtime-opaque"
    STORAGE_OPAQUE = "storage-opaque"
    SOURCED_DATA = "sourced-data"


LOWEST: Final = -128
HIGHEST: Final = 127


def tier_of(value: int) -> Tier:
    """Return the tier of a claim's *value*, -128 … 127 (AR4SI §2.3.2)."""
    if -1 <= value <= 1:
        return Tier.NONE
    if -32 <= value <= 31:
        return Tier.AFFIRMING
    if -96 <= value <= 95:
        return Tier.WARNING
    return Tier.CONTRAINDICATED


def worst(tiers: Iterable[Tier]) -> Tier:
    """Return the worst of *tiers*; without any, `none`."""
    return max(tiers, key=lambda tier: tier.badness, default=Tier.NONE)


ANY: Final[Mapping[int, str]] = {
    -1: "the verifier failed",
    1: "unexpected evidence",
    99: "a signature or digest is wrong",
}
"""Values that mean the same in every claim."""

MEANINGS: Final[Mapping[TrustClaim, Mapping[int, str]]] = {
    TrustClaim.INSTANCE_IDENTITY: {
        2: "recognised, not known to be compromised",
        96: "recognised, but not to be trusted",
        97: "not recognised, or not vouched for well enough",
    },
    TrustClaim.CONFIGURATION: {
        2: "known and approved",
        3: "exposes no known vulnerability",
        32: "exposes known vulnerabilities",
        36: "not all of it is visible",
        96: "not acceptable",
    },
    TrustClaim.EXECUTABLES: {
        2: "only approved ones, during boot and since",
        3: "only approved ones during boot",
        32: "only approved ones, with known vulnerabilities",
        33: "unrecognised ones",
        96: "contraindicated ones",
    },
    TrustClaim.FILE_SYSTEM: {2: "only approved files", 32: "unrecognised files", 96: "contraindicated files"},
    TrustClaim.HARDWARE: {
        2: "genuine",
        32: "genuine, with known vulnerabilities",
        96: "recognised, but not to be trusted",
        97: "not recognised",
    },
    TrustClaim.RUNTIME_OPAQUE: {
        2: "memory is encrypted",
        32: "memory is isolated",
        96: "memory is visible to others",
    },
    TrustClaim.STORAGE_OPAQUE: {
        2: "secrets are encrypted with hardware keys",
        32: "secrets are encrypted",
        96: "secrets are visible to others",
    },
    TrustClaim.SOURCED_DATA: {2: "from affirmed sources", 32: "from weak sources", 96: "from bad sources"},
}


def in_words(claim: TrustClaim, value: int) -> str:
    """Return what *value* says of *claim*; a value without a meaning of its own is told by its tier."""
    return MEANINGS[claim].get(value) or ANY.get(value) or f"{tier_of(value)} ({value})"


# Which claim a check speaks of, by the beginning of its name; the first that matches decides.
_ABOUT: Final[tuple[tuple[str, TrustClaim], ...]] = (
    ("tpm-quote", TrustClaim.INSTANCE_IDENTITY),
    ("clock", TrustClaim.INSTANCE_IDENTITY),
    ("assurance", TrustClaim.INSTANCE_IDENTITY),
    ("ek-key", TrustClaim.INSTANCE_IDENTITY),
    ("firmware", TrustClaim.HARDWARE),
    ("secure-boot", TrustClaim.CONFIGURATION),
    ("command-line", TrustClaim.CONFIGURATION),
    ("event-log", TrustClaim.EXECUTABLES),
    ("boot", TrustClaim.EXECUTABLES),
    ("ima", TrustClaim.EXECUTABLES),
)
_CONFIGURATION_PCRS: Final = frozenset({1, 3, 5, 7, 12, 14})
"""Settings, boot order, partition table, Secure Boot, command line of a UKI, MOK ([PFP] 2.3.4; systemd-stub)."""

BOOTED: Final = frozenset({Subject.BOOT_LOADER, Subject.KERNEL, Subject.INITRD, Subject.COMMAND_LINE})
"""What decides which programs ran during the boot; one of them unknown, and any could have."""
RESTS_ON: Final[tuple[tuple[TrustClaim, int, frozenset[Subject]], ...]] = (
    (TrustClaim.EXECUTABLES, 2, BOOTED | {Subject.FILES}),
    (TrustClaim.EXECUTABLES, 3, BOOTED),
    (
        TrustClaim.CONFIGURATION,
        2,
        frozenset({Subject.FIRMWARE_SETTINGS, Subject.SECURE_BOOT_SETTINGS}),
    ),
    (TrustClaim.CONFIGURATION, 3, frozenset({Subject.SECURE_BOOT})),
)
"""What must have been compared for a claim to be affirmed with a value; the first row that holds decides.

Less affirms nothing: a claim over part of the boot would be read as one over all of it.
"""

_OF_IDENTITY: Final = {"tpm-quote": 99, "ek-key": 99, "assurance": 97}


def about(check: str) -> TrustClaim | None:
    """Return the claim that the check of this name speaks of; None where it speaks of none or of all."""
    if check.startswith("pcr") and check[3:].isdecimal():
        return TrustClaim.CONFIGURATION if int(check[3:]) in _CONFIGURATION_PCRS else TrustClaim.EXECUTABLES
    return next((claim for prefix, claim in _ABOUT if check.startswith(prefix)), None)


def trust_vector(result: AttestationResult, assurance: Assurance) -> dict[TrustClaim, int]:
    """Return what the checks of *result* say, claim by claim; what they say nothing of is left out.

    What the machine booted is affirmed only by what was compared (`RESTS_ON`). A failed check that speaks of no
    single claim withdraws that; a rule that was only reported affirms nothing either.

    Args:
        result: An appraisal of authentic evidence.
        assurance: How well the identity of the machine is vouched for.
    """
    failed: dict[TrustClaim | None, list[str]] = {}
    quoted = False
    reported = False
    for outcome in result.outcomes:
        if isinstance(outcome, Failed):
            failed.setdefault(about(outcome.check), []).append(outcome.check)
        elif isinstance(outcome, Passed):
            quoted = quoted or outcome.check == "tpm-quote"
        elif isinstance(outcome, Reported):
            reported = True
    vector: dict[TrustClaim, int] = {}

    identity = TrustClaim.INSTANCE_IDENTITY
    if identity in failed:
        vector[identity] = max(_value_of_identity(check) for check in failed[identity])
    elif quoted:
        vector[identity] = 2

    appraised = frozenset(() if None in failed or reported else result.boot_state_appraised)
    for claim, value in ((TrustClaim.CONFIGURATION, 96), (TrustClaim.EXECUTABLES, 33)):
        if claim in failed:
            vector[claim] = value
            continue
        for rests, affirmed, needed in RESTS_ON:
            if rests is claim and needed <= appraised:
                vector[claim] = affirmed
                break

    if TrustClaim.HARDWARE in failed:
        vector[TrustClaim.HARDWARE] = 96
    elif any(isinstance(o, Flagged) and o.check == FIRMWARE_WARNING for o in result.outcomes):
        vector[TrustClaim.HARDWARE] = 32
    elif assurance.level >= Assurance.EK_CHAIN.level:
        vector[TrustClaim.HARDWARE] = 2
    return vector


FIRMWARE_WARNING: Final = "firmware-blocklist"
"""Name of the check over the firmware blocklist; flagged, the hardware is genuine but vulnerable."""


def _value_of_identity(check: str) -> int:
    return next((value for prefix, value in _OF_IDENTITY.items() if check.startswith(prefix)), 96)


_TIERS: Final = {
    Verdict.VERIFIED: Tier.AFFIRMING,
    Verdict.FAILED: Tier.CONTRAINDICATED,
    Verdict.INDETERMINATE: Tier.NONE,
}


def status_of(verdict: Verdict, vector: Mapping[TrustClaim, int]) -> Tier:
    """Return the status of a result: that of its verdict, and never better than the worst claim (EAR §3.1)."""
    return worst([_TIERS[verdict], *map(tier_of, vector.values())])
