"""What the controllers of HSM issuers remember between two looks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import structlog

from attestation.wire import b64decode
from attestation_operator.errors import ServiceAway
from attestation_operator.hsm.controllers import Issuers, Standing
from tests.unit.operator.hsm.test_issuance import Thread, there
from tests.unit.operator.hsm.world import UID, authority, known


def issuers(log: Any, standing: Standing) -> Issuers:
    """Return the controller of issuers, of which one CA signs."""
    standing.authorities[UID] = authority()
    around: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: datetime.now(UTC)), log=structlog.get_logger()
    )
    return Issuers(around, None, log, standing, Thread(), None)  # type: ignore[arg-type]  # no token is asked


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
