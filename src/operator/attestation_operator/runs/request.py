"""What a run asks for: its policy, its time, and whether all of it may be asked; then the question to the service.

An API server from 1.29 on refuses most of what is refused here (CEL). An older one takes it, and the run fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from attestation.api.runs import RunDetail, RunOpen
from attestation.api.said import said
from attestation.errors import PolicyInvalid
from attestation.reference.attestation_policy import policy_of
from attestation.runs import Reason
from attestation_operator.crds.runs import RunSpec
from attestation_operator.durations import parse_duration
from attestation_operator.objects import Key, Raw
from attestation_operator.runs.objects import Run, Standing

NO_GPU: Final = "gpu: no run collects evidence of a GPU, so nothing could meet it: leave the block out"
"""A machine that joins proves its GPUs; the three backends of a run ask processor and TPM alone."""
CHANGED: Final = "spec: it was changed after it was created"


class RunRefused(Exception):
    """The run asks for what cannot be asked.

    Args:
        reason: Of the condition Failed.
        words: Which member, and why.
    """

    def __init__(self, reason: Reason, words: str) -> None:
        super().__init__(words)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run asks for.

    Args:
        document: The policy as Kubernetes has it, None of a run without one.
        standing: What a verdict will be worth.
        timeout: How long it may take.
    """

    document: Mapping[str, Any] | None
    standing: Standing
    timeout: timedelta


def read(run: Run, objects: Mapping[Key, Raw | None]) -> RunRequest:
    """Return what *run* asks for.

    Args:
        run: Which.
        objects: The AttestationPolicy that it names, and the Node.

    Raises:
        RunRefused: It cannot be asked.
    """
    # 1. The rules of the kind, which an API server may not know.
    if run.was_changed:
        raise RunRefused(Reason.POLICY_INVALID, CHANGED)
    try:
        spec = RunSpec.model_validate(run.spec)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        at = ".".join(("spec", *map(str, first["loc"])))
        is_node = first["loc"][:1] == ("targetNodeName",)
        reason = Reason.NODE_NOT_FOUND if is_node else Reason.POLICY_INVALID
        raise RunRefused(reason, f"{at}: {said(first)}") from None
    # 2. The policy, as it is now: what was edited is another policy.
    document: Mapping[str, Any] | None = run.spec.get("policy")
    if run.policy is not None:
        found = objects[run.policy]
        if found is None:
            raise RunRefused(Reason.POLICY_NOT_FOUND, f"AttestationPolicy {run.policy}")
        document = found.get("spec") or {}
    try:
        policy_of(document, backend=run.backend)
    except PolicyInvalid as e:
        raise RunRefused(Reason.POLICY_INVALID, str(e)) from None
    if document is not None and document.get("gpu") is not None:
        raise RunRefused(Reason.POLICY_INVALID, NO_GPU)
    # 3. The Node.
    if objects[run.node] is None:
        raise RunRefused(Reason.NODE_NOT_FOUND, f"Node {run.node_name!r}")
    return RunRequest(document=document, standing=_standing(document), timeout=parse_duration(spec.timeout))


def _standing(document: Mapping[str, Any] | None) -> Standing:
    if document is None:
        return Standing.NONE
    return Standing.REPORTED if document.get("mode") == "report" else Standing.ENFORCED


def question(
    run: Run, request: RunRequest, objects: Mapping[Key, Raw | None], cluster_id: str, at: datetime
) -> RunOpen:
    """Return what the service is asked of *run*; but for *at* the same, as long as policy and Node are the same.

    Raises:
        RunRefused: The service would not read it.
    """
    node = objects[run.node]
    assert node is not None
    try:
        return RunOpen(
            cluster_id=cluster_id,
            namespace=run.namespace,
            name=run.name,
            node_name=run.node_name,
            node_uid=node["metadata"]["uid"],
            backend=run.backend,  # type: ignore[arg-type]  # one of the three, or ValidationError
            nonce=run.nonce,
            policy=None if request.document is None else dict(request.document),
            policy_source=run.source,
            policy_name=None if run.policy is None else run.policy.name,
            deadline=run.deadline,
            asked_at=at,
        )
    except ValidationError as e:
        fields = ", ".join(".".join(map(str, each["loc"])) for each in e.errors(include_input=False))
        raise RunRefused(Reason.POLICY_INVALID, f"the service does not read such a run: {fields}") from None


def of_another(run: Run, detail: RunDetail) -> str | None:
    """Return which member shows that the service tells of another run than *run*; None where none does.

    The service's database is not trusted to have kept what was asked: whose verdict it is is looked at here.
    """
    if run.was_changed:
        return None  # it has ended by that, and nothing that was found counts
    said = {
        "namespace": (detail.namespace, run.namespace),
        "name": (detail.name, run.name),
        "node_name": (detail.node_name, run.node_name),
        "backend": (detail.backend, run.backend),
        "policy_source": (detail.policy_source, run.source),
        "deadline": (detail.deadline, run.deadline),
    }
    return next((member for member, (there, wanted) in said.items() if there != wanted), None)
