"""Revocation lists while workers die: numbers rise, nothing that was revoked is ever missing."""

from __future__ import annotations

import secrets
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509

from attestation.store import Issuance, Store, StoreSettings, Tx, open_store
from tests.fixtures.service import ServiceProcess
from tests.fixtures.stores import NewDatabase

pytestmark = pytest.mark.slow

ROUNDS = 2
READERS = 6


def revoke_one(store: Store, issuer_id: str) -> int:
    """Write a revoked certificate into the log; return its serial number."""
    at = datetime.now(UTC)
    serial = f"01{secrets.token_hex(19)}"

    def work(tx: Tx) -> None:
        row = Issuance(
            serial=serial, issuer_id=issuer_id, profile="node-client", state="reserved", machine_id="m",
            subject="CN=m", spki_sha256="00" * 32, requester="m", key_tier=None, assurance=None, renews=None,
            not_before=at, not_after=at + timedelta(days=1), reserved_at=at,
        )  # fmt: skip
        tx.issuances.reserve(row)
        tx.issuances.issued(serial, b"der", at)
        tx.issuances.revoke_serial(serial, "superseded", "test", at)

    store.write_sync(work)
    return int(serial, 16)


def read(data: bytes) -> tuple[int, set[int]]:
    """Return number and entries of a list."""
    crl = x509.load_der_x509_crl(data)
    number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    return number, {entry.serial_number for entry in crl}


def test_killed_over_a_list(tmp_path: Path, new_database: NewDatabase) -> None:
    """Two workers are killed while many fetch and somebody revokes; every list has all that was revoked before."""
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,
        environment={"ITL_ENROLLMENT_CA_UNENCRYPTED": "true"},
        server_url=new_database(),
    )
    service.start()
    store = open_store(service.db_url, StoreSettings(busy_timeout_seconds=30))
    found: list[tuple[int, set[int], set[int]]] = []
    revoked: set[int] = set()
    newest = 0
    try:
        issuer = store.read_sync(lambda tx: tx.issuers.active("machine", "ecdsa-p384"))
        assert issuer is not None
        issuer_id = issuer.issuer_id

        def fetch(ends: threading.Event) -> None:
            with httpx.Client(base_url=service.url, timeout=60) as client:
                while not ends.is_set():
                    before = set(revoked)
                    try:
                        answer = client.get(f"/pki/crl/{issuer_id}")
                    except httpx.HTTPError:
                        return
                    if answer.status_code == 200:
                        found.append((*read(answer.content), before))

        for _ in range(ROUNDS):
            ends = threading.Event()
            readers = [threading.Thread(target=fetch, args=(ends,)) for _ in range(READERS)]
            for reader in readers:
                reader.start()
            until, enough = time.monotonic() + 120, len(found) + 3
            while len(found) < enough and time.monotonic() < until:
                revoked.add(revoke_one(store, issuer_id))
            service.kill()
            ends.set()
            for reader in readers:
                reader.join()
            service.start()
            # Whoever was killed may have the making to itself for ten seconds more; then others go on.
            number_now, entries = read(_patiently(service, issuer_id))
            assert entries == revoked
            assert number_now > newest
            newest = number_now
        assert len(found) >= 3 * ROUNDS
        for _, entries, before in found:
            assert before <= entries
        by_number: dict[int, set[int]] = {}
        for number, entries, _ in found:
            assert by_number.setdefault(number, entries) == entries, "one number, one list"
    finally:
        store.close()
        service.stop()


def _patiently(service: ServiceProcess, issuer_id: str) -> bytes:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = httpx.get(f"{service.url}/pki/crl/{issuer_id}", timeout=60)
        if answer.status_code == 200:
            return answer.content
        assert answer.status_code == 503, answer.text
        time.sleep(0.5)
    pytest.fail("nobody made a list")
