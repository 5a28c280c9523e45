"""Disk keys: who gets one, what a stranger learns, what operators release, and what a copy of the database is worth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import httpx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from attestation.errors import MalformedEvidence, RateLimited, SignerUnavailable
from attestation.keys import create_kek
from attestation.store.sql import Executor
from attestation_extensions import disk_kms
from attestation_extensions.disk_kms import keeping, server
from attestation_extensions.disk_kms.judging import canonical, network_of, peer_address
from attestation_extensions.disk_kms.keeping import OF_ADDRESS, OF_UUID, TOLD_OF_ALL, Keeping, Refused
from attestation_extensions.disk_kms.messages import MAX_BYTES, Request, encode_response, parse_request
from attestation_extensions.disk_kms.sealing import BLOB_BYTES, readings_of
from tests.fixtures import kms
from tests.unit.service.conftest import Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_dual_control import Committee
from tools.ports import free_port

__all__ = ["migrated", "start"]

HERE = "192.0.2.7"
"""Where the machines of `Service` ask from."""
ELSEWHERE = "192.0.2.8"
DISK_KEY = bytes(range(32))
FRESH_SECONDS = 150


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


class Site:
    """A service with the extension, which answers without a listener."""

    def __init__(self, service: Service, keeping: Keeping) -> None:
        self.service, self.keeping = service, keeping

    async def machine(self, **granted: str) -> tuple[SoftwareNode, str]:
        """Return a machine that has just attested, and the UUID of its board."""
        node, board = SoftwareNode(), str(uuid.uuid4())
        await self.service.introduce(node, hw_uuid=board)
        await self.service.act(node, "approve", {"role": "worker-app", **granted})
        await self.service.attest(node)
        return node, board

    async def seal(self, board: str, data: bytes = DISK_KEY, address: str = HERE) -> bytes:
        """Have a disk key sealed."""
        return await self.keeping.seal(Request(node_uuid=board, data=data), address)

    async def unseal(self, board: str, blob: bytes, address: str = HERE) -> bytes:
        """Have it opened."""
        return await self.keeping.unseal(Request(node_uuid=board, data=blob), address)

    async def refused(self, board: str, blob: bytes, address: str = HERE) -> str:
        """Ask in vain; return the reason that operators read, which whoever asked does not."""
        # Of refusals one a minute is written.
        self.service.clock.advance(61)
        with pytest.raises(Refused) as e:
            await self.unseal(board, blob, address)
        assert str(e.value) == "no disk key is given"
        return await self.reason()

    async def reason(self) -> str:
        """Return why the last was refused, as operators read it."""
        (newest, *_) = await self.service.audit(action="kms_refused")
        return str(newest["detail"]).rpartition("reason ")[2]

    async def kms(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Do what operators do; it must succeed."""
        answer = await self.service.operator(method, f"/kms{path}", body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@pytest.fixture
async def begin(start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Start services with the extension."""

    async def stop(_seconds: float) -> None: ...

    kept: list[Keeping] = []

    async def serve(keeping: Keeping, *_: object) -> SimpleNamespace:
        kept.append(keeping)
        return SimpleNamespace(stop=stop)

    monkeypatch.setattr(server, "serve", serve)

    async def begin(
        kek: str = "kek", previous: str = "", fresh_seconds: int = FRESH_SECONDS, **changed: Any
    ) -> Site:
        for name in {kek, previous} - {""}:
            if not (tmp_path / name).exists():
                create_kek(f"file:{tmp_path}/{name}").close()
        values = {
            "ITL_EXT_DISK_KMS_KEK": f"file:{tmp_path}/{kek}",
            "ITL_EXT_DISK_KMS_PREVIOUS_KEKS": f"file:{tmp_path}/{previous}" if previous else "",
            "ITL_EXT_DISK_KMS_ADDRESS": "127.0.0.1:4050",
            "ITL_EXT_DISK_KMS_INSECURE": "true",
            "ITL_EXT_DISK_KMS_FRESH_SECONDS": str(fresh_seconds),
        }
        found = await start(extensions=("disk_kms",), extension_values=values, **changed)
        return Site(found, kept[-1])

    return begin


@pytest.fixture
async def site(begin: Callable[..., Any]) -> Site:
    """A service with the extension."""
    found = await begin()
    assert isinstance(found, Site)
    return found


# Who gets a disk key


@pytest.mark.anyio
@pytest.mark.threat("T241")
async def test_it_goes_where_the_machine_has_just_quoted_from(site: Site) -> None:
    """To that address, for so long; not by a Unix socket, not a moment later."""
    _, board = await site.machine()
    blob = await site.seal(board)
    assert await site.unseal(board.upper(), blob) == DISK_KEY
    assert await site.refused(board, blob, ELSEWHERE) == "other_address"
    assert await site.refused(board, blob, server.NOWHERE) == "other_address"
    site.service.clock.advance(FRESH_SECONDS - 2 * 61 - 1)
    assert await site.unseal(board, blob) == DISK_KEY
    site.service.clock.advance(1)
    with pytest.raises(Refused):
        await site.unseal(board, blob)
    assert await site.reason() == "not_fresh"


@pytest.mark.anyio
@pytest.mark.threat("T241")
async def test_nothing_is_sealed_for_who_has_not_attested(site: Site) -> None:
    """Else a stranger who knows a UUID makes keys, and learns whose it is."""
    node, board = SoftwareNode(), str(uuid.uuid4())
    with pytest.raises(Refused):
        await site.seal(board)
    await site.service.introduce(node, hw_uuid=board)
    with pytest.raises(Refused):
        await site.seal(board)
    await site.service.act(node, "approve", {"role": "worker-app"})
    with pytest.raises(Refused):
        await site.seal(board)
    await site.service.attest(node)
    assert len(await site.seal(board)) == BLOB_BYTES
    with pytest.raises(Refused):
        await site.seal(board, b"short")


@pytest.mark.anyio
@pytest.mark.threat("T242")
@pytest.mark.parametrize("act", ["lock", "revoke"])
async def test_a_lock_reaches_the_disk(site: Site, act: str) -> None:
    """At once, whatever the machine proved a moment ago."""
    node, board = await site.machine()
    blob = await site.seal(board)
    await site.service.act(node, act, {"reason": "stolen"})
    # Revoked, it is admitted no more: nobody has its UUID.
    assert await site.refused(board, blob) == {"lock": "not_attested", "revoke": "unknown"}[act]


@pytest.mark.anyio
@pytest.mark.threat("T242")
async def test_a_lock_between_the_look_and_the_answer_is_noticed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what holds in the unit that writes the answer down."""
    node, board = await site.machine()
    blob = await site.seal(board)
    loop, work = asyncio.get_running_loop(), Keeping._work

    def locked_meanwhile(self: Keeping, *asked: Any) -> Any:
        act = site.service.act(node, "lock", {"reason": "stolen"})
        asyncio.run_coroutine_threadsafe(act, loop).result(20)
        return work(self, *asked)

    monkeypatch.setattr(Keeping, "_work", locked_meanwhile)
    with pytest.raises(Refused):
        await site.unseal(board, blob)


@pytest.mark.anyio
@pytest.mark.threat("T242")
async def test_a_machine_whose_lease_is_over_gets_none(begin: Callable[..., Any]) -> None:
    """Though its quote were fresh enough, and nobody locked it."""
    site = await begin(fresh_seconds=3600)
    _, board = await site.machine()
    blob = await site.seal(board)
    site.service.clock.advance(1800)
    assert await site.refused(board, blob) == "not_verified"


@pytest.mark.anyio
@pytest.mark.threat("T243")
async def test_a_blob_opens_for_its_machine_alone(site: Site) -> None:
    """Not for another that is as well attested, not changed in any byte, not once its key is retired."""
    node, board = await site.machine()
    _, other = await site.machine()
    blob, of_other = await site.seal(board), await site.seal(other)
    assert blob[:9] != of_other[:9]
    assert await site.refused(other, blob) == "not_its_key"
    for at in (0, 1, 8, 9, 21, 53, BLOB_BYTES - 1):
        site.service.clock.advance(15)
        changed = bytearray(blob)
        changed[at] ^= 1
        with pytest.raises(Refused):
            await site.unseal(board, bytes(changed))
    await site.service.attest(node)
    rotated = await site.kms("POST", f"/machines/{node.machine_id}/rotate")
    assert len(rotated["keys"]) == 2
    assert await site.unseal(board, blob) == DISK_KEY
    assert await site.unseal(board, newer := await site.seal(board)) == DISK_KEY
    await site.kms("POST", f"/machines/{node.machine_id}/keys/{blob[1:9].hex()}/retire")
    assert await site.refused(board, blob) == "retired"
    assert await site.unseal(board, newer) == DISK_KEY


@pytest.mark.anyio
@pytest.mark.threat("T243")
async def test_a_key_moved_to_another_machine_opens_nothing(site: Site) -> None:
    """Who writes to the database gives one machine the other's key: its wrapping names whose it is."""
    node, board = await site.machine()
    thief, other = await site.machine()
    blob = await site.seal(board)
    await site.service.store.write(lambda tx: tx.of(Moving).move(node.machine_id, thief.machine_id))
    assert await site.refused(other, blob) == "row_changed"


class Moving:
    """Does what no code of ours does."""

    def __init__(self, sql: Any) -> None:
        self._sql = sql

    def move(self, old: str, new: str) -> None:
        """Let all keys of one machine be another's."""
        self._sql._cursor.execute(
            f"update extension_disk_kms_keys set machine_id = '{new}' where machine_id = '{old}'"
        )


@pytest.mark.anyio
@pytest.mark.threat("T241")
async def test_two_machines_with_one_uuid_get_none(site: Site) -> None:
    """Else who copies a UUID chooses whose standing counts; both ways to read its bytes are one."""
    _, board = await site.machine()
    blob = await site.seal(board)
    twin = SoftwareNode()
    await site.service.introduce(twin, hw_uuid=str(uuid.UUID(bytes_le=uuid.UUID(board).bytes)))
    assert await site.unseal(board, blob) == DISK_KEY  # it is not admitted: nobody yet
    await site.service.act(twin, "approve", {"role": "worker-app"})
    assert await site.refused(board, blob) == "ambiguous"


# What a stranger learns


@pytest.mark.anyio
@pytest.mark.threat("T244")
async def test_a_refusal_costs_what_an_answer_costs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, statements and unwrapped keys are as many for nobody's UUID as for one that is refused."""
    node, board = await site.machine()
    blob = await site.seal(board)
    await site.service.act(node, "lock", {"reason": "stolen"})
    done: list[str] = []
    execute, opened = Executor._execute, next(iter(site.keeping.keks.values()))
    unwrap = opened.unwrap

    class Watched:
        """The database, as this extension asks it: chores ask it too meanwhile."""

        async def read(self, work: Any) -> Any:
            return await site.service.store.read(lambda tx: self._watched(work, tx))

        async def write(self, work: Any) -> Any:
            return await site.service.store.write(lambda tx: self._watched(work, tx))

        def _watched(self, work: Any, tx: Any) -> Any:
            ours.add(threading.get_ident())
            try:
                return work(tx)
            finally:
                ours.discard(threading.get_ident())

    ours: set[int] = set()

    def counted(self: Executor, statement: Any, values: Any) -> Any:
        if threading.get_ident() in ours:
            done.append(str(statement.compiled("sqlite").text))
        return execute(self, statement, values)

    def unwrapped(wrapped: bytes, aad: bytes) -> bytes:
        done.append("unwrap")
        return unwrap(wrapped, aad)

    monkeypatch.setattr(Executor, "_execute", counted)
    monkeypatch.setattr(type(opened), "unwrap", lambda _self, *asked: unwrapped(*asked))
    site.keeping = replace(site.keeping, store=cast("Any", Watched()))
    costs = []
    for each, data in ((board, blob), (str(uuid.uuid4()), blob), (board, b"x"), (str(uuid.uuid4()), b"x")):
        site.service.clock.advance(61)
        done.clear()
        with pytest.raises(Refused) as e:
            await site.unseal(each, data)
        assert str(e.value) == "no disk key is given"
        costs.append([*done])
    assert costs[0].count("unwrap") == 1
    assert costs[1:] == costs[:1] * 3


@pytest.mark.anyio
@pytest.mark.threat("T244")
async def test_a_refusal_is_not_told_at_once() -> None:
    """What the work took is lost in what all of them wait."""

    class Call:
        told: tuple[Any, str] | None = None

        def peer(self) -> str:
            return "ipv4:192.0.2.7:4711"

        async def abort(self, *told: Any) -> None:
            self.told = told
            raise asyncio.CancelledError

    async def refuse(_request: Request, _address: str) -> bytes:
        raise Refused("no disk key is given")

    loop, call = asyncio.get_running_loop(), Call()
    began = loop.time()
    with pytest.raises(asyncio.CancelledError):
        await server._answer(refuse, b"", cast("Any", call))
    assert loop.time() - began >= server.REFUSED_SECONDS
    assert call.told == (grpc.StatusCode.PERMISSION_DENIED, server.DENIED)


@pytest.mark.anyio
@pytest.mark.threat("T248")
async def test_who_asks_too_often_is_told_so_and_fills_no_log(site: Site) -> None:
    """One refusal a minute is written for each UUID; a flood from elsewhere does not keep the machine from its key."""
    _, board = await site.machine()
    blob = await site.seal(board)
    for _ in range(OF_UUID.requests):
        with pytest.raises(Refused):
            await site.unseal(board, blob, ELSEWHERE.replace("192", "198"))
    with pytest.raises(RateLimited):
        await site.unseal(board, blob, ELSEWHERE.replace("192", "198"))
    assert len(await site.service.audit(action="kms_refused")) == 1
    assert await site.unseal(board, blob) == DISK_KEY


@pytest.mark.anyio
@pytest.mark.threat("T248")
async def test_strangers_do_not_silence_a_machine_that_waits(site: Site) -> None:
    """However many refusals of nobody were told of by now: an operator is to look at this one."""
    machine, board = await site.machine()
    blob = await site.seal(board)
    await site.kms("POST", "/holds", {"scope": "machine", "subject": machine.machine_id})
    for number in range(TOLD_OF_ALL.requests + 1):
        with pytest.raises(Refused):
            await site.unseal(str(uuid.uuid4()), b"x", f"198.51.100.{number}")
    # Not by `refused`, which lets a minute pass: by then one more may be told of.
    with pytest.raises(Refused):
        await site.unseal(board, blob)
    assert await site.reason() == "held"


@pytest.mark.anyio
@pytest.mark.threat("T244")
async def test_a_kek_that_is_away_tells_no_stranger_of_a_machine(
    begin: Callable[..., Any], tmp_path: Path
) -> None:
    """Whose key lies under a KEK on a token that does not answer is refused as nobody is; the machine learns it."""
    site = await begin()
    _, board = await site.machine()
    blob = await site.seal(board)
    (away,) = site.keeping.keks.values()
    newest = create_kek(f"file:{tmp_path}/newest")

    class Away:
        key_id = away.key_id

        def unwrap(self, _wrapped: bytes, _aad: bytes) -> bytes:
            raise SignerUnavailable("the token does not answer")

    keks = cast("Any", {newest.key_id: newest, away.key_id: Away()})
    decoy = keeping.decoy(newest, site.service.clock.now())
    site.keeping = replace(site.keeping, keks=keks, newest=newest.key_id, decoy=decoy)
    for each in (board, str(uuid.uuid4())):
        with pytest.raises(Refused):
            await site.seal(each, address=ELSEWHERE)
        with pytest.raises(Refused):
            await site.unseal(each, blob, ELSEWHERE)
    with pytest.raises(SignerUnavailable):
        await site.unseal(board, blob)


@pytest.mark.anyio
@pytest.mark.threat("T248")
async def test_who_opens_calls_and_sends_nothing_keeps_nobody_from_a_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls without a message take no place, and end."""
    monkeypatch.setattr(server, "READ_SECONDS", 0.5)

    async def give(request: Request, _address: str) -> bytes:
        return request.data

    address = f"127.0.0.1:{free_port()}"
    serving = await server.serve(cast("Any", SimpleNamespace(seal=give, unseal=give)), address, None)
    method = f"/{server.SERVICE}/Seal"
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(serving.stop, 0)
        empty = []
        for _ in range(server.AT_ONCE // 8 + 1):
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options))
            empty += [channel.stream_unary(method)() for _ in range(8)]
        await asyncio.gather(*(each.wait_for_connection() for each in empty))
        node = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        asked = kms.Request(node_uuid=str(uuid.uuid4()), data=b"x").SerializeToString()
        answer = await node.unary_unary(method)(asked)
        assert kms.Response.FromString(answer).data == b"x"
        async with asyncio.timeout(60):
            assert {await each.code() for each in empty} == {grpc.StatusCode.INVALID_ARGUMENT}
        with pytest.raises(grpc.aio.AioRpcError) as e:
            await node.stream_unary(method)(iter((asked, asked)))
        assert e.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.anyio
@pytest.mark.threat("T248")
async def test_one_address_asks_so_often_whatever_uuids_it_says(site: Site) -> None:
    """Who tries UUIDs is slowed down; a machine elsewhere is not."""
    _, board = await site.machine()
    for _ in range(OF_ADDRESS.requests):
        with pytest.raises(Refused):
            await site.unseal(str(uuid.uuid4()), bytes(69), ELSEWHERE)
    with pytest.raises(RateLimited):
        await site.unseal(str(uuid.uuid4()), bytes(69), ELSEWHERE)
    assert await site.seal(board)


@pytest.mark.anyio
@pytest.mark.threat("T241")
async def test_who_has_no_address_is_nobody(site: Site) -> None:
    """Not even where the machine quoted over a Unix socket too: all who ask there would be it."""
    node, board = await site.machine()
    blob = await site.seal(board)

    def quoted(tx: Any) -> None:
        tx.machines.update(tx.machines.require(node.machine_id), last_result_from="unix")

    site.service.store.write_sync(quoted)
    with pytest.raises(Refused):
        await site.unseal(board, blob, "unix")


@pytest.mark.anyio
@pytest.mark.threat("T248")
async def test_who_connects_and_says_nothing_leaves_files_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has so many connections of nodes; who comes beyond them is sent away before it costs more."""
    most = ("grpc.max_allowed_incoming_connections", server.CONNECTIONS)
    options = tuple((name, 4) if (name, value) == most else (name, value) for name, value in server.OPTIONS)
    monkeypatch.setattr(server, "OPTIONS", options)
    host, port = "127.0.0.1", free_port()
    serving = await server.serve(cast("Any", SimpleNamespace(seal=None, unseal=None)), f"{host}:{port}", None)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(serving.stop, 0)
        sent_away = 0
        for _ in range(10):
            reader, writer = await asyncio.open_connection(host, port)
            stack.callback(writer.close)
            try:
                async with asyncio.timeout(60):
                    said = await reader.read(1)  # the first of its settings, where it is taken
            except ConnectionError:
                said = b""
            sent_away += said == b""
        assert sent_away == 6


# What operators do


@pytest.mark.anyio
async def test_what_operators_do_is_audited(site: Site) -> None:
    """Each act once, by its name, with the machine that it was about."""
    node, *_ = await held(site)
    machine, hold = f"/machines/{node.machine_id}", f"/holds/machine/{node.machine_id}"
    (key,) = (await site.kms("GET", f"{machine}/keys"))["keys"]
    await site.kms("POST", f"{machine}/release", {})
    await site.kms("POST", f"{hold}/end")
    await site.kms("POST", f"{machine}/rotate")
    await site.kms("POST", f"{machine}/keys/{key['key_id']}/retire")
    await site.kms("POST", "/rewrap")
    told = [each for each in await site.service.audit() if each["action"].startswith("kms_")]
    acts = ["hold", "release", "unhold", "rotate", "retire", "rewrap"]
    done = [each for each in reversed(told) if each["action"].removeprefix("kms_") in acts]
    assert [each["action"] for each in done] == [f"kms_{each}" for each in acts]
    assert {each["machine_id"] for each in done[:-1]} == {node.machine_id}


async def held(site: Site, **granted: str) -> tuple[SoftwareNode, str, bytes]:
    """Return a machine that waits for an operator, its UUID and its blob."""
    node, board = await site.machine(**granted)
    blob = await site.seal(board)
    await site.kms("POST", "/holds", {"scope": "machine", "subject": node.machine_id})
    assert await site.refused(board, blob) == "held"
    return node, board, blob


@pytest.mark.anyio
@pytest.mark.threat("T245")
async def test_a_release_counts_once_and_soon(site: Site) -> None:
    """The machine waits and is shown; of two that race for one release one is refused; in the end it is over."""
    node, board, blob = await held(site)
    (waiting,) = (await site.kms("GET", "/holds"))["waiting"]
    assert (waiting["machine_id"], waiting["source_ip"], waiting["uses"]) == (node.machine_id, HERE, 0)
    await site.kms("POST", f"/machines/{node.machine_id}/release", {})
    both = await asyncio.gather(site.unseal(board, blob), site.unseal(board, blob), return_exceptions=True)
    assert sorted(type(each).__name__ for each in both) == ["Refused", "bytes"]
    assert await site.refused(board, blob) == "held"
    await site.kms("POST", f"/machines/{node.machine_id}/release", {"uses": 2})
    await site.service.attest(node)
    assert [await site.unseal(board, blob) for _ in range(2)] == [DISK_KEY] * 2
    assert (await site.kms("GET", "/holds"))["waiting"] == []  # it has what it waited for
    assert await site.refused(board, blob) == "held"
    await site.kms("POST", f"/machines/{node.machine_id}/release", {"uses": 1})
    site.service.clock.advance(600)
    await site.service.attest(node)
    assert await site.refused(board, blob) == "held"
    await site.kms("POST", f"/holds/machine/{node.machine_id}/end")
    assert await site.unseal(board, blob) == DISK_KEY
    assert (await site.kms("GET", "/holds"))["waiting"] == []
    actions = [each["action"] for each in await site.service.audit() if each["action"].startswith("kms_")]
    assert actions.count("kms_release") == 3
    assert actions[:2] == ["kms_unseal", "kms_unhold"]


@pytest.mark.anyio
@pytest.mark.threat("T245")
async def test_a_release_is_no_pass(site: Site) -> None:
    """What is asked of everybody is asked of who is released; a whole cluster can be held."""
    node, board, blob = await held(site)
    await site.kms("POST", f"/machines/{node.machine_id}/release", {})
    assert await site.refused(board, blob, ELSEWHERE) == "other_address"
    assert await site.unseal(board, blob) == DISK_KEY
    await site.kms("POST", f"/holds/machine/{node.machine_id}/end")
    cluster = (await site.service.detail(node))["cluster_id"]
    await site.kms("POST", "/holds", {"scope": "cluster", "subject": cluster})
    await site.service.attest(node)
    assert await site.refused(board, blob) == "held"
    unknown = await site.service.operator("POST", f"/kms/machines/{uuid.uuid4()}/release", {})
    assert unknown.status_code == 404


@pytest.mark.anyio
@pytest.mark.threat("T245")
async def test_a_release_is_for_where_it_asked_from(site: Site) -> None:
    """That is what operators agreed to: a machine that quotes from elsewhere waits again, and that takes it back."""
    node, board, blob = await held(site)
    await site.kms("POST", f"/machines/{node.machine_id}/release", {"uses": 2})
    transport = cast("Any", site.service.http)._transport
    transport.client = (ELSEWHERE, 4711)
    await site.service.attest(node)
    assert await site.refused(board, blob, ELSEWHERE) == "held"
    (waiting,) = (await site.kms("GET", "/holds"))["waiting"]
    assert (waiting["source_ip"], waiting["uses"]) == (ELSEWHERE, 0)
    transport.client = (HERE, 4711)
    await site.service.attest(node)
    assert await site.refused(board, blob) == "held"


@pytest.mark.anyio
@pytest.mark.threat("T245")
async def test_two_release_where_the_role_asks_for_two(begin: Callable[..., Any]) -> None:
    """One operator's word releases nothing, nor ends the hold."""
    site = await begin(dual_control_roles=("controlplane",))
    committee = Committee(site.service)
    node, board = SoftwareNode(), str(uuid.uuid4())
    await site.service.introduce(node, hw_uuid=board)
    await committee.act(node, "approve", {"role": "controlplane", "accept_ek": True})
    await site.service.attest(node)
    blob = await site.seal(board)
    hold = {"scope": "machine", "subject": node.machine_id}
    assert (await committee.ask("one", "POST", "/kms/holds", hold)).status_code == 200
    assert await site.refused(board, blob) == "held"
    for path, body in (
        (f"/kms/machines/{node.machine_id}/release", {}),
        (f"/kms/holds/machine/{node.machine_id}/end", None),
    ):
        first: httpx.Response = await committee.ask("one", "POST", path, body)
        assert first.status_code == 202, first.text
        assert (await committee.ask("one", "POST", path, body)).status_code == 202
        with pytest.raises(Refused):
            await site.unseal(board, blob)
        assert (await committee.ask("two", "POST", path, body)).status_code == 200
        assert await site.unseal(board, blob) == DISK_KEY
    # They agree to one address: what one of them saw before it changed is no vote for the other.
    await committee.ask("one", "POST", "/kms/holds", hold)
    path = f"/kms/machines/{node.machine_id}/release"
    transport = cast("Any", site.service.http)._transport
    for name, address in (("one", HERE), ("two", ELSEWHERE)):
        transport.client = (address, 4711)
        await site.service.attest(node)
        assert await site.refused(board, blob, address) == "held"
        transport.client = (HERE, 4711)
        assert (await committee.ask(name, "POST", path, {})).status_code == 202
    await site.service.attest(node)
    for name in ("one", "two"):
        await committee.ask(name, "POST", f"/kms/holds/machine/{node.machine_id}/end")
    # A cluster may have machines of any role.
    cluster = (await site.service.detail(node))["cluster_id"]
    await committee.ask("one", "POST", "/kms/holds", {"scope": "cluster", "subject": cluster})
    path = f"/kms/holds/cluster/{cluster}/end"
    assert (await committee.ask("one", "POST", path)).status_code == 202
    with pytest.raises(Refused):
        await site.unseal(board, blob)
    assert (await committee.ask("two", "POST", path)).status_code == 200
    assert await site.unseal(board, blob) == DISK_KEY


# What is kept


@pytest.mark.anyio
@pytest.mark.threat("T246")
async def test_a_copy_of_the_database_opens_nothing(
    site: Site, begin: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No disk key and no machine's key stands in it, nor in a log or an event; under another KEK nothing opens."""
    _, board = await site.machine()
    canary = secrets.token_bytes(32)
    blob = await site.seal(board, canary)
    assert await site.unseal(board, blob) == canary
    kept = b"".join((tmp_path / f"machines.db{end}").read_bytes() for end in ("", "-wal"))
    told = "".join(capsys.readouterr()) + json.dumps(await site.service.audit())
    for form in (canary, canary.hex().encode(), blob):
        assert form not in kept
        assert form.hex() not in told
    other = await begin(kek="another")
    with pytest.raises(Refused):
        await other.unseal(board, blob)
    assert await other.reason() == "kek_missing"


@pytest.mark.anyio
@pytest.mark.threat("T246")
async def test_a_new_kek_takes_over_what_lay_under_the_old(begin: Callable[..., Any]) -> None:
    """Wrapped anew at the start; then the old one is not needed any more, and the disks open as before."""
    site = await begin(kek="old")
    _, board = await site.machine()
    blob = await site.seal(board)
    both = await begin(kek="new", previous="old")
    for _ in range(100):
        rows = await both.service.store.read(lambda tx: tx.of(Kept).keks())
        if rows == {both.keeping.newest}:
            break
        await asyncio.sleep(0.05)
    assert await both.unseal(board, blob) == DISK_KEY
    assert await both.kms("POST", "/rewrap") == {"rewrapped": 0, "unreachable": 0}
    assert await site.kms("POST", "/rewrap") == {
        "rewrapped": 0,
        "unreachable": 1,
    }  # it does not know the new one
    new = await begin(kek="new")
    assert await new.unseal(board, blob) == DISK_KEY


class Kept:
    """Looks at the table."""

    def __init__(self, sql: Any) -> None:
        self._sql = sql

    def keks(self) -> set[str]:
        """Return the names of the KEKs that keys lie under."""
        self._sql._cursor.execute("select distinct kek_id from extension_disk_kms_keys")
        return {row[0] for row in self._sql._cursor.fetchall()}


# The messages


FIELDS = st.one_of(
    st.tuples(st.just(0x0A), st.binary(max_size=40)),
    st.tuples(st.just(0x12), st.binary(max_size=80)),
    st.tuples(st.sampled_from([0x1A, 0x22, 0x7A]), st.binary(max_size=8)),
)


@given(text=st.text(max_size=60), data=st.binary(max_size=200))
def test_what_their_compiler_writes_we_read(text: str, data: bytes) -> None:
    """And what we write, it reads."""
    written = kms.Request(node_uuid=text, data=data).SerializeToString()
    assert parse_request(written) == Request(node_uuid=text, data=data)
    assert kms.Response.FromString(encode_response(data)).data == data
    assert encode_response(data) == kms.Response(data=data).SerializeToString()


@pytest.mark.threat("T247")
@given(
    data=st.one_of(
        st.binary(max_size=200),
        st.lists(FIELDS, max_size=6).map(lambda found: b"".join(bytes([t, len(v)]) + v for t, v in found)),
    )
)
def test_whatever_we_read_they_read_alike(data: bytes) -> None:
    """What we accept, protobuf accepts, with the same members; the rest is our one error."""
    try:
        found = parse_request(data)
    except MalformedEvidence:
        return
    try:
        theirs = kms.Request.FromString(data)
    except DecodeError:
        pytest.fail("only we read it")
    assert (found.node_uuid, found.data) == (theirs.node_uuid, theirs.data)


@pytest.mark.threat("T247")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x0a\x01a\x0a\x01b", "field 1 is there twice"),
        (b"\x12\x01a\x12\x01a", "field 2 is there twice"),
        (b"\x08\x01", "field 1 has wire type 0"),
        (b"\x15\0\0\0\0", "field 2 has wire type 5"),
        (b"\x0a\x05abc", "ends behind its message"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "ends behind its message"),
        (b"\x8a\x00\x01a", "more bytes than it needs"),
        (b"\x0a\x81\x00a", "more bytes than it needs"),
        (b"\x0a\x01\xff", "no UTF-8"),
        (b"\x02\x00", "the number 0, not one from 1"),
        (b"\x1b\x1c", "wire type 3"),
        (b"\xff" * 11, "does not end"),
        (b"\x18" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x1a\x00" * 17, "at most 16 fields"),
        (b"\x1a\x00" + bytes(MAX_BYTES), f"at most {MAX_BYTES} bytes"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes, words: str) -> None:
    """Each by its name."""
    with pytest.raises(MalformedEvidence, match=words):
        parse_request(data)


@pytest.mark.threat("T247")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x" * 36,
        "0" * 8 + "-0000-0000-0000-" + "0" * 12,
        "f" * 8 + "-ffff-ffff-ffff-" + "f" * 12,
        "{4c4c4544-0042-3510-8052-b4c04f4d3132",
        "4c4c4544004235108052b4c04f4d31320000",
        "٤" * 36,
    ],
)
def test_what_is_no_uuid_of_a_board_is_refused(text: str) -> None:
    """Also those that stand for no board."""
    with pytest.raises(ValueError, match=r"UUID|uuid|hexadecimal"):
        readings_of(text)


def test_addresses_have_one_spelling() -> None:
    """As gRPC names who asks, and as the machine was seen."""
    assert peer_address("ipv4:192.0.2.1:4711") == "192.0.2.1"
    assert peer_address("ipv6:%5B::ffff:192.0.2.1%5D:4711") == "192.0.2.1"
    assert peer_address("ipv6:[2001:DB8:0::1]:4711") == "2001:db8::1"
    assert peer_address("unix:/run/kms") is None
    assert canonical("fe80::1%eth0") == "fe80::1"
    assert network_of("2001:db8:1:2:3::1") == network_of("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert network_of("192.0.2.1") == "192.0.2.1"


@pytest.mark.anyio
async def test_keys_that_stay_behind_are_one_line_of_the_log(
    begin: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one for each machine of a fleet and each worker."""
    site = await begin(kek="old")
    for _ in range(2):
        await site.seal((await site.machine())[1])
    newer = await begin(kek="newer")
    capsys.readouterr()
    assert await newer.kms("POST", "/rewrap") == {"rewrapped": 0, "unreachable": 2}
    told = [line for line in capsys.readouterr().err.splitlines() if '"error"' in line]
    assert told  # of the start, of the request, or of both
    assert all("disk_kms.not_rewrapped" in each and '"keys":2' in each.replace(" ", "") for each in told)


@pytest.mark.anyio
async def test_wrapping_anew_that_fails_at_the_start_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else operators would take the former KEK away."""
    made = disk_kms.DiskKMS(disk_kms.Settings(address="127.0.0.1:1", kek="file:/new", insecure=True))

    async def away() -> tuple[int, int]:
        raise OSError("the database is away")

    monkeypatch.setattr(made, "rewrap", away)
    with capture_logs() as told:
        await made._rewrap_at_start()
    assert told == [{"event": "disk_kms.not_rewrapped", "reason": "OSError", "log_level": "error"}]


@pytest.mark.anyio
async def test_the_keys_are_let_go_of_after_a_round_that_broke() -> None:
    """A round of wrapping anew that broke leaves no device and no port open."""
    closed: list[str] = []

    async def broken() -> None:
        raise OSError("the database is away")

    async def stop(_seconds: float) -> None:
        closed.append("server")

    made = disk_kms.DiskKMS(disk_kms.Settings(address="127.0.0.1:1", kek="file:/new", insecure=True))
    made._rewrapping, made._server = asyncio.create_task(broken()), SimpleNamespace(stop=stop)
    made._keks = {"k": cast("Any", SimpleNamespace(close=lambda: closed.append("kek")))}
    await asyncio.sleep(0)
    await made.on_shutdown()
    assert closed == ["server", "kek"]
