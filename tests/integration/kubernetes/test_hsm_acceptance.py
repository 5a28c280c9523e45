"""CA keys in hardware, by the numbers of their acceptance (HSM-AND-KUBERNETES §15), at our API server and the real one.

K6: test_hsm_signing.py and test_hsm_issuers.py. Rights of K7: tests/integration/deploy/test_hsm_chart.py, by the chart.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pkcs11
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from pkcs11 import Attribute, ObjectClass

from attestation_operator.hsm.authority import pem_of
from attestation_operator.objects import CERTIFICATE_REQUEST, HSM, HSM_CLUSTER_ISSUER, HSM_ISSUER
from tests.contract.kubernetes import MERGE
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import Here, here
from tests.fixtures.kube import RealKube, kube
from tests.fixtures.softhsm import PIN, softhsm
from tests.fixtures.softhsm_files import private_number
from tests.integration.kubernetes.test_hsm_signing import asked, status, types

__all__ = ["here", "kube", "softhsm"]

pytestmark = pytest.mark.softhsm
CHECKED, ISSUED, FAILED = ("True", "Checked"), ("True", "Issued"), ("False", "Failed")


def issued(here: Here, name: str) -> x509.Certificate:
    """Wait for the certificate of a request, and return it."""
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ISSUED)
    [leaf] = x509.load_pem_x509_certificates(
        base64.b64decode(here.get(CERTIFICATE_REQUEST, name)["status"]["certificate"])
    )
    return leaf


def ca_of(here: Here, name: str, seconds: float = 60) -> x509.Certificate:
    """Wait for an issuer, and return its certificate."""
    until(lambda: here.ready(HSM_ISSUER, name) == CHECKED, seconds)
    return x509.load_pem_x509_certificate(here.get(HSM_ISSUER, name)["status"]["caCertificate"].encode())


def change(here: Here, name: str, raw: Mapping[str, Any], part: str = "") -> dict[str, Any]:
    """Change an issuer as somebody who may."""
    answer = here.http.patch(here.path(HSM_ISSUER, name) + part, json=raw, headers=MERGE)
    changed: dict[str, Any] = answer.raise_for_status().json()
    return changed


def spellings(number: int, size: int) -> set[bytes]:
    """Return what a private number looks like where people and programs write it down, begun anywhere in base64."""
    data = number.to_bytes(size)
    texts = {data, data[::-1], data.hex().encode(), data.hex().upper().encode(), str(number).encode()}
    for shift in range(3):
        # The first and last characters depend on what stands beside.
        texts.add(base64.b64encode(bytes(shift) + data)[4:-8])
    return texts


def value_of(here: Here, label: str) -> str:
    """Ask the token for the bytes of a private key; return the name of what it answers in their place."""
    library = pkcs11.lib(str(here.hsm.module))
    try:
        with library.get_token(token_label="hsm").open(user_pin=PIN) as session:
            [key] = session.get_objects({Attribute.CLASS: ObjectClass.PRIVATE_KEY, Attribute.LABEL: label})
            return bytes(key[Attribute.VALUE]).hex()
    except pkcs11.PKCS11Error as e:
        return type(e).__name__
    finally:
        library.finalize()


def test_k3_a_ca_key_never_leaves_its_token(here: Here, capfd: pytest.CaptureFixture[str]) -> None:
    """Read back by another client of the token; and nowhere in etcd, in objects, Events and logs, in any spelling."""
    here.token()
    issuer = here.issuer()
    leaf = issued(here, here.request(issuer))
    ca = ca_of(here, issuer)
    leaf.verify_directly_issued_by(ca)
    uid = here.get(HSM_ISSUER, issuer)["metadata"]["uid"]
    here.stop()
    # The token says: sensitive and not extractable, always; made here; for signatures alone. It gives no value.
    said = here.hsm.tool("--list-objects", "--type", "privkey", "--label", uid)
    access = re.search(r"Access:\s+(.*)", said)
    usage = re.search(r"Usage:\s+(.*)", said)
    assert access is not None
    assert usage is not None
    assert set(access[1].split(", ")) == {"sensitive", "always sensitive", "never extractable", "local"}
    assert usage[1] == "sign"
    # On a thread that ends: what OpenSSL remembers of a module that goes away is remembered of the thread.
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(value_of, here, uid).result() == "AttributeSensitive"
    # What is written anywhere: everything that the API server kept, and what was logged.
    public = ca.public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    number = private_number(here.hsm.tokens, PIN, public)
    wanted = spellings(number, 48)
    written = base64.b64encode(b"beside" + number.to_bytes(48) + b"beside")
    assert any(text in written for text in wanted), "the search would find it"
    logged = capfd.readouterr()
    places = [here.path(each) for each in (HSM, HSM_ISSUER, CERTIFICATE_REQUEST)] + [
        "/apis/events.k8s.io/v1/events"
    ]
    told = [logged.out.encode(), logged.err.encode(), *(here.http.get(each).content for each in places)]
    if isinstance(here.kube, RealKube):
        kept = [
            each.read_bytes() for each in (here.kube.cluster.folder / "etcd").rglob("*") if each.is_file()
        ]
        assert any(uid.encode() in each for each in kept), "this is where objects are"
        told += kept
    assert not [text for text in wanted for each in told if text in each]


def test_k4_what_is_asked_for_is_honoured_within_the_policy_or_refused(here: Here) -> None:
    """Duration, isCA and usages; a certificate without keyCertSign makes no issuer ready, also one of its own key."""
    here.token()
    issuer = here.issuer(
        pathLen=1,
        policy={"maxDuration": "2h", "usages": ["digital signature", "client auth"], "allowCA": True},
    )
    good = here.request(issuer, usages=["digital signature", "client auth"], duration="90m")
    sub = here.request(issuer, usages=["cert sign", "crl sign"], isCA=True)
    beyond = {
        here.request(issuer, duration="2h1m", usages=["digital signature"]): "duration-forbidden",
        here.request(issuer, usages=["server auth"]): "usage-forbidden",
    }
    leaf = issued(here, good)
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc == timedelta(minutes=95), (
        "5 of them before now"
    )
    found = leaf.extensions.get_extension_for_class
    assert list(found(x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    usage = found(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign, usage.key_encipherment) == (True, False, False)
    constraints = issued(here, sub).extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    for name, word in beyond.items():
        until(lambda name=name: here.ready(CERTIFICATE_REQUEST, name) == FAILED)  # type: ignore[misc]  # a default binds it
        said = here.get(CERTIFICATE_REQUEST, name)["status"]
        assert word in next(each["message"] for each in said["conditions"] if each["type"] == "Ready")
        assert "certificate" not in said
    # Somebody who may write its status puts a certificate there by the key itself, which may not sign certificates.
    ca = ca_of(here, issuer)
    uid = here.get(HSM_ISSUER, issuer)["metadata"]["uid"]
    here.stop()
    key: Any = here.hsm.open(uid).private_key
    others = "content_commitment key_encipherment data_encipherment key_agreement encipher_only decipher_only"
    usages = dict.fromkeys(others.split(), False)
    builder = x509.CertificateBuilder(
        ca.issuer, ca.subject, ca.public_key(), 7, ca.not_valid_before_utc, ca.not_valid_after_utc
    )
    for each in ca.extensions:
        value = each.value
        if isinstance(value, x509.KeyUsage):
            value = x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=True, **usages)
        builder = builder.add_extension(value, each.critical)
    made = builder.sign(key, hashes.SHA384())
    here.hsm.close()
    change(here, issuer, {"status": {"caCertificate": pem_of(made.public_bytes(Encoding.DER))}}, "/status")
    here.start()
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("False", "CAInvalid"))
    waits = here.request(issuer, usages=["digital signature"])
    until(lambda: here.ready(CERTIFICATE_REQUEST, waits) == ("False", "Pending"))


def test_k7_a_changed_spec_is_observed(here: Here) -> None:
    """By its generation in the condition; what is asked from then on is judged by it."""
    here.token()
    issuer = here.issuer()
    issued(here, here.request(issuer, duration="3h"))
    changed = change(here, issuer, {"spec": {"policy": {"maxDuration": "1h"}}})["metadata"]["generation"]

    def observed() -> bool:
        found = here.get(HSM_ISSUER, issuer)["status"]
        [ready] = [each for each in found["conditions"] if each["type"] == "Ready"]
        return bool(
            found["observedGeneration"] == ready["observedGeneration"] == changed
            and ready["status"] == "True"
        )

    until(observed)
    refused = here.request(issuer, duration="3h")
    until(lambda: here.ready(CERTIFICATE_REQUEST, refused) == FAILED)


@pytest.mark.parametrize(
    ("key_type", "kind", "size"),
    [("ecdsa-p384", ec.EllipticCurvePublicKey, 384), ("rsa-4096", rsa.RSAPublicKey, 4096)],
)
@pytest.mark.parametrize("kube", ["fake"], indirect=True)
def test_k8_a_generated_key_issues(here: Here, key_type: str, kind: type[Any], size: int) -> None:
    """P-384 and RSA-4096, made on the token: proven by its own certificate, and a leaf below it."""
    here.token()
    issuer = here.issuer(keyType=key_type)
    ca = ca_of(here, issuer, 300)  # software looks for primes of RSA as long as it takes
    assert isinstance(ca.public_key(), kind)
    assert ca.public_key().key_size == size  # type: ignore[union-attr]  # both kinds have one
    assert here.get(HSM_ISSUER, issuer)["status"]["keyOrigin"] == "generated"
    leaf = issued(here, here.request(issuer))
    leaf.verify_directly_issued_by(ca)
    ca.verify_directly_issued_by(ca)
    assert leaf.not_valid_before_utc <= datetime.now(UTC) <= leaf.not_valid_after_utc


def test_k13_requests_of_kubernetes_in_each_state(here: Here) -> None:
    """Unknown signer, unapproved, denied, issuer not ready, signed."""
    spec = {"hsmRef": {"name": here.name}, "mode": "SelfSigned", "subject": {"commonName": "Cluster CA"}}
    here.create(HSM_CLUSTER_ISSUER, here.name, spec)
    unknown = asked(here, here.name, signerName="unknown.example/signer")
    unapproved, denied = asked(here, here.name, ""), asked(here, here.name, "Denied")
    waiting = asked(here, here.name)
    # No token yet: the issuer is not ready, and what asks it waits.
    until(lambda: here.ready(HSM_CLUSTER_ISSUER, here.name) == ("False", "Pending"))
    assert "certificate" not in status(here, waiting)
    here.token()
    until(lambda: "certificate" in status(here, waiting))
    assert types(here, waiting) == types(here, unknown) == {"Approved"}
    assert (types(here, unapproved), types(here, denied)) == (set(), {"Denied"})
    for name in (unknown, unapproved, denied):
        assert "certificate" not in status(here, name)


def test_k13_an_issuer_whose_key_was_taken_away_says_so_and_makes_no_other(here: Here) -> None:
    """Self-signed, then its signer fails: it is unready, requests wait, and no second key takes its place."""
    here.token()
    issuer = here.issuer()
    until(lambda: here.ready(HSM_ISSUER, issuer) == CHECKED)
    uid = here.get(HSM_ISSUER, issuer)["metadata"]["uid"]
    here.stop()
    here.hsm.tool("--delete-object", "--type", "privkey", "--label", uid)
    here.start()
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("False", "KeyUnavailable"))
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("False", "Pending"))
    here.stop()
    assert "Private Key Object" not in here.hsm.tool("--list-objects", "--type", "privkey")
