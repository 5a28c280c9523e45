"""Keys of which somebody said that others have them: nobody gets a certificate for one again, by whatever way."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import KeyRefused
from attestation.store import RefusedKey, Tx
from attestation_service.authority import issuance
from tests.fixtures.machine import refused as outcome_of
from tests.unit.service.ca_world import SPKI, World, no_more, nothing, wanted
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import ecc_key
from tests.unit.service.test_authority import world
from tests.unit.service.test_enrollment import ca, get_certificate, listed, try_certificate
from tests.unit.service.test_operator_certificates import desk_at, key_of
from tests.unit.service.test_operator_certificates import wanted as asked

pytestmark = pytest.mark.anyio
__all__ = ["ca", "world"]

REFUSED = (422, "key-refused")
SPKI_SHA256 = hashlib.sha256(SPKI).hexdigest()


@pytest.mark.threat("T143")
async def test_a_key_that_was_compromised_is_never_certified_again(ca: Service) -> None:
    """The attack itself: after the revocation, the same key of the same machine, and of another one."""
    node, other, key = SoftwareNode(), SoftwareNode(), ecc_key()
    await ca.admitted(node)
    await ca.admitted(other)
    serial = (await get_certificate(ca, node, key))["serial"]
    answer = await ca.operator("POST", f"/ca/certificates/{serial}/revoke", {"reason": "keyCompromise"})
    assert answer.status_code == 200
    for whose in (node, other):
        for profile in ("node-client", "node-server"):
            again = await try_certificate(ca, whose, key, profile=profile)
            assert outcome_of(again) in (REFUSED, (422, "request-invalid"))
            assert profile == "node-server" or outcome_of(again) == REFUSED
        assert (await ca.audit(action="cert_refused"))[-1]["detail"] == "key-refused"
    # It is not even signed: nothing was reserved for it.
    assert [row["state"] for row in await listed(ca, node)] == ["revoked"]
    assert await listed(ca, other) == []
    await get_certificate(ca, node, ecc_key())
    (found,) = (await ca.operator("GET", "/ca/refused-keys")).json()["items"]
    assert found["spki_sha256"] == hashlib.sha256(key.public.spki_der()).hexdigest()
    assert (found["why"], found["added_by"]) == (f"keyCompromise of certificate {serial}", "service")


@pytest.mark.parametrize(
    "reason", ["unspecified", "superseded", "privilegeWithdrawn", "cessationOfOperation"]
)
async def test_other_reasons_say_nothing_of_the_key(ca: Service, reason: str) -> None:
    """Who may come back comes back with the key that it has."""
    node, key = SoftwareNode(), ecc_key()
    await ca.admitted(node)
    serial = (await get_certificate(ca, node, key))["serial"]
    await ca.operator("POST", f"/ca/certificates/{serial}/revoke", {"reason": reason})
    await get_certificate(ca, node, key)


async def test_a_reset_of_the_ak_refuses_every_key_that_it_vouched_for(ca: Service) -> None:
    """Also those whose certificates have ended by themselves since."""
    node, old, key = SoftwareNode(), ecc_key(), ecc_key()
    await ca.admitted(node)
    await get_certificate(ca, node, old)
    ca.clock.advance(25 * 3600)
    await ca.attest(node)
    await get_certificate(ca, node, key)
    await ca.act(node, "ak-reset", {"reason": "the TPM was cleared"})
    await ca.introduce(node)
    await ca.attest(node)
    for each in (old, key):
        assert outcome_of(await try_certificate(ca, node, each)) == REFUSED


async def test_an_operator_refuses_a_key(ca: Service) -> None:
    """For good and at once, audited; what it has is revoked, and before it has any it gets none."""
    node, key, unseen = SoftwareNode(), ecc_key(), ecc_key()
    await ca.admitted(node)
    await get_certificate(ca, node, key)
    digests = {each: hashlib.sha256(each.public.spki_der()).hexdigest() for each in (key, unseen)}
    for each, digest in digests.items():
        body = {"spki_sha256": digest, "reason": "found in a public repository"}
        answer = await ca.operator("POST", "/ca/refused-keys", body)
        assert (answer.status_code, answer.json()["added_by"]) == (200, "SYSTEM")
        assert outcome_of(await ca.operator("POST", "/ca/refused-keys", body)) == (409, "already-exists")
        assert outcome_of(await try_certificate(ca, node, each)) == REFUSED
    ((state, reason),) = [(c["state"], c["reason"]) for c in await listed(ca, node)]
    assert (state, reason) == ("revoked", "keyCompromise")
    entries = await ca.audit(action="key_refused")
    assert [digests[unseen] in entries[0]["detail"], digests[key] in entries[1]["detail"]] == [True, True]
    first = (await ca.operator("GET", "/ca/refused-keys", params={"limit": 1})).json()
    rest = (await ca.operator("GET", "/ca/refused-keys", params={"cursor": first["next_cursor"]})).json()
    assert [k["spki_sha256"] for k in first["items"] + rest["items"]] == sorted(digests.values())


@pytest.mark.threat("T143")
async def test_people_have_no_such_key_either(start: Starter) -> None:
    """An operator's certificate for a key that is refused: not even where several agree."""
    desk = await desk_at(start)
    made = await desk.given("anna", asked())
    assert (await desk.revoke("anna", made["serial"], reason="keyCompromise")).status_code == 200
    assert outcome_of(await desk.ask("anna", asked())) == REFUSED
    spki = key_of("bea").public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    body = {"spki_sha256": hashlib.sha256(spki).hexdigest(), "reason": "shared"}
    await desk.service.operator("POST", "/ca/refused-keys", body)
    assert outcome_of(await desk.ask("anna", asked("bea"))) == REFUSED


@pytest.mark.threat("T143")
async def test_a_key_refused_while_it_is_signed_gets_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second unit asks again: the serial is void, and the certificate reaches nobody."""
    ca = world.open()
    sign = issuance.sign_content

    def refuse(tx: Tx) -> None:
        at = world.clock.now()
        tx.refused_keys.put(RefusedKey(spki_sha256=SPKI_SHA256, why="leaked", added_at=at, added_by="anna"))

    def refuse_meanwhile(*parts: Any) -> bytes:
        world.store.write_sync(refuse)
        return sign(*parts)

    monkeypatch.setattr(issuance, "sign_content", refuse_meanwhile)
    with pytest.raises(KeyRefused):
        await ca.issue(wanted(), at=world.clock.now(), admit=nothing, conclude=no_more)
    with closing(sqlite3.connect(world.directory / "machines.db")) as db:
        states = db.execute(
            "SELECT DISTINCT state FROM certificates WHERE profile = 'node-client'"
        ).fetchall()
    assert states == [("void",)]
