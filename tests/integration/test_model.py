"""The model of the node protocol: it holds in every state, and fails without any one of its controls."""

from __future__ import annotations

import pytest

from tools.model import check

pytestmark = pytest.mark.skipif(check.missing() is not None, reason=f"the model: {check.missing()}")


def test_the_protocol_holds_in_every_state() -> None:
    """Within the bounds of the page no machine obeys what was not meant for it, and none waits for ever."""
    found = check.explore(check.BOUNDS)
    assert found.steps == ()
    assert found.states > 1_000_000


@pytest.mark.parametrize("reverted", check.REVERTED, ids=lambda reverted: reverted.define)
def test_without_one_control_it_fails(reverted: check.Reverted) -> None:
    """Each control is needed; the page tells the shortest way to the failure, step by step."""
    steps = check.without(reverted).steps
    assert steps
    spin, page = check.written(check.PAGE.read_text(encoding="utf-8"))
    # Another spin may find another way of the same length.
    said = page.split(f"`-D {reverted.define}`:")[1].split("###")[0].strip().splitlines()
    assert len(said) == len(steps)
    if spin == check.version():
        assert said == [f"{i}. {step}" for i, step in enumerate(steps, 1)]


def test_each_step_is_told_in_words() -> None:
    """No number of the model is left in a trace."""
    told = check.in_words("A obeys order 4, which was signed for machine 2; the service orders 1 (token 0)")
    assert told == "A obeys order wipe, which was signed for machine B; the service orders apply-config"
