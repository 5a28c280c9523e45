"""What evidence of a run is found to be: by the machine that the node is, and by the policy that was asked."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from attestation.appraisal import KINDS
from attestation.appraisal.appraise import EVIDENCE, POLICY
from attestation.appraisal.assurance import ASSURANCE, GUEST
from attestation.appraisal.ruled import RULE
from attestation.errors import MachineChanged
from attestation.evidence import dcap
from attestation.evidence.sev_snp.report import REPORT_BYTES
from attestation.machines import Role
from attestation.report_data import report_data
from attestation.runs import Backend
from attestation.store import Tx
from attestation.wire import b64decode, b64encode
from attestation_service.runs import backends, codes, evidence
from attestation_service.runs.judging import Judged
from attestation_service.settings import Settings
from attestation_testing.event_logs import BootOptions, boot_log
from attestation_testing.tee import amd, intel
from tests.fixtures.collateral import AT
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.run_requests import (
    NODE_UID,
    UID,
    admitted,
    challenged,
    judged,
    opened,
    opening,
    pinning,
    posted,
    quoted,
    result,
    serving,
)
from tests.unit.service.test_protocol_without_a_tpm import PLATFORM, PROCESSOR, believing
from tests.unit.service.test_runs import checks, code_of

pytestmark = pytest.mark.anyio

MEASURED = boot_log(BootOptions())


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with one cluster."""
    return await serving(start)


async def answered(service: Service, said: dict[str, Any], body: Any, status: int = 202) -> dict[str, Any]:
    """Open a run and answer it with what *body* makes of its challenge; return the result."""
    await opened(service, said)
    answer = await posted(service, body(await challenged(service)))
    assert answer.status_code == status, answer.text
    return await result(service)


# ---------------------------------------------------------------- a TPM


async def test_another_value_fails(service: Service) -> None:
    """With what was expected and found; the reference is not called matched."""
    node = await admitted(service)
    policy = pinning(node)
    node.pcrs[7] = bytes(32)
    found = await judged(service, node, opening(service, policy))
    assert (found["verdict"], found["rejected"]) == ("failed", None)
    assert checks(found, "fail") == {"pcr7": "reference-mismatch"}
    (check,) = (each for each in found["checks"] if each["id"] == "pcr7")
    assert (check["expected"], check["actual"]) == (policy["tpm"]["pcrs"]["7"], "00" * 32)
    assert found["attestation_result"] is not None


@pytest.mark.threat("T264")
async def test_a_foreign_key_is_another_machine(service: Service) -> None:
    """C5: a genuine quote of another machine, over this very challenge, and none of its values count."""
    node, other = await admitted(service), await admitted(service, "w-2")
    for which, policy in (("enforced", pinning(other)), ("none", None)):
        said = opening(service, policy, name=which)
        await opened(service, said, which)
        body = quoted(other, await challenged(service, which))
        assert (await posted(service, body, which)).status_code == 202
        found = await result(service, which)
        assert (found["verdict"], found["rejected"]) == ("failed", "signature-invalid")
        assert checks(found, "fail") == {"tpm-quote": "machine-not-allowed"}
        assert (found["machine_id"], found["measurements"]) == (node.machine_id, [])
        assert found["attestation_result"] is None
        assert found["quote"] == body["evidence"][0]["value"]["pcr_quote"]


@pytest.mark.parametrize("policy", ["none", "report", "enforce"])
async def test_a_signature_that_does_not_hold_fails_whatever_the_policy(
    service: Service, policy: str
) -> None:
    """C1: one flipped bit; what it says was measured is not told."""
    node = await admitted(service)
    asked = None if policy == "none" else pinning(node, mode=policy)

    def flipped(challenge: dict[str, Any]) -> dict[str, Any]:
        body = quoted(node, challenge)
        signature = bytearray(b64decode(body["evidence"][0]["value"]["pcr_signature"], "s"))
        signature[-1] ^= 1
        body["evidence"][0]["value"]["pcr_signature"] = b64encode(bytes(signature))
        return body

    found = await answered(service, opening(service, asked), flipped)
    assert (found["verdict"], found["rejected"]) == ("failed", "signature-invalid")
    assert checks(found, "fail") == {"tpm-quote": "signature-invalid"}
    assert found["measurements"] == []


async def test_people_and_programs_are_told_what_decided(service: Service) -> None:
    """Who said what was expected, check by check; what kept it from verified, in words; where the evidence is kept."""
    node = await admitted(service)
    policy = pinning(node)
    good = await judged(service, node, opening(service, policy, name="good"), "good")
    assert good["notes"] is None
    assert {each["source"] for each in good["checks"]} >= {"machine", "policy"}
    node.pcrs[7] = bytes(32)
    found = await judged(service, node, opening(service, policy))
    sources = {each["id"]: each["source"] for each in found["checks"]}
    assert None not in sources.values()
    assert (sources["tpm-quote"], sources["pcr7"], sources["machine"]) == ("machine", "policy", "machine")
    assert found["notes"] == f"pcr7: expected {policy['tpm']['pcrs']['7']}, found {'00' * 32}"
    (blob,) = found["evidence"]
    # As the route of operators is called; what it gives is the file that has these bytes (test_sealing).
    assert (
        blob["url"] == f"{service.resources.settings.service_url}/api/v1/runs/{UID}/bundle?cluster_id=default"
    )


def test_a_quote_of_any_backend_stands_in_a_result() -> None:
    """Each is short enough for the kind in Kubernetes, which takes 64 KiB."""
    longest = max(backends.MAX_MEMBER_BYTES, dcap.MAX_QUOTE_BYTES, REPORT_BYTES)
    assert longest <= 64 << 10


def test_each_check_of_a_run_says_what_it_compares_with() -> None:
    """Those of each kind of evidence that a run may ask for, and those that every run has."""
    kinds = [KINDS[backend.kind] for backend in backends.BACKENDS.values()]
    names = {check.name for kind in kinds for check in kind.checks}
    names |= {
        each.name for each in (EVIDENCE, POLICY, ASSURANCE, GUEST, RULE, codes.MACHINE, codes.REFERENCE)
    }
    assert names - codes.SOURCES.keys() == set()
    assert backends.BACKENDS.keys() == set(get_args(Backend))


async def test_values_that_were_not_quoted_fail(service: Service) -> None:
    """The good ones beside a quote of others."""
    node = await admitted(service)
    good = dict(node.pcrs)

    def dressed(challenge: dict[str, Any]) -> dict[str, Any]:
        node.pcrs[7] = bytes(32)
        values = {"sha256": {str(i): good[i].hex() for i in challenge["pcrs"]}}
        return quoted(node, challenge, pcr_values=b64encode(json.dumps(values).encode()))

    found = await answered(service, opening(service, pinning(node)), dressed)
    assert (found["verdict"], found["rejected"]) == ("failed", "pcr-digest-mismatch")
    assert checks(found, "fail") == {"tpm-quote": "replay-mismatch"}


async def test_other_pcrs_than_asked_for_fail(service: Service) -> None:
    """A quote that leaves out the one that differs."""
    node = await admitted(service)

    def less(challenge: dict[str, Any]) -> dict[str, Any]:
        return quoted(node, {**challenge, "pcrs": challenge["pcrs"][:-1]})

    found = await answered(service, opening(service, pinning(node)), less)
    assert (found["verdict"], found["rejected"]) == ("failed", "selection-mismatch")
    assert checks(found, "fail") == {"tpm-quote": "report-invalid"}


async def test_a_policy_names_what_is_quoted(service: Service) -> None:
    """PCR 0 to 7, and those that it reads."""
    node = await admitted(service)
    await opened(service, opening(service, pinning(node, 4, 14)))
    assert (await challenged(service))["pcrs"] == [*range(8), 14]


async def test_nothing_is_verified_without_a_policy(service: Service) -> None:
    """Measurements are recorded; why it is open is told."""
    node = await admitted(service)
    found = await judged(service, node, opening(service))
    assert (found["verdict"], found["mode"], found["policy_source"]) == ("indeterminate", "report", "none")
    assert checks(found, "unavailable").keys() == {"policy"}
    assert len(found["measurements"]) == 8
    assert found["attestation_result"] is not None


@pytest.mark.threat("T264")
@pytest.mark.parametrize("differs", [False, True])
async def test_a_policy_that_reports_decides_nothing(service: Service, differs: bool) -> None:
    """Whether its values are there or not; what would have failed is told."""
    node = await admitted(service)
    said = opening(service, pinning(node, mode="report"))
    if differs:
        node.pcrs[7] = bytes(32)
    found = await judged(service, node, said)
    assert (found["verdict"], found["mode"]) == ("indeterminate", "report")
    assert not checks(found, "fail")
    assert checks(found, "unavailable").keys() == {"policy"}
    assert ("pcr7" in checks(found, "skipped")) == differs


@pytest.mark.threat("T264")
async def test_a_reference_that_is_not_compared_verifies_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other check may hold: without a value that matched it stays open."""
    node = await admitted(service)
    appraise = service.resources.appraise

    def without(*args: Any) -> Any:
        found = appraise(*args)
        kept = tuple(each for each in found.result.outcomes if not each.check.startswith("pcr"))
        return found._replace(result=replace(found.result, outcomes=kept, boot_state_appraised=()))

    monkeypatch.setattr(service.app.state, "resources", replace(service.resources, appraise=without))
    found = await judged(service, node, opening(service, pinning(node)))
    assert found["verdict"] == "indeterminate"
    assert checks(found, "unavailable").keys() == {"reference"}


async def test_the_event_log_is_judged(service: Service) -> None:
    """Asked for where the policy wants it, and compared with the quote; one that tells of another boot fails."""
    node = await admitted(service)
    node.pcrs = {pcr: value for pcr, value in MEASURED.pcrs().items() if pcr < 16}
    policy = pinning(node, 4, 7)
    policy["tpm"]["requireEventLog"] = True
    for name, log, verdict in (
        ("good", MEASURED, "verified"),
        ("other", boot_log(BootOptions(kernel="6.12.0-1")), "failed"),
        ("none", None, "failed"),
    ):
        await opened(service, opening(service, policy, name=name), name)
        challenge = await challenged(service, name)
        assert challenge["event_log"] is True
        sent = {"event_log": b64encode(log.serialise()) if log else None}
        assert (await posted(service, quoted(node, challenge, **sent), name)).status_code == 202
        found = await result(service, name)
        assert found["verdict"] == verdict, name
        assert checks(found, "fail") == ({} if log is MEASURED else {"event-log": "replay-mismatch"})


@pytest.mark.threat("T265")
async def test_no_log_is_parsed_of_a_stranger(service: Service) -> None:
    """Who holds no key of the machine has nobody read a megabyte."""
    await admitted(service)
    parsed = service.resources.replays.parsed
    body = lambda challenge: quoted(SoftwareNode(), challenge, event_log=b64encode(MEASURED.serialise()))  # noqa: E731
    found = await answered(service, opening(service), body)
    assert found["verdict"] == "failed"
    assert service.resources.replays.parsed == parsed


async def test_a_log_that_cannot_be_parsed_is_malformed(service: Service) -> None:
    """Of the machine itself, too."""
    node = await admitted(service)
    body = lambda challenge: quoted(node, challenge, event_log=b64encode(b"no log"))  # noqa: E731
    found = await answered(service, opening(service), body, 400)
    assert (found["verdict"], found["rejected"]) == ("failed", "malformed-evidence")


@pytest.mark.threat("T264")
async def test_an_attestation_in_between_makes_no_run_stale(service: Service) -> None:
    """Its clock is newer than that of the quote; one that was recorded before the challenge is compared."""
    node = await admitted(service)
    await opened(service, opening(service, pinning(node)))
    body = quoted(node, await challenged(service))
    service.clock.advance(1)
    await service.attest(node)
    assert (await posted(service, body)).status_code == 202
    assert (await result(service))["verdict"] == "verified"
    node.clock_ms = 0
    found = await judged(service, node, opening(service, pinning(node), name="later"), "later")
    assert found["verdict"] == "failed"
    assert "clock-regressed" in checks(found, "fail")


# ---------------------------------------------------------------- the machine that the node is


async def test_a_node_that_no_machine_is(service: Service) -> None:
    """Could not be decided, whatever it sends; nothing of it is called measured."""
    stranger = SoftwareNode()
    found = await judged(service, stranger, opening(service, pinning(stranger)))
    assert (found["verdict"], found["rejected"], found["machine_id"]) == ("indeterminate", None, None)
    assert checks(found, "unavailable").keys() == {"machine"}
    assert (found["measurements"], found["attestation_result"]) == ([], None)


async def test_a_machine_of_another_cluster_is_another(service: Service) -> None:
    """Though it is called so."""
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1", cluster_id="edge")
    found = await judged(service, node, opening(service, pinning(node)))
    assert (found["verdict"], found["machine_id"]) == ("indeterminate", None)


@pytest.mark.threat("T264")
@pytest.mark.parametrize("act", ["lock", "revoke", "reject"])
async def test_a_machine_that_was_taken_back_fails(service: Service, act: str) -> None:
    """With good evidence of its own, and though nobody is called so any more; another of that name may follow."""
    node = SoftwareNode()
    if act == "reject":
        await service.introduce(node)
        await service.act(node, "approve", {"role": "worker-app", "hostname": "w-1"})
        await service.act(node, "revoke", {"reason": "x"})
    else:
        await service.admitted(node, hostname="w-1")
        await service.act(node, act, {"reason": "x"})
    found = await judged(service, node, opening(service, pinning(node)))
    assert (found["verdict"], found["rejected"], found["machine_id"]) == ("failed", None, node.machine_id)
    assert checks(found, "fail") == {"machine": "machine-not-allowed"}
    if act == "revoke":
        successor = await admitted(service)
        found = await judged(service, successor, opening(service, pinning(successor), name="2"), "2")
        assert found["verdict"] == "verified"


async def test_a_machine_that_is_only_registered_may_be_verified(service: Service) -> None:
    """Operators approved it; that it never attested says nothing of this quote."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app", "hostname": "w-1"})
    assert (await judged(service, node, opening(service, pinning(node))))["verdict"] == "verified"


async def test_how_well_a_machine_is_vouched_for(service: Service) -> None:
    """What its role demands fails a run that enforces, and is told by one that only records."""
    node = await admitted(service)
    machine = await service.store.read(lambda tx: tx.machines.require(node.machine_id))
    await service.store.write(lambda tx: tx.machines.update(machine, role=Role.CONTROLPLANE))
    for name, policy, verdict in (("1", pinning(node), "failed"), ("2", None, "indeterminate")):
        found = await judged(service, node, opening(service, policy, name=name), name)
        assert found["verdict"] == verdict, found["checks"]
        outcome = "fail" if policy else "skipped"
        assert checks(found, outcome).get("assurance", "") == ("machine-not-allowed" if policy else None)


async def test_a_run_changes_nothing_of_the_machine(service: Service) -> None:
    """Neither its trust nor its history, good or bad."""
    node = await admitted(service)
    before = await service.store.read(lambda tx: tx.machines.by_id(node.machine_id))
    await judged(service, node, opening(service, pinning(node)))
    await judged(service, node, opening(service, pinning(SoftwareNode(), 1, 2), name="2"), "2")
    assert await service.store.read(lambda tx: tx.machines.by_id(node.machine_id)) == before


async def test_an_act_in_between_is_judged_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock after the judgement and before its unit is what counts, and nothing of the first judgement is kept."""
    node = await admitted(service)
    await opened(service, opening(service, pinning(node)))
    body = quoted(node, await challenged(service))
    demand, acts = evidence._demand_unchanged, iter(["lock"])

    def after_a_lock(tx: Tx, found: Judged) -> None:
        # As if an operator's unit had come first.
        if next(acts, None) is not None:
            machine = tx.machines.require(node.machine_id)
            found = replace(found, machine=replace(machine, version=machine.version - 1))
        demand(tx, found)

    monkeypatch.setattr(evidence, "_demand_unchanged", after_a_lock)
    assert (await posted(service, body)).status_code == 202
    assert (await result(service))["verdict"] == "verified"


@pytest.mark.threat("T264")
async def test_a_machine_that_does_not_stay_as_it_is(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed each time: the node is told so, and its challenge is unspent."""
    node = await admitted(service)
    await opened(service, opening(service, pinning(node)))
    body = quoted(node, await challenged(service))

    def changed(*_: Any) -> None:
        raise MachineChanged("again")

    with monkeypatch.context() as patched:
        patched.setattr(evidence, "_demand_unchanged", changed)
        answer = await posted(service, body)
    assert (answer.status_code, code_of(answer)) == (409, "machine-changed")
    assert (await posted(service, body)).status_code == 202


# ---------------------------------------------------------------- confidential hardware


async def hardened(start: Starter, directory: Path) -> Service:
    """Start a service that believes the vendors of the test kit."""
    return await serving(start, HeldClock(AT), rate_limits=False, **believing(directory))


def chip(backend: str) -> bytes:
    return PROCESSOR.chip_id if backend == "sev-snp" else PLATFORM.ppid


async def approved(service: Service, backend: str, held: bytes | None) -> SoftwareNode:
    """Return a machine with a TPM whose processor an operator approved; None: was only seen."""
    node, kind = await admitted(service), backend.replace("-", "_")

    def write(tx: Tx) -> None:
        machine = tx.machines.require(node.machine_id)
        tx.identities.add(machine, kind, bytes(48))
        if held is not None:
            tx.identities.approve(node.machine_id, kind, chip=held, csp_id=None)

    await service.store.write(write)
    return node


def signed(backend: str, challenge: dict[str, Any], owner: str = NODE_UID, **changed: Any) -> dict[str, Any]:
    """Return the body that answers *challenge* with a report or a quote."""
    data = report_data(backend, b64decode(challenge["nonce"], "nonce"), owner)
    if backend == "sev-snp":
        value = {"report": PROCESSOR.report(data, **changed), "vek": PROCESSOR.vek}
    else:
        value = {"quote": PLATFORM.quote(intel.td_report(data, **changed))}
    media_type = {"sev-snp": "application/vnd.itl.sev-snp", "tdx": "application/vnd.itl.tdx-quote"}[backend]
    item = {"media_type": media_type, "value": {name: b64encode(each) for name, each in value.items()}}
    return {"challenge_id": challenge["id"], "evidence": [item]}


POLICIES: dict[str, dict[str, Any]] = {
    "sev-snp": {
        "sevSnp": {"measurement": [amd.MEASUREMENT.hex()]},
        "collateral": {"requireRevocation": False},
    },
    "tdx": {"tdx": {"mrtd": [intel.MRTD.hex()]}, "collateral": {"requireRevocation": False}},
}
BINDING = {"sev-snp": "snp-report-data", "tdx": "tdx-report-data"}
CHIP = {"sev-snp": "snp-chip", "tdx": "tdx-platform"}
BACKENDS = pytest.mark.parametrize("backend", ["sev-snp", "tdx"])


def asking(
    service: Service, backend: str, policy: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    """Return what a controller says of a run of *backend*."""
    return opening(service, policy or POLICIES[backend], backend=backend, **changes)


@BACKENDS
async def test_good_hardware_is_verified(start: Starter, tmp_path: Path, backend: str) -> None:
    """By a processor that operators approved, bound to the node, with a launch that the policy names."""
    service = await hardened(start, tmp_path)
    node = await approved(service, backend, chip(backend))
    await opened(service, asking(service, backend))
    challenge = await challenged(service)
    assert (challenge["pcr_bank"], challenge["pcrs"], challenge["event_log"]) == (None, [], False)
    body = signed(backend, challenge)
    assert (await posted(service, body)).status_code == 202
    found = await result(service)
    assert (found["verdict"], found["machine_id"]) == ("verified", node.machine_id), found["checks"]
    assert {CHIP[backend], "machine", "reference"} <= checks(found, "pass").keys()
    slots = {each["slot"]: each["digest"] for each in found["measurements"]}
    value = body["evidence"][0]["value"]
    if backend == "sev-snp":
        assert slots["MEASUREMENT"] == amd.MEASUREMENT.hex()
        assert (found["quote"], found["tcb"]) == (value["report"], None)
    else:
        assert slots["MRTD"] == intel.MRTD.hex()
        assert {"RTMR0", "RTMR3"} <= slots.keys()
        assert (found["quote"], found["tcb"]["status"]) == (value["quote"], "UpToDate")
    assert found["signature"] is None
    said = json.loads(b64decode(padded(found["attestation_result"].split(".")[1]), "part"))
    assert set(said["submods"]) == {"cpu0"}


def padded(text: str) -> str:
    return text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)


@BACKENDS
async def test_a_processor_of_another_machine(start: Starter, tmp_path: Path, backend: str) -> None:
    """C5: genuine evidence, bound to this node, of another chip: machine-not-allowed; it is called no forgery."""
    service = await hardened(start, tmp_path)
    await approved(service, backend, bytes([7]) * len(chip(backend)))
    found = await answered(service, asking(service, backend), lambda challenge: signed(backend, challenge))
    assert (found["verdict"], found["rejected"]) == ("failed", None)
    assert checks(found, "fail") == {CHIP[backend]: "machine-not-allowed"}
    assert found["measurements"]


@BACKENDS
async def test_a_processor_that_nobody_approved(start: Starter, tmp_path: Path, backend: str) -> None:
    """Open; a policy that only observes the hardware verifies what was launched."""
    service = await hardened(start, tmp_path)
    await approved(service, backend, None)
    found = await answered(service, asking(service, backend), lambda challenge: signed(backend, challenge))
    assert found["verdict"] == "indeterminate"
    assert CHIP[backend] in checks(found, "unavailable")
    observed = POLICIES[backend] | {"identity": {"mode": "observed"}}
    await opened(service, asking(service, backend, observed, name="2"), "2")
    assert (await posted(service, signed(backend, await challenged(service, "2")), "2")).status_code == 202
    assert (await result(service, "2"))["verdict"] == "verified"


@pytest.mark.threat("T264")
@pytest.mark.parametrize("hides", ["vlek", "masked"])
async def test_hardware_that_hides_itself_identifies_no_node(
    start: Starter, tmp_path: Path, hides: str
) -> None:
    """CONFIDENTIAL §2.4: approved as it is, it is still some processor. The vTPM says which node; or it is observed."""
    processor = replace(PROCESSOR, csp_id="cc-eu.example") if hides == "vlek" else PROCESSOR
    service = await hardened(start, tmp_path)
    node = await admitted(service)

    def write(tx: Tx) -> None:
        tx.identities.add(tx.machines.require(node.machine_id), "sev_snp", bytes(48))
        tx.identities.approve(node.machine_id, "sev_snp", chip=b"", csp_id=processor.csp_id)

    await service.store.write(write)
    registered = copy.deepcopy(POLICIES["sev-snp"])
    registered["sevSnp"]["signingKey"] = "any"
    observed = registered | {"identity": {"mode": "observed"}}

    async def verdict(name: str, policy: dict[str, Any]) -> dict[str, Any]:
        await opened(service, asking(service, "sev-snp", policy, name=name), name)
        challenge = await challenged(service, name)
        data = report_data("sev-snp", b64decode(challenge["nonce"], "nonce"), NODE_UID)
        report = processor.report(data, chip_id=bytes(64))
        value = {"report": b64encode(report), "vek": b64encode(processor.vek)}
        item = {"media_type": "application/vnd.itl.sev-snp", "value": value}
        body = {"challenge_id": challenge["id"], "evidence": [item]}
        assert (await posted(service, body, name)).status_code == 202
        return await result(service, name)

    hidden = await verdict("registered", registered)
    assert (hidden["verdict"], hidden["rejected"]) == ("indeterminate", None), hidden["checks"]
    assert "snp-chip" in checks(hidden, "unavailable")
    # All else holds: it is the identity alone that is open.
    assert (await verdict("observed", observed))["verdict"] == "verified"
    # The vTPM of the same guest names it: a run that asks for that.
    found = await judged(service, node, opening(service, pinning(node), name="vtpm"), "vtpm")
    assert (found["verdict"], found["machine_id"]) == ("verified", node.machine_id)


@pytest.mark.threat("T264")
@BACKENDS
@pytest.mark.parametrize("what", ["another node", "another challenge", "no policy", "report"])
async def test_evidence_for_another_fails_under_any_policy(
    start: Starter, tmp_path: Path, backend: str, what: str
) -> None:
    """C1, C5: report data of another node's UID or of another challenge."""
    service = await hardened(start, tmp_path)
    await approved(service, backend, chip(backend))
    said = asking(service, backend, POLICIES[backend] | ({"mode": "report"} if what == "report" else {}))
    if what == "no policy":
        said = opening(service, backend=backend)
    owner = NODE_UID if what == "another challenge" else "another-node"

    def foreign(challenge: dict[str, Any]) -> dict[str, Any]:
        nonce = b64encode(bytes(32)) if what == "another challenge" else challenge["nonce"]
        return signed(backend, {**challenge, "nonce": nonce}, owner)

    found = await answered(service, said, foreign)
    assert (found["verdict"], found["rejected"]) == ("failed", "hardware-evidence-rejected")
    assert checks(found, "fail") == {BINDING[backend]: "binding-mismatch"}
    assert (found["measurements"], found["attestation_result"]) == ([], None)


@BACKENDS
async def test_another_launch_fails(start: Starter, tmp_path: Path, backend: str) -> None:
    """By a value that the policy does not name; without a policy it is recorded."""
    service = await hardened(start, tmp_path)
    await approved(service, backend, chip(backend))
    member = "measurement" if backend == "sev-snp" else "mrtd"

    def launched(challenge: dict[str, Any]) -> dict[str, Any]:
        return signed(backend, challenge, NODE_UID, **{member: bytes(48)})

    found = await answered(service, asking(service, backend), launched)
    assert found["verdict"] == "failed"
    assert set(checks(found, "fail").values()) == {"reference-mismatch"}
    await opened(service, opening(service, backend=backend, name="2"), "2")
    assert (await posted(service, launched(await challenged(service, "2")), "2")).status_code == 202
    found = await result(service, "2")
    assert (found["verdict"], not checks(found, "fail")) == ("indeterminate", True)
    assert "00" * 48 in {each["digest"] for each in found["measurements"]}


@BACKENDS
async def test_without_collateral_nothing_is_decided(start: Starter, tmp_path: Path, backend: str) -> None:
    """What vouches for hardware is away: open, with the code that says so."""
    directory = tmp_path
    service = await serving(
        start, HeldClock(AT), **(believing(directory) | {"collateral_dir": directory / "nothing"})
    )
    await approved(service, backend, chip(backend))
    policy = POLICIES[backend] | {"collateral": {"requireRevocation": True}}
    found = await answered(
        service, asking(service, backend, policy), lambda challenge: signed(backend, challenge)
    )
    assert found["verdict"] == "indeterminate"
    assert "collateral-unavailable" in checks(found, "unavailable").values()


async def test_hardware_of_the_wrong_kind_is_malformed(start: Starter, tmp_path: Path) -> None:
    """A run wants one item, of its backend."""
    service = await hardened(start, tmp_path)
    node = await approved(service, "tdx", PLATFORM.ppid)

    def another(challenge: dict[str, Any]) -> dict[str, Any]:
        return signed("sev-snp", challenge)

    def two(challenge: dict[str, Any]) -> dict[str, Any]:
        quote = quoted(node, challenge | {"pcr_bank": "sha256", "pcrs": [0]})
        return quote | {"evidence": signed("tdx", challenge)["evidence"] + quote["evidence"]}

    for name, body in (("another", another), ("two", two)):
        await opened(service, asking(service, "tdx", name=name), name)
        assert (await posted(service, body(await challenged(service, name)), name)).status_code == 400
        assert (await result(service, name))["rejected"] == "malformed-evidence"


@BACKENDS
async def test_c15_software_is_no_hardware(start: Starter, tmp_path: Path, backend: str) -> None:
    """A production service knows the vendors' anchors alone, and starts with no other."""
    vendors = believing(tmp_path)
    with pytest.raises(ValidationError):
        Settings(tee_test_anchors=vendors["tee_test_anchors"])
    service = await serving(start, HeldClock(AT), collateral_dir=vendors["collateral_dir"])
    await approved(service, backend, chip(backend))
    found = await answered(service, asking(service, backend), lambda challenge: signed(backend, challenge))
    assert (found["verdict"], found["rejected"]) == ("failed", "hardware-evidence-rejected")
    assert "chain-invalid" in checks(found, "fail").values()
