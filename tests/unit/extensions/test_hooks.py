"""Hooks: who is called with what, once it is committed, and what a bad one does to others."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from attestation import hooks
from attestation.errors import StoreUnavailable
from attestation.hooks import CONTEXTS, EventBus, EventContext, NodeEventPayload
from attestation.keys import create_kek
from attestation.machines import Event, ExtensionEvent, LogEvent, NodeEvent, OperatorEvent
from attestation.store import Tx
from attestation_extensions.hooks import Hooks
from attestation_extensions.metrics import Metrics
from attestation_service import extensions
from attestation_service.process import dispatch, maintenance
from tests.fixtures.extension import site
from tests.unit.service.conftest import Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_enrollment import WITH_CA, get_certificate
from tests.unit.service.test_maintenance import count

__all__ = ["migrated", "site", "start"]

pytestmark = pytest.mark.anyio

MODULE = """
from attestation.hooks import bus, on_any_event, on_decommissioned, on_online, on_registered

@on_registered
async def registered(context):
    print("registered", context.ip_address, context.hardware, context.tpm_available)

@on_online
async def online(context):
    print("online", context.hostname, context.role, context.first_seen_at is not None)

@on_decommissioned
async def gone(context):
    print("gone", context.hostname, context.reason)

@on_any_event
async def broken(context):
    raise RuntimeError("secret words")
"""


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """The bus of the process as it was."""
    before = {event: list(found) for event, found in hooks.bus._of.items()}, list(hooks.bus._of_any)
    yield
    hooks.bus._of, hooks.bus._of_any = before


@pytest.fixture
async def service(site: Path, start: Starter, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that calls the hooks of a module."""
    monkeypatch.delitem(sys.modules, "our_hooks", raising=False)
    (site / "our_hooks.py").write_text(MODULE)
    return await start(extensions=("hooks",), extension_values={"ITL_EXT_HOOKS_MODULES": "our_hooks"})


async def told(service: Service) -> None:
    """Let the events reach the hooks."""
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    while await dispatch.once("hooks", enabled.handlers["hooks"], service.resources):
        pass


@pytest.mark.threat("T217")
async def test_hooks_are_called_with_their_contexts(
    service: Service, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What a broken one raises stops no other, is told without its words, and keeps no event back."""
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1")
    await service.act(node, "revoke", {"reason": "worn out"})
    with caplog.at_level(logging.ERROR, "attestation.eventbus"):
        await told(service)
    printed = capsys.readouterr().out
    assert "registered 192.0.2.7 {'hw_uuid'" in printed
    assert "online w-1 worker-app True" in printed
    assert "gone w-1 worn out" in printed
    assert "the hook broken failed on node.online: RuntimeError" in caplog.text
    assert "secret words" not in caplog.text
    waiting = await service.operator("GET", "/extensions")
    (shown,) = waiting.json()["extensions"]
    assert (shown["pending"], shown["dead_letters"]) == (0, 0)


LIFE = """
import dataclasses
from attestation.hooks import on_cert_renewed, on_configured, on_decommissioned, on_heartbeat_missed
from attestation.hooks import on_online, on_provisioning, on_registered, on_role_changed

async def told(context):
    lines = {**dataclasses.asdict(context), "raw": None}
    print(context.event.value, sorted(name for name, value in lines.items() if value in (None, "", {})))

for each in (on_cert_renewed, on_configured, on_decommissioned, on_heartbeat_missed, on_online, on_provisioning,
             on_registered, on_role_changed):
    assert each(told) is told
"""


async def test_a_life_fills_every_context(
    site: Path, start: Starter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All nine events, as the service writes them: of each context every field is told, but what is never said."""
    monkeypatch.delitem(sys.modules, "our_hooks", raising=False)
    (site / "our_hooks.py").write_text(LIFE)
    service = await start(
        extensions=("hooks",),
        extension_values={"ITL_EXT_HOOKS_MODULES": "our_hooks"},
        iso_url="https://images.example.test/metal.iso",
        **WITH_CA,
    )
    await service.introduce(listed := SoftwareNode(), hw_mac="52:54:00:00:00:01")  # waits
    await service.act(listed, "approve", {"role": "worker-app", "hostname": "w-2"})
    await service.attest(listed)
    node = SoftwareNode()
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app", "hostname": "w-1"}
    await service.operator("POST", "/allow-list", {"entries": [entry]})
    await service.introduce(node, hw_mac="52:54:00:00:00:02")
    await service.configured(node, await service.attest(node))
    for _ in range(2):
        await get_certificate(service, node)
        service.clock.advance(60)
    await service.act(node, "role", {"role": "worker-infra", "hostname": "w-1", "reason": "moved"})
    await service.attest(node)
    service.clock.advance(7_200)
    await maintenance.once(service.resources)
    await service.act(node, "revoke", {"reason": "worn out"})
    await told(service)
    found = dict[str, set[str]]()
    for line in capsys.readouterr().out.splitlines():
        event, _, unsaid = line.partition(" ")
        found.setdefault(event, set()).add(unsaid)
    assert found == {
        "node.registered": {"['raw']"},
        "node.image_created": {"['config_url', 'raw', 'schematic_id']"},
        "node.provisioned": {"['config_url', 'raw', 'schematic_id']"},
        "node.online": {"['raw']"},
        "node.configured": {"['config_token', 'raw']"},
        "node.cert_renewed": {"['raw']"},
        "node.role_changed": {"['raw']"},
        "node.heartbeat_missed": {"['raw']"},
        "node.decommissioned": {"['raw']"},
    }


async def test_hooks_hear_of_what_extensions_and_operators_do(
    site: Path, start: Starter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bus.on` by a word; `on_any_event` all that the service and the enabled extensions tell of. Failures count."""
    monkeypatch.delitem(sys.modules, "our_hooks", raising=False)
    (site / "our_hooks.py").write_text(
        """
from attestation.hooks import bus, on_any_event

@bus.on("webhook.disabled")
async def disabled(context):
    print("disabled", context.raw.meta["why"], repr(context.ek_fingerprint))

@on_any_event
async def every(context):
    print("any", context.event.value)
    raise RuntimeError
"""
    )
    counted = Counter[str]()

    def observed(_self: Metrics, what: str, how: Mapping[str, str], _value: float = 1) -> None:
        counted.update([f"{what} {dict(how)}"])

    monkeypatch.setattr(Metrics, "observe", observed)
    create_kek(f"file:{site}/of.kek").close()
    service = await start(
        extensions=("hooks", "webhooks", "metrics"),
        extension_values={
            "ITL_EXT_HOOKS_MODULES": "our_hooks",
            "ITL_EXT_WEBHOOKS_KEK": f"file:{site}/of.kek",
        },
    )
    at = service.resources.clock.now()
    payload = {"ek_fingerprint": None, "node": {}, "meta": {"why": "gone"}}

    def write(tx: Tx) -> None:
        for event in (ExtensionEvent("webhook.disabled"), OperatorEvent.BREAK_GLASS, LogEvent.CHECKPOINT):
            tx.outbox.add(event, None, payload, at)

    await service.resources.store.write(write)
    await told(service)
    lines = capsys.readouterr().out.splitlines()
    assert "disabled gone ''" in lines
    assert {"any webhook.disabled", "any operator.break_glass", "any audit.checkpoint"} <= set(lines)
    assert counted["hook_failures {'event': 'webhook.disabled'}"] == 1


@pytest.mark.parametrize("heard", [["node.locked", "secret.created"], None], ids=["some", "any"])
def test_only_what_is_heard_is_handed_over(heard: list[str] | None) -> None:
    """A row for each event and subscriber costs a write; without hooks there is none."""
    bus = EventBus()
    assert bus.heard == frozenset()
    register = bus.on_any() if heard is None else bus.on(*heard)
    register(asyncio.sleep)
    found = bus.heard
    assert found == heard if heard is None else sorted(found or ()) == heard


async def test_a_hook_can_write_an_event(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    """From a thread; it goes the way of all."""
    payload = NodeEventPayload(event=NodeEvent.ONLINE, node={"hostname": "made up", "attested_at": "now"})
    await asyncio.to_thread(hooks.bus.emit_nowait, payload)
    await told(service)
    assert "online made up None True" in capsys.readouterr().out
    with pytest.raises(RuntimeError):
        EventBus().emit_nowait(payload)


@pytest.mark.threat("T217")
async def test_a_hook_that_writes_an_event_holds_nothing_up(
    service: Service, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another unit is under way: the event loop goes on, and what was accepted is written before the service ends."""
    payload = NodeEventPayload(event=NodeEvent.ONLINE, node={"hostname": "made up", "attested_at": "now"})
    begun, go_on = threading.Event(), threading.Event()

    def holds(_tx: Tx) -> bool:
        begun.set()
        return go_on.wait(30)

    holding = asyncio.create_task(service.resources.store.write(holds))
    await asyncio.to_thread(begun.wait, 60)
    hooks.bus.emit_nowait(payload)
    go_on.set()
    assert await holding, "the event loop waited until the other unit gave up"
    write = service.resources.store.write

    async def late(work: Any) -> Any:
        await asyncio.sleep(0.1)
        return await write(work)

    with monkeypatch.context() as patched:
        patched.setattr(type(service.resources.store), "write", lambda _self, work: late(work))
        hooks.bus.emit_nowait(payload)
        await asyncio.sleep(0)  # its task begins
    await start.stack.aclose()
    assert count(service, "outbox", "event = 'node.online'") == 2


async def test_an_event_that_a_hook_cannot_write_is_told_of(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it, so it is logged by its kind and counted."""
    failed = Counter[str]()
    monkeypatch.setattr(Hooks, "_count", lambda _self, event: failed.update([event.value]))

    async def away(_work: object) -> None:
        raise StoreUnavailable("canary")

    monkeypatch.setattr(type(service.resources.store), "write", lambda _self, work: away(work))
    hooks.bus.emit_nowait(NodeEventPayload(event=NodeEvent.ONLINE))
    with caplog.at_level(logging.ERROR, "attestation.eventbus"):
        await asyncio.sleep(0.05)
    assert failed == {"node.online": 1}
    assert "node.online was not written: StoreUnavailable" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.threat("T217")
async def test_none_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its time, at the same time; one that ends the program ends itself."""
    monkeypatch.setattr(hooks, "HOOK_SECONDS", 0.2)
    bus, done, failed = EventBus(), list[str](), Counter[Event]()
    bus.failed = lambda event: failed.update([event])

    @bus.on("node.online", "node.locked")
    async def slow(context: EventContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            done.append("slow")

    @bus.on(NodeEvent.ONLINE)
    async def leaving(context: EventContext) -> None:
        raise SystemExit

    @bus.on_any()
    async def good(context: EventContext) -> None:
        done.append(context.event_id)

    await bus.emit(NodeEventPayload(event=NodeEvent.ONLINE, event_id="x"))
    assert done == ["x", "slow"]
    assert failed == {NodeEvent.ONLINE: 2}
    with pytest.raises(ValueError, match="nothing"):
        bus.on("nothing")(good)


@pytest.mark.parametrize("event", list(NodeEvent))
def test_every_event_has_a_context(event: NodeEvent) -> None:
    """Also of a payload that has nothing in it; `raw` is all of it."""
    payload = NodeEventPayload(event=event, event_id="x")
    context: Any = CONTEXTS.get(event, EventContext).of(payload)
    assert (context.event, context.event_id, context.raw) == (event, "x", payload)


@pytest.mark.parametrize("modules", ["", "no such", "no_such_module_here"])
async def test_modules_that_cannot_be_meant_stop_the_start(start: Starter, modules: str) -> None:
    """They are named by the setting, so somebody wants them."""
    with pytest.raises(extensions.ExtensionInvalid):
        await start(extensions=("hooks",), extension_values={"ITL_EXT_HOOKS_MODULES": modules})
