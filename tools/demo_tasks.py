"""What `./dev run` leaves to a newcomer: two machines that wait for operators, and one that was tampered with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from attestation.api import ApproveRequest, MachineDetail, PendingApproval, PolicyLearnRequest
from attestation.client import OperatorClient
from attestation.machines import Role, Status, Trust
from attestation.tpm import parse_public
from attestation_testing import BootLog, BootOptions, CertificateAuthority, boot, boot_log
from tools.demo_words import Narrator
from tools.stage import Failed, Machine

POLICY: Final = "as-approved"
KNOWN_SECONDS: Final = 60
WHAT_IT_IS: Final = BootOptions(kernel="6.12.0")
TAMPERED: Final = replace(WHAT_IT_IS, kernel="6.12.0, with a back door")


class Tasks:
    """The machines of the tasks, which run by the agent like all others.

    Args:
        out: Tells of it.
        directory: Where their files go.
        service_url: Whom they attest to.
        authority: Makes the certificates of their EKs.
    """

    def __init__(
        self, out: Narrator, directory: Path, service_url: str, authority: CertificateAuthority
    ) -> None:
        self._out, self._authority = out, authority
        self._consoles: dict[str, str] = {}

        def machine(name: str, number: int, role: Role) -> Machine:
            return Machine(
                name=name,
                directory=directory / name,
                server_url=service_url,
                role=role.value,
                number=number,
                wishes=role.value,
            )

        self._worker = machine("new-app", 101, Role.WORKER_APP)
        self._controlplane = machine("new-cp", 102, Role.CONTROLPLANE)
        self._tampered = machine("tampered-1", 103, Role.WORKER_INFRA)

    @property
    def machines(self) -> Sequence[Machine]:
        """All of them; `Machine.stop` ends what `prepare` starts."""
        return (self._worker, self._controlplane, self._tampered)

    def prepare(self, alice: OperatorClient) -> None:
        """Switch them on, and let them come as far as they get without a person.

        Raises:
            Failed: One of them did not come, or tampering was not noticed.
        """
        self._out.step(
            "Three machines are left for you",
            "Two have proven their TPMs and wait for people. The third was approved, and a policy was learned from "
            "what it booted; then somebody put another kernel on its disk.",
        )
        with ThreadPoolExecutor(max_workers=3) as pool:
            list(pool.map(lambda each: each.make(self._authority), self.machines))
            list(pool.map(lambda each: _boots(each, boot_log(WHAT_IT_IS)), self.machines))
        waiting = (self._worker, self._controlplane)
        for machine in waiting:
            machine.start_agent(once=False)
        self._tamper(alice)
        for machine in waiting:
            found = self._wait_for(alice, machine)
            self._consoles[machine.name] = found.ek_fingerprint[:16]
            self._out.fact(
                machine.serial,
                f"asks to be {machine.wishes}; status {found.status}, EK {found.ek_fingerprint[:16]}…",
            )
        self._tampered.start_agent(once=False)

    def _tamper(self, alice: OperatorClient) -> None:
        """Admit a machine as it is, bind it to that, and let it boot something else."""
        machine = self._tampered
        found = self._find(alice, machine)
        if found is None or found.status is Status.PENDING_APPROVAL:
            found = self._admit(alice)
        if found.status is not Status.ATTESTED:
            self._out.fact(machine.name, f"status {found.status}, since an earlier run", good=False)
            return
        if all(each.name != POLICY for each in alice.policies().policies):
            self._learn(alice, found)
        _boots(machine, boot_log(TAMPERED))
        machine.start_agent(once=True)
        machine.wait_for_agent()
        found = alice.machine(found.machine_id)
        newest = next(alice.results(found.machine_id, page_size=1))
        changes = alice.result(found.machine_id, newest.result_id).changes
        if found.trust is not Trust.FAILED or not changes:
            raise Failed(f"{machine.name} booted another kernel, and trust is {found.trust}")
        self._out.fact(machine.name, f"trust {found.trust}: {changes[0].text}", good=False)

    def _admit(self, alice: OperatorClient) -> MachineDetail:
        machine = self._tampered
        machine.start_agent(once=True)
        machine.wait_for_agent()
        found = self._wait_for(alice, machine)
        with machine.node() as node:
            mine = parse_public(node.identify().ek_public).fingerprint()
        if found.ek_fingerprint != mine:
            raise Failed(f"{machine.name} is not the machine it should be")
        alice.approve(
            found.machine_id,
            ApproveRequest(role=Role(machine.role), hostname=machine.name, expected_version=found.version),
        )
        machine.start_agent(once=True)
        machine.wait_for_agent()
        return alice.machine(found.machine_id)

    def _learn(self, alice: OperatorClient, found: MachineDetail) -> None:
        learned = alice.learn_policy(PolicyLearnRequest(machines=[found.machine_id], name=POLICY))
        made = alice.create_policy(learned.document)
        answer = alice.assign_policy("machine", found.machine_id, f"{made.name}@{made.version}")
        if isinstance(answer, PendingApproval):
            raise Failed(f"the policy of {self._tampered.name} waits for a second operator")
        self._out.fact(self._tampered.name, f"attested as {found.role}; bound to {answer.policy}")

    def _wait_for(self, alice: OperatorClient, machine: Machine) -> MachineDetail:
        """Return what the service knows of a machine, once it does."""
        give_up_at = time.monotonic() + KNOWN_SECONDS
        while (found := self._find(alice, machine)) is None:
            if time.monotonic() > give_up_at or not machine.agent_running:
                raise Failed(f"{machine.name} is not known to the service; see {machine.log}")
            time.sleep(0.2)
        return found

    @staticmethod
    def _find(alice: OperatorClient, machine: Machine) -> MachineDetail | None:
        return next((m for m in alice.machines(q=machine.serial) if m.hw_serial == machine.serial), None)

    def tell(self) -> None:
        """Say what to try in the dashboard, in three steps."""
        worker, cp, tampered = self._worker, self._controlplane, self._tampered
        self._out.say("   What to try in the dashboard:")
        self._out.say()
        self._out.item(
            1,
            f"As alice, open Inbox and approve {worker.serial} as {worker.wishes}. It attests by itself within "
            "seconds: watch it under Machines.",
        )
        self._out.item(
            2,
            f"Approve {cp.serial} as {cp.wishes}; tick that its EK is admitted by name, for nobody vouches for a "
            "software TPM. Two must agree: as bob, in another browser, open Approvals and agree. The EK fingerprint on "
            f"the machine's console begins with {self._consoles[cp.name]}.",
        )
        self._out.item(
            3,
            f"Open {tampered.name} under Machines: the page says what was replaced, and so why it is refused.",
        )
        self._out.say()


def _boots(machine: Machine, log: BootLog) -> None:
    """Restart a machine; its TPM measures what *log* tells, and its firmware shows that log."""
    boot(machine.tpm, log)
    (machine.directory / "eventlog").write_bytes(log.serialise())
