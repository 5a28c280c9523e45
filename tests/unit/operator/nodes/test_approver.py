"""Which requests are approved: one row for each rule, and each row fails when its rule is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from attestation.api.node_csr import KUBELET_CLIENT, KUBELET_SERVING, NODE_CLIENT
from attestation.appraisal.node_csr import Reason
from attestation.errors import RequestInvalid
from attestation_operator.actions import Action, Approve, Delete, Deny, EmitEvent
from attestation_operator.nodes.approver import Case, Outcome, asked, question, reconcile
from attestation_operator.nodes.objects import (
    MACHINE_ID_LABEL,
    OWNER_LABEL,
    read_csr,
    read_node,
)
from attestation_operator.nodes.policy import NodePolicy, OnMissingEvidence
from tests.unit.operator.nodes.world import MACHINE, OTHER, decision, raw_csr, raw_node

STRICT = NodePolicy(signers={KUBELET_CLIENT: OnMissingEvidence.DENY, NODE_CLIENT: OnMissingEvidence.DENY})


def case(**changes: Any) -> Case:
    """Return a request of cp-1 with evidence, which the service was not asked about yet."""
    csr = read_csr(
        raw_csr(
            **{name: changes.pop(name) for name in ("signer", "conditions", "certificate") if name in changes}
        )
    )
    said: dict[str, Any] = {"has_evidence": True, "node_name": "cp-1", "node": None}
    return Case(csr=csr, **(said | changes))


def kinds(actions: tuple[Action, ...]) -> list[type]:
    """Return what the actions are, Events aside."""
    return [type(action) for action in actions if not isinstance(action, EmitEvent)]


@pytest.mark.parametrize("conditions", [["Approved"], ["Denied"], ["Failed"], ["Approved", "Failed"]])
def test_what_somebody_decided_is_left_alone(conditions: list[str]) -> None:
    """No answer changes a request that was approved, denied or failed before."""
    for answer in (None, decision(), decision("deny")):
        looked = reconcile(case(conditions=conditions, answer=answer), STRICT)
        assert (looked.outcome, looked.actions) == (Outcome.SKIPPED, ())


def test_what_was_issued_is_left_alone() -> None:
    """A certificate without a condition, as an API server takes it, is nothing to decide about."""
    assert reconcile(case(certificate="LS0t", answer=decision()), STRICT).outcome is Outcome.SKIPPED


def test_other_signers_are_left_alone() -> None:
    """Not even an approval of the service reaches a signer that nobody configured."""
    for signer in ("example.com/other", KUBELET_SERVING):
        looked = reconcile(case(signer=signer, answer=decision()), NodePolicy())
        assert (looked.outcome, looked.actions) == (Outcome.NOT_OURS, ())


@pytest.mark.parametrize("has_evidence", [True, False])
@pytest.mark.parametrize("signer", [KUBELET_CLIENT, NODE_CLIENT])
def test_nothing_is_decided_before_the_service_answered(signer: str, has_evidence: bool) -> None:
    """With and without evidence, whatever the rule: no condition without an answer."""
    for policy in (NodePolicy(), STRICT):
        looked = reconcile(case(signer=signer, has_evidence=has_evidence), policy)
        assert kinds(looked.actions) == []
        left = not has_evidence and policy.signers[signer] is OnMissingEvidence.IGNORE
        assert looked.outcome is (Outcome.LEFT if left else Outcome.ASKED)


def test_a_kubelet_without_evidence_is_left_to_others_by_default() -> None:
    """For Kubernetes' own signer an Event, for ours a refusal, and both only a rule."""
    left = reconcile(case(signer=KUBELET_CLIENT, has_evidence=False), NodePolicy())
    assert left.outcome is Outcome.LEFT
    assert [type(action) for action in left.actions] == [EmitEvent]
    not_recognised = decision("not-recognised")
    assert reconcile(case(signer=KUBELET_CLIENT, answer=not_recognised), NodePolicy()).outcome is Outcome.LEFT
    for policy, signer in ((NodePolicy(), NODE_CLIENT), (STRICT, KUBELET_CLIENT)):
        denied = reconcile(case(signer=signer, has_evidence=False, answer=not_recognised), policy)
        assert kinds(denied.actions) == [Deny]
        assert denied.reason == "EvidenceMissing"


def test_a_serving_certificate_is_asked_for_without_evidence() -> None:
    """It follows the attested certificate and carries none: the service tells, under either rule."""
    for rule in OnMissingEvidence:
        policy = NodePolicy(signers={KUBELET_SERVING: rule})
        assert reconcile(case(signer=KUBELET_SERVING, has_evidence=False), policy).ask


@pytest.mark.parametrize("reason", [each.value for each in Reason if each is not Reason.TPM_ATTESTED])
def test_what_is_judged_bad_is_denied_with_its_reason(reason: str) -> None:
    """The reason and the message are the service's, an Event says the same; each of §22 (k)."""
    answer = decision("deny", reason=reason)
    looked = reconcile(case(answer=answer), NodePolicy())
    assert looked.outcome is Outcome.DENIED
    deny, event = looked.actions
    assert isinstance(deny, Deny)
    assert isinstance(event, EmitEvent)
    assert (deny.reason, event.reason, event.type) == (reason, reason, "Warning")
    assert deny.message == event.note == answer.message
    assert deny.target.resource_version == "7"


def test_what_is_judged_good_is_approved() -> None:
    """With the tier and the id of the result in the message."""
    looked = reconcile(case(answer=decision()), NodePolicy())
    approve, event = looked.actions
    assert isinstance(approve, Approve)
    assert isinstance(event, EmitEvent)
    assert approve.reason == "TpmAttested"
    assert "resident+quote" in approve.message
    assert event.type == "Normal"


@pytest.mark.parametrize(
    "changes",
    [
        {"node_name": "cp-2"},
        {"node_name": None},
        {"machine_id": None},
        {"reason": "PolicyFailed"},
    ],
)
def test_an_answer_to_another_question_approves_nothing(changes: dict[str, Any]) -> None:
    """An approval that names another node, no machine, or a reason to refuse, is none."""
    looked = reconcile(case(answer=decision(**changes)), NodePolicy())
    assert (looked.outcome, looked.actions) == (Outcome.MIXED_UP, ())


def test_a_request_for_no_node_is_never_approved() -> None:
    """An answer without a name does not match a request without a name."""
    assert (
        reconcile(case(node_name=None, answer=decision(node_name=None)), NodePolicy()).outcome
        is Outcome.MIXED_UP
    )


@pytest.mark.parametrize("text", ["x" * 5000, "ä" * 700, "\n"])
def test_messages_fit_into_a_condition(text: str) -> None:
    """1 to 1024 bytes of UTF-8 whatever the service says (§24 k)."""
    for decided in ("approve", "deny", "not-recognised"):
        answer = decision(decided).model_copy(update={"message": text})
        for action in reconcile(case(answer=answer), NodePolicy()).actions:
            if isinstance(action, Approve | Deny):
                assert 1 <= len(action.message.encode()) <= 1024


class TestNode:
    """The Node of the name that is asked for."""

    def test_the_service_is_told_whose_it_is(self) -> None:
        """What a kubelet cannot write counts before what it can; a Node that nobody claimed is told as such."""
        for labels, expected in (
            ({}, None),
            ({MACHINE_ID_LABEL: OTHER}, OTHER),
            ({OWNER_LABEL: MACHINE}, MACHINE),
            ({MACHINE_ID_LABEL: MACHINE, OWNER_LABEL: OTHER}, OTHER),
        ):
            seen = question(case(node=read_node(raw_node(labels=labels))), NodePolicy()).node
            assert seen is not None
            assert (seen.name, seen.machine_id) == ("cp-1", expected)
        assert question(case(), NodePolicy()).node is None

    def test_no_node_is_deleted_unless_somebody_wants_it(self) -> None:
        """By default an approval beside a Node of another machine deletes nothing."""
        node = read_node(raw_node(labels={OWNER_LABEL: OTHER}))
        assert kinds(reconcile(case(node=node, answer=decision()), NodePolicy()).actions) == [Approve]

    def test_the_node_of_another_machine_goes_before_the_approval(self) -> None:
        """This very Node, and only when the request is good."""
        policy = NodePolicy(delete_stale_nodes=True)
        node = read_node(raw_node(labels={OWNER_LABEL: OTHER}))
        assert question(case(node=node), policy).node is None
        actions = reconcile(case(node=node, answer=decision()), policy).actions
        assert kinds(actions) == [Delete, Approve]
        assert actions[0].target == node.target
        assert kinds(reconcile(case(node=node, answer=decision("deny")), policy).actions) == [Deny]

    def test_ones_own_node_stays(self) -> None:
        """A renewal deletes nothing."""
        node = read_node(raw_node(labels={OWNER_LABEL: MACHINE}))
        policy = NodePolicy(delete_stale_nodes=True)
        assert kinds(reconcile(case(node=node, answer=decision()), policy).actions) == [Approve]

    def test_an_unclaimed_node_stays_and_is_told_of(self) -> None:
        """Nobody said whose it is: it may be somebody's."""
        node = read_node(raw_node())
        policy = NodePolicy(delete_stale_nodes=True)
        assert question(case(node=node), policy).node is not None
        assert kinds(reconcile(case(node=node, answer=decision()), policy).actions) == [Approve]


def test_the_stamped_facts_are_passed_on() -> None:
    """Who asked is what the API server says, not what is in the request."""
    csr = read_csr(raw_csr())
    told = asked(csr, None).csr
    assert (told.username, told.groups) == (
        "system:bootstrap:abcdef",
        ["system:bootstrappers", "system:authenticated"],
    )
    assert (told.uid, told.request, told.signer_name) == (csr.target.uid, csr.request, csr.signer_name)
    assert told.usages == ["digital signature", "key encipherment", "client auth"]


def test_a_request_that_the_service_would_not_read_is_refused_not_crashed_on() -> None:
    """Too many groups, an endless request: an error of ours, and nothing of the request in it."""
    csr = read_csr(raw_csr())
    for wrong in (
        replace(csr, groups=("secret",) * 300),
        replace(csr, request="secret" * (1 << 20)),
        replace(csr, usages=("secret" * 20,)),
    ):
        with pytest.raises(RequestInvalid) as raised:
            asked(wrong, None)
        assert "secret" not in str(raised.value)
