"""HardwareSecurityModule: whether the token is there, lets us in and signs (HSM-AND-KUBERNETES §§6, 10). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from attestation.clock import rfc3339
from attestation.errors import AttestationError, ModuleNotListed, PINRejected
from attestation.keys.care import TokenFacts
from attestation_operator.actions import Action, SetStatus
from attestation_operator.conditions import said, with_conditions
from attestation_operator.hsm.objects import MANAGER, READY, Module, condition, instant, is_status
from attestation_operator.objects import clipped

TYPES: Final = ("Connected", "LoggedIn", "Healthy", READY)
TOLD: Final = timedelta(minutes=1)
"""So often a good signature is told; more would be a write for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a token answered at one look.

    Args:
        facts: What it says of itself, or why it says nothing.
        signed: Whether a test signature was good; None where nothing on it signs for us, or why it was not.
    """

    facts: TokenFacts | AttestationError
    signed: bool | AttestationError | None = None


def reconcile(module: Module, found: Found | None, at: datetime) -> tuple[Action, ...]:
    """Return what is to be said of a token; nothing where that stands there.

    Args:
        module: The object.
        found: What the token answered; None where the object cannot be followed.
        at: Now.
    """
    status: dict[str, Any] = {"observedGeneration": module.generation}
    there = module.status
    if found is not None and isinstance(found.facts, TokenFacts):
        status |= _told(found.facts)
        last = there.get("lastSignTime")
        if found.signed is True:
            stale = last is None or instant(last) + TOLD <= at
            status["lastSignTime"] = rfc3339(at) if stale else last
        elif last is not None:
            status["lastSignTime"] = last
    ours = [each for each in there.get("conditions") or () if each.get("type") in TYPES]
    status["conditions"] = with_conditions(
        ours, _conditions(module, found), generation=module.generation, at=at
    )
    if is_status(there, status):
        return ()
    return (SetStatus(target=module.target, manager=MANAGER, status=status),)


def is_good(found: Found | None) -> bool:
    """Whether a token that answered so can be used."""
    return (
        found is not None
        and isinstance(found.facts, TokenFacts)
        and not isinstance(found.signed, AttestationError)
    )


def is_ready(module: Module) -> bool:
    """Whether its status says that it can be used, of its spec as it is."""
    ready = condition(module.status, READY) or {}
    return ready.get("status") == "True" and ready.get("observedGeneration") == module.generation


def _conditions(module: Module, found: Found | None) -> list[dict[str, Any]]:
    if found is None:
        # An object that cannot be followed says nothing of the token.
        return [said(each, "SpecInvalid", module.faults, true=None) for each in TYPES[:3]] + [
            said(READY, "SpecInvalid", module.faults, true=False)
        ]
    facts, signed = found.facts, found.signed
    if isinstance(facts, ModuleNotListed):
        return _all_but(0, "ModuleNotListed", facts)
    if isinstance(facts, PINRejected):
        # The module and the token answered: they refused us.
        return [said("Connected", "TokenPresent"), *_all_but(1, "PINRejected", facts)]
    if isinstance(facts, AttestationError):
        return _all_but(0, _as_reason(facts), facts)
    begin = [said("Connected", "TokenPresent"), said("LoggedIn", "PINAccepted")]
    if isinstance(signed, AttestationError):
        return begin + _all_but(2, _as_reason(signed), signed)
    words = "a test signature was good" if signed else "the token answers; no key of ours is on it yet"
    healthy = said("Healthy", "Signed" if signed else "NothingToSignWith", words)
    return [*begin, healthy, said(READY, "Checked", words)]


def _all_but(good: int, reason: str, error: AttestationError) -> list[dict[str, Any]]:
    """Return conditions of which the first that is not good says why, and those behind it that nobody knows."""
    first, *between, ready = TYPES[good:]
    words = clipped(str(error))
    return [
        said(first, reason, words, true=False),
        *(said(each, reason, words, true=None) for each in between),
        said(ready, reason, words, true=False),
    ]


def _as_reason(error: AttestationError) -> str:
    """Return the code of an error as a reason: `token-absent` is TokenAbsent."""
    return "".join(part.capitalize() for part in error.code.split("-"))


def _told(facts: TokenFacts) -> dict[str, Any]:
    info = {
        "label": facts.label,
        "serial": facts.serial,
        "manufacturer": facts.manufacturer,
        "model": facts.model,
        "firmwareVersion": facts.firmware_version,
    }
    said_ = {name: value for name, value in info.items() if value is not None}
    told: dict[str, Any] = {"tokenInfo": said_} if said_ else {}
    if facts.mechanisms:
        told["mechanisms"] = list(facts.mechanisms)
    return told
