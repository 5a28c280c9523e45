"""The application: built from settings, owned resources in the lifespan, no side effect on import.

`uvicorn --factory attestation_service.app:create_app --workers N` is correct for any N: what workers share
lives in the database, the key is made once under a lock, migrations run under a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from datetime import timedelta

import structlog
from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp

from attestation.appraisal import appraise
from attestation.clock import Clock
from attestation.store import StoreSettings, migrate, open_store
from attestation_service import __version__, extensions, kql
from attestation_service.archive import archive_of
from attestation_service.auth.mtls import MTLS
from attestation_service.authority import open_authority
from attestation_service.border import problems
from attestation_service.border.bodies import Parser
from attestation_service.border.connections import STATE_KEY, Door
from attestation_service.border.life import Life
from attestation_service.border.middleware import Border
from attestation_service.border.room import Room
from attestation_service.border.tls import ServerTLS
from attestation_service.border.understanding import Understanding
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.context import logs
from attestation_service.entitlements import names
from attestation_service.hsm.delegates import HSMAnswers
from attestation_service.keys import crypto_policy, known_keys
from attestation_service.keys.service_keys import KeyHolder
from attestation_service.ocsp.sealing import PURPOSE
from attestation_service.operators.acts import ActStore
from attestation_service.pki import Revocation
from attestation_service.process import dispatch, maintenance, weakenings
from attestation_service.reports.routes import reports
from attestation_service.resources import Resources
from attestation_service.routers import HOT, ONLY_NAMED, ROUTERS
from attestation_service.routing import openapi
from attestation_service.routing.lean import AllowedBodies, lanes
from attestation_service.runs import sealing
from attestation_service.settings import Settings
from attestation_service.storage import database
from attestation_service.storage.chores import CHECKPOINTS, Chores
from attestation_service.storage.write_probe import WriteProbe
from attestation_service.transparency import Log, load_log_signer
from attestation_service.verifier.cluster_identity import ClusterIdentities
from attestation_service.verifier.collateral import Collateral
from attestation_service.verifier.endorsements import Anchors
from attestation_service.verifier.firmware import load_advisories
from attestation_service.verifier.measurements import Replays

log = structlog.get_logger("attestation_service")

DESCRIPTION = """\
Admits machines by what their TPM proves, delivers their configuration sealed to it, records everything.
Errors are RFC 9457 problems; their `type` is `urn:itl:problem:<code>`, and the codes are stable.
Acts of operators carry `Content-Type: application/json` (or `text/csv`), also without a body.
"""


def create_app(settings: Settings | None = None, clock: Clock | None = None) -> FastAPI:
    """Build the application.

    Args:
        settings: As given, or read from the environment.
        clock: What tells the time, where the database does not; tests hold their own.

    Raises:
        SettingsInvalid: The environment does not describe a service that may start, or an extension does not keep its
            contract.
    """
    chosen = settings or Settings.load()
    enabled = extensions.load(chosen)
    life = Life(chosen)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Door]]:
        logs.configure(chosen.log_level, chosen.log_format)
        for warning in chosen.warnings():
            log.warning("settings.weakened", warning=warning)
        for notice in chosen.notices():
            log.info("settings.notice", notice=notice)
        async with (
            owned(chosen, clock, life, enabled) as resources,
            extensions.running(enabled, resources),
        ):
            app.state.resources = resources
            door = Door(chosen, ServerTLS.of(chosen))
            await weakenings.record(resources)
            await names.report(resources)
            tasks = [
                asyncio.create_task(resources.chores.run()),
                asyncio.create_task(maintenance.run(resources)),
                asyncio.create_task(sealing.run(resources)),
                asyncio.create_task(resources.transparency.run()),
                asyncio.create_task(resources.service_keys.look()),
                *(
                    asyncio.create_task(dispatch.run(name, handlers, resources))
                    for name, handlers in enabled.handlers.items()
                    if name not in enabled.skipped  # what it is told of waits until it can begin
                ),
            ]
            if resources.revocation is not None:
                await resources.revocation.start()
                tasks.append(asyncio.create_task(resources.revocation.run()))
            spare_the_collector()
            log.info("service.started", version=__version__, pid=os.getpid())
            try:
                yield {STATE_KEY: door}
            finally:
                # Accepted requests first, then what serves them.
                if not await life.drained():
                    log.warning("service.stopped_early", in_flight=life.count)
                for task in tasks:
                    task.cancel()
                await resources.chores.give_up()
                ended = asyncio.gather(*tasks, return_exceptions=True)
                # A handler of an extension may swallow that it is cancelled.
                if (await asyncio.wait([ended], timeout=extensions.HOOK_SECONDS))[1]:
                    log.error("service.tasks_left")
        log.info("service.stopped")

    app = FastAPI(
        title="ITL attestation",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        # Its pages load scripts from other hosts; ours (`documentation/`) needs none.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Spans would carry paths, and with them config tokens; and they cost a tenth of an attestation.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    routers = (*ROUTERS, reports(), *enabled.routers)
    problems.install(app)
    for router in routers:
        # As they are: `include_router` would build each of them again, and match it twice.
        app.router.routes.extend(router.routes)
    openapi.install(app, ONLY_NAMED)
    openapi.demand_access(app)
    # In the place of the framework's outermost, which answers what nobody else did: the border does that.
    outermost = app.build_middleware_stack()
    assert isinstance(outermost, ServerErrorMiddleware)
    app.state.life = life
    hot = lanes(*HOT)
    border: ASGIApp = Border(
        outermost.app,
        settings=chosen,
        life=life,
        lanes=hot,
        bodies=AllowedBodies(*routers).of,
    )
    if chosen.traces_url:
        from attestation_service.process.tracing import Route  # here: what is not asked for is not loaded

        border = Route(border, hot)
    app.middleware_stack = border
    return app


def spare_the_collector() -> None:
    """Let the garbage collector pass over what was loaded so far: it lives as long as the process.

    Requests leave no cycles behind, so it also need not look as often; it took a tenth of an attestation.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@contextlib.asynccontextmanager
async def owned(
    settings: Settings,
    clock: Clock | None,
    life: Life,
    enabled: extensions.Enabled = extensions.NONE,
) -> AsyncIterator[Resources]:
    """Open what the application owns, and close it: the store finishes every unit that it accepted."""
    await asyncio.to_thread(database.demand_present, settings)
    await asyncio.to_thread(migrate, settings.db_url)
    await asyncio.to_thread(extensions.migrate, settings, enabled)
    await asyncio.to_thread(crypto_policy.check_files, settings)
    anchors = await asyncio.to_thread(Anchors, settings)
    advisories = await asyncio.to_thread(load_advisories, settings)
    hurried, loop = asyncio.Event(), asyncio.get_running_loop()
    opened = open_store(
        settings.db_url,
        StoreSettings(
            results_kept=settings.result_history,
            on_authority=lambda: loop.call_soon_threadsafe(hurried.set),
            functions=kql.FUNCTIONS,
        ),
    )
    clock = clock or opened.clock
    tracing = None
    if settings.traces_url:
        from attestation_service.process.tracing import Tracing  # here: what is not asked for is not loaded

        tracing = Tracing(settings)
    store = ActStore(tracing.store(opened) if tracing else opened, clock)
    oidc = None
    authority = None
    mtls = None
    service_accounts = None
    cluster_identities = None
    collateral = None
    parser = Parser()
    understanding = Understanding()
    configurations = KeptConfigurations(settings)
    try:
        if settings.oidc:
            from attestation_service.auth.oidc import (
                OIDC,  # here: without a provider, no worker needs its client
            )

            oidc = OIDC(settings, clock)
        # Keys are made for a database that is recognised: made before, they would lie beside one that is refused.
        await asyncio.to_thread(database.recognise, settings, store, clock)
        await asyncio.to_thread(database.demand_log_keys, settings, store)
        service_keys = KeyHolder(settings)
        await asyncio.to_thread(service_keys.open, make=True)
        log_signer = await asyncio.to_thread(load_log_signer, settings, create=True)
        await asyncio.to_thread(known_keys.demand, settings, store, clock, service_keys, log_signer)
        if settings.operator_ca is not None or settings.issues_to_operators:
            mtls = MTLS(settings, store if settings.issues_to_operators else None)
        if settings.has_ca:
            authority = await asyncio.to_thread(open_authority, settings, store, clock)
        if oidc is not None:
            await oidc.start()
        if settings.clusters:
            from attestation_service.auth.cluster_keys import Clusters  # here, likewise

            service_accounts = Clusters(settings, clock)
            await service_accounts.start()
            cluster_identities = await asyncio.to_thread(ClusterIdentities, settings)
        chores = Chores(store, clock)
        collateral = await asyncio.to_thread(Collateral, settings, clock, store)
        archive = await asyncio.to_thread(
            archive_of, settings.archive_url, retention=timedelta(days=settings.runs_archive_days)
        )
        yield Resources(
            settings=settings,
            clock=clock,
            life=life,
            store=store,
            write_probe=WriteProbe(store),
            service_keys=service_keys,
            transparency=Log(
                settings, clock, store, log_signer, hurried, on_call=lambda: chores.holds(CHECKPOINTS)
            ),
            chores=chores,
            anchors=anchors,
            advisories=advisories,
            replays=Replays(settings.event_log_cache_mib << 20),
            room=Room(settings),
            parser=parser,
            understanding=understanding,
            collateral=collateral,
            archive=archive,
            configurations=configurations,
            oidc=oidc,
            mtls=mtls,
            service_accounts=service_accounts,
            cluster_identities=cluster_identities,
            authority=authority,
            subscribers=extensions.by_event(enabled.handlers),
            appraise=tracing.appraise(appraise) if tracing else appraise,
            tracing=tracing,
            observers=enabled.observers,
            query_tables=enabled.query_tables,
            provider_keys_stale=lambda: oidc is not None and oidc.stale,
            revocation=Revocation(settings, store, clock, authority, service_keys.secret(PURPOSE))
            if authority is not None
            else None,
            hsm_answers=HSMAnswers(settings, store, clock, service_keys.secret(PURPOSE))
            if settings.clusters
            else None,
        )
    finally:
        parser.close()
        understanding.close()
        configurations.beside.close()
        await asyncio.to_thread(configurations.close)
        if oidc is not None:
            await oidc.aclose()
        if service_accounts is not None:
            await service_accounts.aclose()
        if collateral is not None:
            await collateral.aclose()
        if authority is not None:
            await authority.aclose()
        await store.aclose()
        if tracing is not None:
            await tracing.aclose()
