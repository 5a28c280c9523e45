"""Machines without a TPM (PROTOCOL §9): introduced, proven, admitted, attested, configured, acknowledged."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from attestation.appraisal import KINDS
from attestation.errors import MachineNotAdmitted, TPMRequired
from attestation.machines import Role
from attestation.report_data import report_data
from attestation.wire import b64decode
from attestation_service.attest.kinds import SIDES, hardware, signs
from attestation_service.entitlements import certificates
from tests.unit.service.conftest import CANARY, Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.tee import FAKE, MEDIA_TYPE, Guest

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _with_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, FAKE.name, FAKE)
    monkeypatch.setitem(SIDES, FAKE.name, hardware(FAKE.name, MEDIA_TYPE, signs("sev-snp")))
    monkeypatch.setattr(FAKE, "launches", frozenset())


async def introduced(service: Service, guest: Guest, **members: object) -> dict[str, object]:
    """Introduce and prove *guest*."""
    route = "register" if "registration_token" in members else "self-register"
    answer = await service.post(f"/api/v1/{route}", guest.introduction(**members))
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == {"machine_id", "status", "role", "message", "challenge"}
    answer = await service.post(
        f"/api/v1/machines/{answer.json()['machine_id']}/tee-activate", guest.activation(answer.json())
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_from_the_introduction_to_the_configuration(service: Service) -> None:
    """As a machine with a TPM, by its hardware and its subject key."""
    guest = Guest()
    answer = await introduced(service, guest)
    assert answer["status"] == "pending_approval"
    assert answer["ak_accepted"] is True
    assert "welcome" in answer
    detail = await service.detail(guest)
    assert (detail["ek_source"], detail["ek_fingerprint"]) == ("sev-snp", guest.fingerprint)
    assert detail["hardware"]["chip"] == guest.chip.hex()
    assert detail["hardware"]["approved_chip"] is None
    challenge = await service.challenge(guest)
    assert (challenge["pcr_selection"], challenge["evidence"]) == ({}, ["sev-snp"])
    # Waiting: judged, told, and nothing follows.
    told = await service.attest(guest)
    assert (told["action"], told["status"]) == ("none", "pending_approval")
    detail = await service.act(guest, "approve", {"role": "worker-app"})
    assert detail["hardware"]["approved_chip"] == guest.chip.hex()
    told = await service.attest(guest)
    assert (told["status"], told["action"]) == ("attested", "apply-config")
    fetched = await service.fetch(told["config_token"])
    assert fetched.status_code == 200, fetched.text
    envelope = fetched.json()
    assert envelope["format"] == "tee-p384-aes256gcm-v1"
    assert envelope.keys() == {
        *("format", "machine_id", "token_id", "epk", "iv", "ciphertext", "config_sha256")
    }
    assert CANARY.encode() in guest.open(envelope)
    await service.acknowledge(guest, told)
    detail = await service.detail(guest)
    assert (detail["trust"], detail["redeliver_pending"]) == ("verified", False)


def code(answer: httpx.Response) -> str:
    """Return the code of a problem."""
    found: str = answer.json()["type"].removeprefix("urn:itl:problem:")
    return found


async def offered(service: Service, guest: Guest, **members: object) -> dict[str, Any]:
    """Introduce *guest*, and return what it is to prove."""
    answer = await service.post("/api/v1/self-register", guest.introduction(**members))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def activate(service: Service, guest: Guest, answer: dict[str, Any], **changes: Any) -> httpx.Response:
    """Prove *guest*, whatever comes of it."""
    body = guest.activation(answer, **{k: v for k, v in changes.items() if k in ("data", "tag")})
    body |= {k: v for k, v in changes.items() if k not in ("data", "tag")}
    return await service.post(f"/api/v1/machines/{guest.machine_id}/tee-activate", body)


async def admitted(service: Service, guest: Guest, role: str = "worker-app") -> dict[str, Any]:
    """Introduce, approve and attest."""
    await introduced(service, guest)
    await service.act(guest, "approve", {"role": role})
    return await service.attest(guest)


def let_in(service: Service, *roles: Role) -> None:
    """Let ephemeral machines in."""
    vars(service.resources.settings)["tee_ephemeral_roles"] = roles


async def outcomes(service: Service, guest: SoftwareNode) -> dict[str, str]:
    """Return the newest result's checks, name -> outcome."""
    newest = (await service.operator("GET", f"/machines/{guest.machine_id}/results")).json()["items"][0]
    return {check["check"]: check["outcome"] for check in newest["checks"]}


# Introduction and proof


@pytest.mark.parametrize(
    "members",
    [
        {"tee": None},
        {"subject_key": None},
        {"ek_public": "AA=="},
        {"ek_fingerprint": "ab" * 48},
        {"ak_public": "AA=="},
        {"ek_cert_pem": "AA=="},
        {"tee": "sgx"},
    ],
    ids=str,
)
async def test_a_machine_is_known_by_one_of_both(service: Service, members: dict[str, Any]) -> None:
    """A mixture means two machines; half of either means none."""
    body = {k: v for k, v in (Guest().introduction() | members).items() if v is not None}
    assert (await service.post("/api/v1/self-register", body)).status_code == 422


async def test_a_subject_key_of_another_kind(service: Service) -> None:
    """P-384, and nothing else."""
    answer = await service.post("/api/v1/self-register", Guest().introduction(subject_key="AAAA"))
    assert (answer.status_code, code(answer)) == (400, "malformed-evidence")


@pytest.mark.threat("T205")
async def test_a_relayed_report_proves_nothing(service: Service) -> None:
    """Genuine, of another machine, of another challenge, for another key: refused, spent, and nobody is created."""
    victim, thief = Guest(), Guest()
    await introduced(service, victim)
    for report in ("of the victim", "for its own key under the victim's id", "for another challenge"):
        answer = await offered(service, thief)
        nonce = b64decode(answer["challenge"]["nonce"], "nonce")
        data = {
            "of the victim": report_data("sev-snp", nonce, victim.machine_id, victim.spki),
            "for its own key under the victim's id": report_data(
                "sev-snp", nonce, victim.machine_id, thief.spki
            ),
            "for another challenge": report_data("sev-snp", bytes(32), answer["machine_id"], thief.spki),
        }[report]
        refused = await activate(service, thief, answer, data=data)
        assert (refused.status_code, code(refused)) == (403, "evidence-rejected"), report
        again = await activate(service, thief, answer)
        assert (again.status_code, code(again)) == (409, "challenge-used")
    assert len((await service.operator("GET", "/machines")).json()["items"]) == 1
    assert (await service.audit(action="denied"))[0]["detail"].startswith("tee-activate: ")


async def test_evidence_that_is_not_the_hardwares(service: Service) -> None:
    """Another signature; another kind; two items; nothing that can be read."""
    for changes, status in (
        ({"tag": bytes(32)}, 403),
        ({"evidence": []}, 422),
        ({"evidence": [{"media_type": MEDIA_TYPE, "value": {"report": "AA==", "vek": "AA=="}}]}, 400),
        ({"evidence": [{"media_type": "application/vnd.itl.tdx-quote", "value": {"quote": "AA=="}}]}, 400),
    ):
        guest = Guest()
        answer = await activate(service, guest, await offered(service, guest), **changes)
        assert answer.status_code == status, answer.text
    assert (await service.operator("GET", "/machines")).json()["items"] == []


async def test_each_activation_for_its_own_challenge(service: Service) -> None:
    """That of a TPM is not answered by hardware, nor the other way round; both are spent."""
    guest, node = Guest(), SoftwareNode()
    answer = await offered(service, guest)
    body = {"challenge_id": answer["challenge"]["challenge_id"], "proof": "AAAA"}
    wrong = await service.post(f"/api/v1/machines/{answer['machine_id']}/ak-activate", body)
    assert (wrong.status_code, code(wrong)) == (404, "challenge-unknown")
    told = (await service.post("/api/v1/self-register", node.introduction())).json()
    guest.machine_id = told["machine_id"]
    body = {"challenge_id": told["activation"]["challenge_id"], "evidence": [guest.item(bytes(32))]}
    wrong = await service.post(f"/api/v1/machines/{told['machine_id']}/tee-activate", body)
    assert (wrong.status_code, code(wrong)) == (404, "challenge-unknown")


async def test_a_challenge_that_ended(service: Service) -> None:
    """It is as late as any other."""
    guest = Guest()
    answer = await offered(service, guest)
    service.clock.advance(61)
    assert (await activate(service, guest, answer)).status_code == 410


async def test_two_racers(service: Service) -> None:
    """One proof of two is heard."""
    guest = Guest()
    answer = await offered(service, guest)
    body = guest.activation(answer)
    path = f"/api/v1/machines/{guest.machine_id}/tee-activate"
    both = [service.post(path, body), service.post(path, body)]
    assert sorted([(await each).status_code for each in both]) == [200, 409]
    await service.act(guest, "approve", {"role": "worker-app"})
    challenge = await service.challenge(guest)
    quoted = guest.attestation(challenge)
    answers = await asyncio.gather(*(service.post("/api/v1/attest", quoted) for _ in range(2)))
    assert sorted(each.status_code for each in answers) == [200, 409]


async def test_the_same_machine_again(service: Service) -> None:
    """It is known by its key at once, and confirmed; its id stays."""
    guest = Guest()
    await introduced(service, guest)
    first = guest.machine_id
    answer = await introduced(service, guest)
    assert (answer["machine_id"], answer["status"]) == (first, "pending_approval")


@pytest.mark.threat("T206")
async def test_another_key_on_the_same_hardware_waits_for_an_operator(service: Service) -> None:
    """A swapped subject key is refused; after a reset it is taken, and the old one counts no more."""
    guest, other = Guest(), Guest()
    await admitted(service, guest)
    answer = await activate(service, other, await offered(service, other))
    assert (answer.status_code, code(answer)) == (409, "ak-conflict")
    other.machine_id = guest.machine_id
    swapped = await service.try_attest(other)
    assert (swapped.status_code, code(swapped)) == (403, "evidence-rejected")
    await service.act(guest, "ak-reset", {"reason": "reinstalled"})
    answer = await activate(service, other, await offered(service, other))
    assert answer.status_code == 200, answer.text
    assert answer.json()["machine_id"] == guest.machine_id
    assert (await service.try_attest(guest)).status_code == 403
    other.machine_id = guest.machine_id
    assert (await service.attest(other))["status"] == "attested"


async def test_a_key_belongs_to_one_machine(service: Service) -> None:
    """The same key on another chip, or by another name, is another machine's: a copied disk."""
    guest = Guest()
    await introduced(service, guest)
    copy = Guest(chip=bytes([8] * 64))
    copy.key = guest.key
    answer = await offered(service, copy)
    refused = await activate(service, copy, answer)
    assert (refused.status_code, code(refused)) == (409, "ak-conflict")
    (alarm,) = await service.audit(action="alarm")
    assert guest.machine_id in alarm["detail"]


# Attestation


@pytest.mark.threat("T205")
async def test_evidence_that_is_not_for_this_attestation(service: Service) -> None:
    """Replayed, of another machine, altered, named otherwise, beside a quote, or none: nothing changes."""
    guest, other = Guest(), Guest(guest=bytes([2] * 32))
    await admitted(service, guest)
    await introduced(service, other)
    before = await service.detail(guest)
    earlier = await service.challenge(guest)
    item = guest.item(b64decode(earlier["nonce"], "nonce"))
    service.clock.advance(30)
    for members, status in (
        ({"evidence": [item]}, 403),
        ({"evidence": []}, 403),
        ({"ek_fingerprint": other.fingerprint}, 422),
        ({"pcr_quote": "AAAA", "pcr_signature": "AAAA", "pcr_values": {}}, 400),
        ({"event_log": "AAAA"}, 400),
    ):
        answer = await service.try_attest(guest, **members)
        assert answer.status_code == status, answer.text
        service.clock.advance(5)
    challenge = await service.challenge(guest)
    of_other = other.item(b64decode(challenge["nonce"], "nonce"))
    assert (
        await service.post("/api/v1/attest", guest.attestation(challenge, evidence=[of_other]))
    ).status_code == 403
    fresh = guest.item(b64decode((challenge := await service.challenge(guest))["nonce"], "nonce"))
    for twice in ([fresh, fresh], [fresh, {"media_type": MEDIA_TYPE, "value": "x"}]):
        answer = await service.post("/api/v1/attest", guest.attestation(challenge, evidence=twice))
        service.clock.advance(5)
        challenge = await service.challenge(guest)
        assert answer.status_code == 400, answer.text
    assert await service.detail(guest) == before


@pytest.mark.threat("T207")
async def test_another_processor_is_not_the_approved_one(service: Service) -> None:
    """It is authentic, shown, and fails; an operator approves what was seen, and then it holds."""
    guest = Guest()
    told = await admitted(service, guest)
    assert told["status"] == "attested"
    approved, known_as = guest.chip, guest.fingerprint
    guest.chip = bytes([8] * 64)
    answer = await service.try_attest(guest, ek_fingerprint=known_as)
    assert answer.status_code == 200, answer.text
    assert (await outcomes(service, guest))["snp-chip"] == "failed"
    detail = await service.detail(guest)
    assert detail["trust"] == "failed"
    assert (detail["hardware"]["chip"], detail["hardware"]["approved_chip"]) == (
        guest.chip.hex(),
        approved.hex(),
    )
    # Whoever decides about the other chip decides about nothing.
    for wrong in ({"chip": approved.hex()}, {"expected_version": detail["version"] - 1}):
        refused = await service.operator(
            "POST", f"/machines/{guest.machine_id}/approve-hardware", {"reason": "replaced", **wrong}
        )
        assert refused.status_code in (409, 422), refused.text
    detail = await service.act(
        guest,
        "approve-hardware",
        {"reason": "replaced", "chip": guest.chip.hex(), "expected_version": detail["version"]},
    )
    assert detail["hardware"]["approved_chip"] == guest.chip.hex()
    entry = (await service.audit(action="approve_hardware"))[0]
    assert guest.chip.hex() in entry["detail"]
    await service.attest(guest, ek_fingerprint=known_as)
    assert (await service.detail(guest))["trust"] == "verified"


@pytest.mark.threat("T207")
async def test_before_an_approval_only_its_own_hardware_speaks(service: Service) -> None:
    """Whoever knows a waiting machine's key shows another chip for it: what operators approve stays its own."""
    guest = Guest()
    await introduced(service, guest)
    before, own, known_as = await service.detail(guest), guest.chip, guest.fingerprint
    for chip, name in ((bytes([8] * 64), guest.guest), (own, bytes([3] * 32))):
        stranger = Guest(chip=chip, guest=name)
        stranger.key, stranger.machine_id = guest.key, guest.machine_id
        answer = await service.try_attest(stranger, ek_fingerprint=known_as)
        assert (answer.status_code, code(answer)) == (422, "ek-fingerprint-mismatch")
        service.clock.advance(5)
    assert await service.detail(guest) == before
    assert before["hardware"]["chip"] == own.hex()
    assert (await service.try_attest(guest)).status_code == 200


@pytest.mark.threat("T207")
async def test_another_chip_acknowledges_nothing(service: Service) -> None:
    """The guest's name and key are no secrets: its chip must be the one that attested last."""
    guest = Guest()
    await admitted(service, guest)
    challenge = await service.challenge(guest)
    guest.chip = bytes([8] * 64)
    body = guest.acknowledgement(challenge, "x")
    answer = await service.post(f"/api/v1/machines/{guest.machine_id}/ack", body)
    assert (answer.status_code, code(answer)) == (403, "evidence-rejected")


@pytest.mark.threat("T207")
async def test_another_name_of_the_guest_fails(service: Service) -> None:
    """The key of a copied disk is not the guest: its launcher calls it otherwise."""
    guest = Guest()
    await admitted(service, guest)
    known_as = guest.fingerprint
    guest.guest = bytes([3] * 32)
    await service.attest(guest, ek_fingerprint=known_as)
    assert (await outcomes(service, guest))["guest-name"] == "failed"
    assert (await service.detail(guest))["trust"] == "failed"
    # Nor does it acknowledge anything: its report says another name than the last that was verified.
    challenge = await service.challenge(guest)
    guest.guest = bytes([4] * 32)
    body = guest.acknowledgement(challenge, "x")
    answer = await service.post(f"/api/v1/machines/{guest.machine_id}/ack", body)
    assert (answer.status_code, code(answer)) == (403, "evidence-rejected")


async def test_a_vlek_names_no_processor(service: Service) -> None:
    """Whose it is, is approved and compared; the machine is ephemeral."""
    let_in(service, Role.WORKER_APP)
    guest = Guest(chip=bytes(64))
    guest.csp_id = "CN=cc-us-east-2.amazonaws.com"
    await admitted(service, guest)
    detail = await service.detail(guest)
    assert detail["hardware"]["csp_id"] == guest.csp_id
    assert (detail["hardware"]["chip"], detail["hardware"]["ephemeral"]) == (None, True)
    guest.csp_id = "CN=other"
    await service.attest(guest)
    assert (await outcomes(service, guest))["snp-chip"] == "failed"


# Ephemeral machines


@pytest.mark.threat("T208")
@pytest.mark.parametrize("hidden", ["guest", "chip"])
async def test_an_ephemeral_machine_needs_a_rule(service: Service, hidden: str) -> None:
    """Without one it is not introduced; with one it has the roles that it names, as long as it names them."""
    guest = Guest(guest=bytes(32)) if hidden == "guest" else Guest(chip=b"")
    refused = await activate(service, guest, await offered(service, guest))
    assert (refused.status_code, code(refused)) == (403, "ephemeral-forbidden")
    assert (await service.operator("GET", "/machines")).json()["items"] == []
    let_in(service, Role.WORKER_APP)
    await introduced(service, guest)
    detail = await service.detail(guest)
    assert (detail["hardware"]["ephemeral"], detail["ek_fingerprint"]) == (True, guest.fingerprint)
    refused = await service.operator(
        "POST", f"/machines/{guest.machine_id}/approve", {"role": "controlplane", "accept_ek": True}
    )
    assert (refused.status_code, code(refused)) == (403, "ephemeral-forbidden")
    await service.act(guest, "approve", {"role": "worker-app"})
    assert (await service.attest(guest))["status"] == "attested"
    let_in(service, Role.GENERIC)
    refused = await service.try_attest(guest)
    assert (refused.status_code, code(refused)) == (403, "ephemeral-forbidden")


async def test_the_next_boot_of_an_ephemeral_machine_is_another_machine(service: Service) -> None:
    """Another key, another fingerprint: it waits."""
    let_in(service, Role.WORKER_APP)
    first, second = Guest(guest=bytes(32)), Guest(guest=bytes(32))
    await admitted(service, first)
    answer = await introduced(service, second)
    assert answer["status"] == "pending_approval"
    assert second.machine_id != first.machine_id


# Admission in advance, and what the level is


async def test_an_allow_list_entry_admits_chip_and_guest(service: Service) -> None:
    """Several named exactly this hardware: it is approved by that."""
    guest = Guest()
    entry = {"entries": [{"ek_fingerprint": guest.fingerprint, "role": "worker-app"}]}
    assert (await service.operator("POST", "/allow-list", entry)).status_code == 200
    answer = await introduced(service, guest)
    assert answer["status"] == "registered"
    assert (await service.detail(guest))["hardware"]["approved_chip"] == guest.chip.hex()
    assert (await service.attest(guest))["status"] == "attested"


async def test_a_token_admits_but_approves_no_hardware(service: Service) -> None:
    """Whose processor it is nobody said: undecided, until an operator does."""
    guest = Guest()
    token = (
        await service.operator(
            "POST",
            "/registration-tokens",
            {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
        )
    ).json()["token"]
    assert (await introduced(service, guest, registration_token=token))["status"] == "registered"
    told = await service.attest(guest)
    assert (told["status"], told["action"]) == ("registered", "none")
    assert (await service.detail(guest))["hardware"]["approved_chip"] is None
    await service.act(guest, "approve-hardware", {"reason": "compared with the delivery note"})
    assert (await service.attest(guest))["status"] == "attested"


async def test_the_level_follows_the_chip_and_the_launch(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tee` with both, `tofu` without; a control plane is delivered to with `tee` alone."""
    guest = Guest()
    await admitted(service, guest)
    assert (await service.detail(guest))["assurance"] == "tofu"
    monkeypatch.setattr(FAKE, "launches", frozenset({guest.launch}))
    await service.attest(guest)
    detail = await service.detail(guest)
    assert (detail["assurance"], detail["hardware"]["vouches"]) == ("tee", True)
    guest.launch = bytes(48)
    await service.attest(guest)
    detail = await service.detail(guest)
    assert (detail["trust"], detail["assurance"]) == ("failed", "tofu")


# What needs a TPM, and hardware beside one


@pytest.mark.threat("T208")
async def test_what_needs_a_tpm_says_so(service: Service) -> None:
    """No endpoint takes a subject key for a key of a TPM."""
    guest = Guest()
    await admitted(service, guest)
    machine = await service.store.read(lambda tx: tx.machines.require(guest.machine_id))
    with pytest.raises(TPMRequired):
        print(machine.tpm)
    at = service.clock.now()
    settings = service.resources.settings
    with pytest.raises(MachineNotAdmitted, match="no TPM"):
        await service.store.read(lambda tx: certificates.admitted(tx, machine, settings, at))


class Chip(Guest):
    """The processor under a machine with a TPM: the AK is its subject key."""

    def __init__(self, node: SoftwareNode, **named: bytes) -> None:
        super().__init__(**named)
        self.node, self.machine_id = node, node.machine_id

    @property
    def spki(self) -> bytes:
        """Of the AK."""
        found: bytes = self.node.ak.spki_der()
        return found


async def beside(service: Service, node: SoftwareNode, chip: Chip) -> httpx.Response:
    """Attest with quote and report."""
    challenge = await service.challenge(node)
    item = chip.item(b64decode(challenge["nonce"], "nonce"))
    return await service.post("/api/v1/attest", node.attestation(challenge, evidence=[item]))


@pytest.mark.threat("T206")
async def test_hardware_beside_a_tpm_is_seen_before_it_is_believed(service: Service) -> None:
    """Unasked: shown, and nothing follows. Approved: expected. A chip that an operator did not approve fails."""
    node = SoftwareNode()
    await service.admitted(node)
    chip = Chip(node)
    assert (await beside(service, node, chip)).status_code == 200
    detail = await service.detail(node)
    assert (detail["trust"], detail["assurance"]) == ("verified", "tofu")
    assert (detail["hardware"]["chip"], detail["hardware"]["approved_chip"]) == (chip.chip.hex(), None)
    assert "snp-chip" not in await outcomes(service, node)
    assert "sev-snp" in (await service.challenge(node))["evidence"]
    # Whoever does not send it again is not worse off.
    await service.attest(node)
    assert (await service.detail(node))["trust"] == "verified"
    await service.act(node, "approve-hardware", {"reason": "compared"})
    refused = await service.try_attest(node)
    assert (refused.status_code, code(refused)) == (403, "evidence-rejected")
    assert (await beside(service, node, chip)).status_code == 200
    assert (await outcomes(service, node))["snp-chip"] == "passed"
    assert (await beside(service, node, Chip(node, chip=bytes([8] * 64)))).status_code == 200
    assert (await outcomes(service, node))["snp-chip"] == "failed"


async def test_unasked_evidence_that_proves_nothing_changes_nothing(service: Service) -> None:
    """A quote is judged as without it; nothing is shown as seen."""
    node = SoftwareNode()
    await service.admitted(node)
    challenge = await service.challenge(node)
    item = Chip(node).item(bytes(32))
    assert (
        await service.post("/api/v1/attest", node.attestation(challenge, evidence=[item]))
    ).status_code == 200
    assert (await service.detail(node))["hardware"] is None
    refused = await service.operator(
        "POST", f"/machines/{node.machine_id}/approve-hardware", {"reason": "none"}
    )
    assert refused.status_code == 422


async def test_two_guests_of_one_chip_are_two_machines(service: Service) -> None:
    """Beside a TPM too."""
    for _ in range(2):
        node = SoftwareNode()
        await service.admitted(node)
        assert (await beside(service, node, Chip(node))).status_code == 200
        await service.act(node, "approve-hardware", {"reason": "compared"})
        assert (await beside(service, node, Chip(node))).status_code == 200


@pytest.mark.threat("T207")
async def test_who_writes_an_approved_chip_is_found(service: Service) -> None:
    """The log tells of what was approved."""
    guest = Guest()
    await admitted(service, guest)
    found = (await service.operator("GET", "/audit/verify")).json()
    assert (found["valid"], found["state"]["unproven"]) == (True, [])
    with closing(sqlite3.connect(service.directory / "machines.db")) as database, database:
        database.execute("UPDATE machine_identities SET approved_chip = ?", (bytes(64),))
    found = (await service.operator("GET", "/audit/verify")).json()
    assert [each["kind"] for each in found["state"]["unproven"]] == ["identity"]
