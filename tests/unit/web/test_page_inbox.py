"""The inbox: evidence side by side, approving one or several, rejecting; nothing is done to a machine that changed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attestation.client import OperatorClient
from attestation.errors import MachineUnknown
from attestation.tpm import parse_public
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.vendor import vouched
from tests.fixtures.web import VIEWER, Browser, Dashboard


def _status(dashboard: Dashboard, machine_id: str) -> str:
    return str(dashboard.service.operator().machine(machine_id)["status"])


def _approve(alice: Browser, machine_id: str, **filled: str) -> Any:
    return alice.act(
        f"/inbox/{machine_id}/approve", **{"role": "worker-app", "cluster_id": "default"} | filled
    )


def test_evidence_stands_side_by_side(dashboard: Dashboard) -> None:
    """What is proven, what it only says of itself, and where it came from; what is not known says so."""
    one = dashboard.machine(1, hw_serial="SN-1", hw_product="PowerEdge R660")
    two = dashboard.machine(2, desired_role="controlplane")
    page = dashboard.browser().page("/inbox")
    for each in (one, two):
        assert f'title="{each.ek_fingerprint}"' in page
        assert f'href="/inbox/{each.machine_id}/approve"' in page
    for words in ("SN-1", "PowerEdge R660", "192.0.2.1", "192.0.2.2", "controlplane", "none yet"):
        assert words in page
    assert page.index("Proven by its chip") < page.index("Says of itself, proves nothing")


def test_a_viewer_is_offered_nothing_and_refused(dashboard: Dashboard) -> None:
    """They see what waits, and no act; and whoever tries is refused."""
    waiting = dashboard.machine(1)
    vera = dashboard.browser("vera", rights=VIEWER)
    page = vera.page("/inbox")
    assert waiting.ek_fingerprint in page
    assert "/approve" not in page
    assert "/reject" not in page
    for act in (f"{waiting.machine_id}/approve", f"{waiting.machine_id}/reject", "approve-several"):
        assert vera.get(f"/inbox/{act}?machine={waiting.machine_id}").status_code == 403


def test_a_machine_is_approved_with_what_was_filled_in(dashboard: Dashboard) -> None:
    """Role, host name, address; told before, and afterwards with the audit entry."""
    waiting, alice = dashboard.machine(1), dashboard.browser()
    before = alice.page(f"/inbox/{waiting.machine_id}/approve")
    assert "it gets the configuration of that role" in before
    assert waiting.ek_fingerprint in before
    answer = _approve(
        alice,
        waiting.machine_id,
        hostname="app-1",
        assigned_ip="10.0.0.21/24",
        fingerprint=waiting.ek_fingerprint[:16].upper(),
    )
    assert answer.status_code == 303
    page = alice.page("/inbox")
    assert re.search(r"app-1 is approved as worker-app\..*Audit entry \d+", page, re.DOTALL)
    machine = dashboard.service.operator().machine(waiting.machine_id)
    assert [machine[name] for name in ("status", "role", "hostname", "assigned_ip")] == [
        "registered",
        "worker-app",
        "app-1",
        "10.0.0.21/24",
    ]


@pytest.mark.threat("T275")
@pytest.mark.parametrize("read", ["0" * 16, "too short"])
def test_another_fingerprint_admits_nobody(dashboard: Dashboard, read: str) -> None:
    """What was read at the machine is compared before anything is asked of the service."""
    waiting, alice = dashboard.machine(1), dashboard.browser()
    answer = _approve(alice, waiting.machine_id, fingerprint=read)
    assert answer.status_code == 422
    assert "This was not done." in answer.text
    assert _status(dashboard, waiting.machine_id) == "pending_approval"


@pytest.mark.threat("T275")
def test_who_approves_has_logged_in_lately(dashboard: Dashboard) -> None:
    """An unlocked computer admits no machine."""
    waiting, alice = dashboard.machine(1), dashboard.browser()
    dashboard.service.clock.pass_(seconds=301)
    assert _approve(alice, waiting.machine_id).status_code == 403
    answer = alice.act(
        f"/inbox/approve-several?machine={waiting.machine_id}", role="worker-app", cluster_id="default"
    )
    assert answer.status_code == 403
    assert _status(dashboard, waiting.machine_id) == "pending_approval"


def _hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([0-9a-f]+)"', page)
    assert found is not None, page
    return found[1]


def test_a_machine_that_changed_meanwhile_is_not_approved(dashboard: Dashboard) -> None:
    """What was decided about is what was shown."""
    waiting, alice = dashboard.machine(1), dashboard.browser()
    form = alice.form(f"/inbox/{waiting.machine_id}/approve")
    waiting.attest()
    answer = alice.post(
        f"/inbox/{waiting.machine_id}/approve", data=form | {"role": "worker-app", "cluster_id": "default"}
    )
    assert answer.status_code == 409
    assert "has changed since you saw it" in answer.text
    now = {name: _hidden(answer.text, name) for name in ("_shown", "_key", "seen")}
    # What a page does not show may have changed too.
    unseen = form | now | {"role": "worker-app", "cluster_id": "default", "seen": form["seen"]}
    answer = alice.post(f"/inbox/{waiting.machine_id}/approve", data=unseen)
    assert answer.status_code == 409
    assert "something new since you saw it" in answer.text
    assert _status(dashboard, waiting.machine_id) == "pending_approval"
    # What is shown then is what it is now; whoever presses the button once more has seen it.
    again = unseen | {name: _hidden(answer.text, name) for name in now}
    assert alice.post(f"/inbox/{waiting.machine_id}/approve", data=again).status_code == 303


def test_a_machine_is_rejected_for_a_reason(dashboard: Dashboard) -> None:
    """Without one nothing happens."""
    waiting, alice = dashboard.machine(1), dashboard.browser()
    assert alice.act(f"/inbox/{waiting.machine_id}/reject").status_code == 422
    assert _status(dashboard, waiting.machine_id) == "pending_approval"
    assert alice.act(f"/inbox/{waiting.machine_id}/reject", reason="not ours").status_code == 303
    assert _status(dashboard, waiting.machine_id) == "rejected"
    assert waiting.machine_id not in alice.page("/inbox").replace("Audit entry", "")


def test_several_are_approved_each_by_itself(dashboard: Dashboard) -> None:
    """They are shown once more; one that is refused keeps no other back, and is named with why."""
    one, two, three = (dashboard.machine(seed) for seed in (1, 2, 3))
    alice = dashboard.browser()
    path = f"/inbox/approve-several?machine={one.machine_id}&machine={two.machine_id}"
    page = alice.page(path)
    assert one.ek_fingerprint in page
    assert two.ek_fingerprint in page
    assert three.ek_fingerprint not in page
    form = alice.form(path)
    two.attest()  # it shows something new, which nobody has seen
    answer = alice.post("/inbox/approve-several", data=form | {"role": "worker-app", "cluster_id": "default"})
    assert answer.status_code == 303
    told = alice.page("/inbox")
    assert f"Approved: machine {one.machine_id[:8]}." in told
    assert re.search(rf"Audit entries: machine {one.machine_id[:8]} \d+\.</span>", told)
    assert f"Not approved: machine {two.machine_id[:8]}: " in told
    assert [_status(dashboard, m.machine_id) for m in (one, two, three)] == [
        "registered",
        "pending_approval",
        "pending_approval",
    ]
    # Of those that are all refused nothing is told as done.
    answer = alice.post(
        "/inbox/approve-several", data=form | {"role": "worker-app", "cluster_id": "default", "_key": ""}
    )
    assert answer.status_code == 409


def test_none_and_too_many_are_refused(dashboard: Dashboard) -> None:
    """Each is looked up: their number is bounded before."""
    alice = dashboard.browser()
    assert alice.get("/inbox/approve-several").status_code == 422
    many = "&".join(f"machine={number}" for number in range(21))
    assert alice.get(f"/inbox/approve-several?{many}").status_code == 422


def test_what_was_chosen_survives_a_new_login(dashboard: Dashboard) -> None:
    """Who is asked to log in again comes back to the same machines."""
    one, alice = dashboard.machine(1), dashboard.browser()
    dashboard.service.clock.pass_(seconds=301)
    answer = alice.act(
        f"/inbox/approve-several?machine={one.machine_id}", role="worker-app", cluster_id="default"
    )
    found = re.search(r"resume%3D([\w-]+)", answer.text)
    assert found is not None
    alice.session.authenticated_at = dashboard.service.clock.now()
    assert one.ek_fingerprint in alice.page(f"/inbox/approve-several?resume={found[1]}")


def test_one_that_goes_while_others_are_shown_takes_nothing_along(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its endorsement is not there any more when it is asked for: the inbox is."""
    staying, going = dashboard.machine(1), Machine(SoftwareNode(2), dashboard.service.client("192.0.2.2"))
    going.enrol(**vouched(parse_public(going.ek_public)))
    alice = dashboard.browser()
    asked: list[str] = []

    def gone(_client: OperatorClient, machine_id: str) -> None:
        asked.append(machine_id)
        raise MachineUnknown("no such machine")

    monkeypatch.setattr(OperatorClient, "endorsement", gone)
    assert staying.ek_fingerprint in alice.page("/inbox")
    assert asked == [going.machine_id]
