"""Traces: off they cost nothing; on they tell how long, and nothing that is anybody's."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError

from attestation_service.app import create_app
from attestation_service.border.middleware import Border
from attestation_service.operators.acts import ActStore
from attestation_service.process import tracing
from attestation_service.settings import Settings
from tests.unit.service.conftest import Service, Starter, migrated, settings_for, start
from tests.unit.service.node import SoftwareNode

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


class Receiver:
    """A receiver of OTLP over HTTP on loopback: keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.raw = b""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.raw += body
                request = ExportTraceServiceRequest.FromString(body)
                receiver.spans += [
                    span
                    for one in request.resource_spans
                    for scope in one.scope_spans
                    for span in scope.spans
                ]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def named(self, name: str) -> list[Any]:
        """Return the spans of that name."""
        return [span for span in self.spans if span.name == name]

    def below(self, span: Any) -> list[Any]:
        """Return those that *span* is the parent of."""
        return [each for each in self.spans if each.parent_span_id == span.span_id]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Listen; no proxy of the environment stands between."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    found = Receiver()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


async def sent(service: Service) -> None:
    """Send what waits."""
    made = service.resources.tracing
    assert isinstance(made, tracing.Tracing)
    made.flush()


def told(span: Any) -> dict[str, str]:
    """Return its attributes."""
    return {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes}


async def test_an_attestation_is_route_read_appraise_write(start: Starter, receiver: Receiver) -> None:
    """One trace: below the route a read and a write, below the read the appraisal with its verdict."""
    service = await start(traces_url=receiver.url)
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    await service.attest(node)
    await sent(service)
    (route,) = receiver.named("POST /api/v1/attest")
    assert told(route) == {
        "http.request.method": "POST",
        "http.route": "/api/v1/attest",
        "http.response.status_code": "200",
    }
    assert route.parent_span_id == b""
    assert [span.name for span in receiver.below(route)] == ["read", "write"]
    read, _ = receiver.below(route)
    (appraise,) = receiver.below(read)
    assert (appraise.name, told(appraise)["itl.verdict"]) == ("appraise", "Verified")
    assert {span.trace_id for span in (route, read, appraise)} == {route.trace_id}
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans)


@pytest.mark.threat("T240")
async def test_nothing_of_anybody_is_in_a_span(start: Starter, receiver: Receiver) -> None:
    """No id, token, name, address, header or word of an error, whatever is asked for, and no parent from outside."""
    service = await start(traces_url=receiver.url)
    node = SoftwareNode()
    await service.admitted(node, hostname="canary-host")
    await service.operator("GET", f"/machines/{node.machine_id}")
    parent = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "Authorization": "Bearer canary-bearer"}
    for path in ("/api/v1/config/canary-token", "/canary-path?canary=query", "/api/v1/machines/canary-id"):
        await service.get(path, headers=parent)
    await service.http.request("CANARY", "/readyz", headers=parent)
    await sent(service)
    assert {span.name for span in receiver.spans} >= {"GET /api/v1/machines/{machine_id}", "GET unknown"}
    lowered = receiver.raw.lower()
    for secret in ("canary", node.machine_id, "192.0.2.7"):
        assert secret.encode() not in lowered
    assert not any(span.trace_id == bytes.fromhex("ab" * 16) for span in receiver.spans)
    assert not any(span.events or span.links for span in receiver.spans)


async def test_an_error_is_its_code(start: Starter, receiver: Receiver) -> None:
    """Of what was raised in a unit: the stable code, never the words."""
    service = await start(traces_url=receiver.url)
    await service.operator("GET", "/machines/00000000-0000-4000-8000-000000000000")
    await sent(service)
    failed = [told(span)["error.type"] for span in receiver.spans if "error.type" in told(span)]
    assert "machine-unknown" in failed


async def test_what_no_request_asks_for_has_no_span(start: Starter, receiver: Receiver) -> None:
    """Housekeeping would fill the receiver."""
    service = await start(traces_url=receiver.url)
    await sent(service)
    receiver.spans.clear()
    store = service.resources.store
    await store.read(lambda tx: tx.audit.tree.size())
    await store.scan(lambda tx: tx.audit.tree.size())
    await store.write(lambda tx: tx.audit.tree.size())
    await sent(service)
    assert receiver.spans == []


async def test_a_ratio_of_none_sends_none(start: Starter, receiver: Receiver) -> None:
    """And requests are answered."""
    service = await start(traces_url=receiver.url, traces_ratio=0.0)
    assert (await service.get("/healthz")).status_code == 200
    await sent(service)
    assert receiver.spans == []


@pytest.mark.threat("T240")
async def test_a_receiver_that_is_away_holds_up_nobody(start: Starter) -> None:
    """Spans are dropped; attestation goes on."""
    service = await start(traces_url="http://127.0.0.1:1/v1/traces")
    node = SoftwareNode()
    await service.admitted(node)
    assert (await service.get("/healthz")).status_code == 200


def test_off_nothing_is_loaded_and_nothing_stands_between() -> None:
    """No import of the extra, no middleware, no wrapper of the store or of the appraisal.

    The framework imports OpenTelemetry's interface, which does nothing.
    """
    code = (
        "import sys; from attestation_service.app import create_app; "
        "from attestation_service.settings import Settings; "
        "app = create_app(Settings(service_url='http://localhost')); "
        "extra = ('opentelemetry.sdk', 'opentelemetry.exporter', 'opentelemetry.proto', 'opentelemetry.semconv'); "
        "found = [name for name in sys.modules if name.startswith(extra)]; "
        "print(type(app.middleware_stack).__name__, 'attestation_service.process.tracing' in sys.modules, *found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["Border", "False"]), done.stderr


async def test_off_the_store_is_the_store(start: Starter) -> None:
    """Its methods are those of the database's, and the appraisal is the function."""
    service = await start()
    assert isinstance(service.app.middleware_stack, Border)
    store = service.resources.store
    assert isinstance(store, ActStore)
    assert store.read.__self__.__class__.__module__.startswith("attestation.store")  # type: ignore[attr-defined]
    assert service.resources.appraise.__module__ == "attestation.appraisal.appraise"


@pytest.mark.threat("T240")
async def test_the_framework_makes_no_spans_of_its_own(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would, with paths in them, wherever something in the process sets a provider for all."""
    made = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    service = await start()
    assert (await service.get("/api/v1/config/canary-token")).status_code == 404
    assert made.get_finished_spans() == ()


@pytest.mark.threat("T240")
@pytest.mark.parametrize(
    "url",
    [
        "http://collector.example/v1/traces",
        "https://user:pass@collector.example/",
        "https://collector.example/?token=x",
        "https://",
        "ftp://collector.example/",
    ],
)
def test_traces_go_where_nobody_else_reads_them(url: str) -> None:
    """By TLS, or to this computer; no secret in the URL, which is shown."""
    with pytest.raises(ValidationError):
        Settings(traces_url=url)


def test_without_the_extra_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is served."""
    monkeypatch.setattr("attestation_service.settings.find_spec", lambda _: None)
    with pytest.raises(ValidationError, match=r"itl-attestation-service\[traces\]"):
        Settings(traces_url="http://127.0.0.1:4318/v1/traces")


def test_the_application_is_made_without_a_thread(tmp_path: Any) -> None:
    """It is made before workers are forked: what sends begins in each."""
    before = threading.active_count()
    create_app(settings_for(tmp_path, traces_url="http://127.0.0.1:1/v1/traces"))
    assert threading.active_count() == before
