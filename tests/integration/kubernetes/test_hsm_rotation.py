"""A second CA key on SoftHSM follows the first one, and what either signed verifies throughout (§8)."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation_operator.objects import CERTIFICATE_REQUEST, HSM_ISSUER
from tests.contract.kubernetes import MERGE
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import Here, here
from tests.fixtures.kube import kube
from tests.fixtures.softhsm import softhsm

__all__ = ["here", "kube", "softhsm"]

pytestmark = pytest.mark.softhsm


def issued(here: Here, issuer: str) -> tuple[list[str], str]:
    """Return the chain of a fresh certificate, the leaf first, and what relying parties are told to trust, PEM."""
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("True", "Issued"))
    status = here.get(CERTIFICATE_REQUEST, name)["status"]
    chain = x509.load_pem_x509_certificates(base64.b64decode(status["certificate"]))
    pems = [each.public_bytes(Encoding.PEM).decode() for each in chain]
    return pems, base64.b64decode(status["ca"]).decode()


def wants(here: Here, issuer: str, key: int) -> None:
    """Let a key of this number sign."""
    change = {"spec": {"rotation": {"key": key, "publishedFor": "0s"}}}
    here.http.patch(here.path(HSM_ISSUER, issuer), json=change, headers=MERGE).raise_for_status()


def signs(here: Here, issuer: str, number: int) -> bool:
    """Return whether this key signs, and the issuer is ready by it."""
    status = here.get(HSM_ISSUER, issuer)["status"]
    active = [each["number"] for each in status.get("keys") or () if each["state"] == "Active"]
    current = {each["type"]: each["reason"] for each in status["conditions"]}
    ready = here.ready(HSM_ISSUER, issuer) == ("True", "Checked")
    return active == [number] and ready and current["KeyCurrent"] == "Retiring" and "issuerID" in status


def verified(folder: Path, trusted: str, chain: list[str], crls: list[str]) -> None:
    """Assert that OpenSSL verifies a chain by what is trusted alone, and finds the leaf on no list."""
    for name, text in (("trusted", trusted), ("sent", "".join(chain[1:])), ("leaf", chain[0])):
        (folder / f"{name}.pem").write_text(text)
    (folder / "crls.pem").write_text("".join(crls))
    sent = ["-untrusted", "sent.pem"] if chain[1:] else []
    lists = ["-crl_check", "-CRLfile", "crls.pem"]
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", "trusted.pem", *sent, *lists, "leaf.pem"],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def lists_of(here: Here) -> list[str]:
    """Return every list that a key signed, PEM."""
    found = [x509.load_der_x509_crl(base64.b64decode(each)) for each in here.log.lists.values()]
    return [each.public_bytes(Encoding.PEM).decode() for each in found]


def test_what_was_signed_before_and_after_a_rotation_verifies_throughout(here: Here, tmp_path: Path) -> None:
    """By who knows the old CA, by who knows the new one, and after going back."""
    here.token()
    issuer = here.issuer(pathLen=1)
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("True", "Checked"))
    first: dict[str, Any] = here.get(HSM_ISSUER, issuer)["status"]
    old, trusted = issued(here, issuer)
    assert trusted == first["caCertificate"]
    wants(here, issuer, 2)
    until(lambda: signs(here, issuer, 2))
    second = here.get(HSM_ISSUER, issuer)["status"]
    assert second["keyFingerprint"] != first["keyFingerprint"]
    new, both = issued(here, issuer)
    assert both == second["caCertificate"] + first["caCertificate"]
    until(lambda: {first["issuerID"], second["issuerID"]} <= here.log.lists.keys())
    crls = lists_of(here)
    for chain, known in (
        (old, first["caCertificate"]),
        (old, both),
        (new, first["caCertificate"]),
        (new, second["caCertificate"]),
        (new, both),
    ):
        verified(tmp_path, known, chain, crls)
    # What joins them is in the log as any certificate is.
    [cross] = [each for _, each in here.log.reserved.values() if each.kind == "HsmIssuer"]
    assert (cross.subject, cross.is_ca) == ("CN=Test CA G2", True)
    # Two keys on the token, each once, also after a restart.
    here.stop()
    assert here.hsm.tool("--list-objects", "--type", "privkey").count("Private Key Object") == 2
    here.start()
    wants(here, issuer, 1)
    until(lambda: signs(here, issuer, 1))
    back, _ = issued(here, issuer)
    assert here.get(HSM_ISSUER, issuer)["status"]["caCertificate"] == first["caCertificate"]
    for chain in (old, new, back):
        verified(tmp_path, both, chain, crls)
    # Whoever wants its key destroyed means every one.
    place = here.path(HSM_ISSUER, issuer)
    here.http.patch(place, json={"spec": {"deletionPolicy": "Destroy"}}, headers=MERGE).raise_for_status()
    here.http.delete(place).raise_for_status()
    until(lambda: here.http.get(place).status_code == 404)
    here.stop()
    assert "Private Key Object" not in here.hsm.tool("--list-objects", "--type", "privkey")
