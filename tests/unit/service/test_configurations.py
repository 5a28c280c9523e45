"""Base configurations as versions in the database: sealed, judged, activated by people, shown to nobody (ADR 197)."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attestation.keys import LocalKEK
from attestation.machines import Role
from attestation.talos.versions import Generation
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.configurations import judging
from tests.unit.service.conftest import CANARY, Service, Starter, settings_for
from tests.unit.service.node import SEALED, SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tests.unit.service.test_registration import code
from tests.unit.talos.test_redaction import CASES, _in_place

pytestmark = pytest.mark.anyio

WORKER = "/configurations/default/worker-app"
BASE = f"# {CANARY}\nversion: v1alpha1\nmachine:\n  type: worker\n  token: {CANARY}\n  install: {{disk: /dev/sda}}\n"


def kek_file(folder: Path, name: str = "config.kek") -> str:
    """Make a key-encryption key and return its URI."""
    path = folder / name
    path.write_text(secrets.token_hex(32) + "\n")
    path.chmod(0o600)
    return f"file:{path}"


def of_file(path: Path) -> str:
    """Return what is in a file."""
    return path.read_text()


def bytes_of(path: Path) -> bytes:
    """Likewise."""
    return path.read_bytes()


def put(path: Path, text: str | None) -> None:
    """Put *text* into the file of a key, or take it away."""
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
        path.chmod(0o600)


@pytest.fixture
async def keeping(start: Starter) -> Service:
    """A service that keeps configurations, and has a file which it must not ask."""
    return await start(tpm_ca_bundle_dir=start.bundle(), config_kek=(kek_file(start.directory),))


async def imported(service: Service, text: str = BASE, path: str = f"{WORKER}/versions", **more: Any) -> int:
    """Import a version and return its number."""
    answer = await service.operator("POST", path, {"document": text, **more})
    assert answer.status_code == 201, answer.text
    assert answer.json()["active"] is False
    found: int = answer.json()["version"]
    return found


async def activated(service: Service, version: int, path: str = f"{WORKER}/active") -> dict[str, Any]:
    """Activate a version, which must succeed."""
    answer = await service.operator("PUT", path, {"version": version})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def delivered(service: Service, node: SoftwareNode) -> str:
    """Let *node* attest, fetch what it gets, and return it opened."""
    await service.act(node, "redeliver")
    token = (await service.attest(node))["config_token"]
    answer = await service.fetch(token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == SEALED, answer.text
    return node.open(answer.json()).decode()


@pytest.fixture
async def node(keeping: Service) -> SoftwareNode:
    """A machine that was admitted as a worker."""
    found = SoftwareNode()
    await keeping.admitted(found, hostname="w-1")
    return found


def row(service: Service, statement: str, *values: Any) -> None:
    """Do what a person does who writes to the database."""
    with closing(sqlite3.connect(service.directory / "machines.db", timeout=30)) as db:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(statement, values)
        db.commit()


async def test_a_version_is_delivered_once_it_is_activated(keeping: Service, node: SoftwareNode) -> None:
    """Imported it gives nothing, though a file lies there; activated it is what the machine gets, with its own."""
    first = await imported(keeping)
    await keeping.act(node, "redeliver")
    token = (await keeping.attest(node))["config_token"]
    assert code(await keeping.fetch(token)) == "base-config-missing"
    told = await activated(keeping, first)
    assert (told["active"], told["previous"], told["agreed"]) == (True, None, False)
    got = await delivered(keeping, node)
    assert 'hostname: "w-1"' in got
    assert f"token: {CANARY}" in got
    second = await imported(keeping, BASE + "debug: true\n", note="more words")
    assert "debug" not in await delivered(keeping, node)
    assert (await activated(keeping, second))["previous"] == first
    assert "debug: true" in await delivered(keeping, node)
    listed = (await keeping.operator("GET", "/configurations")).json()["configurations"]
    assert [(each["version"], each["active"], each["note"]) for each in listed] == [
        (1, False, None),
        (2, True, "more words"),
    ]


async def test_what_people_look_at_takes_no_thread_of_machines(
    keeping: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A configuration that takes long to judge, and more than one of them: machines attest, and get theirs."""
    await activated(keeping, await imported(keeping))
    judge, may_go_on, begun = judging.judge, threading.Event(), asyncio.Event()
    loop, few = asyncio.get_running_loop(), ThreadPoolExecutor(2)

    def slow(*args: Any, **more: Any) -> judging.Judged:
        loop.call_soon_threadsafe(begun.set)
        assert may_go_on.wait(120)
        return judge(*args, **more)

    monkeypatch.setattr(judging, "judge", slow)
    loop.set_default_executor(few)  # soon in use, where somebody takes them
    imports = [asyncio.ensure_future(imported(keeping)) for _ in range(2)]
    try:
        async with asyncio.timeout(60):
            await begun.wait()
            assert CANARY in await delivered(keeping, node)
        assert not any(each.done() for each in imports)
    finally:
        may_go_on.set()
        versions = await asyncio.gather(*imports)
        loop.set_default_executor(ThreadPoolExecutor())
        few.shutdown()
    assert sorted(versions) == [2, 3]


async def test_rollback_is_the_version_before(keeping: Service, node: SoftwareNode) -> None:
    """Once more, and the newer one is back; where none was before, there is nothing to go back to."""
    assert code(await keeping.operator("POST", f"{WORKER}/rollback", {})) == "configuration-unknown"
    for number in (1, 2):
        await activated(keeping, await imported(keeping, f"{BASE}debug: {str(number == 2).lower()}\n"))
    for expected in (1, 2):
        answer = await keeping.operator("POST", f"{WORKER}/rollback", {"reason": "it broke"})
        assert (answer.status_code, answer.json()["version"]) == (200, expected)
        assert f"debug: {str(expected == 2).lower()}" in await delivered(keeping, node)
    newest = (await keeping.audit(action="configuration_activate"))[0]
    assert "rollback; it broke" in newest["detail"]
    assert "default/worker-app@2 sha256" in newest["detail"]


async def test_an_activation_takes_two(start: Starter) -> None:
    """The vote binds place, version and digest, and what is delivered now; an activation meanwhile ends it."""
    committee = Committee(
        await start(dual_control_roles=("worker-app",), config_kek=(kek_file(start.directory),))
    )
    service = committee.service
    for _ in range(2):
        await imported(service)
    pending = await committee.ask("anna", "PUT", f"{WORKER}/active", {"version": 1})
    assert pending.status_code == 202
    [waiting] = await committee.waiting()
    terms = waiting["proposal"]["terms"]
    digest = (await service.operator("GET", f"{WORKER}/versions/1")).json()["sha256"]
    assert terms == {
        "place": "default/worker-app",
        "version": 1,
        "sha256": digest,
        "replaces": None,
        "replaces_sha256": None,
    }
    assert waiting["subject"].startswith("configuration default/worker-app, version 1, SHA-256 ")
    # Another version is another proposal; one person is not two; break-glass is none.
    other = await committee.ask("bernd", "PUT", f"{WORKER}/active", {"version": 2})
    assert code(other) == "proposal-rival"
    assert (await committee.ask("anna", "PUT", f"{WORKER}/active", {"version": 1})).status_code == 202
    assert (
        code(await service.operator("PUT", f"{WORKER}/active", {"version": 1})) == "break-glass-cannot-vote"
    )
    done = await committee.ask("bernd", "PUT", f"{WORKER}/active", {"version": 1})
    assert (done.status_code, done.json()["agreed"]) == (200, True)
    [entry] = await service.audit(action="configuration_activate")
    assert "agreed by anna, bernd" in entry["detail"]
    # What is delivered already is no act: who asks late is told, and opens no proposal.
    late = await committee.ask("carla", "PUT", f"{WORKER}/active", {"version": 1})
    assert (late.status_code, late.json()["activated_by"]) == (200, "bernd")
    assert len(await service.audit(action="configuration_activate")) == 1
    # What was voted on rested on what was delivered: it is not so any more.
    assert (await committee.ask("anna", "PUT", f"{WORKER}/active", {"version": 2})).status_code == 202
    committee.settings(dual_control_roles=())
    await imported(service)
    assert (await service.operator("PUT", f"{WORKER}/active", {"version": 3})).status_code == 200
    committee.settings(dual_control_roles=("worker-app",))
    [waiting] = [each for each in await committee.waiting() if "version 2" in each["subject"]]
    assert waiting["overtaken"] == ["replaces"]


@pytest.mark.threat("T121", "T136")
async def test_who_writes_to_the_database_changes_nothing_unnoticed(
    keeping: Service, node: SoftwareNode
) -> None:
    """Another version made active, texts exchanged, digests rewritten, rows of another place: nothing is delivered."""
    for number in (1, 2, 3):
        await imported(keeping, f"{BASE}debug: {str(number == 1).lower()}\n")
    await activated(keeping, 1)
    await activated(keeping, 2)
    other = "/configurations/other/worker-app"
    await activated(keeping, await imported(keeping, path=f"{other}/versions"), f"{other}/active")
    with closing(sqlite3.connect(keeping.directory / "machines.db")) as db:
        kept = db.execute("SELECT * FROM active_configurations").fetchall()
    here = "WHERE cluster_id = 'default'"
    third = "(SELECT {} FROM configurations c WHERE c.cluster_id = 'default' AND c.version = 3)"
    foreign = "(SELECT version, sha256, mark FROM active_configurations WHERE cluster_id = 'other')"
    for statement in (
        f"UPDATE active_configurations SET version = 3 {here}",
        f"UPDATE active_configurations SET (version, sha256) = {third.format('version, sha256')} {here}",
        f"UPDATE active_configurations SET agreed = 1 {here}",
        f"UPDATE active_configurations SET mark = zeroblob(48) {here}",
        f"UPDATE active_configurations SET (version, sha256, mark) = {foreign} {here}",
        f"UPDATE configurations SET (wrapped, blob) = {third.format('wrapped, blob')} {here} AND version = 2",
    ):
        row(keeping, statement)
        await keeping.act(node, "redeliver")
        token = (await keeping.attest(node))["config_token"]
        answer = await keeping.fetch(token)
        assert code(answer) == "configuration-unreadable", statement
        assert CANARY not in answer.text
        for each in kept:
            row(
                keeping,
                f"INSERT OR REPLACE INTO active_configurations VALUES ({','.join('?' * len(each))})",
                *each,
            )
    # An activation of before cannot be told from the newest by its mark: the log tells.
    verified = (await keeping.operator("GET", "/audit/verify")).json()
    assert verified["valid"], verified


async def test_no_secret_leaves_but_sealed(
    keeping: Service, node: SoftwareNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """Canaries in every member that holds a secret: no answer, entry, log line or byte of the database has one."""
    answers: list[str] = []

    async def ask(method: str, path: str, body: Any = None) -> Any:
        answer = await keeping.operator(method, path, body)
        answers.append(answer.text)
        return answer

    numbers: dict[Generation, list[int]] = {each: [] for each, _ in CASES}
    for generation, document in CASES:
        text = "".join(_in_place(document))
        body = {"document": text, "talos_version": generation.schema_version}
        answer = await ask("POST", f"{WORKER}/versions", body)
        if answer.status_code == 201:
            numbers[generation].append(answer.json()["version"])
    assert all(numbers.values())
    for found in numbers.values():
        await ask("GET", f"{WORKER}/versions/{found[0]}")
        await ask("GET", f"{WORKER}/diff?before={found[0]}&after={found[-1]}")
    await ask("POST", f"{WORKER}/versions", {"document": f"a: [{CANARY}\n"})
    await ask("POST", f"{WORKER}/versions", {"document": BASE + f"{CANARY}"})
    await ask("POST", f"{WORKER}/versions", {"document": [CANARY]})
    await ask("POST", f"{WORKER}/versions", {"document": CANARY * 100_000})
    await activated(keeping, await imported(keeping))
    patches = f"/machines/{node.machine_id}/patches"
    await ask("POST", patches, {"document": f"machine: {{env: {{PASSWORD: {CANARY}}}}}\n"})
    await ask("PUT", f"{patches}/active", {"version": 1})
    await ask("GET", f"{patches}/1")
    await ask("GET", f"/machines/{node.machine_id}/configuration")
    await ask("GET", "/configurations/default/upgrade?talos=v1.13.9")
    await ask("GET", "/configurations")
    await ask("GET", "/audit?limit=200")
    await ask("GET", "/audit/export")
    assert f"PASSWORD: {CANARY}" in await delivered(keeping, node)
    row(keeping, "PRAGMA wal_checkpoint(TRUNCATE)")
    everything = "".join(answers) + "".join(capsys.readouterr())
    assert CANARY not in everything
    assert CANARY.encode() not in bytes_of(keeping.directory / "machines.db")


async def test_what_talos_would_refuse_is_not_kept(keeping: Service) -> None:
    """An unknown key, a CA's key at a worker, what nobody can read, another type; by the version that is named."""
    for text in (
        BASE + "bogus: 1\n",
        BASE + "cluster: {ca: {key: x}}\n",
        "a: [\n",
        BASE.replace("type: worker", "type: controlplane"),
        BASE + "---\nkind: HostnameConfig\napiVersion: v1alpha1\nhostname: a\n",
        "machine: {network: 7, type: worker}\n",
    ):
        answer = await keeping.operator("POST", f"{WORKER}/versions", {"document": text})
        assert (answer.status_code, code(answer)) == (422, "configuration-invalid"), text
    newer = {
        "document": BASE + "---\nkind: LinkConfig\napiVersion: v1alpha1\nname: e\n",
        "talos_version": "v1.13",
    }
    answer = await keeping.operator("POST", f"{WORKER}/versions", newer)
    assert answer.status_code == 201, answer.text
    # Its own version takes it; the one that the machines run now does not.
    assert code(await keeping.operator("PUT", f"{WORKER}/active", {"version": 1})) == "configuration-invalid"
    bad = {"document": BASE, "talos_version": "v1.8"}
    assert code(await keeping.operator("POST", f"{WORKER}/versions", bad)) == "request-invalid"


async def test_a_patch_is_merged_into_what_one_machine_gets(keeping: Service, node: SoftwareNode) -> None:
    """What an operator approved of the machine wins; judged with the base; an empty patch ends it; rolled back."""
    await activated(keeping, await imported(keeping))
    patches = f"/machines/{node.machine_id}/patches"
    text = "machine: {network: {hostname: other}, sysctls: {a.b: '1'}}\n"
    first = await imported(keeping, text, patches)
    assert "a.b" not in await delivered(keeping, node)
    await activated(keeping, first, f"{patches}/active")
    got = await delivered(keeping, node)
    assert 'hostname: "w-1"' in got
    assert "other" not in got
    assert 'a.b: "1"' in got
    shown = (await keeping.operator("GET", f"/machines/{node.machine_id}/configuration")).json()
    assert (shown["base"], shown["patch"], shown["role"]) == (1, 1, "worker-app")
    assert CANARY not in shown["preview"]
    assert "a.b: '1'" in shown["preview"]
    bad = await keeping.operator("POST", patches, {"document": "machine: {bogus: 1}\n"})
    assert code(bad) == "configuration-invalid"
    await activated(keeping, await imported(keeping, "{}\n", patches), f"{patches}/active")
    assert "a.b" not in await delivered(keeping, node)
    [entry, *_] = await keeping.audit(action="config_delivered")
    assert entry["detail"].endswith(f", base default/worker-app@1, patch machine {node.machine_id}@2")
    assert (await keeping.operator("POST", f"{patches}/rollback", {})).json()["version"] == 1
    assert "a.b" in await delivered(keeping, node)
    diff = (await keeping.operator("GET", f"{patches}/diff?before=1&after=2")).json()
    assert {each["path"] for each in diff["changes"]} >= {"machine.network.hostname", "machine.sysctls.a.b"}
    unknown = "/machines/00000000-0000-4000-8000-000000000000/patches"
    assert code(await keeping.operator("GET", unknown)) == "machine-unknown"


@pytest.mark.threat("T200")
async def test_a_patch_of_one_operator_does_not_follow_into_a_role_of_several(start: Starter) -> None:
    """Who alone activated it for a worker decides nothing about what two people agreed to make of the machine."""
    infra = "/configurations/default/worker-infra"
    committee = Committee(
        await start(
            tpm_ca_bundle_dir=start.bundle(),
            dual_control_roles=("worker-infra",),
            config_kek=(kek_file(start.directory),),
        )
    )
    service, node = committee.service, SoftwareNode()
    await service.admitted(node, hostname="w-1")

    async def agreed(method: str, path: str, body: dict[str, Any]) -> None:
        for who, status in (("anna", 202), ("bernd", 200)):
            assert (await committee.ask(who, method, path, body)).status_code == status

    await agreed("PUT", f"{infra}/active", {"version": await imported(service, path=f"{infra}/versions")})
    patches = f"/machines/{node.machine_id}/patches"
    patch = {"version": await imported(service, "machine: {sysctls: {a.b: '1'}}\n", patches)}
    alone = await committee.ask("carla", "PUT", f"{patches}/active", patch)
    assert (alone.status_code, alone.json()["agreed"]) == (200, False)
    await agreed("POST", f"/machines/{node.machine_id}/role", {"role": "worker-infra", "reason": "moved"})
    refused = await service.fetch((await service.attest(node))["config_token"])
    assert code(refused) == "base-config-invalid"
    assert "one operator alone activated the patch" in refused.json()["detail"]
    seen = await service.operator("GET", f"/machines/{node.machine_id}/configuration")
    assert code(seen) == "base-config-invalid"
    # What was activated by one is activated by several in the same way, and nothing else is needed.
    await agreed("PUT", f"{patches}/active", patch)
    got = await service.fetch((await service.attest(node))["config_token"])
    assert 'a.b: "1"' in node.open(got.json()).decode()


async def test_a_cluster_says_by_which_talos(keeping: Service, node: SoftwareNode) -> None:
    """What is imported is judged by the cluster's version and delivered in its documents; a slip makes no cluster."""
    await activated(keeping, await imported(keeping))
    created = {"cluster_id": "default", "talos_version": "v1.13.9"}
    assert (await keeping.operator("POST", "/clusters", created)).status_code == 201
    await keeping.act(node, "redeliver")
    token = (await keeping.attest(node))["config_token"]
    got = node.open((await keeping.fetch(token)).json()).decode()
    assert "kind: HostnameConfig" in got
    answer = await keeping.operator("POST", f"{WORKER}/versions", {"document": BASE})
    assert answer.json()["talos_version"] == "v1.13.9"
    slip = await keeping.operator("POST", "/configurations/defualt/worker-app/versions", {"document": BASE})
    assert code(slip) == "cluster-unknown"


async def test_a_machine_takes_its_patches_with_it(keeping: Service) -> None:
    """Whoever is deleted leaves none behind, and the audit tells of the row of authority."""
    node = SoftwareNode()
    await keeping.introduce(node)
    patches = f"/machines/{node.machine_id}/patches"
    await activated(keeping, await imported(keeping, "{}\n", patches), f"{patches}/active")
    await keeping.act(node, "reject", {"reason": "test"})
    answer = await keeping.operator("DELETE", f"/machines/{node.machine_id}")
    assert answer.status_code < 300, answer.text
    with closing(sqlite3.connect(keeping.directory / "machines.db")) as db:
        for table in ("configurations", "active_configurations"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert (await keeping.operator("GET", "/audit/verify")).json()["valid"]


async def test_an_activation_between_sealing_and_spending_counts(
    keeping: Service, node: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was prepared is of another version by now: the machine comes again, and gets the newer one."""
    for text in (BASE, BASE + "debug: true\n"):
        await imported(keeping, text)
    await activated(keeping, 1)
    await keeping.act(node, "redeliver")
    token = (await keeping.attest(node))["config_token"]
    loop, sealed = asyncio.get_running_loop(), KeptConfigurations.text

    def meanwhile(self: KeptConfigurations, found: Any) -> bytes:
        monkeypatch.setattr(KeptConfigurations, "text", sealed)
        asyncio.run_coroutine_threadsafe(activated(keeping, 2), loop).result(30)
        return sealed(self, found)

    monkeypatch.setattr(KeptConfigurations, "text", meanwhile)
    assert (await keeping.fetch(token)).headers["content-type"].startswith("text/plain")
    assert "debug: true" in node.open((await keeping.fetch(token)).json()).decode()


async def test_workers_and_a_kill_between_import_and_activation(keeping: Service, start: Starter) -> None:
    """What one worker kept, another one finds, inactive, and activates; the first one delivers it."""
    first = await imported(keeping)
    other = await start(
        keeping.clock,
        tpm_ca_bundle_dir=start.bundle(),
        config_kek=(f"file:{start.directory / 'config.kek'}",),
    )
    [found] = (await other.operator("GET", "/configurations")).json()["configurations"]
    assert (found["version"], found["active"]) == (first, False)
    node = SoftwareNode()
    await keeping.admitted(node)
    await activated(other, first)
    assert CANARY in await delivered(keeping, node)
    assert CANARY in await delivered(other, node)
    numbers = await asyncio.gather(*(imported(each) for each in (keeping, other) * 2))
    assert sorted(numbers) == [2, 3, 4, 5]


async def test_two_imports_at_once_are_two_versions(keeping: Service) -> None:
    """Numbers rise, and none is given twice."""
    numbers = await asyncio.gather(*(imported(keeping) for _ in range(3)))
    assert sorted(numbers) == [1, 2, 3]


async def test_without_a_key_configurations_are_files(service: Service) -> None:
    """As before there were versions: files are delivered, and whoever imports is told what is missing."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    assert CANARY in node.open((await service.fetch(token)).json()).decode()
    answer = await service.operator("POST", f"{WORKER}/versions", {"document": BASE})
    assert (answer.status_code, code(answer)) == (503, "configurations-not-kept")
    assert (await service.operator("GET", "/configurations")).json() == {"configurations": []}
    assert code(await service.operator("POST", "/configurations/rewrap")) == "configurations-not-kept"


async def test_a_file_stands_in_only_where_that_is_set(start: Starter) -> None:
    """`ITL_CONFIG_FILE_FALLBACK`: until a version is active; then it is not asked any more."""
    service = await start(
        tpm_ca_bundle_dir=start.bundle(), config_encryption_key="ab" * 32, config_file_fallback=True
    )
    node = SoftwareNode()
    await service.admitted(node)
    assert "debug" not in await delivered(service, node)
    await activated(service, await imported(service, BASE + "debug: true\n"))
    assert "debug: true" in await delivered(service, node)


async def test_a_key_that_is_away_takes_configurations_with_it_alone(start: Starter) -> None:
    """Absent, then another, then back: a typed error, nothing in the clear, and it comes back by itself."""
    uri = kek_file(start.directory)
    service = await start(tpm_ca_bundle_dir=start.bundle(), config_kek=(uri,))
    node, path = SoftwareNode(), Path(uri.removeprefix("file:"))
    await service.admitted(node)
    await activated(service, await imported(service))
    right = of_file(path)
    for text in (None, "not a key\n", secrets.token_hex(32)):
        service.resources.configurations.close()  # as a worker that starts
        put(path, text)
        await service.act(node, "redeliver")
        token = (await service.attest(node))["config_token"]
        answer = await service.fetch(token)
        assert (answer.status_code, code(answer)) == (503, "configuration-unreadable"), text
        assert right.strip() not in answer.text
        machine = await service.store.read(lambda tx: tx.machines.require(node.machine_id))
        assert machine.config_failure is not None, "whoever looks at the machine sees why it has nothing"
    put(path, right)
    service.resources.configurations.close()
    assert CANARY in await delivered(service, node)


async def test_the_keys_follow_one_another(start: Starter) -> None:
    """The newest first: all versions are brought under it, their texts unopened; then the older one is not needed."""
    old, new = kek_file(start.directory, "old"), kek_file(start.directory, "new")
    service = await start(tpm_ca_bundle_dir=start.bundle(), config_kek=(old,))
    node = SoftwareNode()
    await service.admitted(node)
    await activated(service, await imported(service))
    await imported(service)

    def use(*uris: str) -> None:
        settings = settings_for(start.directory, config_kek=uris)
        service.resources.configurations.close()
        service.resources.configurations.__init__(settings)  # type: ignore[misc]  # as a worker that starts

    use(new)
    answer = await service.operator("POST", "/configurations/rewrap")
    assert answer.json() == {"rewrapped": 0, "unreachable": 2}
    use(new, old)
    answer = await service.operator("POST", "/configurations/rewrap")
    assert answer.json() == {"rewrapped": 2, "unreachable": 0}
    use(new)
    assert CANARY in await delivered(service, node)
    name = LocalKEK(bytes.fromhex(of_file(Path(new.removeprefix("file:"))).strip())).key_id
    listed = (await service.operator("GET", "/configurations")).json()["configurations"]
    assert {each["encryption_key_id"] for each in listed} == {name}


async def test_an_upgrade_is_seen_before_it_is_made(keeping: Service) -> None:
    """What the generator would emit for the versions before and after, and what the newer one says of it."""
    text = BASE + "---\napiVersion: v1alpha1\nkind: LinkAliasConfig\nname: net0\n"
    answer = await keeping.operator(
        "POST", f"{WORKER}/versions", {"document": text, "talos_version": "v1.13"}
    )
    assert answer.status_code == 201
    keeping.app.state.resources = keeping.resources
    first = (await keeping.operator("GET", "/configurations/default/upgrade?talos=v1.13.9")).json()
    assert first["roles"] == []  # nothing is active
    await activated(keeping, await imported(keeping))
    found = (await keeping.operator("GET", "/configurations/default/upgrade?talos=v1.13.9")).json()
    assert (found["before"], found["after"]) == ("v1.9.5", "v1.13.9")
    [worker] = found["roles"]
    assert (worker["role"], worker["base"]) == (Role.WORKER_APP, 2)
    assert "no LinkConfig" in worker["error"]
    slip = await keeping.operator("GET", "/configurations/defualt/upgrade?talos=v1.13.9")
    assert (slip.status_code, code(slip)) == (404, "cluster-unknown")
    bad = await keeping.operator("GET", "/configurations/default/upgrade?talos=v1.8.0")
    assert code(bad) == "request-invalid"
