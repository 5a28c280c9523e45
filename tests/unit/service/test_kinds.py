"""A machine with a second identity proves both: the toy kind of tests/contract, from challenge to stored state."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from attestation.appraisal import KINDS
from attestation.reference.blocks import BLOCKS
from attestation.wire import b64decode, b64encode
from attestation_service.attest.kinds import SIDES, item
from tests.contract.toy_kind import TOY, TOY_BLOCK, expect
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

MEDIA_TYPE = "application/vnd.itl.toy"
KEY, OTHER = bytes(32), bytes(31) + b"\x01"


@pytest.fixture(autouse=True)
def _with_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SIDES.keys() == KINDS.keys()
    monkeypatch.setitem(KINDS, TOY.name, TOY)
    monkeypatch.setitem(BLOCKS, TOY.name, TOY_BLOCK)
    monkeypatch.setitem(SIDES, TOY.name, item(TOY.name, MEDIA_TYPE, expect))


def statement(challenge: Mapping[str, Any], level: int = 7, key: bytes = KEY) -> dict[str, Any]:
    """Return the item of a request with which the chip answers *challenge*."""
    told = b64decode(challenge["nonce"], "nonce") + level.to_bytes(4)
    value = {"statement": b64encode(told), "tag": b64encode(hmac.digest(key, told, "sha256"))}
    return {"media_type": MEDIA_TYPE, "value": value}


async def with_chip(service: Service) -> SoftwareNode:
    """Return an admitted machine with a chip."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.store.write(
        lambda tx: tx.identities.add(tx.machines.require(node.machine_id), TOY.name, KEY)
    )
    return node


async def prove(service: Service, node: SoftwareNode, *statements: Any, **how: Any) -> httpx.Response:
    """Attest with what the chip says, or with *statements* in its place."""
    challenge = await service.challenge(node)
    evidence = list(statements) if statements else [statement(challenge, **how)]
    return await service.post("/api/v1/attest", node.attestation(challenge, evidence=evidence))


async def checks(service: Service, node: SoftwareNode) -> dict[str, str]:
    """Return the newest result's checks, name -> outcome."""
    newest = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"][0]
    return {check["check"]: check["outcome"] for check in newest["checks"]}


async def test_both_kinds_are_asked_for_and_proven(service: Service) -> None:
    """Each challenge names the kind; a result has the checks of both; what was told is what is compared next."""
    node = await with_chip(service)
    assert "toy" in (await service.challenge(node))["evidence"]
    answer = await prove(service, node)
    assert answer.status_code == 200, answer.text
    assert "toy" in answer.json()["next_challenge"]["evidence"]
    told = await checks(service, node)
    assert (told["tpm-quote"], told["toy-statement"], told["toy-level"]) == ("passed", "passed", "passed")
    kept = await service.store.read(lambda tx: tx.identities.of(node.machine_id))
    assert kept["toy"].state == {"level": 7}
    answer = await prove(service, node, level=6)
    assert answer.status_code == 200, answer.text
    assert (await checks(service, node))["toy-level"] == "failed"
    assert (await service.detail(node))["trust"] == "failed"
    # What is not believed is not what is compared next.
    kept = await service.store.read(lambda tx: tx.identities.of(node.machine_id))
    assert kept["toy"].state == {"level": 7}


@pytest.mark.parametrize(
    "wrong", ["absent", "of another machine", "of another challenge", "twice", "strange"]
)
async def test_what_is_expected_and_does_not_prove_it_refuses_the_whole(service: Service, wrong: str) -> None:
    """A good quote does not make up for it: nothing is judged, and nothing is known of the machine that was not."""
    node = await with_chip(service)
    challenge = await service.challenge(node)
    evidence = {
        "absent": [],
        "of another machine": [statement(challenge, key=OTHER)],
        "of another challenge": [statement(await service.challenge(node))],
        "twice": [statement(challenge)] * 2,
        "strange": [{"media_type": MEDIA_TYPE, "value": "x"}],
    }[wrong]
    before = await service.detail(node)
    answer = await service.post("/api/v1/attest", node.attestation(challenge, evidence=evidence))
    assert answer.status_code == (400 if wrong in ("twice", "strange") else 403), answer.text
    assert await service.detail(node) == before
    assert (await service.post("/api/v1/attest", node.attestation(challenge))).status_code == 409


async def test_a_kind_that_this_version_does_not_know(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is decided; the machine is not judged by less than was expected of it."""
    node = await with_chip(service)
    challenge = await service.challenge(node)
    monkeypatch.delitem(SIDES, TOY.name)
    answer = await service.post(
        "/api/v1/attest", node.attestation(challenge, evidence=[statement(challenge)])
    )
    assert answer.status_code == 503, answer.text


async def test_who_has_no_such_identity_is_not_asked(service: Service) -> None:
    """And what it sends unasked is not looked at."""
    node = SoftwareNode()
    await service.admitted(node)
    assert "toy" not in (await service.challenge(node))["evidence"]
    assert (await prove(service, node, {"media_type": MEDIA_TYPE, "value": "x"})).status_code == 200
    assert "toy-statement" not in await checks(service, node)


async def test_what_was_judged_without_an_identity_is_judged_again(service: Service) -> None:
    """It came between reading and writing: the version tells."""
    node = SoftwareNode()
    await service.admitted(node)
    before = (await service.detail(node))["version"]
    await service.store.write(
        lambda tx: tx.identities.add(tx.machines.require(node.machine_id), TOY.name, KEY)
    )
    assert (await service.detail(node))["version"] == before + 1
