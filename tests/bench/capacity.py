"""What a fleet costs on PostgreSQL: bytes, log, commits and CPU per machine and attestation; and what follows from it.

Writes the tables of docs/operate/capacity.md. Takes about three minutes.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg

from attestation.audit import AuditEvent
from attestation.store import Challenge, Store, Tx, migrate, open_store
from tests.bench import fleet, steady_state
from tests.bench.report import Measurement
from tests.bench.software_machine import SoftwareMachine
from tests.fixtures.postgres import Server, server

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "capacity.md"
BEGIN, END = "<!-- written by ./dev bench capacity -->", "<!-- end -->"

MACHINES = 2_000
ROUNDS = 5
ENTRIES = 4_000
UNITS = 12_000
CALLERS = 256
PAGE_BYTES = 8192
CHECKPOINT_SECONDS = 300
"""What PostgreSQL writes its files in, and how often it writes all that changed, unless it is set otherwise."""
BUSY = 0.6
"""How much of its core a replica may use, so that it keeps up while another one is away."""

FLEETS = ((1_000, 45), (100_000, 45), (100_000, 300), (1_000_000, 45), (1_000_000, 600))
"""Machines, and seconds between two attestations of each."""

_COUNTERS = """
    SELECT wal_bytes::bigint, wal_fpi, (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
        pg_database_size(current_database()), (SELECT count(*) FROM audit_log)
    FROM pg_stat_wal
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was measured.

    Args:
        service_seconds: CPU of the service per attestation.
        database_seconds: CPU of the server of the database per attestation.
        wal_bytes: Its log per attestation, without the full pages after a checkpoint.
        commits: Transactions per attestation, those that read included.
        machine_bytes: Of the database per machine that attests, indexes and dead rows included.
        entries: Entries of the audit log per attestation in the steady state.
        entry_bytes: Of the database per entry of the audit log, tree and indexes included.
        writes_per_second: How many attestations can be written, whatever the number of replicas.
    """

    service_seconds: float
    database_seconds: float
    wal_bytes: float
    commits: float
    machine_bytes: float
    entries: float
    entry_bytes: float
    writes_per_second: float


def _counters(url: str) -> tuple[int, ...]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        time.sleep(1.5)  # sessions tell of themselves each second
        row = connection.execute(_COUNTERS).fetchone()
    assert row is not None
    return tuple(map(int, row))


def _cpu_seconds(postgres: Server) -> float:
    total = 0
    for pid in postgres.pids():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _entry_bytes(store: Store, url: str) -> float:
    event = AuditEvent(
        operator_cn="alice", action="approve", machine_id=str(uuid.uuid4()), prev_state="pending_approval",
        new_state="registered", detail="role=worker-app; hostname=node-1234567", source_ip="192.0.2.1",
    )  # fmt: skip
    before = _counters(url)[3]
    for _ in range(ENTRIES // 100):
        store.write_sync(lambda tx: [tx.audit.append(event, datetime.now(UTC)) for _ in range(100)])
    return (_counters(url)[3] - before) / ENTRIES


def _writes_per_second(store: Store, machines: Sequence[SoftwareMachine]) -> float:
    """Return how many units like that of an attestation one writer commits: redeem, issue, renew the machine."""
    at = datetime.now(UTC)
    done = 0

    async def caller(number: int) -> None:
        nonlocal done
        machine = machines[number % len(machines)]
        asked = Challenge(
            challenge_id=uuid.uuid4().hex, purpose="attest", machine_id=machine.machine_id,
            ek_fingerprint=machine.ek_fingerprint, nonce=os.urandom(32), issued_at=at,
            expires_at=at + timedelta(hours=1),
        )  # fmt: skip
        await store.write(lambda tx: tx.challenges.issue(asked))
        while done < UNITS:
            done += 1
            following = replace(asked, challenge_id=uuid.uuid4().hex, nonce=os.urandom(32))

            def unit(tx: Tx, old: Challenge = asked, new: Challenge = following) -> None:
                tx.challenges.redeem(old.challenge_id, "attest", old.machine_id, at)
                tx.challenges.issue(new)
                tx.machines.update(tx.machines.require(old.machine_id), last_result_at=datetime.now(UTC))

            await store.write(unit)
            asked = following

    async def all_of_them() -> float:
        started = time.perf_counter()
        await asyncio.gather(*map(caller, range(CALLERS)))
        return UNITS / (time.perf_counter() - started)

    return asyncio.run(all_of_them())


def costs() -> Costs:
    """Measure on a server that writes its log as one with a standby does."""
    with (
        server(wal_level="replica", max_wal_senders="2", full_page_writes="on", autovacuum="on") as postgres,
        fleet.directory() as directory,
    ):
        url = postgres.create("capacity")
        documented = url.replace("postgresql:", "postgresql+psycopg:", 1)
        nobody = postgres.create("nobody")
        migrate(nobody)
        empty = _counters(nobody)[3]
        machines = fleet.seed(directory, MACHINES, live=MACHINES, url=documented)
        with fleet.service(directory, 1, ITL_DB_URL=documented) as running:
            steady_state.warm_up(running, machines)
            steady_state.drive(running, steady_state.attestations(machines), 2)
            before, cpu = _counters(url), _cpu_seconds(postgres)
            load = steady_state.drive(running, steady_state.attestations(machines), ROUNDS)
            database = _cpu_seconds(postgres) - cpu
            after = _counters(url)
        count = MACHINES * ROUNDS
        with closing(open_store(documented)) as store:
            entry_bytes = _entry_bytes(store, url)
            writes = _writes_per_second(store, machines)
        full_pages = (after[1] - before[1]) * PAGE_BYTES
        return Costs(
            service_seconds=load.cpu_seconds,
            database_seconds=database / count,
            wal_bytes=max(0, after[0] - before[0] - full_pages) / count,
            commits=(after[2] - before[2]) / count,
            machine_bytes=(after[3] - empty) / MACHINES,
            entries=(after[4] - before[4]) / count,
            entry_bytes=entry_bytes,
            writes_per_second=writes,
        )


def tables(found: Costs) -> str:
    """Return what was measured, and what follows for `FLEETS`, in Markdown."""
    lines = [
        "| measured | |",
        "|---|---|",
        f"| CPU of the service per attestation | {found.service_seconds * 1e3:.2f} ms |",
        f"| CPU of the database per attestation | {found.database_seconds * 1e3:.2f} ms |",
        f"| transactions per attestation, reads included | {found.commits:.1f} |",
        f"| write-ahead log per attestation, without full pages | {found.wal_bytes / 1e3:.1f} kB |",
        f"| database per machine that attests | {found.machine_bytes / 1e3:.1f} kB |",
        f"| entries of the audit log per attestation | {found.entries:.4f} |",
        f"| database per entry of the audit log | {found.entry_bytes / 1e3:.2f} kB |",
        f"| attestations that can be written, with any number of replicas | {found.writes_per_second:,.0f}/s |",
        "",
        "| machines, interval | attestations/s | replicas | cores of the database | IOPS | log per day | database "  # noqa: ISC004 -- one line
        "| audit per day | reachable |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for machines, interval in FLEETS:
        rate = machines / interval
        shortest = machines / (found.writes_per_second * BUSY)
        pages = machines * found.machine_bytes / PAGE_BYTES / CHECKPOINT_SECONDS
        lines.append(
            f"| {machines:,}, {interval} s | {rate:,.0f} | {math.ceil(rate * found.service_seconds / BUSY) + 1:,} "
            f"| {rate * found.database_seconds / BUSY:.1f} | {rate + pages:,.0f} "
            f"| {rate * found.wal_bytes * 86_400 / 1e9:,.1f} GB "
            f"| {machines * found.machine_bytes / 1e9:,.2f} GB | {machines * found.entry_bytes / 1e6:,.1f} MB "
            f"| {'yes' if shortest <= interval else f'no: {math.ceil(shortest):,} s'} |"
        )
    return "\n".join(lines)


def measure() -> Iterator[Measurement]:
    """Measure, and write the page."""
    found = costs()
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{tables(found)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    for name, value, unit in (
        ("service-cpu", found.service_seconds * 1e6, "us"),
        ("database-cpu", found.database_seconds * 1e6, "us"),
        ("wal", found.wal_bytes, "B"),
        ("commits", found.commits, "1"),
        ("machine", found.machine_bytes, "B"),
        ("audit-entry", found.entry_bytes, "B"),
        ("writes", found.writes_per_second, "/s"),
    ):
        yield Measurement(name=f"capacity-{name}", value=value, unit=unit, bar="-", ok=True)
    yield Measurement(
        name="capacity-audit-entries",
        value=found.entries,
        unit="per attestation",
        bar="none in the steady state",
        ok=found.entries < 0.001,
        note=f"{MACHINES:,} machines, one process, {os.cpu_count()} cores shared with the server of the database and "
        "the load; what follows from it: docs/operate/capacity.md",
    )
