"""What was judged earlier and is written later holds only if everything that it rested on is still so.

Each test holds a request between its judgement and its writing, lets something happen, and lets it go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from attestation_service.attest import handlers as attesting
from attestation_service.delivery import handlers as delivering
from tests.fixtures.vendor import ROOT
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_trust import members, sha256, trust

pytestmark = pytest.mark.anyio

ATTEST = "/api/v1/attest"
WEAK = {
    "format": "itl-tpm-policy/1",
    "name": "strict",
    "version": 1,
    "bank": "sha256",
    "pcrs": {"7": {"any_of": ["ab" * 32]}},
}


def between(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], Awaitable[Any]]
) -> list[int]:
    """Let *act* happen when the coroutine *name*, which runs between judging and writing, is called first."""
    original, calls = getattr(module, name), []

    async def held(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            await act()
        return await original(*arguments)

    monkeypatch.setattr(module, name, held)
    return calls


@pytest.mark.threat("T149")
@pytest.mark.parametrize("fetched", [False, True])
async def test_a_distrust_is_not_overtaken_by_a_verdict_in_flight(
    start: Starter, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    """A machine judged while a vendor vouched for it gets no lease after the anchor was distrusted, on either path."""
    service, node = await start(), SoftwareNode()
    await trust(service, ROOT)
    await service.introduce(node, **members(node, issuer=ROOT, chain=()))
    await service.act(node, "approve", {"role": "controlplane"})
    assert (await service.attest(node))["status"] == "attested"
    offered = await service.attest(node)
    if fetched:  # then nothing but a renewal is to be written
        assert (await service.fetch(offered["config_token"])).status_code == 200

    async def distrust() -> None:
        path = f"/trust/certificates/{sha256(ROOT)}/distrust"
        assert (await service.operator("POST", path, {"reason": "stolen"})).status_code == 200

    body = node.attestation(await service.challenge(node))
    service.clock.advance(1)
    calls = between(monkeypatch, attesting, "_sign", distrust)
    answer = await service.post(ATTEST, body)
    shown = await service.detail(node)
    assert (answer.status_code, len(calls)) == (200, 2)
    assert (shown["assurance"], shown["trust"]) == ("tofu", "failed")
    assert shown["trust_expires_at"] is None


@pytest.mark.threat("T149")
@pytest.mark.parametrize("fetched", [False, True])
async def test_a_policy_is_not_overtaken_by_a_verdict_in_flight(
    service: Service, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    """What was judged under the policy before is not trust under the one that applies now."""
    node = SoftwareNode()
    await service.admitted(node)
    offered = await service.attest(node)
    if fetched:
        assert (await service.fetch(offered["config_token"])).status_code == 200
    assert (await service.operator("POST", "/policies", WEAK)).status_code == 201

    async def assign() -> None:
        path = "/policies/assignments/fleet/*"
        assert (await service.operator("PUT", path, {"policy": "strict@1"})).status_code == 200

    before = await service.detail(node)
    service.clock.advance(1)
    body = node.attestation(await service.challenge(node))
    calls = between(monkeypatch, attesting, "_sign", assign)
    assert (await service.post(ATTEST, body)).status_code == 200
    after = await service.detail(node)
    assert len(calls) == 2
    assert after["trust_expires_at"] == before["trust_expires_at"]


@pytest.mark.threat("T149")
async def test_a_policy_is_not_overtaken_by_a_first_verdict(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the machine's status changes with it: it gets no configuration."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    assert (await service.operator("POST", "/policies", WEAK)).status_code == 201

    async def assign() -> None:
        path = "/policies/assignments/fleet/*"
        assert (await service.operator("PUT", path, {"policy": "strict@1"})).status_code == 200

    body = node.attestation(await service.challenge(node))
    between(monkeypatch, attesting, "_sign", assign)
    answer = (await service.post(ATTEST, body)).json()
    assert (answer["status"], answer["action"]) == ("registered", "none")


@pytest.mark.threat("T149")
@pytest.mark.parametrize("fetched", [False, True])
async def test_a_later_verdict_is_not_overtaken_by_an_earlier_one(
    service: Service, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    """Of two at once, the one that was judged last and failed is what is known."""
    node = SoftwareNode()
    await service.admitted(node)
    offered = await service.attest(node)
    if fetched:
        assert (await service.fetch(offered["config_token"])).status_code == 200
    first, second = await service.challenge(node), await service.challenge(node)
    body = node.attestation(first)
    service.clock.advance(1)

    async def reboot_and_fail() -> None:
        node.clock_ms = 1  # a clock that went back
        service.clock.advance(1)
        answer = await service.post(ATTEST, node.attestation(second))
        assert answer.status_code == 200
        assert (await service.detail(node))["trust"] == "failed"

    calls = between(monkeypatch, attesting, "_sign", reboot_and_fail)
    await service.post(ATTEST, body)
    assert len(calls) == 3


@pytest.mark.threat("T149")
async def test_a_configuration_is_of_the_machine_that_gets_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was prepared for the machine as it was is not released for what it is now."""
    node = SoftwareNode()
    token = (await service.admitted(node, hostname="w-1"))["config_token"]
    prepare = delivering._prepare

    def renamed(*arguments: Any) -> Any:
        def work(tx: Any) -> None:
            machine = tx.machines.by_id(node.machine_id)
            tx.machines.update(machine, hostname="w-2")

        service.store.write_sync(work)
        return prepare(*arguments)

    monkeypatch.setattr(delivering, "_prepare", renamed)
    answer = await service.fetch(token)
    assert "encrypted" not in answer.headers["content-type"]
    monkeypatch.setattr(delivering, "_prepare", prepare)
    assert "encrypted" in (await service.fetch(token)).headers["content-type"]
