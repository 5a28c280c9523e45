"""Pages of the dashboard before a large service: how long each takes, and how often it asks the API.

The service has two workers, 10,000 machines and 1,000,000 audit entries (`tests.bench.crowd`), the dashboard is a
process of its own, and somebody who may read, act and audit has logged in at the provider of the tests. One page at a
time, each until its last byte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Final
from urllib.parse import quote

import httpx

from attestation.client import OperatorClient
from attestation.client.audit_proof import inclusion
from attestation.keys import create_kek
from attestation.machines import Status
from attestation.store.pages import encode_cursor
from tests.bench import crowd, fleet
from tests.bench.report import Measurement
from tests.bench.server import Server, cpu_seconds
from tests.fixtures.openid.provider import AUDITOR, OPERATOR, Provider
from tests.fixtures.web_process import WebProcess

ROUNDS: Final = 40
WARM: Final = 3
BAR_SECONDS: Final = 0.3
MOST_REQUESTS: Final = 25
BAR: Final = f"p95 < {BAR_SECONDS * 1000:.0f} ms, <= {MOST_REQUESTS} requests to the API"
ALICE: Final = "alice"
START_SECONDS: Final = 120
VERIFY_SECONDS: Final = 300
CHOSEN: Final = 20
"""Machines that one form is about: as many as there may be."""


def pages() -> Mapping[str, str]:
    """Return the address of each page by a name that tells what is on it."""
    good, bad = (crowd.machine_id(number) for number in (4020, 4011))
    locked = [crowd.machine_id(n) for n in range(4000, 5000) if crowd.status_of(n) is Status.ATTESTED]
    waiting = [crowd.machine_id(n) for n in range(4000) if crowd.status_of(n) is Status.PENDING_APPROVAL]
    deep = quote(encode_cursor("machines", "3000"))
    sorted_deep = quote(encode_cursor("machines by hostname", "6000:node-6000"))
    old = quote(encode_cursor("audit", "500000"))
    rare = "&".join(("machine=" + good, "action=lock"))
    where = quote("trust == 'failed' and role == 'worker-app'")
    return {
        "overview": "/",
        "inbox": "/inbox",
        "inbox-search": "/inbox?q=SN0000",
        "inbox-approve-20": "/inbox/approve-several?" + "&".join(f"machine={m}" for m in waiting[:CHOSEN]),
        "approvals": "/approvals",
        "machines": "/machines",
        "machines-deep": f"/machines?after={deep}",
        "machines-sorted": "/machines?sort=-seen",
        "machines-sorted-deep": f"/machines?sort=machine&after={sorted_deep}",
        "machines-stale": "/machines?trust=stale",
        "machines-status-role": "/machines?status=attested&role=worker-app&cluster=fra-1",
        "machines-labels": "/machines?labels=rack%3D4%2Csite",
        "machines-search": "/machines?q=node-77",
        "machines-search-nothing": "/machines?q=nosuchmachine&sort=machine",
        "machines-where": f"/machines?where={where}",
        "fleet": "/fleet",
        "machines-lock-20": "/machines/lock?" + "&".join(f"machine={m}" for m in locked[:CHOSEN]),
        "machine": f"/machines/{good}",
        "machine-failed": f"/machines/{bad}",
        **{
            f"machine-{tab}": f"/machines/{bad}?tab={tab}"
            for tab in ("identity", "evidence", "configuration", "certificates", "votes", "audit")
        },
        "machine-revoke": f"/machines/{good}/revoke",
        "policies": "/policies",
        "policies-history": "/policies?tab=history",
        "policy": "/policies/bench/1",
        "policies-diff": "/policies/diff?one=bench@1&other=bench@30",
        "trust": "/trust",
        "trust-unknown": "/trust?tab=unknown",
        "trust-collateral": "/trust?tab=collateral",
        "trust-firmware": "/trust?tab=firmware",
        "certificates": "/certificates",
        "certificates-revoked": "/certificates?state=revoked",
        "certificates-ending": "/certificates?tab=ending",
        "certificates-ca": "/certificates?tab=ca",
        "certificates-people": "/certificates?tab=people",
        "clusters": "/clusters",
        "cluster": "/clusters/fra-1",
        "audit": "/audit",
        "audit-deep": f"/audit?after={old}",
        "audit-machine": f"/audit?machine={good}",
        "audit-action": "/audit?action=approve",
        "audit-person": "/audit?operator=alice",
        "audit-day": "/audit?since=2026-01-01&until=2099-01-01",
        "audit-text": "/audit?text=node-4711&operator=alice",
        "audit-text-nothing": "/audit?text=nosuchtext",
        "audit-two-filters": f"/audit?{rare}",
        "audit-nothing": "/audit?action=approve&operator=nobody",
        "audit-entry": "/audit/777777",
        "audit-log": "/audit/log",
        "audit-verify": "/audit/verify",
        "query": "/query",
        "extensions": "/extensions",
        "webhooks": "/webhooks",
        "secrets": "/secrets",
        "settings": "/settings",
        "account": "/account",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """What loading a page took.

    Args:
        seconds: Of each load, until the last byte of the page.
        requests: To the API, of one load.
        cpu_seconds: Of service and dashboard, of one load: whatever else the machine does.
    """

    seconds: Sequence[float]
    requests: float
    cpu_seconds: float

    @property
    def p50(self) -> float:
        """Half of them took less."""
        return median(self.seconds)

    @property
    def p95(self) -> float:
        """One of twenty took longer."""
        return quantiles(self.seconds, n=20)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs, and a browser in which alice is logged in.

    Args:
        browser: Hers.
        server: The service.
        web: The dashboard.
        provider: Where she logged in.
        log: Of the service.
    """

    browser: httpx.Client
    server: Server
    web: WebProcess
    provider: Provider
    log: Path

    def cpu_seconds(self) -> float:
        """Return the time of processors that service and dashboard took so far."""
        return self.server.cpu_seconds() + cpu_seconds([self.web.pid])

    def load(self, address: str, rounds: int = ROUNDS) -> Loads:
        """Load a page some times, after it was loaded before."""
        for _ in range(WARM):
            self._get(address)
        answered, spent = self._answered(), self.cpu_seconds()
        seconds = []
        for _ in range(rounds):
            begun = time.perf_counter()
            self._get(address)
            seconds.append(time.perf_counter() - begun)
        spent = self.cpu_seconds() - spent
        return Loads(
            seconds=seconds,
            requests=(self._answered() - answered) / rounds,
            cpu_seconds=spent / rounds,
        )

    def _get(self, address: str) -> None:
        answer = self.browser.get(address)
        assert answer.status_code == 200, f"{address}: {answer.status_code} {answer.text[:2000]}"

    def _answered(self) -> int:
        """Return how many requests to the API were answered so far, by the log of the service."""
        time.sleep(0.2)  # a line comes a moment after its answer
        lines = self.log.read_bytes().splitlines()
        events = (json.loads(line) for line in lines if line.startswith(b"{"))
        return sum(e["event"] == "request" and e["path"].startswith("/api/") for e in events)


@contextmanager
def running(moved: Callable[[Path], str] | None = None) -> Iterator[Running]:
    """Run service, provider and dashboard, and log alice in.

    Args:
        moved: Puts the database of a folder elsewhere, and returns its URL.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(crowd.placed())
        provider = stack.enter_context(Provider(access_token_seconds=3600))
        provider.add_user(ALICE, [OPERATOR, AUDITOR])
        environment = {
            **crowd.settings(directory),
            **_extensions(directory),
            **({} if moved is None else {"ITL_DB_URL": moved(directory)}),
            "ITL_OIDC_ISSUER": provider.issuer,
            "ITL_ACCESS_LOG": "true",
            "ITL_DUAL_CONTROL_ROLES": "controlplane",
        }
        server = stack.enter_context(fleet.service(directory, **environment))
        web = WebProcess(
            directory=directory, service_url=f"http://127.0.0.1:{server.port}", issuer=provider.issuer
        )
        provider.configure(web_url=web.url)
        stack.callback(web.stop)
        web.start()
        browser = stack.enter_context(httpx.Client(base_url=web.url, timeout=120, trust_env=False))
        log_in(browser, provider)
        _wait_until_signed(server)
        yield Running(
            browser=browser, server=server, web=web, provider=provider, log=directory / "service.log"
        )


def _extensions(directory: Path) -> dict[str, str]:
    """Return the settings of the extensions that have pages of their own."""
    named = {name: f"file:{directory / name}.kek" for name in ("secret_vault", "webhooks")}
    for uri in named.values():
        create_kek(uri).close()
    keys = {f"ITL_EXT_{name.upper()}_KEK": uri for name, uri in named.items()}
    return {"ITL_EXTENSIONS": ",".join(named), **keys}


def log_in(browser: httpx.Client, provider: Provider) -> None:
    """Go where the dashboard sends a browser, through the provider's pages, as a person does."""
    answer = browser.get("/")
    while answer.is_redirect:
        target = str(answer.request.url.join(answer.headers["location"]))
        if target.startswith(provider.origin):
            target = provider.sign_in(target, ALICE, browser=browser)
        answer = browser.get(target)
    assert answer.status_code == 200, answer.text[:2000]


def _wait_until_signed(server: Server) -> None:
    """Wait until a checkpoint covers the log: before, an entry's page proves nothing."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        answer = httpx.get(
            f"http://127.0.0.1:{server.port}/api/v1/audit/checkpoint", trust_env=False, timeout=60
        )
        if answer.status_code == 200 and int(answer.text.split("\n")[1]) >= crowd.ENTRIES:
            return
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)


def measure() -> Iterator[Measurement]:
    """Measure each page on SQLite, and verify the log that they were shown of."""
    with running() as here:
        yield from each_page(here, "page")


def each_page(here: Running, prefix: str) -> Iterator[Measurement]:
    """Measure each page."""
    _spot_check(here)
    for name, address in pages().items():
        yield _measurement(f"{prefix}-{name}", here.load(address))


def _spot_check(here: Running) -> None:
    """Prove some entries to be in the signed log, and have the service verify all of it and the rows that it tells of.

    What is written in bulk is worth nothing as a measure where the service would refuse it.
    """
    url = f"http://127.0.0.1:{here.server.port}"
    with OperatorClient(url, fleet.ADMIN_TOKEN) as client:
        for entry_id in (1, 4_711, crowd.ENTRIES // 2, crowd.ENTRIES):
            inclusion(client, entry_id, None)
    # Where other work runs beside it, it takes longer than a client of ours waits.
    headers = {"Authorization": f"Bearer {fleet.ADMIN_TOKEN}"}
    found = httpx.get(
        f"{url}/api/v1/audit/verify", headers=headers, timeout=VERIFY_SECONDS, trust_env=False
    ).json()
    assert found["valid"], found
    assert found["entries"] >= crowd.ENTRIES, found


def _measurement(name: str, found: Loads) -> Measurement:
    return Measurement(
        name=name,
        value=found.p95 * 1000,
        unit="ms",
        bar=BAR,
        ok=found.p95 < BAR_SECONDS and found.requests <= MOST_REQUESTS,
        note=f"p50 {found.p50 * 1000:.0f} ms, {found.requests:g} requests, {found.cpu_seconds * 1000:.0f} ms of CPU of "
        f"service and dashboard",
    )
