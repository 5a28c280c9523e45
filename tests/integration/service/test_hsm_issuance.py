"""A CA key on SoftHSM and the service together: what the controller signs, the service keeps, serves and revokes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from attestation.api.hsm import (
    HSMIssued,
    HSMIssuedCertificate,
    HSMIssuer,
    HSMIssuerPut,
    HSMList,
    HSMListPut,
    HSMRecorded,
    HSMRecordedCertificate,
    HSMRequest,
    HSMReserve,
    HSMReserved,
    HSMReservedSerial,
    HSMResponder,
    HSMResponderPut,
)
from attestation.pki.leaf import LeafAsked, judge_leaf
from attestation.wire import b64encode
from attestation_operator.crds.hsm import IssuerSpec
from attestation_operator.hsm.authority import Authority, authority_of, pem_of, proven_ca, self_signed
from attestation_operator.hsm.issuance import Issuance, Order
from attestation_operator.hsm.lists import keep_list, keep_responder
from tests.fixtures.softhsm import SoftHSM, softhsm
from tests.unit.operator.hsm.world import SPEC, csr
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter, anyio_backend, migrated, start

__all__ = ["anyio_backend", "migrated", "softhsm", "start"]

pytestmark = [pytest.mark.anyio, pytest.mark.softhsm]


class Wire:
    """The service, asked over its wire: what `AskedService` asks by the client."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        said = None if body is None else body.model_dump(mode="json", exclude_none=True)
        return await hsm.good(self._service, method, path, said)

    async def register(self, uid: str, issuer: HSMIssuerPut) -> HSMIssuer:
        """Make a CA known."""
        return HSMIssuer.model_validate(await self._ask("PUT", f"/issuers/{uid}", issuer))

    async def reserve(self, issuer_id: str, requests: Sequence[HSMRequest]) -> list[HSMReservedSerial]:
        """Take serial numbers."""
        asked = HSMReserve(requests=tuple(requests))
        answer = await self._ask("POST", f"/issuers/{issuer_id}/certificates", asked)
        return HSMReserved.model_validate(answer).reserved

    async def record(
        self, issuer_id: str, certificates: Sequence[HSMIssuedCertificate]
    ) -> list[HSMRecordedCertificate]:
        """Write down what was signed."""
        told = HSMIssued(certificates=tuple(certificates))
        answer = await self._ask("POST", f"/issuers/{issuer_id}/certificates/issued", told)
        return HSMRecorded.model_validate(answer).recorded

    async def begin_list(self, issuer_id: str) -> HSMList:
        """Ask for the list that is due."""
        return HSMList.model_validate(await self._ask("GET", f"/issuers/{issuer_id}/crl"))

    async def put_list(self, issuer_id: str, signed: HSMListPut) -> None:
        """Give it."""
        await self._ask("PUT", f"/issuers/{issuer_id}/crl", signed)

    async def responder(self, issuer_id: str) -> HSMResponder:
        """Ask for the key that answers OCSP."""
        return HSMResponder.model_validate(await self._ask("GET", f"/issuers/{issuer_id}/responder"))

    async def put_responder(self, issuer_id: str, certified: HSMResponderPut) -> None:
        """Give its certificate."""
        await self._ask("PUT", f"/issuers/{issuer_id}/responder", certified)


async def on_thread(work: Callable[[], Any]) -> Any:
    """Do what blocks."""
    return await asyncio.to_thread(work)


async def a_ca(service: Service, softhsm: SoftHSM, algorithm: str) -> tuple[Wire, Authority, str]:
    """Make a CA on the token, and have the service know it."""
    wire, at = Wire(service), service.clock.at
    spec = IssuerSpec.model_validate(SPEC | {"keyType": algorithm})
    key = await on_thread(lambda: softhsm.create(algorithm=algorithm))
    pem = pem_of(await on_thread(lambda: self_signed(spec, key, at=at)))
    ca = proven_ca(pem, key, at=at, by_itself=True)
    assert ca is not None
    put = HSMIssuerPut(
        kind="HsmIssuer",
        namespace="default",
        name="payments",
        certificate=b64encode(ca.certificate),
        key_origin=key.origin,
        module="softhsm",
        token_label="hsm",
    )
    known = await wire.register(hsm.UID, put)
    return wire, authority_of(spec, key=key, ca=ca, known=known), pem


def order(authority: Authority, service: Service, uid: str) -> Order:
    """Return an order for one certificate."""
    asked = LeafAsked(request=csr("a.example"), usages=("server auth",), is_ca=False, duration=None)
    content = judge_leaf(asked, authority.policy, ca=authority.ca, at=service.clock.at)
    return Order(
        uid=uid, kind="CertificateRequest", namespace="default", name=uid, requester="me", content=content
    )


async def ocsp_status(service: Service, leaf: x509.Certificate, ca: x509.Certificate) -> ocsp.OCSPResponse:
    """Ask the responder of the service."""
    asked = ocsp.OCSPRequestBuilder().add_certificate(leaf, ca, hashes.SHA256()).build()
    answer = await service.http.post(
        "/pki/ocsp",
        content=asked.public_bytes(Encoding.DER),
        headers={"Content-Type": "application/ocsp-request"},
    )
    return ocsp.load_der_ocsp_response(answer.content)


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ecdsa-p384", "rsa-4096"])
async def test_a_ca_on_a_token_issues_and_the_service_revokes(
    start: Starter, softhsm: SoftHSM, algorithm: str
) -> None:
    """Issued in a batch, known to OCSP; revoked by an operator, on the list and in OCSP by what the token signed."""
    service = await hsm.serving(start)
    wire, authority, pem = await a_ca(service, softhsm, algorithm)
    issuance = Issuance(wire, on_thread)
    made = await asyncio.gather(
        *(issuance.issue(authority, order(authority, service, f"request-{i}")) for i in range(5))
    )
    ca = x509.load_pem_x509_certificate(pem.encode())
    leaves = [x509.load_der_x509_certificate(each) for each in made]
    for leaf in leaves:
        leaf.verify_directly_issued_by(ca)
    # Asked again, also later and by a process that knows nothing of before: the same certificate.
    again = await Issuance(wire, on_thread).issue(authority, order(authority, service, "request-0"))
    assert again == made[0]
    assert await keep_list(authority, wire, on_thread, newest=0, at=service.clock.at) == 1
    await keep_responder(authority, wire, on_thread, at=service.clock.at)
    answer = await ocsp_status(service, leaves[0], ca)
    assert answer.certificate_status is ocsp.OCSPCertStatus.GOOD
    issuer = hsm.Issuer(service.clock.at, issuer_id=authority.issuer_id)
    assert (await hsm.revoke(service, issuer, f"{leaves[0].serial_number:040x}")).status_code == 200
    assert await keep_list(authority, wire, on_thread, newest=1, at=service.clock.at) == 2
    served = await service.get(f"/pki/hsm/{authority.issuer_id}.crl")
    crl = x509.load_der_x509_crl(served.content)
    assert crl.is_signature_valid(ca.public_key())  # type: ignore[arg-type]  # P-384 or RSA
    assert [each.serial_number for each in crl] == [leaves[0].serial_number]
    answer = await ocsp_status(service, leaves[0], ca)
    assert answer.certificate_status is ocsp.OCSPCertStatus.REVOKED
