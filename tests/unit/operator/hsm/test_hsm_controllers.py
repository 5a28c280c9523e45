"""What the controllers of HSM issuers remember between two looks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import structlog.testing
from prometheus_client import CollectorRegistry, generate_latest

from attestation.errors import SignerUnavailable
from attestation.wire import b64decode
from attestation_operator.errors import ServiceAway, TokenMissing
from attestation_operator.hsm.controllers import Issuers, Modules, Standing
from attestation_operator.hsm.gauges import Gauges
from attestation_operator.hsm.issuers import Ask
from attestation_operator.hsm.leaf_controller import Leaves
from attestation_operator.objects import CERTIFICATE_REQUEST, HSM, HSM_CERTIFICATE, HSM_ISSUER, Key, Raw
from tests.unit.operator.hsm.test_issuance import Thread, there
from tests.unit.operator.hsm.world import UID, authority, issuer_raw, known, ready


def issuers(log: Any, standing: Standing) -> Issuers:
    """Return the controller of issuers, of which one CA signs."""
    standing.authorities[UID] = authority()
    around: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: datetime.now(UTC)), log=structlog.get_logger()
    )
    gauges = Gauges(CollectorRegistry())
    return Issuers(around, None, log, standing, Thread(), None, gauges)  # type: ignore[arg-type]  # no token is asked


def test_a_list_that_was_put_is_known_whatever_becomes_of_the_responder() -> None:
    """Else the status would name an older one, and after a restart an older one could be signed."""
    log, standing = there(), Standing()
    log.failing["responder"] = [ServiceAway("away")]
    asyncio.run(issuers(log, standing).keep_lists())
    assert standing.crl_numbers == {known().issuer_id: 1}


def test_a_responder_is_certified_whatever_becomes_of_the_list() -> None:
    """One that cannot be made, e.g. because it is too long, ends no answers by OCSP."""
    log, standing = there(), Standing()
    log.failing["begin_list"] = [ServiceAway("away")]
    asyncio.run(issuers(log, standing).keep_lists())
    assert log.asked == ["begin_list", "responder"]


def test_a_key_that_retires_signs_its_list_and_responder_as_before() -> None:
    """Its certificates are asked about until the last has ended."""
    log, standing = there(), Standing()
    found = issuers(log, standing)
    standing.retiring[UID] = replace(authority(), issuer_id="cd" * 8)
    log.issuers["cd" * 8] = log.issuers[known().issuer_id]
    asyncio.run(found.keep_lists())
    assert set(log.lists) == {known().issuer_id, "cd" * 8}
    assert log.asked.count("responder") == 2


def test_what_a_process_before_published_is_not_signed_again() -> None:
    """The number stands in the status; of another CA it says nothing."""
    log, standing = there(), Standing()
    name = known().issuer_id
    standing.published(name, {"issuerID": "another", "crlNumber": 9})
    assert standing.crl_numbers == {}
    standing.published(name, {"issuerID": name, "crlNumber": 1})
    asyncio.run(issuers(log, standing).keep_lists())
    assert log.lists == {}
    standing.published(name, {"issuerID": name})
    assert standing.crl_numbers == {name: 1}
    standing.crl_numbers[name] = 0
    asyncio.run(issuers(log, standing).keep_lists())
    assert b64decode(log.lists[name], "it")


def test_a_monitor_is_told_of_tokens_and_issuers_and_forgets_those_that_are_gone() -> None:
    """When a CA ends stays known while it does not sign; what is gone is no alert for ever."""
    registry = CollectorRegistry()
    gauges = Gauges(registry)
    token, issuer = Key(kind=HSM, name="t"), Key(kind=HSM_ISSUER, name="i", namespace="n")
    ends = datetime(2030, 1, 1, tzinfo=UTC)
    gauges.ready(token, True)
    gauges.ready(issuer, True, ends=ends)
    gauges.ready(issuer, False)

    def told(name: str, key: Key) -> float | None:
        labels = {"kind": key.kind.kind, "namespace": key.namespace or "", "name": key.name}
        return registry.get_sample_value(f"itl_operator_hsm_{name}", labels)

    assert (told("ready", token), told("ready", issuer)) == (1, 0)
    assert told("ca_end_timestamp_seconds", issuer) == ends.timestamp()
    assert told("ca_end_timestamp_seconds", token) is None
    for _ in range(2):
        gauges.gone(token)
        gauges.gone(issuer)
    assert b"{" not in generate_latest(registry)


def test_one_issuer_that_takes_long_keeps_no_other_of_its_token_waiting() -> None:
    """They are woken side by side: the first may wait a minute for evidence."""
    standing, second = Standing(), asyncio.Event()
    names = [Key(kind=HSM_ISSUER, name=name, namespace="default") for name in ("slow", "other")]
    standing.issuers = {name: issuer_raw() for name in names}

    async def wake(key: Key, _: Raw | None) -> None:
        if key.name == "other":
            second.set()
        await second.wait()

    async def applied(_: Any) -> None:
        pass

    def away(_: Any) -> Any:
        raise SignerUnavailable("away")

    around: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: datetime.now(UTC)), executor=SimpleNamespace(apply=applied)
    )
    tokens: Any = SimpleNamespace(facts=away)
    looks: Any = Modules(around, tokens, standing, Thread(), wake, Gauges(CollectorRegistry()))  # type: ignore[arg-type]  # of one turn
    key = Key(kind=HSM, name="softhsm")

    async def go() -> None:
        for status in ("True", "False"):
            metadata = {"name": "softhsm", "uid": "u-hsm", "resourceVersion": "3", "generation": 1}
            spec = {"module": "softhsm", "tokenLabel": "hsm"}
            raw = {"metadata": metadata, "spec": spec, "status": {"conditions": ready(status)}}
            async with asyncio.timeout(30):
                await looks.handle(key, raw)

    asyncio.run(go())
    assert second.is_set()


def test_a_request_has_one_hsm_certificate_however_many_it_names() -> None:
    """Whoever makes a request may name thousands of owners: the controller alone is looked at."""
    read: list[str] = []

    class Cluster:
        async def read(self, key: Key) -> None:
            """Remember what was asked for."""
            read.append(key.name)

    around: Any = SimpleNamespace(cluster=Cluster())
    leaves = Leaves(around, None, Standing(), Thread())  # type: ignore[arg-type]  # no token is asked
    whose = {"apiVersion": HSM_CERTIFICATE.api_version, "kind": HSM_CERTIFICATE.kind}
    owners: list[dict[str, Any]] = [{**whose, "name": f"other-{number}"} for number in range(3)]
    owners.append({**whose, "name": "pay", "controller": True})
    raw = {"metadata": {"name": "cr-1", "namespace": "default", "ownerReferences": owners}}
    asyncio.run(leaves.handle(Key(kind=CERTIFICATE_REQUEST, name="cr-1", namespace="default"), raw))
    assert read == ["pay"]


def test_why_the_service_does_not_know_a_ca_is_in_the_log() -> None:
    """The status has the code alone, so without it nobody would learn what to mend, e.g. a token of no pod."""
    found = issuers(there(), Standing())
    refused = TokenMissing("the service does not accept our token: it has no pod")

    async def not_registered(*_: Any) -> Any:
        raise refused

    issuer: Any = SimpleNamespace(
        target=Key(kind=HSM_ISSUER, name="i", namespace="n"), spec=SimpleNamespace()
    )
    module: Any = SimpleNamespace(spec=SimpleNamespace())
    with structlog.testing.capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "_registered", not_registered)
        assert asyncio.run(found._answer(Ask.REGISTER, issuer, module, {})) is refused
    (line,) = logs
    assert (line["event"], line["code"], line["reason"]) == (
        "issuer.not_registered",
        "token-missing",
        str(refused),
    )
