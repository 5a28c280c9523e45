"""How the agent asks, and whose node its token says that it is."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from attestation.api.runs import RunEvidence
from attestation.client import OutcomeUnknown, ServiceUnreachable
from attestation.errors import ChallengeUsed, Unavailable
from attestation_operator.errors import ServiceAway, TokenMissing
from attestation_operator.metrics import Metrics
from attestation_operator.runs.agent_service import HTTPRunService, NodeClaim, claim_of
from tests.fixtures.run_service import token
from tests.unit.operator.runs.agent_world import ITEM, challenge
from tests.unit.operator.test_service import Answers

UID = "0f6b3c1e-0000-4000-8000-000000000001"
SAID = RunEvidence(challenge_id=challenge().id, evidence=(ITEM,))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a token."""
    made = tmp_path / "token"
    made.write_text(token("n1"))
    return made


def serving(file: Path, *answers: Any) -> tuple[HTTPRunService, Answers]:
    """Return the service, and what carries its answers."""
    carrier = Answers(*answers)
    made = HTTPRunService("http://127.0.0.1:9", token_file=file, metrics=Metrics(), carrier=carrier)
    return made, carrier


def problem(status: int, code: str) -> tuple[int, dict[str, Any]]:
    """Return a problem."""
    said = {"type": f"urn:itl:problem:{code}", "title": "t", "status": status, "detail": "d", "instance": "i"}
    return status, said


def test_both_requests(file: Path) -> None:
    """Where they go, with which token, and what is said."""
    service, carrier = serving(file, (200, challenge().model_dump(mode="json")), (202, b""))
    assert asyncio.run(service.challenge(UID)) == challenge()
    file.write_text(token("n1", iat=2))
    asyncio.run(service.deliver(UID, SAID))
    service.close()
    at = "http://127.0.0.1:9/api/v1/runs/" + UID
    assert [each[:2] for each in carrier.asked] == [("GET", f"{at}/challenge"), ("POST", f"{at}/evidence")]
    assert [each[2]["Authorization"] for each in carrier.asked] == [
        f"Bearer {token('n1')}", f"Bearer {token('n1', iat=2)}",
    ]  # fmt: skip
    assert RunEvidence.model_validate_json(carrier.asked[1][3] or b"") == SAID


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (ServiceUnreachable("cut off"), Unavailable),
        (OutcomeUnknown("cut off", key="k"), Unavailable),
        ((404, b"no such page"), ServiceAway),  # somebody before it, without it
        (problem(401, "unauthenticated"), TokenMissing),
        (problem(503, "unavailable"), Unavailable),
        (problem(409, "challenge-used"), ChallengeUsed),
    ],
)
def test_what_fails_is_told_as_what_it_is(file: Path, answer: Any, error: type[Exception]) -> None:
    """That nothing was decided is one kind of error, whoever says so."""
    service, _ = serving(file, answer)
    with pytest.raises(error):
        asyncio.run(service.deliver(UID, SAID))
    service.close()


def signed(claims: Any) -> str:
    """Return a token with *claims*, which may be no object."""
    text = json.dumps(claims).encode() if not isinstance(claims, bytes) else claims
    return f"e30.{base64.urlsafe_b64encode(text).decode().rstrip('=')}.x"


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        (token("n1", "u1"), NodeClaim(name="n1", uid="u1")),
        (token(None), None),
        (signed({}), None),
        (signed([]), None),
        (signed({"kubernetes.io": None}), None),
        (signed({"kubernetes.io": {"node": "n1"}}), None),
        (signed({"kubernetes.io": {"node": {"name": "n1"}}}), None),
        (signed({"kubernetes.io": {"node": {"name": ["n1"], "uid": "u1"}}}), None),
    ],
)
def test_the_node_is_that_of_the_token(file: Path, said: str, claim: NodeClaim | None) -> None:
    """Name and UID, or none."""
    file.write_text(said)
    assert claim_of(file) == claim


@pytest.mark.parametrize(
    "said", ["", "no-token", "a.!.b", signed(b"no json"), signed(b"[" * 100_000), "x" * 20_000]
)
def test_what_is_no_token_is_none(file: Path, said: str) -> None:
    """It is told as one that is missing, which passes where the kubelet replaces it."""
    file.write_text(said)
    with pytest.raises(TokenMissing):
        claim_of(file)
    file.unlink()
    with pytest.raises(TokenMissing):
        claim_of(file)
