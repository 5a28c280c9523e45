"""Units of work while the way to PostgreSQL fails: each is stored once, or its caller is told that it is not known."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from attestation.audit import verify_chain
from attestation.errors import StoreUnavailable
from attestation.store import Store, StoreSettings, open_store, postgres
from tests.contract.store_samples import NOW
from tests.contract.test_store_repositories import event
from tests.fixtures.fault_proxy import Fault, FaultProxy, Trap
from tests.fixtures.postgres import Server

QUICK = StoreSettings(busy_timeout_seconds=0.5)
UNITS = 120
THREADS = 6


@pytest.fixture
def url(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty migrated database, without faults."""
    yield postgres_server.create("faults", template="empty")
    postgres_server.drop("faults")


@pytest.fixture
def proxy(url: str, postgres_server: Server) -> Iterator[FaultProxy]:
    """The way to it."""
    with FaultProxy(postgres_server.socket) as found:
        yield found


@pytest.fixture
def opened(proxy: FaultProxy) -> Iterator[ExitStack]:
    """Closes stores before the way to their database goes."""
    with ExitStack() as stack:
        yield stack


def through(proxy: FaultProxy, opened: ExitStack, settings: StoreSettings = QUICK) -> Store:
    """Open the store through *proxy*."""
    url = f"postgresql://itl@127.0.0.1:{proxy.port}/faults"
    return opened.enter_context(closing(open_store(url, settings)))


def note(store: Store, number: int) -> None:
    """Append an entry to the log: done twice, it would stand there twice."""
    store.write_sync(lambda tx: tx.audit.append(event(number), NOW))


def noted(url: str) -> Counter[str | None]:
    """Return how often each entry stands in the log, which is one chain."""
    with closing(open_store(url)) as store:
        entries = store.read_sync(lambda tx: tx.audit.entries(0, 10_000))
    assert verify_chain(entries).valid
    return Counter(entry.detail for _, entry in entries)


@pytest.mark.parametrize("slowness", [{"latency_seconds": 0.02}, {"drip_bytes_per_second": 20_000}])
def test_a_slow_way_only_takes_longer(
    url: str, proxy: FaultProxy, opened: ExitStack, slowness: dict[str, float]
) -> None:
    """Nothing is refused, nothing is done twice."""
    store = through(proxy, opened, StoreSettings())
    for name, value in slowness.items():
        setattr(proxy, name, value)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda number: note(store, number), range(20)))
    assert noted(url) == Counter(event(number).detail for number in range(20))


@pytest.mark.threat("T27")
def test_cut_again_and_again(url: str, proxy: FaultProxy, opened: ExitStack) -> None:
    """At any byte of any unit, begin and commit included: what was acknowledged is there, and nothing is twice."""
    store = through(proxy, opened, StoreSettings())
    chosen = random.Random(1)
    told = []

    def write(number: int) -> None:
        if proxy.cut_after_bytes is None:
            proxy.cut_after_bytes = chosen.randrange(3000)
        try:
            note(store, number)
        except StoreUnavailable:
            return
        told.append(event(number).detail)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(write, range(UNITS)))
    proxy.cut_after_bytes = None
    found = noted(url)
    assert found.keys() >= set(told)
    assert set(found.values()) == {1}
    assert len(told) > UNITS / 2


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for an answer gives up soon; who has the lock keeps it."""
    monkeypatch.setattr(postgres, "_ANSWER_SECONDS", 1)
    monkeypatch.setattr(postgres, "_STALLED_SECONDS", 600)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("fault", Fault)
def test_the_answer_to_a_commit_is_lost(
    url: str, proxy: FaultProxy, opened: ExitStack, fault: Fault, delivered: bool
) -> None:
    """However it was lost, the caller waits a bounded time and learns that it is stored; it is, once.

    Where the server does not know of the loss, the lost transaction has the lock: its writer takes it away.
    """
    store = through(proxy, opened, StoreSettings(busy_timeout_seconds=2))
    note(store, 1)
    trap = proxy.trap = Trap(said=b"COMMIT\0", delivered=delivered, fault=fault)
    note(store, 2)
    assert trap.sprung.is_set()
    note(store, 3)
    assert noted(url) == Counter(event(number).detail for number in (1, 2, 3))


@pytest.mark.usefixtures("hurried")
def test_silence_has_an_end(url: str, proxy: FaultProxy, opened: ExitStack) -> None:
    """A server that takes what is sent and never answers is given up, by reads and writes; then all is as before."""
    store = through(proxy, opened)
    note(store, 1)
    proxy.silent = True
    started = time.monotonic()
    for use in (lambda: note(store, 2), lambda: store.read_sync(lambda tx: tx.audit.entries(0, 1))):
        with pytest.raises(StoreUnavailable, match=r"in time|timeout"):
            use()
    assert time.monotonic() - started < 60
    proxy.silent = False
    note(store, 3)
    assert noted(url) == Counter(event(number).detail for number in (1, 3))
