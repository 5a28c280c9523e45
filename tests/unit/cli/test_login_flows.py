"""The three ways in: what is sent, what is believed, how each refusal ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from attestation.client.openid.errors import LoginRefused, ProviderInvalid
from attestation_cli.login import device, interactive, loopback, password
from attestation_cli.login.cache import Login
from attestation_cli.login.errors import LoginTimedOut
from attestation_cli.login.loopback import Loopback
from tests.unit.cli.idp import AT, CANARY, CLIENT, ISSUER, Browser, Idp, refused, verifies

SCOPE = "openid profile email"


def in_browser(idp: Idp, browser: Browser, *, seconds: float = 10) -> Login:
    with idp.provider() as provider:
        return interactive.login(
            provider, client_id=CLIENT, scope=SCOPE, show=browser, now=lambda: AT, wait_seconds=seconds
        )


# Authorization code


@pytest.mark.threat("T54")
def test_a_browser_logs_in() -> None:
    """The request is that of RFC 7636 and RFC 8252; the code is exchanged with the verifier of its challenge."""
    idp = Idp()
    browser = Browser(idp)
    login = in_browser(idp, browser)
    asked = browser.asked
    assert asked["response_type"] == "code"
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")
    assert asked["redirect_uri"].endswith("/callback")
    assert len({asked["state"], asked["nonce"], asked["code_challenge"]}) == 3
    path, form = idp.forms[-1]
    assert (path, form["grant_type"], form["code"]) == (
        "protocol/token",
        "authorization_code",
        f"{CANARY}-code",
    )
    assert form["redirect_uri"] == asked["redirect_uri"]
    assert verifies(form["code_verifier"], asked["code_challenge"])
    assert form["code_verifier"] not in str(browser.asked)
    assert login.username == "anna"


def test_two_logins_share_nothing() -> None:
    """State, nonce and challenge are new each time."""
    browsers = [Browser(Idp()) for _ in range(2)]
    for browser in browsers:
        in_browser(browser.idp, browser)
    one, other = (browser.asked for browser in browsers)
    assert not {one[n] for n in ("state", "nonce", "code_challenge")} & {
        other[n] for n in ("state", "nonce", "code_challenge")
    }


@pytest.mark.threat("T54")
def test_the_code_does_not_stay_in_the_browser() -> None:
    """The answer is redirected to a page without parameters that is not stored, runs nothing and repeats nothing."""
    idp = Idp()
    browser = Browser(idp)
    in_browser(idp, browser)
    redirect, page = browser.pages
    assert (redirect.status_code, redirect.headers["Location"], redirect.content) == (303, "/done", b"")
    assert page.status_code == 200
    for answer in browser.pages:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "Server" not in answer.headers
    assert CANARY not in page.text
    assert browser.asked["state"] not in page.text
    assert "<script" not in page.text


def test_a_refusal_ends_after_the_page_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to do after a no, so the program ends at once: also then the browser has its page."""
    ended, early = threading.Event(), []
    write_head = loopback._Handler.end_headers

    def slowly(handler: loopback._Handler) -> None:
        if handler.path == loopback.DONE:
            early.append(ended.wait(0.5))
        write_head(handler)

    monkeypatch.setattr(loopback._Handler, "end_headers", slowly)
    with ThreadPoolExecutor(1) as person:
        with Loopback() as server:
            url = f"{server.redirect_uri}?error=access_denied"
            reading = person.submit(httpx.get, url, follow_redirects=True, trust_env=False, timeout=60)
            server.wait(60)
        ended.set()
        assert reading.result().status_code == 200
    assert early == [False]


@pytest.mark.threat("T54")
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"state": "x" * 43}, "state"),
        ({"state": None}, "state"),
        ({"state": ""}, "state"),
        ({"state": "é"}, "state"),
        ({"iss": "https://evil.example"}, "another provider"),
        ({"iss": None}, "does not say who"),
        ({"code": None}, "no code"),
        ({"code": ""}, "no code"),
        ({"code": "x" * 5000}, "no code"),
        ({"error": "access_denied"}, "refused"),
        ({"error": ""}, "refused"),
        ({"error": "temporarily_unavailable", "code": "stolen"}, "cannot do it now"),
        ({"error": "access_denied", "state": "x" * 43}, "state"),
        ({"error": "access_denied", "iss": "https://evil.example"}, "another provider"),
    ],
)
def test_an_answer_that_is_not_ours_is_refused(changes: dict[str, str | None], word: str) -> None:
    """State first, then the issuer (RFC 9207), then what it says; no code is exchanged."""
    idp = Idp()
    with pytest.raises(LoginRefused, match=word):
        in_browser(idp, Browser(idp, changes))
    assert idp.forms == []


@pytest.mark.threat("T54")
def test_a_parameter_that_comes_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two codes or states, we and the provider could mean different ones."""
    monkeypatch.setattr(loopback, "GRACE_SECONDS", 0.1)  # nobody comes for the page
    idp = Idp()
    browser = Browser(idp)

    def twice(url: str) -> None:
        browser.send = False
        browser(url)
        state = browser.asked["state"]
        browser.get(f"?code=a&state={state}&state={state}&iss={ISSUER}")

    with idp.provider() as provider, pytest.raises(LoginRefused, match="repeats"):
        interactive.login(provider, client_id=CLIENT, scope=SCOPE, show=twice, now=lambda: AT)


@pytest.mark.threat("T54")
def test_an_issuer_that_is_not_advertised_may_be_absent_but_not_wrong() -> None:
    """RFC 9207 §2.4."""
    idp = Idp(metadata={"authorization_response_iss_parameter_supported": None})
    assert in_browser(idp, Browser(idp, {"iss": None})).username == "anna"
    with pytest.raises(LoginRefused, match="another provider"):
        in_browser(idp, Browser(idp, {"iss": "https://evil.example"}))


@pytest.mark.threat("T54")
def test_an_id_token_with_another_nonce_is_refused() -> None:
    """A code of another login, put into ours, yields nothing."""
    idp = Idp(id_token={"nonce": "another"})
    with pytest.raises(LoginRefused, match="nonce"):
        in_browser(idp, Browser(idp))


def test_nobody_in_front_of_the_browser_ends_the_login() -> None:
    """After two minutes (here less)."""
    idp = Idp()
    with pytest.raises(LoginTimedOut):
        in_browser(idp, Browser(idp, send=False), seconds=0.2)
    assert interactive.WAIT_SECONDS == 120


@pytest.mark.threat("T54")
def test_one_answer_is_accepted_and_nothing_else_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another path, host, method, or a second answer: 404 or refused; a page of somebody else decides nothing."""
    monkeypatch.setattr(loopback, "GRACE_SECONDS", 0.1)  # nobody comes for the page
    idp = Idp()
    browser = Browser(idp, send=False)
    seen: list[int] = []

    def show(url: str) -> None:
        browser(url)
        state = browser.asked["state"]
        good = f"?code={CANARY}-code&state={state}&iss={ISSUER}"
        uri = browser.asked["redirect_uri"]
        seen.extend(
            browser.get("", path=path).status_code for path in ("/", "/done", "/favicon.ico", "/callback/x")
        )
        seen.append(browser.get(good, headers={"Host": "evil.example"}).status_code)
        seen.append(browser.get(f"{good}&x={'x' * 9000}").status_code)
        with httpx.Client(trust_env=False, timeout=60) as client:
            seen.append(client.post(uri + good).status_code)
            seen.append(client.head(uri + good).status_code)
        assert browser.get(good).status_code == 303
        seen.append(browser.get("?error=access_denied").status_code)

    with idp.provider() as provider:
        login = interactive.login(provider, client_id=CLIENT, scope=SCOPE, show=show, now=lambda: AT)
    assert login.username == "anna"
    assert set(seen) <= {404, 501}
    assert seen.count(404) == 7


@pytest.mark.threat("T54")
def test_the_server_listens_on_this_computer_only_and_ends() -> None:
    """127.0.0.1, a port of the system's choice; closed afterwards."""
    with Loopback() as loopback:
        host, port = loopback._server.server_address[:2]
        assert host == "127.0.0.1"
        assert loopback.redirect_uri == f"http://127.0.0.1:{port}/callback"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", loopback.port), timeout=60)


def test_a_connection_that_says_nothing_does_not_keep_the_answer_away(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Browsers open connections in advance; and what is no HTTP is answered without repeating it."""
    idp = Idp()
    browser = Browser(idp)

    def show(url: str) -> None:
        browser.send = False
        browser(url)
        port = httpx.URL(browser.asked["redirect_uri"]).port
        idle = socket.create_connection(("127.0.0.1", port), timeout=60)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as rude:
            rude.sendall(b"<script>canary\r\n\r\n")
            assert b"canary" not in rude.recv(4096)
        browser.send = True
        state = browser.asked["state"]
        browser.get(f"?code=c&state={state}&iss={ISSUER}")
        browser.get("", path="/done")
        idle.close()

    with idp.provider() as provider:
        interactive.login(provider, client_id=CLIENT, scope=SCOPE, show=show, now=lambda: AT, wait_seconds=5)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("token", [refused("invalid_grant", "Code not valid"), refused("invalid_client")])
def test_a_code_that_is_not_accepted_ends_the_login(token: Any) -> None:
    """The token endpoint says no."""
    idp = Idp(token=token)
    with pytest.raises(LoginRefused):
        in_browser(idp, Browser(idp))


def test_a_provider_without_a_login_page_says_so() -> None:
    """And names the other way."""
    idp = Idp(metadata={"authorization_endpoint": None})
    with pytest.raises(ProviderInvalid, match="--method device"):
        in_browser(idp, Browser(idp))


@pytest.mark.parametrize(
    ("environ", "platform", "opens"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "x"}, "linux", False),
        ({}, "darwin", True),
        ({"BROWSER": "firefox"}, "linux", True),
    ],
)
def test_a_browser_is_opened_where_there_is_one(environ: dict[str, str], platform: str, opens: bool) -> None:
    """Not one in this terminal, and not one on the far end of an ssh connection."""
    assert interactive.browser_opens(environ, platform) is opens


# Device


class Time:
    """A clock that sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept.append(seconds)
        self.now += seconds


def on_device(idp: Idp, time: Time, shown: list[device.DeviceCode] | None = None) -> Login:
    with idp.provider() as provider:
        return device.login(
            provider,
            client_id=CLIENT,
            scope=SCOPE,
            show=(shown if shown is not None else []).append,
            now=lambda: AT,
            monotonic=lambda: time.now,
            sleep=time.sleep,
        )


def _script(idp: Idp, *errors: str) -> None:
    left = list(errors)
    idp.token = lambda form: refused(left.pop(0))(form) if left else idp.tokens()


def test_a_device_logs_in() -> None:
    """The code is shown, then asked about at the provider's interval until somebody entered it."""
    idp, time = Idp(), Time()
    _script(idp, "authorization_pending", "authorization_pending")
    shown: list[device.DeviceCode] = []
    assert on_device(idp, time, shown).username == "anna"
    assert (shown[0].user_code, shown[0].verification_uri) == ("WDJB-MJHT", f"{ISSUER}/device")
    assert CANARY not in repr(shown[0])
    assert time.slept == [5, 5, 5]
    _, form = idp.forms[-1]
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:device_code"
    assert form["device_code"] == f"{CANARY}-device"
    assert idp.challenge is not None
    assert verifies(form["code_verifier"], idp.challenge)


def test_slow_down_adds_five_seconds_for_good() -> None:
    """RFC 8628 §3.5."""
    idp, time = Idp(), Time()
    _script(idp, "slow_down", "authorization_pending", "slow_down")
    on_device(idp, time)
    assert time.slept == [5, 10, 10, 15]


@pytest.mark.parametrize(
    ("interval", "first"), [(None, 5.0), (2, 2.0), (0, 1.0), (-3, 5.0), ("soon", 5.0), (True, 5.0)]
)
def test_the_interval_is_the_providers_or_five_seconds(interval: object, first: float) -> None:
    """And never so short that we flood it."""
    idp, time = Idp(device={"interval": interval}), Time()
    on_device(idp, time)
    assert time.slept == [first]


def test_a_code_that_nobody_enters_expires() -> None:
    """At the end of `expires_in`, without another question."""
    idp, time = Idp(device={"expires_in": 60}, token=refused("authorization_pending")), Time()
    with pytest.raises(LoginTimedOut):
        on_device(idp, time)
    assert time.now <= 60


def test_a_provider_that_says_expired_is_believed() -> None:
    """`expired_token`."""
    with pytest.raises(LoginTimedOut):
        on_device(Idp(token=refused("expired_token")), Time())


def test_an_endless_code_ends_all_the_same() -> None:
    """Half an hour, whatever the provider says."""
    idp, time = Idp(device={"expires_in": 10**9}, token=refused("authorization_pending")), Time()
    with pytest.raises(LoginTimedOut):
        on_device(idp, time)
    assert time.now <= 1800


def test_a_refusal_on_the_device_ends_the_login() -> None:
    """`access_denied`."""
    with pytest.raises(LoginRefused, match="refused"):
        on_device(Idp(token=refused("access_denied")), Time())


def test_a_provider_that_is_away_for_a_moment_is_asked_again_later() -> None:
    """RFC 8628 §3.5: with a pause that grows; the code's end still counts."""
    idp, time = Idp(device={"expires_in": 200}), Time()
    left = 2

    def away(form: dict[str, str]) -> httpx.Response:
        nonlocal left
        left -= 1
        return httpx.Response(503) if left >= 0 else idp.tokens()

    idp.token = away
    assert on_device(idp, time).username == "anna"
    assert time.slept == [5, 10, 20]
    idp.token = lambda form: httpx.Response(503)
    with pytest.raises(LoginTimedOut):
        on_device(idp, Time())


@pytest.mark.threat("T55")
@pytest.mark.parametrize(
    "changes",
    [
        {"device_code": None},
        {"device_code": ""},
        {"device_code": "x" * 5000},
        {"user_code": None},
        {"user_code": 1234},
        {"user_code": "A\x1b[2J"},
        {"user_code": "x" * 65},
        {"verification_uri": None},
        {"verification_uri": "https://evil.example/device"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri_complete": "https://evil.example/device?user_code=x"},
        {"verification_uri_complete": 7},
    ],
)
def test_a_device_answer_that_leads_elsewhere_is_refused(changes: dict[str, Any]) -> None:
    """The person will type a password there."""
    shown: list[device.DeviceCode] = []
    with pytest.raises(ProviderInvalid):
        on_device(Idp(device=changes), Time(), shown)
    assert shown == []


def test_a_provider_without_the_device_flow_says_so() -> None:
    """Before anything is sent."""
    idp = Idp(metadata={"device_authorization_endpoint": None})
    with pytest.raises(ProviderInvalid):
        on_device(idp, Time())
    assert idp.forms == []


def test_the_picture_holds_the_address() -> None:
    """The half blocks, read back module by module, are the QR code of the address; too narrow a terminal gets none."""
    segno = pytest.importorskip("segno")
    url = f"{ISSUER}/device?user_code=WDJB-MJHT"
    picture = device.qr(url, 80)
    assert picture is not None
    lines = [line.removeprefix("\x1b[97;40m").removesuffix("\x1b[0m") for line in picture.splitlines()]
    read: list[list[bool]] = []
    for line in lines:
        read.append([cell in " ▄" for cell in line])
        read.append([cell in " ▀" for cell in line])
    expected = [
        [bool(d) for d in row] for row in segno.make(url, error="l", micro=False).matrix_iter(border=2)
    ]
    assert read[: len(expected)] == expected
    assert device.qr(url, 20) is None


def test_without_the_library_there_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra; address and code are enough."""
    import sys

    monkeypatch.setitem(sys.modules, "segno", None)
    assert device.qr("x", 80) is None


# Password


def test_a_password_logs_in() -> None:
    """Where a provider still offers it."""
    idp = Idp(id_token=None)
    with idp.provider() as provider:
        login = password.login(
            provider, client_id=CLIENT, scope=SCOPE, username="anna", ask=lambda: "pw-canary", now=lambda: AT
        )
    assert login.username == "anna"
    assert idp.forms[-1][1]["grant_type"] == "password"


def test_a_wrong_password_is_told_without_it() -> None:
    """The message names neither the password nor what the provider repeats."""
    idp = Idp(token=refused("invalid_grant", "pw-canary is wrong"))
    with idp.provider() as provider, pytest.raises(LoginRefused) as caught:
        password.login(
            provider, client_id=CLIENT, scope=SCOPE, username="anna", ask=lambda: "pw-canary", now=lambda: AT
        )
    assert "canary" not in str(caught.value)


def test_a_password_is_not_asked_for_before_the_provider_is_known() -> None:
    """Nobody types a secret for a provider that is another."""
    asked: list[str] = []

    def ask() -> str:
        asked.append("asked")
        return "pw"

    idp = Idp(metadata={"issuer": "https://evil.example"})
    with idp.provider() as provider, contextlib.suppress(ProviderInvalid):
        password.login(
            provider,
            client_id=CLIENT,
            scope=SCOPE,
            username="anna",
            ask=ask,
            now=lambda: AT,
        )
    assert asked == []
