"""Approvals: two people, a real service that counts them, and everything that a vote binds on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attestation_service.auth import Duty
from tests.fixtures.in_process import in_process_service
from tests.fixtures.machine import Machine
from tests.fixtures.web import Browser, Dashboard
from tests.unit.service.people import People

ASKED = {
    "role": "controlplane",
    "cluster_id": "default",
    "hostname": "cp-1",
    "assigned_ip": "10.0.0.11/24",
    "accept_ek": "yes",
}


@pytest.fixture
def committee(tmp_path: Path) -> Iterator[tuple[Dashboard, People]]:
    """A dashboard before a service under dual control, and the people whom the service knows."""
    with in_process_service(tmp_path / "service", dual_control_roles="controlplane") as service:
        people = People()
        service.app.state.resources = replace(service.app.state.resources, oidc=people)
        yield Dashboard(service), people


def _person(committee: tuple[Dashboard, People], name: str, *duties: Duty) -> Browser:
    """Return the browser of somebody whom the service knows by name."""
    dashboard, people = committee
    browser = dashboard.browser(name)
    token = people.headers(name, *duties)["Authorization"].removeprefix("Bearer ")
    browser.session.tokens = replace(browser.session.tokens, access=token)
    return browser


def _proposed(committee: tuple[Dashboard, People]) -> tuple[Machine, Browser, str]:
    """Let alice ask for a control plane; return the machine, her browser, and the path of the proposal."""
    waiting, alice = committee[0].machine(1), _person(committee, "alice")
    answer = alice.act(f"/inbox/{waiting.machine_id}/approve", reason="new rack", **ASKED)
    assert answer.status_code == 303, answer.text
    told = alice.page("/inbox")
    assert "Your vote counts: 1 of 2. Nothing has happened yet" in told
    found = re.search(r"/approvals/[0-9a-f]{64}", told)
    assert found is not None
    return waiting, alice, found[0]


def _status(committee: tuple[Dashboard, People], machine: Machine) -> str:
    return str(committee[0].service.operator().machine(machine.machine_id)["status"])


def test_two_people_admit_a_machine(committee: tuple[Dashboard, People]) -> None:
    """The first vote does nothing; the second, by somebody who read the fingerprint at the machine, does it."""
    waiting, alice, path = _proposed(committee)
    assert _status(committee, waiting) == "pending_approval"
    bob = _person(committee, "bob")
    page = bob.page(path)
    for words in (
        "cp-1",
        "10.0.0.11/24",
        "controlplane",
        "alice",
        "“new rack”",
        path.removeprefix("/approvals/"),
    ):
        assert words in page
    assert f"https://dash.example{path}" in page
    assert "cp-1" in bob.page(f"{path}/agree")
    answer = bob.act(f"{path}/agree", fingerprint=waiting.ek_fingerprint[:16])
    assert answer.status_code == 303, answer.text
    assert re.search(r"Done, enough people agree:.*Audit entry \d+", bob.page("/approvals"), re.DOTALL)
    assert _status(committee, waiting) == "registered"
    gone = alice.get(path)
    assert gone.status_code == 404
    assert "does not wait any more" in gone.text


def test_a_proposal_says_what_its_machine_is_known_by(committee: tuple[Dashboard, People]) -> None:
    """Beside its id: the host name that operators gave it, or what it says of itself, told as that."""
    dashboard, alice = committee[0], _person(committee, "alice")
    for machine, known in (
        (dashboard.machine(1, hw_serial="SN-4711"), "it says its serial number is SN-4711"),
        (dashboard.machine(2, hw_serial="unknown"), ""),
    ):
        alice.act(f"/inbox/{machine.machine_id}/approve", reason="new rack", **ASKED)
        found = re.search(r"/approvals/[0-9a-f]{64}", alice.page("/inbox"))
        assert found is not None
        for path in (found[0], f"{found[0]}/object"):
            heading = re.search(r"<h1>(.*?)</h1>", _person(committee, "bob").page(path))
            assert heading is not None
            assert machine.machine_id[:8] in heading[1]
            assert known in heading[1]
            assert ("serial" in heading[1]) == bool(known)


@pytest.mark.threat("T275")
def test_who_agrees_reads_the_fingerprint_at_the_machine(committee: tuple[Dashboard, People]) -> None:
    """It stands on no page that asks for it; another one, or none, is no vote."""
    waiting, _, path = _proposed(committee)
    bob = _person(committee, "bob")
    assert waiting.ek_fingerprint not in bob.page(path)
    assert waiting.ek_fingerprint not in bob.page(f"{path}/agree")
    by_link = bob.page(f"{path}/agree?fingerprint={waiting.ek_fingerprint}")
    assert f'value="{waiting.ek_fingerprint}"' not in by_link
    assert bob.act(f"{path}/agree").status_code == 422
    assert bob.act(f"{path}/agree", fingerprint="0" * 16).status_code == 422
    assert _status(committee, waiting) == "pending_approval"


def test_who_has_voted_is_told_so_and_can_withdraw(committee: tuple[Dashboard, People]) -> None:
    """She is one, however often she asks; her vote is hers alone."""
    _, alice, path = _proposed(committee)
    page = alice.page(path)
    assert "You voted" in page
    assert f"{path}/agree" not in page
    bob = _person(committee, "bob")
    assert f"{path}/withdraw" not in bob.page(path)
    assert bob.get(f"{path}/withdraw").status_code == 404
    assert alice.act(f"{path}/withdraw").status_code == 303
    assert alice.get(path).status_code == 404


def test_one_objection_ends_it(committee: tuple[Dashboard, People]) -> None:
    """For a reason, which stands in the audit."""
    waiting, alice, path = _proposed(committee)
    bob = _person(committee, "bob")
    assert bob.act(f"{path}/object").status_code == 422
    assert bob.act(f"{path}/object", reason="not our box").status_code == 303
    assert "Votes that ended: 1." in bob.page("/approvals")
    assert alice.get(path).status_code == 404
    assert _status(committee, waiting) == "pending_approval"


def test_who_agrees_has_logged_in_lately(committee: tuple[Dashboard, People]) -> None:
    """An unlocked computer is no second person."""
    waiting, _, path = _proposed(committee)
    bob = _person(committee, "bob")
    committee[0].service.clock.pass_(seconds=301)
    assert bob.act(f"{path}/agree", fingerprint=waiting.ek_fingerprint[:16]).status_code == 403
    assert _status(committee, waiting) == "pending_approval"


def test_what_changed_meanwhile_is_void_and_says_so(committee: tuple[Dashboard, People]) -> None:
    """Other evidence is another proposal: nobody can agree to the old one."""
    waiting, _, path = _proposed(committee)
    bob = _person(committee, "bob")
    form = bob.form(f"{path}/agree")
    waiting.attest()
    page = bob.page(path)
    assert "Void." in page
    assert f"{path}/agree" not in page
    assert bob.get(f"{path}/agree").status_code == 409
    late = bob.post(f"{path}/agree", data=form | {"fingerprint": waiting.ek_fingerprint[:16]})
    assert late.status_code == 409
    assert _status(committee, waiting) == "pending_approval"


def test_a_viewer_sees_it_whole_and_no_act(committee: tuple[Dashboard, People]) -> None:
    """Nobody else's decision is a secret; who may not decide is offered nothing, and refused."""
    waiting, _, path = _proposed(committee)
    vera = _person(committee, "vera", Duty.VIEWER)
    page = vera.page(path)
    assert waiting.ek_fingerprint in page
    for act in ("agree", "object", "withdraw"):
        assert f"{path}/{act}" not in page
        assert vera.get(f"{path}/{act}").status_code == 403
    assert path in vera.page("/approvals")
    assert path in vera.page("/inbox")


def test_what_ends_in_a_file_is_agreed_to_by_the_command(committee: tuple[Dashboard, People]) -> None:
    """The last vote for a registration token is answered with its secret, which no page of ours could keep."""
    dashboard, people = committee
    asked = dashboard.service.client().post(
        "/api/v1/registration-tokens",
        json={"role": "controlplane", "expires_in_seconds": 600},
        headers=people.headers("alice"),
    )
    assert asked.status_code == 202, asked.text
    path = f"/approvals/{asked.json()['proposal_digest']}"
    bob = _person(committee, "bob")
    page = bob.page(path)
    assert f"{path}/agree" not in page
    assert f"attestation approval approve {asked.json()['proposal_digest']} --out FILE" in page
    assert bob.get(f"{path}/agree").status_code == 422
