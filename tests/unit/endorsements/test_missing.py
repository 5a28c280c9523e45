"""What is missing from the trust bundle: where its issuer is said to lie, and what it has to become."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements import der
from attestation.endorsements.bundle import BundleEntry, Role, TrustBundle, entry_of
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.missing import (
    MAX_ADDRESS_BYTES,
    MAX_ADDRESSES,
    issuer_addresses,
    missing_issuer,
    missing_role,
)
from attestation.tpm import parse_public
from attestation_testing.certificates import CertificateAuthority, Defect, EKCertificateOptions, Quirk
from tests.vectors import forge

ISSUERS, OCSP = "1.3.6.1.5.5.7.48.2", "1.3.6.1.5.5.7.48.1"
SPKI = forge.spki(forge.private("ek-p256"))
EK = parse_public(forge.ek_public("L-2"))
AT = datetime(2026, 11, 22, tzinfo=UTC)
ROOT = CertificateAuthority("NTC root", seed=1)
ISSUER = CertificateAuthority("NTC issuer", seed=2, parent=ROOT)
LOWEST = CertificateAuthority("NTC lowest", seed=3, parent=ISSUER)


def certificate(value: bytes | None) -> Certificate:
    """Return a certificate whose AuthorityInfoAccess has this content; None leaves it out."""
    extensions = forge.profile(is_rsa=False)
    if value is not None:
        extensions |= {"aia": forge.extension("1.3.6.1.5.5.7.1.1", value)}
    return parse_certificate(forge.certificate(SPKI, extensions))


def access(place: bytes, method: str = ISSUERS, tag: int = 0x86, more: bytes = b"") -> bytes:
    return der.write(der.SEQUENCE, der.write_oid(method) + der.write(tag, place) + more)


def addresses(*accesses: bytes) -> tuple[str, ...]:
    return issuer_addresses(certificate(der.write(der.SEQUENCE, b"".join(accesses))))


def test_where_the_issuer_is_said_to_lie() -> None:
    """The addresses of issuers in their order; neither OCSP responders nor names of another form."""
    first, second = b"http://a.example/ca.cer", b"ldap://b.example/cn=ca"
    assert addresses(access(b"http://ocsp", OCSP), access(first), access(b"x", tag=0x82), access(second)) == (
        first.decode(),
        second.decode(),
    )
    assert issuer_addresses(certificate(None)) == ()
    assert addresses() == ()


def test_an_address_is_bounded_and_shows_what_it_hides() -> None:
    """At most four of at most 1000 bytes; what a terminal obeys is written out, and so is what writes it out."""
    assert addresses(access(b"http://a/\x1b[2J \xe2\\x1b\n")) == (r"http://a/\x1b[2J\x20\xe2\x5cx1b\x0a",)
    longest = b"h" * MAX_ADDRESS_BYTES
    assert addresses(access(longest + b"h"), access(b""), access(longest)) == (longest.decode(),)
    many = [access(b"http://%d" % n) for n in range(MAX_ADDRESSES + 2)]
    assert addresses(*many) == tuple(f"http://{n}" for n in range(MAX_ADDRESSES))


@pytest.mark.parametrize(
    "value",
    [
        b"junk",
        der.write(der.SET, access(b"http://a")),
        der.write(der.SEQUENCE, access(b"http://a")) + b"\0",
        der.write(der.SEQUENCE, access(b"http://a") + access(b"http://b", more=b"\x05\x00")),
        der.write(der.SEQUENCE, access(b"http://a") + der.write(der.SET, access(b"http://b")[2:])),
        der.write(der.SEQUENCE, access(b"http://a") + der.write(der.SEQUENCE, der.write_oid(ISSUERS))),
        der.write(der.SEQUENCE, access(b"http://a") + der.write(der.SEQUENCE, b"\x02\x01\x00\x86\x01h")),
    ],
    ids=["junk", "a set", "trailing", "three members", "an entry is a set", "no place", "no method"],
)
def test_what_cannot_be_read_names_no_address(value: bytes) -> None:
    """One entry that is no entry, and nothing of the extension is told."""
    assert issuer_addresses(certificate(value)) == ()


@given(st.binary(max_size=200), st.booleans())
def test_whatever_stands_there_an_address_is_printable(content: bytes, as_address: bool) -> None:
    """Any bytes, as the extension or as an address in it, give few, short and printable words."""
    value = der.write(der.SEQUENCE, access(content)) if as_address else content
    found = issuer_addresses(certificate(value))
    assert len(found) <= MAX_ADDRESSES
    assert all(0x21 <= ord(c) <= 0x7E for one in found for c in one)
    if as_address and content:
        assert found[0].encode().decode("unicode_escape").encode("latin-1") == content


@pytest.mark.parametrize(
    ("issuer", "below", "vendor", "role"),
    [
        ("Common Name: Infineon OPTIGA(TM) RSA Manufacturing CA 059", "", "IFX", Role.INTERMEDIATE),
        ("Common Name: Infineon OPTIGA(TM) RSA Root CA 2", "", "IFX", Role.ANCHOR),
        ("Common Name: NuvotonTPMRootCA2211", "", "NTC", Role.ANCHOR),
        ("Common Name: NTC issuer", "", "NTC", Role.INTERMEDIATE),
        ("Common Name: NTC issuer", "Common Name: NTC issuer", "NTC", Role.ANCHOR),
        ("Common Name: NTC issuer", "Common Name: NTC lower", "NTC", Role.INTERMEDIATE),
        ("Common Name: QCOM issuer", "", "QCOM", Role.ANCHOR),
        ("Common Name: somebody", "", None, Role.ANCHOR),
    ],
)
def test_what_is_missing_is_an_intermediate_or_an_anchor(
    issuer: str, below: str, vendor: str | None, role: Role
) -> None:
    """An intermediate where an anchor of the vendor is held and the issuer is no root; else an anchor."""
    assert missing_role(issuer, below=below, vendor=vendor, anchored={"IFX", "NTC"}) is role


def bundle(*cas: CertificateAuthority) -> TrustBundle:
    def entry(ca: CertificateAuthority) -> BundleEntry:
        return entry_of(ca.certificate, role=None, vendor="NTC", retrieved=AT.date(), evidence="test")

    return TrustBundle([(entry(ca), ca.certificate) for ca in cas], "00" * 32)


def missing(
    held: TrustBundle,
    issuer: CertificateAuthority,
    *sent: CertificateAuthority,
    manufacturer: str = "id:4E544300",
    defect: Defect | None = None,
) -> tuple[str, str | None, str, tuple[str, ...]] | None:
    """Return what *held* lacks to vouch for an EK certificate of *issuer*."""
    options = EKCertificateOptions(
        manufacturer=manufacturer, quirks=frozenset({Quirk.POINTERS}), defect=defect
    )
    der_ = issuer.issue_ek_certificate(EK, at=AT, options=options)
    verdict = held.verify(der_, [ca.certificate for ca in sent], at=AT)
    hints = [parse_certificate(ca.certificate) for ca in sent]
    found = missing_issuer(verdict, parse_certificate(der_), hints, held)
    return None if found is None else (found.role, found.vendor, found.issuer, found.addresses)


def test_what_is_missing_is_the_issuer_of_the_last_certificate() -> None:
    """Of the EK certificate, of one that was sent, of one that is held; its address is that of the same one."""
    here = ("http://ca.example/zoo",)
    assert missing(bundle(), ISSUER) == ("anchor", "NTC", "Common Name: NTC issuer", here)
    assert missing(bundle(ROOT), ISSUER) == ("intermediate", "NTC", "Common Name: NTC issuer", here)
    assert missing(bundle(ROOT), LOWEST, LOWEST) == ("intermediate", "NTC", "Common Name: NTC issuer", ())
    assert missing(bundle(ISSUER), ISSUER) == ("anchor", "NTC", "Common Name: NTC root", ())
    assert missing(bundle(), ROOT, ROOT) == ("anchor", "NTC", "Common Name: NTC root", ())


def test_whose_it_is_said_to_be() -> None:
    """The manufacturer that the EK certificate names: a registered one, a software TPM, nobody."""
    for manufacturer, vendor in (("id:49465800", "IFX"), ("id:00001014", "simulator"), ("id:58585858", None)):
        assert missing(bundle(ROOT), ISSUER, manufacturer=manufacturer) == (
            "anchor", vendor, "Common Name: NTC issuer", ("http://ca.example/zoo",),
        )  # fmt: skip
    found = missing(bundle(ROOT), ISSUER, defect=Defect.SAN_MISSING)
    assert found is not None
    assert found[1] is None


def test_nothing_is_missing_where_something_else_is_wrong() -> None:
    """A path that is good, one of another maker, an EK certificate that has expired."""
    held = bundle(ROOT, ISSUER)
    assert missing(held, ISSUER) is None
    assert missing(held, ISSUER, manufacturer="id:49465800") is None
    assert missing(held, LOWEST, defect=Defect.EXPIRED) is None
