"""`attestation console`: what is shown before one agrees, and that nobody agrees unasked."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import NOW, Stub, problem

MACHINE = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"


def shown(**changed: Any) -> dict[str, Any]:
    """Return a ConsoleCodeShown as JSON."""
    return {
        "code": "WDJB-MJHT",
        "state": "pending",
        "client_id": "talos",
        "hw_uuid": "40dcbd19",
        "hw_mac": "52:2f:fd:df:fc:c0",
        "hw_serial": "0OCZ\x1b[2J",
        "source_ip": "192.0.2.7",
        "asked_at": NOW,
        "expires_at": NOW,
        "machines": [MACHINE],
        "other_codes": ["BBBB-CCCC"],
    } | changed


class Consoles(Stub):
    """A service with one code."""

    def __init__(self, **changed: Any) -> None:
        super().__init__()
        self.code = shown(**changed)
        self.done: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer *request*."""
        if request.url.path == "/api/v1/console-codes":
            listed = {k: v for k, v in self.code.items() if k not in ("machines", "other_codes")}
            return httpx.Response(200, json={"items": [listed]})
        if "/console-codes/WDJB-MJHT" not in request.url.path:
            return problem(404, "console-code-unknown", "no console shows this code")
        if request.method == "POST":
            self.done.append(request.url.path.rpartition("/")[2])
            self.code |= {"state": "approved" if self.done == ["approve"] else "denied", "decided_by": "anna"}
        return httpx.Response(200, json=self.code)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(service: Stub, *arguments: str, answer: str | None = None) -> Result:
    """Run the command."""
    return CliRunner().invoke(
        cli, ["console", *arguments], obj=Session(carrier=service.carrier), input=answer
    )


@pytest.mark.parametrize(("answer", "acts"), [("y\n", ["approve"]), ("n\n", []), (None, [])])
def test_who_approves_has_read_what_the_machine_says(
    monkeypatch: pytest.MonkeyPatch, answer: str | None, acts: list[str]
) -> None:
    """UUID, MAC, serial number, address, and who says the same, clean; then the question, and no is no."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: answer is not None)
    service = Consoles()
    result = run(service, "approve", "wdjb mjht", answer=answer)
    assert service.done == acts
    if answer is not None:
        for part in ("40dcbd19", "52:2f:fd:df:fc:c0", "192.0.2.7", MACHINE, "BBBB-CCCC", "WDJB-MJHT?"):
            assert part in result.output
        assert "\x1b[2J" not in result.output
    assert (result.exit_code == 0) == bool(acts)


@pytest.mark.parametrize("act", ["approve", "deny"])
def test_a_script_says_yes(act: str) -> None:
    """And gets the code as the service has it now."""
    service = Consoles()
    result = run(service, act, "WDJB-MJHT", "--yes", "-o", "json")
    assert (result.exit_code, service.done) == (0, [act])
    assert json.loads(result.stdout)["decided_by"] == "anna"


@pytest.mark.parametrize(("state", "exit_code"), [("approved", 5), ("denied", 5), ("expired", 3)])
def test_nobody_is_asked_about_a_code_that_is_over(state: str, exit_code: int) -> None:
    """The answer is what it is."""
    service = Consoles(state=state, decided_by="anna")
    assert run(service, "approve", "WDJB-MJHT", "--yes").exit_code == exit_code
    assert service.done == []


def test_an_unknown_code() -> None:
    """Exits as any name that does not exist; the list shows those that do."""
    assert run(Consoles(), "deny", "BBBB-BBBB", "--yes").exit_code == 3
    assert "WDJB-MJHT" in run(Consoles(), "list").output
