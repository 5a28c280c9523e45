"""What is decided at one replica is in force at the next request to another, whatever that one keeps in memory."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import ocsp

from attestation.tpm import parse_public
from attestation.wire import b64encode
from tests.fixtures import vendor
from tests.fixtures.machine import Machine, code
from tests.fixtures.operator_pki import Issued
from tests.fixtures.service import Operator
from tests.integration.replicas.conftest import Replicas

pytestmark = [pytest.mark.nginx, pytest.mark.slow]

EACH = range(3)


@pytest.fixture(scope="module")
def people(replicas: Replicas) -> tuple[Issued, Issued]:
    """Two operators."""
    alice, bob = (replicas.operator_ca.issue(name) for name in ("alice", "bob"))
    return alice, bob


def agree(
    replicas: Replicas, people: tuple[Issued, Issued], at: int, method: str, path: str, body: Any
) -> Any:
    """Have both ask for the same, one at *at* and one at the replica after it; return the last answer's body."""
    one, other = (replicas.person((at + n) % 3, each.escaped) for n, each in enumerate(people))
    asked = one.request(method, path, json=body)
    assert asked.status_code == 202, asked.text
    answer = other.request(method, path, json=body)
    assert answer.is_success, answer.text
    assert answer.status_code != 202
    return answer.json() if answer.content else None


def others(replica: int) -> Iterator[int]:
    """Return those that did not act."""
    return (each for each in EACH if each != replica)


@pytest.mark.parametrize("acting", EACH)
def test_a_policy(replicas: Replicas, acting: int) -> None:
    """A machine that was good is not good at another replica once a policy demands what it has not; and back."""
    name = f"never-{acting}"
    machine = replicas.admitted()
    document = {
        "format": "itl-tpm-policy/1",
        "name": name,
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": ["ab" * 32]}},
    }
    replicas.operators[acting].call("POST", "/policies", json=document)
    for each in EACH:
        assert replicas.at(machine, each).attest()["status"] == "attested"
    place = f"/policies/assignments/machine/{machine.machine_id}"
    replicas.operators[acting].call("PUT", place, json={"policy": f"{name}@1"})
    for each in others(acting):
        effective = replicas.operators[each].call("GET", f"/machines/{machine.machine_id}/policy")
        assert name in str(effective)
    machine.next_challenge = None
    replicas.at(machine, (acting + 2) % 3).attest()
    assert replicas.operators[(acting + 1) % 3].machine(machine.machine_id)["trust"] == "failed"


def verdict(replicas: Replicas, replica: int, shown: dict[str, Any]) -> bool:
    """Say whether *replica* believes the maker of an EK certificate."""
    body = {"certificate": shown["ek_cert_pem"], "chain": shown["ek_chain"]}
    found: bool = replicas.operators[replica].call("POST", "/trust/verify", json=body)["ok"]
    return found


def test_the_trust_bundle(replicas: Replicas, people: tuple[Issued, Issued]) -> None:
    """An anchor that is added, distrusted and restored, each time by another replica."""
    ek = vendor.vouched(parse_public(replicas.machine().ek_public))
    root = {
        "certificate": b64encode(vendor.ROOT.certificate),
        "role": "anchor",
        "vendor": "IFX",
        "reason": "met",
    }
    assert [verdict(replicas, each, ek) for each in EACH] == [False] * 3
    sha256 = agree(replicas, people, 0, "POST", "/trust/certificates", root)["sha256"]
    assert [verdict(replicas, each, ek) for each in EACH] == [True] * 3
    replicas.operators[1].call("POST", f"/trust/certificates/{sha256}/distrust", json={"reason": "stolen"})
    assert [verdict(replicas, each, ek) for each in EACH] == [False] * 3
    agree(replicas, people, 2, "POST", f"/trust/certificates/{sha256}/restore", {"reason": "not stolen"})
    assert [verdict(replicas, each, ek) for each in EACH] == [True] * 3
    replicas.operators[0].call("POST", f"/trust/certificates/{sha256}/distrust", json={"reason": "after all"})


@pytest.mark.parametrize("acting", EACH)
def test_the_allow_list_and_tokens(replicas: Replicas, acting: int) -> None:
    """Who is taken off the list, or whose token is withdrawn, is nobody at the others."""
    asked = (acting + 1) % 3
    here = replicas.operators[acting]
    listed, not_listed = replicas.at(replicas.machine(), asked), replicas.at(replicas.machine(), asked)
    entries = [{"ek_fingerprint": each.ek_fingerprint, "role": "worker-app"} for each in (listed, not_listed)]
    here.call("POST", "/allow-list", json={"entries": entries})
    here.call("DELETE", f"/allow-list/{not_listed.ek_fingerprint}")
    assert listed.enrol()["status"] == "registered"
    assert not_listed.enrol()["status"] == "pending_approval"

    wanted = {"role": "worker-app", "uses": 2, "expires_in_seconds": 600, "minimum_assurance": "tofu"}
    good, withdrawn = (here.call("POST", "/registration-tokens", json=wanted) for _ in range(2))
    here.call("DELETE", f"/registration-tokens/{withdrawn['token_id']}")
    assert code(with_token(replicas, asked, withdrawn["token"])) == "registration-token-invalid"
    # Two uses, six who come at once, two at each replica.
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: with_token(replicas, n % 3, good["token"]), range(6)))
    assert Counter(map(code, answers)) == {"ok": 2, "registration-token-invalid": 4}


def with_token(replicas: Replicas, replica: int, token: str) -> Any:
    """Introduce and activate a new machine that holds *token*; return the last answer."""
    machine = replicas.at(replicas.machine(), replica)
    answer = machine.introduce("/register", registration_token=token)
    return machine.activate(machine.activation(answer.json())) if answer.is_success else answer


def request_for(name: str) -> dict[str, Any]:
    """Return a request for the certificate of an operator."""
    key = ec.generate_private_key(ec.SECP384R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA384())
    return {"csr_pem": csr.public_bytes(Encoding.PEM).decode(), "name": name, "duty": "operator"}


@pytest.mark.parametrize("acting", EACH)
def test_a_certificate_of_an_operator(replicas: Replicas, people: tuple[Issued, Issued], acting: int) -> None:
    """Given by one replica it opens all, and none once another revoked it."""
    body = request_for(f"carla-{acting}")
    found = agree(replicas, people, acting, "POST", "/operator-certificates", body)
    clients = [replicas.person(each, quote(found["certificate_pem"], safe="")) for each in EACH]
    assert [each.get("/machines").status_code for each in clients] == [200] * 3
    alice = replicas.person(acting, people[0].escaped)
    revoked = alice.post(f"/operator-certificates/{found['serial']}/revoke", json={"reason": "keyCompromise"})
    assert revoked.is_success, revoked.text
    assert [each.get("/machines").status_code for each in clients] == [401] * 3


def certificate(machine: Machine) -> x509.Certificate:
    """Return a new certificate of *machine*."""
    pem = machine.certificate(machine.keys.create_signing_key())["certificates"][0]["cert_pem"]
    return x509.load_pem_x509_certificate(pem.encode())


def status(replicas: Replicas, replica: int, leaf: x509.Certificate, ca: x509.Certificate) -> str:
    """Ask a responder; what it keeps is given without a nonce."""
    question = (
        ocsp.OCSPRequestBuilder().add_certificate(leaf, ca, SHA256()).build().public_bytes(Encoding.DER)
    )
    answer = replicas.client(replica).post(
        "/pki/ocsp", content=question, headers={"Content-Type": "application/ocsp-request"}
    )
    return ocsp.load_der_ocsp_response(answer.content).certificate_status.name


def issuer(replicas: Replicas) -> tuple[str, x509.Certificate]:
    """Return the CA key that signs for machines now."""
    (row,) = replicas.all[0].rows(
        "SELECT issuer_id, certificate FROM ca_issuers WHERE purpose = 'machine' AND state = 'active'"
    )
    return row["issuer_id"], x509.load_der_x509_certificate(bytes(row["certificate"]))


def crl(replicas: Replicas, replica: int, issuer_id: str) -> tuple[int, set[int]]:
    """Return number and entries of the list that *replica* gives."""
    answer = replicas.client(replica).get(f"/pki/crl/{issuer_id}")
    found = x509.load_der_x509_crl(answer.content)
    number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    return number, {entry.serial_number for entry in found}


def test_revocations(replicas: Replicas) -> None:
    """List and responder of each replica know at once; one change is one list, for whichever replica it was made."""
    machine = replicas.admitted()
    issuer_id, ca = issuer(replicas)
    before = crl(replicas, 0, issuer_id)[0]
    for acting in EACH:
        leaf = certificate(replicas.at(machine, (acting + 1) % 3))
        assert [status(replicas, each, leaf, ca) for each in EACH] == ["GOOD"] * 3
        path = f"/ca/certificates/{leaf.serial_number:040x}/revoke"
        replicas.operators[acting].call("POST", path, json={"reason": "superseded"})
        assert [status(replicas, each, leaf, ca) for each in EACH] == ["REVOKED"] * 3
        with ThreadPoolExecutor(6) as pool:
            lists = list(pool.map(lambda n: crl(replicas, n % 3, issuer_id), range(6)))
        assert len({number for number, _ in lists}) == 1
        assert all(leaf.serial_number in entries for _, entries in lists)
        assert lists[0][0] == before + 1
        before += 1


def test_one_request_at_three_replicas_is_one_certificate(replicas: Replicas) -> None:
    """The challenge decides; no serial number stands in two rows."""
    machine = replicas.admitted()
    body = machine.cert_request(machine.certificate_challenge(), machine.keys.create_signing_key())
    clients = [replicas.client(each) for each in EACH]
    path = f"/api/v1/machines/{machine.machine_id}/request-cert"
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: clients[n % 3].post(path, json=body), range(12)))
    assert Counter(map(code, answers)) == {"ok": 1, "challenge-used": 11}
    kept = replicas.all[0].rows("SELECT state FROM certificates WHERE machine_id = ?", machine.machine_id)
    assert [row["state"] for row in kept] == ["issued"]


def test_a_rotation_of_the_ca(replicas: Replicas, people: tuple[Issued, Issued]) -> None:
    """Each step at another replica: the others sign with the right key at once, and publish all."""
    machine = replicas.admitted()
    old_id, old = issuer(replicas)

    def step(replica: int, name: str) -> None:
        body = {"step": name, "reason": "trying", "force": True}
        agree(replicas, people, replica, "POST", "/ca/rotation", body)

    step(0, "prepare")
    bundles = [replicas.client(each).get("/pki/bundle").text for each in EACH]
    assert len(set(bundles)) == 1
    step(1, "activate")
    new_id, new = issuer(replicas)
    assert new_id != old_id
    for each in EACH:
        leaf = certificate(replicas.at(machine, each))
        assert leaf.issuer == new.subject
        assert [status(replicas, other, leaf, new) for other in EACH] == ["GOOD"] * 3
        assert all(crl(replicas, other, key)[0] > 0 for other in EACH for key in (old_id, new_id))
    step(2, "rollback")
    for each in EACH:
        assert certificate(replicas.at(machine, each)).issuer == old.subject
    step(1, "rollback")


def test_two_votes_at_two_replicas(replicas: Replicas, people: tuple[Issued, Issued]) -> None:
    """At the same moment, three times each: two votes, one approval; the one who asked twice is still one."""
    machine = replicas.machine()
    machine.enrol()
    body = {"role": "controlplane", "hostname": f"cp-{secrets.token_hex(4)}", "accept_ek": True}
    clients = [[replicas.person(each, one.escaped) for each in EACH] for one in people]
    path = f"/machines/{machine.machine_id}/approve"
    with ThreadPoolExecutor(3) as pool:
        alone = list(pool.map(lambda n: clients[0][n].post(path, json=body), EACH))
    assert {each.status_code for each in alone} <= {202, 409}
    assert replicas.operators[0].machine(machine.machine_id)["status"] == "pending_approval"
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: clients[n % 2][n % 3].post(path, json=body), range(6)))
    assert 1 <= Counter(each.status_code for each in answers)[200] <= 3, [each.text for each in answers]
    acts = Counter(each["action"] for each in replicas.operators[0].audit(machine_id=machine.machine_id))
    assert (acts["approve_vote"], acts["approve"]) == (2, 1)


def test_wrong_credentials_are_counted_by_one_clock(replicas: Replicas) -> None:
    """Ten in a minute, of all replicas together: a host whose clock is five minutes ahead gives nobody ten more."""
    rows = replicas.all[0].rows
    rows("DELETE FROM rate_limits WHERE key LIKE ?", "credential:%")
    try:
        strangers = [Operator(replicas.client(each), "wrong") for each in EACH]
        said = [strangers[n % 3].request("GET", "/machines").status_code for n in range(15)]
        assert said == [401] * 10 + [429] * 5
    finally:
        rows("DELETE FROM rate_limits WHERE key LIKE ?", "credential:%")
