"""Who may ask what: every route declares it, and the declaration is what happens (FAULTS R1, R18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from attestation_service.app import create_app
from attestation_service.openapi import ACCESS_KEY
from tests.unit.service.conftest import OPERATOR, TOKEN, Service, Starter, settings_for
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

NOBODY = "00000000-0000-4000-8000-000000000000"
MACHINE_ROUTES = {
    ("POST", "/api/v1/self-register"),
    ("POST", "/api/v1/register"),
    ("POST", "/api/v1/machines/{machine_id}/ak-activate"),
    ("GET", "/api/v1/attest/challenge"),
    ("POST", "/api/v1/attest"),
    ("POST", "/api/v1/machines/{machine_id}/ack"),
    ("GET", "/api/v1/config/{config_token}"),
    ("GET", "/api/v1/config"),
}
PUBLIC_ROUTES = {("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/api/v1/service-keys")}


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return every documented operation by method and path."""
    app: FastAPI = create_app(settings_for(Path("/nowhere")))
    return {
        (method.upper(), path): operation
        for path, item in app.openapi()["paths"].items()
        for method, operation in item.items()
    }


OPERATIONS = operations()
OPERATOR_ROUTES = sorted(k for k, v in OPERATIONS.items() if v.get(ACCESS_KEY) == "operator")


def concrete(path: str) -> str:
    """Fill in a path."""
    values = {
        "machine_id": NOBODY,
        "token_id": "0" * 16,
        "ek_fingerprint": "0" * 96,
        "scope": "fleet",
        "subject": "*",
        "config_token": "x",
    }
    return path.format(**values)


def test_every_route_declares_who_may_ask() -> None:
    """No route is forgotten: what is not listed here as public needs an operator."""
    declared = {key: operation.get(ACCESS_KEY) for key, operation in OPERATIONS.items()}
    assert {k for k, v in declared.items() if v == "machine"} == MACHINE_ROUTES
    assert {k for k, v in declared.items() if v == "public"} == PUBLIC_ROUTES
    assert set(declared) - MACHINE_ROUTES - PUBLIC_ROUTES == set(OPERATOR_ROUTES)
    assert len(OPERATOR_ROUTES) >= 20


@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
async def test_operator_routes_refuse_everybody_else(service: Service, method: str, path: str) -> None:
    """No credential, a wrong one, two of them, another scheme: 401, and nothing is written but the denial."""
    url = concrete(path)
    for headers in (
        [],
        [("Authorization", "Bearer wrong")],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", f"bearer {TOKEN}x")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")],
        [("X-Client-Cert", "anything"), ("X-EK-Fingerprint", "0" * 96)],
    ):
        answer = await service.http.request(method, url, headers=headers, json={})
        assert answer.status_code == 401, (headers, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["type"] == "urn:itl:problem:unauthenticated"
    assert {entry["action"] for entry in await service.audit()} == {"denied"}


@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
async def test_operator_routes_let_the_operator_in(service: Service, method: str, path: str) -> None:
    """With the credential the route itself answers."""
    answer = await service.http.request(method, concrete(path), headers=OPERATOR, json={})
    assert answer.status_code not in (401, 403, 405, 500, 503), answer.text


@pytest.mark.parametrize(("method", "path"), sorted(MACHINE_ROUTES | PUBLIC_ROUTES))
async def test_public_routes_ask_for_no_operator(service: Service, method: str, path: str) -> None:
    """What a machine needs, it gets without an operator's credential; a wrong one there does no harm."""
    answer = await service.http.request(
        method,
        concrete(path),
        json={},
        headers={"Authorization": "Bearer wrong", "Accept": "application/json"},
    )
    assert answer.status_code not in (401, 500, 503), answer.text
    assert answer.status_code != 403


async def test_wrong_credentials_are_limited_and_audited_within_bounds(service: Service) -> None:
    """A guesser is slowed down and cannot fill the audit log; another address is not affected."""
    statuses = []
    for _ in range(40):
        answer = await service.get("/api/v1/machines", headers={"Authorization": "Bearer wrong"})
        statuses.append(answer.status_code)
    assert statuses[0] == 401
    assert statuses[-1] == 429
    # Before the limit ends, even the right one is not looked at: otherwise guessing would not be slower.
    assert (await service.get("/api/v1/machines", headers=OPERATOR)).status_code == 429
    service.clock.advance(60)
    assert 1 <= len(await service.audit(action="denied")) <= 10


async def test_every_use_of_break_glass_is_logged(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reads too; the token itself is in no log."""
    await service.operator("GET", "/machines")
    logged = capsys.readouterr().err
    assert "operator.break_glass" in logged
    assert TOKEN not in logged


async def test_acts_are_audited_as_system(service: Service) -> None:
    """The audit says who, from where, what and from which state to which."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    entry = (await service.audit(action="approve"))[0]
    assert (entry["operator_cn"], entry["source_ip"]) == ("SYSTEM", "192.0.2.7")
    assert (entry["prev_state"], entry["new_state"]) == ("pending_approval", "registered")


async def test_the_token_may_have_any_length(start: Starter) -> None:
    """A short token works and is warned of; a huge header is refused, not compared."""
    service = await start(admin_token=SecretStr("short"))
    good = await service.get("/api/v1/machines", headers={"Authorization": "Bearer short"})
    assert good.status_code == 200
    huge = await service.get("/api/v1/machines", headers={"Authorization": "Bearer " + "x" * 100_000})
    assert huge.status_code == 401
