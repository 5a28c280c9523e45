"""Firmware advisories over HTTP: only what somebody vouches for is judged, and an operator's list counts too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attestation.endorsements.firmware import MAX_BYTES, shipped_blocklist
from attestation.keys import verify_ear
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.verifier.firmware import load_advisories
from tests.fixtures.vendor import vouched
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

WEAK = 7 << 48 | 61 << 32
FIXED = 7 << 48 | 62 << 32
OWN = {
    "format": "itl-firmware-blocklist/1",
    "entries": [
        {
            "vendor": "IFX",
            "match": ["7.62"],
            "advisory": "OPS-1",
            "affects": "memory",
            "severity": "high",
            "action": "warn",
        }
    ],
}


async def newest(service: Service, node: SoftwareNode) -> dict[str, dict[str, Any]]:
    """Return the checks of the newest result by name."""
    found = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"][0]
    return {check["check"]: check for check in found["checks"]}


async def test_the_advisories_in_force_are_listed(start: Starter, tmp_path: Path) -> None:
    """The shipped ones, and those of one's own file; the digest is that of the list in force."""
    own = tmp_path / "own.json"
    own.write_text(json.dumps(OWN))
    service = await start(firmware_blocklist_file=own)
    found = (await service.operator("GET", "/trust/advisories")).json()
    assert found["sha256"] == service.resources.advisories.sha256 != shipped_blocklist().sha256
    listed = {each["advisory"]: each for each in found["advisories"]}
    assert len(found["advisories"]) == len(shipped_blocklist()) + 1
    roca = [each for each in found["advisories"] if "7.0-7.61" in each["versions"]]
    assert [(r["advisory"], r["vendor"], r["action"], r["origin"]) for r in roca] == [
        ("CVE-2017-15361", "IFX", "fail", "shipped")
    ]
    assert listed["OPS-1"] == {
        "advisory": "OPS-1",
        "vendor": "IFX",
        "versions": ["7.62"],
        "affects": "memory",
        "severity": "high",
        "action": "warn",
        "fixed": None,
        "origin": "file",
    }


async def test_blocked_firmware_fails(service: Service) -> None:
    """ROCA firmware with an RSA EK: not as expected, the advisory on the machine; after the update it is gone."""
    node = SoftwareNode(rsa_ek=True)
    node.firmware_version = WEAK
    await service.introduce(node, **vouched(node.ek))
    await service.attest(node)
    check = (await newest(service, node))["firmware-blocklist"]
    assert check["outcome"] == "failed"
    assert "CVE-2017-15361" in check["found"]
    detail = await service.detail(node)
    assert (detail["trust"], detail["last_result"]["failed"]) == ("failed", "firmware-blocklist")
    assert detail["firmware_blocked"].startswith("IFX 7.61.0.0: CVE-2017-15361")
    node.firmware_version = FIXED
    await service.attest(node)
    assert (await newest(service, node))["firmware-blocklist"]["outcome"] == "passed"
    detail = await service.detail(node)
    assert (detail["trust"], detail["firmware_blocked"]) == ("verified", None)


async def test_a_warning_decides_nothing_here_and_is_seen_by_others(service: Service) -> None:
    """The same firmware without RSA keys: Verified, and the token's status is warning."""
    node = SoftwareNode()
    node.firmware_version = WEAK
    await service.introduce(node, **vouched(node.ek))
    answer = await service.attest(node, want_result=True)
    assert (await newest(service, node))["firmware-blocklist"]["outcome"] == "flagged"
    assert (await service.detail(node))["trust"] == "verified"
    keys = (await service.get("/api/v1/service-keys")).json()
    ear = verify_ear(
        answer["attestation_result"],
        jwks=keys,
        at=service.clock.now(),
        issuer="https://attest.example.test",
        nonce=None,
    )
    assert ear.status == "warning"


@pytest.mark.threat("T79")
async def test_what_nobody_vouches_for_is_not_judged(service: Service) -> None:
    """A certificate that chains nowhere names a maker of its maker's choice: no advisory, and no pass either."""
    node = SoftwareNode(rsa_ek=True)
    node.firmware_version = WEAK
    await service.introduce(node, **vouched(node.ek, manufacturer="id:53544D20"))
    await service.attest(node)
    assert "firmware-blocklist" not in await newest(service, node)


async def test_a_policy_that_wants_a_verdict_names_no_advisory(service: Service) -> None:
    """Where nobody vouches for the maker such a policy fails, but nothing is said to forbid the firmware."""
    node = SoftwareNode()
    document = {
        "format": "itl-tpm-policy/1",
        "name": "firm",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [node.pcrs[7].hex()]}},
        "firmware": {"on_blocklist": "fail"},
        "max_age_seconds": 180,
    }
    assert (await service.operator("POST", "/policies", document)).status_code == 201
    assigned = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "firm@1"})
    assert assigned.status_code == 200, assigned.text
    await service.introduce(node)
    await service.attest(node)
    assert (await newest(service, node))["firmware-blocklist"]["outcome"] == "failed"
    detail = await service.detail(node)
    assert (detail["trust"], detail["firmware_blocked"]) == ("failed", None)


async def test_operators_add_advisories(start: Starter, tmp_path: Path) -> None:
    """A file of their own is judged by beside the shipped list."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps(OWN))
    service = await start(firmware_blocklist_file=path, tpm_ca_bundle_dir=start.bundle())
    node = SoftwareNode()
    node.firmware_version = FIXED
    await service.introduce(node, **vouched(node.ek))
    await service.attest(node)
    assert "OPS-1" in str((await newest(service, node))["firmware-blocklist"])


def test_a_list_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    """Missing, misspelt or too long: SettingsInvalid with the variable's name; without one, the shipped list."""
    assert load_advisories(Settings()) is shipped_blocklist()
    path = tmp_path / "list.json"
    with pytest.raises(SettingsInvalid, match=r"ITL_FIRMWARE_BLOCKLIST_FILE: .* cannot be read"):
        load_advisories(Settings(firmware_blocklist_file=path))
    for content in ("{", json.dumps(OWN).replace("IFX", "IFXX"), " " * (MAX_BYTES + 1)):
        path.write_text(content)
        with pytest.raises(SettingsInvalid, match="ITL_FIRMWARE_BLOCKLIST_FILE"):
            load_advisories(Settings(firmware_blocklist_file=path))
