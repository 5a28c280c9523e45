"""Workers sign one log: while they append, while one of them is killed, and after a restart."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from attestation.audit import checkpoint
from attestation.audit.export import LogVerifier, Pinned
from attestation.audit.note import parse_vkey
from tests.fixtures.both import new_database
from tests.fixtures.service import ServiceProcess
from tests.fixtures.stores import NewDatabase

__all__ = ["new_database"]

ACTS = 150


def act(service: ServiceProcess, number: int) -> bool:
    """Do something that is an entry; return False where a worker died over it."""
    body = {"entries": [{"ek_fingerprint": f"{number:096x}", "role": "worker-app"}]}
    operator = service.operator()
    with operator.http:
        try:
            return operator.request("POST", "/allow-list", json=body).is_success
        except httpx.TransportError:
            return False


def test_workers_sign_while_they_append_and_die(tmp_path: Path, new_database: NewDatabase) -> None:
    """Two workers, a checkpoint each second or ten entries: no fork, no refusal, and the export proves it."""
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,
        environment={"ITL_AUDIT_CHECKPOINT_SECONDS": "1", "ITL_AUDIT_CHECKPOINT_ENTRIES": "10"},
        server_url=new_database(),
    )
    service.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            doing = [pool.submit(act, service, number) for number in range(ACTS)]
            while sum(done.done() for done in doing) < ACTS // 2:
                time.sleep(0.02)
            os.kill(service.worker_pids()[0], signal.SIGKILL)
            assert sum(done.result(60) for done in doing) > ACTS // 2
        service.stop()
        service.start()
        operator = service.operator()
        with operator.http:
            verdict = operator.call("GET", "/audit/verify")
            keys = tuple(map(parse_vkey, operator.call("GET", "/audit/keys")["vkeys"]))
            export = operator.request("GET", "/audit/export").content
            assert operator.audit(action="checkpoint_refused") == []
    finally:
        service.stop()
    assert verdict["valid"], verdict
    verifier = LogVerifier(pinned=Pinned(log_keys=keys, witnesses=(), quorum=0), earlier=[])
    verifier.feed(export)
    # One at the end at least, and one while it ran; how many more is a matter of the machine's speed.
    assert len(verifier.finish().checkpoints) >= 2
    for row in service.rows("SELECT size, note FROM audit_checkpoints ORDER BY size"):
        signed = checkpoint.verify(
            checkpoint.parse(row["note"].encode()), log_keys=keys, witnesses=(), quorum=0
        )
        assert signed.checkpoint.size == row["size"]
