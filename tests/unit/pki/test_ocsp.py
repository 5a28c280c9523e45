"""OCSP: requests of every kind are read or refused, answers say what they should, and others verify them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from asn1crypto import ocsp as asn1_ocsp
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from dilithium_py.ml_dsa import ML_DSA_87
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements import der
from attestation.errors import KeyUnsupported, MalformedEvidence, RequestInvalid
from attestation.pki.crl import Reason
from attestation.pki.issuer import algorithm_of, identity_of, sign
from attestation.pki.ocsp import (
    MAX_REQUEST_BYTES,
    CertID,
    CertStatus,
    Good,
    ResponseStatus,
    Revoked,
    Unknown,
    build_error,
    build_ocsp_response,
    issuer_hashes,
    parse_ocsp_request,
)
from tests.unit.pki.revocation_kit import AT, PKI, key_of, pki

openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")

NONCE = bytes(range(32))


def request(*serials: int, hash_name: str = "sha1", nonce: bytes | None = None, **extra: object) -> bytes:
    """Return a request as another library writes it."""
    certificate = x509.load_der_x509_certificate(pki("ecdsa-p384").ca)
    identity = identity_of(pki("ecdsa-p384").ca)
    listed = [
        {
            "req_cert": {
                "hash_algorithm": {"algorithm": hash_name},
                "issuer_name_hash": hashlib.new(hash_name, certificate.subject.public_bytes()).digest(),
                "issuer_key_hash": hashlib.new(hash_name, identity.key_bits).digest(),
                "serial_number": serial,
            }
        }
        for serial in serials
    ]
    tbs: dict[str, object] = {"request_list": listed, **extra}
    if nonce is not None:
        tbs["request_extensions"] = [{"extn_id": "nonce", "critical": False, "extn_value": nonce}]
    data: bytes = asn1_ocsp.OCSPRequest({"tbs_request": tbs}).dump()
    return data


def answer(algorithm: str, status: CertStatus, nonce: bytes | None = None) -> bytes:
    """Return the answer to a request about one certificate."""
    ca = pki(algorithm)
    return build_ocsp_response(
        parse_ocsp_request(request(1)).cert_id,
        status,
        responder=ca.responder,
        key=ca.responder_key,
        produced_at=AT,
        this_update=AT,
        next_update=AT + timedelta(minutes=5),
        nonce=nonce,
    )


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("hash_name", ["sha1", "sha256"])
def test_a_request_is_read(hash_name: str) -> None:
    """Serial number and issuer are found by either hash, and the CertID is kept as it came."""
    data = request(0x7F << 152, hash_name=hash_name)
    found = parse_ocsp_request(data)
    assert found.nonce is None
    one = found.cert_id
    assert (one.hash_name, one.serial) == (hash_name, 0x7F << 152)
    assert (one.name_hash, one.key_hash) == issuer_hashes(identity_of(pki("ecdsa-p384").ca))[hash_name]
    assert one.der in data


def test_what_the_library_asks_is_read() -> None:
    """Requests of cryptography's builder, which clients in Python use, are read with their nonce."""
    ca = pki("ecdsa-p384")
    built = (
        ocsp.OCSPRequestBuilder()
        .add_certificate(
            x509.load_der_x509_certificate(ca.leaf), x509.load_der_x509_certificate(ca.ca), hashes.SHA256()
        )
        .add_extension(x509.OCSPNonce(NONCE), critical=False)
        .build()
    )
    found = parse_ocsp_request(built.public_bytes(Encoding.DER))
    assert found.nonce == NONCE
    assert found.cert_id.serial == ca.leaf_serial
    assert found.cert_id.name_hash == built.issuer_name_hash
    assert found.cert_id.key_hash == built.issuer_key_hash


def test_parameters_of_the_hash_are_kept() -> None:
    """Some clients write NULL behind the hash algorithm, some nothing; the answer repeats what came."""
    with_null = parse_ocsp_request(request(1)).cert_id
    null = bytes.fromhex("0500")
    assert null in with_null.der
    algorithm = der.write(der.SEQUENCE, bytes.fromhex("06052b0e03021a"))
    without = der.write(
        der.SEQUENCE,
        algorithm
        + der.write(der.OCTET_STRING, with_null.name_hash)
        + der.write(der.OCTET_STRING, with_null.key_hash)
        + der.write_unsigned(1),
    )
    found = parse_ocsp_request(_wrap(without)).cert_id
    assert found.der == without
    assert (found.hash_name, found.serial) == ("sha1", 1)


def test_another_hash_names_nobody() -> None:
    """A CertID by another algorithm is read, and names none of our issuers."""
    assert parse_ocsp_request(request(1, hash_name="sha512")).cert_id.hash_name == "sha512"


@pytest.mark.parametrize("size", [1, 16, 32, 128])
def test_nonces(size: int) -> None:
    """A nonce of 1 to 128 bytes is read."""
    assert parse_ocsp_request(request(1, nonce=bytes(size))).nonce == bytes(size)


@pytest.mark.threat("T115")
@pytest.mark.parametrize("size", [0, 129, 4096])
def test_nonces_that_must_be_refused(size: int) -> None:
    """No bytes, or more than 128, are malformed (RFC 9654 §2.1)."""
    with pytest.raises(MalformedEvidence, match="nonce"):
        parse_ocsp_request(request(1, nonce=bytes(size)))


def test_who_asks_does_not_matter() -> None:
    """Name and signature of who asks are passed over."""
    general = asn1_ocsp.GeneralName("uniform_resource_identifier", "https://example.org")
    assert parse_ocsp_request(request(5, requestor_name=general)).cert_id.serial == 5
    tbs = der.write(der.SEQUENCE, der.write(der.SEQUENCE, _one()))
    signed = der.write(der.SEQUENCE, tbs + der.write(0xA0, der.write(der.SEQUENCE, b"")))
    assert parse_ocsp_request(signed).cert_id.serial == 5


def _cert_id(serial: int = 5) -> bytes:
    return parse_ocsp_request(request(serial)).cert_id.der


def _one() -> bytes:
    return der.write(der.SEQUENCE, _cert_id())


def _wrap(cert_id: bytes, *behind: bytes, after: bytes = b"") -> bytes:
    one = der.write(der.SEQUENCE, cert_id + b"".join(behind))
    return der.write(der.SEQUENCE, der.write(der.SEQUENCE, der.write(der.SEQUENCE, one) + after))


def _extension(oid: str, value: bytes, *, critical: bytes = b"") -> bytes:
    return der.write(der.SEQUENCE, bytes.fromhex(oid) + critical + der.write(der.OCTET_STRING, value))


TRUE = bytes.fromhex("0101ff")
UNKNOWN_OID = "06032a0304"
ACCEPTABLE_OID = "06092b0601050507300104"


def test_extensions() -> None:
    """Unknown ones are passed over unless they are critical; known ones may be."""
    for listed in (
        _extension(UNKNOWN_OID, b"x"),
        _extension(ACCEPTABLE_OID, der.write(der.SEQUENCE, b""), critical=TRUE),
    ):
        extensions = der.write(der.SEQUENCE, listed)
        assert parse_ocsp_request(_wrap(_cert_id(), after=der.write(0xA2, extensions))).nonce is None


HOSTILE = {
    "empty": b"",
    "nothing asked": der.write(der.SEQUENCE, b""),
    "not a sequence": der.write(der.SEQUENCE, der.write(der.SET, b"\x05\x00")),
    "no certificate": der.write(der.SEQUENCE, der.write(der.SEQUENCE, der.write(der.SEQUENCE, b""))),
    "empty certificate": _wrap(b""),
    "trailing": request(1) + b"\0",
    "behind the request": der.write(der.SEQUENCE, request(1)[4:] + der.write(der.NULL, b"")),
    "version 2": der.write(
        der.SEQUENCE,
        der.write(
            der.SEQUENCE, der.write(0xA0, der.write_unsigned(1)) + der.write(der.SEQUENCE, _one())
        ),
    ),
    "version twice": der.write(
        der.SEQUENCE,
        der.write(
            der.SEQUENCE, der.write(0xA0, 2 * der.write_unsigned(0)) + der.write(der.SEQUENCE, _one())
        ),
    ),
    "version only": der.write(der.SEQUENCE, der.write(der.SEQUENCE, der.write(0xA0, der.write_unsigned(0)))),
    "name only": der.write(der.SEQUENCE, der.write(der.SEQUENCE, der.write(0xA1, b""))),
    "behind a certificate": _wrap(_cert_id(), der.write(der.NULL, b"")),
    "three parts": _wrap(der.write(der.SEQUENCE, _cert_id()[2:-3])),
    "long serial": _wrap(
        der.write(
            der.SEQUENCE,
            der.write(der.SEQUENCE, bytes.fromhex("06052b0e03021a")) + 2 * der.write(der.OCTET_STRING, b"")
            + der.write(der.INTEGER, b"\x01" * 22),
        )
    ),
    "algorithm without oid": _wrap(
        der.write(
            der.SEQUENCE,
            der.write(der.SEQUENCE, b"\x05\x00") + 2 * der.write(der.OCTET_STRING, b"") + der.write_unsigned(1),
        )
    ),
    "critical": _wrap(
        _cert_id(), after=der.write(0xA2, der.write(der.SEQUENCE, _extension(UNKNOWN_OID, b"", critical=TRUE)))
    ),
    "critical of one": _wrap(
        _cert_id(), der.write(0xA0, der.write(der.SEQUENCE, _extension(UNKNOWN_OID, b"", critical=TRUE)))
    ),
    "extension twice": _wrap(
        _cert_id(), after=der.write(0xA2, der.write(der.SEQUENCE, 2 * _extension(UNKNOWN_OID, b"")))
    ),
    "extension without value": _wrap(
        _cert_id(), after=der.write(0xA2, der.write(der.SEQUENCE, der.write(der.SEQUENCE, bytes.fromhex(UNKNOWN_OID))))
    ),
    "bytes behind the extensions": _wrap(
        _cert_id(), after=der.write(0xA2, der.write(der.SEQUENCE, _extension(UNKNOWN_OID, b"")) + b"\x05\x00")
    ),
    "two certificates": request(1, 2),
    "no hash": _wrap(_cert_id().replace(bytes.fromhex("06052b0e03021a"), bytes.fromhex("06052a03040506"))),
    "too long": der.write(
        der.SEQUENCE,
        der.write(
            der.SEQUENCE, der.write(0xA1, bytes(MAX_REQUEST_BYTES)) + der.write(der.SEQUENCE, _one())
        ),
    ),
}  # fmt: skip


@pytest.mark.threat("T115")
@pytest.mark.parametrize("name", HOSTILE)
def test_garbage(name: str) -> None:
    """Whatever is wrong, there is one way to fail."""
    with pytest.raises(MalformedEvidence):
        parse_ocsp_request(HOSTILE[name])


@given(st.binary(max_size=400))
def test_arbitrary_bytes(data: bytes) -> None:
    """Whatever arrives, a caller sees a request or MalformedEvidence."""
    try:
        found = parse_ocsp_request(data)
    except MalformedEvidence:
        return
    assert found.cert_id.der in data


@given(
    st.integers(-(1 << 160), (1 << 160) - 1),
    st.sampled_from(["sha1", "sha256"]),
    st.none() | st.binary(min_size=1, max_size=128),
)
def test_what_others_write_is_read(serial: int, hash_name: str, nonce: bytes | None) -> None:
    """Every request that another library can write within our limits is read as it was meant."""
    data = request(serial, hash_name=hash_name, nonce=nonce)
    found = parse_ocsp_request(data)
    assert (found.cert_id.serial, found.cert_id.hash_name) == (serial, hash_name)
    assert found.cert_id.der in data
    assert found.nonce == nonce


# ---------------------------------------------------------------- answers

HELD = Revoked(at=AT - timedelta(hours=1), reason=Reason.CERTIFICATE_HOLD)
VOID = Revoked(at=AT - timedelta(days=1), reason=Reason.UNSPECIFIED)


@pytest.mark.parametrize(
    ("status", "name", "told"),
    [
        (Good(), "good", "good"),
        (Unknown(), "unknown", "unknown"),
        (HELD, "revoked", {"revocation_time": HELD.at, "revocation_reason": "certificate_hold"}),
        (VOID, "revoked", {"revocation_time": VOID.at, "revocation_reason": None}),
    ],
)
def test_says_what_it_was_told(status: CertStatus, name: str, told: object) -> None:
    """A reader of another make finds the status with its time and reason, and the CertID as it came."""
    found = asn1_ocsp.OCSPResponse.load(answer("ecdsa-p384", status, nonce=NONCE), strict=True)
    assert found["response_status"].native == "successful"
    data = found.response_data
    assert data["produced_at"].native == AT
    (single,) = data["responses"]
    assert single["cert_id"].dump() == _cert_id(1)
    assert (single["cert_status"].name, single["cert_status"].chosen.native) == (name, told)
    assert single["this_update"].native == AT
    assert single["next_update"].native == AT + timedelta(minutes=5)
    assert found.nonce_value.native == NONCE
    key_hash = hashlib.sha1(identity_of(pki("ecdsa-p384").responder).key_bits, usedforsecurity=False).digest()
    assert data["responder_id"].chosen.native == key_hash


def test_without_a_nonce() -> None:
    """Where none came, none is given."""
    assert asn1_ocsp.OCSPResponse.load(answer("ecdsa-p384", Good())).nonce_value is None


@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "rsa-4096"])
def test_the_library_reads_and_verifies(algorithm: str) -> None:
    """The delegated key signed it, its certificate is in it, and the CA signed that."""
    found = ocsp.load_der_ocsp_response(answer(algorithm, HELD))
    assert found.certificate_status is ocsp.OCSPCertStatus.REVOKED
    assert found.revocation_reason is x509.ReasonFlags.certificate_hold
    (responder,) = found.certificates
    responder.verify_directly_issued_by(x509.load_der_x509_certificate(pki(algorithm).ca))
    public = responder.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    public.verify(found.signature, found.tbs_response_bytes, ec.ECDSA(hashes.SHA384()))


def test_ml_dsa_by_an_independent_verifier() -> None:
    """dilithium-py, which shares no code with ours, accepts the signature, and refuses it over one bit less."""
    found = asn1_ocsp.OCSPResponse.load(answer("ml-dsa-87", Good())).basic_ocsp_response
    signed, signature = found["tbs_response_data"].dump(), bytes(found["signature"].native)
    public = pki("ml-dsa-87").responder_key.public_key()
    assert isinstance(public, mldsa.MLDSA87PublicKey)
    raw = public.public_bytes_raw()
    assert ML_DSA_87.verify(raw, signed, signature)
    assert not ML_DSA_87.verify(raw, signed[:-1] + bytes((signed[-1] ^ 1,)), signature)


@pytest.mark.parametrize("status", ResponseStatus)
def test_errors(status: ResponseStatus) -> None:
    """Five bytes say why there is no answer."""
    data = build_error(status)
    assert len(data) == 5
    assert ocsp.load_der_ocsp_response(data).response_status.value == status


def test_what_no_answer_can_say() -> None:
    """An end before the beginning, or a key that signs no answers."""
    ca = pki("ecdsa-p384")
    asked = parse_ocsp_request(request(1)).cert_id

    def build(*, key: object = ca.responder_key, ends: datetime) -> bytes:
        return build_ocsp_response(
            asked, Good(), responder=ca.responder, key=key,  # type: ignore[arg-type]
            produced_at=AT, this_update=AT, next_update=ends,
        )  # fmt: skip

    with pytest.raises(RequestInvalid):
        build(ends=AT)
    with pytest.raises(KeyUnsupported):
        build(key=ec.generate_private_key(ec.SECP521R1()), ends=AT + timedelta(1))


# ---------------------------------------------------------------- OpenSSL


def _run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["openssl", *arguments], cwd=tmp_path, check=False, timeout=240, capture_output=True, text=True
    )


@pytest.mark.threat("T114")
@openssl
@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "rsa-4096"])
@pytest.mark.parametrize("hash_name", ["sha1", "sha256"])
@pytest.mark.parametrize("nonce", [True, False])
def test_openssl_asks_and_believes(algorithm: str, hash_name: str, nonce: bool, tmp_path: Path) -> None:
    """OpenSSL writes the request, and verifies the answer to it up to the CA: good, on hold, unknown."""
    now = datetime.now(UTC).replace(microsecond=0)
    ca = pki(algorithm, now)
    for name, data in (("leaf", ca.leaf), ("ca", ca.ca)):
        (tmp_path / f"{name}.der").write_bytes(data)
        assert (
            _run(tmp_path, "x509", "-inform", "DER", "-in", f"{name}.der", "-out", f"{name}.pem").returncode
            == 0
        )
    asked = _run(
        tmp_path, "ocsp", f"-{hash_name}", "-issuer", "ca.pem", "-cert", "leaf.pem",
        "-nonce" if nonce else "-no_nonce", "-reqout", "request.der",
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    found = parse_ocsp_request((tmp_path / "request.der").read_bytes())
    assert (found.nonce is not None) is nonce
    assert found.cert_id.hash_name == hash_name
    assert found.cert_id.serial == ca.leaf_serial
    for status, word in ((Good(), "good"), (HELD, "revoked"), (Unknown(), "unknown")):
        (tmp_path / "answer.der").write_bytes(_answer_to(found.cert_id, status, ca, now, found.nonce))
        read = _run(
            tmp_path, "ocsp", "-reqin", "request.der", "-CAfile", "ca.pem", "-respin", "answer.der", "-resp_text",
        )  # fmt: skip
        assert "Response verify OK" in read.stderr
        assert "WARNING" not in read.stderr
        assert f"Cert Status: {word}" in read.stdout
        by_serial = _run(
            tmp_path, "ocsp", f"-{hash_name}", "-issuer", "ca.pem", "-cert", "leaf.pem", "-no_nonce", "-CAfile",
            "ca.pem", "-respin", "answer.der",
        )  # fmt: skip
        assert f"leaf.pem: {word}" in by_serial.stdout


def _answer_to(cert_id: CertID, status: CertStatus, ca: PKI, now: datetime, nonce: bytes | None) -> bytes:
    return build_ocsp_response(
        cert_id, status,
        responder=ca.responder, key=ca.responder_key,
        produced_at=now, this_update=now, next_update=now + timedelta(minutes=5), nonce=nonce,
    )  # fmt: skip


@pytest.mark.threat("T114")
@openssl
def test_openssl_refuses_who_was_not_delegated(tmp_path: Path) -> None:
    """An answer by the key of a leaf is not believed: the judge does look."""
    now = datetime.now(UTC).replace(microsecond=0)
    ca = pki("ecdsa-p384", now)
    (tmp_path / "ca.der").write_bytes(ca.ca)
    (tmp_path / "leaf.der").write_bytes(ca.leaf)
    for name in ("leaf", "ca"):
        _run(tmp_path, "x509", "-inform", "DER", "-in", f"{name}.der", "-out", f"{name}.pem")
    _run(tmp_path, "ocsp", "-issuer", "ca.pem", "-cert", "leaf.pem", "-reqout", "request.der")
    found = parse_ocsp_request((tmp_path / "request.der").read_bytes())
    forged = build_ocsp_response(
        found.cert_id, Good(),
        responder=ca.leaf, key=key_of("ecdsa-p384", "leaf"), produced_at=now, this_update=now,
        next_update=now + timedelta(minutes=5), nonce=found.nonce,
    )  # fmt: skip
    (tmp_path / "answer.der").write_bytes(forged)
    read = _run(
        tmp_path, "ocsp", "-reqin", "request.der", "-CAfile", "ca.pem", "-respin", "answer.der", "-resp_text"
    )
    assert "Response Verify Failure" in read.stderr


def test_an_rsa_key_signs_as_its_algorithm_says() -> None:
    """PKCS#1 v1.5 over SHA-384, named with NULL parameters (RFC 4055 §5)."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key.public_key().verify(sign(key, b"answer"), b"answer", padding.PKCS1v15(), hashes.SHA384())
    assert algorithm_of(key) == bytes.fromhex("300d06092a864886f70d01010c0500")
