"""Somebody at a browser of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.e2e.web.world import World

LOGIN_STEPS = 5
TIMEOUT_MS = 60_000


class Visitor:
    """A person with a browser: cookies, a window, and what its console says.

    Args:
        browser: The program; each visitor has a profile of their own in it.
        world: Where they go.
        name: Who, by their account; empty for somebody who never logs in.
        theme: `dark`, `light` or `system`.
        more: Of Playwright's context: `viewport`, `reduced_motion`, `java_script_enabled`.
    """

    def __init__(
        self, browser: Browser, world: World, name: str, *, theme: str = "dark", **more: Any
    ) -> None:
        self.world, self.name = world, name
        self.context = browser.new_context(
            base_url=world.web.url, **{"viewport": {"width": 1440, "height": 900}, **more}
        )
        self.context.add_cookies([{"name": "itl-web-theme", "value": theme, "url": world.web.url}])
        self.console: list[str] = []
        self.context.set_default_timeout(TIMEOUT_MS)
        # What is expected of a page has its own: five seconds are two polls, which a busy machine may take for one.
        expect.set_options(timeout=TIMEOUT_MS)
        self.page = self._watched(self.context.new_page())

    def _watched(self, page: Page) -> Page:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.console.append(f"{page.url}: {error}"))
        return page

    def _said(self, message: ConsoleMessage) -> None:
        # That an address answered 403 or 404 is said there too, and is a page that somebody asked for.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.console.append(f"{self.page.url}: {message.text}")

    def opens(self, path: str) -> Page:
        """Open a page, through the provider where it asks who this is, with what comes after it."""
        answer = self.page.goto(path)
        if not self.signs_in():
            assert answer is not None
            assert answer.ok, f"{path}: {answer.status}"
        # What comes after the page is there too.
        expect(self.page.locator(".later")).to_have_count(0)
        return self.page

    def signs_in(self) -> bool:
        """Answer the provider's pages until it sends the browser back; tell whether there were any."""
        provider = self.world.provider
        for step in range(LOGIN_STEPS):
            if not self.page.url.startswith(provider.origin):
                return step > 0
            if self.page.locator("[name=login]").count():
                self.page.fill("[name=login]", provider.users[self.name].sub)
                self.page.fill("[name=password]", "any")
            with self.page.expect_navigation():
                self.page.locator("button[type=submit], input[type=submit], button.login").first.click()
        raise AssertionError(f"the provider's pages have no end: {self.page.url}")

    def presses(self, name: str) -> None:
        """Press a button of the page's own, and wait for what comes."""
        with self.page.expect_navigation():
            self.page.locator("main").get_by_role("button", name=name, exact=True).click()

    def areas(self) -> Sequence[str]:
        """Return the addresses of the navigation."""
        self.opens("/")
        links = self.page.locator("nav.side a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
        return [str(each) for each in links]

    def text(self) -> str:
        """Return what stands in the page."""
        return self.page.locator("main").inner_text()
