"""The outermost border: ids, limits, headers, addresses, logs, the last catch."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from attestation_service.border.life import Life
from attestation_service.border.proxies import Proxies
from attestation_service.context.logs import mask_path, mask_text, redact
from attestation_service.settings import Settings
from tests.unit.service.conftest import TOKEN, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_problems import is_problem

pytestmark = pytest.mark.anyio


async def test_every_answer_has_an_id_and_is_not_cached(service: Service) -> None:
    """Good and bad answers carry the same headers; ids of ours are unique."""
    ids = set()
    for path in ("/healthz", "/api/v1/nothing", "/api/v1/machines", "/api/v1/config"):
        answer = await service.get(path)
        ids.add(answer.headers["x-request-id"])
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert len(ids) == 4


@pytest.mark.parametrize(
    ("given", "taken"),
    [("abc-1.2_3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ('a"},{', False), ("", False)],
)
async def test_a_harmless_request_id_is_kept(service: Service, given: str, taken: bool) -> None:
    """What a client sends enters the log only as plain text."""
    answer = await service.get("/healthz", headers={"X-Request-Id": given})
    assert (answer.headers["x-request-id"] == given) is taken


async def chunks(size: int) -> AsyncIterator[bytes]:
    """Yield *size* bytes without saying how many."""
    for _ in range(size // 65536):
        yield b" " * 65536


@pytest.mark.threat("T123")
@pytest.mark.parametrize(
    ("path", "limit"),
    [("/api/v1/self-register", 128 << 10), ("/api/v1/attest", 4 << 20), ("/api/v1/policies", 1 << 20)],
)
async def test_bodies_are_limited(service: Service, path: str, limit: int) -> None:
    """Announced or not, a body beyond the limit is 413; up to it, it is read."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    announced = await service.http.post(path, content=b" " * (limit + 1), headers=headers)
    is_problem(announced, 413, "body-too-large")
    streamed = await service.http.post(path, content=chunks(limit + 65536), headers=headers)
    is_problem(streamed, 413, "body-too-large")
    allowed = await service.http.post(path, content=chunks(limit), headers=headers)
    assert allowed.status_code == 422


def scope(peer: str | None, *forwarded: str) -> dict[str, Any]:
    """Return a scope of a request from *peer* with these X-Forwarded-For headers."""
    return {
        "type": "http",
        "client": (peer, 1) if peer else None,
        "headers": [(b"x-forwarded-for", value.encode()) for value in forwarded],
    }


PROXIES = Proxies(
    Settings(trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")))
)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", [], "192.0.2.1"),
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.2.3.4, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1.2.3.4", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["rubbish"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, rubbish"], "10.0.0.1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        (None, ["203.0.113.9"], "203.0.113.9"),
        (None, [], "unix"),
    ],
)
def test_client_address(peer: str | None, forwarded: list[str], expected: str) -> None:
    """A header is believed only from a trusted proxy, and only what that proxy itself saw."""
    assert PROXIES.read(scope(peer, *forwarded))[0] == expected


async def test_no_proxy_is_trusted_by_default(service: Service) -> None:
    """The header of a stranger changes neither limits nor audit."""
    node = SoftwareNode()
    service.http.headers["X-Forwarded-For"] = "203.0.113.9"
    await service.introduce(node)
    assert (await service.detail(node))["registered_from"] == "192.0.2.7"


async def test_a_trusted_proxy_tells_the_client(start: Starter) -> None:
    """With the peer on the list, the client's own address is recorded."""
    service = await start(trusted_proxies=("192.0.2.0/24",))
    node = SoftwareNode()
    service.http.headers["X-Forwarded-For"] = "203.0.113.9"
    await service.introduce(node)
    assert (await service.detail(node))["registered_from"] == "203.0.113.9"


async def test_the_access_log_holds_no_token(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON event per request; a config token in a path is masked, a query is not logged."""
    await service.get("/api/v1/config/canary-config-token?mac=canary-mac")
    await service.get("/api/v1/machines", headers={"Authorization": "Bearer canary-bearer"})
    ours = capsys.readouterr().err
    events = [json.loads(line) for line in ours.splitlines() if '"event": "request"' in line]
    assert [(e["path"], e["status"]) for e in events] == [
        ("/api/v1/config/***", 404),
        ("/api/v1/machines", 401),
    ]
    assert all(e["request_id"] and e["client"] == "192.0.2.7" and e["ms"] >= 0 for e in events)
    assert "canary-config-token" not in "".join(json.dumps(e) for e in events)
    assert "canary-bearer" not in ours


async def test_the_access_log_can_be_off(start: Starter, capsys: pytest.CaptureFixture[str]) -> None:
    """Then only what is worth an event is logged."""
    service = await start(access_log=False)
    await service.get("/healthz")
    assert '"event": "request"' not in capsys.readouterr().err


def test_masking() -> None:
    """Names and forms that carry secrets are replaced wherever they stand."""
    assert mask_path("/api/v1/config/abc") == "/api/v1/config/***"
    assert mask_path("/api/v1/config") == "/api/v1/config"
    assert mask_text("GET /api/v1/config/abc?x HTTP/1.1") == "GET /api/v1/config/***?x HTTP/1.1"
    assert mask_text("Authorization: Bearer abc def") == "Authorization: Bearer *** def"
    event = {"event": "x", "token": "abc", "secret": b"x", "detail": "bearer abc", "count": 3}
    assert redact(None, "info", event) == {
        "event": "x", "token": "***", "secret": "***", "detail": "bearer ***", "count": 3,
    }  # fmt: skip


async def test_no_secret_of_a_whole_life_is_in_the_logs(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operator token, registration token, config token, nonce, proof: none of them, in any event."""
    issued = (
        await service.operator(
            "POST",
            "/registration-tokens",
            {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
        )
    ).json()
    node = SoftwareNode()
    introduced = (
        await service.post("/api/v1/register", node.introduction(registration_token=issued["token"]))
    ).json()
    proof = node.activation(introduced)
    activated = (await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", proof)).json()
    answer = await service.attest(node)
    await service.fetch(answer["config_token"])
    from attestation_service.process import maintenance

    await maintenance.once(service.resources)
    logged = "".join(line for line in capsys.readouterr().err.splitlines() if "HTTP Request" not in line)
    assert "node.configured" in logged
    for secret in (
        TOKEN,
        issued["token"],
        activated["config_token"],
        answer["config_token"],
        answer["next_challenge"]["nonce"],
        proof["proof"],
        introduced["activation"]["credential_blob"],
    ):
        assert secret not in logged


async def test_in_flight_counts_and_drains() -> None:
    """A shutdown waits for what was accepted, and no longer than it is allowed to."""
    life = Life(Settings())
    assert await life.drained()

    ends = [asyncio.Event(), asyncio.Event()]

    async def serve(end: asyncio.Event) -> None:
        with life:
            await end.wait()

    tasks = [asyncio.create_task(serve(end)) for end in ends]
    await asyncio.sleep(0)
    assert life.count == 2
    life.stop(time.monotonic() + 0.001)
    assert not await life.drained()
    life.stop(time.monotonic() + 30)
    drained = asyncio.create_task(life.drained())
    for end in ends:
        await asyncio.sleep(0)
        assert not drained.done()
        end.set()
    assert await drained
    await asyncio.gather(*tasks)


async def test_other_protocols_pass_through(service: Service) -> None:
    """A websocket is not ours to measure; there is no route for one either."""
    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await service.app(
        {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "root_path": ""}, receive, send
    )
    assert sent == ["websocket.close"]


async def test_the_lane_answers_as_the_framework_would(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attestation route served by the border, and by the framework alone: the same answer to everything."""
    with_lane = await start(rate_limits=False)
    monkeypatch.setattr("attestation_service.app.lanes", lambda *_routers: {})
    without = await start(rate_limits=False)
    good = {
        "machine_id": "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        "ek_fingerprint": "ab" * 48,
        "nonce_id": "cd" * 16,
        "pcr_quote": "AA==",
        "pcr_signature": "AA==",
        "pcr_values": {"sha256": {"0": "00" * 32}},
    }
    bodies = [
        json.dumps(good),
        json.dumps({**good, "unknown": 1}),
        json.dumps({**good, "machine_id": "x"}),
        "{",
        "[]",
        "",
        " " * 5_000_000,
    ]
    for method in ("POST", "GET", "PUT"):
        for body in bodies if method == "POST" else [""]:
            answers = [
                await service.http.request(
                    method, "/api/v1/attest", content=body, headers={"Content-Type": "application/json"}
                )
                for service in (with_lane, without)
            ]
            told = [{**answer.json(), "instance": ""} for answer in answers]
            assert told[0] == told[1]
            assert answers[0].status_code == answers[1].status_code >= 400
            assert set(answers[0].headers) == set(answers[1].headers)
