"""Certificates: the same content gives the same signed part, whoever signs; and what nobody may say is not made."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.endorsements.certificate import parse_certificate
from attestation.errors import (
    CertificateNotConformant,
    KeyUnsupported,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.machines import Role
from attestation.pki.content import (
    Algorithm,
    check_signed,
    key_identifier,
    make_certificate,
    rehearse,
    serial_of,
    serial_text,
    signing_hash,
    throwaway_key,
)
from attestation.pki.names import ca_subject, machine_subject, operator_subject, responder_subject
from attestation.pki.profiles import (
    EK_URI,
    KEY_TIERS,
    MACHINE_UNITS,
    OPERATOR_UNITS,
    PROFILES,
    Alternative,
    ProfileName,
    assurance_policies,
)
from attestation_service.auth import Duty
from tests.unit.pki.certificate_kit import (
    ADDRESS,
    ALGORITHMS,
    ARC,
    EK,
    LEAVES,
    ca_of,
    leaf_key,
    rebuild,
    spki_of,
)

COMMON = {"country": "NL", "organization": "ITL Usions"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("profile", [*LEAVES, ProfileName.CA_CROSS])
def test_the_rehearsal_and_the_certificate_have_one_signed_part(
    profile: ProfileName, algorithm: Algorithm
) -> None:
    """What was linted is what the CA key signs: byte for byte, and twice the same."""
    ca = ca_of(algorithm)
    content = ca.content_of(profile)
    rehearsed, signed = rehearse(content, algorithm), ca.issue(content)
    tbs, *others = (
        parse_certificate(data, max_bytes=16384).tbs for data in (rehearsed, signed, ca.issue(content))
    )
    assert others == [tbs, tbs]
    assert rehearsed != signed
    check_signed(signed, rehearsed=rehearsed, issuer=ca.key.public_key())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_throwaway_key_is_made_once(algorithm: Algorithm) -> None:
    """RSA-4096 takes seconds; nobody trusts it, so one of each kind is enough for a process."""
    assert throwaway_key(algorithm) is throwaway_key(algorithm)


@pytest.mark.threat("T96")
def test_what_was_not_linted_is_not_accepted() -> None:
    """One second more, another algorithm, or a signature that is none: nothing of it leaves."""
    ca = ca_of("ecdsa-p384")
    content = ca.content_of(ProfileName.NODE_CLIENT)
    rehearsed, signed = rehearse(content, "ecdsa-p384"), ca.issue(content)
    longer = ca.issue(replace(content, not_after=content.not_after + timedelta(seconds=1)))
    public = ca.key.public_key()
    sha256 = bytes.fromhex("300a06082a8648ce3d040302")
    for other in (longer, rebuild(signed, {2: sha256}), rebuild(signed, algorithm=sha256)):
        with pytest.raises(CertificateNotConformant, match="not what was linted"):
            check_signed(other, rehearsed=rehearsed, issuer=public)
    # Signed by the throwaway key: as a token would that answers with another key.
    with pytest.raises(SignatureInvalid):
        check_signed(rehearsed, rehearsed=rehearsed, issuer=public)
    # A fault in the signature: of RSA one such would give the key away.
    with pytest.raises(SignatureInvalid):
        check_signed(signed[:-1] + bytes([signed[-1] ^ 1]), rehearsed=rehearsed, issuer=public)
    with pytest.raises(MalformedEvidence):
        check_signed(signed[:-1], rehearsed=rehearsed, issuer=public)
    with pytest.raises(MalformedEvidence):
        check_signed(signed + b"\0", rehearsed=rehearsed, issuer=public)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"serial": 0}, id="serial number 0"),
        pytest.param({"serial": 1 << 160}, id="serial number of 21 bytes"),
        pytest.param({"uris": ("\u00fc",)}, id="URI outside ASCII"),
        pytest.param({"policies": ("9.9.9",)}, id="no OID"),
        pytest.param({"spki": b"\x30\x00"}, id="no key"),
        pytest.param(
            {"spki": spki_of(ec.generate_private_key(ec.SECP256K1()))}, id="key that is not certified"
        ),
        pytest.param({"crl_url": b"bytes"}, id="address of another type"),
    ],
)
def test_what_no_certificate_can_say_is_refused(changes: dict[str, Any]) -> None:
    """One error of ours, whatever the library calls it."""
    content = ca_of("ecdsa-p384").content_of(ProfileName.NODE_CLIENT, **changes)
    with pytest.raises(CertificateNotConformant, match="no certificate can say this"):
        rehearse(content, "ecdsa-p384")


def test_a_validity_that_ends_before_it_begins_is_refused() -> None:
    """By the library already."""
    content = ca_of("ecdsa-p384").content_of(ProfileName.NODE_CLIENT)
    with pytest.raises(CertificateNotConformant):
        rehearse(replace(content, not_after=content.not_before - timedelta(seconds=1)), "ecdsa-p384")


def test_what_ca_keys_sign_with() -> None:
    """SHA-384, of P-256 SHA-256, and for ML-DSA no hash of its own; no other curve is a CA key."""
    assert isinstance(signing_hash(throwaway_key("ecdsa-p256")), hashes.SHA256)
    assert isinstance(signing_hash(throwaway_key("ecdsa-p384")), hashes.SHA384)
    assert isinstance(signing_hash(ca_of("rsa-4096").key), hashes.SHA384)
    assert signing_hash(throwaway_key("ml-dsa-87")) is None
    content = ca_of("ecdsa-p384").content_of(ProfileName.NODE_CLIENT)
    with pytest.raises(KeyUnsupported, match="P-384"):
        make_certificate(content, leaf_key("ecdsa-p521"))


def test_serial_numbers_are_20_bytes_and_positive() -> None:
    """The first byte is from 01 to 7f, whatever the entropy; the rest is the entropy."""
    for first in range(256):
        serial = serial_of(bytes([first]) + bytes(range(19)))
        assert 1 <= serial >> 152 <= 0x7F
        assert len(serial_text(serial)) == 40
        assert serial_text(serial)[2:] == bytes(range(19)).hex()
    assert {serial_of(bytes([n]) + bytes(19)) >> 152 for n in range(256)} == set(range(1, 128))
    for size in (19, 21):
        with pytest.raises(ValueError, match="20 expected"):
            serial_of(bytes(size))


def test_a_key_identifier_is_that_of_rfc_7093() -> None:
    """Method 1: 160 bits of SHA-256 over the key's bits, without the tag, length and count of unused bits."""
    spki = spki_of(leaf_key())
    assert key_identifier(spki) == hashlib.sha256(spki[26:]).digest()[:20]
    with pytest.raises(MalformedEvidence):
        key_identifier(spki + b"\0")


def test_the_library_reads_what_we_say() -> None:
    """Every extension, through another reader."""
    ca = ca_of("ecdsa-p384")
    found = x509.load_der_x509_certificate(ca.issue(ca.content_of(ProfileName.NODE_SERVER)))
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [EK_URI + EK]
    assert names.get_values_for_type(x509.DNSName) == ["cp1.example.com"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7", "2001:db8::7"]
    policies = found.extensions.get_extension_for_class(x509.CertificatePolicies).value
    assert [p.policy_identifier.dotted_string for p in policies] == [f"{ARC}.1.3", f"{ARC}.2.4"]
    access = found.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
    assert [d.access_location.value for d in access] == [f"{ADDRESS}/ocsp", f"{ADDRESS}/ca/1"]
    points = found.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    assert points[0].full_name is not None
    assert points[0].full_name[0].value == f"{ADDRESS}/crl/1"
    critical = {e.oid.dotted_string for e in found.extensions if e.critical}
    assert critical == {"2.5.29.19", "2.5.29.15"}
    assert found.subject.rfc4514_string().startswith("CN=0b5e8c1e-")


def test_names_are_written_in_one_form() -> None:
    """Order and attributes of every subject."""
    assert machine_subject(role="linux", machine_id="m", **COMMON).rfc4514_string() == (
        "CN=m,OU=linux,O=ITL Usions,C=NL"
    )
    assert operator_subject(name="Ada", duty="auditor", **COMMON).rfc4514_string() == (
        "CN=Ada,OU=auditor,O=ITL Usions,C=NL"
    )
    ca = ca_subject("operator", issuer_id="deadbeefcafe", **COMMON)
    assert ca.rfc4514_string() == "CN=ITL Operator CA deadbeef,O=ITL Usions,C=NL"
    assert responder_subject(ca, "7").rfc4514_string() == "CN=ITL OCSP Responder 7,O=ITL Usions,C=NL"


@pytest.mark.parametrize("name", ["", "a" * 65, " a", "a ", "a\nb", "a\u202eb", "a\x00"])
def test_names_that_look_like_others_are_refused(name: str) -> None:
    """Nothing invisible, nothing at the ends, at most 64 bytes."""
    with pytest.raises(CertificateNotConformant):
        operator_subject(name=name, duty="operator", **COMMON)


def test_a_country_has_two_letters() -> None:
    """Longer ones no name may have."""
    with pytest.raises(CertificateNotConformant):
        ca_subject("machine", country="NLD", organization="O")


def test_units_are_the_roles_and_the_duties() -> None:
    """The heart repeats them as data; here they are compared with those who define them. R16: disjoint."""
    assert frozenset(Role) == MACHINE_UNITS
    assert frozenset(Duty) == OPERATOR_UNITS
    assert not MACHINE_UNITS & OPERATOR_UNITS


def test_every_name_has_a_profile() -> None:
    """And no profile says more than one thing."""
    assert set(PROFILES) == set(ProfileName)
    assert ca_of("ecdsa-p384").content.profile_name == "ca"
    for name, profile in PROFILES.items():
        assert profile.name is name
        assert profile.is_ca == ("key_cert_sign" in profile.key_usage) == (profile.path_length is not None)
        assert profile.is_ca != bool(profile.purposes)
    assert PROFILES[ProfileName.NODE_SERVER].allowed_alternatives == frozenset(Alternative)
    assert PROFILES[ProfileName.CA].allowed_alternatives == frozenset()


def test_policies_say_assurance_and_key_tier() -> None:
    """TPM.md §6; without an arc nothing."""
    assert assurance_policies("", assurance=3, key_tier=3) == ()
    assert assurance_policies(ARC, assurance=0, key_tier=None) == (f"{ARC}.1.0",)
    for tier in KEY_TIERS:
        assert assurance_policies(ARC, assurance=4, key_tier=tier) == (f"{ARC}.1.4", f"{ARC}.2.{tier}")
    for assurance, key_tier in ((5, 1), (-1, 1), (3, 0), (3, 5)):
        with pytest.raises(CertificateNotConformant):
            assurance_policies(ARC, assurance=assurance, key_tier=key_tier)
