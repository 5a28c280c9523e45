"""A fleet under CNSA 1.0 and 2.0: a TPM with keys of that strength goes all the way, another one not a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.device import EK_STRONG, AKType, KeyType
from attestation.tpm import parse_public
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.machine import refused
from tests.fixtures.tpm import MakeTPM
from tests.scenarios.conftest import MakeDevice
from tests.scenarios.scene import Scene

ALGORITHMS = {"cnsa1": "ecdsa-p384", "cnsa2": "ml-dsa-87"}
FORBIDDEN = (422, "algorithm-forbidden")

pytestmark = pytest.mark.swtpm


@pytest.fixture(params=ALGORITHMS)
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InProcessService]:
    """A service with a CA under each policy."""
    chosen = {"crypto_policy": request.param, "enrollment_ca_algorithm": ALGORITHMS[request.param]}
    with in_process_service(tmp_path / "service", enrollment_ca_unencrypted=True, **chosen) as found:
        yield found


def test_a_strong_tpm_goes_all_the_way(local_scene: Scene, make_tpm: MakeTPM) -> None:
    """EK on P-384 (H-3), AK on P-384 with SHA-384: admitted, attested, certified; and its weak keys are refused."""
    with make_tpm().node(ek_templates=EK_STRONG, ak=AKType.ECC_P384) as node:
        assert node.identify().template == "H-3"
        machine = local_scene.machine(node)
        answer = machine.admitted(local_scene.operator, hostname="app-1")
        assert answer["status"] == "attested"
        key = machine.keys.create_signing_key(KeyType.ECC_P384)
        issued = machine.certificate(key)
        certificate = x509.load_pem_x509_certificate(issued["enrollment_cert_pem"].encode())
        found = certificate.public_key()
        assert isinstance(found, ec.EllipticCurvePublicKey)
        assert found == parse_public(key.public).key()
        weak = machine.keys.create_signing_key(KeyType.ECC_P256)
        body = machine.cert_request(machine.certificate_challenge(), weak)
        assert refused(machine.request_certificate(body)) == FORBIDDEN


@pytest.mark.threat("T87")
def test_another_one_not_a_step(local_scene: Scene, make_device: MakeDevice) -> None:
    """The keys that most TPMs have, and a strong EK beside a weak AK: refused before anything is sealed to them."""
    combinations: list[dict[str, Any]] = [
        {},
        {"ak": AKType.ECC_P384, "ek_templates": ("L-2",)},
        {"ak": AKType.ECC_P256, "ek_templates": ("H-3",)},
        {"ak": AKType.RSA_2048, "ek_templates": ("H-3",)},
        {"ak": AKType.ECC_P384, "ek_templates": ("H-4",)},
    ]
    for number, chosen in enumerate(combinations):
        machine = local_scene.machine(make_device(f"weak-{number}", **chosen))
        assert refused(machine.introduce()) == FORBIDDEN
