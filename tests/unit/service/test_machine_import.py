"""A receipt makes a machine that is expected: nobody can approve it, and its proof is judged as a stranger's is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.service.conftest import Service, Starter
from tests.unit.service.hsm_requests import code
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_elsewhere import FIRST, OTHER, detail
from tests.unit.service.test_registration import REGISTER

pytestmark = pytest.mark.anyio


def receipt(node: SoftwareNode, **more: Any) -> dict[str, Any]:
    """Return what a kiosk wrote."""
    return {
        "ek_fingerprint": node.ek_fingerprint,
        "install_mode": "offline",
        "role": "controlplane",
        "ek_source": "pub",
        "installed_at": "2026-11-20T08:00:00Z",
        **FIRST,
        **more,
    }


async def imported(service: Service, node: SoftwareNode, **more: Any) -> dict[str, Any]:
    """Import a receipt."""
    answer = await service.operator("POST", "/machines/import", receipt(node, **more))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    node.machine_id = found["machine_id"] or ""
    return found


async def listed(service: Service, node: SoftwareNode) -> None:
    """Put an EK on the allow-list."""
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app", "hostname": "w-1"}
    await service.operator("POST", "/allow-list", {"entries": [entry]})


async def test_a_receipt_is_the_word_of_who_brought_it(service: Service) -> None:
    """Visible, without a role, a level or a key; its wish is a wish."""
    node = SoftwareNode()
    answer = await imported(service, node)
    assert (answer["result"], answer["status"], answer["role"]) == ("added", "pending_approval", None)
    found = await detail(service, node)
    assert (found["expected"], found["assurance"], found["desired_role"]) == (True, "none", "controlplane")
    assert (found["registered_from"], found["ak_activated_at"]) == (None, None)
    [entry] = await service.audit(action="import")
    assert (entry["machine_id"], entry["new_state"]) == (node.machine_id, "pending_approval")
    assert node.ek_fingerprint in entry["detail"]


@pytest.mark.threat("T342")
async def test_it_is_expected_once(service: Service) -> None:
    """Whoever brings it again, and whatever id it names; of a known machine nothing is overwritten."""
    node = SoftwareNode()
    first = await imported(service, node)
    again = await imported(
        service, node, hw_serial="B5JT9Y2", machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
    )
    assert (again["result"], again["machine_id"]) == ("known", first["machine_id"])
    assert again["differs"] == ["hw_serial"]
    assert (await detail(service, node))["hw_serial"] == FIRST["hw_serial"]
    assert len(await service.audit(action="import")) == 1


async def test_a_dry_run_expects_nobody(service: Service) -> None:
    """It says what would be done."""
    node = SoftwareNode()
    answer = await imported(service, node, dry_run=True)
    assert (answer["result"], answer["machine_id"], answer["admitted_in_advance"]) == (
        "would-add",
        None,
        False,
    )
    assert (await service.operator("GET", "/machines")).json()["items"] == []
    await listed(service, node)
    assert (await imported(service, node, dry_run=True))["admitted_in_advance"] is True


@pytest.mark.threat("T342")
@pytest.mark.parametrize("act", ["approve", "approve-ek", "replace"])
async def test_nobody_approves_what_proved_nothing(service: Service, act: str) -> None:
    """Not even by name: who answers for a fingerprint lists it, and the proof is waited for."""
    node = SoftwareNode()
    await imported(service, node)
    body: dict[str, Any] = {"role": "worker-app", "accept_ek": act == "approve-ek"}
    path = f"/machines/{node.machine_id}/approve"
    if act == "replace":
        old = SoftwareNode()
        await service.introduce(old)
        await service.act(old, "approve", {"role": "worker-app"})
        body = {"new": node.machine_id, "accept_ek": True, "reason": "died"}
        path = f"/machines/{old.machine_id}/replace"
    refused = await service.operator("POST", path, body)
    assert (refused.status_code, code(refused)) == (409, "transition-forbidden")
    assert (await service.operator("GET", "/allow-list")).json()["items"] == []


async def test_who_proves_the_ek_takes_the_row_and_waits_as_a_stranger(service: Service) -> None:
    """The same id, now with a key; and from then on an operator decides as about any other."""
    node = SoftwareNode()
    expected = await imported(service, node)
    await service.introduce(node, **FIRST)
    assert node.machine_id == expected["machine_id"]
    found = await detail(service, node)
    assert (found["expected"], found["assurance"], found["status"]) == (False, "tofu", "pending_approval")
    assert (found["registered_from"], found["alarm"]) == ("192.0.2.7", None)
    await service.act(node, "approve", {"role": "worker-app"})
    assert (await service.attest(node))["action"] == "apply-config"


async def test_the_allow_list_admits_it_when_it_proves_its_ek(service: Service) -> None:
    """Not before: a fingerprint in a file is no proof."""
    node = SoftwareNode()
    await listed(service, node)
    answer = await imported(service, node)
    assert (answer["admitted_in_advance"], answer["status"]) == (True, "pending_approval")
    activated = await service.introduce(node, **FIRST)
    assert activated["status"] == "registered"
    found = await detail(service, node)
    assert (found["role"], found["hostname"], found["assurance"]) == ("worker-app", "w-1", "ek-allowlist")


async def test_a_receipt_of_another_board_is_an_alarm(service: Service) -> None:
    """The disk says one machine, the TPM comes from another one."""
    node = SoftwareNode()
    await imported(service, node)
    await service.introduce(node, **OTHER)
    found = await detail(service, node)
    assert str(found["alarm"]).endswith("as its receipt says")
    assert found["hw_serial"] == OTHER["hw_serial"]
    assert len(await service.audit(action="alarm")) == 1


async def test_a_receipt_of_a_rejected_tpm_is_an_alarm_and_admits_it_not(service: Service) -> None:
    """Also where the row is gone, and where it is on the allow-list meanwhile."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "reject", {"reason": "not ours"})
    gone = node.machine_id
    assert (await service.operator("DELETE", f"/machines/{gone}")).status_code == 204
    await listed(service, node)
    await imported(service, node)
    assert gone in str((await detail(service, node))["alarm"])
    assert (await service.introduce(node))["status"] == "pending_approval"


@pytest.mark.threat("T342")
async def test_what_was_rejected_stays_so(service: Service) -> None:
    """An operator who rejects a receipt rejects the machine that proves its EK later."""
    node = SoftwareNode()
    await imported(service, node)
    await service.act(node, "reject", {"reason": "not ours"})
    assert (await service.introduce(node))["status"] == "rejected"
    assert (await detail(service, node))["status"] == "rejected"


async def test_half_a_fingerprint_is_none(service: Service) -> None:
    """A SHA-256 of older kiosks names no EK here."""
    refused = await service.operator("POST", "/machines/import", {"ek_fingerprint": "ab" * 32})
    assert refused.status_code == 422


@pytest.mark.parametrize("member", [{"dry_run": 0}, {"installed_at": 1_700_000_000}])
async def test_what_the_schema_refuses_is_not_taken_for_something(
    service: Service, member: dict[str, Any]
) -> None:
    """A number is neither false nor an instant."""
    refused = await service.operator("POST", "/machines/import", {"ek_fingerprint": "ab" * 48, **member})
    assert refused.status_code == 422


@pytest.mark.threat("T342")
async def test_strangers_who_wait_keep_no_expected_machine_out(start: Starter) -> None:
    """It has its row already; nor do receipts keep their own machines out. A stranger finds no room."""
    service = await start(pending_limit=2, tpm_ca_bundle_dir=start.bundle())
    for node in (nodes := [SoftwareNode(), SoftwareNode()]):
        await imported(service, node)
    assert code(await service.post(REGISTER, SoftwareNode().introduction())) == "pending-quota-exceeded"
    await service.introduce(nodes[0], **FIRST)
    found = await detail(service, nodes[0])
    assert (found["expected"], found["status"]) == (False, "pending_approval")
