"""Certification requests: the key in them, proven by its own signature, and nothing else of them is believed."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, mldsa, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from attestation.endorsements import der
from attestation.errors import CSRInvalid, MalformedEvidence, SignatureInvalid
from attestation.pki.request import MAX_CSR_BYTES, parse_csr
from attestation.pki.signature import load_spki, verify_signature
from tests.unit.pki.certificate_kit import leaf_key, pem_of, request_of, spki_of
from tests.unit.pki.revocation_kit import key_of

KINDS = ["ecdsa-p256", "ecdsa-p384", "ecdsa-p521", "rsa-2048", "rsa-3072", "ed25519", "ml-dsa-65"]
SIGN_ECDSA = bytes.fromhex("300a06082a8648ce3d040302")


def altered(
    request: bytes, parts: dict[int, bytes] | None = None, outer: dict[int, bytes] | None = None
) -> bytes:
    """Return *request* with some of the four parts of what is signed, or of its three parts, replaced."""
    whole = der.element(request, 0, len(request))
    three = list(der.elements(request, whole.start, whole.stop))
    cut = [request[e.at : e.stop] for e in three]
    info = [request[e.at : e.stop] for e in der.elements(request, three[0].start, three[0].stop)]
    for i, part in (parts or {}).items():
        info[i] = part
    cut[0] = der.write(der.SEQUENCE, b"".join(info))
    for i, part in (outer or {}).items():
        cut[i] = part
    return der.write(der.SEQUENCE, b"".join(cut))


GOOD = request_of(leaf_key())


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_gives_its_key_and_the_signed_bytes(kind: str) -> None:
    """Key, fingerprint, kind, and exactly the DER that its signature and a TPM's certification bind."""
    key = leaf_key(kind)
    data = request_of(key)
    theirs = x509.load_der_x509_csr(data)
    for form in (data, pem_of(data)):
        found = parse_csr(form)
        assert found.der == data
        assert found.request_info == theirs.tbs_certrequest_bytes
        assert found.spki == spki_of(key)
        assert found.spki_sha256 == hashlib.sha256(found.spki).hexdigest()
        assert found.public_key == key.public_key()
        assert found.algorithm == kind


@pytest.mark.parametrize("hash_", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
def test_rsa_signs_in_two_ways(hash_: hashes.HashAlgorithm) -> None:
    """PKCS#1 v1.5 and PSS; a salt longer than the digest is refused (FIPS 186-5, 5.4)."""
    key = leaf_key("rsa-2048")
    parse_csr(request_of(key, hash_))
    for salt in (hash_.digest_size, 0):
        parse_csr(request_of(key, hash_, rsa_padding=padding.PSS(padding.MGF1(hash_), salt)))
    longest = padding.PSS(padding.MGF1(hash_), 256 - 2 - hash_.digest_size)
    with pytest.raises(CSRInvalid, match="not one for this key"):
        parse_csr(request_of(key, hash_, rsa_padding=longest))


@pytest.mark.parametrize("hash_", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
def test_ecdsa_signs_over_any_of_three_hashes(hash_: hashes.HashAlgorithm) -> None:
    """The hash need not be that of the curve."""
    for kind in ("ecdsa-p256", "ecdsa-p384", "ecdsa-p521"):
        parse_csr(request_of(leaf_key(kind), hash_))


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        pytest.param(lambda: rsa.generate_private_key(65537, 1024), "1024 bits", id="RSA of 1024 bits"),
        pytest.param(lambda: rsa.generate_private_key(3, 2048), "exponent", id="RSA with exponent 3"),
        pytest.param(lambda: ec.generate_private_key(ec.SECP256K1()), "secp256k1", id="secp256k1"),
        pytest.param(lambda: ec.generate_private_key(ec.SECP224R1()), "secp224r1", id="P-224"),
        pytest.param(ed448.Ed448PrivateKey.generate, "kind", id="Ed448"),
    ],
)
def test_other_keys_are_not_certified(key: Any, reason: str) -> None:
    """HSM §7.1 lists what is; a weak key is refused before anything is asked of it."""
    with pytest.raises(CSRInvalid, match=reason):
        parse_csr(request_of(key()))


@pytest.mark.threat("T97")
def test_a_key_of_a_broken_generator_is_not_certified() -> None:
    """CVE-2017-15361: such a key has a fingerprint, and whoever knows the modulus knows the key."""
    # A number with the fingerprint: a power of 65537 modulo the primorial, made odd and 2048 bits long.
    primorial = 1
    for p in (n for n in range(2, 168) if all(n % d for d in range(2, n))):
        primorial *= p
    base = pow(65537, 4711, primorial)
    modulus = base + (((1 << 2047) // primorial) + 1) * primorial
    while not modulus & 1 or modulus.bit_length() != 2048:
        modulus += primorial
    spki = (
        rsa.RSAPublicNumbers(65537, modulus)
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(CSRInvalid, match="ROCA"):
        parse_csr(altered(GOOD, {2: spki}))


def test_a_key_too_long_to_use_is_not_certified() -> None:
    """A verification with 16,384 bits takes longer than a stranger should be able to ask for."""
    spki = (
        rsa.RSAPublicNumbers(65537, (1 << 16383) | 1)
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(CSRInvalid, match="16384 bits"):
        parse_csr(altered(GOOD, {2: spki}))


@pytest.mark.threat("T97")
def test_a_key_has_one_form() -> None:
    """A compressed point is the same key with another fingerprint, so it is refused."""
    key = leaf_key()
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    algorithm = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
    spki = der.write(der.SEQUENCE, algorithm + der.write(der.BIT_STRING, b"\0" + point))
    assert load_spki(spki_of(key))[1] == "ecdsa-p256"
    with pytest.raises(CSRInvalid, match="form"):
        load_spki(spki)


def _signed_again(key: Any, request: bytes, **how: Any) -> bytes:
    """Return *request*, its changed content signed by *key*."""
    whole = der.element(request, 0, len(request))
    info = der.element(request, whole.start, whole.stop)
    signature = key.sign(request[info.at : info.stop], ec.ECDSA(hashes.SHA256()))
    return altered(request, outer={2: der.write(der.BIT_STRING, b"\0" + signature)})


@pytest.mark.threat("T97")
def test_the_key_must_have_signed() -> None:
    """Otherwise a certificate would say of somebody else's key that it is the asker's."""
    key, other = leaf_key(), leaf_key("ecdsa-p384")
    with pytest.raises(CSRInvalid, match="not signed by this key"):
        parse_csr(altered(GOOD, {2: spki_of(other)}))
    parse_csr(_signed_again(key, altered(GOOD, {1: b"\x30\x00"})))
    with pytest.raises(CSRInvalid, match="not signed by this key"):
        parse_csr(altered(GOOD, {1: b"\x30\x00"}))


@pytest.mark.threat("T97")
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("ecdsa-p256", "300906072a8648ce3d0401"),  # ECDSA with SHA-1
        ("ecdsa-p256", "300c06082a8648ce3d0403020500"),  # NULL behind ECDSA
        ("ecdsa-p256", "300d06092a864886f70d01010b0500"),  # RSA
        ("rsa-2048", "300d06092a864886f70d0101050500"),  # RSA with SHA-1
        ("rsa-2048", "300a06082a8648ce3d040302"),  # ECDSA
        ("rsa-2048", "300d06092a864886f70d01010a3000"),  # PSS with what is absent: SHA-1
        # PSS with SHA-256, but MGF1 over SHA-384
        (
            "rsa-2048",
            (
                "304106092a864886f70d01010a3034a00f300d06096086480165030402010500"
                "a11c301a06092a864886f70d010108300d06096086480165030402020500a203020120"
            ),
        ),
        # PSS with SHA-256 and another mask generation
        (
            "rsa-2048",
            "303206092a864886f70d01010a3025a00f300d06096086480165030402010500a10d300b06092a864886f70d010109a203020120",
        ),
        ("ed25519", "300506032b6571"),  # Ed448
        ("ed25519", "300706032b65700500"),  # NULL behind Ed25519
        ("ml-dsa-65", "300b0609608648016503040313"),  # ML-DSA-87
        ("ml-dsa-65", "300d06096086480165030403120500"),  # NULL behind ML-DSA-65
    ],
)
def test_an_algorithm_that_is_not_for_this_key_proves_nothing(kind: str, algorithm: str) -> None:
    """The word about the algorithm comes from outside; it may not choose a weaker one or another."""
    data = altered(request_of(leaf_key(kind)), outer={1: bytes.fromhex(algorithm)})
    with pytest.raises(CSRInvalid, match="is not one for this key"):
        parse_csr(data)


@pytest.mark.threat("T97")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(GOOD[:-1], id="cut"),
        pytest.param(GOOD + b"\0", id="bytes behind"),
        pytest.param(b"\x30" + bytes(MAX_CSR_BYTES), id="too long"),
        pytest.param(altered(GOOD, outer={2: b"\x03\x02\x01\x00"}), id="broken number of bits"),
        pytest.param(altered(GOOD, outer={2: b"\x03\x01\x00\x05\x00"}), id="four parts"),
        pytest.param(altered(GOOD, outer={1: b"\x05\x00"}), id="no algorithm"),
        pytest.param(altered(GOOD, outer={1: b"\x30\x00"}), id="empty algorithm"),
        pytest.param(altered(GOOD, {0: b"\x02\x01\x01"}), id="version 1"),
        pytest.param(altered(GOOD, {0: b"\x02\x02\x00\x00"}), id="padded version"),
        pytest.param(altered(GOOD, {1: b"\x31\x00"}), id="subject of another type"),
        pytest.param(altered(GOOD, {3: b""}), id="no attributes"),
        pytest.param(altered(GOOD, {3: b"\xa0\x00\xa0\x00"}), id="attributes twice"),
        pytest.param(altered(GOOD, {3: b"\xa1\x00"}), id="attributes of another tag"),
        pytest.param(pem_of(GOOD) * 2, id="two blocks"),
        pytest.param(b"x\n" + pem_of(GOOD), id="text before"),
        pytest.param(pem_of(GOOD) + b"x", id="text behind"),
        pytest.param(pem_of(GOOD).replace(b"REQUEST", b"REQUESt"), id="another label"),
        pytest.param(
            pem_of(GOOD).replace(b" CERTIFICATE REQUEST", b" NEW CERTIFICATE REQUEST"), id="old label"
        ),
        pytest.param(
            b"-----BEGIN CERTIFICATE REQUEST-----\nProc-Type: 4,ENCRYPTED\n\nMAA=\n-----END CERTIFICATE REQUEST-----\n",
            id="headers",
        ),
        pytest.param(
            b"-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n", id="empty block"
        ),
        pytest.param(
            b"-----BEGIN CERTIFICATE REQUEST-----\nMAA\n-----END CERTIFICATE REQUEST-----\n", id="no base64"
        ),
        pytest.param(pem_of(GOOD).replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"), id="a certificate"),
    ],
)
def test_what_is_no_request_is_malformed(data: bytes) -> None:
    """One block or one DER value, whole, and nothing around it."""
    with pytest.raises(MalformedEvidence):
        parse_csr(data)


@pytest.mark.parametrize(
    "spki",
    [b"\x30\x00", b"\x30\x03\x30\x00\x05", spki_of(leaf_key())[:-1]],
    ids=["empty", "half", "cut"],
)
def test_what_is_no_key_is_refused(spki: bytes) -> None:
    """A key that the library cannot load, and a point that is on no curve."""
    with pytest.raises((CSRInvalid, MalformedEvidence)):
        parse_csr(altered(GOOD, {2: spki}))
    bent = bytearray(spki_of(leaf_key()))
    bent[-1] ^= 1
    with pytest.raises(CSRInvalid, match="no public key"):
        parse_csr(altered(GOOD, {2: bytes(bent)}))


@pytest.mark.threat("T97")
def test_the_longest_request_that_is_read_is_16_kib() -> None:
    """One of ML-DSA-87 with its key and signature fits well; a byte more than the limit is not looked at."""
    assert len(pem_of(request_of(key_of("ml-dsa-87")))) < MAX_CSR_BYTES
    assert parse_csr(pem_of(request_of(key_of("ml-dsa-87")))).algorithm == "ml-dsa-87"
    key = leaf_key()
    empty = len(_signed_again(key, altered(GOOD, {3: der.write(0xA0, bytes(15_000))})))
    for more, fits in ((0, True), (16, False)):
        size = 15_000 + MAX_CSR_BYTES - empty - 8 + more
        data = _signed_again(key, altered(GOOD, {3: der.write(0xA0, bytes(size))}))
        assert (len(data) <= MAX_CSR_BYTES) == fits
        if fits:
            parse_csr(data)
        else:
            with pytest.raises(MalformedEvidence, match="at most 16384"):
                parse_csr(data)


def test_line_ends_of_either_kind() -> None:
    """Windows writes CR LF; the last line may have none."""
    data = pem_of(GOOD)
    assert parse_csr(data.replace(b"\n", b"\r\n")).der == GOOD
    assert parse_csr(data.rstrip()).der == GOOD


@pytest.mark.parametrize("kind", ["ecdsa-p256", "ecdsa-p384", "rsa-2048", "ed25519"])
def test_openssl_makes_requests_that_are_read(kind: str, tmp_path: Path) -> None:
    """What people have at hand; and OpenSSL finds our reading of the signature right."""
    (tmp_path / "key.pem").write_bytes(
        leaf_key(kind).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    run = ["openssl", "req", "-new", "-key", "key.pem", "-subj", "/CN=x", "-out", "csr"]
    subprocess.run(run, check=True, capture_output=True, cwd=tmp_path)
    data = (tmp_path / "csr").read_bytes()
    assert parse_csr(data).algorithm == kind
    subprocess.run(["openssl", "req", "-verify", "-noout"], input=data, check=True, capture_output=True)


@pytest.mark.parametrize(
    "key",
    [
        mldsa.MLDSA44PrivateKey.generate(),
        mldsa.MLDSA65PrivateKey.generate(),
        mldsa.MLDSA87PrivateKey.generate(),
    ],
)
def test_ml_dsa_has_one_algorithm_for_each_size(key: Any) -> None:
    """RFC 9881: the OID names size and scheme, and there is nothing else to say."""
    found = parse_csr(request_of(key))
    assert found.algorithm == f"ml-dsa-{type(key.public_key()).__name__[5:7]}"


def test_a_signature_is_verified_over_the_bytes_given() -> None:
    """The one function that everything here rests on, by itself."""
    key = leaf_key()
    signature = key.sign(b"these", ec.ECDSA(hashes.SHA256()))
    verify_signature(key.public_key(), algorithm=SIGN_ECDSA, signature=signature, signed=b"these")
    with pytest.raises(SignatureInvalid, match="not signed by this key"):
        verify_signature(key.public_key(), algorithm=SIGN_ECDSA, signature=signature, signed=b"those")
    with pytest.raises(SignatureInvalid, match="not signed by this key"):
        verify_signature(key.public_key(), algorithm=SIGN_ECDSA, signature=b"", signed=b"these")
