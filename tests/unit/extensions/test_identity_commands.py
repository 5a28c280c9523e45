"""`attestation identity …` against a service: what operators see of tokens and keys, and what they are asked first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from attestation_extensions.machine_identity import records
from tests.fixtures.in_process import InProcess
from tests.fixtures.over_httpx import OverHTTPX
from tests.unit.extensions.test_machine_identity import anyio_backend, given, node, service, told, verified
from tests.unit.service.conftest import TOKEN, Service, migrated, start
from tests.unit.service.node import SoftwareNode

__all__ = ["anyio_backend", "migrated", "node", "service", "start"]

pytestmark = pytest.mark.anyio

Type = Callable[..., Awaitable[Result]]


@pytest.fixture
async def typed(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Return what types `attestation identity …` and waits for the answer."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ITL_ADMIN_TOKEN", TOKEN)
    monkeypatch.setenv("ITL_API_URL", "https://service.example")
    loop = asyncio.get_running_loop()
    transport = InProcess(
        service.app, lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(60), "198.51.100.1"
    )

    async def typed(*words: str) -> Result:
        session = Session(carrier=OverHTTPX(transport))
        return await asyncio.to_thread(
            lambda: CliRunner().invoke(cli, ["identity", *words], obj=session, catch_exceptions=False)
        )

    return typed


async def shown(typed: Type, *words: str) -> Any:
    """Return the JSON of a command that works."""
    done = await typed(*words, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def test_audiences_are_listed_with_who_may_have_tokens(typed: Type) -> None:
    """Without a role or a cluster it is for any."""
    found = {each["audience"]: each for each in await shown(typed, "audiences")}
    assert found["https://kube.test"]["roles"] == ["worker-app"]
    assert found["vault"]["roles"] is None
    (line,) = [line for line in (await typed("audiences")).stdout.splitlines() if line.startswith("vault")]
    assert line.split() == ["vault", "any", "any"]


async def test_the_key_is_exchanged_and_only_a_withdrawal_is_asked_about(
    typed: Type, service: Service, node: SoftwareNode
) -> None:
    """Without a terminal nothing is withdrawn; a second exchange before the key signs is refused."""
    claims = await verified(service, await given(service, node))
    (first,) = await shown(typed, "keys")
    rotated = await shown(typed, "rotate")
    assert [(each["number"], each["signs"]) for each in rotated] == [(1, True), (2, False)]
    assert rotated[0] == first
    again = await typed("rotate")
    assert (again.exit_code, "code: conflict" in again.stderr) == (5, True)
    asked = await typed("rotate", "--withdraw")
    assert (asked.exit_code, "needs a confirmation" in asked.stderr) == (2, True)
    assert await shown(typed, "keys") == rotated
    assert (await shown(typed, "status", claims["jti"]))["active"]
    withdrawn = await shown(typed, "rotate", "--withdraw", "--yes")
    assert [(each["number"], each["signs"]) for each in withdrawn] == [(3, True)]
    assert not (await shown(typed, "status", claims["jti"]))["active"]


async def test_a_token_that_ended_is_told_of(
    typed: Type, service: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its number, and in the list, which says where it is not whole."""
    ids = [(await verified(service, await given(service, node)))["jti"] for _ in range(2)]
    assert "yes" in (await typed("status", ids[0])).stdout
    assert "No token ended" in (await typed("revoked")).stderr
    service.clock.advance(1)
    await service.act(node, "lock", {"reason": "x"})
    await told(service)
    assert "no" in (await typed("status", ids[0])).stdout
    assert {each["jti"] for each in await shown(typed, "revoked")} == set(ids)
    assert "There are more" not in (await typed("revoked")).stderr
    monkeypatch.setattr(records, "MAX_LISTED", 1)
    assert "There are more" in (await typed("revoked")).stderr
