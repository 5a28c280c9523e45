"""Whose word about a connection is believed."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_service.border import proxies
from attestation_service.border.proxies import (
    AES_256_GCM_SHA384,
    TLS_1_2,
    TLS_1_3,
    Proxies,
    Transport,
    transport_of,
)
from attestation_service.settings import Settings
from tests.fixtures.operator_pki import OperatorCA
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_problems import is_problem

pytestmark = pytest.mark.anyio

SECRET = "proxy-secret-of-more-than-32-characters"
PROXY, STRANGER = "10.0.0.1", "198.51.100.1"
CLIENT = "203.0.113.9"
CERTIFICATE = OperatorCA(datetime(2026, 11, 21, 12, 0, tzinfo=UTC)).issue()

Header = tuple[bytes, bytes]
WITH_SECRET: Header = (b"itl-proxy-secret", SECRET.encode())
SAYS: list[Header] = [
    (b"x-forwarded-for", CLIENT.encode()),
    (b"x-forwarded-proto", b"https"),
    (b"x-tls-version", b"TLSv1.3"),
    (b"x-tls-cipher", b"TLS_AES_256_GCM_SHA384"),
    (b"x-client-cert", b"certificate"),
]
BELIEVED = Transport(
    https=True, version=TLS_1_3, suite=AES_256_GCM_SHA384, forwarded=((b"x-client-cert", b"certificate"),)
)


def known(secret: str | None = SECRET) -> Proxies:
    """Return proxies within 10.0.0.0/8 that share *secret* with us."""
    values: dict[str, Any] = {"trusted_proxies": "10.0.0.0/8", "proxy_secret": secret}
    return Proxies(Settings(**values))


def scope(peer: str | None, *headers: Header, **more: Any) -> dict[str, Any]:
    """Return the scope of a request from *peer*; None is a unix socket."""
    server = ("/run/attestation.sock", None) if peer is None else ("10.0.0.9", 8080)
    return {
        "client": (peer, 4711) if peer else None, "server": server, "scheme": "http",
        "headers": [(b"host", b"service"), *headers, (b"accept", b"*/*")], **more,
    }  # fmt: skip


@pytest.mark.parametrize("peer", [PROXY, f"::ffff:{PROXY}", None])
def test_a_proxy_with_the_secret_is_believed(peer: str | None) -> None:
    """By address or on the unix socket, and with the secret: all that it says counts."""
    assert known().read(scope(peer, *SAYS, WITH_SECRET)) == (CLIENT, BELIEVED)


@pytest.mark.threat("T38")
@pytest.mark.parametrize("peer", [PROXY, None, STRANGER])
@pytest.mark.parametrize(
    "secrets",
    [
        [],
        [b""],
        [SECRET.encode() + b"x"],
        [SECRET.encode()[:-1]],
        [SECRET.encode().upper()],
        [SECRET.encode(), SECRET.encode()],
        [b"x", SECRET.encode()],
        [SECRET.encode(), b"x"],
    ],
    ids=str,
)
def test_without_exactly_the_secret_nobody_is(peer: str | None, secrets: list[bytes]) -> None:
    """An address alone proves nothing: other programs run there too."""
    sent = scope(peer, *SAYS, *((b"itl-proxy-secret", secret) for secret in secrets))
    assert known().read(sent) == (peer or "unix", Transport(refused="x-client-cert"))


@pytest.mark.threat("T38")
def test_the_secret_alone_proves_nothing_either() -> None:
    """Who has read it somewhere must also be at the place."""
    assert known().read(scope(STRANGER, *SAYS, WITH_SECRET)) == (STRANGER, Transport(refused="x-client-cert"))


def test_without_a_configured_secret_only_addresses_are_believed() -> None:
    """As before there were secrets: a limit counts the client, and nobody is anybody."""
    assert known(None).read(scope(PROXY, *SAYS)) == (CLIENT, Transport(refused="x-client-cert"))
    assert known(None).read(scope(PROXY, *SAYS[:4])) == (CLIENT, Transport())
    assert known(None).read(scope(PROXY, *SAYS[:4], (b"itl-proxy-secret", b""))) == (CLIENT, Transport())
    assert known(None).read(scope(STRANGER, *SAYS[:4])) == (STRANGER, Transport())


def test_a_peer_that_is_gone_is_no_unix_socket() -> None:
    """A TCP client that hangs up at once has no address any more; that makes it no proxy."""
    gone = scope(STRANGER, *SAYS, WITH_SECRET) | {"client": None}
    assert known().read(gone) == ("unknown", Transport(refused="x-client-cert"))


@pytest.mark.parametrize("name", [b"x-client-cert", b"client-cert", b"client-cert-chain"])
def test_a_certificate_named_by_a_stranger_is_noticed(name: bytes) -> None:
    """In whichever header; an empty one names none, from nobody."""
    assert known().read(scope(STRANGER, (name, b"x")))[1] == Transport(refused=name.decode())
    for empty in (b"", b" ", b"::"):
        assert known().read(scope(STRANGER, (name, empty)))[1] == Transport()
        assert known().read(scope(PROXY, WITH_SECRET, (name, empty)))[1] == Transport()


def test_what_is_said_twice_is_not_said() -> None:
    """The proxy added its own to what came in instead of overwriting it: either may be the client's."""
    for name, value in SAYS[1:4]:
        _, found = known().read(scope(PROXY, WITH_SECRET, *SAYS[1:4], (name, value)))
        assert not found.is_high_assurance
    _, found = known().read(scope(PROXY, WITH_SECRET, SAYS[4], SAYS[4]))
    assert len(found.forwarded) == 2  # which `MTLS.presented` refuses


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (b"TLSv1.3", TLS_1_3),
        (b"tls1.3", TLS_1_3),
        (b"TLSv1.2", TLS_1_2),
        (b"TLSv1", None),
        (b"SSLv3", None),
        (b"TLSv1.3,TLSv1.3", None),
        (b"1.3", None),
        (b"", None),
    ],
)
def test_versions_as_proxies_spell_them(said: bytes, version: int | None) -> None:
    """nginx, Envoy and HAProxy write `TLSv1.3`, Caddy `tls1.3`; what is none of them is unknown."""
    _, found = known().read(scope(PROXY, WITH_SECRET, (b"x-tls-version", said)))
    assert found.version == version


def test_nothing_of_it_reaches_what_lies_behind() -> None:
    """Neither the secret nor any claim stands in the scope afterwards; every other header does, in order."""
    for peer in (PROXY, STRANGER, None):
        sent = scope(peer, *SAYS, WITH_SECRET, (b"client-cert-chain", b"x"))
        known().read(sent)
        assert sent["headers"] == [(b"host", b"service"), (b"accept", b"*/*")]


def with_tls(certificate: bool) -> dict[str, Any]:
    """Return the ASGI extension of a connection whose TLS ends here."""
    chain = [ssl.DER_cert_to_PEM_cert(CERTIFICATE.der)] if certificate else []
    return {
        "tls": {
            "tls_version": TLS_1_3,
            "cipher_suite": AES_256_GCM_SHA384,
            "client_cert_chain": chain,
        }
    }


def test_our_own_tls_speaks_for_itself() -> None:
    """Version, suite and certificate of the connection."""
    _, found = known().read(scope(STRANGER, extensions=with_tls(certificate=True)))
    assert found == Transport(
        https=True, version=TLS_1_3, suite=AES_256_GCM_SHA384, certificate=CERTIFICATE.der
    )
    _, found = known().read(scope(STRANGER, extensions=with_tls(certificate=False)))
    assert found.certificate is None
    assert found.is_high_assurance


def test_the_proxy_s_own_certificate_is_not_its_client_s() -> None:
    """A proxy that comes by TLS with a certificate of its own lends it to nobody, nor its encryption."""
    _, found = known().read(scope(PROXY, WITH_SECRET, extensions=with_tls(certificate=True)))
    assert found == Transport()


def test_a_certificate_in_tls_does_not_excuse_one_in_a_header() -> None:
    """An operator who also names somebody else in a header is refused."""
    _, found = known().read(scope(STRANGER, SAYS[4], extensions=with_tls(certificate=True)))
    assert found == Transport(refused="x-client-cert")


def test_a_scheme_is_no_tls() -> None:
    """`https` in the scope, set by whatever runs the application, proves neither version nor suite."""
    _, found = known().read(scope(STRANGER, scheme="https"))
    assert found == Transport()


def test_without_a_border_nothing_is_known() -> None:
    """A scope that nobody read says nothing, whatever its headers."""
    assert transport_of(scope(PROXY, *SAYS, WITH_SECRET)) == Transport()
    sent = scope(PROXY, *SAYS, WITH_SECRET)
    known().read(sent)
    assert transport_of(sent) == BELIEVED


NAMES = st.sampled_from(sorted(proxies._READ)) | st.from_regex(rb"[a-z-]{1,20}", fullmatch=True)
VALUES = (
    st.sampled_from([value for _, value in SAYS] + [SECRET.encode(), b"", b"10.0.0.1", b"TLSv1.3"])
    | st.binary(max_size=40)
)  # fmt: skip


@pytest.mark.threat("T38")
@given(st.lists(st.tuples(NAMES, VALUES), max_size=8), st.booleans(), st.sampled_from([SECRET, None]))
def test_no_header_of_a_stranger_changes_anything(
    headers: list[Header], tls: bool, secret: str | None
) -> None:
    """Address and facts are those of the connection, or the request is refused for naming a certificate."""
    more = {"extensions": with_tls(certificate=True)} if tls else {}
    bare = known(secret).read(scope(STRANGER, **more))
    address, found = known(secret).read(scope(STRANGER, *headers, **more))
    assert address == bare[0] == STRANGER
    named = any(
        name in proxies.CERTIFICATE_HEADERS and value.strip() not in (b"", b"::") for name, value in headers
    )
    assert (found.refused is not None) == named
    if not named:
        assert found == bare[1]
    else:
        assert found == Transport(refused=found.refused)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=8))
def test_a_proxy_without_the_secret_is_a_stranger(headers: list[Header]) -> None:
    """Whatever it says, unless it says the secret."""
    sent = [header for header in headers if header != WITH_SECRET]
    address, found = known().read(scope(PROXY, *sent))
    assert address == PROXY
    assert found in (Transport(), Transport(refused=found.refused))


# ---------------------------------------------------------------- over HTTP


@pytest.mark.threat("T38")
@pytest.mark.parametrize(
    "path",
    ["/api/v1/machines", "/api/v1/attest", "/api/v1/config", "/healthz", "/nothing", "/openapi.json"],
)
@pytest.mark.parametrize("name", ["X-Client-Cert", "Client-Cert", "Client-Cert-Chain"])
async def test_a_certificate_of_a_stranger_is_refused_loudly(
    service: Service, capsys: pytest.CaptureFixture[str], path: str, name: str
) -> None:
    """On every route: 403, an entry in the audit, a warning in the log; the value is in none of them."""
    headers = {name: CERTIFICATE.escaped, "Accept": "application/json"}  # of /config it is text otherwise
    answer = await service.get(path, headers=headers)
    is_problem(answer, 403, "client-cert-untrusted")
    (entry,) = await service.audit(action="denied")
    assert name.lower() in entry["detail"]
    assert entry["source_ip"] == "192.0.2.7"
    logged = capsys.readouterr().err
    assert "client_certificate.untrusted" in logged
    assert CERTIFICATE.escaped[40:80] not in logged + answer.text + entry["detail"]


async def test_strangers_cannot_fill_the_audit_so(service: Service) -> None:
    """The refusal stays; the entries are bounded, and from then on nothing is written."""
    for _ in range(30):
        answer = await service.get("/api/v1/machines", headers={"X-Client-Cert": "x"})
        is_problem(answer, 403, "client-cert-untrusted")
    assert len(await service.audit(action="denied")) == 10


async def test_the_secret_is_in_no_log(start: Starter, capsys: pytest.CaptureFixture[str]) -> None:
    """Right or wrong, from whomever, served or failed."""
    service = await start(proxy_secret=SECRET, trusted_proxies="192.0.2.0/24", log_level="debug")
    for secret in (SECRET, SECRET + "x"):
        for path in ("/healthz", "/api/v1/machines", "/api/v1/config/x"):
            await service.get(path, headers={"Itl-Proxy-Secret": secret})
            await service.get(path, headers={"Itl-Proxy-Secret": secret, "X-Client-Cert": "x"})
    assert SECRET not in capsys.readouterr().err
    assert SECRET not in repr(service.resources.settings)


async def test_with_a_secret_the_client_s_address_needs_it_too(start: Starter) -> None:
    """Where a secret is configured, what does not know it is not the proxy, at whatever address."""
    service = await start(proxy_secret=SECRET, trusted_proxies="192.0.2.0/24")
    for secret, recorded in ((SECRET, CLIENT), ("wrong", "192.0.2.7")):
        service.http.headers.update({"X-Forwarded-For": CLIENT, "Itl-Proxy-Secret": secret})
        node = SoftwareNode()
        await service.introduce(node)
        assert (await service.detail(node))["registered_from"] == recorded
