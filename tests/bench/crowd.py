"""A large service: 10,000 machines with all that is kept of them, and an audit log of 1,000,000 entries that verifies.

Machines, results, certificates and policies are written as the service writes them, so that the log tells of each row
of authority. The entries behind those are linked beforehand and written in bulk, with every node of their tree.
It takes about two minutes, so what was made is kept in `.tools/bench` for the day: one folder, which is copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx

from attestation.audit import AuditEvent, linked
from attestation.audit.merkle import TILE_WIDTH, leaf_hash, tile_root
from attestation.endorsements.ek_trust import PathCertificate, PathValidation
from attestation.machines import EKCertificateInfo, Machine, Role, Status
from attestation.results import Assurance, AttestationResult, Failed, Passed, Verdict
from attestation.store import Issuance, NodeCSR, PackedLog, Store, StoredEvidence, Tx, open_store, pack
from attestation.store.migrate import HEAD
from attestation.store.policies import PolicyAssignment, StoredPolicy
from attestation.store.trust import StoredEKCertificate
from attestation_testing import BootOptions, SoftwareEK, boot_log
from attestation_testing.certificates import EKCertificateOptions, make_ek_certificate
from tests.bench import fleet, policy_test
from tests.bench.software_machine import SoftwareMachine
from tests.fixtures.vendor import IFX, ISSUER, MADE

MACHINES: Final = 10_000
ENTRIES: Final = 1_000_000
RESULTS: Final = 4
"""Kept of each machine that attested."""
LOGS: Final = 40
"""Different boots, of 50 KiB each."""
KEPT: Final = Path(__file__).parents[2] / ".tools" / "bench"
CLUSTERS: Final = ("default", "ams-1", "ams-2", "fra-1", "fra-2", "iad-1")
VENDORS: Final = ("IFX", "NTC", "STM", "INTC", "AMD")
PEOPLE: Final = ("alice", "bob", "carol", "dora", "emil")
SITES: Final = ("ams", "fra", "iad", "sin")
POLICIES: Final = 30
BATCH: Final = 250

_ENTRY: Final = (
    "INSERT INTO audit_log (id, timestamp, operator_cn, operator_sub, action, machine_id, prev_state, new_state, "
    "detail, source_ip, format, prev_hash, entry_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_NODE: Final = "INSERT INTO audit_nodes (level, position, hash) VALUES (?, ?, ?)"


def machine_id(number: int) -> str:
    """Return the id of a machine of the crowd."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"machine {number}".encode()).digest()[:16], version=4))


@contextlib.contextmanager
def placed() -> Iterator[Path]:
    """Return the folder of a large service that nobody started yet, made anew where there is none of today.

    It is always the same one, for the database says where the keys of its CA are; who is second waits.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    made, used = KEPT / f"crowd-{_key()}", KEPT / "used"
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(used, ignore_errors=True)
        if not made.is_dir():
            for old in KEPT.glob("crowd-*"):
                shutil.rmtree(old)
            used.mkdir()
            make(used)
            used.rename(made)
        shutil.copytree(made, used)
        try:
            yield used
        finally:
            shutil.rmtree(used, ignore_errors=True)


def settings(directory: Path) -> dict[str, str]:
    """Return the settings that a service of it needs."""
    return {"ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(directory / "passphrase")}


def _key() -> str:
    """Return what names the database: the schema, this file, and the day, for what is kept in it grows old."""
    text = Path(__file__).read_bytes() + HEAD.encode() + datetime.now(UTC).date().isoformat().encode()
    return hashlib.sha256(text).hexdigest()[:16]


def make(directory: Path, machines: int = MACHINES, entries: int = ENTRIES) -> None:
    """Make it in the empty *directory*."""
    (directory / "passphrase").write_text("a passphrase of the bench only", encoding="utf-8")
    # Started once for its tables, its keys, its CA and the vendors that it trusts.
    with fleet.service(directory, 1, **settings(directory)) as server:
        bundle = httpx.get(
            f"http://127.0.0.1:{server.port}/api/v1/trust/bundle",
            headers={"Authorization": f"Bearer {fleet.ADMIN_TOKEN}"},
            timeout=60,
            trust_env=False,
        ).json()["sha256"]
    at = datetime.now(UTC)
    path = directory / "machines.db"
    with contextlib.closing(open_store(f"sqlite:///{path}")) as store:
        _in_batches(store, machines, _machines(at, bundle))
        _in_batches(store, machines, _results(store, at))
        _in_batches(store, machines, _certificates(store, at))
        store.write_sync(lambda tx: _policies(tx, at))
        store.write_sync(lambda tx: _node_requests(tx, machines, at))
    lengthen(path, entries, at)


def _in_batches(store: Store, count: int, work: Callable[[Tx, int], None]) -> None:
    for first in range(0, count, BATCH):

        def unit(tx: Tx, numbers: range = range(first, min(first + BATCH, count))) -> None:
            for number in numbers:
                work(tx, number)

        store.write_sync(unit)


# Machines


def status_of(number: int) -> Status:
    """Return where a machine stands: of a hundred, ninety are attested."""
    return {
        0: Status.PENDING_APPROVAL,
        1: Status.PENDING_APPROVAL,
        2: Status.PENDING_APPROVAL,
        3: Status.REGISTERED,
        4: Status.LOCKED,
        5: Status.LOCKED,
        6: Status.REVOKED,
        7: Status.REVOKED,
        8: Status.REJECTED,
    }.get(number % 100, Status.ATTESTED)


def _verdict(number: int) -> Verdict | None:
    if status_of(number) is not Status.ATTESTED:
        return None
    return Verdict.FAILED if number % 50 == 11 else Verdict.VERIFIED


def _machines(at: datetime, bundle: str) -> Callable[[Tx, int], None]:
    ek = SoftwareEK("L-2")
    ak = SoftwareMachine(str(uuid.uuid4()), ek).ak
    certificate = make_ek_certificate(
        ek.public, ISSUER, at=MADE, options=EKCertificateOptions(manufacturer=IFX)
    )
    path = tuple(
        PathCertificate(sha256=f"{i:064x}", subject=f"CN=x{i}", role=role, ok=True, reason="signed")
        for i, role in enumerate(("leaf", "intermediate", "anchor"))
    )
    validation = PathValidation(
        ok=True,
        reason="chains to IFX",
        vendor="IFX",
        anchor_sha256=path[-1].sha256,
        path=path,
        bundle_sha256=bundle,
    )

    def add(tx: Tx, number: int) -> None:
        base = fleet._row(machine_id(number), f"{number:096x}", ek.public, ak, at, number)
        made = _varied(base, number, at)
        tx.machines.add(made)
        if made.anchor.ek_certificate is not None:
            tx.ek_certificates.put(
                StoredEKCertificate(
                    machine_id=made.machine_id,
                    certificate=certificate,
                    chain=(),
                    validation=validation,
                    judged_at=at,
                )
            )
        labels = {"site": SITES[number % 4], "rack": str(number % 97)}
        tx.labels.replace(made.machine_id, {}, labels)

    return add


def _varied(base: Machine, number: int, at: datetime) -> Machine:
    status, verdict = status_of(number), _verdict(number)
    pending = status is Status.PENDING_APPROVAL
    stale = verdict is Verdict.VERIFIED and number % 50 == 12
    seen = at - timedelta(seconds=number % 3600)
    vendor = VENDORS[number % 7] if number % 7 < len(VENDORS) else None
    return dataclasses.replace(
        base,
        status=status,
        role=None if pending or status is Status.REJECTED else list(Role)[number % len(Role)],
        desired_role=list(Role)[number % len(Role)],
        cluster_id=CLUSTERS[number % len(CLUSTERS)],
        anchor=dataclasses.replace(
            base.anchor,
            ek_chain_ok=vendor is not None,
            ek_certificate=None
            if vendor is None
            else EKCertificateInfo(
                subject=f"TPM {number}",
                manufacturer=vendor,
                model="SLB9670",
                firmware="7.85",
                sha256=f"{number:064x}",
            ),
        ),
        assurance=Assurance.TOFU if vendor is None else Assurance.EK_CHAIN,
        hostname=None if pending else base.hostname,
        registered_from=f"10.{number >> 8 & 255}.{number & 255}.7",
        # Who waits for a month is forgotten.
        registered_at=at - timedelta(minutes=(MACHINES - number) * (1 if pending else 7)),
        attested_at=seen if verdict is not None else None,
        locked_at=at if status is Status.LOCKED else None,
        revoked_at=at if status is Status.REVOKED else None,
        rejected_at=at if status is Status.REJECTED else None,
        last_verdict=verdict,
        last_result_at=None if verdict is None else seen,
        last_policy=None if verdict is None else "bench@1",
        last_failed="pcr7" if verdict is Verdict.FAILED else None,
        trust_expires_at=None if verdict is not Verdict.VERIFIED else at + timedelta(days=-1 if stale else 2),
        heartbeat_missed_at=at if stale else None,
        config_owed_since=at if status is Status.ATTESTED and number % 400 == 13 else None,
        alarm="it moved to another board" if number % 1000 == 14 else None,
    )


def _results(store: Store, at: datetime) -> Callable[[Tx, int], None]:
    boots: list[tuple[PackedLog, dict[int, bytes]]] = []
    for seed in range(LOGS):
        log = boot_log(BootOptions(seed=seed, size_bytes=policy_test.LOG_BYTES, revoked=200))
        values = {pcr: value for pcr, value in log.pcrs().items() if pcr < 16}
        boots.append((pack("tcg", log.serialise()), values))

    def keep(tx: Tx) -> None:
        for log, _ in boots:
            tx.logs.put(log, at)

    store.write_sync(keep)

    def add(tx: Tx, number: int) -> None:
        verdict = _verdict(number)
        if verdict is None:
            return
        log, values = boots[number % LOGS]
        evidence = StoredEvidence(pcr_bank="sha256", pcr_values=values, event_log_sha256=log.sha256)
        good = tuple(Passed(f"pcr{pcr}") for pcr in (0, 1, 2, 4, 7))
        for age in range(RESULTS, 0, -1):
            failed = verdict is Verdict.FAILED and age == 1
            result = AttestationResult(
                verdict=Verdict.FAILED if failed else Verdict.VERIFIED,
                at=at - timedelta(seconds=45 * age),
                policy="bench@1",
                outcomes=(Passed("signature"), *good, *([Failed("pcr7", "aa", "bb")] if failed else [])),
                boot_state_appraised=(),
                pcr_digest="ab" * 32,
            )
            tx.results.add(machine_id(number), result, evidence)

    return add


def _certificates(store: Store, at: datetime) -> Callable[[Tx, int], None]:
    """Two for each machine that attested: the older one ended by a newer; a third of the newer end within 30 days."""
    issuers = store.read_sync(lambda tx: tx.issuers.all())
    issuer = next(each for each in issuers if each.state == "active" and each.purpose == "machine")
    assert issuer.certificate is not None
    some = issuer.certificate  # no page looks into it but that of one certificate

    def add(tx: Tx, number: int) -> None:
        if _verdict(number) is None:
            return
        for age in (1, 0):
            serial = hashlib.sha256(f"{number} {age}".encode()).hexdigest()[:40]
            ends = at + timedelta(days=1 + (number * 7919) % 90 - age, seconds=number)
            tx.issuances.reserve(
                Issuance(
                    serial=serial,
                    issuer_id=issuer.issuer_id,
                    profile="node",
                    state="reserved",
                    machine_id=machine_id(number),
                    subject=f"CN=node-{number},O=bench",
                    spki_sha256=hashlib.sha256(serial.encode()).hexdigest(),
                    requester=machine_id(number),
                    key_tier=1 + number % 3,
                    assurance="ek-chain",
                    renews=None,
                    not_before=ends - timedelta(days=90),
                    not_after=ends,
                    reserved_at=at,
                )
            )
            tx.issuances.issued(serial, some, at)
            if age and number % 4 == 0:
                tx.issuances.revoke_serial(serial, "superseded", "a newer one", at)

    return add


def _policies(tx: Tx, at: datetime) -> None:
    for version in range(1, POLICIES + 1):
        text = json.dumps({**policy_test.by_value(), "version": version})
        tx.policies.add(
            StoredPolicy(
                name="bench",
                version=version,
                sha256=hashlib.sha256(text.encode()).hexdigest(),
                document=text,
                created_at=at,
                created_by="alice",
            )
        )
        tx.policies.assign(
            PolicyAssignment(
                scope="role",
                subject="worker-app",
                policy=f"bench@{version}",
                assigned_at=at,
                assigned_by="alice",
            )
        )


def _node_requests(tx: Tx, machines: int, at: datetime) -> None:
    for number in range(0, machines, 5):
        tx.node_csrs.add(
            NodeCSR(
                result_id=hashlib.sha256(f"csr {number}".encode()).hexdigest()[:32],
                cluster_id=CLUSTERS[number % len(CLUSTERS)],
                csr_uid=str(uuid.UUID(int=number)),
                csr_name=f"csr-{number}",
                signer_name="kubernetes.io/kubelet-serving",
                content_sha256=f"{number:064x}",
                decision="deny",
                reason="NotAttested",
                message="it is not attested",
                machine_id=machine_id(number),
                at=at - timedelta(minutes=number),
            )
        )


# The log


def lengthen(path: Path, entries: int, at: datetime) -> None:
    """Write entries behind the last one of the log in the database at *path*, until there are *entries*.

    The triggers stay: they refuse a gap, a change and a deletion, and nothing of this is any of them.
    """
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-1500000"):
            file.execute(f"PRAGMA {pragma}")
        begun, last = file.execute("SELECT id, entry_hash FROM audit_log ORDER BY id DESC LIMIT 1").fetchone()
        leaves = [
            row[0] for row in file.execute("SELECT hash FROM audit_nodes WHERE level = 0 ORDER BY position")
        ]
        assert len(leaves) == begun
        file.execute("BEGIN")
        file.executemany(_ENTRY, _linked(begun, entries, last, at, leaves))
        level, nodes, known = 0, leaves, begun
        while len(nodes) > known:
            file.executemany(_NODE, ((level, i, nodes[i]) for i in range(known, len(nodes))))
            above = range(len(nodes) // TILE_WIDTH)
            nodes = [tile_root(nodes[i * TILE_WIDTH : (i + 1) * TILE_WIDTH]) for i in above]
            level, known = level + 1, known // TILE_WIDTH
        file.execute("COMMIT")
        file.execute("PRAGMA journal_mode=WAL")


def _linked(
    begun: int, entries: int, last: str, at: datetime, leaves: list[bytes]
) -> Iterator[tuple[object, ...]]:
    """Return rows of entries, each linked to the one before; note the leaf of each in *leaves*."""
    for number in range(begun, entries):
        entry, data = linked(_event(number), at=at + timedelta(microseconds=number), prev_hash=last)
        last = entry.entry_hash
        leaves.append(leaf_hash(data))
        yield number + 1, *(getattr(entry, name) for name in entry.__slots__)


def _event(number: int) -> AuditEvent:
    """Return what stands in entry *number*: mostly what machines did, every eighth an operator's act."""
    of = machine_id_of_entry(number)
    if number % 8:
        failed = number % 40 == 1
        return AuditEvent(
            operator_cn="machine",
            action="attest_failed" if failed else "config_delivered",
            machine_id=of,
            prev_state="attested",
            new_state="attested",
            detail="pcr7: expected aa, found bb" if failed else "role=worker-app; result 4711",
            source_ip="192.0.2.17",
        )
    return AuditEvent(
        operator_cn=PEOPLE[number // 8 % len(PEOPLE)],
        action=("approve", "lock", "unlock", "role_change")[number // 8 % 4],
        machine_id=of,
        prev_state="pending_approval",
        new_state="registered",
        detail=f"role=worker-app; hostname=node-{number % MACHINES}",
        source_ip="192.0.2.9",
    )


_IDS: Final = tuple(map(machine_id, range(MACHINES)))


def machine_id_of_entry(number: int) -> str:
    """Return whom entry *number* speaks of: a hundred entries or so for each machine, spread over the log."""
    return _IDS[number * 7919 % MACHINES]
