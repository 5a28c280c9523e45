"""The controller of attestation runs as a program: C3, C6, C7, C8, C11, C12, C14 of CONFIDENTIAL §5.

On our Kubernetes API and on the real one; the service is a double, which a contract suite compares with the real one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from attestation.api.runs import RunOpen, RunResult
from attestation.clock import SystemClock, parse_rfc3339
from attestation_operator.actions import Action
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.controller import Around
from attestation_operator.errors import ObjectChanged
from attestation_operator.executor import KubernetesExecutor
from attestation_operator.health import Health
from attestation_operator.metrics import Metrics
from attestation_operator.nodes.objects import ATTESTED_LABEL
from attestation_operator.objects import BUNDLE, POLICY, RESULT, RUN, Key
from attestation_operator.runs.cases import RunOptions
from attestation_operator.runs.controllers import Runs
from attestation_operator.runs.events import EventRecorder
from attestation_operator.service import HTTPService
from attestation_operator.settings import Settings
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, KubeAPI, fake, kube
from tests.fixtures.run_double import RunDouble, run_double
from tests.fixtures.runs import CLUSTER, NODES, SPACE, Cluster, path, prepared, running, said
from tests.unit.operator.runs.world import ENFORCED, REPORTED, result, unavailable

__all__ = ["fake", "kube"]

MERGE = {"Content-Type": "application/merge-patch+json"}
STARTED, VERIFIED = "AttestationStarted", "AttestationVerified"
FAILED, UNDECIDED = "AttestationFailed", "AttestationIndeterminate"


@pytest.fixture(scope="module")
def ready(kube: KubeAPI) -> Iterator[Cluster]:
    """A cluster that is ready for us."""
    with prepared(kube) as found:
        yield found


@pytest.fixture
def service() -> Iterator[RunDouble]:
    """The service."""
    with run_double() as double:
        yield double


def test_c3_a_policy_is_named_and_found(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Missing: PolicyNotFound. Edited: another policyID, in its status and for runs that begin later."""
    node, policy = ready.node(), ready.policy()
    with running(kube, service.url, tmp_path):
        absent = ready.ended(ready.run(node, policyRef={"name": "absent"}))
        assert said(absent)["Failed"] == ("True", "PolicyNotFound")
        first = ready.ended(ready.run(node, policyRef={"name": policy}))
        assert first["status"]["phase"] == "Succeeded"
        before = until(lambda: ready.get(path(POLICY, policy)).get("status")) or {}
        assert before["conditions"][0]["status"] == "True"
        edited = {"spec": {"tpm": {"pcrs": {"7": "cd" * 32}}}}
        assert ready.admin.patch(path(POLICY, policy), json=edited, headers=MERGE).status_code == 200

        def again() -> str | None:
            status = ready.get(path(POLICY, policy))["status"]
            return status["policyID"] if status["observedGeneration"] == 2 else None

        assert until(again) != before["policyID"]
        second = ready.ended(ready.run(node, policyRef={"name": policy}))
    documents = [service.runs[run["metadata"]["uid"]].opened for run in (first, second)]
    assert documents[0] is not None
    assert documents[1] is not None
    assert documents[0].policy != documents[1].policy


def test_c6_phase_and_event_follow_the_verdict(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Every row of §2.5 and of §3 that needs no waiting."""
    policy = {"policyRef": {"name": ready.policy()}}
    reported = {"policyRef": {"name": ready.policy(REPORTED)}}
    rows: list[tuple[RunResult, dict[str, Any], str, str | None, str, str]] = [
        (result("verified"), policy, "Succeeded", None, VERIFIED, "info"),
        (result("failed"), policy, "Failed", "VerdictFailed", FAILED, "critical"),
        (
            result("failed", rejected="signature-invalid"),
            policy,
            "Failed",
            "EvidenceRejected",
            FAILED,
            "critical",
        ),
        (unavailable("device-busy"), policy, "Failed", "DeviceUnavailable", FAILED, "critical"),
        (result("indeterminate"), policy, "Succeeded", None, UNDECIDED, "medium"),
        (result("indeterminate", mode="report"), reported, "Succeeded", None, UNDECIDED, "info"),
        (result("indeterminate", mode="report", source="none"), {}, "Succeeded", None, UNDECIDED, "info"),
    ]
    found: dict[str, RunResult] = {}
    service.judge = lambda opened: found[opened.node_name]
    with running(kube, service.url, tmp_path):
        runs = []
        for judged, spec, *_ in rows:
            node = ready.node()
            found[node] = judged
            runs.append(ready.run(node, **spec))
        for (judged, _, phase, reason, type_, severity), run in zip(rows, runs, strict=True):
            ended = ready.ended(run)
            assert ended["status"]["phase"] == phase
            assert ended["status"]["verdict"] == judged.verdict
            assert said(ended).get("Failed") == (None if reason is None else ("True", reason))
            assert ready.types(run) == sorted([STARTED, type_])
            [event] = [each for each in ready.events(run) if each["spec"]["type"] == type_]
            assert event["spec"]["severity"] == severity
            assert event["status"]["phase"] == "Archived"
            assert ready.result(run)["spec"]["verdict"] == judged.verdict
            assert ("quote" in ready.result(run)["spec"]) == (judged.unavailable is None)


def test_c7_one_event_for_each_fact(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """50 nodes in one second: 100 events; a controller that begins anew adds none."""
    policy = {"name": ready.policy()}
    runs = [ready.run(ready.node(), policyRef=policy) for _ in range(50)]
    for _ in range(2):
        with running(kube, service.url, tmp_path):
            for run in runs:
                assert ready.ended(run)["status"]["phase"] == "Succeeded"
            assert ready.types(*runs) == [STARTED] * 50 + [VERIFIED] * 50


def test_c8_trusted_is_stored_and_ends(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Read back from the API server, which drops `status` of what is created; cleared when its time is over."""
    policy = {"name": ready.policy()}
    soon = token(exp=int((datetime.now(UTC) + timedelta(seconds=3)).timestamp()))
    service.judge = lambda opened: result("verified", attestation_result=soon if opened.nonce else None)
    with running(kube, service.url, tmp_path):
        lasting = ready.run(ready.node(), policyRef=policy)
        brief = ready.run(ready.node(), policyRef=policy, nonce="0123456789abcdef")
        ready.ended(lasting)
        ready.ended(brief)
        assert ready.result(lasting)["status"]["trusted"] is True
        until(lambda: ready.result(brief)["status"]["trusted"] is False)
    until_ = parse_rfc3339(ready.result(lasting)["status"]["trustedUntil"])
    assert until_ > datetime.now(UTC) + timedelta(hours=100)


def token(**claims: Any) -> str:
    """Return a JWT that nobody signed."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"e30.{body}.c2ln"


class Ahead:
    """A clock that is ahead of that of the computer, or behind it.

    Args:
        seconds: By so much.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now(self) -> datetime:
        """Return the time."""
        return datetime.now(UTC) + timedelta(seconds=self.seconds)


class Held:
    """A clock that stands where a test puts it."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC).replace(microsecond=0)

    def now(self) -> datetime:
        """Return the time."""
        return self.at


def test_c11_the_timeout_is_enforced(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """No agent: AgentAbsent at the deadline ± 5 s. The unit tests have that no look lies beyond it."""
    service.judge = lambda opened: None
    clock, kept = Held(), timedelta(seconds=5)
    run = ready.run(ready.node(), policyRef={"name": ready.policy()}, timeout="2m")
    where = path(RUN, run["metadata"]["name"])
    with running(kube, service.url, tmp_path, clock=clock):
        until(lambda: ready.get(where).get("status", {}).get("phase") == "Running")
        assert ready.types(run) == [STARTED]
        deadline = parse_rfc3339(ready.get(where)["status"]["deadline"])
        assert deadline == clock.at + timedelta(minutes=2)
        clock.at = deadline - timedelta(seconds=1)
        # A look may have begun before that; the one after it has not.
        looks = len(service.asked) + 2
        until(lambda: len(service.asked) >= looks)
        assert ready.get(where)["status"]["phase"] == "Running"
        # It stands there: what has not ended by then never does.
        clock.at = deadline + kept
        ended = ready.ended(run)
    assert said(ended)["Failed"] == ("True", "AgentAbsent")
    assert deadline <= parse_rfc3339(ended["status"]["completionTime"]) <= deadline + kept
    assert ready.types(run) == [FAILED, STARTED]
    # An Event for people, by the right that the chart grants, in the run's own namespace.
    told = ready.get(f"/apis/events.k8s.io/v1/namespaces/{SPACE}/events")["items"]
    uid = run["metadata"]["uid"]
    assert [(e["type"], e["reason"]) for e in told if e["regarding"]["uid"] == uid] == [
        ("Warning", "AgentAbsent")
    ]


@pytest.mark.parametrize("seconds", [60, -60])
def test_c12_clocks_may_differ_by_a_minute(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path, seconds: float
) -> None:
    """That of the controller and that of the service."""
    run = ready.run(ready.node(), policyRef={"name": ready.policy()})
    with running(kube, service.url, tmp_path, clock=Ahead(seconds)):
        assert ready.ended(run)["status"]["phase"] == "Succeeded"
    assert ready.types(run) == [STARTED, VERIFIED]


class Killed(Exception):
    """The process ended."""


class Mortal:
    """One process of the controller, which ends before its step of a number: a question asked, an action done.

    Args:
        kube: The API server.
        service: The service.
        folder: With a token.
        steps: How many it lives to see.
    """

    def __init__(self, kube: KubeAPI, service: RunDouble, folder: Path, steps: int) -> None:
        self._left = steps
        self._kube, self._service = kube, service
        self._token = folder / "token"
        self._token.write_text("token-of-the-pod")

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed

    async def apply(self, actions: Iterable[Action]) -> None:
        """Apply actions, one step for each."""
        for action in actions:
            self._step()
            await self._executor.apply([action])

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._http, name)

        async def ask(*args: Any) -> Any:
            answer = await asked(*args)
            self._step()
            return answer

        return ask

    async def live(self, run: dict[str, Any]) -> bool:
        """Take a run as far as it comes; False where it lived to see the end."""
        log = structlog.get_logger()
        cluster = KubernetesCluster(config_from(self._kube.kubeconfig("runs")))
        metrics = Metrics()
        self._http = HTTPService(self._service.url, token_file=self._token, metrics=metrics)
        self._executor = KubernetesExecutor(
            cluster, name="runs", instance="i", leading=lambda: True, clock=SystemClock(), log=log
        )
        around = Around(
            cluster=cluster,
            executor=self,
            service=self,
            clock=SystemClock(),
            health=Health(),
            metrics=metrics,
            settings=Settings(service_url=self._service.url),
            log=log,
        )
        recorder = EventRecorder(cluster_id=CLUSTER, cluster_name=CLUSTER, instance="i")
        controller = Runs(around, RunOptions(recorder=recorder, result_ttl=timedelta(hours=1)))
        key = Key(kind=RUN, name=run["metadata"]["name"], namespace=SPACE)
        try:
            for _ in range(50):
                try:
                    if await controller.handle(key, None) is None:
                        return False
                except ObjectChanged:
                    continue
        except Killed:
            return True
        finally:
            self._http.close()
            await cluster.aclose()
        raise AssertionError("it does not end")


def test_c12_a_controller_may_be_killed_at_each_arrow(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """After each question and before each action: one Result, one event of each type, one bundle, whoever goes on."""
    policy, node = {"name": ready.policy()}, ready.node()
    for steps in range(40):
        run = ready.run(node, policyRef=policy)
        was_killed = asyncio.run(Mortal(kube, service, tmp_path, steps).live(run))
        if was_killed:
            assert not asyncio.run(Mortal(kube, service, tmp_path, 1000).live(run))
        ended = ready.ended(run)
        assert ended["status"]["phase"] == "Succeeded", steps
        assert ready.types(run) == [STARTED, VERIFIED], steps
        assert ready.result(run)["status"]["trusted"] is True
        events = {each["metadata"]["name"] for each in ready.events(run)}
        bundles = [each for each in ready.items(BUNDLE) if each["spec"]["attestedFor"]["name"] in events]
        assert [each["status"]["phase"] for each in bundles] == ["Sealed"]
        if not was_killed:
            assert steps > 10
            return
    raise AssertionError("it never lived to see the end")


def test_c12_two_that_lead_at_once_make_one_of_each(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Each holds a lease of its own, as two may for some seconds."""
    barrier = threading.Barrier(2)

    def together(method: str, uid: str) -> None:
        # Both ask about the same run before either is answered, where both ask at all.
        if method == "PUT":
            try:
                barrier.wait(0.2)
            except threading.BrokenBarrierError:
                barrier.reset()

    service.hold = together
    policy = {"name": ready.policy()}
    with ExitStack() as stack:
        for namespace in ("default", "kube-system"):
            stack.enter_context(
                running(kube, service.url, tmp_path, namespace=namespace, identity=f"replica-{namespace}")
            )
        runs = [ready.run(ready.node(), policyRef=policy) for _ in range(6)]
        for run in runs:
            assert ready.ended(run)["status"]["phase"] == "Succeeded"
            assert ready.types(run) == [STARTED, VERIFIED]
    uids = [run["metadata"]["uid"] for run in runs]
    results = [each["spec"]["derivedFromRun"]["uid"] for each in ready.items(RESULT)]
    assert sorted(each for each in results if each in uids) == sorted(uids)


def test_c12_a_service_that_is_away_is_waited_for(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Killed and back: the run goes on where it was, and nobody is told of a restart."""
    service.judge = lambda opened: None
    run = ready.run(ready.node(), policyRef={"name": ready.policy()})
    with running(kube, service.url, tmp_path):
        until(lambda: ready.types(run) == [STARTED])
        service.away = True
        where = path(RUN, run["metadata"]["name"])
        until(lambda: said(ready.get(where)).get("Judged") == ("Unknown", "ServiceUnavailable"))
        service.judge = lambda opened: result()
        service.away = False
        assert ready.ended(run)["status"]["phase"] == "Succeeded"


def test_c12_an_api_server_that_fails_leaves_nothing_undone(
    fake: FakeKube, service: RunDouble, tmp_path: Path
) -> None:
    """Watches cut, 410, answers lost, refusals for a while: nothing is missed, and nothing is done twice."""
    ours = "attestation-runs"

    def cut() -> None:
        fake.api.forget()
        fake.api.drop_watches()

    def lose() -> None:
        for verb, resource in (
            ("create", "securityevents"),
            ("create", "confidentialattestationresults"),
            ("create", "attestationbundles"),
            ("patch", "confidentialattestationruns"),
            ("patch", "securityevents"),
        ):
            fake.api.fail(user=ours, verb=verb, resource=resource, lose_answer=True)

    def refuse() -> None:
        fake.api.fail(user=ours, times=4, status=503)

    with prepared(fake) as ready:
        policy = {"name": ready.policy()}
        with running(fake, service.url, tmp_path):
            for harm in (fake.api.drop_watches, cut, lose, refuse):
                harm()
                run = ready.run(ready.node(), policyRef=policy)
                assert ready.ended(run)["status"]["phase"] == "Succeeded"
                assert ready.types(run) == [STARTED, VERIFIED]
                assert ready.result(run)["status"]["trusted"] is True
        assert len(ready.items(RESULT)) == len(ready.items(BUNDLE)) == 4


def test_c14_an_inline_policy_gives_no_standing(
    kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """Verified inline: not trusted, and the taint of a failed run stays; a verified run by reference lifts it."""
    node, policy = ready.node(), {"name": ready.policy()}
    verdicts = {"0123456789abcdef": "failed"}

    def judge(opened: RunOpen) -> RunResult:
        return result(verdicts.get(opened.nonce or "", "verified"), source=opened.policy_source)

    service.judge = judge

    def taints() -> list[str]:
        found = ready.get(f"{NODES}/{node}").get("spec", {}).get("taints") or []
        return [each["key"] for each in found if each["key"].startswith("security.ugallu.io/")]

    with running(kube, service.url, tmp_path, node_action="taint", node_action_namespaces=SPACE):
        inline = ready.run(node, policy=dict(ENFORCED))
        assert ready.ended(inline)["status"]["verdict"] == "verified"
        assert ready.result(inline)["status"] == {"trusted": False}
        assert taints() == []
        ready.ended(ready.run(node, policyRef=policy, nonce="0123456789abcdef"))
        assert taints() == ["security.ugallu.io/unattested"]
        ready.ended(ready.run(node, policy=dict(ENFORCED)))
        assert taints() == ["security.ugallu.io/unattested"]
        ready.ended(ready.run(node, policyRef=policy))
        assert taints() == []


@pytest.mark.parametrize("action", ["label", "cordon"])
def test_a_run_marks_its_node(
    action: str, kube: KubeAPI, ready: Cluster, service: RunDouble, tmp_path: Path
) -> None:
    """§4, as C14 does for taints: a run that failed marks the Node, a later verified one takes that back."""
    node, policy = ready.node(), {"name": ready.policy()}
    verdicts = {"0123456789abcdef": "failed"}

    def judge(opened: RunOpen) -> RunResult:
        return result(verdicts.get(opened.nonce or "", "verified"), source=opened.policy_source)

    service.judge = judge

    def marks() -> tuple[Any, bool]:
        found = ready.get(f"{NODES}/{node}")
        labels, spec = found["metadata"].get("labels") or {}, found.get("spec") or {}
        return labels.get(ATTESTED_LABEL), bool(spec.get("unschedulable"))

    with running(kube, service.url, tmp_path, node_action=action, node_action_namespaces=SPACE):
        ready.ended(ready.run(node, policyRef=policy, nonce="0123456789abcdef"))
        assert marks() == (("failed", False) if action == "label" else (None, True))
        ready.ended(ready.run(node, policy=dict(ENFORCED)))
        assert marks() == (("failed", False) if action == "label" else (None, True))
        ready.ended(ready.run(node, policyRef=policy))
        assert marks() == (("verified", False) if action == "label" else (None, False))
