"""ACME over HTTP: directory, account, order, device-attest-01, certificate; and everything that gets none."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.fixtures.acme_client import Client, csr_for
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import NodeKey, certify, ecc_key

pytestmark = pytest.mark.anyio

URL = "https://attest.example.test/acme/directory"
SETTINGS: dict[str, Any] = {"enrollment_ca_unencrypted": True, "rate_limits": False, "acme": "open"}


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with ACME for everybody."""
    return await start(tpm_ca_bundle_dir=start.bundle(), **SETTINGS)


async def client_of(service: Service, key: Any = None, **more: Any) -> Client:
    """Return a client with an account."""
    made = Client(service.http, URL, **({"key": key} if key else {}))
    await made.begin()
    await made.register(**more)
    return made


def statement(node: SoftwareNode, key: NodeKey, **changes: Any) -> Callable[[bytes], dict[str, Any]]:
    """Return what the TPM of *node* says of *key*, for any qualifyingData."""

    def by_tpm(binding: bytes) -> dict[str, Any]:
        said = certify(node, key, binding, **changes)
        parts = {name: base64.b64decode(text) for name, text in said.items()}
        return {
            "alg": -7,
            "sig": parts["certify_signature"],
            "certInfo": parts["certify_info"],
            "pubArea": parts["key_public"][2:],
        }

    return by_tpm


async def test_a_certificate_by_device_attest_01(service: Service) -> None:
    """From the directory to the chain; the certificate is for the key in the TPM, and says what the record says."""
    node, key = SoftwareNode(), ecc_key()
    await service.admitted(node, hostname="app-1")
    client = await client_of(service)
    place, order = await client.order(node.machine_id)
    assert order["status"] == "pending"
    challenge = await client.attest(order, statement(node, key))
    assert challenge["status"] == "valid"
    assert (await client.post(place)).json()["status"] == "ready"
    done = await client.finalize(order, csr_for(key.private))
    assert done["status"] == "valid"
    leaf, *above = await client.download(done)
    spki = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert spki == key.public.spki_der()
    assert leaf.subject.rfc4514_string() == f"CN={node.machine_id},OU=worker-app,O=ITL Usions,C=NL"
    assert above == []
    row = await service.store.read(lambda tx: tx.issuances.get(f"{leaf.serial_number:040x}"))
    assert row is not None
    assert (row.profile, row.key_tier, row.machine_id) == ("node-client", 4, node.machine_id)
    assert row.requester == f"acme:{str(client.kid).rpartition('/')[2]}"
    actions = [(each["operator_cn"], each["action"]) for each in await service.audit()][:3]
    assert actions == [("acme", "cert_issued"), ("acme", "acme_validated"), ("acme", "acme_account_created")]
