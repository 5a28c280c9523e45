"""`attestation run …` and `attestation schedule …` in a cluster: ours, and the real one where it was built."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from attestation_operator import crds
from attestation_operator.commands import run_follow
from attestation_operator.objects import BUNDLE, RESULT, RUN, SCHEDULE, Kind
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, KubeAPI, fake, kube, rest
from tests.fixtures.over_httpx import OverHTTPX

__all__ = ["fake", "kube"]

NAMES = (f"worker-{number}" for number in itertools.count(1))
STARTED: Final = "2026-11-23T12:00:00Z"

Type = Callable[..., Result]


class Cluster:
    """A cluster as its administrator has it."""

    def __init__(self, kube: KubeAPI, http: httpx.Client) -> None:
        self.kube, self.http = kube, http

    def path(self, kind: Kind, name: str = "") -> str:
        """Return where objects of a kind are, or one of them."""
        where = "namespaces/default/" if kind.namespaced else ""
        return f"/apis/{kind.api_version}/{where}{kind.plural}{'/' if name else ''}{name}"

    def get(self, kind: Kind, name: str = "") -> Any:
        """Return it."""
        return self.http.get(self.path(kind, name)).raise_for_status().json()

    def make(self, kind: Kind, name: str, spec: Mapping[str, Any], **metadata: Any) -> Any:
        """Create it."""
        raw = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, **metadata},
            "spec": spec,
        }
        made = self.http.post(self.path(kind), json=raw)
        assert made.status_code == 201, made.text
        return made.json()

    def say(self, kind: Kind, name: str, **status: Any) -> None:
        """Merge *status* into its own."""
        done = self.http.patch(
            f"{self.path(kind, name)}/status",
            json={"status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert done.status_code == 200, done.text

    def run(self, name: str, node: str = "worker-9", backend: str = "tpm", **spec: Any) -> Any:
        """Create a run."""
        return self.make(RUN, name, {"backend": backend, "targetNodeName": node, **spec})


@pytest.fixture(scope="module")
def kinds(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Our kinds."""
    with rest(kube) as admin:
        for definition in crds.definitions():
            made = admin.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition)
            assert made.status_code in (201, 409), made.text
        for kind in (RUN, RESULT, SCHEDULE, BUNDLE):
            until(partial(_is_served, admin, kind))
        yield admin


def _is_served(http: httpx.Client, kind: Kind) -> bool:
    return http.get(f"/apis/{kind.api_version}/{kind.plural}").status_code == 200


@pytest.fixture
def here(kube: KubeAPI, kinds: httpx.Client) -> Iterator[Cluster]:
    """The cluster, without runs and schedules."""
    made = Cluster(kube, kinds)
    yield made
    for kind in (RUN, RESULT, SCHEDULE):
        for raw in made.get(kind)["items"]:
            kinds.delete(made.path(kind, raw["metadata"]["name"]))


@pytest.fixture
def typed(kube: KubeAPI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Return what types a command as somebody with a kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_follow, "LOOK_SECONDS", 0.02)
    return lambda *words, session=None: CliRunner().invoke(
        cli, words, obj=session or Session(), catch_exceptions=False
    )


def condition(type_: str, reason: str, message: str = "so it is", *, status: str = "True") -> dict[str, str]:
    """Return a condition."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": STARTED,
    }


def test_a_run_is_asked_for_as_it_is_typed(here: Cluster, typed: Type, tmp_path: Path) -> None:
    """Backend, policy, nonce, timeout; a name of its own, which says node and backend."""
    done = typed("run", "create", "worker-1", "--policy", "workers", "--nonce", "n" * 16, "--timeout", "30s")
    assert done.exit_code == 0, done.output
    (raw,) = here.get(RUN)["items"]
    name = raw["metadata"]["name"]
    assert name.startswith("worker-1-tpm-")
    assert done.stdout == f"run default/{name}: created\n"
    spec = {"backend": "tpm", "targetNodeName": "worker-1", "nonce": "n" * 16, "timeout": "30s"}
    assert raw["spec"] == {**spec, "policyRef": {"name": "workers"}}

    file = tmp_path / "policy.yaml"
    file.write_text("kind: AttestationPolicy\nspec: {tpm: {pcrs: {'0': '" + "ab" * 32 + "'}}}\n")
    done = typed("run", "create", "w", "--policy-file", str(file), "--name", "mine", "-o", "json")
    assert json.loads(done.stdout)["metadata"]["name"] == "mine"
    assert here.get(RUN, "mine")["spec"]["policy"]["tpm"]["pcrs"] == {"0": "ab" * 32}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["create", "a", "--policy", "p", "--policy-file", "f"], 2, "either --policy or --policy-file"),
        (["create", "a", "--nonce", "short"], 2, "--nonce must have at least 16"),
        (["create", "a", "--timeout", "3s"], 2, "--timeout 3s is not from 5s to 5m"),
        (["create", "a", "--timeout", "soon"], 2, "--timeout 'soon' is no duration like 30s"),
        (["create", "a", "--policy-file", "none.yaml"], 2, "none.yaml"),
        (["create", "a", "--policy-file", "bad.yaml"], 2, "PCR 0: any_of: not lower-case hex"),
        (["create", "a", "--policy-file", "text.yaml"], 2, "neither"),
        (["create", "a", "--name", "Not a name"], 2, "422"),
        (["show", "nothing"], 3, "there is no run nothing in the namespace default"),
        (["watch", "nothing"], 3, "there is no run nothing"),
        (["list", "--context", "other"], 2, "Context 'other' not found"),
        (["list", "--kubeconfig", "none"], 2, "none"),
        (["list", "--kubeconfig", "bad.yaml"], 2, "bad.yaml cannot be used"),
        (["list", "--kubeconfig", "empty.yaml"], 2, "empty.yaml cannot be used"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    here: Cluster, typed: Type, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    """With the exit code of its meaning, and nothing was created."""
    (tmp_path / "bad.yaml").write_text("tpm: {pcrs: {'0': 'zz'}}\n")
    (tmp_path / "text.yaml").write_text("just text\n")
    (tmp_path / "empty.yaml").write_text("")
    done = typed("run", *words)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert here.get(RUN)["items"] == []


def test_who_may_not_is_told_so(here: Cluster, typed: Type) -> None:
    """A person of the cluster without a right; and the name that is taken."""
    done = typed("run", "list", "--kubeconfig", str(here.kube.kubeconfig("stranger")))
    assert (done.exit_code, "forbidden" in done.stderr.lower()) == (4, True), done.stderr
    assert "what to do: ask who gives out rights in the cluster" in done.stderr
    here.run("mine")
    done = typed("run", "create", "worker-1", "--name", "mine")
    assert (done.exit_code, "already exists" in done.stderr) == (5, True), done.stderr


def test_a_cluster_that_is_away_is_told_as_such(fake: FakeKube, typed: Type, tmp_path: Path) -> None:
    """Nothing listens there: no answer now."""
    text = fake.kubeconfig().read_text().replace(fake.url, "https://127.0.0.1:9")
    (tmp_path / "away").write_text(text)
    done = typed("run", "list", "--kubeconfig", str(tmp_path / "away"))
    assert (done.exit_code, "did not answer" in done.stderr) == (6, True), done.stderr
    assert done.stderr.startswith("error: the cluster does not answer")


def test_runs_are_listed_newest_first_and_by_node(here: Cluster, typed: Type) -> None:
    """And by schedule, of one namespace or all; other tests have their own nodes in the same cluster."""
    here.run("one", "listed-1")
    here.run("two", "listed-2", "tdx")
    here.say(RUN, "two", phase="Failed", conditions=[condition("Failed", "AgentAbsent")])
    lines = typed("run", "list").stdout.splitlines()
    assert lines[0].split() == ["RUN", "BACKEND", "NODE", "PHASE", "VERDICT", "WHY", "AGE"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["two", "tdx", "listed-2", "Failed"],
        ["one", "tpm", "listed-1", "New"],
    ]
    assert "AgentAbsent" in lines[1]
    found = json.loads(typed("run", "list", "--node", "listed-1", "-A", "-o", "json").stdout)
    assert [each["metadata"]["name"] for each in found] == ["one"]
    nothing = "No runs in the namespace {}; -A looks in all of them."
    assert nothing.format("default") in typed("run", "list", "--schedule", "nightly").stderr
    assert nothing.format("elsewhere") in typed("run", "list", "-n", "elsewhere").stderr
    assert typed("run", "list", "--schedule", "nightly", "-A").stderr.strip() == "No runs."


RESULT_SPEC: Final[dict[str, Any]] = {
    "backend": "tpm",
    "nodeName": "worker-9",
    "attempt": 1,
    "challengeID": "ab" * 16,
    "verdict": "failed",
    "policyID": "ni:///sha-384;x",
    "policySource": "ref",
    "machineID": "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    "measurements": [{"slot": "0", "digest": "cd" * 32}],
    "checks": [
        {"id": "signature", "outcome": "pass"},
        {
            "id": "pcr0",
            "outcome": "fail",
            "code": "reference-mismatch",
            "expected": "ab" * 32,
            "actual": "cd" * 32,
        },
        {"id": "machine", "outcome": "unavailable", "code": "\x1b[2Jodd"},
    ],
}


def test_a_run_is_explained_check_by_check(here: Cluster, typed: Type) -> None:
    """What the verdict means, what each code means, expected and found; nothing of a stranger's moves the cursor."""
    run = here.run("one", policyRef={"name": "workers"})
    uid = run["metadata"]["uid"]
    here.make(RESULT, "one-result", {**RESULT_SPEC, "derivedFromRun": {"name": "one", "uid": uid}})
    here.say(RESULT, "one-result", trusted=False)
    here.say(
        RUN,
        "one",
        phase="Failed",
        verdict="failed",
        startTime=STARTED,
        resultRef={"name": "one-result"},
        conditions=[condition("Failed", "VerdictFailed"), condition("Sealed", "Sealed", "ab-0123")],
    )
    shown = typed("run", "show", "one").stdout
    for words in (
        "policy     workers",
        "means      a check failed",
        "trusted    no",
        "bundle     ab-0123",
        "passed    signature",
        "failed    pcr0: something else was measured than the policy expects (reference-mismatch)",
        f"expected  {'ab' * 32}",
        f"found     {'cd' * 32}",
        "undecided machine",
    ):
        assert words in shown, shown
    assert "\x1b" not in shown
    both = json.loads(typed("run", "show", "one", "-o", "json").stdout)
    assert both["run"]["metadata"]["uid"] == both["result"]["spec"]["derivedFromRun"]["uid"] == uid


def test_the_result_of_an_earlier_run_is_not_shown(here: Cluster, typed: Type) -> None:
    """One that had the name before."""
    here.run("one")
    here.make(RESULT, "one-result", {**RESULT_SPEC, "derivedFromRun": {"name": "one", "uid": "another"}})
    here.say(RUN, "one", phase="Running", resultRef={"name": "one-result"})
    assert "signature" not in typed("run", "show", "one").stdout


def controlled(here: Cluster, *statuses: dict[str, Any]) -> threading.Thread:
    """Have the one run that comes go through *statuses*."""

    def control() -> None:
        until(lambda: bool(here.get(RUN)["items"]))
        (raw,) = here.get(RUN)["items"]
        for status in statuses:
            here.say(RUN, raw["metadata"]["name"], **status)

    thread = threading.Thread(target=control, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("phase", "verdict", "reason", "code", "words"),
    [
        ("Succeeded", "verified", None, 0, "verified: the hardware"),
        ("Failed", "failed", "VerdictFailed", 1, "a check failed"),
        ("Failed", None, "EvidenceRejected", 1, "proves nothing"),
        ("Succeeded", "indeterminate", None, 6, "could not be decided"),
        ("Failed", None, "AgentAbsent", 6, "no agent"),
        ("Failed", "indeterminate", "DeviceUnavailable", 6, "could not read its hardware"),
        ("Failed", None, "PolicyNotFound", 3, "no such AttestationPolicy"),
        ("Failed", None, "PolicyInvalid", 2, "asks for what cannot be"),
        # Nobody may say one and the other.
        ("Failed", "verified", "DeadlineExceeded", 6, "not judged in time"),
    ],
)
def test_the_exit_code_is_that_of_the_verdict(
    here: Cluster, typed: Type, phase: str, verdict: str | None, reason: str | None, code: int, words: str
) -> None:
    """Whoever waits for it may use it as a condition."""
    last: dict[str, Any] = {"phase": phase}
    if verdict is not None:
        last["verdict"] = verdict
    if reason is not None:
        last["conditions"] = [condition("Failed", reason)]
    thread = controlled(here, {"phase": "Running"}, last)
    done = typed("run", "create", "worker-1", "--wait")
    thread.join()
    assert (done.exit_code, words in done.stdout.splitlines()[-1]) == (code, True), done.output


def test_each_change_is_told_until_the_seal(here: Cluster, typed: Type) -> None:
    """Phases and conditions, each once; the end of the run is not the end."""
    here.run("one")
    judged = condition("Accepted", "PolicyEnforced")
    emitted = condition("EventsEmitted", "Emitted")
    here.say(RUN, "one", phase="Succeeded", verdict="verified", conditions=[judged])
    sealed = {"conditions": [judged, emitted, condition("Sealed", "Sealed", "ab-0123")]}
    thread = controlled(here, sealed)
    done = typed("run", "watch", "one")
    thread.join()
    assert done.exit_code == 0, done.output
    told = [line.split(maxsplit=1)[1].split()[:2] for line in done.stdout.splitlines()[:-1]]
    assert told == [
        ["phase", "Succeeded"],
        ["Accepted", "True"],
        ["EventsEmitted", "True"],
        ["Sealed", "True"],
    ]
    states = [json.loads(line) for line in typed("run", "watch", "one", "-o", "json").stdout.splitlines()]
    assert [each["status"]["phase"] for each in states] == ["Succeeded"]


def test_a_run_that_nobody_takes_up_is_not_waited_for_for_ever(
    here: Cluster, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No controller: no answer."""
    monkeypatch.setattr(run_follow, "TAKEN_UP_SECONDS", -5.0)
    done = typed("run", "create", "worker-1", "--timeout", "5s", "--wait")
    assert (done.exit_code, "no controller takes it up" in done.stderr) == (6, True), done.stderr


def test_a_bundle_is_written_once(
    here: Cluster, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the service gives it to an operator; by name, or by the UID of a run that is gone. No file is written over."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "operator")
    monkeypatch.setenv("ITL_API_URL", "https://service.example")
    run = here.run("one")
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.path} {request.headers['authorization']}")
        return httpx.Response(200, content=b'{"line": 1}\n')

    def session() -> Session:
        return Session(carrier=OverHTTPX(httpx.MockTransport(answer)))

    done = typed("run", "bundle", "one", session=session())
    assert done.exit_code == 0, done.output
    assert (tmp_path / "one.intoto.jsonl").read_bytes() == b'{"line": 1}\n'
    assert typed("run", "bundle", "one", session=session()).exit_code == 2
    uid = run["metadata"]["uid"]
    done = typed("run", "bundle", uid, "-f", "-", "--kubeconfig", "none", session=session())
    assert done.stdout == '{"line": 1}\n'
    assert set(asked) == {f"GET /api/v1/runs/{uid}/bundle Bearer operator"}


def test_schedules_are_listed_and_shown(here: Cluster, typed: Type) -> None:
    """When, for whom, and whether they are followed."""
    here.make(
        SCHEDULE,
        "nightly",
        {"schedule": "0 3 * * *", "nodeSelector": {"pool": "tee"}, "policyRef": {"name": "workers"}},
    )
    here.make(SCHEDULE, "often", {"every": "6h", "suspend": True})
    here.say(
        SCHEDULE, "nightly", active=2, lastScheduleTime=STARTED, conditions=[condition("Ready", "Scheduled")]
    )
    lines = typed("schedule", "list").stdout.splitlines()
    assert "0 3 * * * (UTC)" in lines[1]
    assert "True" in lines[1]
    assert "every 6h, suspended" in lines[2]
    shown = typed("schedule", "show", "nightly").stdout
    for words in ("nodes     pool=tee", "backend   auto", "policy    workers", "ready     True"):
        assert words in shown, shown
    assert json.loads(typed("schedule", "show", "often", "-o", "json").stdout)["spec"]["every"] == "6h"
    done = typed("schedule", "show", "nothing")
    assert (done.exit_code, "there is no schedule nothing" in done.stderr) == (3, True)
