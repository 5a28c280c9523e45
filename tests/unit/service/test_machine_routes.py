"""Routes of extensions for machines: a quote over a fresh challenge, or nothing; what is given is sealed."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.extension import Sealed
from attestation_service import extensions
from attestation_service.app import create_app
from attestation_service.attest.proving import prove
from attestation_service.extensions import ExtensionInvalid, life, loading
from attestation_service.process import dispatch, maintenance
from tests.fixtures.extension import install, site
from tests.unit.service.conftest import Service, Starter, settings_for
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_attest import assign, policy
from tests.unit.service.test_extensions import EMPTY, HEAD

pytestmark = pytest.mark.anyio

__all__ = ["site"]

GIVING = (
    "from attestation.extension import AttestedMachine, MachineRequest, PendingApproval, Sealed, Voter\n"
    + HEAD
    + """
class Wish(MachineRequest):
    wish: str = "none"

class Done(BaseModel):
    done: bool

"""
    + EMPTY.format(name="giving")
    + """
    prefixes = ("/api/v1/gifts", "/gifts")
    events = ("gift.given",)

    def get_router(self):
        router = Router()
        router.add("POST /{gift}/read", "machine", self.give)
        router.add("GET /gifts/{gift}", "machine", self.show)
        router.add("POST /{gift}/release", "act", self.release)
        return router

    async def give(self, gift: str, request: Wish, machine: AttestedMachine) -> Sealed:
        "Give."
        at = self.context.clock.now()
        def work(tx):
            machine.still(tx)
            tx.audit.append(machine.event("given", detail=gift), at)
            self.context.emit(tx, "gift.given", at, machine_id=machine.machine_id, meta={"gift": gift})
        await self.context.store.write(work)
        text = f"{gift} {request.wish} {machine.role} {machine.vector}"
        return await machine.seal(text.encode(), token_id="0123456789abcdef", what="gift")

    async def show(self, gift: str, machine: AttestedMachine) -> Sealed:
        "Show."
        return await machine.seal(gift.encode(), token_id="0123456789abcdef", what="gift")

    async def release(self, gift: str, who: Voter) -> Done | PendingApproval:
        "Release."
        at = self.context.clock.now()
        def work(tx):
            waiting = who.agree(tx, "release", at, terms={"gift": gift}, always=True)
            if waiting is None:
                tx.audit.append(who.event("released", detail=gift), at)
            return waiting
        return await self.context.store.write(work) or Done(done=True)
"""
)


LISTENING = (
    HEAD
    + EMPTY.format(name="listening")
    + """
    def get_subscriptions(self):
        return {"gift.given": self.told}

    async def told(self, event):
        print("told", event.event, event.machine_id, event.payload["node"]["role"], event.payload["meta"])
"""
)


@pytest.fixture
async def service(site: Path, start: Starter) -> Service:
    """A service with an extension that gives."""
    install(site, "giving", GIVING)
    return await start(extensions=("giving",))


async def ask(service: Service, node: SoftwareNode, **members: Any) -> httpx.Response:
    """Ask for a gift with a fresh quote."""
    body = node.attestation(await service.challenge(node), wish="a pony", **members)
    return await service.post("/api/v1/gifts/toy/read", body)


async def test_what_is_given_is_sealed_and_signed_for_this_request(service: Service) -> None:
    """The machine opens it, and knows by the signature that it is what it asked for."""
    node = SoftwareNode()
    await service.admitted(node)
    body = node.attestation(await service.challenge(node), wish="a pony")
    answer = await service.post("/api/v1/gifts/toy/read", body)
    assert answer.status_code == 200, answer.text
    sealed = Sealed.model_validate(answer.json())
    told = node.open(answer.json()["envelope"])
    assert told.startswith(b"toy a pony worker-app {")
    assert b"'instance-identity': " in told
    assert [each["detail"] for each in await service.audit(action="given")] == ["toy"]
    claims = json.loads(base64.urlsafe_b64decode(sealed.signature.split(".")[1] + "=="))
    assert (claims["what"], claims["token_id"]) == ("giving.gift", "0123456789abcdef")
    # Spent: nobody repeats it.
    again = await service.post("/api/v1/gifts/toy/read", body)
    assert (again.status_code, again.json()["type"]) == (409, "urn:itl:problem:challenge-used")


async def test_what_an_extension_tells_of_reaches_others(
    site: Path, start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the word, after the commit, as what the service tells of; what it does not declare, it cannot."""
    install(site, "giving", GIVING)
    install(site, "listening", LISTENING)
    service = await start(extensions=("giving", "listening"))
    node = SoftwareNode()
    await service.admitted(node)
    assert (await ask(service, node)).status_code == 200
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    while await dispatch.once("listening", enabled.handlers["listening"], service.resources):
        pass
    told = f"told gift.given {node.machine_id} worker-app {{'gift': 'toy'}}"
    assert told in capsys.readouterr().out
    emit = life._emitting(enabled.extensions[0])
    with pytest.raises(ValueError, match="giving does not declare the event"):
        await service.store.write(lambda tx: emit(tx, "gift.taken", service.clock.now()))


@pytest.mark.threat("T213")
async def test_only_who_is_attested_and_verified_now_is_given_anything(service: Service) -> None:
    """Before the approval, locked, revoked, with other PCRs, with somebody else's quote: nothing, and no act."""
    node, other = SoftwareNode(), SoftwareNode(rsa_ek=True)
    await service.introduce(node)
    refused = await ask(service, node)
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:itl:problem:machine-not-admitted")
    await service.act(node, "approve", {"role": "worker-app"})
    await service.admitted(other)
    # Approved and verified: this quote is its first attestation, and the configuration stays owed.
    assert (await ask(service, node)).status_code == 200
    assert (await service.attest(node))["action"] == "apply-config"
    foreign = await ask(service, node, ek_fingerprint=other.ek_fingerprint)
    assert foreign.status_code in (403, 422)
    body = other.attestation(await service.challenge(node)) | {"machine_id": node.machine_id}
    assert (await service.post("/api/v1/gifts/toy/read", body)).status_code in (403, 422)
    no_nonce = await ask(service, node, node_nonce=None)
    assert (no_nonce.status_code, no_nonce.json()["type"]) == (426, "urn:itl:problem:agent-too-old")
    await assign(service, policy(node, good=False))
    failed = await ask(service, node)
    assert (failed.status_code, failed.json()["type"]) == (403, "urn:itl:problem:machine-not-admitted")
    await assign(service, policy(node, version=2))
    for act in ("lock", "revoke"):
        await service.act(node, act, {"reason": "x"})
        assert (await ask(service, node)).status_code == 403
    assert len(await service.audit(action="given")) == 1


@pytest.mark.threat("T214")
async def test_a_lock_between_the_quote_and_the_gift_is_noticed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`still` compares in the unit that gives."""
    node = SoftwareNode()
    await service.admitted(node)

    async def slow(*given: Any, **named: Any) -> Any:
        proved = await prove(*given, **named)
        await service.act(node, "lock", {"reason": "x"})
        return proved

    monkeypatch.setattr("attestation_service.extensions.asking.prove", slow)
    refused = await ask(service, node)
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:itl:problem:machine-not-admitted")
    assert await service.audit(action="given") == []


async def test_who_comes_without_a_certificate_is_nobody(service: Service) -> None:
    """A GET of machines needs one."""
    answer = await service.get("/gifts/toy", headers={"Itl-Node-Nonce": "x"})
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:itl:problem:unauthenticated")


WRONG = [
    ("router.add('POST', 'machine', self.no_machine)", "a route of machines takes an AttestedMachine"),
    ("router.add('POST', 'machine', self.no_proof)", "a POST of machines takes a MachineRequest"),
    ("router.add('GET', 'machine', self.no_machine)", "a route of machines takes an AttestedMachine"),
    (
        "router.add('GET', 'read', self.no_proof)",
        "a route of machines takes an AttestedMachine, and no other",
    ),
    ("router.add('PUT', 'machine', self.no_proof)", "a machine asks by POST with a quote"),
    ("router.add('POST', 'act', self.proof)", "a POST of machines takes a MachineRequest, and nothing else"),
]


@pytest.mark.threat("T213")
@pytest.mark.parametrize(("line", "why"), WRONG)
def test_a_route_of_machines_looks_at_who_asks(
    site: Path, line: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who forgets it has no route."""
    monkeypatch.setattr(loading, "_is_ours", lambda _: True)
    code = f"    def get_router(self):\n        router = Router()\n        {line}\n        return router\n"
    handlers = """
    async def no_machine(self, request: MachineRequest) -> None:
        "Give."

    async def no_proof(self, machine: AttestedMachine) -> None:
        "Give."

    async def proof(self, request: MachineRequest) -> None:
        "Give."
"""
    head = "from attestation.extension import AttestedMachine, MachineRequest\n" + HEAD
    install(site, "wrong", head + EMPTY.format(name="wrong") + code + handlers)
    with pytest.raises(ExtensionInvalid, match=why):
        create_app(settings_for(site, extensions=("wrong",)))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("prefixes = ('/api/v1/machines/x',)", "has the name of routes of the service"),
        ("prefixes = ('things',)", "which is no path"),
        ("prefixes = ('/healthz',)", "has the name of routes of the service"),
        ("prefixes = 5", "cannot be made: TypeError"),
        ("prefixes = (5,)", "cannot be made: TypeError: 5 is no text"),
        ("tables = ('machines',)", "declares the table machines"),
        ("variables = ['ITL_BROKEN']", "names no variables"),
        ("variables = {'ITL_DB_URL': 'url'}", "takes the variable ITL_DB_URL, which is not for extensions"),
        ("raise ValueError('no')", "cannot be imported: ValueError"),
    ],
)
async def test_what_a_stranger_breaks_is_left_out_and_shown(
    site: Path, start: Starter, more: str, why: str
) -> None:
    """The service runs without it; operators read why."""
    install(site, "broken", HEAD + EMPTY.format(name="broken") + f"    {more}\n")
    service = await start(extensions=("broken",))
    (told,) = (await service.operator("GET", "/extensions")).json()["extensions"]
    assert told["name"] == "broken"
    assert why in told["skipped"]


@pytest.mark.threat("T216")
@pytest.mark.parametrize(
    ("raised", "why"),
    [
        ("ValueError('canary')", "ValueError"),
        ("__import__('asyncio').CancelledError('canary')", "CancelledError"),
        ("type('Panic', (BaseException,), {})('canary')", "Panic"),
        ("OSError(98, 'the port 9 is in use')", "OSError: the port 9 is in use"),
        ("type('ConnectionFailed', (OSError,), {})(1, 'canary')", "ConnectionFailed"),
        ("FileNotFoundError(2, 'No such file', '/kek')", "FileNotFoundError: No such file: /kek"),
    ],
)
async def test_a_stranger_that_cannot_begin_serves_nothing(
    site: Path, start: Starter, raised: str, why: str
) -> None:
    """Its routes say so; the others work. What the system says is told, not what a library does."""
    hook = f"\n    async def on_startup(self, context):\n        raise {raised}\n"
    install(site, "giving", GIVING + hook)
    service = await start(extensions=("giving",))
    (told,) = (await service.operator("GET", "/extensions")).json()["extensions"]
    assert told["skipped"] == f"cannot begin: {why}"
    answer = await service.operator("POST", "/gifts/toy/release")
    assert answer.status_code == 503
    assert "canary" not in answer.text


QUERIED = """def get_query_tables(self):
        from attestation.extension import QueryTable
        from sqlalchemy import literal, select
        return [QueryTable(name="Things", statement=select(literal(1).label("number")))]
"""


@pytest.mark.threat("T215")
@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ("prefixes = ('/api/v1/things',)",) * 2 + ("takes the prefix /api/v1/things, which one has",),
        (
            "prefixes = ('/api/v1/things',)",
            "prefixes = ('/api/v1/things/rewrap',)",
            "takes the prefix /api/v1/things/rewrap, which one has",
        ),
        (
            "prefixes = ('/api/v1/things/of',)",
            "prefixes = ('/api/v1/things',)",
            "takes the prefix /api/v1/things, which one has",
        ),
        ("prefixes = ('/api/v1/things',)", "prefixes = ('/api/v1/things-of',)", None),
        ("cli_groups = ('things',)",) * 2 + ("takes the command group things, which one has",),
        ("events = ('thing.made',)", "events = ('thing.lost',)", "takes events called thing, which one has"),
        ("tables = ('extension_things',)",) * 2 + ("takes the table extension_things, which one has",),
        (
            "tables = ('extension_two_things',)",
            "",
            "cannot be enabled with one: extension_two_things of one is called as those of two",
        ),
        (QUERIED, QUERIED, "takes the table for queries Things, which one has"),
        ("variables = {'ITL_THING': 'x'}",) * 2 + ("takes the variable ITL_THING, which one has",),
    ],
)
def test_two_cannot_have_the_same(site: Path, ours: str, theirs: str, why: str | None) -> None:
    """The second is left out."""
    for name, has in (("one", ours), ("two", theirs)):
        install(site, name, HEAD + EMPTY.format(name=name) + f"    {has}\n")
    found = extensions.load(settings_for(site, extensions=("one", "two")))
    assert found.skipped == ({} if why is None else {"two": why})
    assert [each.name for each in found.extensions] == (["one", "two"] if why is None else ["one"])
