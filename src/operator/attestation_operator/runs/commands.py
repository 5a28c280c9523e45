"""The command `attestation-operator runs`: what its controller is built of, and what runs it."""

from __future__ import annotations

from typing import Any

from attestation.clock import Clock
from attestation_operator.controller import Around
from attestation_operator.program import Make, run
from attestation_operator.runs.cases import RunOptions
from attestation_operator.runs.controllers import Policies, Results, Runs, Together, Verdicts
from attestation_operator.runs.events import EventRecorder
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.runs.schedule_controller import Schedules
from attestation_operator.runs.settings import RunSettings

NAME = "runs"


async def runs(settings: RunSettings, *, clock: Clock, log: Any) -> None:
    """Take attestation runs to their end."""
    await run(NAME, settings, maker(settings), clock=clock, log=log)


def maker(settings: RunSettings) -> Make:
    """Return what builds the controller."""
    options = RunOptions(
        recorder=EventRecorder(
            cluster_id=settings.cluster_id,
            cluster_name=settings.cluster_name or settings.cluster_id,
            instance=settings.identity,
            seed_mapping=settings.seed_event_mapping,
        ),
        result_ttl=settings.kept_for,
        node_action=NodeAction(settings.node_action),
        acts_for=settings.acts_for,
        seal_timeout=settings.seals_for,
    )

    def make(around: Around) -> Together:
        # Schedules only take note, and first: what becomes of a run must not keep that from them.
        parts = (
            Schedules(around, unsealed_kept=settings.seals_for),
            Runs(around, options),
            Results(around, settings.kept_for),
            Policies(around),
            Verdicts(around, options.node_action, settings.verdicts_for),
        )
        return Together(NAME, parts)

    return make
