"""The character NUL, which PostgreSQL keeps in no text: wherever a client can put it, it is told so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.fixtures.both import new_database
from tests.fixtures.service import Operator, ServiceProcess, operator, service, start_service

__all__ = ["new_database", "operator", "service", "start_service"]

NUL = "a\0b"
_METHODS = ("get", "post", "put", "patch", "delete")
_NOT_CONFIGURED = ("this service has no CA", "no Kubernetes cluster is named here")


def _value(schema: Any, schemas: Any, *, text: str, depth: int = 0) -> Any:
    """Return a value that fits *schema*, with *text* for each text that may be any."""
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    for way in ("anyOf", "oneOf", "allOf"):
        if way in schema:
            return _value(schema[way][0], schemas, text=text, depth=depth)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object":
            wanted = schema.get("properties", {})
            made = {
                name: _value(each, schemas, text=text, depth=depth + 1)
                for name, each in wanted.items()
                if depth < 6
            }
            return made or {text: text}
        case "array":
            return [_value(schema.get("items", {}), schemas, text=text, depth=depth + 1)]
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return True
    return "eA==" if "format" in schema else text


def requests(document: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield for each operation: NUL in its path, in each of its parameters, in its body."""
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        plain = re.sub(r"\{[^}]*\}", "x", path)
        for method in _METHODS:
            if (operation := methods.get(method)) is None:
                continue
            body: Any = {}
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None:
                body = {"json": _value(content["schema"], schemas, text="x")}
                yield method, plain, {"json": _value(content["schema"], schemas, text=NUL)}
                if isinstance(body["json"], dict):
                    for name, value in body["json"].items():
                        if isinstance(value, str):
                            yield method, plain, {"json": body["json"] | {name: NUL}}
            if "{" in path:
                yield method, re.sub(r"\{[^}]*\}", quote(NUL), path), body
            for each in operation.get("parameters", ()):
                if each["in"] == "query":
                    yield method, plain, body | {"params": {each["name"]: NUL}}


def test_it_is_refused_wherever_it_comes(service: ServiceProcess, operator: Operator) -> None:
    """By a problem that says so, or as a machine that nobody knows: never by an error of the service."""
    document = operator.http.get("/openapi.json").json()
    asked = list(requests(document))
    assert len(asked) > 100
    failed = []
    for method, path, more in asked:
        answer = operator.request(method, path.removeprefix("/api/v1"), **more)
        if answer.status_code >= 500 and not any(words in answer.text for words in _NOT_CONFIGURED):
            failed.append((method, path, more, answer.text))
    assert failed == []
    assert operator.audit_is_valid()
