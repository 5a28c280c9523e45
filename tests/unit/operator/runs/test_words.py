"""What people read of runs has each word that a run may say."""

from __future__ import annotations

from typing import get_args

from attestation.api.runs import DeviceCode
from attestation.runs import FACTS, EventType, Reason
from attestation_operator.commands import run_words
from attestation_operator.crds.runs import Phase, RunStatus
from attestation_operator.runs import objects
from tests.docs.pages import text
from tests.unit.operator.runs.world import World, result


def test_each_word_of_a_run_is_explained() -> None:
    """By `kubectl explain`, by the page and by `attestation run show`; by none of them another."""
    conditions, reasons = list(objects.Condition), list(Reason)
    explained = RunStatus.model_fields["conditions"].description
    assert explained == f"{', '.join(conditions)}; reasons of Failed: {', '.join(reasons)}"
    assert list(run_words.REASONS) == reasons
    assert set(get_args(DeviceCode)) <= run_words.CODES.keys()
    assert list(get_args(Phase)) == list(objects.Phase)
    page = text("docs/kubernetes/runs.md")
    world = World()
    world.through(result("failed"))
    signals = world.event(EventType.FAILED)["spec"]["signals"]
    assert "result.sha256" in signals
    words = (*conditions, *reasons, *signals, *FACTS)
    assert [word for word in words if f"`{word}`" not in page] == []
