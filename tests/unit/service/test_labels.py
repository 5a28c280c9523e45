"""Operators write labels on machines: audited, shown, found by, and without any effect on what is decided."""

from __future__ import annotations

import pytest

from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio


@pytest.mark.threat("T168")
async def test_labels_are_written_audited_and_found(service: Service) -> None:
    """Who wrote what and what stood there before is in the audit; what changes nothing leaves no entry."""
    node, other = SoftwareNode(), SoftwareNode()
    await service.introduce(node)
    await service.introduce(other)
    shown = await service.act(node, "labels", {"set": {"rack": "4", "site": "ams"}})
    assert shown["labels"] == {"rack": "4", "site": "ams"}
    await service.act(node, "labels", {"set": {"rack": "5"}, "remove": ["site", "gone"]})
    await service.act(node, "labels", {"set": {"rack": "5"}})
    assert (await service.detail(node))["labels"] == {"rack": "5"}
    entries = await service.audit(action="label")
    assert [(e["detail"], e["prev_state"], e["new_state"], e["operator_cn"]) for e in entries] == [
        ("rack=5; before: rack=4, site=ams", "pending_approval", "pending_approval", "SYSTEM"),
        ("rack=4, site=ams", "pending_approval", "pending_approval", "SYSTEM"),
    ]
    for labels, expected in (("rack=5", [node]), ("rack", [node]), ("rack=4", []), ("rack=5,site", [])):
        page = (await service.operator("GET", "/machines", params={"labels": labels})).json()
        assert [m["machine_id"] for m in page["items"]] == [n.machine_id for n in expected]
    listed = (await service.operator("GET", "/machines")).json()["items"]
    assert {m["machine_id"]: m["labels"] for m in listed} == {
        node.machine_id: {"rack": "5"},
        other.machine_id: {},
    }


@pytest.mark.threat("T168")
async def test_labels_change_nothing_else(service: Service) -> None:
    """Neither version nor trust, and an approval that was prepared before still fits; acts show them too."""
    node = SoftwareNode()
    await service.introduce(node)
    before = await service.detail(node)
    after = await service.act(node, "labels", {"set": {"role": "controlplane"}})
    assert {k: v for k, v in after.items() if k != "labels"} == {
        k: v for k, v in before.items() if k != "labels"
    }
    approved = await service.act(
        node, "approve", {"role": "worker-app", "expected_version": before["version"]}
    )
    assert (approved["role"], approved["labels"]) == ("worker-app", {"role": "controlplane"})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"set": {"itl.io/attested": "true"}}, "schema-violation"),
        ({"set": {"rack": "a b"}}, "schema-violation"),
        ({"remove": ["a b"]}, "schema-violation"),
        ({"set": {f"k{n}": "" for n in range(33)}}, "schema-violation"),
        ({"set": {"rack": "4"}, "remove": ["rack"]}, "request-invalid"),
        ({"labels": {}}, "schema-violation"),
    ],
)
async def test_what_is_no_label_is_refused(service: Service, body: object, expected: str) -> None:
    """Whole, with nothing written and nothing audited."""
    node = SoftwareNode()
    await service.introduce(node)
    answer = await service.operator("POST", f"/machines/{node.machine_id}/labels", body)
    assert (answer.status_code, code(answer)) == (422, expected)
    assert (await service.detail(node))["labels"] == {}
    assert await service.audit(action="label") == []


async def test_a_selector_that_is_none_is_refused(service: Service) -> None:
    """It is never read as no filter at all."""
    answer = await service.operator("GET", "/machines", params={"labels": "rack!=4"})
    assert (answer.status_code, code(answer)) == (422, "request-invalid")
    unknown = await service.operator(
        "POST", "/machines/7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d/labels", {"set": {"rack": "4"}}
    )
    assert code(unknown) == "machine-unknown"
