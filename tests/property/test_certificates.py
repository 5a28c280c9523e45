"""Whatever a record says: the certificate is conformant, or it is not made; and no bit of it can be another."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address

import pytest
from cryptography import x509
from hypothesis import given, settings
from hypothesis import strategies as st

from attestation.endorsements.certificate import parse_certificate
from attestation.errors import AttestationError, CertificateNotConformant
from attestation.pki.content import rehearse, serial_of, serial_text
from attestation.pki.lint import lint
from attestation.pki.names import machine_subject, operator_subject
from attestation.pki.profiles import (
    EK_URI,
    MACHINE_UNITS,
    OPERATOR_UNITS,
    UNIT,
    ProfileName,
    assurance_policies,
)
from attestation.pki.request import parse_csr
from tests.unit.pki.certificate_kit import ARC, AT, ca_for, ca_of, leaf_key, request_of

CA, PEOPLE = ca_of("ecdsa-p384"), ca_for(ProfileName.OPERATOR)
COMMON = {"country": "NL", "organization": "ITL Usions"}
HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z0-9]{1,10}){0,3}", fullmatch=True)
ADDRESSES = st.builds(IPv4Address, st.integers(0, 2**32 - 1)) | st.builds(
    IPv6Address, st.integers(0, 2**128 - 1)
)
ENTROPY = st.binary(min_size=20, max_size=20)
REQUEST = request_of(leaf_key())


@settings(max_examples=60)
@given(
    role=st.sampled_from(sorted(MACHINE_UNITS)),
    machine_id=st.uuids().map(str),
    ek=st.binary(min_size=48, max_size=48).map(bytes.hex),
    hosts=st.lists(HOSTS, max_size=3),
    addresses=st.lists(ADDRESSES, max_size=3),
    assurance=st.integers(0, 4),
    tier=st.none() | st.integers(1, 4),
    lifetime=st.integers(1, 398 * 86_400),
    entropy=ENTROPY,
)
def test_any_record_of_a_machine_gives_a_conformant_certificate(
    role: str,
    machine_id: str,
    ek: str,
    hosts: list[str],
    addresses: list[IPv4Address | IPv6Address],
    assurance: int,
    tier: int | None,
    lifetime: int,
    entropy: bytes,
) -> None:
    """Of every role, lifetime, level and place; and the library reads back what was put in."""
    profile = ProfileName.NODE_SERVER if hosts or addresses else ProfileName.NODE_CLIENT
    content = CA.content_of(
        profile,
        serial=serial_of(entropy),
        subject=machine_subject(role=role, machine_id=machine_id, **COMMON),
        uris=(EK_URI + ek,),
        dns_names=tuple(hosts),
        ip_addresses=tuple(addresses),
        policies=assurance_policies(ARC, assurance=assurance, key_tier=tier),
        not_after=AT + timedelta(seconds=lifetime),
    )
    made = rehearse(content, "ecdsa-p384")
    assert lint(made, content, CA.certificate) == ()
    found = x509.load_der_x509_certificate(made)
    assert serial_text(found.serial_number) == f"{content.serial:040x}"
    assert found.subject == content.subject
    assert found.not_valid_after_utc == content.not_after


@pytest.mark.threat("T96")
@given(unit=st.text(max_size=70), profile=st.sampled_from(ProfileName), entropy=ENTROPY)
def test_no_unit_but_those_of_the_profile_is_ever_signed(
    unit: str, profile: ProfileName, entropy: bytes
) -> None:
    """R16: whatever a role or a duty is called, only the words of the profile leave the linter."""
    with contextlib.suppress(CertificateNotConformant):
        asked = profile if profile is not ProfileName.CA else ProfileName.CA_CROSS
        ca = ca_for(asked)
        content = ca.content_of(
            asked,
            serial=serial_of(entropy),
            subject=machine_subject(role=unit, machine_id="m", **COMMON),
        )
        made = rehearse(content, "ecdsa-p384")
        if lint(made, content, ca.certificate) == ():
            assert unit in content.rules.units


@given(name=st.text(max_size=70), duty=st.sampled_from(sorted(OPERATOR_UNITS)))
def test_any_name_of_a_person_is_conformant_or_refused(name: str, duty: str) -> None:
    """Letters of every script; nothing that does not print, nothing too long."""
    with contextlib.suppress(CertificateNotConformant):
        content = PEOPLE.content_of(
            ProfileName.OPERATOR, subject=operator_subject(name=name, duty=duty, **COMMON)
        )
        assert lint(rehearse(content, "ecdsa-p384"), content, PEOPLE.certificate) == ()
        assert content.subject.get_attributes_for_oid(x509.ObjectIdentifier(UNIT))[0].value == duty


@given(where=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_flipped_bit_of_what_is_signed_passes_the_linter(where: int, bit: int) -> None:
    """Each bit of the signed part is one that some rule looks at."""
    content = CA.content_of(ProfileName.NODE_SERVER)
    made = rehearse(content, "ecdsa-p384")
    tbs = parse_certificate(made).tbs
    start = made.index(tbs)
    data = bytearray(made)
    data[start + where % len(tbs)] ^= 1 << bit
    assert lint(bytes(data), content, CA.certificate) != ()


@given(days=st.integers(0, 20_000), profile=st.sampled_from(sorted(set(ProfileName) - {ProfileName.CA})))
def test_no_lifetime_beyond_profile_and_issuer(days: int, profile: ProfileName) -> None:
    """min(request, profile, CA): whoever asks for more is refused here, if nobody cut it before."""
    ca = ca_for(profile)
    content = replace(ca.content_of(profile), not_after=AT + timedelta(days=days, seconds=1))
    found = lint(rehearse(content, "ecdsa-p384"), content, ca.certificate)
    inside = content.not_after <= ca.content.not_after
    capped = timedelta(days=days, seconds=1) <= content.rules.max_validity
    assert (found == ()) == (inside and capped)


@pytest.mark.threat("T97")
@settings(max_examples=200)
@given(where=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_flipped_bit_of_a_request_is_accepted(where: int, bit: int) -> None:
    """A request with any single bit changed asks for nothing."""
    data = bytearray(REQUEST)
    data[where % len(data)] ^= 1 << bit
    with pytest.raises(AttestationError):
        parse_csr(bytes(data))
