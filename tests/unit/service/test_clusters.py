"""Clusters over HTTP: declared, listed, changed by several, and a name that nobody declared."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.machines import Role, Status
from tests.contract.store_samples import a_machine
from tests.fixtures.vendor import vouched
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_configurations import activated, imported, kek_file
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_policies import a_policy
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

EK = "ab" * 48


async def ok(service: Service, method: str, path: str, body: Any = None) -> Any:
    """Ask as an operator for what must succeed."""
    answer = await service.operator(method, path, body)
    assert answer.is_success, answer.text
    return answer.json()


async def test_what_is_declared_of_a_cluster_is_shown_beside_what_is_in_it(service: Service) -> None:
    """Its machines by status and role, the policies that they meet, its version of Talos; one without a row too."""
    machines = [
        a_machine(1, cluster_id="prod", status=Status.ATTESTED, role=Role.LINUX),
        a_machine(2, cluster_id="prod"),
        a_machine(3, cluster_id="edge"),
    ]
    for each in machines:
        await service.store.write(lambda tx, one=each: tx.machines.add(one))  # type: ignore[misc]
    made = await ok(service, "POST", "/clusters", {"cluster_id": "prod", "talos_version": "1.13.9"})
    assert (made["talos_version"], made["talos_version_declared"], made["created_by"]) == (
        "v1.13.9",
        True,
        "SYSTEM",
    )
    again = await service.operator("POST", "/clusters", {"cluster_id": "prod"})
    assert (again.status_code, code(again)) == (409, "already-exists")
    await ok(service, "POST", "/policies", a_policy())
    for place in ("fleet/*", "cluster/prod", "role/linux", "role/windows", "cluster/edge"):
        await ok(service, "PUT", f"/policies/assignments/{place}", {"policy": "cp@1"})
    shown = await ok(service, "GET", "/clusters/prod")
    assert {word: count for word, count in shown["by_status"].items() if count} == {
        "attested": 1,
        "pending_approval": 1,
    }
    assert ({role for role, count in shown["by_role"].items() if count}, shown["without_role"]) == (
        {"linux"},
        1,
    )
    places = [(each["scope"], each["subject"]) for each in shown["policies"]]
    assert places == [("fleet", "*"), ("cluster", "prod"), ("role", "linux")]
    listed = (await ok(service, "GET", "/clusters"))["items"]
    assert [(each["cluster_id"], each["declared"], each["machines"]) for each in listed] == [
        ("edge", False, 1),
        ("prod", True, 2),
    ]
    edge = await ok(service, "GET", "/clusters/edge")
    service_version = service.resources.settings.talos_version
    assert (edge["talos_version"], edge["talos_version_declared"]) == (service_version, False)
    unknown = await service.operator("GET", "/clusters/prdo")
    assert (unknown.status_code, code(unknown)) == (404, "cluster-unknown")


async def test_where_its_configurations_come_from_is_shown(start: Starter) -> None:
    """Of each role that its machines have: a file where there is one, and that there is none."""
    service = await start()
    for number, role in enumerate((Role.LINUX, Role.WORKER_APP)):
        machine = a_machine(number + 1, cluster_id="prod", status=Status.ATTESTED, role=role)
        await service.store.write(lambda tx, one=machine: tx.machines.add(one))  # type: ignore[misc]
    folder = service.resources.settings.config_cache_dir / "prod"
    folder.mkdir(parents=True)
    (folder / "worker-app-final.yaml").write_text("machine: {}\n")
    shown = (await ok(service, "GET", "/clusters/prod"))["configurations"]
    assert shown == [
        {"role": "linux", "source": "none", "version": None},
        {"role": "worker-app", "source": "file", "version": None},
    ]


async def test_an_active_version_is_shown_and_a_file_is_not(start: Starter) -> None:
    """Where the database keeps them; also of a role that no machine has."""
    service = await start(config_kek=(kek_file(start.directory),))
    machine = a_machine(1, cluster_id="prod", status=Status.ATTESTED, role=Role.WORKER_INFRA)
    await service.store.write(lambda tx: tx.machines.add(machine))
    folder = service.resources.settings.config_cache_dir / "prod"
    folder.mkdir(parents=True)
    (folder / "worker-infra-final.yaml").write_text("machine: {}\n")
    path = "/configurations/prod/worker-app"
    await activated(service, await imported(service, path=f"{path}/versions"), f"{path}/active")
    assert (await ok(service, "GET", "/clusters/prod"))["configurations"] == [
        {"role": "worker-app", "source": "version", "version": 1},
        {"role": "worker-infra", "source": "none", "version": None},
    ]


async def test_what_is_said_of_a_cluster_changes(service: Service) -> None:
    """What is left out stays; what ends what was said ends it; the audit tells, and of no change nothing."""
    await ok(service, "POST", "/clusters", {"cluster_id": "prod", "description": "Rack 4"})
    changed = await ok(service, "POST", "/clusters/prod", {"talos_version": "v1.14.0"})
    assert (changed["description"], changed["talos_version"]) == ("Rack 4", "v1.14.0")
    await ok(service, "POST", "/clusters/prod", {"talos_version": "v1.14.0", "description": "Rack 4"})
    ended = await ok(service, "POST", "/clusters/prod", {"talos_version": "default", "description": ""})
    assert (ended["description"], ended["talos_version_declared"]) == (None, False)
    entries = [e for e in await service.audit() if e["action"].startswith("cluster")]
    assert [e["action"] for e in entries] == ["cluster_change", "cluster_change", "cluster_create"]
    assert entries[0]["detail"].startswith(
        "cluster prod, Talos default; before: cluster prod, Talos v1.14.0, Rack 4"
    )
    for wrong in ({"talos_version": "1.2"}, {"talos_version": "latest"}, {"cluster_id": "other"}):
        assert (await service.operator("POST", "/clusters/prod", wrong)).status_code == 422
    nobody = await service.operator("POST", "/clusters/prdo", {"description": "x"})
    assert (nobody.status_code, code(nobody)) == (404, "cluster-unknown")


async def test_no_act_names_a_cluster_that_nobody_declared(service: Service) -> None:
    """Approval, change of role, tokens, allow-list and policies; and before one is declared, each of them does."""
    await ok(service, "POST", "/policies", a_policy())
    token = {"role": "linux", "expires_in_seconds": 600}
    entry = {"ek_fingerprint": EK, "role": "linux"}

    def acts(machine_id: str, cluster_id: str) -> list[tuple[str, str, Any]]:
        return [
            ("POST", f"/machines/{machine_id}/approve", {"role": "linux", "cluster_id": cluster_id}),
            (
                "POST",
                f"/machines/{machine_id}/role",
                {"role": "linux", "cluster_id": cluster_id, "reason": "x"},
            ),
            ("POST", "/registration-tokens", token | {"cluster_id": cluster_id}),
            ("POST", "/allow-list", {"entries": [entry | {"cluster_id": cluster_id}]}),
            ("PUT", f"/policies/assignments/cluster/{cluster_id}", {"policy": "cp@1"}),
        ]

    before, after = SoftwareNode(), SoftwareNode()
    await service.introduce(before, **vouched(before.ek))
    await service.introduce(after, **vouched(after.ek))
    for method, path, body in acts(before.machine_id, "first"):
        await ok(service, method, path, body)
    await ok(service, "POST", "/clusters", {"cluster_id": "prod"})
    for method, path, body in acts(after.machine_id, "prdo"):
        if path.endswith("/role"):
            path = f"/machines/{before.machine_id}/role"
        refused = await service.operator(method, path, body)
        assert (refused.status_code, code(refused)) == (404, "cluster-unknown"), path
    for method, path, body in acts(after.machine_id, "first"):
        await ok(service, method, path, body)


async def test_a_version_of_talos_takes_two(start: Starter) -> None:
    """Of a cluster that is declared with one, and of one that changes; a description is one operator's."""
    committee = Committee(await start(dual_control_roles=("controlplane",)))
    wanted = {"cluster_id": "prod", "description": "Rack 4", "talos_version": "v1.13.9"}
    assert (await committee.ask("anna", "POST", "/clusters", wanted)).status_code == 202
    assert (await committee.ask("anna", "GET", "/clusters/prod")).status_code == 404
    assert (await committee.ask("bernd", "POST", "/clusters", wanted)).status_code == 201
    alone = await committee.ask("anna", "POST", "/clusters/prod", {"description": "Rack 5"})
    assert (alone.status_code, alone.json()["description"]) == (200, "Rack 5")
    other = {"talos_version": "v1.14.0"}
    assert (await committee.ask("anna", "POST", "/clusters/prod", other)).status_code == 202
    (waiting,) = (await committee.ask("anna", "GET", "/approvals")).json()["items"]
    assert waiting["subject"] == "Talos v1.14.0 for cluster prod, instead of v1.13.9"
    done = await committee.ask("bernd", "POST", "/clusters/prod", other)
    assert (done.status_code, done.json()["talos_version"]) == (200, "v1.14.0")
    # What one agreed to instead of a version that is not there any more is shown as overtaken.
    assert (
        await committee.ask("anna", "POST", "/clusters/prod", {"talos_version": "default"})
    ).status_code == 202
    (waiting,) = await committee.waiting()
    assert waiting["overtaken"] == []
    await committee.agreed("POST", "/clusters/prod?new_proposal=true", {"talos_version": "v1.13.9"})
    (waiting,) = await committee.waiting()
    assert waiting["overtaken"] == ["replaces"]
