"""Certificates as they are: lenient in what was published, strict in everything else (TPM.md §2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from asn1crypto import x509 as asn1_x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.certificate import (
    Certificate,
    key_weakness,
    parse_certificate,
    signature_scheme,
    verify_signed,
)
from attestation.errors import MalformedEvidence, SignatureInvalid
from attestation_testing import CAOptions, CertificateAuthority
from attestation_testing.ek_zoo import Zoo
from tests.vectors import forge

RSA_KEY = forge.rsa_private("ek-rsa2048")
ROOT = CertificateAuthority("Root", seed=1)
CHILD = CertificateAuthority("Child", seed=2, parent=ROOT)
ZOO = Zoo()


def made(
    extensions: Mapping[str, bytes] | None = None, key: bytes = forge.spki(RSA_KEY), **fields: bytes
) -> bytes:
    """Return a certificate with *extensions* replaced and *fields* changed."""
    return forge.certificate(key, {**forge.profile(is_rsa=True), **(extensions or {})}, **fields)


def read(extensions: Mapping[str, bytes] | None = None, **fields: bytes) -> Certificate:
    """Read such a certificate."""
    return parse_certificate(made(extensions, **fields))


# ---------------------------------------------------------------- what is read


def test_every_field_is_read() -> None:
    """Against asn1crypto, which shares no code with our reader."""
    for ca in ZOO.held:
        ours, theirs = parse_certificate(ca.der), asn1_x509.Certificate.load(ca.der)
        assert ours.der == ca.der
        assert ours.tbs == theirs["tbs_certificate"].dump()
        assert ours.sha256 == theirs.sha256.hex()
        assert ours.subject == theirs.subject.human_friendly
        assert ours.issuer == theirs.issuer.human_friendly
        assert ours.serial == theirs.serial_number
        assert ours.version == 3
        assert (ours.not_before, ours.not_after) == (theirs.not_valid_before, theirs.not_valid_after)
        assert ours.ski == theirs.key_identifier
        assert ours.aki == theirs.authority_key_identifier
        assert (ours.is_ca, ours.path_length) == (theirs.ca, theirs.max_path_length)
        assert ours.key_usage == theirs.key_usage_value.native
        assert ours.signature == theirs.signature
        assert ours.signature_algorithm == theirs["signature_algorithm"]["algorithm"].native
        assert ours.self_issued == (theirs.self_issued)
        assert ours.key_id == theirs.public_key.sha1
        assert ours.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) == ours.spki
        assert len({ours, parse_certificate(ca.der)}) == 1


@pytest.mark.parametrize(
    ("fields", "anomaly"),
    [
        ({"serial": forge.tlv(2, b"\0\0\x17")}, "serial number is zero padded"),
        ({"serial": forge.tlv(2, b"\x85\x01")}, "serial number is not positive"),
        ({"serial": forge.integer(0)}, "serial number is not positive"),
        ({"key": forge.oaep_spki(RSA_KEY)}, "key type is RSAES-OAEP"),
        ({"algorithm": forge.seq(forge.ECDSA_SHA256, b"\x05\0")}, "ECDSA with NULL parameters"),
        (
            {"issuer": forge.seq(forge.rdn(("2.5.4.6", "TW"), ("2.5.4.3", "x")))},
            "issuer: an RDN is not sorted as DER demands",
        ),
        (
            {"subject": forge.seq(forge.rdn(("2.5.4.3", "x" * 65)))},
            "subject: an attribute is longer than 64 characters",
        ),
    ],
)
def test_what_is_odd_is_read_and_named(fields: dict[str, bytes], anomaly: str) -> None:
    """Each quirk of TPM.md §2.2, alone, in any certificate."""
    assert parse_certificate(made(**fields)).anomalies == (anomaly,)  # type: ignore[arg-type]  # fields only
    assert read().anomalies == ()


def test_bytes_behind_a_certificate_are_cut_off() -> None:
    """And counted; they change nothing else."""
    plain, padded = parse_certificate(made()), parse_certificate(made() + b"\x11" * 192)
    assert padded.der == plain.der
    assert padded.sha256 == plain.sha256
    assert (padded.padding_bytes, padded.anomalies) == (192, ("192 bytes of padding",))


def test_a_serial_number_of_a_full_first_byte_is_not_padded() -> None:
    """The zero in front of 80 and more is needed."""
    assert read(serial=forge.integer(0x80)).anomalies == ()


def test_one_key_has_one_spki() -> None:
    """RSAES-OAEP, a zero in front of the modulus, a compressed point: compared, they are the same key."""
    assert read(key=forge.oaep_spki(RSA_KEY)).spki == forge.spki(RSA_KEY)
    numbers = RSA_KEY.public_key().public_numbers()
    bare = forge.seq(forge.tlv(2, bytes(3) + numbers.n.to_bytes(256)), forge.integer(numbers.e))
    padded = forge.seq(forge.seq(forge.oid("1.2.840.113549.1.1.1")), forge.bit_string(bare))
    assert read(key=padded).spki == forge.spki(RSA_KEY)
    for label in ("ek-p256", "ek-p384", "ek-p521"):
        key = forge.private(label)
        point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
        curve = forge.oid(
            {"p256": "1.2.840.10045.3.1.7", "p384": "1.3.132.0.34", "p521": "1.3.132.0.35"}[label[3:]]
        )
        info = forge.seq(forge.seq(forge.oid("1.2.840.10045.2.1"), curve), forge.bit_string(point))
        assert read(key=info).spki == forge.spki(key)
        assert read(key=info).key == f"ec-{'secp' + label[4:]}r1"


@pytest.mark.parametrize(
    "info",
    [
        pytest.param(
            forge.seq(forge.seq(forge.oid("1.3.101.112")), forge.bit_string(bytes(32))), id="Ed25519"
        ),
        pytest.param(
            forge.seq(
                forge.seq(forge.oid("1.2.840.10045.2.1"), forge.oid("1.3.132.0.10")),
                forge.bit_string(b"\x04" + bytes(64)),
            ),
            id="secp256k1",
        ),
        pytest.param(
            forge.seq(forge.seq(forge.oid("1.2.840.10045.2.1"), b"\x05\0"), forge.bit_string(b"\x04")),
            id="no curve",
        ),
        pytest.param(
            forge.seq(forge.seq(forge.oid("1.2.840.10045.2.1")), forge.bit_string(b"\x04")),
            id="no parameters",
        ),
        pytest.param(
            forge.seq(
                forge.seq(forge.oid("1.2.840.10045.2.1"), forge.oid("1.2.840.10045.3.1.7"), b"\x05\0"),
                forge.bit_string(b"\x04" + bytes(64)),
            ),
            id="two parameters",
        ),
        pytest.param(
            forge.seq(
                forge.seq(forge.oid("1.2.840.10045.2.1"), forge.oid("1.2.840.10045.3.1.7")),
                forge.bit_string(b"\x02" + b"\xff" * 32),
            ),
            id="no such compressed point",
        ),
        *(
            pytest.param(
                forge.seq(
                    forge.seq(forge.oid("1.2.840.113549.1.1.1"), b"\x05\0"),
                    forge.bit_string(forge.seq(*numbers)),
                ),
                id=words,
            )
            for words, numbers in {
                "no numbers": (),
                "not integers": (b"\x05\0", b"\x05\0"),
                "negative modulus": (forge.tlv(2, b"\xff"), forge.integer(65537)),
                "exponent one": (forge.integer(15), forge.integer(1)),
                "even exponent": (forge.integer(15), forge.integer(4)),
                "long exponent": (forge.integer(15), forge.integer((1 << 32) + 1)),
            }.items()
        ),
    ],
)
def test_a_key_of_another_kind_is_read_and_signs_nothing(info: bytes) -> None:
    """A bundle may hold one; whatever it is said to have signed is refused."""
    issuer = read(key=info)
    assert issuer.key == "other"
    assert key_weakness(issuer) is not None
    with pytest.raises(SignatureInvalid):
        _ = issuer.public_key
    with pytest.raises(SignatureInvalid, match="neither RSA nor ECC"):
        read().verify_issued_by(issuer)


def test_a_point_off_its_curve_is_no_key() -> None:
    """It looks like one until it is used."""
    info = forge.spki(forge.private("ek-p256"))
    issuer = read(key=info[:-64] + bytes(64))
    assert issuer.key == "ec-secp256r1"
    with pytest.raises(SignatureInvalid, match="does not exist"):
        read().verify_issued_by(issuer)


def test_extensions_are_read() -> None:
    """Words and numbers; absent is None, not the strictest or the loosest."""
    plain = parse_certificate(forge.certificate(forge.spki(RSA_KEY), {"x": forge.extension("1.2.3", b"")}))
    assert (plain.is_ca, plain.path_length, plain.key_usage, plain.aki, plain.ski) == (
        False,
        None,
        None,
        None,
        None,
    )
    assert plain.extended_key_usage == frozenset()
    assert plain.critical_unknown is None
    ca = read({"bc": forge.extension("2.5.29.19", forge.seq(forge.tlv(1, b"\x01"), forge.integer(3)))})
    assert (ca.is_ca, ca.path_length) == (True, 3)
    odd = read({"bc": forge.extension("2.5.29.19", forge.seq(forge.integer(3)))})
    assert (odd.is_ca, odd.path_length) == (False, 3)
    assert read().extended_key_usage == {"2.23.133.8.1"}
    assert read().key_usage == frozenset({"key_encipherment"})
    no_id = read({"aki": forge.extension("2.5.29.35", forge.seq(forge.tlv(0x82, b"\x05")))})
    assert no_id.aki is None
    critical = read({"x": forge.extension("1.2.3", b"", critical=True)})
    assert critical.critical_unknown == "1.2.3"
    assert read({"x": forge.extension("1.2.3", b"")}).critical_unknown is None


@pytest.mark.threat("T59")
def test_any_byte_but_zero_says_critical() -> None:
    """Read as false, a critical extension that we do not process would be passed over."""
    odd = forge.seq(forge.oid("1.2.3"), forge.tlv(1, b"\x01"), forge.tlv(4, b""))
    assert read({"x": odd}).critical_unknown == "1.2.3"
    no = forge.seq(forge.oid("1.2.3"), forge.tlv(1, b"\0"), forge.tlv(4, b""))
    assert read({"x": no}).critical_unknown is None


@pytest.mark.threat("T59")
def test_an_extension_that_stands_twice_is_named() -> None:
    """The first one counts for the reader; paths and profile refuse the certificate."""
    again = read({"x": forge.extension("2.5.29.19", forge.seq(forge.tlv(1, b"\xff")), critical=True)})
    assert again.repeated_extension == "2.5.29.19"
    assert not again.is_ca
    thrice = read({"x": forge.extension("1.2.3", b""), "y": forge.extension("1.2.3", b"")})
    assert thrice.repeated_extension == "1.2.3"


@pytest.mark.parametrize(
    "version", [b"", forge.tlv(0xA0, forge.integer(0)), forge.tlv(0xA0, forge.integer(1))]
)
def test_versions(version: bytes) -> None:
    """Absent is version 1."""
    assert read(version=version).version == (2 if version.endswith(b"\1") else 1)


def _rebuilt(*parts: bytes) -> bytes:
    return forge.seq(*parts)


GOOD = made()
_TBS = parse_certificate(GOOD).tbs
_REST = GOOD[4 + len(_TBS) :]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(GOOD[:-1], id="cut"),
        pytest.param(bytes(8193), id="long"),
        pytest.param(_rebuilt(_TBS), id="no algorithm"),
        pytest.param(_rebuilt(_TBS, _REST, b"\x05\0"), id="four parts"),
        pytest.param(
            _rebuilt(_TBS, forge.seq(forge.ECDSA_SHA256), forge.tlv(3, b"")),
            id="signature without first byte",
        ),
        pytest.param(
            _rebuilt(_TBS, forge.seq(forge.ECDSA_SHA256), forge.tlv(3, b"\1a")),
            id="signature of broken bytes",
        ),
        pytest.param(_rebuilt(_TBS, forge.seq(), forge.tlv(3, b"\0a")), id="algorithm without name"),
        pytest.param(made(serial=forge.tlv(2, bytes(65))), id="serial of 65 bytes"),
        pytest.param(made(serial=forge.tlv(4, b"a")), id="serial is no number"),
        pytest.param(made(version=forge.tlv(0xA0, forge.tlv(2, b"\xff"))), id="negative version"),
        pytest.param(made(not_before=forge.utc_time("x")), id="no time"),
        pytest.param(made(not_after=forge.utc_time("250101000000Z") * 2), id="three times"),
        pytest.param(made(issuer=forge.integer(1)), id="issuer is no name"),
        pytest.param(made(subject=forge.seq(forge.integer(1))), id="subject is no name"),
        pytest.param(made(key=forge.seq()), id="no key"),
        pytest.param(made(key=forge.spki(RSA_KEY) + forge.tlv(0xA4)), id="unknown field"),
        pytest.param(
            made(key=forge.spki(RSA_KEY) + forge.tlv(0xA2) + forge.tlv(0xA1)), id="fields out of order"
        ),
        pytest.param(
            made(key=forge.seq(forge.seq(forge.oid("1.2.3")), forge.bit_string(b""), b"\x05\0")),
            id="behind the key",
        ),
        pytest.param(
            made({"bc": forge.extension("2.5.29.19", forge.seq(forge.integer(1), forge.integer(1)))}),
            id="two lengths",
        ),
        pytest.param(
            made({"bc": forge.extension("2.5.29.19", forge.seq(forge.tlv(2, b"\xff")))}),
            id="negative path length",
        ),
        pytest.param(
            made({"bc": forge.extension("2.5.29.19", forge.seq(forge.integer(1), forge.tlv(1, b"\xff")))}),
            id="CA behind the length",
        ),
        pytest.param(
            made({"bc": forge.extension("2.5.29.19", forge.integer(1))}), id="constraints are no sequence"
        ),
        pytest.param(
            made({"ku": forge.extension("2.5.29.15", forge.bit_string(b"\x80", 8))}), id="eight unused bits"
        ),
        pytest.param(made({"x": forge.extension("2.5.29.14", forge.integer(1))}), id="SKI is a number"),
        pytest.param(made({"x": forge.integer(1)}), id="extension is no sequence"),
        pytest.param(
            made({"x": forge.seq(forge.oid("1.2.3"), forge.integer(1))}), id="extension without value"
        ),
        pytest.param(
            made({"x": forge.seq(forge.oid("1.2.3"), forge.tlv(4), forge.tlv(4))}),
            id="extension with two values",
        ),
        pytest.param(
            made({str(i): forge.extension(f"1.2.{i}", b"") for i in range(64)}), id="too many extensions"
        ),
        pytest.param(
            made(key=forge.spki(RSA_KEY) + forge.tlv(0xA3, forge.seq(), forge.seq())),
            id="behind the extensions",
        ),
    ],
)
def test_what_is_no_certificate_is_malformed(data: bytes) -> None:
    """One error, whatever is wrong."""
    with pytest.raises(MalformedEvidence):
        parse_certificate(data)


def test_unique_identifiers_are_passed_over() -> None:
    """Version 2 had them; nobody uses them."""
    info = forge.spki(RSA_KEY) + forge.tlv(0x81, b"\0a") + forge.tlv(0x82, b"\0b")
    assert parse_certificate(forge.certificate(info, forge.profile(is_rsa=True))).key == "rsa-2048"


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 7))
def test_a_changed_bit_is_read_or_malformed(where: int, bit: int) -> None:
    """Nothing else leaves the reader, and what is read again says what it is."""
    data = bytearray(GOOD)
    data[where] ^= 1 << bit
    try:
        found = parse_certificate(bytes(data))
    except MalformedEvidence:
        return
    assert found.der == bytes(data[: len(found.der)])
    assert found.tbs in found.der


# ---------------------------------------------------------------- signatures


@pytest.mark.parametrize("kind", ["p256", "p384", "p521", "rsa2048", "rsa3072", "rsa4096", "pss"])
def test_every_kind_of_signature_is_verified(kind: str) -> None:
    """RSA with PKCS#1 and PSS, ECDSA on three curves; the right key only."""
    key = forge.private(f"ek-{'rsa2048' if kind == 'pss' else kind}")
    ca = CertificateAuthority("CA", key=key, options=CAOptions(pss=kind == "pss"))
    child = parse_certificate(CertificateAuthority("Child", seed=3, parent=ca).certificate)
    issuer = parse_certificate(ca.certificate)
    child.verify_issued_by(issuer)
    issuer.verify_issued_by(issuer)
    with pytest.raises(SignatureInvalid):
        child.verify_issued_by(child)
    changed = bytearray(child.der)
    changed[-1] ^= 1
    with pytest.raises(SignatureInvalid, match="not signed by the key of Common Name: CA"):
        parse_certificate(bytes(changed)).verify_issued_by(issuer)


@pytest.mark.threat("T59")
@pytest.mark.parametrize("where", range(0, 320, 16))
def test_no_bit_of_the_signed_part_may_change(where: int) -> None:
    """The signature is over the bytes received."""
    issuer = parse_certificate(ROOT.certificate)
    for bit in (1, 0x40):
        data = bytearray(CHILD.certificate)
        data[8 + where] ^= bit
        with pytest.raises((MalformedEvidence, SignatureInvalid)):
            parse_certificate(bytes(data)).verify_issued_by(issuer)


@pytest.mark.threat("T59")
def test_sha1_needs_leave_for_this_very_certificate() -> None:
    """N59: collisions can be made; only bytes that somebody pinned are safe."""
    for label in ("ek-rsa2048", "ek-p256"):
        ca = CertificateAuthority("CA", key=forge.private(label))
        issuer = parse_certificate(ca.certificate)
        weak = [
            parse_certificate(
                CertificateAuthority(name, seed=4, parent=ca, options=CAOptions(sha1=True)).certificate
            )
            for name in ("One", "Other")
        ]
        weak[0].verify_issued_by(issuer, sha1_allowed={weak[0].sha256})
        for allowed in ((), {weak[1].sha256}):
            with pytest.raises(SignatureInvalid, match="SHA-1"):
                weak[0].verify_issued_by(issuer, sha1_allowed=allowed)


@pytest.mark.threat("T59")
def test_both_statements_of_the_algorithm_agree() -> None:
    """The one behind the signed part is not signed; alone it could choose a weaker one."""
    outer = parse_certificate(ROOT.certificate)
    changed = ROOT.certificate.replace(forge.oid("1.2.840.10045.4.3.2"), forge.oid("1.2.840.10045.4.3.3"), 2)
    both = ROOT.certificate.replace(forge.oid("1.2.840.10045.4.3.2"), forge.oid("1.2.840.10045.4.3.3"), 1)
    outer.verify_issued_by(outer)
    with pytest.raises(SignatureInvalid, match="inside the signed part"):
        parse_certificate(both).verify_issued_by(outer)
    with pytest.raises(SignatureInvalid, match="not signed"):
        parse_certificate(changed).verify_issued_by(outer)


@pytest.mark.threat("T59")
@pytest.mark.parametrize("bits", [1024, 8200])
def test_keys_that_are_too_short_or_too_long_sign_nothing(bits: int) -> None:
    """The short ones can be broken, the long ones cost whoever is shown them."""
    bare = forge.seq(forge.integer((1 << bits - 1) + 1), forge.integer(65537))
    info = forge.seq(forge.seq(forge.oid("1.2.840.113549.1.1.1"), b"\x05\0"), forge.bit_string(bare))
    issuer = read(key=info)
    assert issuer.key == f"rsa-{bits}"
    with pytest.raises(SignatureInvalid, match=f"RSA key of {bits} bits"):
        read().verify_issued_by(issuer)
    assert key_weakness(read()) is None


def test_an_algorithm_that_does_not_fit_the_key_is_refused() -> None:
    """RSA under an ECC key, ECDSA under an RSA key, and what nobody knows."""
    rsa_issuer, ec_issuer = read(), parse_certificate(ROOT.certificate)
    for algorithm, issuer in (
        (forge.seq(forge.oid("1.2.840.113549.1.1.11"), b"\x05\0"), ec_issuer),
        (forge.seq(forge.ECDSA_SHA256), rsa_issuer),
        (forge.seq(forge.oid("1.3.101.112")), rsa_issuer),
        (forge.seq(forge.oid("1.3.101.112")), ec_issuer),
        (forge.seq(forge.ECDSA_SHA256, forge.integer(1)), ec_issuer),
    ):
        with pytest.raises(SignatureInvalid, match="does not fit"):
            verify_signed(b"", b"", signature_scheme(algorithm), issuer)
    with pytest.raises(SignatureInvalid, match="its issuer"):
        verify_signed(b"", b"", signature_scheme(forge.seq(forge.oid("1.2.840.113549.1.1.11"))), rsa_issuer)


# ---------------------------------------------------------------- RSASSA-PSS parameters (RFC 4055, 3.1)

SHA1, SHA256, SHA512 = "1.3.14.3.2.26", "2.16.840.1.101.3.4.2.1", "2.16.840.1.101.3.4.2.3"


def pss(*members: bytes) -> bytes:
    """Return the AlgorithmIdentifier of PSS."""
    return forge.seq(forge.oid("1.2.840.113549.1.1.10"), forge.seq(*members))


def digest(tag: int, kind: str) -> bytes:
    """Return [0] hashAlgorithm, or the like."""
    return forge.tlv(tag, forge.seq(forge.oid(kind), b"\x05\0"))


def mgf(kind: str, function: str = "1.2.840.113549.1.1.8") -> bytes:
    """Return [1] maskGenAlgorithm."""
    return forge.tlv(0xA1, forge.seq(forge.oid(function), forge.seq(forge.oid(kind))))


def salt(size: int) -> bytes:
    """Return [2] saltLength."""
    return forge.tlv(0xA2, forge.integer(size))


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        (pss(digest(0xA0, SHA256), mgf(SHA256), salt(32)), "sha256_rsa_pss"),
        (
            pss(digest(0xA0, SHA512), mgf(SHA256), salt(20), forge.tlv(0xA3, forge.integer(1))),
            "sha512_rsa_pss",
        ),
        (pss(), "sha1_rsa_pss"),
        (pss(digest(0xA0, SHA256)), "1.2.840.113549.1.1.10"),
        (pss(digest(0xA0, SHA256), mgf(SHA1)), "1.2.840.113549.1.1.10"),
        (pss(digest(0xA0, SHA256), mgf(SHA256, "1.2.3")), "1.2.840.113549.1.1.10"),
        (pss(digest(0xA0, "1.2.3"), mgf(SHA256)), "1.2.840.113549.1.1.10"),
        (pss(digest(0xA0, SHA256), mgf(SHA256), salt(33)), "1.2.840.113549.1.1.10"),
        (pss(digest(0xA0, SHA256), mgf(SHA256), forge.tlv(0xA3, forge.integer(2))), "1.2.840.113549.1.1.10"),
        (
            forge.seq(
                forge.oid("1.2.840.113549.1.1.10"),
                forge.seq(),
            ),
            "sha1_rsa_pss",
        ),
        (forge.seq(forge.oid("1.2.3"), bytes(200)), "1.2.3"),
    ],
)
def test_pss_parameters(algorithm: bytes, name: str) -> None:
    """SHA-256 and up in both places, a salt no longer than the digest; what is absent is SHA-1."""
    scheme = signature_scheme(algorithm)
    assert scheme.name == name
    assert (scheme.kind == "other") == name.startswith("1.")


@pytest.mark.parametrize(
    "algorithm",
    [
        pss(mgf(SHA256), digest(0xA0, SHA256)),
        pss(digest(0xA0, SHA256), digest(0xA0, SHA256)),
        pss(forge.tlv(0xA4)),
        pss(forge.integer(1)),
        pss(salt(32) + b"\0"),
        pss(forge.tlv(0xA2, forge.tlv(4, b"a"))),
        forge.seq(forge.oid("1.2.840.113549.1.1.10")),
        forge.seq(forge.oid("1.2.840.113549.1.1.10"), forge.seq(), b"\0"),
        b"\x05\0",
    ],
)
def test_pss_parameters_that_cannot_be_read(algorithm: bytes) -> None:
    """Out of order, twice, of another type."""
    with pytest.raises(MalformedEvidence):
        signature_scheme(algorithm)


def test_pss_is_verified_as_its_parameters_say() -> None:
    """Hash, mask generation and salt length are those that were signed with; another length is refused."""
    key, issuer = RSA_KEY, read()
    scheme = signature_scheme(pss(digest(0xA0, SHA512), mgf(SHA256), salt(17)))
    for size, good in ((17, True), (18, False)):
        signature = key.sign(b"signed", padding.PSS(padding.MGF1(hashes.SHA256()), size), hashes.SHA512())
        if good:
            verify_signed(b"signed", signature, scheme, issuer)
        else:
            with pytest.raises(SignatureInvalid):
                verify_signed(b"signed", signature, scheme, issuer)


def test_dates_are_in_utc() -> None:
    """Aware, so that they compare with any instant."""
    found = read()
    assert (found.not_before, found.not_after) == (
        datetime(2025, 1, 1, tzinfo=UTC),
        datetime(2055, 1, 1, tzinfo=UTC),
    )


def test_the_key_is_loaded_once() -> None:
    """Loading is most of the work of looking at an issuer."""
    found = read()
    assert found.public_key is found.public_key
    assert isinstance(found.public_key, rsa.RSAPublicKey)
    assert isinstance(parse_certificate(ROOT.certificate).public_key, ec.EllipticCurvePublicKey)
