"""Certificates with real TPMs (swtpm): the key is made, certified and used inside, and nothing else gets one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from attestation.device import AKType, KeyType, TPMKey
from attestation.device.keys import key_template
from attestation.envelope import WrappedKey, unwrap_key
from attestation.errors import TPMResponseError
from attestation.tpm import parse_public, parse_tpmt_public
from attestation_testing import SoftwareNode, software_key
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.machine import Machine, refused
from tests.scenarios.conftest import MakeDevice
from tests.scenarios.scene import Scene
from tests.unit.service.people import introduce

REJECTED = (403, "evidence-rejected")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[InProcessService]:
    """A service with a CA, which also makes keys where it is asked to."""
    with in_process_service(
        tmp_path / "service",
        enrollment_ca_unencrypted=True,
        compat_server_keys=True,
        compat_offline_bundle=True,
    ) as found:
        yield found


def refusals(scene: Scene) -> list[str]:
    """Return the details of every `cert_refused`, oldest first."""
    return [entry["detail"] for entry in reversed(scene.operator.audit(action="cert_refused"))]


@pytest.mark.threat("T104")
@pytest.mark.swtpm
@pytest.mark.parametrize("ak", AKType)
@pytest.mark.parametrize("kind", [KeyType.ECC_P256, KeyType.ECC_P384, KeyType.RSA_2048])
def test_a_key_of_the_tpm_gets_a_certificate(
    local_scene: Scene, make_device: MakeDevice, ak: AKType, kind: KeyType
) -> None:
    """Asked for, presented, renewed with another key and presented again, with every kind of key and AK."""
    machine = local_scene.machine(make_device("node", ak=ak))
    machine.admitted(local_scene.operator, hostname="app-1")
    key = machine.keys.create_signing_key(kind)
    first = machine.certificate(key)
    assert (first["key_tier"], first["message"]) == (4, "issued")
    certificate = x509.load_pem_x509_certificate(first["enrollment_cert_pem"].encode())
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert spki == parse_public(key.public).spki_der()
    answer = machine.enroll(first["enrollment_cert_pem"], key)
    assert (answer.status_code, answer.json()["status"]) == (200, "attested"), answer.text
    other = machine.keys.create_signing_key()
    second = machine.certificate(other)
    assert second["message"] == "renewed"
    assert machine.enroll(second["enrollment_cert_pem"], other).is_success
    assert machine.enroll(first["enrollment_cert_pem"], key).is_success, (
        "the one before is good until it ends"
    )
    assert refused(machine.enroll(first["enrollment_cert_pem"], other)) == REJECTED


@pytest.mark.threat("T104")
@pytest.mark.swtpm
def test_what_another_tpm_says_is_no_certificate(local_scene: Scene, make_device: MakeDevice) -> None:
    """Two real TPMs: a key or a certification of the one gets nothing for the other (N71-N77 at the door)."""
    operator = local_scene.operator
    here, there = (local_scene.machine(make_device(name)) for name in ("here", "there"))
    here.admitted(operator)
    there.admitted(operator)
    key, foreign = here.keys.create_signing_key(), there.keys.create_signing_key()

    def ask(body: dict[str, Any]) -> tuple[int, str]:
        return refused(here.request_certificate(body))

    with local_scene.nothing_changes():
        # Certified by another machine's AK.
        assert ask(there.cert_request(here.certificate_challenge(), foreign)) == REJECTED
        # The key of one with the certification of the other.
        challenge = here.certificate_challenge()
        mixed = here.cert_request(challenge, key) | {
            name: value
            for name, value in there.cert_request(challenge, foreign).items()
            if name.startswith("certify")
        }
        assert ask(mixed) == REJECTED
        # A key of another TPM cannot be loaded, so it cannot be certified either.
        with pytest.raises(TPMResponseError):
            here.cert_request(here.certificate_challenge(), foreign)
        # Captured, with another nonce; and once more with its own.
        captured = here.cert_request(here.certificate_challenge(), key)
        fresh = here.certificate_challenge()
        assert ask(captured | {"nonce_id": fresh["nonce_id"]}) == REJECTED
        # A challenge of the other machine.
        assert ask(here.cert_request(there.certificate_challenge(), key)) == (404, "challenge-unknown")
        # A software key under a certification that somebody wrote.
        forger = Machine(SoftwareNode(9), here.http)
        forger.machine_id = here.machine_id
        made = forger.keys.create_signing_key()
        assert ask(forger.cert_request(here.certificate_challenge(), made)) == REJECTED
        # A decryption key.
        decrypt = here.keys.create_decryption_key()
        body = here.server_key_request(here.certificate_challenge(), decrypt)
        assert ask(body | {"csr_pem": here.cert_request(fresh, key)["csr_pem"]}) == REJECTED
    assert here.request_certificate(captured).is_success, "its own challenge was never spent"
    assert refused(here.request_certificate(captured)) == (409, "challenge-used")
    assert refusals(local_scene) == [
        "signature-invalid",
        "signature-invalid",
        "challenge-mismatch",
        "signature-invalid",
        "challenge-mismatch",
    ]


@pytest.mark.threat("T104")
def test_a_software_key_that_was_loaded_is_named(local_scene: Scene) -> None:
    """The machine's own AK vouches for a key that was made outside: refused, and operators read what it is."""
    node = SoftwareNode(1)
    machine = local_scene.machine(node)
    machine.admitted(local_scene.operator)
    outside = software_key(parse_tpmt_public(key_template(KeyType.ECC_P256, attributes=0x00040040)))
    real = node.certify_key

    def loaded(key: TPMKey, qualifying_data: bytes) -> Any:
        return real(key, qualifying_data, external=True)

    node.certify_key = loaded  # type: ignore[method-assign,assignment]  # as after TPM2_LoadExternal
    with local_scene.nothing_changes():
        answer = machine.request_certificate(machine.cert_request(machine.certificate_challenge(), outside))
        assert refused(answer) == REJECTED
        assert "external" not in answer.text
    assert refusals(local_scene) == ["key-not-resident (certified-external)"]


@pytest.mark.threat("T109")
@pytest.mark.swtpm
def test_a_key_of_the_service_opens_in_the_tpm(local_scene: Scene, make_device: MakeDevice) -> None:
    """RSA-2048 in a real TPM: what does not fit OAEP arrives whole (R10)."""
    machine = local_scene.machine(make_device("compat"))
    machine.admitted(local_scene.operator)
    key = machine.keys.create_decryption_key()
    answer = machine.request_certificate(machine.server_key_request(machine.certificate_challenge(), key))
    assert answer.is_success, answer.text
    found = answer.json()
    assert found["compat"] == "server-key"
    assert "key_tier" not in found
    parts = {
        name: base64.b64decode(found[f"enrollment_key_{name}_b64"]) for name in ("wrapped", "iv", "encrypted")
    }
    wrapped = WrappedKey(wrapped_key=parts["wrapped"], iv=parts["iv"], ciphertext=parts["encrypted"])
    opened = unwrap_key(
        wrapped,
        machine.keys.rsa_decrypt(key, wrapped.wrapped_key),
        machine_id=machine.machine_id,
        serial=found["serial"],
    )
    private = load_der_private_key(opened, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(found["enrollment_cert_pem"].encode())
    assert certificate.public_key() == private.public_key()
    other = machine.keys.create_decryption_key()
    with pytest.raises(TPMResponseError):
        machine.keys.rsa_decrypt(other, wrapped.wrapped_key)


@pytest.mark.swtpm
def test_an_offline_bundle_opens_in_one_tpm(
    local: InProcessService, local_scene: Scene, make_device: MakeDevice
) -> None:
    """Two people agree; configuration and key open in the machine's TPM, and in no other."""
    resources, people = introduce(local.app.state.resources)
    local.app.state.resources = resources
    here, there = (local_scene.machine(make_device(name)) for name in ("bundle-here", "bundle-there"))
    here.admitted(local_scene.operator)
    there.admitted(local_scene.operator)
    path = f"/api/v1/machines/{here.machine_id}/offline-bundle"
    with local.client("198.51.100.7") as http:
        first = http.post(path, headers=people.headers("anna"))
        assert first.status_code == 202
        bundle = http.post(path, headers=people.headers("bert"))
    assert bundle.status_code == 200, bundle.text
    assert local.canary not in bundle.text
    found = bundle.json()
    assert local.canary.encode() in here.unseal(found["machineconfig"])
    key = load_pem_private_key(here.unseal(found["enrollment_key_pem"]), None)
    certificate = x509.load_pem_x509_certificate(found["enrollment_cert_pem"].encode())
    assert certificate.public_key() == key.public_key()
    there.machine_id = here.machine_id
    for member in ("machineconfig", "enrollment_key_pem"):
        with pytest.raises(TPMResponseError):
            there.unseal(found[member])
