"""The webhook over TLS: what it answers, what it refuses to read, and whose certificate it serves."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from attestation.clock import SystemClock
from attestation_operator.errors import ObjectChanged
from attestation_operator.metrics import Metrics
from attestation_operator.objects import Key, Raw, Target
from attestation_operator.runs import webhook
from attestation_operator.runs.webhook import (
    MAX_REVIEW_BYTES,
    PATH,
    CertificateMissing,
    Webhook,
    from_directory,
    made,
    serve,
)
from attestation_operator.runs.webhook_certificate import SERVES, Certificates, Pair, make
from attestation_operator.runs.webhook_settings import CONFIGURATION, SECRET, WebhookSettings
from attestation_operator.settings import SettingsInvalid
from tests.fixtures.admission_cases import CASES, CONTROLLER, Case
from tests.unit.operator.doubles import Log


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


NAME = "hook.itl.svc"
GOOD = next(case for case in CASES if case.allowed)
BAD = next(case for case in CASES if not case.allowed)


def _pair() -> Pair:
    return make(NAME, datetime.now(UTC))


class Asking:
    """An API server, as far as a webhook sees one."""

    def __init__(self, hook: Webhook, port: int) -> None:
        self.hook = hook
        self.url = f"https://127.0.0.1:{port}{PATH}"

    async def ask(self, body: bytes, trusted: bytes) -> tuple[int, bytes]:
        """Post *body*, over a connection of its own."""
        tls = ssl.create_default_context(cadata=trusted.decode("ascii"))
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            session.post(self.url, data=io.BytesIO(body), ssl=tls, server_hostname=NAME) as answer,
        ):
            return answer.status, await answer.read()


@asynccontextmanager
async def _answering(pair: Pair) -> AsyncIterator[Asking]:
    hook = Webhook(controller=CONTROLLER, metrics=Metrics(), log=Log())
    hook.serve_with(pair)
    async with hook.answering("127.0.0.1", 0) as port:
        yield Asking(hook, port)


def _body(case: Case) -> bytes:
    return json.dumps(case.review()).encode()


@on_a_loop
async def test_it_answers_reviews() -> None:
    """Let through, and refused with the reason; each is counted."""
    pair = _pair()
    async with _answering(pair) as asking:
        for case in (GOOD, BAD):
            status, body = await asking.ask(_body(case), pair.certificate)
            assert status == 200
            assert json.loads(body)["response"]["allowed"] == case.allowed
        counted = {name: asking.hook.reviews.labels(name)._value.get() for name in ("allowed", "refused")}
        assert counted == {"allowed": 1, "refused": 1}


@on_a_loop
async def test_older_tls_is_refused() -> None:
    """API servers have spoken 1.3 since 1.19; nobody else asks."""
    pair = _pair()
    async with _answering(pair) as asking:
        old = ssl.create_default_context(cadata=pair.certificate.decode("ascii"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        async with aiohttp.ClientSession(trust_env=False) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.post(asking.url, data=b"", ssl=old, server_hostname=NAME)


@pytest.mark.threat("T287")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b"{}", 400),
        (b"\xff", 400),
        (b"x" * (MAX_REVIEW_BYTES + 1), 413),
    ],
    ids=["nothing", "half", "deep", "empty", "no text", "large"],
)
@on_a_loop
async def test_what_is_no_review_is_refused_by_status(body: bytes, status: int) -> None:
    """An API server takes that for no, by `failurePolicy: Fail`."""
    pair = _pair()
    async with _answering(pair) as asking:
        found, said = await asking.ask(body, pair.certificate)
        assert found == status
        assert b"allowed" not in said


@pytest.mark.threat("T287")
@on_a_loop
async def test_a_rule_that_breaks_lets_nothing_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails closed, without telling why."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(webhook, "judge", broken)
    pair = _pair()
    async with _answering(pair) as asking:
        status, said = await asking.ask(_body(GOOD), pair.certificate)
        assert status == 500
        assert b"secret" not in said


@on_a_loop
async def test_a_new_certificate_serves_the_next_connection() -> None:
    """Without a new start; one that cannot be used changes nothing."""
    first, second = _pair(), _pair()
    async with _answering(first) as asking:
        for broken in (Pair(certificate=second.certificate, key=first.key), Pair(certificate=b"", key=b"")):
            with pytest.raises(CertificateMissing):
                asking.hook.serve_with(broken)
            assert (await asking.ask(_body(GOOD), first.certificate))[0] == 200
        asking.hook.serve_with(second)
        assert (await asking.ask(_body(GOOD), second.certificate))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await asking.ask(_body(GOOD), first.certificate)


@on_a_loop
async def test_a_directory_is_read_again(tmp_path: Path) -> None:
    """A Secret that is mounted changes under the same names."""
    with pytest.raises(CertificateMissing):
        await from_directory(tmp_path)
    for pair in (_pair(), _pair()):
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)
        assert await from_directory(tmp_path) == pair


class Heard(Log):
    """A log that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def _say(self, level: str, event: str, members: dict[str, Any]) -> None:
        super()._say(level, event, members)
        task = asyncio.ensure_future(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self) -> None:
        async with self._heard:
            self._heard.notify_all()

    async def until(self, event: str) -> None:
        """Wait for an event."""
        async with self._heard:
            await self._heard.wait_for(lambda: event in self.events)


class Two:
    """The Secret and the configuration, at an API server; each write needs the version that was read."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            SECRET.plural: {
                "metadata": {"name": "s", "namespace": "itl", "uid": "1", "resourceVersion": "1"}
            },
            CONFIGURATION.plural: {
                "metadata": {"name": "c", "uid": "2", "resourceVersion": "1"},
                "webhooks": [{"name": "w", "clientConfig": {}}],
            },
        }
        self.writes: list[str] = []
        self.before_write: list[Any] = []

    async def read(self, key: Key) -> Raw | None:
        """Return it."""
        return copy.deepcopy(self.objects.get(key.kind.plural))

    async def merge(self, target: Target, change: Raw, *, action: str | None = None) -> bool:
        """Write it."""
        if self.before_write:
            await self.before_write.pop()()
        found = self.objects[target.kind.plural]
        if found["metadata"]["resourceVersion"] != target.resource_version:
            raise ObjectChanged("changed")
        found.update(change)
        found["metadata"]["resourceVersion"] = str(int(target.resource_version) + 1)
        self.writes.append(target.kind.plural)
        return True

    def trusts(self, pair: Pair) -> bool:
        """Say whether the API server would believe it."""
        held = Certificates.read(self.objects[SECRET.plural]["data"], NAME)
        assert held is not None
        [hook] = self.objects[CONFIGURATION.plural]["webhooks"]
        return pair.certificate in base64.b64decode(hook["clientConfig"]["caBundle"])


class Moving:
    """A clock that is moved."""

    def __init__(self) -> None:
        self.at = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the instant."""
        return self.at


async def _made(cluster: Two, clock: Moving) -> Pair:
    return await made(
        cluster,
        secret=Key(kind=SECRET, namespace="itl", name="s"),
        configuration=Key(kind=CONFIGURATION, name="c"),
        name=NAME,
        clock=clock,
    )


@on_a_loop
async def test_a_certificate_is_made_made_known_and_kept() -> None:
    """The second look, and the second replica, write nothing."""
    cluster, clock = Two(), Moving()
    first = await _made(cluster, clock)
    assert cluster.trusts(first)
    assert cluster.writes == [SECRET.plural, CONFIGURATION.plural]
    assert await _made(cluster, clock) == first
    assert len(cluster.writes) == 2


@on_a_loop
async def test_a_new_one_serves_in_time() -> None:
    """And was trusted since long; a configuration that somebody applied anew is told again."""
    cluster, clock = Two(), Moving()
    first = await _made(cluster, clock)
    clock.at += SERVES
    second = await _made(cluster, clock)
    assert second != first
    assert cluster.trusts(first)
    assert cluster.trusts(second)
    cluster.objects[CONFIGURATION.plural]["webhooks"] = [{"name": "w", "clientConfig": {}}]
    assert await _made(cluster, clock) == second
    assert cluster.trusts(second)


@on_a_loop
async def test_two_replicas_that_begin_together_serve_the_same() -> None:
    """The slower one's write is refused, and it takes what the faster one made."""
    cluster, clock = Two(), Moving()
    other: list[Pair] = []

    async def faster() -> None:
        other.append(await _made(cluster, clock))

    cluster.before_write.append(faster)
    assert await _made(cluster, clock) == other[0]
    assert cluster.trusts(other[0])


@pytest.mark.parametrize("gone", [SECRET, CONFIGURATION], ids=lambda kind: kind.kind)
@on_a_loop
async def test_without_its_objects_it_serves_nothing_new(gone: Any) -> None:
    """The chart makes both; it makes neither."""
    cluster = Two()
    del cluster.objects[gone.plural]
    with pytest.raises(CertificateMissing):
        await _made(cluster, Moving())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"CERTIFICATE_SECRET": "itl/s"},
        {"CERTIFICATE_DIR": "/d", "SERVER_NAME": NAME},
        {"CERTIFICATE_SECRET": "itl/s", "WEBHOOK_CONFIGURATION": "c"},
    ],
    ids=["nothing", "half", "both", "no name"],
)
def test_whose_certificate_it_is_must_be_said(more: dict[str, str]) -> None:
    """Half of it would make a certificate that nobody believes."""
    variables = {"ITL_OPERATOR_CONTROLLER_USER": CONTROLLER}
    with pytest.raises(SettingsInvalid):
        _ = WebhookSettings.load(
            variables | {f"ITL_OPERATOR_{name}": value for name, value in more.items()}
        ).own


@pytest.mark.parametrize(("name", "value"), [("CERTIFICATE_SECRET", "s"), ("WEBHOOK_BIND_ADDRESS", "9443")])
def test_a_setting_that_names_nothing_stops_the_start(name: str, value: str) -> None:
    """It is told by the name of its variable."""
    with pytest.raises(SettingsInvalid, match=name):
        WebhookSettings.load({"ITL_OPERATOR_CONTROLLER_USER": CONTROLLER, f"ITL_OPERATOR_{name}": value})


@on_a_loop
async def test_the_program_is_ready_once_it_has_a_certificate(tmp_path: Path) -> None:
    """It waits for one that is not there yet, and ends when it is told to."""
    settings = WebhookSettings.load(
        {
            "ITL_OPERATOR_CONTROLLER_USER": CONTROLLER,
            "ITL_OPERATOR_CERTIFICATE_DIR": str(tmp_path),
            "ITL_OPERATOR_WEBHOOK_BIND_ADDRESS": "127.0.0.1:0",
            "ITL_OPERATOR_HEALTH_PROBE_BIND_ADDRESS": "127.0.0.1:0",
            "ITL_OPERATOR_METRICS_BIND_ADDRESS": "127.0.0.1:0",
        }
    )
    log, stopped = Heard(), asyncio.Event()
    running = asyncio.create_task(serve(settings, stopped, clock=SystemClock(), log=log))
    async with asyncio.timeout(30):
        await log.until("webhook.certificate")
        assert "webhook.starts" not in log.events
        pair = _pair()
        (tmp_path / "tls.key").write_bytes(pair.key)
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        await log.until("webhook.starts")
        stopped.set()
        await running
    assert log.events[-1] == "webhook.ends"
