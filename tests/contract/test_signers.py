"""One suite over everything that holds private keys: what it signs, strangers verify.

Certificates, CRLs, requests and OCSP responses are built with cryptography's builders, as the CA does; OpenSSL
judges the classical algorithms, dilithium-py the other one. `tests/contract/signers.py` has the back-ends.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey, MLDSA87PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp
from cryptography.x509.oid import NameOID
from dilithium_py.ml_dsa import ML_DSA_87

from attestation.errors import KeyMismatch
from attestation.keys import KeySigner, verify_jwt
from attestation.keys.delegated import DelegatedECKey, DelegatedRSAKey
from attestation.keys.open import Algorithm, OpenKey
from tests.contract.signers import BACKENDS, SignerBackend

NOW = datetime.now(UTC).replace(microsecond=0)
CA = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A CA")])
LEAF = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a machine")])
LEAF_KEY = ec.derive_private_key(7, ec.SECP384R1())
SMALL_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PSS = padding.PSS(padding.MGF1(hashes.SHA384()), padding.PSS.DIGEST_LENGTH)

ABSTRACT = {
    ec.EllipticCurvePrivateKey: {"curve", "key_size", "exchange", "private_numbers"},
    rsa.RSAPrivateKey: {"key_size", "decrypt", "private_numbers"},
    MLDSA87PrivateKey: {"sign_mu", "private_bytes_raw"},
}
ABSTRACT_OF_ALL = {"public_key", "sign", "private_bytes", "__copy__", "__deepcopy__"}


@dataclass(frozen=True)
class Case:
    """A key, and how it signs."""

    key: OpenKey
    pss: bool = False

    @property
    def hash(self) -> Any:
        """The hash that builders take; None for ML-DSA."""
        return None if self.key.algorithm == "ml-dsa-87" else hashes.SHA384()

    @property
    def padding(self) -> Any:
        """The padding that builders take."""
        return {"rsa_padding": PSS} if self.pss else {}

    @property
    def ca(self) -> x509.Certificate:
        """A certificate of the key, signed by itself."""
        return self._certificate(CA, self.key.public_key, ca=True)

    @property
    def leaf(self) -> x509.Certificate:
        """A certificate that the key signed."""
        return self._certificate(LEAF, LEAF_KEY.public_key(), ca=False)

    def _certificate(self, subject: x509.Name, public_key: Any, *, ca: bool) -> x509.Certificate:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(CA)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(minutes=5))
            .not_valid_after(NOW + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .sign(self.key.private_key, self.hash, **self.padding)
        )


CASES = [
    pytest.param(
        (backend, algorithm, pss),
        id=f"{backend.name}-{algorithm}{'-pss' if pss else ''}",
        marks=backend.marks,
    )
    for backend in BACKENDS
    for algorithm in backend.algorithms
    for pss in ((False, True) if algorithm.startswith("rsa") else (False,))
]


class _Keys:
    """Keys are made once for the whole module: RSA takes seconds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.found: dict[tuple[str, Algorithm], OpenKey] = {}
        self.contexts: list[Any] = []

    def get(self, backend: SignerBackend, algorithm: Algorithm) -> OpenKey:
        if (backend.name, algorithm) not in self.found:
            directory = self.directory / backend.name
            directory.mkdir(exist_ok=True)
            context = backend.make(algorithm, directory)
            self.found[backend.name, algorithm] = context.__enter__()
            self.contexts.append(context)
        return self.found[backend.name, algorithm]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Keys]:
    """All keys of this module."""
    made = _Keys(tmp_path_factory.mktemp("keys"))
    yield made
    for context in reversed(made.contexts):
        context.__exit__(None, None, None)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, keys: _Keys) -> Case:
    """Every back-end with every algorithm and padding that it can."""
    backend, algorithm, pss = request.param
    return Case(keys.get(backend, algorithm), pss)


def openssl(directory: Path, *arguments: str, **files: bytes) -> str:
    """Run OpenSSL in *directory* over *files*; it must succeed. Returns all that it said."""
    for name, content in files.items():
        (directory / name).write_bytes(content)
    done = subprocess.run(
        ["openssl", *arguments], cwd=directory, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def dilithium(key: Any, signed: bytes, signature: bytes) -> bool:
    """Ask dilithium-py and cryptography about an ML-DSA-87 signature."""
    assert isinstance(key, MLDSA87PublicKey)
    key.verify(signature, signed)
    return bool(ML_DSA_87.verify(key.public_bytes_raw(), signed, signature))


def test_certificates(case: Case, tmp_path: Path) -> None:
    """A stranger verifies the chain of a leaf."""
    ca, leaf = case.ca, case.leaf
    if case.hash is None:
        assert dilithium(case.key.public_key, leaf.tbs_certificate_bytes, leaf.signature)
        assert dilithium(case.key.public_key, ca.tbs_certificate_bytes, ca.signature)
        return
    said = openssl(tmp_path, "verify", "-CAfile", "ca", "leaf", ca=pem(ca), leaf=pem(leaf))
    assert said == "leaf: OK\n"
    assert isinstance(leaf.signature_algorithm_parameters, padding.PSS) == case.pss


def test_revocation_lists(case: Case, tmp_path: Path) -> None:
    """A stranger verifies a CRL."""
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(CA)
        .last_update(NOW)
        .next_update(NOW + timedelta(days=1))
        .add_extension(x509.CRLNumber(7), critical=False)
        .add_revoked_certificate(
            x509.RevokedCertificateBuilder().serial_number(77).revocation_date(NOW).build()
        )
        .sign(case.key.private_key, case.hash, **case.padding)
    )
    if case.hash is None:
        assert dilithium(case.key.public_key, crl.tbs_certlist_bytes, crl.signature)
        return
    said = openssl(tmp_path, "crl", "-in", "crl", "-CAfile", "ca", "-noout", ca=pem(case.ca), crl=pem(crl))
    assert "verify OK" in said


def test_requests(case: Case, tmp_path: Path) -> None:
    """A stranger verifies a PKCS#10 request."""
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(LEAF)
        .sign(case.key.private_key, case.hash, **case.padding)
    )
    assert csr.is_signature_valid
    if case.hash is None:
        assert dilithium(case.key.public_key, csr.tbs_certrequest_bytes, csr.signature)
        return
    said = openssl(tmp_path, "req", "-in", "csr", "-verify", "-noout", csr=pem(csr))
    assert "verify OK" in said


def test_ocsp_responses(case: Case, tmp_path: Path) -> None:
    """A stranger verifies an OCSP response and reads the answer; cryptography signs it with PKCS#1 v1.5 only."""
    ca, leaf = case.ca, case.leaf
    response = (
        ocsp.OCSPResponseBuilder()
        .add_response(
            leaf, ca, hashes.SHA1(), ocsp.OCSPCertStatus.GOOD, NOW, NOW + timedelta(days=1), None, None
        )
        .responder_id(ocsp.OCSPResponderEncoding.HASH, ca)
        .sign(case.key.private_key, case.hash)
    )
    if case.hash is None:
        assert dilithium(case.key.public_key, response.tbs_response_bytes, response.signature)
        return
    said = openssl(
        tmp_path,
        *("ocsp", "-respin", "response", "-issuer", "ca", "-cert", "leaf", "-CAfile", "ca", "-no_nonce"),
        ca=pem(ca),
        leaf=pem(leaf),
        response=response.public_bytes(Encoding.DER),
    )
    assert "Response verify OK" in said
    assert "leaf: good" in said


@pytest.mark.threat("T86")
def test_the_key_proves_itself(case: Case) -> None:
    """The self-test passes under its own public key, and under no other of the same kind or of another."""
    case.key.self_test(case.key.public_key)
    key = case.key.public_key
    others: list[Any] = [
        LEAF_KEY.public_key(),
        MLDSA87PrivateKey.generate().public_key(),
        SMALL_RSA.public_key(),
    ]
    for other in others:
        with pytest.raises(KeyMismatch):
            case.key.self_test(other)
    case.key.self_test(key)


def test_tokens(case: Case) -> None:
    """A P-384 key signs ES384 tokens, 96 bytes of r and s, that verify under its JWK set."""
    if case.key.algorithm != "ecdsa-p384":
        return
    signer = KeySigner(case.key.private_key)
    for n in range(8):  # r or s begins with a zero byte now and then
        assert verify_jwt(signer.sign_jwt({"n": n}, typ="x+jwt"), signer.jwks(), typ="x+jwt") == {"n": n}


def test_what_leaves_a_device(case: Case) -> None:
    """Of a key that is not in a file, nothing does: no export, copy, pickle, nor a secret in its repr."""
    key = case.key.private_key
    if case.key.backend == "file":
        return
    assert isinstance(key, DelegatedECKey | DelegatedRSAKey)
    assert copy.copy(key) is key
    assert copy.deepcopy(key) is key
    with pytest.raises(TypeError):
        pickle.dumps(key)
    assert "?" not in repr(key) + repr(case.key)


@pytest.mark.parametrize("abc", ABSTRACT)
def test_the_abstract_members_are_those_that_we_wrote(abc: Any) -> None:
    """A release of cryptography with another abstract member breaks our subclasses: this says so first."""
    assert abc.__abstractmethods__ == ABSTRACT[abc] | ABSTRACT_OF_ALL


def pem(thing: Any) -> bytes:
    found: bytes = thing.public_bytes(Encoding.PEM)
    return found
