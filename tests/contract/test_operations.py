"""Both sides of the wire mean the same operations: what the service serves, its clients ask for."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from attestation.api import PendingApproval
from attestation.api.operation import ClientMethod, Operation
from attestation.api.operations import ClusterAPI, ExtensionAPI, NodeAPI, OperatorAPI, PublicAPI
from attestation.client import APIError, ControllerClient, NodeClient, OperatorClient, PublicClient
from attestation_service import extensions
from attestation_service.app import create_app
from attestation_service.reports.routes import reports
from attestation_service.routers import ROUTERS
from tests.fixtures.over_httpx import answering
from tests.unit.service.conftest import settings_for

CLIENTS: tuple[tuple[type, Any], ...] = (
    (NodeAPI, lambda **with_: NodeClient("https://x.example", **with_)),
    (ClusterAPI, lambda **with_: ControllerClient("https://x.example", lambda: "secret", **with_)),
    (OperatorAPI, lambda **with_: OperatorClient("https://x.example", "secret", **with_)),
    (ExtensionAPI, lambda **with_: OperatorClient("https://x.example", "secret", **with_)),
)
SETTINGS = settings_for(Path("/nowhere"))
WORDED = {
    "fetch_config": NodeClient.fetch_config,
    "pending_config": "stock images ask, in the only way they can",
    "service_keys": PublicClient.service_keys,
    "healthz": PublicClient.is_alive,
    "readyz": PublicClient.readiness,
    "pki_active_crl": PublicClient.crl,
    "pki_crl": PublicClient.crl,
    "pki_hsm_crl": "whoever verifies a certificate of a CA key in hardware, by its CDP",
    "pki_hsm_ca": "programs that read the AIA of such a certificate",
    "pki_active_ca": "people fetch it; for trust there is the bundle",
    "pki_ca": "programs that read the AIA of a certificate",
    "pki_bundle": PublicClient.ca_bundle,
    **dict.fromkeys(
        (
            "acme_directory",
            "acme_new_nonce",
            "acme_get_nonce",
            "acme_new_account",
            "acme_account",
            "acme_orders",
            "acme_key_change",
            "acme_new_order",
            "acme_order",
            "acme_authorization",
            "acme_challenge",
            "acme_finalize",
            "acme_certificate",
            "acme_revoke_cert",
        ),
        "ACME clients ask: a protocol of others",
    ),
    **dict.fromkeys(
        ("device_page", "device_code", "device_token", "device_code_v1", "device_token_v1"),
        "Talos and other OAuth clients ask, and people who follow a link: a protocol of others",
    ),
    "pki_ocsp": "OpenSSL and other clients of OCSP; ours ask in the path",
    "pki_ocsp_get": NodeClient.certificate_status,
}
"""Who words what is asked in another form: a method of ours, or why there is none."""

ROUTES = {
    route.operation_id: route
    for router in (*ROUTERS, reports(), extensions.load(SETTINGS).routers[0])
    for route in router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
}
DOCUMENT = create_app(SETTINGS).openapi()


def declared(of: type) -> Iterator[Operation]:
    return (each for each in vars(of).values() if isinstance(each, Operation))


METHODS = [
    (each, client) for of, client in CLIENTS for each in declared(of) if isinstance(each, ClientMethod)
]


def documented(operation: Operation) -> dict[str, Any]:
    route = ROUTES[operation.operation_id]
    found: dict[str, Any] = DOCUMENT["paths"][route.path_format][operation.method.lower()]
    return found


def test_what_is_declared_is_served_and_the_other_way_round() -> None:
    """Each operation has one declaration and one route; path and method are the route's because it is made of them."""
    ids = [
        each.operation_id
        for of in (NodeAPI, ClusterAPI, OperatorAPI, ExtensionAPI, PublicAPI)
        for each in declared(of)
    ]
    assert sorted(ids) == sorted(map(str, ROUTES))
    for of in (NodeAPI, ClusterAPI, OperatorAPI, ExtensionAPI, PublicAPI):
        for each in declared(of):
            route = ROUTES[each.operation_id]
            assert (route.path.removeprefix("/api/v1"), route.methods) == (each.path, {each.method})


def test_each_operation_can_be_asked_for() -> None:
    """A method of a client has its signature, or words it itself, or there is a reason."""
    assert issubclass(NodeClient, NodeAPI)
    assert issubclass(OperatorClient, OperatorAPI)
    assert {each.operation_id for each in declared(PublicAPI)} == set(WORDED)


@pytest.mark.parametrize(
    ("operation", "client"), METHODS, ids=[operation.operation_id for operation, _ in METHODS]
)
def test_a_method_is_what_the_service_serves(operation: ClientMethod[..., Any], client: Any) -> None:
    """It takes what the handler takes, where it takes it, and reads what the handler returns."""
    route, served = ROUTES[operation.operation_id], documented(operation)
    names = {name.rstrip("_") for name in operation.signature.parameters} - set(operation.in_path)
    places = {each["name"]: each["in"] for each in served.get("parameters", ())}
    body: Any = route.body_field.field_info.annotation if route.body_field is not None else None
    assert set(operation.in_path) == {name for name, place in places.items() if place == "path"}
    if operation.method in ("GET", "DELETE"):
        asked = {"limit" if name == "page_size" else name for name in names}
        assert asked <= {name for name, place in places.items() if place == "query"}
    elif names == {"request"}:
        hint = get_type_hints(operation._declared)["request"]
        assert body in {hint, *get_args(hint)} or (body is None and "requestBody" in served)
    else:
        fields = body.model_fields if body is not None else {}
        assert {name for name, field in fields.items() if field.is_required()} <= names <= set(fields)

    returned = inspect.signature(route.endpoint, eval_str=True).return_annotation
    says = set(get_args(returned) or (returned,))
    assert operation.is_gated == (PendingApproval in says)
    assert operation.may_be_empty == bool({NoneType, None} & says)
    model: Any
    (model,) = {each for each in says if issubclass(each or NoneType, BaseModel)} - {PendingApproval} or {
        None
    }
    page = getattr(operation.answer, "__metadata__", None)
    if page is not None:
        assert page[0] is model
        items = page[0].model_fields["items"].annotation
        assert (get_origin(items), get_args(items)) == (list, get_args(operation.answer.__origin__))
    elif model is not None:
        assert operation.answer is model
    else:
        assert operation.answer in (None, bytes, str, Generator[bytes, None, None])


@pytest.mark.parametrize(
    ("operation", "client"), METHODS, ids=[operation.operation_id for operation, _ in METHODS]
)
def test_a_method_asks_where_the_route_is(operation: ClientMethod[..., Any], client: Any) -> None:
    """With the verb of the route, each value one segment of its path, and a token where one is asked for."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(404)

    def ask(asking: Any) -> None:
        values = {name: {} if name == "request" else f"<{name}>" for name in operation.signature.parameters}
        found = operation.__get__(asking, type(asking))(**values)
        list(found or ())

    with client(carrier=answering(answer)) as asking, pytest.raises(APIError):
        ask(asking)
    (request,) = requests
    path = operation.path.replace(":path", "").replace("{", "<").replace("}", ">")
    assert (request.method, request.url.path) == (operation.method, f"/api/v1{path}")
    assert ("Authorization" in request.headers) == isinstance(asking, OperatorClient | ControllerClient)
