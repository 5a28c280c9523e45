"""A machine that is attested and has no configuration: operators see why and since when (PROTOCOL §8.7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import MalformedEvidence
from attestation_service.delivery import handlers
from tests.unit.service.conftest import Service
from tests.unit.service.node import SEALED, SoftwareNode

pytestmark = pytest.mark.anyio

Told = dict[str, Any] | None


def now(service: Service) -> str:
    """Return the instant as the API writes it."""
    return service.clock.at.strftime("%Y-%m-%dT%H:%M:%SZ")


async def told(service: Service, node: SoftwareNode) -> Told:
    """Return what operators are told of the configuration of *node*, which the list must say too."""
    detail = await service.detail(node)
    found: Told = detail["configuration_not_delivered"]
    listed = (await service.operator("GET", "/machines")).json()["items"]
    assert [m["configuration_not_delivered"] for m in listed] == [found]
    assert detail["redeliver_pending"] is (found is not None)
    return found


def _gone(base: Path, _: pytest.MonkeyPatch) -> None:
    base.rename(base.with_suffix(".away"))


def _no_file(base: Path, _: pytest.MonkeyPatch) -> None:
    _gone(base, _)
    base.mkdir()


def _broken(base: Path, _: pytest.MonkeyPatch) -> None:
    _gone(base, _)
    base.write_text("machine: {}\nmachine: {token: secret-canary}\n")


def _unsealable(_base: Path, patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MalformedEvidence("no such curve")

    patch.setattr(handlers, "seal", refuse)


CAUSES: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], str]] = {
    "no file for the role": (_gone, "no base configuration for role worker-app in cluster default"),
    "unreadable": (_no_file, "base configuration for role worker-app in cluster default: Is a directory"),
    "broken": (_broken, "configuration: line 2 is not YAML that everybody reads alike"),
    "not sealed": (_unsealable, "the configuration cannot be sealed to this machine"),
}


@pytest.mark.threat("T173")
@pytest.mark.parametrize("cause", CAUSES)
async def test_what_the_service_cannot_deliver_is_said_and_heals(
    service: Service, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Why and since when, from the first attestation on; the next one after the cause is gone brings it."""
    break_, why = CAUSES[cause]
    base = service.directory / "configs" / "worker-app-final.yaml"
    node = SoftwareNode()
    await service.introduce(node)
    assert await told(service, node) is None
    await service.act(node, "approve", {"role": "worker-app"})
    since = now(service)
    with monkeypatch.context() as patch:
        break_(base, patch)
        answer = await service.attest(node)
        assert await told(service, node) == {"why": "the machine has not fetched it yet", "since": since}
        for _ in range(2):
            service.clock.advance(60)
            refused = await service.fetch(answer["config_token"], f"{SEALED}, application/json")
            assert refused.status_code == 503
            assert await told(service, node) == {"why": why, "since": since}
            answer = await service.attest(node)
    away = base.with_suffix(".away")
    if away.exists():
        base.rmdir() if base.is_dir() else base.unlink(missing_ok=True)
        away.rename(base)
    version = (await service.detail(node))["version"]
    await service.configured(node, await service.attest(node))
    assert await told(service, node) is None
    # An attempt that fails as the one before is not written again: offered, fetched, acknowledged are.
    assert (await service.detail(node))["version"] == version + 3
    assert (await service.attest(node))["action"] == "none"


@pytest.mark.threat("T173")
async def test_a_machine_that_could_not_apply_it_gets_it_again(service: Service) -> None:
    """What is fetched is not yet there; `failed` says why, in the machine's words, in quotes; `done` alone ends it."""
    node = SoftwareNode()
    answer = await service.admitted(node)
    since = now(service)
    service.clock.advance(60)
    assert (await service.fetch(answer["config_token"])).status_code == 200
    assert await told(service, node) == {"why": handlers.UNHEARD, "since": since}
    for detail, why in (
        ("apply command: exit status 3", '"apply command: exit status 3"'),
        ('it did", since 2026; all is well', r'"it did\", since 2026; all is well"'),
        (None, "it did not say why"),
    ):
        await service.acknowledge(node, answer, "failed", detail)
        found = await told(service, node)
        assert found is not None
        assert found["since"] == since
        assert found["why"] == f"the machine could not apply it: {why}"
        answer = await service.attest(node)
        assert answer["action"] == "apply-config"
    await service.configured(node, answer)
    assert await told(service, node) is None


async def test_what_ends_with_an_act_begins_anew(service: Service) -> None:
    """A new delivery is owed since it was ordered, without the reason of before; a revoked machine is owed nothing."""
    node = SoftwareNode()
    answer = await service.admitted(node)
    await service.acknowledge(node, answer, "failed", "apply-failed")
    for act, body in (("redeliver", None), ("role", {"role": "worker-infra", "reason": "moved"})):
        service.clock.advance(60)
        await service.act(node, act, body)
        found = await told(service, node)
        assert found == {"why": "the machine has not fetched it yet", "since": now(service)}
    await service.act(node, "revoke")
    assert await told(service, node) is None


async def test_plaintext_and_old_agents_are_told_apart(service: Service) -> None:
    """Who asks for what is not served has nothing, and operators see which it was."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    assert (await service.fetch(token, "application/yaml")).status_code == 406
    found = await told(service, node)
    assert found is not None
    assert "encrypted delivery required" in found["why"]
    assert (await service.get(f"/api/v1/config/{token}", headers={"Accept": SEALED})).status_code == 426
    found = await told(service, node)
    assert found is not None
    assert "agent" in found["why"]
