"""One fleet with all that pages show, its service, provider, dashboard and people. Tests and pictures share it.

cp-1            waits for approval as a control plane: two people must agree
w-1 … w-4       verified under `workers@1`, which was learned from them; w-1 has a certificate
w-5             measured another kernel: it fails, and does not get what it waits for
infra-1, -2     attested, no policy yet
w-10            expected: a receipt alone tells of it
w-6             locked       w-7  revoked       w-8, w-9  wait for approval

Webhooks go to a receiver of this process, which takes what comes at `/told` and refuses for good what comes at
`/gone`; w-1 has a secret, shares another, and its disk key is held.
Workers are given version 2 of their configuration, w-1 a patch of its own; others get files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from attestation.device import KeyType
from attestation.tpm import parse_public
from attestation_testing import SoftwareNode, boot
from attestation_testing.software_tpm import SoftwareTPM, fleet
from tests.e2e.web import outside
from tests.fixtures import configurations
from tests.fixtures.machine import Device, Machine, b64
from tests.fixtures.openid.provider import AUDITOR, OPERATOR, VIEWER, Provider
from tests.fixtures.service import Operator, ServiceProcess
from tests.fixtures.vendor import vouched, write_bundle
from tests.fixtures.web_process import WebProcess
from tests.vectors.eventlog.ovmf import RealBoot, by_name

PEOPLE: Final = {"alice": OPERATOR, "bob": OPERATOR, "vera": VIEWER, "carol": AUDITOR}
TPMS: Final = ("cp-1", "w-1", "w-5")
"""These have a swtpm each; the others' keys are in this process."""
WORKERS: Final = ("w-1", "w-2", "w-3", "w-4", "w-5", "w-6", "w-7")
INFRA: Final = ("infra-1", "infra-2")
WAITING: Final = ("w-8", "w-9")


@dataclass(kw_only=True)
class World:
    """Who and what there is."""

    service: ServiceProcess
    provider: Provider
    web: WebProcess
    operator: Operator
    machines: dict[str, Machine] = field(default_factory=dict)
    tpms: dict[str, SoftwareTPM] = field(default_factory=dict)
    proposal: str = ""
    webhooks: Sequence[str] = ()
    shared: str = ""
    _opened: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    def boots(self, name: str, number: int, booted: RealBoot) -> Device:
        """Let a machine measure what a real one did; whoever holds its TPM lets go of it before."""
        if name not in self.tpms:
            node = SoftwareNode(100 + number)
            boot(node, booted.boot_log)
            return node
        opened = self._opened.setdefault(name, contextlib.ExitStack())
        opened.close()
        boot(self.tpms[name], booted.boot_log)
        return opened.enter_context(self.tpms[name].node())

    def beyond(self) -> Sequence[str]:
        """Return addresses that no navigation leads to: one of each kind of page."""
        failing, good, locked, waiting = (self.machines[n].machine_id for n in ("w-5", "w-1", "w-6", "w-9"))
        return [
            "/account",
            f"/machines/{failing}",
            *(
                f"/machines/{good}?tab={tab}"
                for tab in ("evidence", "identity", "configuration", "certificates")
            ),
            f"/machines/{locked}/revoke",
            f"/inbox/{waiting}/approve",
            f"/approvals/{self.proposal}",
            f"/approvals/{self.proposal}/object",
            "/policies/workers/1",
            "/policies/learn",
            "/policies/edit?from=workers@1",
            "/policies/activate?policy=workers@1&scope=role&subject=worker-app",
        ]

    def close(self) -> None:
        """Let go of what machines hold."""
        for machine in self.machines.values():
            machine.http.close()
        for opened in self._opened.values():
            opened.close()

    def attest(self, name: str, booted: RealBoot) -> None:
        """Let a machine attest with the event log of *booted*."""
        machine = self.machines[name]
        # The challenge that came with the last answer is of the policy that applied then.
        machine.next_challenge = None
        answer = machine.attest(event_log=b64(booted.log))
        if answer["action"] == "apply-config":
            machine.fetch(answer["config_token"])
            machine.acknowledge(machine.acknowledgement(answer["directive"]))

    def enrol(self, name: str, device: Device, number: int, *, sold: bool = True) -> Machine:
        """Let a machine prove its TPM; one that was *sold* has a vendor who vouches for it."""
        machine = Machine(
            device,
            httpx.Client(base_url=self.service.url, timeout=60),
            hw_serial=f"S-{4711 + number}",
            hw_product="PowerEdge R660" if name.startswith(("cp", "infra")) else "ThinkSystem SR630",
            hw_mac=f"52:54:00:12:34:{number:02x}",
            hw_uuid=f"4c4c4544-0044-4a10-8058-b7c04f30{number:04x}",
        )
        machine.enrol(**(vouched(parse_public(machine.ek_public)) if sold else {}))
        self.machines[name] = machine
        return machine


def _power_on(world: World) -> None:
    """Let every machine boot and prove its TPM."""

    def make(place: tuple[int, str]) -> None:
        number, name = place
        world.enrol(name, world.boots(name, number, by_name["sb-on"]), number, sold=name != "w-9")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(make, enumerate(("cp-1", "cp-2", *INFRA, *WORKERS, *WAITING), start=1)))


def _decide(world: World, receiver: str) -> None:
    """Approve, learn, certify, lock, revoke, as alice does on a day."""
    ask, good = world.operator, by_name["sb-on"]
    world.webhooks = outside.listen(ask, receiver)
    for number, name in enumerate((*INFRA, *WORKERS), start=11):
        role = "worker-infra" if name in INFRA else "worker-app"
        machine_id = world.machines[name].machine_id
        ask.approve(
            machine_id, role, hostname=name, assigned_ip=f"10.0.0.{number}/24", reason="ordered in March"
        )
    for name in (*INFRA, *WORKERS):
        world.attest(name, good)
    learned = ask.call("POST", "/policies/learn", json={"role": "worker-app", "name": "workers"})["document"]
    ask.call("POST", "/policies", json=learned)
    ask.call("PUT", "/policies/assignments/role/worker-app", json={"policy": "workers@1"})
    for name in ("w-1", "w-2", "w-3", "w-4"):
        world.attest(name, good)
    fifth, other = world.machines["w-5"], by_name["sb-on-kernel"]
    fifth.device = world.boots("w-5", 0, other)
    world.attest("w-5", other)
    first = world.machines["w-1"]
    world.shared = outside.keep(ask, first.machine_id)
    first.certificate(first.keys.create_signing_key(KeyType.ECC_P256))
    ask.act(world.machines["w-6"].machine_id, "lock", reason="moves to another rack")
    ask.act(world.machines["w-7"].machine_id, "revoke", reason="sold", wipe=False)
    second = {
        "role": "controlplane",
        "hostname": "cp-2",
        "assigned_ip": "10.0.0.2/24",
        "reason": "ordered in March",
    }
    voted = ask.call("POST", f"/machines/{world.machines['cp-2'].machine_id}/approve", json=second)
    world.proposal = voted["proposal_digest"]
    kept: dict[str, dict[str, Any]] = {
        "not-verified": {
            "query": 'Machines\n| where trust != "verified"\n| project hostname, status, trust',
            "description": "What to look at in the morning",
            "shared": True,
        },
    }
    for name, body in kept.items():
        ask.call("PUT", f"/query/saved/{name}", json=body)
    _configure(ask, first.machine_id)


def _configure(ask: Operator, machine_id: str) -> None:
    """Keep configurations of workers, three of them, and a patch; and a receipt of a machine that nobody saw yet."""
    disks = (
        ("/dev/sda", "as ordered"),
        ("/dev/nvme0n1", "disks of the new rack"),
        ("/dev/nvme1n1", "a trial"),
    )
    for disk, note in disks:
        text = configurations.base("hush", disk, "debug: false\n" if disk.endswith("sda") else "")
        configurations.imported(ask, text, note=note)
    patches = f"/machines/{machine_id}/patches"
    for mirror in ("one", "two"):
        text = f"machine: {{sysctls: {{net.ipv4.ip_forward: '1'}}, nodeLabels: {{mirror: {mirror}}}}}\n"
        configurations.imported(ask, text, patches)
    for version in (1, 2):
        configurations.activated(ask, version)
        configurations.activated(ask, version, patches)
    receipt = {
        "ek_fingerprint": "5a" * 48,
        "role": "worker-app",
        "hw_serial": "S-4790",
        "hw_product": "ThinkSystem",
    }
    ask.call("POST", "/machines/import", json=receipt)


@contextlib.contextmanager
def world(directory: Path) -> Iterator[World]:
    """Make it; what was started is ended with it."""
    with contextlib.ExitStack() as stack:
        tpms = stack.enter_context(fleet(len(TPMS), directory / "tpms"))
        provider = stack.enter_context(Provider(access_token_seconds=3600))
        for name, role in PEOPLE.items():
            provider.add_user(name, [role])
        receiver = stack.enter_context(outside.receiver())
        (directory / "passphrase").write_text("a passphrase of the tests only")
        service = ServiceProcess(
            directory=directory / "service",
            environment={
                "ITL_OIDC_ISSUER": provider.issuer,
                "ITL_DUAL_CONTROL_ROLES": "controlplane",
                "ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(directory / "passphrase"),
                "ITL_CONFIG_KEK": configurations.key(directory),
                "ITL_CONFIG_FILE_FALLBACK": "true",
                "ITL_TPM_CA_BUNDLE_DIR": str(write_bundle(directory / "bundle")),
                **outside.enabled(directory),
            },
        )
        service.directory.mkdir()
        web = WebProcess(
            directory=directory,
            service_url=service.url,
            issuer=provider.issuer,
            environment={"ITL_WEB_REFRESH_SECONDS": "2"},
        )
        provider.configure(web_url=web.url)
        stack.callback(service.kill)
        stack.callback(web.stop)
        with ThreadPoolExecutor(2) as pool:
            for started in [pool.submit(service.start), pool.submit(web.start)]:
                started.result()
        operator = Operator(
            stack.enter_context(httpx.Client(base_url=service.url, timeout=60)), provider.token("alice")
        )
        made = World(
            service=service,
            provider=provider,
            web=web,
            operator=operator,
            tpms=dict(zip(TPMS, tpms, strict=True)),
        )
        stack.callback(made.close)
        _power_on(made)
        _decide(made, receiver)
        yield made
