"""Who may ask what: every route declares it, and the declaration is what happens (FAULTS R1, R18)."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import SecretStr

from attestation.errors import Forbidden
from attestation.machines import OperatorEvent
from attestation_service.auth import ControllerDuty, Duty, OperatorDep, Right, VoterDep
from attestation_service.auth.operator import declared
from attestation_service.context.request import ACCESS_KEY
from attestation_service.routing.openapi import (
    access,
    answers,
    controller_router,
    demand_access,
    machine_router,
    operator_router,
)
from tests.unit.service.browser import Browser
from tests.unit.service.conftest import OPERATOR, TOKEN, Service, Starter, document
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import ISSUER, introduce

pytestmark = pytest.mark.anyio

NOBODY = "00000000-0000-4000-8000-000000000000"
MACHINE_ROUTES = {
    ("POST", "/api/v1/self-register"),
    ("POST", "/api/v1/register"),
    ("POST", "/api/v1/machines/{machine_id}/ak-activate"),
    ("POST", "/api/v1/machines/{machine_id}/tee-activate"),
    ("GET", "/api/v1/attest/challenge"),
    ("POST", "/api/v1/attest"),
    ("POST", "/api/v1/machines/{machine_id}/ack"),
    ("GET", "/api/v1/config/{config_token}"),
    ("GET", "/api/v1/config"),
    ("GET", "/api/v1/machines/{machine_id}/challenge"),
    ("POST", "/api/v1/machines/{machine_id}/request-cert"),
    ("POST", "/api/v1/machines/enroll"),
}
CONTROLLER_ROUTES = {
    ("POST", "/api/v1/node-csr/appraise"): "attestation-approver",
    ("POST", "/api/v1/node-csr/sign"): "attestation-signer",
    ("GET", "/api/v1/node-csr/trust"): "attestation-controller",
    ("PUT", "/api/v1/runs/{uid}"): "attestation-runs",
    ("PUT", "/api/v1/runs/{uid}/bundle"): "attestation-runs",
    ("GET", "/api/v1/runs/{uid}"): "attestation-runs",
    ("GET", "/api/v1/runs/{uid}/challenge"): "attestation-run-agent",
    ("POST", "/api/v1/runs/{uid}/evidence"): "attestation-run-agent",
    ("PUT", "/api/v1/hsm/issuers/{uid}"): "attestation-hsm",
    ("POST", "/api/v1/hsm/issuers/{issuer_id}/certificates"): "attestation-hsm",
    ("POST", "/api/v1/hsm/issuers/{issuer_id}/certificates/issued"): "attestation-hsm",
    ("GET", "/api/v1/hsm/issuers/{issuer_id}/crl"): "attestation-hsm",
    ("PUT", "/api/v1/hsm/issuers/{issuer_id}/crl"): "attestation-hsm",
    ("GET", "/api/v1/hsm/issuers/{issuer_id}/responder"): "attestation-hsm",
    ("PUT", "/api/v1/hsm/issuers/{issuer_id}/responder"): "attestation-hsm",
    ("POST", "/api/v1/hsm/nonces"): "attestation-hsm",
    ("PUT", "/api/v1/hsm/quote-attestations/{uid}"): "attestation-hsm",
    ("POST", "/api/v1/hsm/quote-attestations/{uid}/steps"): "attestation-hsm",
}
"""Of a cluster: each opens to one duty alone."""
PUBLIC_ROUTES = {
    ("GET", "/pki/bundle"),
    ("GET", "/pki/ca"),
    ("GET", "/pki/ca/{issuer_id}"),
    ("GET", "/pki/crl"),
    ("GET", "/pki/crl/{issuer_id}"),
    ("GET", "/pki/hsm/{issuer_id}.crl"),
    ("GET", "/pki/hsm/{issuer_id}.crt"),
    ("GET", "/pki/ocsp/{request}"),
    ("POST", "/pki/ocsp"),
    # The device flow: a machine that knows nobody asks for a code, and nothing is released on it.
    ("GET", "/device"),
    ("POST", "/device/code"),
    ("POST", "/token"),
    ("POST", "/api/v1/device/code"),
    ("POST", "/api/v1/token"),
    # ACME: whoever asks proves themselves in a JWS.
    ("GET", "/acme/directory"),
    ("GET", "/acme/new-nonce"),
    ("HEAD", "/acme/new-nonce"),
    ("POST", "/acme/new-account"),
    ("POST", "/acme/accounts/{account_id}"),
    ("POST", "/acme/accounts/{account_id}/orders"),
    ("POST", "/acme/key-change"),
    ("POST", "/acme/new-order"),
    ("POST", "/acme/orders/{order_id}"),
    ("POST", "/acme/orders/{order_id}/finalize"),
    ("POST", "/acme/authorizations/{order_id}"),
    ("POST", "/acme/challenges/{order_id}"),
    ("POST", "/acme/certificates/{order_id}/{serial}"),
    ("POST", "/acme/revoke-cert"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/api/v1/service-keys"),
    # Hashes and signatures, no names: whoever watches the log need not be known to it.
    ("GET", "/api/v1/audit/checkpoint"),
    ("GET", "/api/v1/audit/keys"),
    ("GET", "/api/v1/audit/proof/consistency"),
    ("GET", "/api/v1/audit/proof/inclusion"),
    ("GET", "/api/v1/audit/tile/{path}"),
}


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return every documented operation by method and path."""
    return {
        (method.upper(), path): operation
        for path, item in document()["paths"].items()
        for method, operation in item.items()
    }


OPERATIONS = operations()
OPERATOR_ROUTES = sorted(k for k, v in OPERATIONS.items() if v.get(ACCESS_KEY) in set(Right))

WHO_MAY: dict[Right, set[Duty]] = {
    Right.READ: {Duty.VIEWER, Duty.OPERATOR},
    Right.ACT: {Duty.OPERATOR},
    Right.AUDIT: {Duty.AUDITOR},
    Right.METRICS: {Duty.METRICS, Duty.VIEWER, Duty.OPERATOR},
    Right.QUERY: {Duty.VIEWER, Duty.OPERATOR, Duty.AUDITOR},
    Right.KNOWN: {Duty.METRICS, Duty.VIEWER, Duty.OPERATOR, Duty.AUDITOR},
}
"""Written out once more, by hand: whoever changes `RIGHTS` shall meet this table."""


def concrete(path: str) -> str:
    """Fill in a path."""
    values = {
        "machine_id": NOBODY,
        "approval_id": "1",
        "proposal_digest": "0" * 64,
        "token_id": "0" * 16,
        "key_id": "0" * 16,
        "account_id": "0" * 32,
        "order_id": "0" * 32,
        "ek_fingerprint": "0" * 96,
        "scope": "fleet",
        "subject": "*",
        "config_token": "x",
        "code": "BBBB-BBBB",
        "path": "000",
        "result_id": "1",
        "saved_id": "1",
        "name": "x",
        "version": "1",
        "sha256": "0" * 64,
        "serial": "0" * 40,
        "issuer_id": "0" * 16,
        "event_id": "1",
        "request": "x",
        "uid": "00000000-0000-4000-8000-000000000000",
        "cluster_id": "default",
        "role": "worker-app",
    }
    return path.format(**values)


def let_in(answer: httpx.Response) -> bool:
    """Return True if the route itself answered; a service without a CA, or a key for configurations, says so."""
    if answer.status_code == 503:
        missing = ("ca-not-configured", "configurations-not-kept")
        return answer.json()["type"].removeprefix("urn:itl:problem:") in missing
    return answer.status_code not in (401, 403, 405, 500)


@pytest.mark.threat("T23")
def test_every_route_declares_who_may_ask() -> None:
    """No route is forgotten: what is not listed here as public needs an operator."""
    declared = {key: operation.get(ACCESS_KEY) for key, operation in OPERATIONS.items()}
    assert {k for k, v in declared.items() if v == "machine"} == MACHINE_ROUTES
    assert {k for k, v in declared.items() if v == "public"} == PUBLIC_ROUTES
    assert {k: v for k, v in declared.items() if v in set(ControllerDuty)} == CONTROLLER_ROUTES
    others = MACHINE_ROUTES | PUBLIC_ROUTES | CONTROLLER_ROUTES.keys()
    assert set(declared) - others == set(OPERATOR_ROUTES)
    assert len(OPERATOR_ROUTES) >= 20
    for method, path in OPERATOR_ROUTES:
        right = OPERATIONS[method, path][ACCESS_KEY]
        if path.startswith("/api/v1/audit"):
            assert right == Right.AUDIT, path
        elif path == "/api/v1/whoami":
            assert right == Right.KNOWN, path
        elif (
            path.startswith("/api/v1/query") and "/shared/" not in path
        ) or path == "/api/v1/quote-attestations/judge":
            # Posted because it is long; what is kept is one's own, or nothing.
            assert right == Right.QUERY, path
        else:
            # What changes something is never a reader's.
            assert right == (Right.READ if method == "GET" else Right.ACT), (method, path)


@pytest.mark.threat("T119")
def test_a_route_without_a_declaration_stops_the_start() -> None:
    """Default deny: neither a forgotten declaration nor a declaration that nothing enforces is served."""
    for router, method, extra, word in (
        (operator_router("x"), "GET", None, "does not declare"),
        (operator_router("x"), "GET", {ACCESS_KEY: "everybody"}, "does not declare"),
        (operator_router("x"), "GET", access("public"), "are asked for"),
        (machine_router("x"), "POST", access("act"), "are not asked for"),
        (operator_router("x"), "GET", access("act"), "is no GET"),
        (operator_router("x"), "POST", access("read"), "is no GET"),
        (operator_router("x"), "GET", access("attestation-signer"), "are asked for"),
        (machine_router("x"), "GET", access("attestation-signer"), "controllers are asked for, or not"),
        (controller_router("x"), "GET", access("public"), "controllers are asked for, or not"),
    ):
        app = FastAPI(docs_url=None, redoc_url=None)

        @router.api_route("/x", methods=[method], openapi_extra=extra)
        async def x() -> None: ...

        app.include_router(router)
        with pytest.raises(RuntimeError, match=word):
            demand_access(app)
    app = FastAPI(docs_url=None, redoc_url=None)
    app.mount("/else", FastAPI())
    with pytest.raises(RuntimeError, match="does not declare"):
        demand_access(app)


def test_a_gated_route_that_takes_no_proposal_stops_the_start() -> None:
    """It would do something else than what the caller named, without a word; and a route that votes must say so."""

    async def votes(who: VoterDep) -> None: ...

    async def asks(who: OperatorDep) -> None: ...

    for route, gated in ((asks, True), (votes, False)):
        app, router = FastAPI(docs_url=None, redoc_url=None), operator_router("x")
        responses = answers(gated=gated, kind="act")
        router.add_api_route("/x", route, methods=["POST"], responses=responses, openapi_extra=access("act"))
        app.include_router(router)
        with pytest.raises(RuntimeError, match="to which proposal"):
            demand_access(app)


def test_an_undeclared_right_is_nobodys() -> None:
    """Even if such a route were served, the dependency itself would let nobody in."""
    for extra in (None, {}, access("public"), access("machine")):
        route = SimpleNamespace(openapi_extra=extra)
        with pytest.raises(Forbidden):
            declared(Request({"type": "http", "route": route, "headers": []}))
    with pytest.raises(Forbidden):
        declared(Request({"type": "http", "headers": []}))


@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
async def test_each_right_is_for_those_who_have_it(service: Service, method: str, path: str) -> None:
    """Nobody, viewer, auditor, operator, somebody without duty, a machine: each route, each one."""
    service.app.state.resources, people = introduce(service.resources)
    right = Right(OPERATIONS[method, path][ACCESS_KEY])
    for duty in Duty:
        headers = people.headers(duty, duty)
        answer = await service.http.request(method, concrete(path), headers=headers, json={})
        if duty in WHO_MAY[right]:
            assert let_in(answer), (duty, answer.text)
        else:
            assert answer.status_code == 403, (duty, answer.text)
            assert answer.json()["type"] == "urn:itl:problem:forbidden"
            assert "the role attestation-" in answer.json()["detail"]
    node = SoftwareNode()
    admitted = await service.admitted(node)
    for credential in (admitted["config_token"], node.machine_id, node.ek_fingerprint, "a.b.c"):
        answer = await service.http.request(
            method, concrete(path), headers={"Authorization": f"Bearer {credential}"}, json={}
        )
        assert answer.status_code == 401, (credential, answer.text)


async def test_a_refused_person_is_audited(service: Service) -> None:
    """Who wanted what, within bounds; the attempt does not count as a guess at break-glass."""
    service.app.state.resources, people = introduce(service.resources)
    for _ in range(15):
        answer = await service.http.request(
            "GET", "/api/v1/audit", headers=people.headers("vera", Duty.VIEWER)
        )
        assert answer.status_code == 403
    (first, *more) = await service.audit(action="denied")
    assert (first["operator_cn"], first["operator_sub"]) == ("vera", f"{ISSUER}#vera")
    assert "GET /api/v1/audit" in first["detail"]
    assert len(more) <= 9
    assert (await service.operator("GET", "/machines")).status_code == 200


async def test_expired_sessions_do_not_lock_out_break_glass(service: Service) -> None:
    """A signed token is verified, not guessed: a dashboard that goes on with one blocks nobody."""
    service.app.state.resources, _ = introduce(service.resources)
    for _ in range(30):
        answer = await service.get("/api/v1/machines", headers={"Authorization": "Bearer old.session.token"})
        assert answer.status_code == 401
    assert (await service.operator("GET", "/machines")).status_code == 200
    guess = {"Authorization": "Bearer guess"}
    statuses = [(await service.get("/api/v1/machines", headers=guess)).status_code for _ in range(30)]
    assert statuses[-1] == 429


async def test_a_secret_of_three_parts_is_guarded_all_the_same(start: Starter) -> None:
    """Where break-glass itself looks like a signed token, whatever looks so may be a guess at it."""
    service = await start(admin_token=SecretStr("one.two.three-and-more-than-thirty-two"))
    service.app.state.resources, _ = introduce(service.resources)
    guess = {"Authorization": "Bearer one.two.four"}
    statuses = [(await service.get("/api/v1/machines", headers=guess)).status_code for _ in range(30)]
    assert (statuses[0], statuses[-1]) == (401, 429)


async def test_a_wrong_bearer_never_falls_through(service: Service) -> None:
    """A certificate beside a wrong token is not looked at."""
    service.app.state.resources = replace(service.resources, mtls=Browser())
    assert (await service.get("/api/v1/machines")).status_code == 200
    for value in ("Bearer wrong", "Bearer a.b.c", "Basic x", "", "Bearer"):
        answer = await service.get("/api/v1/machines", headers={"Authorization": value})
        assert answer.status_code == 401, value


class TestBreakGlass:
    """One token for everything: every use is on record, and it has bounds."""

    async def test_every_use_is_an_entry_and_an_event(self, service: Service) -> None:
        """Reads too, with method and path; acts have theirs beside it."""
        await service.operator("GET", "/machines")
        (entry,) = (await service.audit(action="break_glass"))[1:]
        assert (entry["operator_cn"], entry["operator_sub"]) == ("SYSTEM", None)
        assert (entry["detail"], entry["source_ip"]) == ("GET /api/v1/machines", "192.0.2.7")
        claimed = await service.store.write(lambda tx: tx.outbox.claim(100, service.clock.now()))
        uses = [e.payload["use"] for e in claimed if e.event is OperatorEvent.BREAK_GLASS]
        assert "GET /api/v1/machines" in uses
        assert TOKEN not in json.dumps([dict(e.payload) for e in claimed])

    async def test_uses_are_limited(self, start: Starter) -> None:
        """Whoever holds it cannot work through it; other people are not affected."""
        service = await start(break_glass_per_minute=3)
        service.app.state.resources, people = introduce(service.resources)
        statuses = [(await service.operator("GET", "/machines")).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert (
            await service.get("/api/v1/machines", headers=people.headers("alice", Duty.OPERATOR))
        ).status_code == 200
        service.clock.advance(60)
        assert (await service.operator("GET", "/machines")).status_code == 200

    async def test_it_expires(self, start: Starter) -> None:
        """From the instant on it is as wrong as any other."""
        service = await start(break_glass_expires_at=datetime(2026, 11, 21, 12, 0, 10, tzinfo=UTC))
        assert (await service.operator("GET", "/machines")).status_code == 200
        service.clock.advance(10)
        assert (await service.operator("GET", "/machines")).status_code == 401

    async def test_it_is_bound_to_networks(self, start: Starter) -> None:
        """From elsewhere it is as wrong as any other."""
        away = await start(break_glass_networks=(ip_network("10.0.0.0/8"),))
        assert (await away.operator("GET", "/machines")).status_code == 401
        here = await start(break_glass_networks=(ip_network("192.0.2.0/24"),))
        assert (await here.operator("GET", "/machines")).status_code == 200


@pytest.mark.threat("T23")
@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
async def test_operator_routes_refuse_everybody_else(service: Service, method: str, path: str) -> None:
    """No credential, a wrong one, two of them, another scheme: 401, and nothing is written but the denial."""
    url = concrete(path)
    for headers in (
        [],
        [("Authorization", "Bearer wrong")],
        [("Authorization", "Bearer ")],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", f"bearer {TOKEN}x")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer wrong")],
        [("X-EK-Fingerprint", "0" * 96), ("X-Remote-User", "admin")],
    ):
        answer = await service.http.request(method, url, headers=headers, json={})
        assert answer.status_code == 401, (headers, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["type"] == "urn:itl:problem:unauthenticated"
    assert {entry["action"] for entry in await service.audit()} == {"denied"}


@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
async def test_operator_routes_let_the_operator_in(service: Service, method: str, path: str) -> None:
    """With the credential the route itself answers."""
    answer = await service.http.request(method, concrete(path), headers=OPERATOR, json={})
    assert let_in(answer), answer.text


@pytest.mark.parametrize(("method", "path"), sorted(MACHINE_ROUTES | PUBLIC_ROUTES))
async def test_public_routes_ask_for_no_operator(service: Service, method: str, path: str) -> None:
    """What a machine needs, it gets without an operator's credential; a wrong one there does no harm."""
    answer = await service.http.request(
        method,
        concrete(path),
        json={},
        headers={"Authorization": "Bearer wrong", "Accept": "application/json"},
    )
    assert let_in(answer), answer.text


@pytest.mark.threat("T23", "T129")
async def test_wrong_credentials_are_limited_and_audited_within_bounds(service: Service) -> None:
    """A guesser is slowed down and cannot fill the audit log; another address is not affected."""
    statuses = []
    for _ in range(40):
        answer = await service.get("/api/v1/machines", headers={"Authorization": "Bearer wrong"})
        statuses.append(answer.status_code)
    assert statuses[0] == 401
    assert statuses[-1] == 429
    # Who holds the right one is not locked out by the guesses of somebody behind the same address.
    assert (await service.get("/api/v1/machines", headers=OPERATOR)).status_code == 200
    assert (
        await service.get("/api/v1/machines", headers={"Authorization": "Bearer wrong"})
    ).status_code == 429
    twice = [("Authorization", OPERATOR["Authorization"])] * 2
    assert (await service.http.get("/api/v1/machines", headers=twice)).status_code == 429
    service.clock.advance(60)
    assert 1 <= len(await service.audit(action="denied")) <= 10


@pytest.mark.threat("T129")
async def test_a_short_token_waits_for_the_limit(start: Starter) -> None:
    """One that can be guessed is not looked at beyond the limit: otherwise nothing would slow a guesser down."""
    service = await start(admin_token="short", tpm_allow_simulator=True)
    for _ in range(20):
        await service.get("/api/v1/machines", headers={"Authorization": "Bearer wrong"})
    right = {"Authorization": "Bearer short"}
    assert (await service.get("/api/v1/machines", headers=right)).status_code == 429
    service.clock.advance(60)
    assert (await service.get("/api/v1/machines", headers=right)).status_code == 200


@pytest.mark.threat("T129")
@pytest.mark.parametrize(
    "limited",
    [
        {"break_glass_networks": ("198.51.100.0/24",)},
        {"break_glass_expires_at": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
    ids=lambda limited: next(iter(limited)),
)
async def test_a_token_that_may_not_be_used_is_like_a_wrong_one(
    start: Starter, limited: dict[str, Any]
) -> None:
    """From another network, or expired: 401, then 429, as guesses get; whoever found it does not learn what it is."""
    service = await start(**limited)
    answers = [(await service.get("/api/v1/machines", headers=OPERATOR)).status_code for _ in range(20)]
    assert (answers[0], answers[-1]) == (401, 429)


async def test_every_use_of_break_glass_is_logged(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reads too; the token itself is in no log."""
    await service.operator("GET", "/machines")
    logged = capsys.readouterr().err
    assert "operator.break_glass" in logged
    assert TOKEN not in logged


async def test_acts_are_audited_as_system(service: Service) -> None:
    """The audit says who, from where, what and from which state to which."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    entry = (await service.audit(action="approve"))[0]
    assert (entry["operator_cn"], entry["source_ip"]) == ("SYSTEM", "192.0.2.7")
    assert (entry["prev_state"], entry["new_state"]) == ("pending_approval", "registered")


async def test_the_token_may_have_any_length(start: Starter) -> None:
    """A short token works and is warned of; a huge header is refused, not compared."""
    service = await start(admin_token=SecretStr("short"))
    good = await service.get("/api/v1/machines", headers={"Authorization": "Bearer short"})
    assert good.status_code == 200
    huge = await service.get("/api/v1/machines", headers={"Authorization": "Bearer " + "x" * 100_000})
    assert huge.status_code == 401


async def test_who_asks_who_they_are_leaves_nothing_in_the_audit(service: Service) -> None:
    """Name, method, roles and rights, for each duty; before, a look at what one may not see was an entry each time."""
    service.app.state.resources, people = introduce(service.resources)
    rights = {
        Duty.OPERATOR: ["read", "act", "metrics", "query"],
        Duty.VIEWER: ["read", "metrics", "query"],
        Duty.AUDITOR: ["audit", "query"],
        Duty.METRICS: ["metrics"],
    }
    before = [entry["action"] for entry in await service.audit()]
    for duty in Duty:
        answer = await service.get("/api/v1/whoami", headers=people.headers(f"{duty}-1", duty))
        told = answer.json()
        assert (told["name"], told["method"]) == (f"{duty}-1", "oidc")
        assert (told["roles"], told["rights"]) == ([duty], rights[duty])
        assert told["subject"].startswith(f"{ISSUER}#")
    assert [entry["action"] for entry in await service.audit()] == before
    broken = (await service.get("/api/v1/whoami", headers=OPERATOR)).json()
    assert (broken["name"], broken["subject"], broken["method"]) == ("SYSTEM", None, "break_glass")
    assert (broken["roles"], broken["rights"]) == ([], ["read", "act", "audit", "metrics", "query"])
