"""Others judge what a CA key on a token signs for a cluster: OpenSSL, pkilint and Go's crypto/x509.

Certificates, lists and the responder are made by the controller's own code, its key on SoftHSM.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.ocsp import OCSPCertStatus, OCSPRequestBuilder, load_der_ocsp_response

from attestation.api.hsm import HSMIssuer, HSMIssuerPut, HSMList, HSMListEntry, HSMResponder
from attestation.keys.open import Algorithm
from attestation.pki.issuer import identity_of
from attestation.pki.leaf import LeafAsked, judge_leaf
from attestation.pki.ocsp import Good, Revoked, build_ocsp_response, parse_ocsp_request
from attestation.wire import b64decode, b64encode
from attestation_operator.crds.hsm import IssuerSpec
from attestation_operator.hsm import lists
from attestation_operator.hsm.authority import Authority, authority_of, pem_of, proven_ca, self_signed
from attestation_operator.hsm.issuance import Issuance, Order
from tests.fixtures.certificate_judges import OpenSSL, ask_go, go, lint, lint_list, lint_ocsp, openssl, pem
from tests.fixtures.hsm_log import Log
from tests.fixtures.softhsm import SoftHSM, softhsm
from tests.unit.pki.certificate_kit import AT, leaf_key
from tests.unit.pki.leaf_kit import csr
from tests.unit.pki.revocation_kit import key_of

__all__ = ["go", "openssl", "softhsm"]

pytestmark = pytest.mark.softhsm
ALGORITHMS: tuple[Algorithm, ...] = ("ecdsa-p384", "rsa-4096")
SERVER, CLIENT = ("digital signature", "server auth"), ("digital signature", "client auth")
SUB = ("cert sign", "crl sign")
DAY = timedelta(days=1)
INFORMED = {"INFO": {"pkix.subject_key_identifier_rfc7093_method_1_identified"}}
"""The one thing that pkilint says of our certificates: how the identifiers of keys are made."""
Above = Callable[..., list[bytes]]


class CA:
    """An issuer whose key is on the token, and its log."""

    def __init__(self, hsm: SoftHSM, algorithm: Algorithm, above: Above | None = None) -> None:
        self.log = Log()
        key = hsm.create(f"{algorithm}-{'self-signed' if above is None else 'below'}", algorithm)
        spec = IssuerSpec.model_validate(
            {
                "hsmRef": {"name": "hsm"},
                "mode": "SelfSigned",
                "keyType": algorithm,
                "subject": {"commonName": f"Cluster CA {algorithm}"},
                "pathLen": 1,
                "policy": {
                    "usages": ["digital signature", "server auth", "client auth", "cert sign", "crl sign"],
                    "allowCA": True,
                },
            }
        )
        chain = [self_signed(spec, key, at=AT)] if above is None else above(key.public_key)
        ca = proven_ca("".join(map(pem_of, chain)), key, at=AT, by_itself=above is None)
        assert ca is not None
        said = HSMIssuerPut(
            kind="HsmClusterIssuer",
            name="payments",
            certificate=b64encode(ca.certificate),
            key_origin="generated",
            module="softhsm",
            token_label="hsm",
        )
        known: HSMIssuer = asyncio.run(self.log.register("uid", said))
        self.authority: Authority = authority_of(spec, key=key, ca=ca, known=known, chain=chain)
        self.certificate = ca.certificate

    def issue(
        self, *names: str, usages: tuple[str, ...] = SERVER, is_ca: bool = False, key: Any = None
    ) -> bytes:
        """Return the certificate for a request, as the controller issues it."""
        alternative = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        request = csr(*([alternative] if names else []), key=key)
        asked = LeafAsked(request=request, usages=usages, is_ca=is_ca, duration=DAY)
        content = judge_leaf(asked, self.authority.policy, ca=self.authority.ca, at=AT)
        uid = hashlib.sha256(request).hexdigest()
        order = Order(
            uid=uid, kind="CertificateRequest", namespace="default", name="cr", requester="u", content=content
        )

        async def issue() -> bytes:
            return await Issuance(self.log, asyncio.to_thread).issue(self.authority, order)

        return asyncio.run(issue())

    def crl(self, *revoked: bytes) -> bytes:
        """Return the list of the revoked, DER."""
        entries = [
            HSMListEntry(serial=f"{serial(each):040x}", at=AT, reason="keyCompromise") for each in revoked
        ]
        due = HSMList(due=True, number=7, revision=0, entries=entries, this_update=AT, next_update=AT + DAY)
        return b64decode(lists.signed_list(self.authority, due, newest=6, at=AT).crl, "the list")

    def responder(self) -> tuple[bytes, Any]:
        """Return the certificate of the service's responder for this CA, and its key."""
        key = key_of("ecdsa-p384", "responder")
        due = HSMResponder(due=True, request=b64encode(csr(key=key)), serial=f"{1 << 158:040x}")
        made = lists.certified_responder(self.authority, due, at=AT)
        return b64decode(made.certificate, "the responder"), key


def serial(certificate: bytes) -> int:
    """Return the serial number of a certificate."""
    return x509.load_der_x509_certificate(certificate).serial_number


def crl_pem(der: bytes) -> str:
    """Return a list in PEM."""
    return x509.load_der_x509_crl(der).public_bytes(Encoding.PEM).decode()


def corporate() -> tuple[bytes, Above]:
    """Return a root that a company has, and how it certifies a key: for some names alone, and no CA below."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Corporate Root")])
    others = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    usage = dict.fromkeys(others.split(), False)

    def certify(public: Any, subject: x509.Name, *more: x509.ExtensionType) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(AT - DAY)
            .not_valid_after(AT + 365 * DAY)
            .add_extension(
                x509.BasicConstraints(ca=True, path_length=None if public == key.public_key() else 0), True
            )
            .add_extension(
                x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), True
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False)
        )
        for each in more:
            made = made.add_extension(each, critical=True)
        return made.sign(key, hashes.SHA384()).public_bytes(Encoding.DER)

    def above(public: Any, *permitted: str) -> list[bytes]:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Cluster CA")])
        limits = [x509.NameConstraints([x509.DNSName(each) for each in permitted], None)] if permitted else []
        return [certify(public, subject, *limits), root]

    root = certify(key.public_key(), name)
    return root, above


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_openssl_and_pkilint_find_chain_list_and_answers_good(
    softhsm: SoftHSM, openssl: OpenSSL, tmp_path: Path, algorithm: Algorithm
) -> None:
    """Strict rules, purposes, a list that names a certificate, OCSP by a delegated key; the linter finds nothing."""
    ca = CA(softhsm, algorithm)
    server, client = ca.issue("shop.example.com"), ca.issue("a.example.com", usages=CLIENT)
    held = ca.issue("gone.example.com")
    crl = ca.crl(held)

    def judge(leaf: bytes, purpose: str) -> str:
        options = ("-crl_check", "-purpose", purpose)
        return openssl.verify(leaf, trusted=[ca.certificate], lists=[crl_pem(crl)], options=options)

    assert judge(server, "sslserver") == judge(client, "sslclient") == "OK"
    assert "purpose" in judge(server, "sslclient")
    assert "certificate revoked" in judge(held, "sslserver")
    responder, key = ca.responder()
    sub = ca.issue(usages=SUB, is_ca=True, key=leaf_key("rsa-2048"))
    assert (
        openssl.verify(sub, trusted=[ca.certificate], lists=[crl_pem(crl)], options=("-crl_check",)) == "OK"
    )
    for made in (ca.certificate, server, client, sub, responder):
        assert lint(made) == INFORMED
    assert lint_list(crl) == lint_list(ca.crl()) == {}
    # OCSP: asked and verified by OpenSSL, answered by the service's code.
    above = identity_of(ca.certificate)
    subject, bits = (hashlib.sha256(each).digest() for each in (above.subject, above.key_bits))
    for leaf, status in ((server, Good()), (held, Revoked(at=AT, reason=lists.crl_reason("keyCompromise")))):
        asked = (
            OCSPRequestBuilder().add_certificate_by_hash(subject, bits, serial(leaf), hashes.SHA256()).build()
        )
        answer = build_ocsp_response(
            parse_ocsp_request(asked.public_bytes(Encoding.DER)).cert_id,
            status,
            responder=responder,
            key=key,
            produced_at=AT,
            this_update=AT,
            next_update=AT + DAY,
        )
        assert lint_ocsp(answer) == {}
        wanted = OCSPCertStatus.GOOD if leaf is server else OCSPCertStatus.REVOKED
        assert load_der_ocsp_response(answer).certificate_status is wanted
        said = _ocsp(tmp_path, ca, leaf, answer)
        assert "Response verify OK" in said, said
        assert f"leaf.pem: {'good' if leaf is server else 'revoked'}" in said, said


def _ocsp(folder: Path, ca: CA, leaf: bytes, answer: bytes) -> str:
    (folder / "ca.pem").write_text(pem(ca.certificate))
    (folder / "leaf.pem").write_text(pem(leaf))
    (folder / "answer").write_bytes(answer)
    run = [
        "openssl",
        "ocsp",
        "-sha256",
        "-issuer",
        "ca.pem",
        "-cert",
        "leaf.pem",
        "-respin",
        "answer",
        "-CAfile",
        "ca.pem",
    ]
    run += ["-no-CApath", "-no-CAstore", "-attime", str(int(AT.timestamp())), "-validity_period", str(10**9)]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_go_finds_chains_usages_and_constraints(softhsm: SoftHSM, go: Path) -> None:
    """Self-signed and below a company's root with name constraints: what must verify does, what must not does not."""
    questions: list[tuple[str, dict[str, object]]] = []

    def ask(answer: str, leaf: bytes, root: bytes, **more: object) -> None:
        questions.append((answer, {"Leaf": pem(leaf), "Roots": [pem(root)]} | more))

    root, above = corporate()
    for algorithm in ALGORITHMS:
        ca = CA(softhsm, algorithm)
        server, client = ca.issue("shop.example.com"), ca.issue("a.example.com", usages=CLIENT)
        ask("OK", server, ca.certificate, Server=True, Host="shop.example.com")
        ask("OK", client, ca.certificate)
        ask("incompatible key usage", server, ca.certificate)
        ask("not other.example.com", server, ca.certificate, Server=True, Host="other.example.com")
        ask("expired", client, ca.certificate, At=int((AT + 2 * DAY).timestamp()))
        ask("unknown authority", client, root)
    # The key's certificate permits example.com alone; the controller that knows of it signs nothing else, and Go
    # refuses what one signed that was told of a certificate without limits.
    free = CA(softhsm, "ecdsa-p384", above)
    limited, _ = above(free.authority.ca.public_key, "example.com")
    chain: dict[str, object] = {"Between": [pem(limited)], "Server": True}
    ask("OK", free.issue("shop.example.com"), root, Host="shop.example.com", **chain)
    ask(
        "not permitted by any constraint",
        free.issue("shop.example.org"),
        root,
        Host="shop.example.org",
        **chain,
    )
    ask_go(go, questions)
