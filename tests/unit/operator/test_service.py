"""Asking the service: the token as it is now, bounds, and which failures mean that nothing was decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attestation.api.node_csr import KubernetesCSR, NodeCSRRequest
from attestation.client import AnswerInvalid, APIError, ServiceUnreachable
from attestation.errors import AttestationError, Forbidden, Unavailable
from attestation_operator.errors import ServiceAway, TokenMissing
from attestation_operator.metrics import Metrics
from attestation_operator.service import HTTPService, _is_away
from tests.unit.operator.doubles import AT

DECISION = {"result_id": "0" * 32, "decision": "approve", "reason": "TpmAttested", "message": "ok"}
REQUEST = NodeCSRRequest(
    csr=KubernetesCSR(
        name="csr-1",
        uid="u-1",
        signer_name="a.b/c",
        username="u",
        groups=[],
        usages=[],
        created_at=AT,
        request="",
    ),
    node=None,
)


@dataclass
class Reply:
    """An answer."""

    status: int
    body: bytes
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})

    def chunks(self) -> Iterator[bytes]:
        """Yield it."""
        yield self.body

    def close(self) -> None:
        """Nothing is held."""


class Answers:
    """Carries requests to nobody, and answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Mapping[str, str], bytes | None]] = []

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Note the request, and answer as told."""
        self.asked.append((method, url, headers, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, said = answer
        return Reply(status, said if isinstance(said, bytes) else json.dumps(said).encode())

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A file with a token."""
    file = tmp_path / "token"
    file.write_text("token-1\n")
    return file


def _service(token: Path, carrier: Answers) -> tuple[HTTPService, Metrics]:
    metrics = Metrics()
    made = HTTPService("http://127.0.0.1:9", token_file=token, metrics=metrics, carrier=carrier, threads=2)
    return made, metrics


def _asked(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["operation"], sample.labels["outcome"]): sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "itl_operator_service_requests_total"
    }


def test_the_token_is_read_for_each_request(token: Path) -> None:
    """A kubelet replaces the file; the old one is refused soon after."""
    carrier = Answers((200, DECISION), (200, DECISION))
    service, metrics = _service(token, carrier)
    assert asyncio.run(service.appraise(REQUEST)).decision == "approve"
    token.write_text("token-2")
    asyncio.run(service.appraise(REQUEST))
    assert [each[2]["Authorization"] for each in carrier.asked] == ["Bearer token-1", "Bearer token-2"]
    assert [(each[0], each[1]) for each in carrier.asked] == [
        ("POST", "http://127.0.0.1:9/api/v1/node-csr/appraise")
    ] * 2
    assert _asked(metrics) == {("appraise", "answered"): 2.0}
    service.close()


@pytest.mark.parametrize("content", [None, b"", b"a b", b"a\nX: y", b"\xff", b"x" * 20_000])
def test_what_is_no_token_is_not_sent(token: Path, content: bytes | None) -> None:
    """Nothing leaves: a line break would begin another header."""
    token.unlink() if content is None else token.write_bytes(content)
    carrier = Answers()
    service, _ = _service(token, carrier)
    with pytest.raises(TokenMissing):
        asyncio.run(service.appraise(REQUEST))
    assert carrier.asked == []


def _problem(status: int, code: str) -> tuple[int, dict[str, Any]]:
    return status, {"type": f"urn:itl:problem:{code}", "title": "t", "status": status, "detail": "d"}


@pytest.mark.parametrize(
    ("answer", "error", "outcome"),
    [
        (ServiceUnreachable("x"), ServiceUnreachable, "away"),
        (_problem(503, "store-unavailable"), Unavailable, "away"),
        (_problem(500, "internal-error"), ServiceAway, "away"),
        (_problem(429, "rate-limited"), ServiceAway, "away"),
        (_problem(401, "unauthenticated"), TokenMissing, "refused"),
        (_problem(403, "forbidden"), Forbidden, "refused"),
        ((404, b"default backend - 404"), ServiceAway, "away"),
        ((413, b"<html>"), APIError, "refused"),
        ((200, b"<html>"), AnswerInvalid, "away"),
        ((302, b""), AnswerInvalid, "away"),
    ],
    ids=["no answer", "503", "500", "429", "401", "403", "no backend", "413", "no JSON", "redirect"],
)
def test_a_failure_is_away_or_refused(
    token: Path, answer: Any, error: type[AttestationError], outcome: str
) -> None:
    """Away: nothing was decided, and it is asked again. Refused: asking again does not help. Asked once each."""
    carrier = Answers(answer)
    service, metrics = _service(token, carrier)
    with pytest.raises(error) as found:
        asyncio.run(service.appraise(REQUEST))
    assert isinstance(found.value, Unavailable) == (outcome == "away" or error is TokenMissing)
    assert _asked(metrics) == {("appraise", outcome): 1.0}
    assert len(carrier.asked) == 1


def test_a_404_of_the_service_itself_is_a_refusal() -> None:
    """Only one without its explanation is that of somebody who stands before it."""
    assert not _is_away(APIError(code="not-found", title="", detail="", status=404))
    assert _is_away(APIError(code="http-404", title="", detail="", status=404))


def _page(number: int, cursor: str | None) -> tuple[int, dict[str, Any]]:
    item = {
        "machine_id": f"00000000-0000-4000-8000-{number:012}",
        "hostname": None,
        "status": "attested",
        "trusted": True,
        "reason": "Trusted",
        "trust_expires_at": None,
        "node_certificate_at": None,
    }
    return 200, {"items": [item], "next_cursor": cursor, "at": "2026-11-23T12:00:00Z"}


def test_trust_is_read_to_its_end(token: Path) -> None:
    """Page by page."""
    carrier = Answers(_page(1, "c-2"), _page(2, None))
    service, _ = _service(token, carrier)
    assert len(asyncio.run(service.trust())) == 2
    assert "cursor=c-2" in carrier.asked[1][1]


@pytest.mark.parametrize(
    ("answer", "away"),
    [
        ((200, {"status": "ok", "version": "1", "checks": {}}), None),
        ((200, {"status": "degraded", "version": "1", "checks": {}}), None),
        ((503, {"status": "unavailable", "version": "1", "checks": {}}), "it says unavailable"),
        (ServiceUnreachable("x"), "service-unreachable"),
    ],
)
def test_reachable_says_why_not(token: Path, answer: Any, away: str | None) -> None:
    """In a word, for /readyz; without a credential."""
    carrier = Answers(answer)
    service, _ = _service(token, carrier)
    assert asyncio.run(service.reachable()) == away
    assert "Authorization" not in carrier.asked[0][2]


def test_after_the_end_nothing_is_asked(token: Path) -> None:
    """A task that is late gets an error of ours."""
    carrier = Answers()
    service, _ = _service(token, carrier)
    service.close()
    with pytest.raises(ServiceUnreachable):
        asyncio.run(service.trust())


def _run_detail(*attempts: dict[str, Any]) -> dict[str, Any]:
    return {
        "uid": "u-1",
        "cluster_id": "prod-1",
        "namespace": "n",
        "name": "r",
        "node_name": "w-1",
        "node_uid": "u-2",
        "backend": "tpm",
        "policy_id": "ni:///sha-384;x",
        "policy_source": "none",
        "deadline": "2026-11-26T12:00:00Z",
        "attempts": list(attempts),
    }


def _attempt(state: str) -> dict[str, Any]:
    return {
        "attempt": 1,
        "state": state,
        "challenge_id": "0" * 32,
        "expires_at": "2026-11-26T12:00:00Z",
    }


def test_a_run_of_which_half_is_told_is_not_told(token: Path) -> None:
    """Without an attempt, or judged without a result, no decision could be made of it, at its deadline neither."""
    carrier = Answers(
        (200, _run_detail(_attempt("open"))),
        (200, _run_detail()),
        (200, _run_detail(_attempt("judged"))),
    )
    service, _ = _service(token, carrier)
    assert len(asyncio.run(service.run("u-1")).attempts) == 1
    for _each in range(2):
        with pytest.raises(AnswerInvalid):
            asyncio.run(service.run("u-1"))
    service.close()
