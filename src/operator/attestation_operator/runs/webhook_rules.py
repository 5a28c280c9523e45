"""What the webhook refuses: the rules of `admission`, for an API server without ValidatingAdmissionPolicies. Pure.

A request is a stranger's JSON: what is not as an API server sends it raises `ReviewMalformed`, and is not let through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from attestation.errors import AttestationError
from attestation_operator.objects import RESULT, RUN, SCHEDULE, SECURITY_EVENT, Kind, Raw, clipped
from attestation_operator.runs.admission import (
    ACKNOWLEDGED,
    COLLECTORS,
    FINAL,
    IMMUTABLE,
    KINDS,
    LONG_NAME,
    MAX_RUN_NAME,
    NOT_SCHEDULED,
    NOT_SEEN,
    NOT_WRITER,
)
from attestation_operator.runs.kinds import faults

REVIEW: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_OPERATIONS: Final = ("CREATE", "UPDATE")
_BY_PLURAL: Final[Mapping[str, Kind]] = {kind.plural: kind for kind in KINDS}


class ReviewMalformed(AttestationError):
    """What was posted is no AdmissionReview about one of our kinds."""

    code = "review-malformed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why not, as a Status has it."""

    code: Literal[403, 422]
    message: str

    @property
    def reason(self) -> str:
        """The word of Kubernetes for it."""
        return "Forbidden" if self.code == 403 else "Invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """A request, as far as rules look at it."""

    uid: str
    kind: Kind
    status: bool
    operation: str
    username: str
    new: Raw
    old: Raw | None


def parse(review: object) -> AdmissionRequest:
    """Read an AdmissionReview.

    Raises:
        ReviewMalformed: It is none, or is about something that is not ours to judge.
    """
    whole = _object(review, "it")
    if {name: whole.get(name) for name in REVIEW} != REVIEW:
        raise ReviewMalformed("it is no AdmissionReview of admission.k8s.io/v1")
    request = _object(whole.get("request"), "request")
    resource = _object(request.get("resource"), "request.resource")
    kind = _BY_PLURAL.get(_text(resource.get("resource"), "request.resource.resource"))
    if kind is None or resource.get("group") != RUN.group or resource.get("version") != RUN.version:
        raise ReviewMalformed("request.resource is none of attestation runs")
    part, operation = request.get("subResource") or "", request.get("operation")
    if part not in ("", "status") or operation not in _OPERATIONS:
        raise ReviewMalformed("request: neither CREATE nor UPDATE of an object or its status")
    return AdmissionRequest(
        uid=_text(request.get("uid"), "request.uid"),
        kind=kind,
        status=part == "status",
        operation=str(operation),
        username=_text(
            _object(request.get("userInfo"), "request.userInfo").get("username"), "request.userInfo.username"
        ),
        new=_object(request.get("object"), "request.object"),
        old=_object(request.get("oldObject"), "request.oldObject") if operation == "UPDATE" else None,
    )


def judge(request: AdmissionRequest, *, controller: str) -> Refusal | None:
    """Return why a request is refused, None where it is not.

    Args:
        request: What was asked.
        controller: User name of the controller's ServiceAccount.
    """
    # 1. What others rest on has one writer. Without this, whoever may update a Run writes its verdict.
    if request.status:
        if request.username == controller:
            return None
        if request.kind != SECURITY_EVENT:
            return Refusal(code=403, message=NOT_WRITER)
        return None if _says_seen(request) else Refusal(code=403, message=NOT_SEEN)
    if request.kind == RESULT:
        writers = (controller, *COLLECTORS) if request.operation == "UPDATE" else (controller,)
        if request.username not in writers:
            return Refusal(code=403, message=NOT_WRITER)
    # 2. Whose a run is says its controller. Without this, whoever may create Runs has theirs counted for a schedule.
    if request.kind == RUN and request.username != controller and _owners(request.new) - _owners(request.old):
        return Refusal(code=403, message=NOT_SCHEDULED)
    # 3. What was asked or found stays. Without this, a Run is judged by one policy and shows another.
    spec = request.new.get("spec")
    is_new = request.old is None or request.old.get("spec") != spec
    if request.old is not None and request.kind in FINAL and is_new:
        return Refusal(code=422, message=IMMUTABLE)
    # 4. It is what its model says. One that is older than a rule can still lose an owner or a finalizer.
    if is_new and (found := faults(request.kind, {"spec": spec})):
        return Refusal(code=422, message=clipped("; ".join(found)))
    # 5. What comes of a run has room for its name.
    if request.kind == RUN and request.old is None and len(_name(request.new)) > MAX_RUN_NAME:
        return Refusal(code=422, message=LONG_NAME)
    return None


def _says_seen(request: AdmissionRequest) -> bool:
    """Return whether a request says that who asks has seen an event, once, and nothing else."""
    new, old = (each.get("status") or {} for each in (request.new, request.old or {}))
    return (
        new.get("acknowledged") is True
        and new.get("acknowledgedBy") == request.username
        and bool(new.get("acknowledgedAt"))
        and "acknowledgedBy" not in old
        and {name: new[name] for name in new if name not in ACKNOWLEDGED}
        == {name: old[name] for name in old if name not in ACKNOWLEDGED}
    )


def _name(raw: Raw) -> str:
    return _text(
        _object(raw.get("metadata"), "request.object.metadata").get("name"), "request.object.metadata.name"
    )


def _owners(raw: Raw | None) -> set[str]:
    """Return the UIDs of the schedules that own an object."""
    metadata = _object((raw or {}).get("metadata") or {}, "metadata")
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list):
        raise ReviewMalformed("metadata.ownerReferences: no list")
    return {
        _text(owner.get("uid"), "metadata.ownerReferences.uid")
        for owner in (_object(each, "metadata.ownerReferences") for each in owners)
        if owner.get("kind") == SCHEDULE.kind
        and _text(owner.get("apiVersion"), "apiVersion").startswith(f"{SCHEDULE.group}/")
    }


def answer(request: AdmissionRequest, refusal: Refusal | None) -> dict[str, Any]:
    """Return the AdmissionReview that answers."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": refusal is None}
    if refusal is not None:
        response["status"] = {"code": refusal.code, "reason": refusal.reason, "message": refusal.message}
    return {**REVIEW, "response": response}


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ReviewMalformed(f"{where}: no object")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ReviewMalformed(f"{where}: no text")
    return value
