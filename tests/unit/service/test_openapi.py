"""The OpenAPI document is complete: every route says what it takes, answers and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from fastapi import FastAPI

from attestation.api import Health, PendingApproval, ReasonRequest
from attestation.api.operation import Operation
from attestation.api.said import PATTERNS
from attestation.errors import MachineUnknown
from attestation.reference.schema import either
from attestation_service.auth import ControllerDuty, OperatorDep, Right, VoterDep
from attestation_service.border.problems import MEDIA_TYPE
from attestation_service.routers import ROUTERS
from attestation_service.routing.lean import LeanRoute, RawRoute
from attestation_service.routing.openapi import ACCESS, Access, operator_router, route
from attestation_service.routing.parameters import Id
from attestation_service.settings import Settings
from tests.unit.service.conftest import document
from tests.unit.service.test_access import OPERATIONS

OCSP = "application/ocsp-response"
DOCUMENT = document()


def test_references_resolve() -> None:
    """Nothing is named that is not defined."""
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    text = json.dumps(DOCUMENT)
    used = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert used <= known


@pytest.mark.parametrize(("key", "operation"), OPERATIONS.items(), ids=[" ".join(key) for key in OPERATIONS])
def test_every_operation_is_described(key: tuple[str, str], operation: dict[str, Any]) -> None:
    """Id, summary, description, tag, a success, a schema, and every error as a problem with its codes and examples."""
    assert operation["operationId"]
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    assert any(status.startswith("2") for status in operation["responses"])
    for status, answer in operation["responses"].items():
        assert all(content["schema"] for content in answer.get("content", {}).values())
        if status.startswith("2") or key[1] == "/readyz":
            continue
        if status == "304" or OCSP in answer["content"]:
            # Nothing to say, or said in the language of the one who asks (RFC 6960 §2.3).
            assert key[1].startswith("/pki/") or key[1] == "/api/v1/node-csr/trust"
            continue
        content = answer["content"][MEDIA_TYPE]
        if key[1].startswith("/acme/") and status != "404":
            # In the language of the one who asks, too: RFC 8555 §6.7 has problem documents of its own.
            assert all(each["value"]["status"] == int(status) for each in content["examples"].values())
            continue
        assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
        for code, example in content["examples"].items():
            assert example["value"]["type"] == f"urn:itl:problem:{code}"
            assert example["value"]["status"] == int(status)
    assert {"422", "500", "503"} <= operation["responses"].keys()
    if "requestBody" in operation and OCSP not in operation["responses"].get("200", {}).get("content", {}):
        assert {"400", "413"} <= operation["responses"].keys()


def test_the_operators_scheme_stands_on_their_routes_only() -> None:
    """Whoever reads the document sees where a credential is needed."""
    for operation in OPERATIONS.values():
        asked = {scheme for each in operation.get("security", ()) for scheme in each}
        of_operators, of_controllers = (
            operation["x-access"] in set(kind) for kind in (Right, ControllerDuty)
        )
        assert asked == ({"operator"} if of_operators else {"controller"} if of_controllers else set())
    assert DOCUMENT["components"]["securitySchemes"]["operator"]["scheme"] == "bearer"


def test_operation_ids_are_unique() -> None:
    """Generated clients depend on them."""
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(ids) == len(set(ids))


def test_a_route_is_its_handler() -> None:
    """What it takes and answers, that several may have to agree, and what is told: the function says it."""

    async def act(machine_id: Id, request: ReasonRequest, *, operator: VoterDep) -> Health | PendingApproval:
        """Do it.

        With care.

        Raises:
            MachineUnknown: That is for readers of the source.
        """
        raise NotImplementedError

    async def end(machine_id: Id) -> None:
        raise NotImplementedError

    app, router = FastAPI(), operator_router("x")
    route(router, Operation("do_it", "POST /x/{machine_id}", MachineUnknown), "act", act, done=201)
    route(router, Operation("end_it", "DELETE /x/{machine_id}"), "act", end)
    app.include_router(router)
    found = app.openapi()["paths"]["/api/v1/x/{machine_id}"]
    done, ended = found["post"], found["delete"]
    assert (done["operationId"], done["summary"], done["description"]) == ("do_it", "Do it", "With care.")
    assert done["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ReasonRequest")
    assert {each["name"] for each in done["parameters"]} == {"machine_id", "proposal", "new_proposal"}
    answers = done["responses"]
    assert answers["201"]["content"]["application/json"]["schema"]["$ref"].endswith("/Health")
    assert answers["202"]["content"]["application/json"]["schema"]["$ref"].endswith("/PendingApproval")
    assert "machine-unknown" in answers["404"]["description"]
    assert "413" in answers
    assert ended["responses"].keys() & {"200", "202", "204", "413"} == {"204"}


def test_a_handler_whose_answer_may_be_a_vote_takes_a_voter() -> None:
    """Else `?proposal=` would be passed over without a word; and whoever takes a voter answers with votes."""

    async def deaf(*, operator: OperatorDep) -> Health | PendingApproval:
        raise NotImplementedError

    async def idle(*, operator: VoterDep) -> Health:
        raise NotImplementedError

    for handler in (deaf, idle):
        with pytest.raises(RuntimeError, match="/x: whether several must agree"):
            route(operator_router("x"), Operation("do_it", "POST /x"), "act", handler)


def test_a_lean_route_has_a_fixed_shape() -> None:
    """What the framework would inject and a lean route would not is refused when the route is made."""

    async def endpoint(request: dict[str, str], other: int) -> None:
        raise NotImplementedError

    with pytest.raises(AssertionError, match="not lean"):
        LeanRoute("/x", endpoint, methods=["POST"], response_model=None)


def test_few_routes_are_lean() -> None:
    """What the framework costs is saved where machines and relying parties ask all the time (docs/adr/0076)."""
    lean = [
        (route.path, *(route.methods or ()))
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, LeanRoute | RawRoute)
    ]
    assert lean == [
        ("/api/v1/attest", "POST"),
        ("/pki/ocsp", "POST"),
        ("/pki/ocsp/{request:path}", "GET"),
    ]


def test_who_may_ask_is_said_in_words() -> None:
    """Each kind of access, so that the page of the API can be made for every route."""
    assert (
        set(ACCESS) == set(get_args(Access)) >= {operation["x-access"] for operation in OPERATIONS.values()}
    )


def test_only_the_routes_of_stock_images_answer_errors_as_text() -> None:
    """A route that shares the words of an answer with them does not share the text for a console."""
    told = {
        path
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
        for status, response in operation["responses"].items()
        if status >= "400" and "text/plain" in response.get("content", {})
    }
    assert told == {"/api/v1/config", "/api/v1/config/{config_token}"}


def test_the_sealed_configuration_is_told() -> None:
    """With its envelope and its signature, beside what a machine gets that may not have it yet."""
    responses = DOCUMENT["paths"]["/api/v1/config/{config_token}"]["get"]["responses"]
    sealed = responses["200"]["content"]["application/vnd.itl.config.encrypted+json"]["schema"]
    assert sealed == {"$ref": "#/components/schemas/ConfigEnvelope"}
    assert "Itl-Config-Signature" in responses["200"]["headers"]
    assert "204" in responses


def patterns(found: object) -> Iterator[str]:
    """Yield every `pattern` in the JSON schema *found*."""
    if isinstance(found, dict):
        if isinstance(found.get("pattern"), str):
            yield found["pattern"]
        yield from found.get("patternProperties", {})
        for value in found.values():
            yield from patterns(value)
    elif isinstance(found, list):
        for value in found:
            yield from patterns(value)


def test_every_pattern_has_words() -> None:
    """What breaks a pattern is told in the words of `said`; a new one without words would be told in none."""
    used = {pattern for each in (DOCUMENT, Settings.model_json_schema()) for pattern in patterns(each)}
    # A policy is judged by rules of its own; its schema is for editors.
    of_policies = set(patterns(either())) - set(PATTERNS)
    hexes = {p for p in used if re.fullmatch(r"\^\[0-9a-f\]\{\d+\}\$", p)}
    assert used - of_policies - hexes == set(PATTERNS)
