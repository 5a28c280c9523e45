"""The agent with the real service at the other end, and a clock that both share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

from attestation.client import NodeClient
from attestation.device.tee import TEE
from attestation.device.tsm import TsmReport
from attestation_agent.acts import Acts
from attestation_agent.commands import Outcome
from attestation_agent.edge import TPM, Edge
from attestation_agent.exits import Exit
from attestation_agent.node import Agent
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import load
from attestation_agent.state import State
from attestation_testing import SoftwareNode
from tests.fixtures.in_process import BASE_URL, InProcess, InProcessService
from tests.fixtures.over_httpx import OverHTTPX
from tests.unit.agent.world import Events


class Simulated(SoftwareNode):
    """A machine in software that takes the announcement of its end."""

    def shutdown(self) -> None:
        """Do nothing."""


class Rig:
    """One node: its agent, its files, its TPM.

    Args:
        service: The other end.
        tmp_path: For files.
        open_tpm: Opens the TPM; `seed` makes one in software instead.
        seed: Which machine.
        options: Settings by their flags.
    """

    agent = Agent

    def __init__(
        self,
        service: InProcessService,
        tmp_path: Path,
        *,
        open_tpm: Callable[[], TPM] | None = None,
        seed: int = 1,
        **options: str,
    ) -> None:
        self.service = service
        self.address = f"192.0.2.{seed}"
        self.tpm = Simulated(seed)
        self.open_tpm = open_tpm or (lambda: self.tpm)
        # No test looks at the processor of the host that it runs on.
        self.tee: Callable[[], TEE] = lambda: TEE(TsmReport(tmp_path / "tsm").quote)
        self.config_path = tmp_path / f"config-{seed}.yaml"
        self.events = Events()
        self.commands: list[tuple[str, ...]] = []
        self.outcome = Outcome(ok=True, text="exit status 0")
        self.on_command: Callable[[], None] = lambda: None
        self.machined: Acts | None = None
        self.after_round: Callable[[int], None] = lambda round_: None
        flags = {
            "server_url": BASE_URL,
            "state_dir": str(tmp_path / f"state-{seed}"),
            "config_path": str(self.config_path),
            "sysfs": str(tmp_path / "sys"),
            "splay_seconds": "0",
            **options,
        }
        self.flags = flags
        self.state = State(Path(flags["state_dir"]))

    @property
    def machine_id(self) -> str:
        """Who this machine is to the service."""
        known = self.state.known_as()
        assert known is not None
        return known.machine_id

    def once(self) -> Exit:
        """Run until the first conclusive answer."""
        return self._run(once=True, rounds=1)

    def rounds(self, count: int) -> Exit:
        """Live for so many rounds; time passes as the agent waits."""
        return self._run(once=False, rounds=count)

    def admitted(self, role: str = "worker-app") -> None:
        """Introduce, have it approved, attest and apply the configuration."""
        assert self.once() is Exit.PENDING_APPROVAL
        self.service.operator().approve(self.machine_id, role)
        assert self.once() is Exit.OK, self.events.entries

    def _run(self, *, once: bool, rounds: int) -> Exit:
        passed = 0

        def wait(seconds: float) -> bool:
            nonlocal passed
            if seconds:
                passed += 1
                self.service.clock.pass_(seconds=seconds)
                self.after_round(passed)
            return passed >= rounds

        def run(command: tuple[str, ...]) -> Outcome:
            self.on_command()
            self.commands.append(command)
            return self.outcome

        edge = Edge(
            clock=self.service.clock,
            wait=wait,
            open_tpm=self.open_tpm,
            run=run,
            rhythm=Rhythm(),
            log=self.events,
            tee=self.tee,
            machined=self.machined,
        )
        with NodeClient(BASE_URL, carrier=OverHTTPX(self.transport())) as client:
            return self.agent(
                load({**self.flags, "once": once}, environ={}), state=self.state, client=client, edge=edge
            ).run()

    def transport(self) -> httpx.BaseTransport:
        """Return what carries the agent's requests."""
        return InProcess(self.service.app, self.service.run, self.address)
