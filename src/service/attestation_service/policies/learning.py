"""A policy proposed from what machines proved last; stored nowhere, applied by nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from attestation.api import LearnedPolicy, LearnGroup, LearnOutlier, PolicyLearnRequest
from attestation.appraisal.learn_shown import State, learn_shown
from attestation.appraisal.tpm import learn as heart
from attestation.errors import (
    MachineUnknown,
    MalformedEvidence,
    PolicyInvalid,
    RequestInvalid,
    StoreUnavailable,
)
from attestation.machines import Role
from attestation.reference import IDENTITY_ONLY, Policy, parse_policy
from attestation.reference.document import with_blocks
from attestation.results import Verdict
from attestation.store import Capture, CaptureFilter, Tx
from attestation.store.policies import AGREED
from attestation.tpm.hashes import bank_alg
from attestation_service.auth import OperatorDep
from attestation_service.policies.places import SCOPES
from attestation_service.resources import Res, Resources
from attestation_service.settings import Settings
from attestation_service.verifier import policy as policies
from attestation_service.verifier.measurements import Replays

log = structlog.get_logger(__name__)

MOST_MACHINES: Final = 1000
"""So many machines are looked at for one proposal; more of them teach nothing more."""
MOST_LOGS: Final = 256
"""So many different event logs are looked at for one proposal."""
_PAGE: Final = 200
_REMEMBERED_BYTES: Final = 32 << 20
_NAMED: Final = 5


async def learn(request: PolicyLearnRequest, *, res: Res, operator: OperatorDep) -> LearnedPolicy:
    """Propose a policy from what machines proved last.

    Nothing is stored. Whatever runs on these machines is what the proposal allows.

    Raises:
        RequestInvalid: No machines are chosen, or in two ways.
        MachineUnknown: One of those named is not there, or is rejected or revoked.
        PolicyInvalid: There is no evidence, or nothing in it that a policy could demand.
    """
    chosen = request.role is not None or request.cluster_id is not None
    if bool(request.machines) + chosen + request.fleet != 1:
        raise RequestInvalid("give machines, or role and cluster_id, or fleet")
    captures, left_out = await (_named(request, res) if request.machines else _filtered(request, res))
    logs = await _logs(captures, res)
    started = await res.store.scan(lambda tx: _started(tx, request, captures, res.settings))
    states = await res.store.scan(lambda tx: tx.identities.states([c.machine_id for c in captures]))
    proposal = await asyncio.to_thread(_proposed, request, captures, left_out, logs, started, states)
    # Whoever activates such a policy later sees only hashes.
    if request.accept_unmeasured:
        event = operator.event("policy_learn", detail=f"{request.name}@{request.version} accept_unmeasured")
        at = res.clock.now()

        def work(tx: Tx) -> LearnedPolicy:
            tx.audit.append(event, at)
            return proposal

        await res.store.write(work)
        log.warning(
            "policy.learn_unmeasured", policy=f"{request.name}@{request.version}", operator=operator.cn
        )
    return proposal


class _Start(NamedTuple):
    """What a proposal starts from.

    Attributes:
        base: The policy that applies where the proposal is for; None where only a wider one does.
        in_force: What applies there altogether.
        others: Machines to which something else applies.
        guarded: A role under dual control among them, where one operator alone assigned the base.
    """

    base: Policy | None
    in_force: Policy
    others: int
    guarded: Role | None


def _started(tx: Tx, request: PolicyLearnRequest, captures: Sequence[Capture], settings: Settings) -> _Start:
    """Return what is in force for most of the machines, and which part of it the proposal would replace.

    For named machines that is the narrowest that is assigned to them; for a place, what is assigned to it. Where some
    are in a role under dual control, what is in force for most of those, of several such roles the strictest.
    """
    counted = Counter(
        (c.role if c.role in settings.dual_control_roles else None, c.assigned) for c in captures
    )

    def in_force(role: Role | None, assigned: Sequence[str | None]) -> Policy:
        return policies.effective(tx, tuple(pin for pin in assigned if pin is not None), role, settings)

    def first(item: tuple[tuple[Role | None, tuple[str | None, ...]], int]) -> tuple[bool, int, int]:
        (role, assigned), machines = item
        return (
            role is not None,
            0 if role is None else in_force(role, assigned).assurance_minimum(role).level,
            machines,
        )

    (role, assigned), most = max(counted.items(), key=first, default=((None, ()), 0))
    pins: dict[str, str] = {
        place: pin for place, pin in zip(SCOPES, assigned, strict=False) if pin is not None
    }
    found = in_force(role, assigned)
    others = len(captures) - most
    if not pins:
        return _Start(base=IDENTITY_ONLY, in_force=found, others=others, guarded=None)
    place = "role" if request.role is not None else "fleet" if request.fleet else "cluster"
    if request.machines:
        place = [each for each in SCOPES if each in pins][-1]
    pin = pins.get(place)
    return _Start(
        base=None if pin is None else policies.stored(tx, pin.partition(" ")[0]),
        in_force=found,
        others=others,
        guarded=None if pin is None or pin.endswith(AGREED) else role,
    )


async def _named(request: PolicyLearnRequest, res: Resources) -> tuple[list[Capture], int]:
    """Return what each named machine proved last, whatever was thought of it: somebody chose it."""

    def work(tx: Tx) -> list[Capture]:
        found: list[Capture] = []
        for machine_id in dict.fromkeys(request.machines):
            page = tx.captures.page(CaptureFilter(machine_id=machine_id), None, 1)
            if not page.items:
                raise MachineUnknown(f"no machine {machine_id}, or it is rejected or revoked")
            found += page.items
        return found

    return await res.store.scan(work), 0


async def _filtered(request: PolicyLearnRequest, res: Resources) -> tuple[list[Capture], int]:
    """Return what the machines of a role, a cluster or the fleet proved last that was believed."""
    wanted = CaptureFilter(
        role=request.role, cluster_id=request.cluster_id, verified_only=not request.include_failed
    )
    captures: list[Capture] = []
    cursor: str | None = None
    while len(captures) < MOST_MACHINES:
        page = await res.store.scan(lambda tx, c=cursor: tx.captures.page(wanted, c, _PAGE))  # type: ignore[misc]
        captures += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    total = await res.store.scan(lambda tx: tx.captures.count(wanted))
    return captures, max(total - len(captures), 0)


async def _logs(captures: Sequence[Capture], res: Resources) -> dict[str, bytes]:
    """Return the event logs of *captures* by SHA-256, a few at a time."""
    named = dict.fromkeys(c.event_log_sha256 for c in captures if c.event_log_sha256 is not None)
    wanted = list(named)[:MOST_LOGS]
    found: dict[str, bytes] = {}
    for first in range(0, len(wanted), _PAGE):
        part = wanted[first : first + _PAGE]
        found |= await res.store.scan(lambda tx, p=part: _kept(tx, p))  # type: ignore[misc]
    return found


def _kept(tx: Tx, wanted: Sequence[str]) -> dict[str, bytes]:
    """Return those of the logs that are kept and are what they were."""
    found: dict[str, bytes] = {}
    for sha256 in wanted:
        with contextlib.suppress(StoreUnavailable):
            log = tx.logs.get(sha256)
            if log is not None:
                found[sha256] = log
    return found


def _proposed(
    request: PolicyLearnRequest,
    captures: Sequence[Capture],
    left_out: int,
    logs: dict[str, bytes],
    started: _Start,
    states: Mapping[str, Mapping[str, State]],
) -> LearnedPolicy:
    names = _names(captures)
    shown = learn_shown(
        [(names[c.machine_id], states[c.machine_id]) for c in captures if c.machine_id in states]
    )
    quoted = [c for c in captures if c.pcr_bank is not None or c.machine_id not in states]
    banks = Counter(c.pcr_bank for c in quoted if c.pcr_bank is not None)
    if banks:
        [(bank, _)] = banks.most_common(1)
        usable = [c for c in quoted if c.pcr_bank in (bank, None)]
        replays = Replays(_REMEMBERED_BYTES)
        proposal = heart.learn(
            [_capture(c, names[c.machine_id], bank, logs, replays) for c in usable],
            name=request.name,
            version=request.version,
            bank=bank,
            base=started.base,
            in_force=started.in_force,
            guarded=started.guarded,
            accept_unmeasured=request.accept_unmeasured,
        )
        document, groups, outliers = dict(proposal.document), proposal.groups, proposal.outliers
        notes = list(proposal.notes)
        if len(usable) < len(quoted):
            notes.append(f"left out, quoted in another bank than {bank}: {len(quoted) - len(usable)}")
    elif shown.blocks:
        document, groups, outliers, notes = _head(request, started.base), (), (), []
    else:
        raise PolicyInvalid("there is no evidence to learn from")
    if shown.blocks:
        document = with_blocks(document, shown.blocks)
        parse_policy(document)
    if started.others:
        notes.append(
            f"another policy applies to {started.others} of these machines; this starts from {started.in_force.ref}"
        )
    failing = [names[c.machine_id] for c in captures if c.verdict is Verdict.FAILED]
    if failing:
        more = f" and {len(failing) - _NAMED} more" if len(failing) > _NAMED else ""
        notes.insert(
            0, f"learned from evidence that was refused: {', '.join(failing[:_NAMED])}{more}; make sure why"
        )
    return LearnedPolicy(
        machines=len(captures),
        left_out=left_out,
        base=started.base.ref if started.base is not None else None,
        document=document,
        groups=[
            LearnGroup(subject=g.subject, value=g.value, machines=list(g.machines))
            for g in (*groups, *shown.groups)
        ],
        outliers=[LearnOutlier(machine=o.machine_id, reason=o.reason) for o in (*outliers, *shown.outliers)],
        notes=[*notes, *shown.notes],
    )


def _head(request: PolicyLearnRequest, base: Policy | None) -> dict[str, object]:
    """Return the document that the proposal starts from where no TPM has anything to teach."""
    kept: dict[str, object] = {}
    if base is not None and base.name != IDENTITY_ONLY.name:
        kept = json.loads(base.document)
    return {**kept, "name": request.name, "version": request.version}


def _capture(
    capture: Capture, name: str, bank: str, logs: dict[str, bytes], replays: Replays
) -> heart.Capture:
    sha256, replayed = capture.event_log_sha256, None
    if sha256 is not None and capture.pcr_bank is not None:
        replayed = replays.known(sha256, bank_alg(bank))
        if replayed is None and sha256 in logs:
            with contextlib.suppress(MalformedEvidence):
                replayed = replays.replay(logs[sha256], bank_alg(bank))
    return heart.Capture(machine_id=name, values=capture.pcr_values, replayed=replayed)


def _names(captures: Sequence[Capture]) -> dict[str, str]:
    """Return what people call each machine: its hostname, where no other has the same."""
    hostnames = Counter(c.hostname for c in captures)
    return {
        c.machine_id: c.hostname if c.hostname is not None and hostnames[c.hostname] == 1 else c.machine_id
        for c in captures
    }
