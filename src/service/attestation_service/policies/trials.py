"""Policies against stored evidence: what one would do to the fleet, before anybody lets it apply.

One request judges one page of machines, so the answer over a large fleet is many short ones: reading takes the
reader for lists, judging a thread, and neither delays an attestation. Nothing is changed and nothing is believed:
the evidence was verified when it was stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from attestation.api import PolicyTestCounts, PolicyTestMachine, PolicyTestPage, PolicyTestRequest
from attestation.appraisal.again import StoredCase, judge_again, judge_stored_log
from attestation.errors import MachineUnknown, MalformedEvidence, RequestInvalid
from attestation.evidence.event_log import ReplayedLog
from attestation.machines import Role
from attestation.reference import Policy, parse_policy
from attestation.reference.compose import compose
from attestation.results import Failed, Flagged, Outcome, Passed, Reported, Undecided, Verdict, conclude
from attestation.results.ar4si import FIRMWARE_WARNING
from attestation.store import Capture, CaptureFilter, Scope, Tx
from attestation.tpm.hashes import bank_alg
from attestation_service import policy as policies
from attestation_service.context import Resources
from attestation_service.measurements import Replays
from attestation_service.policies.places import SCOPES, check_subject

MOST_LOGS: Final = 128
"""So many event logs are parsed for one page; then it ends early, because each takes milliseconds."""
MOST_REMEMBERED: Final = 20_000
_REMEMBERED_BYTES: Final = 8 << 20
_WORDS: Final[Mapping[type[Outcome], str]] = {
    Passed: "passed",
    Failed: "failed",
    Flagged: "flagged",
    Reported: "reported",
    Undecided: "undecided",
}


_LogKey = tuple[str, str, bytes]
_log_outcomes: Final[dict[_LogKey, tuple[Outcome, ...]]] = {}
"""What rules say of logs: a pure function of log, policy and quoted values, so that pages need not parse again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """Machines, each with what it would be measured against."""

    tried: Policy
    machines: int
    cases: tuple[tuple[Capture, Policy], ...]
    logs: Mapping[str, bytes]
    next_cursor: str | None


async def test(request: PolicyTestRequest, *, res: Resources) -> PolicyTestPage:
    """Judge one page of stored evidence as if the policy applied there.

    Raises:
        PolicyInvalid: The document breaks a rule of its format, or contradicts another policy that applies.
        PolicyUnknown: No such policy.
        MachineUnknown: No such machine.
        RequestInvalid: Neither or both of policy and document; *subject* is none of this scope; a strange cursor.
    """
    check_subject(request.scope, request.subject)
    if (request.policy is None) == (request.document is None):
        raise RequestInvalid("policy, document: give one of them")
    document = None if request.document is None else parse_policy(request.document)

    def load(tx: Tx) -> _Page:
        tried = document
        if tried is None:
            assert request.policy is not None
            tried = policies.stored(tx, request.policy)
        wanted = filter_of(request.scope, request.subject)
        machines = tx.captures.count(wanted)
        if request.scope == "machine" and not machines:
            raise MachineUnknown("no such machine, or one that is rejected or revoked")
        page = tx.captures.page(wanted, request.cursor, request.limit)
        effective: dict[tuple[str | None, ...], Policy] = {}
        cases: list[tuple[Capture, Policy]] = []
        logs: dict[str, bytes] = {}
        for capture in page.items:
            in_force = effective.get(capture.assigned)
            if in_force is None:
                in_force = effective[capture.assigned] = _with(tx, capture.assigned, request.scope, tried)
            if not _needs(tx, capture, in_force, logs, res.replays):
                break
            cases.append((capture, in_force))
        whole = len(cases) == len(page.items)
        return _Page(
            tried=tried,
            machines=machines,
            cases=tuple(cases),
            logs=logs,
            next_cursor=page.next_cursor if whole else cases[-1][0].cursor,
        )

    loaded = await res.store.scan(load)
    return await asyncio.to_thread(_judged, loaded, res.replays)


def _needs(tx: Tx, capture: Capture, policy: Policy, logs: dict[str, bytes], known: Replays) -> bool:
    """Fetch the event log that *policy* reads into *logs*; False where the page has enough of them."""
    key = _log_key(capture, policy)
    if key is None or key in _log_outcomes or key[0] in logs or known.known(key[0], policy.bank) is not None:
        return True
    if len(logs) >= MOST_LOGS:
        return False
    log = tx.logs.get(key[0])
    if log is not None:
        logs[key[0]] = log
    return True


def _log_key(capture: Capture, policy: Policy) -> _LogKey | None:
    """Return what the outcome of the rules over a log depends on; None where there are none, or no log."""
    if policy.event_log is None or capture.event_log_sha256 is None:
        return None
    values = capture.pcr_values
    quoted = b"".join(values.get(pcr, b"") for pcr in policy.log_pcrs)
    return capture.event_log_sha256, policy.sha256, hashlib.sha256(quoted).digest()


def filter_of(scope: Scope, subject: str) -> CaptureFilter:
    """Return which machines a place holds."""
    return CaptureFilter(
        role=Role(subject) if scope == "role" else None,
        cluster_id=subject if scope == "cluster" else None,
        machine_id=subject if scope == "machine" else None,
    )


def _with(tx: Tx, assigned: Sequence[str | None], scope: Scope, tried: Policy) -> Policy:
    """Return what would be in force with *tried* in its place, and everything else as it is assigned."""
    parts = []
    for place, pin in zip(SCOPES, assigned, strict=True):
        if place == scope:
            parts.append(tried)
        elif pin is not None:
            parts.append(policies.stored(tx, pin.partition(" ")[0]))
    return compose(parts)


class _Logs:
    """The event logs of a page, each replayed once in each bank.

    Args:
        logs: As they came, by SHA-256.
        known: What attestations remember; it is asked and not filled, so that nothing that is in use makes room.
    """

    def __init__(self, logs: Mapping[str, bytes], known: Replays) -> None:
        self._logs, self._known, self._own = logs, known, Replays(_REMEMBERED_BYTES)

    def outcomes(self, capture: Capture, policy: Policy) -> tuple[Outcome, ...] | None:
        """Return what the rules of *policy* say of the log of *capture*; None where it is not kept."""
        key = _log_key(capture, policy)
        if key is None:
            return None
        found = _log_outcomes.get(key)
        if found is None and (replayed := self._replayed(key[0], policy.bank)) is not None:
            if len(_log_outcomes) >= MOST_REMEMBERED:
                _log_outcomes.clear()
            found = _log_outcomes[key] = judge_stored_log(replayed, policy, capture.pcr_values)
        return found

    def _replayed(self, sha256: str, bank: int) -> ReplayedLog | None:
        """Return what a log replays to; None where it is not kept, or says nothing of the bank."""
        found = self._known.known(sha256, bank) or self._own.known(sha256, bank)
        if found is None and sha256 in self._logs:
            with contextlib.suppress(MalformedEvidence):
                found = self._own.replay(self._logs[sha256], bank)
        return found


def _judged(page: _Page, known: Replays) -> PolicyTestPage:
    logs = _Logs(page.logs, known)
    counts: dict[str, dict[str, int]] = {}
    sums = dict.fromkeys(("passed", "failed", "undecided", "without_evidence", "reported", "recovering"), 0)
    failing: list[PolicyTestMachine] = []
    for capture, policy in page.cases:
        if capture.at is None or capture.verdict is None:
            sums["without_evidence"] += 1
            continue
        outcomes = judge_again(_case(capture, logs.outcomes(capture, policy)), policy)
        for outcome in outcomes:
            told = counts.setdefault(outcome.check, {})
            word = _WORDS[type(outcome)]
            told[word] = told.get(word, 0) + 1
        verdict = conclude(outcomes)
        if verdict is Verdict.VERIFIED:
            sums["passed"] += 1
            sums["reported"] += any(isinstance(outcome, Reported) for outcome in outcomes)
            sums["recovering"] += capture.verdict is Verdict.FAILED
        elif verdict is Verdict.INDETERMINATE:
            sums["undecided"] += 1
        else:
            sums["failed"] += 1
            failing.append(
                PolicyTestMachine(
                    machine_id=capture.machine_id,
                    hostname=capture.hostname,
                    role=capture.role,
                    failed=", ".join(o.check for o in outcomes if isinstance(o, (Failed, Undecided))),
                    at=capture.at,
                    before=capture.verdict,
                    newly=capture.verdict is not Verdict.FAILED,
                )
            )
    return PolicyTestPage(
        policy=page.tried.ref,
        sha256=page.tried.sha256,
        machines=page.machines,
        judged=len(page.cases),
        **sums,
        failing=failing,
        checks={check: PolicyTestCounts(**told) for check, told in sorted(counts.items())},
        next_cursor=page.next_cursor,
    )


def _case(capture: Capture, log_outcomes: Sequence[Outcome] | None) -> StoredCase:
    advisories: list[Outcome] = []
    if capture.firmware_blocked is not None:
        advisories.append(Failed(FIRMWARE_WARNING, "no advisory that rules it out", capture.firmware_blocked))
    elif capture.vendor is not None and capture.firmware_version:
        advisories.append(Passed(FIRMWARE_WARNING))
    return StoredCase(
        bank=None if capture.pcr_bank is None else bank_alg(capture.pcr_bank),
        values=capture.pcr_values,
        log_outcomes=log_outcomes,
        assurance=capture.assurance,
        role=capture.role,
        ek_vendor=capture.vendor,
        firmware_version=capture.firmware_version or None,
        clock_safe=capture.clock_safe,
        ek_key_attested=bool(capture.ek_key_attested),
        advisories=advisories,
    )
