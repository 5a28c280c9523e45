"""The command `attestation-operator hsm`: what its controllers are built of, and what runs them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from attestation.clock import Clock
from attestation_operator.controller import Around
from attestation_operator.hsm.controllers import Issuers, Modules, Standing, Threads
from attestation_operator.hsm.evidence import Collectors
from attestation_operator.hsm.gauges import Gauges
from attestation_operator.hsm.issuance import Issuance
from attestation_operator.hsm.keks import KEKs
from attestation_operator.hsm.leaf_controller import Leaves
from attestation_operator.hsm.offering import Offering
from attestation_operator.hsm.quote_controller import Quotes
from attestation_operator.hsm.request_controller import Requests, SigningRequests
from attestation_operator.hsm.service import AskedService, WholeService
from attestation_operator.hsm.settings import HsmSettings
from attestation_operator.hsm.tokens import Tokens
from attestation_operator.program import Make, run
from attestation_operator.runs.controllers import Together

NAME = "hsm"


async def hsm(settings: HsmSettings, *, clock: Clock, log: Any) -> None:
    """Sign with CA keys that stay in hardware."""
    tokens = tokens_of(settings)
    threads = Threads()
    try:
        await run(NAME, settings, maker(settings, tokens, threads), clock=clock, log=log)
    finally:
        threads.close()
        tokens.close()


def tokens_of(settings: HsmSettings) -> Tokens:
    """Return the tokens that the deployment lists."""
    return Tokens(
        modules=settings.modules,
        tpms=settings.tpm_places,
        pin_dir=settings.pin_dir,
        tpm_keys_dir=settings.tpm_keys_dir,
    )


def maker(
    settings: HsmSettings,
    tokens: Tokens,
    threads: Threads,
    *,
    service: WholeService | None = None,
    collectors: Collectors | None = None,
) -> Make:
    """Return what builds the controller; *service* and *collectors* in place of what is asked over HTTP, and listed."""

    def make(around: Around) -> Together:
        standing = Standing()
        log = service or AskedService(around.service)
        keks = KEKs(tokens)
        evidence = collectors or Collectors(programs=settings.programs, on_thread=threads)
        offering = Offering(around, log, keks, evidence, threads)
        gauges = Gauges(around.metrics.registry)
        issuers = Issuers(around, tokens, log, standing, threads, offering, gauges)
        quotes = Quotes(around, tokens, keks, log, threads, issuers.handle)
        modules = Modules(around, tokens, standing, threads, issuers.handle, gauges)
        issuing = (
            Issuance(log, threads),
            standing,
            issuers.handle,
            timedelta(seconds=settings.max_retry_seconds),
        )
        requests, signing = Requests(around, *issuing), SigningRequests(around, *issuing)
        leaves = Leaves(around, tokens, standing, threads)
        return Together(NAME, (modules, issuers, quotes, requests, signing, leaves))

    return make
