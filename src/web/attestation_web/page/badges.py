"""States as badges: what is not known, and what is old, never looks like what is good (R22)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from attestation.machines import Status, Trust
from attestation.results import Assurance, Verdict


class Look(StrEnum):
    """How a state looks; each has its colour, sign and line in the style sheet."""

    GOOD = "good"
    WAITS = "waits"
    STALE = "stale"
    WARNS = "warns"
    BAD = "bad"
    UNKNOWN = "unknown"
    LOADING = "loading"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A state in one or two words.

    Args:
        look: How it looks.
        text: The words; colour alone says nothing.
        title: A sentence about it.
    """

    look: Look
    text: str
    title: str = ""


NOT_KNOWN: Final = Badge(look=Look.UNKNOWN, text="unknown", title="The service does not say it")

_BADGES: Final[dict[object, Badge]] = {
    (Status, Status.PENDING_APPROVAL): Badge(
        look=Look.WAITS, text="pending approval", title="It waits for an operator's decision"
    ),
    (Status, Status.REGISTERED): Badge(
        look=Look.WAITS, text="registered", title="Admitted; it has not yet proven itself"
    ),
    (Status, Status.ATTESTED): Badge(
        look=Look.GOOD, text="attested", title="It proved itself; whether that still counts, its trust says"
    ),
    (Status, Status.LOCKED): Badge(look=Look.BAD, text="locked", title="It gets nothing while it is locked"),
    (Status, Status.REVOKED): Badge(look=Look.BAD, text="revoked", title="Final"),
    (Status, Status.REJECTED): Badge(look=Look.BAD, text="rejected", title="An operator refused it"),
    (Trust, Trust.VERIFIED): Badge(
        look=Look.GOOD, text="trusted", title="Its last result is good and in its lease"
    ),
    (Trust, Trust.STALE): Badge(
        look=Look.STALE,
        text="stale",
        title="Its last good result is too old, or an act ended the trust in it",
    ),
    (Trust, Trust.FAILED): Badge(look=Look.BAD, text="failed", title="Its last evidence was not as expected"),
    (Trust, Trust.UNKNOWN): Badge(
        look=Look.UNKNOWN, text="unknown", title="Nothing that it sent could be judged"
    ),
    (Verdict, Verdict.VERIFIED): Badge(look=Look.GOOD, text="verified", title="Authentic, and as expected"),
    (Verdict, Verdict.FAILED): Badge(look=Look.BAD, text="failed", title="Authentic, and not as expected"),
    (Verdict, Verdict.INDETERMINATE): Badge(
        look=Look.UNKNOWN, text="undecided", title="It could not be judged"
    ),
    (Assurance, Assurance.NONE): Badge(look=Look.UNKNOWN, text="none", title="Nothing was proven"),
    (Assurance, Assurance.TOFU): Badge(
        look=Look.WAITS,
        text="first use",
        title="No vendor vouches for this TPM; it is only proven to stay the same",
    ),
}


def badge(value: object) -> Badge:
    """Return *value* as a badge: a status, trust, verdict or assurance; None is not known, and looks so."""
    if isinstance(value, Badge):
        return value
    if value is None or value == "":
        return NOT_KNOWN
    found = _BADGES.get((type(value), value))
    if found is not None:
        return found
    look = Look.GOOD if isinstance(value, Verdict | Assurance) else Look.PLAIN
    return Badge(look=look, text=str(value).replace("_", " "))
