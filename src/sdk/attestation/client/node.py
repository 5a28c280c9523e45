"""What a machine asks of the service (PROTOCOL §§1-6, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from attestation.api import (
    AckRequest,
    AckResponse,
    ActivateRequest,
    ActivateResponse,
    AttestRequest,
    AttestResponse,
    CertificateChallenge,
    CertRequest,
    CertResponse,
    ConfigEnvelope,
    EnrollRequest,
    EnrollResponse,
    IntroduceRequest,
    IntroduceResponse,
    QuoteChallenge,
    RegisterRequest,
)
from attestation.client.connection import Client, HTTPSender, parse, segment
from attestation.client.retries import ONCE, Retries
from attestation.keys import CONFIG_SIGNATURE_HEADER, NODE_NONCE_HEADER, TRUST_BUNDLE_HEADER
from attestation.wire import b64encode

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier

ENVELOPE_MEDIA_TYPE: Final = "application/vnd.itl.config.encrypted+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedConfig:
    """A delivery. Nothing says who sealed it but the signature, which the caller verifies.

    Args:
        envelope: The sealed configuration.
        signature: Compact JWS of type `CONFIG_TYP`; None where the service sent none.
    """

    envelope: ConfigEnvelope
    signature: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBundle:
    """The CAs to trust for machines' certificates. They are whatever somebody sent, until the signature is verified.

    Args:
        pem: Certificates, as received.
        signature: Compact JWS of type `TRUST_BUNDLE_TYP`; None where the service sent none.
    """

    pem: bytes
    signature: str | None


class NodeClient(Client):
    """The node protocol over HTTP.

    It repeats nothing by itself unless told so by *retries*: an agent has its own rhythm.

    Args:
        url: Address of the service, without `/api/v1`.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        retries: When to repeat a request.
        carrier: What carries the requests instead of the network: for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        retries: Retries = ONCE,
        carrier: Carrier | None = None,
    ) -> None:
        self._http = HTTPSender(
            url, ca_file=ca_file, retries=retries, max_answer_bytes=4 << 20, carrier=carrier
        )

    def introduce(self, request: IntroduceRequest) -> IntroduceResponse:
        """Introduce the TPM (§1): a `RegisterRequest` to `/register`, anything else to `/self-register`."""
        path = "/register" if isinstance(request, RegisterRequest) else "/self-register"
        return self._http.call("POST", path, IntroduceResponse, body=request)

    def activate(self, machine_id: str, request: ActivateRequest) -> ActivateResponse:
        """Prove that the AK lives in the introduced TPM (§2)."""
        return self._http.call(
            "POST", f"/machines/{segment(machine_id)}/ak-activate", ActivateResponse, body=request
        )

    def challenge(self, machine_id: str) -> QuoteChallenge:
        """Fetch a fresh challenge (§3)."""
        return self._http.call("GET", "/attest/challenge", QuoteChallenge, params={"machine_id": machine_id})

    def attest(self, request: AttestRequest) -> AttestResponse:
        """Send a quote (§4). The answer's `action` may not be obeyed, only its verified `directive`."""
        return self._http.call("POST", "/attest", AttestResponse, body=request)

    def fetch_config(self, config_token: str, node_nonce: bytes) -> SealedConfig | None:
        """Fetch the sealed configuration (§5), or None where the service gives its pending answer."""
        answer = self._http.send(
            "GET",
            f"/config/{segment(config_token)}",
            accept=ENVELOPE_MEDIA_TYPE,
            headers={NODE_NONCE_HEADER: b64encode(node_nonce)},
        )
        if answer.media_type != ENVELOPE_MEDIA_TYPE:
            return None
        return SealedConfig(
            envelope=parse(answer, ConfigEnvelope),
            signature=answer.headers.get(CONFIG_SIGNATURE_HEADER.lower()),
        )

    def ack(self, machine_id: str, request: AckRequest) -> AckResponse:
        """Acknowledge a directive (§6)."""
        return self._http.call("POST", f"/machines/{segment(machine_id)}/ack", AckResponse, body=request)

    def certificate_challenge(
        self, machine_id: str, purpose: Literal["certify", "enroll"]
    ) -> CertificateChallenge:
        """Fetch a fresh challenge for a certificate (§7): to be given one, or to present one."""
        path = f"/machines/{segment(machine_id)}/challenge"
        return self._http.call("GET", path, CertificateChallenge, params={"purpose": purpose})

    def request_certificate(self, machine_id: str, request: CertRequest) -> CertResponse:
        """Ask for a certificate for a key of the TPM (§8); again, to renew it."""
        path = f"/machines/{segment(machine_id)}/request-cert"
        return self._http.call("POST", path, CertResponse, body=request)

    def enroll(self, request: EnrollRequest) -> EnrollResponse:
        """Present a certificate with the challenge signed by its key (§9)."""
        return self._http.call("POST", "/machines/enroll", EnrollResponse, body=request)

    def trust_bundle(self) -> SignedBundle:
        """Fetch the CAs to trust, those of the next and the last key too (`GET /pki/bundle`)."""
        answer = self._http.fetch("/pki/bundle", accept="application/x-pem-file")
        return SignedBundle(pem=answer.body, signature=answer.headers.get(TRUST_BUNDLE_HEADER.lower()))

    def certificate_status(self, request: bytes) -> bytes:
        """Ask what became of a certificate: OCSPRequest to OCSPResponse, both DER (`GET /pki/ocsp`)."""
        path = f"/pki/ocsp/{segment(b64encode(request))}"
        return self._http.fetch(path, accept="application/ocsp-response").body
