"""What is known of a QuoteAttestation, what may be asked, and how its state is said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from attestation.api.hsm import QuoteStep, QuoteVerdict
from attestation.errors import AttestationError, HSMDiffers, HSMQuoteUnknown
from attestation.keys.provisioning import SignedBundle
from attestation.quote import Purpose
from attestation_operator.actions import Action, SetStatus
from attestation_operator.conditions import said, with_conditions
from attestation_operator.hsm.objects import (
    AGAIN_SECONDS,
    MANAGER,
    READY,
    Absent,
    Issuer,
    Module,
    condition,
    is_status,
)
from attestation_operator.hsm.offers import Quote, generation_of
from attestation_operator.objects import clipped

MAX_DETAIL: Final = 1000

ACCEPTED: Final = "Accepted"
VERIFIED: Final = "Verified"
KEY_DELIVERED: Final = "KeyDelivered"
KEY_LOADED: Final = "KeyLoaded"
AWAITING_VERDICT: Final = "AwaitingVerdict"
AWAITING_KEY: Final = "AwaitingKey"
LOADED: Final = "Loaded"
GOING: Final = frozenset({AWAITING_VERDICT, AWAITING_KEY, LOADED})
"""Reasons of Ready Unknown that are no end."""


class Ask(StrEnum):
    """What is asked of the token, of the cluster, or of the service."""

    KEK = "kek"
    JUDGE = "judge"
    TELL_ACCEPTED = "tell-accepted"
    SECRET = "secret"  # noqa: S105 -- no secret: a question
    TELL_REJECTED = "tell-rejected"
    SPEND = "spend"
    LOAD = "load"
    TEST = "test"
    CLEAN = "clean"
    TELL_END = "tell-end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It was done."""


Answer = bytes | QuoteVerdict | Mapping[str, Any] | Absent | Done | AttestationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of a QuoteAttestation.

    Args:
        quote: The object.
        issuer: The issuer that it names, None where there is none of that UID.
        module: Its HardwareSecurityModule, None where there is none that it may use.
        own_namespace: The controller's.
        at: Now.
        answers: What was answered at this look.
    """

    quote: Quote
    issuer: Issuer | None
    module: Module | None
    own_namespace: str
    at: datetime
    answers: Mapping[Ask, Answer] = field(default_factory=dict)

    @property
    def generation(self) -> int | None:
        """For which edition of the issuer it was made, None where we did not make it; a request's has no key."""
        envelope = self.quote.envelope
        if envelope is not None and envelope.purpose is not Purpose.KEY_PROVISIONING:
            return None
        if self.issuer is None:
            return None
        return generation_of(self.quote, self.issuer, self.own_namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What follows.

    Args:
        ask: What must be known first; then nothing else is said.
        step: What the service is told, for the questions that tell it something.
        bundle: What is to be loaded, likewise.
        actions: What is to be done.
        after: After how many seconds to look again by itself.
        again: Look again at once, at the object as it then is.
    """

    ask: Ask | None = None
    step: QuoteStep | None = None
    bundle: SignedBundle | None = None
    actions: tuple[Action, ...] = ()
    after: float | None = None
    again: bool = False


def is_loaded(quote: Quote) -> bool:
    """Whether the key that it asked for is on the token, and is used."""
    return is_true(quote, KEY_LOADED)


def is_true(quote: Quote, type_: str) -> bool:
    """Whether one of its conditions is True."""
    return (condition(quote.status, type_) or {}).get("status") == "True"


def untold(case: Case, ask: Ask) -> AttestationError | None:
    """Return why the service was not told; one that knows of no such QuoteAttestation, or of another end, was."""
    answer = case.answers[ask]
    if isinstance(answer, AttestationError) and not isinstance(answer, HSMQuoteUnknown | HSMDiffers):
        return answer
    return None


def left(case: Case) -> float:
    """Return the seconds until it expires."""
    assert case.quote.envelope is not None
    return max(0.0, (case.quote.envelope.expires_at - case.at).total_seconds())


def plain(words: str) -> str:
    """Return words as one line, as an audit takes them."""
    return clipped("".join(each if each.isprintable() else " " for each in words), MAX_DETAIL)


def waits(case: Case, words: str, *conditions: Mapping[str, Any], ready: bool = True) -> Looked:
    """Say what hinders it, and look again; its state is what it was."""
    told = condition(case.quote.status, READY) or {"reason": AWAITING_VERDICT}
    mine = (said(READY, told["reason"], words, true=None),) if ready else ()
    return say(case, *conditions, *mine, after=AGAIN_SECONDS)


_KEPT: Final = (
    "verdict", "verifier", "claims", "evidenceDigest", "boundKeyFingerprint", "auditEntryHash",
)  # fmt: skip


def say(
    case: Case,
    *conditions: Mapping[str, Any],
    found: Mapping[str, Any] | None = None,
    without: str | None = None,
    after: float | None = None,
    again: bool = False,
) -> Looked:
    """Return the status with these conditions and what was *found*; all else of it stays, but for one condition."""
    quote = case.quote
    kept = {name: quote.status[name] for name in _KEPT if quote.status.get(name) is not None}
    there = [each for each in quote.status.get("conditions") or () if each.get("type") != without]
    status: dict[str, Any] = {"observedGeneration": quote.generation, **kept, **(found or {})}
    status["conditions"] = with_conditions(there, conditions, generation=quote.generation, at=case.at)
    if is_status(quote.status, status):
        return Looked(after=after)
    action = SetStatus(target=quote.target, manager=MANAGER, status=status, exact=True)
    return Looked(actions=(action,), after=after, again=again)
