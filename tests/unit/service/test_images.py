"""Images: your own first, else a schematic whose id is ours; and nobody else waits for the factory (R24, R40)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from attestation.machines import NodeEvent
from attestation_service.images import factory as client
from attestation_testing.talos.factory import FakeFactory, serving
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.hsm_requests import code
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_event_producers import images, told

pytestmark = pytest.mark.anyio

WANTED = {"role": "worker-app"}
DOWN = "http://127.0.0.1:9"  # discard: nobody listens there
RELEASE = "v1.13.9"


@pytest.fixture
def factory() -> Iterator[FakeFactory]:
    """Serve a factory for one test."""
    with serving() as found:
        yield found


async def issue(service: Service, **wanted: Any) -> Any:
    """Ask for an image."""
    return await service.operator("POST", "/images", {**WANTED, **wanted})


async def test_an_image_is_one_for_every_machine(start: Starter, factory: FakeFactory) -> None:
    """What the factory keeps has the generic URL and nothing else of us; audit and event name it."""
    service = await start(
        factory_url=factory.url, factory_extensions=("siderolabs/drbd",), talos_version=RELEASE
    )
    detail = (await issue(service, extensions=["siderolabs/zfs"])).json()
    assert factory.schematics[detail["schematic_id"]].decode() == detail["schematic"]
    assert detail["schematic"] == (
        "customization:\n"
        "    extraKernelArgs:\n"
        "        - talos.config=https://attest.example.test/api/v1/config"
        "?mac=${mac}&uuid=${uuid}&serial=${serial}\n"
        "    systemExtensions:\n"
        "        officialExtensions:\n"
        "            - siderolabs/gvisor\n"
        "            - siderolabs/intel-ucode\n"
        "            - siderolabs/drbd\n"
        "            - siderolabs/zfs\n"
    )
    url = f"{factory.url}/image/{detail['schematic_id']}/{RELEASE}/metal-amd64.iso"
    assert (detail["url"], detail["source"]) == (url, "factory")
    assert detail["installer_image"].endswith(f"/metal-installer/{detail['schematic_id']}:{RELEASE}")
    [entry] = await service.audit(action="image")
    assert entry["detail"] == f"worker-app of cluster default: {url}"
    found = await told(service)
    assert images(found, NodeEvent.IMAGE_CREATED) == [url]
    [event] = found[NodeEvent.IMAGE_CREATED]
    assert event.machine_id is None
    assert event.payload["node"]["schematic_id"] == detail["schematic_id"]


async def test_an_image_is_of_the_clusters_talos(start: Starter, factory: FakeFactory) -> None:
    """Which may differ from cluster to cluster; and a cluster that nobody declared has no image."""
    service = await start(factory_url=factory.url, talos_version="v1.9.5")
    declared = await service.operator("POST", "/clusters", {"cluster_id": "prod", "talos_version": RELEASE})
    assert declared.status_code == 201
    assert f"/{RELEASE}/" in (await issue(service, cluster_id="prod")).json()["url"]
    assert "/v1.14.0/" in (await issue(service, cluster_id="prod", talos_version="v1.14.0")).json()["url"]
    assert code(await issue(service, cluster_id="prdo")) == "cluster-unknown"


async def test_your_own_image_comes_first(start: Starter, factory: FakeFactory) -> None:
    """Nobody is asked then, whatever was asked for."""
    service = await start(factory_url=factory.url, iso_url="https://images.example/own.iso")
    detail = (await issue(service, kind="uki", secureboot=True)).json()
    assert (detail["source"], detail["url"]) == ("own", "https://images.example/own.iso")
    assert detail["schematic_id"] is None
    assert factory.requests == []
    assert images(await told(service), NodeEvent.IMAGE_CREATED) == ["https://images.example/own.iso"]


async def test_an_older_factory_says_the_id_alone(start: Starter, factory: FakeFactory) -> None:
    """It is compared all the same."""
    factory.old = True
    service = await start(factory_url=factory.url, talos_version=RELEASE)
    assert (await issue(service)).status_code == 200


OTHER = json.dumps({"id": "0" * 64}).encode()
JSON = "application/json"


@pytest.mark.threat("T341")
async def test_what_is_not_the_schematic_is_not_used(start: Starter, factory: FakeFactory) -> None:
    """No image is given out, and none is told of."""
    service = await start(factory_url=factory.url, talos_version=RELEASE)
    answers: list[tuple[tuple[int, str, bytes], int, str]] = [
        ((201, JSON, OTHER), 502, "schematic-mismatch"),
        ((201, JSON, b"{}"), 502, "factory-answer-invalid"),
        ((201, JSON, b"[" * 4096), 502, "factory-answer-invalid"),
        ((201, JSON, b'{"id": 7}'), 502, "factory-answer-invalid"),
        ((201, JSON, b'{"id": "\\u001b[2J"}'), 502, "factory-answer-invalid"),
        ((201, JSON, b"x" * (client.MAX_ANSWER_BYTES + 1)), 502, "factory-answer-invalid"),
        ((400, "text/plain", b"field x not found\x1b[2J"), 503, "factory-unavailable"),
        ((302, "text/plain", b""), 503, "factory-unavailable"),
    ]
    for answer, status, word in answers:
        factory.instead = answer
        found = await issue(service)
        assert (found.status_code, code(found)) == (status, word), answer
        assert "\x1b" not in found.json()["detail"]
    assert NodeEvent.IMAGE_CREATED not in await told(service)
    assert await service.audit(action="image") == []


async def test_nobody_else_waits_for_the_factory(start: Starter) -> None:
    """With the factory away an image is refused, and a machine is introduced, approved and attests (R24)."""
    service = await start(factory_url=DOWN, talos_version=RELEASE)
    found = await issue(service)
    assert (found.status_code, code(found)) == (503, "factory-unavailable")
    node = SoftwareNode()
    await service.introduce(node)
    approved = await service.operator("POST", f"/machines/{node.machine_id}/approve", {"role": "worker-app"})
    assert approved.status_code == 200


async def test_what_there_is_no_image_of_is_asked_of_nobody(start: Starter, factory: FakeFactory) -> None:
    """It is refused here."""
    service = await start(factory_url=factory.url, talos_version=RELEASE)
    unwanted: list[tuple[dict[str, Any], str]] = [
        ({"extensions": ["gvisor"]}, "schematic-invalid"),
        ({"talos_version": "v1.13"}, "request-invalid"),
        ({"kind": "kernel", "secureboot": True}, "request-invalid"),
    ]
    for wanted, word in unwanted:
        found = await issue(service, **wanted)
        assert (found.status_code, code(found)) == (422, word), wanted
    assert factory.requests == []
