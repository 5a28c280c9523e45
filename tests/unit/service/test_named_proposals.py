"""Agreeing to a proposal by its digest: to exactly that one, made anew from what is the case, or to nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from attestation_service.auth import Operator
from attestation_service.context.request import Origin
from tests.fixtures.vendor import vouched
from tests.unit.service.conftest import Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import (
    DOWN,
    GATED,
    GRANTED,
    LIST,
    TOKEN,
    WINDOW_SECONDS,
    Committee,
    Everybody,
    _pending,
    certificate,
    committee,
    each,
)
from tests.unit.service.test_registration import code

__all__ = ["committee"]

pytestmark = pytest.mark.anyio


async def proposed(board: Committee, name: str = "approve") -> tuple[str, Any, str]:
    """Let anna propose an act; return its path, its body and the digest of the proposal."""
    path, body = await GATED[name].prepare(board)
    answer = await board.ask("anna", "POST", path, body)
    assert answer.status_code == 202, answer.text
    return path, body, answer.json()["proposal_digest"]


@each
async def test_the_second_names_what_they_agree_to(committee: Committee, name: str) -> None:
    """Each act is done by the second who asks for it by the digest of the first, which the audit names."""
    path, body, digest = await proposed(committee, name)
    (shown,) = await committee.waiting()
    assert shown["proposal_digest"] == digest
    answer = await committee.ask("bernd", "POST", f"{path}?proposal={digest}", body)
    assert answer.status_code == GATED[name].done, answer.text
    assert await committee.waiting() == []
    (entry,) = await committee.service.audit(action=GATED[name].actions[0], limit="1")
    assert f"agreed by anna, bernd; proposal {digest}" in entry["detail"]


@pytest.mark.threat("T171")
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hostname": "cp-2"}, "hostname (cp-2, not cp-1)"),
        ({"assigned_ip": None}, "assigned_ip (none, not 10.0.0.11/24)"),
        ({"accept_ek": True}, "accepts_ek"),
        ({"role": "worker-app"}, "role (worker-app, not controlplane)"),
    ],
    ids=str,
)
async def test_something_else_under_that_name_is_refused(
    committee: Committee, changed: dict[str, Any], told: str
) -> None:
    """Nor is it done where it would need nobody else: what a client sends beside the digest is believed for nothing."""
    path, body, digest = await proposed(committee)
    before = await committee.state()
    answer = await committee.ask("bernd", "POST", f"{path}?proposal={digest}", body | changed)
    assert (answer.status_code, code(answer)) == (409, "proposal-differs")
    assert told in answer.json()["detail"]
    assert await committee.state() == before
    assert [p["voters"] for p in await committee.waiting()] == [["anna"]]


@pytest.mark.threat("T171")
async def test_what_was_changed_since_it_was_shown_is_not_agreed_to(committee: Committee) -> None:
    """The machine shows other evidence between the look and the vote: neither the old is done, nor a new one opened."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    await committee.service.attest(node)
    path = f"/machines/{node.machine_id}/approve"
    digest = (await committee.ask("anna", "POST", path, GRANTED)).json()["proposal_digest"]
    node.pcrs[7] = bytes(32)
    committee.service.clock.advance(5)
    await committee.service.attest(node)
    answer = await committee.ask("bernd", "POST", f"{path}?proposal={digest}", GRANTED)
    assert (answer.status_code, code(answer)) == (409, "proposal-differs")
    assert "differs in evidence_digest" in answer.json()["detail"]
    assert [v["operator_cn"] for v in await committee.votes(node)] == ["anna"]
    # What is overtaken stands in nobody's way.
    assert (await committee.ask("bernd", "POST", path, GRANTED)).status_code == 202


@pytest.mark.threat("T179")
@pytest.mark.parametrize(
    "changed",
    [
        {"subject": "machine of somebody else"},
        {"action": "unlock"},
        {"role": "worker-app"},
        {"hostname": "w-3"},
        {"machine_id": None},
        {"proposal": lambda kept: kept.replace("cp-1", "w-3")},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_a_row_that_says_something_else_than_its_votes_is_void(
    committee: Committee, changed: dict[str, Any]
) -> None:
    """Who writes to the database has no page tell the second voter of another act than the first one voted for."""
    await proposed(committee)
    (column, value), *_ = changed.items()
    with closing(sqlite3.connect(committee.service.directory / "machines.db")) as db, db:
        if callable(value):
            ((kept,),) = db.execute("SELECT proposal FROM approvals")
            value = value(kept)
        db.execute(f"UPDATE approvals SET {column} = ?", (value,))
    (shown,) = await committee.waiting()
    assert (shown["overtaken"], shown["approvals_received"], shown["voters"]) == (["record"], 0, [])


async def _withdrawn(board: Committee, path: str, body: Any, digest: str) -> None:
    (shown,) = await board.waiting()
    assert (await board.ask("anna", "DELETE", f"/approvals/{shown['approvals'][0]['id']}")).status_code == 204


async def _objected(board: Committee, path: str, body: Any, digest: str) -> None:
    assert (
        await board.ask("clara", "POST", f"/approvals/{digest}/object", {"reason": "not ours"})
    ).is_success


async def _expired(board: Committee, path: str, body: Any, digest: str) -> None:
    board.service.clock.advance(WINDOW_SECONDS)


async def _used(board: Committee, path: str, body: Any, digest: str) -> None:
    assert (await board.ask("clara", "POST", path, body)).is_success


@pytest.mark.threat("T171")
@pytest.mark.parametrize("end", [_withdrawn, _objected, _expired, _used])
async def test_what_waits_no_more_is_not_begun_anew(
    committee: Committee, end: Callable[[Committee, str, Any, str], Awaitable[None]]
) -> None:
    """Whoever agrees to it too late learns that; they do not become the first voter for it without knowing."""
    path, body, digest = await proposed(committee, "token")
    await end(committee, path, body, digest)
    answer = await committee.ask("bernd", "POST", f"{path}?proposal={digest}", body)
    assert (answer.status_code, code(answer)) == (404, "approval-unknown")
    assert await committee.waiting() == []
    assert (await committee.ask("bernd", "GET", f"/approvals/{digest}/proposal")).status_code == 404


@pytest.mark.threat("T171")
async def test_one_person_is_one_by_either_way(committee: Committee) -> None:
    """Anna asks, names her own proposal, and comes again by certificate: one vote."""
    path, body, digest = await proposed(committee)
    for who in ("anna", certificate("anna")):
        answer = await committee.ask(who, "POST", f"{path}?proposal={digest}", body)
        assert (answer.status_code, answer.json()["voters"]) == (202, ["anna"])


async def test_who_may_not_vote_any_more_is_not_agreed_with(committee: Committee) -> None:
    """The first voter's certificate is accepted no more: whoever agrees learns that, and does not begin it anew."""

    class Shown(Everybody):
        async def operator(self, token: str, origin: Origin, at: datetime) -> Operator:
            found = await super().operator(token, origin, at)
            return replace(found, certificate=b"der") if token.startswith("cert.of.") else found

    people = Shown()
    committee.people = people
    committee.service.app.state.resources = replace(committee.service.resources, oidc=people)
    answer = await committee.ask(certificate("anna"), "POST", "/registration-tokens", TOKEN)
    digest = answer.json()["proposal_digest"]
    answer = await committee.ask("bernd", "POST", f"/registration-tokens?proposal={digest}", TOKEN)
    assert (answer.status_code, code(answer)) == (404, "approval-unknown")
    assert "may not vote any more" in answer.json()["detail"]


@pytest.mark.threat("T171")
@pytest.mark.parametrize("digest", ["", "9e4ec70e", "AB" * 32, "ab" * 33])
async def test_only_a_whole_digest_names_a_proposal(committee: Committee, digest: str) -> None:
    """A beginning could be that of two."""
    path, body, _ = await proposed(committee, "token")
    assert (await committee.ask("bernd", "POST", f"{path}?proposal={digest}", body)).status_code == 422


async def test_where_nobody_else_is_needed_no_proposal_can_be_named(start: Starter) -> None:
    """Dual control is off: what was named is not what is done, so nothing is."""
    committee = Committee(await start(tpm_ca_bundle_dir=start.bundle()))
    for path, body in (await _pending(committee), ("/registration-tokens", TOKEN), ("/allow-list", LIST)):
        answer = await committee.ask("anna", "POST", f"{path}?proposal={'ab' * 32}", body)
        assert code(answer) in ("proposal-differs", "approval-unknown")
        assert (await committee.ask("anna", "POST", path, body)).is_success


# Rivals


RIVALS: dict[str, Any] = {
    "role taken": DOWN | {"role": "linux"},
    "token": TOKEN | {"uses": 3},
    "allow-list": {"entries": LIST["entries"][:1]},
}


@pytest.mark.threat("T171")
@pytest.mark.parametrize("name", RIVALS)
async def test_a_rival_is_opened_on_purpose_only(committee: Committee, name: str) -> None:
    """Another proposal about the same thing is refused, and nothing of it is kept; the first can still be agreed to."""
    path, body, digest = await proposed(committee, name)
    other = RIVALS[name]
    refused = await committee.ask("bernd", "POST", path, other)
    assert (refused.status_code, code(refused)) == (409, "proposal-rival")
    assert f"anna already voted for proposal {digest}" in refused.json()["detail"]
    assert len(await committee.waiting()) == 1
    assert (await committee.ask("bernd", "POST", f"{path}?new_proposal=true", other)).status_code == 202
    assert len(await committee.waiting()) == 2
    # With two that wait, either can be agreed to.
    assert (await committee.ask("clara", "POST", f"{path}?proposal={digest}", body)).is_success


@pytest.mark.threat("T181")
async def test_one_operator_opens_so_many_and_no_more(
    committee: Committee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is read again for each new proposal; others open theirs, and agree to these, as before."""
    monkeypatch.setattr("attestation_service.operators.dual_control.MOST_LIVE_VOTES", 2)
    path = "/registration-tokens?new_proposal=true"

    async def opens(name: str, uses: int) -> Any:
        return await committee.ask(name, "POST", path, TOKEN | {"uses": uses})

    first, second = [(await opens("anna", uses)).json() for uses in (2, 3)]
    committee.service.clock.advance(WINDOW_SECONDS - 60)
    full = await opens("anna", 4)
    assert (full.status_code, code(full), full.headers["Retry-After"]) == (429, "rate-limited", "60")
    assert len(await committee.waiting()) == 2
    assert (await opens("anna", 2)).json()["approval_id"] == first["approval_id"], (
        "asked again, it is no other"
    )
    assert (await opens("bernd", 4)).status_code == 202
    assert (await opens("bernd", 3)).is_success
    assert second["approval_id"] != first["approval_id"]
    assert (await opens("anna", 5)).status_code == 202, "a vote that was used is none that waits"


async def test_other_things_are_no_rivals(committee: Committee) -> None:
    """Two machines, a machine and a token, two acts on one machine."""
    for path, body in [await _pending(committee), await _pending(committee, hostname="cp-2")]:
        assert (await committee.ask("anna", "POST", path, body)).status_code == 202
    node = await committee.attested("controlplane")
    for act, body in (("redeliver", None), ("role", DOWN), ("ak-reset", {"reason": "cleared"})):
        answer = await committee.ask("anna", "POST", f"/machines/{node.machine_id}/{act}", body)
        assert answer.status_code == 202, answer.text
    assert (await committee.ask("anna", "POST", "/registration-tokens", TOKEN)).status_code == 202
    assert (
        await committee.ask("anna", "POST", "/registration-tokens?new_proposal=yes", TOKEN)
    ).status_code == 202


# What others see


async def test_reasons_and_documents_are_shown(committee: Committee) -> None:
    """Why, in each voter's words; and the entries of which the votes bind the digest, which lists leave out."""
    path, body = await _pending(committee)
    await committee.ask("anna", "POST", path, body | {"reason": "new rack"})
    digest = (await committee.ask("anna", "POST", "/allow-list", LIST)).json()["proposal_digest"]
    listed = await committee.waiting()
    assert [p["document"] for p in listed] == [None, None]
    assert [p["approvals"][0]["reason"] for p in listed] == [None, "new rack"]
    shown = (await committee.ask("viewer", "GET", f"/approvals/{digest}/proposal")).json()
    entries = json.loads(shown["document"])
    assert [(e["ek_fingerprint"], e["role"]) for e in entries] == [
        ("ab" * 48, "controlplane"),
        ("cd" * 48, "linux"),
    ]
    # Sent again as it was shown, it is the same proposal.
    answer = await committee.ask("bernd", "POST", f"/allow-list?proposal={digest}", {"entries": entries})
    assert answer.json() == {"added": 2, "replaced": 0}
