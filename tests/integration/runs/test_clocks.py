"""Clocks of a cluster and of the real service that differ by a minute: C12 of CONFIDENTIAL §5.

One clock is held: that of the service. The cluster's, which its API server and its controller share, is so much ahead
of it or behind. No clock of a node is asked.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from attestation.clock import parse_rfc3339
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, fake
from tests.fixtures.runs import said
from tests.integration.runs.worlds import world

__all__ = ["fake"]

STARTED, VERIFIED, FAILED = "AttestationStarted", "AttestationVerified", "AttestationFailed"
KEPT = timedelta(seconds=5)
"""So exactly a deadline is kept."""


@pytest.mark.parametrize("seconds", [60, -60])
def test_c12_a_cluster_is_a_minute_ahead_of_the_service_or_behind(
    fake: FakeKube, tmp_path: Path, seconds: float
) -> None:
    """Runs of any timeout are answered; one that is not ends with its time. One Result each, one event of a type."""
    with world(fake, tmp_path, ahead=seconds) as here:
        answered = [here.run(timeout=timeout) for timeout in ("5m", "2m", "30s")]
        silent = here.run(timeout="30s")
        for run in (*answered, silent):
            until(partial(here.is_running, run))
        for run in answered:
            here.node.answered(run["metadata"]["uid"])
        for run in answered:
            ended = here.ended(run)
            assert (ended["status"]["phase"], ended["status"]["verdict"]) == ("Succeeded", "verified")
            assert here.estate.types(run) == [STARTED, VERIFIED]
            assert here.estate.result(run)["status"]["trusted"] is True
            assert here.results(run) == 1
        # Nobody moves the clock any more: what has not ended by then does not end.
        deadline = parse_rfc3339(here.get(silent)["status"]["deadline"])
        here.service.clock.pass_(seconds=(deadline + KEPT - here.clock.now()).total_seconds() - 1)
        ended = here.ended(silent)
        assert said(ended)["Failed"] == ("True", "AgentAbsent")
        assert deadline <= parse_rfc3339(ended["status"]["completionTime"]) <= deadline + KEPT
        # The service has it ended too, and says by which challenge.
        assert ended["status"]["challenge"]["id"]
        assert here.estate.types(silent) == [FAILED, STARTED]
        assert here.results(silent) == 1
