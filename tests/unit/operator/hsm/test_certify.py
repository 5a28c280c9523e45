"""What the log had for a request is handed out for its key, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509

from attestation.errors import AttestationError, HSMDiffers, RequestRefused
from attestation.pki.leaf import LeafAsked, make_leaf
from attestation_operator.errors import IssuerNotOpen
from attestation_operator.hsm.authority import Authority
from attestation_operator.hsm.certify import certified
from attestation_operator.hsm.issuance import Order
from attestation_operator.hsm.requests import Issued
from attestation_operator.objects import CSR, Target
from tests.unit.operator.hsm.world import AT, authority, csr
from tests.unit.pki.certificate_kit import rebuild, with_extension

TARGET = Target(kind=CSR, name="csr-1", uid="u-csr", resource_version="9")


class Issuing:
    """Issues; with `had`, what the log had for the request."""

    def __init__(self, had: bytes | None = None) -> None:
        self.had = had
        self.orders: list[Order] = []

    async def issue(self, ca: Authority, order: Order) -> bytes:
        """Return a certificate."""
        self.orders.append(order)
        return self.had or make_leaf(order.content, serial=1 << 158, ca=ca.ca, key=ca.key)


def ask(issuing: Issuing, ca: Authority | None, request: bytes | None = None) -> Issued | AttestationError:
    """Ask for a certificate of Kubernetes' own API."""
    asked = LeafAsked(
        request=request or csr("a.example"),
        usages=("digital signature",),
        is_ca=False,
        duration=timedelta(hours=1),
    )
    stands_for: Any = issuing
    return asyncio.run(
        certified(
            ca,
            stands_for,
            target=TARGET,
            kind="CertificateSigningRequest",
            requester="somebody",
            asked=lambda: asked,
            at=AT,
        )
    )


def test_the_order_says_whose_request_it_is() -> None:
    """Kind, UID and requester go into the log; leaf first, and the CA beside it."""
    issuing, ca = Issuing(), authority()
    issued = ask(issuing, ca)
    assert isinstance(issued, Issued)
    assert issued.certificate.count("BEGIN CERTIFICATE") == 1
    [order] = issuing.orders
    assert (order.uid, order.kind, order.namespace, order.requester) == (
        "u-csr",
        "CertificateSigningRequest",
        None,
        "somebody",
    )


def test_what_a_certificate_above_does_not_permit_takes_no_serial_number() -> None:
    """One that is never finished stays on the lists; ten thousand of them, and the CA signs nothing any more."""
    issuing, ca = Issuing(), authority()
    limits = x509.NameConstraints([x509.DNSName("example.com")], None).public_bytes()
    above = rebuild(ca.ca.certificate, extensions=with_extension("2.5.29.30", limits, b"\x01\x01\xff"))
    refused = ask(issuing, replace(ca, chain=(above,)))
    assert isinstance(refused, RequestRefused)
    assert refused.reason == "name-forbidden"
    assert issuing.orders == []


@pytest.mark.parametrize(
    ("ca", "request_", "expected"),
    [(None, None, IssuerNotOpen), (authority(), b"none", RequestRefused)],
    ids=["not-open", "refused"],
)
def test_what_hinders_it_is_returned_and_nothing_is_ordered(ca: Any, request_: Any, expected: Any) -> None:
    """No serial number is taken for it."""
    issuing = Issuing()
    assert isinstance(ask(issuing, ca, request_), expected)
    assert issuing.orders == []


def test_a_certificate_for_another_key_is_not_handed_out() -> None:
    """Whoever holds that key would have the names of this request; a certificate of a CSR cannot be taken back."""
    ca = authority()
    assert isinstance(ask(Issuing(ca.ca.certificate), ca), HSMDiffers)
