"""Kubernetes' own CertificateSigningRequest is issued by a key on SoftHSM, at our API server and the real one (§21)."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation_operator.objects import CSR, HSM_CLUSTER_ISSUER
from tests.docs.pages import text
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import APPLY, NUMBERS, Here, here
from tests.fixtures.kube import kube
from tests.fixtures.softhsm import softhsm

__all__ = ["here", "kube", "softhsm"]

pytestmark = pytest.mark.softhsm
KEY = ec.generate_private_key(ec.SECP256R1())


def asked(here: Here, issuer: str, decision: str = "Approved", **spec: Any) -> str:
    """Create a request to a cluster issuer, and decide on it as its approver does."""
    name = f"csr-{next(NUMBERS)}"
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf.example.org")]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("leaf.example.org")]), critical=False)
        .sign(KEY, hashes.SHA256())
    )
    said = {
        "signerName": f"hsmclusterissuers.attestation.itl.io/{issuer}",
        "request": base64.b64encode(made.public_bytes(Encoding.PEM)).decode(),
        "usages": ["digital signature", "server auth"],
    }
    raw = here.create(CSR, name, said | spec)
    if decision:
        condition = {"type": decision, "status": "True", "reason": "tests", "message": "said"}
        raw["status"] = {"conditions": [condition]}
        here.http.put(f"{here.path(CSR, name)}/approval", json=raw).raise_for_status()
    return name


def status(here: Here, name: str) -> dict[str, Any]:
    """Return what is said of a request."""
    found: dict[str, Any] = here.get(CSR, name).get("status") or {}
    return found


def types(here: Here, name: str) -> set[str]:
    """Return the types of its conditions."""
    return {each["type"] for each in status(here, name).get("conditions") or ()}


def test_an_approved_request_is_issued_and_no_other(here: Here) -> None:
    """The whole way; what is denied or undecided stays so, and a condition of somebody else survives both ends (K6)."""
    # Before there is an issuer: the request waits, and somebody says something of it meanwhile.
    waiting, refused = asked(here, here.name), asked(here, here.name, usages=["code signing"])
    undecided, denied = asked(here, here.name, ""), asked(here, here.name, "Denied")
    for name in (waiting, refused):
        condition = {"type": "Foreign", "status": "Unknown", "reason": "tests", "message": "said"}
        raw = {
            "apiVersion": CSR.api_version,
            "kind": CSR.kind,
            "status": {"conditions": [condition]},
        }
        place, params = f"{here.path(CSR, name)}/status", {"fieldManager": "somebody"}
        here.http.patch(place, json=raw, headers=APPLY, params=params).raise_for_status()
    here.token()
    spec = {"hsmRef": {"name": here.name}, "mode": "SelfSigned", "subject": {"commonName": "Cluster CA"}}
    here.create(HSM_CLUSTER_ISSUER, here.name, spec)
    until(lambda: "certificate" in status(here, waiting))
    [leaf] = x509.load_pem_x509_certificates(base64.b64decode(status(here, waiting)["certificate"]))
    ca = here.get(HSM_CLUSTER_ISSUER, here.name)["status"]["caCertificate"]
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.encode()))
    assert leaf.public_key() == KEY.public_key()
    found = here.get(CSR, waiting)
    assert here.log.issued.keys() == {found["metadata"]["uid"]}
    _, reserved = here.log.reserved[found["metadata"]["uid"]]
    assert (reserved.kind, reserved.requester) == ("CertificateSigningRequest", found["spec"]["username"])
    # What its usages do not allow never is; the others are as they were left.
    until(lambda: "Failed" in types(here, refused))
    assert types(here, waiting) == {"Approved", "Foreign"}
    assert types(here, refused) == {"Approved", "Foreign", "Failed"}
    assert (types(here, undecided), types(here, denied)) == (set(), {"Denied"})
    for name in (refused, undecided, denied):
        assert "certificate" not in status(here, name)
    # We wrote nothing but a certificate and Failed.
    for each in here.http.get(here.path(CSR)).json()["items"]:
        for entry in each["metadata"].get("managedFields") or ():
            if entry["manager"] == "attestation-operator-hsm":
                written = entry["fieldsV1"]["f:status"]
                owned = {key for key in written.get("f:conditions", {}) if key != "."}
                assert written.keys() <= {"f:certificate", "f:conditions"}
                assert owned <= {'k:{"type":"Failed"}'}


@pytest.mark.parametrize("kube", [pytest.param("real", marks=pytest.mark.kubeapi)], indirect=True)
def test_the_page_can_be_followed(here: Here, tmp_path: Path) -> None:
    """Word by word, with kubectl: from a key to a certificate (docs/kubernetes/hsm.md)."""
    _, _, behind = text("docs/kubernetes/hsm.md").partition("## Kubernetes' own requests")
    lines = [line[4:] for line in behind.splitlines() if line.startswith("    ")]
    block = "\n".join(lines[: next(i for i, line in enumerate(lines) if "jsonpath" in line) + 1])
    *steps, last = block.splitlines()
    here.token()
    spec = {"hsmRef": {"name": here.name}, "mode": "SelfSigned", "subject": {"commonName": "Cluster CA"}}
    here.create(HSM_CLUSTER_ISSUER, "payments", spec)
    until(lambda: here.ready(HSM_CLUSTER_ISSUER, "payments") == ("True", "Checked"))

    def run(script: str) -> str:
        # A server of 1.20 knows no `expirationSeconds`, and no validation by the server.
        kubectl = (
            'kubectl() { if [ "$1" = apply ]; then set -- "$@" --validate=false; fi; command kubectl "$@"; }'
        )
        done = subprocess.run(
            ["bash", "-euc", f"{kubectl}\n{script}"],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "KUBECONFIG": str(here.kube.kubeconfig()),
                "HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("\n".join(steps))
    until(lambda: "certificate" in status(here, "web"))
    [leaf] = x509.load_pem_x509_certificates(run(last).encode())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["web.payments.example"]
