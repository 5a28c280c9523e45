"""Votes do not outlive their voters, nor what they were cast about, nor an objection."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from attestation_service.auth import Duty, Operator
from attestation_service.context.identity import WithoutDuty
from attestation_service.context.request import Origin
from attestation_service.process import maintenance
from tests.fixtures.vendor import vouched
from tests.unit.service.browser import Browser
from tests.unit.service.conftest import OPERATOR, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import ISSUER
from tests.unit.service.test_dual_control import GRANTED, TOKEN, UP, Committee
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

TOKENS = "/registration-tokens"


@pytest.fixture
async def committee(start: Starter) -> Committee:
    """Return a service where control-plane machines need two."""
    return Committee(await start(tpm_ca_bundle_dir=start.bundle(), dual_control_roles=("controlplane",)))


async def vote(committee: Committee, who: str | dict[str, str]) -> dict[str, Any]:
    """Vote for a registration token; the answer says how many agree."""
    answer = await committee.ask(who, "POST", TOKENS, TOKEN)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def newest(committee: Committee) -> tuple[str, str]:
    """Return action and detail of the newest audit entry."""
    entry = (await committee.audit())[-1]
    return entry["action"], entry["detail"]


# Objections


@pytest.mark.threat("T125")
@pytest.mark.parametrize("who", ["carla", OPERATOR], ids=["operator", "break-glass"])
async def test_anybody_objects_and_it_is_over(committee: Committee, who: str | dict[str, str]) -> None:
    """One person of whom nobody knows whether they are still theirs: their vote completes nothing."""
    digest = (await vote(committee, "anna"))["proposal_digest"]
    path, reason = f"/approvals/{digest}/object", {"reason": "anna left yesterday"}
    answer = await committee.ask(who, "POST", path, reason)
    assert (answer.status_code, answer.json()) == (200, {"proposal_digest": digest, "voided": 1})
    action, detail = await newest(committee)
    assert action == "approval_objected"
    assert "anna left yesterday; void: anna" in detail
    assert digest in detail
    assert (await committee.ask("dora", "GET", "/approvals")).json()["items"] == []
    assert (await vote(committee, "bernd"))["voters"] == ["bernd"]
    assert (await committee.ask("bernd", "POST", TOKENS, TOKEN)).status_code == 202


async def test_who_may_only_look_objects_to_nothing(committee: Committee) -> None:
    """And what nobody voted for, or says nothing, is no objection."""
    digest = (await vote(committee, "anna"))["proposal_digest"]
    path, reason = f"/approvals/{digest}/object", {"reason": "no"}
    viewer = committee.people.headers("vera", Duty.VIEWER)
    assert code(await committee.ask(viewer, "POST", path, reason)) == "forbidden"
    assert (await committee.ask("carla", "POST", path, {})).status_code == 422
    other = f"/approvals/{'ab' * 32}/object"
    assert code(await committee.ask("carla", "POST", other, reason)) == "approval-unknown"
    assert (await committee.ask("bernd", "POST", TOKENS, TOKEN)).status_code == 201


async def test_a_void_vote_says_why(committee: Committee) -> None:
    """In the list of votes of its machine, for ever."""
    node = SoftwareNode()
    await committee.service.introduce(node, **vouched(node.ek))
    asked = await committee.ask("anna", "POST", f"/machines/{node.machine_id}/approve", GRANTED)
    path = f"/approvals/{asked.json()['proposal_digest']}/object"
    await committee.ask("carla", "POST", path, {"reason": "not ours"})
    (shown,) = await committee.votes(node)
    assert (shown["live"], shown["withdrawn"], shown["void"]) == (False, True, "carla objects: not ours")


@pytest.mark.threat("T154")
async def test_votes_about_a_machine_that_changed_or_went_are_told(committee: Committee) -> None:
    """Whatever ends a vote has its entry: an act of one operator, and the purge of who nobody decided about."""
    service = committee.service
    for end in ("rejected", "purged"):
        node = SoftwareNode()
        await service.introduce(node, **vouched(node.ek))
        if end == "purged":
            service.clock.advance(service.resources.settings.pending_days * 86_400 - 60)
        asked = await committee.ask("anna", "POST", f"/machines/{node.machine_id}/approve", GRANTED)
        digest = asked.json()["proposal_digest"]
        if end == "rejected":
            path = f"/machines/{node.machine_id}/reject"
            assert (await committee.ask("bernd", "POST", path, {"reason": "no"})).status_code == 200
        else:
            service.clock.advance(61)
            await maintenance.once(service.resources)
        last, cause = (await committee.audit())[-1], (await committee.audit())[-2]
        assert (last["action"], last["machine_id"]) == ("approval_void", node.machine_id), end
        assert last["detail"].startswith("vote of anna for approve: "), end
        assert last["detail"].endswith(f"proposal {digest}"), end
        assert cause["action"] == ("reject" if end == "rejected" else "pending_purged")


# Voters who may not vote any more


@pytest.mark.threat("T125", "T154")
async def test_who_lost_the_role_has_not_voted(committee: Committee) -> None:
    """Their next request says so; whatever it asks, and though it is answered."""
    await vote(committee, "anna")
    viewer = committee.people.headers("anna", Duty.VIEWER)
    assert (await committee.ask(viewer, "GET", "/machines")).status_code == 200
    action, detail = await newest(committee)
    assert action == "approval_void"
    assert "vote of anna for registration_token" in detail
    assert (await vote(committee, "bernd"))["voters"] == ["bernd"]


@pytest.mark.threat("T125")
async def test_who_lost_every_role_has_not_voted(committee: Committee) -> None:
    """They are refused, and what they agreed to is void."""
    await vote(committee, "anna")

    class Gone:
        async def operator(self, token: str, origin: Origin, at: datetime) -> Operator:
            del token, origin, at
            raise WithoutDuty("anna has none of the roles", f"{ISSUER}#anna")

    service = committee.service
    known = service.resources
    service.app.state.resources = replace(known, oidc=Gone())
    assert code(await committee.ask("anna", "GET", "/machines")) == "forbidden"
    service.app.state.resources = known
    assert (await vote(committee, "bernd"))["voters"] == ["bernd"]


@pytest.mark.threat("T125")
async def test_who_votes_with_a_certificate_is_looked_at_again(committee: Committee) -> None:
    """When the quorum would be complete: what was revoked since then, wherever that was, agreed to nothing."""
    browser = Browser("anna")
    service = committee.service
    service.app.state.resources = replace(service.resources, mtls=browser)
    await vote(committee, {})
    browser.revoked = True
    assert (await vote(committee, "bernd"))["voters"] == ["bernd"]
    entries = [e for e in await committee.audit() if e["action"] == "approval_void"]
    assert ["the client certificate was revoked" in e["detail"] for e in entries] == [True]
    browser.revoked = False
    assert (await committee.ask({}, "POST", TOKENS, TOKEN)).status_code == 201
    # Certificates are switched off between the votes.
    await vote(committee, {})
    service.app.state.resources = replace(service.resources, mtls=None)
    assert (await vote(committee, "bernd"))["voters"] == ["bernd"]


# Logins


@pytest.mark.threat("T125")
async def test_a_login_of_long_ago_does_not_vote(committee: Committee) -> None:
    """Somebody at an open session of last night is not who logged in; and a vote ends with its login."""
    service, people = committee.service, committee.people
    people.logged_in["anna"] = service.clock.now() - timedelta(seconds=3600)
    refused = await committee.ask("anna", "POST", TOKENS, TOKEN)
    assert code(refused) == "authentication-too-old"
    people.logged_in["anna"] = service.clock.now() - timedelta(seconds=3500)
    await vote(committee, "anna")
    service.clock.advance(99)
    (shown,) = (await committee.ask("carla", "GET", "/approvals")).json()["items"]
    assert shown["voters"] == ["anna"]
    service.clock.advance(1)
    assert (await vote(committee, "bernd"))["voters"] == ["bernd"]


async def test_a_token_that_does_not_say_when_does_not_vote(committee: Committee) -> None:
    """Else it would be as fresh as its bearer likes."""
    committee.people.logged_in["anna"] = None
    assert code(await committee.ask("anna", "POST", TOKENS, TOKEN)) == "authentication-too-old"


# What changed since


@pytest.mark.threat("T147")
async def test_a_vote_that_was_overtaken_is_said_to_be_void(committee: Committee) -> None:
    """One person changes by what a worker is measured, after another agreed to promote it: that vote is void."""
    node = await committee.attested("worker-app")
    path = f"/machines/{node.machine_id}/role"
    first = (await committee.ask("anna", "POST", path, UP)).json()
    weak = {"format": "itl-tpm-policy/1", "name": "weak", "version": 1, "bank": "sha256"}
    weak |= {"pcrs": {"7": {"ignore": "no Secure Boot"}}, "assurance": {"minimum": "tofu"}}
    stored = await committee.ask("carla", "POST", "/policies", weak)
    assert stored.status_code == 201, stored.text
    place = f"/policies/assignments/machine/{node.machine_id}"
    assert (await committee.ask("carla", "PUT", place, {"policy": "weak@1"})).status_code == 200
    (shown,) = (await committee.ask("bernd", "GET", "/approvals")).json()["items"]
    assert (shown["overtaken"], shown["approvals_received"], shown["voters"]) == (["measured"], 0, [])
    (listed,) = await committee.votes(node)
    assert (listed["live"], listed["void"]) == (False, "changed since: measured")
    (seen,) = (await committee.service.detail(node))["approvals"]
    assert (seen["live"], seen["void"]) == (False, "changed since: measured")
    second = (await committee.ask("bernd", "POST", path, UP)).json()
    assert second["voters"] == ["bernd"]
    assert second["proposal_digest"] != first["proposal_digest"]
    assert "yours differs in measured" in second["message"]
