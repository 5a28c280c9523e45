"""What the controller writes of a run is what the service seals: the same run, told by both sides' own code."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from attestation.api.runs import RunDetail
from attestation.results import Outcome, Passed
from attestation.runs import Reason
from attestation_operator.objects import BUNDLE, RUN, SECURITY_EVENT, Key, Target
from attestation_operator.runs.bundles import bundle_object, seal_request
from attestation_operator.runs.events import EventRecorder, ending_signals
from attestation_operator.runs.objects import Run
from attestation_operator.runs.results import result_object, spec_sha256
from attestation_service.runs import judging
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.run_requests import (
    UID,
    admitted,
    challenged,
    detail,
    judged,
    opened,
    opening,
    pinning,
    posted,
    serving,
)
from tests.unit.service.seal_requests import BUNDLE_UID, put

pytestmark = pytest.mark.anyio

UIDS = {
    "event": "0f6b3c1e-0000-4000-8000-0000000000e1",
    "result": "0f6b3c1e-0000-4000-8000-0000000000a1",
    "bundle": BUNDLE_UID,
}


def stored(raw: dict[str, Any], uid: str) -> dict[str, Any]:
    """Return *raw* as an API server gives it back."""
    return {**raw, "metadata": {**raw["metadata"], "uid": uid, "resourceVersion": "1"}}


async def told(service: Service, *, reason: Reason | None, seed: bool = False) -> dict[str, Any]:
    """Return what the controller asks to have sealed of the run, made by its own code."""
    found = await detail(service)
    said = RunDetail.model_validate(found)
    attempt = said.attempts[-1]
    verdict = attempt.result.verdict if attempt.result is not None else "indeterminate"
    run = Run(
        target=Target(kind=RUN, name=said.name, namespace=said.namespace, uid=UID, resource_version="1"),
        created_at=service.clock.now(),
        generation=1,
        spec={
            "backend": "tpm",
            "targetNodeName": said.node_name,
            **({"policyRef": {"name": "workers"}} if said.policy_source == "ref" else {}),
        },
        status={
            "phase": "Failed" if reason else "Succeeded",
            "verdict": verdict,
            "attempt": attempt.attempt,
            "policyID": said.policy_id,
            "conditions": [{"type": "Failed", "status": "True", "reason": str(reason)}] if reason else [],
        },
    )
    result = stored(result_object(run, said, attempt, reason=reason), UIDS["result"])
    recorder = EventRecorder(cluster_id="default", cluster_name="Köln", instance="r-0", seed_mapping=seed)
    event = stored(
        recorder.event(
            run,
            recorder.ending(run),
            attempt=run.attempt,
            detected_at=service.clock.now(),
            signals=ending_signals(run, spec_sha256(result)),
            node=None,
            node_uid=said.node_uid,
        ),
        UIDS["event"],
    )
    key = Key(kind=BUNDLE, name="ab-00")
    bundle = stored(bundle_object(key, event), UIDS["bundle"])
    assert event["kind"] == SECURITY_EVENT.kind
    return seal_request(bundle, event, result).model_dump(mode="json")


async def sealed(service: Service, **more: Any) -> None:
    """Have the run sealed as the controller tells it."""
    answer = await put(service, await told(service, **more))
    assert (answer.status_code, answer.json().get("phase")) == (200, "Signed"), answer.text


async def test_a_verified_run(start: Starter) -> None:
    """With quote, measurements, checks and EAR."""
    service = await serving(start)
    node = await admitted(service)
    await judged(service, node, opening(service, pinning(node)))
    await sealed(service, reason=None)


async def test_a_failed_run(start: Starter) -> None:
    """Told as failed, for its verdict."""
    service = await serving(start)
    node = await admitted(service)
    await judged(service, node, opening(service, {"tpm": {"pcrs": {"7": "00" * 32}}}))
    await sealed(service, reason=Reason.VERDICT_FAILED)


async def test_a_run_of_more_checks_than_a_result_holds(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the controller cuts is what the service cuts, and the note is no other than the service's."""
    outcomes = judging._outcomes

    def many(*case: Any) -> list[Outcome]:
        return [*outcomes(*case), *(Passed(f"c{i}") for i in range(600))]

    monkeypatch.setattr(judging, "_outcomes", many)
    service = await serving(start)
    node = await admitted(service)
    await judged(service, node, opening(service, pinning(node)))
    assert (await told(service, reason=None))["result"]["spec"]["verifierNotes"].startswith(
        "told here: 510 of"
    )
    await sealed(service, reason=None)


@pytest.mark.parametrize("seed", [False, True])
async def test_an_undecided_run(start: Starter, *, seed: bool) -> None:
    """Told as undecided, or as the seed's operator tells it."""
    service = await serving(start)
    node = await admitted(service)
    await judged(service, node, opening(service))
    await sealed(service, reason=None, seed=seed)


async def test_a_device_that_is_missing(start: Starter) -> None:
    """With the check that the controller adds."""
    service = await serving(start)
    await opened(service, opening(service))
    body = {"challenge_id": (await challenged(service))["id"]}
    away = {"code": "device-absent", "detail": "no TPM"}
    assert (await posted(service, {**body, "unavailable": away})).status_code == 202
    await sealed(service, reason=Reason.DEVICE_UNAVAILABLE)


async def test_evidence_that_cannot_be_read(start: Starter) -> None:
    """Rejected: failed, without evidence."""
    service = await serving(start)
    await opened(service, opening(service))
    item = {"media_type": "application/vnd.itl.tpm-quote", "value": {"pcr_quote": "AAAA"}}
    body = {"challenge_id": (await challenged(service))["id"], "evidence": [item]}
    assert (await posted(service, body)).status_code == 400
    await sealed(service, reason=Reason.EVIDENCE_REJECTED)


async def test_an_agent_that_never_came(start: Starter) -> None:
    """Nothing was found, and that is told."""
    service = await serving(start)
    await opened(service, opening(service))
    service.clock.advance(timedelta(minutes=5).total_seconds())
    await sealed(service, reason=Reason.AGENT_ABSENT)
    service.clock.advance(1)
