"""An existing CA's key comes onto the token where the service's CA is, and signs there (docs/operate/ca.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from attestation.keys.wrapping import wrap_key
from tests.fixtures.company import Company
from tests.fixtures.softhsm import SoftHSM
from tests.unit.service.conftest import Starter, anyio_backend, migrated, start  # noqa: F401 -- fixtures
from tests.unit.service.test_ca import MACHINE, issue, steps
from tests.unit.service.test_ca_imported import HELD_AT, KEY, brought, own

pytestmark = [pytest.mark.softhsm, pytest.mark.anyio]


async def test_it_is_opened_inside_the_token_and_signs_there(
    softhsm: SoftHSM,
    start: Starter,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Under SHA-1, which is what SoftHSM knows; the word for another hash is another one; OpenSSL verifies."""
    base = f"pkcs11:token=hsm?module-name=softhsm&pin-source=file:{softhsm.pin_file}"
    modules = (f"softhsm={softhsm.module}",)
    service = await start(enrollment_ca_key=base, pkcs11_modules=modules)
    answer = await service.operator("POST", "/ca/import-key", {})
    assert answer.status_code == 200, answer.text
    kek: Any = load_pem_public_key(answer.json()["public_key_pem"].encode())
    refused = await brought(service, wrap_key(KEY, kek))
    assert "knows sha1 only" in refused.json()["detail"]
    answer = await brought(service, wrap_key(KEY, kek, oaep_hash="sha1"), oaep_hash="sha1")
    assert answer.status_code == 200, answer.text
    found = answer.json()["issuers"][-1]
    assert (found["state"], found["key_origin"]) == ("next", "provisioned")
    listed = softhsm.tool("--list-objects", "--type", "privkey")
    assert f"itl-enrollment-ca-{found['issuer_id']}" in listed
    await steps(service, "activate")
    leaf = await issue(service, MACHINE)
    company = Company.at(tmp_path / "company", HELD_AT)
    (company.folder / "root.pem").write_text(own())
    assert company.verifies(leaf.certificate, leaf.chain, service.clock.now()) == ""
