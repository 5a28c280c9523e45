"""The agent of a node on a Kubernetes API, with its own ServiceAccount: what it sees, answers, and may not do.

The same tests run on ours, which selects by `spec.targetNodeName`, and on the real one, which is too old for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.device import AKType
from attestation.errors import AttestationError
from attestation.evidence import tpm_quote
from attestation.report_data import run_nonce
from attestation.tpm import PCRSelection
from attestation.wire import b64decode
from attestation_operator import crds
from attestation_operator.errors import TokenMissing
from attestation_operator.objects import BUNDLE, POLICY, RESULT, RUN, SCHEDULE, SECURITY_EVENT, Kind
from attestation_operator.runs.agent_program import AgentProgram
from attestation_operator.runs.agent_settings import AgentSettings
from attestation_operator.settings import SettingsInvalid
from attestation_testing.software_tpm import SoftwareTPM
from tests.fixtures.controllers import RBAC
from tests.fixtures.kube import FakeKube, KubeAPI, fake, kube, rest
from tests.fixtures.run_service import RANDOM, Run, RunService, run_service, token
from tests.unit.operator.doubles import Log

__all__ = ["fake", "kube"]

pytestmark = pytest.mark.swtpm

WAIT_SECONDS = 60
NAMES = (f"run-agent-{number}" for number in itertools.count())
KIND = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AGENT_RULES = [
    {
        "apiGroups": ["security.ugallu.io"],
        "resources": ["confidentialattestationruns"],
        "verbs": ["get", "list", "watch"],
    }
]
"""What the chart grants (docs/kubernetes/installing-runs.md)."""


def definition(kind: Kind) -> dict[str, Any]:
    """Return a CustomResourceDefinition, as far as an agent sees it."""
    selectable = [{"jsonPath": ".spec.targetNodeName"}] if kind == RUN else []
    anything: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    spec = {"properties": {"targetNodeName": {"type": "string"}}} if kind == RUN else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": {"kind": kind.kind, "plural": kind.plural},
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    **({"selectableFields": selectable} if selectable else {}),
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": anything | spec,
                                "status": anything,
                            },
                        }
                    },
                }
            ],
        },
    }


KINDS = (RUN, RESULT, POLICY, SCHEDULE, SECURITY_EVENT, BUNDLE)


class Cluster:
    """The API as an administrator has it, with our kinds and a ServiceAccount of agents."""

    def __init__(self, kube: KubeAPI, folder: Path) -> None:
        self.kube = kube
        self.http = rest(kube)
        self.space = next(NAMES)
        self.runs = f"/apis/{RUN.api_version}/namespaces/{self.space}/{RUN.plural}"
        self._prepare()
        self.kubeconfig = folder / "agent.kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._credential()))

    def _prepare(self) -> None:
        known = {each["metadata"]["name"] for each in crds.definitions()}
        ours = [each for each in crds.definitions() if each["spec"]["group"] == RUN.group]
        ours += [each for each in map(definition, KINDS) if each["metadata"]["name"] not in known]
        for each in ours:
            self.made(KIND, each)
        self.made("/api/v1/namespaces", {"metadata": {"name": self.space}})
        self.made(f"/api/v1/namespaces/{self.space}/serviceaccounts", {"metadata": {"name": "agent"}})
        self.made(f"{RBAC}/clusterroles", {"metadata": {"name": self.space}, "rules": AGENT_RULES})
        self.made(
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": self.space},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": self.space,
                },
                "subjects": [{"kind": "ServiceAccount", "name": "agent", "namespace": self.space}],
            },
        )

    def made(self, path: str, raw: dict[str, Any]) -> Any:
        """Create it, unless it is there."""
        said = self.http.post(path, json=raw)
        assert said.status_code in (201, 409), said.text
        return said.json()

    def _credential(self) -> dict[str, Any]:
        said = self.http.post(
            f"/api/v1/namespaces/{self.space}/serviceaccounts/agent/token",
            json={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
        )
        assert said.status_code == 201, said.text
        assert self.kube.ca_file is not None
        cluster = {"server": self.kube.url, "certificate-authority": str(self.kube.ca_file)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": said.json()["status"]["token"]}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    def run(self, name: str, node: str, backend: str = "tpm") -> str:
        """Create a run, in phase Pending, and return its UID."""
        raw = {
            "apiVersion": RUN.api_version,
            "kind": RUN.kind,
            "metadata": {"name": name},
            "spec": {"backend": backend, "targetNodeName": node},
        }
        said = self.http.post(self.runs, json=raw)
        assert said.status_code == 201, said.text
        self.say(name, phase="Pending")
        uid: str = said.json()["metadata"]["uid"]
        return uid

    def say(self, name: str, **status: Any) -> None:
        """Write its status, as the controller does."""
        said = self.http.patch(
            f"{self.runs}/{name}/status",
            json={"status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert said.status_code == 200, said.text

    def delete(self, name: str) -> None:
        """Delete it."""
        self.http.delete(f"{self.runs}/{name}").raise_for_status()

    def close(self) -> None:
        """Put away what others would see."""
        for path in (f"{RBAC}/clusterrolebindings", f"{RBAC}/clusterroles"):
            self.http.delete(f"{path}/{self.space}")
        for run in self.http.get(self.runs).json()["items"]:
            self.delete(run["metadata"]["name"])
        self.http.close()


@pytest.fixture
def place(kube: KubeAPI, tmp_path: Path) -> Iterator[Cluster]:
    """Either API."""
    with contextlib.closing(Cluster(kube, tmp_path)) as made:
        yield made


@pytest.fixture
def ours(fake: FakeKube, tmp_path: Path) -> Iterator[Cluster]:
    """Ours, for one test."""
    with contextlib.closing(Cluster(fake, tmp_path)) as made:
        yield made


@pytest.fixture
def service() -> Iterator[RunService]:
    """The service."""
    with run_service() as made:
        yield made


@pytest.fixture(scope="module")
def tpm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftwareTPM]:
    """The TPM of the node."""
    with SoftwareTPM(tmp_path_factory.mktemp("tpm")) as made:
        yield made


@dataclass
class World:
    """An agent among them.

    Attributes:
        node: Its Node, which no other test has.
    """

    cluster: Cluster
    service: RunService
    folder: Path
    tpm: str
    node: str

    @property
    def token_file(self) -> Path:
        """Where its token lies."""
        return self.folder / "token"

    def variables(self, **changed: str) -> dict[str, str]:
        """Return its settings."""
        chosen = {
            "node_name": self.node,
            "service_url": self.service.url,
            "token_file": str(self.token_file),
            "kubeconfig": str(self.cluster.kubeconfig),
            "tpm_device": self.tpm,
            "sev_snp_device": str(self.folder / "absent"),
            "tdx_device": str(self.folder / "absent"),
            "tsm_path": str(self.folder / "absent"),
            "metrics_bind_address": "127.0.0.1:0",
            "health_probe_bind_address": "127.0.0.1:0",
        }
        return {f"ITL_OPERATOR_{name.upper()}": value for name, value in (chosen | changed).items()}

    @contextlib.asynccontextmanager
    async def running(self, **changed: str) -> AsyncIterator[AgentProgram]:
        """Run it."""
        program = AgentProgram(AgentSettings.load(self.variables(**changed)), log=Log())
        task = asyncio.create_task(program.run())
        try:
            await until(lambda: program.health.ready or task.done())
            if task.done():
                task.result()
            yield program
        finally:
            program.stop()
            await asyncio.wait([task])

    def begin(self, name: str, backend: str = "tpm", node: str | None = None) -> str:
        """Create a run whose challenge is open, as the controller does it; return its UID."""
        uid = self.cluster.run(name, node or self.node, backend)
        self.service.runs[uid] = Run(node=node or self.node, backend=backend)
        self.cluster.say(name, phase="Running", attempt=1)
        return uid

    def answers(self, uid: str) -> list[dict[str, Any]]:
        """Return what came for a run."""
        return self.service.runs[uid].answers


def world_of(cluster: Cluster, service: RunService, folder: Path, tpm: SoftwareTPM) -> World:
    """Return one, with a token."""
    made = World(cluster, service, folder, tpm.uri, f"node-{cluster.space}")
    made.token_file.write_text(token(made.node))
    return made


@pytest.fixture
def world(place: Cluster, service: RunService, tmp_path: Path, tpm: SoftwareTPM) -> World:
    """An agent at either API."""
    return world_of(place, service, tmp_path, tpm)


@pytest.fixture
def here(ours: Cluster, service: RunService, tmp_path: Path, tpm: SoftwareTPM) -> World:
    """An agent at ours."""
    return world_of(ours, service, tmp_path, tpm)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, not without end."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await work

    asyncio.run(bounded())


async def until(found: Callable[[], object]) -> None:
    """Wait until it is so; the bound is that of `run`."""
    while True:
        if found():
            return
        await asyncio.sleep(0.02)


async def away(work: Callable[[], Any]) -> Any:
    """Do what blocks beside the loop."""
    return await asyncio.to_thread(work)


# What it does


def test_it_answers_the_runs_of_its_node(world: World, tpm: SoftwareTPM) -> None:
    """Those that were there before it, and those that come; none of another node, none that does not run."""

    async def work() -> None:
        before = await away(lambda: world.begin("before"))
        other = await away(lambda: world.begin("other", node="another-node"))
        pending = await away(lambda: world.cluster.run("pending", world.node))
        async with world.running() as program:
            await until(lambda: world.answers(before))
            came = await away(lambda: world.begin("came"))
            await until(lambda: world.answers(came))
            world.service.runs[came].attempt = 2
            await away(lambda: world.cluster.say("came", phase="Running", attempt=2))
            await until(lambda: len(world.answers(came)) == 2)
            assert program.health.ready
        assert [len(world.answers(uid)) for uid in (before, came, other)] == [1, 2, 0]
        assert not any(other in path or pending in path for path in world.service.asked)
        value = world.answers(before)[0]["evidence"][0]["value"]
        with tpm.node(ak=AKType.ECC_P256) as node:
            key = tpm_quote.AttestationKey(node.ak_public(), node.identify().ek_public)
        tpm_quote.verify(
            tpm_quote.parse(b64decode(value["pcr_quote"], ""), b64decode(value["pcr_signature"], "")),
            challenge=run_nonce(RANDOM, before),
            key=key,
            selection=PCRSelection.from_names({"sha256": [0, 1, 7]}),
            pcr_values=tpm_quote.parse_pcr_values(json.loads(b64decode(value["pcr_values"], ""))),
        )

    run(work())


def test_without_a_device_it_starts_and_says_so(world: World) -> None:
    """It is ready, its metrics name no backend, and each run is told why there is no evidence."""

    async def work() -> None:
        backends = ("tpm", "sev-snp", "tdx")
        uids = await away(lambda: {backend: world.begin(backend, backend) for backend in backends})
        async with world.running(tpm_device="/nowhere/tpm") as program:
            await until(lambda: all(map(world.answers, uids.values())))
            await until(lambda: "devices" in program.health.facts)
            assert program.health.ready
            assert "none" in program.health.facts["devices"].said
            sample = program.metrics.registry.get_sample_value
            for backend, uid in uids.items():
                (said,) = world.answers(uid)
                assert said["unavailable"]["code"] == "device-absent", backend
                assert not said.get("evidence")
                assert sample("itl_operator_agent_backend", {"backend": backend}) == 0

    run(work())


@pytest.mark.threat("T285")
def test_c4_its_credential_writes_nothing(place: Cluster) -> None:
    """C4: each verb that writes, on each kind of ours and on what a node could gain by, is 403; runs may be read."""
    said = json.loads(place.kubeconfig.read_text())
    bearer = {"Authorization": f"Bearer {said['users'][0]['user']['token']}"}
    uid = place.run("there", "a-node")
    assert uid
    merge, apply = "application/merge-patch+json", "application/apply-patch+yaml"
    with httpx.Client(
        base_url=place.http.base_url,
        verify=place.http._transport._pool._ssl_context,  # type: ignore[attr-defined]
        headers=bearer,
        trust_env=False,
        timeout=30,
    ) as agent:
        for path in (place.runs, f"/apis/{RUN.api_version}/{RUN.plural}", f"{place.runs}/there"):
            assert agent.get(path).status_code == 200
        places = [
            f"/apis/{kind.api_version}{f'/namespaces/{place.space}' if kind.namespaced else ''}/{kind.plural}"
            for kind in KINDS
        ]
        core = f"/api/v1/namespaces/{place.space}"
        places += [
            f"{core}/{each}" for each in ("pods", "secrets", "configmaps", "events", "serviceaccounts")
        ]
        places += ["/api/v1/nodes", f"{RBAC}/clusterrolebindings", f"{RBAC}/clusterroles"]
        places += [f"/apis/coordination.k8s.io/v1/namespaces/{place.space}/leases"]
        places += ["/apis/certificates.k8s.io/v1/certificatesigningrequests"]
        tried = 0
        for path_of in places:
            one = f"{path_of}/there"
            raw = {"metadata": {"name": "there"}, "status": {"verdict": "verified"}}
            for path in (one, f"{one}/status"):
                answers = [
                    agent.put(path, json=raw),
                    agent.patch(path, json=raw, headers={"Content-Type": merge}),
                    agent.patch(
                        path, json=raw, headers={"Content-Type": apply}, params={"fieldManager": "me"}
                    ),
                ]
                tried += len(answers)
                assert {each.status_code for each in answers} == {403}, (path, [e.text for e in answers])
            answers = [agent.post(path_of, json=raw), agent.delete(one), agent.delete(path_of)]
            tried += len(answers)
            assert {each.status_code for each in answers} == {403}, (path_of, [e.text for e in answers])
            if RUN.plural not in path_of:
                assert agent.get(one).status_code == 403, path_of
        asked = agent.post(f"{core}/serviceaccounts/agent/token", json={"spec": {}})
        assert asked.status_code == 403
        assert tried == 9 * len(places)
    assert place.http.get(f"{place.runs}/there").json()["status"] == {"phase": "Pending"}


# What may come between


def test_evidence_that_was_taken_is_not_brought_again(here: World) -> None:
    """The answer was lost: asked again it is 409, which counts as delivered."""

    async def work() -> None:
        here.service.lose = 1
        uid = await away(lambda: here.begin("lost"))
        async with here.running() as program:
            sample = program.metrics.registry.get_sample_value
            labels = {"backend": "tpm", "outcome": "delivered"}
            await until(lambda: sample("itl_operator_agent_runs_total", labels) == 1)
        assert len(here.answers(uid)) == 1

    run(work())


def test_one_that_begins_anew_collects_again_for_the_open_challenge(here: World) -> None:
    """It ended between challenge and answer; after an answer that it does not know of, it brings none."""

    async def work() -> None:
        uid = await away(lambda: here.begin("open"))
        here.service.away = True
        async with here.running():
            await until(lambda: here.service.asked)
        assert here.answers(uid) == []
        here.service.away = False
        async with here.running():
            await until(lambda: here.answers(uid))
        asked = len(here.service.asked)
        async with here.running():
            await until(lambda: len(here.service.asked) > asked)
        assert len(here.answers(uid)) == 1

    run(work())


def test_the_token_is_read_for_each_request(here: World) -> None:
    """The kubelet replaced it between two runs; while there is none, it waits."""

    async def work() -> None:
        first = await away(lambda: here.begin("first"))
        async with here.running():
            await until(lambda: here.answers(first))
            here.token_file.unlink()
            second = await away(lambda: here.begin("second"))
            third = await away(lambda: here.begin("third"))
            here.token_file.write_text(token(here.node, iat=2))
            await until(lambda: here.answers(second) and here.answers(third))
        assert here.service.tokens == [token(here.node), token(here.node, iat=2)]

    run(work())


def test_a_watch_that_ends_loses_no_run(here: World) -> None:
    """It is cut off, and what the API server remembers begins later: what came meanwhile is answered."""
    kube = here.cluster.kube
    assert isinstance(kube, FakeKube)
    api = kube.api

    async def work() -> None:
        async with here.running():
            await until(lambda: api.watches() == 1)
            await away(api.drop_watches)
            uid = await away(lambda: here.begin("meanwhile"))
            await away(api.forget)
            await until(lambda: here.answers(uid))

    run(work())


# Who it is


@pytest.mark.threat("T285")
@pytest.mark.parametrize(
    ("said", "error"),
    [("another-node", SettingsInvalid), (None, TokenMissing), ("", TokenMissing)],
)
def test_it_starts_only_as_the_node_of_its_token(
    here: World, said: str | None, error: type[AttestationError]
) -> None:
    """A name in its settings makes no node another; a token without a node is refused early."""
    here.token_file.write_text(token(said) if said != "" else "no token at all")

    async def work() -> None:
        with pytest.raises(error):
            async with here.running():
                pass

    run(work())
    assert here.service.asked == []


@pytest.mark.slow
def test_killed_at_each_arrow_it_answers_once(here: World) -> None:
    """C12, the agent's part: SIGKILL while it asks, before its evidence is taken, and before it hears that it was.

    Whichever it was, the one that begins anew brings the run to its one answer.
    """
    told = [
        sys.executable,
        "-c",
        "from attestation_operator.main import main; raise SystemExit(main())",
        "agent",
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ITL_")} | here.variables()
    programs: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        programs.append(subprocess.Popen(told, env=environment, stderr=subprocess.DEVNULL))
        return programs[-1]

    try:
        running = begin()
        uids = []
        for arrow in ("challenge asked", "evidence came", "evidence taken"):

            def kill(at: str, arrow: str = arrow, program: subprocess.Popen[bytes] = running) -> bool:
                if at == arrow and program.poll() is None:
                    program.kill()
                    program.wait(WAIT_SECONDS)
                    return True
                return False

            here.service.at = kill
            uids.append(here.begin(arrow.replace(" ", "-")))
            assert running.wait(WAIT_SECONDS) == -signal.SIGKILL, arrow
            asked = len(here.service.asked)
            running = begin()

            async def heard(asked: int = asked) -> None:
                await until(lambda: len(here.service.asked) > asked and all(map(here.answers, uids)))

            run(heard())
        assert [len(here.answers(uid)) for uid in uids] == [1, 1, 1]
    finally:
        for each in programs:
            each.kill()
            each.wait(WAIT_SECONDS)


def test_as_a_program(here: World) -> None:
    """`attestation-operator agent` with flags: it answers, ends with SIGTERM, and says why it does not start."""
    uid = here.begin("program")
    told = [
        sys.executable,
        "-c",
        "from attestation_operator.main import main; raise SystemExit(main())",
        "agent",
    ]
    given = {name.removeprefix("ITL_OPERATOR_"): value for name, value in here.variables().items()}
    flags = [f"--{name.lower().replace('_', '-')}={value}" for name, value in given.items()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ITL_")}
    with subprocess.Popen(
        [*told, *flags, "--log-format=json"], env=environment, stderr=subprocess.PIPE
    ) as program:
        assert program.stderr is not None
        for line in program.stderr:
            if json.loads(line)["event"] == "run.answered":
                break
        program.send_signal(signal.SIGTERM)
        rest_of_log = program.stderr.read()
        assert program.wait(WAIT_SECONDS) == 0, rest_of_log
    assert len(here.answers(uid)) == 1
    other = subprocess.run(
        [*told, *flags, "--node-name=other"],
        env=environment,
        capture_output=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert other.returncode == 2
    assert b"NODE_NAME" in other.stderr
