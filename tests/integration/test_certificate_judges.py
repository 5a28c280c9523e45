"""Others judge our certificates: OpenSSL, pkilint, Go's crypto/x509, GnuTLS, and an ML-DSA that is not OpenSSL's."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from asn1crypto import x509 as asn1
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.ocsp import OCSPRequestBuilder
from dilithium_py.ml_dsa import ML_DSA_87
from pkilint import validation

from attestation.pki.content import Algorithm
from attestation.pki.crl import CRLEntry, Reason, build_crl
from attestation.pki.issuer import identity_of
from attestation.pki.ocsp import (
    CertStatus,
    Good,
    Revoked,
    Unknown,
    build_ocsp_response,
    parse_ocsp_request,
)
from attestation.pki.profiles import EK_URI, ProfileName
from tests.fixtures.certificate_judges import (
    FALSE_FINDING,
    OpenSSL,
    ask_go,
    go,
    lint,
    lint_list,
    lint_ocsp,
    openssl,
    pem,
)
from tests.unit.pki.certificate_kit import ALGORITHMS, ARC, AT, CA, LEAVES, ca_of, ca_with, leaf_key, spki_of
from tests.unit.pki.revocation_kit import key_of

__all__ = ["go", "openssl"]

CLASSICAL: tuple[Algorithm, ...] = ("ecdsa-p384", "rsa-4096")
MACHINES = (ProfileName.NODE_CLIENT, ProfileName.NODE_SERVER)
PURPOSES = {
    ProfileName.NODE_CLIENT: "sslclient",
    ProfileName.NODE_SERVER: "sslserver",
    ProfileName.KUBERNETES_NODE: "sslclient",
    ProfileName.OPERATOR: "sslclient",
    ProfileName.OCSP_SIGNING: "ocsphelper",
}


def crl_der(ca: CA, *revoked: int) -> bytes:
    """Return a revocation list, DER."""
    return build_crl(
        ca.certificate,
        ca.key,
        number=7,
        entries=[CRLEntry(serial=serial, at=AT, reason=Reason.CERTIFICATE_HOLD) for serial in revoked],
        this_update=AT,
        next_update=AT + timedelta(days=1),
    )


def crl_of(ca: CA, *revoked: int) -> str:
    """Return a revocation list, PEM."""
    made = crl_der(ca, *revoked)
    return x509.load_der_x509_crl(made).public_bytes(Encoding.PEM).decode()


# ---------------------------------------------------------------- OpenSSL


@pytest.mark.parametrize("algorithm", CLASSICAL)
@pytest.mark.parametrize("profile", LEAVES)
def test_openssl_finds_the_chain_and_asks_the_list(
    openssl: OpenSSL, profile: ProfileName, algorithm: Algorithm
) -> None:
    """Strict rules of RFC 5280, the purpose of the profile and no other, and a list that names the certificate."""
    ca = ca_of(algorithm)
    content = ca.content_of(profile)
    leaf, purpose = ca.issue(content), PURPOSES[profile]
    options = ("-crl_check", "-purpose", purpose)
    assert openssl.verify(leaf, trusted=[ca.certificate], lists=[crl_of(ca, 4711)], options=options) == "OK"
    for other in {"sslclient", "sslserver", "smimesign"} - {purpose}:
        wrong = openssl.verify(
            leaf, trusted=[ca.certificate], lists=[crl_of(ca)], options=("-crl_check", "-purpose", other)
        )
        assert "unsuitable certificate purpose" in wrong or "unsupported certificate purpose" in wrong
    held = crl_of(ca, 1, content.serial)
    assert "certificate revoked" in openssl.verify(
        leaf, trusted=[ca.certificate], lists=[held], options=options
    )


@pytest.mark.threat("T98")
@pytest.mark.parametrize("algorithm", CLASSICAL)
def test_openssl_follows_a_rotation_in_both_directions(openssl: OpenSSL, algorithm: Algorithm) -> None:
    """Who trusts only the old key believes leaves of the new one through its cross certificate, and vice versa."""
    old, new = ca_of(algorithm), ca_of(algorithm, "successor")
    for trusted, issuer in ((old, new), (new, old)):
        cross = trusted.issue(
            trusted.content_of(ProfileName.CA_CROSS, subject=issuer.content.subject, spki=issuer.content.spki)
        )
        leaf = issuer.issue(issuer.content_of(ProfileName.NODE_CLIENT))
        lists = [crl_of(trusted), crl_of(issuer)]
        options = ("-crl_check_all", "-purpose", "sslclient")
        roots = [trusted.certificate]
        assert openssl.verify(leaf, trusted=roots, lists=lists, between=[cross], options=options) == "OK"
        assert "unable to get local issuer" in openssl.verify(
            leaf, trusted=roots, lists=lists, options=options
        )
        both = [trusted.certificate, issuer.certificate]
        assert openssl.verify(leaf, trusted=both, lists=lists, options=options) == "OK"
        # A third key behind the cross certificate: its path length leaves no room for one.
        third = ca_of(algorithm, "third")
        further = issuer.issue(
            issuer.content_of(ProfileName.CA_CROSS, subject=third.content.subject, spki=third.content.spki)
        )
        assert "path length constraint exceeded" in openssl.verify(
            third.issue(third.content_of(ProfileName.NODE_CLIENT)),
            trusted=roots,
            lists=[*lists, crl_of(third)],
            between=[cross, further],
            options=options,
        )


def test_openssl_reads_assurance_as_a_policy(openssl: OpenSSL) -> None:
    """A relying party can ask for a level and a tier, also across a rotation."""
    old, new = ca_of("ecdsa-p384"), ca_of("ecdsa-p384", "successor")
    cross = old.issue(
        old.content_of(ProfileName.CA_CROSS, subject=new.content.subject, spki=new.content.spki)
    )
    leaf = new.issue(new.content_of(ProfileName.NODE_CLIENT))
    for policy, good in ((f"{ARC}.1.3", True), (f"{ARC}.2.4", True), (f"{ARC}.1.4", False)):
        for trusted, between in ((new, None), (old, [cross])):
            answer = openssl.verify(
                leaf,
                trusted=[trusted.certificate],
                lists=[crl_of(new), crl_of(old)],
                between=between,
                options=("-crl_check_all", "-policy", policy, "-explicit_policy"),
            )
            assert (answer == "OK") == good, answer


def test_openssl_refuses_the_name_of_another_host(openssl: OpenSSL) -> None:
    """Server certificates are for the names and addresses in the record."""
    ca = ca_of("ecdsa-p384")
    leaf = ca.issue(ca.content_of(ProfileName.NODE_SERVER))

    def judge(*options: str) -> str:
        return openssl.verify(
            leaf, trusted=[ca.certificate], lists=[crl_of(ca)], options=("-crl_check", *options)
        )

    assert judge("-verify_hostname", "cp1.example.com") == "OK"
    assert judge("-verify_ip", "2001:db8::7") == "OK"
    assert "hostname mismatch" in judge("-verify_hostname", "cp2.example.com")
    assert "IP address mismatch" in judge("-verify_ip", "192.0.2.8")


# ---------------------------------------------------------------- pkilint


@pytest.mark.threat("T98")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("profile", [*LEAVES, ProfileName.CA, ProfileName.CA_CROSS])
def test_pkilint_finds_nothing_worse_than_information(profile: ProfileName, algorithm: Algorithm) -> None:
    """No finding of NOTICE, WARNING, ERROR or FATAL; the one of INFO names the method of our key identifiers."""
    ca = ca_of(algorithm)
    made = ca.certificate if profile is ProfileName.CA else ca.issue(ca.content_of(profile))
    assert lint(made) == {"INFO": {"pkix.subject_key_identifier_rfc7093_method_1_identified"}}


@pytest.mark.parametrize("kind", ["ecdsa-p256", "ecdsa-p521", "rsa-2048", "ed25519", "ml-dsa-65"])
def test_pkilint_knows_the_keys_that_we_certify(kind: str) -> None:
    """Any of them in a certificate of a machine."""
    ca = ca_of("ecdsa-p384")
    made = ca.issue(ca.content_of(ProfileName.NODE_CLIENT, spki=spki_of(leaf_key(kind))))
    assert set(lint(made)) == {"INFO"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_pkilint_finds_nothing_in_a_list(algorithm: Algorithm) -> None:
    """Of a revocation list, empty and not."""
    for revoked in ((), (1, 1 << 158)):
        assert lint_list(crl_der(ca_of(algorithm), *revoked)) == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("status", [Good(), Revoked(at=AT, reason=Reason.KEY_COMPROMISE), Unknown()])
def test_pkilint_finds_nothing_in_an_ocsp_answer(algorithm: Algorithm, status: CertStatus) -> None:
    """Good, revoked and unknown, with a nonce, by a delegated key."""
    ca = ca_of(algorithm)
    key = key_of(algorithm, "responder")
    responder = ca.issue(ca.content_of(ProfileName.OCSP_SIGNING, spki=spki_of(key)))
    certificate_id = OCSPRequestBuilder().add_certificate_by_hash(
        hashlib.sha256(identity_of(ca.certificate).subject).digest(),
        hashlib.sha256(identity_of(ca.certificate).key_bits).digest(),
        4711,
        hashes.SHA256(),
    )
    answer = build_ocsp_response(
        parse_ocsp_request(certificate_id.build().public_bytes(Encoding.DER)).cert_id,
        status,
        responder=responder,
        key=key,
        produced_at=AT,
        this_update=AT,
        next_update=AT + timedelta(minutes=5),
        nonce=bytes(32),
    )
    assert lint_ocsp(answer) == {}


def test_pkilint_would_see_a_fault() -> None:
    """The judge is awake: an address that is none, and a serial number that is not positive enough."""
    ca = ca_of("ecdsa-p384")
    made = ca.issue(ca.content_of(ProfileName.NODE_CLIENT, crl_url="http://no host/"))
    assert lint(made)["ERROR"] == {FALSE_FINDING}
    assert {s.name for s in validation.ValidationFindingSeverity} == {
        "DEBUG",
        "INFO",
        "NOTICE",
        "WARNING",
        "ERROR",
        "FATAL",
    }


# ---------------------------------------------------------------- Go


@pytest.mark.slow
def test_go_finds_the_chains(go: Path) -> None:
    """Clients, servers with their names, both directions of a rotation; and what must fail, fails."""
    questions: list[tuple[str, dict[str, object]]] = []

    def ask(answer: str, leaf: bytes, roots: list[bytes], **more: object) -> None:
        questions.append((answer, {"Leaf": pem(leaf), "Roots": [pem(r) for r in roots]} | more))

    for algorithm in CLASSICAL:
        old, new = ca_of(algorithm), ca_of(algorithm, "successor")
        cross = old.issue(
            old.content_of(ProfileName.CA_CROSS, subject=new.content.subject, spki=new.content.spki)
        )
        client = new.issue(new.content_of(ProfileName.NODE_CLIENT))
        server = new.issue(new.content_of(ProfileName.NODE_SERVER))
        operator = new.issue(new.content_of(ProfileName.OPERATOR))
        ask("OK", client, [new.certificate])
        ask("OK", operator, [new.certificate])
        ask("OK", client, [old.certificate], Between=[pem(cross)])
        ask("OK", server, [new.certificate], Server=True, Host="cp1.example.com")
        ask("OK", server, [old.certificate], Between=[pem(cross)], Server=True, Host="2001:db8::7")
        ask("certificate signed by unknown authority", client, [old.certificate])
        ask("incompatible key usage", client, [new.certificate], Server=True)
        ask("incompatible key usage", server, [new.certificate])
        ask("not cp2.example.com", server, [new.certificate], Server=True, Host="cp2.example.com")
        ask("expired", client, [new.certificate], At=int(AT.timestamp()) + 90_000)
    ask_go(go, questions)


# ---------------------------------------------------------------- GnuTLS


@pytest.mark.parametrize("algorithm", CLASSICAL)
def test_gnutls_finds_the_chain(algorithm: Algorithm, tmp_path: Path) -> None:
    """The other TLS library of Linux distributions, through its command."""
    certtool = shutil.which("certtool")
    if certtool is None:
        pytest.skip("no certtool: GnuTLS is not asked")
    now = datetime.now(UTC).replace(microsecond=0)  # certtool 3.7 has no other
    day = timedelta(days=1)
    ca = ca_with(ca_of(algorithm).key, "first", not_before=now - day, not_after=now + 365 * day)
    (tmp_path / "ca").write_text(pem(ca.certificate))
    for profile in (*MACHINES, ProfileName.OPERATOR):
        leaf = pem(ca.issue(ca.content_of(profile, not_before=now - day, not_after=now + day)))
        run = [certtool, "--verify", "--load-ca-certificate", "ca"]
        done = subprocess.run(run, input=leaf, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "The certificate is trusted." in done.stdout


# ---------------------------------------------------------------- ML-DSA-87


def _verify_ml_dsa(der: bytes, issuer: bytes) -> bool:
    """Verify a signature of ML-DSA-87 with readers and arithmetic that have nothing in common with ours."""
    found, above = asn1.Certificate.load(der, strict=True), asn1.Certificate.load(issuer, strict=True)
    assert found["signature_algorithm"]["algorithm"].dotted == "2.16.840.1.101.3.4.3.19"
    assert found.issuer == above.subject
    assert found.authority_key_identifier == above.key_identifier
    # asn1crypto does not know the kind of key; RFC 9881, 4: its 2592 bytes are all of the BIT STRING, the last member.
    info = above["tbs_certificate"]["subject_public_key_info"].dump()
    key = info[-2592:]
    assert info[:-2592] == bytes.fromhex("30820a32300b060960864801650304031303820a2100")
    return bool(ML_DSA_87.verify(key, found["tbs_certificate"].dump(), found["signature_value"].native))


@pytest.mark.threat("T98")
def test_an_ml_dsa_that_is_not_openssls_verifies_the_chain() -> None:
    """Root, cross certificate and leaf of ML-DSA-87, by dilithium-py (FIPS 204); a changed bit is seen."""
    old, new = ca_of("ml-dsa-87"), ca_of("ml-dsa-87", "successor")
    cross = old.issue(
        old.content_of(ProfileName.CA_CROSS, subject=new.content.subject, spki=new.content.spki)
    )
    leaf = new.issue(new.content_of(ProfileName.NODE_CLIENT))
    assert _verify_ml_dsa(old.certificate, old.certificate)
    assert _verify_ml_dsa(cross, old.certificate)
    assert _verify_ml_dsa(leaf, cross)
    assert _verify_ml_dsa(leaf, new.certificate)
    changed = bytearray(leaf)
    changed[leaf.index(EK_URI.encode()) + len(EK_URI)] ^= 1
    assert not _verify_ml_dsa(bytes(changed), new.certificate)
    assert not _verify_ml_dsa(leaf[:-1] + bytes([leaf[-1] ^ 1]), new.certificate)
