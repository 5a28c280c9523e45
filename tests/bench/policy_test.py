"""`attestation policy test` over 10,000 machines: the whole command, against a service on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attestation.results import AttestationResult, Failed, Passed, Verdict
from attestation.store import PackedLog, Store, StoredEvidence, Tx, open_store, pack
from attestation_testing import BootOptions, boot_log
from tests.bench import fleet
from tests.bench.report import Measurement

MACHINES = 10_000
LOGS = 100
MANY_LOGS = 1_000
LOG_BYTES = 50 * 1024
BAR_SECONDS = 5.0
RUNS = 5
SLOW_RUNS = 1
BATCH = 500
NEW_KERNEL = 10
"""One boot of so many has another kernel."""
WITHOUT_A_BAR = "none: the first run over new logs parses each of them"


@dataclass(frozen=True, slots=True)
class Boot:
    """What one kind of machine measured."""

    log: PackedLog
    values: Mapping[int, bytes]


def measure() -> Iterator[Measurement]:
    """Measure wall clock from the first to the last line of the command; the fastest of some runs."""
    with fleet.directory() as directory:
        fleet.seed(directory, MACHINES, live=1)
        store = open_store(f"sqlite:///{directory}/machines.db")
        try:
            prove(store, LOGS)
            with fleet.service(directory) as server:
                environment = _environment(f"http://127.0.0.1:{server.port}", directory)
                floor = min(_run(["stats"], environment) for _ in range(RUNS))
                for name, document, note in (
                    ("policy-test-10000", by_value(), "PCR 4 and 7 by value"),
                    ("policy-test-10000-logs", by_log(), f"Secure Boot and kernels; {LOGS} logs of 50 KiB"),
                ):
                    seconds = _test(directory, document, environment, RUNS)
                    yield _measurement(name, seconds, floor, note)
            prove(store, MANY_LOGS)
            with fleet.service(directory) as server:
                environment = _environment(f"http://127.0.0.1:{server.port}", directory)
                seconds = _test(directory, by_log(), environment, SLOW_RUNS)
            yield _measurement(
                "policy-test-10000-new-logs",
                seconds,
                floor,
                f"the same with {MANY_LOGS:,} logs of 50 KiB that were never looked at",
                bar=WITHOUT_A_BAR,
            )
        finally:
            store.close()


def prove(store: Store, logs: int) -> None:
    """Give every machine a result with evidence: *logs* different boots of 50 KiB, every tenth with a new kernel."""
    boots: list[Boot] = []
    for number in range(logs):
        kernel = "6.1.0-57" if number % NEW_KERNEL == 0 else "6.1.0-56"
        log = boot_log(BootOptions(seed=number, kernel=kernel, size_bytes=LOG_BYTES, revoked=200))
        values = {pcr: value for pcr, value in log.pcrs().items() if pcr < 16}
        boots.append(Boot(pack("tcg", log.serialise()), values))
    ids = store.read_sync(lambda tx: [c.machine_id for c in _captures(tx)])
    at = datetime.now(UTC)
    result = AttestationResult(
        verdict=Verdict.VERIFIED,
        at=at,
        policy="identity-only@1",
        outcomes=(Passed("signature"), Failed("pcr7", "aa", "bb")),
        boot_state_appraised=(),
        pcr_digest="ab" * 32,
    )
    for first in range(0, len(ids), BATCH):

        def add(tx: Tx, first: int = first) -> None:
            for number, machine_id in enumerate(ids[first : first + BATCH], first):
                boot = boots[number % logs]
                tx.logs.put(boot.log, at)
                evidence = StoredEvidence(
                    pcr_bank="sha256", pcr_values=boot.values, event_log_sha256=boot.log.sha256
                )
                tx.results.add(machine_id, result, evidence)

        store.write_sync(add)


def _captures(tx: Tx) -> Iterator[Any]:
    from attestation.store import CaptureFilter

    cursor: str | None = None
    while True:
        page = tx.captures.page(CaptureFilter(), cursor, 1000)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


def by_value() -> dict[str, Any]:
    """Return a policy over PCRs that a tenth of the fleet breaks."""
    values = boot_log(BootOptions(kernel="6.1.0-56", revoked=200)).pcrs()
    return _document(pcrs={str(pcr): {"any_of": [values[pcr].hex()]} for pcr in (4, 7)})


def by_log() -> dict[str, Any]:
    """Return a policy over event logs that a tenth of the fleet breaks."""
    log = boot_log(BootOptions(kernel="6.1.0-56", revoked=200))
    digests = [log.events[at].digest("sha256").hex() for at in log.where(pcr=4)]
    return _document(
        pcrs={"4": {"events": "approved-digests", "digests": digests}}, secure_boot={"required": True}
    )


def _document(**members: Any) -> dict[str, Any]:
    return {"format": "itl-tpm-policy/1", "name": "bench", "version": 1, "bank": "sha256", **members}


def _test(directory: Path, document: dict[str, Any], environment: Mapping[str, str], runs: int) -> float:
    path = directory / "policy.json"
    path.write_text(json.dumps(document))
    return min(_run(["policy", "test", str(path)], environment, exits=(0, 1)) for _ in range(runs))


def _run(words: list[str], environment: Mapping[str, str], exits: tuple[int, ...] = (0,)) -> float:
    command = [str(Path(sys.executable).with_name("attestation")), *words]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    taken = time.perf_counter() - start
    assert done.returncode in exits, done.stderr
    assert words[0] != "policy" or f"{MACHINES:,}" in done.stdout, done.stdout
    return taken


def _environment(url: str, home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ITL_", "PYTHON", "COVERAGE_")) and not name.lower().endswith("_proxy")
    }
    return kept | {
        "ITL_API_URL": url,
        "ITL_ADMIN_TOKEN": "bench-" + "0" * 40,
        "HOME": str(home),
        "PYTHONPYCACHEPREFIX": str(home / "bytecode"),
    }


def _measurement(name: str, seconds: float, floor: float, note: str, bar: str | None = None) -> Measurement:
    return Measurement(
        name=name,
        value=seconds,
        unit="s",
        floor=floor,
        ratio=seconds / floor,
        bar=bar or f"<= {BAR_SECONDS:.0f} s",
        ok=bar is not None or seconds <= BAR_SECONDS,
        note=f"{MACHINES:,} stored results, {note}; wall clock of the whole command; floor: `attestation stats`",
    )
