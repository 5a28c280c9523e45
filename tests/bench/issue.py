"""Certificates with everything that belongs to one: two durable units, the linter, one signature, audit and event.

`python -m tests.bench.issue` is one worker of the measurement.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.audit import AuditEvent
from attestation.clock import SystemClock, rfc3339
from attestation.machines import NodeEvent
from attestation.pki.names import machine_subject
from attestation.pki.profiles import ProfileName
from attestation.results import Assurance
from attestation.store import Issuance, IssuanceFilter, Page, Tx, migrate, open_store
from attestation.wire import b64encode
from attestation_service.authority import Authority, Issued, Wanted, open_authority
from attestation_service.settings import Settings
from tests.bench import fleet
from tests.bench.load import Connection
from tests.bench.report import Measurement, best_seconds
from tests.bench.software_machine import SoftwareMachine
from tests.bench.steady_state import Job, drive
from tests.fixtures import softhsm
from tests.unit.service.node_keys import csr_binding, ecc_key

WORKERS = 2
CONCURRENCY = 16
WARM_UP = 50
MACHINES = 650
COUNT = 1_000
"""Certificates of each worker."""


def measure() -> Iterator[Measurement]:
    """Measure with a key in an encrypted file, then with one that never leaves SoftHSM."""
    with fleet.directory() as directory:
        passphrase = directory / "passphrase"
        passphrase.write_text("a passphrase of the benchmark\n")
        yield _of("issue-file", directory, {"ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(passphrase)}, 300)
    with fleet.directory() as directory:
        environment: dict[str, str] = {}
        hsm = softhsm.make(directory / "softhsm", environment.__setitem__)
        os.environ.update(environment)
        hsm.new_token("ca")
        environment |= {
            "ITL_ENROLLMENT_CA_KEY": f"pkcs11:token=ca?module-name=softhsm&pin-source=file:{hsm.pin_file}",
            "ITL_PKCS11_MODULES": f"softhsm={hsm.module}",
        }
        yield _of("issue-softhsm", directory, environment, 100)
    yield from _asked_for()


def _asked_for() -> Iterator[Measurement]:
    """Measure the whole of it over HTTP: challenge, certified key, certificate, one of each machine."""
    with fleet.directory() as directory:
        machines = fleet.seed(directory, MACHINES, live=MACHINES)
        environment = {"ITL_ENROLLMENT_CA_UNENCRYPTED": "true", "ITL_TPM_ALLOW_SIMULATOR": "true"}
        with fleet.service(directory, **environment) as running:
            drive(running, [_request(machine) for machine in machines[:WARM_UP]], 1)
            load = drive(running, [_request(machine) for machine in machines[WARM_UP:]], 1)
    yield Measurement(
        name="request-cert",
        value=load.per_second,
        unit="/s",
        bar="for information",
        ok=True,
        note=f"challenge and request-cert over HTTP, {MACHINES - WARM_UP:,} machines, one P-384 certificate each, two "
        f"workers, keys and statements made by the load generator on the same cores; "
        f"{load.cpu_seconds * 1e3:.1f} ms of CPU of the service each",
    )


def _request(machine: SoftwareMachine) -> Job:
    key = ecc_key()
    csr = key.csr()

    async def ask(connection: Connection) -> int:
        path = f"/api/v1/machines/{machine.machine_id}"
        status, challenge = await connection.json("GET", f"{path}/challenge?purpose=certify")
        assert status == 200, challenge
        statement, signature = machine.certify(
            key.public.name, key.qualified_name, csr_binding(challenge, csr)
        )
        body = {
            "nonce_id": challenge["nonce_id"],
            "csr_pem": csr,
            "key_public": b64encode(key.public.tpm2b()),
            "certify_info": b64encode(statement),
            "certify_signature": b64encode(signature),
        }
        status, answer = await connection.request("POST", f"{path}/request-cert", json.dumps(body).encode())
        assert status == 200, answer
        return len(answer)

    return ask


def _of(name: str, directory: Path, environment: Mapping[str, str], bar: int) -> Measurement:
    variables = {
        **environment,
        "ITL_DB_URL": f"sqlite:///{directory}/machines.db",
        "ITL_ENROLLMENT_CA_DIR": str(directory / "ca"),
        "ITL_SERVICE_URL": "https://attest.example.test",
        "ITL_ENROLLMENT_CA_ORGANIZATION": "ITL Usions",
        "ITL_ENROLLMENT_CA_COUNTRY": "NL",
    }
    migrate(variables["ITL_DB_URL"])
    workers = [_start(variables) for _ in range(WORKERS)]
    for worker in workers:
        assert _line(worker) == {"ready": True}
    start = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    ended = [_line(worker) for worker in workers]
    seconds = time.perf_counter() - start
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0
    _prove(variables["ITL_DB_URL"])
    per_second = WORKERS * COUNT / seconds
    floor = WORKERS / best_seconds(_signature(), repeat=5, number=100)
    cpu = sum(each["cpu"] for each in ended) / (WORKERS * COUNT)
    return Measurement(
        name=name,
        value=per_second,
        unit="/s",
        floor=floor,
        ratio=per_second / floor,
        bar=f">= {bar}/s",
        ok=per_second >= bar,
        note=f"{WORKERS} workers on one SQLite file, {WORKERS * COUNT:,} node certificates by P-384, {CONCURRENCY} at "
        "a time in each; reserved and issued in two durable units with audit entry and event, rehearsed with a key "
        f"that is thrown away, linted, signed, verified; {cpu * 1e3:.1f} ms of CPU each; floor: bare P-384 signatures "
        "in software on as many cores",
    )


def _signature() -> Callable[[], object]:
    key = ec.generate_private_key(ec.SECP384R1())
    return lambda: key.sign(b"x" * 800, ec.ECDSA(SHA384()))


def _first(wanted: IssuanceFilter, tx: Tx) -> Page[Issuance]:
    return tx.issuances.page(wanted, None, 1)


def _prove(db_url: str) -> None:
    """Every serial is issued: nothing was measured that did not happen."""
    store = open_store(db_url)
    try:
        for state in ("reserved", "void", "revoked", "held"):
            page = store.read_sync(functools.partial(_first, IssuanceFilter(state=state)))
            assert page.items == (), state
    finally:
        store.close()


def _start(variables: Mapping[str, str]) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ITL_")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.issue"],
        env={**clean, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(worker: subprocess.Popen[str]) -> dict[str, float]:
    assert worker.stdout is not None
    found: dict[str, float] = json.loads(worker.stdout.readline())
    return found


# In a worker


def _wanted(spki: bytes) -> Wanted:
    machine = str(uuid.uuid4())
    return Wanted(
        profile=ProfileName.NODE_CLIENT,
        machine_id=machine,
        subject=machine_subject(
            country="NL", organization="ITL Usions", role="worker-app", machine_id=machine
        ),
        spki=spki,
        requester=machine,
        key_tier=4,
        assurance=Assurance.EK_CHAIN,
        uris=(f"urn:itl:ek:{'ab' * 48}",),
    )


async def _issue(authority: Authority, count: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    clock = SystemClock()
    left = iter(range(count))

    async def one() -> None:
        wanted, at = _wanted(spki), clock.now()

        def conclude(tx: Tx, issued: tuple[Issued, ...]) -> None:
            detail = f"serial {issued[0].serial} of CA {issued[0].issuer_id}"
            event = AuditEvent(
                operator_cn="machine", action="cert_issued", machine_id=wanted.machine_id, detail=detail
            )
            tx.audit.append(event, at)
            tx.outbox.add(NodeEvent.CERT_RENEWED, wanted.machine_id, {"timestamp": rfc3339(at)}, at)

        await authority.issue(wanted, at=at, admit=lambda _tx: None, conclude=conclude)

    async def some() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(some() for _ in range(CONCURRENCY)))


def main() -> None:
    """Issue when told to, and say what it took."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings = Settings.load(env_file=None)
    store = open_store(settings.db_url)
    authority = open_authority(settings, store, SystemClock())
    asyncio.run(_issue(authority, WARM_UP))
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    cpu = time.process_time()
    asyncio.run(_issue(authority, COUNT))
    print(json.dumps({"cpu": time.process_time() - cpu}), flush=True)
    authority.close()
    store.close()


if __name__ == "__main__":
    main()
