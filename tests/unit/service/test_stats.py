"""The numbers of the fleet."""

from __future__ import annotations

import pytest

from attestation.machines import Role, Status, Trust
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


async def test_every_machine_is_counted_once_in_each_table(service: Service) -> None:
    """Pending, verified, then stale; what nobody is in is there with 0."""
    empty = (await service.operator("GET", "/stats")).json()
    assert empty["machines"] == empty["without_role"] == 0
    assert empty["by_status"] == dict.fromkeys(Status, 0)
    assert empty["by_role"] == dict.fromkeys(Role, 0)
    assert empty["by_trust"] == dict.fromkeys(Trust, 0)

    await service.introduce(SoftwareNode())
    await service.admitted(SoftwareNode(), role="worker-infra")
    found = (await service.operator("GET", "/stats")).json()
    assert (found["machines"], found["without_role"]) == (2, 1)
    assert found["by_status"] == dict.fromkeys(Status, 0) | {"pending_approval": 1, "attested": 1}
    assert found["by_role"] == dict.fromkeys(Role, 0) | {"worker-infra": 1}
    assert found["by_trust"] == dict.fromkeys(Trust, 0) | {"unknown": 1, "verified": 1}

    service.clock.advance(7 * 86_400)
    later = (await service.operator("GET", "/stats")).json()
    assert later["by_trust"] == dict.fromkeys(Trust, 0) | {"unknown": 1, "stale": 1}
    assert later["at"] > found["at"]
