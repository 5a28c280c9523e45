"""Metrics: from the database, for those who may read, with labels of closed lists."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from attestation.machines import Status, Trust
from attestation_extensions.metrics import EVENTS
from attestation_service import extensions
from attestation_service.process import dispatch, maintenance
from tests.docs.pages import text
from tests.unit.service.conftest import Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


async def shown(service: Service) -> Samples:
    """Return what Prometheus' own parser reads."""
    answer = await service.operator("GET", "/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def counted(service: Service) -> None:
    """Let the events reach the extension."""
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    for name, handlers in enabled.handlers.items():
        while await dispatch.once(name, handlers, service.resources):
            pass


async def test_the_numbers_are_those_of_the_database(start: Starter) -> None:
    """Machines by status and trust, what waits, and each event once."""
    service = await start(extensions=("metrics",))
    nodes = [SoftwareNode() for _ in range(3)]
    for node in nodes:
        await service.introduce(node)
    await service.act(nodes[0], "approve", {"role": "worker-app"})
    await service.attest(nodes[0])
    before = await shown(service)
    assert before["attestation_machines_by_status", ("attested",)] == 1
    assert before["attestation_machines_by_status", ("pending_approval",)] == 2
    assert before["attestation_machines_by_trust", ("verified",)] == 1
    assert before["attestation_events_total", ("node.registered",)] == 0
    assert before["attestation_outbox_pending", ()] >= 5
    service.clock.advance(7)
    assert (await shown(service))["attestation_outbox_oldest_age_seconds", ()] == 7
    await counted(service)
    await counted(service)
    after = await shown(service)
    assert after["attestation_events_total", ("node.registered",)] == 3
    assert after["attestation_events_total", ("node.online",)] == 1


async def test_who_may_not_read_sees_nothing(start: Starter) -> None:
    """The numbers tell how large the fleet is, and that somebody was locked out."""
    service = await start(extensions=("metrics",))
    answer = await service.get("/api/v1/metrics")
    assert (answer.status_code, "attestation_" in answer.text) == (401, False)


async def test_labels_are_words_of_closed_lists(start: Starter) -> None:
    """Whatever machines are called: no series of their own, and each word is there from the beginning."""
    service = await start(extensions=("metrics",))
    node = SoftwareNode()
    await service.admitted(node, hostname="canary")
    found = await shown(service)
    assert {words for name, words in found if name == "attestation_machines_by_status"} == {
        (s,) for s in Status
    }
    assert {words for name, words in found if name == "attestation_machines_by_trust"} == {
        (t,) for t in Trust
    }
    assert {words for name, words in found if name == "attestation_events_total"} == {(e,) for e in EVENTS}
    assert not any("canary" in word or node.machine_id in word for _, words in found for word in words)


async def test_the_page_names_each_metric(start: Starter) -> None:
    """And none that there is not."""
    service = await start(extensions=("metrics",))
    answer = await service.operator("GET", "/metrics")
    rows = dict(
        re.findall(r"^\| `(attestation_\w+)` \| (\w+)", text("docs/operate/metrics.md"), flags=re.MULTILINE)
    )
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", answer.text, flags=re.MULTILINE))
    assert rows == types
