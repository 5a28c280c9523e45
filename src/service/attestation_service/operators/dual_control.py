"""Dual control inside the unit of the act: the vote, its audit entry, the act and its own, all or none (R19).

What a vote binds and how votes add up stands in `attestation.machines.dual_control`; here stand the order of
things and who may take part. Votes are counted and used up under the write lock of the unit, so that of two
second voters exactly one finds the quorum complete.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import structlog

from attestation.api import ApprovalDetail, PendingApproval
from attestation.api.clusters import SERVICE_VERSION
from attestation.clock import rfc3339
from attestation.errors import (
    ApprovalUnknown,
    AuthenticationTooOld,
    BreakGlassCannotVote,
    Forbidden,
    ProposalDiffers,
    ProposalRival,
    RateLimited,
    RotationForbidden,
    TransitionForbidden,
)
from attestation.machines import NodeEvent, Role
from attestation.machines.dual_control import (
    CA_ROTATION,
    CLUSTER_VERSION,
    CONFIGURATION_ACTIVATE,
    POLICY_ASSIGN,
    POLICY_UNASSIGN,
    Proposal,
    Rule,
    Tally,
    Vote,
    about,
    differences,
    overtaken,
    subject_of,
    tally,
)
from attestation.store import Approval, Place, Tx
from attestation_service.context.identity import Method, Operator
from attestation_service.context.reach import is_within
from attestation_service.operators import votes as ended
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from attestation_service.verifier import policy

T = TypeVar("T")

MOST_LIVE_VOTES: Final = 1_024
"""Of one operator: a file of 1,000 machines fits. Each new proposal is compared with all that wait, in the unit."""
SHOWN_DIGITS: Final = 16
"""So many digits of a digest are told to be typed: nobody finds another proposal that begins so too."""
PLAIN_NAME = re.compile(r"[\w.@ +-]+")

log = structlog.get_logger("attestation_service.dual_control")


@dataclass(frozen=True, slots=True)
class Agreed:
    """The act may go on. `voters` are those who agreed to `proposal`; empty where it needed nobody else."""

    voters: tuple[str, ...] = ()
    proposal: str | None = None

    def told(self, detail: str | None) -> str | None:
        """Return *detail* for the act's audit entry, with everybody who agreed, and to what.

        The entries `approve_vote` of the same proposal prove it; this leads to them.
        """
        if not self.voters:
            return detail
        agreed = f"agreed by {', '.join(map(quoted, self.voters))}; proposal {self.proposal}"
        return f"{detail}; {agreed}" if detail else agreed


def rule_of(settings: Settings) -> Rule:
    """Return which acts need how many."""
    return Rule(roles=frozenset(settings.dual_control_roles), quorum=settings.dual_control_quorum)


def gates(proposal: Proposal, res: Resources) -> bool:
    """Return True if several must agree to *proposal*."""
    return rule_of(res.settings).gates(proposal)


def always(settings: Settings) -> Rule:
    """Return the rule of acts that several must agree to whatever the settings say of roles."""
    return Rule(roles=frozenset(Role), quorum=settings.dual_control_quorum)


def gate(
    tx: Tx,
    proposal: Proposal,
    operator: Operator,
    res: Resources,
    at: datetime,
    *,
    reason: str | None = None,
    note: str | None = None,
    document: str | None = None,
    rule: Rule | None = None,
) -> PendingApproval | Agreed:
    """Let an act go on, or count the vote of *operator* for it and say what is missing.

    Args:
        tx: The unit of the act. What is done here and there is one.
        proposal: The act with everything it rests on.
        operator: Who asks.
        res: The settings decide what is gated.
        at: Now.
        reason: Why, in the operator's words; no vote binds it.
        note: What the audit says of the vote, where that is more than the reason.
        document: What was sent, where *proposal* binds only a digest of it: others must see what they agree to.
        rule: Another one than the settings'.

    Raises:
        ApprovalUnknown: No vote lives for the proposal that *operator* named.
        ProposalDiffers: They named another one than this.
        ProposalRival: It would be opened beside another one about the same thing.
        RateLimited: It would be opened, and too many votes of *operator* wait already.
        BreakGlassCannotVote: It is gated, and *operator* is no person. Undoes the unit; see `write`.
        AuthenticationTooOld: It is gated, and *operator* proved who they are too long ago.
        Unavailable: Whether another voter is still an operator cannot be decided now.
    """
    rule = rule or rule_of(res.settings)
    # 0. Whoever named a proposal agrees to that one or to none: it is made anew from what is the case now, and where
    #    the two differ, something was changed since they looked.
    if operator.proposal is not None:
        _demand_named(tx, proposal, operator.proposal, at, operator.clusters)
    if not rule.gates(proposal):
        return Agreed()
    # 1. A person, or nobody: the shared token would make every holder two.
    if not operator.is_human or operator.sub is None:
        raise BreakGlassCannotVote(
            f"{proposal.action} concerns a role under dual control: "
            f"{rule.quorum} people must agree, and {operator.cn} is none"
        )
    # 2. The others may still vote: a certificate that was taken back since then has agreed to nothing.
    digest = proposal.digest()
    votes = _still_operators(tx, tx.approvals.live(digest, at), res, at)
    # 3. One vote per human. Whoever asks again finds the vote as it was, and its end where it was.
    fresh = _vote_of(operator.cn, operator.sub, votes) is None
    if not votes:
        _demand_room(tx, operator.sub, at)
        _demand_new(tx, proposal, operator, res.settings, at)
    if fresh:
        vote = Vote(
            operator_cn=operator.cn,
            operator_sub=operator.sub,
            created_at=at,
            expires_at=_ends(operator, res.settings, at),
            certificate=operator.certificate,
        )
        fresh = tx.approvals.cast(proposal, vote, reason=reason, document=document) is not None
        votes = tx.approvals.live(digest, at)
    counted = tally((approval.vote for approval in votes), at)
    if fresh:
        _tell(tx, proposal, operator, counted, rule, at, note or reason)
    # 4. Enough humans: the votes are used up in the unit of the act, so they admit nothing else.
    if rule.is_met(counted):
        tx.approvals.consume(digest, at)
        return Agreed(counted.voters, digest)
    own = _vote_of(operator.cn, operator.sub, votes)
    assert own is not None
    assert counted.expires_at is not None
    return PendingApproval(
        machine_id=proposal.machine_id,
        message=_message(tx, proposal, counted, rule, operator, at),
        action=proposal.action,
        proposal_digest=digest,
        approval_id=own.id,
        approvals_received=counted.received,
        approvals_required=rule.quorum,
        expires_at=counted.expires_at,
        voters=list(counted.voters),
    )


def alone(operator: Operator) -> Agreed:
    """Let an act go on that needs nobody else.

    Raises:
        ProposalDiffers: *operator* named a proposal, and this is none.
    """
    if operator.proposal is not None:
        raise ProposalDiffers(f"this act needs no votes, so it is not proposal {operator.proposal}")
    return Agreed()


def _demand_named(
    tx: Tx, proposal: Proposal, named: str, at: datetime, clusters: frozenset[str] | None
) -> None:
    votes = tx.approvals.live(named, at)
    if not votes or not is_within(json.loads(votes[0].proposal), clusters):
        raise ApprovalUnknown(f"no vote for proposal {named} lives: it was done, ended, or its time is over")
    if named != proposal.digest():
        found = differences(json.loads(proposal.canonical()), json.loads(votes[0].proposal))
        raise ProposalDiffers(
            f"by what is the case now this request is not proposal {named}: it differs in {', '.join(found)}"
        )


def _demand_room(tx: Tx, sub: str, at: datetime) -> None:
    """Check that who opens a proposal has not too many votes that wait for others."""
    count, first_ends = tx.approvals.of_voter(sub, at)
    if first_ends is not None and count >= MOST_LIVE_VOTES:
        raise RateLimited(
            f"{count} votes of yours wait for others, the most that one operator may have: take some back "
            "(`attestation approval withdraw VOTE`), or wait until one ends",
            retry_after_seconds=math.ceil((first_ends - at).total_seconds()),
        )


def _demand_new(tx: Tx, proposal: Proposal, operator: Operator, settings: Settings, at: datetime) -> None:
    """Check that *operator*, whose vote would be the first, does not mean a proposal that waits already."""
    if operator.proposal is not None:
        raise ApprovalUnknown(f"who voted for proposal {operator.proposal} may not vote any more")
    if operator.new_proposal:
        return
    for approval, found in _others(tx, proposal, operator, at):
        if not overtaken_by(tx, approval, settings):
            raise ProposalRival(
                f"{quoted(approval.vote.operator_cn)} already voted for proposal {approval.proposal_digest}, "
                f"{approval.subject}; yours differs in {', '.join(found)}: agree to that one, object to it, or say "
                "that yours is to be a new proposal"
            )


def _others(
    tx: Tx, proposal: Proposal, operator: Operator, at: datetime
) -> Iterator[tuple[Approval, tuple[str, ...]]]:
    """Yield the live votes for other proposals about the same thing that *operator* sees, and in what they differ."""
    ours, digest = json.loads(proposal.canonical()), proposal.digest()
    subject = about(ours)
    # Under the write lock, and of as many votes as anybody casts: nothing is worked out twice.
    for approval in tx.approvals.every_live(at):
        if approval.proposal_digest == digest:
            continue
        theirs = json.loads(approval.proposal)
        if about(theirs) == subject and is_within(theirs, operator.clusters):
            yield approval, differences(ours, theirs)


async def write(
    work: Callable[[Tx], T],
    *,
    res: Resources,
    operator: Operator,
    at: datetime,
    machine_id: str | None = None,
) -> T:
    """Run a unit with a `gate` in it; what *operator* may not do is undone, recorded and raised."""
    if res.mtls is not None:
        await res.mtls.refresh()
    try:
        return await res.store.write(work)
    except (Forbidden, TransitionForbidden, RotationForbidden) as e:
        event = operator.event("denied", machine_id=machine_id, detail=f"{e.code}: {e}")
        await res.store.write(lambda tx: tx.audit.append(event, at))
        log.warning("operator.denied", client=operator.source, code=e.code, reason=str(e))
        raise


def shown(
    tx: Tx,
    votes: Sequence[Approval],
    settings: Settings,
    at: datetime,
    *,
    clusters: frozenset[str] | None = None,
) -> list[ApprovalDetail]:
    """Return votes as operators see them: the subject behind the name stands in the audit only.

    *clusters* are those of who asks, None all: what a machine would be elsewhere is not told.
    """
    found: dict[str, tuple[str, ...]] = {}
    approvals = [each for each in votes if is_within(json.loads(each.proposal), clusters)]
    for approval in approvals:
        if approval.vote.is_live(at) and approval.proposal_digest not in found:
            found[approval.proposal_digest] = overtaken_by(tx, approval, settings)
    return [_detail(approval, found.get(approval.proposal_digest, ()), at) for approval in approvals]


def _detail(approval: Approval, overtaken: Sequence[str], at: datetime) -> ApprovalDetail:
    vote = approval.vote
    live = vote.is_live(at)
    return ApprovalDetail(
        id=approval.id,
        machine_id=approval.machine_id,
        action=approval.action,
        subject=approval.subject,
        proposal_digest=approval.proposal_digest,
        operator_cn=vote.operator_cn,
        role=approval.role,
        hostname=approval.hostname,
        assigned_ip=approval.assigned_ip,
        created_at=vote.created_at,
        expires_at=vote.expires_at,
        reason=approval.reason,
        consumed=vote.consumed_at is not None,
        withdrawn=vote.withdrawn_at is not None,
        void=f"changed since: {', '.join(overtaken)}" if live and overtaken else vote.void,
        live=live and not overtaken,
    )


def overtaken_by(tx: Tx, approval: Approval, settings: Settings) -> tuple[str, ...]:
    """Return which members of what was voted on say what is not so any more, where that can be looked up.

    The act itself need not ask: whoever votes now votes for another proposal.
    """
    proposal = json.loads(approval.proposal)
    terms = proposal["terms"]
    # Who writes the database could have pages say something else than what votes bind.
    if not _is_as_voted(approval, proposal):
        return ("record",)
    if approval.action in (POLICY_ASSIGN, POLICY_UNASSIGN):
        now = tx.policies.assigned(terms["scope"], terms["subject"])
        return () if terms["replaces"] == (now and now.policy) else ("replaces",)
    if approval.action == CONFIGURATION_ACTIVATE:
        base = {"cluster_id": proposal["cluster_id"], "role": proposal["current_role"]}
        machine_id = approval.machine_id
        delivered = tx.configurations.active(Place(machine_id=machine_id) if machine_id else Place(**base))
        now_active = None if delivered is None else (delivered.version, delivered.sha256)
        voted = None if terms["replaces"] is None else (terms["replaces"], terms["replaces_sha256"])
        return () if voted == now_active else ("replaces",)
    if approval.action == CA_ROTATION:
        active = tx.issuers.active(terms["purpose"], terms["algorithm"])
        return () if active is not None and terms["active"] == active.issuer_id else ("active",)
    if approval.action == CLUSTER_VERSION:
        declared = tx.clusters.get(terms["cluster"])
        said = None if declared is None else declared.talos_version or SERVICE_VERSION
        return () if terms["replaces"] == said else ("replaces",)
    if approval.machine_id is None:
        return ()
    machine = tx.machines.by_id(approval.machine_id)
    measured = None
    if machine is not None:
        after = replace(machine, role=approval.role, cluster_id=proposal["cluster_id"])
        measured = policy.measured(tx, after, settings)
    return overtaken(proposal, machine, measured)


def _is_as_voted(approval: Approval, proposal: Mapping[str, Any]) -> bool:
    """Tell whether what is kept of a vote, and shown, is what its digest binds."""
    if hashlib.sha256(approval.proposal.encode()).hexdigest() != approval.proposal_digest:
        return False
    shown = ("action", "machine_id", "role", "hostname", "assigned_ip")
    told = subject_of(proposal["action"], proposal["machine_id"], proposal["role"], proposal["terms"])
    return approval.subject == told and all(getattr(approval, name) == proposal[name] for name in shown)


def quoted(name: str) -> str:
    """Return *name* so that it cannot pass for two: in quotes where it is more than letters, digits and `.@ _+-`."""
    return name if PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _ends(operator: Operator, settings: Settings, at: datetime) -> datetime:
    """Return until when a vote of *operator* counts: no longer than the login behind it is believed.

    Raises:
        AuthenticationTooOld: It is not believed any more.
    """
    window = at + timedelta(seconds=settings.dual_control_window_seconds)
    if operator.method is not Method.OIDC:
        return window
    most = timedelta(seconds=settings.dual_control_auth_seconds)
    if operator.authenticated_at is None:
        raise AuthenticationTooOld("the token says neither auth_time nor iat, so it cannot vote")
    believed = operator.authenticated_at + most
    if believed <= at:
        raise AuthenticationTooOld(
            f"you logged in at {rfc3339(operator.authenticated_at)}; a vote needs a login of the last "
            f"{settings.dual_control_auth_seconds} s: log in again"
        )
    return min(window, believed)


def _still_operators(
    tx: Tx, votes: tuple[Approval, ...], res: Resources, at: datetime
) -> tuple[Approval, ...]:
    """Return those of *votes* whose voters are operators still; end the others. Tokens are looked at when they come."""
    standing = []
    for approval in votes:
        why = None
        if approval.vote.certificate is not None:
            why = (
                res.mtls.why_not(tx, approval.vote.certificate, at)
                if res.mtls is not None
                else "client certificates are not accepted any more"
            )
        if why is None:
            standing.append(approval)
        else:
            ended.told(tx, tx.approvals.void_one(approval.id, at, why), at)
    return tuple(standing)


def _vote_of(cn: str, sub: str, votes: tuple[Approval, ...]) -> Approval | None:
    return next((approval for approval in votes if approval.vote.is_by(cn, sub)), None)


def _tell(
    tx: Tx,
    proposal: Proposal,
    operator: Operator,
    counted: Tally,
    rule: Rule,
    at: datetime,
    note: str | None,
) -> None:
    """Write the audit entry and the event of a new vote."""
    digest = proposal.digest()
    tx.audit.append(
        operator.event(
            "approve_vote",
            machine_id=proposal.machine_id,
            detail=f"{proposal.action}: {note or proposal.subject}; {counted.received} of {rule.quorum}; "
            f"proposal {digest}",
        ),
        at,
    )
    node = {"machine_id": proposal.machine_id, "hostname": proposal.hostname, "role": proposal.role}
    meta: dict[str, Any] = {
        "action": proposal.action,
        "subject": proposal.subject,
        "proposal_digest": digest,
        "operator": operator.cn,
        "approvals_received": counted.received,
        "approvals_required": rule.quorum,
        "expires_at": rfc3339(counted.expires_at) if counted.expires_at else None,
    }
    payload = {
        "ek_fingerprint": proposal.ek_fingerprint,
        "timestamp": rfc3339(at),
        "node": node,
        "meta": meta,
    }
    tx.outbox.add(NodeEvent.APPROVAL_VOTE, proposal.machine_id, payload, at)


def _message(tx: Tx, proposal: Proposal, counted: Tally, rule: Rule, operator: Operator, at: datetime) -> str:
    """Say what is missing, and where somebody asked for nearly the same: two near misses look like a hang."""
    missing = rule.quorum - counted.received
    others = "another operator" if missing == 1 else f"{missing} other operators"
    text = (
        f"{counted.received} of {rule.quorum} agree; {others} must agree to exactly this: "
        f"`attestation approval approve {proposal.digest()[:SHOWN_DIGITS]}`"
    )
    for approval, different in _others(tx, proposal, operator, at):
        return (
            f"{text}; the vote of {quoted(approval.vote.operator_cn)} does not count, yours differs in "
            f"{', '.join(different)}"
        )
    return text
