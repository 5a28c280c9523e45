"""Objects of security.ugallu.io: what a controller refuses where an API server does not, and how they are made."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_operator.crds import DEFINITIONS
from attestation_operator.crds.structural import structural
from attestation_operator.objects import (
    BUNDLE,
    POLICY,
    RESULT,
    RUN,
    RUNS_GROUP,
    SCHEDULE,
    SECURITY_EVENT,
    Kind,
    Target,
)
from attestation_operator.runs import kinds
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_member_is_read_and_written_as_it_was(kind: Kind) -> None:
    """No member of the fixtures is missing from a kind, and no member of a kind from the fixtures."""
    assert kinds.faults(kind, raw(kind)) == ()
    found = kinds._read(kind, raw(kind))
    assert json.loads(json.dumps(found.spec.written())) == GOOD[kind][0]
    assert found.status is not None
    assert json.loads(json.dumps(found.status.written())) == GOOD[kind][1]
    assert found.created_at == datetime(2026, 11, 26, 12, tzinfo=UTC)
    [model] = [each.model for each in DEFINITIONS if each.kind == kind]
    schema = structural(model)["properties"]
    spec = changed(GOOD[kind][0], {"policyRef": {"name": "x"}, "schedule": "* * * * *"})
    assert set(schema["spec"]["properties"]) <= set(spec)
    assert set(schema["status"]["properties"]) == set(GOOD[kind][1])


def test_every_kind_of_the_group_is_read() -> None:
    """And has a reader of its own."""
    assert {each.kind for each in DEFINITIONS if each.kind.group == RUNS_GROUP} == set(KINDS)
    found: list[Target] = [
        kinds.read_run(raw(RUN)).target,
        kinds.read_result(raw(RESULT)).target,
        kinds.read_policy(raw(POLICY)).target,
        kinds.read_event(raw(SECURITY_EVENT)).target,
        kinds.read_bundle(raw(BUNDLE)).target,
        kinds.read_schedule(raw(SCHEDULE)).target,
    ]
    assert found == [Target.of(kind, raw(kind)) for kind in KINDS]


def test_the_example_of_the_seed_is_read() -> None:
    """Inline policy, 30 s, no nonce; as written, before an API server filled anything in."""
    run = kinds.read_run(
        SEED | {"metadata": raw(RUN)["metadata"]},
    )
    assert kinds.timeout_of(run.spec) == timedelta(seconds=30)
    assert run.spec.nonce is None
    assert run.spec.policy is not None
    assert run.spec.policy.mode == "enforce"
    assert run.status is None


def test_a_run_without_a_timeout_has_two_minutes() -> None:
    """Also where no API server wrote the default."""
    assert kinds.timeout_of(kinds.read_run(raw(RUN, {"timeout": None})).spec) == timedelta(minutes=2)


@pytest.mark.parametrize(("kind", "change", "member"), REFUSED, ids=lambda part: str(part)[:40])
def test_what_a_kind_does_not_allow_is_told_by_its_member(
    kind: Kind, change: dict[str, Any], member: str
) -> None:
    """Whatever an API server let through."""
    found = kinds.faults(kind, raw(kind, change))
    assert found
    assert any(each.startswith(f"spec{member}") for each in found), found
    with pytest.raises(kinds.KindInvalid):
        kinds._read(kind, raw(kind, change))


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
    with pytest.raises(kinds.KindInvalid):
        kinds._read(kind, raw(kind, generation=2))


def test_a_deletion_that_waits_is_no_change() -> None:
    """The server counts it as one: a run that its finalizers keep is not judged anew for it."""
    assert kinds.faults(RUN, raw(RUN, generation=2, deletionTimestamp=AT)) == ()
    assert kinds.faults(RUN, raw(RUN, generation=3, deletionTimestamp=AT))


@pytest.mark.parametrize("kind", [POLICY, SCHEDULE], ids=lambda kind: kind.kind)
def test_what_may_be_edited_may_be_edited(kind: Kind) -> None:
    """A policy has another identifier then."""
    assert kinds.faults(kind, raw(kind, generation=7), old=raw(kind, {"mode": "report"})) == ()


def test_a_run_has_a_name_that_leaves_room_for_its_result() -> None:
    """Else it could be judged and its Result not be written."""
    assert kinds.faults(RUN, raw(RUN, name="r" * kinds.MAX_RUN_NAME)) == ()
    assert len(kinds.result_name("r" * kinds.MAX_RUN_NAME)) == 253
    [fault] = kinds.faults(RUN, raw(RUN, name="r" * (kinds.MAX_RUN_NAME + 1)))
    assert fault.startswith("metadata.name")


def test_names_are_those_of_the_specification() -> None:
    """CONFIDENTIAL §2.2, §2.5: the same fact has the same name, whoever tells it."""
    digest = hashlib.sha256(b"prod|uid-1|2|AttestationVerified").hexdigest()[:20]
    assert kinds.event_name("prod", "uid-1", 2, "AttestationVerified") == f"se-{digest}"
    assert kinds.bundle_name(f"se-{digest}") == f"ab-{digest}"
    assert kinds.result_name("worker-1-tpm") == "worker-1-tpm-result"


def test_objects_are_made_as_their_kinds_allow() -> None:
    """With their names, the owner of a Result, and what a bundle is for; nothing else is made."""
    run = Target.of(RUN, raw(RUN, name="worker-1-tpm"))
    result = kinds.result_object(run, GOOD[RESULT][0])
    assert result["metadata"] == {
        "name": "worker-1-tpm-result",
        "namespace": "default",
        "ownerReferences": [run.reference],
    }
    event = kinds.event_object(GOOD[SECURITY_EVENT][0], attempt=1, labels={"a": "b"})
    assert event["metadata"]["name"] == kinds.event_name(
        "prod", GOOD[SECURITY_EVENT][0]["correlationID"], 1, "AttestationVerified"
    )
    assert event["metadata"]["labels"] == {"a": "b"}
    target = Target.of(SECURITY_EVENT, raw(SECURITY_EVENT, name="se-1"))
    bundle = kinds.bundle_object(target)
    assert bundle["metadata"] == {"name": "ab-1"}
    assert bundle["spec"] == {"attestedFor": target.reference}
    for kind, made in ((RESULT, result), (SECURITY_EVENT, event), (BUNDLE, bundle)):
        assert made["apiVersion"] == "security.ugallu.io/v1alpha1"
        assert made["kind"] == kind.kind
    with pytest.raises(kinds.KindInvalid, match=r"spec\.verdict"):
        kinds.result_object(run, changed(GOOD[RESULT][0], {"verdict": "trusted"}))
    with pytest.raises(ValueError, match="namespace"):
        kinds.made(RESULT, "r", GOOD[RESULT][0])


def test_a_spec_has_one_text_and_one_digest() -> None:
    """RFC 8785: sorted, nothing between, and letters as they are."""
    assert kinds.canonical({"b": [1, True, None], "a": "Zoë"}) == '{"a":"Zoë","b":[1,true,null]}'.encode()
    assert kinds.spec_sha256({}) == hashlib.sha256(b"{}").hexdigest()
    one, other = GOOD[RESULT][0], dict(reversed(list(GOOD[RESULT][0].items())))
    assert kinds.spec_sha256(one) == kinds.spec_sha256(other)


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
