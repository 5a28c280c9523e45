"""docs/extend/operator-client.md: its program runs against a real service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.docs.pages import text
from tests.fixtures.machine import Machine
from tests.fixtures.service import Operator, ServiceProcess

PAGE = text("docs/extend/operator-client.md")
PROGRAM = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))


def test_the_program_runs(
    service: ServiceProcess, operator: Operator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It admits a machine that waits, is told why it cannot lock it, and says what the machine lacks."""
    token = tmp_path / "token"
    token.write_text(service.admin_token + "\n")
    with httpx.Client(base_url=service.url, timeout=60) as http:
        machine = Machine(SoftwareNode(1), http)
        machine.enrol()
        names: dict[str, Any] = {}
        program = PROGRAM.replace("https://attest.example", service.url).replace(
            "/etc/itl-attestation/admin-token", str(token)
        )
        assert program.count(service.url) == program.count(str(token)) == 1
        exec(compile(program, "operator-client.md", "exec"), names)
        names["operator"].close()
    said = capsys.readouterr().out
    assert f"{machine.machine_id} " in said
    assert "app-1 is registered" in said
    assert "not in this status: " in said
    assert "404 machine-unknown " in said
    assert "not decided" not in said
    assert "app-1 (" in said
    found = operator.machine(machine.machine_id)
    assert (found["status"], found["hostname"]) == ("registered", "app-1")
