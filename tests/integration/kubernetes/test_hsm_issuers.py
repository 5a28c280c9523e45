"""A CertificateRequest is issued by a key on SoftHSM, at our API server and at the real one (§§14-16)."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509

from attestation_operator.actions import SetStatus
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.errors import ObjectChanged
from attestation_operator.hsm import requests
from attestation_operator.objects import CERTIFICATE_REQUEST, HSM, HSM_ISSUER
from tests.fixtures.controllers import until
from tests.fixtures.hsm_here import Here, here
from tests.fixtures.kube import kube
from tests.fixtures.softhsm import PIN, softhsm

__all__ = ["here", "kube", "softhsm"]

pytestmark = pytest.mark.softhsm


def test_a_request_is_issued_by_a_key_that_was_made_on_the_token(here: Here) -> None:
    """From three objects to a certificate: token, issuer, request; written down before anybody has it."""
    here.token()
    issuer = here.issuer()
    until(lambda: here.ready(HSM, here.name) == ("True", "Checked"))
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("True", "Checked"))
    status = here.get(HSM_ISSUER, issuer)["status"]
    ca = x509.load_pem_x509_certificate(status["caCertificate"].encode())
    assert status["keyOrigin"] == "generated"
    ca.verify_directly_issued_by(ca)
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("True", "Issued"))
    found = here.get(CERTIFICATE_REQUEST, name)
    chain = x509.load_pem_x509_certificates(base64.b64decode(found["status"]["certificate"]))
    assert len(chain) == 1, "the leaf first; the highest that is not self-signed last"
    chain[0].verify_directly_issued_by(ca)
    assert base64.b64decode(found["status"]["ca"]).decode() == status["caCertificate"]
    assert here.log.issued.keys() == {found["metadata"]["uid"]}
    _, reserved = here.log.reserved[found["metadata"]["uid"]]
    assert reserved.requester == "system:serviceaccount:cert-manager:cert-manager"
    types = {each["type"] for each in found["status"]["conditions"]}
    assert types == {"Approved", "Ready"}, "what the approver said is still there"
    until(lambda: here.log.lists)


def failed(here: Here, name: str) -> dict[str, Any]:
    """Return the status of a request that ended without a certificate."""
    status: dict[str, Any] = here.get(CERTIFICATE_REQUEST, name)["status"]
    assert "certificate" not in status
    assert status["failureTime"]
    return status


def test_requests_wait_are_denied_and_refused_as_the_contract_has_it(here: Here) -> None:
    """An absent issuer, nobody's approval, a denial, a policy that says no, and a request that is none (§16)."""
    waiting, undecided = here.request(here.name), here.request(here.name, approve=False)
    denied = here.request(here.name, approve=False)
    here.say(denied, "Denied")
    until(lambda: here.ready(CERTIFICATE_REQUEST, waiting) == ("False", "Pending"))
    until(lambda: here.ready(CERTIFICATE_REQUEST, denied) == ("False", "Denied"))
    failed(here, denied)
    here.token()
    here.issuer(policy={"maxDuration": "2h", "names": {"dnsDomains": ["example.org"]}})
    until(lambda: here.ready(CERTIFICATE_REQUEST, waiting) == ("True", "Issued"))
    # K4: beyond the policy is refused, not shortened; isCA and usages are what the request says.
    for change, invalid in (
        ({"duration": "3h"}, False),
        ({"isCA": True}, False),
        ({"usages": ["code signing"]}, False),
        ({"request": base64.b64encode(b"no request").decode()}, True),
    ):
        name = here.request(here.name, **change)
        until(lambda name=name: here.ready(CERTIFICATE_REQUEST, name) == ("False", "Failed"))  # type: ignore[misc]  # a default binds it
        types = {each["type"] for each in failed(here, name)["conditions"]}
        assert ("InvalidRequest" in types) is invalid, change
    assert here.ready(CERTIFICATE_REQUEST, undecided) == ("", "")
    # K6: what others decided stands there as they said it, and we decided nothing.
    for each in here.http.get(here.path(CERTIFICATE_REQUEST)).json()["items"]:
        for entry in each["metadata"].get("managedFields") or ():
            if entry["manager"] == "attestation-operator-hsm":
                owned = entry["fieldsV1"]["f:status"]["f:conditions"]
                assert {json.loads(key[2:])["type"] for key in owned} <= {"Ready", "InvalidRequest"}


def test_one_key_whatever_happens_and_it_is_found_again(here: Here) -> None:
    """Restarts and a PIN that is wrong for a while: the same key, the same certificate, ready again by itself."""
    here.token()
    issuer = here.issuer()
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("True", "Checked"))
    before = here.get(HSM_ISSUER, issuer)["status"]
    here.stop()
    pin = here.folder / "pins/softhsm-pin/pin"
    pin.write_text("9999-wrong")
    here.start()
    until(lambda: here.ready(HSM, here.name) == ("False", "PINRejected"))
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("False", "KeyUnavailable"))
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("False", "Pending"))
    pin.write_text(PIN)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("True", "Issued"))
    after = here.get(HSM_ISSUER, issuer)["status"]
    for member in ("caCertificate", "keyFingerprint", "issuerID"):
        assert after[member] == before[member]
    here.stop()
    listed = here.hsm.tool("--list-objects", "--type", "privkey")
    assert listed.count("Private Key Object") == 1


def test_a_deleted_issuer_keeps_its_key_or_destroys_it(here: Here) -> None:
    """K12: Retain, the default, and Destroy; the object is gone after its key."""
    here.token()
    kept, gone = here.issuer(f"{here.name}-kept"), here.issuer(f"{here.name}-gone", deletionPolicy="Destroy")
    for each in (kept, gone):
        until(lambda each=each: here.ready(HSM_ISSUER, each) == ("True", "Checked"))  # type: ignore[misc]  # a default binds it
    uids = {each: here.get(HSM_ISSUER, each)["metadata"]["uid"] for each in (kept, gone)}
    for each in (kept, gone):
        here.http.delete(here.path(HSM_ISSUER, each)).raise_for_status()
    for each in (kept, gone):
        until(lambda each=each: here.http.get(here.path(HSM_ISSUER, each)).status_code == 404)  # type: ignore[misc]  # likewise
    here.stop()
    listed = here.hsm.tool("--list-objects", "--type", "privkey")
    assert uids[kept] in listed
    assert uids[gone] not in listed


def test_no_pin_is_told_anywhere(here: Here, capfd: pytest.CaptureFixture[str]) -> None:
    """Canary: not in an object, an Event or what is logged, also where the PIN is refused."""
    pin = here.folder / "pins/softhsm-pin/pin"
    pin.write_text("canary-wrong-0815")
    here.token()
    here.issuer()
    until(lambda: here.ready(HSM, here.name) == ("False", "PINRejected"))
    pin.write_text(PIN)
    until(lambda: here.ready(HSM_ISSUER, here.name) == ("True", "Checked"))
    places = [here.path(HSM), here.path(HSM_ISSUER), "/apis/events.k8s.io/v1/events"]
    told = "".join(here.http.get(each).raise_for_status().text for each in places)
    here.stop()
    said = capfd.readouterr()
    for canary in (PIN, "canary-wrong-0815"):
        assert canary not in told
        assert canary not in said.out + said.err


def test_a_foreign_condition_that_is_written_in_between_survives(here: Here) -> None:
    """Server-side apply with our own manager: a merge patch would have replaced the whole list (§16)."""
    name = here.request(here.name, approve=False)
    here.stop()
    here.say(name, "Approved")
    raw = here.get(CERTIFICATE_REQUEST, name)
    request = requests.read_request(raw)
    status = {"type": "Ready", "status": "Unknown", "reason": "Initializing", "message": "seen"}
    initialized = replace(request, conditions=(*request.conditions, status))
    issuer = {
        "metadata": {"name": here.name, "uid": "u", "generation": 1},
        "status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]},
    }
    issued = requests.Issued(certificate="leaf", ca="ca")
    looked = requests.reconcile(initialized, issuer, at=datetime.now(UTC), outcome=issued)
    here.say(name, "Foreign", manager="somebody")
    [action] = looked.actions
    assert isinstance(action, SetStatus)

    async def apply() -> None:
        cluster = KubernetesCluster(config_from(here.settings.kubeconfig))
        try:
            assert await cluster.apply_status(action.target, action.status, manager=action.manager)
            # What is only a step is not written over what was said meanwhile.
            with pytest.raises(ObjectChanged):
                await cluster.apply_status(action.target, action.status, manager=action.manager, exact=True)
        finally:
            await cluster.aclose()

    asyncio.run(apply())
    found = here.get(CERTIFICATE_REQUEST, name)["status"]
    assert {each["type"] for each in found["conditions"]} == {"Approved", "Foreign", "Ready"}
    assert found["certificate"] == base64.b64encode(b"leaf").decode()


def test_a_service_that_forgot_the_ca_is_told_of_it_again(here: Here) -> None:
    """Its database was restored from before: the request waits for that, and is issued by itself."""
    here.token()
    issuer = here.issuer()
    until(lambda: here.ready(HSM_ISSUER, issuer) == ("True", "Checked"))
    here.log.issuers.clear()
    name = here.request(issuer)
    until(lambda: here.ready(CERTIFICATE_REQUEST, name) == ("True", "Issued"))
    assert here.log.asked.count("register") > 1
