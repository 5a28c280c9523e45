"""Policies of admission: what of the models' rules they have, and whom they let through."""

from __future__ import annotations

from typing import Any

import pytest

from attestation_operator.objects import POLICY, RUN, Kind
from attestation_operator.runs.admission import FINAL, KINDS, derived, policies
from attestation_testing.kubernetes.expressions import HAS_CEL, EvaluationError, Expression
from tests.fixtures.admission_cases import CASES, CONTROLLER, Case, name_of, old_and_bad
from tools.admission import FILE, schemas, written

needs_cel = pytest.mark.skipif(not HAS_CEL, reason="no CEL for this system")


def test_the_chart_has_what_is_derived() -> None:
    """`python -m tools.admission` writes it; who changes a rule of a model writes it anew."""
    assert FILE.read_text("utf-8") == written()


def _made() -> list[dict[str, Any]]:
    return policies(CONTROLLER, schemas(), prefix="p")


def test_each_policy_is_bound_and_denies() -> None:
    """One without a binding refuses nothing; one that fails refuses."""
    made = _made()
    found = {each["metadata"]["name"]: each for each in made if each["kind"] == "ValidatingAdmissionPolicy"}
    bound = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in made
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }
    assert bound.keys() == found.keys()
    assert {tuple(actions) for actions in bound.values()} == {("Deny",)}
    assert {each["spec"]["failurePolicy"] for each in found.values()} == {"Fail"}


def test_every_status_and_every_final_kind_is_covered() -> None:
    """A kind that somebody adds is in one of the lists, or this fails."""
    rules = {
        each["metadata"]["name"]: each["spec"]["matchConstraints"]["resourceRules"][0]
        for each in _made()
        if each["kind"] == "ValidatingAdmissionPolicy"
    }
    covered = {*rules["p-status"]["resources"], *rules["p-event-status"]["resources"]}
    assert covered == {f"{kind.plural}/status" for kind in KINDS}
    assert set(rules["p-spec-stays"]["resources"]) == {kind.plural for kind in FINAL}
    assert {kind.plural for kind in KINDS} == schemas().keys()


def _refusals(case: Case) -> list[str]:
    """Return what policies say of a request, as an API server evaluates them."""
    review = case.review()["request"]
    resource = case.kind.plural + ("/status" if case.status else "")
    said = []
    for policy in _made():
        if policy["kind"] != "ValidatingAdmissionPolicy":
            continue
        [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
        if resource not in rule["resources"] or case.operation not in rule["operations"]:
            continue
        data = {"object": review["object"], "oldObject": review["oldObject"], "request": review}
        conditions = policy["spec"].get("matchConditions", ())
        if not all(Expression(each["expression"], *data).holds(data) for each in conditions):
            continue
        for each in policy["spec"]["validations"]:
            expression = Expression(each["expression"], *data)
            try:
                holds = expression.holds(data)
            except EvaluationError:
                holds = False
            if not holds:
                said.append(each["message"])
    return said


@needs_cel
@pytest.mark.parametrize("case", [each for each in CASES if not each.by_schema], ids=name_of)
def test_policies_let_through_what_may_be(case: Case) -> None:
    """CONFIDENTIAL §4, the table of admission; what a schema refuses comes to no policy."""
    said = _refusals(case)
    assert (not said) == case.allowed, said


@needs_cel
@pytest.mark.parametrize("kind", [RUN, POLICY], ids=lambda kind: kind.kind)
def test_an_object_that_is_older_than_a_rule_can_go(kind: Kind) -> None:
    """The garbage collector takes a finalizer from it: were that refused, it would stay for ever."""
    assert _refusals(old_and_bad(kind, before=True)) == []
    assert _refusals(old_and_bad(kind, before=False)) != []


def _schema(**properties: Any) -> dict[str, Any]:
    return {"properties": {"spec": {"type": "object", "properties": properties}}}


def _rule(text: str) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": text, "message": "m"}]}


@pytest.mark.parametrize(
    ("schema", "expression"),
    [
        (_schema(a=_rule("self > 1")), "!has(object.spec.a) || (object.spec.a > 1)"),
        (
            _schema(a=_rule("x.self == 'self' && self == 1")),
            "!has(object.spec.a) || (x.self == 'self' && object.spec.a == 1)",
        ),
        (_schema(a={"items": _rule("self > 1")}), "!has(object.spec.a) || (object.spec.a.all(i1, i1 > 1))"),
        (
            _schema(a={"additionalProperties": _rule("self > 1")}),
            "!has(object.spec.a) || (object.spec.a.all(k1, object.spec.a[k1] > 1))",
        ),
        (
            _schema(namespace=_rule("self == ''")),
            "!('namespace' in object.spec) || (object.spec['namespace'] == '')",
        ),
        (
            _schema(namespace=_rule("self == oldSelf")),
            (
                "oldObject == null || !has(oldObject.spec) || !('namespace' in oldObject.spec) || "
                "(!('namespace' in object.spec) || (object.spec['namespace'] == oldObject.spec['namespace']))"
            ),
        ),
        (
            _schema(a=_rule("self == oldSelf")),
            (
                "oldObject == null || !has(oldObject.spec) || !has(oldObject.spec.a) || "
                "(!has(object.spec.a) || (object.spec.a == oldObject.spec.a))"
            ),
        ),
    ],
    ids=["member", "words", "list", "map", "reserved", "reserved-change", "change"],
)  # fmt: skip
def test_a_rule_is_said_of_the_whole_object(schema: dict[str, Any], expression: str) -> None:
    """Where it stands comes before it, and nothing is said of what is not there."""
    [found] = derived(schema)
    assert found.expression == expression
    assert found.message == "m"


def test_what_compares_members_of_lists_is_left_to_the_schema() -> None:
    """Which old member is the same one a policy cannot know."""
    assert derived(_schema(a={"items": _rule("self == oldSelf")})) == []


def test_a_change_is_said_once_of_a_final_kind() -> None:
    """The policy about all of them says it; that of the kind does not say it again."""
    own = next(each for each in _made() if each["metadata"]["name"] == f"p-{RUN.plural}")
    assert "oldObject" not in str(own["spec"]["validations"])
