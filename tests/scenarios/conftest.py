"""Fixtures of the scenario tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from attestation.device import NodeTPM
from attestation_testing import CertificateAuthority
from tests.fixtures.in_process import InProcessService, local
from tests.fixtures.service import Operator, ServiceProcess, operator, service, start_service
from tests.fixtures.tpm import MakeTPM
from tests.scenarios.scene import Scene

__all__ = ["local", "operator", "service", "start_service"]

MakeDevice = Callable[..., NodeTPM]


@pytest.fixture
def scene(service: ServiceProcess, operator: Operator) -> Iterator[Scene]:
    """The real service."""

    def client(address: str) -> httpx.Client:
        del address  # over a socket everybody comes from 127.0.0.1
        return httpx.Client(base_url=service.url, timeout=60)

    found = Scene(operator=operator, client=client, canary=service.canary, admin_token=service.admin_token)
    yield found
    found.close()


@pytest.fixture
def local_scene(local: InProcessService) -> Iterator[Scene]:
    """The service in this process, whose clock the test holds (`local.clock`)."""
    found = Scene(
        operator=local.operator(), client=local.client, canary=local.canary, admin_token=local.admin_token
    )
    yield found
    found.close()


@pytest.fixture
def make_device(make_tpm: MakeTPM, tpm_ca: CertificateAuthority) -> Iterator[MakeDevice]:
    """Make TPMs as the agent sees them: `make_device("name", certificate=…, ak=…)`."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "", *, certificate: bool = False, **more: Any) -> NodeTPM:
            tpm = make_tpm(name)
            if certificate:
                tpm.manufacture(tpm_ca)
            return stack.enter_context(tpm.node(**more))

        yield make
