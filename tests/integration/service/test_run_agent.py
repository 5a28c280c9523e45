"""The agent of a node and the service, each the real one: what hardware signs for a run is judged as what it is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from attestation.api.runs import RunChallenge, RunEvidence
from attestation.client.errors import api_error
from attestation.device import AKType
from attestation.device.tsm import TsmReport
from attestation.tpm import PCRSelection, parse_public
from attestation.wire import b64decode, b64encode
from attestation_operator.objects import RUN, Key
from attestation_operator.runs.agent import AgentMetrics, RunAgent
from attestation_operator.runs.agent_devices import Devices, Places
from attestation_operator.runs.agent_service import NodeClaim
from attestation_testing import SoftwareTPM
from attestation_testing.tee.intel import td_report
from attestation_testing.tee.tsm import FakeTsm
from tests.unit.operator.doubles import Log
from tests.unit.service.conftest import Service, Starter, anyio_backend, migrated, start
from tests.unit.service.node import SoftwareNode
from tests.unit.service.run_requests import (
    NODE_UID,
    UID,
    admitted,
    ask,
    of_agent,
    opened,
    opening,
    pinning,
    result,
    serving,
)
from tests.unit.service.test_protocol_without_a_tpm import PLATFORM, PROCESSOR
from tests.unit.service.test_runs_judged import approved, asking, chip, hardened

__all__ = ["anyio_backend", "migrated", "start"]

pytestmark = [pytest.mark.anyio, pytest.mark.swtpm]

PROBLEM = "urn:itl:problem:"
CLAIM = NodeClaim(name="w-1", uid=NODE_UID)


class TPMNode(SoftwareNode):
    """A machine whose TPM is one: introduced, activated and attested as any other.

    Args:
        tpm: Its TPM.
    """

    def __init__(self, tpm: SoftwareTPM) -> None:
        self._tpm = tpm
        with tpm.node() as node:
            self.ek = parse_public(node.identify().ek_public)
            self.ak = parse_public(node.ak_public())
            read = node.quote(bytes(32), PCRSelection.from_names({"sha256": list(range(16))}))
        self.pcrs = dict(read.pcr_values["sha256"])
        self.ek_fingerprint = self.ek.fingerprint()
        self.machine_id = ""

    def activate(self, credential_blob: str, encrypted_secret: str) -> bytes:
        """Open the credential."""
        with self._tpm.node() as node:
            return node.activate(
                b64decode(credential_blob, "credential_blob"), b64decode(encrypted_secret, "encrypted_secret")
            )

    def quote(self, selection: Mapping[str, list[int]], extra_data: bytes) -> dict[str, str]:
        """Quote."""
        with self._tpm.node() as node:
            made = node.quote(extra_data, PCRSelection.from_names(selection))
        return {"pcr_quote": b64encode(made.attest), "pcr_signature": b64encode(made.signature)}


class Asked:
    """The service as an agent asks it, with the token of a node.

    Args:
        service: Which.
        claim: The node that the token names.
    """

    def __init__(self, service: Service, claim: NodeClaim) -> None:
        self._service = service
        self._who = of_agent(service, claim.name, claim.uid)

    async def _ask(self, method: str, path: str, content: Any = None) -> bytes:
        answer = await ask(self._service, method, path, content, as_=self._who)
        if answer.status_code >= 400:
            said = answer.json()
            code = said["type"].removeprefix(PROBLEM)
            raise api_error(code=code, title=code, detail=said["detail"], status=answer.status_code)
        return answer.content

    async def challenge(self, uid: str) -> RunChallenge:
        """Fetch it."""
        return RunChallenge.model_validate_json(await self._ask("GET", f"{uid}/challenge"))

    async def deliver(self, uid: str, evidence: RunEvidence) -> None:
        """Answer it."""
        await self._ask("POST", f"{uid}/evidence", evidence.model_dump(mode="json", exclude_none=True))


class Agent:
    """An agent that runs.

    Args:
        service: Which it asks.
        places: Where its devices are.
        claim: The node that its token names.
        tsm: configfs-tsm of the node; nothing is there without.
    """

    def __init__(
        self, service: Service, places: Places, claim: NodeClaim = CLAIM, *, tsm: FakeTsm | None = None
    ) -> None:
        self.log, self._registry = Log(), CollectorRegistry()
        made = None if tsm is None else TsmReport(places.tsm, tsm, pause=lambda _: None)
        self.agent = RunAgent(
            service=Asked(service, claim),
            devices=Devices(places, warn=self.log.warning, tsm=made, pause=lambda _: None),
            node=lambda: claim,
            metrics=AgentMetrics(self._registry),
            log=self.log,
        )

    async def answers(self, backend: str = "tpm", *, uid: str = UID, nonce: str | None = None) -> str:
        """Tell it of the run, and return what came of it."""
        raw = {
            "metadata": {"uid": uid, "namespace": "seed", "name": f"check-{uid}"},
            "spec": {"backend": backend, "targetNodeName": "w-1", **({"nonce": nonce} if nonce else {})},
            "status": {"phase": "Running", "attempt": 1},
        }
        self.agent.told(Key.of(RUN, raw), raw)
        while True:
            for _, event, members in self.log.said:
                if event == "run.answered" and members["uid"] == uid:
                    return str(members["outcome"])
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(*args: Any, **how: Any) -> AsyncIterator[Agent]:
    """Run one."""
    agent = Agent(*args, **how)
    task = asyncio.create_task(agent.agent.run())
    try:
        async with asyncio.timeout(60):
            yield agent
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with one cluster."""
    return await serving(start)


@pytest.fixture
def nothing(tmp_path: Path) -> Places:
    """A node without any device."""
    absent = tmp_path / "absent"
    return Places(
        tpms=(str(absent),),
        ak=AKType.ECC_P256,
        event_log=absent,
        sev_guest=absent,
        tdx_guests=(absent,),
        tsm=Path("/sys/kernel/config/tsm/report"),
        ccel=absent,
    )


@pytest.fixture
def places(nothing: Places, software_tpm: SoftwareTPM) -> Places:
    """A node with a TPM and nothing else."""
    software_tpm.measure(0, b"firmware")
    return replace(nothing, tpms=(software_tpm.uri,))


async def attested(service: Service, tpm: SoftwareTPM) -> TPMNode:
    """Return the machine that the node is, attested."""
    node = TPMNode(tpm)
    await service.admitted(node, hostname="w-1")
    return node


def failed(found: dict[str, Any]) -> set[str]:
    """Return the checks of a result that failed."""
    return {each["id"] for each in found["checks"] if each["outcome"] == "fail"}


async def test_c2_a_good_tpm_is_verified_and_a_wrong_one_fails(
    service: Service, software_tpm: SoftwareTPM, places: Places
) -> None:
    """C2: by the key of the node agent; another PCR is another verdict, with the nonce of the caller mixed in."""
    node = await attested(service, software_tpm)
    await opened(service, opening(service, pinning(node, 0), nonce="sixteen-letters-x"))
    async with running(service, places) as agent:
        assert await agent.answers(nonce="sixteen-letters-x") == "delivered"
    found = await result(service)
    assert (found["verdict"], found["machine_id"]) == ("verified", node.machine_id)
    assert found["measurements"][0] == {"slot": "0", "digest": node.pcrs[0].hex()}


async def test_c2_a_pcr_that_is_another(service: Service, software_tpm: SoftwareTPM, places: Places) -> None:
    """C2: what was measured since is not what the policy names."""
    node = await attested(service, software_tpm)
    await opened(service, opening(service, pinning(node, 0)))
    software_tpm.measure(0, b"something else")
    async with running(service, places) as agent:
        assert await agent.answers() == "delivered"
    found = await result(service)
    assert (found["verdict"], failed(found)) == ("failed", {"pcr0"})


async def test_c2_the_key_of_another_kind_is_not_the_machine_s(
    service: Service, software_tpm: SoftwareTPM, places: Places
) -> None:
    """C2: a foreign AK, also of the same TPM: the service knows one (ADR 11)."""
    node = await attested(service, software_tpm)
    await opened(service, opening(service, pinning(node, 0)))
    async with running(service, replace(places, ak=AKType.RSA_2048)) as agent:
        await agent.answers()
    found = await result(service)
    assert found["verdict"] == "failed"


SAYS = {
    "sev-snp": ("sev_guest", lambda data: (PROCESSOR.report(data), PROCESSOR.cert_table())),
    "tdx": ("tdx_guest", lambda data: (PLATFORM.quote(td_report(data)), b"")),
}


@pytest.mark.parametrize("backend", ["sev-snp", "tdx"])
async def test_confidential_hardware_is_verified(
    start: Starter, tmp_path: Path, nothing: Places, backend: str
) -> None:
    """By configfs-tsm: bound to nonce and Node as the service binds it, with the certificates that the host has."""
    service = await hardened(start, tmp_path)
    node = await approved(service, backend, chip(backend))
    await opened(service, asking(service, backend))
    provider, says = SAYS[backend]
    tsm = FakeTsm(root=nothing.tsm, provider=provider, says=says)
    async with running(service, nothing, tsm=tsm) as agent:
        assert await agent.answers(backend) == "delivered"
    found = await result(service)
    assert (found["verdict"], found["machine_id"]) == ("verified", node.machine_id), found["checks"]


C13 = {
    errno.ENOENT: "device-absent",
    errno.EACCES: "device-denied",
    errno.EPERM: "device-denied",
    errno.EBUSY: "device-busy",
    errno.ENXIO: "device-no-provider",
    errno.EFBIG: "device-malformed",
    errno.EIO: "device-failed",
}


@pytest.mark.parametrize("backend", ["tpm", "sev-snp", "tdx"])
async def test_c13_structured_device_errors(
    start: Starter, nothing: Places, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """C13: each errno is kept as its code, with no quote; and it verifies nothing."""
    service = await serving(start, rate_limits=False)
    await admitted(service)
    tsm = FakeTsm(root=nothing.tsm, provider="sev_guest", says=SAYS["sev-snp"][1])

    def refuse(path: Any, *_: Any, **__: Any) -> int:
        number = tsm.errno_of["make", ""]
        raise OSError(number, os.strerror(number))

    here = replace(nothing, tpms=("/dev/tpmrm0",))
    for number, code in C13.items():
        uid = f"0f6b3c1e-0000-4000-8000-{number:012d}"
        await opened(service, opening(service, backend=backend), uid)
        tsm.errno_of["make", ""] = number
        with monkeypatch.context() as patched:
            patched.setattr("attestation.device.transport.os", SimpleNamespace(**vars(os) | {"open": refuse}))
            async with running(service, here, tsm=tsm) as agent:
                assert await agent.answers(backend, uid=uid) == "unavailable"
        found = await result(service, uid)
        assert (found["verdict"], found["unavailable"]["code"], found["quote"]) == (
            "indeterminate",
            code,
            None,
        )
        assert found["evidence"] == []


async def test_c5_another_node_is_told_nothing(
    service: Service, software_tpm: SoftwareTPM, places: Places
) -> None:
    """C5: its agent is refused; the run is as open as before, and its own agent answers it once."""
    node = await attested(service, software_tpm)
    await opened(service, opening(service, pinning(node, 0)))
    other = NodeClaim(name="w-2", uid="5a1d9d7e-0000-4000-8000-00000000000b")
    async with running(service, places, other) as agent:
        assert await agent.answers() == "refused"
    async with running(service, places) as agent:
        assert await agent.answers() == "delivered"
    assert (await result(service))["verdict"] == "verified"
    async with running(service, places) as agent:  # one that was started anew: it had delivered
        assert await agent.answers() == "delivered"
