"""What anybody may ask of the service: whether it lives, whether it can decide, with which keys it signs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attestation.api.operation import Operation
from attestation.api.operations import PublicAPI
from attestation.client.asking import at
from attestation.client.connection import API_PREFIX, Client, HTTPSender, segment
from attestation.client.errors import AnswerInvalid
from attestation.client.record import Record, parse_record

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier


class PublicClient(Client):
    """The public routes over HTTP; sends no credential and repeats nothing.

    Args:
        url: Address of the service, without `/api/v1`.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        carrier: What carries the requests instead of the network: for tests.
    """

    def __init__(self, url: str, *, ca_file: Path | None = None, carrier: Carrier | None = None) -> None:
        self._http = HTTPSender(url, ca_file=ca_file, carrier=carrier)

    def is_alive(self) -> bool:
        """True where `/healthz` says so.

        Raises:
            ServiceUnreachable: Nobody answered.
            AnswerInvalid: Somebody else did; the same holds below.
        """
        return self._ask(PublicAPI.healthz.path, (200,)).text("status") == "ok"

    def readiness(self) -> Record:
        """Return what `/readyz` says: `status`, `version` and `checks`, also where it is not ready."""
        return self._ask(PublicAPI.readyz.path, (200, 503))

    def service_keys(self) -> Record:
        """Return the JWK set with which the service signs."""
        return self._ask(f"{API_PREFIX}{PublicAPI.service_keys.path}", (200,))

    def crl(self, issuer_id: str | None = None, *, purpose: str = "machine") -> bytes:
        """Return the revocation list, DER, of a CA key, or of the one that signs now.

        Raises:
            APIError: The service has no CA, or no such key; the same holds below.
        """
        if issuer_id is not None:
            return self._fetch(at(PublicAPI.crl, issuer_id=issuer_id), PublicAPI.crl)
        return self._fetch(f"{PublicAPI.active_crl.path}?purpose={segment(purpose)}", PublicAPI.active_crl)

    def ca_bundle(self, *, purpose: str = "machine") -> bytes:
        """Return every CA certificate to be trusted now, PEM."""
        return self._fetch(f"{PublicAPI.ca_bundle.path}?purpose={segment(purpose)}", PublicAPI.ca_bundle)

    def _fetch(self, path: str, asked: Operation) -> bytes:
        return self._http.fetch(path, accept=asked.accept).body

    def _ask(self, path: str, expected: tuple[int, ...]) -> Record:
        answer = self._http.probe(path)
        if answer.status not in expected:
            raise AnswerInvalid(f"{path} answered {answer.status}, not as the attestation service does")
        return parse_record(answer.body, path)
