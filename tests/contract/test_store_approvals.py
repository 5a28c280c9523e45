"""Votes of dual control in the database: one open vote per operator and proposal, found while they live, kept."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from attestation.errors import RequestInvalid
from attestation.machines import Role, Transition
from attestation.machines.dual_control import Proposal, Vote, of_machine, of_registration_token
from attestation.results import Assurance
from attestation.store import Store, Tx
from attestation.store.approvals import MACHINE_CHANGED
from tests.contract.store_samples import MINUTE, NOW, a_machine

WINDOW = 10 * MINUTE
TICK = timedelta(microseconds=1)


def a_proposal(number: int = 1, hostname: str | None = "cp-1") -> Proposal:
    """Return the proposal to approve a machine; another number is another machine."""
    return of_machine(
        Transition.APPROVE,
        a_machine(number),
        role=Role.CONTROLPLANE,
        hostname=hostname,
        assigned_ip="10.0.0.11/24",
        cluster_id="default",
        measured=None,
    )


TOKEN = of_registration_token(
    role=Role.LINUX,
    hostname=None,
    assigned_ip=None,
    cluster_id=None,
    uses=1,
    expires_in_seconds=60,
    minimum_assurance=Assurance.EK_CHAIN,
)


def cast(store: Store, who: str, proposal: Proposal, at: datetime = NOW) -> int | None:
    """Let *who* vote."""
    vote = Vote(operator_cn=who, operator_sub=f"iss#{who}", created_at=at, expires_at=at + WINDOW)
    return store.write_sync(lambda tx: tx.approvals.cast(proposal, vote))


def live(store: Store, proposal: Proposal, at: datetime = NOW) -> list[str]:
    """Return whose votes live."""
    found = store.read_sync(lambda tx: tx.approvals.live(proposal.digest(), at))
    return [approval.vote.operator_cn for approval in found]


def test_a_vote_comes_back_as_it_was_cast(store: Store) -> None:
    """Every member, also of a proposal about no machine."""
    for proposal in (a_proposal(), TOKEN):
        number = cast(store, "anna", proposal)
        assert number is not None
        found = store.read_sync(lambda tx, number=number: tx.approvals.get(number))  # type: ignore[misc]
        assert found is not None
        assert (found.id, found.proposal_digest, found.action) == (number, proposal.digest(), proposal.action)
        assert (found.machine_id, found.subject) == (proposal.machine_id, proposal.subject)
        assert (found.role, found.hostname, found.assigned_ip) == (
            proposal.role,
            proposal.hostname,
            proposal.assigned_ip,
        )
        assert found.proposal.encode() == proposal.canonical()
        assert found.vote == Vote(
            operator_cn="anna", operator_sub="iss#anna", created_at=NOW, expires_at=NOW + WINDOW
        )
    assert store.read_sync(lambda tx: tx.approvals.get(4711)) is None


def test_one_operator_has_one_open_vote_for_a_proposal(store: Store) -> None:
    """Also if asked twice in one unit; other people, other proposals and a vote that ended are free."""
    assert cast(store, "anna", a_proposal()) is not None
    assert cast(store, "anna", a_proposal(), NOW + WINDOW - TICK) is None
    assert cast(store, "bernd", a_proposal()) is not None
    assert cast(store, "anna", a_proposal(hostname="cp-2")) is not None
    assert live(store, a_proposal()) == ["anna", "bernd"]
    assert cast(store, "anna", a_proposal(), NOW + WINDOW) is not None
    assert live(store, a_proposal(), NOW + WINDOW) == ["anna"]
    page = store.read_sync(lambda tx: tx.approvals.page(a_machine().machine_id, None, 10))
    assert len(page.items) == 4


def test_votes_live_until_they_expire(store: Store) -> None:
    """To the microsecond."""
    cast(store, "anna", a_proposal())
    assert live(store, a_proposal(), NOW + WINDOW - TICK) == ["anna"]
    assert live(store, a_proposal(), NOW + WINDOW) == []


def test_used_votes_are_those_that_lived(store: Store) -> None:
    """An expired vote was not part of it, a vote for something else neither."""
    cast(store, "anna", a_proposal(), NOW - WINDOW)
    cast(store, "bernd", a_proposal())
    cast(store, "clara", a_proposal(hostname="cp-2"))
    assert store.write_sync(lambda tx: tx.approvals.consume(a_proposal().digest(), NOW)) == 1
    assert live(store, a_proposal()) == []
    assert live(store, a_proposal(hostname="cp-2")) == ["clara"]
    page = store.read_sync(lambda tx: tx.approvals.page(a_machine().machine_id, None, 10))
    assert [(a.vote.operator_cn, a.vote.consumed_at) for a in page.items] == [
        ("clara", None),
        ("bernd", NOW),
        ("anna", None),
    ]
    assert cast(store, "bernd", a_proposal()) is not None


def test_a_vote_is_withdrawn_while_it_lives(store: Store) -> None:
    """Once; not after its end, not after its use."""

    def withdraw(number: int | None, at: datetime) -> bool:
        assert number is not None
        return store.write_sync(lambda tx: tx.approvals.withdraw(number, at))

    number = cast(store, "anna", a_proposal())
    assert not withdraw(number, NOW + WINDOW)
    assert withdraw(number, NOW)
    assert not withdraw(number, NOW)
    assert live(store, a_proposal()) == []
    number = cast(store, "anna", a_proposal())
    store.write_sync(lambda tx: tx.approvals.consume(a_proposal().digest(), NOW))
    assert not withdraw(number, NOW)


def test_a_changed_machine_voids_its_votes(store: Store) -> None:
    """All proposals about it, none about another, and no vote that ended before."""
    for number, name in ((1, "cp-1"), (1, "cp-2"), (2, "cp-1")):
        cast(store, "anna", a_proposal(number, name))
    cast(store, "bernd", a_proposal(), NOW - WINDOW)
    cast(store, "anna", TOKEN)
    void = store.write_sync(lambda tx: tx.approvals.void(a_machine(1).machine_id, NOW))
    assert [(v.hostname, v.vote.void) for v in void] == [("cp-1", MACHINE_CHANGED), ("cp-2", MACHINE_CHANGED)]
    assert live(store, a_proposal(1)) == live(store, a_proposal(1, "cp-2")) == []
    assert live(store, a_proposal(2)) == live(store, TOKEN) == ["anna"]


def test_votes_end_by_proposal_voter_and_one_by_one(store: Store) -> None:
    """Exactly those that live; each says why; what was void once can be cast anew."""
    for who, number in (("anna", 1), ("bernd", 1), ("anna", 2), ("carla", 2)):
        cast(store, who, a_proposal(number))
    cast(store, "dora", a_proposal(), NOW - WINDOW)
    digest, why = a_proposal(1).digest(), "carla objects: no"
    void = store.write_sync(lambda tx: tx.approvals.void_for(digest, NOW, why))
    assert [(v.vote.operator_cn, v.vote.void) for v in void] == [("anna", why), ("bernd", why)]
    assert store.write_sync(lambda tx: tx.approvals.void_for(digest, NOW, why)) == ()
    assert store.read_sync(lambda tx: tx.approvals.has_live("iss#anna", NOW))
    assert store.read_sync(lambda tx: tx.approvals.of_voter("iss#anna", NOW)) == (1, NOW + WINDOW)
    void = store.write_sync(lambda tx: tx.approvals.void_by("iss#anna", NOW, "left"))
    assert [v.machine_id for v in void] == [a_machine(2).machine_id]
    assert not store.read_sync(lambda tx: tx.approvals.has_live("iss#anna", NOW))
    assert store.read_sync(lambda tx: tx.approvals.of_voter("iss#anna", NOW)) == (0, None)
    (other,) = store.read_sync(lambda tx: tx.approvals.live(a_proposal(2).digest(), NOW))
    (ended,) = store.write_sync(lambda tx: tx.approvals.void_one(other.id, NOW, "revoked"))
    assert (ended.id, ended.vote.void, ended.vote.withdrawn_at) == (other.id, "revoked", NOW)
    assert store.write_sync(lambda tx: tx.approvals.void_one(other.id, NOW, "again")) == ()
    assert cast(store, "anna", a_proposal(1)) is not None


@pytest.mark.parametrize("machines", [1, 2, 3, 4, 5, 200])
def test_live_votes_of_a_page_of_machines(store: Store, machines: int) -> None:
    """In one query: those of the machines asked for, oldest first, and nobody else's."""
    cast(store, "anna", a_proposal(1, "a"))
    cast(store, "bernd", a_proposal(1, "b"))
    cast(store, "anna", a_proposal(machines))
    cast(store, "anna", a_proposal(machines + 1))
    cast(store, "clara", a_proposal(1), NOW - WINDOW)
    wanted = [a_machine(n).machine_id for n in range(1, machines + 1)]
    found = store.read_sync(lambda tx: tx.approvals.live_of(wanted, NOW))
    expected = [a_machine(1).machine_id, a_machine(machines).machine_id]
    assert set(found) == set(expected)
    assert [a.hostname for a in found[expected[0]]][:2] == ["a", "b"]
    assert store.read_sync(lambda tx: tx.approvals.live_of([], NOW)) == {}


def test_pages_of_votes(store: Store) -> None:
    """Newest first, each once; cursors of other lists are refused."""
    for n in range(7):
        cast(store, f"p{n}", a_proposal())
    cast(store, "p0", a_proposal(2))
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        page = store.read_sync(
            lambda tx, cursor=cursor: tx.approvals.page(a_machine().machine_id, cursor, 3)  # type: ignore[misc]
        )
        seen += [a.vote.operator_cn for a in page.items]
        cursor = page.next_cursor
    assert (seen, cursor) == ([f"p{n}" for n in reversed(range(7))], None)
    other = store.read_sync(lambda tx: tx.approvals.page(a_machine().machine_id, None, 1)).next_cursor
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.approvals.proposals(other, 3, NOW))
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.approvals.proposals(None, 0, NOW))


def test_proposals_that_wait(store: Store) -> None:
    """Each with its live votes, newest first, page by page."""
    for n in range(1, 6):
        cast(store, "anna", a_proposal(n))
    cast(store, "bernd", a_proposal(2))
    cast(store, "anna", a_proposal(9), NOW - WINDOW)
    cast(store, "anna", TOKEN)
    found: list[tuple[str | None, list[str]]] = []
    cursor: str | None = None
    for _ in range(3):

        def work(tx: Tx, cursor: str | None = cursor) -> str | None:
            page = tx.approvals.proposals(cursor, 2, NOW)
            for votes in page.items:
                assert len({json.loads(a.proposal)["machine_id"] for a in votes}) == 1
                found.append((votes[0].machine_id, [a.vote.operator_cn for a in votes]))
            return page.next_cursor

        cursor = store.read_sync(work)
    assert cursor is None
    assert found == [
        (None, ["anna"]),
        *((a_machine(n).machine_id, ["anna", "bernd"] if n == 2 else ["anna"]) for n in (5, 4, 3, 2, 1)),
    ]


def test_votes_outlive_their_machine(store: Store) -> None:
    """What was voted stays on record when the machine is deleted."""
    store.write_sync(lambda tx: tx.machines.add(a_machine()))
    cast(store, "anna", a_proposal())
    store.write_sync(lambda tx: tx.machines.delete(a_machine().machine_id))
    assert live(store, a_proposal()) == ["anna"]
