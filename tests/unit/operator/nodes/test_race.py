"""What would approve without evidence, from bindings and from what an API server says of rights."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from attestation_operator.nodes import race
from attestation_operator.nodes.race import Question, State, conditions, is_said, questions, reconcile, said
from tests.unit.operator.nodes.world import AT, raw_attestation

ROLE = "system:certificates.k8s.io:certificatesigningrequests:"


def binding(name: str, role: str, *subjects: tuple[str, str], kind: str = "ClusterRole") -> dict[str, Any]:
    """Return a ClusterRoleBinding."""
    return {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": each, "name": named} for each, named in subjects],
    }


KUBEADM = binding(
    "kubeadm:node-autoapprove-bootstrap",
    ROLE + "nodeclient",
    ("Group", "system:bootstrappers:kubeadm:default-node-token"),
)
ROTATION = binding(
    "kubeadm:node-autoapprove-certificate-rotation", ROLE + "selfnodeclient", ("Group", "system:nodes")
)


def test_the_bindings_of_kubeadm_are_found_by_name() -> None:
    """Both of them, and what is to be removed is named."""
    found = reconcile([KUBEADM, ROTATION, binding("other", "view", ("Group", "system:nodes"))], {})
    assert [finding.binding for finding in found] == [
        "kubeadm:node-autoapprove-bootstrap",
        "kubeadm:node-autoapprove-certificate-rotation",
    ]
    assert "kubeadm:node-autoapprove-bootstrap lets system:bootstrappers" in said(found)


def test_a_role_of_another_name_is_found_by_asking() -> None:
    """An authorizer that allows it counts, however it comes to that."""
    asked = questions([], [])
    assert Question(subresource="nodeclient", groups=("system:bootstrappers",)) in asked
    assert Question(subresource="selfnodeclient", groups=("system:nodes",)) in asked
    found = reconcile([], {question: question.who == "system:nodes" for question in asked})
    assert {(finding.subresource, finding.who, finding.binding) for finding in found} == {
        ("nodeclient", "system:nodes", None),
        ("selfnodeclient", "system:nodes", None),
    }


def test_what_a_binding_tells_is_not_told_twice() -> None:
    """The review about the group of a binding adds nothing."""
    who = "system:bootstrappers:kubeadm:default-node-token"
    question = Question(subresource="nodeclient", groups=(who,))
    assert len(reconcile([KUBEADM], {question: True})) == 1


def test_groups_of_the_administrator_and_users_of_bindings_are_asked_for() -> None:
    """A bootstrap group of one's own; a user whom a binding names."""
    user = binding("mine", ROLE + "nodeclient", ("User", "installer"))
    asked = questions([user], ["example:joiners"])
    assert Question(subresource="nodeclient", groups=("example:joiners",)) in asked
    assert any(question.user == "installer" and question.spec["user"] == "installer" for question in asked)


def test_a_review_asks_for_creating_the_subresource() -> None:
    """What kube-controller-manager asks before it approves."""
    spec = Question(subresource="nodeclient", groups=("a",)).spec
    assert spec == {
        "groups": ["a"],
        "resourceAttributes": {
            "group": "certificates.k8s.io",
            "resource": "certificatesigningrequests",
            "subresource": "nodeclient",
            "verb": "create",
        },
    }


def test_nothing_found_is_nothing_found() -> None:
    """No bindings, no rights: inactive. A binding without subjects approves nobody; a Role of that name neither."""
    empty = binding("empty", ROLE + "nodeclient")
    namespaced = binding("role", ROLE + "nodeclient", ("Group", "x"), kind="Role")
    assert (
        reconcile([empty, namespaced, {"metadata": {"name": "odd"}}], dict.fromkeys(questions([], []), False))
        == ()
    )
    assert said(()) == "nothing approves requests of nodes without evidence"


def test_a_message_of_many_findings_fits() -> None:
    """The first eight, and how many more."""
    many = [binding(f"b{i}", ROLE + "nodeclient", ("Group", "g" * 200)) for i in range(30)]
    text = said(reconcile(many, {}))
    assert len(text.encode()) <= 1024


def test_strict_holds_back_also_where_nothing_is_known() -> None:
    """Only certainty that nothing approves lets it be ready; a warning never holds back."""
    for active, held in ((True, True), (None, True), (False, False)):
        state = State(active=active, said="")
        assert state.holds_back(strict=True) is held
        assert not state.holds_back(strict=False)


def test_conditions_keep_their_time_until_they_change() -> None:
    """And carry the generation that they were made from."""
    raw = raw_attestation()
    found = conditions(raw, State(active=True, said="a binding"), strict=True, at=AT)
    active, ready = found
    assert (active["type"], active["status"], active["reason"]) == (race.CONDITION, "True", "BindingFound")
    assert (ready["type"], ready["status"], ready["message"]) == ("Ready", "False", "a binding")
    assert active["observedGeneration"] == 2
    assert active["lastTransitionTime"] == "2026-11-23T12:00:00Z"
    raw["status"] = {"conditions": list(found)}
    later = AT + timedelta(hours=1)
    assert is_said(raw, conditions(raw, State(active=True, said="a binding"), strict=True, at=later))
    warned = conditions(raw, State(active=True, said="a binding"), strict=False, at=later)
    assert not is_said(raw, warned)
    assert warned[0] == active
    assert (warned[1]["status"], warned[1]["lastTransitionTime"]) == ("True", "2026-11-23T13:00:00Z")
    clean = conditions(raw, State(active=False, said="nothing"), strict=True, at=later)
    assert [each["status"] for each in clean] == ["False", "True"]
    unknown = conditions(raw, State(active=None, said="cannot"), strict=True, at=later)
    assert [each["status"] for each in unknown] == ["Unknown", "False"]
