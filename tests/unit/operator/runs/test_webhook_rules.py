"""What the webhook refuses: the same as the policies, and all that it cannot read."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from attestation_operator.objects import POLICY, RUN, Kind
from attestation_operator.runs.webhook_rules import Refusal, ReviewMalformed, answer, judge, parse
from tests.fixtures.admission_cases import CASES, CONTROLLER, Case, name_of, old_and_bad


@pytest.mark.threat("T286")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_webhook_lets_through_what_may_be(case: Case) -> None:
    """CONFIDENTIAL §4: each row of admission, for an API server without policies or rules in CEL."""
    refusal = judge(parse(case.review()), controller=CONTROLLER)
    assert (refusal is None) == case.allowed, refusal


@pytest.mark.parametrize("kind", [RUN, POLICY], ids=lambda kind: kind.kind)
def test_an_object_that_is_older_than_a_rule_can_go(kind: Kind) -> None:
    """The garbage collector takes a finalizer from it: were that refused, it would stay for ever."""
    assert judge(parse(old_and_bad(kind, before=True).review()), controller=CONTROLLER) is None
    assert judge(parse(old_and_bad(kind, before=False).review()), controller=CONTROLLER) is not None


def test_a_writer_is_told_apart_from_a_mistake() -> None:
    """403 for who may not, 422 for what cannot be."""
    codes = {
        case.name: refusal.code
        for case in CASES
        if (refusal := judge(parse(case.review()), controller=CONTROLLER)) is not None
    }
    assert codes["another's status"] == codes["written by another"] == 403
    assert codes["two policies"] == codes["too long"] == 422


def test_a_refusal_does_not_repeat_what_stands_there() -> None:
    """It goes into logs: the name of the member is enough."""
    [case] = [each for each in CASES if each.name == "short nonce"]
    refusal = judge(parse(case.review()), controller=CONTROLLER)
    assert refusal is not None
    assert "spec.nonce" in refusal.message
    assert "000" not in refusal.message


def _with(path: str, value: Any) -> dict[str, Any]:
    review = copy.deepcopy(CASES[0].review())
    *way, last = path.split(".")
    place = review
    for name in way:
        place = place[name]
    place[last] = value
    return review


@pytest.mark.parametrize(
    "review",
    [
        None, [], {}, {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
        _with("apiVersion", "admission.k8s.io/v1beta1"),
        _with("request", None),
        _with("request.uid", ""),
        _with("request.resource.group", "attestation.itl.io"),
        _with("request.resource.version", "v1"),
        _with("request.resource.resource", "secrets"),
        _with("request.subResource", "scale"),
        _with("request.operation", "DELETE"),
        _with("request.operation", "CONNECT"),
        _with("request.userInfo", {}),
        _with("request.object", None),
        _with("request.operation", "UPDATE"),
    ],
    ids=lambda _: "",
)  # fmt: skip
def test_what_is_no_review_of_ours_is_not_judged(review: object) -> None:
    """So it is refused: there is no answer that lets it through. UPDATE without the old object is one of them."""
    with pytest.raises(ReviewMalformed):
        parse(review)


def test_a_spec_that_is_no_object_is_refused() -> None:
    """A server has looked before; one that has not must not make us let it through."""
    specs: tuple[object, ...] = (None, [], "x", 1)
    for spec in specs:
        review = _with("request.object", {"spec": spec})
        review["request"]["userInfo"]["username"] = CONTROLLER
        assert judge(parse(review), controller=CONTROLLER) is not None


def test_an_answer_names_its_request() -> None:
    """An API server drops one that does not."""
    asked = parse(CASES[0].review())
    assert answer(asked, None)["response"] == {"uid": asked.uid, "allowed": True}
    assert answer(asked, Refusal(code=403, message="no"))["response"] == {
        "uid": asked.uid,
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
    }
