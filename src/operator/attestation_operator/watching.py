"""kopf: lists and watches, lists again after 410, and tells which objects are there or have changed. It writes nothing.

It runs on a thread with an event loop of its own: at its end kopf cancels every task of its loop that is not older
than itself, which would be the probes' and the lease's too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import kopf
from lightkube.config.kubeconfig import SingleConfig

from attestation_operator.cluster import WATCH_SECONDS
from attestation_operator.objects import GROUP, MANAGER, Key, Kind, Raw, Told, page_objects

STOP_SECONDS: Final = 20.0
"""How long kopf may take to its end; then the process ends without it."""

IDLE_SECONDS: Final = 0.1
"""How long kopf keeps the task of an object, and with it the object as it was seen, after nothing more came of it."""

KOPF_FINALIZER: Final = f"{GROUP}/kopf"
"""On no object: no handler of kopf's waits for a deletion."""


def settings(kinds: Sequence[Kind]) -> kopf.OperatorSettings:
    """Return how kopf works: whatever it wants to keep goes into `status.kopf` of our own kinds, nothing elsewhere."""
    told = kopf.OperatorSettings()
    # kopf takes its finalizer away where no handler of it wants one: ours has another name, and stays.
    told.persistence.finalizer = KOPF_FINALIZER
    told.persistence.progress_storage = kopf.StatusProgressStorage(name="itl", field="status.kopf.progress")
    told.persistence.diffbase_storage = kopf.StatusDiffBaseStorage(
        name="itl", field="status.kopf.last-handled-configuration"
    )
    told.posting.enabled = False
    told.posting.reporting_component = MANAGER
    # Which kinds there are is read at the start: watching them would need a right that nothing else needs.
    told.scanning.disabled = True
    told.watching.server_timeout = WATCH_SECONDS
    told.watching.connect_timeout = 10.0
    told.watching.chunk_size = min(map(page_objects, kinds))
    told.queueing.idle_timeout = IDLE_SECONDS
    told.networking.request_timeout = 30.0
    # What ends in time needs no end by force; the process is ended by whoever started it.
    told.process.ultimate_exiting_timeout = None
    return told


def registry(kinds: Sequence[Kind], tell: Told, login: Callable[[], kopf.ConnectionInfo]) -> Any:
    """Return kopf's handlers: for each kind `on.event`, which leaves no trace in objects, and the login."""
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found, id="login", errors=kopf.ErrorsMode.TEMPORARY, backoff=5.0)
    def log_in(**_: Any) -> kopf.ConnectionInfo:
        return login()

    for kind in kinds:

        def seen(event: kopf.RawEvent, kind: Kind = kind, **_: Any) -> None:
            raw: Raw = event["object"]
            gone = event["type"] == "DELETED"
            tell(Key.of(kind, raw), None if gone else raw)

        async def on_event(told: Callable[..., None] = seen, **kwargs: Any) -> None:
            told(**kwargs)

        kopf.on.event(kind.group, kind.version, kind.plural, registry=found, id=f"seen-{kind.plural}")(
            on_event
        )
    return found


def connection(config: SingleConfig) -> kopf.ConnectionInfo:
    """Return lightkube's way to the API server as kopf's; the token file is read at each login."""
    cluster, user = config.cluster, config.user
    assert user is not None
    token = user.token
    if user.token_file is not None:
        token = Path(user.token_file).read_text(encoding="ascii").strip()

    def path(named: str | None) -> str | None:
        return None if named is None else str(config.abs_file(named))

    return kopf.ConnectionInfo(
        server=cluster.server,
        ca_path=None if cluster.certificate_auth_data else path(cluster.certificate_auth),
        ca_data=cluster.certificate_auth_data,
        insecure=cluster.insecure or None,
        scheme="Bearer" if token else None,
        token=token,
        certificate_path=None if user.client_cert_data else path(user.client_cert),
        certificate_data=user.client_cert_data,
        private_key_path=None if user.client_key_data else path(user.client_key),
        private_key_data=user.client_key_data,
    )


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that leaves no connection behind.

    A watch that kopf ends is closed politely: asyncio then waits for the API server to say that it closes too (TLS
    close_notify), and nothing waits for that. A server that is slow would leave a socket without a loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: WeakSet[asyncio.Transport] = WeakSet()

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        transport, protocol = await super().create_connection(*args, **kwargs)
        self._made.add(transport)
        return transport, protocol

    def close(self) -> None:
        for each in self._made:
            each.abort()
        # What was aborted closes its socket in the next turn.
        self.call_soon(self.stop)
        self.run_forever()
        super().close()


class Watcher:
    """kopf on its thread, until it is stopped or ends by itself.

    Args:
        kinds: What is watched.
        tell: Called on the loop of the caller for each object that is there or has changed; None where it is gone.
        login: How to reach the API server.
    """

    def __init__(self, kinds: Sequence[Kind], tell: Told, login: Callable[[], kopf.ConnectionInfo]) -> None:
        self.kinds = kinds
        self._tell = tell
        self._login = login
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled, or until kopf ends by itself; then raise what ended it, if anything did."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell(key: Key, raw: Raw | None) -> None:
            if not self._stop.is_set():
                loop.call_soon_threadsafe(self._tell, key, raw)

        def end(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None) if error is None else ended.set_exception(error)

        async def watch() -> None:
            try:
                await kopf.operator(
                    standalone=True,
                    clusterwide=True,
                    stop_flag=self._stop,
                    settings=settings(self.kinds),
                    registry=registry(self.kinds, tell, self._login),
                )
            finally:
                # A thread of this loop waits for the flag, and the end of the loop for that thread: for ever, where
                # kopf ended by itself.
                self._stop.set()

        def work() -> None:
            error: BaseException | None = None
            try:
                with asyncio.Runner(loop_factory=_Loop) as runner:
                    runner.run(watch())
            except BaseException as e:  # noqa: BLE001 -- the border of the thread: whoever waits is told
                error = e
            if not loop.is_closed():
                loop.call_soon_threadsafe(end, error)

        thread = threading.Thread(target=work, name="kopf", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        finally:
            self._stop.set()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await asyncio.wait([ended])
                ended.exception()
            except TimeoutError:
                logging.getLogger("attestation_operator").warning("watch.not_ended")
