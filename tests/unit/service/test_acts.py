"""An act is done once or not at all, and whoever asks again learns which (docs/adr/0070)."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Scope

from attestation.errors import DeadlineExceeded
from attestation.store import ACT_KEPT, ACTS_OF_ONE, Store
from attestation_service.auth import Duty, Operator
from attestation_service.operators import acts
from tests.unit.service.conftest import OPERATOR, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import introduce
from tests.unit.service.test_operator_certificates import desk_at, wanted
from tests.unit.service.test_policies import a_policy
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

TOKEN = {"role": "worker-app", "uses": 1, "expires_in_seconds": 3600}
EK = "ab" * 48
WORKERS = "/policies/assignments/role/worker-app"


def under(key: str, **more: str) -> dict[str, str]:
    """Return headers of an act."""
    return {"Idempotency-Key": f'"{key}"', **more}


def rows(service: Service) -> list[tuple[Any, ...]]:
    """Return the acts that are remembered."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        return db.execute("SELECT status, answer FROM acts ORDER BY done_at, number").fetchall()


@contextmanager
def locked(service: Service) -> Iterator[None]:
    """Let another program keep the database locked."""
    with closing(sqlite3.connect(service.directory / "machines.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@dataclass
class Twice:
    """Asks for each act twice with one key."""

    service: Service
    keys: Iterator[int] = field(default_factory=itertools.count)

    async def __call__(
        self, method: str, path: str, body: Any = None, *, kept: bool = True
    ) -> httpx.Response:
        """Ask, and ask again: nothing is done the second time, and the answer is the first one's."""
        headers = under(f"act-{next(self.keys)}")
        first = await self.service.operator(method, path, body, headers=headers)
        assert first.is_success, first.text
        assert "idempotent-replayed" not in first.headers
        done = (await self.service.audit())[0]
        entry = first.headers["itl-audit-entry"]
        by_operator = [e["id"] for e in await self.service.audit() if e["operator_cn"] == done["operator_cn"]]
        assert int(entry) in by_operator[:3], f"{path}: the answer names an entry of something else"
        second = await self.service.operator(method, path, body, headers=headers)
        assert (await self.service.audit())[0] == done, f"{path}: done again"
        if kept:
            assert (second.status_code, second.content) == (first.status_code, first.content), path
            assert second.headers["idempotent-replayed"] == "true"
            assert second.headers["itl-audit-entry"] == entry
            assert second.headers.get("content-type") == first.headers.get("content-type")
        else:
            assert code(second) == "answer-not-kept", second.text
        return first


@pytest.fixture
async def attested(service: Service) -> SoftwareNode:
    """Return a machine that may be locked."""
    node = SoftwareNode()
    await service.admitted(node)
    return node


@pytest.mark.threat("T169")
async def test_every_act_is_done_once(service: Service, attested: SoftwareNode) -> None:
    """Whatever the act is: asked for twice with one key, it is done once, and answered alike."""
    twice = Twice(service)
    at = f"/machines/{attested.machine_id}"
    await twice("POST", f"{at}/lock", {"reason": "why"})
    await twice("POST", f"{at}/unlock")
    await twice("POST", f"{at}/role", {"role": "worker-infra", "reason": "moved"})
    await twice("POST", f"{at}/redeliver")
    await twice("POST", f"{at}/ak-reset", {"reason": "reinstalled"})
    new, other = SoftwareNode(), SoftwareNode()
    await service.introduce(new)
    await twice("POST", f"{at}/replace", {"new": new.machine_id, "reason": "broken"})
    await service.introduce(other)
    await twice("POST", f"/machines/{other.machine_id}/reject", {"reason": "unknown"})
    await twice("DELETE", f"/machines/{other.machine_id}")
    await service.introduce(other)
    await twice("POST", f"/machines/{other.machine_id}/approve", {"role": "worker-app"})
    await twice("POST", f"/machines/{other.machine_id}/revoke", {"wipe": True})
    token = (await twice("POST", "/registration-tokens", TOKEN, kept=False)).json()
    await twice("DELETE", f"/registration-tokens/{token['token_id']}")
    await twice("POST", "/allow-list", {"entries": [{"ek_fingerprint": EK, "role": "worker-app"}]})
    await twice("DELETE", f"/allow-list/{EK}")
    await twice("POST", "/policies", a_policy(name="app"))
    await twice("POST", "/policies", a_policy(2, name="app"))
    await twice("PUT", WORKERS, {"policy": "app@1"})
    await twice("PUT", WORKERS, {"policy": "app@2"})
    await twice("POST", f"{WORKERS}/rollback")
    await twice("POST", f"{WORKERS}/rollback")
    await twice("DELETE", WORKERS)


async def test_acts_of_several_units(start: Starter) -> None:
    """A certificate takes two units and a signature: asked for twice it is issued once, and the second is told so."""
    desk = await desk_at(start)
    headers, body = desk.people.headers("grace") | under("one"), wanted()
    first = await desk.service.post("/api/v1/operator-certificates", body, headers=headers)
    assert first.status_code == 201, first.text
    second = await desk.service.post("/api/v1/operator-certificates", body, headers=headers)
    assert (second.status_code, code(second)) == (409, "answer-not-kept")
    assert first.json()["serial"] in second.json()["detail"]
    issued = await desk.service.audit(action="cert_issued")
    assert [e["operator_cn"] for e in issued].count("grace") == 1


async def test_a_vote_is_an_act(start: Starter) -> None:
    """Who votes twice with one key gets the first answer, also where the other vote came meanwhile."""
    desk = await desk_at(start, dual_control_roles="controlplane")
    token = {**TOKEN, "role": "controlplane"}

    async def ask(who: str, key: str) -> httpx.Response:
        headers = desk.people.headers(who) | under(key)
        return await desk.service.post("/api/v1/registration-tokens", token, headers=headers)

    pending = await ask("anna", "a")
    assert pending.status_code == 202
    assert (await ask("bert", "b")).status_code == 201
    again = await ask("anna", "a")
    assert (again.status_code, again.content) == (202, pending.content)
    assert len(await desk.service.audit(action="token_issued")) == 1
    assert len(await desk.service.audit(action="approve_vote")) == 2


@pytest.mark.threat("T169")
async def test_a_secret_is_not_remembered(service: Service) -> None:
    """The secret of a token stands in no row; who asks again is told which token was made."""
    headers = under("token")
    made = (await service.operator("POST", "/registration-tokens", TOKEN, headers=headers)).json()
    again = await service.operator("POST", "/registration-tokens", TOKEN, headers=headers)
    assert (again.status_code, code(again)) == (409, "answer-not-kept")
    assert f"token_issued: registration token {made['token_id']}" in again.json()["detail"]
    assert made["token"] not in again.text
    assert rows(service) == [(None, None)]
    for file in service.directory.glob("machines.db*"):
        assert made["token"].encode() not in file.read_bytes()


@pytest.mark.threat("T169")
async def test_a_key_belongs_to_one_request(service: Service, attested: SoftwareNode) -> None:
    """The same key with another body, path or method is refused, and nothing is done."""
    at, headers = f"/machines/{attested.machine_id}", under("one")
    assert (await service.operator("POST", f"{at}/lock", {"reason": "a"}, headers=headers)).status_code == 200
    for method, path, body in (
        ("POST", f"{at}/lock", {"reason": "b"}),
        ("POST", f"{at}/unlock", {"reason": "a"}),
        ("DELETE", at, None),
    ):
        answer = await service.operator(method, path, body, headers=headers)
        assert (answer.status_code, code(answer)) == (422, "idempotency-key-reused")
    assert (await service.detail(attested))["status"] == "locked"


@pytest.mark.threat("T169")
async def test_a_key_belongs_to_one_operator(service: Service) -> None:
    """Who chooses the key of another meets nothing of theirs."""
    service.app.state.resources, people = introduce(service.resources)
    for who in ("anna", "bert"):
        headers = people.headers(who) | under("same")
        assert (
            await service.post("/api/v1/registration-tokens", TOKEN, headers=headers)
        ).status_code == 201, who
    assert len(rows(service)) == 2


@pytest.mark.parametrize(
    "value",
    [
        "",
        '""',
        "bare",
        '"open',
        '"with space"',
        '"a"b"',
        '"back\\slash"',
        f'"{"k" * 129}"',
        '"ä"',
        '"a";p',
        '"a", "b"',
    ],
)
async def test_a_key_that_is_none(service: Service, value: str) -> None:
    """A header that is not one short string is refused, and nothing is done."""
    headers: Any = OPERATOR | {"Idempotency-Key": value.encode()}
    answer = await service.http.post("/api/v1/registration-tokens", json=TOKEN, headers=headers)
    assert (answer.status_code, code(answer)) == (400, "malformed-request")
    assert (await service.operator("GET", "/registration-tokens")).json()["items"] == []


async def test_two_keys_are_none(service: Service) -> None:
    """Two headers say two things."""
    headers = [*OPERATOR.items(), ("Idempotency-Key", '"a"'), ("Idempotency-Key", '"a"')]
    answer = await service.http.post("/api/v1/registration-tokens", json=TOKEN, headers=headers)
    assert (answer.status_code, code(answer)) == (400, "malformed-request")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e3", "1000000", "", "soon"])
async def test_a_deadline_that_is_none(service: Service, value: str) -> None:
    """Milliseconds are a short number."""
    answer = await service.operator("POST", "/registration-tokens", TOKEN, headers={"Itl-Deadline-Ms": value})
    assert (answer.status_code, code(answer)) == (400, "malformed-request")


@pytest.mark.threat("T169")
async def test_what_was_refused_is_judged_anew(service: Service) -> None:
    """A refusal changed nothing: the same key does the act as soon as it is possible."""
    node, headers = SoftwareNode(), under("one")
    await service.introduce(node)
    path = f"/machines/{node.machine_id}/lock"
    assert code(await service.operator("POST", path, headers=headers)) == "transition-forbidden"
    assert len(await service.audit(action="denied")) == 1
    assert rows(service) == []
    await service.act(node, "approve", {"role": "worker-app"})
    await service.attest(node)
    assert (await service.operator("POST", path, headers=headers)).status_code == 200


@pytest.mark.threat("T169")
async def test_strangers_leave_no_row(service: Service) -> None:
    """Who is unknown, or may only look, is refused before their key is looked at."""
    service.app.state.resources, people = introduce(service.resources)
    nobody = {"Authorization": "Bearer wrong", "Content-Type": "application/json"}
    for headers, status in ((nobody, 401), (people.headers("vera", Duty.VIEWER), 403)):
        for key in ("k", "not\\one"):
            answer = await service.post("/api/v1/registration-tokens", TOKEN, headers=headers | under(key))
            assert answer.status_code == status
    assert rows(service) == []


@pytest.mark.threat("T169")
async def test_asked_for_at_once(service: Service, attested: SoftwareNode) -> None:
    """While one request carries it out, the same key is told to come again; it happened once."""
    url, headers = f"/api/v1/machines/{attested.machine_id}/lock", people_of(service) | under("one")
    with locked(service):
        asking = [asyncio.create_task(service.post(url, {}, headers=headers)) for _ in range(3)]
        for refused in itertools.islice(asyncio.as_completed(asking), 2):
            await refused
    answers = [await each for each in asking]
    codes = sorted("done" if answer.is_success else code(answer) for answer in answers)
    assert codes == ["act-in-progress", "act-in-progress", "done"]
    assert (await service.post(url, {}, headers=headers)).status_code == 200
    assert len(await service.audit(action="lock")) == 1
    assert service.resources.running == set()


@pytest.mark.threat("T169")
async def test_asked_for_at_once_of_two_processes(
    start: Starter, service: Service, attested: SoftwareNode
) -> None:
    """Two processes that both find the key unknown come to the write lock one after the other: done once."""
    other = await start()
    path, headers = f"/machines/{attested.machine_id}/lock", under("one")
    with locked(service):
        asking = [
            asyncio.create_task(each.operator("POST", path, headers=headers)) for each in (service, other)
        ]
        await asyncio.sleep(0.2)
    one, two = [await each for each in asking]
    assert (one.status_code, one.content) == (200, two.content)
    assert len(await service.audit(action="lock")) == 1


@pytest.mark.threat("T169")
async def test_what_waited_too_long_is_not_begun(service: Service, attested: SoftwareNode) -> None:
    """A lock of the database outlasts the caller: the act is refused, and does not happen later."""
    path = f"/machines/{attested.machine_id}/lock"
    node_as = people_of(service)
    with locked(service):
        asking = asyncio.create_task(
            service.post(f"/api/v1{path}", {}, headers=node_as | under("one", **{"Itl-Deadline-Ms": "100"}))
        )
        await asyncio.sleep(0.4)
    answer = await asking
    assert (answer.status_code, code(answer)) == (503, "deadline-exceeded")
    assert (await service.detail(attested))["status"] == "attested"
    assert rows(service) == []
    assert (await service.operator("POST", path, headers=under("one"))).status_code == 200


async def test_what_comes_in_time_is_done(service: Service, attested: SoftwareNode) -> None:
    """The deadline refuses nothing that is begun before it."""
    path = f"/machines/{attested.machine_id}/lock"
    headers = under("one", **{"Itl-Deadline-Ms": "15000"})
    assert (await service.operator("POST", path, headers=headers)).status_code == 200


def people_of(service: Service) -> dict[str, str]:
    """Return the credential of a person: a use of break-glass is a unit of its own, which is not refused."""
    service.app.state.resources, people = introduce(service.resources)
    return people.headers("anna")


@pytest.mark.threat("T169")
async def test_who_has_gone_gets_nothing_done(service: Service, attested: SoftwareNode) -> None:
    """The connection ended while the act waited: it is not begun."""
    path, headers = f"/api/v1/machines/{attested.machine_id}/lock", people_of(service)
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "client": ("192.0.2.7", 4711),
        "server": ("service", 80),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    messages: list[Message] = [
        {"type": "http.request", "body": b"", "more_body": False},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    with locked(service):
        asking = asyncio.create_task(service.app(scope, receive, send))
        await asyncio.sleep(0.2)
    await asking
    assert sent[0]["status"] == 503
    assert b"deadline-exceeded" in sent[1]["body"]
    assert (await service.detail(attested))["status"] == "attested"


async def test_who_had_gone_before_gets_nothing_done(service: Service) -> None:
    """The connection ended before it was known who asks: the first unit is not begun, however soon it comes."""
    messages: list[Message] = [
        {"type": "http.request", "body": b"", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> Message:
        return messages.pop(0)

    class AtOnce:
        """A store that is never waited for."""

        async def write(self, unit: Callable[[Any], object]) -> object:
            return unit(None)

    doing = acts.Doing(status=200, is_silent=False)
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    await doing.permit(request, cast("Operator", None), service.resources)
    with pytest.raises(DeadlineExceeded, match="nothing was done"):
        await doing.write(cast("Store", AtOnce()), lambda _tx: None, service.clock)
    doing.end()


@pytest.mark.threat("T169")
async def test_what_is_remembered_is_bounded(
    service: Service, attested: SoftwareNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day later nothing is remembered, and of one operator never more than so many acts."""
    monkeypatch.setattr("attestation.store.acts.ACTS_OF_ONE", 2)
    for number in range(4):
        await service.operator("POST", "/registration-tokens", TOKEN, headers=under(f"key-{number}"))
    assert len(rows(service)) == 2
    at = service.clock.now() + ACT_KEPT
    assert (await service.store.write(lambda tx: tx.purge(at))).acts == 0
    service.clock.advance(1)
    at = service.clock.now() + ACT_KEPT
    assert (await service.store.write(lambda tx: tx.purge(at))).acts == 2
    assert ACTS_OF_ONE * acts.MOST_KEPT_CHARACTERS < 200 << 20


async def test_a_long_answer_is_not_kept(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would fill the table can be asked for elsewhere; that it was done is remembered all the same."""
    monkeypatch.setattr(acts, "MOST_KEPT_CHARACTERS", 100)
    await Twice(service)("POST", "/policies", a_policy(name="app"), kept=False)


async def test_without_a_key_nothing_is_remembered(service: Service) -> None:
    """As before: two requests are two acts."""
    for _ in range(2):
        assert (await service.operator("POST", "/registration-tokens", TOKEN)).status_code == 201
    assert rows(service) == []


@pytest.mark.threat("T169")
async def test_what_fails_is_not_remembered(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act and key are one unit: where the act is undone, nobody is told that it was done."""

    def fail(*_: Any) -> None:
        raise RuntimeError("after the act, before the key")

    with monkeypatch.context() as patched:
        patched.setattr("attestation.store.acts.Acts.put", fail)
        answer = await service.operator("POST", "/registration-tokens", TOKEN, headers=under("one"))
        assert answer.status_code == 500
    assert (await service.operator("GET", "/registration-tokens")).json()["items"] == []
    assert rows(service) == []
    answer = await service.operator("POST", "/registration-tokens", TOKEN, headers=under("one"))
    assert answer.status_code == 201
