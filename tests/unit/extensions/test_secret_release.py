"""The vault: whom a value is not given to, however well it proves itself, and where nothing of a value is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from attestation.errors import UnwrapFailed
from attestation.keys import LocalKEK
from attestation_extensions.secret_vault import sealing
from attestation_extensions.secret_vault.sealing import Place
from tests.fixtures.machine import refused as outcome_of
from tests.unit.extensions.test_secret_vault import CANARY, FORBIDDEN, OWN, SHARED, made, refused, settings
from tests.unit.extensions.test_secret_vault import read as read_by_quote
from tests.unit.extensions.test_secret_vault import shared as made_shared
from tests.unit.service.conftest import Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode, node_nonce
from tests.unit.service.test_enroll import NOT_ADMITTED, UNTRUSTED, Holder, holder_of
from tests.unit.service.test_enrollment import WITH_CA

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio

PROXY = "proxy-secret-of-more-than-32-characters"


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@pytest.fixture
async def holder(start: Starter, tmp_path: Path) -> Holder:
    """A machine with a certificate for a key that its TPM certified, behind a proxy; it has a secret."""
    found = settings(tmp_path)
    service = await start(
        tpm_ca_bundle_dir=start.bundle(),
        proxy_secret=PROXY,
        trusted_proxies="192.0.2.0/24",
        **found,
        **WITH_CA,
    )
    holder = await holder_of(service)
    await made(service, holder.node)
    await made_shared(service, holder.node)
    return holder


async def fetch(holder: Holder, path: str) -> httpx.Response:
    """Ask for a value with the certificate."""
    headers = {
        "Itl-Proxy-Secret": PROXY,
        "X-Client-Cert": quote(holder.pem, safe=""),
        "Itl-Node-Nonce": node_nonce(),
    }
    return await holder.service.get(f"/api/v1{path}", headers=headers)


def own(holder: Holder) -> str:
    """Return where its secret is fetched."""
    return f"{OWN}/machines/{holder.node.machine_id}/secrets/db"


@pytest.mark.threat("T220")
async def test_a_certificate_that_the_tpm_vouched_for_is_enough(holder: Holder) -> None:
    """What comes is sealed to its TPM like any other; a rule over the evidence cannot hold without evidence."""
    for path in (own(holder), f"{SHARED}/by-name/token/value"):
        answer = await fetch(holder, path)
        assert answer.status_code == 200, answer.text
        assert holder.node.open(answer.json()["envelope"]) == CANARY.encode()
    other = await holder_of(holder.service)
    assert refused(await fetch(other, own(holder))) == FORBIDDEN
    assert refused(await fetch(other, f"{SHARED}/by-name/token/value")) == FORBIDDEN


@pytest.mark.threat("T221")
async def test_a_machine_that_is_stale_gets_nothing(holder: Holder) -> None:
    """Its lease is over: its certificate opens nothing, nor does a quote over a challenge of that time."""
    service, node = holder.service, holder.node
    challenge = await service.challenge(node)
    service.clock.advance(3 * 3600)
    assert (await service.detail(node))["trust"] == "stale"
    for path in (own(holder), f"{SHARED}/by-name/token/value"):
        assert outcome_of(await fetch(holder, path)) == NOT_ADMITTED
    late = await service.post(f"/api/v1{own(holder)}/read", node.attestation(challenge))
    assert late.status_code in (409, 410), late.text
    assert await service.audit(action="secret_accessed") == []
    # With fresh evidence it is stale no more.
    answer = await read_by_quote(service, node, f"{own(holder)}/read")
    assert node.open(answer.json()["envelope"]) == CANARY.encode()


@pytest.mark.threat("T222")
async def test_a_machine_that_went_to_another_cluster_gets_nothing_more(holder: Holder) -> None:
    """What was granted in the one is not taken along into the other, where the rule names the one."""
    service, node = holder.service, holder.node
    (secret,) = (await service.operator("GET", f"{SHARED}/")).json()["secrets"]
    path = f"{SHARED}/{secret['shared_secret_id']}"
    changed = await service.operator("PUT", path, {"rule": 'machine.cluster == "default"'})
    assert changed.status_code == 200
    assert (await fetch(holder, f"{SHARED}/by-name/token/value")).status_code == 200
    await service.act(node, "role", {"role": "worker-app", "cluster_id": "prod", "reason": "moved"})
    # Its certificate was of the one; afterwards the rule says no.
    assert outcome_of(await fetch(holder, f"{SHARED}/by-name/token/value")) == UNTRUSTED
    await service.attest(node)
    assert refused(await read_by_quote(service, node, f"{SHARED}/by-name/token/read")) == FORBIDDEN
    assert "its rule: " in (await service.audit(action="secret_refused"))[0]["detail"]


@pytest.mark.threat("T223")
async def test_no_way_out_but_the_sealed_one_has_a_value(
    start: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers, errors, metrics, the export of the log, what is printed, each file: a canary is in none."""
    chosen: Any = settings(tmp_path) | {"extensions": ("secret_vault", "metrics")}
    service: Service = await start(**chosen)
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1")
    secret = await made(service, node)
    secret_id = await made_shared(service, node)
    one, of_machine = f"{OWN}/{secret['secret_id']}", f"{OWN}/machines/{node.machine_id}/secrets"
    answers = [
        await service.operator("POST", of_machine, {"name": "db", "value": CANARY}),
        await service.operator("POST", of_machine, {"name": "not a name", "value": CANARY}),
        await service.operator("POST", of_machine, {"name": "x", "value": CANARY, "more": CANARY}),
        await service.operator("POST", of_machine, {"name": "x", "value": [CANARY]}),
        await service.operator("POST", of_machine, {"name": "x", "value": CANARY, "encoding": "base64"}),
        await service.operator("POST", of_machine, {"name": "x", "value": CANARY * 10_000}),
        await service.operator("PUT", one, {"value": CANARY, "rule": "("}),
        await service.operator("PUT", one, {"value": f"{CANARY} newer"}),
    ]
    assert [each.status_code for each in answers] == [409, 422, 422, 422, 422, 422, 422, 200]
    for path in (f"{of_machine}/db/read", f"{SHARED}/by-name/token/read"):
        answers.append(await read_by_quote(service, node, path))
        assert answers[-1].status_code == 200
    for path in (
        *(of_machine, one, f"{one}/versions", f"{one}/preview", f"{SHARED}/", f"{SHARED}/{secret_id}"),
        *(f"{SHARED}/{secret_id}/access", "/audit", "/audit/export", "/metrics", "/extensions", "/machines"),
    ):
        answers.append(await service.operator("GET", path))
        assert answers[-1].status_code == 200, path
    for answer in answers:
        assert CANARY not in answer.text, answer.request.url
    told = capsys.readouterr()
    assert CANARY not in told.out + told.err
    for file in tmp_path.rglob("*"):  # noqa: ASYNC240 -- of a test
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file
    exported = next(each for each in answers if each.request.url.path.endswith("/audit/export"))
    assert "secret_accessed" in exported.text


@pytest.mark.threat("T224")
@pytest.mark.parametrize(
    "moved",
    [{"secret_id": "2"}, {"owner": "another machine"}, {"owner": ""}, {"name": "other"}, {"version": 2}],
    ids=json.dumps,
)
def test_a_value_opens_in_its_place_alone(moved: dict[str, Any]) -> None:
    """Neither the value nor its data key: of another secret, machine, name or version, each by itself."""
    place = Place(secret_id="1", owner="machine", name="db", version=1)
    elsewhere, old, new = replace(place, **moved), LocalKEK(b"o" * 32), LocalKEK(b"n" * 32)
    kept = sealing.seal(b"value", place, old)
    assert sealing.unseal(kept, place, old) == b"value"
    with pytest.raises(UnwrapFailed):
        sealing.unseal(kept, elsewhere, old)
    with pytest.raises(UnwrapFailed):
        sealing.rewrapped(kept, elsewhere, old, new)
    # The value is bound by itself: a data key that was wrapped for the other place does not open it.
    forged = replace(
        kept, wrapped=old.wrap(_key_of(kept, place, old), kept.key_id + elsewhere.additional_data())
    )
    with pytest.raises(UnwrapFailed):
        sealing.unseal(forged, elsewhere, old)


def _key_of(kept: sealing.Kept, place: Place, kek: LocalKEK) -> bytes:
    return kek.unwrap(kept.wrapped, kept.key_id + place.additional_data())
