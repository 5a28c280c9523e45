"""The running service and strangers who cost as much as they can: raw sockets, no proof of anything."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import httpx
import pytest

from tests.fixtures.service import ServiceProcess, service, start_service
from tests.unit.service.node import SoftwareNode

__all__ = ["service", "start_service"]


def cpu_seconds(pid: int) -> float:
    """Return what process *pid* has used of a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    """Return the most memory that process *pid* has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def problem(answer: httpx.Response) -> str:
    """Return the code of a problem."""
    return str(answer.json()["type"]).rpartition(":")[2]


UNKNOWN = json.dumps({f"m{i:07}": 0 for i in range(250_000)}).encode()
"""4 MB of members that no route knows."""


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/attest", "body-too-complex"),
        ("/api/v1/self-register", "body-too-large"),
        ("/api/v1/machines/x/approve", "body-too-large"),
    ],
)
def test_unknown_members_cost_nothing(service: ServiceProcess, path: str, code: str) -> None:
    """A quarter of a million of them took five seconds of the loop and a gigabyte."""
    before, memory = cpu_seconds(service.pid), peak_mib(service.pid)
    answer = httpx.post(
        service.url + path, content=UNKNOWN, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert problem(answer) == code
    assert cpu_seconds(service.pid) - before < 0.7
    assert peak_mib(service.pid) - memory < 32


def test_an_operators_route_parses_within_bounds_before_it_asks_who(service: ServiceProcess) -> None:
    """What is parsed before a credential is looked at is bounded like anybody's."""
    body = json.dumps({f"m{i}": 0 for i in range(20_000)}).encode()
    answer = httpx.post(
        f"{service.url}/api/v1/policies/learn", content=body, headers={"Content-Type": "application/json"}
    )
    assert problem(answer) == "body-too-complex"


def test_a_machine_with_a_long_honest_body_is_served(service: ServiceProcess) -> None:
    """Beyond 16 KiB it is parsed elsewhere, to the same effect."""
    body = SoftwareNode().introduction()
    body["ek_chain"] = ["A" * 20_000]
    assert httpx.post(f"{service.url}/api/v1/self-register", json=body).status_code == 200
    body["ek_chain"] = ["A" * 20_000, 7]
    answer = httpx.post(f"{service.url}/api/v1/self-register", json=body)
    assert [e["field"] for e in answer.json()["errors"]] == ["body.ek_chain.1"]
