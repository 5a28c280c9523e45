"""The three controllers of nodes: they gather what a decision rests on, ask the service, and have the result applied.

Nothing is decided here, and nothing is remembered that matters: whatever line a process ends at, the next one looks
again, the service gives the answer that it gave, and what was applied is not applied twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from prometheus_client import Counter

from attestation.api.node_csr import NODE_CLIENT
from attestation.client import AnswerInvalid
from attestation.errors import AttestationError
from attestation_operator.actions import SetStatus
from attestation_operator.controller import Around, Round
from attestation_operator.errors import ObjectChanged
from attestation_operator.health import Fact
from attestation_operator.nodes import approver, labels, race, signer
from attestation_operator.nodes.objects import (
    Node,
    SigningRequest,
    Unreadable,
    decoded,
    has_evidence,
    read_csr,
    read_node,
    requested_node,
)
from attestation_operator.nodes.policy import CLUSTER, NodePolicy, PolicyUnreadable, read_policy
from attestation_operator.objects import (
    CLUSTER_ROLE_BINDING,
    CSR,
    NODE,
    NODE_ATTESTATION,
    Key,
    Kind,
    Raw,
    Target,
)

POLICY_KEPT: Final = timedelta(minutes=1)
"""How long what NodeAttestation/cluster said is believed where nothing tells of a change."""
RACE_ROUND_SECONDS: Final = 60.0
RACE_CLEAN: Final = timedelta(hours=1)
"""How long nothing found is believed; what was found is looked at again each minute, until it is gone."""
TRUST_ROUND_SECONDS: Final = 5.0
NODES_KEPT: Final = timedelta(minutes=10)
"""How long the Nodes that were seen are all that there are."""
APPROVER_MANAGER: Final = "attestation-operator-approver"


class _Policy:
    """What NodeAttestation/cluster says, as it was seen last."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._read: NodePolicy | None = None
        self._read_at: datetime | None = None

    async def current(self) -> NodePolicy:
        """Return it; read where it was not seen yet.

        Raises:
            PolicyUnreadable: It cannot be followed.
        """
        # A replica that does not lead watches nothing, and one that leads again was told of no deletion.
        at = self._around.clock.now()
        if self._read is None or self._read_at is None or at >= self._read_at + POLICY_KEPT:
            self.seen(await self._around.cluster.read(CLUSTER))
        assert self._read is not None
        return self._read

    async def changed(self, key: Key, seen: Raw | None) -> None:
        """Take it as it is now."""
        if key == CLUSTER:
            self.seen(seen if seen is not None else await self._around.cluster.read(CLUSTER))

    def seen(self, raw: Raw | None) -> None:
        """Take it from *raw*; absent, it is the default."""
        self._read, self._read_at = None, None
        try:
            self._read = read_policy(raw)
        except PolicyUnreadable as e:
            self._around.health.say("policy", Fact(well=False, said=str(e)))
            raise
        self._read_at = self._around.clock.now()
        self._around.health.say("policy", Fact(well=True, said="read" if raw is not None else "default"))


class Approver:
    """Approves and denies requests of nodes, as the service judges them."""

    name = "approver"

    def __init__(self, around: Around) -> None:
        self._around = around
        self._policy = _Policy(around)
        self._clean_since: datetime | None = None
        self._rivals: race.State | None = None
        self._outcomes = _outcomes(around, "itl_operator_csr_decisions", "Looks of the approver at requests")

    @property
    def watches(self) -> Sequence[Kind]:
        """Requests, and what the administrator wants."""
        return (CSR, NODE_ATTESTATION)

    @property
    def rounds(self) -> Sequence[Round]:
        """Looking for what would approve without evidence."""
        return (
            Round(
                name="in-tree-approver", seconds=RACE_ROUND_SECONDS, run=self.look_for_rivals, everywhere=True
            ),
            Round(name="in-tree-approver-condition", seconds=RACE_ROUND_SECONDS, run=self.tell_of_rivals),
        )

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Decide a request, if it is ours to decide."""
        if key.kind is not CSR:
            await self._policy.changed(key, seen)
            return None
        csr = await seen_csr(self._around, key, seen)
        if csr is None:
            return None
        policy = await self._policy.current()
        # Requests of others are many, and each may be a megabyte: they are not even decoded.
        passed_over = approver.glance(csr, policy)
        if passed_over is not None:
            self._outcomes.labels(_shown(csr.signer_name, policy.signers), passed_over.outcome).inc()
            return None
        case = await self._gather(csr)
        looked = approver.reconcile(case, policy)
        if looked.ask:
            answer = await self._around.service.appraise(approver.question(case, policy))
            looked = approver.reconcile(replace(case, answer=answer), policy)
        self._outcomes.labels(_shown(csr.signer_name, policy.signers), looked.outcome).inc()
        if looked.outcome is approver.Outcome.MIXED_UP:
            raise AnswerInvalid("the service approved something else than it was asked about")
        await self._around.executor.apply(looked.actions)
        if looked.actions:
            self._around.log.info(
                "csr.decided",
                outcome=looked.outcome.value,
                name=csr.target.name,
                uid=csr.target.uid,
                reason=looked.reason,
            )
        return None

    async def _gather(self, csr: SigningRequest) -> approver.Case:
        request = decoded(csr.request)
        name = requested_node(request)
        # Read at the API server, not from memory: the Node may have come a moment ago.
        raw = None if name is None else await self._around.cluster.read(Key(kind=NODE, name=name))
        return approver.Case(
            csr=csr,
            has_evidence=has_evidence(request),
            node_name=name,
            node=None if raw is None else read_node(raw),
        )

    async def look_for_rivals(self) -> None:
        """Find out whether something would approve without evidence; each replica for itself, for its own probe.

        Raises:
            AttestationError: It could not be found out; that was said.
        """
        at = self._around.clock.now()
        if self._clean_since is not None and at < self._clean_since + RACE_CLEAN:
            return
        self._clean_since = None
        policy = await self._policy.current()
        try:
            self._rivals = await self._find_rivals(policy)
        except AttestationError as e:
            self._rivals = race.State(active=None, said=f"cannot be found out: {e.code}")
            raise
        finally:
            if self._rivals is not None:
                self._say(self._rivals, policy)
        if self._rivals.active is False:
            self._clean_since = at

    async def tell_of_rivals(self) -> None:
        """Write the conditions of NodeAttestation/cluster, where they say something else; only the one that leads."""
        if self._rivals is None:
            await self.look_for_rivals()
            assert self._rivals is not None
        raw = await self._around.cluster.read(CLUSTER)
        if raw is None:
            return
        policy = await self._policy.current()
        conditions = race.conditions(raw, self._rivals, strict=policy.strict, at=self._around.clock.now())
        if not race.is_said(raw, conditions):
            target = Target.of(NODE_ATTESTATION, raw)
            status = {"conditions": list(conditions)}
            await self._around.executor.apply(
                [SetStatus(target=target, manager=APPROVER_MANAGER, status=status)]
            )

    async def _find_rivals(self, policy: NodePolicy) -> race.State:
        cluster = self._around.cluster
        bindings = await cluster.list(CLUSTER_ROLE_BINDING)
        asked = race.questions(bindings, policy.bootstrap_groups)
        findings = race.reconcile(bindings, {each: await cluster.review(each.spec) for each in asked})
        return race.State(active=bool(findings), said=race.said(findings))

    def _say(self, state: race.State, policy: NodePolicy) -> None:
        self._around.health.say(
            "in-tree-approver",
            Fact(well=state.active is False, said=state.said, holds_back=policy.strict),
        )
        if state.active is not False:
            self._around.log.warning(
                "in_tree_approver.found", active=state.active, said=state.said, strict=policy.strict
            )


class Signer:
    """Issues certificates of our own signer.

    Args:
        around: What a controller is given.
        anchors: Returns the certificates of our CA, as they are configured now.
    """

    name = "signer"

    def __init__(self, around: Around, anchors: Callable[[], Sequence[x509.Certificate]]) -> None:
        self._around = around
        self._anchors = anchors
        self._policy = _Policy(around)
        self._outcomes = _outcomes(around, "itl_operator_csr_signatures", "Looks of the signer at requests")

    @property
    def watches(self) -> Sequence[Kind]:
        """Requests, and what the administrator wants."""
        return (CSR, NODE_ATTESTATION)

    @property
    def rounds(self) -> Sequence[Round]:
        """None."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Issue a certificate, if the request is ours and was approved."""
        if key.kind is not CSR:
            await self._policy.changed(key, seen)
            return None
        csr = await seen_csr(self._around, key, seen)
        if csr is None:
            return None
        at = self._around.clock.now()
        looked = signer.reconcile(csr, anchors=(), at=at)
        if looked.ask:
            policy = await self._policy.current()
            looked = signer.reconcile(
                csr,
                anchors=self._anchors(),
                at=at,
                longest=policy.longest,
                answer=await self._answer(csr),
            )
        self._outcomes.labels(_shown(csr.signer_name, {NODE_CLIENT}), looked.outcome).inc()
        await self._around.executor.apply(looked.actions)
        if looked.outcome is signer.Signed.BAD_ANSWER:
            raise AnswerInvalid(looked.said)
        if looked.actions:
            self._around.log.info(
                "csr.signed", outcome=looked.outcome.value, name=csr.target.name, uid=csr.target.uid
            )
        return None

    async def _answer(self, csr: SigningRequest) -> str | AttestationError:
        name = requested_node(decoded(csr.request))
        raw = None if name is None else await self._around.cluster.read(Key(kind=NODE, name=name))
        try:
            answer = await self._around.service.sign(
                approver.asked(csr, None if raw is None else read_node(raw))
            )
        except AttestationError as e:
            if signer.is_final(e):
                return e
            raise
        return answer.certificate_pem


class Nodes:
    """Says on each Node what its machine is worth, and keeps pods off those that are worth nothing."""

    name = "nodes"

    def __init__(self, around: Around) -> None:
        self._around = around
        self._policy = _Policy(around)
        self._listing = labels.Listing(machines=None, at=around.clock.now())
        self._nodes: dict[str, Node] = {}
        self._listed_at: datetime | None = None
        self._changes = Counter(
            "itl_operator_node_changes", "Nodes that were changed", registry=around.metrics.registry
        )

    @property
    def watches(self) -> Sequence[Kind]:
        """Nodes, and what the administrator wants."""
        return (NODE, NODE_ATTESTATION)

    @property
    def rounds(self) -> Sequence[Round]:
        """Asking the service what the machines are worth."""
        return (Round(name="trust", seconds=TRUST_ROUND_SECONDS, run=self.look_at_all),)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one Node."""
        if key.kind is not NODE:
            await self._policy.changed(key, seen)
            return None
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is None:
            self._nodes.pop(key.name, None)
            return None
        node = self._nodes[key.name] = read_node(raw)
        await self._look(node, await self._policy.current())
        return None

    async def look_at_all(self) -> None:
        """Ask what the machines are worth, and look at each Node that is known.

        With the service away, what it said last counts for as long as it said.

        Raises:
            Unavailable: The service did not answer; the Nodes were looked at all the same.
        """
        away: AttestationError | None = None
        try:
            machines = await self._around.service.trust()
            self._listing = labels.Listing.of(machines, self._around.clock.now())
            self._around.health.say(
                "trust-list", Fact(well=True, said=f"{len(machines)} machines", holds_back=False)
            )
        except AttestationError as e:
            away = e
            self._around.health.say("trust-list", Fact(well=False, said=e.code, holds_back=False))
        policy = await self._policy.current()
        await self._list()
        for name, node in list(self._nodes.items()):
            try:
                await self._look(node, policy)
            except ObjectChanged:
                # The watch, or this read, shows what it is by now; the others are not kept waiting.
                await self._again(name, policy)
        if away is not None:
            raise away

    async def _list(self) -> None:
        """Know all Nodes: from the first round on, and again where no watch told of one that went."""
        at = self._around.clock.now()
        if self._listed_at is None or at >= self._listed_at + NODES_KEPT:
            found = [read_node(raw) for raw in await self._around.cluster.list(NODE)]
            self._nodes = {node.name: node for node in found}
            self._listed_at = at

    async def _again(self, name: str, policy: NodePolicy) -> None:
        raw = await self._around.cluster.read(Key(kind=NODE, name=name))
        if raw is None:
            self._nodes.pop(name, None)
            return
        self._nodes[name] = read_node(raw)
        try:
            await self._look(self._nodes[name], policy)
        except ObjectChanged:
            self._around.log.info("node.changed", name=name)

    async def _look(self, node: Node, policy: NodePolicy) -> None:
        actions = labels.reconcile(node, self._listing, policy, self._around.clock.now())
        await self._around.executor.apply(actions)
        if actions:
            self._changes.inc()


async def seen_csr(around: Around, key: Key, seen: Raw | None) -> SigningRequest | None:
    """Return a request as it was seen, or is; None where it is gone, or none that is looked at."""
    raw = seen if seen is not None else await around.cluster.read(key)
    if raw is None:
        return None
    try:
        return read_csr(raw)
    except Unreadable as e:
        around.log.warning("csr.left", uid=raw["metadata"]["uid"], reason=str(e))
        return None


def _outcomes(around: Around, name: str, what: str) -> Counter:
    return Counter(name, what, ["signer", "outcome"], registry=around.metrics.registry)


def _shown(signer_name: str, known: Collection[str]) -> str:
    """Return a signerName as a label: anybody may make up others, and each would be kept for ever."""
    return signer_name if signer_name in known else "other"
