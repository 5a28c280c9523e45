"""What came back from an issuer, whoever that is, is what was asked for, or it is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.errors import CertificateUntrusted, RequestRefused
from attestation.pki.request import parse_csr
from attestation_operator.crds.leaves import HsmCertificateSpec
from attestation_operator.hsm.leaf_request import (
    asked_spki,
    judged,
    made_request,
    read_chain,
    wanted_of,
)
from tests.unit.operator.hsm.leaf_world import NAMES, SPEC, SUBJECT, certificate, private, spki
from tests.unit.operator.hsm.world import AT


def wanted(**spec: Any) -> Any:
    """Return what is wanted."""
    return wanted_of(HsmCertificateSpec.model_validate(SPEC | spec))


def test_a_request_asks_for_what_is_wanted_and_its_key_signed_it() -> None:
    """Any other asks for something else."""
    made = made_request(wanted(), private())
    assert parse_csr(made).spki == asked_spki(wanted(), made) == spki()
    changes: list[dict[str, Any]] = [
        {"dnsNames": ["a.example.org"]},
        {"ipAddresses": []},
        {"uriSANs": []},
        {"emailAddresses": []},
        {"subject": {"commonName": "Other"}},
    ]
    for change in changes:
        assert asked_spki(wanted(**change), made) is None
    assert asked_spki(wanted(), b"none") is None


def test_names_alone_are_critical() -> None:
    """Without a subject nothing else says who it is (RFC 5280, 4.2.1.6)."""
    for subject, critical in (({}, True), (SPEC["subject"], False)):
        made = x509.load_pem_x509_csr(made_request(wanted(subject=subject), private()))
        extension = made.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        assert extension.critical is critical


@pytest.mark.parametrize(
    "change", [{"dnsNames": ["ü.example"]}, {"subject": {"commonName": "x", "countries": ["D"]}}]
)
def test_what_no_request_can_say_is_refused(change: Any) -> None:
    """And told to whoever wrote it."""
    with pytest.raises((RequestRefused, ValueError)):
        made_request(wanted(**change), private())


def test_a_certificate_as_it_was_asked_for_is_taken() -> None:
    """Serial, times and key are read; what stands around it is not."""
    found = judged(wanted(), "hello\n" + certificate(), spki=spki())
    assert found.chain.startswith("-----BEGIN CERTIFICATE-----")
    assert (found.serial_number, found.lifetime) == ("a", timedelta(hours=24, minutes=5))
    assert found.not_after == AT + timedelta(hours=24)


DNS = x509.DNSName("pay.example.org")


@pytest.mark.parametrize(
    "pem",
    [
        certificate("other"),
        certificate(names=NAMES[1:]),
        certificate(names=(*NAMES, x509.DNSName("evil.example"))),
        certificate(names=()),
        certificate(subject=SUBJECT[:1]),
        certificate(subject=(*SUBJECT, (NameOID.ORGANIZATIONAL_UNIT_NAME, "More"))),
        certificate(subject=((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "Other"))),
        certificate(purposes=()),
        certificate(purposes=(ExtendedKeyUsageOID.CLIENT_AUTH,)),
        certificate(signs=False),
        certificate(ca=True),
        certificate(life=timedelta(hours=27)),
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ],
    ids=[
        "another-key",
        "a-name-less",
        "a-name-more",
        "no-names",
        "subject-less",
        "subject-more",
        "subject-other",
        "no-purpose",
        "other-purpose",
        "other-usage",
        "ca",
        "too-long",
        "empty",
        "no-certificate",
    ],
)
def test_what_is_something_else_is_refused(pem: str) -> None:
    """One thing at a time."""
    with pytest.raises(CertificateUntrusted):
        judged(wanted(), pem, spki=spki())


def test_what_says_nothing_new_is_taken() -> None:
    """A DNS name as the common name, more purposes than were asked for, a shorter life."""
    plain = wanted(subject={}, ipAddresses=[], uriSANs=[], emailAddresses=[])
    both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    pem = certificate(
        names=(DNS,),
        subject=((NameOID.COMMON_NAME, "pay.example.org"),),
        purposes=both,
        life=timedelta(hours=1),
    )
    assert judged(plain, pem, spki=spki()).serial_number == "a"


def test_a_chain_has_an_end() -> None:
    """What a stranger sends is bounded before it is read."""
    assert len(read_chain(certificate() * 8)) == 8
    for pem in (certificate() * 9, "x" * (65 << 10)):
        with pytest.raises(CertificateUntrusted, match="at most"):
            read_chain(pem)
