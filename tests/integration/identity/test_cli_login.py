"""The real command line logs in at a real provider, and the real service believes it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.fixtures.openid.provider import OPENID, OPERATOR, Provider
from tests.fixtures.service import ServiceProcess

BIN = str(Path(sys.executable).with_name("attestation"))
SECONDS = 60


class Site(NamedTuple):
    """A provider, and a service that trusts it."""

    provider: Provider
    service: ServiceProcess


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # A provider of its own: another test's new keys would make the service ask again.
    with Provider() as provider:
        provider.add_user("anna", [OPERATOR], password="pw-canary")
        provider.add_user("vera", ["attestation-viewer"])
        provider.add_user("nobody")
        service = ServiceProcess(
            directory=tmp_path_factory.mktemp("service"), environment={"ITL_OIDC_ISSUER": provider.issuer}
        )
        service.start()
        try:
            yield Site(provider, service)
        finally:
            service.kill()


@dataclass
class Laptop:
    """Somebody's computer: a home, and no variable of ours but the address of the service."""

    home: Path
    site: Site
    printed: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of its commands."""
        theirs = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "KEYCLOAK_", "COVERAGE_"))}
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "SSH_CONNECTION"):
            theirs.pop(name, None)
        ours = {"HOME": str(self.home), "ITL_API_URL": self.site.service.url}
        return theirs | ours | self.environment

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Type a command."""
        done = subprocess.run(
            [BIN, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        self.printed += done.stdout + done.stderr
        return done

    def ok(self, *args: str) -> str:
        """Type a command that must succeed."""
        done = self.run(*args)
        assert done.returncode == 0, f"{args}: {done.stdout}{done.stderr}"
        return done.stdout

    def login(self, name: str, *args: str, deny: bool = False) -> subprocess.CompletedProcess[str]:
        """Log in as *name* in whatever browser."""
        with subprocess.Popen(
            [BIN, "auth", "login", "--issuer", self.site.provider.issuer, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                told = ""
                while not told.endswith("Ctrl-C ends it.\n"):
                    line = process.stderr.readline()
                    assert line, told
                    told += line
                addresses = re.findall(r"(http://\S+)$", told, flags=re.MULTILINE)
                command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
                end = self.site.provider.sign_in(addresses[-1], name, deny=deny)
                if "/callback?" in end:
                    with httpx.Client(trust_env=False, follow_redirects=True, timeout=60) as browser:
                        page = browser.get(end)
                    assert page.status_code == 200
                    assert str(page.url).endswith("/done")
                    code = httpx.URL(end).params.get("code")
                    assert code is None or code not in page.text
                out, err = process.communicate(timeout=SECONDS)
            finally:
                process.kill()
        self.printed += told + out + err
        assert b"state" not in command_line
        return subprocess.CompletedProcess(process.args, process.returncode, out, told + err)

    def kept(self) -> dict[str, Any]:
        """Return the only login that is kept."""
        (file,) = (self.home / ".itl" / "attestation-cache").glob("*.json")
        assert file.stat().st_mode & 0o777 == 0o600
        found: dict[str, Any] = json.loads(file.read_text())
        return found


@pytest.fixture
def laptop(tmp_path: Path, site: Site) -> Iterator[Laptop]:
    laptop = Laptop(tmp_path / "home", site)
    laptop.home.mkdir(mode=0o700)
    yield laptop
    site.provider.start()
    site.provider.configure(access_token_seconds=300, direct_access_grants=False)
    for token in re.findall(r"eyJ[\w-]+\.[\w-]+\.[\w-]+", laptop.printed):
        raise AssertionError(f"a token was printed: {token[:20]}…")
    assert "pw-canary" not in laptop.printed


@pytest.mark.threat("T56")
def test_a_login_with_a_browser_opens_the_service(laptop: Laptop, site: Site) -> None:
    """Code and PKCE through the provider's own forms; then commands work without another word, until logout."""
    assert laptop.run("machine", "list").returncode == 4
    done = laptop.login("anna", "--profile", "prod", "--fresh")
    assert done.returncode == 0, done.stderr
    assert "Logged in as anna" in done.stdout
    assert "code_challenge_method=S256" in done.stderr

    # The profile names service and provider from now on.
    laptop.environment["ITL_API_URL"] = ""
    laptop.ok("machine", "list")
    told = laptop.ok("auth", "whoami", "--check")
    assert re.search(r"user +anna\n", told)
    assert "attestation-operator" in told
    assert "you may: read machines" in told
    assert "no login" not in laptop.ok("auth", "cache-list")

    # The service knows the person, not a shared token.
    kept = laptop.kept()
    created = json.loads(laptop.ok("token", "create", "--role", "generic", "-o", "json"))
    assert created["created_by"] == "anna"

    # Logged out, also at the provider.
    assert "the provider has ended it" in laptop.ok("auth", "logout")
    assert laptop.run("auth", "whoami").returncode == 1
    assert laptop.run("machine", "list").returncode == 4
    answer = httpx.post(
        f"{site.provider.issuer}{OPENID}/token",
        data={
            "grant_type": "refresh_token",
            "refresh_token": kept["refresh_token"],
            "client_id": "attestation-cli",
        },
        timeout=60,
    )
    assert answer.json()["error"] == "invalid_grant"
    for secret in (kept["access_token"], kept["refresh_token"]):
        assert secret not in laptop.printed


def test_a_login_with_another_device_opens_the_service(laptop: Laptop) -> None:
    """RFC 8628: the person opens the complete address, confirms the code, and the command goes on."""
    done = laptop.login("vera", "--method", "device", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["username"] == "vera"
    assert re.search(r"enter the code +[A-Z0-9-]{6,}", done.stderr)
    laptop.ok("machine", "list")
    # A viewer reads and does not act.
    refused = laptop.run("token", "create", "--role", "generic")
    assert refused.returncode == 4
    assert "you may not do this" in refused.stderr


def test_whoever_has_no_role_is_known_and_may_nothing(laptop: Laptop) -> None:
    """403, told as such; `whoami --check` ends with 1."""
    assert laptop.login("nobody").returncode == 0
    done = laptop.run("machine", "list")
    assert done.returncode == 4
    assert "you may not do this" in done.stderr
    checked = laptop.run("auth", "whoami", "--check")
    assert checked.returncode == 1
    assert "no role lets you do anything" in checked.stdout


def test_an_expired_token_is_renewed_by_itself_and_once(laptop: Laptop, site: Site) -> None:
    """Four commands at once find an expired token: one spends the refresh token, which the provider takes only once."""
    site.provider.configure(access_token_seconds=3)
    assert laptop.login("anna").returncode == 0
    before = laptop.kept()
    time.sleep(3.5)
    site.provider.configure(access_token_seconds=300)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: laptop.run("machine", "list"), range(4)))
    assert [d.returncode for d in done] == [0] * 4, [d.stderr for d in done]
    after = laptop.kept()
    assert after["access_token"] != before["access_token"]
    assert after["refresh_token"] != before["refresh_token"]
    # A provider that saw a refresh token twice would have ended the whole login.
    laptop.ok("auth", "refresh")
    laptop.ok("machine", "list")


def test_a_login_that_the_provider_has_ended_says_so(laptop: Laptop, site: Site) -> None:
    """No token, no command; and the way back in one line."""
    site.provider.configure(access_token_seconds=1)
    assert laptop.login("anna").returncode == 0
    kept = laptop.kept()
    httpx.post(
        f"{site.provider.issuer}{OPENID}/revoke",
        data={"token": kept["refresh_token"], "client_id": "attestation-cli"},
        timeout=60,
    ).raise_for_status()
    time.sleep(1.2)
    done = laptop.run("machine", "list")
    assert done.returncode == 4
    assert "attestation auth login" in done.stderr


def test_a_refusal_is_told_in_words(laptop: Laptop) -> None:
    """The person says no at the provider."""
    done = laptop.login("anna", deny=True)
    assert done.returncode == 4
    assert "refused (access_denied" in done.stderr
    assert not list((laptop.home / ".itl" / "attestation-cache").glob("*.json"))


def test_a_provider_that_is_down_stops_no_valid_login(laptop: Laptop, site: Site) -> None:
    """Commands go on with the token that is kept; a new login says what is missing; logging out works all the same."""
    assert laptop.login("anna").returncode == 0
    site.provider.stop()
    laptop.ok("machine", "list")
    done = laptop.run("auth", "login", "--issuer", site.provider.issuer)
    assert done.returncode == 6
    assert "the identity provider does not answer" in done.stderr
    assert "has not ended it" in laptop.ok("auth", "logout")
    assert laptop.run("auth", "whoami").returncode == 1


def test_another_issuer_than_the_providers_is_refused(laptop: Laptop, site: Site) -> None:
    """To the letter: `localhost` is not `127.0.0.1`."""
    done = laptop.run("auth", "login", "--issuer", site.provider.issuer.replace("127.0.0.1", "localhost"))
    assert done.returncode == 6
    assert "calls itself" in done.stderr


def test_the_older_names_of_the_environment_are_read(laptop: Laptop, site: Site) -> None:
    """KEYCLOAK_URL, KEYCLOAK_REALM, KEYCLOAK_CLIENT_ID, ATTESTATION_API_URL."""
    laptop.environment |= {
        "ITL_API_URL": "",
        "ATTESTATION_API_URL": site.service.url,
        "KEYCLOAK_URL": site.provider.origin,
        "KEYCLOAK_REALM": "itl",
        "KEYCLOAK_CLIENT_ID": "attestation-cli",
    }
    assert laptop.login("anna").returncode == 0
    laptop.ok("machine", "list")
    laptop.ok("auth", "whoami", "--keycloak-url", site.provider.origin, "--realm", "itl")


def test_a_password_is_typed_at_a_terminal_and_not_shown(laptop: Laptop, site: Site) -> None:
    """Not from a pipe, not from the command line; it is not echoed; and the provider must offer it."""
    site.provider.configure(direct_access_grants=True)
    args = ["auth", "login", "--issuer", site.provider.issuer, "--method", "password", "-u", "anna"]
    piped = laptop.run(*args)
    assert piped.returncode == 2
    assert "at a terminal only" in piped.stderr
    status, seen = in_terminal(laptop, args, [("Password", "pw-canary")])
    assert status == 0, seen
    assert "Logged in as anna" in seen
    assert "passes your password through this program" in seen
    assert "pw-canary" not in seen
    laptop.ok("machine", "list")
    status, seen = in_terminal(laptop, args, [("Password", "wrong")])
    assert status == 4
    assert "name or password is wrong" in seen


def in_terminal(laptop: Laptop, args: list[str], answers: list[tuple[str, str]]) -> tuple[int, str]:
    """Run a command in a terminal of its own and type; return how it ended and what the terminal showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [BIN, *args], env=laptop.env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen, left, deadline = b"", list(answers), time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([ours], [], [], 0.2)
            if not ready:
                if process.poll() is not None:
                    break
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux: the other end was closed
                break
            if not piece:
                break
            seen += piece
            if left and left[0][0].encode() in seen:
                # The prompt stands before the terminal stops to echo.
                while termios.tcgetattr(ours)[3] & termios.ECHO and time.monotonic() < deadline:
                    time.sleep(0.01)
                os.write(ours, left.pop(0)[1].encode() + b"\n")
        return process.wait(60), seen.decode(errors="replace")
    finally:
        process.kill()
        os.close(ours)
