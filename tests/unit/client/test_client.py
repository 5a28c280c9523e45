"""The client of the HTTP API, against answers made by hand."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from attestation.api import (
    ApproveRequest,
    IntroduceRequest,
    RegisterRequest,
)
from attestation.api.operations import OperatorAPI
from attestation.client import (
    AnswerInvalid,
    APIError,
    NodeClient,
    OperatorClient,
    Retries,
    ServiceUnreachable,
    TLSFailed,
    is_loopback,
)
from attestation.client.connection import HTTPSender, checked_url, parse_retry_after
from attestation.client.plain import PlainCarrier
from attestation.errors import (
    ChallengeUsed,
    Conflict,
    MachineUnknown,
    RateLimited,
    RequestInvalid,
    Unauthenticated,
    Unavailable,
)
from attestation.machines import Role
from tests.fixtures.over_httpx import answering

MACHINE_ID = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
URL = "https://attest.example"
Handler = Callable[[httpx.Request], httpx.Response]


def problem(status: int, code: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    body = {
        "type": f"urn:itl:problem:{code}",
        "title": code.replace("-", " "),
        "status": status,
        "detail": "what happened",
        "instance": "req-1",
        **more,
    }
    return httpx.Response(
        status, json=body, headers={"Content-Type": "application/problem+json", **(headers or {})}
    )


def operator(handler: Handler, **more: Any) -> OperatorClient:
    return OperatorClient(URL, "secret", carrier=answering(handler), **more)


def node(handler: Handler, **more: Any) -> NodeClient:
    return NodeClient(URL, carrier=answering(handler), **more)


class Script:
    """Answers one request after another, and remembers them."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self._answers: Iterator[httpx.Response | Exception] = iter(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer *request* with the next answer."""
        self.requests.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def retries(pauses: list[float], attempts: int = 3) -> Retries:
    return Retries(attempts=attempts, sleep=pauses.append, uniform=lambda low, high: high)


VERIFICATION = {
    "valid": True,
    "entries": 3,
    "root_hash": "ab",
    "first_invalid_id": None,
    "error": None,
}


def test_one_client_speaks_for_several_people() -> None:
    """Over the same connections: each request carries the token of who asks, and nothing of another's."""
    script = Script(*(httpx.Response(200, json=VERIFICATION) for _ in range(3)))
    with operator(script) as shared:
        anna, bernd = shared.agreeing_to("ab").speaking_for("of-anna"), shared.speaking_for("of-bernd")
        assert anna.meant is None
        for client in (anna, bernd, shared):
            client.verify_audit()
        with pytest.raises(RequestInvalid):
            shared.speaking_for("two words")
    assert [r.headers["authorization"] for r in script.requests] == [
        "Bearer of-anna",
        "Bearer of-bernd",
        "Bearer secret",
    ]


def test_one_page_of_a_listing_is_asked_for_alone() -> None:
    """With the cursor of an earlier one; the next cursor comes back."""
    script = Script(
        httpx.Response(200, json={"items": [], "next_cursor": "c2"}),
        httpx.Response(200, json={"items": [], "next_cursor": None}),
    )
    with operator(script) as client:
        assert client.one_page(OperatorAPI.machines, None, q="x", page_size=5) == ([], "c2")
        assert client.one_page(OperatorAPI.machines, "c2", q="x", page_size=5) == ([], None)
    assert [dict(r.url.params) for r in script.requests] == [
        {"q": "x", "limit": "5"},
        {"q": "x", "limit": "5", "cursor": "c2"},
    ]


def test_a_problem_is_both_an_api_error_and_the_error_its_code_names() -> None:
    """`except ChallengeUsed` works on both sides of the wire."""
    with pytest.raises(ChallengeUsed) as caught, node(lambda r: problem(409, "challenge-used")) as client:
        client.challenge(MACHINE_ID)
    error = caught.value
    assert isinstance(error, APIError)
    assert (error.code, error.status, error.request_id) == ("challenge-used", 409, "req-1")
    assert (error.title, error.detail, str(error)) == ("challenge used", "what happened", "what happened")


@pytest.mark.parametrize(
    ("status", "meaning"), [(401, Unauthenticated), (409, Conflict), (429, RateLimited), (503, Unavailable)]
)
def test_an_unknown_code_falls_back_on_the_meaning_of_its_status(
    status: int, meaning: type[Exception]
) -> None:
    """A newer service may name errors that this client has never heard of."""
    with pytest.raises(meaning) as caught:
        operator(lambda r: problem(status, "brand-new"), retries=Retries(attempts=1)).verify_audit()
    assert isinstance(caught.value, APIError)
    assert caught.value.code == "brand-new"


def test_an_error_page_of_a_proxy_is_told_as_such() -> None:
    """What is not our problem document still becomes a typed error, without its HTML."""
    with pytest.raises(Unavailable) as caught:
        operator(
            lambda r: httpx.Response(502, html="<h1>no</h1>"), retries=Retries(attempts=1)
        ).verify_audit()
    assert isinstance(caught.value, APIError)
    assert caught.value.code == "http-502"
    assert "<h1>" not in str(caught.value)


def test_the_members_that_a_schema_refused_reach_the_caller() -> None:
    """A 422 says which member was wrong."""
    errors = [{"field": "role", "message": "unknown"}]
    with pytest.raises(RequestInvalid) as caught:
        operator(lambda r: problem(422, "request-invalid", errors=errors)).approve(
            MACHINE_ID, ApproveRequest(role=Role.GENERIC)
        )
    assert isinstance(caught.value, APIError)
    assert [e.field for e in caught.value.errors] == ["role"]


def test_members_that_we_do_not_know_are_left_out() -> None:
    """A newer service may say more, at any depth."""
    client = operator(lambda r: httpx.Response(200, json={**VERIFICATION, "brand_new": 1}))
    assert client.verify_audit().entries == 3


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"valid": true}', b"[]", b"null"])
def test_an_answer_of_another_form_is_refused(body: bytes) -> None:
    """Nothing half-read reaches the caller."""
    with pytest.raises(AnswerInvalid):
        operator(lambda r: httpx.Response(200, content=body)).verify_audit()


def test_redirects_are_not_followed() -> None:
    """Nobody but the configured service is talked to, and no token goes elsewhere."""
    script = Script(httpx.Response(307, headers={"Location": "https://evil.example/"}))
    with pytest.raises(AnswerInvalid, match="redirect"):
        operator(script).verify_audit()
    assert len(script.requests) == 1


def test_an_endless_answer_is_cut_off() -> None:
    """An answer is read up to the limit and not further."""
    taken: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * (1 << 20)

    with pytest.raises(AnswerInvalid, match="longer than"):
        node(lambda r: httpx.Response(200, content=endless())).challenge(MACHINE_ID)
    assert len(taken) <= 6


def test_a_compressed_answer_is_refused() -> None:
    """We ask for plain bytes; a compression bomb is not unpacked."""
    script = Script(httpx.Response(200, stream=httpx.ByteStream(b"x"), headers={"Content-Encoding": "gzip"}))
    with pytest.raises(AnswerInvalid, match="compressed"):
        operator(script).verify_audit()
    assert script.requests[0].headers["Accept-Encoding"] == "identity"


def test_a_long_answer_is_streamed() -> None:
    """An export has no longest length, and is not asked for twice; the same is refused as elsewhere."""
    script = Script(
        httpx.Response(200, stream=httpx.ByteStream(b"x" * (17 << 20))),
        httpx.Response(307, headers={"Location": "https://evil.example/"}),
        httpx.Response(200, stream=httpx.ByteStream(b"x"), headers={"Content-Encoding": "gzip"}),
        problem(503, "unavailable"),
    )
    client = operator(script)
    assert sum(map(len, client.export_audit())) == 17 << 20
    for error, why in ((AnswerInvalid, "redirect"), (AnswerInvalid, "compressed"), (Unavailable, "happened")):
        with pytest.raises(error, match=why):
            list(client.export_audit())
    assert [request.url.path for request in script.requests] == ["/api/v1/audit/export"] * 4


def test_proofs_of_the_log_are_asked_for() -> None:
    """Path and query of each; checkpoint and bundle come as bytes."""
    h = "A" * 43 + "="
    inclusion = {"index": 6, "size": 9, "leaf_hash": h, "root": h, "hashes": [h]}
    consistency = {"old_size": 3, "new_size": 9, "old_root": h, "new_root": h, "hashes": [h]}
    keys = {"origin": "log.example", "vkeys": ["a"], "retired": [], "witnesses": []}
    script = Script(
        httpx.Response(200, content=b"note"),
        httpx.Response(200, content=b"\0\1x"),
        httpx.Response(200, json=inclusion),
        httpx.Response(200, json=consistency),
        httpx.Response(200, json=keys),
    )
    client = operator(script)
    assert (client.audit_checkpoint(), client.audit_entries(1001, 5)) == (b"note", b"\0\1x")
    assert client.audit_inclusion(6, 9).model_dump() == inclusion
    assert client.audit_consistency(3, 9).model_dump() == consistency
    assert client.audit_keys().model_dump() == keys
    assert [request.url.raw_path.decode() for request in script.requests] == [
        "/api/v1/audit/checkpoint",
        "/api/v1/audit/tile/entries/x001/001.p/5",
        "/api/v1/audit/proof/inclusion?index=6&size=9",
        "/api/v1/audit/proof/consistency?from=3&to=9",
        "/api/v1/audit/keys",
    ]


def test_an_answer_that_drips_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then does not hold us for ever."""
    now = iter(range(0, 1_000_000, 40))
    monkeypatch.setattr("attestation.client.connection.time.monotonic", lambda: float(next(now)))

    def drip() -> Iterator[bytes]:
        while True:
            yield b" "

    with pytest.raises(ServiceUnreachable, match="did not end"):
        node(lambda r: httpx.Response(200, content=drip())).challenge(MACHINE_ID)


@pytest.mark.parametrize(
    "answer", [problem(503, "unavailable"), httpx.ReadTimeout("slow"), httpx.ConnectError("no")]
)
def test_reading_is_repeated(answer: httpx.Response | Exception) -> None:
    """What changes nothing may be asked again."""
    pauses: list[float] = []
    script = Script(answer, answer, httpx.Response(200, json=VERIFICATION))
    assert operator(script, retries=retries(pauses)).verify_audit().valid
    assert pauses == [0.25, 0.5]


@pytest.mark.parametrize(
    "answer", [problem(503, "unavailable"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut")]
)
def test_what_may_have_happened_is_not_repeated(answer: httpx.Response | Exception) -> None:
    """A POST without a key whose fate is unknown is the caller's to judge; acts of operators: test_acts.py."""
    pauses: list[float] = []
    script = Script(answer)
    with (
        HTTPSender(URL, retries=retries(pauses), carrier=answering(script)) as connection,
        pytest.raises(Unavailable),
    ):
        connection.send("POST", "/attest", body={})
    assert len(script.requests) == 1
    assert pauses == []


@pytest.mark.parametrize(
    "answer", [problem(429, "rate-limited", headers={"Retry-After": "2"}), httpx.ConnectTimeout("no")]
)
def test_an_act_that_cannot_have_happened_is_repeated(answer: httpx.Response | Exception) -> None:
    """Refused for its rate or never sent: safe to send again."""
    pauses: list[float] = []
    script = Script(answer, problem(404, "machine-unknown"))
    with pytest.raises(MachineUnknown):
        operator(script, retries=retries(pauses)).unlock(MACHINE_ID)
    assert len(script.requests) == 2
    assert pauses in ([2.0], [0.25])


def test_a_long_retry_after_is_handed_to_the_caller() -> None:
    """Nobody waits an hour in front of a prompt."""
    pauses: list[float] = []
    script = Script(problem(429, "rate-limited", headers={"Retry-After": "3600"}))
    with pytest.raises(RateLimited) as caught:
        operator(script, retries=retries(pauses)).verify_audit()
    assert caught.value.retry_after_seconds == 3600
    assert pauses == []


def test_the_number_of_attempts_is_bounded() -> None:
    """A service that stays away is reported."""
    pauses: list[float] = []
    script = Script(*[httpx.ConnectError("no")] * 3)
    with pytest.raises(ServiceUnreachable, match="cannot connect"):
        operator(script, retries=retries(pauses)).verify_audit()
    assert len(script.requests) == 3


def test_a_peer_that_fails_tls_is_not_asked_again() -> None:
    """A certificate does not become right by asking twice."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("tls") from ssl.SSLCertVerificationError("certificate verify failed")

    pauses: list[float] = []
    with pytest.raises(TLSFailed, match="could not prove"):
        operator(fail, retries=retries(pauses)).verify_audit()
    assert pauses == []


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        ("0", 1),
        ("99999999999999", 86_400),
        ("Sat, 21 Nov 2026 04:00:30 GMT", 30),
        ("Sat, 21 Nov 2026 03:00:00 GMT", 1),
        ("soon", None),
        ("-5", None),
        ("٣", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_bounded(value: str | None, seconds: int | None) -> None:
    """RFC 9110 §10.2.3: seconds or a date; nothing sends us away for longer than a day."""
    assert parse_retry_after(value, datetime(2026, 11, 21, 4, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    "url",
    [
        "",
        "attest.example",
        "ftp://x",
        "https://",
        "https://u:p@x",
        "https://x?y=1",
        "https://x#y",
        "https://[",
        5 * "x",
    ],
)
def test_only_the_address_of_a_service_is_taken(url: str) -> None:
    """A mistyped address is a usage error, not a request to somewhere."""
    with pytest.raises(RequestInvalid):
        checked_url(url)


def test_a_slash_at_the_end_of_the_address_does_not_matter() -> None:
    """`https://x/` and `https://x` are the same service."""
    assert checked_url("https://x/") == checked_url("https://x") == "https://x"


def test_a_scheme_in_capitals_is_the_same_scheme() -> None:
    """Not another one, of which nobody asks whether it is encrypted (RFC 3986 §3.1)."""
    assert checked_url("HTTPS://X/A/") == "https://X/A"
    with pytest.raises(RequestInvalid, match="not encrypted"):
        OperatorClient("HTTP://attest.example", "secret")


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "tökén", "a\x00"])
def test_a_token_that_could_break_the_header_is_refused(token: str) -> None:
    """No line break, no space, nothing but visible ASCII."""
    with pytest.raises(RequestInvalid, match="token"):
        OperatorClient(URL, token)


@pytest.mark.threat("T29")
def test_the_operator_token_does_not_travel_in_the_clear() -> None:
    """Plain HTTP to another computer is refused unless asked for; this computer is no network."""
    with pytest.raises(RequestInvalid, match="not encrypted"):
        OperatorClient("http://attest.example", "secret")
    OperatorClient("http://attest.example", "secret", allow_plain_http=True).close()
    OperatorClient("http://localhost:8080", "secret").close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost", True),
        ("http://127.0.0.1:8080", True),
        ("http://[::1]", True),
        ("http://a.localhost", True),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_loopback_is_this_computer_only(url: str, *, expected: bool) -> None:
    """A name that merely looks local is not."""
    assert is_loopback(url) is expected


def test_a_ca_file_without_certificates_is_a_usage_error(tmp_path: Any) -> None:
    """No silent fall-back to the CAs of the system."""
    empty = tmp_path / "ca.pem"
    empty.write_text("nothing")
    for path in (empty, tmp_path / "absent.pem"):
        for url in (URL, "http://localhost:8080"):  # there nothing is verified, and the word is not lost
            with pytest.raises(RequestInvalid, match="CA file"):
                NodeClient(url, ca_file=path)


def test_certificates_are_checked_by_default() -> None:
    """Chain and host name."""
    with NodeClient(URL) as client:
        carrier = client._http._carrier
        assert isinstance(carrier, PlainCarrier)
        context = carrier._tls
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def introduce(kind: type[IntroduceRequest]) -> IntroduceRequest:
    return kind(ek_public="AA==", ek_source="pub", ek_fingerprint="ab" * 48, ak_public="AA==")


@pytest.mark.parametrize("kind", [IntroduceRequest, RegisterRequest])
def test_a_registration_token_has_its_own_route(kind: type[IntroduceRequest]) -> None:
    """Who may bring one says so by the kind of request."""
    script = Script(problem(404, "unknown"))
    with pytest.raises(APIError):
        node(script).introduce(introduce(kind))
    wanted = "/api/v1/register" if kind is RegisterRequest else "/api/v1/self-register"
    assert script.requests[0].url.path == wanted


def test_absent_members_are_not_sent() -> None:
    """`null` for an unset member would be refused by a strict service."""
    script = Script(problem(404, "unknown"))
    with pytest.raises(APIError):
        node(script).introduce(introduce(RegisterRequest))
    assert None not in json.loads(script.requests[0].content).values()


@pytest.mark.parametrize("hostile", ["../../audit", "a/b", "a?b=c", "a#b", "%2e%2e", "."])
def test_a_value_cannot_reach_another_route(hostile: str) -> None:
    """What stands in a path stays one segment of it."""
    script = Script(problem(404, "unknown"))
    with pytest.raises(APIError):
        operator(script).redeliver(hostile)
    raw = script.requests[0].url.raw_path.decode()
    assert raw.startswith("/api/v1/machines/")
    assert raw.endswith("/redeliver")
    assert raw.count("/") == 5
    assert "?" not in raw


def test_pages_are_followed_to_the_end() -> None:
    """Every item of every page, in order, with the filters on each request."""
    entry = {
        "operator_cn": "SYSTEM",
        "operator_sub": None,
        "action": "lock",
        "machine_id": None,
        "prev_state": None,
        "new_state": None,
        "detail": None,
        "source_ip": None,
        "timestamp": "2026-11-21T04:00:00.000000Z",
        "format": 1,
        "prev_hash": "00",
        "entry_hash": "01",
    }
    script = Script(
        httpx.Response(200, json={"items": [{**entry, "id": 3}, {**entry, "id": 2}], "next_cursor": "c1"}),
        httpx.Response(200, json={"items": [{**entry, "id": 1}], "next_cursor": None}),
    )
    assert [e.id for e in operator(script).audit(action="lock")] == [3, 2, 1]
    assert [dict(r.url.params) for r in script.requests] == [
        {"action": "lock", "limit": "200"},
        {"action": "lock", "limit": "200", "cursor": "c1"},
    ]


def test_pages_that_go_round_in_a_circle_end() -> None:
    """A broken service does not keep us for ever."""
    with pytest.raises(AnswerInvalid, match="circle"):
        list(operator(lambda r: httpx.Response(200, json={"items": [], "next_cursor": "c1"})).machines())


def test_the_pending_answer_is_no_configuration() -> None:
    """Only the media type of the envelope is read as one; YAML for a maintenance mode is not."""
    pending = httpx.Response(
        200, content=b"kind: KmsgLogConfig", headers={"Content-Type": "application/yaml"}
    )
    script = Script(pending)
    assert node(script).fetch_config("t0ken", bytes(32)) is None
    assert script.requests[0].headers["Accept"] == "application/vnd.itl.config.encrypted+json"


def test_the_envelope_is_read() -> None:
    """A sealed configuration arrives with every member."""
    envelope = {
        "format": "ek-aes256gcm-v2",
        "machine_id": MACHINE_ID,
        "token_id": "0" * 16,
        "credential_blob": "AA==",
        "encrypted_secret": "AA==",
        "iv": "AA==",
        "ciphertext": "AA==",
        "config_sha256": "0" * 64,
    }
    answer = httpx.Response(
        200,
        content=json.dumps(envelope),
        headers={
            "Content-Type": "application/vnd.itl.config.encrypted+json; charset=utf-8",
            "Itl-Config-Signature": "a.b.c",
        },
    )
    sealed = node(lambda r: answer).fetch_config("t0ken", bytes(32))
    assert sealed is not None
    assert sealed.envelope.model_dump(exclude_unset=True) == envelope
    assert sealed.signature == "a.b.c"


class Asked(BaseModel):
    """A body with a member of each sort."""

    said: str
    demanded: str | None
    optional: str | None = None


def test_what_is_demanded_is_sent_also_where_it_is_null() -> None:
    """`node: null` says that there is no such Node. What is optional is left out: an older service may not know it."""
    script = Script(httpx.Response(200, json={}))
    HTTPSender(URL, carrier=answering(script)).send("POST", "/x", body=Asked(said="ü", demanded=None))
    assert json.loads(script.requests[0].content) == {"said": "ü", "demanded": None}
