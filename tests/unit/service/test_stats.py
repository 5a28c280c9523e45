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
    assert empty["by_cluster"] == {}

    await service.introduce(SoftwareNode())
    await service.admitted(SoftwareNode(), role="worker-infra")
    found = (await service.operator("GET", "/stats")).json()
    assert (found["machines"], found["without_role"]) == (2, 1)
    assert found["by_status"] == dict.fromkeys(Status, 0) | {"pending_approval": 1, "attested": 1}
    assert found["by_role"] == dict.fromkeys(Role, 0) | {"worker-infra": 1}
    assert found["by_cluster"] == {"default": 2}
    assert found["by_trust"] == dict.fromkeys(Trust, 0) | {"unknown": 1, "verified": 1}

    service.clock.advance(7 * 86_400)
    later = (await service.operator("GET", "/stats")).json()
    assert later["by_trust"] == dict.fromkeys(Trust, 0) | {"unknown": 1, "stale": 1}
    assert later["at"] > found["at"]


async def test_what_needs_attention_is_counted(service: Service) -> None:
    """Who waits, by age; failures of a day; alarms; the oldest result; certificates; how far the log is signed."""
    empty = (await service.operator("GET", "/stats/attention")).json()
    assert empty["pending"] == {"hour": 0, "day": 0, "week": 0, "longer": 0}
    assert empty["pending_since"] is empty["oldest_result"] is empty["next_expiry"] is None
    assert (empty["failed_recently"], empty["alarms"], empty["undelivered"], empty["expiring"]) == (
        0,
        0,
        0,
        0,
    )
    assert empty["tpm_vendors"] == {}

    waiting = await service.introduce(SoftwareNode())
    service.clock.advance(2 * 3600)
    await service.introduce(SoftwareNode())
    admitted = await service.admitted(SoftwareNode(), role="worker-infra")
    found = (await service.operator("GET", "/stats/attention")).json()
    assert found["pending"] == {"hour": 1, "day": 1, "week": 0, "longer": 0}
    assert found["tpm_without_certificate"] == 3
    assert found["oldest_result"] is not None
    assert found["audit_entries"] > found["checkpoint_entries"] >= 0
    assert found["unsigned_since"] is not None
    assert waiting is not None
    assert admitted is not None

    service.clock.advance(8 * 86_400)
    later = (await service.operator("GET", "/stats/attention")).json()
    assert later["pending"] == {"hour": 0, "day": 0, "week": 0, "longer": 2}
    assert later["pending_since"] == found["pending_since"]
