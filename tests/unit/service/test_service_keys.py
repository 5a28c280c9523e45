"""Who is told of which keys, and signed by which (docs/adr/0046)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from attestation.errors import (
    KeyMismatch,
    KeyNotFound,
    KeyUnusable,
    ModuleNotListed,
    PINRejected,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.keys import KEYS_TYP, key_set_sha256, load_signer, thumbprints, verify_jwt
from attestation_service.context.request import ACCESS_KEY
from attestation_service.inspection import Level, Listen
from attestation_service.inspection.case import Case
from attestation_service.inspection.keys import service_key
from attestation_service.keys import service_keys
from attestation_service.process import preparation
from attestation_service.routers import ROUTERS
from attestation_service.settings import Settings
from tests.unit.service.conftest import Service, Starter, settings_for
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


def uri(directory: Path, name: str) -> str:
    return f"file:{directory / name}.pem"


async def acknowledge(service: Service, node: SoftwareNode, digest: bytes, outcome: str = "done") -> int:
    """Acknowledge a key set as the agent does: by its digest."""
    directive: dict[str, Any] = {"directive_sha256": digest.hex()}
    body = node.acknowledgement(await service.challenge(node), "", outcome, digest=digest)
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ack", body | directive)
    return answer.status_code


async def test_nobody_is_told_of_keys_that_do_not_change(service: Service) -> None:
    """In steady state nothing is signed; an acknowledgement nobody asked for does no harm."""
    node = SoftwareNode()
    activated = await service.introduce(node)
    assert "next_keys" not in activated
    assert "next_keys" not in await service.attest(node)
    digest = service.resources.signer.sha256
    assert digest == key_set_sha256(thumbprints(activated["service_keys"]))
    assert await acknowledge(service, node, bytes(32)) == 409


@pytest.mark.threat("T141")
async def test_a_change_is_told_until_it_is_acknowledged(start: Starter) -> None:
    """In every status, at activation and attestation, for this TPM and request; not to old agents."""
    service = await start(service_key_next=uri(start.directory, "next"))
    node = SoftwareNode()
    activated = await service.introduce(node)
    shown = (await service.get("/api/v1/service-keys")).json()
    active = {"keys": shown["keys"][:1]}
    assert len(shown["keys"]) == 2
    answer = await service.attest(node)
    for token in (activated["next_keys"], answer["next_keys"]):
        claims = verify_jwt(token, active, typ=KEYS_TYP)
        assert claims["keys"] == shown
        assert claims["binding"]["ek_fingerprint"] == node.ek_fingerprint
    assert (await service.attest(node))["next_keys"]
    assert "next_keys" not in await service.attest(node, node_nonce=None)
    digest = key_set_sha256(thumbprints(shown))
    assert await acknowledge(service, node, digest, "failed") == 409
    assert (await service.attest(node))["next_keys"]
    entries = len(await service.audit())
    assert [await acknowledge(service, node, digest) for _ in range(2)] == [200, 200]
    assert len(await service.audit()) == entries
    assert "next_keys" not in await service.attest(node)
    stats = (await service.operator("GET", "/stats")).json()
    assert stats["service_keys_pinned"] == 1
    rejected = SoftwareNode()
    await service.introduce(rejected)
    await service.act(rejected, "reject", {"reason": "not ours"})
    assert await acknowledge(service, rejected, digest) == 403


async def test_the_key_before_tells_of_its_successor_and_signs_nothing_else(start: Starter) -> None:
    """Machines that were away know no other."""
    old = uri(start.directory, "old")
    await start(service_key=old)
    service = await start(service_key=uri(start.directory, "new"), service_key_previous=old)
    shown = service.resources.signer.jwks()["keys"]
    node = SoftwareNode()
    activated = await service.introduce(node)
    verify_jwt(activated["next_keys"], {"keys": shown[1:]}, typ=KEYS_TYP)
    verify_jwt(activated["welcome"], {"keys": shown[:1]}, typ="itl-welcome+jwt")


@pytest.mark.parametrize(
    "chosen",
    [
        {"service_key_next": "file:/a", "service_key_previous": "file:/b"},
        {"service_key": "file:/a", "service_key_next": "file:/a"},
        {"service_key": "file:/a", "service_key_previous": "file:/a"},
    ],
)
def test_one_change_at_a_time(chosen: dict[str, Any]) -> None:
    """And never into itself."""
    with pytest.raises(ValueError, match="ITL_SERVICE_KEY_NEXT"):
        Settings(**chosen)


TOKEN_KEY = "pkcs11:token=hsm;object=service"
"""A key whose token the tests take away; what opens it is a file."""


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Exception]:
    """Why the token does not open its key, while something stands here; there is one, made before."""
    why: list[Exception] = [TokenAbsent("no token")]
    real: Callable[..., Any] = load_signer
    real(uri(tmp_path, "token"), create=True)

    def load(named: str, **options: Any) -> Any:
        if named == TOKEN_KEY and why:
            raise why[-1]
        return real(uri(tmp_path, "token") if named == TOKEN_KEY else named, **options)

    monkeypatch.setattr(service_keys, "load_signer", load)
    monkeypatch.setattr(service_keys, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(service_keys, "MAX_PAUSE_SECONDS", 0.01)
    return why


async def until_ready(service: Service, status: int, words: str = "") -> dict[str, str]:
    """Ask until the answer is *status*, and says *words* of the keys; return the parts."""
    async with asyncio.timeout(60):
        while True:
            answer = await service.get("/readyz")
            parts: dict[str, str] = answer.json()["checks"]
            if answer.status_code == status and words in parts["service_key"]:
                return parts
            await asyncio.sleep(0.01)


@pytest.mark.threat("T156")
async def test_without_its_key_a_service_refuses_machines_and_nobody_else(
    start: Starter, away: list[Exception]
) -> None:
    """Every route for machines, before anything is done for them; it serves them by itself when the key is there."""
    service = await start(service_key=TOKEN_KEY)
    parts = await until_ready(service, 503)
    assert parts["service_key"].startswith("failed: token-absent")
    assert {parts[name] for name in ("database", "ca_directory", "clock")} == {"ok"}
    assert (await service.get("/healthz")).status_code == 200
    assert (await service.operator("GET", "/machines")).status_code == 200
    asked = 0
    for route in (each for router in ROUTERS for each in router.routes):
        assert isinstance(route, APIRoute)
        if (route.openapi_extra or {}).get(ACCESS_KEY) == "machine":
            path = route.path.format_map(dict.fromkeys(route.param_convertors, "x"))
            accept = {"Accept": "application/json"}  # of /config it is text otherwise
            answer = await service.http.request(min(route.methods or ()), path, headers=accept)
            assert (answer.status_code, answer.json()["type"]) == (
                503,
                "urn:itl:problem:signer-unavailable",
            ), path
            asked += 1
    assert asked > 8
    refused = await service.post("/api/v1/self-register", SoftwareNode().introduction())
    assert refused.status_code == 503
    assert refused.headers["retry-after"]
    assert (await service.get("/api/v1/service-keys")).status_code == 503
    # What nobody expected: no reason to end. The key is back: it serves.
    away.append(RuntimeError("unexpected"))
    await asyncio.sleep(0.1)  # several looks
    away.clear()
    await until_ready(service, 200)
    node = SoftwareNode()
    await service.admitted(node)
    await service.attest(node)


@pytest.mark.threat("T156")
async def test_all_keys_or_none(start: Starter, away: list[Exception]) -> None:
    """Where the next key is away nothing is published: machines would be told of a set that nobody made."""
    service = await start(service_key_next=TOKEN_KEY)
    await until_ready(service, 503)
    assert (
        service.resources.service_keys.secret(b"a purpose") is not None
    )  # of the active one, which is a file
    with pytest.raises(SignerUnavailable):
        _ = service.resources.signer
    away.clear()
    await until_ready(service, 200)
    assert len((await service.get("/api/v1/service-keys")).json()["keys"]) == 2


def checked(settings: Settings) -> bool:
    """Return whether `--check` finds nothing wrong with the service's keys."""
    case = Case(settings=settings, listen=Listen(host="", port=0, uds=None), at=datetime.now(UTC))
    return all(found.level is Level.OK for found in service_key(case))


async def test_what_waiting_does_not_mend_stops_a_start(start: Starter, away: list[Exception]) -> None:
    """Another key than before is told at once. A PIN that is refused is not; `--check` says it."""
    away[:] = [KeyMismatch("another key")]
    with pytest.raises(KeyMismatch):
        await start(service_key=TOKEN_KEY)
    away[:] = [ModuleNotListed("not in the list")]
    assert not await asyncio.to_thread(
        preparation.prepare, settings_for(start.directory, service_key=TOKEN_KEY)
    )
    away[:] = [PINRejected("the PIN is wrong")]
    settings = settings_for(start.directory, service_key=TOKEN_KEY)
    assert await asyncio.to_thread(preparation.prepare, settings)
    assert not await asyncio.to_thread(checked, settings)
    away.clear()
    assert await asyncio.to_thread(checked, settings)


@pytest.mark.threat("T162")
async def test_a_token_that_comes_back_without_the_key_or_with_another_brings_none(
    start: Starter, away: list[Exception]
) -> None:
    """Machines know no other: none is made in its place, nor taken, by who waits or by the next start."""
    key = start.directory / "token.pem"
    there = key.read_bytes()
    away.clear()
    before = (await (await start(service_key=TOKEN_KEY)).get("/api/v1/service-keys")).json()
    away.append(TokenAbsent("no token"))
    waiting = await start(service_key=TOKEN_KEY)
    await until_ready(waiting, 503, "token-absent")
    key.unlink()
    away.clear()
    await until_ready(waiting, 503, "key-not-found")
    settings = settings_for(start.directory, service_key=TOKEN_KEY)
    assert not await asyncio.to_thread(checked, settings)
    assert not key.exists()
    load_signer(f"file:{key}", create=True)
    await until_ready(waiting, 503, "key-mismatch")
    with pytest.raises(KeyMismatch, match="which no machine knows"):
        await start(service_key=TOKEN_KEY)
    key.write_bytes(there)
    await until_ready(waiting, 200)
    assert (await waiting.get("/api/v1/service-keys")).json() == before


@pytest.mark.threat("T162")
async def test_who_waits_makes_no_key(start: Starter, away: list[Exception]) -> None:
    """Not even where none was ever used: only a start does."""
    key = start.directory / "token.pem"
    key.unlink()
    waiting = await start(service_key=TOKEN_KEY)
    away.clear()
    await until_ready(waiting, 503, "key-not-found")
    assert not key.exists()
    await start(service_key=TOKEN_KEY)
    await until_ready(waiting, 200)


@pytest.mark.threat("T162")
async def test_a_file_that_is_gone_is_not_made_again(start: Starter) -> None:
    """The next key may be renamed to where the one before it was; one that nobody knows may not."""
    active, following = uri(start.directory, "a"), uri(start.directory, "b")
    await start(service_key=active, service_key_next=following)
    (start.directory / "a.pem").unlink()
    with pytest.raises(KeyNotFound, match="no other is made in its place"):
        await start(service_key=active)
    (start.directory / "b.pem").rename(start.directory / "a.pem")
    await start(service_key=active)
    load_signer(uri(start.directory, "c"), create=True)
    (start.directory / "c.pem").rename(start.directory / "a.pem")
    with pytest.raises(KeyMismatch):
        await start(service_key=active)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"format":"x","keys":{}}',
        b'{"format":"itl-service-key-memory-v1","keys":{"a":1}}',
    ],
)
def test_a_memory_that_cannot_be_read_is_told(content: bytes) -> None:
    """And not taken for an empty one, beside which a key would be made."""
    with pytest.raises(KeyUnusable, match="cannot be read"):
        service_keys.parse_memory(content)


@pytest.mark.threat("T176")
async def test_a_folder_that_moved_keeps_its_key(start: Starter, tmp_path: Path) -> None:
    """A restored folder lies elsewhere: its key is the one that was in use, and where it is gone none is made."""
    before = (await (await start()).get("/api/v1/service-keys")).json()
    await start.stack.aclose()
    moved = (start.directory / "ca").rename(tmp_path / "moved")
    key = moved / "service-key.pem"
    there = key.read_bytes()
    key.unlink()
    with pytest.raises(KeyNotFound, match="no other is made in its place"):
        await start(enrollment_ca_dir=moved)
    assert not key.exists()
    load_signer(f"file:{key}", create=True)
    with pytest.raises(KeyMismatch):
        await start(enrollment_ca_dir=moved)
    key.write_bytes(there)
    service = await start(enrollment_ca_dir=moved)
    assert (await service.get("/api/v1/service-keys")).json() == before
