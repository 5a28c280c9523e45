"""The OpenAPI document is complete: every route says what it takes, answers and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attestation_service.app import create_app
from attestation_service.lean import LeanRoute
from attestation_service.problems import MEDIA_TYPE
from tests.unit.service.conftest import settings_for
from tests.unit.service.test_access import OPERATIONS

OCSP = "application/ocsp-response"
DOCUMENT = create_app(settings_for(Path("/nowhere"))).openapi()


def test_references_resolve() -> None:
    """Nothing is named that is not defined."""
    known = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    text = json.dumps(DOCUMENT)
    used = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert used <= known


@pytest.mark.parametrize(("key", "operation"), OPERATIONS.items(), ids=[" ".join(key) for key in OPERATIONS])
def test_every_operation_is_described(key: tuple[str, str], operation: dict[str, Any]) -> None:
    """Id, summary, description, tag, a success, and every error as a problem with its codes and examples."""
    assert operation["operationId"]
    assert operation["summary"]
    assert operation["description"]
    assert operation["tags"]
    assert any(status.startswith("2") for status in operation["responses"])
    for status, answer in operation["responses"].items():
        if status.startswith("2") or key[1] == "/readyz":
            continue
        if status == "304" or OCSP in answer["content"]:
            # Nothing to say, or said in the language of the one who asks (RFC 6960 §2.3).
            assert key[1].startswith("/pki/")
            continue
        content = answer["content"][MEDIA_TYPE]
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
        assert ("security" in operation) == (operation["x-access"] in ("read", "act", "audit"))
    assert DOCUMENT["components"]["securitySchemes"]["operator"]["scheme"] == "bearer"


def test_operation_ids_are_unique() -> None:
    """Generated clients depend on them."""
    ids = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(ids) == len(set(ids))


def test_a_lean_route_has_a_fixed_shape() -> None:
    """What the framework would inject and a lean route would not is refused when the route is made."""

    async def endpoint(request: dict[str, str], other: int) -> None:
        raise NotImplementedError

    with pytest.raises(AssertionError, match="not lean"):
        LeanRoute("/x", endpoint, methods=["POST"], response_model=None)
