"""Approval at the console: codes, what operators say of them, tokens, and that nothing is released on any of it."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from attestation.machines.console_code import PATTERN
from attestation.store import RateLimit
from attestation_service.console import device
from attestation_service.console.device import CODE_SECONDS, INTERVAL_SECONDS, TOKEN_SECONDS
from attestation_testing.talos.downloader import Answer, OAuth, Outcome, Request, Shown, download
from tests.unit.service.conftest import CANARY, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import code as problem
from tests.unit.service.test_talos_downloader import HARDWARE, URL, over

pytestmark = pytest.mark.anyio

ASKED = {"client_id": "talos", "uuid": HARDWARE.uuid or "", "mac": HARDWARE.mac or "", "serial": "0OCZJ19N65"}
ARGUMENTS = "talos.config.oauth.client_id=talos " + " ".join(
    f"talos.config.oauth.extra_variable={name}" for name in ("uuid", "mac", "serial")
)


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with console approval."""
    return await start(console_approval=True, pending_answer="retry", tpm_ca_bundle_dir=start.bundle())


async def ask(service: Service, **changed: str) -> dict[str, Any]:
    """Ask for a code."""
    answer = await service.http.post("/device/code", data=ASKED | changed)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def poll(service: Service, asked: dict[str, Any], **changed: str) -> httpx.Response:
    """Poll for the token."""
    form = {"grant_type": device.GRANT, "device_code": asked["device_code"], "client_id": "talos"}
    return await service.http.post("/token", data=form | changed)


async def carried(service: Service, request: Request) -> Answer:
    """Carry a request of Talos."""
    answer = await service.http.request(
        request.method, request.url, headers=dict(request.headers), content=request.form
    )
    return Answer(status=answer.status_code, body=answer.content)


async def decide(service: Service, asked: dict[str, Any], act: str = "approve") -> httpx.Response:
    """Approve or deny a code as an operator."""
    return await service.operator("POST", f"/console-codes/{asked['user_code']}/{act}")


def error(answer: httpx.Response) -> tuple[int, str]:
    """Return status and code of an error of OAuth."""
    return answer.status_code, answer.json()["error"]


async def test_a_machine_is_approved_at_its_console(service: Service) -> None:
    """Code, page, approval, token: each as RFC 8628 has it, and each act in the audit with what it is about."""
    asked = await ask(service)
    code = asked["user_code"]
    assert re.fullmatch(PATTERN, code)
    assert len(asked["device_code"]) >= 43
    assert {name: asked[name] for name in sorted(asked) if name not in ("user_code", "device_code")} == {
        "expires_in": 900,
        "interval": 10,
        "verification_uri": "https://attest.example.test/device",
        "verification_uri_complete": f"https://attest.example.test/device?user_code={code}",
    }
    assert error(await poll(service, asked)) == (400, "authorization_pending")
    shown = (await service.operator("GET", f"/console-codes/{code}")).json()
    assert (shown["hw_uuid"], shown["hw_mac"], shown["hw_serial"]) == (
        HARDWARE.uuid,
        HARDWARE.mac,
        "0OCZJ19N65",
    )
    assert (shown["state"], shown["tier"], shown["source_ip"]) == ("pending", "console", "192.0.2.7")
    approved = await decide(service, asked)
    assert (approved.status_code, approved.json()["decided_by"]) == (200, "SYSTEM")
    token = await poll(service, asked)
    assert (token.status_code, token.headers["pragma"], token.headers["cache-control"]) == (
        200,
        "no-cache",
        "no-store",
    )
    assert (token.json()["token_type"], token.json()["expires_in"]) == ("Bearer", 600)
    entries = {each["action"]: each for each in await service.audit()}
    detail = entries["console_approved"]["detail"]
    for part in ("tier console", code, "192.0.2.7", HARDWARE.uuid or "", HARDWARE.mac or "", "0OCZJ19N65"):
        assert part in detail
    assert entries["console_approved"]["operator_cn"] == "SYSTEM"
    assert code in entries["console_token"]["detail"]
    (listed,) = (await service.operator("GET", "/console-codes")).json()["items"]
    assert (listed["code"], listed["state"], listed["token_source_ip"]) == (code, "approved", "192.0.2.7")


@pytest.mark.threat("T16")
async def test_talos_walks_the_whole_flow_and_gets_no_secret(service: Service) -> None:
    """Its own downloader, with its own polls, in its own time; also for hardware that is attested and due its own."""
    node = SoftwareNode()
    await service.introduce(node, hw_mac=HARDWARE.mac, hw_uuid=HARDWARE.uuid, hw_serial=HARDWARE.serial)
    await service.act(node, "approve", {"role": "worker-app"})
    assert (await service.attest(node))["action"] == "apply-config"
    carry, consoles = over(service), list[Shown]()
    polls = 0

    async def carry_and_approve(request: Request) -> Answer:
        nonlocal polls
        polls += request.url.endswith("/token")
        if polls == 9:  # after a while somebody arrives
            await service.operator("POST", f"/console-codes/{consoles[-1].user_code}/approve")
        return await carried(service, request)

    oauth = OAuth.of_kernel_arguments(ARGUMENTS, "https://attest.example.test/api/v1/config")
    assert oauth is not None
    headers = await oauth.authorize(HARDWARE, carry_and_approve, service.clock, consoles.append)
    assert headers is not None
    assert headers["Authorization"].startswith("Bearer ")
    assert len(consoles) == 1
    assert consoles[0].qr_code.endswith(consoles[0].user_code)
    found = await download(URL, HARDWARE, carry, service.clock, headers=headers)
    # Who waits for an operator goes on when one was there; without the token the same URL is still told to wait.
    assert (found.outcome, len(found.attempts)) == (Outcome.CONFIGURED, 1)
    assert found.body.startswith(b"apiVersion: v1alpha1\nkind: ExtensionServiceConfig\n")
    assert CANARY not in found.body.decode()
    assert (await download(URL, HARDWARE, carry, service.clock)).outcome is Outcome.TIMEOUT
    assert (await service.detail(node))["assurance"] != "console"
    assert not await service.audit(action="config_delivered")


async def test_nobody_comes_for_three_hours(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes follow one another on the console; each poll is two requests, and none is told to slow down."""
    monkeypatch.setattr(device, "INTERVAL_SECONDS", 180)  # an eighteenth of the requests, in the same time
    consoles, errors = list[Shown](), set[str]()

    async def carry(request: Request) -> Answer:
        answer = await carried(service, request)
        if answer.status != 200:
            errors.add(json.loads(answer.body)["error"])
        return answer

    oauth = OAuth.of_kernel_arguments(ARGUMENTS, "https://attest.example.test/api/v1/config?mac=${mac}")
    assert oauth is not None
    assert await oauth.authorize(HARDWARE, carry, service.clock, consoles.append) is None
    assert errors == {"authorization_pending"}
    assert len({shown.user_code for shown in consoles}) == len(consoles) == 12


async def test_polls_that_come_too_often_are_told_so(service: Service) -> None:
    """`slow_down`, beyond what the library of Talos needs; after a pause it goes on."""
    asked = await ask(service)
    found = [error(await poll(service, asked))[1] for _ in range(5)]
    assert found == ["authorization_pending"] * 4 + ["slow_down"]
    service.clock.advance(INTERVAL_SECONDS)
    assert [error(await poll(service, asked))[1] for _ in range(3)] == ["authorization_pending"] * 2 + [
        "slow_down"
    ]


@pytest.mark.threat("T352")
async def test_a_token_is_given_once(service: Service) -> None:
    """Of many polls at once exactly one gets it; who has the device code later gets nothing."""
    asked = await ask(service)
    assert (await decide(service, asked)).status_code == 200
    answers = await asyncio.gather(*(poll(service, asked) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200] + [400] * 5
    assert error(await poll(service, asked)) == (400, "invalid_grant")
    assert len(await service.audit(action="console_token")) == 1


async def test_two_operators_at_once(service: Service) -> None:
    """One of them decided; the other learns who, and nothing changes any more."""
    asked = await ask(service)
    answers = await asyncio.gather(*(decide(service, asked, act) for act in ("approve", "deny") * 3))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
    assert {problem(answer) for answer in answers if answer.status_code == 409} == {"console-code-decided"}
    actions = [each["action"] for each in await service.audit() if each["action"].startswith("console_")]
    assert len(actions) == 1


async def test_a_denied_code_gets_no_token(service: Service) -> None:
    """And cannot be approved afterwards."""
    asked = await ask(service)
    assert (await decide(service, asked, "deny")).json()["state"] == "denied"
    assert error(await poll(service, asked)) == (400, "access_denied")
    assert problem(await decide(service, asked)) == "console-code-decided"


async def test_a_code_has_an_end(service: Service) -> None:
    """Nobody approves it then; one that was approved too late gets nothing; after an hour it is unknown."""
    late, waits = await ask(service), await ask(service)
    service.clock.advance(CODE_SECONDS - 1)
    assert (await decide(service, late)).status_code == 200
    service.clock.advance(1)
    for asked in (late, waits):
        assert error(await poll(service, asked)) == (400, "expired_token")
    answer = await decide(service, waits)
    assert (answer.status_code, problem(answer)) == (410, "console-code-expired")
    shown = (await service.operator("GET", f"/console-codes/{waits['user_code']}")).json()
    assert shown["state"] == "expired"
    service.clock.advance(3601)
    service.store.write_sync(lambda tx: tx.console_codes.purge(service.clock.now(), 100))
    assert (await decide(service, waits)).status_code == 404
    assert (await service.operator("GET", f"/console-codes/{late['user_code']}")).json()[
        "state"
    ] == "approved"


@pytest.mark.threat("T352")
async def test_a_token_has_an_end(service: Service) -> None:
    """Then the machine is told to wait, as before; a token that nobody gave is as good."""
    asked = await ask(service)
    await decide(service, asked)
    token = (await poll(service, asked)).json()["access_token"]
    seen = []
    for given in (token, token + "x", token):
        answer = await service.get(
            "/api/v1/config", headers={"Accept": "", "Authorization": f"Bearer {given}"}
        )
        seen.append(answer.status_code)
        service.clock.advance(TOKEN_SECONDS / 2)
    assert seen == [200, 503, 503]


@pytest.mark.threat("T350")
async def test_whoever_claims_the_uuid_of_another_is_seen(service: Service) -> None:
    """The operator reads which machine is known by it, and that two consoles say the same; neither is refused."""
    node = SoftwareNode()
    await service.introduce(node, hw_uuid=(HARDWARE.uuid or "").upper())
    first = await ask(service)
    second = await ask(service, mac="02:00:00:00:00:02", serial="other")
    await ask(service, uuid="", mac="02:00:00:00:00:03", serial="another")
    shown = (await service.operator("GET", f"/console-codes/{first['user_code']}")).json()
    assert (shown["machines"], shown["other_codes"]) == ([node.machine_id], [second["user_code"]])


async def test_the_row_of_a_machine_shows_the_code_of_its_console(service: Service) -> None:
    """While the code waits; what a machine does not know of itself is like nothing."""
    node, other = SoftwareNode(), SoftwareNode()
    await service.introduce(node, hw_uuid=(HARDWARE.uuid or "").upper())
    await service.introduce(other, hw_mac="02:00:00:00:00:09")
    asked = await ask(service)
    await ask(service, uuid="unknown", mac="unknown", serial="unknown")
    assert (await service.detail(node))["console_codes"] == [asked["user_code"]]
    assert (await service.detail(other))["console_codes"] == []
    await decide(service, asked)
    assert (await service.detail(node))["console_codes"] == []


async def test_codes_are_not_guessed(service: Service) -> None:
    """Ten wrong ones a minute; a right one is refused then too, and another operator is not."""
    asked = await ask(service)
    guesses = [
        (await service.operator("POST", f"/console-codes/BBBB-BBB{letter}/approve")).status_code
        for letter in "BCDFGHJKLMN"
    ]
    assert guesses == [404] * 10 + [429]
    assert (await decide(service, asked)).status_code == 429
    service.clock.advance(60)
    assert (await decide(service, asked)).status_code == 200


@pytest.mark.threat("T351")
async def test_codes_of_one_network_and_of_all_are_bounded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood ends as errors of OAuth with the time to come again; codes that wait stay good."""
    first = await ask(service)
    while (answer := await service.http.post("/device/code", data=ASKED)).status_code == 200:
        pass
    assert error(answer) == (429, "temporarily_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert service.store.read_sync(lambda tx: tx.console_codes.count_open(service.clock.now())) == 30
    service.clock.advance(600)
    monkeypatch.setattr(device, "OPEN_AT_ONCE", 30)
    answer = await service.http.post("/device/code", data=ASKED)
    assert error(answer) == (503, "temporarily_unavailable")
    assert (await decide(service, first)).status_code == 200
    assert (await service.http.post("/device/code", data=ASKED)).status_code == 200


@pytest.mark.threat("T351")
@pytest.mark.parametrize("header", [{"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}], ids=str)
async def test_a_page_has_no_browser_ask_for_codes(service: Service, header: dict[str, str]) -> None:
    """Else who looks at it fills the places of their own network, and codes seem to come from there."""
    answer = await service.http.post("/device/code", data=ASKED, headers=header)
    assert error(answer) == (400, "invalid_request")
    assert service.store.read_sync(lambda tx: tx.console_codes.count_open(service.clock.now())) == 0


@pytest.mark.threat("T351")
async def test_codes_of_one_site_of_ipv6_are_bounded(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a /48 has as many networks as they like; another site gets its codes all the same."""
    service = await start(console_approval=True, trusted_proxies=["192.0.2.0/24"])
    monkeypatch.setattr(device, "CODES_OF_SITE", RateLimit(requests=3, per_seconds=600))

    async def asks(address: str) -> int:
        headers = {"X-Forwarded-For": address}
        return (await service.http.post("/device/code", data=ASKED, headers=headers)).status_code

    assert [await asks(f"2001:db8:1:{network}::1") for network in range(4)] == [200, 200, 200, 429]
    assert await asks("2001:db8:2:1::1") == 200


async def test_forms_that_are_none(service: Service) -> None:
    """Each is an error of RFC 6749, and no code is made."""
    for form in (
        b"",
        b"client_id=talos",
        b"client_id=talos&uuid=+&mac=&hostname=h",
        b"client_id=&uuid=u",
        b"client_id=a&uuid=b&uuid=c",
        b"client_id=%ff&uuid=%ff",
        b"client_id=a&uuid=b" + b"&x=y" * 40,
    ):
        found = await service.http.post(
            "/api/v1/device/code",
            content=form,
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        assert error(found) == (400, "invalid_request"), form
    assert error(await service.post("/api/v1/device/code", ASKED)) == (400, "invalid_request")
    assert service.store.read_sync(lambda tx: tx.console_codes.count_open(service.clock.now())) == 0


@pytest.mark.threat("T352")
async def test_polls_that_are_none(service: Service) -> None:
    """A code is of the client that asked for it."""
    asked = await ask(service)
    await decide(service, asked)
    changes: list[tuple[dict[str, str], str]] = [
        ({"grant_type": "authorization_code"}, "unsupported_grant_type"),
        ({"client_id": "other"}, "invalid_grant"),
        ({"device_code": "x" * 43}, "invalid_grant"),
    ]
    for changed, expected in changes:
        assert error(await poll(service, asked, **changed)) == (400, expected), changed
    answer = await service.http.post("/api/v1/token", data={"grant_type": device.GRANT, "client_id": "talos"})
    assert error(answer) == (400, "invalid_request")


@pytest.mark.threat("T350", "T352")
async def test_secrets_are_stored_hashed(service: Service) -> None:
    """Neither device code nor token stands in the database; what the machine says of itself is plain ASCII there."""
    asked = await ask(service, hostname="a\u202eb\x1b[2J\n" + "c" * 200)
    await decide(service, asked)
    token = (await poll(service, asked)).json()["access_token"]
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        tables = ("console_codes", "audit_log")
        rows = str([db.execute(f"select * from {table}").fetchall() for table in tables])
    assert asked["user_code"] in rows
    assert asked["device_code"] not in rows
    assert token not in rows
    (listed,) = (await service.operator("GET", "/console-codes")).json()["items"]
    assert listed["hostname"] == ("a?b?[2J?" + "c" * 200)[:128]


@pytest.mark.threat("T350")
async def test_the_link_on_a_console_does_nothing(service: Service) -> None:
    """Whoever is sent it reads what to do; what is no code is not repeated."""
    asked = await ask(service)
    page = await service.get("/device", params={"user_code": asked["user_code"]})
    assert page.headers["content-type"].startswith("text/plain")
    assert f"attestation console approve {asked['user_code']}" in page.text
    assert "<b>" not in (await service.get("/device", params={"user_code": "<b>"})).text
    shown = (await service.operator("GET", f"/console-codes/{asked['user_code']}")).json()
    assert shown["state"] == "pending"


async def test_without_the_setting_there_is_no_such_route(start: Starter) -> None:
    """Off by default: as if it were not built."""
    service = await start()
    for method, path in (("POST", "/device/code"), ("POST", "/token"), ("POST", "/api/v1/device/code"),
                         ("POST", "/api/v1/token"), ("GET", "/device")):  # fmt: skip
        answer = await service.http.request(method, path)
        assert (answer.status_code, problem(answer)) == (404, "route-unknown"), path
    asked = await service.operator("POST", "/console-codes/BCDF-GHJK/approve")
    assert "ITL_CONSOLE_APPROVAL" in asked.json()["detail"]


@pytest.mark.threat("T350")
async def test_who_says_the_same_cannot_hide_it(service: Service) -> None:
    """Neither by other letters of the same UUID, nor among all who say nothing, nor behind strangers who say it too."""
    known = SoftwareNode()
    await service.introduce(known, hw_uuid=HARDWARE.uuid)
    await service.act(known, "approve", {"role": "worker-app"})
    for number in range(8):
        said = (HARDWARE.uuid or "").upper() if number % 2 else f"0000000{number}-0000-4000-8000-000000000000"
        await service.introduce(SoftwareNode(), hw_uuid=said, hw_mac="unknown", hw_serial="unknown")
    other = await ask(service, uuid=(HARDWARE.uuid or "").upper(), mac="", serial="7XQ1")
    asked = await ask(service, mac="unknown", serial="UNKNOWN")
    shown = (await service.operator("GET", f"/console-codes/{asked['user_code']}")).json()
    assert shown["other_codes"] == [other["user_code"]]
    beside = (await service.operator("GET", f"/console-codes/{other['user_code']}")).json()
    assert beside["other_codes"] == [asked["user_code"]]
    assert (shown["machines"][0], len(shown["machines"])) == (known.machine_id, 5)
