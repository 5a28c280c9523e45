"""A confidential machine without a TPM over HTTP: joined by its report, and attested, with warm collateral."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.machines import Role, Status
from attestation.report_data import hardware_fingerprint, report_data
from attestation.store import Tx, open_store
from attestation.wire import pem
from attestation_testing.tee.amd import Pki, Processor
from tests.bench import fleet, server
from tests.bench.load import Connection, spread
from tests.bench.report import Measurement

COUNT = 240
ROUNDS = 4
CONCURRENCY = 12
BAR_PER_SECOND = 300
PROCESSOR = Processor(pki=Pki())


class Guest:
    """A guest of one processor, under a name of its own."""

    def __init__(self, number: int) -> None:
        self.name = (number + 1).to_bytes(32, "big")
        key = ec.generate_private_key(ec.SECP384R1()).public_key()
        self.spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.machine_id = ""
        self.challenge = ("", b"")

    def item(self, nonce: bytes) -> dict[str, Any]:
        """Return what the processor states."""
        data = report_data("sev-snp", nonce, self.machine_id, self.spki)
        made = PROCESSOR.report(data, host_data=self.name)
        value = {"report": _b64(made), "vek": _b64(PROCESSOR.vek)}
        return {"media_type": "application/vnd.itl.sev-snp", "value": value}

    async def join(self, connection: Connection) -> None:
        """Introduce and prove."""
        body: dict[str, Any] = {"tee": "sev-snp", "subject_key": _b64(self.spki)}
        status, answer = await connection.json("POST", "/api/v1/self-register", body)
        assert status == 200, (status, answer)
        self.machine_id, offered = answer["machine_id"], answer["challenge"]
        body = {
            "challenge_id": offered["challenge_id"],
            "evidence": [self.item(base64.b64decode(offered["nonce"]))],
        }
        status, answer = await connection.json(
            "POST", f"/api/v1/machines/{self.machine_id}/tee-activate", body
        )
        assert (status, answer["status"]) == (200, "pending_approval"), (status, answer)

    async def first_challenge(self, connection: Connection) -> None:
        """Fetch the challenge that the first attestation answers."""
        status, answer = await connection.json(
            "GET", f"/api/v1/attest/challenge?machine_id={self.machine_id}"
        )
        assert status == 200, (status, answer)
        self.challenge = (answer["nonce_id"], base64.b64decode(answer["nonce"]))

    async def attest(self, connection: Connection) -> None:
        """Attest, judged Verified."""
        nonce_id, nonce = self.challenge
        fingerprint = hardware_fingerprint("sev-snp", PROCESSOR.chip_id, self.name).hex()
        body = {
            "machine_id": self.machine_id,
            "ek_fingerprint": fingerprint,
            "nonce_id": nonce_id,
            "evidence": [self.item(nonce)],
            "node_nonce": _b64(os.urandom(32)),
        }
        status, answer = await connection.json("POST", "/api/v1/attest", body)
        assert (status, answer["message"]) == (200, "attested"), (status, answer)
        following = answer["next_challenge"]
        self.challenge = (following["nonce_id"], base64.b64decode(following["nonce"]))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def vendors(directory: Path) -> dict[str, str]:
    """Return the environment of a service that believes the test kit, with its list of withdrawn keys in a folder."""
    anchors, crl = directory / "anchors.pem", directory / "collateral" / "crl" / "amd-Genoa.der"
    made = (PROCESSOR.pki.ark, PROCESSOR.pki.ask, PROCESSOR.pki.asvk)
    anchors.write_text("".join(pem("CERTIFICATE", each) for each in made), encoding="ascii")
    crl.parent.mkdir(parents=True)
    crl.write_bytes(PROCESSOR.pki.crl())
    return {
        "ITL_TEE_TEST_ANCHORS": str(anchors),
        "ITL_TPM_ALLOW_SIMULATOR": "true",
        "ITL_COLLATERAL_DIR": str(directory / "collateral"),
    }


def admit(url: str, guests: Sequence[Guest]) -> None:
    """Admit them as they were seen, with nothing owed: what operators and a first attestation bring about."""
    store = open_store(url)

    def work(tx: Tx) -> None:
        for guest in guests:
            machine = tx.machines.require(guest.machine_id)
            tx.machines.update(machine, status=Status.ATTESTED, role=Role.WORKER_APP)
            tx.identities.approve(guest.machine_id, "sev_snp", chip=PROCESSOR.chip_id, csp_id=None)

    store.write_sync(work)
    store.close()


def drive(
    running: server.Server, jobs: Sequence[Callable[[Connection], Awaitable[None]]], rounds: int = 1
) -> float:
    """Run them, and return the server's CPU seconds for each."""
    cpu = running.cpu_seconds()
    asyncio.run(spread(running.port, CONCURRENCY, jobs, rounds=rounds))
    return (running.cpu_seconds() - cpu) / (len(jobs) * rounds)


def measure() -> Iterator[Measurement]:
    """Measure on an almost empty database, a report anew for each challenge."""
    with fleet.directory() as directory:
        fleet.seed(directory, 10, live=1)
        guests = [Guest(number) for number in range(COUNT)]
        with fleet.service(directory, **vendors(directory)) as running:
            drive(running, [each.join for each in guests[: COUNT // 6]])
            joined = drive(running, [each.join for each in guests[COUNT // 6 :]])
            admit(f"sqlite:///{directory}/machines.db", guests)
            drive(running, [each.first_challenge for each in guests])
            drive(running, [each.attest for each in guests])
            attested = drive(running, [each.attest for each in guests], ROUNDS)
    for name, seconds, note in (
        ("tee-join", joined, "introduction and activation: two requests, new machine, audit, events"),
        ("tee-attest", attested, "one attestation, judged Verified"),
    ):
        yield Measurement(
            name=name,
            value=1 / seconds,
            unit="/s/core",
            bar=f">= {BAR_PER_SECOND}/s/core",
            ok=1 / seconds >= BAR_PER_SECOND,
            note=f"{note}; SEV-SNP report and VEK verified; {seconds * 1e3:.2f} ms CPU of all server processes",
        )
