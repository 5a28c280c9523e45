"""kopf on its thread: what is left when it has ended."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

from attestation_operator import crds
from attestation_operator.cluster import config_from
from attestation_operator.objects import FINALIZER, HSM_ISSUER, NODE
from attestation_operator.watching import Watcher, connection, settings
from tests.fixtures.controllers import CRDS, until
from tests.fixtures.kube import FakeKube, fake, rest

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


def test_a_kind_that_goes_away_ends_what_watches_it(fake: FakeKube) -> None:
    """Its definition is deleted: whoever waits for the watcher is told, and can begin anew."""

    async def watch() -> None:
        watcher = Watcher(
            [NODE, HSM_ISSUER], lambda *_: None, lambda: connection(config_from(fake.kubeconfig()))
        )
        running = asyncio.create_task(watcher.run())
        await asyncio.to_thread(until, lambda: fake.api.watches() == 2)
        with rest(fake) as http:
            path = f"{CRDS}/{HSM_ISSUER.plural}.{HSM_ISSUER.group}"
            await asyncio.to_thread(lambda: http.delete(path).raise_for_status())
        await asyncio.to_thread(fake.api.drop_watches)
        done, _ = await asyncio.wait([running], timeout=60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert done

    with rest(fake) as http:
        http.post(CRDS, json=crds.definition(HSM_ISSUER)).raise_for_status()
    asyncio.run(watch())
