"""The downloader of Talos, against what its documentation and its tests say of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest

from attestation_testing.talos.downloader import (
    Answer,
    Hardware,
    OAuth,
    Outcome,
    Request,
    Shown,
    download,
    expand,
)

pytestmark = pytest.mark.anyio

DOCUMENTED = Hardware(
    uuid="40dcbd19-3b10-444e-bfff-aaee44a51fda",
    serial="0OCZJ19N65",
    mac="52:2f:fd:df:fc:c0",
    hostname="myTestHostname",
    code="top-secret",
)


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.at = self.began = datetime(2026, 11, 27, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the present instant."""
        return self.at

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.at += timedelta(seconds=seconds)

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return (self.at - self.began).total_seconds()


UUID_IN_URL = "uuid=40dcbd19-3b10-444e-bfff-aaee44a51fda"
MAC_IN_URL = "52%3A2f%3Afd%3Adf%3Afc%3Ac0"


@pytest.mark.parametrize(
    ("url", "expanded"),
    [
        # Talos' reference of kernel arguments, byte for byte.
        (
            "http://example.com/metadata?h=${hostname}&m=${mac}&s=${serial}&u=${uuid}",
            "http://example.com/metadata?h=myTestHostname&m=52%3A2f%3Afd%3Adf%3Afc%3Ac0&s=0OCZJ19N65&u=40dcbd19-3b10-444e-bfff-aaee44a51fda",
        ),
        (
            "http://example.com/metadata?uuid=",
            "http://example.com/metadata?uuid=40dcbd19-3b10-444e-bfff-aaee44a51fda",
        ),
        # Its tests: keys are sorted once something is filled in, and nothing is touched before.
        ("https://example.com?foo=bar", "https://example.com?foo=bar"),
        (
            "https://example.com?uuid=${uuid}&no=${serial}",
            f"https://example.com?no=0OCZJ19N65&{UUID_IN_URL}",
        ),
        ("https://example.com?code=${code}&b", "https://example.com?b=&code=top-secret"),
        # Ours, as the documentation gives it.
        (
            "https://h/api/v1/config?mac=${mac}&uuid=${uuid}&serial=${serial}",
            f"https://h/api/v1/config?mac={MAC_IN_URL}&serial=0OCZJ19N65&{UUID_IN_URL}",
        ),
        ("https://h/?m=${MAC}&M=x${Mac}y", f"https://h/?M=x{MAC_IN_URL}y&m={MAC_IN_URL}"),
        # Only values, only in the query; an empty `mac=` is no placeholder, a filled `uuid=` no empty one.
        ("https://h/${mac}?${mac}=1", "https://h/${mac}?${mac}=1"),
        ("https://h/?mac=", "https://h/?mac="),
        ("https://h/?z=2&uuid=1&a=b c", "https://h/?z=2&uuid=1&a=b c"),
        ("https://h/?b=%zz&a=x;y&c=a b+c&s=${serial}", "https://h/?c=a+b+c&s=0OCZJ19N65"),
    ],
)
def test_urls_are_expanded_as_talos_does(url: str, expanded: str) -> None:
    """The golden URLs of its documentation and of its own tests, and what they leave open."""
    assert expand(url, DOCUMENTED) == expanded


@pytest.mark.parametrize(("status", "outcome"), [(200, "configured"), (204, "maintenance")])
async def test_two_answers_end_the_loop(status: int, outcome: str) -> None:
    """200 and 204 at the first attempt; no Accept header, and no body to say what is wanted."""
    asked: list[Request] = []

    async def ask(request: Request) -> Answer:
        asked.append(request)
        return Answer(status=status, body=b"version: v1alpha1")

    found = await download("https://h/?uuid=", DOCUMENTED, ask, Clock())
    assert (found.outcome, len(found.attempts)) == (outcome, 1)
    assert found.body == (b"version: v1alpha1" if status == 200 else b"")
    assert (asked[0].method, asked[0].headers, asked[0].form) == ("GET", {}, None)


@pytest.mark.parametrize("status", [301, 403, 404, 406, 410, 429, 500, 503])
async def test_anything_else_is_asked_again_for_three_hours(status: int) -> None:
    """Pauses of 0, 1, 3, 7 … seconds and jitter; the last attempt is after two hours and a quarter; 32 bytes shown."""
    clock = Clock()

    async def ask(_: Request) -> Answer:
        return Answer(status=status, body=b"0123456789abcdef" * 4)

    found = await download("https://h/", DOCUMENTED, ask, clock, jitter=lambda: 0.0)
    assert [attempt.seconds for attempt in found.attempts] == [
        0, 0, 1, 4, 11, 26, 57, 120, 247, 502, 1013, 2036, 4083, 8178,
    ]  # fmt: skip
    assert (found.outcome, clock.passed) == (Outcome.TIMEOUT, 3 * 3600)
    assert {attempt.console for attempt in found.attempts} == {"0123456789abcdef" * 2}


async def test_a_server_that_hangs_costs_an_attempt_of_three_minutes() -> None:
    """And one that is not there costs nothing but the pause."""
    failures = iter([TimeoutError(), ConnectionError()])

    async def ask(_: Request) -> Answer:
        for failure in failures:
            raise failure
        return Answer(status=204, body=b"")

    clock = Clock()
    found = await download("https://h/", DOCUMENTED, ask, clock, jitter=lambda: 0.0)
    assert [(a.seconds, a.status, a.console) for a in found.attempts] == [
        (0, None, "timeout"), (180, None, "connection refused"), (181, 204, ""),
    ]  # fmt: skip


async def test_what_is_not_known_is_waited_for_and_then_left_out() -> None:
    """Half an attempt; then the URL with what is known, the placeholder escaped."""
    asked: list[str] = []

    async def ask(request: Request) -> Answer:
        asked.append(request.url)
        return Answer(status=204, body=b"")

    clock = Clock()
    await download("https://h/?m=${mac}&s=${serial}", Hardware(serial="1"), ask, clock)
    assert (asked, clock.passed) == (["https://h/?m=%24%7Bmac%7D&s=1"], 90)


CONFIG_URL = "https://h/api/v1/config?mac=${mac}"


def test_kernel_arguments_of_the_device_flow() -> None:
    """URLs are the configuration's with another path, unless named; repeated arguments add up; no id, no flow."""
    assert OAuth.of_kernel_arguments("talos.platform=metal", CONFIG_URL) is None
    found = OAuth.of_kernel_arguments(
        "quiet talos.config.oauth.client_id=talos talos.config.oauth.scope=a talos.config.oauth.scope=b "
        "talos.config.oauth.token_url=https://h/api/v1/token talos.config.oauth.extra_variable=uuid",
        CONFIG_URL,
    )
    assert found == OAuth(
        client_id="talos",
        scopes=["a", "b"],
        extra_variables=["uuid"],
        device_auth_url="https://h/device/code?mac=${mac}",
        token_url="https://h/api/v1/token",
    )


async def test_the_device_flow_polls_as_the_library_of_talos_does() -> None:
    """Each poll twice; `slow_down` lengthens the interval; a failed flow is begun again after 30 seconds."""
    oauth = OAuth.of_kernel_arguments(
        "talos.config.oauth.client_id=t talos.config.oauth.client_secret=s talos.config.oauth.audience=a "
        "talos.config.oauth.extra_variable=uuid talos.config.oauth.extra_variable=mac",
        CONFIG_URL,
    )
    assert oauth is not None
    clock = Clock()
    polls: list[tuple[float, bool]] = []
    shown: list[Shown] = []
    answers = iter(
        ["authorization_pending"] * 2
        + ["slow_down"] * 2
        + ["authorization_pending"] * 2
        + ["access_denied"] * 2
    )
    code = {
        "device_code": "d",
        "user_code": "U",
        "verification_uri": "https://h/v",
        "expires_in": 60,
        "interval": 3,
    }

    async def ask(request: Request) -> Answer:
        form = parse_qs(request.form or "", keep_blank_values=True)
        if request.url.startswith("https://h/device/code"):
            assert form == {
                "client_id": ["t"],
                "audience": ["a"],
                "uuid": [DOCUMENTED.uuid],
                "mac": [DOCUMENTED.mac],
            }
            return Answer(status=200, body=json.dumps(code).encode())
        assert (form["device_code"], form["client_secret"], form["uuid"]) == (["d"], ["s"], [DOCUMENTED.uuid])
        polls.append((clock.passed, "Authorization" in request.headers))
        error = next(answers, None)
        if error:
            return Answer(status=400, body=json.dumps({"error": error}).encode())
        return Answer(status=200, body=b'{"access_token": "x", "token_type": "bearer"}')

    headers = await oauth.authorize(DOCUMENTED, ask, clock, shown.append)
    assert headers == {"Authorization": "Bearer x"}
    assert polls == [(at, first) for at in (0, 3, 11, 19) for first in (True, False)] + [(49, True)]
    assert shown == [Shown(verification_uri="https://h/v", user_code="U", qr_code="")] * 2


async def test_a_device_flow_gives_up_after_three_hours() -> None:
    """Codes expire, the next is asked for, and at last there is no token."""
    oauth = OAuth(client_id="t", device_auth_url="https://h/device/code", token_url="https://h/token")
    clock = Clock()

    async def ask(request: Request) -> Answer:
        if request.url.endswith("/token"):
            return Answer(status=400, body=b'{"error": "authorization_pending"}')
        return Answer(
            status=200,
            body=b'{"device_code": "d", "user_code": "u", "verification_uri": "v", "expires_in": 1800}',
        )

    shown: list[Shown] = []
    assert await oauth.authorize(DOCUMENTED, ask, clock, shown.append) is None
    assert 3 * 3600 <= clock.passed < 3 * 3600 + 1830
    assert len(shown) == 6
