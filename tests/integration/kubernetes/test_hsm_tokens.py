"""Tokens of other kinds, and tokens that come and go, under the controller (HSM-AND-KUBERNETES §§3, 4, 14)."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from attestation_operator.objects import CERTIFICATE_REQUEST, HSM, HSM_ISSUER
from attestation_testing import SoftwareTPM
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import Here, here
from tests.fixtures.kube import kube
from tests.fixtures.softhsm import softhsm

__all__ = ["here", "kube", "softhsm"]


def issued(here: Here, issuer: str) -> tuple[x509.Certificate, x509.Certificate]:
    """Return a fresh certificate of an issuer, and that of its CA, which made it."""
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("True", "Issued"))
    status = here.get(CERTIFICATE_REQUEST, name)["status"]
    leaf, ca = (
        x509.load_pem_x509_certificate(base64.b64decode(status[each])) for each in ("certificate", "ca")
    )
    leaf.verify_directly_issued_by(ca)
    return leaf, ca


@pytest.mark.swtpm
@pytest.mark.softhsm
def test_a_tpm_is_the_token_of_issuers(here: Here, blank_tpm: SoftwareTPM) -> None:
    """P-256 and P-384: made in the TPM, self-signed, and found again by a process that knows nothing of before."""
    here.stop()
    here.settings = here.settings.model_copy(update={"tpms": f"tpm0={blank_tpm.uri}"})
    here.start()
    spec = {"module": "tpm0", "healthCheck": {"interval": "5s"}, "allowedNamespaces": ["default"]}
    here.create(HSM, here.name, spec)
    until(lambda: here.ready(HSM, here.name) == ("True", "Checked"))
    curves: dict[str, type[Any]] = {"ecdsa-p256": ec.SECP256R1, "ecdsa-p384": ec.SECP384R1}
    made = {key: here.issuer(f"{here.name}-{key}", keyType=key) for key in curves}
    cas = {}
    for key, issuer in made.items():
        until(lambda issuer=issuer: here.ready(HSM_ISSUER, issuer) == ("True", "Checked"))  # type: ignore[misc]  # a default binds it
        status = here.get(HSM_ISSUER, issuer)["status"]
        assert status["keyOrigin"] == "tpm"
        _, ca = issued(here, issuer)
        ca.verify_directly_issued_by(ca)
        public: Any = ca.public_key()
        assert isinstance(public.curve, curves[key])
        cas[key] = ca
    until(lambda: len(here.log.lists) == len(made))
    # What no TPM makes is said, and nothing is made in its place.
    for key in ("rsa-4096", "ml-dsa-87"):
        issuer = here.issuer(f"{here.name}-{key}", keyType=key)
        until(lambda issuer=issuer: here.ready(HSM_ISSUER, issuer) == ("False", "KeyUnsupported"))  # type: ignore[misc]  # likewise
        assert key in here.get(HSM_ISSUER, issuer)["status"]["conditions"][0]["message"]
    here.stop()
    here.start()
    for key, issuer in made.items():
        assert issued(here, issuer)[1] == cas[key]


@pytest.mark.softhsm
@pytest.mark.parametrize("kube", ["fake"], indirect=True)
def test_a_token_that_was_pulled_and_put_back_is_ready_again_by_itself(here: Here) -> None:
    """And what waited for it is issued; a P-256 key is none for a CA on it, and no module here makes ML-DSA."""
    here.token()
    issuer = here.issuer()
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("True", "Checked"))
    _, before = issued(here, issuer)
    for key in ("ecdsa-p256", "ml-dsa-87"):
        other = here.issuer(f"{here.name}-{key}", keyType=key)
        until(lambda other=other: here.ready(HSM_ISSUER, other) == ("False", "KeyUnsupported"))  # type: ignore[misc]  # a default binds it
    away = here.hsm.folder / "away"
    here.hsm.tokens.rename(away)
    here.hsm.tokens.mkdir()
    until(lambda: here.ready(HSM, here.name)[0] == "False")
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("False", "KeyUnavailable"))
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("False", "Pending"))
    here.hsm.tokens.rmdir()
    away.rename(here.hsm.tokens)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("True", "Issued"))
    assert issued(here, issuer)[1] == before
