"""Revocation lists: what they say, who signed them, and what OpenSSL and others make of them."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asn1crypto import crl as asn1_crl
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from dilithium_py.ml_dsa import ML_DSA_87
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements import der
from attestation.endorsements.revocation import parse_crl
from attestation.errors import KeyUnsupported, MalformedEvidence, RequestInvalid
from attestation.pki.crl import CRLEntry, Reason, build_crl
from attestation.pki.issuer import identity_of
from tests.unit.pki.revocation_kit import ALGORITHMS, AT, key_of, pki

openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

ENTRIES = (
    CRLEntry(serial=(1 << 158) + 5, at=AT - timedelta(hours=2), reason=Reason.CERTIFICATE_HOLD),
    CRLEntry(serial=7, at=AT - timedelta(days=1), reason=Reason.KEY_COMPROMISE),
    CRLEntry(serial=0x7F << 152, at=AT, reason=Reason.UNSPECIFIED),
)


def made(algorithm: str = "ecdsa-p384", **changed: Any) -> bytes:
    """Return a list of the test CA."""
    ca = pki(algorithm)
    values: dict[str, Any] = {
        "number": 12,
        "entries": ENTRIES,
        "this_update": AT,
        "next_update": AT + timedelta(days=1),
        **changed,
    }
    return build_crl(ca.ca, ca.ca_key, **values)


def test_says_what_it_was_told() -> None:
    """A reader of another make finds number, times, key identifier, and each entry with its reason."""
    found = x509.load_der_x509_crl(made())
    ca = x509.load_der_x509_certificate(pki("ecdsa-p384").ca)
    assert found.issuer == ca.subject
    assert (found.last_update_utc, found.next_update_utc) == (AT, AT + timedelta(days=1))
    assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 12
    key_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    assert (
        found.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == key_id
    )
    assert not any(extension.critical for extension in found.extensions)
    listed = {
        entry.serial_number: (entry.revocation_date_utc, [e.value.reason for e in entry.extensions])
        for entry in found
    }
    assert listed == {
        (1 << 158) + 5: (AT - timedelta(hours=2), [x509.ReasonFlags.certificate_hold]),
        7: (AT - timedelta(days=1), [x509.ReasonFlags.key_compromise]),
        0x7F << 152: (AT, []),
    }


def test_our_own_reader_agrees() -> None:
    """The reader by which we judge the lists of TPM vendors finds nothing wrong with ours."""
    found = parse_crl(made())
    assert found.unusable is None
    assert found.number == 12
    assert dict(found.revoked) == {
        (1 << 158) + 5: "certificate hold",
        7: "key compromise",
        0x7F << 152: "unspecified",
    }


def test_nothing_revoked() -> None:
    """An empty list leaves the member out, as RFC 5280 §5.1.2.6 demands."""
    data = made(entries=())
    assert list(x509.load_der_x509_crl(data)) == []
    assert asn1_crl.CertificateList.load(data)["tbs_cert_list"]["revoked_certificates"].native is None


@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "rsa-4096"])
def test_signed_by_the_ca(algorithm: str) -> None:
    """The CA's key signed it, and no other did."""
    found = x509.load_der_x509_crl(made(algorithm))
    public = pki(algorithm).ca_key.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
    assert found.is_signature_valid(public)
    assert not found.is_signature_valid(ec.generate_private_key(ec.SECP384R1()).public_key())
    assert found.signature_hash_algorithm is not None
    assert found.signature_hash_algorithm.name == "sha384"


def test_ml_dsa_by_an_independent_verifier() -> None:
    """dilithium-py, which shares no code with ours, accepts the signature, and refuses it over one bit less."""
    data = made("ml-dsa-87")
    found = asn1_crl.CertificateList.load(data)
    signed, signature = found["tbs_cert_list"].dump(), bytes(found["signature"].native)
    public = pki("ml-dsa-87").ca_key.public_key()
    assert isinstance(public, mldsa.MLDSA87PublicKey)
    raw = public.public_bytes_raw()
    assert ML_DSA_87.verify(raw, signed, signature)
    assert not ML_DSA_87.verify(raw, signed[:-1] + bytes((signed[-1] ^ 1,)), signature)
    for algorithm in (found["signature_algorithm"], found["tbs_cert_list"]["signature"]):
        assert algorithm["algorithm"].dotted == "2.16.840.1.101.3.4.3.19"
        assert algorithm["parameters"].native is None


@openssl
@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "rsa-4096"])
def test_openssl_obeys(algorithm: str, tmp_path: Path) -> None:
    """OpenSSL reads and verifies the list, refuses a certificate that is on it and accepts one that is not."""
    now = datetime.now(UTC).replace(microsecond=0)
    ca = pki(algorithm, now)
    (tmp_path / "leaf.der").write_bytes(ca.leaf)
    (tmp_path / "ca.der").write_bytes(ca.ca)
    for name in ("leaf", "ca"):
        subprocess.run(
            ["openssl", "x509", "-inform", "DER", "-in", f"{name}.der", "-out", f"{name}.pem"],
            cwd=tmp_path, check=True, timeout=240,
        )  # fmt: skip
    verdicts = []
    for entries in ((), (CRLEntry(serial=ca.leaf_serial, at=now, reason=Reason.CERTIFICATE_HOLD),)):
        data = build_crl(
            ca.ca, ca.ca_key, number=3, entries=entries, this_update=now, next_update=now + timedelta(hours=1)
        )
        (tmp_path / "list.der").write_bytes(data)
        read = subprocess.run(
            ["openssl", "crl", "-inform", "DER", "-in", "list.der", "-CAfile", "ca.pem", "-verify", "-crlnumber"],
            cwd=tmp_path, check=True, timeout=240, capture_output=True, text=True,
        )  # fmt: skip
        assert "verify OK" in read.stderr
        (tmp_path / "list.pem").write_text(read.stdout[read.stdout.index("-----BEGIN") :])
        checked = subprocess.run(
            ["openssl", "verify", "-crl_check", "-x509_strict", "-CAfile", "ca.pem", "-CRLfile", "list.pem",
             "leaf.pem"],
            cwd=tmp_path, check=False, timeout=240, capture_output=True, text=True,
        )  # fmt: skip
        verdicts.append((checked.returncode, "certificate revoked" in checked.stderr))
    assert verdicts == [(0, False), (2, True)]


@pytest.mark.parametrize(
    "changed",
    [
        {"number": 0},
        {"number": 1 << 159},
        {"next_update": AT},
        {"entries": [CRLEntry(serial=0, at=AT, reason=Reason.UNSPECIFIED)]},
        {"entries": [CRLEntry(serial=-1, at=AT, reason=Reason.UNSPECIFIED)]},
        {"entries": [CRLEntry(serial=1 << 159, at=AT, reason=Reason.UNSPECIFIED)]},
    ],
)
def test_what_no_list_can_say(changed: dict[str, Any]) -> None:
    """Numbers that RFC 5280 forbids are not signed."""
    with pytest.raises(RequestInvalid):
        made(**changed)


def test_times_after_2049() -> None:
    """From 2050 on times have four digits of the year (RFC 5280 §5.1.2.4)."""
    begins = datetime(2049, 12, 31, 23, tzinfo=UTC)
    data = made(this_update=begins, next_update=begins + timedelta(hours=2))
    found = x509.load_der_x509_crl(data)
    assert found.next_update_utc == datetime(2050, 1, 1, 1, tzinfo=UTC)
    parts = asn1_crl.CertificateList.load(data)["tbs_cert_list"]
    assert (parts["this_update"].name, parts["next_update"].name) == ("utc_time", "general_time")


def test_keys_that_sign_no_lists() -> None:
    """Another curve or kind is refused before anything is signed."""
    for key in (ec.generate_private_key(ec.SECP521R1()), ed25519.Ed25519PrivateKey.generate()):
        with pytest.raises(KeyUnsupported):
            build_crl(
                pki("ecdsa-p384").ca,
                key,  # type: ignore[arg-type]
                number=1, entries=(), this_update=AT, next_update=AT + timedelta(days=1),
            )  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_identity_is_that_of_the_certificate(algorithm: str) -> None:
    """Name and key are taken byte for byte, so that hashes and comparisons of others agree."""
    ca = pki(algorithm)
    found = identity_of(ca.ca)
    certificate = x509.load_der_x509_certificate(ca.ca)
    assert found.subject == certificate.subject.public_bytes()
    assert found.key_id == x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest


@pytest.mark.parametrize("issuer", [b"", b"\x30\x00"])
def test_only_a_ca_has_a_list(issuer: bytes) -> None:
    """What is no certificate names no issuer, and nothing is signed."""
    with pytest.raises(MalformedEvidence):
        build_crl(
            issuer,
            pki("ecdsa-p384").ca_key,
            number=1,
            entries=(),
            this_update=AT,
            next_update=AT + timedelta(days=1),
        )


def test_identity_needs_a_certificate() -> None:
    """Anything else is malformed: no certificate, version 1, no extensions, no key identifier."""
    other = x509.BasicConstraints(ca=True, path_length=None)
    for data in (b"", b"\x30\x00", made(), certificate_with(other), certificate_with(), v1()):
        with pytest.raises(MalformedEvidence):
            identity_of(data)


def v1() -> bytes:
    """Return what has the outline of a certificate of version 1."""
    return der.write(
        der.SEQUENCE, der.write(der.SEQUENCE, der.write_unsigned(1) + 6 * der.write(der.SEQUENCE, b""))
    )


def certificate_with(*extensions: x509.ExtensionType) -> bytes:
    """Return a certificate of version 3 with these extensions only."""
    key = key_of("ecdsa-p384")
    name = x509.Name([])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(AT).not_valid_after(AT + timedelta(days=1))
    )  # fmt: skip
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, hashes.SHA384()).public_bytes(Encoding.DER)


@given(
    st.lists(
        st.tuples(
            st.integers(1, (1 << 159) - 1),
            st.integers(631_152_000, 3_786_912_000),
            st.sampled_from(Reason),
        ),
        max_size=20,
        unique_by=lambda entry: entry[0],
    ),
    st.integers(1, (1 << 159) - 1),
)
def test_what_is_written_is_read_again(entries: list[tuple[int, int, Reason]], number: int) -> None:
    """Whatever is listed, a reader of another make finds exactly that; times lie between 1990 and 2090."""
    listed = [
        CRLEntry(serial=s, at=datetime.fromtimestamp(at, UTC), reason=reason) for s, at, reason in entries
    ]
    found = asn1_crl.CertificateList.load(made(entries=listed, number=number), strict=True)["tbs_cert_list"]
    assert found.native["crl_extensions"][1]["extn_value"] == number
    read = [
        (entry["user_certificate"].native, entry["revocation_date"].native,
         entry.crl_reason_value.native if entry.crl_reason_value else "unspecified")
        for entry in found["revoked_certificates"]
    ]  # fmt: skip
    names = {
        Reason.UNSPECIFIED: "unspecified", Reason.KEY_COMPROMISE: "key_compromise",
        Reason.CA_COMPROMISE: "ca_compromise", Reason.AFFILIATION_CHANGED: "affiliation_changed",
        Reason.SUPERSEDED: "superseded", Reason.CESSATION_OF_OPERATION: "cessation_of_operation",
        Reason.CERTIFICATE_HOLD: "certificate_hold", Reason.PRIVILEGE_WITHDRAWN: "privilege_withdrawn",
    }  # fmt: skip
    assert read == [(e.serial, e.at, names[e.reason]) for e in listed]
