"""Actions become requests: each says which object it is meant for, and none is sent by who does not lead."""

# ruff: noqa: D101, D102 -- they do what the names say
from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_operator.actions import (
    Action,
    Approve,
    Create,
    Delete,
    Deny,
    EmitEvent,
    Fail,
    MergeStatus,
    PatchNode,
    PutCertificate,
    Replace,
    SetFinalizers,
    SetStatus,
)
from attestation_operator.errors import (
    ClusterRefused,
    ClusterUnavailable,
    NotLeading,
    ObjectChanged,
    ObjectExists,
)
from attestation_operator.executor import MAX_NAME, KubernetesExecutor, event_name
from attestation_operator.objects import NODE, NODE_ATTESTATION, RESULT, RUN
from tests.unit.operator.doubles import Log, Recorder, Standing, target

OLD = ({"type": "Other", "status": "True"},)
CREATED = {"metadata": {"name": "csr-1", "namespace": "itl"}, "spec": {"x": 1}}


class World:
    def __init__(self) -> None:
        self.cluster, self.log, self.leads = Recorder(), Log(), True
        self.executor = KubernetesExecutor(
            self.cluster,  # type: ignore[arg-type]  # a double
            name="approver",
            instance="pod-1",
            leading=lambda: self.leads,
            clock=Standing(),
            log=self.log,
        )

    def apply(self, actions: Iterable[Action]) -> list[tuple[str, str, Any]]:
        asyncio.run(self.executor.apply(actions))
        return self.cluster.asked


def _condition(type_: str) -> dict[str, str]:
    return {"type": type_, "status": "True", "reason": "R", "message": "m"}


@pytest.mark.parametrize(
    ("action", "request_"),
    [
        (
            Approve(target=target(), reason="R", message="m", conditions=OLD),
            ("replace/approval", {"status": {"conditions": [*OLD, _condition("Approved")]}}),
        ),
        (
            Deny(target=target(), reason="R", message="m"),
            ("replace/approval", {"status": {"conditions": [_condition("Denied")]}}),
        ),
        (
            PutCertificate(target=target(), certificate_pem="PEM"),
            ("merge/status", {"status": {"certificate": base64.b64encode(b"PEM").decode()}}),
        ),
        (
            Fail(target=target(), reason="R", message="m", conditions=OLD),
            ("merge/status", {"status": {"conditions": [*OLD, _condition("Failed")]}}),
        ),
        (
            PatchNode(target=target(kind=NODE), labels={"a": "b", "c": None}),  # type: ignore[arg-type]
            ("merge/", {"metadata": {"labels": {"a": "b", "c": None}}}),
        ),
        (
            PatchNode(target=target(), taints=({"key": "k"},), unschedulable=True),
            (
                "merge/",
                {"metadata": {"labels": {}}, "spec": {"taints": [{"key": "k"}], "unschedulable": True}},
            ),
        ),
        (
            PatchNode(target=target(), taints=(), unschedulable=False),
            ("merge/", {"metadata": {"labels": {}}, "spec": {"taints": None, "unschedulable": None}}),
        ),
        (Delete(target=target()), ("delete", None)),
        (Replace(target=target(), raw={"data": {}}), ("replace/", {"data": {}})),
        (Create(kind=RESULT, raw=CREATED), ("create/confidentialattestationresults/itl", CREATED)),
        (
            MergeStatus(target=target(kind=NODE_ATTESTATION), status={"phase": "Running"}),  # type: ignore[arg-type]
            ("merge/status", {"status": {"phase": "Running"}}),
        ),
        (
            SetStatus(target=target(kind=NODE_ATTESTATION), manager="m", status={"x": 1}),  # type: ignore[arg-type]
            ("apply/m", {"x": 1}),
        ),
        (
            SetStatus(target=target(kind=NODE_ATTESTATION), manager="m", status={"x": 1}, exact=True),  # type: ignore[arg-type]
            ("apply/m@7", {"x": 1}),
        ),
        (
            SetFinalizers(target=target(kind=NODE_ATTESTATION), finalizers=("a",)),  # type: ignore[arg-type]
            ("merge/", {"metadata": {"finalizers": ["a"]}}),
        ),
    ],
    ids=lambda found: type(found).__name__,
)
def test_each_action_is_one_request(action: Action, request_: tuple[str, Any]) -> None:
    """And nothing more."""
    world = World()
    assert world.apply([action]) == [(request_[0], "csr-1", request_[1])]
    assert world.log.events == ["action.done"]


@pytest.mark.threat("T189")
def test_who_does_not_lead_does_nothing() -> None:
    """It is asked before each action: the lease may be lost between two."""
    world = World()
    world.leads = False
    with pytest.raises(NotLeading):
        world.apply([Deny(target=target(), reason="R", message="m")])
    assert world.cluster.asked == []

    world.leads = True

    def losing() -> Iterable[Action]:
        yield Delete(target=target())
        world.leads = False
        yield Delete(target=target())

    with pytest.raises(NotLeading):
        world.apply(losing())
    assert len(world.cluster.asked) == 1


@pytest.mark.parametrize("error", [ObjectChanged("x"), ClusterUnavailable("x"), ClusterRefused("x")])
def test_the_first_failure_ends_the_list(error: Exception) -> None:
    """What follows rests on what went before."""
    world = World()
    world.cluster.failing = [error]  # type: ignore[list-item]
    with pytest.raises(type(error)):
        world.apply([Delete(target=target()), Delete(target=target())])
    assert len(world.cluster.asked) == 1


def test_an_object_that_is_gone_needs_nothing() -> None:
    """404 is no failure: the log says so, and what follows is done."""
    world = World()
    world.cluster.there = False
    assert len(world.apply([Delete(target=target()), Delete(target=target())])) == 2
    assert world.log.events == ["action.needless", "action.needless"]


def _event(**members: Any) -> EmitEvent:
    told: dict[str, Any] = {"target": target(), "action": "Approve", "reason": "TpmAttested", "note": "n"}
    return EmitEvent(**(told | members))


def test_an_event_says_about_what_why_and_by_whom() -> None:
    """events.k8s.io/v1; a note of any length is cut where the API server would refuse it, between characters."""
    [(method, name, event)] = World().apply([_event(note="ä" * 600, type="Warning")])
    assert method == "create/events/default"
    assert name == event_name(_event())
    assert event["reportingController"] == "attestation.itl.io/approver"
    assert event["reportingInstance"] == "pod-1"
    assert event["eventTime"] == "2026-11-23T12:00:00.000000Z"
    assert event["note"] == "ä" * 512
    assert event["type"] == "Warning"
    assert event["regarding"]["uid"] == "u-1"
    assert "namespace" not in event["regarding"]


def test_an_event_about_an_object_in_a_namespace_is_there_too() -> None:
    """Whoever may read the object reads it; a refusal is none for want of a namespace, and nothing is asked twice."""
    world = World()
    world.cluster.failing = [ClusterRefused("403")]
    event = _event(target=target(kind=RUN, namespace="team"))  # type: ignore[arg-type]
    [(method, _, body)] = world.apply([event])
    assert method == "create/events/team"
    assert body["regarding"]["namespace"] == "team"
    assert world.log.said[-1][2]["name"] == "team/csr-1"


def test_what_was_to_be_created_and_is_there_is_told() -> None:
    """A stranger may have put it there: it counts as done only by who has read it."""
    world = World()
    world.cluster.failing = [ObjectExists("409")]
    with pytest.raises(ObjectExists):
        world.apply([Create(kind=RESULT, raw=CREATED), Delete(target=target())])
    assert len(world.cluster.asked) == 1


def test_an_old_server_gets_the_namespace_that_it_wants() -> None:
    """1.20 refuses an Event in `default` about an object without a namespace; newer ones take it."""
    world = World()
    world.cluster.failing = [ClusterRefused("422")]
    world.apply([_event()])
    assert [each[2]["regarding"].get("namespace") for each in world.cluster.asked] == [None, "default"]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ([ObjectExists("409")], []),
        ([ClusterRefused("403"), ClusterRefused("403")], ["event.not_written"]),
        ([ClusterUnavailable("away")], ["event.not_written"]),
    ],
)
def test_an_event_that_is_not_written_ends_nothing(errors: list[Any], said: list[str]) -> None:
    """Nor one that was written before."""
    world = World()
    world.cluster.failing = errors
    world.apply([_event(), Delete(target=target())])
    assert world.cluster.asked[-1][0] == "delete"
    assert world.log.events == [*said, "action.done"]


@given(name=st.text(max_size=300))
def test_a_name_of_an_event_is_a_name(name: str) -> None:
    """Whatever the object is called: a DNS subdomain, at most 253 characters, the same each time."""
    found = event_name(_event(target=target(name, uid="8a0900f5-0268-499d-8ba1-8b497e3c822f")))
    assert len(found) <= MAX_NAME
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", part) for part in found.split("."))
    assert found == event_name(_event(target=target(name, uid="8a0900f5-0268-499d-8ba1-8b497e3c822f")))


def test_other_events_have_other_names() -> None:
    """About another object of that name, or for another reason."""
    names = {
        event_name(each)
        for each in (
            _event(),
            _event(reason="Other"),
            _event(action="Deny"),
            _event(target=target(uid="u-2")),
        )
    }
    assert len(names) == 4
