"""EK certificates: the reader is lenient, the profile is not (TPM.md §2.2-2.3, N47-N60 without chains)."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation.errors import EKCertificateRejected, MalformedEvidence
from attestation.evidence import ek_certificate
from attestation.evidence.ek_certificate import EKCertificateClaims, TPMSpecification
from attestation.tpm import parse_public
from attestation_testing import (
    CertificateAuthority,
    Defect,
    EKCertificateOptions,
    SoftwareEK,
    make_ek_certificate,
)
from tests.vectors import OWN, SHARED, forge, needs_shared

AT = datetime(2027, 1, 1, tzinfo=UTC)
GOOD = (OWN / "ek" / "L-1.der").read_bytes()
RSA_KEY = forge.rsa_private("ek-rsa2048")


def verify(
    data: bytes, template: str = "L-1", *, at: datetime = AT, simulator: bool = False
) -> EKCertificateClaims:
    """Parse and verify *data* for our EK of *template*."""
    ek = parse_public(forge.ek_public(template))
    return ek_certificate.verify(ek_certificate.parse(data), ek=ek, at=at, allow_simulator=simulator)


def made(extensions: Mapping[str, bytes] | None = None, **fields: bytes) -> bytes:
    """Return a certificate of the RSA EK with *extensions* replaced and *fields* changed."""
    return forge.certificate(
        forge.spki(RSA_KEY), {**forge.profile(is_rsa=True), **(extensions or {})}, **fields
    )


@pytest.mark.parametrize("template", forge.EK_TEMPLATE_FIELDS)
def test_a_good_certificate_of_every_template_is_believed(template: str) -> None:
    """Claims are the fields of the certificate, nothing else."""
    data = (OWN / "ek" / f"{template}.der").read_bytes()
    claims = verify(data, template)
    assert claims.manufacturer == "id:49465800"
    assert claims.vendor == "IFX"
    assert (claims.model, claims.firmware) == ("OWN-1", "id:00070002")
    assert claims.serial == 0x1234567890
    assert claims.subject == ""
    assert claims.issuer == "Common Name: Own EK Issuing CA, Organization: Own vectors"
    assert claims.not_before == datetime(2025, 1, 1, tzinfo=UTC)
    assert claims.not_after == datetime(2055, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("path", sorted((OWN / "ek").glob("L-1-*")), ids=lambda p: p.name)
def test_what_vendors_did_to_certificates_is_read(path: Path) -> None:
    """Wrapper, padding and each quirk of §2.2 in a leaf change nothing of what is claimed."""
    claims = verify(path.read_bytes())
    assert claims.vendor == "IFX"
    assert claims.serial == (0x1234 if "serial" in path.name else 0x1234567890)


@pytest.mark.parametrize(
    ("wrap", "padding"),
    [
        (GOOD, 0),
        (GOOD + b"\x11" * 192, 192),
        (GOOD + bytes(300), 300),
        (GOOD + bytes(range(256)) + bytes(175), 431),
        (forge.wrapped(GOOD), 0),
        (forge.wrapped(GOOD, inner=True), 0),
        (forge.wrapped(GOOD) + b"\xff" * 9, 0),
        (forge.wrapped(GOOD + b"\xff" * 9), 9),
    ],
)
def test_wrapper_and_padding_are_stripped(wrap: bytes, padding: int) -> None:
    """What is left is the certificate, byte for byte."""
    cut = ek_certificate.parse(wrap)
    assert (cut.der, cut.padding_bytes) == (GOOD, padding)


@pytest.mark.parametrize("label", [b"CERTIFICATE", b"TRUSTED CERTIFICATE"])
def test_pem_is_read(label: bytes) -> None:
    """PEM with lines of any length and space around it."""
    body = base64.encodebytes(GOOD)
    pem = b"\n -----BEGIN " + label + b"-----\r\n" + body + b"-----END " + label + b"-----\n"
    assert ek_certificate.parse(pem).der == GOOD


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"\x30\x03\x02\x01",
        b"\x31" + GOOD[1:],
        GOOD[:-1],
        GOOD[:100],
        b"\x30\x80" + GOOD[4:] + b"\0\0",
        b"\x30\x84\0\0" + GOOD[2:],
        b"\x30\x83\0" + GOOD[2:],
        b"\x30\x82\x01",
        bytes(8193),
        b"\x10\x01\x00",
        b"\x10\x01\x00\x00\x05" + GOOD,
        b"\x10\x01\x00\x00\x02\x10\x02" + GOOD,
        forge.seq(forge.integer(1), forge.integer(2)),
        b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(GOOD) + b"-----END CERTIFICATE-----\nmore",
    ],
)
def test_what_is_no_certificate_is_malformed(data: bytes) -> None:
    """Lengths are checked, definite and exact, and nothing else may stand in their place."""
    with pytest.raises(MalformedEvidence):
        ek_certificate.parse(data)


def test_a_cut_certificate_and_broken_pem_are_named() -> None:
    """An operator reads what is wrong, before a parser of ASN.1 guesses."""
    with pytest.raises(MalformedEvidence, match=f"says {len(GOOD)} bytes, has {len(GOOD) - 1}"):
        ek_certificate.parse(GOOD[:-1])
    with pytest.raises(MalformedEvidence, match="PEM: not standard base64"):
        ek_certificate.parse(b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n")


def test_the_longest_certificate_is_8_kib() -> None:
    """8192 bytes with padding are read, one more is refused."""
    padded = GOOD.ljust(8192, b"\0")
    assert ek_certificate.parse(padded).der == GOOD
    with pytest.raises(MalformedEvidence, match="8193 bytes"):
        ek_certificate.parse(padded + b"\0")


def test_reading_takes_time_in_proportion_to_length() -> None:
    """White space behind a PEM header once took a quarter of a second: every split of it was tried."""
    start = time.process_time()
    with pytest.raises(MalformedEvidence):
        ek_certificate.parse(b"-----BEGIN CERTIFICATE-----" + b" " * 8000)
    assert time.process_time() - start < 0.05


@pytest.mark.threat("T4")
@pytest.mark.parametrize("path", sorted((OWN / "hostile" / "ek").glob("*.der")), ids=lambda p: p.stem)
def test_n48_to_n60_each_broken_rule_refuses(path: Path) -> None:
    """One rule of §2.3 broken, all others kept: refused, and not because of the parser."""
    with pytest.raises(EKCertificateRejected):
        verify(path.read_bytes())


REASONS = {
    "n48-other-key": "another key",
    "n50-expired": "not now",
    "n51-not-yet-valid": "not now",
    "n52-ca-true": "BasicConstraints",
    "n52-basic-constraints-not-critical": "BasicConstraints",
    "n52-basic-constraints-absent": "BasicConstraints",
    "n53-eku-of-ak": "ExtendedKeyUsage",
    "n53-eku-critical": "extended_key_usage must not be critical",
    "n53-ku-digital-signature": "KeyUsage",
    "n53-ku-of-ecc": "KeyUsage",
    "n53-ku-not-critical": "KeyUsage",
    "n53-ku-absent": "KeyUsage",
    "aki-absent": "AuthorityKeyIdentifier",
    "aki-critical": "authority_key_identifier must not be critical",
    "n54-san-two-directory-names": "2 directory names",
    "n54-san-extra-attribute": "nothing else",
    "n54-san-attribute-twice": "nothing else",
    "n54-san-version-missing": "nothing else",
    "n54-san-absent": "0 directory names",
    "n54-san-not-critical-without-subject": "SAN must be critical",
    "n54-manufacturer-not-an-id": "eight hex digits",
    "n55-manufacturer-unknown": "not in the TCG vendor registry",
    "n55-manufacturer-simulator": "not in the TCG vendor registry",
    "n60-unknown-critical-extension": "unknown critical extension 1.3.6.1.4.1.99999.1",
    "version-1": "version v1",
    "version-2": "version v2",
    "serial-zero": "serial",
    "serial-negative": "serial",
    "issuer-empty": "issuer is empty",
}


@pytest.mark.parametrize(("name", "reason"), REASONS.items())
def test_the_refusal_names_the_rule(name: str, reason: str) -> None:
    """An operator reads which rule was broken; a rule deleted would let its vector through or name another."""
    with pytest.raises(EKCertificateRejected, match=reason):
        verify((OWN / "hostile" / "ek" / f"{name}.der").read_bytes())


def test_every_hostile_certificate_has_its_reason() -> None:
    """No vector is left out of the table."""
    assert {path.stem for path in (OWN / "hostile" / "ek").glob("*.der")} == set(REASONS)


@pytest.mark.parametrize(
    "name", ["key_identifier", "authority_information_access", "crl_distribution_points"]
)
def test_extensions_that_must_not_be_critical(name: str) -> None:
    """SKI, AIA and CRLDP marked critical: refused, though we know them."""
    kind, value = {
        "key_identifier": ("2.5.29.14", forge.tlv(0x04, b"own")),
        "authority_information_access": (
            "1.3.6.1.5.5.7.1.1",
            forge.seq(forge.seq(forge.oid("1.3.6.1.5.5.7.48.2"), forge.tlv(0x86, b"http://ca.example/"))),
        ),
        "crl_distribution_points": (
            "2.5.29.31",
            forge.seq(forge.seq(forge.tlv(0xA0, forge.tlv(0xA0, forge.tlv(0x86, b"http://ca.example/"))))),
        ),
    }[name]
    verify(made({"x": forge.extension(kind, value)}))
    with pytest.raises(EKCertificateRejected, match=f"{name} must not be critical"):
        verify(made({"x": forge.extension(kind, value, critical=True)}))


def test_extended_key_usage_may_be_absent() -> None:
    """[EKP] does not demand it; where it is, it must name the EK purpose, beside others."""
    without = {k: v for k, v in forge.profile(is_rsa=True).items() if k != "eku"}
    verify(forge.certificate(forge.spki(RSA_KEY), without))
    both = forge.seq(forge.oid("2.23.133.8.2"), forge.oid("2.23.133.8.1"))
    verify(made({"eku": forge.extension("2.5.29.37", both)}))


def test_key_usage_follows_the_kind_of_key() -> None:
    """RSA needs keyEncipherment, ECC keyAgreement; one in place of the other is refused."""
    key = forge.private("ek-p256")
    wrong = forge.certificate(forge.spki(key), forge.profile(is_rsa=True))
    with pytest.raises(EKCertificateRejected, match="key_agreement"):
        verify(wrong, "L-2")


@pytest.mark.parametrize(
    ("at", "good"),
    [
        (datetime(2024, 12, 31, 23, 59, 59, tzinfo=UTC), False),
        (datetime(2025, 1, 1, tzinfo=UTC), True),
        (datetime(2055, 1, 1, tzinfo=UTC), True),
        (datetime(2055, 1, 1, 0, 0, 1, tzinfo=UTC), False),
    ],
)
def test_n50_n51_validity_ends_are_included(at: datetime, good: bool) -> None:
    """A second outside is outside."""
    if good:
        verify(GOOD, at=at)
    else:
        with pytest.raises(EKCertificateRejected, match="not now"):
            verify(GOOD, at=at)


def test_n55_the_simulator_passes_only_where_it_is_allowed() -> None:
    """Swtpm's manufacturer id is no vendor's; the development setting lets it, and nothing else, through."""
    simulator = (OWN / "hostile" / "ek" / "n55-manufacturer-simulator.der").read_bytes()
    assert verify(simulator, simulator=True).vendor == "simulator"
    unknown = (OWN / "hostile" / "ek" / "n55-manufacturer-unknown.der").read_bytes()
    with pytest.raises(EKCertificateRejected, match="not in the TCG vendor registry"):
        verify(unknown, simulator=True)


def test_n48_the_fingerprint_of_another_template_with_the_same_key_is_the_same_key() -> None:
    """The certificate binds the key, the template is judged elsewhere: L-1's certificate fits H-1's public."""
    assert verify(GOOD, "H-1").sha256 == verify(GOOD, "L-1").sha256


@pytest.mark.parametrize(
    "key_info",
    [
        pytest.param(forge.spki(RSA_KEY)[:-3] + b"\x80\x00\x01", id="negative exponent"),
        pytest.param(forge.spki(forge.private("ek-p256"))[:-64] + bytes(64), id="point at zero"),
        pytest.param(
            forge.seq(
                forge.seq(forge.oid("1.2.840.10045.2.1"), forge.oid("1.3.132.0.10")),
                forge.bit_string(b"\x04" + bytes(64)),
            ),
            id="secp256k1",
        ),
        pytest.param(
            forge.seq(
                forge.seq(forge.oid("1.2.840.10045.2.1"), forge.tlv(0x05)),
                forge.bit_string(b"\x04" + bytes(64)),
            ),
            id="implicit curve",
        ),
        pytest.param(
            forge.seq(forge.seq(forge.oid("1.3.101.112")), forge.bit_string(bytes(32))), id="Ed25519"
        ),
        pytest.param(
            forge.seq(
                forge.seq(forge.oid("1.2.840.113549.1.1.1"), forge.tlv(0x05)), forge.bit_string(b"\x30\x00")
            ),
            id="RSA without numbers",
        ),
    ],
)
def test_a_certified_key_of_another_kind_is_refused(key_info: bytes) -> None:
    """Whatever stands where the key should, the answer is a refusal, never another exception."""
    data = forge.certificate(key_info, forge.profile(is_rsa=True))
    with pytest.raises((EKCertificateRejected, MalformedEvidence)):
        verify(data)


def test_a_san_without_tpm_names_beside_other_kinds_of_name() -> None:
    """DNS names do not count as directory names, and do not disturb one."""
    names = forge.san(forge.TPM_NAMES)
    with_dns = forge.seq(forge.tlv(0x82, b"tpm.example"), names[2:])
    verify(made({"san": forge.extension("2.5.29.17", with_dns, critical=True)}))
    only_dns = forge.seq(forge.tlv(0x82, b"tpm.example"))
    with pytest.raises(EKCertificateRejected, match="0 directory names"):
        verify(made({"san": forge.extension("2.5.29.17", only_dns, critical=True)}))


def test_no_changed_byte_names_another_key() -> None:
    """N58 as far as it goes without an issuer: a changed certificate is refused or claims the same EK still.

    The signature is judged with the chain; here nobody can turn a certificate into one for another key.
    """
    accepted = 0
    sha256 = verify(GOOD).sha256
    for at in range(len(GOOD)):
        data = bytearray(GOOD)
        data[at] ^= 1 << at % 8
        try:
            claims = verify(bytes(data))
        except (MalformedEvidence, EKCertificateRejected):
            continue
        accepted += 1
        assert claims.sha256 != sha256
    assert accepted < len(GOOD) // 2


@needs_shared
def test_swtpm_certificates_are_read_and_refused_outside_development() -> None:
    """Real bytes of swtpm: L-1 belongs to its EK; the P-384 one does not belong to the P-256 EK."""
    rsa_cert = (SHARED / "tpm/ek/ekcert-rsa2048.nv.der").read_bytes()
    ek = parse_public((SHARED / "tpm/rsa/ek.tpm2b_public").read_bytes())
    with pytest.raises(EKCertificateRejected, match="id:00001014"):
        ek_certificate.verify(ek_certificate.parse(rsa_cert), ek=ek, at=AT, allow_simulator=False)
    claims = ek_certificate.verify(ek_certificate.parse(rsa_cert), ek=ek, at=AT, allow_simulator=True)
    assert (claims.vendor, claims.model, claims.firmware) == ("simulator", "swtpm", "id:20191023")
    assert claims.not_after.year == 9999
    ecc_cert = (SHARED / "tpm/ek/ekcert-ecc384.nv.der").read_bytes()
    with pytest.raises(EKCertificateRejected, match="another key"):
        ek_certificate.verify(
            ek_certificate.parse(ecc_cert),
            ek=parse_public((SHARED / "tpm/ecc/ek.tpm2b_public").read_bytes()),
            at=AT,
            allow_simulator=True,
        )


@needs_shared
def test_swtpm_certificate_cut_or_padded() -> None:
    """Cut by one byte: malformed; padded in three ways: the same certificate."""
    der = (SHARED / "tpm/ek/ekcert-rsa2048.nv.der").read_bytes()
    with pytest.raises(MalformedEvidence):
        ek_certificate.parse(der[:-1])
    for padding in (b"\x11" * 192, bytes(300), bytes(i * 7 % 256 for i in range(431))):
        assert ek_certificate.parse(der + padding).der == der


def test_an_extension_that_appears_twice_is_refused() -> None:
    """Readers would disagree about which one counts (RFC 5280, 4.2)."""
    ek, at = SoftwareEK("L-2"), datetime(2026, 11, 21, tzinfo=UTC)
    authority = CertificateAuthority("twice", seed=1, at=at)
    options = EKCertificateOptions(defect=Defect.DUPLICATE_EXTENSION)
    parsed = ek_certificate.parse(make_ek_certificate(ek.public, authority, at=at, options=options))
    with pytest.raises(EKCertificateRejected, match="twice"):
        ek_certificate.verify(parsed, ek=ek.public, at=at, allow_simulator=True)


# ---------------------------------------------------------------- what is only recorded

SPECIFICATION, ASSERTIONS = "2.23.133.2.16", "2.23.133.2.18"


def recorded(*attributes: bytes) -> EKCertificateClaims:
    """Return the claims of a certificate with these SubjectDirectoryAttributes."""
    return verify(made({"sda": forge.extension("2.5.29.9", forge.seq(*attributes))}))


def attribute(kind: str, *members: bytes) -> bytes:
    """Return one attribute whose value is a sequence."""
    return forge.seq(forge.oid(kind), forge.tlv(0x31, forge.seq(*members)))


def ia5(text: str) -> bytes:
    return forge.tlv(0x16, text.encode())


def enumerated(value: int) -> bytes:
    return forge.tlv(0x0A, bytes([value]))


TRUE = forge.tlv(0x01, b"\xff")


def test_the_specification_is_recorded() -> None:
    """Family, level and revision, as the maker wrote them."""
    found = recorded(attribute(SPECIFICATION, forge.utf8("2.0"), forge.integer(0), forge.integer(138)))
    assert found.specification == TPMSpecification(family="2.0", level=0, revision=138)
    assert found.security_assertions is None
    odd = recorded(attribute(SPECIFICATION, forge.integer(2), forge.integer(0), forge.integer(138)))
    assert odd.specification == TPMSpecification(family="", level=0, revision=138)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ((), (False, None, None, None, None)),
        ((forge.integer(1), TRUE), (True, None, None, None, None)),
        (
            (forge.tlv(0x80, b"\1"), forge.tlv(0x81, b"\2")),
            (False, "injected", "ek-certificate-signer", None, None),
        ),
        ((forge.tlv(0x80, b"\x09"), forge.tlv(0x81, b"\x09")), (False, None, None, None, None)),
        (
            (
                forge.tlv(0xA3, ia5("3.1"), enumerated(4), enumerated(2), TRUE),
                forge.tlv(0xA4, ia5("140-2"), enumerated(2)),
            ),
            (False, None, None, "EAL4+", "140-2 level 2"),
        ),
    ],
)
def test_security_assertions_are_recorded(members: tuple[bytes, ...], expected: tuple[object, ...]) -> None:
    """Every member is optional, and a value that nobody knows is not recorded."""
    found = recorded(attribute(ASSERTIONS, *members)).security_assertions
    assert found is not None
    assert (
        found.field_upgradable,
        found.ek_generation,
        found.ek_generation_place,
        found.common_criteria,
        found.fips,
    ) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        forge.integer(1),
        forge.seq(forge.integer(1)),
        forge.seq(forge.seq(forge.oid(ASSERTIONS), forge.tlv(0x31))),
        forge.seq(attribute(ASSERTIONS, b"\x02\x05\x01"), attribute(SPECIFICATION, forge.utf8("2.0"))),
        forge.seq(attribute(ASSERTIONS, forge.tlv(0xA3, ia5("3.1"))), attribute(SPECIFICATION)),
        forge.seq(attribute(ASSERTIONS, forge.tlv(0xA4, enumerated(1)))),
        forge.seq(attribute(ASSERTIONS, forge.tlv(0x80))),
        forge.seq(attribute(ASSERTIONS, forge.tlv(0x80, bytes(300)))),
    ],
)
def test_what_cannot_be_read_there_is_not_recorded(value: bytes) -> None:
    """Nothing is decided by it, so it refuses nobody: makers encode it oddly."""
    found = verify(made({"sda": forge.extension("2.5.29.9", value)}))
    assert (found.specification, found.security_assertions) == (None, None)


def test_one_that_cannot_be_read_does_not_hide_the_other() -> None:
    """Each attribute for itself."""
    good = attribute(SPECIFICATION, forge.utf8("2.0"), forge.integer(0), forge.integer(138))
    found = recorded(attribute(ASSERTIONS, b"\x02\x05\x01"), good)
    assert found.specification is not None
    assert found.security_assertions is None


def test_anomalies_are_told() -> None:
    """What was accepted though it is odd, padding of the NV index included."""
    assert verify(GOOD).anomalies == ()
    odd = made(serial=forge.tlv(2, b"\0\0\x17")) + bytes(300)
    assert verify(odd).anomalies == ("serial number is zero padded", "300 bytes of padding")


@pytest.mark.parametrize(
    "value", [b"", forge.integer(1), forge.seq(b"\xa4\x05"), forge.seq(forge.tlv(0xA4, forge.integer(1)))]
)
def test_a_san_that_cannot_be_read_is_malformed(value: bytes) -> None:
    """It is told where bytes are read, not where they are judged."""
    with pytest.raises(MalformedEvidence):
        ek_certificate.parse(made({"san": forge.extension("2.5.29.17", value, critical=True)}))
