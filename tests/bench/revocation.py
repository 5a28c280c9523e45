"""Revocation: OCSP answers that are kept, and a list of 10,000 certificates."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from cryptography.hazmat.primitives.asymmetric import ec

from attestation.endorsements import der
from attestation.pki.issuer import identity_of, sign
from attestation.pki.ocsp import REQUEST_MEDIA_TYPE, issuer_hashes
from attestation.store import Issuance, Issuer, StoreSettings, Tx, open_store
from tests.bench import fleet, server
from tests.bench.load import Connection, connect
from tests.bench.report import Measurement, best_seconds
from tests.bench.steady_state import Job, drive

CERTIFICATES = 1000
ROUNDS = 10
TURNS = 3
REVOKED = 10_000


def measure() -> Iterator[Measurement]:
    """Measure both over HTTP against two workers."""
    with (
        fleet.directory() as directory,
        fleet.service(directory, ITL_ENROLLMENT_CA_UNENCRYPTED="true") as running,
    ):
        issuer = _issuer(directory)
        yield from _ocsp(running, issuer, _fill(directory, issuer, CERTIFICATES, revoke=False))
        _fill(directory, issuer, REVOKED, revoke=True)
        yield from _list(running, directory, issuer)


def _ocsp(running: server.Server, issuer: Issuer, serials: list[str]) -> Iterator[Measurement]:
    for method in ("POST", "GET"):
        jobs = [_question(issuer, serial, method) for serial in serials]
        drive(running, jobs, 2)  # each worker keeps its own
        loads = [drive(running, jobs, ROUNDS) for _ in range(TURNS)]
        per_second = median(load.per_second for load in loads)
        yield Measurement(
            name=f"ocsp-{method.lower()}",
            value=per_second,
            unit="/s",
            bar=">= 1,500/s from cache",
            ok=per_second >= 1500,
            note=f"{CERTIFICATES:,} certificates, {TURNS * ROUNDS * CERTIFICATES:,} requests, two workers, the load "
            f"generator on the same cores; {median(load.cpu_seconds for load in loads) * 1e6:.0f} us of CPU each, "
            f"{loads[0].answer_bytes} bytes; the revision is read from the database for each",
        )


def _question(issuer: Issuer, serial: str, method: str) -> Job:
    assert issuer.certificate is not None
    name, key = issuer_hashes(identity_of(issuer.certificate))["sha1"]
    cert_id = (
        bytes.fromhex("300906052b0e03021a0500")
        + der.write(der.OCTET_STRING, name)
        + der.write(der.OCTET_STRING, key)
        + der.write_unsigned(int(serial, 16))
    )
    request = cert_id
    for _ in range(5):
        request = der.write(der.SEQUENCE, request)
    path = "/pki/ocsp"
    if method == "GET":
        path += "/" + base64.b64encode(request).decode().replace("/", "%2F").replace("+", "%2B")

    async def ask(connection: Connection) -> int:
        body = request if method == "POST" else b""
        status, answer = await connection.request(method, path, body, content_type=REQUEST_MEDIA_TYPE)
        assert status == 200, answer
        assert len(answer) > 100, answer  # an error of OCSP has five bytes
        return len(answer)

    return ask


def _list(running: server.Server, directory: Path, issuer: Issuer) -> Iterator[Measurement]:
    store = open_store(f"sqlite:///{directory}/machines.db", StoreSettings())
    seconds: list[float] = []
    size = 0
    try:
        for _ in range(5):
            store.write_sync(lambda tx: tx.issuers.bump([issuer.issuer_id], held_by_somebody=True))
            start = time.perf_counter()
            size = asyncio.run(_fetch(running.port, issuer))
            seconds.append(time.perf_counter() - start)
    finally:
        store.close()
    key = ec.generate_private_key(ec.SECP384R1())
    floor = best_seconds(lambda: sign(key, b"x" * size), repeat=5, number=5)
    value = median(seconds)
    yield Measurement(
        name="crl-10000",
        value=value * 1e3,
        unit="ms",
        floor=floor * 1e3,
        ratio=value / floor,
        bar="< 1 s",
        ok=value < 1,
        note=f"GET after a revocation: entries read, list made, signed, kept, sent; {size:,} bytes; "
        "floor: the signature over as many bytes",
    )


async def _fetch(port: int, issuer: Issuer) -> int:
    connection = await connect(port)
    try:
        status, body = await connection.request("GET", f"/pki/crl/{issuer.issuer_id}")
    finally:
        connection.close()
    assert status == 200
    return len(body)


def _issuer(directory: Path) -> Issuer:
    store = open_store(f"sqlite:///{directory}/machines.db", StoreSettings())
    try:
        found = store.read_sync(lambda tx: tx.issuers.active("machine", "ecdsa-p384"))
    finally:
        store.close()
    assert found is not None
    return found


def _fill(directory: Path, issuer: Issuer, count: int, *, revoke: bool) -> list[str]:
    """Write *count* certificates into the log, good or on hold; return their serials."""
    at = datetime.now(UTC)
    serials = [f"{secrets.randbelow(127) + 1:02x}{secrets.token_hex(19)}" for _ in range(count)]

    def work(tx: Tx) -> None:
        for serial in serials:
            tx.issuances.reserve(
                Issuance(
                    serial=serial,
                    issuer_id=issuer.issuer_id,
                    profile="node-client",
                    state="reserved",
                    machine_id="m",
                    subject="CN=m",
                    spki_sha256=hashlib.sha256(serial.encode()).hexdigest(),
                    requester="m",
                    key_tier=3,
                    assurance=None,
                    renews=None,
                    not_before=at,
                    not_after=at + timedelta(days=1),
                    reserved_at=at,
                )
            )
            tx.issuances.issued(serial, b"x" * 900, at)
        if revoke:
            tx.issuances.hold("m", "bench", at)

    store = open_store(f"sqlite:///{directory}/machines.db", StoreSettings(busy_timeout_seconds=30))
    try:
        store.write_sync(work)
    finally:
        store.close()
    return serials
