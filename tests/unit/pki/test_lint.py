"""The linter: each rule has a certificate that breaks it alone, and no rule speaks against a good one."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from attestation.endorsements import certificate as c
from attestation.endorsements import der
from attestation.errors import CertificateNotConformant
from attestation.pki import lint as linter
from attestation.pki.content import (
    Algorithm,
    CertificateContent,
    key_identifier,
    make_certificate,
)
from attestation.pki.lint import MAX_CERTIFICATE_BYTES, RULES, lint
from attestation.pki.name_limits import EVERYWHERE, NameLimits
from attestation.pki.names import ca_subject, machine_subject, operator_subject, responder_subject
from attestation.pki.profiles import (
    ACCESS_OCSP,
    EK_URI,
    NO_REV_AVAIL,
    OCSP_NO_CHECK,
    PROFILES,
    SHORT_LIVED,
    Pointer,
    ProfileName,
    short_lived,
)
from tests.unit.pki.certificate_kit import (
    ADDRESS,
    ALGORITHMS,
    ARC,
    AT,
    CA,
    EK,
    LEAVES,
    MACHINE,
    ca_for,
    ca_of,
    ca_with,
    leaf_key,
    rebuild,
    spki_of,
    with_extension,
    without_extension,
)

CRITICAL = b"\x01\x01\xff"
Case = tuple[bytes, CertificateContent, bytes | None]
CLIENT, SERVER = ProfileName.NODE_CLIENT, ProfileName.NODE_SERVER


def _ca() -> Any:
    return ca_of("ecdsa-p384")


def _made(profile: ProfileName = CLIENT, **changes: Any) -> Case:
    """Return a certificate that says what its content says, which is good but for *changes*."""
    ca = ca_for(profile)
    rules = changes.pop("profile_of", profile)
    content = replace(ca.content_of(profile, **changes), profile=rules)
    return ca.issue(content), content, ca.certificate


def _short(alter: Callable[[bytes], bytes]) -> Case:
    """Return a certificate that says noRevAvail, altered after it was made."""
    made, content, issuer = _made(profile_of=short_lived(PROFILES[CLIENT]), crl_url=None, ocsp_url=None)
    return alter(made), content, issuer


def _says_no_rev_avail(value: bytes, critical: bytes = b"") -> Any:
    return lambda listed: [
        (oid, critical, value) if oid == NO_REV_AVAIL else (oid, was, said) for oid, was, said in listed
    ]


def _altered(profile: ProfileName = CLIENT, *args: Any, **how: Any) -> Case:
    """Return a certificate altered after it was made of good content."""
    made, content, issuer = _made(profile)
    return rebuild(made, *args, **how), content, issuer


def _asked(profile: ProfileName = CLIENT, **changes: Any) -> Case:
    """Return a good certificate where another was asked for."""
    made, content, issuer = _made(profile)
    return made, replace(content, **changes), issuer


LIMITS = NameLimits(
    dns_names=("example.org",),
    ip_networks=(ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")),
    uris=("nobody.invalid",),
    emails=("example.org", ".example.org"),
)


def _said_otherwise(**changes: Any) -> Case:
    """Return the certificate of a CA of other limits than those that were asked for."""
    made, content, issuer = _made(CROSS, **changes)
    return made, replace(content, limits=LIMITS), issuer


def _under(*args: Any, profile: ProfileName = CLIENT, **how: Any) -> Case:
    """Return a good certificate under an issuer whose own certificate is altered."""
    made, content, issuer = _made(profile)
    assert issuer is not None
    return made, content, rebuild(issuer, *args, **how)


def _extension(oid: str, value: bytes, critical: bytes = b"", profile: ProfileName = CLIENT) -> Case:
    return _altered(profile, extensions=with_extension(oid, value, critical))


def _without(oid: str, profile: ProfileName = CLIENT) -> Case:
    return _altered(profile, extensions=without_extension(oid))


def _subject(*attributes: tuple[x509.ObjectIdentifier, str, _ASN1Type | None]) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengths that no name may have
        names = [x509.NameAttribute(oid, text, _type=kind, _validate=False) for oid, text, kind in attributes]
    return _made(subject=x509.Name(names))


def _validity(first: datetime, last: datetime) -> bytes:
    return der.write(der.SEQUENCE, linter._time(first) + linter._time(last))


def _weak() -> Case:
    """Return a certificate of an RSA key of 1024 bits; nothing of ours would make it."""
    spki = spki_of(rsa.generate_private_key(65537, 1024))
    made, content, issuer = _made()
    ski = der.write(der.OCTET_STRING, key_identifier(spki))
    altered = rebuild(made, {6: spki}, with_extension(c.SUBJECT_KEY_IDENTIFIER, ski))
    return altered, replace(content, spki=spki), issuer


def _other_names(**changes: Any) -> Case:
    return _made(SERVER, **changes)


COUNTRY, ORG, OU, CN = (
    NameOID.COUNTRY_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
    NameOID.COMMON_NAME,
)
GOOD_C, GOOD_O, GOOD_OU = (COUNTRY, "NL", None), (ORG, "ITL Usions", None), (OU, "generic", None)
ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
CROSS, OPERATOR, NODE = ProfileName.CA_CROSS, ProfileName.OPERATOR, ProfileName.KUBERNETES_NODE


def _two_in_one_rdn() -> Case:
    country, organization, unit, name = machine_subject(
        country="NL", organization="ITL Usions", role="generic", machine_id=MACHINE
    ).rdns
    both = x509.RelativeDistinguishedName([*unit, *name])
    return _made(subject=x509.Name([country, organization, both]))


BREAKS: dict[str, dict[str, Callable[[], Case]]] = {
    "readable": {
        "nothing": lambda: (b"", _made()[1], _ca().certificate),
        "cut": lambda: (_made()[0][:-1], _made()[1], _ca().certificate),
        "too long": lambda: _altered(behind=bytes(MAX_CERTIFICATE_BYTES)),
        "version 1": lambda: _altered(CLIENT, {0: b""}),
        "unique identifier": lambda: _altered(CLIENT, {6: _made()[1].spki + b"\x81\x01\x00"}),
        "issuer cut": lambda: (*_made()[:2], _ca().certificate[:-1]),
        "distribution point of another shape": lambda: _extension(
            c.CRL_DISTRIBUTION_POINTS, bytes.fromhex("30043002a200")
        ),
    },
    "encoding": {
        "bytes behind": lambda: _altered(behind=b"\0"),
        "critical said to be false": lambda: _extension(
            c.SUBJECT_KEY_IDENTIFIER,
            der.write(der.OCTET_STRING, key_identifier(_made()[1].spki)),
            b"\x01\x01\x00",
        ),
        "true that is not ff": lambda: _altered(
            extensions=with_extension(c.BASIC_CONSTRAINTS, b"\x30\x00", b"\x01\x01\x01")
        ),
        "four digits of the year": lambda: _altered(
            CLIENT,
            {
                4: der.write(
                    der.SEQUENCE,
                    der.write(der.GENERALIZED_TIME, b"20261121115500Z")
                    + der.write(der.UTC_TIME, b"261122120000Z"),
                )
            },
        ),
        "serial number with a zero before it": lambda: _altered(
            CLIENT, {1: der.write(der.INTEGER, b"\0" + _made()[1].serial.to_bytes(20))}
        ),
        "version 2": lambda: _altered(CLIENT, {0: bytes.fromhex("a003020101")}),
    },
    "algorithm-same": {"another behind": lambda: _altered(algorithm=ECDSA_SHA256)},
    "algorithm-fits": {
        "SHA-256": lambda: _altered(CLIENT, {2: ECDSA_SHA256}, algorithm=ECDSA_SHA256),
        "issuer on P-256": lambda: _under({6: spki_of(leaf_key())}),
        "issuer of a kind that nobody certifies": lambda: _under(
            {6: spki_of(ec.generate_private_key(ec.SECP256K1()))}
        ),
    },
    "serial-size": {
        "19 bytes": lambda: _made(serial=(1 << 152) - 1),
        "first byte 80": lambda: _altered_serial(1 << 159),
    },
    "serial-same": {"another": lambda: _asked(serial=_made()[1].serial + 1)},
    "issuer-same": {
        "another asked for": lambda: _asked(issuer_subject=ca_of("ecdsa-p384", "other").content.subject)
    },
    "issuer-subject": {
        "not its name": lambda: _made(issuer_subject=ca_of("ecdsa-p384", "other").content.subject)
    },
    "issuer-given": {
        "itself": lambda: (_ca().certificate, _ca().content, _ca().certificate),
    },
    "issuer-other": {"its own name": lambda: _made(CROSS, subject=_ca().content.subject)},
    "issuer-is-ca": {
        "no CA": lambda: _under(extensions=with_extension(c.BASIC_CONSTRAINTS, b"\x30\x00", CRITICAL)),
        "may not sign": lambda: _under(extensions=with_extension(c.KEY_USAGE, b"\x03\x02\x01\x82", CRITICAL)),
        "no word of it": lambda: _under(extensions=without_extension(c.KEY_USAGE)),
    },
    "issuer-purpose": {
        "machine under the operators' CA": lambda: _under_the_other(CLIENT),
        "server under the operators' CA": lambda: _under_the_other(SERVER),
        "person under the machines' CA": lambda: _under_the_other(OPERATOR),
        "operators' CA vouched for by the machines'": lambda: _made(
            CROSS, subject=ca_for(OPERATOR).content.subject
        ),
        "CA of another name": lambda: _self_signed("ITL Machine Enrollment CAs"),
        "responder under a CA of another name": lambda: _under_another_name("Another CA"),
        "responder under a CA without a name": lambda: _under_another_name(),
        "responder under a CA of two names": lambda: _under_another_name(
            "ITL Machine Enrollment CA", "ITL Operator CA"
        ),
    },
    "issuer-path": {
        "no room": lambda: _under(
            extensions=with_extension(c.BASIC_CONSTRAINTS, bytes.fromhex("30060101ff020100"), CRITICAL),
            profile=CROSS,
        )
    },
    "issuer-key-id": {
        "another": lambda: _under(
            extensions=with_extension(c.SUBJECT_KEY_IDENTIFIER, der.write(der.OCTET_STRING, bytes(20)))
        )
    },
    "subject-same": {
        "another machine": lambda: _asked(
            subject=machine_subject(
                country="NL", organization="ITL Usions", role="controlplane", machine_id="x"
            )
        )
    },
    "subject-form": {
        "no unit": lambda: _subject(GOOD_C, GOOD_O, (CN, "m", None)),
        "other order": lambda: _subject(GOOD_O, GOOD_C, GOOD_OU, (CN, "m", None)),
        "one more": lambda: _subject(GOOD_C, GOOD_O, GOOD_OU, (CN, "m", None), (CN, "n", None)),
        "unit of a CA": lambda: _made(
            CROSS,
            subject=machine_subject(
                country="NL", organization="O", role="x", machine_id="ITL Machine Enrollment CA x"
            ),
        ),
        "nothing": lambda: _subject(),
        "two in one": _two_in_one_rdn,
        "country of another type": lambda: _subject(
            (COUNTRY, "NL", _ASN1Type.UTF8String), GOOD_O, GOOD_OU, (CN, "m", None)
        ),
        "country in lower case": lambda: _subject((COUNTRY, "nl", None), GOOD_O, GOOD_OU, (CN, "m", None)),
        "name of another type": lambda: _subject(
            GOOD_C, GOOD_O, GOOD_OU, (CN, "m", _ASN1Type.PrintableString)
        ),
        "too long": lambda: _subject(GOOD_C, GOOD_O, GOOD_OU, (CN, "m" * 65, None)),
        "empty": lambda: _subject(GOOD_C, GOOD_O, GOOD_OU, (CN, "", None)),
        "blank at its end": lambda: _subject(GOOD_C, GOOD_O, GOOD_OU, (CN, "m ", None)),
        "line feed": lambda: _subject(GOOD_C, GOOD_O, GOOD_OU, (CN, "m\nn", None)),
        "invisible": lambda: _subject(GOOD_C, GOOD_O, GOOD_OU, (CN, "m\u200bn", None)),
    },
    "subject-kubernetes": {
        **{
            f"a node called {name}": lambda group=group, name=name: _made(  # type: ignore[misc]
                NODE,
                subject=x509.Name([x509.NameAttribute(ORG, group), x509.NameAttribute(CN, name)]),
            )
            for group, name in (
                ("system:nodes", "system:node:"),
                ("system:nodes", "system:node:W-1"),
                ("system:nodes", "system:node:w_1"),
                ("system:nodes", "w-1"),
                ("system:nodes", "system:admin"),
            )
        },
        "a node of another group": lambda: _made(
            NODE,
            subject=x509.Name(
                [x509.NameAttribute(ORG, "system:masters"), x509.NameAttribute(CN, "system:node:w-1")]
            ),
        ),
        "a machine of a group": lambda: _made(
            subject=machine_subject(
                country="NL", organization="system:masters", role="generic", machine_id="m"
            )
        ),
        "a machine as a user": lambda: _made(
            subject=machine_subject(
                country="NL", organization="O", role="generic", machine_id="system:kube-scheduler"
            )
        ),
        "a person of a group": lambda: _made(
            OPERATOR,
            subject=operator_subject(
                country="NL", organization="system:masters", name="Ada", duty="operator"
            ),
        ),
    },
    "subject-unit": {
        **{
            f"machine as {unit}": lambda unit=unit: _made(  # type: ignore[misc]
                subject=machine_subject(country="NL", organization="O", role=unit, machine_id="m")
            )
            for unit in ("operator", "viewer", "auditor", "Operator", "x")
        },
        "server as operator": lambda: _made(
            SERVER, subject=machine_subject(country="NL", organization="O", role="operator", machine_id="m")
        ),
        "person as controlplane": lambda: _made(
            OPERATOR,
            subject=machine_subject(country="NL", organization="O", role="controlplane", machine_id="m"),
        ),
    },
    "validity-same": {"longer": lambda: _asked(not_after=AT + timedelta(days=1, seconds=1))},
    "validity-order": {
        "no time at all": lambda: _reordered(AT, AT),
        "backwards": lambda: _reordered(AT, AT - timedelta(seconds=1)),
    },
    "validity-cap": {
        "399 days": lambda: _made(not_after=AT + timedelta(days=398, seconds=1)),
        "responder of 8 days": lambda: _made(ProfileName.OCSP_SIGNING, not_after=AT + timedelta(days=8)),
    },
    "validity-in-issuer": {"longer": lambda: _under({4: _validity(AT, AT + timedelta(hours=23))})},
    "key-same": {"another key": lambda: _altered(CLIENT, {6: spki_of(leaf_key("ecdsa-p384"))})},
    "key-kind": {
        "RSA of 1024 bits": _weak,
        "CA key on P-256": lambda: _made(CROSS, spki=spki_of(leaf_key())),
    },
    "extensions-once": {"twice": lambda: _altered(extensions=lambda listed: [*listed, listed[1]])},
    "extensions-known": {
        "unknown": lambda: _extension("1.3.6.1.4.1.99999.1", b"\x05\x00"),
        "of another standard": lambda: _extension("2.5.29.55", b"\x05\x00"),
    },
    "basic-constraints": {
        "CA": lambda: _extension(c.BASIC_CONSTRAINTS, bytes.fromhex("30030101ff"), CRITICAL),
        "false written out": lambda: _extension(c.BASIC_CONSTRAINTS, bytes.fromhex("3003010100"), CRITICAL),
        "not critical": lambda: _extension(c.BASIC_CONSTRAINTS, b"\x30\x00"),
        "absent": lambda: _without(c.BASIC_CONSTRAINTS),
        "longer path": lambda: _extension(
            c.BASIC_CONSTRAINTS, bytes.fromhex("30060101ff020101"), CRITICAL, CROSS
        ),
    },
    "key-usage": {
        "one more bit": lambda: _extension(c.KEY_USAGE, b"\x03\x02\x05\xa0", CRITICAL),
        "not critical": lambda: _extension(c.KEY_USAGE, b"\x03\x02\x07\x80"),
        "zeros behind": lambda: _extension(c.KEY_USAGE, b"\x03\x02\x00\x80", CRITICAL),
        "absent": lambda: _without(c.KEY_USAGE),
    },
    "extended-key-usage": {
        "server": lambda: _extension(
            c.EXTENDED_KEY_USAGE, der.write(der.SEQUENCE, der.write_oid("1.3.6.1.5.5.7.3.1"))
        ),
        "any": lambda: _extension(
            c.EXTENDED_KEY_USAGE, der.write(der.SEQUENCE, der.write_oid("2.5.29.37.0"))
        ),
        "absent": lambda: _without(c.EXTENDED_KEY_USAGE),
        "of a CA": lambda: _extension(
            c.EXTENDED_KEY_USAGE, der.write(der.SEQUENCE, der.write_oid("1.3.6.1.5.5.7.3.2")), profile=CROSS
        ),
    },
    "subject-key-id": {
        "another": lambda: _extension(c.SUBJECT_KEY_IDENTIFIER, der.write(der.OCTET_STRING, bytes(20))),
        "absent": lambda: _without(c.SUBJECT_KEY_IDENTIFIER),
    },
    "authority-key-id": {
        "with a serial number": lambda: _extension(
            c.AUTHORITY_KEY_IDENTIFIER,
            der.write(der.SEQUENCE, der.write(0x80, _ca().key_id) + der.write(0x82, b"\x01")),
        ),
    },
    "alternative-names": {
        "another EK": lambda: _extension(
            c.SUBJECT_ALT_NAME, der.write(der.SEQUENCE, der.write(0x86, (EK_URI + "00" * 48).encode()))
        ),
        "critical": lambda: _extension(
            c.SUBJECT_ALT_NAME, der.write(der.SEQUENCE, der.write(0x86, (EK_URI + EK).encode())), CRITICAL
        ),
    },
    "policies": {
        "another level": lambda: _extension(
            c.CERTIFICATE_POLICIES,
            der.write(der.SEQUENCE, der.write(der.SEQUENCE, der.write_oid(f"{ARC}.1.4"))),
        ),
        "absent": lambda: _without(c.CERTIFICATE_POLICIES),
    },
    "crl-pointer": {
        "another place": lambda: _extension(
            c.CRL_DISTRIBUTION_POINTS,
            bytes.fromhex("3013 3011a00fa00d860b") + b"http://x.io",
        )
    },
    "access": {
        "another place": lambda: _altered(
            extensions=lambda listed: [
                (oid, critical, value.replace(b"pki/ocsp", b"pki/0csp")) for oid, critical, value in listed
            ]
        )
    },
    "no-check": {
        "of a machine": lambda: _extension(OCSP_NO_CHECK, b"\x05\x00"),
        "not NULL": lambda: _extension(OCSP_NO_CHECK, b"\x30\x00", profile=ProfileName.OCSP_SIGNING),
        "critical": lambda: _extension(OCSP_NO_CHECK, b"\x05\x00", CRITICAL, ProfileName.OCSP_SIGNING),
        "absent": lambda: _without(OCSP_NO_CHECK, ProfileName.OCSP_SIGNING),
    },
    "name-constraints": {
        "of a machine": lambda: _made(limits=LIMITS),
        "not asked for": lambda: _extension(c.NAME_CONSTRAINTS, b"\x30\x00", CRITICAL, profile=CROSS),
        "of another name": lambda: _said_otherwise(limits=replace(LIMITS, dns_names=("example.com",))),
        "of another network": lambda: _said_otherwise(
            limits=replace(LIMITS, ip_networks=(ip_network("10.0.0.0/9"),))
        ),
        "excluded and not permitted": lambda: _said_otherwise(
            limits=replace(LIMITS, ip_networks=(), excluded_networks=LIMITS.ip_networks)
        ),
        "of another host": lambda: _said_otherwise(limits=replace(LIMITS, uris=("a.invalid",))),
        "of another mailbox": lambda: _said_otherwise(limits=replace(LIMITS, emails=("example.com",))),
        "absent": lambda: _said_otherwise(limits=None),
    },
    "no-rev-avail": {
        "of a responder": lambda: _extension(NO_REV_AVAIL, b"\x05\x00", profile=ProfileName.OCSP_SIGNING),
        "not NULL": lambda: _short(lambda made: rebuild(made, extensions=_says_no_rev_avail(b"\x30\x00"))),
        "critical": lambda: _short(
            lambda made: rebuild(made, extensions=_says_no_rev_avail(b"\x05\x00", CRITICAL))
        ),
        "absent": lambda: _short(
            lambda made: rebuild(
                made, extensions=lambda listed: [each for each in listed if each[0] != NO_REV_AVAIL]
            )
        ),
    },
    "short-lived": {
        "with a list and a responder": lambda: _made(profile_of=replace(PROFILES[CLIENT], no_rev_avail=True)),
        "with a responder": lambda: _made(
            profile_of=replace(
                PROFILES[CLIENT], no_rev_avail=True, pointers=frozenset({Pointer.OCSP, Pointer.CA})
            ),
            crl_url=None,
        ),
        "for longer than a week": lambda: _made(
            profile_of=replace(short_lived(PROFILES[CLIENT]), max_validity=timedelta(days=8)),
            crl_url=None,
            ocsp_url=None,
            not_after=AT + SHORT_LIVED + timedelta(seconds=1),
        ),
        "of a CA": lambda: _made(
            CROSS,
            profile_of=replace(PROFILES[CROSS], no_rev_avail=True, pointers=frozenset({Pointer.CA})),
            crl_url=None,
        ),
    },
    "alternative-kinds": {
        "host name of a client": lambda: _made(dns_names=("a.example.com",)),
        "client without an EK": lambda: _made(uris=()),
        "server without a place": lambda: _made(SERVER, dns_names=(), ip_addresses=()),
        "server without an EK": lambda: _made(SERVER, uris=()),
        "person with an EK": lambda: _made(OPERATOR, uris=(EK_URI + EK,)),
    },
    "alternative-ek": {
        "SHA-256": lambda: _made(uris=(EK_URI + "5f" * 32,)),
        "upper case": lambda: _made(uris=(EK_URI + "5F" * 48,)),
        "another scheme": lambda: _made(uris=("http://example.com/",)),
        "two": lambda: _made(uris=(EK_URI + EK, EK_URI + "00" * 48)),
    },
    "alternative-host": {
        f"{name!r}": lambda name=name: _made(SERVER, dns_names=(name,))  # type: ignore[misc]
        for name in (
            "CP1.example.com",
            "*.example.com",
            "a..b",
            "-a.example",
            "a b",
            "a" * 64,
            "a.",
            "a_b",
            "",
        )
    },
    "policies-allowed": {
        "level 5": lambda: _made(policies=(f"{ARC}.1.5",)),
        "tier 0": lambda: _made(policies=(f"{ARC}.1.3", f"{ARC}.2.0")),
        "tier 5": lambda: _made(policies=(f"{ARC}.1.3", f"{ARC}.2.5")),
        "two levels": lambda: _made(policies=(f"{ARC}.1.3", f"{ARC}.1.4")),
        "tier alone": lambda: _made(policies=(f"{ARC}.2.3",)),
        "two arcs": lambda: _made(policies=(f"{ARC}.1.3", "1.3.6.1.4.1.1.2.3")),
        "any": lambda: _made(policies=("2.5.29.32.0",)),
        "of two numbers": lambda: _made(policies=("2.5",)),
        "of a person": lambda: _made(OPERATOR, policies=(f"{ARC}.1.3",)),
        "none in a cross certificate": lambda: _made(CROSS, policies=()),
    },
    "pointers": {
        "no list": lambda: _made(crl_url=None),
        "no responder": lambda: _made(ocsp_url=None),
        "no issuer": lambda: _made(ca_url=None),
        "nothing": lambda: _made(crl_url=None, ocsp_url=None, ca_url=None),
        "list of a responder": lambda: _made(ProfileName.OCSP_SIGNING, crl_url=f"{ADDRESS}/crl/1"),
        "responder for a cross certificate": lambda: _made(CROSS, ocsp_url=f"{ADDRESS}/ocsp"),
    },
    "pointer-form": {
        "file": lambda: _made(crl_url="ftp://pki.example.com/crl"),
        "blank": lambda: _made(ca_url="http://pki.example.com/c a"),
        "no host": lambda: _made(ocsp_url="http://"),
    },
}


def _under_the_other(profile: ProfileName) -> Case:
    """Return a good certificate of *profile*, signed by the CA for the others."""
    ca = ca_for(CLIENT if profile is OPERATOR else OPERATOR)
    content = ca.content_of(profile)
    return ca.issue(content), content, ca.certificate


def _called(*names: str) -> CA:
    attributes = [(COUNTRY, "NL"), (ORG, "O"), *((CN, name) for name in names)]
    subject = x509.Name([x509.NameAttribute(oid, text) for oid, text in attributes])
    return ca_with(_ca().key, "first", subject=subject, issuer_subject=subject)


def _self_signed(name: str) -> Case:
    ca = _called(name)
    return ca.certificate, ca.content, None


def _under_another_name(*names: str) -> Case:
    ca = _called(*names)
    subject = responder_subject(_ca().content.subject, "1")
    content = _ca().content_of(ProfileName.OCSP_SIGNING, subject=subject, issuer_subject=ca.content.subject)
    return ca.issue(content), content, ca.certificate


def _altered_serial(serial: int) -> Case:
    made, content, issuer = _made()
    return rebuild(made, {1: der.write_unsigned(serial)}), replace(content, serial=serial), issuer


def _reordered(first: datetime, last: datetime) -> Case:
    made, content, issuer = _made()
    altered = rebuild(made, {4: _validity(first, last)})
    return altered, replace(content, not_before=first, not_after=last), issuer


def _broken() -> Iterator[Any]:
    for rule, cases in BREAKS.items():
        for what, case in cases.items():
            yield pytest.param(rule, case, id=f"{rule}: {what}")


@pytest.mark.threat("T96")
@pytest.mark.parametrize(("rule", "case"), list(_broken()))
def test_a_certificate_that_breaks_one_rule_breaks_that_one(rule: str, case: Callable[[], Case]) -> None:
    """Exactly it: a rule that another one implied could be deleted and nobody would notice."""
    found = lint(*case())
    assert [finding.partition(": ")[0] for finding in found] == [rule], found


def test_every_rule_has_a_certificate_that_breaks_it() -> None:
    """A rule without one might never have refused anything."""
    assert set(BREAKS) == set(RULES)
    for rule in RULES.values():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
        assert rule.what
        assert rule.source


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("profile", [*LEAVES, CROSS])
def test_good_certificates_have_no_findings(profile: ProfileName, algorithm: Algorithm) -> None:
    """Every profile under every algorithm."""
    ca = ca_for(profile, algorithm)
    content = ca.content_of(profile)
    assert lint(ca.issue(content), content, ca.certificate) == ()


def test_what_ends_within_a_week_may_do_without_revocation() -> None:
    """RFC 9608: the extension, and neither list nor responder; the CA's certificate may still be named."""
    made, content, issuer = _made(
        profile_of=short_lived(PROFILES[CLIENT]),
        crl_url=None,
        ocsp_url=None,
        not_after=AT + SHORT_LIVED,
    )
    assert lint(made, content, issuer) == ()
    found = x509.load_der_x509_certificate(made).extensions
    said = found.get_extension_for_oid(x509.ObjectIdentifier(NO_REV_AVAIL))
    assert (said.critical, said.value.public_bytes()) == (False, b"\x05\x00")
    with pytest.raises(x509.ExtensionNotFound):
        found.get_extension_for_class(x509.CRLDistributionPoints)
    access = found.get_extension_for_class(x509.AuthorityInformationAccess).value
    assert [each.access_method.dotted_string for each in access] == ["1.3.6.1.5.5.7.48.2"]


def test_what_a_ca_of_another_name_is_for_its_record_says() -> None:
    """One that was brought here; of one of ours the name decides, and a record that says otherwise is a fault."""
    made, content, issuer = _under_another_name("Machines of the Company")
    assert lint(made, content, issuer, issuer_purpose="machine") == ()
    other = _called("Machines of the Company")
    person = other.content_of(OPERATOR)
    said = other.issue(person), person, other.certificate
    assert lint(*said, issuer_purpose="operator") == ()
    for purpose in (None, "machine"):
        assert [each.partition(":")[0] for each in lint(*said, issuer_purpose=purpose)] == ["issuer-purpose"]
    ours = _made()
    assert lint(*ours, issuer_purpose="machine") == ()
    assert lint(*ours, issuer_purpose="operator") == (
        "issuer-purpose: the name of the issuer says another purpose than its record",
    )


def test_no_ca_does_without_revocation() -> None:
    """A CA that cannot be taken back could certify for as long as it lives."""
    with pytest.raises(CertificateNotConformant, match="cannot do without"):
        short_lived(PROFILES[CROSS])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_ca_certifies_itself(algorithm: Algorithm) -> None:
    """Its own certificate is judged with itself as the issuer."""
    ca = ca_of(algorithm)
    assert lint(ca.certificate, ca.content, None) == ()


@pytest.mark.parametrize(
    "kind", ["ecdsa-p256", "ecdsa-p384", "ecdsa-p521", "rsa-2048", "rsa-3072", "ed25519", "ml-dsa-65"]
)
def test_every_kind_of_key_is_certified(kind: str) -> None:
    """Keys of machines need not be of their CA's kind."""
    case = _made(spki=spki_of(leaf_key(kind)))
    assert lint(*case) == ()


def test_policies_may_be_absent_or_say_the_level_alone() -> None:
    """Without an arc nothing is said; a key of which nothing is known has no tier."""
    assert lint(*_made(policies=())) == ()
    assert lint(*_made(policies=(f"{ARC}.1.0",))) == ()


def test_the_longest_validity_is_allowed() -> None:
    """The cap is inside, beside the five minutes before."""
    for profile in (CLIENT, OPERATOR, ProfileName.OCSP_SIGNING):
        longest = AT + PROFILES[profile].max_validity
        assert lint(*_made(profile, not_after=longest)) == ()


def test_a_certificate_may_end_after_2049() -> None:
    """From 2050 on the year has four digits (RFC 5280, 4.1.2.5)."""
    ca = ca_with(ca_of("ecdsa-p384").key, "late", not_after=datetime(2051, 10, 1, tzinfo=AT.tzinfo))
    assert lint(ca.certificate, ca.content, None) == ()
    assert b"\x18\x0f20511001000000Z" in ca.certificate


def test_an_issuer_without_a_path_length_has_room() -> None:
    """Of CAs that are not ours too: pathLenConstraint may be absent."""
    case = _under(
        extensions=with_extension(c.BASIC_CONSTRAINTS, bytes.fromhex("30030101ff"), CRITICAL), profile=CROSS
    )
    assert lint(*case) == ()


def test_everything_that_is_wrong_is_said() -> None:
    """An unknown way of access, no AuthorityKeyIdentifier: several rules at once."""
    access = der.write(
        der.SEQUENCE,
        der.write(der.SEQUENCE, der.write_oid("1.3.6.1.5.5.7.48.3") + der.write(0x86, b"http://a")),
    )
    found = lint(*_extension(c.AUTHORITY_INFORMATION_ACCESS, access))
    assert [f.partition(": ")[0] for f in found] == ["access", "pointers"]
    found = lint(*_without(c.AUTHORITY_KEY_IDENTIFIER))
    assert [f.partition(": ")[0] for f in found] == ["issuer-key-id", "authority-key-id"]
    made, content, issuer = _made(SERVER)
    found = lint(rebuild(made, extensions=without_extension(c.SUBJECT_ALT_NAME)), content, issuer)
    assert [f.partition(": ")[0] for f in found] == ["alternative-names", "alternative-kinds"]
    assert lint(_made()[0], _made()[1], None) != ()


@pytest.mark.threat("T96")
def test_no_machine_is_ever_an_operator() -> None:
    """R16: the units of machines and of people have nothing in common, in no profile."""
    people = PROFILES[OPERATOR].units
    for profile in PROFILES.values():
        assert profile.name is OPERATOR or not profile.units & people


def test_a_cross_certificate_has_the_same_key_and_subject() -> None:
    """Whoever trusts one key of a rotation finds the way to leaves of the other."""
    old, new = ca_of("ecdsa-p384"), ca_of("ecdsa-p384", "other")
    content = old.content_of(CROSS)
    cross = c.parse_certificate(old.issue(content))
    root = c.parse_certificate(new.certificate)
    assert (cross.spki, cross.subject_key, cross.ski) == (root.spki, root.subject_key, root.ski)
    cross.verify_issued_by(c.parse_certificate(old.certificate))
    assert cross.path_length == 0
    assert root.path_length == 1


def test_a_subject_of_a_ca_is_its_own() -> None:
    """The first key has the plain name, every other one an id behind it."""
    names = {
        ca_subject("machine", country="NL", organization="O"),
        ca_subject("machine", country="NL", organization="O", issuer_id="0123456789abcdef"),
        ca_subject("operator", country="NL", organization="O"),
    }
    assert {name.get_attributes_for_oid(CN)[0].value for name in names} == {
        "ITL Machine Enrollment CA",
        "ITL Machine Enrollment CA 01234567",
        "ITL Operator CA",
    }


def test_the_access_method_is_the_one_of_the_standard() -> None:
    """RFC 5280, 4.2.2.1."""
    assert ACCESS_OCSP == "1.3.6.1.5.5.7.48.1"
    assert make_certificate(_made()[1], _ca().key).count(der.write_oid(ACCESS_OCSP)) == 1


def test_limits_of_names_are_written_as_they_are_asked_for() -> None:
    """Of each kind, permitted and excluded: by the library, and byte for byte by our own writer."""
    for limits in (
        LIMITS,
        NameLimits(excluded_networks=EVERYWHERE),
        replace(LIMITS, excluded_networks=EVERYWHERE),
    ):
        assert lint(*_made(CROSS, limits=limits)) == ()
