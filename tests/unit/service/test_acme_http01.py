"""http-01: a host name that an operator gave, looked at where the service may go, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from attestation_service.acme import http01
from tests.fixtures.acme_client import Client, Problem, csr_for, thumbprint
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_acme import SETTINGS, client_of

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def host(answer: Callable[[str], bytes]) -> AsyncIterator[tuple[int, list[str]]]:
    """Answer HTTP on a port of this computer with what *answer* says to the head of a request; yield what was asked."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer(asked[-1]))
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], asked


def ok(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return an answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class World:
    """A service, a machine called app-1.example, and an account that has an order for it."""

    def __init__(self, service: Service, node: SoftwareNode, client: Client) -> None:
        self.service, self.node, self.client = service, node, client

    async def ordered(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return URL, order and challenge of a new order."""
        place, order = await self.client.order("App-1.example", "dns")
        return place, order, await self.client.challenge(order)

    async def answered(self) -> dict[str, Any]:
        """Answer the challenge of a new order, and return it."""
        _, _, challenge = await self.ordered()
        return dict((await self.client.post(challenge["url"], {})).json())


async def world(start: Starter, port: int, networks: str = "127.0.0.0/8", **more: Any) -> World:
    """Make a world whose hosts answer on *port*."""
    chosen = {"acme_http_networks": networks, "acme_http_port": port} | more
    service = await start(tpm_ca_bundle_dir=start.bundle(), **SETTINGS | chosen)
    node = SoftwareNode()
    await service.admitted(node, hostname="app-1.example", assigned_ip="10.0.0.7/24")
    return World(service, node, await client_of(service))


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the host name leads to."""
    found = ["127.0.0.1"]

    async def resolve(_hostname: str, _port: int) -> list[str]:
        return found

    monkeypatch.setattr(http01, "resolve", resolve)
    return found


async def test_a_server_certificate_by_http_01(start: Starter, addresses: list[str]) -> None:
    """For the name alone, however it was spelled; nothing is said of a key that no TPM certified."""
    assert addresses
    text = b""
    async with host(lambda _: ok(text + b"\n")) as (port, asked):
        there = await world(start, port)
        place, order, challenge = await there.ordered()
        assert (challenge["type"], order["identifiers"]) == (
            "http-01",
            [{"type": "dns", "value": "app-1.example"}],
        )
        text = there.client.key_authorization(challenge).encode()
        assert (await there.client.post(challenge["url"], {})).json()["status"] == "valid"
    (head,) = asked
    assert head.startswith(f"GET /.well-known/acme-challenge/{challenge['token']} HTTP/1.1\r\n")
    assert f"host: app-1.example:{port}\r\n" in head.lower()
    key = ec.generate_private_key(ec.SECP256R1())
    for csr in (
        csr_for(key),
        csr_for(there.client.key, x509.DNSName("app-1.example")),
        csr_for(key, x509.DNSName("other.example")),
        csr_for(key, x509.DNSName("app-1.example"), x509.DNSName("other.example")),
        csr_for(key, x509.DNSName("app-1.example"), common_name="other.example"),
        csr_for(key, x509.DNSName("app-1.example"), x509.RFC822Name("a@b.example")),
    ):
        with pytest.raises(Problem) as told:
            await there.client.finalize(order, csr)
        assert told.value.kind == "badCSR"
    done = await there.client.finalize(order, csr_for(key, x509.DNSName("APP-1.example")))
    assert (await there.client.post(place)).json()["status"] == "valid"
    leaf, *_ = await there.client.download(done)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["app-1.example"]
    assert names.get_values_for_type(x509.IPAddress) == []
    row = await there.service.store.read(lambda tx: tx.issuances.get(f"{leaf.serial_number:040x}"))
    assert row is not None
    assert (row.profile, row.key_tier) == ("node-server", None)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (ok(b"something else"), "incorrectResponse"),
        (ok(b""), "incorrectResponse"),
        (ok(b"x" * 513), "unauthorized"),
        (ok(b"no", "404 Not Found"), "unauthorized"),
        (ok(b"", "302 Found", "Location: http://127.0.0.1:1/"), "unauthorized"),
        (b"no HTTP\r\n\r\n", "connection"),
        (b"", "connection"),
    ],
)
@pytest.mark.threat("T312")
async def test_a_host_that_does_not_know_it_ends_the_order(
    start: Starter, addresses: list[str], answer: bytes, kind: str
) -> None:
    """Another answer, a long one, an error, a way to somewhere else: RFC 8555 has a type for each."""
    assert addresses
    async with host(lambda _: answer) as (port, _):
        there = await world(start, port)
        found = await there.answered()
    assert (found["status"], found["error"]["type"].rpartition(":")[2]) == ("invalid", kind)
    (newest,) = (await there.service.operator("GET", "/acme/orders")).json()["items"]
    assert (newest["status"], newest["error"]) == ("invalid", found["error"]["detail"])


@pytest.mark.parametrize(
    "leads_to",
    [["10.0.0.7"], ["127.0.0.1", "10.0.0.7"], ["::1"], ["::ffff:10.0.0.7"], ["169.254.169.254"]],
    ids=str,
)
@pytest.mark.threat("T312")
async def test_the_service_goes_nowhere_else(
    start: Starter, addresses: list[str], leads_to: list[str]
) -> None:
    """One address outside is enough: it is not connected to, nor is any other."""
    addresses[:] = leads_to
    async with host(lambda _: ok(b"")) as (port, asked):
        there = await world(start, port)
        found = await there.answered()
        assert asked == []
    assert found["error"]["type"].endswith(":rejectedIdentifier")
    assert not any(address in found["error"]["detail"] for address in leads_to)


async def test_a_host_of_two_families_listens_on_one(start: Starter, addresses: list[str]) -> None:
    """Where nothing answers on the first address, the next is asked; what answers wrongly is the answer."""
    addresses[:] = ["127.0.0.2", "::ffff:127.0.0.1", "127.0.0.1"]
    text = b""
    async with host(lambda _: ok(text)) as (port, asked):
        there = await world(start, port)
        _, _, challenge = await there.ordered()
        text = there.client.key_authorization(challenge).encode()
        assert (await there.client.post(challenge["url"], {})).json()["status"] == "valid"
        text = b"wrong"
        asked.clear()
        addresses[:] = ["127.0.0.1", "127.0.0.1"]
        assert (await there.answered())["status"] == "invalid"
        assert len(asked) == 1


@pytest.mark.threat("T312")
async def test_a_host_that_says_nothing_is_given_up(
    start: Starter, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is for all of it."""
    assert addresses
    monkeypatch.setattr(http01, "SECONDS", 0.2)
    over = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        there = await world(start, server.sockets[0].getsockname()[1])
        found = await there.answered()
        over.set()
    assert found["error"]["type"].endswith(":connection")


@pytest.mark.threat("T312")
async def test_an_order_outlives_the_crowd(
    start: Starter, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts of others that say nothing take all turns: nothing is said of this one, which may be looked at again."""
    assert addresses
    there = await world(start, 1)
    _, _, challenge = await there.ordered()
    monkeypatch.setattr(http01, "SECONDS", 0.1)
    monkeypatch.setattr(http01, "_TURNS", asyncio.Semaphore(0))
    with pytest.raises(Problem) as told:
        await there.client.post(challenge["url"], {})
    assert told.value.kind == "rateLimited"
    assert (await there.client.post(challenge["url"])).json()["status"] == "pending"


@pytest.mark.threat("T312")
async def test_a_resolver_that_hangs_holds_up_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of the loop are for all the service does: none waits for a resolver."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    looking = asyncio.create_task(http01.resolve("app-1.example", 80))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30):
            await asyncio.to_thread(lambda: None)
    finally:
        over.set()
    assert await looking == []


async def test_a_name_without_an_address(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver's own word."""

    def nothing(*_: Any, **__: Any) -> list[Any]:
        raise OSError

    there = await world(start, 80)
    monkeypatch.setattr(socket, "getaddrinfo", nothing)
    found = await there.answered()
    assert found["error"]["type"].endswith(":dns")


async def test_names_are_those_that_operators_gave(start: Starter, addresses: list[str]) -> None:
    """No wildcard, no address, no stranger; of two machines of one name, none; and not after the name was changed."""
    assert addresses
    text = b""
    async with host(lambda _: ok(text)) as (port, _):
        there = await world(start, port)
        for name in ("*.example", "10.0.0.7", "other.example", "app-1", "a..b"):
            with pytest.raises(Problem) as told:
                await there.client.order(name, "dns")
            assert told.value.kind == "rejectedIdentifier", name
        _, order, challenge = await there.ordered()
        text = there.client.key_authorization(challenge).encode()
        await there.client.post(challenge["url"], {})
    other = SoftwareNode()
    await there.service.introduce(other)
    body = {"role": "worker-app", "hostname": "app-1.example", "cluster_id": "another"}
    await there.service.act(other, "approve", body)
    with pytest.raises(Problem) as told:
        await there.client.order("app-1.example", "dns")
    assert told.value.kind == "rejectedIdentifier"
    key = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(Problem) as told:
        await there.client.finalize(order, csr_for(key, x509.DNSName("app-1.example")))
    assert told.value.kind == "rejectedIdentifier"
    assert thumbprint(there.client.key)
