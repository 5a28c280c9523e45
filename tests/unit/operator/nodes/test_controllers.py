"""The controllers, in a cluster in memory: what they gather, whom they ask, and what is left of a process that ends."""

# Longer than 500 lines: three controllers in one world, and what is left of each where its process ends.
from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from attestation.api.node_csr import KUBELET_CLIENT, NODE_CLIENT
from attestation.client import AnswerInvalid
from attestation.client.errors import api_error
from attestation.errors import Unavailable
from attestation.machines import Status
from attestation_operator.actions import Approve, PatchNode
from attestation_operator.controller import Around
from attestation_operator.errors import ClusterRefused, ObjectChanged
from attestation_operator.health import Health
from attestation_operator.metrics import Metrics
from attestation_operator.nodes.controllers import Approver, Nodes, Signer
from attestation_operator.nodes.objects import (
    ATTESTED_LABEL,
    MACHINE_ID_LABEL,
    OWNER_LABEL,
)
from attestation_operator.nodes.policy import PolicyUnreadable
from attestation_operator.objects import Key
from attestation_operator.settings import Settings
from tests.unit.operator.nodes.test_race import KUBEADM
from tests.unit.operator.nodes.world import (
    AT,
    CA,
    MACHINE,
    OTHER,
    PKCS10,
    MemoryCluster,
    MemoryService,
    decision,
    key,
    pkcs10,
    raw_attestation,
    raw_csr,
    raw_node,
    subject,
    trust,
)

OUR_CA = CA()
pytestmark = pytest.mark.anyio


class Clock:
    """A clock that is held."""

    def __init__(self) -> None:
        self.at = AT

    def now(self) -> datetime:
        """Return what it was set to."""
        return self.at


class World:
    """A cluster, a service, and what a controller is given of them."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.service = MemoryService()
        self.clock = Clock()
        self.health = Health()

    def around(self, cluster: Any = None, service: Any = None) -> Around:
        """Return what a new process is given."""
        cluster = cluster or self.cluster
        return Around(
            cluster=cluster,
            executor=cluster,
            service=service or self.service,
            clock=self.clock,
            health=self.health,
            metrics=Metrics(),
            settings=Settings(service_url="https://service.example"),
            log=structlog.get_logger(),
        )

    def approver(self) -> Approver:
        """Return a new process's approver."""
        return Approver(self.around())

    def signer(self) -> Signer:
        """Return a new process's signer."""
        return Signer(self.around(), lambda: (OUR_CA.root,))

    def conditions(self, name: str = "node-csr-0123456789abcdef0123456789abcdef01234567") -> list[str]:
        """Return the conditions of the request."""
        status = self.cluster.objects["CertificateSigningRequest", name]["status"]
        return [condition["type"] for condition in status.get("conditions", ())]


@pytest.fixture
def world() -> World:
    """A world of its own for each test."""
    return World()


def counted(around: Around, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a counter, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in around.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


class TestApprover:
    """Requests are decided as the service says, and not without it."""

    async def test_a_good_request_is_approved(self, world: World) -> None:
        """Seen by the watch or read: the same."""
        for seen in (True, False):
            world.cluster.objects.clear()
            raw = raw_csr()
            at = world.cluster.put(raw)
            assert await world.approver().handle(at, raw if seen else None) is None
            assert world.conditions() == ["Approved"]
        assert [event.reason for event in world.cluster.events] == ["TpmAttested"] * 2

    async def test_a_bad_request_is_denied(self, world: World) -> None:
        """Once; the second look passes it over and asks nobody."""
        world.service.answer = decision("deny")
        at = world.cluster.put(raw_csr())
        await world.approver().handle(at, None)
        await world.approver().handle(at, None)
        assert world.conditions() == ["Denied"]
        assert len(world.service.asked) == 1

    async def test_with_the_service_away_nothing_is_decided(self, world: World) -> None:
        """Not even about a request that shows no evidence; and later it is."""
        world.service.answer = Unavailable("away")
        for request in (PKCS10, PKCS10 + b"\0", raw_csr()["spec"]["request"].encode()):
            at = world.cluster.put(raw_csr(request))
            with pytest.raises(Unavailable):
                await world.approver().handle(at, None)
            assert world.conditions() == []
            assert not world.cluster.events
        world.service.answer = decision()
        at = world.cluster.put(raw_csr())
        await world.approver().handle(at, None)
        assert world.conditions() == ["Approved"]

    async def test_the_node_of_the_name_is_looked_up_and_told(self, world: World) -> None:
        """At the API server, now."""
        world.cluster.put(raw_node(labels={OWNER_LABEL: OTHER}))
        await world.approver().handle(world.cluster.put(raw_csr()), None)
        told = world.service.asked[0].node
        assert told is not None
        assert told.machine_id == OTHER

    async def test_a_request_that_is_gone_is_nothing(self, world: World) -> None:
        """Deleted before it was looked at, or while the service thought about it."""
        at = world.cluster.put(raw_csr())
        raw = world.cluster.objects.pop(("CertificateSigningRequest", at.name))
        assert await world.approver().handle(at, None) is None
        assert not world.service.asked
        assert await world.approver().handle(at, raw) is None
        assert not world.cluster.applied

    async def test_another_request_of_the_name_is_not_meant(self, world: World) -> None:
        """The UID is part of what was judged."""
        raw = raw_csr()
        at = world.cluster.put(raw)
        world.cluster.put(raw_csr(PKCS10, uid="another"))
        await world.approver().handle(at, raw)
        assert world.conditions() == []

    async def test_approved_by_another_first(self, world: World) -> None:
        """409, read again, passed over: one condition, one audit outcome (§24 m)."""
        raw = raw_csr()
        seen = copy.deepcopy(raw)
        at = world.cluster.put(raw)
        seen["metadata"]["resourceVersion"] = "1"
        with pytest.raises(ObjectChanged):
            await world.approver().handle(at, seen)
        world.cluster.put(raw_csr(conditions=["Approved"]))
        await world.approver().handle(at, None)
        assert world.conditions() == ["Approved"]
        assert not world.cluster.applied
        assert len(world.service.audit) == 1

    async def test_two_replicas_decide_once(self, world: World) -> None:
        """Both at the same time, without a lease: one condition, one audit outcome."""
        raw = raw_csr()
        at = world.cluster.put(raw)
        seen = copy.deepcopy(raw)
        answers = await asyncio.gather(
            *(world.approver().handle(at, seen) for _ in range(4)), return_exceptions=True
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["NoneType", *["ObjectChanged"] * 3]
        assert world.conditions() == ["Approved"]
        assert len(world.service.audit) == 1

    async def test_an_answer_about_another_node_is_an_error(self, world: World) -> None:
        """Told as one, tried again, and nothing approved."""
        world.service.answer = decision(node_name="cp-2")
        at = world.cluster.put(raw_csr())
        with pytest.raises(AnswerInvalid):
            await world.approver().handle(at, None)
        assert world.conditions() == []

    async def test_a_name_that_fits_no_path_is_left_alone(self, world: World) -> None:
        """No request of an agent has it."""
        assert await world.approver().handle(world.cluster.put(raw_csr(name="x?y")), None) is None
        assert not world.service.asked

    async def test_outcomes_are_counted_by_signer_and_strangers_make_no_labels(self, world: World) -> None:
        """Anybody may make up a signerName, and each label is kept for ever."""
        around = world.around()
        controller = Approver(around)
        for number, signer in enumerate((NODE_CLIENT, KUBELET_CLIENT, "evil.example/1", "evil.example/2")):
            raw = raw_csr(
                PKCS10 if signer == KUBELET_CLIENT else raw_request(), signer=signer, name=f"c-{number}"
            )
            await controller.handle(world.cluster.put(raw), None)
        assert counted(around, "itl_operator_csr_decisions_total") == {
            (NODE_CLIENT, "approved"): 1,
            (KUBELET_CLIENT, "left"): 1,
            ("other", "not-ours"): 2,
        }

    async def test_what_the_administrator_wants_is_followed_at_once(self, world: World) -> None:
        """And one that cannot be read decides nothing and says so, until it is mended."""
        controller = world.approver()
        raw = raw_csr(PKCS10, signer=KUBELET_CLIENT)
        world.service.answer = decision("not-recognised")
        at = world.cluster.put(raw)
        await controller.handle(at, None)
        assert world.conditions() == []
        wrong = world.cluster.put(raw_attestation({"inTreeApprover": "off"}))
        with pytest.raises(PolicyUnreadable):
            await controller.handle(wrong, None)
        assert world.health.facts["policy"].said.endswith("not allowed: inTreeApprover")
        with pytest.raises(PolicyUnreadable) as found:
            await controller.handle(at, None)
        # The queue asks again soon: a request that came meanwhile does not wait for the next relist.
        assert isinstance(found.value, Unavailable)
        strict = {"signers": [{"name": KUBELET_CLIENT, "onMissingEvidence": "deny"}]}
        world.cluster.put(raw_attestation(strict))
        await controller.handle(wrong, None)
        assert world.health.facts["policy"].well
        await controller.handle(at, None)
        assert world.conditions() == ["Denied"]


def raw_request() -> bytes:
    """Return a request with evidence."""
    return PKCS10 + b"-----BEGIN ITL EVIDENCE-----\ne30=\n-----END ITL EVIDENCE-----\n"


class TestRivals:
    """The in-tree approver is looked for."""

    async def test_a_binding_holds_back_and_is_told(self, world: World) -> None:
        """In the condition, and to the probe; gone, within a minute it is ready."""
        cluster = world.cluster
        cluster.put(raw_attestation())
        cluster.put(dict(KUBEADM))
        controller = world.approver()
        statuses = []
        for _ in range(2):
            await controller.look_for_rivals()
            await controller.tell_of_rivals()
            status = cluster.objects["NodeAttestation", "cluster"]["status"]
            statuses.append([condition["status"] for condition in status["conditions"]])
        fact = world.health.facts["in-tree-approver"]
        assert (fact.well, fact.holds_back) == (False, True)
        assert "kubeadm:node-autoapprove-bootstrap" in fact.said
        assert len(cluster.applied) == 1
        del cluster.objects["ClusterRoleBinding", KUBEADM["metadata"]["name"]]
        world.clock.at += timedelta(minutes=1)
        await controller.look_for_rivals()
        await controller.tell_of_rivals()
        assert world.health.facts["in-tree-approver"].well
        status = cluster.objects["NodeAttestation", "cluster"]["status"]
        statuses.append([condition["status"] for condition in status["conditions"]])
        assert statuses == [["True", "False"], ["True", "False"], ["False", "True"]]

    async def test_nothing_found_is_believed_for_an_hour(self, world: World) -> None:
        """Then looked for again."""
        controller = world.approver()
        await controller.look_for_rivals()
        world.cluster.put(dict(KUBEADM))
        world.clock.at += timedelta(minutes=59)
        await controller.look_for_rivals()
        assert world.health.facts["in-tree-approver"].well
        world.clock.at += timedelta(minutes=1)
        await controller.look_for_rivals()
        assert not world.health.facts["in-tree-approver"].well

    async def test_a_right_without_a_binding_is_found(self, world: World) -> None:
        """By asking."""
        world.cluster.allowed = {("system:bootstrappers", "nodeclient")}
        await world.approver().look_for_rivals()
        assert "system:bootstrappers may nodeclient" in world.health.facts["in-tree-approver"].said

    async def test_a_warning_does_not_hold_back(self, world: World) -> None:
        """Where the administrator wants it so."""
        world.cluster.put(raw_attestation({"inTreeApprover": "warn"}))
        world.cluster.put(dict(KUBEADM))
        await world.approver().look_for_rivals()
        fact = world.health.facts["in-tree-approver"]
        assert (fact.well, fact.holds_back) == (False, False)

    async def test_what_cannot_be_found_out_holds_back(self, world: World) -> None:
        """A right that is missing is no permission."""

        class Refusing(MemoryCluster):
            async def review(self, spec: Any) -> bool:
                raise ClusterRefused("403")

        cluster = Refusing()
        cluster.put(raw_attestation())
        controller = Approver(world.around(cluster))
        for _ in range(2):
            with pytest.raises(ClusterRefused):
                await controller.look_for_rivals()
        await controller.tell_of_rivals()
        fact = world.health.facts["in-tree-approver"]
        assert (fact.well, fact.holds_back) == (False, True)
        conditions = cluster.objects["NodeAttestation", "cluster"]["status"]["conditions"]
        assert [condition["status"] for condition in conditions] == ["Unknown", "False"]


class TestSigner:
    """Certificates are issued for what was approved."""

    async def test_an_approved_request_gets_its_certificate(self, world: World) -> None:
        """Once."""
        world.service.signature = OUR_CA.answer()
        at = world.cluster.put(raw_csr(conditions=["Approved"]))
        for _ in range(2):
            await world.signer().handle(at, None)
        assert "certificate" in world.cluster.objects["CertificateSigningRequest", at.name]["status"]
        assert len(world.service.asked) == 1

    async def test_what_is_not_approved_is_not_asked_for(self, world: World) -> None:
        """Neither are others' signers, gone requests, and odd names."""
        for raw in (raw_csr(), raw_csr(signer=KUBELET_CLIENT, conditions=["Approved"]), raw_csr(name="x?y")):
            await world.signer().handle(world.cluster.put(raw), None)
        await world.signer().handle(Key(kind=world.cluster.put(raw_csr()).kind, name="gone"), None)
        assert not world.service.asked

    async def test_a_wrong_certificate_is_not_issued(self, world: World) -> None:
        """It is told, and asked for again."""
        world.service.signature = OUR_CA.answer(pkcs10(of=key()))
        at = world.cluster.put(raw_csr(conditions=["Approved"]))
        with pytest.raises(AnswerInvalid):
            await world.signer().handle(at, None)
        assert not world.cluster.applied
        assert [event.reason for event in world.cluster.events] == ["AnswerRefused"]

    async def test_what_the_service_judged_bad_fails(self, world: World) -> None:
        """Although somebody approved it."""
        world.service.signature = api_error(code="node-request-denied", title="", detail="", status=403)
        at = world.cluster.put(raw_csr(conditions=["Approved"]))
        await world.signer().handle(at, None)
        assert world.conditions() == ["Approved", "Failed"]

    async def test_with_the_service_away_nothing_fails(self, world: World) -> None:
        """The request waits."""
        world.service.signature = Unavailable("away")
        at = world.cluster.put(raw_csr(conditions=["Approved"]))
        with pytest.raises(Unavailable):
            await world.signer().handle(at, None)
        assert world.conditions() == ["Approved"]


class TestNodes:
    """Nodes say what their machines are worth."""

    async def test_a_lock_is_seen_at_the_next_round(self, world: World) -> None:
        """Claimed and attested; then locked: no event of the Node is needed."""
        world.service.machines = (trust(),)
        controller = Nodes(world.around())
        at = world.cluster.put(raw_node())
        await controller.look_at_all()
        await controller.handle(at, None)
        labels = world.cluster.objects["Node", "cp-1"]["metadata"]["labels"]
        assert (labels[ATTESTED_LABEL], labels[OWNER_LABEL], labels[MACHINE_ID_LABEL]) == (
            "true",
            MACHINE,
            MACHINE,
        )
        world.service.machines = (trust(status=Status.LOCKED, trusted=False),)
        await controller.look_at_all()
        labels = world.cluster.objects["Node", "cp-1"]["metadata"]["labels"]
        assert labels[ATTESTED_LABEL] == "false"
        patches = [action for action in world.cluster.applied if isinstance(action, PatchNode)]
        assert len(patches) == 2

    async def test_with_the_service_away_a_label_ends_with_its_lease(self, world: World) -> None:
        """It is lowered at the round after, and the error is told."""
        world.service.machines = (trust(),)
        controller = Nodes(world.around())
        await controller.look_at_all()
        at = world.cluster.put(raw_node())
        await controller.handle(at, None)
        labels = world.cluster.objects["Node", "cp-1"]["metadata"]["labels"]
        world.service.machines = Unavailable("away")
        world.clock.at += timedelta(minutes=9)
        with pytest.raises(Unavailable):
            await controller.look_at_all()
        assert labels[ATTESTED_LABEL] == "true"
        world.clock.at += timedelta(minutes=1)
        with pytest.raises(Unavailable):
            await controller.look_at_all()
        assert labels[ATTESTED_LABEL] == "false"
        assert not world.health.facts["trust-list"].well
        assert not world.health.facts["trust-list"].holds_back

    async def test_a_node_that_changes_meanwhile_holds_up_no_other(self, world: World) -> None:
        """The first is read again, the second is lowered in the same round."""

        class Contested(MemoryCluster):
            async def apply(self, actions: Any) -> None:
                actions = list(actions)
                if any(action.target.name == "cp-1" for action in actions):
                    raise ObjectChanged("409")
                await super().apply(actions)

        cluster = Contested()
        controller = Nodes(world.around(cluster))
        for name in ("cp-1", "cp-2", "gone"):
            node = raw_node(name, labels={OWNER_LABEL: MACHINE, ATTESTED_LABEL: "false"})
            await controller.handle(cluster.put(node), node)
        del cluster.objects["Node", "gone"]
        world.service.machines = (trust(hostname="cp-2"),)
        await controller.look_at_all()
        assert cluster.objects["Node", "cp-2"]["metadata"]["labels"][ATTESTED_LABEL] == "true"

    async def test_a_node_that_is_gone_is_forgotten(self, world: World) -> None:
        """Nothing is applied to it any more."""
        controller = Nodes(world.around())
        at = world.cluster.put(raw_node(labels={ATTESTED_LABEL: "false"}))
        await controller.handle(at, None)
        del world.cluster.objects["Node", "cp-1"]
        await controller.handle(at, None)
        await controller.look_at_all()
        assert not world.cluster.applied

    async def test_taints_follow_what_the_administrator_wants(self, world: World) -> None:
        """From the next look on."""
        controller = Nodes(world.around())
        world.service.machines = (trust(trusted=False),)
        await controller.look_at_all()
        at = world.cluster.put(raw_node(labels={OWNER_LABEL: MACHINE}))
        await controller.handle(at, None)
        assert "taints" not in world.cluster.objects["Node", "cp-1"]["spec"]
        policy = world.cluster.put(raw_attestation({"onTrustLapse": {"taint": True}}))
        await controller.handle(policy, None)
        await controller.handle(at, None)
        assert world.cluster.objects["Node", "cp-1"]["spec"]["taints"]


class Crash(BaseException):
    """The process ends here."""


class Crashing:
    """A part of the world whose calls are counted; the process ends before or after one of them.

    Args:
        inner: The part.
        ends: Told before and after each call; True ends the process.
    """

    def __init__(self, inner: Any, ends: Callable[[], bool]) -> None:
        self._inner = inner
        self._ends = ends

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        async def counted_call(*arguments: Any, **named: Any) -> Any:
            if name == "apply":
                # Each action is a request of its own.
                for action in arguments[0]:
                    await self._one(call, [action])
                return None
            return await self._one(call, *arguments, **named)

        return counted_call

    async def _one(self, call: Any, *arguments: Any, **named: Any) -> Any:
        if self._ends():
            raise Crash
        answer = await call(*arguments, **named)
        if self._ends():
            raise Crash
        return answer


def crashes(after: int) -> Callable[[], bool]:
    """Return what ends the process at the place of that number, from 0."""
    count: Iterator[int] = iter(range(10_000))
    return lambda: next(count) == after


@pytest.mark.parametrize("decided", ["approve", "deny"])
async def test_a_process_that_ends_anywhere_leaves_one_outcome(decided: str) -> None:
    """At each place between two requests: the next process finishes, and the service wrote it down once.

    The Node of another machine is deleted on the way, the certificate is issued behind it.
    """
    places = 0
    for place in range(100):
        world = World()
        world.service.answer = decision(decided)
        world.service.signature = OUR_CA.answer()
        world.cluster.put(raw_attestation({"deleteStaleNodes": True}))
        world.cluster.put(raw_node(labels={OWNER_LABEL: OTHER}))
        at = world.cluster.put(raw_csr())
        ends = crashes(place)
        try:
            around = world.around(Crashing(world.cluster, ends), Crashing(world.service, ends))
            await Approver(around).handle(at, None)
            await Signer(around, lambda: (OUR_CA.root,)).handle(at, None)
            ended = False
        except Crash:
            ended = True
            await world.approver().handle(at, None)
            await world.signer().handle(at, None)
        places += ended
        assert world.conditions() == [{"approve": "Approved", "deny": "Denied"}[decided]]
        assert len(world.service.audit) == 1
        status = world.cluster.objects["CertificateSigningRequest", at.name]["status"]
        assert ("certificate" in status) is (decided == "approve")
        assert (("Node", "cp-1") in world.cluster.objects) is (decided == "deny")
        assert sum(isinstance(action, Approve) for action in world.cluster.applied) == (decided == "approve")
        if not ended:
            break
    assert places >= (20 if decided == "approve" else 10)


async def test_a_request_for_another_name_looks_up_no_node(world: World) -> None:
    """What no Node can be called is asked of the service alone."""
    at = world.cluster.put(raw_csr(pkcs10(subject("a/b")) + b"x"))
    with pytest.raises(AnswerInvalid):
        await world.approver().handle(at, None)
    assert world.service.asked[0].node is None
