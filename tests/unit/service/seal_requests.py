"""What a controller says when it has a run sealed, made of what the service says of the run."""

from __future__ import annotations

from typing import Any

import httpx

from attestation.audit.note import VerifierKey, parse_vkey
from attestation.sealing import SealedClaims, parse, service_keys, verify
from tests.unit.service.conftest import Service
from tests.unit.service.run_requests import UID, ask, detail

BUNDLE_UID = "0f6b3c1e-0000-4000-8000-0000000000b1"
TYPES = {
    "verified": ("Compliance", "AttestationVerified", "info"),
    "failed": ("Detection", "AttestationFailed", "critical"),
    "indeterminate": ("Compliance", "AttestationIndeterminate", "medium"),
}


def without_none(members: dict[str, Any]) -> dict[str, Any]:
    """Return what is there, as Kubernetes keeps it."""
    return {name: value for name, value in members.items() if value is not None}


def result_spec(run: dict[str, Any], attempt: dict[str, Any]) -> dict[str, Any]:
    """Return the `spec` of the Result of an attempt, as the controller writes it."""
    found = attempt["result"]
    tcb = found["tcb"]
    return without_none(
        {
            "derivedFromRun": {"name": run["name"], "uid": run["uid"]},
            "backend": run["backend"],
            "nodeName": run["node_name"],
            "nodeUID": run["node_uid"],
            "attempt": attempt["attempt"],
            "challengeID": attempt["challenge_id"],
            "policyID": run["policy_id"],
            "policySource": run["policy_source"],
            "machineID": found["machine_id"],
            "quote": found["quote"],
            "signature": found["signature"],
            "evidence": [
                {
                    "mediaType": each["media_type"],
                    "sha256": each["sha256"],
                    "size": each["size"],
                    "url": each["url"],
                }
                for each in found["evidence"]
            ]
            or None,
            "measurements": found["measurements"] or None,
            "verdict": found["verdict"],
            "checks": [without_none(each) for each in found["checks"]] or None,
            "tcb": tcb and without_none(tcb),
            "attestationResult": found["attestation_result"],
            "verifierNotes": found["notes"],
        }
    )


def nothing_spec(run: dict[str, Any], attempt: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return the `spec` of the Result of a run that ended by its deadline."""
    return {
        "derivedFromRun": {"name": run["name"], "uid": run["uid"]},
        "backend": run["backend"],
        "nodeName": run["node_name"],
        "nodeUID": run["node_uid"],
        "attempt": attempt["attempt"],
        "challengeID": attempt["challenge_id"],
        "policyID": run["policy_id"],
        "policySource": run["policy_source"],
        "verdict": "indeterminate",
        "checks": [{"id": "evidence", "outcome": "unavailable", "actual": reason}],
        "verifierNotes": reason,
    }


def sealing_of(
    run: dict[str, Any],
    result: dict[str, Any],
    *,
    told: str | None = None,
    event: dict[str, Any] | None = None,
    **signals: str | None,
) -> dict[str, Any]:
    """Return what the controller asks to have sealed; *told* is a verdict in whose words the event is."""
    class_, kind, severity = TYPES[told or result["verdict"]]
    return {
        "bundle_name": "ab-00",
        "bundle_uid": BUNDLE_UID,
        "event": {
            "name": "se-00",
            "uid": "0f6b3c1e-0000-4000-8000-0000000000e1",
            "spec": {
                "class": class_,
                "type": kind,
                "severity": severity,
                "clusterIdentity": {"clusterID": run["cluster_id"], "clusterName": "Köln 1"},
                "source": {"kind": "Controller", "name": "itl-attestation-operator-runs"},
                "subject": {"kind": "Node", "name": run["node_name"], "uid": run["node_uid"]},
                "detectedAt": "2026-11-21T12:00:05.000000Z",
                "signals": without_none(
                    {
                        "run.uid": run["uid"],
                        "verdict": result["verdict"],
                        "policy.id": run["policy_id"],
                        **{name.replace("_", "."): value for name, value in signals.items()},
                    }
                ),
                "correlationID": run["uid"],
                **(event or {}),
            },
        },
        "result": {
            "namespace": run["namespace"],
            "name": f"{run['name']}-result",
            "uid": "0f6b3c1e-0000-4000-8000-0000000000a1",
            "spec": result,
        },
    }


async def wanted(service: Service, uid: str = UID, **more: Any) -> dict[str, Any]:
    """Return what an honest controller has sealed of a run that was judged."""
    run = await detail(service, uid)
    return sealing_of(run, result_spec(run, run["attempts"][-1]), **more)


async def put(service: Service, said: dict[str, Any], uid: str = UID, **more: Any) -> httpx.Response:
    """Ask to have it sealed."""
    return await ask(service, "PUT", f"{uid}/bundle", said, **more)


async def asked(service: Service, said: dict[str, Any], uid: str = UID) -> dict[str, Any]:
    """Ask to have it sealed; it must be answered 200."""
    answer = await put(service, said, uid)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def fetched(service: Service, uid: str = UID) -> bytes:
    """Return the file, as an operator gets it."""
    answer = await service.operator("GET", f"/runs/{uid}/bundle")
    assert answer.status_code == 200, answer.text
    return answer.content


async def log_keys(service: Service) -> tuple[VerifierKey, ...]:
    """Return the keys of the log, as an auditor pins them."""
    found = (await service.operator("GET", "/audit/keys")).json()
    return tuple(map(parse_vkey, found["vkeys"]))


async def proven(service: Service, file: bytes) -> SealedClaims:
    """Return what *file* proves under the keys of the log and of the service."""
    keys = service_keys(service.resources.signer.jwks())
    return verify(parse(file), log_keys=await log_keys(service), service_keys=keys)
