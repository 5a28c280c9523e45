"""TPM.md §9 at the door of the service: activation N61-N70, delivery N97-N100, and one flipped bit anywhere.

Each is refused with its code and changes nothing but the spent challenge.
"""

from __future__ import annotations

import base64
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from attestation.device import AKType
from attestation.errors import AttestationError, TPMResponseError
from attestation.evidence import ak_activation
from attestation.tpm import parse_public
from attestation_testing import SoftwareAK, SoftwareNode
from tests.fixtures.in_process import InProcessService
from tests.fixtures.machine import SEALED, Machine, b64, code, refused
from tests.fixtures.tpm import MakeTPM
from tests.scenarios.conftest import MakeDevice
from tests.scenarios.scene import Scene


@pytest.fixture
def machine(local_scene: Scene) -> Machine:
    """A machine that is not introduced yet."""
    return local_scene.machine(SoftwareNode(1))


@pytest.fixture
def attested(local_scene: Scene) -> tuple[Machine, str]:
    """An attested machine, and its config token."""
    machine = local_scene.machine(SoftwareNode(2))
    return machine, machine.admitted(local_scene.operator)["config_token"]


def secret_of(machine: Machine, offer: dict[str, Any]) -> bytes:
    """Open the credential of an offer."""
    activation = offer["activation"]
    return machine.device.activate(
        base64.b64decode(activation["credential_blob"]), base64.b64decode(activation["encrypted_secret"])
    )


def flipped(data: bytes, where: int, bit: int = 0) -> bytes:
    """Return *data* with one bit changed."""
    changed = bytearray(data)
    changed[where] ^= 1 << bit
    return bytes(changed)


# Activation


@pytest.mark.parametrize("what", ["N61 secret", "N62 machine id", "N62 AK", "N62 EK", "challenge id"])
def test_a_proof_over_anything_else_is_refused(local_scene: Scene, machine: Machine, what: str) -> None:
    """Every part of the context is bound (N61, N62); the failed proof spends the challenge."""
    offer = machine.introduce().json()
    context: dict[str, Any] = {
        "machine_id": offer["machine_id"],
        "challenge_id": offer["activation"]["challenge_id"],
        "ek_public": machine.ek_public,
        "ak_name": parse_public(machine.device.ak_public()).name,
    }
    secret = secret_of(machine, offer)
    other = SoftwareNode(99)
    match what:
        case "N61 secret":
            secret = flipped(secret, 31)
        case "N62 machine id":
            context["machine_id"] = "00000000-0000-4000-8000-000000000000"
        case "N62 AK":
            context["ak_name"] = other.ak.public.name
        case "N62 EK":
            context["ek_public"] = other.ek.public.tpm2b()
        case _:
            context["challenge_id"] = "0" * 32
    body = {
        "challenge_id": offer["activation"]["challenge_id"],
        "proof": b64(ak_activation.proof(secret, **context)),
    }
    with local_scene.nothing_changes():
        assert refused(machine.activate(body)) == (403, "activation-failed")
        assert refused(machine.activate(machine.activation(offer))) == (409, "challenge-used")


def test_a_proof_with_any_bit_flipped_is_refused(local_scene: Scene, machine: Machine) -> None:
    """All 256 of them."""
    with local_scene.nothing_changes():
        for bit in range(256):
            offer = machine.introduce().json()
            body = machine.activation(offer)
            proof = flipped(base64.b64decode(body["proof"]), bit // 8, bit % 8)
            assert refused(machine.activate(body | {"proof": b64(proof)})) == (403, "activation-failed")


@pytest.mark.parametrize("length", [0, 31, 33, 46])
def test_a_proof_of_another_length_is_malformed(local_scene: Scene, machine: Machine, length: int) -> None:
    """And it spends the challenge as any other wrong proof."""
    offer = machine.introduce().json()
    body = {"challenge_id": offer["activation"]["challenge_id"], "proof": b64(bytes(length))}
    with local_scene.nothing_changes():
        assert refused(machine.activate(body)) == (400, "malformed-evidence")
        assert refused(machine.activate(body)) == (409, "challenge-used")


def test_n63_an_activation_challenge_is_good_once(local_scene: Scene, machine: Machine) -> None:
    """The same right proof again is refused, and the machine stays as it is."""
    offer = machine.introduce().json()
    body = machine.activation(offer)
    assert machine.activate(body).is_success
    with local_scene.nothing_changes():
        assert refused(machine.activate(body)) == (409, "challenge-used")


def test_n64_an_expired_challenge_is_refused(
    local_scene: Scene, local: InProcessService, machine: Machine, attested: tuple[Machine, str]
) -> None:
    """A minute later nothing is worth anything: activation and attestation."""
    offer, challenge = machine.introduce().json(), attested[0].challenge()
    body, evidence = machine.activation(offer), attested[0].evidence(challenge)
    local.clock.pass_(seconds=60)
    with local_scene.nothing_changes():
        assert refused(machine.activate(body)) == (410, "challenge-expired")
        assert refused(attested[0].send(evidence)) == (410, "challenge-expired")


def test_n65_a_challenge_of_another_purpose_is_unknown(
    local_scene: Scene, attested: tuple[Machine, str]
) -> None:
    """A nonce does not activate, and an activation does not attest."""
    machine, _ = attested
    challenge, offer = machine.challenge(), machine.introduce().json()
    activation_id = offer["activation"]["challenge_id"]
    with local_scene.nothing_changes():
        body = machine.activation(offer) | {"challenge_id": challenge["nonce_id"]}
        assert refused(machine.activate(body)) == (404, "challenge-unknown")
        evidence = machine.evidence(challenge) | {"nonce_id": activation_id}
        assert refused(machine.send(evidence)) == (404, "challenge-unknown")
        acknowledgement = machine.acknowledgement("a.b.c", challenge=challenge) | {"nonce_id": activation_id}
        assert refused(machine.acknowledge(acknowledgement)) == (404, "challenge-unknown")
    # Being named for another purpose did not spend them.
    assert machine.activate(machine.activation(offer)).is_success
    assert machine.send(machine.evidence(challenge)).is_success


@pytest.mark.parametrize("purpose", ["activate", "attest"])
def test_n66_of_a_hundred_redemptions_exactly_one_succeeds(
    local_scene: Scene, machine: Machine, purpose: str
) -> None:
    """At the same moment, with the same good proof or quote."""
    offer = machine.introduce().json()
    body = machine.activation(offer)
    if purpose == "attest":
        assert machine.activate(body).is_success
        body = machine.evidence(machine.challenge())
    send = machine.activate if purpose == "activate" else machine.send
    with ThreadPoolExecutor(32) as pool:
        codes = Counter(pool.map(lambda _: code(send(body)), range(100)))
    assert codes == {"ok": 1, "challenge-used": 99}
    entries = [e["action"] for e in local_scene.operator.audit(machine_id=machine.machine_id)]
    assert entries.count("register") == 1
    assert entries.count("attest") == (purpose == "attest")
    assert local_scene.operator.audit_is_valid()


def test_n67_a_failed_proof_leaves_an_active_machine_active(
    local_scene: Scene, attested: tuple[Machine, str]
) -> None:
    """A stranger who fails in its name takes nothing from it: status, trust and tokens stay."""
    machine, token = attested
    offer = machine.introduce().json()
    body = {"challenge_id": offer["activation"]["challenge_id"], "proof": b64(bytes(32))}
    with local_scene.nothing_changes():
        assert refused(machine.activate(body)) == (403, "activation-failed")
    assert machine.fetch(token).is_success
    assert machine.attest()["status"] == "attested"


def test_n68_a_second_ak_for_an_ek_is_a_conflict(local_scene: Scene, machine: Machine) -> None:
    """Also where both were introduced before one of them was activated."""
    node = machine.device
    assert isinstance(node, SoftwareNode)
    twin_node = SoftwareNode(1)
    twin_node.ak = SoftwareAK(seed=5)
    twin = local_scene.machine(twin_node)
    offers = machine.introduce().json(), twin.introduce().json()
    assert machine.activate(machine.activation(offers[0])).is_success
    with local_scene.nothing_changes():
        late = twin.activate(twin.activation(offers[1]), offers[1]["machine_id"])
        assert refused(late) == (409, "ak-conflict")
        assert refused(twin.introduce()) == (409, "ak-conflict")


def test_n69_the_machine_id_of_another_ek_is_refused(
    local_scene: Scene, machine: Machine, attested: tuple[Machine, str]
) -> None:
    """Activation and attestation under an id that belongs to another EK."""
    other, _ = attested
    machine.enrol()
    with local_scene.nothing_changes():
        body = machine.activation(machine.introduce().json())
        assert refused(machine.activate(body, other.machine_id)) == (404, "challenge-unknown")
        evidence = machine.evidence(other.challenge(), machine_id=other.machine_id)
        assert refused(machine.send(evidence)) == (422, "ek-fingerprint-mismatch")


# Quotes: one bit in each byte, over HTTP; all bits are flipped in the tests of the evidence itself


def test_a_flipped_bit_in_any_byte_of_the_evidence_is_refused(
    local_scene: Scene, attested: tuple[Machine, str]
) -> None:
    """TPMS_ATTEST, TPMT_SIGNATURE and every PCR value; each spends its challenge and changes nothing."""
    machine, _ = attested
    sample = machine.evidence(machine.challenge())
    sizes = {name: len(base64.b64decode(sample[name])) for name in ("pcr_quote", "pcr_signature")}
    values = [
        (bank, pcr, i) for bank, pcrs in sample["pcr_values"].items() for pcr in pcrs for i in range(32)
    ]
    codes: Counter[tuple[int, str]] = Counter()
    with local_scene.nothing_changes():
        for name, size in sizes.items():
            for where in range(size):
                evidence = machine.evidence(machine.challenge())
                data = base64.b64decode(evidence[name])
                if where < len(data):
                    evidence[name] = b64(flipped(data, where, where % 8))
                    codes[refused(machine.send(evidence))] += 1
        for bank, pcr, where in values:
            evidence = machine.evidence(machine.challenge())
            value = bytes.fromhex(evidence["pcr_values"][bank][pcr])
            evidence["pcr_values"][bank][pcr] = flipped(value, where, where % 8).hex()
            codes[refused(machine.send(evidence))] += 1
    assert set(codes) == {(400, "malformed-evidence"), (403, "evidence-rejected")}
    assert machine.attest()["status"] == "attested"


PCRS: list[tuple[str, Any]] = [
    ("N26 missing", lambda v: {"sha256": {k: x for k, x in v["sha256"].items() if k != "7"}}),
    ("N27 extra", lambda v: {"sha256": v["sha256"] | {"10": "00" * 32}}),
    ("N28 short", lambda v: {"sha256": v["sha256"] | {"7": "00" * 31}}),
    ("N28 long", lambda v: {"sha256": v["sha256"] | {"7": "00" * 33}}),
    ("N32 other bank", lambda v: {"sha384": {k: x + "00" * 16 for k, x in v["sha256"].items()}}),
    ("N33 second bank", lambda v: v | {"sha1": {k: x[:40] for k, x in v["sha256"].items()}}),
    ("N34 empty", lambda _: {}),
    ("N34 empty bank", lambda _: {"sha256": {}}),
    ("leading zero", lambda v: {"sha256": {f"0{k}"[-2:]: x for k, x in v["sha256"].items()}}),
    ("upper case", lambda v: {"sha256": dict.fromkeys(v["sha256"], "AB" * 32)}),
    ("no hex", lambda v: {"sha256": v["sha256"] | {"7": "zz" * 32}}),
    ("unknown bank", lambda v: {"md5": v["sha256"]}),
    ("index 99", lambda v: {"sha256": v["sha256"] | {"99": "00" * 32}}),
]


@pytest.mark.parametrize(("change"), [c for _, c in PCRS], ids=[n for n, _ in PCRS])
def test_pcr_values_are_exactly_the_requested_ones(
    local_scene: Scene, attested: tuple[Machine, str], change: Any
) -> None:
    """Missing, extra, short, long, of another bank: refused, and the challenge is spent."""
    machine, _ = attested
    evidence = machine.evidence(machine.challenge())
    evidence["pcr_values"] = change(evidence["pcr_values"])
    with local_scene.nothing_changes():
        assert refused(machine.send(evidence)) in ((400, "malformed-evidence"), (403, "evidence-rejected"))
        assert refused(machine.send(evidence)) == (409, "challenge-used")


# Delivery


@pytest.mark.swtpm
@pytest.mark.parametrize("template", ["L-1", "L-2", "H-3"])
def test_n97_an_envelope_opens_with_one_tpm_and_one_ak(
    scene: Scene, make_tpm: MakeTPM, template: str
) -> None:
    """Not in another TPM, and not for another AK of the same TPM; RSA and ECC EKs, SHA-256 and SHA-384."""
    tpm, other = make_tpm("owner"), make_tpm("other")
    with tpm.node(ek_templates=(template,)) as device:
        machine = scene.machine(device)
        envelope = machine.fetch(machine.admitted(scene.operator)["config_token"]).json()
        assert scene.canary.encode() in machine.unseal(envelope)
    for thief, ak in ((tpm, AKType.RSA_2048), (other, AKType.ECC_P256)):
        with thief.node(ek_templates=(template,), ak=ak) as device:
            stranger = scene.stranger(device)
            stranger.machine_id = machine.machine_id
            with pytest.raises(TPMResponseError):
                stranger.unseal(envelope)
    with tpm.node(ek_templates=(template,)) as device:
        again = scene.machine(device)
        again.machine_id = machine.machine_id
        assert scene.canary.encode() in again.unseal(envelope), "after a restart it still opens"


def test_n98_an_envelope_with_any_byte_changed_does_not_open(attested: tuple[Machine, str]) -> None:
    """Every byte of every member: key transport, iv, ciphertext, and each text of the additional data."""
    machine, token = attested
    envelope = machine.fetch(token).json()
    assert machine.unseal(envelope)
    tried = 0
    for name in ("credential_blob", "encrypted_secret", "iv", "ciphertext"):
        data = base64.b64decode(envelope[name])
        for where in range(len(data)):
            with pytest.raises((AttestationError, ValueError)):
                machine.unseal(envelope | {name: b64(flipped(data, where, where % 8))})
            tried += 1
    for name in ("machine_id", "token_id", "config_sha256"):
        text = envelope[name]
        for where in range(len(text)):
            other = "0" if text[where] != "0" else "1"
            with pytest.raises(AttestationError):
                machine.unseal(envelope | {name: text[:where] + other + text[where + 1 :]})
            tried += 1
    assert tried > 300


def test_n99_a_stale_result_releases_nothing(
    local_scene: Scene, local: InProcessService, attested: tuple[Machine, str]
) -> None:
    """After its lease a machine gets the pending answer; a fresh quote brings what it never acknowledged, anew."""
    machine, token = attested
    envelope = machine.fetch(token)
    assert envelope.headers["content-type"] == SEALED
    local.clock.pass_(seconds=181)
    assert local_scene.operator.machine(machine.machine_id)["trust"] == "stale"
    stranger = local_scene.stranger(SoftwareNode(3))
    with local_scene.nothing_changes():
        answer = stranger.fetch(token)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
    machine.next_challenge = None
    offered = machine.attest()
    assert offered["action"] == "apply-config"
    assert refused(machine.fetch(token)) == (410, "token-consumed")
    assert machine.fetch(offered["config_token"]).headers["content-type"] == SEALED


def test_n99_a_token_that_nobody_used_is_replaced(
    local_scene: Scene, local: InProcessService, attested: tuple[Machine, str]
) -> None:
    """A configuration that was not fetched is offered with each good quote: the older token ends."""
    machine, token = attested
    local.clock.pass_(seconds=181)
    machine.next_challenge = None
    offered = machine.attest()
    assert offered["action"] == "apply-config"
    assert refused(machine.fetch(token)) == (410, "token-consumed")
    assert machine.fetch(offered["config_token"]).headers["content-type"] == SEALED


@pytest.mark.threat("T16")
def test_n99_a_failed_attestation_withdraws_the_token(
    local_scene: Scene, attested: tuple[Machine, str]
) -> None:
    """Authentic but not as expected: the token is void, also inside the window in which it was good twice."""
    machine, token = attested
    operator = local_scene.operator
    assert machine.fetch(token).is_success
    policy = {
        "format": "itl-tpm-policy/1",
        "name": "strict",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": ["11" * 32]}},
        "event_log": "accepted",
        "clock": {"safe": "flag"},
        "max_age_seconds": 180,
    }
    operator.call("POST", "/policies", json=policy)
    operator.call("PUT", f"/policies/assignments/machine/{machine.machine_id}", json={"policy": "strict@1"})
    machine.next_challenge = None
    answer = machine.attest()
    assert answer["action"] == "none"
    assert operator.machine(machine.machine_id)["trust"] == "failed"
    stranger = local_scene.stranger(SoftwareNode(3))
    assert refused(stranger.fetch(token)) == (410, "token-consumed")


def test_n100_an_unused_token_expires(
    local_scene: Scene, local: InProcessService, attested: tuple[Machine, str]
) -> None:
    """After its time it is as good as used, however fresh the last quote is."""
    machine, token = attested
    for _ in range(6):
        local.clock.pass_(seconds=155)
        machine.next_challenge = None
        machine.attest()
    stranger = local_scene.stranger(SoftwareNode(3))
    with local_scene.nothing_changes():
        assert refused(stranger.fetch(token)) == (410, "token-consumed")


def test_concurrent_fetches_return_one_envelope(local_scene: Scene, attested: tuple[Machine, str]) -> None:
    """Fifty at once: one delivery, the same bytes for all, one audit entry (R23)."""
    machine, token = attested
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: machine.fetch(token), range(50)))
    assert {a.status_code for a in answers} == {200}
    assert len({a.content for a in answers}) == 1
    actions = [e["action"] for e in local_scene.operator.audit(machine_id=machine.machine_id)]
    assert actions.count("config_delivered") == 1


@pytest.mark.swtpm
def test_an_envelope_with_a_bit_flipped_does_not_open_in_the_tpm(
    scene: Scene, make_device: MakeDevice
) -> None:
    """The TPM itself refuses a changed credential, and goes on working (R9)."""
    machine = scene.machine(make_device("owner"))
    envelope = machine.fetch(machine.admitted(scene.operator)["config_token"]).json()
    for name in ("credential_blob", "encrypted_secret"):
        data = base64.b64decode(envelope[name])
        for where in range(2, len(data), 7):
            with pytest.raises(TPMResponseError):
                machine.unseal(envelope | {name: b64(flipped(data, where))})
    assert scene.canary.encode() in machine.unseal(envelope)
