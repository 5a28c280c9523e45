"""What the controller of HSM issuers asks of the attestation service: its durable log, and what it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attestation.api.hsm import (
    HSMIssued,
    HSMIssuedCertificate,
    HSMIssuer,
    HSMIssuerPut,
    HSMList,
    HSMListPut,
    HSMNonce,
    HSMNonceRequest,
    HSMRecorded,
    HSMRecordedCertificate,
    HSMRequest,
    HSMReserve,
    HSMReserved,
    HSMReservedSerial,
    HSMResponder,
    HSMResponderPut,
    QuoteAttestationPut,
    QuoteStep,
    QuoteVerdict,
)
from attestation_operator.service import Service


class HSMService(Protocol):
    """Each may be asked again: the same request gets the same answer. Errors are those of `Service`."""

    async def register(self, uid: str, issuer: HSMIssuerPut) -> HSMIssuer:
        """Make a CA known, or learn what is known of it."""
        ...

    async def reserve(self, issuer_id: str, requests: Sequence[HSMRequest]) -> list[HSMReservedSerial]:
        """Return a serial number for each request, durable before it is returned."""
        ...

    async def record(
        self, issuer_id: str, certificates: Sequence[HSMIssuedCertificate]
    ) -> list[HSMRecordedCertificate]:
        """Write down what was signed; nobody is given a certificate before."""
        ...

    async def begin_list(self, issuer_id: str) -> HSMList:
        """Return the list that is to be signed now."""
        ...

    async def put_list(self, issuer_id: str, signed: HSMListPut) -> None:
        """Give a signed list."""
        ...

    async def responder(self, issuer_id: str) -> HSMResponder:
        """Return the request of the key that answers OCSP, where it is to be certified."""
        ...

    async def put_responder(self, issuer_id: str, certified: HSMResponderPut) -> None:
        """Give its certificate."""
        ...


class QuoteService(Protocol):
    """What the service knows of keys that are handed over; likewise."""

    async def nonce(self, asked: HSMNonceRequest) -> HSMNonce:
        """Return a nonce for evidence of one issuer; what comes with it is judged for what is asked here."""
        ...

    async def judge(self, uid: str, quote: QuoteAttestationPut) -> QuoteVerdict:
        """Have a QuoteAttestation judged; what is decided stays decided."""
        ...

    async def tell(self, uid: str, step: QuoteStep) -> str:
        """Have written down what became of the key that one asks for; return the audit entry."""
        ...


class WholeService(HSMService, QuoteService, Protocol):
    """Both."""


class AskedService:
    """The service, by the operations of `attestation.api`.

    Args:
        service: How it is asked.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def register(self, uid: str, issuer: HSMIssuerPut) -> HSMIssuer:
        """Make a CA known, or learn what is known of it."""
        return await self._service.ask("put_hsm_issuer", lambda each: each.put_hsm_issuer(uid, issuer))

    async def reserve(self, issuer_id: str, requests: Sequence[HSMRequest]) -> list[HSMReservedSerial]:
        """Return a serial number for each request."""
        asked = HSMReserve(requests=tuple(requests))
        answer: HSMReserved = await self._service.ask(
            "reserve_hsm_certificates", lambda each: each.reserve_hsm_certificates(issuer_id, asked)
        )
        return answer.reserved

    async def record(
        self, issuer_id: str, certificates: Sequence[HSMIssuedCertificate]
    ) -> list[HSMRecordedCertificate]:
        """Write down what was signed."""
        asked = HSMIssued(certificates=tuple(certificates))
        answer: HSMRecorded = await self._service.ask(
            "record_hsm_certificates", lambda each: each.record_hsm_certificates(issuer_id, asked)
        )
        return answer.recorded

    async def begin_list(self, issuer_id: str) -> HSMList:
        """Return the list that is to be signed now."""
        return await self._service.ask("begin_hsm_crl", lambda each: each.begin_hsm_crl(issuer_id))

    async def put_list(self, issuer_id: str, signed: HSMListPut) -> None:
        """Give a signed list."""
        await self._service.ask("put_hsm_crl", lambda each: each.put_hsm_crl(issuer_id, signed))

    async def responder(self, issuer_id: str) -> HSMResponder:
        """Return the request of the key that answers OCSP, where it is to be certified."""
        return await self._service.ask("get_hsm_responder", lambda each: each.hsm_responder(issuer_id))

    async def put_responder(self, issuer_id: str, certified: HSMResponderPut) -> None:
        """Give its certificate."""
        await self._service.ask(
            "put_hsm_responder", lambda each: each.put_hsm_responder(issuer_id, certified)
        )

    async def nonce(self, asked: HSMNonceRequest) -> HSMNonce:
        """Return a nonce for evidence of one issuer."""
        return await self._service.ask("issue_hsm_nonce", lambda each: each.hsm_nonce(asked))

    async def judge(self, uid: str, quote: QuoteAttestationPut) -> QuoteVerdict:
        """Have a QuoteAttestation judged; what is decided stays decided."""
        return await self._service.ask(
            "put_quote_attestation", lambda each: each.put_quote_attestation(uid, quote)
        )

    async def tell(self, uid: str, step: QuoteStep) -> str:
        """Have written down what became of the key that one asks for; return the audit entry."""
        told = await self._service.ask("add_quote_step", lambda each: each.add_quote_step(uid, step))
        return told.audit_entry_hash
