"""The dashboard as its operators run it, before a service and a provider that are real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.fixtures.openid.provider import OPERATOR, Provider
from tests.fixtures.service import ServiceProcess, StartService, start_service
from tools.ports import free_port

__all__ = ["start_service"]

SECRET = "attestation-web-secret-of-the-tests-only"  # as tests/fixtures/openid/server.mjs has it
START_SECONDS = 60
STOP_SECONDS = 40


@dataclass(kw_only=True)
class WebProcess:
    """A running dashboard."""

    directory: Path
    service_url: str
    issuer: str
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self.directory / "web.log").read_text(encoding="utf-8")

    def start(self) -> None:
        """Start it and wait until it serves."""
        secret = self.directory / "web.secret"
        secret.write_text(f"{SECRET}\n", encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
        environment |= {
            "ITL_WEB_URL": self.url,
            "ITL_WEB_SERVICE_URL": self.service_url,
            "ITL_WEB_OIDC_ISSUER": self.issuer,
            "ITL_WEB_OIDC_CLIENT_SECRET_FILE": str(secret),
            "ITL_WEB_LISTEN_PORT": str(self.port),
            "ITL_WEB_LOG_LEVEL": "debug",
            **self.environment,
        }
        with (self.directory / "web.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("attestation-web")), "serve"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"{self.url}/healthz", timeout=5, trust_env=False).text == "ok\n":
                    return
            except httpx.TransportError:
                pass
            assert self._process.poll() is None and time.monotonic() < deadline, self.log  # noqa: PT018
            time.sleep(0.05)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait(STOP_SECONDS)


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
