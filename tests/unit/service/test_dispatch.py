"""Events to subscribers: at least once, in order, and at nobody else's cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from attestation.extension import Confirm, Handler
from attestation.machines import Event, NodeEvent
from attestation.store import OutboxEvent, Tx
from attestation.store.sqlite import SQLiteStore
from attestation_service.extensions import by_event
from attestation_service.process import dispatch, maintenance
from tests.unit.service.conftest import Service
from tests.unit.service.test_maintenance import count

pytestmark = pytest.mark.anyio

Subscribed = Mapping[str, Mapping[Event, Handler]]


class Trouble(Exception):
    """What a handler of these tests fails with."""


async def told(service: Service, subscribed: Subscribed, *events: tuple[NodeEvent, str]) -> None:
    """Write *events* about machines, and let the outbox hand them over to *subscribed*."""
    at = service.clock.now()
    for event, machine_id in events:
        await service.store.write(lambda tx, e=event, m=machine_id: tx.outbox.add(e, m, {}, at))  # type: ignore[misc]  # defaults bind
    vars_of = {name: getattr(service.resources, name) for name in service.resources.__dataclass_fields__}
    await maintenance.once(type(service.resources)(**(vars_of | {"subscribers": by_event(subscribed)})))


async def dispatched(service: Service, subscribed: Subscribed) -> None:
    """Hand over all that is due now."""
    for name, handlers in subscribed.items():
        while await dispatch.once(name, handlers, service.resources):
            pass


async def test_without_subscribers_nothing_is_written_down(service: Service) -> None:
    """The outbox costs what it cost."""
    await told(service, {}, (NodeEvent.ONLINE, "a"))
    assert count(service, "handovers") == 0
    assert count(service, "outbox", "done_at is null and machine_id is not null") == 0


async def test_each_subscriber_has_what_it_asked_for_once_and_in_order(service: Service) -> None:
    """Several workers at once; events of one machine in their order."""
    seen: dict[str, list[tuple[str | None, str]]] = {"one": [], "two": []}

    def handler(name: str) -> Handler:
        async def handle(event: OutboxEvent) -> None:
            await asyncio.sleep(0)
            seen[name].append((event.machine_id, event.event.value))

        return handle

    subscribed: Subscribed = {
        "one": {NodeEvent.ONLINE: handler("one"), NodeEvent.LOCKED: handler("one")},
        "two": {NodeEvent.LOCKED: handler("two")},
    }
    events = [(event, machine) for machine in "abc" for event in (NodeEvent.ONLINE, NodeEvent.LOCKED)]
    await told(service, subscribed, *events, (NodeEvent.REBOOTED, "a"))
    await asyncio.gather(*(dispatched(service, subscribed) for _ in range(3)))
    await dispatched(service, subscribed)
    assert sorted(seen["two"]) == [(machine, "node.locked") for machine in "abc"]
    assert len(seen["one"]) == 6
    for machine in "abc":
        assert [e for m, e in seen["one"] if m == machine] == ["node.online", "node.locked"]
    assert count(service, "handovers") == 0


async def test_what_another_worker_handed_over_is_not_handed_over_again(service: Service) -> None:
    """A worker that took too long finds its events confirmed, and their handovers done."""
    seen: list[str] = []

    async def handle(event: OutboxEvent) -> None:
        seen.append(event.id)

    subscribed: Subscribed = {"one": {NodeEvent.ONLINE: handle}}
    at = service.clock.now()

    def claim(tx: Tx) -> tuple[OutboxEvent, ...]:
        tx.outbox.add(NodeEvent.ONLINE, "a", {}, at)
        return tuple(event for event in tx.outbox.claim(9, at) if event.machine_id == "a")

    claimed = await service.store.write(claim)
    for _ in range(2):
        await service.store.write(lambda tx: maintenance._hand_over(tx, claimed, by_event(subscribed), at))
        await dispatched(service, subscribed)
    assert len(seen) == 1


@pytest.mark.threat("T183")
async def test_what_a_handler_returns_is_done_with_the_confirmation(service: Service) -> None:
    """Both or neither: where the unit fails, the event comes again, and what the unit did is undone."""
    attempts: list[int] = []

    async def handle(event: OutboxEvent) -> Confirm:
        attempts.append(event.attempts)

        def confirm(tx: Tx) -> None:
            tx.outbox.add(NodeEvent.ALARM, "a", {}, service.clock.now())
            if len(attempts) < 2:
                raise Trouble

        return confirm

    subscribed: Subscribed = {"one": {NodeEvent.ONLINE: handle}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"))
    await dispatched(service, subscribed)
    assert (attempts, count(service, "outbox", "event = 'node.alarm'")) == ([1], 0)
    service.clock.advance(dispatch.RETRY_SECONDS[0] * 1.3)
    await dispatched(service, subscribed)
    assert (attempts, count(service, "outbox", "event = 'node.alarm'")) == ([1, 2], 1)
    assert count(service, "handovers") == 0


async def failing(event: OutboxEvent) -> None:
    """Fail."""
    raise Trouble("canary")


async def ending(event: OutboxEvent) -> None:
    """Try to end the worker."""
    raise SystemExit(3)


async def hanging(event: OutboxEvent) -> None:
    """Never come back."""
    await asyncio.Event().wait()


async def cancelled(event: OutboxEvent) -> None:
    """Wait for a task of its own that somebody cancelled."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


async def grouped(event: OutboxEvent) -> None:
    """Fail with what is no `Exception`."""
    raise BaseExceptionGroup("canary", [asyncio.CancelledError()])


async def promising(event: OutboxEvent) -> Confirm:
    """Return a confirmation that nobody would await."""

    async def confirm(tx: Tx) -> None: ...

    return confirm


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (failing, "Trouble"),
        (ending, "SystemExit"),
        (hanging, "TimeoutError"),
        (cancelled, "CancelledError"),
        (grouped, "BaseExceptionGroup"),
        (promising, "TypeError"),
    ],
)
async def test_one_that_fails_is_tried_again_then_given_up(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    handler: Handler,
    kind: str,
) -> None:
    """A bounded number of times, ever later; the dead letter is shown, holds nothing up, and comes back when asked."""
    monkeypatch.setattr(dispatch, "HANDLER_SECONDS", 0.001)
    seen: list[str] = []

    async def handle(event: OutboxEvent) -> None:
        seen.append(event.id)

    subscribed: Subscribed = {"one": {NodeEvent.ONLINE: handler, NodeEvent.LOCKED: handle}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"), (NodeEvent.LOCKED, "a"))
    for seconds in dispatch.RETRY_SECONDS:
        await dispatched(service, subscribed)
        assert seen == []  # the order of the machine
        service.clock.advance(seconds * 0.9)
        await dispatched(service, subscribed)
        service.clock.advance(seconds * 0.4)
    await dispatched(service, subscribed)
    assert len(seen) == 1
    (letter,) = await service.store.read(lambda tx: tx.handovers.dead_letters("one", 9))
    assert (letter.event.event, letter.event.attempts, letter.error) == (
        NodeEvent.ONLINE,
        len(dispatch.RETRY_SECONDS) + 1,
        kind,
    )
    log = capsys.readouterr().err
    assert log.count("dispatch.not_handled") == len(dispatch.RETRY_SECONDS)
    assert log.count("dispatch.dead_letter") == 1
    assert "canary" not in log
    assert await service.store.write(lambda tx: tx.handovers.retry("one")) == 1
    await dispatched(service, {"one": {NodeEvent.ONLINE: handle}})
    assert seen[1:] == [letter.event.id]


async def test_what_was_done_by_another_meanwhile_is_not_done_again(service: Service) -> None:
    """A handler that outlives its claim: what it returns is not done beside what the other one did."""
    done: list[int] = []
    subscribed: Subscribed

    async def handle(event: OutboxEvent) -> Confirm:
        if event.attempts == 1:
            service.clock.advance(dispatch.HOLD.total_seconds() + 1)
            await dispatched(service, subscribed)
        return lambda _: done.append(event.attempts)

    subscribed = {"one": {NodeEvent.ONLINE: handle}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"))
    await dispatched(service, subscribed)
    assert done == [2]
    assert count(service, "handovers") == 0


async def test_a_worker_that_was_overtaken_confirms_nothing(service: Service) -> None:
    """Who held an event for too long neither ends nor repeats what another does with it."""
    subscribed: Subscribed = {"one": {NodeEvent.ONLINE: failing}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"))
    at = service.clock.now()
    (first,) = await service.store.write(lambda tx: tx.handovers.claim("one", 9, at, hold=dispatch.HOLD))
    assert await service.store.write(lambda tx: tx.handovers.claim("one", 9, at, hold=dispatch.HOLD)) == ()
    later = at + dispatch.HOLD
    (second,) = await service.store.write(lambda tx: tx.handovers.claim("one", 9, later, hold=dispatch.HOLD))
    assert (second.id, second.attempts) == (first.id, 2)
    assert not await service.store.write(lambda tx: tx.handovers.done("one", first))
    assert not await service.store.write(lambda tx: tx.handovers.failed("one", first, None, "x"))
    assert await service.store.write(lambda tx: tx.handovers.done("one", second))


async def test_a_worker_that_was_overtaken_tells_of_no_failure(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """No dead letter is logged that is none."""
    subscribed: Subscribed

    async def handle(event: OutboxEvent) -> None:
        if event.attempts == 1:
            service.clock.advance(dispatch.HOLD.total_seconds() + 1)
            await dispatched(service, subscribed)
            raise Trouble

    subscribed = {"one": {NodeEvent.ONLINE: handle}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"))
    await dispatched(service, subscribed)
    assert count(service, "handovers") == 0
    assert "dispatch." not in capsys.readouterr().err


async def test_a_worker_that_ends_gives_nothing_back(service: Service) -> None:
    """Its end is no failure of the handler: the event comes again when the claim is over."""
    begun = asyncio.Event()

    async def handle(event: OutboxEvent) -> None:
        begun.set()
        await asyncio.Event().wait()

    subscribed: Subscribed = {"one": {NodeEvent.ONLINE: handle}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"))
    task = asyncio.create_task(dispatched(service, subscribed))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert count(service, "handovers", "error = ''") == 1


async def test_looking_for_work_delays_no_attestation(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many wait that takes long; it is no read by key."""
    monkeypatch.setattr(SQLiteStore, "read", None)
    assert not await dispatch.once("one", {}, service.resources)


@pytest.mark.threat("T183")
async def test_a_slow_one_keeps_only_its_machine_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as another is done its next is handed over; a worker that ends waits for nobody."""
    monkeypatch.setattr(dispatch, "AT_ONCE", 2)
    seen: list[str | None] = []
    enough, never = asyncio.Event(), asyncio.Event()

    async def handle(event: OutboxEvent) -> None:
        seen.append(event.machine_id)
        if event.machine_id == "slow":
            await never.wait()
        elif len(seen) == 7:
            enough.set()

    subscribed: Subscribed = {"one": dict.fromkeys(NodeEvent, handle)}
    quick = [(NodeEvent.ONLINE, name) for name in ("a", "b", "c", "a", "b", "c")]
    await told(service, subscribed, (NodeEvent.ONLINE, "slow"), (NodeEvent.LOCKED, "slow"), *quick)
    running = asyncio.create_task(dispatch.run("one", subscribed["one"], service.resources))
    async with asyncio.timeout(60):
        await enough.wait()
    assert seen.count("slow") == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert count(service, "handovers", "machine_id = 'slow' and next_attempt_at is not null") == 2


async def test_a_failing_one_costs_others_nothing(service: Service) -> None:
    """Another subscriber has its events; machines attest."""
    seen: list[Any] = []

    async def handle(event: OutboxEvent) -> None:
        seen.append(event.id)

    subscribed: Subscribed = {"bad": {NodeEvent.ONLINE: failing}, "good": {NodeEvent.ONLINE: handle}}
    await told(service, subscribed, (NodeEvent.ONLINE, "a"), (NodeEvent.ONLINE, "b"))
    await dispatched(service, subscribed)
    assert len(seen) == 2
    waiting = await service.store.read(lambda tx: tx.handovers.waiting())
    assert {name: each.pending for name, each in waiting.items()} == {"bad": 2}
