"""Real server processes on loopback, and what they cost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.ports import free_port

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of these processes so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total * _TICK


class Server:
    """A server with its workers; ends with the `with` block that started it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port

    def pids(self) -> list[int]:
        """Return the ids of the server and of everything it started."""
        found = [self._process.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += [int(p) for p in (task / "children").read_text().split()]
        return found

    def cpu_seconds(self) -> float:
        """Return user and system time of all these processes so far."""
        return cpu_seconds(self.pids())

    def resident_bytes(self) -> int:
        """Return the resident memory of the largest of these processes."""
        sizes = [0]
        for pid in self.pids():
            with contextlib.suppress(OSError):
                sizes.append(
                    int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                )
        return max(sizes)


@contextlib.contextmanager
def run(arguments: list[str], environment: Mapping[str, str], log: Path) -> Iterator[Server]:
    """Run `python -m ARGUMENTS --port PORT` until the block ends; the log is shown if it does not come up."""
    port = free_port()
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ITL_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments, "--port", str(port)],
            env={**clean, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.05)
        time.sleep(1.0)  # the second worker
        yield Server(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
