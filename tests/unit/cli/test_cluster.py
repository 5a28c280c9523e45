"""`attestation cluster`: what is sent, and what is told of an answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation.machines import Role, Status
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import NOW, Stub


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def a_cluster(**changes: Any) -> dict[str, Any]:
    """Return a cluster as the service shows it."""
    return {
        "cluster_id": "prod",
        "declared": True,
        "description": "Racks",
        "talos_version": "v1.13.9",
        "talos_version_declared": True,
        "machines": 2,
        "created_at": NOW,
        "created_by": "anna",
        "by_status": {each.value: 2 if each is Status.ATTESTED else 0 for each in Status},
        "by_role": {each.value: 1 if each is Role.LINUX else 0 for each in Role},
        "without_role": 1,
        "policies": [{"scope": "cluster", "subject": "prod", "policy": "workers@1"}],
        "configurations": [
            {"role": "linux", "source": "none", "version": None},
            {"role": "worker-app", "source": "version", "version": 3},
        ],
        "changed_at": NOW,
        "changed_by": "anna",
    } | changes


def run(answer: dict[str, Any], *args: str) -> tuple[Result, list[Any]]:
    """Type a command at a service that answers so."""
    stub = Stub(before=lambda _: httpx.Response(200, json=answer))
    sent: list[Any] = []

    def before(request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        sent.append((request.method, path, json.loads(request.content) if request.content else None))
        return httpx.Response(200, json=answer)

    stub.before = before
    done = CliRunner().invoke(cli, list(args), obj=Session(carrier=stub.carrier), catch_exceptions=False)
    return done, sent


def test_what_is_said_is_sent_and_nothing_else() -> None:
    """A version in its one spelling; what is left out is not sent; nothing at all, or no version, is refused here."""
    made, sent = run(a_cluster(), "cluster", "create", "prod", "--talos-version", "1.13.9")
    assert (made.exit_code, sent) == (
        0,
        [("POST", "/clusters", {"cluster_id": "prod", "talos_version": "v1.13.9"})],
    )
    _, sent = run(a_cluster(), "cluster", "set", "prod", "--talos-version", "default", "--description", "")
    assert sent == [("POST", "/clusters/prod", {"talos_version": "default", "description": ""})]
    for wrong in (["set", "prod"], ["set", "prod", "--talos-version", "new"], ["create", "Prod"]):
        done, sent = run(a_cluster(), "cluster", *wrong)
        assert (done.exit_code, sent) == (2, [])


def test_a_cluster_is_shown_in_words() -> None:
    """Who is in it, what they meet; a version that nobody declared stands in brackets."""
    shown = run(a_cluster(), "cluster", "show", "prod")[0].stdout
    for words in ("2 attested", "1 linux, 1 without one", "workers@1 (cluster prod)", "worker-app version 3"):
        assert words in shown
    only = ("by_status", "by_role", "without_role", "policies", "configurations", "changed_at", "changed_by")
    summary = a_cluster(talos_version_declared=False, declared=False)
    listed = {"items": [{name: summary[name] for name in summary if name not in only}], "next_cursor": None}
    assert "prod     no        (v1.13.9)" in run(listed, "cluster", "list")[0].stdout
