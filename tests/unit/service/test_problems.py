"""Errors on the wire: one mapping, stable codes, nothing that should not be said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from attestation import errors
from attestation.errors import AttestationError, EvidenceRejected, RateLimited
from attestation.results import Check
from attestation_service.border import problems
from tests.unit.service.conftest import OPERATOR, Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


def tree(root: type[AttestationError] = AttestationError) -> Iterator[type[AttestationError]]:
    """Yield every class of errors."""
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


EXPECTED = {
    "malformed-evidence": 400,
    "evidence-rejected": 403,
    "ek-certificate-rejected": 403,
    "ek-template-rejected": 403,
    "ak-attributes-rejected": 403,
    "ak-certificate-rejected": 403,
    "node-identity-rejected": 403,
    "activation-failed": 403,
    "ak-not-activated": 403,
    "registration-token-invalid": 403,
    "machine-rejected": 403,
    "challenge-unknown": 404,
    "machine-unknown": 404,
    "config-token-unknown": 404,
    "registration-token-unknown": 404,
    "allow-list-entry-unknown": 404,
    "policy-unknown": 404,
    "challenge-used": 409,
    "ak-conflict": 409,
    "ek-conflict": 409,
    "transition-forbidden": 409,
    "machine-changed": 409,
    "already-exists": 409,
    "challenge-expired": 410,
    "token-consumed": 410,
    "ek-fingerprint-mismatch": 422,
    "policy-invalid": 422,
    "request-invalid": 422,
    "rate-limited": 429,
    "pending-quota-exceeded": 429,
    "not-acceptable": 406,
    "unauthenticated": 401,
    "forbidden": 403,
    "unavailable": 503,
    "operator-access-not-configured": 503,
    "base-config-missing": 503,
    "base-config-invalid": 503,
    "schematic-invalid": 422,
    "factory-unavailable": 503,
    "factory-answer-invalid": 502,
    "schematic-mismatch": 502,
    "store-unavailable": 503,
}


def raised(kind: type[AttestationError]) -> AttestationError:
    """Return an error of this class."""
    if issubclass(kind, RateLimited):
        return kind("text", retry_after_seconds=7)
    if issubclass(kind, errors.HardwareEvidenceRejected):
        return kind([Check(name="a").failed("text", "text")])
    if issubclass(kind, errors.EndorsementMissing):
        return kind([Check(name="a").undecided("text")])
    if issubclass(kind, errors.RequestRefused):
        return kind("invalid", "text")
    if issubclass(kind, errors.TEEDeviceError):
        return kind("absent", "text")
    if issubclass(kind, errors.QueryInvalid):
        return kind("text", line=1, column=2, length=3)
    return kind("text")


@pytest.mark.parametrize("kind", [k for k in tree() if k.__module__ == errors.__name__], ids=lambda k: k.code)
def test_every_error_has_its_status(kind: type[AttestationError]) -> None:
    """The status is the one of the protocol; evidence sub-codes are hidden; the rest is a bare 500."""
    if issubclass(kind, errors.TPMResponseError):
        assert problems.status_of(kind) is None
        return
    problem, headers = problems.from_error(raised(kind), "id-1")
    code = problem.type.removeprefix("urn:itl:problem:")
    assert problem.instance == "id-1"
    if issubclass(kind, EvidenceRejected):
        assert (code, problem.status) == ("evidence-rejected", 403)
        assert "text" not in problem.detail
    elif kind.code in EXPECTED:
        assert (code, problem.status, problem.detail) == (kind.code, EXPECTED[kind.code], "text")
    elif problems.status_of(kind) is None:
        assert (code, problem.status) == ("internal-error", 500)
        assert "text" not in problem.detail
    if issubclass(kind, RateLimited):
        assert headers["Retry-After"] == "7"
    if kind is errors.Unauthenticated:
        assert headers["WWW-Authenticate"].startswith("Bearer ")


def test_every_code_of_the_protocol_is_in_the_tree() -> None:
    """No code is promised that nothing raises."""
    assert set(EXPECTED) <= {kind.code for kind in tree()}


def is_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """Check that *answer* is this problem and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["type"] == f"urn:itl:problem:{code}"
    assert (body["status"], body["instance"]) == (status, answer.headers["x-request-id"])
    assert body["title"]
    assert body["detail"]
    return body


async def test_the_frameworks_own_errors_are_problems(service: Service) -> None:
    """Unknown route, wrong method, wrong form, not JSON: all in one form, nothing sent is repeated."""
    is_problem(await service.get("/api/v1/nothing"), 404, "route-unknown")
    wrong = await service.http.put("/api/v1/attest", json={})
    is_problem(wrong, 405, "method-not-allowed")
    assert wrong.headers["allow"] == "POST"
    every = await service.http.patch("/api/v1/policies/assignments/fleet/*")
    is_problem(every, 405, "method-not-allowed")
    assert every.headers["allow"] == "DELETE, PUT"
    body = is_problem(await service.post("/api/v1/attest", {"surprise": "canary"}), 422, "schema-violation")
    assert {"field": "body.surprise", "message": "is not known here"} in body["errors"]
    assert "canary" not in str(body)
    body = is_problem(
        await service.post("/api/v1/self-register", {"surprise": "canary"}), 422, "schema-violation"
    )
    assert "canary" not in str(body)
    for path in ("/api/v1/attest", "/api/v1/self-register"):
        broken = await service.http.post(path, content=b'{"a":', headers={"Content-Type": "application/json"})
        is_problem(broken, 422, "schema-violation")
        not_text = await service.http.post(
            path, content=b"\xff", headers={"Content-Type": "application/json"}
        )
        assert not_text.status_code in (400, 422)


@pytest.mark.threat("T32")
async def test_what_nobody_expected_is_a_500_without_detail(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer says nothing; the log says where, and not the foreign exception's words."""

    def break_it(_: object) -> None:
        raise ZeroDivisionError("canary-secret")

    service.resources.store.read = break_it  # type: ignore[method-assign,assignment]  # the fault to inject
    answer = await service.post("/api/v1/self-register", SoftwareNode().introduction())
    body = is_problem(answer, 500, "internal-error")
    assert "canary" not in str(body)
    assert answer.headers["cache-control"] == "no-store"
    logged = capsys.readouterr().err
    assert "ZeroDivisionError" in logged
    assert "canary" not in logged


async def test_a_store_that_does_not_answer_is_503(service: Service) -> None:
    """Could not decide is not rejected: 503 with Retry-After."""
    await service.store.aclose()
    answer = await service.post("/api/v1/self-register", SoftwareNode().introduction())
    is_problem(answer, 503, "store-unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert (await service.get("/healthz")).status_code == 200


async def test_operator_access_not_configured(start: Starter) -> None:
    """Without any method, operator routes answer 503 whatever is presented."""
    service = await start(admin_token=None)
    answer = await service.get("/api/v1/machines", headers=OPERATOR)
    is_problem(answer, 503, "operator-access-not-configured")


def test_install_needs_only_an_application() -> None:
    """The mapping is one call; nothing else registers handlers."""
    app = FastAPI()
    problems.install(app)
    assert AttestationError in app.exception_handlers
