"""The dashboard as people meet it: Chromium before the real service, a real provider and software TPMs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.web.conftest import Visit
from tests.e2e.web.visitor import Visitor
from tests.vectors.eventlog.ovmf import by_name

pytestmark = [pytest.mark.swtpm, pytest.mark.slow]

MOST_TABS = 120


def test_somebody_logs_in_and_out(visit: Visit) -> None:
    """The provider asks who they are, the page says it, and after logging out it is asked again."""
    alice = visit("alice")
    page = alice.opens("/account")
    assert page.url.endswith("/account")
    assert "alice" in page.locator("header.top").inner_text()
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/protocol/openid-connect/logout**")
    alice.page.goto("/")
    assert page.url.startswith(alice.world.provider.origin)


def test_charts_of_the_fleet_come_after_the_overview(visit: Visit) -> None:
    """The page is painted while their counts are still on the way; then they stand where the link to them stood."""
    alice = visit("alice")
    alice.opens("/account")
    page, held = alice.page, list[Route]()
    page.route("**/fleet", lambda route: held.append(route))
    with page.expect_request("**/fleet"):
        page.goto("/")
    page.locator(".tiles").wait_for()
    assert page.locator("#live-fleet svg").count() == 0
    assert page.locator("#live-fleet a").get_attribute("href") == "/fleet"
    held[0].continue_()
    page.locator("#live-fleet svg.donut").wait_for()
    page.unroute_all()


def _watches(visitor: Visitor, name: str, held: str) -> None:
    """Let a machine attest before its open page, which must tell it by itself and leave the reader what they hold.

    Args:
        visitor: Who watches; the menu of acts is open before them.
        name: A machine that is approved.
        held: What has the focus meanwhile, a selector.
    """
    page = visitor.opens(f"/machines/{visitor.world.machines[name].machine_id}")
    page.evaluate("window.neverLeft = true")
    status, menu = page.locator(".states .badge").first, page.locator("details.more")
    expect(status).to_have_text("registered")
    menu.locator("summary").click()
    page.locator(held).focus()
    visitor.world.attest(name, by_name["sb-on"])
    expect(status).to_have_text("attested")
    expect(menu.get_by_role("link", name="Lock")).to_be_visible()
    expect(page.locator(held)).to_be_focused()
    expect(page.locator("dt:text-is('Attested') + dd time")).to_be_visible()
    assert page.evaluate("window.neverLeft")


def _asks_for(visitor: Visitor, name: str, role: str, **filled: str) -> None:
    """Approve a machine of the inbox, told by the fingerprint that it shows."""
    fingerprint = visitor.world.machines[name].ek_fingerprint[:16]
    card = visitor.opens("/inbox").locator("article").filter(has_text=fingerprint)
    with visitor.page.expect_navigation():
        card.get_by_role("link", name="Approve…").click()
    visitor.page.get_by_label("Role").select_option(role)
    for label, value in ({"Host name": name} | filled).items():
        visitor.page.get_by_label(label).fill(value)
    visitor.presses("Approve")


def test_a_newcomer_approves_watches_and_finds_out_why(visit: Visit) -> None:
    """A worker by one person, a control plane by two in two browsers; both turn; a third tells what is wrong.

    Whoever agrees reads all of it and types the fingerprint; then it is done. A page that is open says by itself that
    its machine has attested. The list shows that another failed, and its page says in words what changed.
    """
    alice, bob = visit("alice"), visit("bob")
    _asks_for(alice, "w-9", "worker-app")
    _watches(alice, "w-9", held="#can-role a")

    machine = alice.world.machines["cp-1"]
    _asks_for(alice, "cp-1", "controlplane", Address="10.0.0.1/24")
    assert "1 of 2" in alice.text()
    assert alice.world.operator.machine(machine.machine_id)["status"] == "pending_approval"
    link = alice.page.get_by_role("link", name="send them this link").get_attribute("href")
    assert link is not None
    bob.opens(link)
    assert "alice" in bob.text()
    with bob.page.expect_navigation():
        bob.page.get_by_role("link", name="Agree…").click()
    bob.page.get_by_label("EK fingerprint").fill(machine.ek_fingerprint[:16])
    bob.presses("Agree to exactly this")
    assert "Done" in bob.text()
    assert "audit entry" in bob.text().lower()
    _watches(alice, "cp-1", held=".states .copy")

    alice.opens("/machines?trust=failed")
    with alice.page.expect_navigation():
        alice.page.locator("main").get_by_role("link", name="w-5", exact=True).click()
    assert "PCR 4 changed: kernel replaced" in alice.text()


def test_several_machines_are_locked_at_once(visit: Visit) -> None:
    """Chosen in the list, shown once more, locked: each, and no other."""
    alice = visit("alice")
    page = alice.opens("/machines?q=w-")
    for name in ("w-2", "w-3"):
        page.get_by_label(f"Choose {name}").check()
    alice.presses("Lock…")
    assert {"w-2", "w-3"} <= set(re.findall(r"w-\d", alice.text()))
    page.get_by_label("Reason").fill("a rack is moved")
    alice.presses("Lock them")
    status = {
        name: alice.world.operator.machine(alice.world.machines[name].machine_id)["status"]
        for name in ("w-1", "w-2", "w-3", "w-4")
    }
    assert status == {"w-1": "attested", "w-2": "locked", "w-3": "locked", "w-4": "attested"}


def test_a_policy_is_learned_and_activated(visit: Visit) -> None:
    """From machines of a role, through the editor, stored, and in force for that role."""
    alice = visit("alice")
    page = alice.opens("/policies/learn")
    page.get_by_label("Role", exact=True).select_option("worker-infra")
    page.get_by_label("Name", exact=True).fill("infra")
    alice.presses("Propose")
    assert "A proposal from 2 machines" in alice.text()
    with page.expect_navigation():
        page.get_by_role("link", name="Go on in the editor").click()
    alice.presses("Go on to store it")
    alice.presses("Store it")
    alice.opens("/policies/infra/1")
    with page.expect_navigation():
        page.get_by_role("link", name="Activate", exact=True).click()
    page.get_by_label("Where", exact=True).select_option("role")
    page.get_by_label("Its name").fill("worker-infra")
    alice.presses("Go on")
    alice.presses("Activate")
    assigned = alice.world.operator.call("GET", "/policies")["assignments"]
    assert ("role", "worker-infra", "infra@1") in {(a["scope"], a["subject"], a["policy"]) for a in assigned}
    alice.world.attest("infra-1", by_name["sb-on"])
    machine = alice.world.operator.machine(alice.world.machines["infra-1"].machine_id)
    assert (machine["trust"], machine["last_result"]["policy"]) == ("verified", "infra@1")


def test_a_query_is_kept_and_others_find_it(visit: Visit) -> None:
    """What alice wrote, ran and shares stands in vera's list, and answers her."""
    alice, vera = visit("alice"), visit("vera")
    page = alice.opens("/query")
    page.get_by_label("Query", exact=True).fill(
        "Machines\n| where role == 'worker-infra'\n| project hostname"
    )
    alice.presses("Run")
    assert {"infra-1", "infra-2"} <= set(alice.text().split())
    alice.presses("Save…")
    page.get_by_label("Name").fill("infra-only")
    page.get_by_label("Share", exact=False).check()
    alice.presses("Save")
    vera.opens("/query")
    with vera.page.expect_navigation():
        vera.page.get_by_role("link", name="infra-only").click()
    assert {"infra-1", "infra-2"} <= set(vera.text().split())
    assert "by alice" in vera.text()


def _tabs_to(visitor: Visitor, wanted: str) -> None:
    """Press Tab until what *wanted* (a CSS selector) matches has the focus, which must be seen."""
    focused = "([wanted]) => document.activeElement.matches(wanted)"
    for _ in range(MOST_TABS):
        visitor.page.keyboard.press("Tab")
        if visitor.page.evaluate(focused, [wanted]):
            seen = visitor.page.evaluate(
                "() => { const s = getComputedStyle(document.activeElement);"
                " return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1; }"
            )
            assert seen, f"{wanted}: nobody sees that it has the focus"
            return
    raise AssertionError(f"{visitor.page.url}: no Tab leads to {wanted}")


def _enters(visitor: Visitor) -> None:
    with visitor.page.expect_navigation():
        visitor.page.keyboard.press("Enter")


def test_approving_needs_no_mouse(visit: Visit) -> None:
    """From the first page to an approved machine by Tab, letters and Enter; the focus is seen at each step."""
    alice = visit("alice")
    machine_id = alice.world.machines["w-8"].machine_id
    alice.opens("/")
    _tabs_to(alice, ".skip")
    _tabs_to(alice, "nav.side a[href='/inbox']")
    _enters(alice)
    _tabs_to(alice, f"a[href$='{machine_id}/approve']")
    _enters(alice)
    _tabs_to(alice, "[name=role]")
    alice.page.keyboard.type("worker-app")
    _tabs_to(alice, "[name=hostname]")
    alice.page.keyboard.type("w-8")
    _tabs_to(alice, "main button.primary")
    _enters(alice)
    machine = alice.world.operator.machine(machine_id)
    assert (machine["status"], machine["role"], machine["hostname"]) == ("registered", "worker-app", "w-8")


def test_asking_needs_no_mouse(visit: Visit) -> None:
    """A query is written and run by the keyboard; Tab leaves the editor."""
    alice = visit("alice")
    alice.opens("/")
    _tabs_to(alice, "nav.side a[href='/query']")
    _enters(alice)
    _tabs_to(alice, "textarea[name=q]")
    alice.page.keyboard.type("Machines | where hostname == 'w-5' | project hostname, trust", delay=2)
    alice.page.keyboard.press("Escape")
    _tabs_to(alice, "main button.primary")
    _enters(alice)
    assert "failed" in alice.page.locator("main table").inner_text()


def test_nothing_moves_for_somebody_who_asked_for_that(visit: Visit) -> None:
    """`prefers-reduced-motion`: no animation and no transition, also of what is still loading."""
    moves = """() => {
        const loading = document.createElement("span");
        loading.className = "badge loading";
        document.querySelector("main").append(loading);
        return getComputedStyle(loading, "::before").animationName;
    }"""
    for preference, expected in (("no-preference", "waits"), ("reduce", "none")):
        alice = visit("alice", reduced_motion=preference)
        alice.opens("/")
        assert alice.page.evaluate(moves) == expected
