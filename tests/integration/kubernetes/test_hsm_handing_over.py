"""A CA key is handed over to the program as it is shipped, at our API server and at the real one (§§13, 14)."""

from __future__ import annotations

import base64

import pytest
from cryptography import x509

from attestation.keys.provisioning import SigningKey
from attestation_operator.objects import CERTIFICATE_REQUEST, HSM_ISSUER, QUOTE_ATTESTATION
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import Here, here
from tests.fixtures.hsm_quotes import admin_key, bundle_for, provisioning, secret_for
from tests.fixtures.kube import kube
from tests.fixtures.softhsm import softhsm
from tools.software_enclave import write_programs

__all__ = ["here", "kube", "softhsm"]

pytestmark = pytest.mark.softhsm


def test_two_administrators_hand_a_key_over_across_a_change_of_leaders(here: Here) -> None:
    """A listed program makes the evidence, another process takes the bundle, and a certificate comes from the key.

    With the rights of the page: Secrets of one name.
    """
    here.stop()
    programs = write_programs(here.folder / "programs")
    here.settings = here.settings.model_copy(update={"evidence_programs": programs})
    here.start()
    here.token()
    signers: list[SigningKey] = [admin_key("ada"), admin_key("bob")]
    asked = provisioning(*signers, requiredSignatures=2, secretRef={"name": "handed-over"})
    spec = {"hsmRef": {"name": here.name}, "mode": "Provisioned", "provisioning": asked}
    here.create(HSM_ISSUER, here.name, spec)
    until(lambda: here.ready(HSM_ISSUER, here.name) == ("False", "AwaitingKey"))
    name = here.get(HSM_ISSUER, here.name)["status"]["qaRef"]["name"]
    until(lambda: here.ready(QUOTE_ATTESTATION, name) == ("Unknown", "AwaitingKey"))
    here.stop()
    quote = here.get(QUOTE_ATTESTATION, name)
    secrets = "/api/v1/namespaces/default/secrets"
    here.http.post(secrets, json=secret_for(quote, bundle_for(quote), signers)).raise_for_status()
    here.settings = here.settings.model_copy(update={"identity": f"{here.name}-second"})
    here.start()
    until(lambda: here.ready(HSM_ISSUER, here.name) == ("True", "Checked"))
    until(lambda: here.ready(QUOTE_ATTESTATION, name) == ("True", "Loaded"))
    assert here.http.get(f"{secrets}/handed-over").status_code == 404
    status = here.get(HSM_ISSUER, here.name)["status"]
    assert status["keyOrigin"] == "provisioned"
    request = here.request(here.name)
    until(lambda: here.ready(CERTIFICATE_REQUEST, request) == ("True", "Issued"))
    issued = base64.b64decode(here.get(CERTIFICATE_REQUEST, request)["status"]["certificate"])
    [leaf] = x509.load_pem_x509_certificates(issued)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(status["caCertificate"].encode()))
    assert here.log.steps(quote["metadata"]["uid"]) == ["accepted", "bundle-accepted", "loaded"]
    # Deleted, it takes the QuoteAttestation along.
    here.http.delete(here.path(HSM_ISSUER, here.name)).raise_for_status()
    until(lambda: here.http.get(here.path(HSM_ISSUER, here.name)).status_code == 404)
    assert here.http.get(here.path(QUOTE_ATTESTATION, name)).status_code == 404
