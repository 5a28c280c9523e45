"""An admitted machine that keeps certificates, with the real service at the other end and a clock that both share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from cryptography import x509

from attestation.api import CertificateChallenge, CertRequest, CertResponse
from attestation.client import NodeClient, SignedBundle
from attestation_agent.certificates import CertificateKeeper
from attestation_agent.commands import Outcome
from attestation_agent.offered import Offered
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import load
from attestation_agent.shared_tpm import NodeTPMLike, SharedTPM
from tests.fixtures.in_process import BASE_URL, InProcessService
from tests.fixtures.over_httpx import OverHTTPX
from tests.integration.agent.rig import Rig

GOOD = Outcome(ok=True, text="exit status 0")


class Between:
    """Stands between agent and service, and changes what the test wants changed.

    Args:
        client: The way to the service.
    """

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self.asked: list[str] = []
        self.fail: Callable[[str], None] = lambda what: None
        self.alter: Callable[[CertResponse], CertResponse] = lambda answer: answer
        self.alter_bundle: Callable[[SignedBundle], SignedBundle] = lambda bundle: bundle
        self.alter_challenge: Callable[[CertificateChallenge], CertificateChallenge] = lambda given: given
        self.alter_status: Callable[[bytes], bytes] = lambda answer: answer
        self.requests: list[CertRequest] = []

    def certificate_challenge(
        self, machine_id: str, purpose: Literal["certify", "enroll"]
    ) -> CertificateChallenge:
        """Fetch a challenge."""
        self._note("challenge")
        return self.alter_challenge(self._client.certificate_challenge(machine_id, purpose))

    def request_certificate(self, machine_id: str, request: CertRequest) -> CertResponse:
        """Ask for a certificate."""
        self._note("request")
        self.requests.append(request)
        return self.alter(self._client.request_certificate(machine_id, request))

    def trust_bundle(self) -> SignedBundle:
        """Fetch the bundle."""
        self._note("bundle")
        return self.alter_bundle(self._client.trust_bundle())

    def certificate_status(self, request: bytes) -> bytes:
        """Ask what became of a certificate."""
        self._note("status")
        return self.alter_status(self._client.certificate_status(request))

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.fail(what)


class Keeper:
    """The certificates of one node.

    Args:
        service: The other end.
        tmp_path: For files.
        open_tpm: Opens the TPM; a machine in software otherwise.
        options: Settings by their flags.
    """

    def __init__(
        self,
        service: InProcessService,
        tmp_path: Path,
        *,
        open_tpm: Callable[[], NodeTPMLike] | None = None,
        **options: str,
    ) -> None:
        self.service = service
        self._open = open_tpm
        self.tpm = SharedTPM(lambda: open_tpm() if open_tpm is not None else self.rig.tpm)
        self.rig = Rig(service, tmp_path, open_tpm=None if open_tpm is None else self._alone)
        self.rig.flags |= {"certificates": "client", **options}
        self.offered = Offered(tmp_path / "state-1" / "tls")
        self.commands: list[tuple[str, ...]] = []
        self.outcome = GOOD
        self.uniform: Callable[[float, float], float] = lambda low, high: (low + high) / 2
        self.client = NodeClient(BASE_URL, carrier=OverHTTPX(self.rig.transport()))
        self.between = Between(self.client)
        self.restart()

    def _alone(self) -> NodeTPMLike:
        """Open the TPM for attesting; a software TPM serves one client at a time."""
        assert self._open is not None
        self.tpm.close()
        return self._open()

    def restart(self, **options: str) -> None:
        """Begin anew, with what lies in files."""
        self.settings = load({**self.rig.flags, **options}, environ={})
        self.certificates = CertificateKeeper(
            self.settings,
            state=self.rig.state,
            offered=self.offered,
            service=self.between,
            tpm=self.tpm.keys,
            clock=self.service.clock,
            run=self._run,
            log=self.rig.events,
            rhythm=Rhythm(
                uniform=lambda low, high: self.uniform(low, high), first_seconds=15, most_seconds=600
            ),
        )

    def _run(self, command: tuple[str, ...]) -> Outcome:
        self.commands.append(command)
        return self.outcome

    def visit(self, **later: float) -> None:
        """Look after the certificates, so much later; the machine attests first, as it would all the time."""
        if later:
            self.service.clock.pass_(**later)
            self.rig.once()
        self.certificates.visit()

    @property
    def leaf(self) -> x509.Certificate:
        """The client certificate that is offered."""
        found = self.offered.current("client")
        assert found is not None, self.rig.events.entries[-3:]
        return found.certificate

    @property
    def file(self) -> dict[str, bytes]:
        """The files that are offered, by name."""
        found = self.offered.current("client")
        assert found is not None
        return dict(found.files)

    def error(self) -> str | None:
        """Code of the last failure that people are shown."""
        error = self.offered.notes("client").get("error")
        return error["code"] if error else None

    def issued(self) -> list[dict[str, Any]]:
        """What the service has issued to this machine, newest first."""
        return self.service.operator().pages(f"/machines/{self.rig.machine_id}/certificates")

    def now(self) -> datetime:
        """Return the instant."""
        return self.service.clock.now()
