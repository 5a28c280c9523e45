"""Every kind of page, walked through once: axe-core in both themes, twice as large, on a telephone, after a swap."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.web.conftest import Visit
from tests.e2e.web.tour import BARS, LINES, Stop, asked, stops
from tests.e2e.web.visitor import Visitor
from tests.e2e.web.world import World

pytestmark = [pytest.mark.swtpm, pytest.mark.slow]

WINDOWS: Final = {
    # What Chromium makes of 1440 pixels at a zoom of 200 %: half as many, each twice as large.
    "at 200 %": {"width": 720, "height": 450, "deviceScaleFactor": 2, "mobile": False},
    "on a telephone": {"width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": False},
}
WIDER: Final = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
IS_IN_VIEW: Final = """() => [...document.querySelectorAll(".side [aria-current]")].every((here) => {
    const box = here.getBoundingClientRect();
    return box.left >= 0 && box.right <= document.documentElement.clientWidth;
})"""
JUDGE: Final = "only => axe.run(document, {resultTypes: ['violations'], ...(only && {runOnly: only})})"


@dataclass(kw_only=True)
class Walked:
    """What was seen on the way."""

    pages: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)


def _judged(visitor: Visitor, name: str, only: Sequence[str] | None = None) -> Iterator[str]:
    """Yield what axe-core finds in the page that is open, by all of its rules or *only* some."""
    found: dict[str, Any] = visitor.page.evaluate(JUDGE, only)
    assert found["passes"], f"{name}: nothing was judged"
    for rule in found["violations"]:
        for node in rule["nodes"]:
            yield (
                f"{name}: {rule['impact']}: {rule['id']}: {node['html'][:200]} {json.dumps(node['any'][:1])[:300]}"
            )


def _look(visitor: Visitor, stop: Stop, axe: str, walked: Walked) -> None:
    """Look at one page in both themes and at each size, without loading it anew."""
    stop.visit(visitor)
    walked.pages.append(stop.name)
    visitor.page.evaluate(axe)
    walked.faults += _judged(visitor, stop.name)
    # The same page in other colours: nothing but they can be wrong now.
    visitor.page.evaluate("document.documentElement.dataset.theme = 'light'")
    walked.faults += _judged(visitor, f"{stop.name}, light", ["color-contrast"])
    for size, metrics in WINDOWS.items():
        session = visitor.context.new_cdp_session(visitor.page)
        session.send("Emulation.setDeviceMetricsOverride", metrics)
        if over := visitor.page.evaluate(WIDER):
            walked.wide.append(f"{stop.name} {size}: {over} pixels wider than the window")
        visitor.page.wait_for_function(IS_IN_VIEW)
        session.send("Emulation.clearDeviceMetricsOverride")
        session.detach()


@pytest.fixture(scope="module")
def walked(browser: Browser, world: World, axe: str) -> Walked:
    """The tour, once for all who ask about it."""
    found = Walked()
    visitors: dict[str, Visitor] = {}

    def visitor(name: str) -> Visitor:
        if name not in visitors:
            visitors[name] = Visitor(browser, world, name)
        return visitors[name]

    areas = dict.fromkeys(visitor("carol").areas(), "carol") | dict.fromkeys(
        visitor("alice").areas(), "alice"
    )
    for stop in (*(Stop(name=path, path=path, who=who) for path, who in areas.items()), *stops(world)):
        _look(visitor(stop.who), stop, axe, found)
    for each in visitors.values():
        found.console += each.console
        each.context.close()
    return found


def test_axe_core_finds_nothing(walked: Walked) -> None:
    """Contrast, names, roles, order: on every kind of page, in both themes."""
    assert walked.faults == []
    assert len(walked.pages) > 80


def test_nothing_is_cut_off_when_text_is_twice_as_large(walked: Walked) -> None:
    """No page is wider than its window, at 200 % and on a telephone: tables scroll by themselves."""
    assert walked.wide == []


def test_no_page_breaks_a_rule_of_its_own_policy(walked: Walked) -> None:
    """Nothing is refused by the Content-Security-Policy, and no script fails."""
    assert walked.console == []


def test_who_reads_keeps_their_place_when_the_page_asks_again(visit: Visit) -> None:
    """What has the focus keeps it, and what one scrolled to stays, when a part of the page is exchanged."""
    alice = visit("alice", viewport={"width": 1024, "height": 500})
    page = alice.opens("/")
    part = page.locator("#live-fleet")
    link = part.locator(".legend a", has_text="revoked")
    link.focus()
    before, as_of = page.evaluate("scrollY"), part.get_attribute("data-as-of")
    assert before > 0
    assert as_of
    expect(part).not_to_have_attribute("data-as-of", as_of)
    expect(link).to_be_focused()
    assert page.evaluate("scrollY") == before


def test_what_could_not_be_asked_for_again_looks_old(visit: Visit) -> None:
    """The page says since when it is, once; and says so no more when it was asked for anew."""
    alice = visit("alice")
    page = alice.opens("/")
    part = page.locator("#live-overview")
    old = part.locator(".banner.is-old")
    page.route("**/*", lambda route: route.abort())
    expect(old).to_have_count(1)
    said = (part.get_attribute("data-as-of") or "").replace("T", " ")[:19]
    expect(old).to_contain_text(f"it is of {said} UTC")
    assert part.locator(".tiles").evaluate("each => getComputedStyle(each).filter") == "grayscale(0.75)"
    page.unroute("**/*")
    expect(old).to_have_count(0)
    alice.console.clear()  # Chromium tells there of what was aborted.


def test_the_menu_of_a_machine_lies_above_what_is_old(visit: Visit) -> None:
    """What is greyed out because it is old does not cover what can be done."""
    alice = visit("alice")
    page = alice.opens(f"/machines/{alice.world.machines['w-2'].machine_id}")
    page.locator("details.more summary").click()
    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#live-machine .banner.is-old")).to_have_count(1)
    page.locator("#can-revoke a").click(trial=True)
    page.unroute("**/*")
    alice.console.clear()  # Chromium tells there of what was aborted.


def test_what_never_came_does_not_look_as_if_it_were_coming(visit: Visit) -> None:
    """The part of the overview that comes later and does not come says so, and leaves the link to it."""
    alice = visit("alice")
    alice.opens("/machines")
    page = alice.page
    page.route("**/fleet", lambda route: route.abort())
    page.goto("/")
    later = page.locator("#live-fleet")
    expect(later.locator(".banner")).to_contain_text("Not known now")
    expect(later.locator(".loading")).to_have_count(0)
    expect(later.locator("a[href='/fleet']")).to_be_visible()
    alice.console.clear()  # Chromium tells there of what was aborted.


def test_paper_says_when_and_has_nothing_to_press(visit: Visit) -> None:
    """A printed page is read later, by who has no pointer."""
    page = visit("alice").opens("/machines")
    page.emulate_media(media="print")
    for gone in ("nav.side", ".filters", "header.top form", "td input"):
        expect(page.locator(gone).first).to_be_hidden()
    when = "each => getComputedStyle(each, '::after').content + getComputedStyle(each).fontSize"
    assert page.locator("td time").first.evaluate(when).endswith(' UTC"0px')


def test_the_editor_completes_and_marks(visit: Visit) -> None:
    """What fits is offered and taken by the keyboard; a fault is told while one types, and gone when it is mended."""
    page = visit("alice").opens("/query")
    editor, fits, state = (
        page.get_by_label("Query", exact=True),
        page.locator("#fits"),
        page.locator("#q-state"),
    )
    editor.press_sequentially("Machines | where hostn")
    expect(fits).to_be_visible()
    editor.press("Escape")
    expect(fits).to_be_hidden()
    editor.press("Control+ ")
    expect(fits).to_be_visible()
    chosen = fits.locator("[aria-selected=true]")
    expect(chosen).to_contain_text("hostname")
    assert editor.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    editor.press("Enter")
    expect(editor).to_have_value("Machines | where hostname")
    editor.press_sequentially(" == 'w-5' | project hostnme ")
    expect(state).to_contain_text("Did you mean hostname?")
    expect(page.locator(".typed.wrong")).to_have_count(1)
    for _ in range(len("hostnme ")):
        editor.press("Backspace")
    editor.press_sequentially("trust ")
    expect(state).to_have_text("Good: it answers with 1 column")
    expect(page.locator(".typed.wrong")).to_have_count(0)
    with page.expect_navigation():
        editor.press("Control+Enter")
    assert page.locator("main tbody").inner_text().strip() == "failed"


def test_the_editor_says_when_it_does_not_know(visit: Visit) -> None:
    """What was said of an earlier text is not left standing when the service cannot be asked."""
    alice = visit("alice")
    page = alice.opens("/query")
    editor, state = page.get_by_label("Query", exact=True), page.locator("#q-state")
    editor.fill("Machines | count")
    expect(state).to_contain_text("Good")
    page.route("**/query/check?*", lambda route: route.abort())
    editor.fill("Machines | nothing")
    expect(state).to_contain_text("Not checked")
    alice.console.clear()  # Chromium tells there of what was aborted.


def test_an_answer_is_drawn_taken_away_and_passed_on(visit: Visit) -> None:
    """Lines and bars; the file holds the same rows; the address that is copied asks the same for somebody else."""
    alice = visit("alice", permissions=["clipboard-read", "clipboard-write"])
    page = alice.opens("/query")
    asked(LINES)(alice)
    expect(page.locator(".drawn canvas")).to_have_count(1)
    expect(page.locator(".drawn .u-legend")).to_contain_text("Failed")
    asked(BARS)(alice)
    expect(page.locator(".bars rect").first).to_be_visible()
    shown = [row.split() for row in page.locator(".table tbody tr").all_inner_texts()]
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.reader(io.StringIO(download.value.path().read_text(encoding="utf-8"))))
    assert rows == [["trust", "machines"], *shown]
    page.locator("[data-copy-address]").click()
    expect(page.locator("[data-copy-address].done")).to_have_count(1)
    link = page.evaluate("navigator.clipboard.readText()")
    vera = visit("vera")
    vera.opens("/query")
    vera.opens(link)
    assert [row.split() for row in vera.page.locator(".table tbody tr").all_inner_texts()] == shown


def test_a_column_is_put_where_one_writes(visit: Visit) -> None:
    """By the mouse or the keyboard, from the list beside the editor."""
    page = visit("vera").opens("/query")
    page.get_by_label("Query", exact=True).fill("Machines | project ")
    machines = page.locator(".of-table").filter(has=page.get_by_text("Machines", exact=True))
    machines.locator("summary").click()
    machines.locator("[data-insert=hostname]").press("Enter")
    expect(page.get_by_label("Query", exact=True)).to_have_value("Machines | project hostname")
