"""Metrics: from the database, for those who may read, with labels of closed lists."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from attestation.audit import AuditEvent
from attestation.errors import AttestationError, Unauthenticated
from attestation.machines import Status, Trust
from attestation.store import Tx
from attestation_extensions.disk_kms.judging import Operation
from attestation_extensions.metrics import Metrics, MetricsSettings
from attestation_extensions.metrics.actions import ACTIONS
from attestation_extensions.metrics.counts import EVENTS, Pending, note
from attestation_extensions.metrics.exposition import SECRETS
from attestation_extensions.metrics.listening import parse
from attestation_service import extensions
from attestation_service.auth import Duty
from attestation_service.extensions.enabled import ExtensionInvalid
from attestation_service.process import dispatch, maintenance
from tests.docs.pages import ROOT, text
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter, migrated, start
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import introduce
from tools.ports import free_port

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


async def shown(service: Service) -> Samples:
    """Return what Prometheus' own parser reads."""
    answer = await service.operator("GET", "/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def counted(service: Service) -> None:
    """Let the events reach the extension, and each count the database."""
    for observer in service.resources.observers:
        await observer.__self__.flush()  # type: ignore[attr-defined]  # a method of the extension
    await maintenance.once(service.resources)
    enabled = extensions.load(service.resources.settings)
    for name, handlers in enabled.handlers.items():
        while await dispatch.once(name, handlers, service.resources):
            pass


async def test_the_numbers_are_those_of_the_database(start: Starter) -> None:
    """Machines by status and trust, what waits, and each event once."""
    service = await start(extensions=("metrics",))
    nodes = [SoftwareNode() for _ in range(3)]
    for node in nodes:
        await service.introduce(node)
    await service.act(nodes[0], "approve", {"role": "worker-app"})
    await service.attest(nodes[0])
    before = await shown(service)
    assert before["attestation_machines_by_status", ("attested",)] == 1
    assert before["attestation_machines_by_status", ("pending_approval",)] == 2
    assert before["attestation_machines_by_trust", ("verified",)] == 1
    assert before["attestation_events_total", ("node.registered",)] == 0
    assert before["attestation_outbox_pending", ()] >= 5
    service.clock.advance(7)
    assert (await shown(service))["attestation_outbox_oldest_age_seconds", ()] == 7
    await counted(service)
    await counted(service)
    after = await shown(service)
    assert after["attestation_events_total", ("node.registered",)] == 3
    assert after["attestation_events_total", ("node.online",)] == 1


async def test_ca_keys_in_hardware_are_counted_by_cluster(start: Starter) -> None:
    """When the first ends, whose lists are late, what is being signed."""
    service = await hsm.serving(start, extensions=("metrics",))
    issuer = await hsm.registered(service)
    await hsm.issued(service, issuer)
    await hsm.reserve(service, issuer, hsm.request(service, issuer.key, "open"))
    found = await shown(service)
    assert found["attestation_hsm_ca_seconds_until_expiry", ("default",)] == 3650 * 86_400
    assert found["attestation_hsm_lists_overdue", ("default",)] == 1
    assert found["attestation_hsm_certificates_open", ("default",)] == 1
    await hsm.listed(service, issuer)
    assert (await shown(service))["attestation_hsm_lists_overdue", ("default",)] == 0


async def test_who_may_not_read_sees_nothing(start: Starter) -> None:
    """The numbers tell how large the fleet is, and that somebody was locked out."""
    service = await start(extensions=("metrics",))
    answer = await service.get("/api/v1/metrics")
    assert (answer.status_code, "attestation_" in answer.text) == (401, False)


@pytest.mark.threat("T239")
async def test_labels_are_words_of_closed_lists(start: Starter) -> None:
    """Whatever machines are called, and extensions do: no series of their own, and each is there from the beginning."""
    service = await start(extensions=("metrics",))
    before = await shown(service)
    node = SoftwareNode()
    await service.admitted(node, hostname="canary")

    def writes(tx: Tx) -> None:
        for action in ("canary_1", "canary_2", "canary_3", "register"):
            event = AuditEvent(operator_cn="x", action=action, new_state="canary")
            tx.audit.append(event, service.clock.now())

    await service.resources.store.write(writes)
    await counted(service)
    found = await shown(service)
    assert found.keys() - before.keys() == {("attestation_machine_registrations_total", ("other",))}
    assert found["attestation_audit_log_entries_total", ("extension",)] == 3
    assert {words for name, words in found if name == "attestation_machines_by_status"} == {
        (s,) for s in Status
    }
    assert {words for name, words in found if name == "attestation_machines_by_trust"} == {
        (t,) for t in Trust
    }
    assert {words for name, words in found if name == "attestation_events_total"} == {(e,) for e in EVENTS}
    assert not any("canary" in word or node.machine_id in word for _, words in found for word in words)


def test_the_list_of_actions_is_what_is_written() -> None:
    """By the core, as its page has it, and by our extensions."""
    page = text("docs/operate/audit.md").partition("## Checkpoints")[0]
    core = set(re.findall(r"`([a-z_]+)`", page)) - {"machine", "service", "unknown"}
    ours = written("**") | {"kms_refused", *(f"kms_{each}" for each in get_args(Operation))}
    assert core | ours == ACTIONS


def test_operations_on_secrets_are_what_the_vault_writes() -> None:
    """A word that it writes no more, or writes otherwise, would be counted as none for good."""
    assert {*SECRETS} == written("secret_vault")


def written(folder: str) -> set[str]:
    """Return the actions that the extensions of *folder* write into the audit log: each stands where it is written."""
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in ROOT.glob(f"src/extensions/attestation_extensions/{folder}/*.py")
    )
    return set(re.findall(r"(?:\.event|_event|_note)\((?:\s*[a-z]+,)*\s*\"([a-z_]+)\"", sources))


async def test_the_page_names_each_metric(start: Starter) -> None:
    """And none that there is not."""
    service = await start(extensions=("metrics",))
    answer = await service.operator("GET", "/metrics")
    rows = dict(
        re.findall(r"^\| `(attestation_\w+)` \| (\w+)", text("docs/operate/metrics.md"), flags=re.MULTILINE)
    )
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", answer.text, flags=re.MULTILINE))
    assert rows == types


# ---------------------------------------------------------------- what is counted


async def test_attestations_are_counted_one_by_one(start: Starter) -> None:
    """Also those that change nothing, and those that prove nothing; each has the age of its challenge."""
    service = await start(extensions=("metrics",))
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    await service.attest(node)
    for _ in range(2):
        await service.attest(node)
    await counted(service)
    found = await shown(service)
    assert found["attestation_machine_attestations_total", ("apply-config", "attested")] >= 1
    told = {
        words: n for (name, words), n in found.items() if name == "attestation_machine_attestations_total"
    }
    assert sum(told.values()) == 3
    assert found["attestation_quote_age_seconds_count", ()] == 3
    assert found["attestation_quote_age_seconds_bucket", ("+Inf",)] == 3


async def test_the_audit_log_is_counted_whole(start: Starter) -> None:
    """Each entry once, also those from before, however often it is counted; registrations are entries too."""
    service = await start(extensions=("metrics",))
    for _ in range(2):
        await service.introduce(SoftwareNode())
    await counted(service)
    await counted(service)
    entries = await service.resources.store.read(lambda tx: tx.audit.tree.size())
    found = await shown(service)
    told = {words: n for (name, words), n in found.items() if name == "attestation_audit_log_entries_total"}
    assert sum(told.values()) == entries
    assert found["attestation_machine_registrations_total", ("pending_approval",)] == 2


async def test_an_audit_log_longer_than_one_unit_is_counted(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In units of a bounded size, until all of it is."""
    monkeypatch.setattr("attestation_extensions.metrics.counts.ENTRIES", 1)
    service = await start(extensions=("metrics",))
    for _ in range(3):
        await service.introduce(SoftwareNode())
    await counted(service)
    found = await shown(service)
    assert found["attestation_audit_log_entries_total", ("register",)] == 3


async def test_what_could_not_be_written_is_counted_later(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is away costs no count."""
    service = await start(extensions=("metrics",))
    (observer,) = service.resources.observers
    metrics = observer.__self__  # type: ignore[attr-defined]  # a method of the extension
    metrics.observe("webhook_deliveries", {"event_type": "node.online", "status": "delivered"})

    async def away(_work: object) -> None:
        raise AttestationError("away")

    with monkeypatch.context() as patch:
        patch.setattr(service.resources.store, "write", away)
        with pytest.raises(AttestationError, match="away"):
            await metrics.flush()
    await metrics.flush()
    found = await shown(service)
    assert found["attestation_webhook_deliveries_total", ("node.online", "delivered")] == 1


async def test_stale_keys_of_one_worker_are_seen_at_all(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a minute after the last that said so."""
    service = await start(extensions=("metrics",))
    (observer,) = service.resources.observers
    metrics = observer.__self__  # type: ignore[attr-defined]  # a method of the extension
    assert (await shown(service))["attestation_jwks_stale", ()] == 0
    monkeypatch.setattr(metrics, "context", replace(metrics.context, provider_keys_stale=lambda: True))
    await metrics.flush()
    assert (await shown(service))["attestation_jwks_stale", ()] == 1
    service.clock.advance(61)
    assert (await shown(service))["attestation_jwks_stale", ()] == 0


@pytest.mark.threat("T239")
def test_words_that_are_on_no_list_are_one() -> None:
    """Whatever is told: no label that grows with it."""
    pending = Pending()
    for word in ("canary", "", "a b", "node.online", "secret.created", "x" * 1000):
        note(pending, "webhook_deliveries", {"event_type": word, "status": word}, 1)
        note(pending, word, {}, 1)
    assert {name for name, _ in pending} == {"webhook_deliveries"}
    assert {words for _, words in pending} == {"other other", "node.online other", "extension other"}


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0, "1"), (1, "1"), (1.001, "5"), (3600, "3600"), (3601, "+Inf"), (-5, "1")]
)
def test_an_age_falls_into_one_bucket(seconds: float, bound: str) -> None:
    """Bounds belong to the bucket below them."""
    pending = Pending()
    note(pending, "quote_age_seconds", {}, seconds)
    assert pending["quote_age_seconds", bound] == 1
    assert pending["quote_age_seconds_sum", ""] == round(max(0, seconds) * 1000)


# ---------------------------------------------------------------- who may read

TOKEN_VALUE = "token-of-more-than-thirty-two-characters"


@pytest.mark.threat("T238")
async def test_only_who_counts_reads_numbers(start: Starter) -> None:
    """The duty opens this and nothing else; an auditor has none of it."""
    service = await start(extensions=("metrics",))
    service.app.state.resources, people = introduce(service.resources)
    for duty in Duty:
        headers = people.headers(f"{duty}-1", duty)
        metrics = await service.get("/api/v1/metrics", headers=headers)
        assert (metrics.status_code == 200) == (duty is not Duty.AUDITOR)
    headers = people.headers("scraper", Duty.METRICS)
    assert (await service.get("/api/v1/machines", headers=headers)).status_code == 403
    assert (await service.get("/api/v1/audit", headers=headers)).status_code == 403


@pytest.mark.threat("T238")
async def test_the_seeds_path_is_there_only_where_somebody_said_how(start: Starter) -> None:
    """By default there is no /metrics."""
    service = await start(extensions=("metrics",))
    assert (await service.get("/metrics")).status_code == 404


@pytest.mark.threat("T238")
async def test_a_token_opens_it(start: Starter) -> None:
    """That token, and nothing like it."""
    file = start.directory / "token"
    file.write_text(TOKEN_VALUE + "\n")
    service = await start(extensions=("metrics",), extension_values={"ITL_METRICS_TOKEN_FILE": str(file)})

    async def asked(*values: str) -> int:
        headers = [("Authorization", value) for value in values]
        return (await service.http.get("/metrics", headers=headers)).status_code

    assert await asked(f"Bearer {TOKEN_VALUE}") == 200
    for wrong in (
        (),
        ("",),
        (f"Basic {TOKEN_VALUE}",),
        (f"Bearer {TOKEN_VALUE}x",),
        (f"Bearer {TOKEN_VALUE[:-1]}",),
        ("Bearer ",),
        (f"Bearer {TOKEN_VALUE}", f"Bearer {TOKEN_VALUE}"),
    ):
        assert await asked(*wrong) == 401, wrong


@pytest.mark.threat("T238")
@pytest.mark.parametrize("content", [None, "short", " " * 64])
async def test_a_token_that_could_be_guessed_stops_the_start(start: Starter, content: str | None) -> None:
    """So does a file that is not there."""
    file = start.directory / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ExtensionInvalid, match="ITL_METRICS_TOKEN_FILE"):
        await start(extensions=("metrics",), extension_values={"ITL_METRICS_TOKEN_FILE": str(file)})


@pytest.mark.threat("T239")
async def test_open_is_said_and_measured_once_a_second(
    start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everybody reads; the log says that they may; asked often, it is measured once a second."""
    service = await start(extensions=("metrics",), extension_values={"ITL_METRICS_OPEN": "true"})
    first = await service.get("/metrics")
    assert (first.status_code, "attestation_machines_by_status" in first.text) == (200, True)
    assert "metrics.open" in capsys.readouterr().err
    await service.introduce(SoftwareNode())
    assert (await service.get("/metrics")).text == first.text
    service.clock.advance(1)
    assert (await service.get("/metrics")).text != first.text


@pytest.mark.threat("T238")
def test_open_under_high_assurance_is_refused() -> None:
    """As every weakened control."""
    made = Metrics(MetricsSettings(open=True))
    context = SimpleNamespace(high_assurance=True)
    with pytest.raises(Unauthenticated, match="ITL_HIGH_ASSURANCE"):
        asyncio.run(made.on_startup(context))  # type: ignore[arg-type]  # what it looks at first


@pytest.mark.parametrize(
    "values",
    [
        {"open": True, "token_file": "/x"},
        {"listen": "localhost:1"},
        {"listen": "127.0.0.1"},
        {"listen": "127.0.0.1:0"},
        {"listen": "1"},
    ],
)
def test_settings_that_say_nothing_clear_are_refused(values: dict[str, Any]) -> None:
    """Two ways that contradict each other; a listener that is no address and port."""
    with pytest.raises(ValidationError):
        MetricsSettings(**values)


@pytest.mark.parametrize(
    ("head", "status", "authorization"),
    [
        (b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n", 200, "Bearer x"),
        (b"GET /metrics?x HTTP/1.0\r\n\r\n", 200, None),
        (b"GET /metrics HTTP/1.1\r\nauthorization:a\r\nAuthorization: b\r\n\r\n", 200, None),
        (b"GET / HTTP/1.1\r\n\r\n", 404, None),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405, None),
        (b"GET /metrics\r\n\r\n", 400, None),
        (b"\r\n\r\n", 400, None),
        (b"\xff\x00 /metrics HTTP/2\r\n\r\n", 400, None),
    ],
)
def test_a_request_to_the_listener_is_one_of_few(head: bytes, status: int, authorization: str | None) -> None:
    """One path, one method, one credential."""
    assert parse(head) == (status, authorization)


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_status(head: bytes) -> None:
    """Nothing is raised, and only that path is shown."""
    status, _ = parse(head)
    assert status in (200, 400, 404, 405)
    assert (status == 200) <= head.startswith(b"GET /metrics")


@pytest.mark.threat("T239")
async def test_a_listener_of_its_own(start: Starter) -> None:
    """An address that only Prometheus reaches; with a token too, where there is one. Noise costs it nothing."""
    port = free_port()
    file = start.directory / "token"
    file.write_text(TOKEN_VALUE)
    values = {"ITL_METRICS_LISTEN": f"127.0.0.1:{port}", "ITL_METRICS_TOKEN_FILE": str(file)}
    await start(extensions=("metrics",), extension_values=values)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        assert (await client.get("/metrics")).status_code == 401
        for noise in (b"", b"\x00" * 20_000, b"GET /metrics HTTP/1.1\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(noise)
            with contextlib.suppress(OSError):
                await writer.drain()
                writer.write_eof()
                await reader.read()
            writer.close()
        good = await client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN_VALUE}"})
        assert (good.status_code, good.headers["connection"]) == (200, "close")
        assert "attestation_machines_by_status" in good.text
        assert (await client.get("/api/v1/machines")).status_code == 404


async def said_by_listener(start: Starter, said: bytes) -> bytes:
    """Say *said* to a listener and return what comes."""
    port = free_port()
    await start(extensions=("metrics",), extension_values={"ITL_METRICS_LISTEN": f"127.0.0.1:{port}"})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(said)
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionResetError:  # closed before what we said was read
        return b""
    finally:
        writer.close()


@pytest.mark.threat("T239")
async def test_who_says_nothing_to_the_listener_is_sent_away(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection is nobody's to keep."""
    monkeypatch.setattr("attestation_extensions.metrics.listening.SECONDS", 0.1)
    answer = await said_by_listener(start, b"GET /metrics HTTP/1.1\r\n")
    assert answer == b""


@pytest.mark.threat("T239")
async def test_the_listener_has_few_connections(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes beyond them is closed at once."""
    monkeypatch.setattr("attestation_extensions.metrics.listening.AT_ONCE", 0)
    answer = await said_by_listener(start, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert answer == b""
