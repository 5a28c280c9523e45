"""Introduction and activation: only the answer made inside the TPM creates anything (PROTOCOL §§1-2)."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from attestation.machines import OperatorEvent
from attestation.wire import b64encode
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode, ak_public

pytestmark = pytest.mark.anyio

REGISTER = "/api/v1/self-register"


def code(answer: Any) -> str:
    """Return the code of a problem."""
    text: str = answer.json()["type"]
    return text.removeprefix("urn:itl:problem:")


async def machines(service: Service) -> list[dict[str, Any]]:
    """Return all machines."""
    found: list[dict[str, Any]] = (await service.operator("GET", "/machines")).json()["items"]
    return found


async def test_an_introduction_stores_only_a_challenge(service: Service) -> None:
    """No row, no audit entry, no role: nothing unauthenticated creates a machine."""
    node = SoftwareNode()
    answer = await service.post(REGISTER, node.introduction(desired_role="controlplane"))
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["role"]) == ("pending_approval", None)
    assert await machines(service) == []
    assert await service.audit() == []


async def test_activation_creates_a_pending_machine(service: Service) -> None:
    """Row, audit entry and event come with the proof; the wished role is recorded, never obeyed."""
    node = SoftwareNode()
    activated = await service.introduce(node, desired_role="controlplane", hw_serial="S1")
    assert (activated["status"], activated["role"], activated["ak_accepted"]) == (
        "pending_approval",
        None,
        True,
    )
    assert activated["service_keys"] == (await service.get("/api/v1/service-keys")).json()
    assert not activated.keys() & {"config_token", "config_url", "iso_url"}
    detail = await service.detail(node)
    assert (detail["role"], detail["desired_role"], detail["hw_serial"]) == (None, "controlplane", "S1")
    assert (detail["assurance"], detail["ek_fingerprint"]) == ("tofu", node.ek_fingerprint)
    assert [entry["action"] for entry in await service.audit()] == ["register"]
    claimed = await service.store.write(lambda tx: tx.outbox.claim(10, service.clock.now()))
    (event,) = (e for e in claimed if e.event is not OperatorEvent.BREAK_GLASS)
    assert event.event == "node.registered"
    assert event.payload["node"]["hw_serial"] == "S1"
    assert event.payload["meta"] == {"source_ip": "192.0.2.7"}


async def test_a_wrong_proof_spends_the_challenge_and_nothing_else(service: Service) -> None:
    """One guess per challenge; the right answer afterwards comes too late."""
    node = SoftwareNode()
    answer = (await service.post(REGISTER, node.introduction())).json()
    good = node.activation(answer)
    url = f"/api/v1/machines/{node.machine_id}/ak-activate"
    wrong = await service.post(url, good | {"proof": b64encode(bytes(32))})
    assert (wrong.status_code, code(wrong)) == (403, "activation-failed")
    late = await service.post(url, good)
    assert (late.status_code, code(late)) == (409, "challenge-used")
    assert await machines(service) == []
    assert [entry["action"] for entry in await service.audit()] == ["denied"]


@pytest.mark.parametrize("proof", ["", "AAAA", "!!", b64encode(bytes(31)), b64encode(bytes(33))])
async def test_an_unreadable_proof_spends_the_challenge_too(service: Service, proof: str) -> None:
    """400, and the challenge is gone."""
    node = SoftwareNode()
    good = node.activation((await service.post(REGISTER, node.introduction())).json())
    url = f"/api/v1/machines/{node.machine_id}/ak-activate"
    answer = await service.post(url, good | {"proof": proof})
    assert (answer.status_code, code(answer)) == (400, "malformed-evidence")
    assert code(await service.post(url, good)) == "challenge-used"


async def test_challenges_are_bound_and_end(service: Service) -> None:
    """Unknown, of another machine, of another purpose, too late, twice: each has its answer."""
    node, other = SoftwareNode(), SoftwareNode()
    await service.introduce(other)
    good = node.activation((await service.post(REGISTER, node.introduction())).json())
    url = f"/api/v1/machines/{node.machine_id}/ak-activate"
    unknown = await service.post(url, good | {"challenge_id": "0" * 32})
    assert (unknown.status_code, code(unknown)) == (404, "challenge-unknown")
    elsewhere = await service.post(f"/api/v1/machines/{other.machine_id}/ak-activate", good)
    assert code(elsewhere) == "challenge-unknown"
    quote = await service.challenge(other)
    purpose = await service.post(
        f"/api/v1/machines/{other.machine_id}/ak-activate", good | {"challenge_id": quote["nonce_id"]}
    )
    assert code(purpose) == "challenge-unknown"
    service.clock.advance(60)
    late = await service.post(url, good)
    assert (late.status_code, code(late)) == (410, "challenge-expired")
    assert len(await machines(service)) == 1


async def test_one_machine_per_ek(service: Service) -> None:
    """The same EK and AK again is the same machine; another AK is a conflict until an operator resets it."""
    node = SoftwareNode()
    await service.introduce(node)
    first = node.machine_id
    await service.introduce(node)
    assert node.machine_id == first
    assert len(await machines(service)) == 1
    old_ak = node.ak
    node.new_ak()
    conflict = await service.post(REGISTER, node.introduction())
    assert (conflict.status_code, code(conflict)) == (409, "ak-conflict")
    await service.act(node, "ak-reset", {"reason": "reinstalled"})
    assert (await service.detail(node))["ak_name"] is None
    await service.introduce(node)
    assert (await service.detail(node))["ak_name"] == node.ak.name.hex() != old_ak.name.hex()


async def test_the_second_of_two_aks_loses_the_race(service: Service) -> None:
    """Two introductions with two AKs are both answered; only the first activation counts."""
    node = SoftwareNode()
    first = (await service.post(REGISTER, node.introduction())).json()
    body_first = node.activation(first)
    node.new_ak()
    second = (await service.post(REGISTER, node.introduction())).json()
    body_second = node.activation(second)
    won = await service.post(f"/api/v1/machines/{second['machine_id']}/ak-activate", body_second)
    assert won.status_code == 200
    lost = await service.post(f"/api/v1/machines/{first['machine_id']}/ak-activate", body_first)
    assert (lost.status_code, code(lost)) == (409, "ak-conflict")
    assert len(await machines(service)) == 1
    again = await service.post(f"/api/v1/machines/{first['machine_id']}/ak-activate", body_first)
    assert code(again) == "challenge-used"


async def test_fingerprint_forms(service: Service) -> None:
    """SPKI form and the older form over what was sent are accepted; anything else is another machine."""
    node = SoftwareNode()
    older = hashlib.sha384(node.ek.tpm2b()).hexdigest()
    for good in (node.ek_fingerprint, node.ek_fingerprint.upper(), older):
        assert (await service.post(REGISTER, node.introduction(ek_fingerprint=good))).status_code == 200
    for bad in ("0" * 96, node.ek_fingerprint[:64]):
        answer = await service.post(REGISTER, node.introduction(ek_fingerprint=bad))
        assert (answer.status_code, code(answer)) == (422, "ek-fingerprint-mismatch")


@pytest.mark.parametrize(
    ("members", "status", "expected"),
    [
        ({"ek_public": "!!!"}, 400, "malformed-evidence"),
        ({"ek_public": b64encode(b"\x00\x04\x00\x01\x00\x0b")}, 400, "malformed-evidence"),
        ({"ak_public": b64encode(b"\x00")}, 400, "malformed-evidence"),
        ({"ek_source": "cert"}, 422, "request-invalid"),
        ({"ek_cert_pem": b64encode(b"x")}, 422, "request-invalid"),
        ({"ek_source": "cert", "ek_cert_pem": b64encode(b"x")}, 400, "malformed-evidence"),
        ({"cluster_id": "No"}, 422, "schema-violation"),
        ({"registration_token": "only at /register"}, 422, "schema-violation"),
    ],
    ids=lambda v: str(v)[:40],
)
async def test_bad_introductions(
    service: Service, members: dict[str, Any], status: int, expected: str
) -> None:
    """Each fault has its code, and nothing is stored."""
    answer = await service.post(REGISTER, SoftwareNode().introduction(**members))
    assert (answer.status_code, code(answer)) == (status, expected)


async def test_keys_that_may_not_be_introduced(service: Service) -> None:
    """An EK of no template and an AK with wrong attributes are refused by name."""
    node = SoftwareNode()
    answer = await service.post(REGISTER, node.introduction(ek_public=b64encode(node.ak.tpm2b())))
    assert (answer.status_code, code(answer)) == (403, "ek-template-rejected")
    loose = ak_public(node._ak.public_key(), attributes=0x00040472)
    answer = await service.post(REGISTER, node.introduction(ak_public=b64encode(loose.tpm2b())))
    assert (answer.status_code, code(answer)) == (403, "ak-attributes-rejected")


async def token(service: Service, **members: Any) -> dict[str, Any]:
    """Create a registration token."""
    body = {"role": "worker-infra", "expires_in_seconds": 600, "minimum_assurance": "tofu"} | members
    answer = await service.operator("POST", "/registration-tokens", body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_registration_token_admits_and_is_spent(service: Service) -> None:
    """The machine becomes `registered` in the token's role; the token is spent by the proof, not before."""
    issued = await token(service, hostname="w-9")
    node = SoftwareNode()
    activated = await service.introduce(node, registration_token=issued["token"])
    assert (activated["status"], activated["role"]) == ("registered", "worker-infra")
    assert activated["config_url"].endswith(activated["config_token"])
    assert (await service.detail(node))["hostname"] == "w-9"
    # Delivery still needs an attestation: the token of the activation gets the pending answer.
    assert (await service.fetch(activated["config_token"])).headers["content-type"].startswith("text/plain")
    second = await service.post(
        "/api/v1/register", SoftwareNode().introduction(registration_token=issued["token"])
    )
    assert (second.status_code, code(second)) == (403, "registration-token-invalid")
    (listed,) = (await service.operator("GET", "/registration-tokens")).json()["items"]
    assert (listed["uses_left"], "token" in listed) == (0, False)
    # Known machines do not need it and do not spend it.
    await service.introduce(node, registration_token="whatever")


async def test_a_token_is_spent_once_by_two_racers(service: Service) -> None:
    """Two machines introduce themselves with the last use; the second proof is refused."""
    issued = await token(service)
    one, two = SoftwareNode(), SoftwareNode()
    bodies = []
    for node in (one, two):
        answer = await service.post("/api/v1/register", node.introduction(registration_token=issued["token"]))
        bodies.append(node.activation(answer.json()))
    assert (
        await service.post(f"/api/v1/machines/{one.machine_id}/ak-activate", bodies[0])
    ).status_code == 200
    lost = await service.post(f"/api/v1/machines/{two.machine_id}/ak-activate", bodies[1])
    assert (lost.status_code, code(lost)) == (403, "registration-token-invalid")
    assert len(await machines(service)) == 1


@pytest.mark.parametrize("how", ["unknown", "revoked", "expired"])
async def test_useless_tokens(service: Service, how: str) -> None:
    """Whatever is wrong with a token, the answer is the same."""
    issued = await token(service)
    if how == "revoked":
        await service.operator("DELETE", f"/registration-tokens/{issued['token_id']}")
    if how == "expired":
        service.clock.advance(600)
    presented = "x" * 43 if how == "unknown" else issued["token"]
    answer = await service.post("/api/v1/register", SoftwareNode().introduction(registration_token=presented))
    assert (answer.status_code, code(answer)) == (403, "registration-token-invalid")
    assert answer.json()["detail"] == "the registration token is not valid here"


async def test_the_allow_list_admits(service: Service) -> None:
    """An imported EK becomes `registered` at once, with the assurance that says so."""
    node = SoftwareNode()
    entry = {
        "ek_fingerprint": node.ek_fingerprint,
        "role": "controlplane",
        "hostname": "cp-1",
        "cluster_id": "prod",
    }
    await service.operator("POST", "/allow-list", {"entries": [entry]})
    activated = await service.introduce(node)
    assert (activated["status"], activated["role"]) == ("registered", "controlplane")
    detail = await service.detail(node)
    assert (detail["assurance"], detail["ek_allow_listed"]) == ("ek-allowlist", True)
    assert (detail["hostname"], detail["cluster_id"]) == ("cp-1", "prod")


@pytest.mark.threat("T121")
@pytest.mark.parametrize("by", ["nobody", "approval", "token", "allow-list"])
@pytest.mark.parametrize("decided", [None, "prod"])
async def test_operators_decide_the_cluster(service: Service, by: str, decided: str | None) -> None:
    """What a machine asks for is recorded and shown; without an operator's word it is in `default`."""
    node = SoftwareNode()
    chosen = {} if decided is None else {"cluster_id": decided}
    members = {"cluster_id": "lab"}
    if by == "token":
        members["registration_token"] = (await token(service, **chosen))["token"]
    if by == "allow-list":
        entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app", **chosen}
        await service.operator("POST", "/allow-list", {"entries": [entry]})
    await service.introduce(node, **members)
    if by == "approval":
        await service.act(node, "approve", {"role": "worker-app", **chosen})
    detail = await service.detail(node)
    expected = "default" if by == "nobody" else decided or "default"
    assert (detail["cluster_id"], detail["desired_cluster_id"]) == (expected, "lab")


async def test_machines_that_await_approval_are_limited(start: Starter) -> None:
    """Above the quota of an address or of all: 429; approved machines make room."""
    service = await start(pending_limit=3, pending_limit_per_address=2)
    nodes = [SoftwareNode() for _ in range(3)]
    await service.introduce(nodes[0])
    await service.introduce(nodes[1])
    full = await service.post(REGISTER, nodes[2].introduction())
    assert (full.status_code, code(full)) == (429, "pending-quota-exceeded")
    assert int(full.headers["retry-after"]) > 0
    await service.act(nodes[0], "approve", {"role": "worker-app"})
    await service.introduce(nodes[2])


async def test_the_quota_holds_for_racers(start: Starter) -> None:
    """Introductions made while there was room are judged again when they prove themselves."""
    service = await start(pending_limit=1, pending_limit_per_address=1)
    one, two = SoftwareNode(), SoftwareNode()
    bodies = [
        node.activation((await service.post(REGISTER, node.introduction())).json()) for node in (one, two)
    ]
    assert (
        await service.post(f"/api/v1/machines/{one.machine_id}/ak-activate", bodies[0])
    ).status_code == 200
    late = await service.post(f"/api/v1/machines/{two.machine_id}/ak-activate", bodies[1])
    assert (late.status_code, code(late)) == (429, "pending-quota-exceeded")


async def test_hardware_hints_are_compared_never_overwritten(service: Service) -> None:
    """The same EK in another chassis is seen in the audit; the first introduction stays."""
    node = SoftwareNode()
    await service.introduce(node, hw_serial="S1")
    await service.introduce(node, hw_serial="S2")
    assert (await service.detail(node))["hw_serial"] == "S1"
    assert "hw_serial" in (await service.audit(action="register"))[0]["detail"]


async def test_introductions_are_limited_per_address(start: Starter) -> None:
    """Good and bad ones count; a limited one costs nothing and says when to come back."""
    service = await start(rate_limit_address_burst=3, rate_limit_address_per_second=0.1)
    assert (await service.post(REGISTER, SoftwareNode().introduction())).status_code == 200
    for _ in range(2):
        bad = await service.post(REGISTER, SoftwareNode().introduction(ek_public="!!!"))
        assert bad.status_code == 400
    limited = await service.post(REGISTER, SoftwareNode().introduction())
    assert (limited.status_code, code(limited)) == (429, "rate-limited")
    assert limited.headers["retry-after"] == "10"
    service.clock.advance(10)
    assert (await service.post(REGISTER, SoftwareNode().introduction())).status_code == 200


async def test_a_stranger_cannot_use_up_a_machines_limit(start: Starter) -> None:
    """The limit of an EK counts per address: a flood from elsewhere leaves the machine its own."""
    service = await start(rate_limit_machine_burst=2, rate_limit_machine_per_second=0.01)
    node = SoftwareNode()
    statuses = [(await service.post(REGISTER, node.introduction())).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    elsewhere = Service(
        service.app, await start_client(service, "192.0.2.8"), service.clock, service.directory
    )
    assert (await elsewhere.post(REGISTER, node.introduction())).status_code == 200


async def start_client(service: Service, address: str) -> Any:
    """Return a client that comes from *address*."""
    import httpx

    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://service")
