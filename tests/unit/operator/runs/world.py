"""A cluster that is a dictionary and a service that is a few variables: what a run meets, without a network."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from attestation.api.runs import (
    DeviceUnavailable,
    RunAttempt,
    RunBlob,
    RunBundle,
    RunChallengeShown,
    RunCheck,
    RunDetail,
    RunMeasurement,
    RunOpen,
    RunOpened,
    RunResult,
    RunSeal,
    SealArchive,
    SealFailure,
    SealLogEntry,
)
from attestation.client import APIError
from attestation.errors import AttestationError, PolicyInvalid
from attestation_operator.actions import Action, Create, Delete, EmitEvent, MergeStatus, PatchNode, SetStatus
from attestation_operator.errors import ObjectChanged, ObjectExists, ServiceAway
from attestation_operator.objects import NODE, POLICY, RESULT, RUN, RUNS_GROUP, SECURITY_EVENT, Key, Kind, Raw
from attestation_operator.runs.cases import Answer, Ask, Case, Decision, Objects, RunOptions
from attestation_operator.runs.events import EventRecorder
from attestation_operator.runs.kinds import faults
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.runs.objects import read_run
from attestation_operator.runs.reconcile import reconcile

AT = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
CLUSTER = "kube-1"
MACHINE = "00000000-0000-4000-8000-000000000001"
SPACE, NAME, NODE_NAME = "ugallu", "check-1", "worker-1"
ENFORCED: Mapping[str, Any] = {"tpm": {"pcrs": {"7": "ab" * 32}}}
REPORTED: Mapping[str, Any] = {"mode": "report", **ENFORCED}

RECORDER = EventRecorder(cluster_id=CLUSTER, cluster_name="production", instance="pod-1")
OPTIONS = RunOptions(recorder=RECORDER, result_ttl=timedelta(hours=168), acts_for=frozenset({SPACE}))


class Killed(Exception):
    """The process ended before an action."""


class Cluster:
    """Objects by name, with UIDs, versions, and statuses that a creation drops."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.at = AT
        self.reads = 0
        self.history: list[tuple[str, str, str]] = []
        self.told: list[tuple[str, str]] = []
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    def put(self, kind: Kind, raw: Raw) -> dict[str, Any]:
        """Create an object."""
        key = Key.of(kind, raw)
        if key in self.objects:
            raise ObjectExists(str(key))
        stored = copy.deepcopy(dict(raw))
        stored.pop("status", None)
        stored["metadata"] = {
            **stored["metadata"],
            "uid": f"uid-{next(self._uids)}",
            "resourceVersion": str(next(self._versions)),
            "generation": 1,
            "creationTimestamp": self.at.isoformat().replace("+00:00", "Z"),
        }
        self.objects[key] = stored
        return stored

    def get(self, key: Key) -> Raw | None:
        """Return an object."""
        self.reads += 1
        return copy.deepcopy(self.objects.get(key))

    def of(self, kind: Kind) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        return [raw for key, raw in self.objects.items() if key.kind == kind]

    def apply(self, actions: Sequence[Action], *, kill_before: int | None = None) -> int:
        """Do them in order, as the executor does; return how many were done."""
        for number, action in enumerate(actions):
            if kill_before == number:
                raise Killed
            self._one(action)
            self.history.append(
                (type(action).__name__, action.target.kind.kind, getattr(action.target, "name", ""))
            )
        return len(actions)

    def _one(self, action: Action) -> None:
        match action:
            case Create():
                # An API server would drop or refuse what a kind does not know.
                assert action.kind.group != RUNS_GROUP or faults(action.kind, action.raw) == ()
                self.put(action.kind, action.raw)
            case SetStatus():
                self.objects[action.target.key]["status"] = copy.deepcopy(dict(action.status))
            case Delete() | MergeStatus() | PatchNode():
                there = self.objects.get(action.target.key)
                if there is None:
                    return
                metadata = there["metadata"]
                target = action.target
                if (metadata["uid"], metadata["resourceVersion"]) != (target.uid, target.resource_version):
                    raise ObjectChanged(str(target))
                if isinstance(action, Delete):
                    del self.objects[target.key]
                    return
                metadata["resourceVersion"] = str(next(self._versions))
                if isinstance(action, MergeStatus):
                    merged = {**there.get("status", {}), **copy.deepcopy(dict(action.status))}
                    there["status"] = {key: value for key, value in merged.items() if value is not None}
                    told = faults(target.key.kind, there)
                    assert not [each for each in told if each.startswith("status")], told
                else:
                    labels = {**metadata.get("labels", {}), **action.labels}
                    metadata["labels"] = {key: value for key, value in labels.items() if value is not None}
                    spec = there.setdefault("spec", {})
                    if action.taints is not None:
                        spec["taints"] = list(action.taints)
                    if action.unschedulable is not None:
                        spec["unschedulable"] = action.unschedulable
            case EmitEvent():
                self.told.append((action.type, action.reason))
            case _:
                raise AssertionError(action)


def result(
    verdict: str = "verified", *, source: str = "ref", mode: str = "enforce", **more: Any
) -> RunResult:
    """Return what the service found."""
    members: dict[str, Any] = {
        "run": {
            "cluster_id": CLUSTER,
            "uid": "uid-1",
            "namespace": SPACE,
            "name": NAME,
            "node_name": NODE_NAME,
            "node_uid": "node-1",
            "backend": "tpm",
            "deadline": AT,
        },
        "verdict": verdict,
        "judged_at": AT,
        "machine_id": MACHINE,
        "policy_id": "ni:///sha-384;x",
        "policy_source": source,
        "mode": mode,
        "quote": "cXVvdGU=",
        "signature": "c2ln",
        "evidence": (
            RunBlob(
                media_type="application/vnd.itl.tpm-quote", sha256="ab" * 32, size=7, url="https://itl.test/b"
            ),
        ),
        "measurements": (RunMeasurement(slot="7", digest="ab" * 32),),
        "checks": (RunCheck(id="pcr7", outcome="pass" if verdict == "verified" else "fail"),),
    }
    return RunResult.model_validate(members | more)


def unavailable(code: str = "device-absent") -> RunResult:
    """Return what is left where the agent had no evidence."""
    nothing: dict[str, Any] = {
        "quote": None,
        "signature": None,
        "evidence": (),
        "measurements": (),
        "checks": (),
    }
    away = DeviceUnavailable(code=code, detail="/dev/tpmrm0")  # type: ignore[arg-type]
    return result("indeterminate", unavailable=away, **nothing)


@dataclass
class Service:
    """What the service remembers of one run, by the interface of `attestation.api.runs`."""

    opened: RunOpen | None = None
    attempts: list[RunAttempt] = field(default_factory=list)
    away: AttestationError | None = None
    asked: list[str] = field(default_factory=list)
    sealed: int = 0
    seals_after: int = 0
    at: datetime = AT
    refuses_policy: bool = False
    refuses_seals: bool = False
    seal_fails: bool = False
    uid: str = "uid-run"

    def answer(self, ask: Ask, question: RunOpen | RunSeal | None) -> Answer:
        """Answer, or return why not."""
        self.asked.append(str(ask))
        if self.away is not None:
            return self.away
        if ask is Ask.OPEN:
            assert isinstance(question, RunOpen)
            return self._open(question)
        if self.opened is None:
            return _refused("run-unknown")
        if ask is Ask.LOOK:
            return self._detail()
        assert isinstance(question, RunSeal)
        if self.refuses_seals:
            return _refused("run-differs")
        self.sealed += 1
        if self.seal_fails:
            failed = SealFailure(stage="Archived", reason="OtherContent", timestamp=AT)
            return RunBundle(
                phase="Failed",
                statement_digest="sha256:" + "ab" * 32,
                key_id="k",
                signed_at=AT,
                failures=(failed,),
            )
        if 1 < self.sealed == self.seals_after:
            return sealed().model_copy(update={"phase": "Logged", "archive": None, "sealed_at": None})
        if self.sealed <= self.seals_after:
            return RunBundle(phase="Signed", statement_digest="sha256:" + "ab" * 32, key_id="k", signed_at=AT)
        return sealed()

    def _open(self, question: RunOpen) -> Answer:
        if self.refuses_policy:
            return PolicyInvalid("no")
        asked_at = question.asked_at or self.at
        question = question.model_copy(update={"asked_at": None})
        if self.opened is not None and self.opened != question:
            return _refused("run-differs")
        if self.opened is None and asked_at >= question.deadline:
            return _refused("challenge-expired")
        self.opened = question
        if not self.attempts or self.attempts[-1].state == "expired":
            number = len(self.attempts) + 1
            self.attempts.append(
                RunAttempt(
                    attempt=number,
                    state="open",
                    challenge_id=f"{number:032x}",
                    expires_at=self.at + timedelta(seconds=60),
                )
            )
        last = self.attempts[-1]
        return RunOpened(
            attempt=last.attempt,
            challenge_id=last.challenge_id,
            expires_at=last.expires_at,
            policy_id="ni:///sha-384;x",
        )

    def _detail(self) -> RunDetail:
        assert self.opened is not None
        told = self.opened.model_dump(
            include={"cluster_id", "namespace", "name", "node_name", "node_uid", "backend"}
        )
        return RunDetail.model_validate(
            {
                **told,
                "uid": self.uid,
                "policy_id": "ni:///sha-384;x",
                "policy_source": self.opened.policy_source,
                "deadline": self.opened.deadline,
                "attempts": tuple(self.attempts),
            }
        )

    def judge(self, found: RunResult) -> None:
        """Have the open attempt judged."""
        self._ended(state="judged", result=found)

    def expire(self) -> None:
        """Have the open attempt's challenge expire."""
        self._ended(state="expired")

    def _ended(self, **members: Any) -> None:
        last = self.attempts[-1]
        shown = RunChallengeShown(
            id=last.challenge_id, random="cg==", nonce="bg==", expires_at=last.expires_at
        )
        self.attempts[-1] = last.model_copy(update={"challenge": shown, **members})


def sealed() -> RunBundle:
    """Return a seal that is whole."""
    entry = SealLogEntry(origin="o", index=4, tree_size=5, root_hash="cg==", hashes=("aA==",), checkpoint="c")
    archive = SealArchive(media_type="m", url="file:///a", sha256="cd" * 32, size=9)
    return RunBundle(
        phase="Sealed",
        statement_digest="sha256:" + "ab" * 32,
        key_id="k",
        signed_at=AT,
        log_entry=entry,
        archive=archive,
        sealed_at=AT,
    )


def _refused(code: str) -> AttestationError:
    return APIError(code=code, title=code, detail=code, status=409)


AWAY = ServiceAway("the service answered store-unavailable")


class World:
    """A cluster with one run, its service, and a controller that looks when it is told to."""

    def __init__(
        self, *, policy: Mapping[str, Any] | None = ENFORCED, source: str = "ref", **spec: Any
    ) -> None:
        self.cluster = Cluster()
        self.service = Service()
        self.options = OPTIONS
        self.warnings: list[str] = []
        self.actions = 0
        self.cluster.put(
            NODE, {"metadata": {"name": NODE_NAME, "labels": {"node-role.kubernetes.io/worker": ""}}}
        )
        whole: dict[str, Any] = {"backend": "tpm", "targetNodeName": NODE_NAME, "timeout": "2m"}
        if policy is not None and source == "ref":
            self.cluster.put(POLICY, {"metadata": {"name": "prod", "namespace": SPACE}, "spec": dict(policy)})
            whole["policyRef"] = {"name": "prod"}
        elif policy is not None:
            whole["policy"] = dict(policy)
        whole |= spec
        self.key = Key(kind=RUN, name=NAME, namespace=SPACE)
        self.cluster.put(
            RUN,
            {
                "metadata": {"name": NAME, "namespace": SPACE},
                "spec": {key: value for key, value in whole.items() if value is not None},
            },
        )

    @property
    def at(self) -> datetime:
        """Now."""
        return self.cluster.at

    def pass_(self, seconds: float) -> None:
        """Let time pass."""
        self.cluster.at += timedelta(seconds=seconds)
        self.service.at = self.cluster.at

    def choose(self, action: NodeAction = NodeAction.NONE, *, seed_mapping: bool = False) -> None:
        """Choose what the administrator may choose."""
        self.options = replace(
            self.options, node_action=action, recorder=replace(RECORDER, seed_mapping=seed_mapping)
        )

    def look(self, *, kill_before: int | None = None) -> Decision:
        """Look at the run once, as the controller does; end before the action of this number of this look."""
        done = 0
        raw = self.cluster.get(self.key)
        assert raw is not None
        run = read_run(raw)
        objects, answers = Objects(), dict[Ask, Answer]()
        while True:
            looked = reconcile(
                Case(run=run, objects=objects, at=self.at, options=self.options, answers=answers)
            )
            if looked.read is not None:
                objects[looked.read] = self.cluster.get(looked.read)
                continue
            if looked.ask is not None:
                assert looked.ask not in answers
                answers[looked.ask] = self.service.answer(looked.ask, looked.question)
                continue
            if looked.warning:
                self.warnings.append(looked.warning)
            self.cluster.apply(
                looked.actions, kill_before=None if kill_before is None else kill_before - done
            )
            done += len(looked.actions)
            self.actions += len(looked.actions)
            if not looked.again:
                return looked
            objects = Objects()

    def settle(self) -> None:
        """Look until nothing is done any more."""
        for _ in range(20):
            before = self.actions
            self.look()
            if self.actions == before:
                return
        raise AssertionError("it does not settle")

    def through(self, found: RunResult | None = None) -> None:
        """Take the run to its end: opened, judged, completed."""
        self.settle()
        if found is not None:
            self.service.judge(found)
        self.settle()

    @property
    def run(self) -> dict[str, Any]:
        """The run, as it is."""
        return self.cluster.objects[self.key]

    @property
    def status(self) -> dict[str, Any]:
        """Its status."""
        found: dict[str, Any] = self.run.get("status", {})
        return found

    @property
    def said(self) -> dict[str, tuple[str, str]]:
        """Status and reason of each condition of the run by its type."""
        return {each["type"]: (each["status"], each["reason"]) for each in self.status.get("conditions", ())}

    @property
    def result(self) -> dict[str, Any]:
        """The one Result."""
        [found] = self.cluster.of(RESULT)
        return found

    @property
    def types(self) -> list[str]:
        """Types of the events, in alphabetical order."""
        return sorted(each["spec"]["type"] for each in self.cluster.of(SECURITY_EVENT))

    def event(self, type_: str) -> dict[str, Any]:
        """Return the one event of a type."""
        [found] = [each for each in self.cluster.of(SECURITY_EVENT) if each["spec"]["type"] == type_]
        return found

    @property
    def node(self) -> dict[str, Any]:
        """The Node."""
        return self.cluster.objects[Key(kind=NODE, name=NODE_NAME)]
