"""What a policy would do, from stored evidence; what a machine is measured against (TPM.md §4.6)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from attestation.machines import Role, Status
from attestation.reference import IDENTITY_ONLY, parse_policy
from attestation.results import Verdict
from attestation.store import StoredEvidence, Tx
from tests.contract.store_samples import a_machine, a_result
from tests.unit.service.conftest import Service
from tests.unit.service.test_policies import FLEET, WORKERS, a_policy
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

GOOD = {7: bytes([1]) * 32, 4: bytes([4]) * 32}
"""What `a_policy(1)` expects of PCR 7."""
OTHER = {7: bytes([2]) * 32, 4: bytes([4]) * 32}


async def proven(
    service: Service,
    number: int,
    values: dict[int, bytes] | None,
    *,
    verdict: Verdict = Verdict.VERIFIED,
    evidence: dict[str, Any] | None = None,
    **machine: Any,
) -> str:
    """Store a machine with the evidence of one result, or with none, and return its id."""
    known: dict[str, Any] = {
        "status": Status.ATTESTED,
        "role": Role.WORKER_APP,
        "hostname": f"w-{number}",
        "cluster_id": "default",
    }
    stored = a_machine(number, **(known | machine))

    def work(tx: Tx) -> None:
        tx.machines.add(stored)
        if values is not None:
            kept = StoredEvidence(**({"pcr_bank": "sha256", "pcr_values": values} | (evidence or {})))
            tx.results.add(stored.machine_id, dataclasses.replace(a_result(1), verdict=verdict), kept)

    await service.store.write(work)
    return stored.machine_id


async def tried(service: Service, **request: Any) -> dict[str, Any]:
    """Return the one page of a trial."""
    answer = await service.operator("POST", "/policies/test", request)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_trial_counts_the_fleet(service: Service) -> None:
    """Who would pass, fail, newly fail, recover, and of whom nothing can be said; per check as well."""
    await proven(service, 1, GOOD)
    newly = await proven(service, 2, OTHER)
    await proven(service, 3, OTHER, verdict=Verdict.FAILED)
    await proven(service, 4, GOOD, verdict=Verdict.FAILED)
    await proven(service, 5, {4: bytes(32)})
    await proven(service, 6, None)
    await proven(service, 7, GOOD, status=Status.REVOKED)
    found = await tried(service, document=a_policy(1))
    assert {name: found[name] for name in ("policy", "machines", "judged", "next_cursor")} == {
        "policy": "cp@1",
        "machines": 6,
        "judged": 6,
        "next_cursor": None,
    }
    assert found["sha256"] == parse_policy(a_policy(1)).sha256
    sums = ("passed", "failed", "undecided", "without_evidence", "reported", "recovering")
    assert {name: found[name] for name in sums} == {
        "passed": 2,
        "failed": 2,
        "undecided": 1,
        "without_evidence": 1,
        "reported": 0,
        "recovering": 1,
    }
    assert [(m["hostname"], m["failed"], m["before"], m["newly"]) for m in found["failing"]] == [
        ("w-2", "pcr7", "Verified", True),
        ("w-3", "pcr7", "Failed", False),
    ]
    assert found["failing"][0]["machine_id"] == newly
    assert set(found["checks"]) == {"assurance", "pcr7"}
    told = {"passed": 2, "failed": 2, "flagged": 0, "reported": 0, "undecided": 1}
    assert found["checks"]["pcr7"] == told
    # Nothing is changed and nothing is stored.
    listed = (await service.operator("GET", "/policies")).json()
    assert (len(listed["policies"]), listed["assignments"]) == (1, [])
    assert not [e for e in await service.audit() if e["action"] != "break_glass"]


async def test_a_policy_that_only_reports_fails_nobody(service: Service) -> None:
    """Under `report` what does not hold is counted beside those that pass."""
    await proven(service, 1, GOOD)
    await proven(service, 2, OTHER)
    found = await tried(service, document=a_policy(1, mode="report"))
    assert (found["passed"], found["failed"], found["reported"]) == (2, 0, 1)
    assert found["checks"]["pcr7"]["reported"] == 1


async def test_a_trial_is_of_one_place(service: Service) -> None:
    """Only its machines are judged; narrower policies win there as they would afterwards."""
    await service.operator("POST", "/policies", a_policy(1))
    await service.operator("POST", "/policies", a_policy(2, name="own"))
    one = await proven(service, 1, OTHER)
    two = await proven(service, 2, OTHER)
    await proven(service, 3, OTHER, role=Role.LINUX, cluster_id="c1")
    own = f"/policies/assignments/machine/{two}"
    assert (await service.operator("PUT", own, {"policy": "own@2"})).status_code == 200
    for place, judged, failing in (
        ({}, 3, ["w-1", "w-3"]),
        ({"scope": "role", "subject": "worker-app"}, 2, ["w-1"]),
        ({"scope": "role", "subject": "linux"}, 1, ["w-3"]),
        ({"scope": "cluster", "subject": "c1"}, 1, ["w-3"]),
        ({"scope": "machine", "subject": one}, 1, ["w-1"]),
        ({"scope": "machine", "subject": two}, 1, ["w-2"]),
    ):
        found = await tried(service, policy="cp@1", **place)
        assert found["judged"] == found["machines"] == judged, place
        assert [m["hostname"] for m in found["failing"]] == failing, place
    shipped = await tried(service, policy="identity-only@1")
    assert [m["hostname"] for m in shipped["failing"]] == []


async def test_a_trial_goes_on_page_by_page(service: Service) -> None:
    """The sum over all pages is the whole fleet, each machine once."""
    for number in range(1, 8):
        await proven(service, number, GOOD if number % 2 else OTHER)
    request: dict[str, Any] = {"document": a_policy(1), "limit": 3}
    pages = []
    while True:
        found = await tried(service, **request)
        pages.append(found)
        if found["next_cursor"] is None:
            break
        request["cursor"] = found["next_cursor"]
    assert [page["judged"] for page in pages] == [3, 3, 1]
    assert {page["machines"] for page in pages} == {7}
    assert [m["hostname"] for page in pages for m in page["failing"]] == ["w-2", "w-4", "w-6"]


@pytest.mark.threat("T72")
async def test_evidence_of_another_bank_decides_nothing(service: Service) -> None:
    """What nobody asked for then is no failure."""
    await proven(service, 1, GOOD)
    document = a_policy(1, bank="sha384", pcrs={"7": {"any_of": ["ab" * 48]}})
    found = await tried(service, document=document)
    assert (found["failed"], found["undecided"]) == (0, 1)
    assert found["checks"]["pcrs"]["undecided"] == 1


async def test_ignored_pcrs_are_flagged(service: Service) -> None:
    """A rule that compares nothing needs no value."""
    await proven(service, 1, {7: bytes([1]) * 32})
    pcrs = {"7": {"any_of": ["01" * 32]}, "1": {"ignore": "serial numbers"}}
    found = await tried(service, document=a_policy(1, pcrs=pcrs))
    assert found["passed"] == 1
    assert found["checks"]["pcr1"]["flagged"] == 1


async def test_what_cannot_be_tried(service: Service) -> None:
    """Nothing, both, what breaks the format, what nobody stored, a place that is none."""
    await service.operator("POST", "/policies", a_policy(1))
    for request, status, expected in (
        ({}, 422, "request-invalid"),
        ({"policy": "cp@1", "document": a_policy(1)}, 422, "request-invalid"),
        ({"document": {"format": "x"}}, 422, "policy-invalid"),
        ({"policy": "cp@2"}, 404, "policy-unknown"),
        ({"policy": "cp@1", "scope": "role", "subject": "king"}, 422, "request-invalid"),
        ({"policy": "cp@1", "scope": "machine", "subject": "nobody"}, 404, "machine-unknown"),
        ({"policy": "cp@1", "cursor": "eA"}, 422, "request-invalid"),
        ({"policy": "cp@1", "limit": 1001}, 422, "schema-violation"),
    ):
        answer = await service.operator("POST", "/policies/test", request)
        assert (answer.status_code, code(answer)) == (status, expected), request


@pytest.mark.threat("T72")
async def test_a_contradiction_is_found_before_it_applies(service: Service) -> None:
    """Two banks that would meet in a machine: neither tried nor activated."""
    await proven(service, 1, GOOD)
    wide = a_policy(1, name="wide", bank="sha384", pcrs={"7": {"any_of": ["ab" * 48]}})
    for document in (a_policy(1), wide):
        assert (await service.operator("POST", "/policies", document)).status_code == 201
    assert (await service.operator("PUT", WORKERS, {"policy": "cp@1"})).status_code == 200
    for method, path, body in (
        ("PUT", FLEET, {"policy": "wide@1"}),
        ("POST", "/policies/test", {"policy": "wide@1"}),
    ):
        answer = await service.operator(method, path, body)
        assert (answer.status_code, code(answer)) == (422, "policy-invalid"), path
    # In its place it contradicts nothing: there it would be instead of the other one.
    assert (await service.operator("PUT", WORKERS, {"policy": "wide@1"})).status_code == 200


async def test_what_a_machine_is_measured_against(service: Service) -> None:
    """Each rule with where it comes from; without any assignment the shipped policy."""
    machine_id = await proven(service, 1, GOOD)
    path = f"/machines/{machine_id}/policy"
    shipped = (await service.operator("GET", path)).json()
    assert (shipped["policy"], shipped["sha256"]) == (IDENTITY_ONLY.ref, IDENTITY_ONLY.sha256)
    assert shipped["assigned"] == []
    await service.operator("POST", "/policies", a_policy(1))
    own = a_policy(1, name="own", mode="report", pcrs={"4": {"any_of": ["04" * 32]}})
    await service.operator("POST", "/policies", own)
    await service.operator("PUT", FLEET, {"policy": "cp@1"})
    await service.operator("PUT", f"/policies/assignments/machine/{machine_id}", {"policy": "own@1"})
    found = (await service.operator("GET", path)).json()
    assert found["policy"] == "cp@1+own@1"
    assert found["assigned"] == [
        {"scope": "fleet", "subject": "*", "policy": "cp@1", "agreed": False},
        {"scope": "machine", "subject": machine_id, "policy": "own@1", "agreed": False},
    ]
    assert found["document"]["pcrs"] == {"4": {"any_of": ["04" * 32]}, "7": {"any_of": ["01" * 32]}}
    assert found["document"]["sources"] == {
        "pcrs.4": {"policy": "own@1", "mode": "report"},
        "pcrs.7": {"policy": "cp@1", "mode": "enforce"},
    }
    unknown = await service.operator("GET", "/machines/00000000-0000-4000-8000-000000000000/policy")
    assert (unknown.status_code, code(unknown)) == (404, "machine-unknown")


async def test_a_machine_without_a_role_has_its_policy(service: Service) -> None:
    """Nothing of a role applies to it."""
    machine_id = await proven(service, 1, None, role=None)
    await service.operator("POST", "/policies", a_policy(1))
    await service.operator("PUT", WORKERS, {"policy": "cp@1"})
    found = (await service.operator("GET", f"/machines/{machine_id}/policy")).json()
    assert (found["policy"], found["assigned"]) == (IDENTITY_ONLY.ref, [])
