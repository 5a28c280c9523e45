"""`attestation schedule …`: when the nodes of a cluster are asked for evidence, for people without kubectl."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation_cli.plugin import Column, Session, cell, listing, moment_cell, printing, time_cell
from attestation_operator.commands.place import Asked, ObjectUnknown, Place, ask, in_cluster, nothing_in

if TYPE_CHECKING:
    from attestation_operator.objects import Raw


@click.group("schedule")
def group() -> None:
    """Schedules of attestation runs: which nodes of a cluster are asked when. Asks Kubernetes, by a kubeconfig.

    \b
    Examples:
      attestation schedule list -A
      attestation schedule show nightly -n attestation
    """


@group.command("list")
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@listing
@in_cluster
def list_(session: Session, place: Place, *, all_namespaces: bool) -> None:
    """List schedules by their names."""
    from attestation_operator.commands import run_words as words

    async def listed(asked: Asked) -> tuple[str, list[Raw]]:
        from attestation_operator.objects import SCHEDULE

        return asked.namespace, await asked.cluster.list(
            SCHEDULE, namespace=None if all_namespaces else asked.namespace
        )

    namespace, schedules = ask(place, listed)
    now = datetime.now(UTC)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("NAMESPACE", wide=not all_namespaces): lambda s: s["metadata"].get("namespace"),
        Column("SCHEDULE"): lambda s: s["metadata"]["name"],
        Column("WHEN"): _when,
        Column("BACKEND"): lambda s: s["spec"].get("backend") or "auto",
        Column("POLICY", drop=1): lambda s: (s["spec"].get("policyRef") or {}).get("name"),
        Column("READY"): lambda s: _ready(s)[0],
        Column("ACTIVE", drop=2): lambda s: (s.get("status") or {}).get("active"),
        Column("LAST"): lambda s: time_cell(words.instant(s, "status", "lastScheduleTime"), now),
        Column("NEXT", drop=1): lambda s: moment_cell(words.instant(s, "status", "nextScheduleTime"), now),
        Column("JITTER", wide=True): lambda s: s["spec"].get("jitter"),
    }
    nothing = "No schedules." if all_namespaces else nothing_in(namespace, "schedules")
    session.emit_list(iter(schedules), columns, nothing)


@group.command("show")
@click.argument("schedule")
@printing
@in_cluster
def show(session: Session, place: Place, schedule: str) -> None:
    """Show what a schedule asks for, whether it does, and when."""
    from attestation_operator.commands import run_words as words

    async def found(asked: Asked) -> Raw:
        from attestation_operator.objects import SCHEDULE, Key

        key = Key(kind=SCHEDULE, name=schedule, namespace=asked.namespace)
        raw = await asked.cluster.read(key)
        if raw is None:
            raise ObjectUnknown(f"there is no schedule {schedule} in the namespace {asked.namespace}")
        return raw

    raw = ask(place, found)
    if session.json:
        session.emit_json(raw)
        return
    now = datetime.now(UTC)
    spec, status = raw["spec"], raw.get("status") or {}
    history = spec.get("history") or {}
    ready, why = _ready(raw)
    session.emit_fields(
        [
            ("schedule", cell(f"{raw['metadata'].get('namespace')}/{raw['metadata']['name']}")),
            ("when", cell(_when(raw))),
            ("jitter", cell(spec.get("jitter"))),
            ("nodes", cell(_chosen(spec.get("nodeSelector") or {}))),
            ("backend", cell(spec.get("backend") or "auto")),
            ("policy", cell((spec.get("policyRef") or {}).get("name") or "none: nothing is compared")),
            ("timeout", cell(spec.get("timeout"))),
            ("kept", cell(_kept(history))),
            ("ready", cell(ready)),
            ("why", cell(why)),
            ("active", cell(status.get("active"))),
            ("last", moment_cell(words.instant(raw, "status", "lastScheduleTime"), now)),
            ("next", moment_cell(words.instant(raw, "status", "nextScheduleTime"), now)),
        ]
    )


def _when(raw: Raw) -> str:
    spec = raw["spec"]
    when = f"every {spec['every']}" if spec.get("every") else f"{spec.get('schedule')} (UTC)"
    return f"{when}, suspended" if spec.get("suspend") else when


def _chosen(labels: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items())) or "all"


def _kept(history: dict[str, int]) -> str:
    return f"{history.get('succeeded', 3)} succeeded, {history.get('failed', 3)} failed, of each node and backend"


def _ready(raw: Raw) -> tuple[str | None, str | None]:
    from attestation_operator.commands.run_words import condition

    said = condition(raw, "Ready")
    told = ": ".join(filter(None, (said.get("reason"), said.get("message"))))
    return said.get("status"), told or None
