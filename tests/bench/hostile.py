"""Health while strangers send, fifty times a second, what costs most: four megabytes of JSON of the worst shapes."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.bench import fleet
from tests.bench.report import Measurement

PER_SECOND: Final = 50
SECONDS: Final = 10
PAUSE_SECONDS: Final = 0.02
THREADS: Final = 32
BAR_SECONDS: Final = 0.050
BAR_BYTES: Final = 64 << 20
"""What all strangers together may hold in one process by default."""
EACH: Final = 5
LOOP_BAR_SECONDS: Final = 0.020
ONE_BAR_BYTES: Final = 16 << 20
NO_BUDGET: Final = {
    "ITL_BODY_KIB_PER_SECOND": str(1 << 20),
    "ITL_BODY_MEMORY_MIB": "1024",
    "ITL_BODY_MEMORY_MIB_PER_ADDRESS": "1024",
}


def bodies() -> list[bytes]:
    """Return what is sent: many members, one long string, deep brackets, escapes, wrong types."""
    size = 4_000_000
    return [
        json.dumps({f"m{i:07}": 0 for i in range(240_000)}).encode(),
        json.dumps({"event_log": "A" * size}).encode(),
        b"[" * size,
        b'{"a":"' + b"\\u0041" * (size // 6) + b'"}',
        json.dumps({"machine_id": [0] * 1_000, "event_log": "A" * size}).encode(),
    ]


def _post(port: int, body: bytes) -> None:
    head = b"POST /api/v1/attest HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        with contextlib.suppress(OSError):
            connection.sendall(head + body)
        while connection.recv(65536):
            pass


def flood(port: int) -> None:
    """Send for `SECONDS`, at the rate, whether or not anything is answered."""
    kinds = bodies()
    with ThreadPoolExecutor(THREADS) as threads:
        began = time.monotonic()
        for sent in range(PER_SECOND * SECONDS):
            time.sleep(max(0.0, began + sent / PER_SECOND - time.monotonic()))
            threads.submit(_post, port, kinds[sent % len(kinds)])


def health(port: int, until: float) -> list[float]:
    """Ask `/healthz` on one connection after the other until *until*; return the seconds that each answer took."""
    found = []
    while time.monotonic() < until:
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        found.append(time.perf_counter() - began)
        connection.close()
        time.sleep(PAUSE_SECONDS)
    return found


def run(**settings: str) -> tuple[float, float, int]:
    """Return the 99th percentile of `/healthz` under the flood and without, in seconds, and the growth in bytes."""
    with fleet.directory() as directory:
        fleet.seed(directory, 10, live=1)
        with fleet.service(directory, **settings) as running:
            quiet = health(running.port, time.monotonic() + 3)
            before = running.resident_bytes()
            attacker = multiprocessing.get_context("spawn").Process(target=flood, args=(running.port,))
            attacker.start()
            time.sleep(2)
            busy = health(running.port, time.monotonic() + SECONDS - 3)
            growth = running.resident_bytes() - before
            attacker.join(60)
            attacker.kill()
    return _p99(busy), _p99(quiet), growth


def one() -> tuple[float, int]:
    """Return what one request of the worst shape costs: seconds of CPU on the loop, and bytes that memory grows by.

    The loop is the main thread of a worker, whose time Linux counts in nanoseconds; the peak of memory is the
    kernel's too. Both are right on a busy machine.
    """
    seconds, growth = 0.0, 0
    with fleet.directory() as directory:
        fleet.seed(directory, 10, live=1)
        with fleet.service(directory, **NO_BUDGET) as running:
            for body in bodies() * EACH:
                loops = {pid: _loop_seconds(pid) for pid in running.pids()}
                before = {pid: _memory(pid, "VmRSS") for pid in loops}
                for pid in loops:
                    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
                _post(running.port, body)
                seconds = max(seconds, *(_loop_seconds(pid) - began for pid, began in loops.items()))
                growth = max(growth, *(_memory(pid, "VmHWM") - size for pid, size in before.items()))
    return seconds, growth


def _loop_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _memory(pid: int, name: str) -> int:
    """Return a line of the process's status, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def measure() -> Iterator[Measurement]:
    """Measure as delivered, and with the budgets out of the way, so that each request is read and judged."""
    for name, settings in (("hostile", {}), ("hostile-no-budget", NO_BUDGET)):
        busy, quiet, growth = run(**settings)
        yield Measurement(
            name=name,
            value=busy * 1e3,
            unit="ms",
            floor=quiet * 1e3,
            ratio=busy / quiet,
            bar="p99 of /healthz <= 50 ms" + (", growth <= 64 MiB" if not settings else ""),
            ok=busy <= BAR_SECONDS and (bool(settings) or growth <= BAR_BYTES),
            note=f"{PER_SECOND} anonymous POSTs of 4 MB a second, five shapes, sent from the same cores; "
            f"two workers; the largest grew by {growth / (1 << 20):.0f} MiB; floor: without the flood",
        )
    seconds, growth = one()
    yield Measurement(
        name="hostile-one",
        value=seconds * 1e3,
        unit="ms of CPU",
        bar="one request: <= 20 ms on the loop, <= 16 MiB",
        ok=seconds <= LOOP_BAR_SECONDS and growth <= ONE_BAR_BYTES,
        note=f"the worst of {EACH} of each shape, one at a time, read and judged; memory grew by at most "
        f"{growth / (1 << 20):.1f} MiB while it was answered",
    )


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]
