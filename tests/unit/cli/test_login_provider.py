"""What an identity provider may say of itself, and what it is told."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.client.openid.claims import number_claim, roles, text_claim, unverified_claims
from attestation.client.openid.discovery import LONGEST_ANSWER, Provider, checked_issuer, is_same_origin
from attestation.client.openid.errors import LoginRefused, ProviderInvalid, ProviderUnreachable
from attestation.client.openid.pkce import ProofKey, random_text
from attestation.errors import RequestInvalid
from attestation_cli.login.tokens import read_tokens, renewed, revoked
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.over_httpx import answering
from tests.unit.cli.idp import AT, CLIENT, ISSUER, SUB, Idp, a_login, jwt, refused, verifies

Private = tuple[str, Path, ssl.SSLContext]
"""A provider with a certificate of a private CA: issuer, file of the CA, its TLS."""


def test_the_proof_key_is_that_of_rfc_7636() -> None:
    """Appendix B: verifier and challenge."""
    proof = ProofKey("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    assert proof.challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_every_proof_key_is_new_and_long_enough() -> None:
    """43 base64url characters for the verifier (at least) and the challenge (exactly); never printed."""
    proofs = [ProofKey() for _ in range(50)]
    assert len({p.verifier for p in proofs}) == 50
    for proof in proofs:
        assert 43 <= len(proof.verifier) <= 128
        assert len(proof.challenge) == 43
        assert not set(proof.verifier + proof.challenge) - set(
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        )
        assert proof.verifier not in repr(proof)
    assert len(random_text()) == 43


# The issuer


@pytest.mark.parametrize(
    "issuer", [ISSUER, "https://id.example", "http://127.0.0.1:1/x", "http://localhost:8081/r"]
)
def test_an_issuer_is_https_or_on_this_computer(issuer: str) -> None:
    """What may be used."""
    assert checked_issuer(issuer) == issuer


@pytest.mark.threat("T55")
@pytest.mark.parametrize(
    "issuer",
    [
        "",
        "id.example",
        "http://id.example/realms/itl",
        "http://127.0.0.1.id.example",
        "HTTP://id.example",
        "ftp://id.example",
        "file:///etc/passwd",
        "https://user:secret@id.example",
        "https://id.example/?x=1",
        "https://id.example/#x",
        "https://id.example:99999",
        "https://id.example/\r\nx",
        "https://id.exämple",
        "https:///realms",
        "https://id.example/" + "x" * 3000,
    ],
)
def test_no_other_issuer_is_asked(issuer: str) -> None:
    """Nothing is sent in the clear, and nothing hides in the address."""
    with pytest.raises(RequestInvalid):
        checked_issuer(issuer)


# Discovery


def test_a_good_document_is_read() -> None:
    """What we use of it."""
    with Idp().provider() as provider:
        metadata = provider.metadata
    assert metadata.issuer == ISSUER
    assert metadata.token_endpoint == f"{ISSUER}/protocol/token"
    assert metadata.answers_name_issuer


@pytest.mark.threat("T55")
@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://evil.example/realms/itl"},
        {"issuer": ISSUER + "/"},
        {"issuer": None},
        {"issuer": 7},
        {"token_endpoint": None},
        {"token_endpoint": 7},
        {"token_endpoint": "https://evil.example/token"},
        {"token_endpoint": "http://id.example/realms/itl/token"},
        {"token_endpoint": "https://id.example:8443/token"},
        {"token_endpoint": "https://id.example@evil.example/token"},
        {"token_endpoint": "https://x@id.example/token"},
        {"token_endpoint": "/token"},
        {"authorization_endpoint": "https://evil.example/auth"},
        {"device_authorization_endpoint": "https://evil.example/device"},
        {"revocation_endpoint": "https://evil.example/revoke"},
        {"revocation_endpoint": "https://id.example/\r\nx"},
        {"code_challenge_methods_supported": ["plain"]},
    ],
)
def test_a_document_that_leads_elsewhere_is_refused(changes: dict[str, Any]) -> None:
    """Another issuer, another origin, no PKCE: nothing is sent there."""
    idp = Idp(metadata=changes)
    with idp.provider() as provider, pytest.raises(ProviderInvalid):
        _ = provider.metadata
    assert len(idp.requests) == 1


def _answering(response: Any) -> Provider:
    return Provider(ISSUER, carrier=answering(lambda request: response))


GOOD = json.dumps({"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token"}).encode()


@pytest.mark.threat("T55")
def test_a_redirect_of_the_token_endpoint_is_not_followed() -> None:
    """The code, or a password, would be sent to whoever it names."""
    headers = {"Location": "https://evil.example"}
    provider = _answering(httpx.Response(307, headers=headers, json={}))
    with provider, pytest.raises(ProviderInvalid, match="redirect"):
        provider.post(f"{ISSUER}/token", {"password": "x"})


def test_this_computer_is_reached_without_a_proxy(private: Private, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the environment could not reach it, and would see what is sent."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    issuer, file, _ = private
    with Provider(issuer, ca_file=str(file)) as provider:
        assert provider.metadata.issuer == issuer


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, content=b"[]"),
        httpx.Response(200, content=b"[" * 100_000),
        httpx.Response(200, content=b"\xff\xfe"),
        httpx.Response(200, content=b"x" * (10 << 20)),
        httpx.Response(404, json={}),
        httpx.Response(200, content=gzip.compress(GOOD), headers={"Content-Encoding": "gzip"}),
        httpx.Response(302, headers={"Location": "https://evil.example"}, content=GOOD),
    ],
    ids=["html", "list", "deep", "binary", "10 MB", "404", "gzip", "redirect"],
)
def test_garbage_is_told_as_such(response: httpx.Response) -> None:
    """Whatever answers, the operator reads one sentence."""
    with _answering(response) as provider, pytest.raises(ProviderInvalid):
        _ = provider.metadata


@pytest.mark.threat("T55")
def test_an_answer_is_not_read_beyond_its_limit() -> None:
    """256 KiB, not a body that has no end."""
    read = 0

    def body() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 65536
            yield b" " * 65536

    with _answering(httpx.Response(200, content=body())) as provider, pytest.raises(ProviderInvalid):
        _ = provider.metadata
    assert read <= LONGEST_ANSWER + 2 * 65536


def test_an_answer_that_trickles_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no command waiting."""
    now = 0.0

    def body() -> Iterator[bytes]:
        nonlocal now
        while True:
            now += 4
            yield b" "

    carrier = answering(lambda request: httpx.Response(200, content=body()))
    provider = Provider(ISSUER, carrier=carrier)
    monkeypatch.setattr("attestation.client.connection.time.monotonic", lambda: now)
    with provider, pytest.raises(ProviderUnreachable, match="15 s"):
        _ = provider.metadata


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (httpx.ConnectTimeout("x"), "in time"),
        (httpx.ReadTimeout("x"), "in time"),
        (httpx.ConnectError("x"), "cannot connect"),
        (httpx.RemoteProtocolError("x"), "broke off"),
    ],
)
def test_a_provider_that_does_not_answer_is_told_as_such(error: httpx.HTTPError, word: str) -> None:
    """In words of ours."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    provider = Provider(ISSUER, carrier=answering(fail))
    with provider, pytest.raises(ProviderUnreachable, match=word):
        _ = provider.metadata


def test_a_provider_without_a_good_certificate_gets_nothing() -> None:
    """The reason of TLS is named."""

    def fail(request: httpx.Request) -> httpx.Response:
        try:
            raise ssl.SSLCertVerificationError("self-signed certificate")
        except ssl.SSLError as e:
            raise httpx.ConnectError("x") from e

    provider = Provider(ISSUER, carrier=answering(fail))
    with provider, pytest.raises(ProviderUnreachable, match="could not prove who it is"):
        _ = provider.metadata


def test_a_server_error_is_not_taken_for_a_refusal() -> None:
    """503 is no answer, so a login that it hits has not ended."""
    provider = _answering(httpx.Response(503, json={"error": "invalid_grant"}))
    with provider, pytest.raises(ProviderUnreachable):
        provider.post(f"{ISSUER}/token", {})


def test_a_ca_file_that_cannot_be_used_stops_at_once(tmp_path: Path) -> None:
    """It is not silently replaced by the CAs of the system."""
    empty = tmp_path / "ca.pem"
    empty.write_text("")
    for name in (str(empty), str(tmp_path / "absent.pem")):
        with pytest.raises(RequestInvalid, match="CA file"):
            Provider(ISSUER, ca_file=name)
    Provider(ISSUER, ca_file="system")


@given(st.text(max_size=60), st.text(max_size=60))
def test_comparing_origins_never_fails(one: str, other: str) -> None:
    """Whatever the addresses are."""
    assert is_same_origin(one, other) in (True, False)


class Described(BaseHTTPRequestHandler):
    """A provider over TLS that describes itself."""

    timeout = 10

    def do_GET(self) -> None:
        """Answer discovery."""
        issuer = f"https://{self.headers['Host']}"
        self._answer({"issuer": issuer, "token_endpoint": f"{issuer.upper()}/token?x=1"})

    def do_POST(self) -> None:
        """Tell what was asked for."""
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer({"path": self.path, "form": form, "type": self.headers["Content-Type"]})

    def _answer(self, members: dict[str, str]) -> None:
        body = json.dumps(members).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's signature
        """Be quiet."""


class Quiet(ThreadingHTTPServer):
    """A server that says nothing when a client breaks off."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Expected here: clients that do not trust us."""


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Private]:
    """A provider with a certificate of a private CA: issuer, file of the CA, its TLS."""
    ca = OperatorCA(datetime.now(UTC), "Private")
    certificate, key = ca.server("localhost").files(tmp_path, "server")
    file = tmp_path / "ca.pem"
    file.write_bytes(ca.pem)
    server = Quiet(("127.0.0.1", 0), Described)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}", file, context
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_a_private_ca_is_trusted_where_it_is_named(private: Private) -> None:
    """And only there: the CAs of the system do not know it."""
    issuer, file, _ = private
    with Provider(issuer, ca_file=str(file)) as provider:
        answer = provider.post(provider.metadata.token_endpoint, {"a": "b c&d", "ü": "="})
    assert answer.members == {
        "path": "/token?x=1",
        "form": "a=b+c%26d&%C3%BC=%3D",
        "type": "application/x-www-form-urlencoded",
    }
    for name, other in ((issuer, None), (issuer, "system"), (issuer.replace("https", "HTTPS"), None)):
        with Provider(name, ca_file=other) as provider, pytest.raises(ProviderUnreachable, match="prove"):
            _ = provider.metadata


def test_old_tls_is_refused(private: Private) -> None:
    """1.2 at least."""
    issuer, file, context = private
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("DEFAULT@SECLEVEL=0")
    with (
        Provider(issuer, ca_file=str(file)) as provider,
        pytest.raises(ProviderUnreachable, match="protocol version"),
    ):
        _ = provider.metadata


# Tokens


def _read(idp: Idp, **more: Any) -> Any:
    with idp.provider() as provider:
        answer = provider.post(provider.metadata.token_endpoint, {})
        return read_tokens(answer, issuer=ISSUER, client_id=CLIENT, at=AT, **more)


def test_tokens_are_read() -> None:
    """Who, and until when."""
    login = _read(Idp())
    assert (login.subject, login.username, login.email) == (SUB, "anna", "anna@itl.example")
    assert (login.expires_at - AT).total_seconds() == 3600
    assert "canary" not in repr(login)


@pytest.mark.parametrize(
    "changes",
    [
        {"access_token": None},
        {"access_token": ""},
        {"access_token": 7},
        {"access_token": "a b"},
        {"access_token": "a\r\nX-Evil: 1"},
        {"access_token": "x" * (70 << 10)},
        {"token_type": None},
        {"token_type": "mac"},
        {"refresh_token": ["x"]},
        {"refresh_token": "a\nb"},
        {"id_token": "garbage"},
        {"id_token": "a.b.c"},
    ],
)
def test_an_answer_that_is_no_token_answer_is_refused(changes: dict[str, Any]) -> None:
    """Nothing unusable is kept, and nothing that would break a header."""
    idp = Idp()
    idp.token = lambda form: idp.tokens(**changes)
    with pytest.raises(ProviderInvalid):
        _read(idp)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://evil.example"},
        {"aud": "another-program"},
        {"aud": ["a", "b"]},
        {"aud": None},
        {"exp": AT.timestamp() - 600},
        {"exp": None},
        {"exp": "soon"},
        {"nonce": "another"},
        {"nonce": None},
        {"nonce": 7},
        {"sub": "somebody-else"},
    ],
)
def test_an_id_token_of_another_login_is_refused(changes: dict[str, Any]) -> None:
    """Issuer, audience, expiry, nonce and person are those of this login."""
    idp = Idp(id_token=changes, nonce="n" * 43)
    with pytest.raises(LoginRefused):
        _read(idp, nonce="n" * 43)


def test_a_login_must_be_somebodys() -> None:
    """Opaque token and no ID token: nobody."""
    idp = Idp(id_token=None)
    idp.token = lambda form: idp.tokens(access_token="opaque")
    with pytest.raises(ProviderInvalid, match="sub"):
        _read(idp)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"expires_in": 60}, 60),
        ({"expires_in": "60"}, 60),
        ({"expires_in": 10**9}, 86_400),
        ({"expires_in": -1}, 600),
        ({"expires_in": True}, 600),
        ({"expires_in": None}, 600),
        ({"expires_in": None, "access_token": jwt(sub=SUB, exp=AT.timestamp() + 90)}, 90),
        ({"expires_in": None, "access_token": jwt(sub=SUB, exp=1e300)}, 600),
    ],
)
def test_the_end_of_a_token_is_what_the_provider_says(changes: dict[str, Any], seconds: int) -> None:
    """`expires_in`, else `exp`, else soon; never longer than a day."""
    idp = Idp()
    idp.token = lambda form: idp.tokens(**changes)
    assert (_read(idp).expires_at - AT).total_seconds() == seconds


def test_refusals_are_told_in_words() -> None:
    """Ours first, the provider's after them."""
    with pytest.raises(LoginRefused, match=r"client id \(invalid_client: no such client\)"):
        _read(Idp(token=refused("invalid_client", "no such client")))
    with pytest.raises(LoginRefused, match=r"the provider refused \(weird\)"):
        _read(Idp(token=refused("weird")))


def test_a_login_is_renewed_for_the_same_person_only() -> None:
    """The refresh token buys tokens of whoever logged in; an answer for somebody else ends the login."""
    login = a_login()
    idp = Idp()
    with idp.provider() as provider:
        fresh = renewed(provider, login, AT)
    assert idp.forms[-1][1] == {
        "grant_type": "refresh_token",
        "refresh_token": login.refresh_token,
        "client_id": CLIENT,
    }
    assert fresh.refresh_token != login.refresh_token
    assert (fresh.subject, fresh.api_url) == (login.subject, login.api_url)
    with Idp(subject="somebody-else").provider() as provider, pytest.raises(Exception, match="somebody else"):
        renewed(provider, login, AT)


def test_a_refresh_token_that_is_not_replaced_stays() -> None:
    """RFC 6749 §6: a new one is optional."""
    idp = Idp()
    idp.token = lambda form: idp.tokens(refresh_token=None)
    with idp.provider() as provider:
        assert renewed(provider, a_login(), AT).refresh_token == a_login().refresh_token


def test_revoking_names_the_strongest_token() -> None:
    """The refresh token where there is one, else the access token; False where the provider has no way."""
    idp = Idp()
    with idp.provider() as provider:
        assert revoked(provider, a_login())
        assert revoked(provider, a_login(refresh_token=None))
    assert [form["token_type_hint"] for _, form in idp.forms] == ["refresh_token", "access_token"]
    with Idp(metadata={"revocation_endpoint": None}).provider() as provider:
        assert not revoked(provider, a_login())


# Claims


@given(st.text(max_size=200))
def test_any_text_has_claims_or_none(text: str) -> None:
    """A token is read without a failure, whatever it is."""
    unverified_claims(text)
    unverified_claims(f"a.{text}.c")


@given(
    st.dictionaries(
        st.sampled_from(["realm_access", "resource_access", "sub", "exp"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["roles", "c"]), inner),
        ),
    )
)
def test_any_claims_have_roles_or_none(claims: dict[str, Any]) -> None:
    """Claims of any shape are shown, or left out."""
    assert all(isinstance(role, str) for role in roles(claims))
    text_claim(claims, "sub")
    number_claim(claims, "exp")


def test_roles_are_found_where_keycloak_puts_them() -> None:
    """Of the realm, and of each client with its name."""
    claims = {"realm_access": {"roles": ["a"]}, "resource_access": {"web": {"roles": ["b"]}}}
    assert roles(claims) == ["a", "web:b"]


def test_the_verifier_of_the_stub_is_right() -> None:
    """Our judge of PKCE agrees with RFC 7636 Appendix B."""
    assert verifies(
        "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    )
