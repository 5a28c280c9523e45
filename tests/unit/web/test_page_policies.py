"""Policies: written with faults beside their place, learned, tried page by page, activated, rolled back."""

from __future__ import annotations

import html
import re

import pytest

from attestation_web.pages.policies import trying
from attestation_web.pages.policies.editing import line_of
from tests.fixtures.web import VIEWER, Browser, Dashboard

TEXT = """\
format: itl-tpm-policy/1
name: workers
version: {version}
bank: sha256
pcrs:
  7:
    any_of: ["{value}"]
"""


def _text(version: int = 1, value: str = "ab" * 32) -> str:
    return TEXT.format(version=version, value=value)


def _checked(alice: Browser, text: str, to: str = "check") -> str:
    sent = alice.post("/policies/edit", data=alice.form("/policies/edit") | {"document": text, "to": to})
    return sent.headers.get("Location") or sent.text


def _stored(alice: Browser, text: str) -> None:
    answer = alice.act(_checked(alice, text, "create"))
    assert answer.status_code == 303, answer.text


def _place(path: str) -> str:
    return path.partition("dash.example")[2] or path


def test_what_is_wrong_stands_beside_its_place(dashboard: Dashboard) -> None:
    """The line of a value that the service refuses, and of a text that is no YAML; what was written stays."""
    alice = dashboard.browser()
    page = _checked(alice, _text(value="xyz"))
    assert "Line 7" in page or "Line 6" in page
    assert re.search(r'<span class="here">\s+[67]  ', page)
    assert "xyz" in page
    assert "Line 5" in _checked(alice, "name: a\nformat: b\nx: 1\ny: 2\nname: c\n")
    good = _checked(alice, _text())
    assert "The service accepts this as workers@1." in good
    assert "workers@1" not in alice.page("/policies"), "checking stores nothing"


@pytest.mark.parametrize(
    ("words", "line"),
    [("pcrs: 7 must list 1 to 64 values", 6), ("bank is none of ours", 4), ("it is raining", None)],
)
def test_a_fault_is_found_by_the_member_that_it_names(words: str, line: int | None) -> None:
    """The deepest member that the words name, and nothing where they name none."""
    assert line_of(_text(), words) == line


def test_a_version_is_stored_and_compared(dashboard: Dashboard) -> None:
    """It is told before, stored once, and the next one begins with it; two are compared in words and lines."""
    alice = dashboard.browser()
    path = _checked(alice, _text(), "create")
    assert "It can never be changed afterwards" in alice.page(path)
    assert "workers@1 is stored" in alice.page(_place(alice.act(path).headers["Location"]))
    assert "version: 2" in alice.page("/policies/edit?from=workers@1")
    _stored(alice, _text(2, "cd" * 32))
    difference = alice.page("/policies/diff?one=workers@1&other=workers@2")
    assert "cd" * 32 in difference
    assert '<td class="sign">+' in difference
    assert "In words" in difference
    assert alice.get("/policies/workers/9").status_code == 404


def test_it_is_activated_rolled_back_and_ended(dashboard: Dashboard) -> None:
    """Each is told before with what applies now; what waits for nobody applies at once, and is written."""
    alice = dashboard.browser()
    for version in (1, 2):
        _stored(alice, _text(version))
    for version in (1, 2):
        asked = alice.get(f"/policies/activate?policy=workers@{version}&scope=role&subject=worker-app")
        path = _place(asked.headers["Location"])
        assert path == f"/policies/at/role/worker-app/activate?policy=workers@{version}"
        assert "the role worker-app is measured against" in alice.page(path)
        assert alice.act(path, policy=f"workers@{version}").status_code == 303
    places = alice.page("/policies?tab=places")
    assert re.search(
        r"workers@2 applies to role worker-app from now on\. <span class=\"entry\">Audit entry", places
    )
    back = "/policies/at/role/worker-app/roll-back"
    assert "before applies again: workers@1" in alice.page(back)
    assert alice.act(back).status_code == 303
    assert "workers@1" in alice.page("/policies?tab=places")
    refused = alice.act("/policies/at/role/worker-app/end", _typed="worker")
    assert refused.status_code == 422
    assert alice.act("/policies/at/role/worker-app/end", _typed="role worker-app").status_code == 303
    assert "Nothing is assigned anywhere" in alice.page("/policies?tab=places")
    assert alice.page("/policies?tab=history").count("role worker-app") == 4


def test_a_dry_run_goes_page_by_page(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step judges one page, once; its sum says who would newly fail and why; nothing is changed."""
    monkeypatch.setattr(trying, "AT_ONCE", 1)
    alice, operator = dashboard.browser(), dashboard.service.operator()
    for seed in (1, 2):
        dashboard.machine(seed).admitted(operator, hostname=f"w-{seed}")
    _stored(alice, _text())
    path = "/policies/try"
    begun = alice.post(path, data=alice.form(path) | {"policy": "workers@1", "scope": "fleet", "subject": ""})
    here = _place(begun.headers["Location"])
    page = alice.page(here)
    assert "1 of 2 machines looked at" in page
    assert alice.page(here).count("newly</span>") == 1, "the same address judges once"
    for _ in range(3):
        found = re.search(r'<a href="([^"]+)" rel="next">Judge', page)
        if found is None:
            break
        page = alice.page(html.unescape(found[1]))
    assert "2 machines would newly fail." in page
    assert page.count("newly</span>") == 2
    assert "pcr7" in page
    assert "w-1" in page
    assert "workers@1" in page
    other = dashboard.browser("mallory")
    assert other.get(here).status_code == 404, "a dry run is of who began it"


def test_a_place_without_machines_says_nothing_of_a_policy(dashboard: Dashboard) -> None:
    """Nobody fails where nobody is: that is not good news."""
    alice = dashboard.browser()
    _stored(alice, _text())
    form = alice.form("/policies/try") | {"policy": "workers@1", "scope": "cluster", "subject": "empty"}
    here = _place(alice.post("/policies/try", data=form).headers["Location"])
    page = alice.page(here)
    assert "There is no machine there." in page
    assert "No machine would newly fail" not in page
    assert "Back to the editor" not in page


def test_a_text_that_is_tried_stays_beside_its_dry_run(dashboard: Dashboard) -> None:
    """It leads back to the editor, however often the page is loaded: no load takes the place of another draft."""
    alice = dashboard.browser()
    form = alice.form("/policies/try") | {"document": _text(), "scope": "fleet", "subject": ""}
    here = _place(alice.post("/policies/try", data=form).headers["Location"])
    for _ in range(3):
        found = re.search(r'href="([^"]+)">Back to the editor', alice.page(here))
        assert found is not None
        assert "name: workers" in alice.page(html.unescape(found[1]))
    assert len(alice.session.resumed) == 1


def test_a_policy_is_learned_looked_at_and_stored(dashboard: Dashboard) -> None:
    """From the machines that were chosen: what they have, as a draft of the editor, stored by its act alone."""
    alice, operator = dashboard.browser(), dashboard.service.operator()
    made = dashboard.machine(1)
    made.admitted(operator, hostname="w-1")
    form = alice.form("/policies/learn")
    assert "Nothing was proposed" in alice.post("/policies/learn", data=form | {"from": "machines"}).text
    chosen = {"from": "machines", "machine": made.machine_id, "name": "apps", "version": "1"}
    answer = alice.post("/policies/learn", data=form | chosen | {"accept_unmeasured": "yes"})
    assert "A proposal from 1 machine" in answer.text
    assert "apps" not in alice.page("/policies")
    draft = re.search(r'href="(/policies/edit\?draft=[^"]+)"', answer.text)
    assert draft
    assert "name: apps" in alice.page(html.unescape(draft[1]))


def test_a_viewer_reads_and_changes_nothing(dashboard: Dashboard) -> None:
    """No way to an act is shown, and each is refused."""
    alice, vera = dashboard.browser(), dashboard.browser("vera", rights=VIEWER)
    _stored(alice, _text())
    for path in ("/policies", "/policies?tab=places", "/policies/workers/1"):
        page = vera.page(path)
        for act in ("/edit", "/learn", "/try", "/activate", "/roll-back"):
            assert f"/policies{act}" not in page
    for path in (
        "edit",
        "learn",
        "try",
        "activate",
        "create",
        "at/fleet/*/end",
        "at/fleet/*/activate",
        "try/x",
    ):
        assert vera.get(f"/policies/{path}").status_code == 403, path
