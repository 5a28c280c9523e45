"""The outermost border: one pure ASGI middleware that every request passes.

In order: request id, what is known of the connection, the body within its room (`room.py`), security headers, the
last catch of unexpected errors, one access log event. Who names a client certificate without being believed goes no
further, nor, under high assurance, who came by less than TLS 1.3. It counts what is in flight, so that a shutdown can
finish what was accepted.
"""

from __future__ import annotations

import itertools
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attestation.audit import AuditEvent
from attestation.errors import AttestationError, ClientCertificateUntrusted, InsecureTransport, ServiceBusy
from attestation_service.border import limits, problems
from attestation_service.border.bodies import Allowed
from attestation_service.border.life import Life
from attestation_service.border.proxies import Proxies, Transport
from attestation_service.border.room import Intake, whole
from attestation_service.context.logs import mask_path
from attestation_service.context.request import BEGAN_KEY, Origin, set_origin
from attestation_service.resources import resources_of
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.access")

BODILESS = frozenset({"GET", "HEAD"})
"""Nothing behind the border reads a body of these."""

PROBES = frozenset({"/healthz", "/readyz"})
"""What is asked from beside the service, without TLS; the answers tell nothing."""

SIGNED = ("/pki/crl", "/pki/ocsp", "/pki/ca/", "/pki/hsm/")
"""Where these lead, what is served is public and signed by the CA. Who checks a server's certificate by them cannot
check it first."""

STRICT_TRANSPORT = (b"strict-transport-security", b"max-age=31536000; includeSubDomains")

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
HEADERS = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]

CLOSE = (b"connection", b"close")
"""With the answers of a process that is about to end: whoever keeps a connection opens another one, elsewhere."""


class Border:
    """The middleware; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        settings: Settings,
        life: Life,
        lanes: Mapping[tuple[str, str], ASGIApp],
        bodies: Callable[[str, str], Allowed],
    ) -> None:
        self._app = app
        self._lanes = lanes
        self._bodies = bodies
        self._proxies = Proxies(settings)
        self._high_assurance = settings.high_assurance
        self._headers = [*HEADERS, STRICT_TRANSPORT] if settings.high_assurance else HEADERS
        self._access_log = settings.access_log
        self._life = life
        self._at_once = settings.requests_at_once
        self._serving = 0
        # Request ids need to be unique, not secret: random once per process, then counted.
        self._id_prefix = secrets.token_hex(8)
        self._id_count = itertools.count(1)

    def _next_id(self) -> str:
        return f"{self._id_prefix}-{next(self._id_count):x}"

    def _demand_assurance(self, transport: Transport, path: str) -> None:
        if not self._high_assurance or transport.is_high_assurance:
            return
        if path not in PROBES and not path.startswith(SIGNED):
            raise InsecureTransport(
                "TLS 1.3 with AES-256-GCM-SHA384 is needed, seen by us or by a trusted proxy"
            )

    async def _within_reason(
        self, which: tuple[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request that is here, unless so many are being served that it would only wait.

        Raises:
            ServiceBusy: So many are.
        """
        if self._serving >= self._at_once and which[1] not in PROBES:
            raise ServiceBusy(f"{self._at_once} requests are being served")
        self._serving += 1
        try:
            await self._lanes.get(which, self._app)(scope, receive, send)
        finally:
            self._serving -= 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, _in_words(send))
            return
        with self._life:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        address, transport = self._proxies.read(scope)
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given = _header(headers, b"x-request-id")
        request_id = given.decode() if given and REQUEST_ID.match(given) else self._next_id()
        origin = Origin(request_id, address)
        set_origin(scope, origin)
        scope[BEGAN_KEY] = began
        structlog.contextvars.bind_contextvars(request_id=request_id)
        path: str = scope["path"]
        ours = [*self._headers, (b"x-request-id", request_id.encode())]
        status = 0
        intake: Intake | None = None

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                theirs = message.get("headers", ())
                # What may be kept, or shown with a style, says so itself; everything else may not.
                said = {name for name, _ in theirs}
                message["headers"] = [*theirs, *(header for header in ours if header[0] not in said)]
                if self._life.stopping:
                    message["headers"].append(CLOSE)
            await send(message)

        try:
            # Not left to the routes: nothing behind the border, lane or framework, can forget it.
            if transport.refused is not None:
                await _refuse_certificate(scope, transport, origin)
            self._demand_assurance(transport, path)
            method = scope["method"]
            if method not in BODILESS:
                intake = resources_of(scope).room.intake(address)
                allowed = self._bodies(method, path)
                receive = whole(await intake.read(receive, allowed, _announced(headers)), receive)
            await self._within_reason((method, path), scope, receive, answer)
        except ClientDisconnect:
            log.debug("request.left")  # there is nobody to answer
        except Exception as e:  # noqa: BLE001 -- the outermost border: nothing behind it would answer
            expected = problems.answer(e, scope)
            if expected is None:
                problems.log_failure(e)
                expected = problems.told(scope, problems.internal(request_id))
            if status == 0:
                await expected(scope, receive, answer)
        finally:
            if intake is not None:
                intake.close()
            if self._access_log:
                log.info(
                    "request",
                    method=scope["method"],
                    path=mask_path(path),
                    status=status,
                    ms=round((time.perf_counter() - began) * 1000, 2),
                    client=origin.address,
                )


async def _refuse_certificate(scope: Scope, transport: Transport, origin: Origin) -> NoReturn:
    """Refuse loudly whoever names a client certificate without being a trusted proxy.

    Ignoring it would hide an attack, or a proxy that is not configured; behind the latter every operator would
    wonder why nobody knows them.

    Raises:
        ClientCertificateUntrusted: Always.
    """
    res = resources_of(scope)
    at = res.clock.now()
    event = AuditEvent(
        operator_cn="unknown",
        action="denied",
        detail=f"client certificate in the header {transport.refused}, not from a trusted proxy",
        source_ip=origin.address,
    )
    log.warning("client_certificate.untrusted", client=origin.address, header=transport.refused)
    if await res.store.read(lambda tx: limits.may_audit_denial(tx, event, at)):
        await res.store.write(lambda tx: limits.audit_denied(tx, event, at))
    raise ClientCertificateUntrusted("a client certificate is taken from a trusted proxy only")


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    for key, value in headers:
        if key == name:
            return value
    return None


def _announced(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the announced size of the body in bytes, 0 where none or nonsense is announced."""
    value = _header(headers, b"content-length") or b"0"
    return int(value) if value.isdigit() and len(value) < 20 else 0


def _in_words(send: Send) -> Send:
    """Return what tells the server of a start that failed, in our words where the error has them: else as a trace."""

    async def told(message: Message) -> None:
        error = sys.exception()
        if message["type"] == "lifespan.startup.failed" and isinstance(error, (AttestationError, OSError)):
            log.error("service.unusable", reason=str(error))
            message["message"] = ""
        await send(message)

    return told
