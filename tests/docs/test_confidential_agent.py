"""docs/kubernetes/confidential-agent.md says what the agent of a node does."""

from __future__ import annotations

import re
from typing import get_args

from prometheus_client import CollectorRegistry

from attestation.api.runs import DeviceCode
from attestation.errors import DEVICE_FAULTS
from attestation.runs import BACKENDS
from attestation_operator.runs.agent import MAX_RUNS, AgentMetrics, Outcome
from attestation_operator.runs.agent_devices import DEVICES, ChallengeRefused
from tests.docs.pages import text

PAGE = text("docs/kubernetes/confidential-agent.md")


def test_every_code_of_a_device_has_its_row() -> None:
    """Those of the interface are those that a device error can have."""
    rows = set(re.findall(r"^\| `(device-[a-z-]+)` \|", PAGE, flags=re.MULTILINE))
    assert rows == set(get_args(DeviceCode)) == {f"device-{fault}" for fault in DEVICE_FAULTS}


def test_every_backend_has_its_row() -> None:
    """And a device that answers for it."""
    rows = set(re.findall(r"^\| `(tpm|sev-snp|tdx|[a-z-]+)` \| a ", PAGE, flags=re.MULTILINE))
    assert rows == set(BACKENDS) == set(DEVICES)


def test_every_metric_and_outcome_is_explained() -> None:
    """What a dashboard shows can be looked up."""
    registry = CollectorRegistry()
    AgentMetrics(registry)
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()}
    assert names == set(re.findall(r"^\| `(itl_operator_agent_\w+)` \|", PAGE, flags=re.MULTILINE))
    told = set(re.findall(r"`([\w.-]+)`", PAGE))
    assert {outcome.value for outcome in Outcome} | set(DEVICES.values()) | {ChallengeRefused.code} <= told
    assert f" {MAX_RUNS} runs" in PAGE
