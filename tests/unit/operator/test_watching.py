"""kopf on its thread: what is left when it has ended."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

from attestation_operator.cluster import config_from
from attestation_operator.objects import FINALIZER, HSM_ISSUER, NODE
from attestation_operator.watching import Watcher, connection, settings
from tests.fixtures.controllers import until
from tests.fixtures.kube import FakeKube, fake

__all__ = ["fake"]


def test_no_connection_outlives_its_loop(fake: FakeKube) -> None:
    """Also where the API server is too slow to say that it closes too."""
    told, go_on = threading.Event(), threading.Event()

    async def watch() -> None:
        watcher = Watcher([NODE], lambda *_: None, lambda: connection(config_from(fake.kubeconfig())))
        running = asyncio.create_task(watcher.run())
        await asyncio.to_thread(until, fake.api.watches)

        def hold(_: object) -> None:
            told.set()
            go_on.wait(60)

        holding = asyncio.create_task(asyncio.to_thread(fake.api.run, hold))
        try:
            await asyncio.to_thread(told.wait, 60)
            running.cancel()
            await asyncio.wait([running])
        finally:
            go_on.set()
        await holding

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(watch())
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []


def test_kopf_takes_no_finalizer_of_ours_away() -> None:
    """It does where no handler of it waits for a deletion; then a key would stay whose object is gone."""
    assert settings((HSM_ISSUER,)).persistence.finalizer != FINALIZER
