"""The certificate generator: good ones are good for others too, and each defect is one defect."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from asn1crypto import x509 as asn1_x509
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from attestation.errors import EKCertificateRejected
from attestation.evidence import ek_certificate
from attestation_testing import (
    CertificateAuthority,
    Defect,
    EKCertificateOptions,
    Quirk,
    SoftwareEK,
    make_ek_certificate,
    pem,
)

AT = datetime(2026, 11, 21, tzinfo=UTC)
CA = CertificateAuthority("Test TPM CA", seed=1)
EKS = {"L-1": SoftwareEK("L-1"), "L-2": SoftwareEK("L-2", seed=7), "H-3": SoftwareEK("H-3")}

CHAIN_LEVEL = {Defect.SHA1, Defect.SIGNATURE_BROKEN, Defect.ISSUER_IS_SUBJECT}
"""Defects that show only against the issuer or its signature: `ek_certificate.verify` does not look at those."""


def judge(certificate: bytes, ek: SoftwareEK) -> ek_certificate.EKCertificateClaims:
    """Hold a certificate against the profile."""
    return ek_certificate.verify(ek_certificate.parse(certificate), ek=ek.public, at=AT, allow_simulator=True)


@pytest.mark.parametrize("template", EKS)
def test_certificate_meets_the_profile_and_verifies(template: str) -> None:
    """Our reader accepts it, and so does cryptography, whose parser is strict; the CA's key signed it."""
    ek = EKS[template]
    certificate = make_ek_certificate(ek.public, CA, at=AT)
    claims = judge(certificate, ek)
    assert (claims.manufacturer, claims.vendor) == ("id:00001014", "simulator")
    strict = x509.load_der_x509_certificate(certificate)
    issuer = x509.load_der_x509_certificate(CA.certificate)
    strict.verify_directly_issued_by(issuer)
    issuer.verify_directly_issued_by(issuer)


def test_chain_of_authorities_verifies() -> None:
    """An intermediate is signed by its parent and signs EK certificates."""
    middle = CertificateAuthority("Intermediate", seed=2, parent=CA, path_length=0)
    leaf = x509.load_der_x509_certificate(make_ek_certificate(EKS["L-2"].public, middle, at=AT))
    parent = x509.load_der_x509_certificate(middle.certificate)
    leaf.verify_directly_issued_by(parent)
    parent.verify_directly_issued_by(x509.load_der_x509_certificate(CA.certificate))
    constraints = parent.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    powerless = CertificateAuthority("No CA", seed=3, parent=CA, ca=False)
    loaded = x509.load_der_x509_certificate(powerless.certificate)
    assert not loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_same_seed_same_bytes() -> None:
    """A CA and what it signs are made again from the seed, to the last byte."""
    again = CertificateAuthority("Test TPM CA", seed=1)
    assert again.certificate == CA.certificate
    assert CertificateAuthority("Test TPM CA", seed=2).certificate != CA.certificate
    ek = EKS["L-2"].public
    options = EKCertificateOptions(seed=5)
    first = make_ek_certificate(ek, CA, at=AT, options=options)
    assert make_ek_certificate(ek, again, at=AT, options=options) == first
    assert make_ek_certificate(ek, CA, at=AT, options=EKCertificateOptions(seed=6)) != first


@pytest.mark.parametrize("defect", sorted(set(Defect) - CHAIN_LEVEL))
@pytest.mark.parametrize("template", ["L-1", "L-2"])
def test_every_defect_is_refused(defect: Defect, template: str) -> None:
    """One rule broken, everything else right: refused."""
    ek = EKS[template]
    options = EKCertificateOptions(defect=defect)
    with pytest.raises(EKCertificateRejected):
        judge(make_ek_certificate(ek.public, CA, at=AT, options=options), ek)


@pytest.mark.parametrize("defect", sorted(Defect))
def test_every_defect_changes_the_certificate(defect: Defect) -> None:
    """No defect is a name only."""
    ek = EKS["L-2"].public
    good = make_ek_certificate(ek, CA, at=AT)
    assert make_ek_certificate(ek, CA, at=AT, options=EKCertificateOptions(defect=defect)) != good


def test_signature_defects_show_against_the_issuer() -> None:
    """A broken signature does not verify; a SHA-1 one says so in its algorithm."""
    ek = EKS["L-2"].public
    issuer = x509.load_der_x509_certificate(CA.certificate)
    broken = make_ek_certificate(ek, CA, at=AT, options=EKCertificateOptions(defect=Defect.SIGNATURE_BROKEN))
    loaded = x509.load_der_x509_certificate(broken)
    with pytest.raises(InvalidSignature):
        loaded.verify_directly_issued_by(issuer)
    sha1 = make_ek_certificate(ek, CA, at=AT, options=EKCertificateOptions(defect=Defect.SHA1))
    assert asn1_x509.Certificate.load(sha1).hash_algo == "sha1"


@pytest.mark.parametrize("quirk", sorted(Quirk))
def test_every_quirk_is_accepted(quirk: Quirk) -> None:
    """Oddities of the field do not keep a good certificate out."""
    ek = EKS["L-1"]
    options = EKCertificateOptions(quirks=frozenset({quirk}))
    certificate = make_ek_certificate(ek.public, CA, at=AT, options=options)
    assert certificate != make_ek_certificate(ek.public, CA, at=AT)
    assert judge(certificate, ek).vendor == "simulator"


def test_all_quirks_at_once_are_accepted() -> None:
    """They do not get in each other's way."""
    ek = EKS["L-1"]
    quirks = frozenset(Quirk) - {Quirk.LONG_NAME}
    certificate = make_ek_certificate(ek.public, CA, at=AT, options=EKCertificateOptions(quirks=quirks))
    assert judge(certificate, ek).not_after.year == 9999


def test_only_an_rsa_key_is_marked_oaep() -> None:
    """The quirk leaves ECC keys alone."""
    ek = EKS["L-2"]
    options = EKCertificateOptions(quirks=frozenset({Quirk.OAEP_SPKI}))
    assert make_ek_certificate(ek.public, CA, at=AT, options=options) == make_ek_certificate(
        ek.public, CA, at=AT
    )


def test_validity_is_around_the_instant() -> None:
    """From a day before, for as long as asked."""
    certificate = make_ek_certificate(
        EKS["L-2"].public, CA, at=AT, options=EKCertificateOptions(valid_days=10)
    )
    loaded = x509.load_der_x509_certificate(certificate)
    assert loaded.not_valid_before_utc == AT - timedelta(days=1)
    assert loaded.not_valid_after_utc == AT + timedelta(days=9)


def test_pem_is_read_back() -> None:
    """PEM and DER are the same certificate."""
    certificate = make_ek_certificate(EKS["L-2"].public, CA, at=AT)
    assert ek_certificate.parse(pem(certificate)).der == certificate
