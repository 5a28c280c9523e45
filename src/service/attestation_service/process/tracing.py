"""Traces of requests for OpenTelemetry, where `ITL_TRACES_URL` is set: route → read → appraise → write.

Only then this module is imported, and with it the extra `traces`; without it no request passes a wrapper
(docs/adr/0160). A span names a route as it is declared, never a path: ids and tokens stand in paths.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar, cast

import structlog
from opentelemetry import context as carried
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attestation.errors import AttestationError
from attestation.store import Found, LookUp, Store, Tx
from attestation_service import __version__
from attestation_service.resources import Appraise, resources_of
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.tracing")

T = TypeVar("T")

QUEUE: Final = 2_048
"""So many spans wait to be sent; more are dropped, and nobody waits for them."""
SECONDS: Final = 5.0
"""What the receiver has for one answer, and the last spans at the end of the process."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Tracing:
    """What makes spans and sends them, of one worker.

    Args:
        settings: Where to, and how many.
    """

    def __init__(self, settings: Settings) -> None:
        self._provider = TracerProvider(
            resource=Resource({"service.name": "itl-attestation", "service.version": __version__}),
            sampler=TraceIdRatioBased(settings.traces_ratio),
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=settings.traces_url, timeout=SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE))
        self.tracer = self._provider.get_tracer("attestation_service")

    def appraise(self, appraise: Appraise) -> Appraise:
        """Return *appraise* with a span for each."""

        def traced(evidence, case, at):  # type: ignore[no-untyped-def]  # as it is
            with span(self.tracer, "appraise") as about:
                found = appraise(evidence, case, at)
                about.set_attribute("itl.verdict", str(found.result.verdict))
                return found

        return cast("Appraise", traced)

    def store(self, store: Store) -> Store:
        """Return *store* with a span for each unit that a request asks for."""
        return _Traced(store, self.tracer)

    def flush(self) -> None:
        """Send what waits."""
        self._provider.force_flush(int(SECONDS * 1000))

    async def aclose(self) -> None:
        """Send what waits, and end."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self._provider.shutdown), SECONDS)
        except TimeoutError:
            log.warning("tracing.not_sent")


@contextlib.contextmanager
def span(tracer: trace.Tracer, name: str) -> Iterator[trace.Span]:
    """Open a span below the current one; of an error it has the code, never the words: they may be secret."""
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as about:
        try:
            yield about
        except BaseException as e:
            about.set_attribute("error.type", e.code if isinstance(e, AttestationError) else type(e).__name__)
            about.set_status(trace.StatusCode.ERROR)
            raise


class _Traced:
    """The store; units that no request asks for have no span."""

    def __init__(self, store: Store, tracer: trace.Tracer) -> None:
        self._store, self._tracer, self.clock = store, tracer, store.clock
        self.read_sync, self.write_sync = store.read_sync, store.write_sync
        self.aclose, self.close = store.aclose, store.close
        self.dialect = store.dialect

    async def read(self, work: Callable[[Tx], T]) -> T:
        if not _within_a_request():
            return await self._store.read(work)
        with span(self._tracer, "read"):
            return await self._store.read(_carrying(work))

    async def scan(self, work: Callable[[Tx], T]) -> T:
        if not _within_a_request():
            return await self._store.scan(work)
        with span(self._tracer, "scan"):
            return await self._store.scan(_carrying(work))

    async def look_up(self, wanted: LookUp) -> Found:
        with span(self._tracer, "look_up"):
            return await self._store.look_up(wanted)

    async def write(self, work: Callable[[Tx], T]) -> T:
        if not _within_a_request():
            return await self._store.write(work)
        with span(self._tracer, "write"):
            return await self._store.write(work)


def _within_a_request() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def _carrying(work: Callable[[Tx], T]) -> Callable[[Tx], T]:
    """Let *work*, on the thread of the reader, know the span that it belongs to."""
    current = carried.get_current()

    def run(tx: Tx) -> T:
        token = carried.attach(current)
        try:
            return work(tx)
        finally:
            carried.detach(token)

    return run


class Route:
    """Stands before the border: a span for each request, a root of its own whatever the client says.

    Args:
        app: The border.
        lanes: Method and path of what is answered without the framework.
    """

    def __init__(self, app: ASGIApp, lanes: Collection[tuple[str, str]]) -> None:
        self._app, self._lanes = app, frozenset(lanes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        tracing = resources_of(scope).tracing
        assert isinstance(tracing, Tracing)
        status = 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # An empty context: who asks can neither force a trace nor join one.
        token = carried.attach(carried.Context())
        try:
            with span(tracing.tracer, "request") as about:
                try:
                    await self._app(scope, receive, answer)
                finally:
                    method = scope["method"] if scope["method"] in METHODS else "_OTHER"
                    route = self._route(scope)
                    about.update_name(f"{method} {route}")
                    about.set_attribute("http.request.method", method)
                    about.set_attribute("http.route", route)
                    about.set_attribute("http.response.status_code", status)
        finally:
            carried.detach(token)

    def _route(self, scope: Scope) -> str:
        if (scope["method"], scope["path"]) in self._lanes:
            return str(scope["path"])
        return str(getattr(scope.get("route"), "path_format", "unknown"))
