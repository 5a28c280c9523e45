"""Certificate signing requests of Kubernetes: the same rules at our API server and at the real one (§21)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.contract.kubernetes import MERGE, bound, eventually, new_name, refused, rule
from tests.fixtures.kube import CLIENT_KUBELET, SIGNER, KubeAPI, kube, rest

__all__ = ["kube"]

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
GROUP = "certificates.k8s.io"

_KEY = ec.generate_private_key(ec.SECP256R1())


def pkcs10(name: str = "system:node:worker-1", organization: str = "system:nodes") -> bytes:
    """Return a request, PEM."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def certificate() -> bytes:
    """Return a certificate, PEM; of whom is nobody's business here."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    at = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(name, name, _KEY.public_key(), 7)
        .not_valid_before(at)
        .not_valid_after(at + timedelta(hours=1))
    )
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def base64_of(data: bytes) -> str:
    """Return it."""
    return base64.b64encode(data).decode()


def csr(name: str, request: bytes | None = None, **spec: Any) -> dict[str, Any]:
    """Return the object."""
    said = {
        "request": base64_of(request if request is not None else pkcs10()),
        "signerName": SIGNER,
        "usages": ["digital signature", "client auth"],
    }
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {key: value for key, value in {**said, **spec}.items() if value is not None},
    }


def condition(kind: str, status: str = "True", **more: Any) -> dict[str, Any]:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": "Test", "message": "m", **more}


@pytest.fixture(scope="module")
def admin(kube: KubeAPI) -> Iterator[httpx.Client]:
    """Somebody who may everything."""
    with rest(kube) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return new_name("csr")


@pytest.fixture
def made(admin: httpx.Client, name: str) -> dict[str, Any]:
    """A request for our signer."""
    answer = admin.post(CSRS, json=csr(name))
    assert answer.status_code == 201, answer.text
    value: dict[str, Any] = answer.json()
    return value


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (b"hello", "PEM block type must be CERTIFICATE REQUEST"),
        (b"", "spec.request"),
        (certificate() + pkcs10(), "PEM block type must be CERTIFICATE REQUEST"),
        (pkcs10().replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"), "PEM block type must be"),
    ],
    ids=["no-pem", "empty", "certificate-first", "other-type"],
)
def test_the_first_block_is_a_request(admin: httpx.Client, name: str, request_: bytes, words: str) -> None:
    """Nothing else is stored."""
    status = refused(admin.post(CSRS, json=csr(name, request_)), 422, words)
    assert status["reason"] == "Invalid"
    assert status["details"]["kind"] == "CertificateSigningRequest"
    assert "spec.request" in {each["field"] for each in status["details"]["causes"]}


def test_the_signature_of_the_request_is_verified(admin: httpx.Client, name: str) -> None:
    """A key is asked for by who has it."""
    der = bytearray(x509.load_pem_x509_csr(pkcs10()).public_bytes(Encoding.DER))
    at = der.index(b"worker-1")
    der[at] ^= 1
    body = base64.encodebytes(bytes(der))
    pem = b"-----BEGIN CERTIFICATE REQUEST-----\n" + body + b"-----END CERTIFICATE REQUEST-----\n"
    refused(admin.post(CSRS, json=csr(name, pem)), 422, "spec.request")


def test_what_follows_is_stored_unread(admin: httpx.Client, name: str) -> None:
    """Later blocks, and bytes that are none: it is the approver that reads them."""
    request = pkcs10() + b"-----BEGIN TPM ATTEST-----\nAAAA\n-----END TPM ATTEST-----\n\x00\xffrest"
    assert admin.post(CSRS, json=csr(name, request)).status_code == 201
    assert admin.get(f"{CSRS}/{name}").json()["spec"]["request"] == base64_of(request)


@pytest.mark.parametrize(
    ("size", "code", "words"),
    [
        (1_000_000, 201, ""),
        (1_600_000, 500, "etcdserver: request is too large"),
        (3_200_000, 413, "Request entity too large"),
    ],
)
def test_how_much_is_stored(admin: httpx.Client, name: str, size: int, code: int, words: str) -> None:
    """A log of a megabyte is; what etcd does not take is a 500; what is longer than a body is a 413."""
    answer = admin.post(CSRS, json=csr(name, pkcs10() + b"x" * size))
    assert answer.status_code == code, answer.text[:500]
    if words:
        assert words in answer.text
    else:
        admin.delete(f"{CSRS}/{name}")


@pytest.mark.parametrize(
    "signer", ["nodomain", "a/b", "example.com/", "example.com/a/b", "", "Example.com/x"]
)
def test_signers_have_a_domain_and_a_path(admin: httpx.Client, name: str, signer: str) -> None:
    """So nobody signs for another by a name alone."""
    status = refused(admin.post(CSRS, json=csr(name, signerName=signer)), 422, "spec.signerName")
    assert {each["field"] for each in status["details"]["causes"]} == {"spec.signerName"}


@pytest.mark.parametrize("usages", [[], None, ["client auth", "client auth"], ["unknown"]])
def test_usages_are_known_and_different(admin: httpx.Client, name: str, usages: Any) -> None:
    """Each once, at least one."""
    refused(admin.post(CSRS, json=csr(name, usages=usages)), 422, "spec.usages")


def test_the_caller_is_stamped(kube: KubeAPI, admin: httpx.Client, name: str) -> None:
    """Whatever the request says of itself: the approver may believe it."""
    made = admin.post(
        CSRS, json=csr(name, username="system:node:x", groups=["system:nodes"], uid="1", extra={"a": ["b"]})
    ).json()
    assert made["spec"]["username"] == "admin"
    assert sorted(made["spec"]["groups"]) == ["system:authenticated", "system:masters"]
    assert "extra" not in made["spec"]
    assert made["spec"].get("uid") != "1"


def test_a_new_request_has_no_status(admin: httpx.Client, name: str) -> None:
    """Nobody approves by asking."""
    body = {**csr(name), "status": {"conditions": [condition("Approved")]}}
    made = admin.post(CSRS, json=body).json()
    assert made["status"] == {}


def test_the_spec_stays(admin: httpx.Client, made: dict[str, Any]) -> None:
    """An update of it is answered with 200, and changes nothing."""
    name = made["metadata"]["name"]
    other = {**made, "spec": {**made["spec"], "request": base64_of(pkcs10("system:node:other"))}}
    answer = admin.put(f"{CSRS}/{name}", json=other)
    assert answer.status_code == 200
    assert answer.json()["spec"] == made["spec"]
    for part in ("status", "approval"):
        assert admin.put(f"{CSRS}/{name}/{part}", json=other).json()["spec"] == made["spec"]


def test_decisions_are_made_by_approval_alone(admin: httpx.Client, made: dict[str, Any]) -> None:
    """The object itself ignores them, its status refuses them."""
    path = f"{CSRS}/{made['metadata']['name']}"
    decided = {**made, "status": {"conditions": [condition("Approved")]}}
    now = admin.put(path, json=decided).json()
    assert now["status"] == {}
    decided["metadata"] = now["metadata"]  # it remembers who wrote last
    refused(admin.put(f"{path}/status", json=decided), 422, 'may not add a condition of type "Approved"')
    status = admin.put(f"{path}/approval", json=decided).json()["status"]
    assert [each["type"] for each in status["conditions"]] == ["Approved"]
    for field in ("lastUpdateTime", "lastTransitionTime"):
        assert status["conditions"][0][field].endswith("Z")


@pytest.mark.parametrize("kind", ["Approved", "Denied"])
def test_a_decision_stands(admin: httpx.Client, made: dict[str, Any], kind: str) -> None:
    """It is True, it is not taken back, and the other does not join it."""
    path = f"{CSRS}/{made['metadata']['name']}/approval"
    for status in ("False", "Unknown"):
        decided = {**made, "status": {"conditions": [condition(kind, status)]}}
        refused(admin.put(path, json=decided), 422, "Unsupported value")
    decided = {**made, "status": {"conditions": [condition(kind)]}}
    now = admin.put(path, json=decided).json()
    refused(admin.put(path, json={**now, "status": {}}), 422, f'may not remove a condition of type "{kind}"')
    both = [*now["status"]["conditions"], condition("Denied" if kind == "Approved" else "Approved")]
    refused(admin.put(path, json={**now, "status": {"conditions": both}}), 422, "mutually exclusive")
    twice = [*now["status"]["conditions"], condition(kind)]
    refused(admin.put(path, json={**now, "status": {"conditions": twice}}), 422, "Duplicate value")


def test_other_conditions_have_any_status(admin: httpx.Client, made: dict[str, Any]) -> None:
    """By the status: whoever signs tells what they want."""
    path = f"{CSRS}/{made['metadata']['name']}/status"
    body = {**made, "status": {"conditions": [condition("Ready", "False")]}}
    now = admin.put(path, json=body).json()
    assert now["status"]["conditions"][0]["status"] == "False"
    failed = {"conditions": [condition("Failed", "False")]}
    refused(admin.put(path, json={**now, "status": failed}), 422, "Unsupported value")


def test_a_decision_needs_the_version_that_was_read(admin: httpx.Client, made: dict[str, Any]) -> None:
    """Two approvers: the second learns that there was a first."""
    path = f"{CSRS}/{made['metadata']['name']}/approval"
    thin = {key: made["metadata"][key] for key in ("name", "uid", "resourceVersion")}
    body = {"metadata": thin, "status": {"conditions": [condition("Approved")]}}
    assert admin.put(path, json=body).status_code == 200
    status = refused(admin.put(path, json=body), 409, "the object has been modified")
    assert status["reason"] == "Conflict"


@pytest.mark.parametrize("approved", [True, False])
def test_a_certificate_is_accepted_on_an_unapproved_request_too(
    admin: httpx.Client, made: dict[str, Any], approved: bool
) -> None:
    """So the signer must look; and once there, it stays."""
    path = f"{CSRS}/{made['metadata']['name']}"
    if approved:
        decided = {**made, "status": {"conditions": [condition("Approved")]}}
        made = admin.put(f"{path}/approval", json=decided).json()
    around = b"text before\n" + certificate() + b"text after\n"
    made["status"]["certificate"] = base64_of(around)
    now = admin.put(f"{path}/status", json=made)
    assert now.status_code == 200, now.text
    assert now.json()["status"]["certificate"] == base64_of(around)
    for value in (base64_of(certificate() + b"\n"), None):
        other = {**now.json(), "status": {**now.json()["status"], "certificate": value}}
        refused(admin.put(f"{path}/status", json=other), 422, "may not modify existing certificate content")


@pytest.mark.parametrize(
    "value", [b"no pem", pkcs10(), certificate() + pkcs10()], ids=["none", "request", "both"]
)
def test_only_certificates_are_certificates(admin: httpx.Client, made: dict[str, Any], value: bytes) -> None:
    """No block of another type beside them."""
    path = f"{CSRS}/{made['metadata']['name']}/status"
    body = {**made, "status": {"certificate": base64_of(value)}}
    refused(admin.put(path, json=body), 422, "status.certificate")


def test_an_approval_leaves_the_certificate(admin: httpx.Client, made: dict[str, Any]) -> None:
    """Who approves does not sign by the way."""
    path = f"{CSRS}/{made['metadata']['name']}/approval"
    status = {"conditions": [condition("Approved")], "certificate": base64_of(certificate())}
    answer = admin.put(path, json={**made, "status": status})
    assert "certificate" not in answer.json().get("status", {}) or answer.status_code == 422


def test_requests_are_selected_by_their_signer(admin: httpx.Client, made: dict[str, Any], name: str) -> None:
    """Who signs for one signer sees no others."""
    admin.post(CSRS, json=csr(f"{name}-other", signerName=CLIENT_KUBELET))
    for sign, expected in (("=", [name]), ("==", [name]), ("!=", [f"{name}-other"])):
        selector = f"spec.signerName{sign}{SIGNER}"
        found = admin.get(CSRS, params={"fieldSelector": selector}).json()["items"]
        assert [n for each in found if (n := each["metadata"]["name"]).startswith(name)] == expected
    answer = admin.get(CSRS, params={"fieldSelector": "spec.username=admin"})
    refused(answer, 400, "field label not supported: spec.username")


def test_certificates_of_masters_are_not_asked_for(admin: httpx.Client, name: str) -> None:
    """Of the signer that would make them."""
    body = csr(name, pkcs10("x", "system:masters"), signerName="kubernetes.io/kube-apiserver-client")
    refused(admin.post(CSRS, json=body), 403, "system:masters")


@pytest.mark.parametrize("signer", [SIGNER, "attestation.itl.io/*", "other.example.com/x"])
def test_who_approves_needs_the_right_to_the_signer(
    kube: KubeAPI, admin: httpx.Client, made: dict[str, Any], name: str, signer: str
) -> None:
    """By its name or by its domain; the right to the subresource alone is not enough."""
    path = f"{CSRS}/{name}/approval"
    body = {**made, "status": {"conditions": [condition("Approved")]}}
    with rest(kube, "approver") as client:
        refused(
            client.put(path, json=body), 403, 'cannot update resource "certificatesigningrequests/approval"'
        )
        approval = rule(GROUP, "certificatesigningrequests/approval", "update")
        with bound(admin, "attestation-approver", approval):
            eventually(lambda: refused(client.put(path, json=body), 403, "not permitted to approve", SIGNER))
            approve = rule(GROUP, "signers", "approve", resourceNames=[signer])
            with bound(admin, "attestation-approver", approve):
                if signer.startswith("attestation.itl.io"):
                    eventually(lambda: _is(client.put(path, json=body), 200))
                else:
                    refused(client.put(path, json=body), 403, "not permitted to approve")


def test_who_signs_needs_the_right_to_the_signer(
    kube: KubeAPI, admin: httpx.Client, made: dict[str, Any], name: str
) -> None:
    """The same for the certificate."""
    path = f"{CSRS}/{name}/status"
    body = {**made, "status": {"certificate": base64_of(certificate())}}
    part = rule(GROUP, "certificatesigningrequests/status", "update", "patch")
    with bound(admin, "attestation-signer", part), rest(kube, "signer") as client:
        eventually(lambda: refused(client.put(path, json=body), 403, "not permitted to sign", SIGNER))
        with bound(admin, "attestation-signer", rule(GROUP, "signers", "sign", resourceNames=[SIGNER])):
            patch = {"status": {"certificate": base64_of(certificate())}}
            eventually(lambda: _is(client.patch(path, json=patch, headers=MERGE), 200))


def _is(answer: httpx.Response, code: int) -> None:
    assert answer.status_code == code, answer.text
