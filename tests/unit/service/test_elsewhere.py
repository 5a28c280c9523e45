"""One EK on two machines is an alarm, and never overwrites what was known (W8)."""

from __future__ import annotations

import pytest

from attestation.machines import NodeEvent
from attestation_service.entitlements.alarms import OF_SUBJECT
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_event_producers import told
from tests.unit.service.test_registration import REGISTER, code

pytestmark = pytest.mark.anyio

FIRST = {"hw_uuid": "4c4c4544-0042-3510-8054-b4c04f4a5931", "hw_serial": "B5JT9Y1"}
OTHER = {"hw_uuid": "4c4c4544-0042-3510-8054-b4c04f4a5932", "hw_serial": "B5JT9Y2"}


async def known(service: Service) -> SoftwareNode:
    """Return an admitted machine with a UUID and a serial number."""
    node = SoftwareNode()
    await service.introduce(node, **FIRST)
    await service.act(node, "approve", {"role": "worker-app"})
    return node


async def detail(service: Service, node: SoftwareNode) -> dict[str, object]:
    """Return what operators see of a machine."""
    found: dict[str, object] = (await service.operator("GET", f"/machines/{node.machine_id}")).json()
    return found


@pytest.mark.threat("T343")
async def test_an_ek_that_comes_from_another_board_is_an_alarm(service: Service) -> None:
    """Audit, event, the machine itself; what it said first stays, and it is admitted as before."""
    node = await known(service)
    await told(service)
    await service.introduce(node, **OTHER)
    (entry,) = await service.audit(action="alarm")
    assert entry["machine_id"] == node.machine_id
    for word in ("one EK seen on two machines", *OTHER.values(), *FIRST.values()):
        assert word.lower() in entry["detail"].lower()
    (event,) = (await told(service))[NodeEvent.ALARM]
    assert event.payload["meta"] == {"words": entry["detail"], "source_ip": "192.0.2.7"}
    found = await detail(service, node)
    assert {name: found[name] for name in FIRST} == FIRST
    assert (found["status"], found["alarm"]) == ("registered", entry["detail"])


@pytest.mark.threat("T343")
async def test_each_other_board_is_told_of_once(service: Service) -> None:
    """Agents start often; and after an operator has looked, a third board is another alarm."""
    node = await known(service)
    for hardware in (OTHER, FIRST, OTHER):
        await service.introduce(node, **hardware)
    assert len(await service.audit(action="alarm")) == 1
    await service.introduce(node, **FIRST | {"hw_serial": "B5JT9Y3"})
    assert len(await service.audit(action="alarm")) == 2


async def test_what_says_nothing_is_no_other_board(service: Service) -> None:
    """A firmware that was reset says nothing of who it is; another MAC is another card."""
    node = await known(service)
    for hardware in ({}, {"hw_uuid": "unknown"}, {"hw_serial": "To Be Filled By O.E.M."}):
        await service.introduce(node, **FIRST | hardware | {"hw_mac": "52:54:00:00:00:09"})
    assert await service.audit(action="alarm") == []
    assert (await detail(service, node))["alarm"] is None


async def test_an_operator_who_looked_ends_it(service: Service) -> None:
    """Whoever unlocks a machine knows why it was locked."""
    node = await known(service)
    await service.attest(node)
    await service.introduce(node, **OTHER)
    for act in ("lock", "unlock"):
        assert (await detail(service, node))["alarm"] is not None
        await service.act(node, act)
    assert (await detail(service, node))["alarm"] is None


@pytest.mark.threat("T343")
async def test_another_key_of_the_same_ek_on_another_board_is_told_of(service: Service) -> None:
    """It is refused, and proves nothing: so no machine is marked, and from the same board it is no alarm."""
    node, twin = await known(service), SoftwareNode()
    twin._ek, twin.ek, twin.ek_fingerprint = node._ek, node.ek, node.ek_fingerprint
    assert code(await service.post(REGISTER, twin.introduction(**FIRST))) == "ak-conflict"
    assert await service.audit(action="alarm") == []
    assert code(await service.post(REGISTER, twin.introduction(**OTHER))) == "ak-conflict"
    (entry,) = await service.audit(action="alarm")
    assert entry["detail"].endswith("it has another attestation key, and nothing was proven")
    assert (await detail(service, node))["alarm"] is None


@pytest.mark.threat("T343")
async def test_who_proves_nothing_uses_up_no_alarm_of_what_is_proven(service: Service) -> None:
    """Each board is told of once: what is not told then never is."""
    node, twin = await known(service), SoftwareNode()
    twin._ek, twin.ek, twin.ek_fingerprint = node._ek, node.ek, node.ek_fingerprint
    for number in range(OF_SUBJECT.requests + 1):
        said = twin.introduction(**FIRST | {"hw_serial": f"B5JT9Z{number}"})
        assert code(await service.post(REGISTER, said)) == "ak-conflict"
    assert len(await service.audit(action="alarm")) == OF_SUBJECT.requests
    await service.introduce(node, **OTHER)
    assert len(await service.audit(action="alarm")) == OF_SUBJECT.requests + 1


@pytest.mark.threat("T343")
async def test_who_said_nothing_at_first_is_compared_from_the_first_word_on(service: Service) -> None:
    """A machine without a UUID, which two have later: the first is no alarm, and the second is one, once."""
    node = SoftwareNode()
    await service.introduce(node, hw_uuid="unknown", hw_serial="unknown")
    for hardware in (FIRST, {}, FIRST):
        await service.introduce(node, **hardware)
    assert await service.audit(action="alarm") == []
    for _ in range(2):
        await service.introduce(node, **OTHER)
    (entry,) = await service.audit(action="alarm")
    assert f"{OTHER['hw_serial']} instead of {FIRST['hw_serial']}".lower() in entry["detail"].lower()
