"""What is chosen for the controller of attestation runs, by variable or flag, and what comes of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from attestation_operator.objects import POLICY, RESULT, RUN, SCHEDULE
from attestation_operator.runs.commands import maker
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.runs.settings import RunSettings
from attestation_operator.settings import SettingsInvalid
from tests.unit.operator.runs.test_controllers import around
from tests.unit.operator.runs.world import World

GIVEN = {"ITL_OPERATOR_SERVICE_URL": "https://attest.example", "ITL_OPERATOR_CLUSTER_ID": "kube-1"}


def load(**flags: str) -> RunSettings:
    """Return the settings."""
    return RunSettings.load(GIVEN, flags)


def test_each_flag_of_the_specification_is_there() -> None:
    """CONFIDENTIAL §4."""
    assert {
        "--cluster-id", "--cluster-name", "--service-url", "--metrics-bind-address", "--health-probe-bind-address",
        "--leader-election-namespace", "--result-ttl", "--seed-event-mapping", "--node-action",
    } <= set(RunSettings.flags().values())  # fmt: skip
    found = load()
    assert (found.metrics_at.port, found.probes_at.port) == (9090, 8081)
    assert found.kept_for == timedelta(hours=168)
    assert found.node_action == "none"
    assert found.seed_event_mapping is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"result_ttl": "59s"},
        {"result_ttl": "a week"},
        {"node_action": "delete"},
        {"cluster_id": "no such name"},
        {"seed_event_mapping": "perhaps"},
    ],
)
def test_what_is_wrong_stops_the_start(wrong: dict[str, str]) -> None:
    """Also that no cluster is named."""
    with pytest.raises(SettingsInvalid):
        load(**wrong)
    with pytest.raises(SettingsInvalid):
        RunSettings.load({"ITL_OPERATOR_SERVICE_URL": "https://attest.example"})


def test_the_controller_is_built_as_it_was_chosen() -> None:
    """All its duties in one program; the name of the cluster for people is its id, where nobody said another."""
    options = load(
        seed_event_mapping="true",
        node_action="cordon",
        node_action_namespaces="ugallu",
        result_ttl="2h",
        identity="pod-7",
    )
    given: Any = around(World())
    made: Any = maker(options)(given)
    assert set(made.watches) == {RUN, RESULT, POLICY, SCHEDULE}
    [runs] = [part for part in made._parts if part.name == "runs"]
    found = runs._options
    assert found.node_action is NodeAction.CORDON
    assert found.result_ttl == timedelta(hours=2)
    recorder = found.recorder
    assert (recorder.cluster_id, recorder.cluster_name, recorder.instance) == ("kube-1", "kube-1", "pod-7")
    assert recorder.seed_mapping is True
