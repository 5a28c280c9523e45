"""What all tests share: fixtures by their plugin modules, and how much hypothesis may do."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures.softhsm", "tests.fixtures.tpm", "tests.fixtures.openid.provider"]

# A deadline per example measures the neighbours on a shared machine, not the code.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples every time: a red CI run is about the change, and a local run keeps searching.
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_configure(config: pytest.Config) -> None:
    """Keep the measuring of coverage out of the processes that tests start."""
    if hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.pop("COVERAGE_PROCESS_START", None)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `ITL_*` variable of the caller's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith("ITL_"):
            monkeypatch.delenv(name)
