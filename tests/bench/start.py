"""What it costs to start: the import of the service, one process, two workers, and one in place of a killed one.

As an installed service does it: Python has kept what it compiled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.bench.report import Measurement
from tests.bench.server import Server
from tests.fixtures.service import ServiceProcess

BAR_CPU_SECONDS = 1.2
RUNS = 5

_CPU = """
import resource
{work}
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""

_BUILD = """
from attestation_service.main import collector_at_rest
with collector_at_rest():
    from attestation_service.app import create_app
    from attestation_service.settings import Settings
    create_app(Settings())
"""
"""As `main` does it."""


def measure() -> Iterator[Measurement]:
    """Measure processor time, the least of a few runs: what else the computer does is not ours, but adds to it."""
    with tempfile.TemporaryDirectory(prefix="bench-start-") as name:
        directory = Path(name)
        bytecode = {"PYTHONPYCACHEPREFIX": str(directory / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
        floor = _cpu("pass", bytecode)
        yield _measurement(
            "start-import",
            _cpu(_BUILD, bytecode),
            floor,
            "a new interpreter imports and builds the application; floor: `python -c pass`",
        )
        service = ServiceProcess(directory=directory / "service", environment=bytecode)
        service.directory.mkdir()
        yield _measurement(
            "start-one",
            min(_one_process(service) for _ in range(RUNS + 1)),  # the first makes database and CA
            floor,
            "one process, from its start until it serves: all tried, opened and made ready; floor as above",
        )
        service.workers = 2
        yield from _two_workers(service)


def _one_process(service: ServiceProcess) -> float:
    service.workers = 1
    service.log_file.unlink(missing_ok=True)
    service.start()
    try:
        return _cpu_of(service.pid)
    finally:
        service.stop()


def _two_workers(service: ServiceProcess) -> Iterator[Measurement]:
    service.log_file.unlink(missing_ok=True)
    begun = time.perf_counter()
    service.start()
    try:
        _wait(lambda: len(_serving(service)) == 2)
        ready = time.perf_counter() - begun
        assert service._process is not None
        whole = Server(service._process, service.port).cpu_seconds() + _cpu_of(service.pid, of_children=True)
        yield _measurement(
            "start-worker",
            max(_cpu_of(pid) for pid in service.worker_pids()),
            None,
            "one of two workers, from its fork until it serves",
        )
        yield Measurement(
            name="start-whole",
            value=whole,
            unit="s of CPU",
            bar="none: for information",
            ok=True,
            note="supervisor, the process that tries database and keys, and two workers, once; "
            f"{ready:.1f} s by the clock until both served",
        )
        killed = service.worker_pids()[0]
        begun = time.perf_counter()
        os.kill(killed, signal.SIGKILL)
        _wait(lambda: len(_serving(service) - {killed}) == 2)
        replaced = time.perf_counter() - begun
    finally:
        service.kill()
    yield Measurement(
        name="start-replacement",
        value=replaced,
        unit="s",
        bar="<= 5 s",
        ok=replaced <= 5,
        note="kill -9 of a worker that was young, until the next one serves; half a second of it is the pause",
    )


def _measurement(name: str, seconds: float, floor: float | None, note: str) -> Measurement:
    return Measurement(
        name=name,
        value=seconds,
        unit="s of CPU",
        floor=floor,
        ratio=seconds / floor if floor else None,
        bar=f"<= {BAR_CPU_SECONDS} s",
        ok=seconds <= BAR_CPU_SECONDS,
        note=note,
    )


def _cpu(work: str, environment: Mapping[str, str]) -> float:
    command = [sys.executable, "-c", _CPU.format(work=work)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ITL_", "COVERAGE_"))}
    return min(
        float(
            subprocess.run(
                command, check=True, capture_output=True, timeout=120, env={**clean, **environment}
            ).stdout
        )
        for _ in range(RUNS + 1)  # the first compiles
    )


def _cpu_of(pid: int, *, of_children: bool = False) -> float:
    """Return what a process used; or its children that ended and that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    first = 13 if of_children else 11
    return (int(fields[first]) + int(fields[first + 1])) / os.sysconf("SC_CLK_TCK")


def _serving(service: ServiceProcess) -> set[int]:
    lines = map(json.loads, service.log_file.read_text().splitlines())
    return {line["pid"] for line in lines if line["event"] == "service.started"} & set(service.worker_pids())


def _wait(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)
