"""Acts whose answer is lost, and buttons pressed twice: what a page says of them is true, and pressing again tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from werkzeug.test import TestResponse

from attestation.client import ServiceUnreachable, acts
from tests.fixtures.over_httpx import OverHTTPX
from tests.fixtures.web import Browser, Dashboard

ROLE = {"role": "worker-app", "cluster_id": "default"}


class Line:
    """The line to the service, which can be cut."""

    def __init__(self) -> None:
        self.whole = True
        self.carries: Callable[[int], bool] = lambda number: True
        """Whether the act of this number, from 1, reaches the service while the line is cut."""
        self.acts = 0


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    """A line that loses the answers to acts as long as it is not `whole`; nobody asks a second time by itself."""
    cut, send = Line(), OverHTTPX.send

    def lossy(self: OverHTTPX, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Any:
        if cut.whole or "Idempotency-Key" not in headers:
            return send(self, method, url, headers, body)
        cut.acts += 1
        if not cut.carries(cut.acts):
            raise ServiceUnreachable("cannot connect", sent=False)
        send(self, method, url, headers, body).close()
        raise ServiceUnreachable("broke off")

    monkeypatch.setattr(OverHTTPX, "send", lossy)
    monkeypatch.setattr(acts, "ASK_TIMES", 0)
    return cut


def _status(dashboard: Dashboard, machine_id: str) -> str:
    return str(dashboard.service.operator().machine(machine_id)["status"])


def _again(alice: Browser, path: str, page: TestResponse, **filled: str) -> TestResponse:
    """Press the button of the form on *page*, an answer to a POST."""
    hidden = dict(
        re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.text.partition("<main")[2])
    )
    return alice.post(path, data=hidden | filled)


@pytest.mark.threat("T275")
def test_a_lost_answer_is_not_called_not_done(dashboard: Dashboard, line: Line) -> None:
    """The page does not know it, and says so; pressing again tells that it was done, and nothing of a change."""
    made, alice = dashboard.machine(1), dashboard.browser()
    path = f"/inbox/{made.machine_id}/approve"
    line.whole = False
    lost = alice.act(path, **ROLE, hostname="w-1")
    assert lost.status_code == 503
    assert "It is not known whether this was done." in lost.text
    assert "This was not done" not in lost.text
    assert 'value="w-1"' in lost.text
    assert _status(dashboard, made.machine_id) == "registered"
    line.whole = True
    # Other words would be another act: asked about is what was sent.
    told = _again(alice, path, lost, **ROLE, hostname="w-2")
    assert told.status_code == 303, told.text
    assert re.search(r"w-1 is approved as worker-app\..*Audit entry", alice.page("/inbox"), re.DOTALL)


@pytest.mark.threat("T275")
def test_several_of_which_one_is_not_known_are_asked_for_again(dashboard: Dashboard, line: Line) -> None:
    """None of them is called "not done"; what was done before is not done twice."""
    made = [dashboard.machine(seed) for seed in (1, 2, 3)]
    for number, each in enumerate(made, start=1):
        each.admitted(dashboard.service.operator(), hostname=f"m-{number}")
    alice = dashboard.browser()
    path = "/machines/lock?" + "&".join(f"machine={m.machine_id}" for m in made)
    line.whole = False
    lost = alice.act(path, reason="by night")
    assert lost.status_code == 503
    assert "not done" not in lost.text.partition("<form")[0]
    line.whole = True
    assert _again(alice, "/machines/lock", lost, reason="by night").status_code == 303
    assert "m-1: done; m-2: done; m-3: done" in alice.page("/machines?status=locked")


def test_a_service_that_goes_away_in_the_middle_of_several(dashboard: Dashboard, line: Line) -> None:
    """What was done until then is told, and why the others were not; each of them is not waited for."""
    made = [dashboard.machine(seed) for seed in (1, 2, 3)]
    alice = dashboard.browser()
    path = "/inbox/approve-several?" + "&".join(f"machine={m.machine_id}" for m in made)
    form = alice.form(path) | ROLE
    line.carries = lambda number: False
    send = OverHTTPX.send

    def second(self: OverHTTPX, *arguments: Any) -> Any:
        if "Idempotency-Key" in arguments[2]:
            line.whole = _status(dashboard, made[0].machine_id) == "pending_approval"
        return send(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverHTTPX, "send", second)
        assert alice.post("/inbox/approve-several", data=form).status_code == 303
    assert line.acts == 1
    line.whole = True
    told = alice.page("/inbox")
    one, two, three = (f"machine {m.machine_id[:8]}" for m in made)
    assert f"Approved: {one}." in told
    assert f"Not approved: {two}: cannot connect." in told
    assert f"Not approved: {three}: not asked for after that." in told
