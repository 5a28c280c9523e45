"""Webhooks: what a receiver gets, what it can rely on, and where nothing is sent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import json
import socket
import sqlite3
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import entry_points
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpcore
import httpx
import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from structlog.testing import capture_logs

from attestation.extension import GROUP, OWN_EVENTS, NodeEvent, OperatorEvent, Tx
from attestation.keys import create_kek
from attestation_extensions import webhooks
from attestation_extensions.metrics.counts import OBSERVED
from attestation_extensions.webhooks import addresses, delivering, messages, sending
from attestation_extensions.webhooks.addresses import AddressRefused, Target, WebhookURLInvalid, read_url
from attestation_extensions.webhooks.records import Webhooks
from attestation_extensions.webhooks.sending import Resolver, Sender
from attestation_service import extensions
from attestation_service.process import dispatch, maintenance
from tests.unit.service.conftest import HeldClock, Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode

__all__ = ["migrated", "start"]

OURS = [
    point.load() for point in entry_points(group=GROUP) if point.value.startswith("attestation_extensions.")
]
"""The extensions that come with the service."""

pytestmark = pytest.mark.anyio

BASE = "/webhooks"


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@dataclass
class Receiver:
    """An endpoint on loopback: what it got, and what it answers."""

    port: int = 0
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long it takes, by the path."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}/hook?x=1"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A real HTTP server."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            time.sleep(found.seconds.get(self.path.partition("?")[0], 0))
            self.send_response(found.status)
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(found.body)))
            self.end_headers()
            self.wfile.write(found.body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def settings(folder: Path, **values: str) -> dict[str, Any]:
    """Return settings of a service with webhooks that may go to loopback."""
    create_kek(f"file:{folder}/hooks.kek").close()
    values = {
        "ITL_EXT_WEBHOOKS_KEK": f"file:{folder}/hooks.kek",
        "ITL_EXT_WEBHOOKS_ALLOW_HTTP": "true",
        "ITL_EXT_WEBHOOKS_POLL_SECONDS": "0.05",
        "ITL_WEBHOOK_ALLOW_NETS": "127.0.0.0/8",
    } | values
    return {"extensions": ("webhooks",), "extension_values": {n: v for n, v in values.items() if v}}


@pytest.fixture
async def service(start: Starter, tmp_path: Path) -> Service:
    """A service with webhooks; receivers judge the time."""
    return await start(HeldClock(datetime.now(UTC).replace(microsecond=0)), **settings(tmp_path))


async def made(service: Service, url: str, *events: str) -> tuple[str, str]:
    """Add an endpoint; return its id and its secret."""
    answer = await service.operator("POST", f"{BASE}/", {"url": url, "events": list(events or ("*",))})
    assert answer.status_code == 201, answer.text
    return answer.json()["webhook"]["webhook_id"], answer.json()["secret"]


async def told(service: Service) -> None:
    """Let the events reach the extension."""
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    while await dispatch.once("webhooks", enabled.handlers["webhooks"], service.resources):
        pass


async def deliveries(service: Service, webhook_id: str) -> list[dict[str, Any]]:
    """Return the deliveries to an endpoint, the newest first."""
    found: list[dict[str, Any]] = (await service.operator("GET", f"{BASE}/{webhook_id}/deliveries")).json()[
        "deliveries"
    ]
    return found


def wire_time(at: datetime) -> str:
    """Return an instant as the API writes it."""
    return at.isoformat().replace("+00:00", "Z")


async def until(service: Service, webhook_id: str, status: str, attempts: int = 1) -> dict[str, Any]:
    """Wait until the newest delivery stands so."""
    found: list[dict[str, Any]] = []
    for _ in range(200):
        found = await deliveries(service, webhook_id)
        # While an attempt is made it is counted already, and due again after `HOLD`.
        held = wire_time(service.clock.now() + delivering.HOLD)
        if (
            found
            and found[0]["status"] == status
            and found[0]["attempts"] >= attempts
            and found[0]["next_attempt_at"] != held
        ):
            return found[0]
        await asyncio.sleep(0.05)
    raise AssertionError(found)


# What a receiver gets


@pytest.mark.threat("T230")
async def test_a_receiver_verifies_what_it_gets(service: Service, receiver: Receiver) -> None:
    """By the library of Standard Webhooks; by the seed's header too; another secret verifies nothing."""
    webhook_id, secret = await made(service, receiver.url, "machine.registered", "machine.pending")
    node = SoftwareNode()
    await service.introduce(node)
    await told(service)
    await until(service, webhook_id, "delivered")
    assert len(receiver.got) == 2
    for headers, body in receiver.got:
        assert Webhook(secret).verify(body, headers)["machine_id"] == node.machine_id
        with pytest.raises(WebhookVerificationError):
            Webhook(base64.b64encode(b"x" * 32).decode()).verify(body, headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body.replace(b"machine", b"mackine"), headers)
        assert headers["user-agent"] == "ITL-Attestation-Webhooks/1.0"
        assert headers["x-webhook-event"] == json.loads(body)["event_type"] == json.loads(body)["type"]
        # As the seed's receivers verify it: the HMAC of the body alone.
        raw = base64.b64decode(secret.removeprefix("whsec_"))
        assert headers["x-webhook-signature"] == f"sha256={hmac.new(raw, body, 'sha256').hexdigest()}"
    assert {json.loads(body)["type"] for _, body in receiver.got} == {"machine.registered", "machine.pending"}
    shown = (await service.operator("GET", f"{BASE}/{webhook_id}")).json()
    assert (shown["trigger_count"], shown["failure_count"]) == (2, 0)
    assert "secret" not in shown


@pytest.mark.threat("T230")
async def test_a_receiver_may_bring_its_secret(service: Service, receiver: Receiver) -> None:
    """As libraries make it: 24 to 64 bytes; of any other nothing is kept, and it is not repeated."""

    def text_of(length: int) -> str:
        return f"whsec_{base64.b64encode(b'm' * length).decode()}"

    async def add(secret: str) -> httpx.Response:
        body = {"url": receiver.url, "events": ["machine.registered"], "secret": secret}
        return await service.operator("POST", f"{BASE}/", body)

    mine = text_of(24)
    assert (await add(text_of(64))).status_code == 201
    answer = await add(mine)
    assert (answer.status_code, answer.json()["secret"]) == (201, mine)
    await service.introduce(SoftwareNode())
    await told(service)
    await until(service, answer.json()["webhook"]["webhook_id"], "delivered")
    assert any(verified(mine, *got) for got in receiver.got)
    before = (await service.operator("GET", f"{BASE}/")).json()["total"]
    for wrong in (text_of(23), text_of(65), f"{mine}!", mine.removeprefix("whsec_")):
        refused = await add(wrong)
        assert refused.status_code == 422
        assert wrong not in refused.text
    assert (await service.operator("GET", f"{BASE}/")).json()["total"] == before


def verified(secret: str, headers: Any, body: bytes) -> bool:
    """Say whether the library believes what came."""
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


async def test_an_endpoint_is_told_of_what_it_asked_for(service: Service, receiver: Receiver) -> None:
    """By whole names; an event that comes twice is delivered once."""
    webhook_id, _ = await made(service, receiver.url, "machine.approved")
    node = SoftwareNode()
    await service.admitted(node)
    await told(service)
    await until(service, webhook_id, "delivered")
    assert [json.loads(body)["type"] for _, body in receiver.got] == ["machine.approved"]
    (one,) = await deliveries(service, webhook_id)

    def again(tx: Any) -> None:
        tx.of(Webhooks).queue(
            delivery_id=one["delivery_id"],
            webhook_id=webhook_id,
            event="x",
            payload=b"",
            at=service.clock.now(),
        )

    service.store.write_sync(again)
    assert len(await deliveries(service, webhook_id)) == 1
    for wrong in (["machine.approve"], ["nothing"], []):
        answer = await service.operator("POST", f"{BASE}/", {"url": receiver.url, "events": wrong})
        assert answer.status_code == 422


@pytest.mark.threat("T231")
async def test_while_a_secret_is_exchanged_both_verify(service: Service, receiver: Receiver) -> None:
    """For a day; then the newest alone."""
    webhook_id, before = await made(service, receiver.url)
    after = (await service.operator("POST", f"{BASE}/{webhook_id}/rotate")).json()["secret"]
    assert (await service.operator("POST", f"{BASE}/{webhook_id}/test")).status_code == 202
    (entry,) = await service.audit(action="webhook_tested")
    assert entry["detail"].startswith(webhook_id)
    await until(service, webhook_id, "delivered")
    headers, body = receiver.got[-1]
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (before, after):
        assert _signed(secret, headers, body)
    service.clock.advance(86_400)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    for _ in range(200):
        if len(receiver.got) == 2:
            break
        await asyncio.sleep(0.05)
    headers, body = receiver.got[-1]
    assert (_signed(before, headers, body), _signed(after, headers, body)) == (False, True)


@pytest.mark.threat("T231")
async def test_a_receiver_may_bring_another_secret_later(service: Service, receiver: Receiver) -> None:
    """It takes the place of the one before, which signs for a day yet; what is none changes nothing."""
    webhook_id, before = await made(service, receiver.url)
    mine = f"whsec_{base64.b64encode(b'm' * 24).decode()}"
    refused = await service.operator("PUT", f"{BASE}/{webhook_id}", {"secret": mine[:-4], "enabled": False})
    assert (refused.status_code, mine[:-4] in refused.text) == (422, False)
    changed = await service.operator("PUT", f"{BASE}/{webhook_id}", {"secret": mine})
    assert (changed.status_code, mine in changed.text, changed.json()["enabled"]) == (200, False, True)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    await until(service, webhook_id, "delivered")
    headers, body = receiver.got[-1]
    assert all(_signed(each, headers, body) for each in (mine, before))
    acts = [each["action"] for each in await service.audit()]
    assert (acts.count("webhook_secret_rotated"), acts.count("webhook_updated")) == (1, 0)


def _signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Judge a signature as the library does, whatever time it is there."""
    library = Webhook(secret)
    at = int(headers["webhook-timestamp"])
    wanted = library.sign(headers["webhook-id"], datetime.fromtimestamp(at, UTC), body.decode())
    return wanted in headers["webhook-signature"].split(" ")


# Until it is there


@pytest.mark.threat("T232")
async def test_what_fails_comes_again_with_the_same_id(service: Service, receiver: Receiver) -> None:
    """After five seconds, five minutes, …; each attempt is counted, and the receiver's own pause is kept."""
    receiver.status, receiver.body = 503, b"busy" * 2000
    receiver.headers = {"retry-after": "600"}
    webhook_id, _ = await made(service, receiver.url, "machine.approved")
    await service.admitted(SoftwareNode())
    await told(service)
    first = await until(service, webhook_id, "waiting")
    assert (first["response_status"], first["error"]) == (503, None)
    service.clock.advance(599)
    await asyncio.sleep(0.3)
    assert len(receiver.got) == 1
    receiver.status = 200
    service.clock.advance(2)
    await until(service, webhook_id, "delivered", attempts=2)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    detail = (await service.operator("GET", f"{BASE}/{webhook_id}/deliveries/{first['delivery_id']}")).json()
    assert len(detail["response_body"]) == 4096
    assert json.loads(detail["payload"])["type"] == "machine.approved"


@pytest.mark.threat("T232")
async def test_after_the_last_attempt_the_endpoint_is_disabled(service: Service, receiver: Receiver) -> None:
    """With an event that others can be told of; what was given up is listed, and goes out when it is asked for."""
    receiver.status = 500
    webhook_id, _ = await made(service, receiver.url, "machine.approved")
    watching, _ = await made(service, receiver.url, "webhook.disabled")
    await service.admitted(SoftwareNode())
    await told(service)
    for attempt in range(1, len(delivering.RETRY_SECONDS) + 1):
        await until(service, webhook_id, "waiting", attempts=attempt)
        service.clock.advance(delivering.RETRY_SECONDS[attempt - 1] * 1.2 + 1)
    await until(service, webhook_id, "dead", attempts=10)
    shown = (await service.operator("GET", f"{BASE}/{webhook_id}")).json()
    assert (shown["enabled"], shown["disabled_why"]) == (False, "its deliveries failed for days")
    receiver.status = 200
    await told(service)
    await until(service, watching, "delivered")
    headers, body = receiver.got.pop()
    assert headers["x-webhook-event"] == "webhook.disabled"
    assert json.loads(body)["data"]["meta"] == {
        "webhook_id": webhook_id,
        "why": "its deliveries failed for days",
    }
    await service.operator("PUT", f"{BASE}/{webhook_id}", {"enabled": True})
    assert (await service.operator("POST", f"{BASE}/{webhook_id}/replay")).json() == {"deliveries": 1}
    await until(service, webhook_id, "delivered")
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_an_endpoint_that_is_gone_is_disabled_at_once(service: Service, receiver: Receiver) -> None:
    """410; nothing is sent to it afterwards but a test."""
    receiver.status = 410
    webhook_id, _ = await made(service, receiver.url, "machine.approved")
    await service.admitted(SoftwareNode())
    await told(service)
    await until(service, webhook_id, "dead")
    assert not (await service.operator("GET", f"{BASE}/{webhook_id}")).json()["enabled"]
    await service.admitted(SoftwareNode(rsa_ek=True))
    await told(service)
    assert len(await deliveries(service, webhook_id)) == 1
    receiver.status = 200
    service.clock.advance(1)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    await until(service, webhook_id, "delivered")
    (one,) = [each for each in await deliveries(service, webhook_id) if each["status"] == "dead"]
    path = f"{BASE}/{webhook_id}/deliveries/{one['delivery_id']}/replay"
    assert (await service.operator("POST", path)).json() == {"deliveries": 1}


@pytest.mark.threat("T233")
async def test_a_redirect_is_not_followed(service: Service, receiver: Receiver) -> None:
    """It is an answer that is not 2xx."""
    receiver.status, receiver.headers = 302, {"location": receiver.url}
    webhook_id, _ = await made(service, receiver.url)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    found = await until(service, webhook_id, "dead")
    assert (found["response_status"], len(receiver.got)) == (302, 1)


async def test_a_webhook_is_removed_with_its_deliveries(service: Service, receiver: Receiver) -> None:
    """And every act is in the audit log, without a secret."""
    webhook_id, secret = await made(service, receiver.url)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    await until(service, webhook_id, "delivered")
    assert (await service.operator("DELETE", f"{BASE}/{webhook_id}")).status_code == 204
    assert (await service.operator("GET", f"{BASE}/{webhook_id}")).status_code == 404
    assert (await service.operator("GET", f"{BASE}/")).json()["total"] == 0
    told_of = await service.audit()
    assert {"webhook_created", "webhook_deleted"} <= {each["action"] for each in told_of}
    assert secret not in str(told_of)


# Where nothing is sent


@pytest.mark.threat("T233")
@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1", "168.63.129.16"),
        *("192.0.0.8", "192.0.0.192", "192.88.99.1"),
        *(
            "::1",
            "::",
            "fe80::1",
            "fe80::1%eth0",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
        ),
        *("64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1", "2001::1", "not an address"),
    ],
)
def test_addresses_inside_are_refused(address: str) -> None:
    """Loopback, private, link-local, multicast, reserved, and what embeds them."""
    with pytest.raises(AddressRefused):
        addresses.demand_allowed(address, ())


def test_addresses_outside_are_not() -> None:
    """The internet, and networks that are named."""
    for address in ("1.1.1.1", "2606:4700:4700::1111"):
        addresses.demand_allowed(address, ())
    addresses.demand_allowed("10.1.2.3", (ip_network("10.0.0.0/8"),))
    addresses.demand_allowed("::ffff:10.1.2.3", (ip_network("10.0.0.0/8"),))


@pytest.mark.threat("T233")
@pytest.mark.parametrize(
    "url",
    [
        *("http://example.test/", "ftp://example.test/", "https://", "https:///x", "example.test"),
        *("https://a@example.test/", "https://a:b@example.test/", "https://example.test/#x"),
        *(
            "https://example.test:0/",
            "https://example.test:99999/",
            "https://example.test:x/",
            "https://e.test:/",
        ),
        *("https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://[::1"),
        *(
            "https://exa mple.test/",
            "https://example.test/\n",
            "https://ex\u00e4mple.test/",
            "https:\\\\e.test/",
        ),
        "https://example.test/" + "x" * 2048,
    ],
)
def test_urls_that_are_not_read(url: str) -> None:
    """Whatever two readers could understand in two ways, and all that is not https."""
    with pytest.raises(WebhookURLInvalid):
        read_url(url, allow_http=False)


@pytest.mark.threat("T234")
async def test_a_name_is_connected_to_where_it_was_checked(receiver: Receiver) -> None:
    """DNS rebinding: outside when it is looked at, inside when it is connected to. It is looked at once."""
    asked: list[str] = []

    async def rebinding(host: str, _port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) > 1 else ["1.1.1.1"]

    target = Target(
        url=f"http://evil.test:{receiver.port}/", scheme="http", host="evil.test", port=receiver.port
    )
    trust = ssl.create_default_context()
    sender = Sender(allowed=(), trust=trust, resolver=rebinding)
    asked.append("looked at when the webhook was added")
    outcome = await sender.send(target, [], b"{}")
    assert (outcome.ok, outcome.status) == (False, None)
    assert "not of the public internet" in str(outcome.error)
    assert receiver.got == []

    async def both(_host: str, _port: int) -> list[str]:
        return ["1.1.1.1", "127.0.0.1"]

    assert not (await Sender(allowed=(), trust=trust, resolver=both).send(target, [], b"{}")).ok

    async def inside(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    allowed = (ip_network("127.0.0.0/8"),)
    outcome = await Sender(allowed=allowed, trust=trust, resolver=inside).send(target, [], b"{}")
    assert outcome.ok
    assert receiver.got[0][0]["host"] == f"evil.test:{receiver.port}"


@pytest.mark.threat("T233")
async def test_without_leave_loopback_is_out_of_reach(
    start: Starter, tmp_path: Path, receiver: Receiver
) -> None:
    """The service says so in the delivery, and sends nothing."""
    service = await start(**settings(tmp_path, ITL_WEBHOOK_ALLOW_NETS=""))
    webhook_id, _ = await made(service, receiver.url)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    found = await until(service, webhook_id, "dead")
    assert found["error"] == "an address that is not of the public internet is not connected to"
    assert receiver.got == []


@pytest.mark.parametrize("kind", ["nobody", "foreign", "silent"])
async def test_a_receiver_that_is_not_there_is_told_in_words(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What an operator reads says what to do about it, not the name of an error."""
    if kind == "silent":
        monkeypatch.setattr(sending, "ATTEMPT_SECONDS", 0.3)
    resolver = Resolver()
    sender = Sender(
        allowed=(ip_network("127.0.0.0/8"),), trust=ssl.create_default_context(), resolver=resolver
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = {"nobody": 1, "foreign": receiver.port, "silent": listening.getsockname()[1]}[kind]
        url = f"{'https' if kind == 'foreign' else 'http'}://127.0.0.1:{port}/"
        outcome = await sender.send(read_url(url, allow_http=True), [], b"{}")
    resolver.close()
    assert outcome.status is None
    assert outcome.error is not None
    words = {
        "nobody": "cannot be reached: Connection refused",
        "foreign": "TLS fails: ",
        "silent": "no answer within",
    }
    assert outcome.error.startswith(words[kind])


def test_a_certificate_that_is_not_believed_is_told_in_words() -> None:
    """It is no network that is away; httpcore calls both the same."""
    cause = ssl.SSLCertVerificationError(1, "long words of OpenSSL")
    cause.verify_message = "self-signed certificate"
    error = httpcore.ConnectError("long words of OpenSSL")
    error.__cause__ = cause
    assert sending.in_words(error) == "its certificate is not believed: self-signed certificate"


async def test_a_name_with_an_address_that_does_not_answer_is_reached_at_another(receiver: Receiver) -> None:
    """As where a network has no IPv6, or one of two computers is down."""

    async def two(_host: str, _port: int) -> list[str]:
        return ["::1", "127.0.0.1"]

    allowed = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    sender = Sender(allowed=allowed, trust=ssl.create_default_context(), resolver=two)
    target = Target(
        url=f"http://two.test:{receiver.port}/", scheme="http", host="two.test", port=receiver.port
    )
    assert (await sender.send(target, [], b"{}")).ok


async def test_an_endpoint_that_does_not_answer_lets_others_pass(
    service: Service, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else waits for it is not tried one after the other, while whoever stands behind it waits."""
    monkeypatch.setattr(sending, "ATTEMPT_SECONDS", 2.0)
    monkeypatch.setattr(delivering, "AT_ONCE", 1)
    at = service.resources.clock.now()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow, _ = await made(service, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        good, _ = await made(service, receiver.url)

        def queue(tx: Tx) -> None:
            for number, webhook_id in enumerate((*[slow] * 10, good)):
                tx.of(Webhooks).queue(
                    delivery_id=f"msg_{number:02}",
                    webhook_id=webhook_id,
                    event="machine.locked",
                    payload=b"{}",
                    at=at,
                )

        await service.resources.store.write(queue)
        await until(service, good, "delivered")
    tried = [each["attempts"] for each in await deliveries(service, slow)]
    assert sum(tried) == 1
    assert len(tried) == 10


@pytest.mark.parametrize("event", ["machine.locked", messages.TEST])
async def test_an_endpoint_that_is_slow_lets_others_pass(
    service: Service, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """It is spared for as long as it took: whoever stands behind all that waits for it is told meanwhile."""
    monkeypatch.setattr(delivering, "SLOW", timedelta(seconds=0.1))
    monkeypatch.setattr(delivering, "AT_ONCE", 1)
    at = service.resources.clock.now()
    receiver.seconds["/slow"] = 0.3
    slow, _ = await made(service, receiver.url.replace("/hook", "/slow"))
    good, _ = await made(service, receiver.url)

    def queue(tx: Tx) -> None:
        for number, webhook_id in enumerate((*[slow] * 10, good)):
            tx.of(Webhooks).queue(
                delivery_id=f"msg_{number:02}", webhook_id=webhook_id, event=event, payload=b"{}", at=at
            )

    await service.resources.store.write(queue)
    await until(service, good, "delivered")
    tried = [each["attempts"] for each in await deliveries(service, slow)]
    assert sum(tried) == 1
    service.clock.advance(1)
    while (await deliveries(service, slow))[-1]["status"] != "delivered":
        service.clock.advance(1)
        await asyncio.sleep(0.05)


@pytest.mark.threat("T233")
async def test_behind_a_proxy_names_that_lead_inside_are_refused(receiver: Receiver) -> None:
    """The proxy is asked for all others, by their names."""

    async def found(host: str, _port: int) -> list[str]:
        return ["127.0.0.1"] if host == "inside.test" else ["1.1.1.1"]

    sender = Sender(
        allowed=(),
        trust=ssl.create_default_context(),
        proxy=f"http://127.0.0.1:{receiver.port}",
        resolver=found,
    )
    refused, sent = [
        await sender.send(Target(url=f"http://{host}/", scheme="http", host=host, port=80), [], b"{}")
        for host in ("inside.test", "outside.test")
    ]
    assert "not of the public internet" in str(refused.error)
    assert sent.ok
    assert [headers["host"] for headers, _ in receiver.got] == ["outside.test"]


# Keys


@pytest.mark.threat("T235")
async def test_the_database_has_no_secret(service: Service, receiver: Receiver, tmp_path: Path) -> None:
    """It is wrapped, and bound to its webhook; another KEK does not start."""
    _, secret = await made(service, receiver.url)
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("machines.db*"))  # noqa: ASYNC240 -- of a test
    assert raw not in kept
    assert secret.encode() not in kept


@pytest.mark.threat("T235")
async def test_with_another_key_the_service_does_not_start(
    start: Starter, service: Service, receiver: Receiver, tmp_path: Path
) -> None:
    """It says which one it misses."""
    await made(service, receiver.url)
    create_kek(f"file:{tmp_path}/other.kek").close()
    with pytest.raises(extensions.ExtensionInvalid, match="under a key-encryption key that is not set"):
        await start(**settings(tmp_path, ITL_EXT_WEBHOOKS_KEK=f"file:{tmp_path}/other.kek"))


def test_bodies_are_thin() -> None:
    """What is too long says so; 20 KiB is the most."""
    body = messages.body_of("x", timestamp="t", machine_id=None, data={"meta": "y" * 30_000})
    assert json.loads(body)["data"] == {"truncated": True}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *((b"0", 0), (b"120", 120), (b"999999999", 86_400), (b"", None), (b"-1", None), (b"1.5", None)),
        *((b"soon", None), (b"\xb2", None), (b"9" * 100, None)),
        (b"Fri, 31 Dec 1999 23:59:59 GMT", 0),
        (b"Fri, 31 Dec 2199 23:59:59 GMT", 86_400),
    ],
)
def test_a_pause_is_read_as_a_number_or_a_date(text: bytes, seconds: int | None) -> None:
    """`Retry-After` of RFC 9110 §10.2.3, a day at most; what is none asks for nothing."""
    assert sending._seconds(text) == seconds


async def test_receivers_are_told_of_what_is_promised(service: Service, receiver: Receiver) -> None:
    """Of each state that a machine comes to, by its name and once."""
    await made(service, receiver.url)
    node, other = SoftwareNode(), SoftwareNode(rsa_ek=True)
    await service.admitted(node)
    for act in ("lock", "unlock", "revoke"):
        await service.act(node, act, {"reason": "x"})
    await service.introduce(other)

    def others(tx: Tx) -> None:  # what other units of the service write, as they write it
        for event in (NodeEvent.WIPED, NodeEvent.ATTESTATION_FAILED, NodeEvent.APPROVAL_VOTE):
            tx.outbox.add(event, node.machine_id, {"node": {}, "meta": {}}, service.clock.now())

    service.store.write_sync(others)
    wanted = {
        *("machine.registered", "machine.pending", "machine.approved", "machine.attested", "machine.locked"),
        *("machine.unlocked", "machine.revoked", "machine.wiped", "attestation.failed", "approval.vote"),
    }
    got: list[str] = []
    for _ in range(200):
        await told(service)  # another worker may be about an event: its machine's next ones wait
        got = [json.loads(body)["type"] for _, body in receiver.got]
        if wanted <= set(got):
            break
        service.clock.advance(1)  # an attempt that took long puts off the others
        await asyncio.sleep(0.05)
    assert wanted <= set(got), got
    assert {"secret.created", "secret.accessed", "audit.checkpoint", "webhook.test"} <= set(messages.NAMES)
    assert got.count("machine.unlocked") == 1


def test_every_event_has_one_name() -> None:
    """Each source stands once, so that nothing is told twice; retries are those of the standard."""
    sources = [str(each) for each in messages.SOURCES.values()]
    assert len(set(sources)) == len(sources)
    assert timedelta(seconds=sum(delivering.RETRY_SECONDS)) > timedelta(days=3)
    # What is counted is named as the service names it.
    known = OBSERVED["webhook_deliveries"]["event_type"]
    words = {name: messages.source_of(name) for name in messages.NAMES}
    assert (words["machine.attested"], words["machine.pending"]) == ("node.online", "node.registered")
    strange = {word for word in words.values() if word not in known}
    assert strange == {messages.TEST, *(event for kind in OURS for event in kind.events)}


def test_every_event_can_be_told() -> None:
    """What the service and our extensions declare, under a name; only `operator.break_glass` has none."""
    declared = {*map(str, OWN_EVENTS), *(event for kind in OURS for event in kind.events)}
    assert {*map(str, messages.SOURCES.values())} == declared - {OperatorEvent.BREAK_GLASS}


async def test_what_is_long_over_is_forgotten_a_few_at_a_time(service: Service, receiver: Receiver) -> None:
    """The oldest first; what waits is kept."""
    webhook_id, _ = await made(service, receiver.url)
    at = service.clock.now()

    def work(tx: Tx) -> None:
        for number in range(4):
            name = f"d{number}"
            tx.of(Webhooks).queue(
                delivery_id=name,
                webhook_id=webhook_id,
                event="x",
                payload=b"",
                at=at - timedelta(days=60 - number),
            )

    await service.store.write(work)
    path = service.resources.settings.db_url.partition(":///")[2]
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(
            "update extension_webhook_deliveries set status = 'delivered' where delivery_id <> 'd0'"
        )
    forgotten = [await service.store.write(lambda tx: tx.of(Webhooks).forget(at, 2)) for _ in range(3)]
    assert forgotten == [2, 1, 0]
    assert [each["delivery_id"] for each in await deliveries(service, webhook_id)] == ["d0"]


async def test_a_secret_under_a_key_that_is_not_here_fails_in_words(
    service: Service, receiver: Receiver
) -> None:
    """As any other attempt: it is told, and no other delivery waits for it."""
    webhook_id, _ = await made(service, receiver.url)

    def elsewhere(tx: Tx) -> None:
        found = tx.of(Webhooks).get(webhook_id)
        assert found is not None
        tx.of(Webhooks).change(replace(found, kek_id="of a newer replica"))

    await service.resources.store.write(elsewhere)
    await service.operator("POST", f"{BASE}/{webhook_id}/test")
    assert (await until(service, webhook_id, "dead"))["error"] == "the secret cannot be opened: KeyUnusable"


async def test_deliveries_are_counted_by_the_words_of_the_service(
    start: Starter, tmp_path: Path, receiver: Receiver
) -> None:
    """The list of the metrics is closed; what receivers call an event is not on it."""
    chosen = settings(tmp_path, ITL_EXT_METRICS_FLUSH_SECONDS="0.1") | {"extensions": ("webhooks", "metrics")}
    service = await start(HeldClock(datetime.now(UTC).replace(microsecond=0)), **chosen)
    await made(service, receiver.url, "machine.attested")
    await service.admitted(SoftwareNode())
    await told(service)
    counted = 'attestation_webhook_deliveries_total{event_type="node.online",status="delivered"} 1.0'
    for _ in range(100):
        if counted in (await service.operator("GET", "/metrics")).text:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(counted)


async def test_a_round_of_forgetting_that_fails_is_told() -> None:
    """Else deliveries pile up without a word; the next round tries again."""
    made = webhooks.Extension(webhooks.WebhookSettings(kek="file:/kek"))

    async def away(_work: object) -> int:
        raise OSError("the database is away")

    made.context = cast("Any", SimpleNamespace(store=SimpleNamespace(write=away)))
    with capture_logs() as told:
        task = asyncio.create_task(made._forget())
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])
    assert told == [{"event": "webhooks.not_forgotten", "kind": "OSError", "log_level": "error"}]
