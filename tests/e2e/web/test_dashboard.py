"""The dashboard as people meet it: Chromium before the real service, a real provider and software TPMs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.web.conftest import Visit
from tests.e2e.web.visitor import Visitor

pytestmark = [pytest.mark.swtpm, pytest.mark.slow]

NARROW = 390
HALF = 720
"""What is left of 1440 pixels at 200 %."""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def _faults(visitor: Visitor, axe: str) -> list[str]:
    """Return what axe-core finds serious or critical in the page that is open."""
    visitor.page.evaluate(axe)
    found: dict[str, Any] = visitor.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    assert found["passes"], "nothing was judged"
    return [
        f"{visitor.page.url}: {rule['id']}: {node['html'][:200]} {json.dumps(node['any'][:1])[:300]}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


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


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_axe_core_finds_nothing_serious(visit: Visit, axe: str, theme: str) -> None:
    """Contrast, names, roles, order: on every page of the navigation, and those behind them, in both themes."""
    alice = visit("alice", theme=theme)
    faults = []
    for path in alice.areas():
        alice.opens(path)
        faults += _faults(alice, axe)
    assert faults == []


def test_nothing_is_cut_off_when_text_is_twice_as_large(visit: Visit) -> None:
    """No page is wider than its window: at 200 % of 1440 pixels, and on a telephone; tables scroll by themselves."""
    alice = visit("alice")
    paths, wide = alice.areas(), []
    for width in (HALF, NARROW):
        alice.page.set_viewport_size({"width": width, "height": 900})
        for path in paths:
            alice.opens(path)
            if over := alice.page.evaluate(WIDER):
                wide.append(f"{path} at {width}: {over} pixels")
    assert wide == []


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
