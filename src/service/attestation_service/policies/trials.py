"""Policies against stored evidence: what one would do to the fleet, before anybody lets it apply.

One request judges one page of machines, so the answer over a large fleet is many short ones: reading takes the
reader for lists, judging a thread, and neither delays an attestation. Nothing is changed and nothing is believed:
the evidence was verified when it was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attestation.api import PolicyTestCounts, PolicyTestMachine, PolicyTestPage, PolicyTestRequest
from attestation.appraisal.again import judge_again
from attestation.appraisal.tpm import TPM
from attestation.appraisal.tpm.again import Stored
from attestation.errors import MachineUnknown, RequestInvalid
from attestation.machines import Role
from attestation.reference import Policy, parse_policy
from attestation.reference.compose import compose, compose_guarded
from attestation.results import Failed, Flagged, Outcome, Passed, Reported, Undecided, Verdict, conclude
from attestation.results.tpm_checks import FIRMWARE_BLOCKLIST
from attestation.store import Capture, CaptureFilter, Scope, Tx
from attestation.store.policies import AGREED
from attestation.tpm.hashes import bank_alg
from attestation_service.policies.kept_logs import KeptLogs
from attestation_service.policies.places import SCOPES, check_subject
from attestation_service.resources import Res
from attestation_service.verifier import policy as policies

_WORDS: Final[Mapping[type[Outcome], str]] = {
    Passed: "passed",
    Failed: "failed",
    Flagged: "flagged",
    Reported: "reported",
    Undecided: "undecided",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """Machines, each with what it would be measured against."""

    tried: Policy
    machines: int
    cases: tuple[tuple[Capture, Policy], ...]
    states: Mapping[str, Mapping[str, Mapping[str, Any]]]
    logs: KeptLogs
    next_cursor: str | None


async def test(request: PolicyTestRequest, *, res: Res) -> PolicyTestPage:
    """Judge the stored evidence of one page of machines as if a policy applied there.

    Together with what else is assigned to each machine. Nothing is changed, but it costs: not for viewers.

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
        effective: dict[tuple[Role | None, tuple[str | None, ...]], Policy] = {}
        guarded = res.settings.dual_control_roles
        cases: list[tuple[Capture, Policy]] = []
        logs = KeptLogs(res.replays)
        for capture in page.items:
            role = capture.role if capture.role in guarded else None
            in_force = effective.get((role, capture.assigned))
            if in_force is None:
                in_force = _with(tx, capture.assigned, role, request.scope, tried)
                effective[role, capture.assigned] = in_force
            lacking = logs.lacks(capture, in_force)
            if lacking and cases and logs.is_full:
                break
            for sha256 in lacking:
                logs.fetch(tx, sha256)
            cases.append((capture, in_force))
        whole = len(cases) == len(page.items)
        return _Page(
            tried=tried,
            machines=machines,
            cases=tuple(cases),
            states=tx.identities.states([capture.machine_id for capture, _ in cases]),
            logs=logs,
            next_cursor=page.next_cursor if whole else cases[-1][0].cursor,
        )

    loaded = await res.store.scan(load)
    return await asyncio.to_thread(_judged, loaded)


def filter_of(scope: Scope, subject: str) -> CaptureFilter:
    """Return which machines a place holds."""
    return CaptureFilter(
        role=Role(subject) if scope == "role" else None,
        cluster_id=subject if scope == "cluster" else None,
        machine_id=subject if scope == "machine" else None,
    )


def _with(
    tx: Tx, assigned: Sequence[str | None], guarded: Role | None, scope: Scope, tried: Policy
) -> Policy:
    """Return what would be in force with *tried* in its place, and everything else as it is assigned.

    Of a role under dual control (*guarded*) as if several had agreed to it: nobody else can let it apply there.
    """
    parts, agreed = [], []
    for place, pin in zip(SCOPES, assigned, strict=True):
        if place == scope:
            parts.append(tried)
            agreed.append(True)
        elif pin is not None:
            parts.append(policies.stored(tx, pin.partition(" ")[0]))
            agreed.append(pin.endswith(AGREED))
    return compose(parts) if guarded is None else compose_guarded(parts, agreed, guarded)


def _judged(page: _Page) -> PolicyTestPage:
    counts: dict[str, dict[str, int]] = {}
    sums = dict.fromkeys(("passed", "failed", "undecided", "without_evidence", "reported", "recovering"), 0)
    failing: list[PolicyTestMachine] = []
    for capture, policy in page.cases:
        if capture.at is None or capture.verdict is None:
            sums["without_evidence"] += 1
            continue
        kept: dict[str, Any] = dict(page.states.get(capture.machine_id, {}))
        if capture.pcr_bank is not None or not kept:
            kept[TPM.name] = _kept(capture, policy, page.logs)
        outcomes = judge_again(kept, capture.assurance, capture.role, policy, capture.cluster_id)
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


def _kept(capture: Capture, policy: Policy, logs: KeptLogs) -> Stored:
    advisories: list[Outcome] = []
    if capture.firmware_blocked is not None:
        advisories.append(
            FIRMWARE_BLOCKLIST.failed("no advisory that rules it out", capture.firmware_blocked)
        )
    elif capture.vendor is not None and capture.firmware_version:
        advisories.append(FIRMWARE_BLOCKLIST.passed())
    return Stored(
        bank=None if capture.pcr_bank is None else bank_alg(capture.pcr_bank),
        values=capture.pcr_values,
        log_outcomes=logs.of_event_log(capture, policy),
        list_outcomes=logs.of_list(capture, policy),
        ek_vendor=capture.vendor,
        firmware_version=capture.firmware_version or None,
        clock_safe=capture.clock_safe,
        ek_key_attested=bool(capture.ek_key_attested),
        advisories=advisories,
    )
