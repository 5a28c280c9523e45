"""A cluster made by hand: a CA of clients, requests that somebody decides, and a service that gives challenges."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.api import CertificateChallenge
from attestation.wire import b64encode
from attestation_agent.kubelet.api import Seen
from attestation_agent.kubelet.flow import Surroundings, Wanted
from attestation_agent.kubelet.kept import Kept
from attestation_agent.kubelet.keys import ExternalSoftwareKey, ResidentKey, spki_of_key_file, subject_of
from attestation_testing import SoftwareNode
from tests.unit.agent.world import MACHINE_ID, Events

START = datetime(2026, 11, 21, 4, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        """Return the instant."""
        return self.at


class CA:
    """Issues certificates to clients."""

    def __init__(self, name: str = "kubernetes") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._signed(
            self.name, self.key.public_key(), START - DAY, START + 3650 * DAY, ca=True, usages=[]
        )
        self.pem = self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        public: Any,
        *,
        begins: datetime = START,
        lifetime: timedelta = DAY,
        subject: x509.Name | None = None,
        ca: bool = False,
        clients: bool = True,
        servers: bool = False,
    ) -> bytes:
        """Return a certificate, PEM."""
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH] * clients + [ExtendedKeyUsageOID.SERVER_AUTH] * servers
        made = self._signed(
            subject or subject_of("w-1"), public, begins, begins + lifetime, ca=ca, usages=usages
        )
        return made.public_bytes(Encoding.PEM)

    def _signed(
        self,
        subject: x509.Name,
        public: Any,
        begins: datetime,
        ends: datetime,
        *,
        ca: bool,
        usages: list[x509.ObjectIdentifier],
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.sign(self.key, hashes.SHA256())


@dataclass(kw_only=True)
class Request:
    """A CertificateSigningRequest."""

    name: str
    spec: dict[str, Any]
    verdict: str | None = None
    reason: str = ""
    message: str = ""
    certificate: bytes | None = None

    @property
    def content(self) -> bytes:
        """`spec.request`."""
        return base64.b64decode(self.spec["request"])

    @property
    def csr(self) -> x509.CertificateSigningRequest:
        """The PKCS#10 at its beginning."""
        return x509.load_pem_x509_csr(self.content)

    def seen(self) -> Seen:
        """As the API server shows it."""
        return Seen(
            request=self.content,
            signer_name=self.spec["signerName"],
            verdict=self.verdict,
            reason=self.reason,
            message=self.message,
            certificate=self.certificate,
        )


@dataclass(kw_only=True)
class Cluster:
    """What the flow meets.

    Args:
        directory: Where the node keeps its files.
        resident: The key is one of the TPM.
    """

    directory: Path
    resident: bool = False
    ca: CA = field(default_factory=CA)
    clock: Clock = field(default_factory=Clock)
    tpm: SoftwareNode = field(default_factory=lambda: SoftwareNode(1))
    events: Events = field(default_factory=Events)
    requests: dict[str, Request] = field(default_factory=dict)
    machine_id: str | None = MACHINE_ID
    selection: dict[str, list[int]] | None = None
    event_log_wanted: Literal["required", "accepted"] = "accepted"
    event_log: bytes | None = None
    lifetime: timedelta = DAY
    challenges: int = 0
    waited: list[float] = field(default_factory=list)
    held: int = 0
    """How often the TPM is held now."""
    decide: Callable[[Request], None] = field(default=lambda request: None)
    """Called for each request that is looked at and not decided yet."""
    fail: Callable[[str], None] = field(default=lambda what: None)
    """Called before each step, with its name."""
    stop: bool = False

    def __post_init__(self) -> None:
        """Approve and sign at the first look."""
        self.kept = Kept(self.directory)
        self.decide = self.approve

    def approve(self, request: Request) -> None:
        """Approve *request* and sign what it asks for."""
        request.verdict, request.reason = "Approved", "TpmAttested"
        request.certificate = self.ca.issue(
            request.csr.public_key(),
            begins=self.clock.at,
            lifetime=self.lifetime,
            subject=request.csr.subject,
        )

    def wanted(self, **other: Any) -> Wanted:
        """What the node wants."""
        return Wanted(
            **{
                "node_name": "w-1",
                "signer_name": "kubernetes.io/kube-apiserver-client-kubelet",
                "lifetime_seconds": 86_400,
                "trusted": [self.ca.certificate],
                **other,
            }
        )

    def surroundings(self) -> Surroundings:
        """The world of the flow."""
        return Surroundings(
            kept=self.kept,
            service=lambda: contextlib.nullcontext(self),
            machine_id=lambda: self.machine_id,
            api=lambda: contextlib.nullcontext(self),
            tpm=self._tpm,
            make_key=lambda tpm: ResidentKey.make(tpm) if self.resident else ExternalSoftwareKey.make(),
            read_key=lambda data, tpm: (
                ResidentKey.read(data, tpm) if self.resident else ExternalSoftwareKey.read(data)
            ),
            spki_of=lambda data: spki_of_key_file(data, resident=self.resident),
            event_log=lambda: self.event_log,
            clock=self.clock,
            wait=self._wait,
            uniform=lambda low, high: (low + high) / 2,
            log=self.events,
        )

    @contextlib.contextmanager
    def _tpm(self) -> Iterator[SoftwareNode]:
        self.fail("tpm")
        self.held += 1
        try:
            yield self.tpm
        finally:
            self.held -= 1

    def _wait(self, seconds: float) -> bool:
        assert self.held == 0, "nobody waits with the TPM in hand"
        self.waited.append(seconds)
        self.clock.at += timedelta(seconds=seconds)
        return self.stop

    # The service

    def certificate_challenge(self, machine_id: str, purpose: str) -> CertificateChallenge:
        """Give a challenge."""
        assert (machine_id, purpose) == (self.machine_id, "node-csr")
        self.fail("challenge")
        self.challenges += 1
        return CertificateChallenge.model_validate(
            {
                "nonce_id": f"{self.challenges:032x}",
                "nonce": b64encode(bytes([self.challenges % 256]) * 32),
                "expires_at": self.clock.at + timedelta(seconds=60),
                "pcr_selection": self.selection,
                "event_log": self.event_log_wanted,
            }
        )

    # The API server

    def create(self, name: str, spec: dict[str, Any]) -> Seen:
        """Make a request."""
        self.fail("create")
        self.requests[name] = Request(name=name, spec=spec)
        self.fail("created")
        return self.requests[name].seen()

    def look(self, name: str) -> Seen | None:
        """Return a request."""
        self.fail("look")
        request = self.requests.get(name)
        if request is None:
            return None
        if request.verdict is None:
            self.decide(request)
        return request.seen()

    @property
    def newest(self) -> Request:
        """The request that was made last."""
        return list(self.requests.values())[-1]
