"""Random committees: whatever people do in whatever order, an act happens exactly when enough of them agree (R19).

The gate runs in units of a real store; beside it a model counts people by what they are, not by what they show.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attestation.api import PendingApproval
from attestation.errors import BreakGlassCannotVote
from attestation.machines import Role, Transition
from attestation.machines.dual_control import Proposal, of_machine
from attestation.store import Store, StoreSettings, Tx, migrate, open_store
from attestation.store.audit import CHANGED
from attestation_service.auth import Duty, Method, Operator
from attestation_service.operators import dual_control
from attestation_service.operators import votes as ended
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from tests.contract.store_samples import NOW, a_machine

PEOPLE = 5
WINDOW = timedelta(seconds=600)
MACHINE = a_machine(1)
PROPOSALS = [
    of_machine(
        Transition.APPROVE,
        machine,
        role=Role.CONTROLPLANE,
        hostname=name,
        assigned_ip=None,
        cluster_id="default",
        measured=None,
    )
    for machine, name in [
        (MACHINE, "cp-1"),
        (MACHINE, "cp-2"),
        (replace(MACHINE, last_result_key="rebooted"), "cp-1"),
        (a_machine(2), "cp-1"),
    ]
]
SYSTEM = Operator(cn="SYSTEM", sub=None, source="-", method=Method.BREAK_GLASS, duties=frozenset())

Who = tuple[int, str]
Ballot = tuple[datetime, str, bytes | None]
"""Until when, by which subject, with which certificate."""
WHO: st.SearchStrategy[Who] = st.tuples(st.integers(0, PEOPLE - 1), st.sampled_from(["token", "certificate"]))
STEP = st.one_of(
    st.tuples(st.just("ask"), WHO, st.integers(0, len(PROPOSALS) - 1)),
    st.tuples(st.just("ask"), WHO, st.just(0)),
    st.tuples(st.just("system"), WHO, st.integers(0, len(PROPOSALS) - 1)),
    st.tuples(st.just("withdraw"), WHO, st.integers(0, len(PROPOSALS) - 1)),
    st.tuples(st.just("lock"), WHO, st.integers(0, len(PROPOSALS) - 1)),
    st.tuples(st.just("object"), WHO, st.integers(0, len(PROPOSALS) - 1)),
    st.tuples(st.just("leave"), WHO, st.just(0)),
    st.tuples(st.just("wait"), WHO, st.integers(0, 400)),
)


class Holders:
    """Certificates by person; what is older than the newest is revoked, at a CA of which the service hears nothing."""

    def __init__(self) -> None:
        self.newest = [0] * PEOPLE

    def why_not(self, tx: Tx, der: bytes, at: datetime) -> str | None:
        """See `context.ClientCertificates.why_not`."""
        del tx, at
        person, number = map(int, der.split())
        return "revoked" if number < self.newest[person] else None


def operator(who: Who) -> Operator:
    """Return how a person shows up: one name in two spellings, two subjects."""
    person, method = who
    if method == "token":
        return Operator(
            cn=f"person-{person}",
            sub=f"https://sts.example#{person}",
            source="-",
            method=Method.OIDC,
            duties=frozenset({Duty.OPERATOR}),
            authenticated_at=NOW + timedelta(days=1),
        )
    return Operator(
        cn=f"PERSON-{person}",
        sub=f"spki-sha256:{person:064x}",
        source="-",
        method=Method.CERTIFICATE,
        duties=frozenset({Duty.OPERATOR}),
    )


@pytest.fixture(scope="module")
def empty() -> Iterator[Path]:
    """An empty migrated database, to be copied."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "empty.db"
        migrate(f"sqlite:///{path}")
        yield path


class Model:
    """People with live votes by proposal: who, until when, and through which subject."""

    def __init__(self, store: Store, quorum: int) -> None:
        self.store = store
        self.quorum = quorum
        self.at: datetime = NOW.astimezone(UTC)
        self.votes: dict[str, dict[int, Ballot]] = {}
        self.entries = 0
        chosen = Settings(dual_control_roles=(Role.CONTROLPLANE,), dual_control_quorum=quorum)
        self.certificates = Holders()
        self.res = cast("Resources", SimpleNamespace(settings=chosen, mtls=self.certificates))

    def live(self, proposal: Proposal) -> dict[int, Ballot]:
        """Return the live votes for a proposal."""
        votes = self.votes.setdefault(proposal.digest(), {})
        for person in [p for p, (ends, _, _) in votes.items() if ends <= self.at]:
            del votes[person]
        return votes

    def ask(self, who: Who, proposal: Proposal) -> None:
        """Ask, and hold the answer to the model's."""
        person, by = who[0], operator(who)
        if by.method is Method.CERTIFICATE:
            by = replace(by, certificate=f"{person} {self.certificates.newest[person]}".encode())
        votes = self.live(proposal)
        # Looked at again whenever somebody asks: it ends here, and the record says so.
        for other in [p for p, (_, _, cert) in votes.items() if cert is not None and self.is_revoked(cert)]:
            del votes[other]
            self.entries += 1
        if person not in votes:
            assert by.sub is not None
            votes[person] = (self.at + WINDOW, by.sub, by.certificate)
            self.entries += 1
        answer = self.store.write_sync(lambda tx: dual_control.gate(tx, proposal, by, self.res, self.at))
        if len(votes) < self.quorum:
            assert isinstance(answer, PendingApproval)
            assert answer.approvals_received == len(votes)
            assert answer.expires_at == min(ends for ends, _, _ in votes.values())
        else:
            assert isinstance(answer, dual_control.Agreed)
            assert {name.lower() for name in answer.voters} == {f"person-{p}" for p in votes}
            votes.clear()

    def withdraw(self, who: Who, proposal: Proposal) -> None:
        """Take back the vote that this subject cast, if there is one."""
        votes, sub = self.live(proposal), operator(who).sub
        mine = self.store.read_sync(
            lambda tx: [
                a.id for a in tx.approvals.live(proposal.digest(), self.at) if a.vote.operator_sub == sub
            ]
        )
        expected = [p for p, (_, by, _) in votes.items() if by == sub]
        assert len(mine) == len(expected)
        for number, person in zip(mine, expected, strict=True):
            assert self.store.write_sync(lambda tx, number=number: tx.approvals.withdraw(number, self.at))  # type: ignore[misc]
            del votes[person]

    def object_to(self, proposal: Proposal) -> None:
        """Object, as anybody may: it ends exactly the votes for this proposal."""
        votes = self.live(proposal)
        void = self.store.write_sync(lambda tx: tx.approvals.void_for(proposal.digest(), self.at, "no"))
        assert len(void) == len(votes)
        votes.clear()

    def is_revoked(self, certificate: bytes) -> bool:
        """Ask the CA."""
        person, number = map(int, certificate.split())
        return number < self.certificates.newest[person]

    def leave(self, who: Who) -> None:
        """Take a person's role, of which the service learns at once, or their certificate, of which it does not."""
        if who[1] == "certificate":
            self.certificates.newest[who[0]] += 1
            return
        sub = operator(who).sub
        assert sub is not None
        self.store.write_sync(lambda tx: ended.end(tx, sub, "left", self.at))
        for proposal in PROPOSALS:
            votes = self.live(proposal)
            for person in [p for p, (_, by, _) in votes.items() if by == sub]:
                del votes[person]
                self.entries += 1

    def lock(self, proposal: Proposal) -> None:
        """Change the machine that a proposal is about."""
        machine_id = proposal.machine_id
        assert machine_id is not None
        self.store.write_sync(lambda tx: tx.approvals.void(machine_id, self.at))
        for each in PROPOSALS:
            if each.machine_id == machine_id:
                self.live(each).clear()

    def is_what_is_listed(self) -> None:
        """Compare what operators are shown, and what the audit holds."""

        def work(tx: Tx) -> tuple[dict[str, set[str]], int]:
            page = tx.approvals.proposals(None, 100, self.at)
            shown = {
                votes[0].proposal_digest: {a.vote.operator_cn.lower() for a in votes} for votes in page.items
            }
            # What the model does without an act, the store itself tells of.
            told = [entry.action for _, entry in tx.audit.page(None, 1000).items if entry.action != CHANGED]
            return shown, len(told)

        shown, entries = self.store.read_sync(work)
        expected = {
            proposal.digest(): {f"person-{p}" for p in self.live(proposal)}
            for proposal in PROPOSALS
            if self.live(proposal)
        }
        assert shown == expected
        assert entries == self.entries


@pytest.mark.threat("T53", "T125")
@settings(max_examples=40)
@given(quorum=st.integers(2, 4), steps=st.lists(STEP, min_size=5, max_size=40))
def test_an_act_happens_when_enough_people_agree(
    empty: Path, quorum: int, steps: list[tuple[str, Who, int]]
) -> None:
    """Never with fewer people, never later, never from votes that ended or whose voter left."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        shutil.copy(empty, path)
        store = open_store(f"sqlite:///{path}", StoreSettings())
        model = Model(store, quorum)
        try:
            for what, who, number in steps:
                if what == "wait":
                    model.at += timedelta(seconds=number)
                    continue
                proposal = PROPOSALS[number]
                if what == "ask":
                    model.ask(who, proposal)
                elif what == "withdraw":
                    model.withdraw(who, proposal)
                elif what == "lock":
                    model.lock(proposal)
                elif what == "object":
                    model.object_to(proposal)
                elif what == "leave":
                    model.leave(who)
                else:
                    with pytest.raises(BreakGlassCannotVote):
                        store.write_sync(
                            lambda tx, p=proposal: dual_control.gate(tx, p, SYSTEM, model.res, model.at)  # type: ignore[misc]
                        )
            model.is_what_is_listed()
        finally:
            store.close()
