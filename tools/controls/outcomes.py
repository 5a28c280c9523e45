"""What pytest saw of each test: a plugin that writes it as JSON to the file that `CONTROLS_OUTCOMES` names.

A test function is over with its first failure: its other parameters are skipped, and hypothesis does not look for a
smaller example. Only a failure of the test itself counts, not one of what it is set up with.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import Phase, settings

OUTCOMES: Final[dict[str, list[str]]] = {}


def _function(nodeid: str) -> str:
    return nodeid.split("[")[0]


def pytest_sessionstart() -> None:
    """Let hypothesis search the same way every time, and stop at what it finds."""
    settings.register_profile("controls", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
    settings.load_profile("controls")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what belongs to a function that has failed already."""
    if OUTCOMES.get(_function(item.nodeid), [""])[0] == "failed":
        pytest.skip("its function has failed already")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember the first failure of each function; else the last of error, passed, skipped."""
    name = _function(report.nodeid)
    if OUTCOMES.get(name, [""])[0] == "failed":
        return
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        said = crash.message if crash else str(report.longrepr)
        OUTCOMES[name] = ["failed" if report.when == "call" else "error", said[:2000]]
    elif report.skipped or report.when == "call":
        kept = OUTCOMES.get(name, [""])[0]
        if kept not in {"error", "passed"}:
            OUTCOMES[name] = [report.outcome, ""]


def pytest_sessionfinish() -> None:
    """Write down what was seen."""
    Path(os.environ["CONTROLS_OUTCOMES"]).write_text(json.dumps(OUTCOMES), encoding="utf-8")
