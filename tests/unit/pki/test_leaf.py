"""What users of a cluster ask its issuers for: honoured as asked, or refused with a word."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from attestation.endorsements import der
from attestation.errors import CertificateNotConformant, RequestRefused, SignatureInvalid
from attestation.pki.content import Algorithm
from attestation.pki.leaf import INVALID, LeafContent, LeafPolicy, Refusal, judge_leaf, make_leaf
from attestation.pki.leaf_names import NameRules
from attestation.pki.profiles import NO_REV_AVAIL, SHORT_LIVED
from attestation.pki.request import read_request
from attestation.pki.usages import NEVER_OF_LEAVES, USAGES, key_purposes
from tests.unit.pki.certificate_kit import (
    ADDRESS,
    ALGORITHMS,
    AT,
    leaf_key,
    pem_of,
    rebuild,
    spki_of,
    with_extension,
)
from tests.unit.pki.leaf_kit import (
    EVERYTHING,
    EXAMPLE,
    POLICY,
    SERIAL,
    SUBJECT,
    asked,
    csr,
    hsm_ca,
    judged,
    named,
)
from tests.unit.pki.revocation_kit import key_of

NAMES: tuple[x509.GeneralName, ...] = (
    x509.DNSName("shop.example.com"),
    x509.DNSName("*.shop.example.com"),
    x509.IPAddress(ip_address("10.0.0.7")),
    x509.UniformResourceIdentifier("spiffe://example.com/shop"),
    x509.RFC822Name("shop@example.com"),
)
NOBODY = x509.Name([])


def signed(content: LeafContent, algorithm: Algorithm = "ecdsa-p384") -> x509.Certificate:
    """Return the certificate that says *content*."""
    ca, key = hsm_ca(algorithm)
    made = make_leaf(
        content, serial=SERIAL, ca=ca, key=key, crl_url=f"{ADDRESS}/a.crl", ca_url=f"{ADDRESS}/a.crt"
    )
    return x509.load_der_x509_certificate(made)


def usage(**bits: bool) -> x509.KeyUsage:
    """Return a KeyUsage with these bits."""
    every = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(**(every | bits))


def refused(
    reason: Refusal, match: str, request: bytes | None = None, policy: LeafPolicy = EVERYTHING, **changes: Any
) -> None:
    """Assert that a request is refused for *reason*."""
    with pytest.raises(RequestRefused, match=match) as caught:
        judged(request, policy, **changes)
    assert caught.value.reason == reason


def test_an_issuer_may_do_without_revocation() -> None:
    """RFC 9608: what is short-lived says that nobody can ask; a week at most, and no CA."""
    policy = replace(POLICY, no_rev_avail=True, max_duration=SHORT_LIVED)
    content = judged(policy=policy, duration=SHORT_LIVED)
    ca, key = hsm_ca()
    urls: dict[str, Any] = {
        "crl_url": f"{ADDRESS}/a.crl",
        "ocsp_url": f"{ADDRESS}/ocsp",
        "ca_url": f"{ADDRESS}/a.crt",
    }
    made = x509.load_der_x509_certificate(make_leaf(content, serial=SERIAL, ca=ca, key=key, **urls))
    said = made.extensions.get_extension_for_oid(x509.ObjectIdentifier(NO_REV_AVAIL))
    assert (said.critical, said.value.public_bytes()) == (False, b"\x05\x00")
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.CRLDistributionPoints)
    access = made.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    assert [each.access_location.value for each in access] == [urls["ca_url"]]
    refused(
        Refusal.CA_FORBIDDEN, "cannot be revoked", policy=replace(EVERYTHING, no_rev_avail=True), is_ca=True
    )
    longer = judged(policy=replace(policy, max_duration=timedelta(days=8)), duration=timedelta(days=8))
    with pytest.raises(CertificateNotConformant, match="short-lived"):
        make_leaf(longer, serial=SERIAL, ca=ca, key=key)


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", *ALGORITHMS])
def test_a_certificate_says_what_was_asked_for(algorithm: Algorithm) -> None:
    """Subject, names, usages and duration; signed by a CA key of each kind, whose own certificate it names."""
    request = csr(
        x509.SubjectAlternativeName(NAMES),
        (usage(digital_signature=True), True),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        (x509.BasicConstraints(ca=False, path_length=None), True),
    )
    content = judged(pem_of(request), duration=timedelta(days=3))
    assert content.alternative_names == (
        "DNS:shop.example.com",
        "DNS:*.shop.example.com",
        "IP:10.0.0.7",
        "URI:spiffe://example.com/shop",
        "email:shop@example.com",
    )
    assert (content.is_ca, content.spki) == (False, spki_of(leaf_key()))
    assert content.spki_sha256 == hashlib.sha256(content.spki).hexdigest()
    made = signed(content, algorithm)
    ca = hsm_ca(algorithm)[0]
    made.verify_directly_issued_by(x509.load_der_x509_certificate(ca.certificate))
    assert (made.subject, made.issuer, made.serial_number) == (SUBJECT, ca.subject, SERIAL)
    assert made.not_valid_before_utc == AT - timedelta(minutes=5)
    assert made.not_valid_after_utc == AT + timedelta(days=3)
    found = made.extensions.get_extension_for_class
    assert set(found(x509.SubjectAlternativeName).value) == set(NAMES)
    assert not found(x509.SubjectAlternativeName).critical
    assert found(x509.KeyUsage).value == usage(digital_signature=True)
    assert list(found(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not found(x509.BasicConstraints).value.ca
    assert found(x509.CRLDistributionPoints).value[0].full_name[0].value == f"{ADDRESS}/a.crl"
    assert [d.access_location.value for d in found(x509.AuthorityInformationAccess).value] == [
        f"{ADDRESS}/a.crt"
    ]


def test_alternative_names_alone_are_critical() -> None:
    """Without a subject they are the only name (RFC 5280, 4.2.1.6)."""
    made = signed(judged(csr(x509.SubjectAlternativeName(NAMES[:1]), subject=NOBODY)))
    assert made.extensions.get_extension_for_class(x509.SubjectAlternativeName).critical
    assert made.subject == NOBODY


def test_purposes_alone_have_no_key_usage() -> None:
    """What no word says stands nowhere."""
    made = signed(judged(usages=("server auth",)))
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.KeyUsage)
    made = signed(judged(usages=()))
    assert made.extensions.get_extension_for_class(x509.KeyUsage).value == usage(
        digital_signature=True, key_encipherment=True
    )
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.ExtendedKeyUsage)


def test_a_ca_below() -> None:
    """It may stand as deep as issuer and rules leave room for, and may always sign certificates."""
    content = judged(is_ca=True, usages=("crl sign",))
    assert content.path_length == 0
    made = signed(content)
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(
        True, 0
    )
    assert made.extensions.get_extension_for_class(x509.KeyUsage).value == usage(
        key_cert_sign=True, crl_sign=True
    )
    deep = replace(hsm_ca()[0], path_length=None)
    assert judge_leaf(asked(is_ca=True), EVERYTHING, ca=deep, at=AT).path_length == 3
    request = csr((x509.BasicConstraints(ca=True, path_length=2), True))
    assert judge_leaf(asked(request, is_ca=True), EVERYTHING, ca=deep, at=AT).path_length == 2
    request = csr((x509.BasicConstraints(ca=True, path_length=None), True))
    assert judge_leaf(asked(request, is_ca=True), EVERYTHING, ca=deep, at=AT).path_length == 3


@pytest.mark.threat("T295")
def test_refusals_of_cas() -> None:
    """Said twice alike, allowed by the rules, and with room below the issuer."""
    request = csr((x509.BasicConstraints(ca=True, path_length=1), True))
    refused(Refusal.CA_MISMATCH, "isCA differ", request)
    refused(Refusal.CA_MISMATCH, "isCA differ", csr((x509.BasicConstraints(False, None), True)), is_ca=True)
    refused(Refusal.CA_MISMATCH, "for what shall be none", usages=("cert sign",))
    refused(Refusal.CA_FORBIDDEN, "no CAs", is_ca=True, policy=replace(EVERYTHING, allow_ca=False))
    refused(Refusal.CA_FORBIDDEN, "no room", request, is_ca=True)
    lowest = replace(hsm_ca()[0], path_length=0)
    with pytest.raises(RequestRefused, match="no room"):
        judge_leaf(asked(is_ca=True), EVERYTHING, ca=lowest, at=AT)
    # With the room of the issuer but not of its rules:
    with pytest.raises(RequestRefused, match="no room"):
        judge_leaf(
            asked(request, is_ca=True),
            replace(EVERYTHING, max_path_length=0),
            ca=replace(lowest, path_length=None),
            at=AT,
        )
    nameless = csr(x509.SubjectAlternativeName(NAMES[:1]), subject=NOBODY)
    refused(Refusal.NAME_INVALID, "without a subject", nameless, is_ca=True)


def test_usages_are_said_twice_alike() -> None:
    """KeyUsage and ExtendedKeyUsage of a request equal its usages (§16)."""
    assert judged(csr((usage(digital_signature=True), True))).purposes.key_usage == ("digital_signature",)
    refused(Refusal.USAGE_MISMATCH, "differ", csr((usage(key_encipherment=True), True)))
    refused(Refusal.USAGE_MISMATCH, "differ", csr((usage(digital_signature=True, crl_sign=True), True)))
    refused(Refusal.USAGE_MISMATCH, "differ", csr(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])))
    nine = usage(key_agreement=True, decipher_only=True)
    content = judged(csr((nine, True)), usages=("key agreement", "decipher only"))
    assert content.purposes.key_usage == ("key_agreement", "decipher_only")
    for oid, value in (
        ("2.5.29.15", b"\x04\x01\x80"),
        ("2.5.29.37", b"\x04\x00"),
        ("2.5.29.37", der.write(der.SEQUENCE, 2 * der.write_oid(USAGES["server auth"]))),
    ):
        strange = csr(x509.UnrecognizedExtension(ObjectIdentifier(oid), value))
        refused(Refusal.USAGE_MISMATCH, "differ", strange)


@pytest.mark.threat("T295")
def test_usages_that_are_refused() -> None:
    """Unknown ones, those that the rules do not name, and those that mean nothing alone or for this key."""
    refused(Refusal.USAGE_UNKNOWN, "'sing'", usages=("sing",))
    refused(Refusal.USAGE_FORBIDDEN, "'ocsp signing'", usages=("ocsp signing",), policy=POLICY)
    refused(Refusal.USAGE_FORBIDDEN, "'content commitment'", usages=("content commitment",), policy=POLICY)
    for word in ("encipher only", "decipher only"):
        refused(Refusal.USAGE_MISMATCH, "need key agreement", usages=(word,))
    lattice = csr(key=leaf_key("ml-dsa-65"))
    for word in ("key encipherment", "data encipherment", "key agreement"):
        refused(Refusal.USAGE_MISMATCH, "ML-DSA", lattice, usages=(word,))
    assert judged(lattice).spki == spki_of(leaf_key("ml-dsa-65"))


def test_nobody_answers_ocsp_for_the_ca_by_asking() -> None:
    """Whatever the rules list: the holder would say of each certificate of the CA that it is good."""
    for word in ("ocsp signing", "any"):
        refused(Refusal.USAGE_FORBIDDEN, repr(word), usages=(word,))
        refused(Refusal.USAGE_FORBIDDEN, repr(word), usages=(word,), is_ca=True)


def test_a_ca_below_is_held_to_the_rules_of_its_issuer() -> None:
    """Names that the issuer may not certify, and purposes, no CA of its certifies in its place: OpenSSL says so."""
    rules = replace(EVERYTHING, names=EXAMPLE)
    ca_request = csr(subject=named((NameOID.ORGANIZATION_NAME, "Team Blue")))
    content = judged(ca_request, rules, is_ca=True, usages=("crl sign",))
    made = signed(content)
    found = made.extensions.get_extension_for_class(x509.NameConstraints)
    assert found.critical
    assert found.value.permitted_subtrees == [
        x509.DNSName("example.com"),
        x509.IPAddress(ip_network("10.0.0.0/8")),
        x509.UniformResourceIdentifier("nobody.invalid"),
        x509.RFC822Name("example.com"),
        x509.RFC822Name(".example.com"),
    ]
    assert found.value.excluded_subtrees is None
    purposes = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {p.dotted_string for p in purposes} == {
        said for word, said in USAGES.items() if said[0].isdigit() and word not in NEVER_OF_LEAVES
    }
    assert ExtendedKeyUsageOID.OCSP_SIGNING not in purposes
    # What a CA asked for itself is less than that, and stands as it was asked for.
    narrow = signed(judged(ca_request, rules, is_ca=True, usages=("cert sign", "server auth")))
    assert list(narrow.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]


def test_a_ca_whose_issuer_certifies_any_name_is_limited_in_none() -> None:
    """Nor is a certificate that certifies nobody."""
    for content in (judged(is_ca=True, usages=()), judged(policy=replace(EVERYTHING, names=EXAMPLE))):
        with pytest.raises(x509.ExtensionNotFound):
            signed(content).extensions.get_extension_for_class(x509.NameConstraints)


def test_no_ca_is_certified_that_no_certificate_can_hold() -> None:
    """Beginnings of URIs and lists of common names are not what a certificate can limit; other requests are signed."""
    nobody = csr(subject=named((NameOID.ORGANIZATION_NAME, "Team Blue")))
    for names, match in (
        (NameRules(uris=("spiffe://example.com/",)), "URIs"),
        (NameRules(common_names=("The Shop",)), "common names"),
    ):
        rules = replace(EVERYTHING, names=names)
        refused(Refusal.CA_FORBIDDEN, match, nobody, policy=rules, is_ca=True)
        assert not judged(nobody, rules).is_ca


def test_words_are_those_of_cert_manager_and_kubernetes() -> None:
    """All 23; two pairs say the same."""
    assert len(USAGES) == 23
    assert key_purposes(("signing",), is_ca=False) == key_purposes(("digital signature",), is_ca=False)
    assert key_purposes(("s/mime", "email protection"), is_ca=False).purposes == ("1.3.6.1.5.5.7.3.4",)


def test_what_cannot_be_read_or_was_not_signed() -> None:
    """One request, in one form, by the key in it; nothing that would silently not be certified."""
    refused(Refusal.MALFORMED, "DER|request", b"\x30\x03\x02\x01\x00")
    good = csr()
    refused(Refusal.NOT_ITS_KEY, "not signed by", good[:-1] + bytes([good[-1] ^ 1]))
    refused(Refusal.NOT_ITS_KEY, "P-256", csr(key=ec.generate_private_key(ec.SECP256K1())))
    refused(Refusal.EXTENSION_UNKNOWN, r"2\.5\.29\.30", csr(x509.NameConstraints([NAMES[0]], None)))
    for value in (
        b"\x04\x00",
        der.write(der.SEQUENCE, b"\x02\x01\x00"),
        der.write(der.SEQUENCE, b"\x01\x01\xff\x02\x01\xff"),
        der.write(der.SEQUENCE, b"\x01\x01\xff\x02\x01\x00\x02\x01\x00"),
    ):
        request = csr(x509.UnrecognizedExtension(ObjectIdentifier("2.5.29.19"), value))
        refused(Refusal.MALFORMED, "Constraints|DER|integer", request, is_ca=True)


def test_a_request_of_go_says_that_it_is_no_ca() -> None:
    """With the default written out, as Go's x509 does, and as an empty sequence."""
    for value in (b"\x30\x00", b"\x30\x03\x01\x01\x00"):
        assert not judged(csr(x509.UnrecognizedExtension(ObjectIdentifier("2.5.29.19"), value))).is_ca


@pytest.mark.threat("T295")
def test_names_are_judged_twice() -> None:
    """Whether a certificate can carry them, and whether the issuer certifies them."""
    refused(Refusal.NAME_INVALID, "neither", csr(subject=NOBODY))
    refused(
        Refusal.NAME_INVALID,
        "lower case",
        csr(x509.SubjectAlternativeName([x509.DNSName("Shop.example.com")])),
    )
    rules = replace(EVERYTHING, names=NameRules(dns_names=("example.org",)))
    refused(Refusal.NAME_FORBIDDEN, "common name", policy=rules)
    system = named((NameOID.ORGANIZATION_NAME, "system:masters"))
    refused(Refusal.NAME_FORBIDDEN, "Kubernetes keeps", csr(subject=system))


def test_a_subject_is_certified_as_it_was_written() -> None:
    """Several values in one relative name, as Go writes them; what the library would write otherwise is refused."""
    pair = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, text) for text in ("a", "b")]
    both = x509.Name([x509.RelativeDistinguishedName(pair)])
    assert signed(judged(csr(subject=both))).subject == both
    first, second = (
        der.write(der.SEQUENCE, der.write_oid("2.5.4.11") + der.write(0x0C, text)) for text in (b"b", b"a")
    )
    refused(
        Refusal.NAME_INVALID,
        "no certificate can carry",
        resigned(csr(subject=both), second + first, first + second),
    )
    printable = resigned(csr(), b"\x0c\x10shop.example.com", b"\x13\x10shop@example.com")
    refused(Refusal.NAME_INVALID, "no certificate can carry", printable)
    email = x509.Name([x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@example.com")])
    assert signed(judged(csr(subject=email))).subject == email


def resigned(request: bytes, old: bytes, new: bytes) -> bytes:
    """Return a request with *old* replaced by *new*, of the same length, signed by its key anew."""
    info = read_request(request).request_info
    assert old in info
    info = info.replace(old, new)
    signature = leaf_key().sign(info, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")
    return der.write(der.SEQUENCE, info + algorithm + der.write(der.BIT_STRING, b"\0" + signature))


@pytest.mark.threat("T295")
def test_durations() -> None:
    """As asked for within the rules; 90 days where nothing is asked for; never behind the end of the CA."""
    assert judged().not_after == AT + timedelta(days=90)
    short = replace(EVERYTHING, max_duration=timedelta(days=2))
    assert judged(policy=short).not_after == AT + timedelta(days=2)
    words = "^48h1s; 10m to 48h is certified$"
    refused(Refusal.DURATION_FORBIDDEN, words, duration=timedelta(days=2, seconds=1), policy=short)
    refused(Refusal.DURATION_FORBIDDEN, "^9m59s; 10m to ", duration=timedelta(seconds=599))
    refused(Refusal.DURATION_FORBIDDEN, "^0s; 10m to ", duration=timedelta(0))
    assert judged(duration=timedelta(minutes=10)).not_after == AT + timedelta(minutes=10)
    ca = hsm_ca()[0]
    late = ca.not_after - timedelta(days=1)
    content = judge_leaf(asked(), EVERYTHING, ca=ca, at=late)
    assert content.not_after == ca.not_after
    assert content.not_before == late - timedelta(minutes=5)
    # Nor does it begin before its CA does.
    assert judge_leaf(asked(), EVERYTHING, ca=replace(ca, not_before=late), at=late).not_before == late
    with pytest.raises(RequestRefused, match="ends before") as caught:
        judge_leaf(asked(), EVERYTHING, ca=ca, at=ca.not_after - timedelta(minutes=9))
    assert caught.value.reason == Refusal.CA_ENDS


def test_which_refusals_are_of_the_request_itself() -> None:
    """The rest are rules of an issuer: another one might sign."""
    assert {*Refusal} - INVALID == {
        Refusal.USAGE_FORBIDDEN,
        Refusal.CA_FORBIDDEN,
        Refusal.NAME_FORBIDDEN,
        Refusal.DURATION_FORBIDDEN,
        Refusal.CA_ENDS,
    }


def test_nothing_is_signed_that_the_linter_refuses() -> None:
    """A serial number that is none of ours: the key of the CA is not asked."""
    ca, _ = hsm_ca()
    with pytest.raises(CertificateNotConformant, match="serial-size"):
        make_leaf(judged(), serial=1, ca=ca, key=None)  # type: ignore[arg-type]


def test_a_signature_of_another_key_is_no_certificate() -> None:
    """A token whose label points to another key: what it signed leaves nobody's hands."""
    ca, _ = hsm_ca()
    with pytest.raises(SignatureInvalid):
        make_leaf(judged(), serial=SERIAL, ca=ca, key=key_of("ecdsa-p384", "stranger"))


def test_each_word_stands_in_a_certificate() -> None:
    """As the library reads it: each bit of KeyUsage, each purpose."""
    for word, said in USAGES.items():
        if word in NEVER_OF_LEAVES:
            continue
        is_ca = word in ("cert sign", "crl sign")
        beside = ("key agreement",) if "only" in word else ()
        made = signed(judged(usages=(word, *beside), is_ca=is_ca))
        if said in key_purposes((word,), is_ca=is_ca).purposes:
            purposes = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            assert [p.dotted_string for p in purposes] == [said]
        else:
            found = made.extensions.get_extension_for_class(x509.KeyUsage).value
            bit = {"signing": "digital_signature", "cert sign": "key_cert_sign"}.get(
                word, word.replace(" ", "_")
            )
            assert getattr(found, bit)


@pytest.mark.parametrize("where", ["own", "above"])
@pytest.mark.parametrize(("domain", "permitted"), [("example.com", True), ("example.org", False)])
def test_no_name_is_signed_that_a_certificate_above_does_not_permit(
    domain: str, permitted: bool, where: str
) -> None:
    """Who relies on it would refuse it; the token signs nothing, and the request is told which name."""
    ca, key = hsm_ca()
    limits = x509.NameConstraints([x509.DNSName(domain)], None).public_bytes()
    limited = rebuild(ca.certificate, extensions=with_extension("2.5.29.30", limits, b"\x01\x01\xff"))
    how: dict[str, Any] = (
        {"ca": replace(ca, certificate=limited)} if where == "own" else {"ca": ca, "above": [limited]}
    )
    content = judged(csr(x509.SubjectAlternativeName([x509.DNSName("shop.example.com")])))
    if permitted:
        make_leaf(content, serial=SERIAL, key=key, **how)
        return
    with pytest.raises(RequestRefused, match=r"shop\.example\.com") as refused:
        make_leaf(content, serial=SERIAL, key=None, **how)  # type: ignore[arg-type]  # it is not asked
    assert refused.value.reason == Refusal.NAME_FORBIDDEN
