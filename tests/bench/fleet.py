"""A service with a fleet that is already attested, written into its store, and the load on it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attestation.machines import Anchor, ClockState, Machine, Role, Status
from attestation.results import Assurance, Verdict
from attestation.store import Tx, is_postgresql, migrate, open_store
from attestation.store.copying import copy, source, tables_of, target
from attestation.tpm import Public
from attestation_testing import SoftwareEK
from tests.bench.load import Connection
from tests.bench.server import Server, run
from tests.bench.software_machine import VALUES, SoftwareMachine

WORKERS = 2
ADMIN_TOKEN = "bench-" + "0" * 40
_PCR_TEXTS = json.dumps({bank: {str(i): v.hex() for i, v in of.items()} for bank, of in VALUES.items()})


@contextlib.contextmanager
def service(directory: Path, workers: int = WORKERS, /, **settings: str) -> Iterator[Server]:
    """Run the service on a SQLite file in *directory*, or on ITL_DB_URL of *settings*; limits are out of the way.

    *settings* are further variables of its environment, e.g. another `ITL_DB_URL`.
    """
    (directory / "configs").mkdir(exist_ok=True)
    environment = {
        "ITL_DB_URL": f"sqlite:///{directory}/machines.db",
        "ITL_ENROLLMENT_CA_DIR": str(directory / "ca"),
        "ITL_CONFIG_CACHE_DIR": str(directory / "configs"),
        "ITL_SERVICE_URL": "http://127.0.0.1",
        "ITL_ADMIN_TOKEN": ADMIN_TOKEN,
        "ITL_RATE_LIMIT_ADDRESS_PER_SECOND": "100000",
        "ITL_RATE_LIMIT_ADDRESS_BURST": "1000000",
        "ITL_RATE_LIMIT_MACHINE_PER_SECOND": "1000",
        "ITL_RATE_LIMIT_MACHINE_BURST": "10000",
        "ITL_PENDING_LIMIT_PER_ADDRESS": "1000000",
        "ITL_PENDING_LIMIT": "1000000",
        "ITL_BREAK_GLASS_PER_MINUTE": "1000000",
        "ITL_ACCESS_LOG": "false",
        **settings,
    }
    arguments = ["attestation_service.main", "--host", "127.0.0.1", "--workers", str(workers)]
    with run(arguments, environment, directory / "service.log") as server:
        yield server


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Return a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="attestation-bench-") as name:
        yield Path(name)


def seed(path: Path, count: int, *, live: int, url: str | None = None) -> list[SoftwareMachine]:
    """Write *count* attested machines into a fresh database; return *live* of them, spread evenly, with keys.

    The other rows have every column filled too; their keys are never used. The database is the one at *url*, or a file
    in *path*. Into a server they are copied from a file: row by row it took longer than all that is measured.
    """
    if url is not None and is_postgresql(url):
        copied = seed(path, count, live=live)
        with source(f"sqlite:///{path}/machines.db", alone=True) as found, target(url, []) as made:
            copy(found, made, tables_of(found, []), lambda _table, _rows: None)
        return copied
    return fill(url or f"sqlite:///{path}/machines.db", count, live=live)


def fill(url: str, count: int, *, live: int) -> list[SoftwareMachine]:
    """Write machines as `seed` does, row by row, into a database that may be migrated already."""
    migrate(url)
    store = open_store(url)
    at = datetime.now(UTC)
    step = max(1, count // live)
    filler_ek = SoftwareEK("L-2")
    filler_ak = SoftwareMachine(str(uuid.uuid4()), filler_ek).ak
    machines: list[SoftwareMachine] = []
    rows: list[Machine] = []
    for number in range(count):
        machine_id = str(uuid.uuid4())
        if number % step == 0 and len(machines) < live:
            machine = SoftwareMachine(machine_id, SoftwareEK("L-2"))
            machines.append(machine)
            rows.append(_row(machine_id, machine.ek_fingerprint, machine.ek.public, machine.ak, at, number))
        else:
            rows.append(_row(machine_id, f"{number:096x}", filler_ek.public, filler_ak, at, number))
        if len(rows) == 1000 or number == count - 1:
            batch, rows = rows, []

            def add(tx: Tx, batch: list[Machine] = batch) -> None:
                for row in batch:
                    tx.machines.add(row)

            store.write_sync(add)
    store.close()
    return machines


def _row(machine_id: str, fingerprint: str, ek: Public, ak: Public, at: datetime, number: int) -> Machine:
    return Machine(
        machine_id=machine_id,
        version=1,
        status=Status.ATTESTED,
        role=Role.WORKER_APP,
        cluster_id="default",
        anchor=Anchor(
            ek_fingerprint=fingerprint,
            ek_public=ek.tpm2b(),
            ek_source="pub",
            ek_template="L-2",
            ek_certificate=None,
            ek_chain_ok=False,
            ek_allow_listed=False,
            ak_public=ak.tpm2b(),
            ak_name=ak.name,
            ak_activated_at=at,
        ),
        assurance=Assurance.TOFU,
        hw_uuid=str(uuid.uuid4()),
        hw_mac=f"02:00:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
        hw_serial=f"SN{number:08d}",
        hw_product="bench",
        desired_role=None,
        hostname=f"node-{number}",
        assigned_ip=None,
        registered_from="127.0.0.1",
        registered_at=at,
        attested_at=at,
        locked_at=None,
        revoked_at=None,
        rejected_at=None,
        wipe_pending=False,
        wiped_at=None,
        config_owed_since=None,
        clock=ClockState(
            clock_ms=1, reset_count=1, restart_count=0, safe=True, firmware_version=0x2019102300163636
        ),
        last_verdict=Verdict.VERIFIED,
        last_result_at=at,
        last_policy="identity-only@1",
        last_failed=None,
        last_result_key=None,
        trust_expires_at=at + timedelta(seconds=180),
        directive_sha256=None,
    )


async def first_challenge(machine: SoftwareMachine, connection: Connection) -> None:
    """Fetch the challenge that the first attestation answers."""
    status, answer = await connection.json("GET", f"/api/v1/attest/challenge?machine_id={machine.machine_id}")
    assert status == 200, (status, answer)
    machine.challenge = (answer["nonce_id"], base64.b64decode(answer["nonce"]))


def attest_body(machine: SoftwareMachine) -> bytes:
    """Return the body of the attestation that answers the machine's challenge."""
    assert machine.challenge is not None
    nonce_id, nonce = machine.challenge
    attest, signature = machine.quote(nonce)
    return (
        f'{{"machine_id":"{machine.machine_id}","ek_fingerprint":"{machine.ek_fingerprint}",'
        f'"nonce_id":"{nonce_id}","pcr_quote":"{base64.b64encode(attest).decode()}",'
        f'"pcr_signature":"{base64.b64encode(signature).decode()}","pcr_values":{_PCR_TEXTS},'
        f'"node_nonce":"{base64.b64encode(os.urandom(32)).decode()}"}}'
    ).encode()


async def attest(machine: SoftwareMachine, connection: Connection) -> int:
    """Attest once, keep the next challenge, return the size of the answer in bytes."""
    status, answer = await connection.request("POST", "/api/v1/attest", attest_body(machine))
    assert status == 200, (status, answer)
    members = json.loads(answer)
    assert members["status"] == "attested", members
    assert members["action"] == "none", members
    assert members["message"] == "attested", members  # judged Verified, not only answered
    following = members["next_challenge"]
    machine.challenge = (following["nonce_id"], base64.b64decode(following["nonce"]))
    return len(answer)
