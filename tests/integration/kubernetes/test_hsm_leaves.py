"""HsmCertificates: keys on SoftHSM, certificates by way of CertificateRequests, at our API server and the real one."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509

from attestation_operator.objects import CERTIFICATE_REQUEST, HSM_CERTIFICATE, HSM_ISSUER
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import Here, here
from tests.fixtures.kube import kube
from tests.fixtures.softhsm import PIN, softhsm

__all__ = ["here", "kube", "softhsm"]

pytestmark = pytest.mark.softhsm
SECRETS = "/api/v1/namespaces/default/secrets"


def leaf(here: Here, **spec: Any) -> str:
    """Create a token, an issuer on it and an HsmCertificate; return the name of all."""
    here.token()
    here.issuer()
    said = {
        "issuerRef": {"name": here.name},
        "hsmRef": {"name": here.name},
        "dnsNames": ["pay.example.org"],
        "usages": ["digital signature", "server auth"],
        "duration": "24h",
        "secretName": "pay-tls",
    }
    here.create(HSM_CERTIFICATE, here.name, said | spec)
    return here.name


def request_of(here: Here, name: str, number: int) -> str:
    """Return the name of a request of it, once it is there."""
    uid = here.get(HSM_CERTIFICATE, name)["metadata"]["uid"]
    request = f"{name}-{uid[:8]}-{number}"
    until(lambda: here.http.get(here.path(CERTIFICATE_REQUEST, request)).status_code == 200)
    return request


def secret(here: Here, name: str = "pay-tls") -> dict[str, bytes]:
    """Return what a Secret holds."""
    found = here.http.get(f"{SECRETS}/{name}").raise_for_status().json()
    return {member: base64.b64decode(text) for member, text in found["data"].items()}


def keys(here: Here) -> list[str]:
    """Return the labels of the private keys on the token; the controller is stopped by then."""
    here.stop()
    listed = here.hsm.tool("--list-objects", "--type", "privkey")
    return sorted(line.split(":")[1].strip() for line in listed.splitlines() if "label:" in line)


def test_a_leaf_key_is_made_certified_and_renewed_and_the_secret_holds_no_key(here: Here) -> None:
    """From an object to a Secret with a certificate and a URI; a renewal has a key of its own; all go with it."""
    name = leaf(here)
    here.say(request_of(here, name, 1), "Approved")
    until(lambda: here.ready(HSM_CERTIFICATE, name) == ("True", "Issued"))
    raw = here.get(HSM_CERTIFICATE, name)
    uid, status = raw["metadata"]["uid"], raw["status"]
    held = secret(here)
    assert held.keys() == {"tls.crt", "ca.crt", "key-uri"}
    [first] = x509.load_pem_x509_certificates(held["tls.crt"])
    ca = here.get(HSM_ISSUER, name)["status"]["caCertificate"]
    assert held["ca.crt"].decode() == ca
    first.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.encode()))
    assert f"{first.serial_number:x}" == status["serialNumber"]
    uri = held["key-uri"].decode()
    assert uri.startswith(f"pkcs11:token=hsm;object={uid}-1;id=%")
    assert "pin" not in uri
    assert PIN.encode() not in b"".join(held.values())
    # Somebody takes the Secret: it is written again, the same.
    here.http.delete(f"{SECRETS}/pay-tls").raise_for_status()
    here.http.patch(
        here.path(HSM_CERTIFICATE, name),
        json={"metadata": {"labels": {"look": "again"}}},
        headers={"Content-Type": "application/merge-patch+json"},
    ).raise_for_status()
    until(lambda: here.http.get(f"{SECRETS}/pay-tls").status_code == 200)
    assert secret(here) == held
    # Another spec is another certificate; the one before is good until it is there.
    here.http.patch(
        here.path(HSM_CERTIFICATE, name),
        json={"spec": {"dnsNames": ["pay.example.org", "www.example.org"]}},
        headers={"Content-Type": "application/merge-patch+json"},
    ).raise_for_status()
    second = request_of(here, name, 2)
    assert secret(here) == held
    here.say(second, "Approved")
    until(lambda: here.get(HSM_CERTIFICATE, name)["status"].get("revision") == 2)
    [renewed] = x509.load_pem_x509_certificates(secret(here)["tls.crt"])
    assert renewed.public_key() != first.public_key()
    assert secret(here)["key-uri"].decode().startswith(f"pkcs11:token=hsm;object={uid}-2;id=%")
    here.http.delete(here.path(HSM_CERTIFICATE, name)).raise_for_status()
    until(lambda: here.http.get(here.path(HSM_CERTIFICATE, name)).status_code == 404)
    assert not [label for label in keys(here) if label.startswith(uid)]


def test_a_foreign_secret_is_not_overwritten_and_a_denial_is_an_end_for_a_while(here: Here) -> None:
    """Neither is a key made for the first; after a denial nothing is asked for again at once."""
    raw = {"metadata": {"name": "foreign-tls"}, "data": {"tls.crt": base64.b64encode(b"theirs").decode()}}
    here.http.post(SECRETS, json=raw).raise_for_status()
    try:
        name = leaf(here, secretName="foreign-tls")
        until(lambda: here.ready(HSM_CERTIFICATE, name) == ("False", "SecretForeign"))
        assert secret(here, "foreign-tls") == {"tls.crt": b"theirs"}
        denied = f"{name}-denied"
        spec = here.get(HSM_CERTIFICATE, name)["spec"] | {"secretName": "pay-tls"}
        here.create(HSM_CERTIFICATE, denied, spec)
        here.say(request_of(here, denied, 1), "Denied")
        until(lambda: here.get(HSM_CERTIFICATE, denied)["status"].get("failures") == 1)
        status = here.get(HSM_CERTIFICATE, denied)["status"]
        said = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
        assert said == {"Ready": ("False", "Issuing"), "Issuing": ("False", "Denied")}
        assert status["requestNumber"] == 1
        # A Secret that nobody granted is no Secret of ours: whoever asked for it is told.
        ungranted = f"{name}-ungranted"
        here.create(HSM_CERTIFICATE, ungranted, spec | {"secretName": "other-tls"})
        until(lambda: here.ready(HSM_CERTIFICATE, ungranted) == ("False", "Forbidden"))
        uids = {each: here.get(HSM_CERTIFICATE, each)["metadata"]["uid"] for each in (name, denied)}
        labels = keys(here)
        assert f"{uids[name]}-1" not in labels
        assert f"{uids[denied]}-1" in labels
    finally:
        here.http.delete(f"{SECRETS}/foreign-tls")
