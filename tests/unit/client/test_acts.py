"""What the client does about an act whose answer is lost (docs/adr/0070)."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest

from attestation.client import (
    AnswerInvalid,
    APIError,
    NodeClient,
    OutcomeUnknown,
    Retries,
    ServiceUnreachable,
)
from attestation.client.acts import ASK_SECONDS, ASK_TIMES, Acts, keys_of
from attestation.errors import AnswerNotKept, StoreBusy, TransitionForbidden
from tests.fixtures.over_httpx import answering
from tests.unit.cli.stub import machine
from tests.unit.client.test_client import MACHINE_ID, URL, Script, operator, problem

LOST = httpx.ReadTimeout
CUT = httpx.RemoteProtocolError
PROXY = (502, 503, 504)


def done() -> httpx.Response:
    """Return the answer to a lock."""
    return httpx.Response(200, json=machine(MACHINE_ID, status="locked"))


def lock(script: Script, pauses: list[float] | None = None, acts: Acts | None = None) -> None:
    """Lock a machine."""
    waited: list[float] = [] if pauses is None else pauses
    patient = Retries(sleep=waited.append, uniform=lambda low, high: high)
    with operator(script, retries=patient, acts=acts) as client:
        assert client.lock(MACHINE_ID).status == "locked"


def test_who_asks_is_told_the_entry_of_what_was_done() -> None:
    """The number of the answer, that of a repeated one too; what is none is not told."""
    told: list[int] = []
    acts = Acts(on_entry=told.append)
    for said in ("4711", "", "-1", "x", "9" * 30, "٣"):
        answer = httpx.Response(
            200, json=machine(MACHINE_ID, status="locked"), headers=[(b"itl-audit-entry", said.encode())]
        )
        lock(Script(answer), acts=acts)
    assert told == [4711]


def made(answer: httpx.Response | type[Exception]) -> httpx.Response | Exception:
    """Return an answer, or a new failure: one that is raised twice would be its own cause."""
    return answer if isinstance(answer, httpx.Response) else answer("no")


def keys(script: Script) -> list[str]:
    """Return the key of each request."""
    return [request.headers["idempotency-key"] for request in script.requests]


def test_each_act_has_a_key_and_a_deadline() -> None:
    """A new key for each act, none for what only reads; the deadline ends before we stop waiting."""
    script = Script(done(), done(), httpx.Response(200, json=machine(MACHINE_ID)))
    with operator(script) as client:
        client.lock(MACHINE_ID)
        client.lock(MACHINE_ID)
        client.machine(MACHINE_ID)
    one, two, read = script.requests
    assert one.headers["idempotency-key"] != two.headers["idempotency-key"]
    assert one.headers["idempotency-key"].strip('"').replace(".", "").isalnum()
    assert one.headers["itl-deadline-ms"] == "13000"
    assert not {"idempotency-key", "itl-deadline-ms"} & set(read.headers)
    other = Script(done())
    lock(other)
    assert keys(other) != [one.headers["idempotency-key"]], "another client"


def test_who_runs_again_has_the_same_keys() -> None:
    """The acts of a run have keys that follow from the run's."""
    again = Script(done(), done())
    lock(again, acts=Acts(keys=keys_of("run")))
    assert keys(again) == ['"run.1"']


UNREADABLE = [
    httpx.Response(200, text='{"machine_id": "7f3'),
    httpx.Response(200, html="<h1>welcome</h1>"),
    httpx.Response(200),
    httpx.Response(200, json=[]),
    httpx.Response(200, stream=httpx.ByteStream(b"x"), headers={"Content-Encoding": "gzip"}),
]
"""Answers of success that say nothing: cut, a proxy's own page, empty, of another form, compressed."""


@pytest.mark.parametrize(
    "loss", [LOST, CUT, *(httpx.Response(status, text="proxy") for status in PROXY), *UNREADABLE]
)
def test_a_lost_answer_is_asked_for(loss: httpx.Response | type[Exception]) -> None:
    """Timeout, reset, a proxy's word, or unreadable: the same request with the same key, and its answer counts."""
    told: list[Exception] = []
    script, pauses = Script(made(loss), done()), list[float]()
    lock(script, pauses, Acts(on_lost=told.append))
    first, second = script.requests
    assert (first.method, first.url, first.content) == (second.method, second.url, second.content)
    assert len(set(keys(script))) == 1
    assert (len(pauses), len(told)) == (1, 1)


@pytest.mark.parametrize(
    "silent",
    [
        LOST,
        httpx.ConnectError,
        problem(503, "store-busy", {"Retry-After": "5"}),
        problem(503, "deadline-exceeded"),
        problem(429, "rate-limited", {"Retry-After": "90"}),
        problem(409, "act-in-progress"),
        problem(401, "unauthenticated"),
        problem(403, "forbidden"),
        httpx.Response(200, text="{"),
        httpx.Response(307, headers={"Location": "https://elsewhere.example/"}),
    ],
)
def test_what_says_nothing_of_it_is_no_answer(silent: httpx.Response | type[Exception]) -> None:
    """After a loss, a refusal for another reason leaves open what became of the act."""
    script = Script(LOST("no"), made(silent), done())
    lock(script)
    assert len(script.requests) == 3


@pytest.mark.parametrize(
    ("code", "status", "meaning"),
    [("transition-forbidden", 409, TransitionForbidden), ("answer-not-kept", 409, AnswerNotKept)],
)
def test_what_says_it_is_the_answer(code: str, status: int, meaning: type[Exception]) -> None:
    """A refusal of the act itself: had it been done, the first answer would have come."""
    script = Script(LOST("no"), problem(status, code))
    with pytest.raises(meaning):
        lock(script)


@pytest.mark.threat("T169")
def test_what_stays_unknown_is_told_as_unknown() -> None:
    """It ends, in bounded time, with the key under which it can be asked for again."""
    script, pauses = Script(*(LOST("no") for _ in range(ASK_TIMES + 1))), list[float]()
    with pytest.raises(OutcomeUnknown, match="did not answer in time") as caught:
        lock(script, pauses, Acts(keys=keys_of("run")))
    assert caught.value.key == "run.1"
    assert not isinstance(caught.value, ServiceUnreachable)
    assert len(script.requests) == ASK_TIMES + 1
    assert sum(pauses) < ASK_SECONDS


def test_asking_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that each take long are fewer."""
    now = [0.0]
    monkeypatch.setattr("attestation.client.acts.time", SimpleNamespace(monotonic=lambda: now[0]))

    def slow(request: httpx.Request) -> httpx.Response:
        now[0] += 15
        raise httpx.ReadTimeout("no")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with operator(slow, retries=Retries(sleep=sleep)) as client, pytest.raises(OutcomeUnknown):
        client.lock(MACHINE_ID)
    assert now[0] <= 15 + ASK_SECONDS + 15


@pytest.mark.parametrize(
    ("answer", "meaning", "requests"),
    [
        (httpx.ConnectError, ServiceUnreachable, 3),
        (problem(503, "store-busy"), StoreBusy, 1),
        (problem(500, "internal-error"), APIError, 1),
        (httpx.Response(307, headers={"Location": "https://elsewhere.example/"}), AnswerInvalid, 1),
    ],
)
def test_what_is_known_is_not_asked(
    answer: httpx.Response | type[Exception], meaning: type[Exception], requests: int
) -> None:
    """Nothing was sent, or the service says that nothing was done: a failure, told at once."""
    script = Script(*(made(answer) for _ in range(3)))
    with pytest.raises(meaning) as caught:
        lock(script)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert len(script.requests) == requests


def test_a_machine_acts_as_before() -> None:
    """What a machine sends is bound to a challenge, and has no key."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        raise httpx.ReadTimeout("no")

    with pytest.raises(ServiceUnreachable), NodeClient(URL, carrier=answering(answer)) as client:
        client.challenge(MACHINE_ID)
    assert not any("idempotency-key" in request.headers for request in seen)
