"""What runs, their Results and the checks in them say, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from attestation.clock import parse_rfc3339
from attestation.results.codes import Code
from attestation_operator.objects import Raw

VERDICTS: Final[Mapping[str, str]] = {
    "verified": "verified: the hardware of the machine with this name measured what the policy expects",
    "failed": "failed: a check failed",
    "indeterminate": "indeterminate: nothing failed, and it could not be decided; nothing may rest on it",
}

OUTCOMES: Final[Mapping[str, str]] = {
    "pass": "passed",
    "fail": "failed",
    "skipped": "not asked",
    "unavailable": "undecided",
}
"""How outcomes of checks are called in every other command."""

CODES: Final[Mapping[str, str]] = {
    Code.ENVELOPE_INVALID: "the evidence is not in the form that was asked for",
    Code.REPORT_INVALID: "the report of the hardware cannot be read",
    Code.SIGNATURE_INVALID: "this hardware did not sign it",
    Code.CHAIN_INVALID: "no certificate chain leads from its key to the maker of the hardware",
    Code.COLLATERAL_UNAVAILABLE: "what the maker says of this hardware is not at hand",
    Code.COLLATERAL_INVALID: "what was said of this hardware was not signed by its maker",
    Code.REVOKED: "the maker revoked a certificate of it",
    Code.TCB_NOT_ALLOWED: "firmware or microcode is older than the policy allows",
    Code.GUEST_POLICY: "the guest runs with properties that the policy forbids, as debugging",
    Code.BINDING_MISMATCH: "it was signed for another challenge, or another key",
    Code.MACHINE_NOT_ALLOWED: "it is another machine than the node's, or one that is locked or revoked",
    Code.REFERENCE_MISMATCH: "something else was measured than the policy expects",
    Code.REPLAY_MISMATCH: "the event log does not lead to what the hardware measured",
    Code.LOG_INVALID: "the event log cannot be read",
    Code.PLATFORM_UNSUPPORTED: "the service knows no such hardware",
    Code.POLICY_INVALID: "the policy cannot be followed",
    "device-absent": "the node has no such device",
    "device-denied": "the agent may not open the device",
    "device-busy": "something else holds the device",
    "device-no-provider": "the kernel offers no reports of this hardware",
    "device-malformed": "the device answered something that cannot be read",
    "device-failed": "the device failed",
}
"""What a code means; codes of errors that are not here are told as they are."""

REASONS: Final[Mapping[str, str]] = {
    "PolicyNotFound": "there is no such AttestationPolicy in the namespace",
    "PolicyInvalid": "the run, or its policy, asks for what cannot be",
    "NodeNotFound": "the cluster has no Node of this name",
    "DeviceUnavailable": "the node's agent could not read its hardware",
    "EvidenceRejected": "what the node sent proves nothing",
    "VerdictFailed": "a check failed",
    "AgentAbsent": "no agent of the node delivered evidence in time",
    "DeadlineExceeded": "it was not judged in time",
}
"""What a run failed by."""


def phase(run: Raw) -> str:
    """Return the phase of *run*; of one that nobody took up yet `New`."""
    return _status(run).get("phase") or "New"


def verdict(run: Raw) -> str | None:
    """Return the verdict of *run*, None before there is one."""
    return _status(run).get("verdict") or None


def conditions(raw: Raw) -> list[Mapping[str, Any]]:
    """Return the conditions of an object."""
    return list(_status(raw).get("conditions") or ())


def condition(raw: Raw, type_: str) -> Mapping[str, Any]:
    """Return one of them, empty where it is not there."""
    return next((each for each in conditions(raw) if each.get("type") == type_), {})


def has_ended(run: Raw) -> bool:
    """Return whether the phase of *run* never changes any more."""
    return phase(run) in ("Succeeded", "Failed")


def failure(run: Raw) -> str | None:
    """Return by what *run* failed: the reason of its condition Failed."""
    said = condition(run, "Failed")
    return said.get("reason") if said.get("status") == "True" else None


def why(run: Raw) -> str | None:
    """Return in words why *run* ended as it did, None where it has not."""
    reason = failure(run)
    if reason is not None:
        said = condition(run, "Failed").get("message") or ""
        return f"{REASONS.get(reason, reason)}" + (f" ({said})" if said else "")
    return VERDICTS.get(verdict(run) or "")


def instant(raw: Raw, *path: str) -> datetime | None:
    """Return an instant of an object, None where there is none."""
    found: Any = raw
    for name in path:
        found = (found or {}).get(name)
    try:
        return parse_rfc3339(found) if isinstance(found, str) else None
    except ValueError:
        return None


def steps(before: Raw | None, after: Raw) -> Iterator[tuple[str, str, str]]:
    """Yield what changed of a run: what, what it is now, and why."""
    if before is None or phase(before) != phase(after):
        yield "phase", phase(after), why(after) or ""
    known = {each.get("type"): _told(each) for each in ([] if before is None else conditions(before))}
    for each in conditions(after):
        if known.get(each.get("type")) != _told(each):
            value, reason, message = _told(each)
            yield str(each.get("type")), value, ": ".join(filter(None, (reason, message)))


def _told(each: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(each.get("status")), str(each.get("reason") or ""), str(each.get("message") or "")


def _status(raw: Raw) -> Mapping[str, Any]:
    return raw.get("status") or {}
