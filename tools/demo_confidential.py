"""`./dev run --confidential`: guests of confidential hardware join beside the machines with TPMs, and three do not.

No hardware is here: software makes reports and quotes (`attestation_testing.tee`), under anchors named TEST ONLY that
only a service for development believes. The agent and the service are those that are shipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attestation.api import ApproveRequest, AttestRequest, EvidenceItem, MachineDetail
from attestation.client import NodeClient, OperatorClient
from attestation.clock import SystemClock
from attestation.device import TEE
from attestation.device.tsm import TsmReport
from attestation.endorsements.amd import Product
from attestation.errors import AlreadyExists, EvidenceRejected
from attestation.machines import Role
from attestation.wire import b64encode
from attestation_agent.commands import Outcome
from attestation_agent.edge import Edge
from attestation_agent.exits import Exit
from attestation_agent.guest import GuestAgent
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import load
from attestation_agent.state import State
from attestation_testing.tee.amd import MEASUREMENT, Pki, Processor
from attestation_testing.tee.collateral import of_amd, of_intel, write_anchors, write_export
from attestation_testing.tee.intel import (
    MRTD,
    Platform,
    level,
    module,
    platform_level,
    shared_pki,
    tcb_info,
    td_report,
)
from attestation_testing.tee.tsm import FakeTsm
from tools.stage import Failed, Service

if TYPE_CHECKING:
    from tools.demo_words import Narrator

TSM_ROOT: Final = Path("/sys/kernel/config/tsm/report")
DEBUG: Final = 1 << 19
ADVISORY: Final = "INTEL-SA-00982"
Says = Callable[[bytes], tuple[bytes, bytes]]


def prepare(data: Path) -> dict[str, str]:
    """Write anchors and collateral of the software vendors; return the settings with which a service believes them."""
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    levels = [
        platform_level(),
        platform_level((1, 1), (4, 0, 6), 10, "OutOfDate", "2025-02-12T00:00:00Z", (ADVISORY,)),
    ]
    modules = [module(levels=(level(5), level(4, "OutOfDate", "2025-02-12T00:00:00Z", (ADVISORY,))))]
    info = tcb_info("TDX", issued=at, tcbLevels=levels, tdxModuleIdentities=modules)
    pki = Pki(Product.GENOA)
    write_export(data / "collateral", of_amd(pki) | of_intel(shared_pki(), at, tdx=info))
    anchors = write_anchors(data / "test-anchors.pem", shared_pki(), [pki])
    return {"ITL_TEE_TEST_ANCHORS": str(anchors), "ITL_COLLATERAL_DIR": str(data / "collateral")}


class _Log:
    """Where the agent's events go: a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def info(self, event: str, **fields: object) -> None:
        """Write one line."""
        with self._path.open("a", encoding="utf-8") as log:
            log.write(f"{event} {fields}\n")

    warning = error = info


def _waited(seconds: float) -> bool:
    """Wait, not for long: a demo is watched. Nobody tells the agent to stop."""
    time.sleep(min(seconds, 2))
    return False


class Guest:
    """A guest of confidential hardware in software, and its agent."""

    def __init__(self, name: str, tee: str, directory: Path, service: Service) -> None:
        self.name, self.tee = name, tee
        self._service = service
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.config_path = directory / "machine-config.yaml"
        self.state = State(directory / "state")
        self._log = _Log(directory / "agent.log")
        self.log = directory / "agent.log"
        self.says: Says = self.snp() if tee == "sev-snp" else self.tdx()
        self._flags = {
            "server_url": service.url,
            "state_dir": str(directory / "state"),
            "config_path": str(self.config_path),
            "sysfs": str(directory / "sys"),
            "splay_seconds": "0",
            "tee": tee,
        }

    def snp(self, **report: Any) -> Says:
        """Return a processor of AMD whose launcher named this guest; fields of its reports may be others."""
        processor = Processor(pki=Pki(Product.GENOA), seed=f"demo {self.name}")
        named = hashlib.sha256(self.name.encode()).digest()
        return lambda data: (
            processor.report(data, **({"host_data": named} | report)),
            processor.cert_table(),
        )

    def tdx(self, platform: Mapping[str, Any] | None = None, **td: bytes) -> Says:
        """Return a platform of Intel likewise."""
        made = replace(Platform(seed=f"demo {self.name}"), **(platform or {}))
        named = hashlib.sha384(self.name.encode()).digest()
        fields = {"mrconfigid": named} | td
        return lambda data: (made.quote(td_report(data, size=584, **fields)), b"")

    @property
    def machine_id(self) -> str:
        """Who this guest is to the service."""
        known = self.state.known_as()
        if known is None:
            raise Failed(f"{self.name} was not introduced; see {self.log}")
        return known.machine_id

    def once(self) -> Exit:
        """Run the agent until its first conclusive answer."""
        provider = "sev_guest" if self.tee == "sev-snp" else "tdx_guest"
        files = FakeTsm(root=TSM_ROOT, provider=provider, says=self.says)

        def no_tpm() -> Any:
            raise Failed("a guest has no TPM")

        edge = Edge(
            clock=SystemClock(),
            wait=_waited,
            open_tpm=no_tpm,
            run=lambda _command: Outcome(ok=True, text="nothing to run"),
            rhythm=Rhythm(),
            log=self._log,
            tee=lambda: TEE(TsmReport(TSM_ROOT, files).quote, ccel=self.config_path.with_name("none")),
        )
        with NodeClient(self._service.url) as client:
            settings = load({**self._flags, "once": True}, environ={})
            return GuestAgent(settings, state=self.state, client=client, edge=edge).run()


class Guests:
    """The walk of two guests through admission, and what becomes of three that are not as they should be."""

    def __init__(
        self,
        out: Narrator,
        service: Service,
        alice: OperatorClient,
        carol: OperatorClient,
        data: Path,
        *,
        tdx: str = "tdx-1",
    ) -> None:
        self._out, self._service, self._alice, self._carol = out, service, alice, carol
        self.snp = Guest("snp-1", "sev-snp", data / "machines" / "snp-1", service)
        self.tdx = Guest(tdx, "tdx", data / "machines" / tdx, service)

    def run(self) -> None:
        """All steps, in order."""
        self.introduce()
        self.approve()
        self.attest()
        self.debug()
        self.old()
        self.relay()

    def introduce(self) -> None:
        """Let both agents show their hardware."""
        self._out.step(
            "Two guests without a TPM: an SNP-like and a TDX-like one, TEST ONLY",
            "Their memory is encrypted by the processor, which also signs what was launched. Here software plays the "
            "processors; its anchors say TEST ONLY, and only a service for development believes them. Each guest keeps "
            "a key; its processor signs the digest of that key together with the service's challenge.",
        )
        for guest in (self.snp, self.tdx):
            code = guest.once()
            if code not in (Exit.PENDING_APPROVAL, Exit.OK):
                raise Failed(f"{guest.name} was not introduced ({code}); see {guest.log}")
            found = self._alice.machine(guest.machine_id)
            seen = found.hardware
            assert seen is not None
            self._out.fact(
                guest.name, f"{guest.tee}, processor {(seen.chip or '')[:32]}…, status {found.status}"
            )

    def approve(self) -> None:
        """Approve the hardware that was seen, and say what may be launched."""
        self._out.step(
            "An operator approves the processor that was seen, and says what may run",
            "Which processor it is comes from evidence, never from what a machine says. A policy names the launch "
            "digests that may run (`attestation policy learn` makes one). Unless it says otherwise, neither a debug "
            "guest nor firmware that its vendor calls out of date passes.",
        )
        for number, guest in enumerate((self.snp, self.tdx), start=1):
            found = self._alice.machine(guest.machine_id)
            if found.hostname is None:
                self._alice.approve(
                    guest.machine_id,
                    ApproveRequest(
                        role=Role.WORKER_APP,
                        hostname=guest.name,
                        assigned_ip=f"10.0.1.{10 + number}/24",
                        expected_version=found.version,
                    ),
                )
            block = (
                {"sev_snp": {"measurement": [MEASUREMENT.hex()]}}
                if guest is self.snp
                else {"tdx": {"mrtd": [MRTD.hex()]}}
            )
            policy = {"format": "itl-policy/2", "name": guest.name, "version": 1, **block}
            with contextlib.suppress(AlreadyExists):
                self._alice.create_policy(policy)
            self._alice.assign_policy("machine", guest.machine_id, f"{guest.name}@1")
            self._out.fact(guest.name, f"alice: processor compared; approved, policy {guest.name}@1")

    def attest(self) -> None:
        """Let both attest, and open what was sealed to their keys."""
        self._out.step(
            "They attest, and open what was sealed to their keys",
            "The configuration is encrypted to the key that the report vouches for: who copies it cannot read it.",
        )
        for guest in (self.snp, self.tdx):
            found = self._good(guest)
            if not guest.config_path.exists():
                raise Failed(f"{guest.name} has no configuration; see {guest.log}")
            size = guest.config_path.stat().st_size
            worth = f"{found.status}, trust {found.trust}, assurance {found.assurance}"
            self._out.fact(guest.name, f"{worth}; configuration of {size} bytes opened")

    def _good(self, guest: Guest) -> MachineDetail:
        code = guest.once()
        found = self._alice.machine(guest.machine_id)
        if code is not Exit.OK or found.trust != "verified":
            raise Failed(f"{guest.name} is {found.status}, trust {found.trust} ({code}); see {guest.log}")
        return found

    def debug(self) -> None:
        """Start the same guest so that its memory can be read."""
        self._out.step(
            "The host starts snp-1 again as a debug guest",
            "Same processor, same image, same name; but whoever runs the host could read its memory. "
            "The report says so.",
        )
        self.snp.says = self.snp.snp(policy=0x30000 | DEBUG)
        self._fails(self.snp)
        self.snp.says = self.snp.snp()
        self._good(self.snp)

    def old(self) -> None:
        """Go back to firmware that its vendor calls out of date."""
        self._out.step(
            "The host of tdx-1 goes back to old firmware",
            "It is genuine, and Intel knows what is wrong with it: its TCB level is out of date.",
        )
        old = {"components": (1, 1, *[0] * 14), "pcesvn": 10}
        self.tdx.says = self.tdx.tdx(old, tee_tcb_svn=bytes([4, 3, 6]) + bytes(13))
        self._fails(self.tdx)
        self.tdx.says = self.tdx.tdx()
        self._good(self.tdx)

    def _fails(self, guest: Guest) -> None:
        """Attest, and tell why that failed, as `attestation machine explain` does."""
        guest.once()
        found = self._alice.machine(guest.machine_id)
        if found.trust == "verified":
            raise Failed(f"{guest.name} is trusted although it is not as it should be")
        newest = next(iter(self._alice.results(guest.machine_id)))
        for check in newest.checks:
            if check.outcome == "failed":
                words = f"{check.check}: {check.found}; expected {check.expected}"
                self._out.fact(guest.name, words, good=False)
        self._out.fact(guest.name, f"trust {found.trust}; no token, no configuration", good=False)

    def relay(self) -> None:
        """Answer for snp-1 with a genuine report of another machine."""
        self._out.step(
            "A stranger relays a genuine report of another machine for snp-1",
            "It is signed by a real processor, for a challenge of its own. Challenge, machine and key are in what a "
            "processor signs, so it proves nothing here; snp-1 is untouched.",
        )
        before = self._alice.machine(self.snp.machine_id)
        other = Guest("snp-2", "sev-snp", self.snp.config_path.parent.with_name("snp-2"), self._service)
        with NodeClient(self._service.url) as client:
            challenge = client.challenge(self.snp.machine_id)
            report, table = other.says(hashlib.sha512(b"for another challenge").digest())
            item = EvidenceItem(
                media_type="application/vnd.itl.sev-snp",
                value={"report": b64encode(report), "cert_table": b64encode(table)},
            )
            request = AttestRequest(
                machine_id=self.snp.machine_id,
                ek_fingerprint=before.ek_fingerprint,
                nonce_id=challenge.nonce_id,
                evidence=[item],
            )
            try:
                client.attest(request)
            except EvidenceRejected as e:
                self._out.fact("stranger", f"refused: {e.code}; the challenge is spent", good=False)
            else:
                raise Failed("a relayed report was believed")
        for entry in self._carol.audit(machine_id=self.snp.machine_id):
            if entry.action == "denied":
                self._out.fact("audit", f"{entry.action}: {entry.detail}")
                break
        if self._alice.machine(self.snp.machine_id).trust != before.trust:
            raise Failed("a relayed report changed the trust of snp-1")
