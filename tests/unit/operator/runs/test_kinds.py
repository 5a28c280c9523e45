"""Objects of security.ugallu.io: what a controller refuses where an API server does not, and how they are made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.runs import Reason
from attestation_operator.crds import DEFINITIONS
from attestation_operator.crds.runs import Run, RunSpec
from attestation_operator.crds.structural import structural
from attestation_operator.durations import parse_duration
from attestation_operator.objects import (
    BUNDLE,
    POLICY,
    RESULT,
    RUN,
    RUNS_GROUP,
    SCHEDULE,
    SECURITY_EVENT,
    Kind,
)
from attestation_operator.runs import kinds
from attestation_operator.runs.objects import Condition, node_facts
from tests.fixtures.attestation_kinds import AT, GOOD, REFUSED, SEED, changed

KINDS = (RUN, RESULT, POLICY, SECURITY_EVENT, BUNDLE, SCHEDULE)


def raw(kind: Kind, change: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return an object as an API server shows it."""
    spec, status = GOOD[kind]
    said = {
        "name": "o",
        "uid": "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        "resourceVersion": "17",
        "generation": 1,
        "creationTimestamp": AT,
        **({"namespace": "default"} if kind.namespaced else {}),
        **metadata,
    }
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": said,
        "spec": changed(spec, change or {}),
        "status": status,
    }


def test_every_kind_of_the_group_is_known() -> None:
    """Whatever of ours an API server has, its faults are told."""
    assert {each.kind for each in DEFINITIONS if each.kind.group == RUNS_GROUP} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_member_is_read_and_written_as_it_was(kind: Kind) -> None:
    """No member of the fixtures is missing from a kind, and no member of a kind from the fixtures."""
    whole = raw(kind)
    assert kinds.faults(kind, whole) == ()
    [model] = [each.model for each in DEFINITIONS if each.kind == kind]
    members = {name: whole[name] for name in ("spec", "status")}
    read = model.model_validate(members)
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == members
    schema = structural(model)["properties"]
    either = {"policyRef": {"name": "x"}, "schedule": "* * * * *"}
    assert set(schema["spec"]["properties"]) <= set(changed(whole["spec"], either))
    assert set(schema["status"]["properties"]) == set(whole["status"])


def test_the_example_of_the_seed_is_a_run() -> None:
    """Inline policy, 30 s, no nonce; as written, before an API server filled anything in."""
    assert kinds.faults(RUN, SEED) == ()
    spec = RunSpec.model_validate(SEED["spec"])
    assert parse_duration(spec.timeout) == timedelta(seconds=30)
    assert spec.policy is not None
    assert spec.policy.mode == "enforce"
    assert RunSpec.model_validate(changed(SEED["spec"], {"timeout": None})).timeout == "2m"


def test_conditions_and_reasons_are_told() -> None:
    """By the words that the controller has, CONFIDENTIAL §2.1."""
    words = structural(Run)["properties"]["status"]["properties"]["conditions"]["description"]
    types, _, reasons = words.partition("; reasons of Failed: ")
    assert types.split(", ") == [each.value for each in Condition]
    assert reasons.split(", ") == [each.value for each in Reason]


@pytest.mark.parametrize(("kind", "change", "member"), REFUSED, ids=lambda part: str(part)[:40])
def test_what_a_kind_does_not_allow_is_told_by_its_member(
    kind: Kind, change: dict[str, Any], member: str
) -> None:
    """Whatever an API server let through."""
    found = kinds.faults(kind, raw(kind, change))
    assert found
    assert any(each.startswith(f"spec{member}") for each in found), found


def test_a_name_of_python_is_none_of_kubernetes() -> None:
    """No other program would know it."""
    assert kinds.faults(RUN, raw(RUN, {"targetNodeName": None, "target_node_name": "worker-1"}))


def test_a_fault_does_not_tell_what_stands_there() -> None:
    """It is a stranger's, and faults go into logs and conditions."""
    [fault] = kinds.faults(RUN, raw(RUN, {"nonce": "secret"}))
    assert "secret" not in fault


@pytest.mark.parametrize("kind", [RUN, RESULT, SECURITY_EVENT, BUNDLE], ids=lambda kind: kind.kind)
def test_spec_stays_as_it_was(kind: Kind) -> None:
    """Compared with the object before, and by its generation where that is not known."""
    old = raw(kind)
    assert kinds.faults(kind, old, old=old) == ()
    assert kinds.faults(kind, old | {"spec": {**old["spec"], "x": 1}}, old=old)[-1].startswith("spec: ")
    assert kinds.faults(kind, raw(kind, generation=2)) == ("spec: it was changed after it was created",)


def test_a_deletion_that_waits_is_no_change() -> None:
    """The server counts it as one: a run that its finalizers keep is not judged anew for it."""
    assert kinds.faults(RUN, raw(RUN, generation=2, deletionTimestamp=AT)) == ()
    assert kinds.faults(RUN, raw(RUN, generation=3, deletionTimestamp=AT))


@pytest.mark.parametrize("kind", [POLICY, SCHEDULE], ids=lambda kind: kind.kind)
def test_what_may_be_edited_may_be_edited(kind: Kind) -> None:
    """A policy has another identifier then."""
    assert kinds.faults(kind, raw(kind, generation=7), old=raw(kind, {"mode": "report"})) == ()


def test_no_node_has_its_events_refused() -> None:
    """A kubelet writes what its Node says of itself, of any length."""
    node = {
        "metadata": {"labels": {f"node-role.kubernetes.io/r{i}": "" for i in range(40)}},
        "status": {
            "nodeInfo": dict.fromkeys(
                (
                    *("kernelVersion", "osImage", "kubeletVersion", "containerRuntimeVersion"),
                    *("architecture", "operatingSystem"),
                ),
                "ü" * 5000,
            ),
            "addresses": [{"type": each, "address": "9" * 5000} for each in ("InternalIP", "Hostname")],
        },
    }
    change = {"subject.node": node_facts(node)}
    assert kinds.faults(SECURITY_EVENT, raw(SECURITY_EVENT, change)) == ()
    assert len(change["subject.node"]) == 9


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(KINDS), st.data())
def test_faults_are_told_whatever_stands_there(kind: Kind, data: st.DataObject) -> None:
    """One member that is anything: the object is as its kind allows, or a fault is told; nothing is raised."""
    spec = GOOD[kind][0]
    member = data.draw(st.sampled_from(sorted(spec)))
    found = kinds.faults(kind, raw(kind) | {"spec": spec | {member: data.draw(ANYTHING)}})
    assert all(isinstance(each, str) for each in found)
