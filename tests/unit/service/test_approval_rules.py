"""Approval rules over HTTP: made and enabled by two, tried, used up, and what they never do."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.fixtures.vendor import vouched, write_bundle
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

RULE: dict[str, Any] = {
    "name": "rack-4",
    "expression": 'machine.ek_manufacturer == "IFX" && machine.serial.startsWith("W")',
    "role": "worker-app",
    "hostname": "w-{serial}",
    "max_count": 2,
}


@pytest.fixture
async def committee(start: Starter, tmp_path: Path) -> Committee:
    """Two people and a service that trusts a vendor; control planes are under dual control, workers are not."""
    bundle = write_bundle(tmp_path / "bundle")
    return Committee(await start(dual_control_roles=("controlplane",), tpm_ca_bundle_dir=bundle))


async def ruled(committee: Committee, **changes: Any) -> None:
    """Let two people make a rule and enable it."""
    rule = RULE | changes
    await committee.agreed("POST", "/approval-rules", rule)
    await committee.agreed("POST", f"/approval-rules/{rule['name']}/enable")


async def comes(committee: Committee, serial: str, *, known: bool = True, **members: Any) -> dict[str, Any]:
    """Let a new machine introduce itself; return what an operator sees of it."""
    node = SoftwareNode()
    evidence = vouched(node.ek) if known else {}
    await committee.service.introduce(node, hw_serial=serial, hw_uuid=f"uuid-{serial}", **evidence, **members)
    found: dict[str, Any] = (await committee.ask("one", "GET", f"/machines/{node.machine_id}")).json()
    return found


@pytest.mark.threat("T361")
async def test_a_rule_approves_what_it_says_and_no_more(committee: Committee) -> None:
    """In its role, under its pattern, up to its count; the entry of the machine names it, and a person the rest."""
    await ruled(committee)
    first = await comes(committee, "W 0815")
    assert (first["status"], first["role"], first["hostname"]) == ("registered", "worker-app", "w-w-0815")
    assert (await comes(committee, "X1"))["status"] == "pending_approval"
    assert (await comes(committee, "W2", known=False))["status"] == "pending_approval", (
        "nobody vouches for its EK"
    )
    assert (await comes(committee, "W3"))["status"] == "registered"
    assert (await comes(committee, "W4"))["status"] == "pending_approval", "the rule is used up"
    (shown,) = (await committee.ask("one", "GET", "/approval-rules")).json()["items"]
    assert (shown["used"], shown["max_count"]) == (2, 2)
    entries = [
        e for e in await committee.audit() if e["action"] == "register" and e["new_state"] == "registered"
    ]
    assert all(e["detail"].endswith("; approved by rule rack-4") for e in entries)


async def test_what_a_machine_does_not_say_is_empty(committee: Committee) -> None:
    """Not the word that stands for it: a rule that asks for a serial number has none, and so has a host name."""
    await ruled(committee, expression='machine.serial != ""')
    assert (await comes(committee, "unknown"))["status"] == "pending_approval"
    await ruled(committee, name="rack-5", expression='machine.product == ""')
    assert (await comes(committee, "unknown"))["status"] == "pending_approval", "its name would be empty"
    assert (await comes(committee, "W1"))["status"] == "registered"


@pytest.mark.threat("T360")
async def test_a_rule_is_nothing_before_two_enable_it(committee: Committee) -> None:
    """Made by one it is not there; made by two it approves nobody; one operator is enough to end it."""
    assert (await committee.ask("anna", "POST", "/approval-rules", RULE)).status_code == 202
    assert (await committee.ask("anna", "GET", "/approval-rules")).json()["items"] == []
    other = await committee.ask("bernd", "POST", "/approval-rules", RULE | {"max_count": 3})
    assert other.status_code == 409, "what each agreed to is not the same"
    made = await committee.ask("bernd", "POST", "/approval-rules", RULE)
    assert (made.status_code, made.json()["enabled"]) == (201, False)
    assert (await comes(committee, "W1"))["status"] == "pending_approval"
    path = "/approval-rules/rack-4"
    assert (await committee.ask("anna", "POST", f"{path}/enable")).status_code == 202
    (waiting,) = [each for each in await committee.waiting() if each["subject"].startswith("enable")]
    assert RULE["expression"] in waiting["subject"]
    assert (await comes(committee, "W2"))["status"] == "pending_approval"
    assert (await committee.ask("bernd", "POST", f"{path}/enable")).json()["enabled"] is True
    assert (await comes(committee, "W3"))["status"] == "registered"
    assert (await committee.ask("anna", "POST", f"{path}/disable")).json()["enabled"] is False
    assert (await comes(committee, "W4"))["status"] == "pending_approval"
    assert (await committee.ask("anna", "DELETE", path)).status_code == 204
    assert code(await committee.ask("anna", "DELETE", path)) == "approval-rule-unknown"
    assert [e["action"] for e in await committee.audit() if e["action"].startswith("approval_rule")] == [
        f"approval_rule_{word}" for word in ("create", "enable", "disable", "remove")
    ]


@pytest.mark.threat("T360")
async def test_no_rule_gives_a_role_under_dual_control(committee: Committee) -> None:
    """It cannot be made; and one whose role comes under dual control later is passed over."""
    refused = await committee.ask("anna", "POST", "/approval-rules", RULE | {"role": "controlplane"})
    assert (refused.status_code, code(refused)) == (422, "request-invalid")
    await ruled(committee)
    await committee.agreed("POST", "/approval-rules", RULE | {"name": "later"})
    committee.settings(dual_control_roles=("controlplane", "worker-app"))
    assert (await comes(committee, "W1"))["status"] == "pending_approval"
    assert code(await committee.ask("anna", "POST", "/approval-rules/later/enable")) == "request-invalid"


@pytest.mark.threat("T361")
async def test_the_policy_of_the_role_counts_beside_the_rule(committee: Committee) -> None:
    """A rule that lets in whoever comes lets in nobody who is vouched for less than the role demands."""
    committee.settings(dual_control_roles=("windows",))
    await ruled(committee, expression="true", minimum_assurance="tofu", hostname=None, role="controlplane")
    assert (await comes(committee, "X1", known=False))["status"] == "pending_approval"
    assert (await comes(committee, "X2"))["status"] == "registered"


@pytest.mark.threat("T360")
async def test_break_glass_makes_no_rule(service: Service) -> None:
    """Several people must agree, whatever the settings say of roles."""
    refused = await service.operator("POST", "/approval-rules", RULE)
    assert (refused.status_code, code(refused)) == (403, "break-glass-cannot-vote")


@pytest.mark.threat("T361")
async def test_the_higher_one_is_asked_first_and_a_name_is_given_once(committee: Committee) -> None:
    """Where a machine would be called like another one it waits, with an alarm, and the rule keeps its count."""
    await ruled(committee, max_count=9)
    await ruled(committee, name="special", role="linux", priority=500, hostname="s-{mac}", expression="true")
    assert (await comes(committee, "W1", hw_mac="52:54:00:00:00:01"))["hostname"] == "s-52-54-00-00-00-01"
    await committee.ask("anna", "POST", "/approval-rules/special/disable")
    assert (await comes(committee, "W7"))["hostname"] == "w-w7"
    again = await comes(committee, "W.7")
    assert again["hostname"] == "w-w-7"
    twin = await comes(committee, "w7")
    assert twin["status"] == "pending_approval", "small letters are no other serial, and the expression knows"
    await ruled(committee, name="any", expression='machine.serial == "w7"', max_count=5)
    twin = await comes(committee, "w7")
    assert (twin["status"], "waits for approval" in twin["alarm"]) == ("pending_approval", True)
    used = {
        rule["name"]: rule["used"]
        for rule in (await committee.ask("one", "GET", "/approval-rules")).json()["items"]
    }
    assert used == {"any": 0, "rack-4": 2, "special": 1}


@pytest.mark.threat("T361")
async def test_a_rule_is_tried_on_who_waits(committee: Committee) -> None:
    """Each machine with its verdict; nothing is changed, and nothing that a machine says breaks it."""
    good, other = await comes(committee, "W1"), await comes(committee, "é" * 40)
    unknown = await comes(committee, "W5", known=False)
    terms = {name: RULE[name] for name in ("expression", "hostname")}
    tried = (await committee.ask("one", "GET", f"/approval-rule-trials?{urlencode(terms)}")).json()["items"]
    said = {each["machine_id"]: (each["approves"], each["hostname"], each["why"]) for each in tried}
    assert said == {
        good["machine_id"]: (True, "w-w1", ""),
        other["machine_id"]: (False, None, "the expression is false"),
        unknown["machine_id"]: (False, None, "vouched for as tofu, less than ek-chain"),
    }
    assert (await comes(committee, "W9"))["status"] == "pending_approval"


async def test_a_rule_that_cannot_be_meant_is_refused(committee: Committee) -> None:
    """Where it is written, in words; nobody votes for it."""
    for wrong in (
        {"expression": "machine.serial +"},
        {"expression": "tpm.pcrs"},
        {"expression": 'machine.serial.matches("W")'},
        {"hostname": "w-1"},
        {"hostname": "w-{name}"},
        {"hostname": "_{serial}"},
        {"hostname": "{serial}"},
        {"name": "Rack"},
        {"max_count": 0},
        {"enabled": True},
    ):
        assert (await committee.ask("anna", "POST", "/approval-rules", RULE | wrong)).status_code == 422, (
            wrong
        )
    assert await committee.waiting() == []
