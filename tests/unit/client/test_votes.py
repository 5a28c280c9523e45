"""Gated acts in the client: 202 is a vote, everything else the result of the act; votes are listed and withdrawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from attestation.api import (
    AllowListEntry,
    AllowListImport,
    AllowListImported,
    ApprovalDetail,
    ApprovalPage,
    ApproveRequest,
    MachineDetail,
    PendingApproval,
    PolicyAssignment,
    ProposalDetail,
    ProposalPage,
    RegistrationTokenCreated,
    RegistrationTokenRequest,
    RoleChangeRequest,
)
from attestation.client import OperatorClient, OutcomeUnknown, Retries
from attestation.machines import Role
from attestation.results import Assurance
from tests.unit.cli.stub import assignment, machine
from tests.unit.client.test_client import MACHINE_ID, Script, operator

UNHURRIED = Retries(sleep=lambda _: None)
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PENDING = PendingApproval(
    machine_id=MACHINE_ID,
    message="1 of 2 agree",
    action="approve",
    proposal_digest="ab" * 32,
    approval_id=17,
    approvals_received=1,
    approvals_required=2,
    expires_at=AT,
    voters=["anna"],
)
VOTE = ApprovalDetail(
    id=17,
    machine_id=MACHINE_ID,
    action="approve",
    subject=f"machine {MACHINE_ID}",
    proposal_digest="ab" * 32,
    operator_cn="anna",
    role=Role.CONTROLPLANE,
    hostname=None,
    assigned_ip=None,
    created_at=AT,
    expires_at=AT,
    consumed=False,
    withdrawn=False,
    live=True,
)
TOKEN = RegistrationTokenRequest(role=Role.CONTROLPLANE, expires_in_seconds=60)
ENTRY = AllowListEntry(ek_fingerprint="ab" * 48, role=Role.CONTROLPLANE)
CREATED = RegistrationTokenCreated(
    token="secret",
    token_id="0" * 16,
    role=Role.CONTROLPLANE,
    hostname=None,
    assigned_ip=None,
    cluster_id=None,
    minimum_assurance=Assurance.EK_CHAIN,
    uses=1,
    uses_left=1,
    created_at=AT,
    created_by="anna",
    expires_at=AT,
    revoked_at=None,
)
ACTS: dict[str, tuple[Callable[[OperatorClient], Any], str, Any]] = {
    "approve": (lambda c: c.approve(MACHINE_ID, ApproveRequest(role=Role.LINUX)), "/approve", MachineDetail),
    "unlock": (lambda c: c.unlock(MACHINE_ID), "/unlock", MachineDetail),
    "ak-reset": (lambda c: c.ak_reset(MACHINE_ID, "r"), "/ak-reset", MachineDetail),
    "redeliver": (lambda c: c.redeliver(MACHINE_ID), "/redeliver", MachineDetail),
    "role": (
        lambda c: c.change_role(MACHINE_ID, RoleChangeRequest(role=Role.LINUX, reason="r")),
        "/role",
        MachineDetail,
    ),
    "token": (
        lambda c: c.create_registration_token(TOKEN),
        "/registration-tokens",
        RegistrationTokenCreated,
    ),
    "allow-list": (
        lambda c: c.import_allow_list(AllowListImport(entries=[ENTRY])),
        "/allow-list",
        AllowListImported,
    ),
    "policy": (
        lambda c: c.assign_policy("fleet", "*", "x@1"),
        "/policies/assignments/fleet/*",
        PolicyAssignment,
    ),
    "rollback": (
        lambda c: c.roll_back_policy("fleet", "*"),
        "/policies/assignments/fleet/*/rollback",
        PolicyAssignment,
    ),
}


def result(kind: Any) -> httpx.Response:
    """Return a success of this kind."""
    if kind is MachineDetail:
        return httpx.Response(200, json=machine(MACHINE_ID))
    if kind is RegistrationTokenCreated:
        return httpx.Response(201, text=CREATED.model_dump_json())
    if kind is PolicyAssignment:
        return httpx.Response(200, json=assignment("fleet", "*"))
    return httpx.Response(200, json={"added": 1, "replaced": 0})


@pytest.mark.parametrize("name", ACTS)
def test_a_vote_is_told_from_its_act(name: str) -> None:
    """By the status, never by guessing from members."""
    act, path, kind = ACTS[name]
    script = Script(httpx.Response(202, text=PENDING.model_dump_json()), result(kind))
    with operator(script) as client:
        assert act(client) == PENDING
        assert isinstance(act(client), kind)
    assert [r.method for r in script.requests] == (["PUT"] * 2 if name == "policy" else ["POST"] * 2)
    assert all(r.url.path.endswith(path) for r in script.requests)


@pytest.mark.parametrize("name", ACTS)
def test_neither_passes_for_the_other(name: str) -> None:
    """A vote with the status of a success would make an operator believe that it was done."""
    act, _, kind = ACTS[name]
    for status, content in ((200, PENDING.model_dump_json().encode()), (202, result(kind).content)):

        def wrong(request: httpx.Request, status: int = status, content: bytes = content) -> httpx.Response:
            return httpx.Response(status, content=content)

        # It may have been done, or voted for: what came says neither.
        with operator(wrong, retries=UNHURRIED) as client, pytest.raises(OutcomeUnknown):
            act(client)


def test_an_act_without_an_answer_is_told_from_its_vote() -> None:
    """What ends an assignment has nothing to say; a vote for it has."""
    script = Script(
        httpx.Response(202, text=PENDING.model_dump_json()),
        httpx.Response(204),
        httpx.Response(202, text=PENDING.model_dump_json()),
        httpx.Response(204),
    )
    with operator(script) as client:
        assert client.unassign_policy("role", "linux") == PENDING
        assert client.unassign_policy("role", "linux") is None
        assert client.roll_back_policy("role", "linux") == PENDING
        assert client.roll_back_policy("role", "linux") is None


def test_votes_and_proposals_are_listed() -> None:
    """Page by page."""
    proposal = ProposalDetail(
        proposal_digest="ab" * 32,
        action="approve",
        subject="s",
        machine_id=None,
        approvals_received=1,
        approvals_required=2,
        expires_at=AT,
        voters=["anna"],
        proposal={"action": "approve"},
        approvals=[VOTE],
    )
    script = Script(
        httpx.Response(200, text=ApprovalPage(items=[VOTE], next_cursor="x").model_dump_json()),
        httpx.Response(200, text=ApprovalPage(items=[VOTE], next_cursor=None).model_dump_json()),
        httpx.Response(200, text=ProposalPage(items=[proposal], next_cursor=None).model_dump_json()),
    )
    with operator(script) as client:
        assert list(client.machine_approvals(MACHINE_ID)) == [VOTE, VOTE]
        assert list(client.proposals()) == [proposal]
    paths = [r.url.path for r in script.requests]
    assert paths == [f"/api/v1/machines/{MACHINE_ID}/approvals"] * 2 + ["/api/v1/approvals"]


def test_a_vote_is_withdrawn_by_its_number() -> None:
    """And the answer has no body."""
    script = Script(httpx.Response(204))
    with operator(script) as client:
        client.withdraw_approval(17)
    (request,) = script.requests
    assert (request.method, request.url.path) == ("DELETE", "/api/v1/approvals/17")


def test_what_a_role_change_leaves_out_stays_out() -> None:
    """Null would be a value; absent means as it is."""
    script = Script(result(MachineDetail))
    with operator(script) as client:
        client.change_role(MACHINE_ID, RoleChangeRequest(role=Role.LINUX, reason="r"))
    assert json.loads(script.requests[0].content) == {"role": "linux", "reason": "r"}
