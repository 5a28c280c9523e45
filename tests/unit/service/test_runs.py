"""Attestation runs over HTTP: opened once, told to their node alone, judged once, kept for a week."""

from __future__ import annotations

import pytest

from attestation.report_data import run_nonce
from attestation.wire import b64decode
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.run_requests import (
    UID,
    admitted,
    challenged,
    detail,
    judged,
    opened,
    opening,
    pinning,
    serving,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service with one cluster."""
    return await serving(start)


async def test_a_good_node_is_verified(service: Service) -> None:
    """By a fresh quote of the machine's own key, with a reference value that matched."""
    node = await admitted(service)
    found = await judged(service, node, opening(service, pinning(node)))
    assert found["verdict"] == "verified", found
