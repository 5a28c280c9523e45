"""The program of the controllers on a Kubernetes API: what it watches, writes, leaves alone; who leads; how it ends.

The same tests run on ours and on the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from attestation.clock import SystemClock
from attestation.errors import Unavailable
from attestation_operator import crds, program
from attestation_operator.actions import (
    Action,
    Approve,
    Delete,
    Deny,
    EmitEvent,
    Fail,
    PatchNode,
    PutCertificate,
    SetStatus,
)
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.controller import Around, Round
from attestation_operator.errors import ClusterRefused, ClusterUnavailable, NotLeading, ObjectChanged
from attestation_operator.executor import KubernetesExecutor
from attestation_operator.objects import CSR, HSM, NODE, NODE_ATTESTATION, Key, Kind, Raw, Target
from attestation_operator.program import Program
from attestation_operator.settings import Settings
from tests.fixtures.cluster import CSRS, KUBELET_SIGNER, csr_object, node_request
from tests.fixtures.kube import SIGNER, FakeKube, KubeAPI, fake, kube, rest
from tests.unit.operator.doubles import Log

__all__ = ["fake", "kube"]

WAIT_SECONDS = 60
NAMES = (f"operator-{number}" for number in itertools.count())
NODES = "/api/v1/nodes"
KIND = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ONE = "/apis/attestation.itl.io/v1alpha1/nodeattestations"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, not without end."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await work

    asyncio.run(bounded())


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so; the bound is that of `run`."""
    while True:
        if await found():
            return
        await asyncio.sleep(0.02)


class Asking:
    """Asks the API as an administrator."""

    def __init__(self, kube: KubeAPI) -> None:
        self.http = rest(kube)

    def get(self, path: str) -> Any:
        """Return what is there."""
        return self.http.get(path).raise_for_status().json()

    def make(self, path: str, raw: Raw) -> Any:
        """Create it."""
        return self.http.post(path, json=raw).raise_for_status().json()

    def csr(self, name: str, signer: str = KUBELET_SIGNER) -> Any:
        """Create a request."""
        return self.make(CSRS, csr_object(name, node_request(name), signer))

    def node(self, name: str) -> Any:
        """Create a Node."""
        return self.make(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})


@pytest.fixture
def ask(kube: KubeAPI) -> Iterator[Asking]:
    """An administrator, and our kind."""
    asking = Asking(kube)
    with asking.http:
        for definition in crds.definitions():
            made = asking.http.post(KIND, json=definition)
            assert made.status_code in (201, 409), made.text
        yield asking


@pytest.fixture
def ask_fake(fake: FakeKube) -> Iterator[Asking]:
    """An administrator of a cluster for one test."""
    asking = Asking(fake)
    with asking.http:
        yield asking


@contextlib.asynccontextmanager
async def executing(kube: KubeAPI, user: str = "admin") -> AsyncIterator[KubernetesExecutor]:
    """Yield an executor."""
    cluster = KubernetesCluster(config_from(kube.kubeconfig(user)))
    try:
        yield KubernetesExecutor(
            cluster,
            name="approver",
            instance="pod-1",
            leading=lambda: True,
            clock=SystemClock(),
            log=Log(),
        )
    finally:
        await cluster.aclose()


def apply(kube: KubeAPI, *actions: Action, user: str = "admin") -> None:
    """Apply actions."""

    async def go() -> None:
        async with executing(kube, user) as executor:
            await executor.apply(actions)

    run(go())


def test_a_request_is_decided_and_the_decision_stays(kube: KubeAPI, ask: Asking) -> None:
    """A second decision about what was judged before is 409: the object is another one by now."""
    for action, type_ in ((Approve, "Approved"), (Deny, "Denied")):
        raw = ask.csr(next(NAMES))
        target = Target.of(CSR, raw)
        apply(kube, action(target=target, reason="Because", message="of this"))
        [condition] = ask.get(f"{CSRS}/{target.name}")["status"]["conditions"]
        assert (condition["type"], condition["reason"], condition["message"]) == (type_, "Because", "of this")
        with pytest.raises(ObjectChanged):
            apply(kube, Deny(target=target, reason="Late", message="x"))


def test_what_is_gone_or_another_one_is_left_alone(kube: KubeAPI, ask: Asking) -> None:
    """Deleted in between: nothing is done, or it is read again. Made anew under its name: not what was judged."""
    name = next(NAMES)
    target = Target.of(CSR, ask.csr(name))
    ask.http.delete(f"{CSRS}/{name}").raise_for_status()
    with contextlib.suppress(ObjectChanged):  # 409 on 1.20, for the UID; 404 elsewhere
        apply(kube, Approve(target=target, reason="R", message="m"))
    again = ask.csr(name)
    with pytest.raises(ObjectChanged):
        apply(kube, Approve(target=target, reason="R", message="m"))
    with pytest.raises(ObjectChanged):
        apply(kube, PutCertificate(target=target, certificate_pem="x"))
    assert ask.get(f"{CSRS}/{name}")["metadata"]["uid"] == again["metadata"]["uid"]
    assert not ask.get(f"{CSRS}/{name}")["status"].get("conditions")


def test_a_certificate_and_a_failure_go_by_status(kube: KubeAPI, ask: Asking) -> None:
    """Conditions that are there stay."""
    for name in (next(NAMES), next(NAMES)):
        target = Target.of(CSR, ask.csr(name, SIGNER))
        apply(kube, Approve(target=target, reason="R", message="m"))
        raw = ask.get(f"{CSRS}/{name}")
        if name.endswith(("0", "2", "4", "6", "8")):
            apply(kube, PutCertificate(target=Target.of(CSR, raw), certificate_pem=_pem()))
            assert "certificate" in ask.get(f"{CSRS}/{name}")["status"]
        else:
            conditions = tuple(raw["status"]["conditions"])
            apply(
                kube,
                Fail(target=Target.of(CSR, raw), reason="F", message="m", conditions=conditions),
            )
        found = ask.get(f"{CSRS}/{name}")["status"]["conditions"]
        assert "Approved" in {each["type"] for each in found}


def _pem() -> str:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    key, at = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, at, at + timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def test_an_event_is_written_once(kube: KubeAPI, ask: Asking) -> None:
    """The same about the same object."""
    target = Target.of(CSR, ask.csr(next(NAMES)))
    event = EmitEvent(target=target, action="Approve", reason="TpmAttested", note="well")
    apply(kube, event, event)
    found = [each for each in ask.get(EVENTS)["items"] if each["regarding"].get("uid") == target.uid]
    assert [(each["reason"], each["note"]) for each in found] == [("TpmAttested", "well")]


def test_a_node_is_patched_if_it_is_still_the_same(kube: KubeAPI, ask: Asking) -> None:
    """Labels, taints and cordon together; what others wrote in between makes it another one (409)."""
    name = next(NAMES)
    target = Target.of(NODE, ask.node(name))
    taint = {"key": "itl.io/x", "effect": "NoSchedule"}
    apply(kube, PatchNode(target=target, labels={"a": "b"}, taints=(taint,), unschedulable=True))
    raw = ask.get(f"{NODES}/{name}")
    assert raw["metadata"]["labels"]["a"] == "b"
    assert taint.items() <= raw["spec"]["taints"][0].items()
    assert raw["spec"]["unschedulable"] is True
    with pytest.raises(ObjectChanged):
        apply(kube, PatchNode(target=target, labels={"a": None}))
    apply(kube, PatchNode(target=Target.of(NODE, raw), labels={"a": None}, taints=(), unschedulable=False))
    raw = ask.get(f"{NODES}/{name}")
    assert "a" not in raw["metadata"].get("labels", {})
    assert not raw["spec"].get("unschedulable")
    assert "itl.io/x" not in {each["key"] for each in raw["spec"].get("taints", [])}
    assert not raw["metadata"].get("annotations")
    assert not raw["metadata"].get("finalizers")
    with pytest.raises(ObjectChanged):
        apply(kube, Delete(target=target))
    apply(kube, Delete(target=Target.of(NODE, raw)))
    assert ask.http.get(f"{NODES}/{name}").status_code == 404


def test_two_say_their_parts_of_a_status(kube: KubeAPI, ask: Asking) -> None:
    """Each takes back its own alone; the list of conditions has one of each type."""

    async def served() -> bool:
        return ask.http.get(ONE).status_code == 200

    run(until(served))  # it is served a moment after it was made known
    ask.http.delete(f"{ONE}/cluster")
    raw = ask.make(
        ONE,
        {
            "apiVersion": "attestation.itl.io/v1alpha1",
            "kind": "NodeAttestation",
            "metadata": {"name": "cluster"},
            "spec": {},
        },
    )
    target = Target.of(NODE_ATTESTATION, raw)
    assert raw["spec"]["inTreeApprover"] == "strict"

    def condition(type_: str, status: str) -> dict[str, Any]:
        return {
            "type": type_,
            "status": status,
            "reason": "R",
            "message": "m",
            "lastTransitionTime": "2026-11-23T12:00:00Z",
        }

    apply(
        kube,
        SetStatus(target=target, manager="one", status={"conditions": [condition("Ready", "True")]}),
        SetStatus(target=target, manager="two", status={"conditions": [condition("Other", "True")]}),
        SetStatus(target=target, manager="one", status={"conditions": [condition("Ready", "False")]}),
    )
    found = {each["type"]: each["status"] for each in ask.get(f"{ONE}/cluster")["status"]["conditions"]}
    assert found == {"Ready": "False", "Other": "True"}
    apply(kube, SetStatus(target=target, manager="two", status={}))
    found = {each["type"]: each["status"] for each in ask.get(f"{ONE}/cluster")["status"]["conditions"]}
    assert found == {"Ready": "False"}
    assert ask.http.delete(f"{ONE}/cluster").status_code == 200


def test_a_missing_right_is_a_refusal(kube: KubeAPI, ask: Asking) -> None:
    """Not something that a second attempt mends."""
    target = Target.of(CSR, ask.csr(next(NAMES)))
    with pytest.raises(ClusterRefused):
        apply(kube, Deny(target=target, reason="R", message="m"), user="stranger")


def test_an_api_server_that_is_away_is_away(kube: KubeAPI, tmp_path: Path) -> None:
    """Whatever is asked; and a file that says where it is must be there."""
    file = tmp_path / "kubeconfig"
    file.write_text(kube.kubeconfig("admin").read_text().replace(kube.url, "https://127.0.0.1:9"))

    async def go() -> None:
        cluster = KubernetesCluster(config_from(file))
        with pytest.raises(ClusterUnavailable):
            await cluster.read(Key(kind=NODE, name="x"))
        with pytest.raises(ClusterUnavailable):
            await cluster.list(CSR)
        await cluster.aclose()

    run(go())
    with pytest.raises(ClusterUnavailable):
        config_from(tmp_path / "none")


class Approving:
    """Approves all requests of one name; asks the service as little as it can."""

    name = "approver"
    watches: tuple[Kind, ...] = (CSR, NODE_ATTESTATION)
    rounds: tuple[Round, ...] = ()

    def __init__(self, around: Around, prefix: str) -> None:
        self.around = around
        self.prefix = prefix
        self.looked: list[str] = []
        self.failing = 0

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Approve it, once."""
        if key.kind is not CSR or not key.name.startswith(self.prefix):
            return None
        self.looked.append(key.name)
        if self.failing:
            self.failing -= 1
            raise Unavailable("the service is away")
        raw = seen if seen is not None else await self.around.cluster.read(key)
        if raw is None or raw.get("status", {}).get("conditions"):
            return None
        target = Target.of(CSR, raw)
        await self.around.executor.apply(
            [Approve(target=target, reason=self.around.settings.identity, message="m")]
        )
        return None


class Replica:
    """A program that runs, and what it was made with."""

    def __init__(
        self,
        kube: KubeAPI,
        prefix: str,
        *,
        identity: str = "a",
        lease: str = "",
        make: type[Approving] = Approving,
    ) -> None:
        settings = Settings.load(
            {
                "ITL_OPERATOR_SERVICE_URL": "http://127.0.0.1:9",
                "ITL_OPERATOR_KUBECONFIG": str(kube.kubeconfig("admin")),
                "ITL_OPERATOR_NAMESPACE": "default",
                "ITL_OPERATOR_IDENTITY": identity,
                "ITL_OPERATOR_LISTEN_PORT": "0",
            }
        )
        self.log = Log()
        self._controller = make
        self.controller: Approving | None = None
        self.prefix = prefix
        self.program = Program(lease or prefix, settings, self._make, clock=SystemClock(), log=self.log)
        self.task: asyncio.Task[None] | None = None

    def _make(self, around: Around) -> Approving:
        self.controller = self._controller(around, self.prefix)
        return self.controller

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.program.run())
        await until(self._up)
        return self

    async def _up(self) -> bool:
        assert self.task is not None
        if self.task.done():
            await self.task
        return self.program.port is not None

    async def __aexit__(self, *_: object) -> None:
        self.program.stop()
        assert self.task is not None
        await self.task

    async def asks(self, path: str) -> httpx.Response:
        """Ask its probes."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            return await http.get(f"http://127.0.0.1:{self.program.port}{path}")

    async def leads(self) -> bool:
        """True where it acts."""
        return "itl_operator_leading 1.0" in (await self.asks("/metrics")).text


def decided(ask: Asking, *names: str) -> Callable[[], Awaitable[bool]]:
    """Return whether all of them have a condition."""

    async def found() -> bool:
        return all(
            [
                (await asyncio.to_thread(ask.get, f"{CSRS}/{name}"))["status"].get("conditions")
                for name in names
            ]
        )

    return found


def test_requests_of_before_and_after_are_decided_and_left_as_they_were(kube: KubeAPI, ask: Asking) -> None:
    """Those that were there at the start, and later ones; none gets an annotation or a finalizer."""

    async def go() -> None:
        prefix = next(NAMES)
        ask.csr(f"{prefix}-before")
        async with Replica(kube, prefix) as replica:
            await until(decided(ask, f"{prefix}-before"))
            ask.csr(f"{prefix}-after")
            await until(decided(ask, f"{prefix}-after"))
            ready = await replica.asks("/readyz")
            assert ready.status_code == 200
            assert ready.json()["facts"]["cluster"]["well"] is True
            assert (await replica.asks("/healthz")).json() == {"status": "ok"}
            assert "itl_operator_handled_total{outcome=" in (await replica.asks("/metrics")).text
        for name in ("before", "after"):
            metadata = ask.get(f"{CSRS}/{prefix}-{name}")["metadata"]
            assert not metadata.get("annotations")
            assert not metadata.get("finalizers")

    run(go())


def test_what_failed_is_tried_again(kube: KubeAPI, ask: Asking) -> None:
    """A handler of kopf's would forget it; the queue does not."""

    async def go() -> None:
        prefix = next(NAMES)
        async with Replica(kube, prefix) as replica:
            assert replica.controller is not None
            replica.controller.failing = 2
            ask.csr(prefix)
            await until(decided(ask, prefix))
            assert replica.log.events.count("handle.away") == 2

    run(go())


def test_one_of_two_acts_and_the_other_takes_over(kube: KubeAPI, ask: Asking) -> None:
    """At the end of the first its lease is given up; both are ready all the time."""

    async def go() -> None:
        prefix = next(NAMES)
        async with Replica(kube, prefix, identity="a") as first:
            await until(first.leads)
            async with Replica(kube, prefix, identity="b") as second:

                async def ready() -> bool:
                    return (await second.asks("/readyz")).status_code == 200

                await until(ready)
                ask.csr(f"{prefix}-1")
                await until(decided(ask, f"{prefix}-1"))
                assert not await second.leads()
                first.program.stop()
                await until(second.leads)
                ask.csr(f"{prefix}-2")
                await until(decided(ask, f"{prefix}-2"))
        by = [ask.get(f"{CSRS}/{prefix}-{n}")["status"]["conditions"][0]["reason"] for n in (1, 2)]
        assert by == ["a", "b"]
        lease = ask.get(f"{LEASES}/attestation-operator-{prefix}")
        assert lease["spec"]["holderIdentity"] == ""

    run(go())


def test_who_lost_the_lease_stops_at_once(kube: KubeAPI, ask: Asking) -> None:
    """Somebody else has it: no action is applied any more, whatever is in hand."""

    async def go() -> None:
        prefix = next(NAMES)
        async with Replica(kube, prefix) as replica:
            await until(replica.leads)
            name = f"{LEASES}/attestation-operator-{prefix}"

            def steal() -> bool:
                lease = ask.get(name)
                lease["spec"] |= {"holderIdentity": "thief", "leaseDurationSeconds": 3600}
                return ask.http.put(name, json=lease).status_code == 200

            async def stolen() -> bool:
                return await asyncio.to_thread(steal)

            await until(stolen)

            async def idle() -> bool:
                return not await replica.leads()

            await until(idle)
            assert "lease.lost" in replica.log.events
            assert replica.controller is not None
            with pytest.raises(NotLeading):
                await replica.controller.around.executor.apply(
                    [Approve(target=Target.of(CSR, ask.csr(prefix)), reason="R", message="m")]
                )

    run(go())


def test_watches_that_break_or_are_too_old_begin_anew(fake: FakeKube, ask_fake: Asking) -> None:
    """A network that cuts them, and 410: nothing that happened in between is missed."""

    async def go() -> None:
        ask = ask_fake
        prefix = next(NAMES)
        async with Replica(fake, prefix):
            ask.csr(f"{prefix}-0")
            await until(decided(ask, f"{prefix}-0"))
            for number, harm in enumerate((fake.api.drop_watches, fake.api.forget), start=1):
                await asyncio.to_thread(harm)
                if number == 2:
                    await asyncio.to_thread(fake.api.drop_watches)
                ask.csr(f"{prefix}-{number}")
                await until(decided(ask, f"{prefix}-{number}"))

    run(go())


class Knowing(Approving):
    """Remembers the objects of a kind that is defined by somebody else."""

    watches = (CSR, HSM)

    def __init__(self, around: Around, prefix: str) -> None:
        super().__init__(around, prefix)
        self.known: set[str] = set()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Remember it; approve requests as ever."""
        if key.kind is HSM:
            self.known.add(key.name)
        return await super().handle(key, seen)

    def knows(self, name: str) -> Callable[[], Awaitable[bool]]:
        """Return whether it has seen the object of that name."""

        async def known() -> bool:
            await asyncio.sleep(0.01)
            return name in self.known

        return known


def test_a_kind_that_comes_later_or_anew_is_watched_then(
    fake: FakeKube, ask_fake: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's definition is absent at first, comes, goes, comes again; meanwhile the others are watched."""
    monkeypatch.setattr(program, "ABSENT_SECONDS", 0.05)
    monkeypatch.setattr(program, "pause_seconds", lambda *_: 0.05)
    ask, prefix = ask_fake, next(NAMES)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    objects = f"/apis/{HSM.api_version}/{HSM.plural}"

    def define() -> None:
        ask.http.post(definitions, json=crds.definition(HSM)).raise_for_status()

    def create(name: str) -> None:
        body = {"apiVersion": HSM.api_version, "kind": HSM.kind, "metadata": {"name": name}}
        ask.http.post(objects, json=body | {"spec": {"module": "softhsm"}}).raise_for_status()

    async def go() -> None:
        replica = Replica(fake, prefix, make=Knowing)
        async with replica:
            controller = replica.controller
            assert isinstance(controller, Knowing)
            for number in range(2):
                ask.csr(f"{prefix}-{number}")
                await until(decided(ask, f"{prefix}-{number}"))
                define()
                create(f"hsm-{number}")
                await until(controller.knows(f"hsm-{number}"))
                ask.http.delete(f"{definitions}/{HSM.plural}.{HSM.group}").raise_for_status()
                await asyncio.to_thread(fake.api.drop_watches)

    run(go())


def test_a_conflict_is_read_again(fake: FakeKube, ask_fake: Asking) -> None:
    """Another one writes between reading and deciding: 409, and the request is looked at again at once."""

    async def go() -> None:
        ask = ask_fake
        prefix = next(NAMES)

        def touch() -> None:
            patch = {"metadata": {"labels": {"touched": "yes"}}}
            with rest(fake) as http:
                http.patch(
                    f"{CSRS}/{prefix}", json=patch, headers={"Content-Type": "application/merge-patch+json"}
                ).raise_for_status()

        async with Replica(fake, prefix) as replica:
            await until(replica.leads)
            raw = ask.csr(prefix)
            assert raw["metadata"]["name"] == prefix
            await until(decided(ask, prefix))
            assert replica.controller is not None
            raw = ask.csr(f"{prefix}-x")
            old = Target.of(CSR, raw)
            await until(decided(ask, f"{prefix}-x"))
            await asyncio.to_thread(touch)
            with pytest.raises(ObjectChanged):
                await replica.controller.around.executor.apply([Deny(target=old, reason="R", message="m")])

    run(go())


def test_an_api_server_that_comes_back_is_used_again(fake: FakeKube, ask_fake: Asking) -> None:
    """While it answers 503 nothing is decided; /readyz says so."""

    async def go() -> None:
        ask = ask_fake
        prefix = next(NAMES)
        async with Replica(fake, prefix) as replica:
            await until(replica.leads)
            fault = fake.api.fail(resource="leases", status=503, times=None)

            async def unready() -> bool:
                return (await replica.asks("/readyz")).status_code == 503

            await until(unready)
            fake.api.faults.remove(fault)

            async def ready() -> bool:
                return (await replica.asks("/readyz")).status_code == 200

            await until(ready)
            ask.csr(prefix)
            await until(decided(ask, prefix))

    run(go())


def test_the_program_ends_at_sigterm_with_its_lease_given_up(fake: FakeKube, tmp_path: Path) -> None:
    """As a process: exit code 0, JSON logs, and the next replica need not wait."""
    definition = crds.definition(NODE_ATTESTATION)
    with contextlib.ExitStack() as stack, rest(fake) as http:
        http.post(KIND, json=definition).raise_for_status()
        environment = {
            "PATH": os.environ["PATH"],
            "ITL_OPERATOR_SERVICE_URL": "http://127.0.0.1:9",
            "ITL_OPERATOR_KUBECONFIG": str(fake.kubeconfig("admin")),
            "ITL_OPERATOR_NAMESPACE": "default",
            "ITL_OPERATOR_LISTEN_PORT": "0",
            "ITL_OPERATOR_LOG_FORMAT": "json",
        }
        log = stack.enter_context((tmp_path / "log").open("wb"))
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; from attestation_operator.main import main; sys.exit(main())",
                "approver",
            ],
            env=environment,
            stderr=log,
        )
        try:

            async def held() -> bool:
                found = await asyncio.to_thread(http.get, f"{LEASES}/attestation-operator-approver")
                return found.status_code == 200 and bool(found.json()["spec"]["holderIdentity"])

            run(until(held))
            process.terminate()
            assert process.wait(WAIT_SECONDS) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait()
        lease = http.get(f"{LEASES}/attestation-operator-approver").json()
        assert lease["spec"]["holderIdentity"] == ""
    said = (tmp_path / "log").read_text().splitlines()
    assert all(line.startswith("{") for line in said), said
    assert any('"operator.ends"' in line for line in said)
