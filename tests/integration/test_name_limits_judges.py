"""Others judge whether a CA below an issuer is held to its names: OpenSSL, pkilint and Go's crypto/x509."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.pki.external import read_ca
from attestation.pki.leaf import judge_leaf, make_leaf
from attestation.pki.leaf_names import NameRules
from tests.fixtures.certificate_judges import ask_go, go, lint, pem
from tests.unit.pki.certificate_kit import AT
from tests.unit.pki.leaf_kit import CA_NAME, EVERYTHING, SERIAL, asked, csr, hsm_ca, named

__all__ = ["go"]

SOME = NameRules(dns_names=("example.com",), ip_networks=("10.0.0.0/8",), uris=(), emails=("example.com",))
NONE = NameRules(dns_names=("example.com",), ip_networks=(), uris=(), emails=())
GOOD: tuple[x509.GeneralName, ...] = (
    x509.DNSName("a.example.com"),
    x509.IPAddress(ip_address("10.0.0.7")),
    x509.RFC822Name("me@example.com"),
    x509.RFC822Name("me@below.example.com"),
)
BAD: tuple[x509.GeneralName, ...] = (
    x509.DNSName("a.example.org"),
    x509.IPAddress(ip_address("11.0.0.7")),
    x509.IPAddress(ip_address("2001:db8::1")),
    x509.RFC822Name("me@example.org"),
    x509.UniformResourceIdentifier("https://a.example.com/"),
)
KEY = ec.generate_private_key(ec.SECP384R1())


def below(rules: NameRules) -> bytes:
    """Return the certificate of a CA below an issuer of these rules."""
    ca, key = hsm_ca()
    request = asked(
        csr(subject=named((x509.NameOID.ORGANIZATION_NAME, "Below")), key=KEY),
        is_ca=True,
        usages=("crl sign",),
    )
    content = judge_leaf(request, replace(EVERYTHING, names=rules), ca=ca, at=AT)
    return make_leaf(content, serial=SERIAL, ca=ca, key=key)


def leaf_of(name: x509.GeneralName) -> bytes:
    """Return a certificate of a name that the CA below signs: it knows of no limits, as a CA that is not ours."""
    free = read_ca(below(NameRules()), at=AT)
    request = asked(csr(x509.SubjectAlternativeName([name]), subject=x509.Name([])))
    return make_leaf(judge_leaf(request, EVERYTHING, ca=free, at=AT), serial=SERIAL + 1, ca=free, key=KEY)


def judged_by_openssl(folder: Path, leaf: bytes, between: bytes) -> str:
    """Return `OK`, or what is wrong in the words of OpenSSL."""
    for file, der in (("leaf", leaf), ("between", between), ("root", hsm_ca()[0].certificate)):
        (folder / file).write_text(pem(der))
    command = ["openssl", "verify", "-attime", str(int(AT.timestamp())), "-x509_strict"]
    files = ["-CAfile", "root", "-untrusted", "between", "leaf"]
    done = subprocess.run(
        [*command, *files], cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    return "OK" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", [*GOOD, *BAD], ids=lambda name: str(name.value))
def test_openssl_and_go_hold_a_ca_below_to_the_names_of_its_issuer(
    tmp_path: Path, go: Path, name: x509.GeneralName
) -> None:
    """What the issuer may certify verifies, and what it may not does not, whoever signed it."""
    ca, sub = hsm_ca()[0].certificate, below(SOME)
    leaf = leaf_of(name)
    found = judged_by_openssl(tmp_path, leaf, sub)
    question = {"Leaf": pem(leaf), "Roots": [pem(ca)], "Between": [pem(sub)], "Server": True}
    if name in GOOD:
        assert found == "OK"
        ask_go(go, [("OK", question)])
    else:
        assert "permitted subtree violation" in found
        ask_go(go, [("not permitted by any constraint", question)])


def test_where_nothing_of_a_kind_is_permitted_nothing_is(tmp_path: Path) -> None:
    """Of each kind; and pkilint finds no fault in such a certificate."""
    sub = below(NONE)
    assert judged_by_openssl(tmp_path, leaf_of(GOOD[0]), sub) == "OK"
    for name in (*GOOD[1:], *BAD[1:]):
        assert "subtree violation" in judged_by_openssl(tmp_path, leaf_of(name), sub)
    for rules in (SOME, NONE):
        assert lint(below(rules)).keys() <= {"INFO", "NOTICE"}


def test_the_name_of_the_ca_stays_its_own() -> None:
    """The subject is what was asked for, the issuer is the CA of the cluster."""
    made = x509.load_der_x509_certificate(below(SOME))
    assert made.issuer == CA_NAME
