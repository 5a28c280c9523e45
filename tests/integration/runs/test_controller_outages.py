"""The controller of attestation runs while the API server is not what it should be: C12 of CONFIDENTIAL §5.

Only our Kubernetes API can be told to fail.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from attestation_operator.objects import BUNDLE, RUN
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, fake
from tests.fixtures.run_double import run_double, verified
from tests.fixtures.runs import CLUSTER, SPACE, Cluster, path, prepared, running, said

__all__ = ["fake"]


def test_c12_watches_that_break_or_are_too_old_lose_no_run(fake: FakeKube, tmp_path: Path) -> None:
    """A network that cuts them, and 410: a run that came or was judged meanwhile comes to its end, told once."""
    with prepared(fake) as cluster, run_double() as service:
        policy = {"name": cluster.policy()}
        with running(fake, service.url, tmp_path):
            for harms in ([fake.api.drop_watches], [fake.api.forget, fake.api.drop_watches]):
                service.judge = lambda opened: None
                before = cluster.run(cluster.node(), policyRef=policy)
                until(lambda run=before: cluster.types(run) == ["AttestationStarted"])  # type: ignore[misc]
                for harm in harms:
                    harm()
                meanwhile = cluster.run(cluster.node(), policyRef=policy)
                service.judge = verified
                for run in (before, meanwhile):
                    assert cluster.ended(run)["status"]["phase"] == "Succeeded"
                    assert cluster.types(run) == ["AttestationStarted", "AttestationVerified"]
                    assert cluster.result(run)["status"]["trusted"] is True


def test_c12_an_api_server_that_restarts_is_waited_for(fake: FakeKube, tmp_path: Path) -> None:
    """It answers nobody while a run is judged; back again, the run has one Result and one event of each type."""
    with prepared(fake) as cluster, run_double() as service:
        service.judge = lambda opened: None
        run = cluster.run(cluster.node(), policyRef={"name": cluster.policy()})
        with running(fake, service.url, tmp_path):
            where = path(RUN, run["metadata"]["name"])
            until(lambda: cluster.get(where).get("status", {}).get("phase") == "Running")
            away = fake.api.fail(user="attestation-runs", status=503, times=None)
            fake.api.drop_watches()
            met = fake.api.faults.met
            service.judge = verified
            until(lambda: fake.api.faults.met >= met + 3)
            assert cluster.types(run) == ["AttestationStarted"]
            fake.api.faults.remove(away)
            assert cluster.ended(run)["status"]["phase"] == "Succeeded"
        assert cluster.types(run) == ["AttestationStarted", "AttestationVerified"]
        assert cluster.result(run)["status"]["trusted"] is True


WRITES = (
    ("create", "securityevents", ""),
    ("patch", "confidentialattestationruns", "status"),
    ("create", "confidentialattestationresults", ""),
    ("patch", "confidentialattestationresults", "status"),
    ("create", "attestationbundles", ""),
    ("patch", "attestationbundles", "status"),
    ("patch", "securityevents", "status"),
)
"""What the controller writes of a run: verb, plural, subresource."""


def test_c12_an_answer_that_is_lost_is_no_second_write(fake: FakeKube, tmp_path: Path) -> None:
    """The API server did what was asked, and nobody heard: the run has one of each all the same."""
    with prepared(fake) as cluster, run_double() as service, running(fake, service.url, tmp_path):
        policy, node = {"name": cluster.policy()}, cluster.node()
        for verb, plural, part in WRITES:
            fake.api.fail(
                user="attestation-runs", verb=verb, resource=plural, subresource=part, lose_answer=True
            )
            met = fake.api.faults.met
            run = cluster.run(node, policyRef=policy)
            whole(cluster, run)
            assert fake.api.faults.met == met + 1, plural


@pytest.mark.slow
def test_c12_sigkill_at_each_arrow(fake: FakeKube, tmp_path: Path) -> None:
    """The process is gone with its question or its write under way; another one brings the run to its end."""
    with prepared(fake) as cluster, run_double() as service, ExitStack() as stack:
        policy, node = {"name": cluster.policy()}, cluster.node()
        process = stack.enter_context(program(fake, service.url, tmp_path))
        for arrow in (("PUT", 1), ("GET", 1), ("PUT", 2), *WRITES):

            def kill(running: subprocess.Popen[bytes] = process) -> None:
                running.kill()
                running.wait(30)

            if len(arrow) == 2:
                service.hold = at(*arrow, kill)
            else:
                verb, plural, part = arrow
                fake.api.fail(
                    user="attestation-runs", verb=verb, resource=plural, subresource=part,
                    before=lambda *_, kill=kill: kill(),
                )  # fmt: skip
            run = cluster.run(node, policyRef=policy)
            assert process.wait(60) == -signal.SIGKILL, arrow
            service.hold = lambda method, uid: None
            process = stack.enter_context(program(fake, service.url, tmp_path))
            whole(cluster, run)


def whole(cluster: Cluster, run: dict[str, Any]) -> None:
    """Wait for the end of a run; check that it has one of each."""
    ended = cluster.ended(run)
    assert ended["status"]["phase"] == "Succeeded"
    assert said(ended)["Sealed"] == ("True", "Sealed")
    assert cluster.types(run) == ["AttestationStarted", "AttestationVerified"]
    assert cluster.result(run)["status"]["trusted"] is True
    names = {each["metadata"]["name"] for each in cluster.events(run)}
    bundles = [each for each in cluster.items(BUNDLE) if each["spec"]["attestedFor"]["name"] in names]
    assert [each["status"]["phase"] for each in bundles] == ["Sealed"]


def at(method: str, number: int, kill: Callable[[], None]) -> Callable[[str, str], None]:
    """Return what kills before the answer to the so-manieth question of a method is given."""
    asked = itertools.count(1)

    def hold(this: str, uid: str) -> None:
        if this == method and next(asked) == number:
            kill()

    return hold


@contextmanager
def program(kube: FakeKube, url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `attestation-operator runs` until the block ends; each is the same replica, which takes its Lease back."""
    (folder / "token").write_text("token-of-the-pod")
    chosen = {
        "SERVICE_URL": url,
        "TOKEN_FILE": str(folder / "token"),
        "KUBECONFIG": str(kube.kubeconfig("runs")),
        "NAMESPACE": SPACE,
        "CLUSTER_ID": CLUSTER,
        "IDENTITY": "replica-1",
        "HEALTH_PROBE_BIND_ADDRESS": "127.0.0.1:0",
        "METRICS_BIND_ADDRESS": "127.0.0.1:0",
        "LOG_LEVEL": "error",
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("ITL_")}
    environment = others | {f"ITL_OPERATOR_{name}": value for name, value in chosen.items()}
    command = [str(Path(sys.executable).with_name("attestation-operator")), "runs"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
