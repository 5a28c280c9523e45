"""A few seconds of `./dev bench replicas`: three replicas behind nginx, one killed again and again."""

from __future__ import annotations

import pytest

from tests.bench.replicas import run


@pytest.mark.slow
@pytest.mark.nginx
def test_replicas_are_killed_behind_nginx() -> None:
    """What was acknowledged is in the database, once, and each answer was right; the last requests have answers."""
    ran = run(seconds=9, machines=12, kill_every_seconds=3, pause_seconds=0.1)
    assert ran.fault == ""
    assert ran.kills >= 1
    assert ran.journal.answers["ok"] > 200
