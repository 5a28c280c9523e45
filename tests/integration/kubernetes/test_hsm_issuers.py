"""A CertificateRequest is issued by a key on SoftHSM, at our API server and at the real one (§§14-16)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.clock import SystemClock
from attestation_operator import crds
from attestation_operator.actions import SetStatus
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.errors import ObjectChanged
from attestation_operator.hsm import requests
from attestation_operator.hsm.commands import maker, tokens_of
from attestation_operator.hsm.controllers import Threads
from attestation_operator.hsm.settings import HsmSettings
from attestation_operator.objects import CERTIFICATE_REQUEST, HSM, HSM_ISSUER, HSM_KINDS, Kind
from attestation_operator.program import Program
from attestation_testing.kubernetes.cert_manager import CERTIFICATE_REQUESTS
from tests.contract.kubernetes import MERGE
from tests.fixtures.controllers import CRDS, RBAC, Running, binding, until
from tests.fixtures.hsm_log import Log
from tests.fixtures.kube import KubeAPI, kube, rest
from tests.fixtures.softhsm import PIN, SoftHSM, softhsm

__all__ = ["kube", "softhsm"]

pytestmark = pytest.mark.softhsm
NUMBERS = itertools.count(1)


def _rule(group: str, resources: Sequence[str], verbs: str) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": verbs.split()}


OURS: Final = [each.plural for each in HSM_KINDS]
RULES: Final = [
    _rule("attestation.itl.io", OURS, "get list watch patch"),
    _rule("attestation.itl.io", [f"{each}/status" for each in OURS], "patch"),
    _rule("cert-manager.io", ["certificaterequests"], "get list watch"),
    _rule("cert-manager.io", ["certificaterequests/status"], "patch"),
    _rule("events.k8s.io", ["events"], "create patch"),
    _rule("coordination.k8s.io", ["leases"], "get create update"),
]
"""What the controller may do: §22; the page says the same."""
APPLY: Final = {"Content-Type": "application/apply-patch+yaml"}


class Here:
    """A cluster with our kinds and cert-manager's, and a controller with a token in software."""

    def __init__(self, kube: KubeAPI, http: httpx.Client, hsm: SoftHSM, folder: Path) -> None:
        self.kube, self.http, self.hsm, self.folder = kube, http, hsm, folder
        self.log = Log()
        self.name = f"hsm-{next(NUMBERS)}"
        self.running: Running | None = None
        token, pins = folder / "service-token", folder / "pins" / "softhsm-pin"
        token.write_text("token-of-the-pod")
        pins.mkdir(parents=True)
        (pins / "pin").write_text(PIN)
        self.settings = HsmSettings(
            service_url="http://127.0.0.1:9",
            kubeconfig=kube.kubeconfig("hsm"),
            namespace="default",
            identity=self.name,
            token_file=token,
            health_probe_bind_address="127.0.0.1:0",
            metrics_bind_address="127.0.0.1:0",
            pkcs11_modules=f"softhsm={hsm.module}",
            pin_dir=folder / "pins",
            tpm_keys_dir=folder / "tpm",
        )

    def start(self) -> None:
        """Start the controller; it leads."""
        self.tokens, self.threads = tokens_of(self.settings), Threads()
        make = maker(self.settings, self.tokens, self.threads, service=self.log)
        program = Program("hsm", self.settings, make, clock=SystemClock(), log=structlog.get_logger())
        self.running = running = Running(program)
        until(lambda: running.metric("itl_operator_leading") == 1)

    def stop(self) -> None:
        """Stop it; its keys are let go of."""
        running, self.running = self.running, None
        if running is not None:
            running.stop()
            self.threads.close()
            self.tokens.close()

    def path(self, kind: Kind, name: str = "") -> str:
        """Return where objects of a kind are, or one of them."""
        place = "/namespaces/default" if kind.namespaced else ""
        return f"/apis/{kind.api_version}{place}/{kind.plural}{'/' if name else ''}{name}"

    def create(self, kind: Kind, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        raw = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        made: dict[str, Any] = self.http.post(self.path(kind), json=raw).raise_for_status().json()
        return made

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        """Return an object."""
        found: dict[str, Any] = self.http.get(self.path(kind, name)).raise_for_status().json()
        return found

    def ready(self, kind: Kind, name: str) -> tuple[str, str]:
        """Return status and reason of its condition Ready."""
        conditions = (self.get(kind, name).get("status") or {}).get("conditions") or []
        found = [(each["status"], each["reason"]) for each in conditions if each["type"] == "Ready"]
        return found[0] if found else ("", "")

    def token(self, **spec: Any) -> None:
        """Create the token's object."""
        said = {
            "module": "softhsm",
            "tokenLabel": "hsm",
            "pinSecretRef": {"name": "softhsm-pin", "key": "pin"},
            "healthCheck": {"interval": "5s"},
            "allowedNamespaces": ["default"],
        }
        self.create(HSM, self.name, said | spec)

    def issuer(self, name: str = "", **spec: Any) -> str:
        """Create an issuer on it."""
        name = name or self.name
        said = {"hsmRef": {"name": self.name}, "mode": "SelfSigned", "subject": {"commonName": "Test CA"}}
        self.create(HSM_ISSUER, name, said | spec)
        return name

    def request(self, issuer: str, *, approve: bool = True, **spec: Any) -> str:
        """Create a CertificateRequest, approved."""
        name = f"cr-{next(NUMBERS)}"
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf.example.org")])
        csr = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(subject)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("leaf.example.org")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        said = {
            "issuerRef": {"name": issuer, "kind": "HsmIssuer", "group": "attestation.itl.io"},
            "request": base64.b64encode(csr.public_bytes(Encoding.PEM)).decode(),
            "usages": ["digital signature", "server auth"],
            "duration": "1h",
            "username": "system:serviceaccount:cert-manager:cert-manager",
        }
        self.create(CERTIFICATE_REQUEST, name, said | spec)
        if approve:
            self.say(name, "Approved")
        return name

    def say(self, name: str, type_: str, *, manager: str = "approver") -> None:
        """Decide on a request as its approver does."""
        condition = {"type": type_, "status": "True", "reason": "tests", "message": "said"}
        raw = {
            "apiVersion": "cert-manager.io/v1",
            "kind": "CertificateRequest",
            "status": {"conditions": [condition | {"lastTransitionTime": "2026-11-26T12:00:00Z"}]},
        }
        place = f"{self.path(CERTIFICATE_REQUEST, name)}/status"
        params = {"fieldManager": manager, "force": "true"}
        self.http.patch(place, json=raw, headers=APPLY, params=params).raise_for_status()


@pytest.fixture
def here(kube: KubeAPI, softhsm: SoftHSM, tmp_path: Path) -> Iterator[Here]:
    """A cluster, a token and a controller."""
    with rest(kube) as http:
        for definition in (*crds.definitions(), CERTIFICATE_REQUESTS):
            answer = http.post(CRDS, json=definition)
            assert answer.status_code in (201, 409), answer.text
        role = {"metadata": {"name": "test-hsm"}, "rules": RULES}
        for place, raw in (
            (f"{RBAC}/clusterroles", role),
            (f"{RBAC}/clusterrolebindings", binding("test-hsm", "test-hsm", "User", "attestation-hsm")),
        ):
            answer = http.post(place, json=raw)
            assert answer.status_code in (201, 409), answer.text
        here = Here(kube, http, softhsm, tmp_path)
        until(
            lambda: all(http.get(here.path(k)).status_code == 200 for k in (*HSM_KINDS, CERTIFICATE_REQUEST))
        )
        here.start()
        try:
            yield here
        finally:
            here.stop()
            for kind in (CERTIFICATE_REQUEST, HSM_ISSUER, HSM):
                for each in http.get(here.path(kind)).json()["items"]:
                    name = each["metadata"]["name"]
                    http.patch(here.path(kind, name), json={"metadata": {"finalizers": None}}, headers=MERGE)
                    http.delete(here.path(kind, name))


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
