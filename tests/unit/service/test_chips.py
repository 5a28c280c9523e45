"""A TPM that was revoked does not come back under another of its keys (PROTOCOL §8.6)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import pytest

from attestation.errors import AKConflict
from attestation.store import AKBinding, Tx
from attestation.wire import b64encode
from attestation_service.process import maintenance
from attestation_service.registration import handlers
from attestation_service.registration.introduction import Introduction
from attestation_testing.certificates import EKCertificateOptions, make_ek_certificate
from tests.fixtures.vendor import IFX, ISSUER, MADE
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import REGISTER, code, token

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def certified(node: SoftwareNode, serial: str | None = None) -> dict[str, Any]:
    """Return what an introduction carries of a vendor's certificate that numbers the chip."""
    options = EKCertificateOptions(manufacturer=IFX, chip_serial=serial)
    return {
        "ek_source": "cert",
        "ek_cert_pem": b64encode(make_ek_certificate(node.ek, ISSUER, at=MADE, options=options)),
        "ek_chain": [b64encode(ISSUER.certificate)],
    }


async def revoked(service: Service, **members: Any) -> SoftwareNode:
    """Return a machine that was admitted and revoked."""
    node = SoftwareNode()
    if "serial" in members:
        members |= certified(node, members.pop("serial"))
    await service.introduce(node, **members)
    await service.act(node, "approve", {"role": "worker-app"})
    await service.act(node, "revoke")
    return node


def second_ek(first: SoftwareNode) -> SoftwareNode:
    """Return the same TPM under another of its EKs: the attestation key is the same."""
    other = SoftwareNode()
    other._ak, other.ak = first._ak, first.ak
    return other


@pytest.mark.threat("T127")
@pytest.mark.parametrize("gone", [False, True])
async def test_one_ak_belongs_to_one_ek_for_ever(service: Service, gone: bool) -> None:
    """Also after revocation and deletion: the second EK of a revoked machine gets 409, and operators hear of it."""
    thief = await revoked(service)
    if gone:
        await service.store.write(lambda tx: tx.machines.delete(thief.machine_id))
    issued = await token(service, uses=5)
    other = second_ek(thief)
    body = other.introduction(registration_token=issued["token"], **certified(other))
    answer = await service.post("/api/v1/register", body)
    assert (answer.status_code, code(answer)) == (409, "ak-conflict")
    (alarm,) = await service.audit(action="alarm")
    assert thief.machine_id in alarm["detail"]
    assert other.ek_fingerprint in alarm["detail"]
    assert alarm["source_ip"] == "192.0.2.7"


async def test_an_alarm_sounds_once_however_often_the_unit_is_run(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may run a unit again; what it noted the first time is not told beside what it notes the second time."""
    sounded: list[str] = []

    def sound(tx: Tx, *, introduction: Introduction, bound: AKBinding, at: datetime) -> None:
        sounded.append(introduction.ek_fingerprint)

    store = service.resources.store
    read = store.read

    async def twice(work: Callable[[Tx], T]) -> T:
        def again(tx: Tx) -> T:
            with contextlib.suppress(AKConflict):
                work(tx)
            return work(tx)

        return await read(again)

    other = second_ek(await revoked(service))
    monkeypatch.setattr(handlers, "sound_stolen", sound)
    monkeypatch.setattr(store, "read", twice)
    assert code(await service.post(REGISTER, other.introduction())) == "ak-conflict"
    assert sounded == [other.ek_fingerprint]


@pytest.mark.threat("T127")
async def test_of_two_eks_the_first_proof_keeps_the_ak(service: Service) -> None:
    """Both introduce themselves before either proves anything: the second proof is a conflict, spent, and told."""
    one = SoftwareNode()
    two = second_ek(one)
    bodies = [n.activation((await service.post(REGISTER, n.introduction())).json()) for n in (one, two)]
    for node, body, status in ((one, bodies[0], 200), (two, bodies[1], 409)):
        answer = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
        assert answer.status_code == status
    (alarm,) = await service.audit(action="alarm")
    assert "nothing was proven" not in alarm["detail"]
    # To look comes first: the second proof may be the stranger's.
    check, advice = "attestation-agent identify", "put its EK on the allow-list"
    assert -1 < alarm["detail"].find(check) < alarm["detail"].find(advice)


async def test_who_came_back_under_another_id_is_called_by_it(service: Service) -> None:
    """A stranger that was purged and came back: the alarms name the row that is there, not the one that was."""
    node = SoftwareNode()
    thief = squatter(node)
    await service.introduce(thief)
    was = thief.machine_id
    service.clock.advance(service.resources.settings.pending_days * 86_400 + 1)
    await maintenance.once(service.resources)
    await service.introduce(thief)
    assert thief.machine_id != was
    await service.post(REGISTER, node.introduction())
    await listed(service, node)
    await service.introduce(node)
    told = await service.audit(action="alarm")
    assert len(told) == 2
    assert {(thief.machine_id in each["detail"], was in each["detail"]) for each in told} == {(True, False)}
    assert {each["machine_id"] for each in told} == {thief.machine_id, node.machine_id}


# Whoever sees the public part of an AK before its machine proved it


def squatter(victim: SoftwareNode) -> SoftwareNode:
    """Return an EK of software that opens any credential of its own: no TPM is asked for the AK."""
    other = SoftwareNode()
    other.ak = victim.ak
    return other


async def listed(service: Service, node: SoftwareNode) -> None:
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app"}
    answer = await service.operator("POST", "/allow-list", {"entries": [entry]})
    assert answer.status_code == 200, answer.text


@pytest.mark.threat("T155")
@pytest.mark.parametrize("how", ["chain", "allow-list", "purged"])
async def test_an_ak_that_a_stranger_claimed_goes_to_who_is_vouched_for(service: Service, how: str) -> None:
    """A software EK activates the AK of another machine first; that machine comes, and nobody keeps it out."""
    node = SoftwareNode()
    thief = squatter(node)
    assert (await service.introduce(thief))["status"] == "pending_approval"
    if how == "purged":
        service.clock.advance(service.resources.settings.pending_days * 86_400 + 1)
        await maintenance.once(service.resources)
    members = certified(node, "TPM-4711") if how == "chain" else {}
    if how != "chain":
        await listed(service, node)
    # Shown alone, a certificate or a fingerprint displaces nobody: everybody may have copied it.
    await service.post(REGISTER, node.introduction(**members))
    assert await service.audit(action="pending_displaced") == []
    answer = await service.introduce(node, **members)
    assert answer["status"] == ("pending_approval" if how == "chain" else "registered")
    left = (await service.operator("GET", "/machines")).json()["items"]
    assert [each["machine_id"] for each in left] == [node.machine_id]
    gone = await service.audit(action="pending_displaced")
    assert [each["machine_id"] for each in gone] == ([] if how == "purged" else [thief.machine_id])
    (alarm,) = await service.audit(action="alarm")
    assert alarm["machine_id"] == node.machine_id
    assert thief.machine_id in alarm["detail"]
    assert thief.ek_fingerprint in alarm["detail"]
    # It is bound now, and stays so: the stranger is refused, and the log tells of all that was done.
    assert code(await service.post(REGISTER, thief.introduction())) == "ak-conflict"
    found = (await service.operator("GET", "/audit/verify")).json()
    assert (found["valid"], found["state"]["unproven"]) == (True, [])


@pytest.mark.threat("T155")
@pytest.mark.parametrize(
    "decided",
    [
        "approved",
        "rejected",
        "revoked",
        "locked",
        "deleted",
        "deleted and back",
        "listed",
        "vouched",
        "nobody",
    ],
)
async def test_what_somebody_decided_about_keeps_its_ak(service: Service, decided: str) -> None:
    """Also from who is vouched for, and for ever; and one stranger displaces no other."""
    first = SoftwareNode()
    await service.introduce(first, **(certified(first) if decided == "vouched" else {}))
    if decided == "listed":
        await listed(service, first)
    if decided in ("approved", "revoked", "locked"):
        await service.act(first, "approve", {"role": "worker-app"})
    if decided == "approved":
        # Also where nothing is remembered of its chip.
        await service.store.write(lambda tx: tx.chip_marks.forget(first.machine_id))
    if decided == "locked":
        await service.attest(first)
        await service.act(first, "lock")
    if decided == "revoked":
        await service.act(first, "revoke")
    if decided in ("rejected", "deleted", "deleted and back"):
        await service.act(first, "reject", {"reason": "not ours"})
    if decided.startswith("deleted"):
        assert (await service.operator("DELETE", f"/machines/{first.machine_id}")).status_code == 204
    if decided == "deleted and back":
        await service.introduce(first)
    other = second_ek(first)
    if decided != "nobody":
        await listed(service, other)
    before = (await service.operator("GET", "/machines")).json()["items"]
    assert code(await service.post(REGISTER, other.introduction())) == "ak-conflict"
    assert (await service.operator("GET", "/machines")).json()["items"] == before
    alarm = (await service.audit(action="alarm"))[0]
    assert "was introduced with another EK" in alarm["detail"]
    # Nothing was proven of the other EK: no word advises to list it, but how to find out whose the key is.
    assert "nothing was proven" in alarm["detail"]
    assert "attestation-agent identify" in alarm["detail"]
    assert "allow-list" not in alarm["detail"]


@pytest.mark.threat("T155")
@pytest.mark.parametrize(
    "how", ["revoked", "rejected", "locked", "deleted", "forgotten", "beside", "now beside"]
)
async def test_who_was_turned_away_takes_no_ak(service: Service, how: str) -> None:
    """An entry of the allow-list outlives what was decided about its machine: that machine displaces nobody."""
    other, thief = SoftwareNode(), await revoked(service)
    if how in ("rejected", "deleted"):
        await service.introduce(other)
        await service.act(other, "ak-reset", {"reason": "cleared"})
        await service.act(other, "reject", {"reason": "not ours"})
    if how == "deleted":
        assert (await service.operator("DELETE", f"/machines/{other.machine_id}")).status_code == 204
    await listed(service, other)
    if how in ("revoked", "forgotten", "locked", "beside"):
        await service.introduce(other)
    if how == "locked":
        await service.attest(other)
    if how == "beside":
        assert (await together(service, other, thief)).status_code == 200
    if how in ("revoked", "forgotten", "locked", "beside"):
        await service.act(other, "ak-reset", {"reason": "cleared"})
    if how in ("revoked", "forgotten"):
        await service.act(other, "revoke")
    if how == "locked":
        await service.act(other, "lock")
    if how == "forgotten":
        # Also where nothing is remembered of its chip.
        await service.store.write(lambda tx: tx.chip_marks.forget(other.machine_id))
    node = SoftwareNode()
    await service.introduce(node)
    other.ak = node.ak
    before = (await service.operator("GET", "/machines")).json()["items"]
    if how == "now beside":
        # Told at its proof: to name another EK says nothing.
        answer = await together(service, other, thief)
    else:
        answer = await service.post(REGISTER, other.introduction())
    assert code(answer) == "ak-conflict"
    assert (await service.operator("GET", "/machines")).json()["items"] == before
    alarm = (await service.audit(action="alarm"))[0]
    assert "was introduced with another EK" in alarm["detail"]
    assert "put its EK on the allow-list" not in alarm["detail"]


@pytest.mark.threat("T155")
async def test_who_is_not_vouched_for_any_more_at_the_proof_displaces_nobody(service: Service) -> None:
    """It is asked again in the unit that writes: the entry was removed in between."""
    node = SoftwareNode()
    thief = squatter(node)
    await service.introduce(thief)
    await listed(service, node)
    body = node.activation((await service.post(REGISTER, node.introduction())).json())
    assert (await service.operator("DELETE", f"/allow-list/{node.ek_fingerprint}")).status_code == 204
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
    assert code(answer) == "ak-conflict"
    assert (await service.detail(thief))["status"] == "pending_approval"


async def test_one_ek_may_have_many_aks_one_after_the_other(service: Service) -> None:
    """After a reset another one is activated; the first one is still of this EK alone."""
    node = SoftwareNode()
    await service.introduce(node)
    first = second_ek(node)
    await service.act(node, "ak-reset", {"reason": "cleared"})
    node.new_ak()
    await service.introduce(node)
    assert code(await service.post(REGISTER, first.introduction())) == "ak-conflict"


@pytest.mark.threat("T127")
@pytest.mark.parametrize("how", ["token", "allow-list"])
async def test_the_serial_number_of_the_chip_links_its_eks(service: Service, how: str) -> None:
    """A new EK and a new AK of a revoked chip: the certificates give it away, whatever token or list says."""
    thief = await revoked(service, serial="TPM-4711")
    other, stranger = SoftwareNode(), SoftwareNode()
    for node, serial in ((other, "tpm-4711 "), (stranger, "TPM-4712")):
        members = certified(node, serial)
        if how == "token":
            members["registration_token"] = (await token(service))["token"]
        else:
            entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app"}
            await service.operator("POST", "/allow-list", {"entries": [entry]})
        await service.introduce(node, **members)
    detail = await service.detail(other)
    assert (detail["status"], detail["role"]) == ("pending_approval", None)
    assert thief.machine_id in detail["alarm"]
    (related,) = detail["relatives"]
    assert related["mark"] == "ek-serial"
    assert (related["machine_id"], related["status"], related["same_chip"]) == (
        thief.machine_id,
        "revoked",
        True,
    )
    # Listed by its id it is shown whole too; who is not there is left out.
    ids = f"{other.machine_id},00000000-0000-4000-8000-000000000000,{thief.machine_id}"
    listed = (await service.operator("GET", "/machines", params={"ids": ids})).json()["items"]
    assert listed == [detail, await service.detail(thief)]
    (alarm,) = await service.audit(action="alarm")
    assert alarm["machine_id"] == other.machine_id
    detail = await service.detail(stranger)
    assert (detail["status"], detail["alarm"], detail["relatives"]) == ("registered", None, [])
    if how == "token":
        spent = (await service.operator("GET", "/registration-tokens")).json()["items"]
        assert sorted(each["uses_left"] for each in spent) == [0, 1]
    # An operator may still decide; the alarm was heard.
    assert (await service.act(other, "approve", {"role": "worker-app"}))["alarm"] is None


@pytest.mark.threat("T127")
async def test_after_a_deletion_an_operator_decides(service: Service) -> None:
    """The same pair comes back: it waits with its history shown, although its EK is on the list."""
    node = SoftwareNode()
    await service.introduce(node)
    first = node.machine_id
    await service.act(node, "reject", {"reason": "not ours"})
    assert (await service.operator("DELETE", f"/machines/{first}")).status_code == 204
    entry = {"ek_fingerprint": node.ek_fingerprint, "role": "worker-app"}
    await service.operator("POST", "/allow-list", {"entries": [entry]})
    assert (await service.introduce(node))["status"] == "pending_approval"
    detail = await service.detail(node)
    assert detail["machine_id"] != first
    (related,) = detail["relatives"]
    assert (related["machine_id"], related["status"], related["mark"]) == (first, "rejected", "ek")
    assert related["deleted_at"] is not None
    assert f"{first} (rejected, deleted)" in detail["alarm"]


@pytest.mark.threat("T127")
@pytest.mark.parametrize("hint", ["hw_serial", "hw_uuid"])
async def test_hints_raise_an_alarm_and_decide_nothing(service: Service, hint: str) -> None:
    """The serial number of a revoked machine is told; a placeholder that all machines have is not."""
    thief = await revoked(service, hw_serial="unknown", **{hint: "8XK2-M13"} if hint == "hw_uuid" else {})
    if hint == "hw_serial":
        thief = await revoked(service, hw_serial="8XK2-M13")
    for value, told in (("8xk2-m13", True), ("unknown", False)):
        node = SoftwareNode()
        issued = await token(service)
        await service.introduce(node, registration_token=issued["token"], **{hint: value})
        detail = await service.detail(node)
        assert detail["status"] == "registered"
        assert ((detail["alarm"] or "").count(thief.machine_id) == 1) is told
    assert len(await service.audit(action="alarm")) == 1


# Several EKs of one chip, introduced together


async def together(service: Service, node: SoftwareNode, *others: SoftwareNode, **members: Any) -> Any:
    """Introduce *node* with further EKs and answer every credential; return the answer to the activation."""
    members["ek_alternatives"] = [{"ek_public": b64encode(each.ek.tpm2b())} for each in others]
    route = "register" if "registration_token" in members else "self-register"
    answer = (await service.post(f"/api/v1/{route}", node.introduction(**members))).json()
    body = node.activation(answer)
    body["alternative_proofs"] = proofs(node, answer, *others)
    return await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)


def proofs(node: SoftwareNode, answer: Any, *others: SoftwareNode) -> list[str]:
    """Return the proofs of further EKs: each by its own secret."""
    made = []
    for other, offer in zip(others, answer["activation"]["alternatives"], strict=True):
        assert offer["ek_fingerprint"] == other.ek_fingerprint
        ours = other.ak, other._ak
        other.ak, other._ak = node.ak, node._ak
        activation = {"challenge_id": answer["activation"]["challenge_id"], **offer}
        opened = {"machine_id": answer["machine_id"], "activation": activation}
        made.append(other.activation(opened, node.ek_fingerprint)["proof"])
        other.ak, other._ak = ours
    return made


@pytest.mark.threat("T127")
async def test_an_ek_shown_beside_another_is_the_same_chip(service: Service) -> None:
    """Whoever later comes under the second EK, with another AK and a token, waits."""
    node, second = SoftwareNode(), SoftwareNode()
    assert (await together(service, node, second)).status_code == 200
    await service.act(node, "approve", {"role": "worker-app"})
    await service.act(node, "revoke")
    issued = await token(service)
    later = await service.introduce(second, registration_token=issued["token"])
    assert later["status"] == "pending_approval"
    assert node.machine_id in (await service.detail(second))["alarm"]


async def test_a_revoked_ek_shown_beside_a_new_one_holds_it_back(service: Service) -> None:
    """The same the other way round, at the introduction itself and for a machine that is admitted already."""
    thief = await revoked(service)
    node = SoftwareNode()
    issued = await token(service)
    answer = await together(service, node, thief, registration_token=issued["token"])
    assert answer.json()["status"] == "pending_approval"
    admitted = SoftwareNode()
    await service.admitted(admitted)
    assert len(await service.audit(action="alarm")) == 1
    assert (await together(service, admitted, thief)).status_code == 200
    assert (await service.detail(admitted))["status"] == "attested"
    assert len(await service.audit(action="alarm")) == 2


@pytest.mark.threat("T128")
@pytest.mark.parametrize("wrong", ["secret", "fewer", "more", "malformed"])
async def test_each_ek_is_proven_by_itself(service: Service, wrong: str) -> None:
    """Nobody claims somebody else's EK; a wrong proof spends the challenge and creates nothing."""
    node, one, two = SoftwareNode(), SoftwareNode(), SoftwareNode()
    alternatives = [{"ek_public": b64encode(each.ek.tpm2b())} for each in (one, two)]
    answer = (await service.post(REGISTER, node.introduction(ek_alternatives=alternatives))).json()
    good = proofs(node, answer, one, two)
    body = node.activation(answer)
    body["alternative_proofs"] = {
        "secret": [good[0], good[0]],
        "fewer": good[:1],
        "more": [*good, good[0]],
        "malformed": [good[0], "!"],
    }[wrong]
    refused = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
    assert code(refused) == ("malformed-evidence" if wrong == "malformed" else "activation-failed")
    assert (await service.operator("GET", "/machines")).json()["items"] == []
    again = await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)
    assert code(again) == "challenge-used"


@pytest.mark.threat("T151")
@pytest.mark.parametrize("shown_beside", [None, "another"])
async def test_nobody_has_the_proof_of_another_ek_made_for_them(
    service: Service, shown_beside: str | None
) -> None:
    """Who relays its credential to the machine whose EK it is, as that machine's own, gets a proof for nothing."""
    victim, middle, third = SoftwareNode(), SoftwareNode(), SoftwareNode()
    middle.ak = victim.ak
    alternatives = [{"ek_public": b64encode(victim.ek.tpm2b())}]
    answer = (await service.post(REGISTER, middle.introduction(ek_alternatives=alternatives))).json()
    offer = answer["activation"]
    relayed = {"challenge_id": offer["challenge_id"], **offer["alternatives"][0]}
    # As its activation, or as one that it asked for itself, beside another EK than that of the middle.
    beside = third.ek_fingerprint if shown_beside else None
    made = victim.activation({"machine_id": answer["machine_id"], "activation": relayed}, beside)["proof"]
    body = middle.activation(answer) | {"alternative_proofs": [made]}
    refused = await service.post(f"/api/v1/machines/{middle.machine_id}/ak-activate", body)
    assert code(refused) == "activation-failed"
    await service.introduce(victim)
    assert (await service.detail(victim))["relatives"] == []


@pytest.mark.threat("T128")
async def test_unproven_eks_count_for_nothing(service: Service) -> None:
    """Who names another EK and shows no proof is not of its chip."""
    node, other = SoftwareNode(), SoftwareNode()
    alternatives = [{"ek_public": b64encode(other.ek.tpm2b())}]
    await service.introduce(node, ek_alternatives=alternatives)
    await service.introduce(other)
    assert (await service.detail(other))["relatives"] == []
    for twice in ([node], [other, other]):
        named = [{"ek_public": b64encode(each.ek.tpm2b())} for each in twice]
        answer = await service.post(REGISTER, node.introduction(ek_alternatives=named))
        assert (answer.status_code, code(answer)) == (422, "request-invalid")
    assert "alternatives" not in (await service.post(REGISTER, node.introduction())).json()["activation"]
