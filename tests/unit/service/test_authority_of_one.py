"""What one operator cannot do in two steps that would need two operators in one (dual control)."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
from cryptography import x509

from tests.fixtures.vendor import ISSUER, ROOT, vouched
from tests.unit.service import people
from tests.unit.service.conftest import Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_ca import with_ca
from tests.unit.service.test_dual_control import EK, UP, Committee
from tests.unit.service.test_registration import code
from tests.unit.service.test_trust import sha256, trust

pytestmark = pytest.mark.anyio

WEAK: dict[str, Any] = {
    "format": "itl-tpm-policy/1",
    "name": "weak",
    "version": 1,
    "bank": "sha256",
    "pcrs": {"7": {"ignore": "no Secure Boot"}},
    "assurance": {"minimum": "tofu"},
    "max_age_seconds": 3600,
}


@pytest.fixture
async def committee(start: Starter) -> Committee:
    """Return a service where control-plane machines need two."""
    return Committee(await start(tpm_ca_bundle_dir=start.bundle(), dual_control_roles=("controlplane",)))


async def weakened(committee: Committee, node: SoftwareNode) -> None:
    """Let one operator assign a weak policy to a worker, as one may."""
    stored = await committee.ask("carla", "POST", "/policies", WEAK)
    assert stored.status_code == 201, stored.text
    place = f"/policies/assignments/machine/{node.machine_id}"
    answer = await committee.ask("carla", "PUT", place, {"policy": "weak@1"})
    assert (answer.status_code, answer.json()["agreed"]) == (200, False)


# What a role rests on


@pytest.mark.threat("T147")
async def test_a_software_key_is_not_promoted_by_what_one_prepared(committee: Committee) -> None:
    """The role's own minimum stands: that one operator overruled it for the worker counts for nothing."""
    node = SoftwareNode()
    await committee.service.introduce(node)
    await committee.act(node, "approve", {"role": "worker-app"})
    await committee.service.attest(node)
    await weakened(committee, node)
    answer = await committee.ask("anna", "POST", f"/machines/{node.machine_id}/role", UP)
    assert code(answer) == "assurance-too-low"
    assert (await committee.service.detail(node))["role"] == "worker-app"
    # Several may lower it: then it is theirs.
    place, body = f"/policies/assignments/machine/{node.machine_id}", {"policy": "weak@1"}
    assert (await committee.ask("anna", "PUT", place, body)).status_code == 200


async def accepted_by_one(committee: Committee, node: SoftwareNode) -> None:
    await committee.service.introduce(node)
    body = {"role": "worker-app", "accept_ek": True}
    answer = await committee.ask("carla", "POST", f"/machines/{node.machine_id}/approve", body)
    assert answer.status_code == 200, answer.text


async def listed_by_one(committee: Committee, node: SoftwareNode) -> None:
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app"}
    assert (await committee.ask("carla", "POST", "/allow-list", {"entries": [entry]})).status_code == 200
    await committee.service.introduce(node)


@pytest.mark.threat("T152")
@pytest.mark.parametrize("prepare", [accepted_by_one, listed_by_one])
async def test_a_software_key_is_not_promoted_by_the_word_of_one(committee: Committee, prepare: Any) -> None:
    """That one operator admitted its EK as a worker counts for nothing, until several list it for the role."""
    node = SoftwareNode()
    await prepare(committee, node)
    await committee.service.attest(node)
    path = f"/machines/{node.machine_id}/role"
    refused = await committee.ask("anna", "POST", path, UP)
    assert code(refused) == "assurance-too-low"
    assert "list its EK for controlplane, which several must agree to" in refused.json()["detail"]
    # The honest way: the entry gives way to one for the role, by votes; then so does the role.
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "controlplane"}
    await committee.agreed("POST", "/allow-list", {"entries": [entry]})
    assert (await committee.agreed("POST", path, UP))["role"] == "controlplane"


@pytest.mark.threat("T152")
async def test_a_software_key_takes_no_place_by_the_word_of_one(committee: Committee) -> None:
    """Listed by one under a name in use it waits, and replaces no control plane unless several accept its EK there."""
    old = await committee.attested("controlplane")
    other = SoftwareNode()
    await committee.service.introduce(other)
    await committee.act(other, "approve", {"role": "worker-app"})
    node = SoftwareNode()
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app", "hostname": "h-3"}
    assert (await committee.ask("carla", "POST", "/allow-list", {"entries": [entry]})).status_code == 200
    renamed = {"role": "worker-app", "hostname": "h-3", "reason": "x"}
    answer = await committee.ask("carla", "POST", f"/machines/{other.machine_id}/role", renamed)
    assert answer.status_code == 200, answer.text
    assert (await committee.service.introduce(node))["status"] == "pending_approval"
    assert (await committee.service.detail(node))["assurance"] == "ek-allowlist"
    path = f"/machines/{old.machine_id}/replace"
    body = {"new": node.machine_id, "reason": "board changed"}
    assert code(await committee.ask("anna", "POST", path, body)) == "assurance-too-low"
    granted = {"role": "controlplane"}
    alone = await committee.ask("anna", "POST", f"/machines/{node.machine_id}/approve", granted)
    assert code(alone) == "assurance-too-low"
    assert (await committee.agreed("POST", path, body | {"accept_ek": True}))["role"] == "controlplane"


async def test_a_vendor_vouches_whatever_one_listed(committee: Committee) -> None:
    """A machine that one operator listed as a worker is promoted by its vendor's word; without dual control, by his."""
    node = SoftwareNode()
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app"}
    assert (await committee.ask("carla", "POST", "/allow-list", {"entries": [entry]})).status_code == 200
    await committee.service.introduce(node, **vouched(node.ek))
    path = f"/machines/{node.machine_id}/role"
    assert (await committee.agreed("POST", path, UP))["role"] == "controlplane"
    software = SoftwareNode()
    await accepted_by_one(committee, software)
    committee.settings(dual_control_roles=())
    answer = await committee.ask("carla", "POST", f"/machines/{software.machine_id}/role", UP)
    assert (answer.status_code, answer.json()["assurance"]) == (200, "ek-allowlist")


@pytest.mark.threat("T147")
async def test_voters_see_what_one_prepared_and_it_lowers_nothing(committee: Committee) -> None:
    """The proposal names the policy that one assigned, and it neither prolongs trust nor lowers the minimum."""
    node = await committee.attested("worker-app")
    await weakened(committee, node)
    path = f"/machines/{node.machine_id}/role"
    assert (await committee.ask("anna", "POST", path, UP)).status_code == 202
    (shown,) = (await committee.ask("bernd", "GET", "/approvals")).json()["items"]
    measured = shown["proposal"]["measured"]
    assert measured["minimum"] == "ek-chain"
    assert [(part["ref"], part["agreed"]) for part in measured["parts"]] == [("weak@1", False)]
    assert shown["overtaken"] == []
    assert (await committee.ask("bernd", "POST", path, UP)).status_code == 200
    found = (await committee.service.operator("GET", f"/machines/{node.machine_id}/policy")).json()
    assert found["document"]["assurance"] == {"minimum": "ek-chain"}
    assert found["document"]["max_age_seconds"] == 180
    assert found["assigned"] == [
        {"scope": "machine", "subject": node.machine_id, "policy": "weak@1", "agreed": False}
    ]
    # Now it is a control plane's: to let the same policy count is an act of two.
    place, body = f"/policies/assignments/machine/{node.machine_id}", {"policy": "weak@1"}
    assert (await committee.ask("anna", "PUT", place, body)).status_code == 202
    agreed = await committee.ask("bernd", "PUT", place, body)
    assert (agreed.status_code, agreed.json()["agreed"]) == (200, True)
    assert (await committee.ask("anna", "PUT", place, body)).json() == agreed.json()
    found = (await committee.service.operator("GET", f"/machines/{node.machine_id}/policy")).json()
    assert found["document"]["assurance"] == {"minimum": "tofu"}


# Taking away and giving again


@pytest.mark.threat("T148")
async def test_what_was_removed_from_the_allow_list_is_replaced_by_two(committee: Committee) -> None:
    """One may remove an EK at once; listing it again as something else is what replacing it is."""
    entry = {"ek_fingerprint": EK, "role": "controlplane"}
    await committee.agreed("POST", "/allow-list", {"entries": [entry]})
    assert (await committee.ask("carla", "DELETE", f"/allow-list/{EK}")).status_code == 204
    again = {"entries": [entry | {"role": "linux"}]}
    assert (await committee.ask("carla", "POST", "/allow-list", again)).status_code == 202
    assert (await committee.service.operator("GET", "/allow-list")).json()["items"] == []
    done = await committee.ask("anna", "POST", "/allow-list", again)
    assert (done.status_code, done.json()) == (200, {"added": 1, "replaced": 0})


@pytest.mark.threat("T148")
async def test_a_distrusted_intermediate_is_not_added_again(start: Starter) -> None:
    """Restoring it is an act of two, and adding it once more is no way around."""
    service = await start(dual_control_roles=("worker-app",))
    service.app.state.resources, known = people.introduce(service.resources)
    anna, bob = known.headers("anna"), known.headers("bob")
    for who in (anna, bob):
        await trust(service, ROOT, headers=who)
    assert (await trust(service, ISSUER, role="intermediate", headers=anna)).status_code == 201
    path, why = f"/trust/certificates/{sha256(ISSUER)}", {"reason": "x"}
    assert (await service.operator("POST", f"{path}/distrust", why, headers=anna)).status_code == 200
    for role in ("intermediate", "anchor"):
        assert (await trust(service, ISSUER, role=role, headers=anna)).status_code in (202, 422)
    beside = f"{path}/restore?new_proposal=true"
    assert (await service.operator("POST", beside, why, headers=anna)).status_code == 202
    assert (await service.operator("GET", path)).json()["status"] == "distrusted"


@pytest.mark.threat("T148")
async def test_the_certificate_of_a_ca_is_revoked_by_two(start: Starter) -> None:
    """Each step of a rotation needs two, so taking back what one made does; other certificates need one."""
    service = await with_ca(start, dual_control_roles=("controlplane",))
    service.app.state.resources, known = people.introduce(service.resources)
    anna, bob = known.headers("anna"), known.headers("bob")
    body = {"step": "prepare", "purpose": "machine", "reason": "yearly"}
    assert (await service.operator("POST", "/ca/rotation", body, headers=anna)).status_code == 202
    prepared = (await service.operator("POST", "/ca/rotation", body, headers=bob)).json()["issuers"]
    crosses = [der for issuer in prepared for der in issuer["cross_certificates"]]
    serial = f"{x509.load_der_x509_certificate(b64decode(crosses[0])).serial_number:040x}"
    path, why = f"/ca/certificates/{serial}/revoke", {"reason": "superseded", "note": "n"}
    for issuer in prepared:
        key = {"spki_sha256": issuer["spki_sha256"], "reason": "no more"}
        assert (await service.operator("POST", "/ca/refused-keys", key, headers=anna)).status_code == 409
    refused = await service.operator("POST", path, why)
    assert code(refused) == "break-glass-cannot-vote"
    first = await service.operator("POST", path, why, headers=anna)
    assert (first.status_code, first.json()["action"]) == (202, "ca_revocation")
    assert (await service.operator("GET", f"/ca/certificates/{serial}")).json()["state"] == "issued"
    done = await service.operator("POST", path, why, headers=bob)
    assert (done.status_code, done.json()["state"]) == (200, "revoked")
    (entry,) = await service.audit(action="cert_revoked")
    assert "agreed by anna, bob" in entry["detail"]
