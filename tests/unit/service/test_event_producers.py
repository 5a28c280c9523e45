"""Each event has a producer (FAULTS R30), and an image that is given is told of where it is given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attestation.appraisal
import attestation_service
from attestation.machines import OWN_EVENTS, Event, NodeEvent
from attestation.store import OutboxEvent
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_enrollment import WITH_CA

pytestmark = pytest.mark.anyio

IMAGE = "https://images.example.test/metal.iso"
PRODUCERS = (attestation_service, attestation.appraisal)


@pytest.mark.parametrize("event", OWN_EVENTS, ids=str)
def test_each_event_has_a_producer(event: Event) -> None:
    """A word that nobody writes is a hook that is never called: the payload is told, not only compared."""
    member = rf"{type(event).__name__}\.{getattr(event, 'name', '')}\b"
    written = re.compile(rf"(\badd|\bemit|event=|events \+?=)[^)]{{0,60}}{member}")
    for package in PRODUCERS:
        for path in Path(*package.__path__).rglob("*.py"):
            if written.search(path.read_text(encoding="utf-8")):
                return
    pytest.fail(f"nothing writes {event.value}")


async def told(service: Service) -> dict[Event, list[OutboxEvent]]:
    """Return the events that were written, by kind."""
    found: dict[Event, list[OutboxEvent]] = {}
    while claimed := await service.store.write(lambda tx: tx.outbox.claim(50, service.clock.now())):
        for each in claimed:
            found.setdefault(each.event, []).append(each)
        ids = [each.id for each in claimed]
        await service.store.write(lambda tx, ids=ids: tx.outbox.done(ids, service.clock.now()))  # type: ignore[misc]  # binds
    return found


def images(found: dict[Event, list[OutboxEvent]], event: Event) -> list[object]:
    """Return the images that events of one kind name."""
    return [each.payload["node"]["iso_url"] for each in found.get(event, [])]


@pytest.mark.parametrize("url", [IMAGE, ""], ids=["image", "none"])
async def test_an_image_that_is_given_is_told_of(start: Starter, url: str) -> None:
    """When it activates as `registered`: not while it waits, and not where there is no image."""
    service = await start(iso_url=url)
    await service.introduce(SoftwareNode())
    node = SoftwareNode()
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app", "hostname": "w-1"}
    await service.operator("POST", "/allow-list", {"entries": [entry]})
    activated = await service.introduce(node)
    assert activated.get("iso_url", "") == url
    found = await told(service)
    assert images(found, NodeEvent.IMAGE_CREATED) == [url] * bool(url)
    assert images(found, NodeEvent.REGISTERED) == [url or None] * 2
    for event in found.get(NodeEvent.IMAGE_CREATED, []):
        assert event.machine_id == node.machine_id
        assert "config_token" not in str(event.payload)
        assert activated["config_token"] not in str(event.payload)


async def test_an_approval_names_the_image(start: Starter) -> None:
    """What whoever provisions the machine has to boot."""
    service = await start(iso_url=IMAGE)
    await service.admitted(SoftwareNode())
    assert images(await told(service), NodeEvent.PROVISIONED) == [IMAGE]


async def test_an_offline_bundle_gives_an_image(start: Starter) -> None:
    """Once two people agreed: a vote gives none."""
    service = await start(
        tpm_ca_bundle_dir=start.bundle(), compat_offline_bundle=True, iso_url=IMAGE, **WITH_CA
    )
    committee, node = Committee(service), SoftwareNode()
    await service.admitted(node, hostname="app-1", assigned_ip="10.0.0.7/24")
    await told(service)
    path = f"/machines/{node.machine_id}/offline-bundle"
    await committee.ask("anna", "POST", path)
    assert NodeEvent.IMAGE_CREATED not in await told(service)
    assert (await committee.ask("bert", "POST", path)).json()["iso_url"] == IMAGE
    assert images(await told(service), NodeEvent.IMAGE_CREATED) == [IMAGE]
