"""How Talos fetches its configuration, by a clock that the test holds: URL, retries, status codes, device flow.

It is what Talos 1.9 to 1.14 do on platform `metal` (DELIVERY-AND-OPERATORS §§1.1, 1.2, 1.5), without a network:

    found = await download(url, hardware, ask, clock)
    found.outcome, found.body, [attempt.console for attempt in found.attempts]

`ask` carries a request to the service under test. Hours pass in the time that it takes to answer.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol, Self
from urllib.parse import quote_plus, unquote_plus, urlencode, urlsplit

ATTEMPT_SECONDS: Final = 180
TOTAL_SECONDS: Final = 3 * 3600
VARIABLES_SECONDS: Final = ATTEMPT_SECONDS // 2
"""For so long an attempt waits for what its URL names, and then asks with what it knows."""
CONSOLE_BYTES: Final = 32
"""So much of an answer that it cannot use does Talos print."""
FLOW_PAUSE_SECONDS: Final = 30
"""From a device flow that has failed to the next one."""
POLL_SECONDS: Final = 5
"""Where the server says nothing, and what `slow_down` adds (RFC 8628 §§3.2, 3.5)."""

_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_BAD_ESCAPE: Final = re.compile("%(?![0-9a-fA-F]{2})")


class Clock(Protocol):
    """A clock that moves when told."""

    def now(self) -> datetime:
        """Return the present instant."""
        ...

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What Talos knows of the machine; None is what it has not learnt (yet).

    Args:
        uuid: SMBIOS UUID.
        serial: SMBIOS serial number.
        mac: Of the first interface whose link is up.
        hostname: Host name.
        code: Key 0xb of its META partition.
    """

    uuid: str | None = None
    serial: str | None = None
    mac: str | None = None
    hostname: str | None = None
    code: str | None = None


VARIABLES: Final = ("uuid", "serial", "mac", "hostname", "code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What Talos sends: no Accept header with a GET, a form with a POST."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    form: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What it got. The content type of a configuration is not looked at."""

    status: int
    body: bytes


Ask = Callable[[Request], Awaitable[Answer]]
"""Carries a request. `ConnectionError`: nobody is there; `TimeoutError`: no answer within the attempt."""


class Outcome(StrEnum):
    """How a download ended."""

    CONFIGURED = "configured"
    """200: the body is the configuration."""
    MAINTENANCE = "maintenance"
    """204: there is none, and the machine waits for somebody to bring it."""
    TIMEOUT = "timeout"
    """Three hours are over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt: when, in seconds from the first; the status, None without an answer; what the console shows."""

    seconds: float
    url: str
    status: int | None
    console: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """What became of it."""

    outcome: Outcome
    body: bytes
    attempts: Sequence[Attempt]


def expand(url: str, hardware: Hardware) -> str:
    """Return *url* as Talos asks for it.

    Without a placeholder it stays byte for byte. With one its query is written anew: keys sorted, values escaped.
    """
    query = _query(urlsplit(url).query)
    named = variables_of(url)
    if not named:
        return url
    known = {name: value for name in named if (value := getattr(hardware, name)) is not None}
    for key, values in query.items():
        if key == "uuid" and _is_empty(values):
            values[:] = [known["uuid"]] if "uuid" in known else values
            continue
        for name, value in known.items():
            values[:] = [value.join(_placeholder(name).split(each)) for each in values]
    written = "&".join(
        f"{quote_plus(key)}={quote_plus(value)}" for key in sorted(query) for value in query[key]
    )
    return urlsplit(url)._replace(query=written).geturl()


def variables_of(url: str) -> list[str]:
    """Return the names of what Talos fills into *url*: placeholders in values, and an empty `uuid=`."""
    query = _query(urlsplit(url).query)
    return [
        name
        for name in VARIABLES
        if (name == "uuid" and "uuid" in query and _is_empty(query["uuid"]))
        or any(_placeholder(name).search(value) for values in query.values() for value in values)
    ]


async def download(
    url: str,
    hardware: Hardware,
    ask: Ask,
    clock: Clock,
    *,
    headers: Mapping[str, str] | None = None,
    jitter: Callable[[], float] = lambda: 0.5,
) -> Download:
    """Fetch the configuration from *url* until something is a success, or three hours are over.

    Args:
        url: That of `talos.config`.
        hardware: What fills its placeholders.
        ask: Carries requests.
        clock: Held by the test.
        headers: What the device flow brought.
        jitter: Seconds below 1 that are added to each pause.
    """
    began = clock.now()
    ends = began + timedelta(seconds=TOTAL_SECONDS)
    attempts: list[Attempt] = []
    for tick in itertools.count(1):
        started = clock.now()
        if any(getattr(hardware, name) is None for name in variables_of(url)):
            clock.advance(VARIABLES_SECONDS)
        asked = expand(url, hardware)
        answer: Answer | None = None
        try:
            answer = await ask(Request(method="GET", url=asked, headers=headers or {}))
        except TimeoutError:
            clock.advance(ATTEMPT_SECONDS - (clock.now() - started).total_seconds())
            console = "timeout"
        except ConnectionError:
            console = "connection refused"
        else:
            console = answer.body[:CONSOLE_BYTES].decode(errors="replace")
        attempts.append(
            Attempt(
                seconds=(started - began).total_seconds(),
                url=asked,
                status=answer.status if answer else None,
                console=console,
            )
        )
        if answer is not None and answer.status == 200:
            return Download(outcome=Outcome.CONFIGURED, body=answer.body, attempts=attempts)
        if answer is not None and answer.status == 204:
            return Download(outcome=Outcome.MAINTENANCE, body=b"", attempts=attempts)
        pause = pause_after(tick) + jitter()
        left = (ends - clock.now()).total_seconds()
        clock.advance(max(0.0, min(pause, left)))
        if pause >= left:
            break
    return Download(outcome=Outcome.TIMEOUT, body=b"", attempts=attempts)


def pause_after(attempt: int) -> int:
    """Return the seconds from the end of an attempt, the first is 1, to the next, without jitter.

    0, 1, 3, 7 … : the last attempt of the three hours begins after two hours and a quarter.
    """
    return int(2**attempt - 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the console of the machine shows to whoever stands before it."""

    verification_uri: str
    user_code: str
    qr_code: str


class FlowFailed(Exception):
    """A device flow ended without a token; Talos begins the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuth:
    """The device flow of Talos, as its kernel arguments say (RFC 8628)."""

    client_id: str
    client_secret: str = ""
    audience: str = ""
    scopes: Sequence[str] = ()
    extra_variables: Sequence[str] = ()
    device_auth_url: str
    token_url: str

    @classmethod
    def of_kernel_arguments(cls, line: str, config_url: str) -> Self | None:
        """Return what a command line switches on; None without a client id.

        Where no URLs are named, they are *config_url* with another path: its query is kept.
        """
        given: dict[str, list[str]] = {}
        for argument in line.split():
            name, _, value = argument.partition("=")
            if name.startswith("talos.config.oauth."):
                given.setdefault(name.removeprefix("talos.config.oauth."), []).append(value)
        if "client_id" not in given:
            return None
        first = {name: values[0] for name, values in given.items()}
        beside = urlsplit(config_url)
        return cls(
            client_id=first["client_id"],
            client_secret=first.get("client_secret", ""),
            audience=first.get("audience", ""),
            scopes=given.get("scope", []),
            extra_variables=given.get("extra_variable", []),
            device_auth_url=first.get("device_auth_url") or beside._replace(path="/device/code").geturl(),
            token_url=first.get("token_url") or beside._replace(path="/token").geturl(),
        )

    async def authorize(
        self, hardware: Hardware, ask: Ask, clock: Clock, show: Callable[[Shown], None]
    ) -> dict[str, str] | None:
        """Return the headers for the download, once somebody has confirmed; None when three hours are over."""
        ends = clock.now() + timedelta(seconds=TOTAL_SECONDS)
        while clock.now() < ends:
            try:
                return await self.flow(hardware, ask, clock, show)
            except FlowFailed:
                clock.advance(FLOW_PAUSE_SECONDS)
        return None

    async def flow(
        self, hardware: Hardware, ask: Ask, clock: Clock, show: Callable[[Shown], None]
    ) -> dict[str, str]:
        """Ask for a code, show it, and poll until it is confirmed.

        Raises:
            FlowFailed: No code, refused, or expired.
        """
        form = {"client_id": self.client_id}
        if self.scopes:
            form["scope"] = " ".join(self.scopes)
        if self.audience:
            form["audience"] = self.audience
        form |= {name: getattr(hardware, name) or "" for name in self.extra_variables}
        status, told = await self._post(ask, self.device_auth_url, form, {"Accept": "application/json"})
        if status // 100 != 2:
            raise FlowFailed(str(told.get("error", status)))
        show(
            Shown(
                verification_uri=str(told["verification_uri"]),
                user_code=str(told["user_code"]),
                qr_code=str(told.get("verification_uri_complete", "")),
            )
        )
        expires = clock.now() + timedelta(seconds=float(str(told["expires_in"])))
        form |= {"grant_type": _GRANT, "device_code": str(told["device_code"])}
        if self.client_secret:
            form["client_secret"] = self.client_secret
        # The first poll is at once, and whatever it is told, polling goes on.
        status, token = await self._poll(ask, form)
        interval = int(str(told.get("interval", 0))) or POLL_SECONDS
        while status // 100 != 2:
            clock.advance(interval)
            if clock.now() >= expires:
                raise FlowFailed("the code has expired")
            status, token = await self._poll(ask, form)
            if token.get("error") == "slow_down":
                interval += POLL_SECONDS
            elif status // 100 != 2 and token.get("error") != "authorization_pending":
                raise FlowFailed(str(token.get("error", status)))
        kind = str(token["token_type"])
        return {"Authorization": f"{'Bearer' if kind.lower() == 'bearer' else kind} {token['access_token']}"}

    async def _poll(self, ask: Ask, form: dict[str, str]) -> tuple[int, dict[str, object]]:
        """Ask for the token, twice: the library does not know how the server wants the client to say who it is.

        First as HTTP Basic, with an empty password, and then in the form; what the second is told counts.
        """
        basic = base64.b64encode(f"{quote_plus(self.client_id)}:".encode()).decode()
        status, told = await self._post(ask, self.token_url, form, {"Authorization": f"Basic {basic}"})
        if status // 100 == 2:
            return status, told
        return await self._post(ask, self.token_url, form, {})

    async def _post(
        self, ask: Ask, url: str, form: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, dict[str, object]]:
        request = Request(
            method="POST",
            url=url,
            headers={"Content-Type": "application/x-www-form-urlencoded", **headers},
            form=urlencode(sorted(form.items())),
        )
        try:
            answer = await ask(request)
            told = json.loads(answer.body)
        except (ConnectionError, TimeoutError, ValueError) as e:
            raise FlowFailed("no answer") from e
        return answer.status, told if isinstance(told, dict) else {}


def _query(raw: str) -> dict[str, list[str]]:
    """Parse a query as Go does: a pair with a semicolon or a broken escape is dropped."""
    found: dict[str, list[str]] = {}
    for pair in raw.split("&"):
        if not pair or ";" in pair or _BAD_ESCAPE.search(pair):
            continue
        key, _, value = pair.partition("=")
        found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


def _is_empty(values: Sequence[str]) -> bool:
    return not (len(values) == 1 and values[0].strip())


def _placeholder(name: str) -> re.Pattern[str]:
    return re.compile(re.escape("${" + name + "}"), re.IGNORECASE)
