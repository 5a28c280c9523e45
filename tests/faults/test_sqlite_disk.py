"""A disk that is full or broken under the database of a service that serves.

Whatever it does: what was answered is there, the chain is one, each challenge was good once, whoever could not be
served was told so by 503 with Retry-After; and with the disk in order again it goes on by itself.
"""

from __future__ import annotations

import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.service import ServiceProcess
from tests.fixtures.strace import failing, why_not
from tests.integration.concurrency.test_two_workers import Life, _check

MACHINES = 4
PATIENCE_SECONDS = 120

QUICK = {"ITL_MAINTENANCE_SECONDS": "0.5"}

WRITES = "pwrite64,pwritev,write"
SYNCS = "fsync,fdatasync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """How a disk fails.

    Args:
        file: What is appended to the name of the database.
        calls: Which calls fail.
        how: As strace has it.
        refuses: Requests are refused by it; else the store tried again, or only checkpoints of the log met it.
    """

    file: str
    calls: str
    how: str
    refuses: bool


FAULTS = {
    "full": Disk(file="-wal", calls=WRITES, how="error=ENOSPC", refuses=True),
    "full in the middle": Disk(file="-wal", calls=WRITES, how="error=ENOSPC:when=2+3", refuses=True),
    "broken": Disk(file="-wal", calls=WRITES, how="error=EIO", refuses=True),
    "unread": Disk(file="", calls="pread64", how="error=EIO:when=1+2", refuses=False),
    "broken under checkpoints": Disk(file="", calls=WRITES, how="error=EIO", refuses=False),
    "not synced under checkpoints": Disk(file="", calls=SYNCS, how="error=EIO:when=1+2", refuses=False),
    "not always synced": Disk(file="-wal", calls=SYNCS, how="error=EIO:when=1+2", refuses=False),
    "not synced": Disk(file="-wal", calls=SYNCS, how="error=EIO", refuses=True),
}


class Restless(Life):
    """A machine that attests without a pause, and looks at every refusal."""

    def __init__(self, seed: int, url: str) -> None:
        super().__init__(SoftwareNode(seed), url)
        self.refused = 0
        self.served = 0

    def live(self, approved: threading.Event, stop: threading.Event) -> None:
        """Live until told to stop."""
        with self.http:
            self._enrol()
            approved.wait(PATIENCE_SECONDS)
            while not stop.is_set():
                self._attest()
                self.served += 1

    def _sent(self, request: Any) -> httpx.Response | None:
        try:
            answer: httpx.Response = request()
        except httpx.TransportError:  # the power was cut
            self.told.unanswered += 1
            time.sleep(0.05)
            return None
        if answer.status_code != 503:
            return answer
        assert int(answer.headers["retry-after"]) > 0
        self.refused += 1
        time.sleep(0.05)
        return None


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


@contextmanager
def fleet(service: ServiceProcess) -> Iterator[list[Restless]]:
    """Machines that attest; in the end, and after the power was cut, the database is held against what they heard."""
    lives = [Restless(seed, service.url) for seed in range(MACHINES)]
    approved, stop = threading.Event(), threading.Event()
    with ThreadPoolExecutor(MACHINES) as pool:
        running = [pool.submit(each.live, approved, stop) for each in lives]
        try:
            until(lambda: all(each.told.activated for each in lives), "introductions")
            operator = service.operator()
            for each in lives:
                operator.approve(each.told.machine_id)
                each.told.approved = True
            operator.http.close()
            approved.set()
            until(lambda: all(each.served > 1 for each in lives), "attestations")
            yield lives
            recovered(lives)
        finally:
            approved.set()
            stop.set()
        for done in running:
            done.result(PATIENCE_SECONDS)
    service.kill()
    service.start()
    _check(service, [each.told for each in lives])


def recovered(lives: list[Restless]) -> None:
    """Wait until each of them was served again, and more than once."""
    before = [each.served for each in lives]
    until(
        lambda: all(each.served > was + 1 for each, was in zip(lives, before, strict=True)),
        "recovery; the log of the service says more",
    )


def test_a_disk_that_fails_in_each_way(tmp_path: Path) -> None:
    """One way after the other; nobody starts the service again in between, but for the power cut within the last."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    service = ServiceProcess(directory=tmp_path, environment=QUICK)
    service.start()
    try:
        with fleet(service) as lives:
            for name, disk in FAULTS.items():
                log = tmp_path / "strace"
                refused = sum(each.refused for each in lives)
                file = Path(f"{service.database}{disk.file}")
                with failing(service.pid, disk.calls, disk.how, file, log, seen=WRITES):
                    until(lambda: log.read_text().count("INJECTED") >= 4, f"calls that fail: {name}")  # noqa: B023
                    # Those four may all have been of the service's own chores.
                    if disk.refuses:
                        until(lambda: sum(each.refused for each in lives) > refused, f"a refusal: {name}")  # noqa: B023
                    if name == "not synced":
                        service.kill()
                if name == "not synced":
                    service.start()
                calls = log.read_text().splitlines()
                refused = sum(each.refused for each in lives) - refused
                print(
                    f"{name}: {sum('INJECTED' in each for each in calls)} calls failed, {refused} were refused"
                )
                assert refused or not disk.refuses, name
                assert_written_again(calls)
                recovered(lives)
    finally:
        service.kill()


def assert_written_again(calls: list[str]) -> None:
    """After a sync that failed nothing is synced before it was written again: the kernel may have dropped it."""
    failed = False
    for call, result in (found.groups() for each in calls if (found := CALL.search(each))):
        if call not in SYNCS.split(","):
            failed = False
        elif result == "0":
            assert not failed, calls
        else:
            failed = True


CALL = re.compile(r"(\w+)(?:\(| resumed).*\) = (-?\d+)")


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """The limit of a process for the size of its files, as where a quota is reached; then it is lifted."""
    service = ServiceProcess(directory=tmp_path, environment=QUICK)
    service.start()
    try:
        with fleet(service) as lives:
            before = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
            size = Path(f"{service.database}-wal").stat().st_size
            resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (size, before[1]))
            until(lambda: all(each.refused > 0 for each in lives), "refusals")
            resource.prlimit(service.pid, resource.RLIMIT_FSIZE, before)
    finally:
        service.kill()
