"""Answers read member by member: what is not as it should be is refused, where it is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.api import MachineDetail
from attestation.client import AnswerInvalid, OperatorClient, PublicClient, Record
from attestation.client.record import parse_record
from tests.fixtures.over_httpx import answering
from tests.unit.cli.stub import STATS, machine

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
GOOD = Record(
    {
        "text": "x",
        "number": 7,
        "at": "2026-11-21T04:00:00+02:00",
        "null": None,
        "object": {"a": 1},
        "list": [{"a": 1}],
        "yes": True,
        "half": 1.5,
    }
)


def test_members_are_read_by_their_kind() -> None:
    """Text, number, instant, object, list, and null where it may be."""
    assert GOOD.text("text") == "x"
    assert GOOD.number("number") == 7
    assert GOOD.instant("at") == datetime(2026, 11, 21, 2, tzinfo=UTC)
    assert GOOD.optional_text("null") is None
    assert GOOD.optional_instant("null") is None
    assert GOOD.optional_record("null") is None
    inner = GOOD.optional_record("object")
    assert inner is not None
    assert inner.number("a") == 1
    assert [r.number("a") for r in GOOD.records("list")] == [1]
    assert GOOD.counts("object") == {"a": 1}


@pytest.mark.parametrize(
    "read",
    [
        lambda: GOOD.text("absent"),
        lambda: GOOD.text("number"),
        lambda: GOOD.text("null"),
        lambda: GOOD.optional_text("absent"),
        lambda: GOOD.number("text"),
        lambda: GOOD.number("yes"),
        lambda: GOOD.number("half"),
        lambda: GOOD.instant("text"),
        lambda: Record({"at": "2026-11-21T04:00:00"}).instant("at"),
        lambda: GOOD.optional_instant("absent"),
        lambda: GOOD.optional_record("list"),
        lambda: GOOD.records("object"),
        lambda: Record({"list": [1]}).records("list"),
        lambda: GOOD.counts("list"),
        lambda: Record({"object": {"a": True}}).counts("object"),
    ],
)
def test_a_member_that_is_not_as_it_should_be_is_named(read: Callable[[], Any]) -> None:
    """Missing, null where it must not be, another kind."""
    with pytest.raises(AnswerInvalid, match="is not"):
        read()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """RFC 8259, and an object."""
    with pytest.raises(AnswerInvalid):
        parse_record(body, "the answer")


@given(st.binary(max_size=200))
def test_parse_fails_in_one_way_only(body: bytes) -> None:
    """A record or AnswerInvalid."""
    try:
        assert isinstance(parse_record(body, "x"), Record)
    except AnswerInvalid:
        return


def test_a_listing_of_records_says_what_the_models_say() -> None:
    """Both readings of one answer agree; members unknown to us are kept here and left out there."""
    items = [machine(A, hostname="cp-1"), {**machine(A), "brand_new": 1}]
    pages = {
        None: {"items": items[:1], "next_cursor": "c1"},
        "c1": {"items": items[1:], "next_cursor": None},
    }

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=pages[request.url.params.get("cursor")])

    with OperatorClient("https://x.example", "t", carrier=answering(answer)) as client:
        records = list(client.machine_records(q="cp"))
        models = list(client.machines(q="cp"))
    assert [dict(record) for record in records] == items
    for record, model in zip(records, models, strict=True):
        known = {k: v for k, v in record.items() if k in MachineDetail.model_fields}
        assert MachineDetail.model_validate(known) == model


@pytest.mark.parametrize(
    "page", [{"items": 1, "next_cursor": None}, {"items": []}, {"items": [], "next_cursor": 7}]
)
def test_a_page_of_another_form_is_refused(page: dict[str, Any]) -> None:
    """Nothing half-read is listed."""
    carrier = answering(lambda request: httpx.Response(200, json=page))
    with (
        OperatorClient("https://x.example", "t", carrier=carrier) as client,
        pytest.raises(AnswerInvalid),
    ):
        list(client.machine_records())


def test_stats_both_ways() -> None:
    """The numbers are the same, read fast or typed."""
    carrier = answering(lambda request: httpx.Response(200, json=STATS))
    with OperatorClient("https://x.example", "t", carrier=carrier) as client:
        assert client.stats_record().counts("by_status") == dict(client.stats().by_status)
        assert client.stats().machines == client.stats_record().number("machines")


def test_what_anybody_may_ask_is_asked_without_a_credential() -> None:
    """A service that is not ready still answers; another server is not taken for one."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        bodies = {
            "/healthz": (200, {"status": "ok"}),
            "/readyz": (503, {"status": "unavailable", "version": "1", "checks": {"database": "failed"}}),
            "/api/v1/service-keys": (200, {"keys": []}),
        }
        status, body = bodies[request.url.path]
        return httpx.Response(status, content=json.dumps(body))

    with PublicClient("https://x.example", carrier=answering(answer)) as client:
        assert client.is_alive()
        assert client.readiness().text("status") == "unavailable"
        assert client.service_keys().records("keys") == []
    assert not [request for request in seen if "Authorization" in request.headers]
    for status in (301, 404, 500):

        def refuse(request: httpx.Request, status: int = status) -> httpx.Response:
            return httpx.Response(status, json={})

        other = answering(refuse)
        with PublicClient("https://x.example", carrier=other) as client, pytest.raises(AnswerInvalid):
            client.readiness()
