"""The dashboard as its operators run it, before a service and a provider that are real."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.fixtures.openid.provider import OPERATOR, Provider
from tests.fixtures.service import ServiceProcess, StartService, start_service
from tests.fixtures.web_process import WebProcess

__all__ = ["start_service"]


class Person:
    """Somebody with a browser, at the provider and at the dashboard."""

    def __init__(self, name: str, web: WebProcess, provider: Provider) -> None:
        self.name, self.web, self._provider = name, web, provider
        self.browser = httpx.Client(base_url=web.url, timeout=60, trust_env=False)

    def follow(self, answer: httpx.Response) -> httpx.Response:
        """Go wherever an answer sends the browser, through the provider's pages too."""
        for _ in range(20):
            if not answer.is_redirect:
                return answer
            target = str(answer.request.url.join(answer.headers["location"]))
            if target.startswith(self._provider.origin):
                target = self._provider.sign_in(target, self.name, browser=self.browser)
            answer = self.browser.get(target)
        raise AssertionError("redirects have no end")

    def get(self, path: str) -> httpx.Response:
        """Open a page, logging in where that is asked for."""
        return self.follow(self.browser.get(path))

    @property
    def cookies(self) -> dict[str, str]:
        """What it keeps for the dashboard."""
        jar = self.browser.cookies.jar
        return {c.name: c.value or "" for c in jar if c.name.startswith("itl-web")}

    @property
    def cookie(self) -> str:
        """The session's id."""
        return self.browser.cookies.get(f"itl-web-{self.web.port}", "", domain="127.0.0.1") or ""


@pytest.fixture(scope="module")
def service(start_service: StartService, provider_process: Provider) -> ServiceProcess:
    """A service that trusts the provider."""
    return start_service(ITL_OIDC_ISSUER=provider_process.issuer)


@pytest.fixture(scope="module")
def web(
    service: ServiceProcess, provider_process: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebProcess]:
    """A dashboard of both."""
    running = WebProcess(
        directory=tmp_path_factory.mktemp("web"), service_url=service.url, issuer=provider_process.issuer
    )
    running.start()
    yield running
    assert running.stop() == 0, running.log


People = Callable[..., Person]


@pytest.fixture
def people(web: WebProcess, provider: Provider) -> Iterator[People]:
    """A function that returns somebody with these roles, not logged in yet."""
    provider.configure(web_url=web.url)
    with contextlib.ExitStack() as stack:

        def make(name: str, *roles: str) -> Person:
            provider.add_user(name, realm_roles=list(roles))
            person = Person(name, web, provider)
            stack.callback(person.browser.close)
            return person

        yield make


@pytest.fixture
def alice(people: People) -> Person:
    """An operator, not logged in yet."""
    return people("alice", OPERATOR)
