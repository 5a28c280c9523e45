"""What a machine asks of the service (PROTOCOL §§1-6, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attestation.api import ConfigEnvelope, IntroduceRequest, IntroduceResponse, RegisterRequest
from attestation.api.operations import NodeAPI, PublicAPI
from attestation.client.asking import Asking, at
from attestation.client.connection import HTTPSender, parse, segment
from attestation.client.retries import ONCE, Retries
from attestation.keys import CONFIG_SIGNATURE_HEADER, NODE_NONCE_HEADER, TRUST_BUNDLE_HEADER
from attestation.wire import b64encode

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier


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


class NodeClient(NodeAPI, Asking):
    """The node protocol over HTTP: each operation of `NodeAPI` is a method.

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
        return self.register(request) if isinstance(request, RegisterRequest) else self.self_register(request)

    def fetch_config(self, config_token: str, node_nonce: bytes) -> SealedConfig | None:
        """Fetch the sealed configuration (§5), or None where the service gives its pending answer."""
        asked = PublicAPI.fetch_config
        answer = self._http.send(
            asked.method,
            at(asked, config_token=config_token),
            accept=asked.accept,
            headers={NODE_NONCE_HEADER: b64encode(node_nonce)},
        )
        if answer.media_type != asked.accept:
            return None
        return SealedConfig(
            envelope=parse(answer, ConfigEnvelope),
            signature=answer.headers.get(CONFIG_SIGNATURE_HEADER.lower()),
        )

    def trust_bundle(self) -> SignedBundle:
        """Fetch the CAs to trust, those of the next and the last key too (`GET /pki/bundle`)."""
        asked = PublicAPI.ca_bundle
        answer = self._http.fetch(asked.path, accept=asked.accept)
        return SignedBundle(pem=answer.body, signature=answer.headers.get(TRUST_BUNDLE_HEADER.lower()))

    def certificate_status(self, request: bytes) -> bytes:
        """Ask what became of a certificate: OCSPRequest to OCSPResponse, both DER (`GET /pki/ocsp`)."""
        asked = PublicAPI.ocsp
        # Escaped as a whole: a slash of base64 begins no other segment.
        path = asked.path.replace("{request:path}", segment(b64encode(request)))
        return self._http.fetch(path, accept=asked.accept).body
