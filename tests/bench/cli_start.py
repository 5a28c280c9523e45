"""How long an operator waits for `attestation machine list`, against a service on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.report import Measurement
from tests.fixtures.service import ServiceProcess

BAR_SECONDS = 0.25
RUNS = 15


def measure() -> Iterator[Measurement]:
    """Measure whole processes, wall clock; the fastest, because what else the computer does is not ours."""
    with tempfile.TemporaryDirectory(prefix="bench-cli-") as name:
        directory = Path(name)
        service = ServiceProcess(directory=directory / "service")
        service.directory.mkdir()
        service.start()
        try:
            yield from _measure(service, directory)
        finally:
            service.stop()


def _measure(service: ServiceProcess, directory: Path) -> Iterator[Measurement]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ITL_", "PYTHON", "COVERAGE_")) and not name.lower().endswith("_proxy")
    }
    environment |= {
        "ITL_API_URL": service.url,
        "ITL_ADMIN_TOKEN": service.admin_token,
        "HOME": str(directory),
        # As after the first call of any installation: Python keeps what it compiled.
        "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),
    }
    attestation = str(Path(sys.executable).with_name("attestation"))
    floor = _seconds([sys.executable, "-c", "pass"], environment)
    for name, arguments, note in (
        ("cli-start", ["machine", "list"], "wall clock of the whole command, connection and answer included"),
        ("cli-help", ["--help"], "the same for --help, which asks nobody"),
    ):
        seconds = _seconds([attestation, *arguments], environment)
        yield Measurement(
            name=name,
            value=seconds * 1000,
            unit="ms",
            floor=floor * 1000,
            ratio=seconds / floor,
            bar="<= 250 ms",
            ok=seconds <= BAR_SECONDS,
            note=f"{note}; fastest of {RUNS}, bytecode kept from the first call; floor: `python -c pass`",
        )


def _seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    taken = []
    for number in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        if number:  # the first one compiles
            taken.append(time.perf_counter() - start)
    return min(taken)
