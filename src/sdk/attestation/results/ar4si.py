"""The words in which a result speaks of trust: AR4SI claims, their values and tiers (draft-ietf-rats-ar4si §2.3).

What the values mean here, and from which checks they come, stands in docs/protocol/results.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final


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
