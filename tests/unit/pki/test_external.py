"""CAs that are none of ours: their own certificates, those of each other, and those of their responders."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID

from attestation.errors import CAInvalid, CertificateNotConformant, SignatureInvalid
from attestation.pki.content import Algorithm
from attestation.pki.external import (
    MAX_CA_DURATION,
    cross_validity,
    demand_parent,
    make_ca,
    make_cross,
    make_responder,
    read_ca,
)
from tests.unit.pki.certificate_kit import (
    ADDRESS,
    ALGORITHMS,
    AT,
    ca_of,
    leaf_key,
    rebuild,
    spki_of,
    with_extension,
    without_extension,
)
from tests.unit.pki.leaf_kit import CA_NAME, SERIAL, hsm_ca, named
from tests.unit.pki.revocation_kit import key_of

CRITICAL = b"\x01\x01\xff"


def ca(**how: Any) -> bytes:
    """Return the certificate of a CA by itself."""
    key = key_of("ecdsa-p384", "hsm")
    given: dict[str, Any] = {
        "subject": CA_NAME,
        "spki": spki_of(key),
        "key": key,
        "serial": SERIAL,
        "at": AT,
        "duration": timedelta(days=365),
        "path_length": 0,
    }
    return make_ca(**(given | how))


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", *ALGORITHMS])
def test_a_ca_certifies_itself(algorithm: Algorithm) -> None:
    """With a key of each kind; what was made is read back as a CA that may issue."""
    key = key_of(algorithm, "hsm")
    made = ca(spki=spki_of(key), key=key, path_length=2)
    found = read_ca(made, at=AT)
    assert (found.subject, found.spki, found.algorithm) == (CA_NAME, spki_of(key), algorithm)
    assert (found.path_length, found.not_after) == (2, AT + timedelta(days=365))
    certificate = x509.load_der_x509_certificate(made)
    certificate.verify_directly_issued_by(certificate)
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).critical


def test_what_no_ca_certificate_says() -> None:
    """A key of another kind or of somebody else, a life without end, nobody's name."""
    with pytest.raises(CAInvalid, match="ecdsa-p521"):
        ca(spki=spki_of(leaf_key("ecdsa-p521")))
    with pytest.raises(CAInvalid, match="no public key"):
        ca(spki=b"\x30\x00")
    with pytest.raises(CertificateNotConformant, match="without a name"):
        ca(subject=x509.Name([]))
    with pytest.raises(CertificateNotConformant, match="validity-cap"):
        ca(duration=MAX_CA_DURATION + timedelta(seconds=1))
    with pytest.raises(CertificateNotConformant, match="subject-kubernetes"):
        ca(subject=named((NameOID.COMMON_NAME, "system:ca")))
    # Of several groups an API server takes each.
    groups = [(NameOID.ORGANIZATION_NAME, each) for each in ("system:masters", "Team Blue")]
    with pytest.raises(CertificateNotConformant, match="subject-kubernetes"):
        ca(subject=named(*groups))
    # Who finds a CA by its name must not take it for one of ours.
    with pytest.raises(CertificateNotConformant, match="issuer-purpose"):
        ca(subject=named((NameOID.COMMON_NAME, "ITL Operator CA")))
    with pytest.raises(SignatureInvalid):
        ca(key=key_of("ecdsa-p384", "stranger"))


def _usage(bits: bytes) -> Any:
    return with_extension("2.5.29.15", b"\x03\x02" + bits, CRITICAL)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"extensions": without_extension("2.5.29.19")}, "not that of a CA"),
        ({"extensions": without_extension("2.5.29.15")}, "may not sign certificates"),
        ({"extensions": _usage(b"\x01\x02")}, "may not sign certificates"),
        ({"extensions": _usage(b"\x02\x04")}, "may not sign lists"),
        ({"extensions": without_extension("2.5.29.14")}, "no SubjectKeyIdentifier"),
        ({"extensions": with_extension("1.2.3", b"\x05\x00", CRITICAL)}, "nobody here knows"),
        ({"extensions": lambda listed: [*listed, listed[0]]}, "twice"),
        ({"behind": b"\x00"}, "behind it|cannot be read"),
        ({"parts": {5: b"\x30\x00"}}, "no subject"),
    ],
)
def test_certificates_of_no_issuing_ca(change: dict[str, Any], match: str) -> None:
    """Each by what it lacks (K4)."""
    with pytest.raises(CAInvalid, match=match):
        read_ca(rebuild(ca(), **change), at=AT)


def test_a_ca_may_be_for_some_names_alone() -> None:
    """A company's root writes name constraints, critical as RFC 5280 wants them: such a CA issues."""
    limits = x509.NameConstraints([x509.DNSName("example.com")], None).public_bytes()
    read_ca(rebuild(ca(), extensions=with_extension("2.5.29.30", limits, CRITICAL)), at=AT)


def test_a_companys_root_has_another_kind_of_key_and_is_a_ca_all_the_same() -> None:
    """What stands above is verified with, not signed with: P-521 and RSA-2048 may, what is no CA may not."""
    for kind in ("ecdsa-p521", "rsa-2048"):
        root = rebuild(ca(), {6: spki_of(leaf_key(kind))})
        demand_parent(root, at=AT)
        with pytest.raises(CAInvalid, match=kind):
            read_ca(root, at=AT)
    with pytest.raises(CAInvalid, match="not that of a CA"):
        demand_parent(rebuild(ca(), extensions=without_extension("2.5.29.19")), at=AT)
    with pytest.raises(CAInvalid, match="expired"):
        demand_parent(ca(), at=AT + timedelta(days=366))


def test_a_ca_issues_within_its_life() -> None:
    """From its first second to its last; with a key that issues; from bytes that are a certificate."""
    made = ca()
    begin = AT - timedelta(minutes=5)
    assert read_ca(made, at=begin).not_before == begin
    assert read_ca(made, at=AT + timedelta(days=365)).not_after == AT + timedelta(days=365)
    with pytest.raises(CAInvalid, match="not valid yet"):
        read_ca(made, at=begin - timedelta(seconds=1))
    with pytest.raises(CAInvalid, match="expired"):
        read_ca(made, at=AT + timedelta(days=365, seconds=1))
    with pytest.raises(CAInvalid, match="cannot be read"):
        read_ca(b"\x30\x00", at=AT)
    other = rebuild(made, {6: spki_of(leaf_key("ecdsa-p521"))})
    with pytest.raises(CAInvalid, match="ecdsa-p521"):
        read_ca(other, at=AT)


def test_two_cas_certify_each_other() -> None:
    """For as long as both live; below it only end entities, and only where the issuer leaves room."""
    old, key = hsm_ca()
    new = read_ca(
        ca(
            key=key_of("rsa-4096", "hsm"),
            spki=spki_of(key_of("rsa-4096", "hsm")),
            subject=named((NameOID.COMMON_NAME, "Cluster CA 2")),
            duration=timedelta(days=30),
        ),
        at=AT,
    )
    where = {"crl_url": f"{ADDRESS}/o.crl", "ca_url": f"{ADDRESS}/o.crt"}
    validity = cross_validity(of=new, by=old, at=AT)
    made = make_cross(of=new, by=old, key=key, serial=SERIAL, validity=validity, **where)
    cross = x509.load_der_x509_certificate(made)
    cross.verify_directly_issued_by(x509.load_der_x509_certificate(old.certificate))
    assert (cross.subject, cross.not_valid_after_utc) == (new.subject, new.not_after)
    read = read_ca(made, at=AT)
    assert (read.spki, read.path_length) == (new.spki, 0)
    with pytest.raises(CertificateNotConformant, match="issuer-path"):
        make_cross(of=old, by=new, key=key_of("rsa-4096", "hsm"), serial=SERIAL, validity=validity, **where)
    # Where an issuer names no places, nor does what its key certifies.
    placeless = make_cross(
        of=new, by=old, key=key, serial=SERIAL, validity=validity, crl_url=None, ca_url=None
    )
    oids = {each.oid for each in x509.load_der_x509_certificate(placeless).extensions}
    assert not {ExtensionOID.CRL_DISTRIBUTION_POINTS, ExtensionOID.AUTHORITY_INFORMATION_ACCESS} & oids
    # Not before either of them, and as long as was said at most.
    assert cross_validity(of=new, by=old, at=AT - timedelta(days=1))[0] == max(old.not_before, new.not_before)
    assert cross_validity(of=new, by=old, at=AT, duration=timedelta(days=2))[1] == AT + timedelta(days=2)


def test_a_responder() -> None:
    """Seven days, for OCSP alone, and nobody asks whether it is revoked."""
    authority, key = hsm_ca()
    how: dict[str, Any] = {"ca": authority, "key": key, "serial": SERIAL, "spki": spki_of(leaf_key())}
    made = x509.load_der_x509_certificate(make_responder(name="OCSP 1", at=AT, **how))
    made.verify_directly_issued_by(x509.load_der_x509_certificate(authority.certificate))
    found = made.extensions.get_extension_for_class
    assert list(found(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.OCSP_SIGNING]
    assert not found(x509.OCSPNoCheck).critical
    assert made.not_valid_after_utc == AT + timedelta(days=7)
    near = make_responder(name="OCSP 1", at=authority.not_after - timedelta(days=1), **how)
    assert x509.load_der_x509_certificate(near).not_valid_after_utc == authority.not_after
    with pytest.raises(CertificateNotConformant, match="no common name"):
        make_responder(name="", at=AT, **how)


def test_our_own_cas_sign_nothing_of_this() -> None:
    """Nobody who can reach a cluster's issuers gets what a CA of ours vouches for."""
    ours = ca_of("ecdsa-p384")
    trusted = read_ca(ours.certificate, at=AT)
    with pytest.raises(CertificateNotConformant, match="issuer-purpose"):
        make_responder(
            name="OCSP 1", ca=trusted, key=ours.key, serial=SERIAL, spki=spki_of(leaf_key()), at=AT
        )
