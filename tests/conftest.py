"""What all tests share: fixtures by their plugin modules, and how much hypothesis may do."""

from __future__ import annotations

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

pytest_plugins = [
    "tests.fixtures.cluster",
    "tests.fixtures.openid.provider",
    "tests.fixtures.softhsm",
    "tests.fixtures.stores",
    "tests.fixtures.tpm",
]

PROCESSES = frozenset(("e2e", "faults", "integration", "scenarios"))
"""Folders of tests that start processes."""

# A deadline per example measures the neighbours on a shared machine, not the code.
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples every time: a red CI run is about the change, and a local run keeps searching.
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Load without the garbage collector, and let it pass over what came: modules and tests live as long as we do."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have a slow test, then those that start processes: at the end no worker waits for one.

    In random order among themselves. xdist would begin with the files of most tests, which are the fastest.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, PROCESSES.isdisjoint(item.path.parts)))


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Each file at one worker; and all that needs a real Kubernetes API at the same one: it takes half a gigabyte."""

    def _split_scope(self, nodeid: str) -> str:
        of_a_cluster = "kubernetes/" in nodeid or ("test_kubernetes_" in nodeid and "[fake" not in nodeid)
        return "kubeapi" if of_a_cluster else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Schedule as the class above says, where files are asked for."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many tests each tier had and how long they took, as the table of CONTRIBUTING.md does."""
    tests: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        if isinstance(report, pytest.TestReport):
            tier = report.nodeid.split("/")[1]
            tests[tier] += report.when == "call" or report.skipped
            seconds[tier] += report.duration
    if len(tests) > 1:
        for tier, count in tests.most_common():
            terminalreporter.write_line(f"{tier:12} {count:6,} tests {seconds[tier]:5.0f} s")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `ITL_*` variable of the caller's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith("ITL_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Whoever is started within a test logs where that test is captured: nobody else may write there, it is closed."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
