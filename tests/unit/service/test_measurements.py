"""Event logs and IMA lists over HTTP: asked for, judged, remembered, kept (docs/adr/0029)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from attestation.evidence.ima_log import MEDIA_TYPE as IMA
from attestation.store import PolicyAssignment, StoredResult
from attestation.tpm import Alg
from attestation.wire import b64decode, b64encode
from attestation_service.verifier import policy
from attestation_service.verifier.measurements import Replays
from attestation_testing import ima_logs
from attestation_testing.event_logs import BootLog, BootOptions, boot_log
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_attest import ATTEST, assign, flipped
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

NORMAL = boot_log(BootOptions())
OTHER_KERNEL = boot_log(BootOptions(kernel="6.12.0-1", loader="shim 16.2, grub 2.12"))


def boots(node: SoftwareNode, log: BootLog) -> str:
    """Let *node* boot what *log* tells; return the log as it would send it."""
    node.pcrs = {pcr: value for pcr, value in log.pcrs().items() if pcr < 16}
    node.reset_count += 1
    node.clock_ms = 0
    return b64encode(log.serialise())


def needs_log(*, version: int = 1, **members: Any) -> dict[str, Any]:
    """Return a policy that wants the event log; PCR 4 and 7 as `NORMAL` leaves them unless told otherwise."""
    values = NORMAL.pcrs()
    return {
        "format": "itl-tpm-policy/1",
        "name": "measured",
        "version": version,
        "bank": "sha256",
        "pcrs": {str(pcr): {"any_of": [values[pcr].hex()]} for pcr in (4, 7)},
        "event_log": "required",
    } | members


def digest(text: str) -> str:
    """Return the SHA-256 of what *text* is the base64 of."""
    return hashlib.sha256(b64decode(text, "log")).hexdigest()


async def newest(service: Service, node: SoftwareNode) -> StoredResult:
    """Return the newest stored result."""
    page = await service.store.read(lambda tx: tx.results.page(node.machine_id, None, 1))
    found: StoredResult = page.items[0]
    return found


async def kept(service: Service, sha256: str) -> bool:
    """Say whether a log is kept."""
    return await service.store.read(lambda tx: tx.logs.get(sha256)) is not None


async def known(service: Service, node: SoftwareNode) -> str | None:
    """Return the digest of the log that is remembered of a machine."""
    machine = await service.store.read(lambda tx: tx.machines.by_id(node.machine_id))
    assert machine is not None
    return machine.event_log_sha256


async def admitted(service: Service, node: SoftwareNode) -> None:
    """Introduce and approve *node*; it has not attested."""
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})


async def test_a_log_is_asked_for_once_a_boot(service: Service) -> None:
    """Required until it led to the quoted PCRs; then the kept one is used, and compared each time."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await admitted(service, node)
    await assign(service, needs_log())
    challenge = await service.challenge(node)
    assert challenge["event_log"] == "required"
    answer = await service.post(ATTEST, node.attestation(challenge, event_log=log))
    assert (answer.status_code, answer.json()["status"]) == (200, "attested"), answer.text
    following = answer.json()["next_challenge"]
    assert following["event_log"] == "accepted"
    assert await known(service, node) == digest(log)
    assert await kept(service, digest(log))
    again = await service.post(ATTEST, node.attestation(following))
    assert again.json()["next_challenge"]["event_log"] == "accepted"
    assert (await service.detail(node))["trust"] == "verified"
    assert (await service.challenge(node))["event_log"] == "accepted"


@pytest.mark.threat("T74")
async def test_an_unchanged_log_is_parsed_once(service: Service) -> None:
    """Kept or sent again, by one machine or by many: the same bytes are parsed once in this process."""
    nodes = [SoftwareNode() for _ in range(3)]
    await assign(service, needs_log())
    for node in nodes:
        log = boots(node, NORMAL)
        await admitted(service, node)
        await service.attest(node, event_log=log)
        for sent in ({}, {"event_log": log}, {}):
            await service.attest(node, **sent)
        assert (await service.detail(node))["trust"] == "verified"
    assert service.resources.replays.parsed == 1


async def test_what_was_forgotten_is_read_and_parsed_again(service: Service) -> None:
    """A restart, or a cache that was too small, costs one parse and nothing else."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await assign(service, needs_log())
    await admitted(service, node)
    await service.attest(node, event_log=log)
    object.__setattr__(service.resources, "replays", Replays(1))
    for _ in range(2):
        await service.attest(node)
    assert service.resources.replays.parsed == 2
    assert (await service.detail(node))["trust"] == "verified"


@pytest.mark.threat("T73")
def test_the_cache_is_bounded_and_keyed_by_every_byte_and_the_bank() -> None:
    """What was used longest ago goes; another byte or another bank is another log."""
    logs = [boot_log(BootOptions(seed=n, banks=("sha256", "sha384"))).serialise() for n in range(4)]
    replays = Replays(2 * max(map(len, logs)))
    digests = [hashlib.sha256(log).hexdigest() for log in logs]
    for log in logs[:2]:
        replays.replay(log, Alg.SHA256)
    assert replays.known(digests[0], Alg.SHA256) is not None  # used just now
    replays.replay(logs[2], Alg.SHA256)
    present = [replays.known(d, Alg.SHA256) is not None for d in digests]
    assert present == [True, False, True, False]
    assert replays.known(digests[0], Alg.SHA384) is None
    other = replays.replay(logs[0], Alg.SHA384)
    assert other.bank == Alg.SHA384
    assert replays.replay(logs[0], Alg.SHA384) == other
    assert replays.parsed == 5
    for log in logs:
        replays.replay(log, Alg.SHA256)
        assert sum(len(entry.data) for entry in replays._found.values()) <= 2 * max(map(len, logs))


@pytest.mark.threat("T73")
async def test_a_log_of_an_earlier_boot_is_asked_for_anew(service: Service) -> None:
    """After a reboot the kept log leads nowhere: nothing is decided, and the next challenge asks for the new one."""
    node = SoftwareNode()
    old = boots(node, NORMAL)
    both = {str(pcr): {"any_of": [log.pcrs()[pcr].hex() for log in (NORMAL, OTHER_KERNEL)]} for pcr in (4, 7)}
    await assign(service, needs_log(pcrs=both, secure_boot={"required": True}))
    await admitted(service, node)
    await service.attest(node, event_log=old)
    token_before = await service.detail(node)
    new = boots(node, OTHER_KERNEL)
    answer = await service.attest(node)
    assert answer["message"].startswith("could not be decided")
    assert (answer["reattest_after_seconds"], answer["next_challenge"]["event_log"]) == (1, "required")
    # Nothing was taken away, and whoever lost that challenge is asked for the log all the same.
    detail = await service.detail(node)
    assert (detail["trust"], detail["status"]) == (token_before["trust"], "attested")
    assert (await service.challenge(node))["event_log"] == "required"
    following = await service.post(ATTEST, node.attestation(answer["next_challenge"], event_log=new))
    assert following.json()["next_challenge"]["event_log"] == "accepted"
    assert (await service.detail(node))["trust"] == "verified"
    assert await known(service, node) == digest(new)


@pytest.mark.threat("T73")
async def test_a_log_that_was_demanded_and_does_not_come_fails(service: Service) -> None:
    """Silence does not help a machine that has something to hide."""
    node = SoftwareNode()
    boots(node, NORMAL)
    await assign(service, needs_log())
    await admitted(service, node)
    answer = await service.attest(node)
    assert answer["status"] == "registered"
    result = (await newest(service, node)).result
    assert (result.verdict, [o.check for o in result.failed]) == ("Failed", ["event-log"])


@pytest.mark.threat("T74")
@pytest.mark.parametrize(
    ("what", "status", "expected"),
    [
        ("not base64", 400, "malformed-evidence"),
        ("not a log", 400, "malformed-evidence"),
        ("cut off", 400, "malformed-evidence"),
        ("empty", 400, "malformed-evidence"),
        ("too long", 400, "malformed-evidence"),
        ("far too long", 422, "schema-violation"),
    ],
)
async def test_a_log_that_cannot_be_parsed_spends_the_challenge(
    service: Service, what: str, status: int, expected: str
) -> None:
    """400, nothing is kept, and the same challenge is good for nothing any more."""
    node = SoftwareNode()
    good = boots(node, NORMAL)
    await assign(service, needs_log())
    await admitted(service, node)
    texts = {
        "not base64": "!" + good[1:],
        "not a log": b64encode(b"log"),
        "cut off": b64encode(NORMAL.serialise()[:-3]),
        "empty": "",
        "too long": b64encode(bytes((1 << 20) + 1)),
        "far too long": "A" * 1_500_000,
    }
    body = node.attestation(await service.challenge(node), event_log=texts[what])
    answer = await service.post(ATTEST, body)
    assert (answer.status_code, code(answer)) == (status, expected), answer.text
    if status == 400:
        assert code(await service.post(ATTEST, body | {"event_log": good})) == "challenge-used"
    assert await known(service, node) is None
    assert (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"] == []


@pytest.mark.threat("T74")
async def test_nothing_is_parsed_for_a_stranger(service: Service) -> None:
    """Without the activated key nobody can have us parse a log, or fill what is remembered or kept."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await assign(service, needs_log())
    await admitted(service, node)
    body = node.attestation(await service.challenge(node), event_log=log)
    refused = await service.post(ATTEST, body | {"pcr_signature": flipped(body["pcr_signature"])})
    assert (refused.status_code, code(refused)) == (403, "evidence-rejected")
    await assign(service, ima_policy(event_log="required"), "machine", node.machine_id)
    rubbish = b64encode(b"no log at all")
    for sent in ({"event_log": rubbish}, {"evidence": [{"media_type": IMA, "value": rubbish}]}):
        body = node.attestation(await service.challenge(node), **sent)
        refused = await service.post(ATTEST, body | {"pcr_signature": flipped(body["pcr_signature"])})
        assert (refused.status_code, code(refused)) == (403, "evidence-rejected")
        body = node.attestation(await service.challenge(node), **sent)
        assert (await service.post(ATTEST, body)).status_code == 400
    assert service.resources.replays.parsed == 1, "that of the machine itself"
    assert not await kept(service, digest(log))


@pytest.mark.threat("T73")
@pytest.mark.parametrize(
    "log", [boot_log(BootOptions(seed=9)), OTHER_KERNEL], ids=["another machine", "another boot"]
)
async def test_a_log_that_does_not_lead_there_fails_and_is_not_believed(
    service: Service, log: BootLog
) -> None:
    """The log of another machine or boot is a negative result; it is kept with that, and is not the machine's."""
    node = SoftwareNode()
    boots(node, NORMAL)
    everything = {
        str(pcr): {"any_of": [value.hex()]} for pcr, value in NORMAL.pcrs().items() if pcr in range(8)
    }
    await assign(
        service, needs_log(pcrs=everything, secure_boot={"required": True}, boot={"loaders": ["ab" * 32]})
    )
    await admitted(service, node)
    sent = b64encode(log.serialise())
    if log.pcrs()[4] == NORMAL.pcrs()[4]:
        sent = b64encode(boot_log(BootOptions(loader="other")).serialise())
    answer = await service.attest(node, event_log=sent)
    assert answer["status"] == "registered"
    assert "event-log" in [o.check for o in (await newest(service, node)).result.failed]
    assert await known(service, node) is None
    assert (await newest(service, node)).evidence.event_log_sha256 == digest(sent)
    assert await kept(service, digest(sent))
    assert answer["next_challenge"]["event_log"] == "required"


async def test_a_log_that_no_policy_asks_for_is_kept_for_operators(service: Service) -> None:
    """It is the stuff of `policy learn` and of explanations; a later boot without one forgets it."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await service.admitted(node)
    assert await known(service, node) is None
    results = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"]
    answer = await service.attest(node, event_log=log)
    assert answer["next_challenge"]["event_log"] == "accepted"
    assert await known(service, node) == digest(log)
    # The history names it once, although nothing else changed.
    await service.attest(node, event_log=log)
    items = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"]
    assert len(items) == len(results) + 1
    assert (await newest(service, node)).evidence.event_log_sha256 == digest(log)
    # A new policy is a new result of the same boot, and names it, too.
    await assign(service, needs_log(event_log="accepted"))
    await service.attest(node)
    assert (await newest(service, node)).evidence.event_log_sha256 == digest(log)
    boots(node, OTHER_KERNEL)
    await service.attest(node)
    assert await known(service, node) is None
    assert (await newest(service, node)).evidence.event_log_sha256 is None


async def test_a_log_of_which_nothing_was_quoted_is_not_kept(service: Service) -> None:
    """Where no PCR of the firmware was quoted, any log would do."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await admitted(service, node)
    rules = {"11": {"any_of": [node.pcrs[11].hex()]}}
    await assign(service, needs_log(event_log="accepted", pcrs=rules))
    await service.attest(node, event_log=log)
    assert (await service.detail(node))["trust"] == "verified"
    assert await known(service, node) is None
    assert not await kept(service, digest(log))


async def test_the_evidence_stands_beside_the_result(service: Service) -> None:
    """PCR values, bank, log, policy, assurance and nonce of what was judged."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    document = needs_log()
    await assign(service, document)
    await admitted(service, node)
    challenge = await service.challenge(node)
    await service.post(ATTEST, node.attestation(challenge, event_log=log))
    evidence = (await newest(service, node)).evidence
    assert evidence.pcr_bank == "sha256"
    assert dict(evidence.pcr_values) == {
        pcr: NORMAL.pcrs()[pcr] for pcr in challenge["pcr_selection"]["sha256"]
    }
    policies = (await service.operator("GET", "/policies")).json()["policies"]
    assert evidence.policy_sha256 == next(p["sha256"] for p in policies if p["name"] == "measured")
    assert evidence.event_log_sha256 == digest(log)
    assert evidence.assurance == "tofu"
    assert b64encode(evidence.nonce or b"") == challenge["nonce"]


@pytest.mark.threat("T74")
async def test_machines_nobody_admitted_cannot_fill_the_disk(service: Service) -> None:
    """A software EK that measures something else each time has one log kept a day; a long one has none."""
    node = SoftwareNode()
    await service.introduce(node)
    for number in range(3):
        log = boots(node, boot_log(BootOptions(seed=number)))
        await service.attest(node, event_log=log)
        assert await kept(service, digest(log)) == (number == 0)
        assert (await known(service, node) is not None) == (number == 0)
    other = SoftwareNode()
    await service.introduce(other)
    long = boots(other, boot_log(BootOptions(seed=77, size_bytes=900_000)))
    await service.attest(other, event_log=long)
    assert await kept(service, digest(long)) is False
    await service.act(node, "approve", {"role": "worker-app"})
    log = boots(node, boot_log(BootOptions(seed=5)))
    await service.attest(node, event_log=log)
    assert await kept(service, digest(log))


async def test_what_is_not_kept_is_asked_for_again(service: Service) -> None:
    """A pending machine with a log that is too long sends it each time it is judged by one, and is judged."""
    node = SoftwareNode()
    log = boots(node, boot_log(BootOptions(size_bytes=900_000)))
    await assign(service, needs_log(pcrs={"7": {"any_of": [node.pcrs[7].hex()]}}))
    await service.introduce(node)
    answer = await service.attest(node, event_log=log)
    for _ in range(2):
        assert answer["next_challenge"]["event_log"] == "required"
        sent = await service.post(ATTEST, node.attestation(answer["next_challenge"], event_log=log))
        answer = sent.json()
        assert (await service.detail(node))["trust"] == "verified"
    assert not await kept(service, digest(log))
    assert service.resources.replays.parsed == 1


async def test_all_policies_of_a_machine_apply_together(service: Service) -> None:
    """A rule for the fleet is not lost where a role or a machine has a policy of its own."""
    node = SoftwareNode()
    boots(node, NORMAL)
    await service.admitted(node)
    values = NORMAL.pcrs()

    def demands(name: str, pcr: int, value: bytes) -> dict[str, Any]:
        rules = {str(pcr): {"any_of": [value.hex()]}}
        return needs_log(name=name, pcrs=rules, event_log="accepted")

    await assign(service, demands("fleet", 7, values[7]))
    await assign(service, demands("role", 4, values[4]), "role", "worker-app")
    challenge = await service.challenge(node)
    assert challenge["pcr_selection"] == {"sha256": [4, 7]}
    await service.attest(node)
    detail = await service.detail(node)
    assert (detail["trust"], detail["last_result"]["policy"]) == ("verified", "fleet@1+role@1")
    await assign(service, demands("machine", 0, bytes(32)), "machine", node.machine_id)
    await service.attest(node)
    assert (await service.detail(node))["last_result"]["failed"] == "pcr0"
    # The narrower one wins where both speak, and only there.
    await assign(service, demands("own", 7, bytes(32)), "machine", node.machine_id)
    await service.attest(node)
    last = (await service.detail(node))["last_result"]
    assert (last["policy"], last["failed"]) == ("fleet@1+role@1+own@1", "pcr7")


async def test_remembered_policies_are_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other assignments make room; what is named with its digest cannot become wrong."""
    monkeypatch.setattr(policy, "MOST_REMEMBERED", 1)
    node = SoftwareNode()
    boots(node, NORMAL)
    await service.admitted(node)
    for version in (1, 2, 3):
        await assign(service, needs_log(name="bounded", version=version, event_log="accepted"))
        await service.attest(node)
        assert (await service.detail(node))["last_result"]["policy"] == f"bounded@{version}"
        assert len(policy._effective) == 1


@pytest.mark.threat("T73")
async def test_a_log_whose_row_was_changed_is_asked_for_again(service: Service) -> None:
    """Who can write the database cannot put another log under a machine's name."""
    node = SoftwareNode()
    log = boots(node, NORMAL)
    await assign(service, needs_log())
    await admitted(service, node)
    await service.attest(node, event_log=log)
    object.__setattr__(service.resources, "replays", Replays(1 << 20))

    def spoil(tx: Any) -> None:
        tx._sql._cursor.execute("UPDATE measurement_logs SET content = x'00'")

    await service.store.write(spoil)
    answer = await service.attest(node)
    assert answer["next_challenge"]["event_log"] == "required"
    assert (await service.detail(node))["trust"] == "verified"
    number = (await newest(service, node)).result_id
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/results/{number}")).json()
    assert (shown["event_log_kept"], shown["boot"]) == (False, None)


async def test_logs_outlive_their_machine_by_a_day(service: Service) -> None:
    """When the ring moved on and the machine booted something else, the old log goes."""
    node = SoftwareNode()
    first = boots(node, NORMAL)
    await admitted(service, node)
    await service.attest(node, event_log=first)
    service.clock.advance(26 * 3600)
    await service.store.write(lambda tx: tx.purge(service.clock.now()))
    assert await kept(service, digest(first))
    await service.act(node, "revoke", {"wipe": False})
    await service.store.write(lambda tx: tx.machines.delete(node.machine_id))
    service.clock.advance(26 * 3600)
    assert (await service.store.write(lambda tx: tx.purge(service.clock.now()))).logs == 1
    assert not await kept(service, digest(first))


async def test_policies_that_contradict_each_other_decide_nothing(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two banks at once: 503 for the machine, the reason in the log, nothing is given or taken."""
    node = SoftwareNode()
    boots(node, NORMAL)
    await service.admitted(node)
    await assign(service, needs_log(event_log="accepted"))
    other = needs_log(event_log="accepted", bank="sha384", pcrs={"7": {"any_of": ["ab" * 48]}}, name="other")
    created = await service.operator("POST", "/policies", other)
    assert created.status_code == 201, created.text
    await service.store.write(
        lambda tx: tx.policies.assign(
            PolicyAssignment(
                scope="role",
                subject="worker-app",
                policy="other@1",
                assigned_at=service.clock.now(),
                assigned_by="somebody",
            )
        )
    )
    answer = await service.get("/api/v1/attest/challenge", params={"machine_id": node.machine_id})
    assert (answer.status_code, code(answer)) == (503, "unavailable")
    assert (await service.detail(node))["trust"] == "verified"
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"policies"' in line]
    assert told[0]["policies"] == ["measured@1", "other@1"]


FILES = {"/usr/bin/init": b"init", "/usr/bin/agent": b"agent"}


def ima_policy(**members: Any) -> dict[str, Any]:
    """Return a policy that allows `FILES` and no other."""
    allowed = [hashlib.sha256(content).hexdigest() for content in FILES.values()]
    return {
        "format": "itl-tpm-policy/1",
        "name": "files",
        "version": 1,
        "bank": "sha256",
        "pcrs": {},
        "ima": {"allow": allowed},
    } | members


def measured(node: SoftwareNode, files: dict[str, bytes]) -> list[dict[str, str]]:
    """Let *node* have measured *files* since it booted; return the evidence that says so."""
    found = ima_logs.ima_log(node.pcrs, files)
    node.pcrs[10] = found.pcr10()
    return [{"media_type": IMA, "value": b64encode(found.serialise())}]


async def test_an_ima_list_is_asked_for_where_rules_read_it(service: Service) -> None:
    """Listed in the challenge, judged each time; that it grows is no news, what is kept is what was judged."""
    node = SoftwareNode()
    boots(node, NORMAL)
    await admitted(service, node)
    assert "ima-log" not in (await service.challenge(node))["evidence"]
    await assign(service, ima_policy())
    challenge = await service.challenge(node)
    assert "ima-log" in challenge["evidence"]
    assert 10 in challenge["pcr_selection"]["sha256"]
    first = measured(node, {"/usr/bin/init": b"init"})
    answer = await service.post(ATTEST, node.attestation(challenge, evidence=first))
    assert answer.json()["status"] == "attested", answer.text
    stored = await newest(service, node)
    assert stored.evidence.ima_log_sha256 == digest(first[0]["value"])
    assert await kept(service, digest(first[0]["value"]))
    number = f"/machines/{node.machine_id}/results/{stored.result_id}"
    raw = await service.operator("GET", f"{number}/ima-log")
    assert raw.content == b64decode(first[0]["value"], "list")
    assert (await service.operator("GET", number)).json()["ima_log_kept"] is True
    longer = measured(node, FILES)
    await service.attest(node, evidence=longer)
    assert (await service.detail(node))["trust"] == "verified"
    assert (await newest(service, node)).result_id == stored.result_id
    assert not await kept(service, digest(longer[0]["value"]))
    strange = measured(node, FILES | {"/tmp/x": b"x"})
    await service.attest(node, evidence=strange)
    assert (await service.detail(node))["trust"] == "failed"
    assert (await newest(service, node)).evidence.ima_log_sha256 == digest(strange[0]["value"])


@pytest.mark.parametrize("fault", ["twice", "not a list", "not base64", "an object"])
async def test_an_ima_list_that_cannot_be_read_spends_the_challenge(service: Service, fault: str) -> None:
    """400, and nothing is kept."""
    node = SoftwareNode()
    boots(node, NORMAL)
    await admitted(service, node)
    await assign(service, ima_policy())
    good = measured(node, FILES)
    evidence: Any = {
        "twice": good * 2,
        "not a list": [{"media_type": IMA, "value": b64encode(b"list")}],
        "not base64": [{"media_type": IMA, "value": "!"}],
        "an object": [{"media_type": IMA, "value": {"list": good[0]["value"]}}],
    }[fault]
    body = node.attestation(await service.challenge(node), evidence=evidence)
    answer = await service.post(ATTEST, body)
    assert (answer.status_code, code(answer)) == (400, "malformed-evidence")
    assert code(await service.post(ATTEST, body | {"evidence": good})) == "challenge-used"


async def test_an_ima_list_of_another_boot_is_not_kept(service: Service) -> None:
    """It does not lead to PCR 10, so it is nobody's."""
    node = SoftwareNode()
    boots(node, NORMAL)
    await admitted(service, node)
    await assign(service, ima_policy())
    other = measured(node, {"/usr/bin/agent": b"agent"})
    measured(node, FILES)
    await service.attest(node, evidence=other)
    assert (await newest(service, node)).evidence.ima_log_sha256 is None
    assert not await kept(service, digest(other[0]["value"]))
    assert "ima" in [o.check for o in (await newest(service, node)).result.failed]


async def test_an_ima_list_that_no_rule_reads_is_not_looked_at(service: Service) -> None:
    """Not parsed, not kept: evidence of kinds that nobody asked for costs us nothing."""
    node = SoftwareNode()
    await service.admitted(node)
    rubbish = [{"media_type": IMA, "value": "!"}, {"media_type": "x/y", "value": "!"}]
    assert (await service.attest(node, evidence=rubbish))["status"] == "attested"
