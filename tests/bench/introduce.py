"""Introduce and activate a new machine with an RSA-2048 EK over HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator, Sequence

from attestation.evidence import ak_activation
from attestation_testing import SoftwareEK
from tests.bench import fleet, server
from tests.bench.load import Connection, spread
from tests.bench.report import Measurement
from tests.bench.software_machine import SoftwareMachine

COUNT = 120
CONCURRENCY = 16


def new_machines(count: int) -> list[SoftwareMachine]:
    """Make machines with RSA-2048 EKs whose private halves we hold, so that no TPM is timed."""
    return [SoftwareMachine("", SoftwareEK("L-1")) for _ in range(count)]


async def enrol(machine: SoftwareMachine, connection: Connection) -> None:
    """Introduce and activate one machine."""
    status, answer = await connection.json(
        "POST",
        "/api/v1/self-register",
        {
            "ek_public": base64.b64encode(machine.ek.public.tpm2b()).decode(),
            "ek_source": "pub",
            "ek_fingerprint": machine.ek_fingerprint,
            "ak_public": base64.b64encode(machine.ak.tpm2b()).decode(),
        },
    )
    assert status == 200, (status, answer)
    activation, machine.machine_id = answer["activation"], answer["machine_id"]
    secret = machine.ek.activate(
        machine.ak.name,
        base64.b64decode(activation["credential_blob"]),
        base64.b64decode(activation["encrypted_secret"]),
    )
    proof = ak_activation.proof(
        secret,
        machine_id=machine.machine_id,
        challenge_id=activation["challenge_id"],
        ek_public=machine.ek.public.tpm2b(),
        ak_name=machine.ak.name,
    )
    status, answer = await connection.json(
        "POST",
        f"/api/v1/machines/{machine.machine_id}/ak-activate",
        {"challenge_id": activation["challenge_id"], "proof": base64.b64encode(proof).decode()},
    )
    assert (status, answer["status"]) == (200, "pending_approval"), (status, answer)


def drive(running: server.Server, introductions: Sequence[SoftwareMachine]) -> float:
    """Enrol everybody and return the server's CPU seconds per machine."""

    def job(machine: SoftwareMachine) -> Callable[[Connection], Awaitable[None]]:
        return lambda connection: enrol(machine, connection)

    warm_up = len(introductions) // 6
    asyncio.run(spread(running.port, CONCURRENCY, [job(i) for i in introductions[:warm_up]]))
    cpu = running.cpu_seconds()
    asyncio.run(spread(running.port, CONCURRENCY, [job(i) for i in introductions[warm_up:]]))
    return (running.cpu_seconds() - cpu) / (len(introductions) - warm_up)


def measure() -> Iterator[Measurement]:
    """Measure on an almost empty database."""
    with fleet.directory() as directory:
        fleet.seed(directory, 10, live=1)
        introductions = new_machines(COUNT)
        with fleet.service(directory) as running:
            cpu = drive(running, introductions)
    yield Measurement(
        name="introduce-activate-rsa-2048",
        value=cpu * 1e3,
        unit="ms",
        bar="<= 4 ms CPU",
        ok=cpu <= 4e-3,
        note="CPU of all server processes for both requests: new EK, MakeCredential, proof, machine, audit, event",
    )
