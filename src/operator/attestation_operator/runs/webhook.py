"""The webhook of attestation runs: AdmissionReviews over HTTPS, for an API server without our policies in CEL.

It fails closed: what cannot be read is refused by a status of HTTP, which the API server takes for no
(`failurePolicy: Fail`). It holds nothing but its certificate, which somebody puts into a directory, or it makes itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from aiohttp import web
from prometheus_client import Counter

from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.errors import ObjectChanged
from attestation_operator.health import Fact, Health
from attestation_operator.metrics import Metrics
from attestation_operator.objects import Key, Raw, Target
from attestation_operator.probes import answering
from attestation_operator.runs.webhook_certificate import Certificates, Pair, believed, due
from attestation_operator.runs.webhook_rules import ReviewMalformed, answer, judge, parse
from attestation_operator.runs.webhook_settings import CONFIGURATION, SECRET, WebhookSettings
from attestation_operator.settings import parse_address

PATH: Final = "/validate"
MAX_REVIEW_BYTES: Final = 7 * 1024 * 1024
"""An API server takes 3 MiB for an object; a change has the old one too."""
MAX_AT_ONCE: Final = 8
"""Reviews that are in memory together."""
READ_SECONDS: Final = 8.0
ROUND_SECONDS: Final = 30.0
"""How often the certificate is looked at."""
ATTEMPTS: Final = 5


class CertificateMissing(AttestationError):
    """There is no certificate to serve with: files that cannot be read, or no Secret."""

    code = "certificate-missing"


class Cluster(Protocol):
    """What making a certificate takes of the API server."""

    async def read(self, key: Key) -> Raw | None:
        """Return an object, None where there is none."""
        ...

    async def merge(self, target: Target, change: Raw, *, action: str | None = None) -> bool:
        """Merge into an object as it was read; False where it is gone."""
        ...


Source = Callable[[], Awaitable[Pair]]
"""Awaited for the certificate to serve with, as it is now."""


async def from_directory(directory: Path) -> Pair:
    """Return what a mounted Secret holds.

    Raises:
        CertificateMissing: It cannot be read.
    """
    try:
        return Pair(
            certificate=(directory / "tls.crt").read_bytes(), key=(directory / "tls.key").read_bytes()
        )
    except OSError as e:
        raise CertificateMissing(f"{directory}: {type(e).__name__}") from e


async def made(cluster: Cluster, *, secret: Key, configuration: Key, name: str, clock: Clock) -> Pair:
    """Return the certificate of the Secret, which replicas make and follow together, once the API server trusts it.

    Raises:
        CertificateMissing: There is no such Secret, or no such configuration.
        ObjectChanged: Another replica was faster, again and again.
    """
    for attempt in range(ATTEMPTS):
        with contextlib.suppress(ObjectChanged) if attempt < ATTEMPTS - 1 else contextlib.nullcontext():
            held = await _held(cluster, secret, name, clock)
            found = await cluster.read(configuration)
            if found is None:
                raise CertificateMissing(f"{configuration.name}: no such ValidatingWebhookConfiguration")
            if (hooks := believed(found, held.trusted)) is not None:
                await cluster.merge(Target.of(CONFIGURATION, found), {"webhooks": hooks})
            return held.serving
    raise AssertionError("unreachable")


async def _held(cluster: Cluster, secret: Key, name: str, clock: Clock) -> Certificates:
    raw = await cluster.read(secret)
    if raw is None:
        raise CertificateMissing(f"{secret.namespace}/{secret.name}: no such Secret")
    held = Certificates.read(raw.get("data") or {}, name)
    following = due(held, name, clock.now())
    if following is not None:
        if not await cluster.merge(Target.of(SECRET, raw), {"data": following.data()}):
            raise CertificateMissing(f"{secret.namespace}/{secret.name}: it was deleted")
        return following
    assert held is not None
    return held


class Webhook:
    """The server.

    Args:
        controller: User name of the controller's ServiceAccount.
        metrics: Count what is answered.
        log: structlog's.
    """

    def __init__(self, *, controller: str, metrics: Metrics, log: Any) -> None:
        self._controller = controller
        self._log = log
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._serving: Pair | None = None
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self.reviews = Counter(
            "itl_operator_webhook_reviews",
            "AdmissionReviews: allowed, refused, malformed, failed",
            ["outcome"],
            registry=metrics.registry,
        )

    @property
    def serves(self) -> bool:
        """Whether there is a certificate."""
        return self._serving is not None

    def serve_with(self, pair: Pair) -> None:
        """Serve new connections with this certificate.

        Raises:
            CertificateMissing: It cannot be used, or the key is another's. The one before serves on.
        """
        if pair == self._serving:
            return
        # Tried apart: a context that took a certificate and not its key would serve nobody any more.
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            _load(trial, pair)
            _load(self.tls, pair)
        except (ssl.SSLError, OSError) as e:
            raise CertificateMissing(f"the certificate cannot be used: {type(e).__name__}") from e
        self._serving = pair

    @contextlib.asynccontextmanager
    async def answering(self, host: str, port: int) -> AsyncIterator[int]:
        """Answer while the block runs; yield the port.

        Raises:
            OSError: Somebody else listens there.
        """
        app = web.Application(client_max_size=MAX_REVIEW_BYTES)
        app.router.add_post(PATH, self._review)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=5.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host or None, port, ssl_context=self.tls).start()
            yield runner.addresses[0][1]
        finally:
            assert runner.server is not None
            open_ = [each.transport for each in runner.server.connections]
            await runner.cleanup()
            # An API server keeps connections, and TLS would wait for its word at the end of each.
            for transport in open_:
                if transport is not None:
                    transport.abort()
            await asyncio.sleep(0)

    async def _review(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(READ_SECONDS), self._places:
                asked = parse(_json(await request.read()))
                refusal = judge(asked, controller=self._controller)
        except ReviewMalformed as e:
            self.reviews.labels("malformed").inc()
            return web.Response(status=400, text=str(e))
        except TimeoutError:
            self.reviews.labels("malformed").inc()
            return web.Response(status=408, text="the review did not come, or had to wait")
        except web.HTTPException:
            self.reviews.labels("malformed").inc()
            raise
        except Exception:  # noqa: BLE001 -- the border: whatever a rule meets, it lets nothing through
            self.reviews.labels("failed").inc()
            self._log.exception("webhook.failed")
            return web.Response(status=500, text="not judged")
        self.reviews.labels("allowed" if refusal is None else "refused").inc()
        if refusal is not None:
            self._log.info(
                "webhook.refused", kind=asked.kind.kind, user=asked.username, reason=refusal.message
            )
        return web.json_response(answer(asked, refusal))


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:
        raise ReviewMalformed(f"it is no JSON: {type(e).__name__}") from e


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Give a context a certificate, which it takes from a file: one without a name, in memory."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pair.certificate + b"\n" + pair.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: "")


async def run(settings: WebhookSettings, *, clock: Clock, log: Any) -> None:
    """Answer until SIGTERM or SIGINT.

    Raises:
        SettingsInvalid: It is not said whose the certificate is.
        ClusterUnavailable: Nothing says where the API server is, to which a certificate of ours is made known.
        OSError: A port is taken.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await serve(settings, stopped, clock=clock, log=log)


async def serve(settings: WebhookSettings, stopped: asyncio.Event, *, clock: Clock, log: Any) -> None:
    """Answer until *stopped*; see `run`."""
    health, metrics = Health(), Metrics()
    health.say("certificate", Fact(well=False, said="not there yet"))
    hook = Webhook(controller=settings.controller_user, metrics=metrics, log=log)
    async with contextlib.AsyncExitStack() as stack:
        source = await _source(settings, stack, clock)
        await stack.enter_async_context(
            answering(settings.probes_at, settings.metrics_at, health=health, metrics=metrics)
        )
        until = asyncio.ensure_future(stopped.wait())
        stack.callback(until.cancel)
        listens = False
        while not stopped.is_set():
            well = await _look(hook, source, health, log)
            if well and not listens:
                at = parse_address(settings.webhook_bind_address)
                port = await stack.enter_async_context(hook.answering(at.host, at.port))
                log.info("webhook.starts", port=port)
                listens = True
            await asyncio.wait({until}, timeout=ROUND_SECONDS if well else 2.0)
    log.info("webhook.ends")


async def _look(hook: Webhook, source: Source, health: Health, log: Any) -> bool:
    """Take the certificate as it is now; return whether there is one to serve with."""
    try:
        hook.serve_with(await source())
    except AttestationError as e:
        log.warning("webhook.certificate", code=e.code, reason=str(e))
        said = f"{e.code}: {e}"
        # The one before serves on; nothing would be mended by a pod that is not ready.
        health.say("certificate", Fact(well=False, said=said, holds_back=not hook.serves))
        return hook.serves
    health.say("certificate", Fact(well=True, said="there"))
    return True


async def _source(settings: WebhookSettings, stack: contextlib.AsyncExitStack, clock: Clock) -> Source:
    own = settings.own
    if own is None:
        assert settings.certificate_dir is not None
        return partial(from_directory, settings.certificate_dir)
    cluster = KubernetesCluster(config_from(settings.kubeconfig))
    stack.push_async_callback(cluster.aclose)
    secret, configuration, name = own
    return partial(made, cluster, secret=secret, configuration=configuration, name=name, clock=clock)
