"""What the controller of attestation runs relies on at the service: the same cases for the double and for the real one.

And once all of it together: the program, the real service, a node whose TPM is swtpm.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

from attestation.api.runs import RunBundle, RunDetail, RunOpen, RunSeal
from attestation.device import TPM, NodeTPM, open_transport
from attestation.errors import AttestationError, Unavailable
from attestation.report_data import run_nonce
from attestation.wire import b64decode
from attestation_operator.metrics import Metrics
from attestation_operator.objects import BUNDLE, RUN, SECURITY_EVENT, Key
from attestation_operator.runs import bundles, events, results
from attestation_operator.runs.objects import Condition, Phase, Standing, read_run
from attestation_operator.service import HTTPService
from attestation_testing import SoftwareTPM
from tests.fixtures.controllers import until
from tests.fixtures.in_process import InProcess, InProcessService, in_process_service
from tests.fixtures.kube import FakeKube, fake
from tests.fixtures.machine import Machine
from tests.fixtures.over_httpx import OverHTTPX
from tests.fixtures.run_double import RunDouble, run_double
from tests.fixtures.runs import NODES, path, prepared, running, said
from tests.integration.runs.clusters import RULE, Cluster, Node, on_loopback
from tests.integration.runs.test_acceptance import pinning
from tests.unit.operator.runs.world import result

__all__ = ["fake"]

NODE = "w-1"


class Side(Protocol):
    """One of the two: its service as the controller sees it, and what happens beside it."""

    service: HTTPService

    def now(self) -> datetime:
        """Return its time."""

    def pass_(self, seconds: float) -> None:
        """Let its time pass."""

    def answer(self, uid: str) -> None:
        """Have the node's agent answer honestly."""

    @property
    def policy(self) -> dict[str, Any]:
        """A policy that the node satisfies."""


class DoubleSide:
    """The double."""

    policy: ClassVar[dict[str, Any]] = {"tpm": {"pcrs": {"7": "ab" * 32}}}

    def __init__(self, double: RunDouble, folder: Path) -> None:
        self.double = double
        double.judge = lambda opened: None
        (folder / "token").write_text("token-of-the-pod")
        self.service = HTTPService(double.url, token_file=folder / "token", metrics=Metrics())

    def now(self) -> datetime:
        """Return its time."""
        return self.double.now()

    def pass_(self, seconds: float) -> None:
        """Let its time pass."""
        self.double.ahead += timedelta(seconds=seconds)

    def answer(self, uid: str) -> None:
        """Have the node's agent answer honestly."""
        self.double.runs[uid].judge(result("verified", source="ref"))


class RealSide:
    """The real one, and a node with a TPM."""

    def __init__(self, service: InProcessService, node: Node, folder: Path) -> None:
        self.node = node
        self._service = service
        token = node.cluster.token("runs")["Authorization"].removeprefix("Bearer ")
        (folder / "token").write_text(token)
        carrier = OverHTTPX(InProcess(service.app, service.run, "192.0.2.9"))
        self.service = HTTPService(
            "https://service.example", token_file=folder / "token", metrics=Metrics(), carrier=carrier
        )
        self.policy: dict[str, Any] = pinning(node)

    def now(self) -> datetime:
        """Return its time."""
        return self._service.clock.now()

    def pass_(self, seconds: float) -> None:
        """Let its time pass."""
        self._service.clock.pass_(seconds=seconds)

    def answer(self, uid: str) -> None:
        """Have the node's agent answer honestly."""
        self.node.answered(uid)


@contextmanager
def real(folder: Path) -> Iterator[tuple[InProcessService, Node]]:
    """Run the service, with one node whose machine attested."""
    with (
        in_process_service(
            folder / "service", kubernetes_clusters=json.dumps([RULE]), rate_limits=False
        ) as service,
        SoftwareTPM(folder / "tpm") as tpm,
        NodeTPM(TPM(open_transport(tpm.uri))) as device,
    ):
        cluster = Cluster(service)
        machine = Machine(device, cluster.http)
        machine.admitted(service.operator(), hostname=NODE)
        yield service, Node(cluster, NODE, machine)


@pytest.fixture(scope="module", params=["double", pytest.param("real", marks=pytest.mark.swtpm)])
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """One of the two."""
    folder = tmp_path_factory.mktemp("side")
    if request.param == "double":
        with run_double() as double:
            side: Side = DoubleSide(double, folder)
            with closing(side.service):
                yield side
        return
    with real(folder) as (service, node):
        side = RealSide(service, node, folder)
        with closing(side.service):
            yield side


def ask(work: Awaitable[Any]) -> Any:
    """Ask; an error is an answer too."""

    async def go() -> Any:
        try:
            return await work
        except AttestationError as e:
            return e

    return asyncio.run(go())


def opening(side: Side, name: str, **more: Any) -> RunOpen:
    """Return what a controller says of a run."""
    members: dict[str, Any] = {
        "cluster_id": "default",
        "namespace": "seed",
        "name": name,
        "node_name": NODE,
        "node_uid": f"uid-of-{NODE}",
        "backend": "tpm",
        "policy": side.policy,
        "policy_source": "ref",
        "policy_name": "prod",
        "deadline": side.now() + timedelta(minutes=3),
    }
    return RunOpen.model_validate(members | more)


def uid() -> str:
    """Return a UID that nothing else has."""
    return f"run-{secrets.token_hex(8)}"


def test_the_same_run_gets_the_open_attempt_again(side: Side) -> None:
    """Where the answer was lost, or another replica asked."""
    run = uid()
    asked = opening(side, run)
    first, second = ask(side.service.open_run(run, asked)), ask(side.service.open_run(run, asked))
    assert first.attempt == second.attempt == 1
    assert first.challenge_id == second.challenge_id
    found: RunDetail = ask(side.service.run(run))
    assert [(each.attempt, each.state) for each in found.attempts] == [(1, "open")]
    assert found.policy_id == first.policy_id
    assert found.attempts[0].challenge is None


def test_another_run_under_the_uid_is_refused_and_the_first_stays(side: Side) -> None:
    """As where the policy was edited in between."""
    run = uid()
    asked = opening(side, run)
    ask(side.service.open_run(run, asked))
    other = asked.model_copy(update={"node_uid": "another"})
    assert ask(side.service.open_run(run, other)).code == "run-differs"
    assert ask(side.service.run(run)).node_uid == asked.node_uid


def test_what_was_never_opened_is_unknown(side: Side) -> None:
    """And not "away": its deadline ends it, and nothing is sealed."""
    found = ask(side.service.run(uid()))
    assert found.code == "run-unknown"
    assert not isinstance(found, Unavailable)


def test_what_was_judged_says_so_and_shows_its_challenge(side: Side) -> None:
    """Whoever relies on the evidence computes the nonce again."""
    run = uid()
    opened = ask(side.service.open_run(run, opening(side, run)))
    side.answer(run)
    found: RunDetail = ask(side.service.run(run))
    [attempt] = found.attempts
    assert attempt.state == "judged"
    assert attempt.challenge_id == opened.challenge_id
    assert attempt.challenge is not None
    assert attempt.challenge.id == opened.challenge_id
    assert attempt.result is not None
    assert attempt.result.verdict == "verified"
    assert attempt.result.policy_source == "ref"
    assert attempt.result.quote is not None


def test_a_challenge_that_expired_is_followed_by_another_until_the_deadline(side: Side) -> None:
    """Attempt 2 while there is time; none when it is over."""
    run = uid()
    asked = opening(side, run)
    ask(side.service.open_run(run, asked))
    side.pass_(61)
    [attempt] = ask(side.service.run(run)).attempts
    assert attempt.state == "expired"
    assert attempt.challenge is not None
    assert ask(side.service.open_run(run, asked)).attempt == 2
    assert [each.state for each in ask(side.service.run(run)).attempts] == ["expired", "open"]
    late = uid()
    over = opening(side, late)
    side.pass_(181)
    assert ask(side.service.open_run(late, over)).code == "challenge-expired"


def test_a_seal_is_whole_in_the_end_and_covers_what_was_judged(side: Side) -> None:
    """The controller's own objects, as it makes them; the same may be asked again, and another verdict may not."""
    name = uid()
    ask(side.service.open_run(name, opening(side, name)))
    side.answer(name)
    detail: RunDetail = ask(side.service.run(name))
    wanted = sealing(name, detail)

    def is_sealed() -> bool:
        # The log is signed when a second has passed at the service, whose clock stands.
        side.pass_(1)
        found: RunBundle = ask(side.service.seal_run(name, wanted))
        return found.phase == "Sealed"

    until(is_sealed)
    sealed: RunBundle = ask(side.service.seal_run(name, wanted))
    assert sealed.log_entry is not None
    assert sealed.archive is not None
    assert ask(side.service.seal_run(name, wanted)) == sealed
    assert ask(side.service.seal_run(uid(), wanted)).code == "run-unknown"


def sealing(name: str, detail: RunDetail) -> RunSeal:
    """Return what the controller has sealed of a run that was judged."""
    spec = {"backend": "tpm", "targetNodeName": NODE, "policyRef": {"name": "prod"}}
    conditions = [{"type": Condition.ACCEPTED, "status": "True", "reason": Standing.ENFORCED}]
    status = {"phase": Phase.SUCCEEDED, "attempt": 1, "policyID": detail.policy_id, "conditions": conditions}
    status |= {"verdict": "verified", "resultRef": {"name": f"{name}-result"}}
    metadata = {"name": name, "namespace": "seed", "uid": name, "resourceVersion": "1"}
    metadata["creationTimestamp"] = "2026-11-26T12:00:00Z"
    run = read_run({"metadata": metadata, "spec": spec, "status": status})
    stored = {"uid": secrets.token_hex(8), "resourceVersion": "1"}
    written = results.result_object(run, detail, detail.attempts[0], reason=None)
    written["metadata"] |= stored
    recorder = events.EventRecorder(cluster_id="default", cluster_name="production", instance="i")
    event = recorder.event(
        run,
        recorder.ending(run),
        attempt=1,
        detected_at=datetime.now(UTC),
        signals=events.ending_signals(run, results.spec_sha256(written)),
        node=None,
    )
    event["metadata"] |= stored
    bundle = bundles.bundle_object(bundles.bundle_key(Key.of(SECURITY_EVENT, event)), event)
    bundle["metadata"] |= stored
    return bundles.seal_request(bundle, event, written)


@pytest.mark.swtpm
def test_a_run_of_a_node_with_a_tpm_is_verified_and_sealed(fake: FakeKube, tmp_path: Path) -> None:
    """All of it: the program, the real service, a quote of swtpm; what is archived proves itself, offline."""
    with ExitStack() as stack:
        service, node = stack.enter_context(real(tmp_path))
        # The service's clock stands at another time; tokens and deadlines are of one.
        service.clock.pass_(seconds=(datetime.now(UTC) - service.clock.now()).total_seconds())
        estate = stack.enter_context(prepared(fake))
        node.uid = estate.make(NODES, {"metadata": {"name": NODE}})["metadata"]["uid"]
        url = stack.enter_context(on_loopback(service))
        (tmp_path / "token").write_text(node.cluster.token("runs")["Authorization"].removeprefix("Bearer "))
        policy = estate.policy(pinning(node))
        stack.enter_context(running(fake, url, tmp_path, cluster_id="default"))
        good = estate.run(NODE, policyRef={"name": policy}, nonce="0123456789abcdef")
        wrong = estate.run(NODE, policy={"tpm": {"pcrs": {"7": "ab" * 32}}})

        def is_running(run: dict[str, Any]) -> bool:
            status = estate.get(path(RUN, run["metadata"]["name"])).get("status", {})
            return bool(status.get("phase") == "Running")

        for run in (good, wrong):
            until(partial(is_running, run))
            node.answered(run["metadata"]["uid"])

        def is_sealed(run: dict[str, Any]) -> bool:
            # The log is signed when a second has passed at the service, whose clock stands.
            service.clock.pass_(seconds=1)
            return "Sealed" in said(estate.get(path(RUN, run["metadata"]["name"])))

        for run in (good, wrong):
            until(partial(is_sealed, run))
        verified, failed = estate.ended(good), estate.ended(wrong)
        assert (verified["status"]["phase"], verified["status"]["verdict"]) == ("Succeeded", "verified")
        assert said(failed)["Failed"] == ("True", "VerdictFailed")
        assert estate.types(good) == ["AttestationStarted", "AttestationVerified"]
        assert estate.types(wrong) == ["AttestationFailed", "AttestationStarted"]
        found = estate.result(good)
        assert found["status"]["trusted"] is True
        assert found["spec"]["machineID"] == node.machine.machine_id
        challenge = verified["status"]["challenge"]
        random = b64decode(challenge["random"], "random")
        nonce = run_nonce(random, good["metadata"]["uid"], b"0123456789abcdef")
        assert b64decode(challenge["nonce"], "nonce") == nonce
        for run in (verified, failed):
            assert said(run)["Sealed"] == ("True", "Sealed")
        phases = [each["status"]["phase"] for each in estate.items(BUNDLE)]
        assert phases == ["Sealed", "Sealed"]
