"""One service without a server: the application over ASGI, a clock we hold, a database per test."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import SecretStr

from attestation.audit.authority import words_of
from attestation.store import Store, migrate
from attestation_service.app import create_app
from attestation_service.border import problems
from attestation_service.resources import Resources
from attestation_service.settings import Settings
from tests.fixtures.vendor import write_bundle
from tests.unit.service.node import SEALED, SoftwareNode, node_nonce

TOKEN = "break-glass-token-of-more-than-32-characters"
OPERATOR = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
CANARY = "canary-7c1f0b"

BASE = f"""\
# base of the role
version: v1alpha1
machine:
  type: worker
  token: {CANARY}
  install:
    disk: /dev/sda
"""


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@dataclass
class HeldClock:
    """A clock that moves when told."""

    at: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the present instant."""
        return self.at

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.at += timedelta(seconds=seconds)


@dataclass
class Service:
    """The application with everything a test looks at."""

    app: FastAPI
    http: httpx.AsyncClient
    clock: HeldClock
    directory: Path

    @property
    def resources(self) -> Resources:
        """What the lifespan owns."""
        found = self.app.state.resources
        assert isinstance(found, Resources)
        return found

    @property
    def store(self) -> Store:
        """The database."""
        return self.resources.store

    async def get(self, path: str, **more: Any) -> httpx.Response:
        """GET as nobody."""
        return await self.http.get(path, **more)

    async def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        """POST as nobody."""
        return await self.http.post(path, json=body, **more)

    async def operator(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """Send a request as the operator."""
        headers = OPERATOR | more.pop("headers", {})
        if body is not None:
            more["json"] = body
        return await self.http.request(method, f"/api/v1{path}", headers=headers, **more)

    async def act(self, node: SoftwareNode, act: str, body: Any = None) -> dict[str, Any]:
        """Do an act that must succeed."""
        answer = await self.operator("POST", f"/machines/{node.machine_id}/{act}", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def detail(self, node: SoftwareNode) -> dict[str, Any]:
        """Return the operators' view of a machine."""
        found: dict[str, Any] = (await self.operator("GET", f"/machines/{node.machine_id}")).json()
        return found

    async def audit(self, **query: str) -> list[dict[str, Any]]:
        """Return the newest audit entries, newest first, as people read them.

        Uses of break-glass, as here, and rows that a test wrote by itself only where asked for; without the rows that
        an entry tells of.
        """
        found: list[dict[str, Any]] = (await self.operator("GET", "/audit", params=query)).json()["items"]
        for entry in found:
            entry["detail"] = words_of(entry["detail"])
        unasked = {"break_glass", "authority_changed"} - {query.get("action")}
        return [e for e in found if e["action"] not in unasked]

    # The life of a machine, step by step

    async def introduce(self, node: SoftwareNode, **members: Any) -> dict[str, Any]:
        """Introduce and activate *node*; return the answer to the activation."""
        route = "register" if "registration_token" in members else "self-register"
        answer = await self.post(f"/api/v1/{route}", node.introduction(**members))
        assert answer.status_code == 200, answer.text
        body = node.activation(answer.json())
        answer = await self.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def challenge(self, node: SoftwareNode) -> dict[str, Any]:
        """Fetch a challenge."""
        answer = await self.get("/api/v1/attest/challenge", params={"machine_id": node.machine_id})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def try_attest(self, node: SoftwareNode, **members: Any) -> httpx.Response:
        """Attest with a fresh challenge."""
        return await self.post("/api/v1/attest", node.attestation(await self.challenge(node), **members))

    async def attest(self, node: SoftwareNode, **members: Any) -> dict[str, Any]:
        """Attest with a fresh challenge; it must be answered 200."""
        answer = await self.try_attest(node, **members)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def admitted(self, node: SoftwareNode, role: str = "worker-app", **granted: str) -> dict[str, Any]:
        """Introduce, approve and attest *node*; return the answer that carries its config token."""
        await self.introduce(node)
        await self.act(node, "approve", {"role": role, **granted})
        return await self.attest(node)

    async def fetch(self, token: str, accept: str | None = SEALED) -> httpx.Response:
        """Fetch a configuration."""
        headers = {"Accept": accept if accept is not None else "", "Itl-Node-Nonce": node_nonce()}
        return await self.get(f"/api/v1/config/{token}", headers=headers)

    async def acknowledge(
        self, node: SoftwareNode, answer: dict[str, Any], outcome: str = "done", detail: str | None = None
    ) -> None:
        """Acknowledge the directive of *answer*, which must be accepted."""
        body = node.acknowledgement(await self.challenge(node), answer["directive"], outcome)
        told = await self.post(f"/api/v1/machines/{node.machine_id}/ack", {**body, "detail": detail})
        assert told.status_code == 200, told.text

    async def configured(self, node: SoftwareNode, answer: dict[str, Any]) -> None:
        """Fetch the configuration that *answer* offers, and acknowledge that it is applied."""
        assert (await self.fetch(answer["config_token"])).status_code == 200
        await self.acknowledge(node, answer)


StartService = Callable[..., Awaitable[Service]]


async def told_beforehand(app: FastAPI, response: httpx.Response) -> None:
    """Compare a problem with the OpenAPI document: what an operation can end in, its declaration names.

    Raises:
        AssertionError: It does not.
    """
    if response.headers.get("content-type") != problems.MEDIA_TYPE or response.request.method == "HEAD":
        return
    await response.aread()
    code, asked = response.json()["type"].removeprefix("urn:itl:problem:"), response.request
    for route in app.router.routes:
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        if asked.method in (route.methods or ()) and route.path_regex.match(asked.url.path):
            told: dict[str, Any] = route.responses.get(response.status_code, {})
            examples = told.get("content", {}).get(problems.MEDIA_TYPE, {}).get("examples", {})
            assert code in examples, f"{route.operation_id}: {code}"
            return


@dataclass
class Starter:
    """Starts services and stops them with the test."""

    directory: Path
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    count: int = 0

    def bundle(self) -> Path:
        """Return a folder that makes the vendor of the tests a known one."""
        folder = self.directory / "bundle"
        return folder if folder.exists() else write_bundle(folder)

    async def __call__(self, clock: HeldClock | None = None, **changed: Any) -> Service:
        """Start a service with these settings changed."""
        held = clock or HeldClock()
        app = create_app(settings_for(self.directory, **changed), held)
        await self.stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.7", 4711))
        http = await self.stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://service")
        )
        http.event_hooks["response"].append(functools.partial(told_beforehand, app))
        return Service(app, http, held, self.directory)


def settings_for(directory: Path, *, extension_values: Any = None, **changed: Any) -> Settings:
    """Return settings of a service that lives in *directory*, and those of its extensions."""
    chosen: dict[str, Any] = {
        "db_url": f"sqlite:///{directory / 'machines.db'}",
        "enrollment_ca_dir": directory / "ca",
        "config_cache_dir": directory / "configs",
        "service_url": "https://attest.example.test",
        "enrollment_ca_organization": "ITL Usions",
        "enrollment_ca_country": "NL",
        "admin_token": SecretStr(TOKEN),
        "break_glass_per_minute": 1_000_000,
        "maintenance_seconds": 3600,
    }
    settings = Settings(**(chosen | changed))
    settings.extension_values.update(extension_values or {})
    return settings


@functools.cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document, which takes a second to make; nobody changes it."""
    return create_app(settings_for(Path("/nowhere"))).openapi()


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest schema: migrating costs more than a test."""
    path = tmp_path_factory.mktemp("migrated") / "machines.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
async def start(
    tmp_path: Path,
    migrated: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],  # before the service starts, so that a test can read its log
) -> AsyncIterator[Starter]:
    """Start services with chosen settings."""
    shutil.copy(migrated, tmp_path / "machines.db")
    monkeypatch.setattr("attestation_service.app.migrate", lambda _url: None)
    # The log is signed, and bundles sealed, when a test says so: what does it by itself would act between two lines of
    # one, each second or two, and soon after an act that hurries.
    monkeypatch.setattr("attestation_service.transparency.checkpoints.TICK_SECONDS", 3600.0)
    monkeypatch.setattr("attestation_service.transparency.checkpoints.TOGETHER_SECONDS", 3600.0)
    monkeypatch.setattr("attestation_service.runs.sealing.TICK_SECONDS", 3600.0)
    (tmp_path / "configs").mkdir()
    for role in ("controlplane", "worker-infra", "worker-app"):
        kind = "controlplane" if role == "controlplane" else "worker"
        text = BASE.replace("type: worker", f"type: {kind}")
        (tmp_path / "configs" / f"{role}-final.yaml").write_text(text)
    starter = Starter(tmp_path)
    async with starter.stack:
        yield starter


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with default settings."""
    return await start(tpm_ca_bundle_dir=start.bundle())
