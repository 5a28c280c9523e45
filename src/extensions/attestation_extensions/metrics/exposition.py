"""What is shown: measured in one unit that reads, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, product
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from attestation.extension import Status, Trust, Tx
from attestation_extensions.metrics.actions import ACTIONS, EXTENSION
from attestation_extensions.metrics.counts import AUDIT, BUCKETS, EVENTS, OBSERVED, QUOTE_AGE, Counts

SECRETS: Final[Mapping[str, tuple[str, str]]] = {
    "secret_created": ("create", "done"),
    "secret_changed": ("change", "done"),
    "secret_rotated": ("rotate", "done"),
    "secret_deleted": ("delete", "done"),
    "secret_granted": ("grant", "done"),
    "secret_revoked": ("revoke", "done"),
    "secrets_rewrapped": ("rewrap", "done"),
    "secret_accessed": ("read", "done"),
    "secret_refused": ("read", "refused"),
}
"""Operations on secrets, by what the audit log calls them."""

OURSELVES: Final = "metrics"
"""This extension is always told of events; of another one there is a row only where something waits."""


def measure(tx: Tx, at: datetime) -> list[Metric]:
    """Return the metrics at *at*."""
    counts = tx.of(Counts)
    totals = counts.totals()
    return [*_now(tx, counts, at), *_ever(counts.events(), totals), _quote_age(totals)]


def _now(tx: Tx, counts: Counts, at: datetime) -> Iterable[Metric]:
    """What is so now, counted at each request."""
    machines = tx.machines.counts(at)
    waiting, oldest = tx.outbox.lag()
    handovers = tx.handovers.waiting()
    proposals = {vote.proposal_digest for vote in tx.approvals.every_live(at)}
    checkpoint = tx.audit.tree.newest_checkpoint()
    unsigned = checkpoint is not None and checkpoint.size < tx.audit.tree.size()
    yield _gauge(
        "attestation_machines_by_status",
        "Machines, by status.",
        "status",
        {status: machines.by_status.get(status, 0) for status in Status},
    )
    yield _gauge(
        "attestation_machines_by_trust",
        "Machines, by what their last result is worth now.",
        "trust",
        {trust: machines.by_trust.get(trust, 0) for trust in Trust},
    )
    yield GaugeMetricFamily(
        "attestation_active_sessions",
        "Machines whose lease runs: verified now.",
        machines.by_trust.get(Trust.VERIFIED, 0),
    )
    yield GaugeMetricFamily("attestation_approvals_pending", "Proposals that wait for votes.", len(proposals))
    yield GaugeMetricFamily("attestation_outbox_pending", "Events that were not handed over yet.", waiting)
    yield GaugeMetricFamily(
        "attestation_outbox_oldest_age_seconds",
        "Age of the oldest of them; 0 where there is none.",
        max(0.0, (at - oldest).total_seconds()) if oldest else 0.0,
    )
    yield GaugeMetricFamily(
        "attestation_oldest_checkpoint_age_seconds",
        "Age of the newest checkpoint where entries of the audit log wait for the next; 0 where none waits.",
        max(0.0, (at - checkpoint.created_at).total_seconds()) if checkpoint and unsigned else 0.0,
    )
    yield GaugeMetricFamily(
        "attestation_jwks_stale",
        "1 where a worker has no keys of the identity provider, or older ones than it should.",
        int(counts.is_stale(at)),
    )
    yield _gauge(
        "attestation_handovers_pending",
        "Events on their way to an extension.",
        "extension",
        {OURSELVES: 0} | {name: each.pending for name, each in handovers.items()},
    )
    yield _gauge(
        "attestation_dead_letters",
        "Events that an extension could not handle.",
        "extension",
        {OURSELVES: 0} | {name: each.dead for name, each in handovers.items()},
    )
    yield _gauge(
        "attestation_collateral_seconds_until_expiry",
        "Until the first piece of collateral of each kind expires; negative where it has.",
        "kind",
        {kind: int((until - at).total_seconds()) for kind, until in tx.collateral.expiring().items()},
    )
    clusters = tx.hsm.states(at)
    yield _gauge(
        "attestation_hsm_ca_seconds_until_expiry",
        "Until the first CA certificate of a key in hardware that signs ends; negative where it has.",
        "cluster",
        {
            cluster_id: int((state.first_end - at).total_seconds())
            for cluster_id, state in clusters.items()
            if state.first_end is not None
        },
    )
    yield _gauge(
        "attestation_hsm_lists_overdue",
        "CA keys in hardware whose revocation list is over, or was never made, while certificates are good.",
        "cluster",
        {cluster_id: state.overdue for cluster_id, state in clusters.items()},
    )
    yield _gauge(
        "attestation_hsm_certificates_open",
        "Serial numbers of CA keys in hardware that were taken, and neither used nor given up yet.",
        "cluster",
        {cluster_id: state.open for cluster_id, state in clusters.items()},
    )


def _ever(events: Mapping[str, int], totals: Mapping[str, Mapping[str, int]]) -> Iterable[Metric]:
    """What only grows."""
    audit: Counter[str] = Counter(dict.fromkeys((*ACTIONS, EXTENSION), 0))
    registered: Counter[str] = Counter(dict.fromkeys(Status, 0))
    for words, total in totals.get(AUDIT, {}).items():
        action, _, state = words.partition(" ")
        audit[action] += total
        if action == "register":
            registered[state] += total
    yield _counter(
        "attestation_events",
        "Events since the extension was enabled.",
        ("event",),
        {(event,): events.get(event, 0) for event in EVENTS},
    )
    yield _counter(
        "attestation_machine_registrations",
        "Machines that were registered, by the status that they got.",
        ("status",),
        {(state,): total for state, total in registered.items()},
    )
    yield _counter(
        "attestation_audit_log_entries",
        "Entries of the audit log.",
        ("action",),
        {(action,): total for action, total in audit.items()},
    )
    secrets: dict[tuple[str, ...], int] = {words: audit[action] for action, words in SECRETS.items()}
    yield _counter(
        "attestation_secret_operations", "Operations on secrets.", ("operation", "status"), secrets
    )
    for name, help_text in (
        ("machine_attestations", "Attestations, by what the machine was told and its status after it."),
        ("runs_judged", "Attempts of attestation runs, by the hardware that was asked and the verdict."),
        ("hook_failures", "Hooks that raised or took too long, by the event that they were told."),
        ("webhook_deliveries", "Attempts to deliver an event to a webhook."),
    ):
        yield _counter(
            f"attestation_{name}",
            help_text,
            tuple(OBSERVED[name]),
            # All from the beginning: an increase from nothing to one is none to Prometheus.
            dict.fromkeys(product(*OBSERVED[name].values()), 0)
            | {tuple(words.split(" ")): total for words, total in totals.get(name, {}).items()},
        )


def _quote_age(totals: Mapping[str, Mapping[str, int]]) -> Metric:
    found = totals.get(QUOTE_AGE, {})
    bounds = [*(str(each) for each in BUCKETS), "+Inf"]
    buckets = zip(bounds, accumulate(found.get(bound, 0) for bound in bounds), strict=True)
    return HistogramMetricFamily(
        f"attestation_{QUOTE_AGE}",
        "Age of the challenge that a quote was made over, when it was judged: no quote is older.",
        buckets=[(f"{float(bound):g}" if bound != "+Inf" else bound, total) for bound, total in buckets],
        sum_value=totals.get(f"{QUOTE_AGE}_sum", {}).get("", 0) / 1000,
    )


def _gauge(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for word, value in values.items():
        family.add_metric([str(word)], value)
    return family


def _counter(
    name: str, help_text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], int]
) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for words, value in sorted(values.items()):
        family.add_metric([str(word) for word in words], value)
    return family


class _Measured:
    """Gives a registry what was measured."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def exposition(found: Iterable[Metric]) -> bytes:
    """Return *found* in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Measured(found))
    return generate_latest(registry)
