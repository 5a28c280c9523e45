"""The ConfidentialAttestationResult of a run (CONFIDENTIAL.md §2.2): what is written once, and what it is worth."""

# Algorithms for: digest
from __future__ import annotations

import base64
import binascii
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from attestation.api.runs import RunAttempt, RunDetail, RunResult
from attestation.clock import parse_rfc3339, rfc3339
from attestation.runs import UNJUDGED, Reason
from attestation.wire import jcs
from attestation_operator.actions import Action, Delete, MergeStatus
from attestation_operator.crds.runs import ResultSpec
from attestation_operator.objects import RESULT, Raw, Target
from attestation_operator.runs.kinds import faults
from attestation_operator.runs.objects import Run, later

SOONEST_SECONDS: Final = 1.0
MAX_BYTES: Final = 900_000
"""Of a Result's `spec`, as JSON: etcd keeps less than 1.5 MiB, and the service reads a MiB of what is to be sealed."""


def result_object(
    run: Run, detail: RunDetail, attempt: RunAttempt, *, reason: Reason | None
) -> dict[str, Any]:
    """Return the Result of *run*.

    Args:
        run: Whose. It owns the Result: with it, the Result goes.
        detail: What the service says of the run.
        attempt: The one that was judged, or the last one.
        reason: Why the run failed; of one that ended without a verdict nothing else counts.
    """
    found = None if reason in UNJUDGED or attempt.result is None else _found(attempt.result)
    spec: dict[str, Any] = {
        "derivedFromRun": {"name": run.name, "uid": run.uid},
        "backend": run.backend,
        "nodeName": run.node_name,
        "nodeUID": detail.node_uid,
        "nonce": run.nonce,
        "attempt": attempt.attempt,
        "challengeID": attempt.challenge_id,
        "policyID": detail.policy_id,
        "policySource": detail.policy_source,
        **(found or _nothing(reason)),
    }
    return {
        "apiVersion": RESULT.api_version,
        "kind": RESULT.kind,
        "metadata": {
            "name": run.result.name,
            "namespace": run.namespace,
            "ownerReferences": [run.target.reference],
        },
        "spec": _present(**spec),
    }


def _nothing(reason: Reason | None) -> dict[str, Any]:
    """Return what is known where nothing was judged: no quote, and why."""
    assert reason is not None
    check = {"id": "evidence", "outcome": "unavailable", "actual": str(reason)}
    return {"verdict": "indeterminate", "checks": [check], "verifierNotes": str(reason)}


def _found(result: RunResult) -> dict[str, Any]:
    written = result.written()
    checks = list(written.get("checks", ()))
    if result.unavailable is not None:
        away = result.unavailable
        actual = away.detail or away.code
        checks.append({"id": "device", "outcome": "unavailable", "code": away.code, "actual": actual})
    if result.rejected is not None:
        checks.append({"id": "evidence", "outcome": "fail", "code": result.rejected})
    return written | ({"checks": checks} if checks else {})


def _present(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in members.items() if value is not None}


def fault(wanted: Raw) -> str | None:
    """Return why an API server would not keep a Result as the service tells it; None where it would."""
    if (size := len(jcs(wanted["spec"]))) > MAX_BYTES:
        return f"spec: {size} bytes, and {MAX_BYTES} are kept"
    return next(iter(faults(RESULT, {"spec": wanted["spec"]})), None)


def is_same(there: Raw, wanted: Raw) -> bool:
    """Return whether the Result *there* says all that *wanted* says, and nothing else.

    By the model of its kind, so that an order of members, or an empty list that is left out, is no difference. What an
    API server keeps beside (`metadata`) and what it is worth (`status`) is not what it says.
    """
    try:
        said = ResultSpec.model_validate(there.get("spec"), by_alias=True, by_name=False)
    except ValidationError:
        return False
    return said == ResultSpec.model_validate(wanted["spec"], by_alias=True, by_name=False)


def spec_sha256(there: Raw) -> str:
    """Return the SHA-256 of a Result's `spec` (RFC 8785), hex: what the seal covers of it."""
    return hashlib.sha256(jcs(there["spec"])).hexdigest()


def first_status(there: Raw, *, ttl: timedelta, at: datetime) -> dict[str, Any] | None:
    """Return the status that a Result is to have; None where somebody of us said it already.

    Trusted is one that is verified under a policy that the namespace has as an object: who may create a run may also
    write an inline policy that everything satisfies.
    """
    if "trusted" in (there.get("status") or {}):
        return None
    spec = there["spec"]
    if spec["verdict"] != "verified" or spec["policySource"] != "ref":
        return {"trusted": False}
    until = trusted_until(there, ttl=ttl)
    return {"trusted": at < until, "trustedUntil": rfc3339(until)}


def trusted_until(there: Raw, *, ttl: timedelta) -> datetime:
    """Return until when a Result may be relied on: as long as its attestation result says, at most while it is kept."""
    kept = expires_at(there, ttl=ttl)
    stated = _expiry(there["spec"].get("attestationResult") or "")
    return kept if stated is None else min(kept, stated)


def expires_at(there: Raw, *, ttl: timedelta) -> datetime:
    """Return until when a Result is kept."""
    return parse_rfc3339(there["metadata"]["creationTimestamp"]) + ttl


def _expiry(token: str) -> datetime | None:
    """Return the `exp` of a JWT, None where it has none. The service itself handed it to us: nothing is verified."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return datetime.fromtimestamp(int(claims["exp"]), UTC)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, binascii.Error):
        return None


def reconcile(there: Raw, *, ttl: timedelta, at: datetime) -> tuple[tuple[Action, ...], float]:
    """Return what is to be done about a Result by itself, and after how many seconds to look again.

    It goes when its time is over, and is trusted no longer than it said.
    """
    target, kept = Target.of(RESULT, there), expires_at(there, ttl=ttl)
    if at >= kept:
        return (Delete(target=target),), SOONEST_SECONDS
    status = there.get("status") or {}
    if not status.get("trusted") or "trustedUntil" not in status:
        return (), max(later(at, kept), SOONEST_SECONDS)
    until = parse_rfc3339(status["trustedUntil"])
    if at >= until:
        return (MergeStatus(target=target, status={"trusted": False}),), SOONEST_SECONDS
    return (), max(later(at, min(until, kept)), SOONEST_SECONDS)
