"""Certificate requests of Kubernetes nodes over HTTP: decided once, by what is known of a machine; signed by our CA."""

from __future__ import annotations

import asyncio
import base64
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from attestation.errors import SignerUnavailable, StoreUnavailable
from attestation.machines import Status
from attestation.store import RateLimit, Tx
from attestation.wire import b64encode
from attestation_service.authority import authority as authority_module
from attestation_service.authority import issuance
from attestation_service.node_csr import handlers, judging
from attestation_service.process import maintenance
from tests.unit.service.conftest import OPERATOR, HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import EXTERNAL, ecc_key
from tests.unit.service.node_requests import (
    ACCOUNTS,
    APPROVED,
    KUBELET,
    SERVING,
    admitted,
    ask,
    bearer,
    body,
    challenged,
    container,
    decision,
    pkcs10,
    serving,
)

pytestmark = pytest.mark.anyio

HOUR = 3600


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with a CA and one cluster."""
    return await serving(start)


async def approvable(service: Service, node: SoftwareNode, **changes: Any) -> dict[str, Any]:
    """Return a request that is to be approved."""
    return body(container(node, await challenged(service, node), **changes.pop("made", {})), **changes)


async def signed(service: Service, content: dict[str, Any]) -> dict[str, Any]:
    answer = await ask(service, "sign", content)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def denials(service: Service) -> list[dict[str, Any]]:
    return [e for e in await service.audit() if e["action"].startswith("node_csr_")]


# ---------------------------------------------------------------- challenges


async def test_a_challenge_says_what_the_request_must_carry(start: Starter) -> None:
    """Of the machine's policy and of its cluster's rule; without a CA too."""
    service = await serving(start, enrollment_ca_unencrypted=False)
    node = await admitted(service)
    found = await challenged(service, node)
    assert (found["quote"], found["event_log"], found["cluster_id"]) == ("required", "accepted", "default")
    assert set(found["pcr_selection"]) == {"sha256"}
    # Those of before say nothing of it.
    assert (
        await service.get(f"/api/v1/machines/{node.machine_id}/challenge?purpose=certify")
    ).status_code == 503


async def test_without_a_rule_there_is_no_challenge(start: Starter) -> None:
    """A machine of another cluster learns that nobody judges its requests here."""
    service = await serving(start, rule={"cluster_id": "edge"})
    node = await admitted(service)
    answer = await service.get(f"/api/v1/machines/{node.machine_id}/challenge?purpose=node-csr")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:itl:problem:cluster-not-configured"


# ---------------------------------------------------------------- decisions


async def test_a_good_request_is_approved(service: Service) -> None:
    """With what is known of its key and whose it is, and one audit entry."""
    node = await admitted(service)
    found = await decision(service, await approvable(service, node))
    assert (found["decision"], found["reason"], found["tier"], found["tier_name"]) == (
        "approve", APPROVED, 4, "resident+quote",
    )  # fmt: skip
    assert (found["machine_id"], found["node_name"]) == (node.machine_id, "w-1")
    assert found["result_id"] in found["message"]
    (entry,) = await denials(service)
    assert (entry["action"], entry["machine_id"], entry["operator_cn"]) == (
        "node_csr_approved", node.machine_id, "default/itl:approver",
    )  # fmt: skip
    assert found["result_id"] in entry["detail"]


async def test_a_request_is_decided_once(service: Service) -> None:
    """The same answer again, also by another replica's Node and at another time; other content is refused."""
    node = await admitted(service)
    content = await approvable(service, node)
    first = await decision(service, content)
    service.clock.advance(HOUR)
    assert await decision(service, content) == first
    assert await decision(service, content | {"node": {"name": "w-1", "uid": "u"}}) == first
    answer = await ask(service, "appraise", {**content, "csr": content["csr"] | {"username": "eve"}})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:node-request-differs")
    assert len(await denials(service)) == 1


async def test_of_two_approvers_one_decides(service: Service) -> None:
    """Both get its answer, and the audit has one entry."""
    node = await admitted(service)
    content = await approvable(service, node)
    found = await asyncio.gather(*(decision(service, content) for _ in range(4)))
    assert {each["result_id"] for each in found} == {found[0]["result_id"]}
    assert {each["reason"] for each in found} == {APPROVED}
    assert len(await denials(service)) == 1


async def test_a_container_answers_one_challenge_once(service: Service) -> None:
    """Under another UID it is stale, also where both are judged at the same time."""
    node = await admitted(service)
    content = await approvable(service, node)
    others = [{**content, "csr": content["csr"] | {"uid": f"u-{n}"}} for n in range(3)]
    found = await asyncio.gather(*(decision(service, each) for each in others))
    assert sorted(each["reason"] for each in found) == ["EvidenceStale", "EvidenceStale", APPROVED]
    assert (await decision(service, content))["reason"] == "EvidenceStale"


@pytest.mark.parametrize(
    ("made", "changes", "reason"),
    [
        ({"hostname": "w-2"}, {}, "SubjectInvalid"),
        ({"quote": False}, {}, "PolicyFailed"),
        ({"key": ecc_key(EXTERNAL, external=True)}, {}, "KeyNotResident"),
        ({}, {"username": "eve", "groups": ["system:authenticated"]}, "IdentityMismatch"),
        ({}, {"usages": ["server auth"]}, "SubjectInvalid"),
        ({}, {"node": {"name": "w-1", "uid": "u", "machine_id": "f" * 8}}, "SubjectInvalid"),
        ({"machine_id": "00000000-0000-4000-8000-000000000000"}, {}, "MachineNotAdmitted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_not_good_is_denied(
    service: Service, made: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    """With its reason, a message that names the result, and the challenge of its machine spent."""
    node = await admitted(service)
    challenge = await challenged(service, node)
    found = await decision(service, body(container(node, challenge, **made), **changes))
    assert (found["decision"], found["reason"], found["tier"]) == ("deny", reason, None)
    assert 1 <= len(found["message"].encode()) <= 1024
    assert found["result_id"] in found["message"]
    if "machine_id" not in made:
        again = await decision(service, body(container(node, challenge), uid="again"))
        assert again["reason"] == "EvidenceStale"


@pytest.mark.parametrize("act", ["lock", "revoke", "ak-reset", "role"])
async def test_an_approval_ends_with_what_was_approved(service: Service, act: str) -> None:
    """An approver that died before it wrote the approval down asks again, and must not let in who was locked since."""
    node = await admitted(service)
    content = await approvable(service, node, signer_name=KUBELET)
    assert (await decision(service, content))["decision"] == "approve"
    told = {"role": "worker-app", "hostname": "w-9", "reason": "x"} if act == "role" else {"reason": "x"}
    await service.act(node, act, told)
    found = await decision(service, content)
    assert (found["decision"], found["reason"]) == ("deny", "MachineNotAdmitted")
    assert (found["tier"], found["node_name"]) == (None, None)
    assert found["result_id"] in found["message"]
    assert len(await denials(service)) == 1


@pytest.mark.parametrize("act", ["lock", "revoke"])
async def test_a_machine_that_was_taken_back_is_denied(service: Service, act: str) -> None:
    """Whatever it proves."""
    node = await admitted(service)
    content = await approvable(service, node)
    await service.act(node, act, {"reason": "x"})
    assert (await decision(service, content))["reason"] == "MachineNotAdmitted"


async def test_another_machines_challenge_is_none(service: Service) -> None:
    """And stays good for the machine that it was given to."""
    node, other = await admitted(service), await admitted(service, "w-2")
    challenge = await challenged(service, other)
    found = await decision(service, body(container(node, challenge)))
    assert found["reason"] == "EvidenceStale"
    assert (await decision(service, body(container(other, challenge, hostname="w-2"), uid="2")))[
        "reason"
    ] == APPROVED


async def test_a_challenge_ends(start: Starter) -> None:
    """After a minute it is as if it were not there."""
    service = await serving(start)
    node = await admitted(service)
    content = await approvable(service, node)
    service.clock.advance(60)
    assert (await decision(service, content))["reason"] == "EvidenceStale"


async def test_a_stranger_names_a_machine_in_vain(service: Service) -> None:
    """What another key signed is no machine's: its history does not show it."""
    node, stranger = await admitted(service), SoftwareNode()
    stranger.machine_id = node.machine_id
    found = await decision(service, body(container(stranger, await challenged(service, node))))
    assert (found["reason"], found["machine_id"]) == ("SignatureInvalid", None)
    (entry,) = await denials(service)
    assert entry["machine_id"] is None


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"-----BEGIN TPM QUOTE-----\n", b"x" * (1 << 20)])
async def test_what_carries_no_evidence_is_not_recognised_or_malformed(service: Service, data: bytes) -> None:
    """The first is for the cluster's rule, the second is denied."""
    found = await decision(service, body(data))
    expected = ("deny", "EvidenceMalformed") if b"TPM" in data else ("not-recognised", "NotRecognised")
    assert (found["decision"], found["reason"]) == expected


async def test_another_signer_is_not_judged_here(start: Starter) -> None:
    """Nor what the cluster's rule leaves out; nothing is kept of it."""
    service = await serving(start, rule={"signers": ["attestation.itl.io/node-client"]})
    node = await admitted(service)
    for signer in (KUBELET, "example.org/other"):
        found = await decision(service, await approvable(service, node, signer_name=signer))
        assert found["decision"] == "not-recognised"
    assert await denials(service) == []
    assert (await decision(service, await approvable(service, node)))["decision"] == "approve"


async def test_what_is_no_base64_is_denied(service: Service) -> None:
    """An API server sends no such thing; it costs nothing."""
    content = body(b"")
    content["csr"]["request"] = "****"
    assert (await decision(service, content))["reason"] == "EvidenceMalformed"


async def test_the_longest_request_is_decided(service: Service) -> None:
    """More than an API server stores; what is longer than that is refused before it is read."""
    start = b"-----BEGIN TPM QUOTE-----\n"
    found = await decision(service, body(start + b"A" * ((2 << 20) - len(start))))
    assert found["reason"] == "EvidenceMalformed"
    assert (await ask(service, "appraise", body(b"A" * (4 << 20)))).status_code == 413


async def test_what_cannot_be_decided_is_no_answer(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database away in the last unit: 503, nothing spent, nothing written; the same request again is approved."""
    node = await admitted(service)
    content = await approvable(service, node)

    def fail(*_: Any) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(handlers, "_write", fail)
        assert (await ask(service, "appraise", content)).status_code == 503
    assert await denials(service) == []
    assert (await decision(service, content))["reason"] == APPROVED


async def test_an_act_in_between_is_judged_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock after the judgement and before its unit is what counts."""
    node = await admitted(service)
    content = await approvable(service, node)
    judge = judging.judge

    async def slowly(*args: Any) -> Any:
        found = await judge(*args)
        if (await service.detail(node))["status"] == "attested":
            await service.act(node, "lock", {"reason": "x"})
        return found

    monkeypatch.setattr(judging, "judge", slowly)
    assert (await decision(service, content))["reason"] == "MachineNotAdmitted"


@pytest.mark.threat("T186")
async def test_a_policy_in_between_is_judged_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's record is what it was; what it is judged by is not."""
    node = await admitted(service)
    content = await approvable(service, node)
    judge = judging.judge
    judged: list[str] = []

    async def slowly(*args: Any) -> Any:
        found = await judge(*args)
        if not judged:
            document = {
                "format": "itl-tpm-policy/1",
                "name": "strict",
                "version": 1,
                "bank": "sha256",
                "pcrs": {"7": {"any_of": ["00" * 32]}},
                "max_age_seconds": 120,
            }
            assert (await service.operator("POST", "/policies", document)).status_code == 201
            path = f"/policies/assignments/machine/{node.machine_id}"
            assert (await service.operator("PUT", path, {"policy": "strict@1"})).status_code == 200
        assert found is not None
        judged.append(str(found.result.reason))
        return found

    monkeypatch.setattr(judging, "judge", slowly)
    assert (await decision(service, content))["reason"] == "EvidenceStale"
    assert judged == [APPROVED, "EvidenceStale"]


async def test_a_machine_that_changes_all_the_time_is_undecided(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither yes nor no."""
    node = await admitted(service)
    content = await approvable(service, node)
    judge, roles = judging.judge, ["worker-infra", "worker-app"] * 3

    async def slowly(*args: Any) -> Any:
        found = await judge(*args)
        await service.act(node, "role", {"role": roles.pop(), "hostname": "w-1", "reason": "x"})
        return found

    monkeypatch.setattr(judging, "judge", slowly)
    assert (await ask(service, "appraise", content)).status_code == 503


async def test_refusals_of_a_cluster_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound they are denied all the same, and leave no rows; approvals are always written."""
    monkeypatch.setattr(handlers, "REFUSALS", RateLimit(requests=2, per_seconds=HOUR))
    for number in range(5):
        found = await decision(service, body(b"-----BEGIN TPM QUOTE-----\n", uid=f"u-{number}"))
        assert found["decision"] == "deny"
    assert len(await denials(service)) == 2
    node = await admitted(service)
    assert (await decision(service, await approvable(service, node)))["decision"] == "approve"
    assert len(await denials(service)) == 3


async def test_old_decisions_go(service: Service) -> None:
    """Refusals after a day, approvals with the certificates' history."""
    node = await admitted(service)
    await decision(service, await approvable(service, node))
    await decision(service, body(b"-----BEGIN TPM QUOTE-----\n", uid="2"))
    for seconds, left in ((24 * HOUR, 2), (1, 1), (89 * 24 * HOUR, 0)):
        service.clock.advance(seconds)
        await maintenance.once(service.resources)
        items = (await service.operator("GET", "/node-csr/decisions")).json()["items"]
        assert len(items) == left


async def test_operators_see_what_was_decided(service: Service) -> None:
    """Newest first, of one machine or all."""
    node = await admitted(service)
    approved = await decision(service, await approvable(service, node))
    await decision(service, body(b"-----BEGIN TPM QUOTE-----\n", uid="2"))
    found = (await service.operator("GET", "/node-csr/decisions")).json()["items"]
    assert [each["decision"] for each in found] == ["deny", "approve"]
    (mine,) = (await service.operator("GET", f"/node-csr/decisions?machine_id={node.machine_id}")).json()[
        "items"
    ]
    assert mine["result_id"] == approved["result_id"]
    assert (mine["csr_name"], mine["cluster_id"], mine["serial"]) == ("node-csr-1", "default", None)


# ---------------------------------------------------------------- serving certificates


async def test_a_serving_certificate_follows_an_attested_one(service: Service) -> None:
    """Only for names of the machine, and only by the node itself."""
    node = SoftwareNode()
    await service.admitted(node, hostname="w-1", assigned_ip="10.0.0.7/24")

    def request(uid: str, *names: str) -> dict[str, Any]:
        pem = x509.load_der_x509_csr(pkcs10(ecc_key(), "w-1", names=[x509.DNSName(each) for each in names]))
        return body(
            pem.public_bytes(Encoding.PEM),
            uid=uid,
            signer_name=SERVING,
            username="system:node:w-1",
            groups=["system:nodes", "system:authenticated"],
            usages=["digital signature", "server auth"],
        )

    assert (await decision(service, request("1", "w-1")))["reason"] == "MachineNotAdmitted"
    await decision(service, await approvable(service, node, uid="client"))
    found = await decision(service, request("2", "w-1"))
    assert (found["decision"], found["tier"], found["machine_id"]) == ("approve", None, node.machine_id)
    assert (await decision(service, request("3", "w-1", "api")))["reason"] == "SubjectInvalid"
    # One for serving vouches for no other: it carries no evidence.
    service.clock.advance(24 * HOUR)
    await service.attest(node)
    assert (await decision(service, request("4", "w-1")))["decision"] == "approve"
    service.clock.advance(1)
    assert (await decision(service, request("5", "w-1")))["reason"] == "MachineNotAdmitted"


# ---------------------------------------------------------------- signing


async def test_our_ca_signs_what_was_approved(service: Service) -> None:
    """O, CN, usage, no names, a day; the key of the request; the same certificate again."""
    node, key = await admitted(service), ecc_key()
    content = await approvable(service, node, made={"key": key})
    await decision(service, content)
    found = await signed(service, content)
    certificate = x509.load_pem_x509_certificate(found["certificate_pem"].encode())
    assert certificate.subject.rfc4514_string() == "CN=system:node:w-1,O=system:nodes"
    extensions = certificate.extensions
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_encipherment) == (True, False)
    with pytest.raises(x509.ExtensionNotFound):
        extensions.get_extension_for_class(x509.SubjectAlternativeName)
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert spki == key.public.spki_der()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(found["ca_pem"].encode()))
    assert certificate.not_valid_after_utc == service.clock.at + timedelta(hours=24)
    assert await signed(service, content) == found
    (row,) = (await service.operator("GET", "/node-csr/decisions")).json()["items"]
    assert row["serial"] == found["serial"] == f"{certificate.serial_number:040x}"
    (entry,) = [e for e in await service.audit(action="cert_issued") if e["machine_id"] is not None]
    assert (entry["machine_id"], entry["operator_cn"]) == (node.machine_id, "default/itl:signer")


async def test_the_tier_of_the_key_stands_in_the_certificate(start: Starter) -> None:
    """With the arc of the operator."""
    service = await serving(start, assurance_oid_arc="1.3.6.1.4.1.99999.7")
    node = await admitted(service)
    content = await approvable(service, node)
    found = await signed(service, content)
    certificate = x509.load_pem_x509_certificate(found["certificate_pem"].encode())
    policies = certificate.extensions.get_extension_for_class(x509.CertificatePolicies).value
    assert "1.3.6.1.4.1.99999.7.2.4" in {each.policy_identifier.dotted_string for each in policies}


@pytest.mark.parametrize(
    ("asked", "allowed", "seconds"), [(HOUR, 86_400, HOUR), (None, 7_200, 7_200), (99_999, 86_400, 86_400)]
)
async def test_the_shortest_life_counts(
    start: Starter, asked: int | None, allowed: int, seconds: int
) -> None:
    """Of what was asked for, what the cluster's rule allows, and a day."""
    service = await serving(start, rule={"max_lifetime_seconds": allowed})
    node = await admitted(service)
    found = await signed(service, await approvable(service, node, expiration_seconds=asked))
    certificate = x509.load_pem_x509_certificate(found["certificate_pem"].encode())
    assert certificate.not_valid_after_utc - service.clock.at == timedelta(seconds=seconds)


async def test_what_this_service_did_not_judge_good_is_not_signed(service: Service) -> None:
    """Whoever approved it: a request that nobody asked about before is judged now, and once."""
    node = await admitted(service)
    bad = await approvable(service, node, made={"hostname": "w-2"})
    for _ in range(2):
        answer = await ask(service, "sign", bad)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:itl:problem:node-request-denied")
    assert len(await denials(service)) == 1
    good = await approvable(service, node, uid="2")
    assert (await signed(service, good))["result_id"] == (await decision(service, good))["result_id"]
    answer = await ask(service, "sign", {**good, "csr": good["csr"] | {"usages": ["client auth"]}})
    assert answer.status_code == 409
    other = await approvable(service, node, uid="3", signer_name=KUBELET)
    assert (await ask(service, "sign", other)).status_code == 403
    plain = body(base64.b64decode(b64encode(b"no evidence")), uid="4")
    assert (await ask(service, "sign", plain)).status_code == 403


@pytest.mark.parametrize("act", ["lock", "revoke", "ak-reset", "role"])
async def test_what_was_approved_of_another_machine_is_not_signed(service: Service, act: str) -> None:
    """Locked, revoked, with another key, called otherwise: since it was approved."""
    node = await admitted(service)
    content = await approvable(service, node)
    await decision(service, content)
    told = {"role": "worker-app", "hostname": "w-9", "reason": "x"} if act == "role" else {"reason": "x"}
    await service.act(node, act, told)
    answer = await ask(service, "sign", content)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:itl:problem:node-request-denied")


@pytest.mark.parametrize("act", ["lock", "revoke"])
async def test_what_was_signed_is_taken_back(service: Service, act: str) -> None:
    """With the machine: on the list of our CA, and not handed out again."""
    node = await admitted(service)
    content = await approvable(service, node)
    found = await signed(service, content)
    await service.act(node, act, {"reason": "x"})
    row = (await service.operator("GET", f"/ca/certificates/{found['serial']}")).json()
    assert row["state"] == ("held" if act == "lock" else "revoked")
    assert (await ask(service, "sign", content)).status_code == 403


async def test_a_lease_that_ended_is_waited_for(service: Service) -> None:
    """The machine attests, and the same request is signed."""
    node = await admitted(service)
    content = await approvable(service, node)
    await decision(service, content)
    service.clock.advance(24 * HOUR)
    assert (await ask(service, "sign", content)).status_code == 503
    await service.attest(node)
    await signed(service, content)


async def test_of_two_signers_one_certificate_is_handed_out(service: Service) -> None:
    """To both; what the other signed is void."""
    node = await admitted(service)
    content = await approvable(service, node)
    await decision(service, content)
    found = await asyncio.gather(*(signed(service, content) for _ in range(4)))
    assert len({each["serial"] for each in found}) == 1
    items = (await service.operator("GET", f"/machines/{node.machine_id}/certificates")).json()["items"]
    assert [each["state"] for each in items].count("issued") == 1
    assert {each["state"] for each in items} <= {"issued", "void"}


async def test_a_signature_that_failed_is_made_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that is away, or a process that died, between the two units: the next one signs."""
    node = await admitted(service)
    content = await approvable(service, node)
    await decision(service, content)

    def away(*_: Any) -> bytes:
        raise SignerUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(authority_module, "sign", away)
        assert (await ask(service, "sign", content)).status_code == 503
    await signed(service, content)


@pytest.mark.threat("T187")
@pytest.mark.parametrize("change", [{"status": Status.LOCKED}, {"hostname": "w-9"}], ids=str)
async def test_an_act_while_it_is_being_signed(
    service: Service, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Between the two units the machine is locked, or called otherwise: the certificate reaches nobody."""
    node = await admitted(service)
    content = await approvable(service, node)
    await decision(service, content)
    real = issuance.sign

    def act(tx: Tx) -> None:
        machine = tx.machines.by_id(str(node.machine_id))
        assert machine is not None
        tx.machines.update(machine, **change)

    def slow(*arguments: Any) -> bytes:
        service.store.write_sync(act)
        return real(*arguments)

    monkeypatch.setattr(authority_module, "sign", slow)
    answer = await ask(service, "sign", content)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:itl:problem:node-request-denied")
    items = (await service.operator("GET", f"/machines/{node.machine_id}/certificates")).json()["items"]
    assert [each["state"] for each in items] == ["void"]
    assert await service.audit(action="cert_issued", machine_id=node.machine_id) == []


@pytest.mark.filterwarnings("ignore:Attribute.s length")
async def test_a_host_name_can_be_too_long_for_a_certificate(service: Service) -> None:
    """A name has 64 characters, twelve of them are Kubernetes' own. Refused for good: the signer need not ask again."""
    node = await admitted(service, "w" * 53)
    content = await approvable(service, node, made={"hostname": "w" * 53})
    assert (await decision(service, content))["decision"] == "approve"
    answer = await ask(service, "sign", content)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:itl:problem:node-request-denied")


async def test_without_a_ca_nothing_is_signed(start: Starter) -> None:
    """The cluster's own signer may."""
    service = await serving(start, enrollment_ca_unencrypted=False)
    node = await admitted(service)
    content = await approvable(service, node, signer_name=KUBELET)
    assert (await decision(service, content))["decision"] == "approve"
    assert (await ask(service, "sign", content)).json()["type"] == "urn:itl:problem:ca-not-configured"


@pytest.mark.parametrize(("algorithm", "status"), [("hybrid", 200), ("ml-dsa-87", 503)])
async def test_the_ca_signs_with_what_an_api_server_verifies(
    start: Starter, algorithm: str, status: int
) -> None:
    """Of two algorithms the one that it knows."""
    service = await serving(start, enrollment_ca_algorithm=algorithm)
    node = await admitted(service)
    answer = await ask(service, "sign", await approvable(service, node))
    assert answer.status_code == status, answer.text
    if status == 200:
        certificate = x509.load_pem_x509_certificate(answer.json()["certificate_pem"].encode())
        assert certificate.signature_algorithm_oid._name == "ecdsa-with-SHA384"


# ---------------------------------------------------------------- trust


async def test_what_machines_are_worth_is_told_of_the_callers_cluster(service: Service) -> None:
    """In words, page by page, and not again where nothing changed."""
    node, other = await admitted(service), await admitted(service, "w-2")
    await decision(service, await approvable(service, node))
    headers = bearer(service, ACCOUNTS["trust"])
    answer = await service.get("/api/v1/node-csr/trust", headers=headers)
    by_name = {each["hostname"]: each for each in answer.json()["items"]}
    assert (by_name["w-1"]["trusted"], by_name["w-1"]["reason"]) == (True, "Trusted")
    assert by_name["w-1"]["node_certificate_at"] is not None
    assert by_name["w-2"]["node_certificate_at"] is None
    again = {**headers, "If-None-Match": f'"x", {answer.headers["etag"]}'}
    service.clock.advance(1)
    unchanged = await service.get("/api/v1/node-csr/trust", headers=again)
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    await service.act(other, "lock", {"reason": "x"})
    changed = await service.get("/api/v1/node-csr/trust", headers=again)
    by_name = {each["hostname"]: each for each in changed.json()["items"]}
    assert (by_name["w-2"]["trusted"], by_name["w-2"]["reason"]) == (False, "Locked")
    page = (await service.get("/api/v1/node-csr/trust?limit=1", headers=headers)).json()
    assert len(page["items"]) == 1
    assert page["next_cursor"]
    service.clock.advance(24 * HOUR)
    late = await service.get("/api/v1/node-csr/trust", headers=bearer(service, ACCOUNTS["trust"]))
    by_name = {each["hostname"]: each for each in late.json()["items"]}
    assert (by_name["w-1"]["trusted"], by_name["w-1"]["reason"]) == (False, "TrustStale")


async def test_another_cluster_sees_nothing(start: Starter) -> None:
    """Its machines are its own."""
    service = await serving(start, rule={"cluster_id": "edge"})
    await admitted(service)
    answer = await service.get("/api/v1/node-csr/trust", headers=bearer(service, ACCOUNTS["trust"]))
    assert answer.json()["items"] == []


# ---------------------------------------------------------------- who may


async def test_each_duty_opens_its_route_and_no_other(service: Service) -> None:
    """Nor does an operator's credential any of them, nor a controller's one of an operator's."""
    for what, account in ACCOUNTS.items():
        for route, holder in ACCOUNTS.items():
            method = "GET" if route == "trust" else "POST"
            answer = await service.http.request(
                method, f"/api/v1/node-csr/{route}", headers=bearer(service, account), json=body(b"")
            )
            assert (answer.status_code == 403) == (account != holder or route == "sign"), (
                what,
                route,
                answer.text,
            )
            if account != holder:
                assert answer.json()["type"] == "urn:itl:problem:forbidden"
    for headers in ({}, OPERATOR, {"Authorization": "Bearer a.b.c"}, {"Authorization": "Basic x"}):
        answer = await service.get("/api/v1/node-csr/trust", headers=headers)
        assert answer.status_code == 401, headers
    for path, account in zip(("/machines", "/audit", "/node-csr/decisions"), ACCOUNTS.values(), strict=True):
        answer = await service.get(f"/api/v1{path}", headers=bearer(service, account))
        assert answer.status_code == 401, path
    assert len(await service.audit(action="denied")) >= 5


async def test_without_clusters_nobody_may(start: Starter) -> None:
    """And nobody's token is read."""
    service = await start(HeldClock())
    answer = await service.get("/api/v1/node-csr/trust", headers={"Authorization": "Bearer a.b.c"})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:cluster-not-configured")
