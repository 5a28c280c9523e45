"""One result over HTTP: what it was judged from, what explains a change, and a token for others (PROTOCOL §7)."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from attestation.keys import verify_jwt
from attestation.results import AttestationResult, Failed, Flagged, Passed, Reported, Undecided, Verdict
from attestation.results.ear import TYP, Profile
from attestation.store import StoredEvidence, StoredResult, pack
from attestation.wire import b64decode
from attestation_service.results.presentation import result_detail
from attestation_testing.event_logs import BootOptions, LogQuirk, boot_log
from tests.fixtures.vendor import vouched, write_bundle
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_attest import assign
from tests.unit.service.test_measurements import NORMAL, OTHER_KERNEL, admitted, boots, needs_log, newest
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio


async def report(service: Service, node: SoftwareNode, result_id: int | None = None) -> dict[str, Any]:
    """Return the report of one result, the newest unless told otherwise."""
    number = result_id or (await newest(service, node)).result_id
    answer = await service.operator("GET", f"/machines/{node.machine_id}/results/{number}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def changed(service: Service, node: SoftwareNode) -> None:
    """Let *node* boot `NORMAL` and be verified, then another kernel and fail."""
    await assign(service, needs_log())
    log = boots(node, NORMAL)
    await admitted(service, node)
    await service.attest(node, event_log=log)
    answer = await service.attest(node, event_log=boots(node, OTHER_KERNEL))
    assert answer["message"] == "the evidence is authentic but not as expected"


@pytest.mark.threat("T75")
async def test_a_changed_boot_is_explained(service: Service) -> None:
    """The result says which PCR changed, which events explain it, and what it is compared with."""
    node = SoftwareNode()
    await changed(service, node)
    found = await report(service, node)
    assert found["verdict"] == "Failed"
    assert found["compared_with"] == found["result_id"] - 1
    told = {change["pcr"]: change for change in found["changes"]}
    assert set(told) == {4}
    assert told[4]["before"] == NORMAL.pcrs()[4].hex()
    assert told[4]["after"] == OTHER_KERNEL.pcrs()[4].hex()
    assert told[4]["text"].startswith("PCR 4 changed: ")
    assert told[4]["entries"]
    assert found["pcr_values"]["4"] == told[4]["after"]
    assert found["policy"] == "measured@1"
    assert (found["assurance"], found["pcr_bank"]) == ("tofu", "sha256")


async def test_the_boot_is_shown(service: Service) -> None:
    """Secure Boot, what was started, and the events of the quoted PCRs; nothing of the others."""
    node = SoftwareNode()
    await changed(service, node)
    boot = (await report(service, node))["boot"]
    assert boot["secure_boot"]["enabled"] is True
    assert boot["secure_boot"]["dbx_entries"] == 3
    assert [a["name"] for a in boot["secure_boot"]["authorities"]]
    assert "boot-loader" in {item["kind"] for item in boot["items"]}
    assert boot["pcrs"] == [4, 7]
    assert {event["pcr"] for event in boot["events"]} == {4, 7}
    assert all(event["type"].startswith("EV_") for event in boot["events"])
    assert boot["events_left_out"] == 0


async def test_a_value_that_no_policy_accepts_is_explained_at_first_sight(service: Service) -> None:
    """Without a Verified result to compare with, what the PCR is made of is told."""
    node = SoftwareNode()
    await assign(service, needs_log())
    log = boots(node, OTHER_KERNEL)
    await admitted(service, node)
    await service.attest(node, event_log=log)
    found = await report(service, node)
    assert found["compared_with"] is None
    assert [(c["pcr"], c["before"]) for c in found["changes"]] == [(4, None)]
    assert found["changes"][0]["entries"]


async def test_a_boot_that_is_not_accepted_any_more_is_told(service: Service) -> None:
    """The same boot under another policy: nothing changed, and still operators learn what the PCR is made of."""
    node = SoftwareNode()
    await assign(service, needs_log())
    log = boots(node, NORMAL)
    await admitted(service, node)
    await service.attest(node, event_log=log)
    await assign(service, needs_log(version=2, pcrs={"4": {"any_of": ["ab" * 32]}}))
    await service.attest(node)
    found = await report(service, node)
    (change,) = found["changes"]
    assert (change["pcr"], change["before"]) == (4, change["after"])
    assert "is made of" in change["text"]
    assert change["entries"]
    # Nobody has seen a log of this boot.
    other = SoftwareNode()
    boots(other, NORMAL)
    await admitted(service, other)
    await service.attest(other)
    (change,) = (await report(service, other))["changes"]
    assert change["text"].startswith("PCR 4 is not as the policy accepts: no event log")


async def test_a_log_of_another_boot_is_kept_and_explains_nothing(service: Service) -> None:
    """It is said to be of another boot, and what it differs in is not presented as what changed."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await assign(service, needs_log())
    await admitted(service, node)
    await service.attest(node, event_log=log)
    boots(node, OTHER_KERNEL)
    await service.attest(node, event_log=log)
    found = await report(service, node)
    assert found["event_log_sha256"] == hashlib.sha256(base64.b64decode(log)).hexdigest()
    assert found["event_log_kept"] is True
    texts = {c["pcr"]: c["text"] for c in found["changes"]}
    assert texts[4] == (
        "PCR 4 changed: the event log leads to another value, so it is the log of another boot, or was changed;"
        " nothing is compared with it"
    )
    assert all(c["entries"] == [] for c in found["changes"])
    # It is no log of this machine's boot: the next challenge asks for one.
    assert (await service.challenge(node))["event_log"] == "required"


async def test_a_change_that_nothing_explains_says_so(service: Service) -> None:
    """No log, a log that stops short of the value, and a log that is not kept any more are three sentences."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await admitted(service, node)
    await service.attest(node, event_log=log)
    node.pcrs[11] = hashlib.sha256(b"something later").digest()
    await service.attest(node)
    found = await report(service, node)
    assert [(c["pcr"], c["entries"]) for c in found["changes"]] == [(11, [])]
    assert "does not lead to its value" in found["changes"][0]["text"]
    assert 11 not in found["boot"]["pcrs"]
    boots(node, OTHER_KERNEL)
    await service.attest(node)
    found = await report(service, node)
    assert (found["boot"], found["event_log_kept"], found["event_log_sha256"]) == (None, False, None)
    assert all("no event log" in c["text"] for c in found["changes"])
    assert {4, 11} <= {c["pcr"] for c in found["changes"]}


@pytest.mark.threat("T75")
async def test_a_log_that_proves_nothing_any_more_is_not_shown(service: Service) -> None:
    """What is kept is compared again: a row that was put there by somebody else tells nothing."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await admitted(service, node)
    await service.attest(node, event_log=log)
    stored = await newest(service, node)
    lies = [
        boot_log(BootOptions(seed=3, firmware="9", secure_boot=False)).serialise(),
        b"no log",
        boot_log(BootOptions(banks=("sha384",))).serialise(),
    ]
    for lie in lies:
        other = pack("tcg", lie)
        values = {pcr: bytes([1] * 32) for pcr in stored.evidence.pcr_values}
        evidence = dataclasses.replace(
            stored.evidence,
            event_log_sha256=other.sha256,
            pcr_values=values if lie is lies[0] else NORMAL.pcrs(),
        )

        def plant(tx: Any, other: Any = other, evidence: StoredEvidence = evidence) -> None:
            tx.logs.put(other, service.clock.now())
            tx.results.add(node.machine_id, stored.result, evidence)

        await service.store.write(plant)
        found = await report(service, node)
        assert (found["boot"], found["event_log_kept"]) == (None, True)


async def test_repairs_and_findings_are_told(service: Service) -> None:
    """Firmware that leaves events out of its log is no fault of the machine, and no secret."""
    node = SoftwareNode()
    log = boots(node, boot_log(BootOptions(quirks=frozenset({LogQuirk.NO_EXIT_BOOT_SERVICES}))))
    await admitted(service, node)
    await service.attest(node, event_log=log)
    findings = (await report(service, node))["boot"]["findings"]
    assert any("Exit Boot Services" in text for text in findings)


async def test_logs_come_back_as_they_were_sent(service: Service) -> None:
    """Octets that no browser interprets; 404 where none is kept."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await admitted(service, node)
    await service.attest(node, event_log=log)
    number = (await newest(service, node)).result_id
    path = f"/machines/{node.machine_id}/results/{number}"
    answer = await service.operator("GET", f"{path}/event-log")
    assert (answer.status_code, answer.content) == (200, b64decode(log, "log"))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["x-content-type-options"] == "nosniff"
    answer = await service.operator("GET", f"{path}/ima-log")
    assert (answer.status_code, code(answer)) == (404, "result-unknown")


@pytest.mark.threat("T75")
async def test_a_result_is_found_under_its_own_machine_only(service: Service) -> None:
    """Another machine's number, no machine, no result: unknown."""
    node, other = SoftwareNode(), SoftwareNode()
    for each in (node, other):
        await service.admitted(each)
    number = (await newest(service, node)).result_id
    nobody = "00000000-0000-4000-8000-000000000000"
    for machine_id, n, expected in (
        (other.machine_id, number, "result-unknown"),
        (node.machine_id, 999, "result-unknown"),
        (nobody, number, "machine-unknown"),
    ):
        for rest in ("", "/event-log", "/ima-log", "/token"):
            answer = await service.operator("GET", f"/machines/{machine_id}/results/{n}{rest}")
            assert (answer.status_code, code(answer)) == (404, expected)
    answer = await service.operator("GET", f"/machines/{node.machine_id}/results/0")
    assert answer.status_code == 422


@pytest.mark.threat("T76")
@pytest.mark.parametrize(
    ("query", "profile"),
    [("", Profile.EAR_04), ("?profile=veraison-2023&checks=true", Profile.VERAISON_2023)],
)
async def test_a_result_is_signed_on_request(service: Service, query: str, profile: Profile) -> None:
    """An EAR that our own keys verify, ends with the trust in the result, and names checks only if told to."""
    node = SoftwareNode()
    await service.admitted(node)
    stored = await newest(service, node)
    answer = await service.operator(
        "GET", f"/machines/{node.machine_id}/results/{stored.result_id}/token{query}"
    )
    assert answer.headers["content-type"] == "application/eat+jwt"
    keys = (await service.get("/api/v1/service-keys")).json()
    claims = verify_jwt(answer.text, keys, typ=TYP)
    assert claims["eat_profile"] == profile.value
    assert claims["sub"] == node.machine_id
    assert claims["exp"] - claims["iat"] == 180, "of identity-only"
    assert ("checks" in answer.text or "quote" in str(claims)) == bool(query)
    assert (
        await service.operator("GET", f"/machines/{node.machine_id}/results/1/token?profile=x")
    ).status_code == 422


async def test_a_result_without_its_challenge_has_no_token(service: Service) -> None:
    """What older versions stored names no challenge, so nobody could tell for whom it was fresh."""
    node = SoftwareNode()
    await service.admitted(node)
    stored = await newest(service, node)
    await service.store.write(lambda tx: tx.results.add(node.machine_id, stored.result))
    number = (await newest(service, node)).result_id
    answer = await service.operator("GET", f"/machines/{node.machine_id}/results/{number}/token")
    assert (answer.status_code, code(answer)) == (404, "result-unknown")
    # The report of such a result has little to say, but it is there.
    found = await report(service, node)
    assert (found["pcr_values"], found["boot"], found["changes"]) == ({}, None, [])


async def test_a_token_of_a_forgotten_policy_ends_soon(service: Service) -> None:
    """Where the policy cannot be found, the shortest trust applies."""
    node = SoftwareNode()
    await service.admitted(node)
    stored = await newest(service, node)
    result = dataclasses.replace(stored.result, policy="gone@7")
    await service.store.write(lambda tx: tx.results.add(node.machine_id, result, stored.evidence))
    number = (await newest(service, node)).result_id
    answer = await service.operator("GET", f"/machines/{node.machine_id}/results/{number}/token")
    keys = (await service.get("/api/v1/service-keys")).json()
    claims = verify_jwt(answer.text, keys, typ=TYP)
    assert claims["exp"] - claims["iat"] == 180


async def test_the_bundle_that_vouched_stands_beside_the_result(start: Starter, tmp_path: Path) -> None:
    """Another edition of the bundle is another judge: a result says which one it was."""
    service = await start(tpm_ca_bundle_dir=write_bundle(tmp_path / "bundle"))
    node = SoftwareNode()
    await service.introduce(node, **vouched(node.ek))
    await service.act(node, "approve", {"role": "controlplane"})
    await service.attest(node)
    bundle = (await service.operator("GET", "/trust/bundle")).json()
    found = await report(service, node)
    assert (found["bundle_sha256"], found["assurance"]) == (bundle["sha256"], "ek-chain")


async def test_the_machine_says_which_log_is_known(service: Service) -> None:
    """MachineDetail names the kept log, the firmware that the EK vouched for, and the missed heartbeat."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await admitted(service, node)
    detail = await service.detail(node)
    assert (detail["event_log_sha256"], detail["firmware_attested"], detail["heartbeat_missed_at"]) == (
        None,
    ) * 3
    await service.attest(node, event_log=log)
    detail = await service.detail(node)
    assert detail["event_log_sha256"] == hashlib.sha256(b64decode(log, "log")).hexdigest()
    at = service.clock.now()

    def change(tx: Any) -> None:
        machine = tx.machines.by_id(node.machine_id)
        tx.machines.update(
            machine, firmware_attested=1 << 48 | 2, firmware_blocked="SA-00086", heartbeat_missed_at=at
        )

    await service.store.write(change)
    detail = await service.detail(node)
    assert (detail["firmware_attested"], detail["firmware_blocked"]) == ("1.0.0.2", "SA-00086")
    assert detail["heartbeat_missed_at"] is not None


def test_every_kind_of_outcome_is_shown() -> None:
    """Passed, failed, flagged, reported and undecided checks keep what they have to say."""
    result = AttestationResult(
        verdict=Verdict.FAILED,
        at=HeldClock().now(),
        policy=None,
        outcomes=(
            Passed("a", "why"),
            Passed("b"),
            Failed("c", "x", "y"),
            Flagged("d", "n"),
            Reported("e", "x", "y"),
            Undecided("f", "r"),
        ),
        boot_state_appraised=(),
        pcr_digest=None,
    )
    stored = StoredResult(result_id=1, machine_id="m", result=result, evidence=StoredEvidence())
    shown = [(c.check, c.outcome, c.expected, c.found, c.note) for c in result_detail(stored).checks]
    assert shown == [
        ("a", "passed", None, None, "why"),
        ("b", "passed", None, None, None),
        ("c", "failed", "x", "y", None),
        ("d", "flagged", None, None, "n"),
        ("e", "reported", "x", "y", None),
        ("f", "undecided", None, None, "r"),
    ]
