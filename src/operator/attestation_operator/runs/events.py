"""SecurityEvents of a run (CONFIDENTIAL.md §2.5): which fact is told how; the same fact has the same name."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from attestation import __version__
from attestation.clock import rfc3339
from attestation.runs import FACTS, REPORTED, EventType, Fact, Reason
from attestation_operator.objects import SECURITY_EVENT, Key, Raw
from attestation_operator.runs.objects import CONTROLLER, Run, Standing, node_facts

EXPERIMENTAL: Final = {"ugallu.io/type-experimental": "true"}
"""Label of events whose type is ours: catalogues of types do not know it yet."""

ACTIVE: Final = "Active"
ATTESTED: Final = "Attested"
ARCHIVED: Final = "Archived"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorder:
    """Who tells: the cluster, and the replica.

    Args:
        cluster_id: As the service knows the cluster.
        cluster_name: For people.
        instance: Of this replica.
        seed_mapping: Undecided is told as the seed's operator tells it: as verified.
    """

    cluster_id: str
    cluster_name: str
    instance: str
    seed_mapping: bool = False

    def name(self, run: Run, attempt: int, type_: EventType) -> str:
        """Return the name of an event: the same fact has the same, whoever tells it, however often."""
        return f"se-{digest_of(self.cluster_id, run.uid, attempt, type_)}"

    def key(self, run: Run, attempt: int, type_: EventType) -> Key:
        """Return where an event is."""
        return Key(kind=SECURITY_EVENT, name=self.name(run, attempt, type_))

    def ending(self, run: Run) -> Fact:
        """Return how the end of *run* is told."""
        if run.failed_for is not None:
            return FACTS[EventType.FAILED]
        if run.verdict == "verified":
            return FACTS[EventType.VERIFIED]
        if self.seed_mapping:
            return FACTS[EventType.VERIFIED]
        return FACTS[EventType.INDETERMINATE] if run.standing is Standing.ENFORCED else REPORTED

    def event(
        self,
        run: Run,
        fact: Fact,
        *,
        attempt: int,
        detected_at: datetime,
        signals: Mapping[str, str],
        node: Raw | None,
        node_uid: str | None = None,
    ) -> dict[str, Any]:
        """Return the SecurityEvent that tells *fact* of *run*.

        Args:
            run: Of which.
            fact: What.
            attempt: In which attempt.
            detected_at: When, UTC.
            signals: What it rests on.
            node: The Node, None where it is there no more.
            node_uid: Its UID, where it is known otherwise.
        """
        subject: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "name": run.node_name}
        if node is None:
            subject |= {"partial": True, "unresolved": True} | ({"uid": node_uid} if node_uid else {})
        else:
            subject |= {"uid": node["metadata"]["uid"], "node": node_facts(node)}
        cluster = {"clusterID": self.cluster_id, "clusterName": self.cluster_name}
        return {
            "apiVersion": SECURITY_EVENT.api_version,
            "kind": SECURITY_EVENT.kind,
            "metadata": {
                "name": self.name(run, attempt, fact.type),
                **({"labels": dict(EXPERIMENTAL)} if fact.type is EventType.INDETERMINATE else {}),
            },
            "spec": {
                "class": fact.class_,
                "type": str(fact.type),
                "severity": fact.severity,
                "clusterIdentity": cluster,
                "source": {
                    "kind": "Controller",
                    "name": CONTROLLER,
                    "version": __version__,
                    "instance": self.instance,
                },
                "subject": subject,
                "detectedAt": rfc3339(detected_at),
                "signals": dict(signals),
                "correlationID": run.uid,
            },
        }


def digest_of(cluster_id: str, run_uid: str, attempt: int, type_: EventType) -> str:
    """Return what names an event of ours, and the bundle of a verdict's: 20 hex digits."""
    return hashlib.sha256(f"{cluster_id}|{run_uid}|{attempt}|{type_}".encode()).hexdigest()[:20]


def signals_of(run: Run, attempt: int, **more: str | None) -> dict[str, str]:
    """Return the signals that each event of *run* has, and *more*, with `_` for `.` in its names."""
    found = {
        "run.namespace": run.namespace,
        "run.name": run.name,
        "run.uid": run.uid,
        "run.attempt": str(attempt),
        "node.name": run.node_name,
        "backend": run.backend,
        "nonce.shaPresent": "true" if run.nonce else "false",
    }
    return found | {key.replace("_", "."): value for key, value in more.items() if value}


def ending_signals(run: Run, result_sha256: str | None) -> dict[str, str]:
    """Return the signals of the event that tells the end of *run*.

    Of a run that ended while the service was away nothing is said of a Result: it is made when the service is back,
    and the event is not.
    """
    reason = run.failed_for
    known = reason is not Reason.DEADLINE_EXCEEDED
    return signals_of(
        run,
        run.attempt,
        verdict=run.verdict,
        reason=reason,
        policy_id=run.policy_id,
        result_name=run.result.name if known else None,
        result_sha256=result_sha256 if known else None,
    )
