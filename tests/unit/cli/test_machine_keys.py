"""`machine ak-activate`: where the keys stand, and what to do in each case."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import NOW, Stub, audit_entry, machine, problem

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
EK, OTHER, AK, OLD = "ab" * 48, "cd" * 48, "000b" + "11" * 32, "000b" + "22" * 32


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def keys(**changes: Any) -> dict[str, Any]:
    """Return a KeysDetail as JSON."""
    return {
        "machine_id": A,
        "ek_fingerprint": EK,
        "ek_template": "H-2",
        "ek_alternatives": [],
        "ak_name": AK,
        "ak_activated_at": NOW,
        "earlier": [],
        "activations": [],
        **changes,
    }


def run(found: dict[str, Any], *words: str, audit: list[dict[str, Any]] | None = None, **more: Any) -> Result:
    def before(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, json=found) if request.url.path.endswith("/keys") else None

    stub = Stub(machines=[machine(A, hostname="cp-1", **more)], audit=audit or [], before=before)
    return CliRunner().invoke(
        cli, ["machine", "ak-activate", "cp-1", *words], obj=Session(carrier=stub.carrier)
    )


def denied(**changes: Any) -> dict[str, Any]:
    """Return a refusal because of another key, after the one that counts was activated."""
    known = {
        "timestamp": "2026-11-21T05:00:00.000000Z",
        "action": "denied",
        "detail": "introduce: ak-conflict",
        "source_ip": "10.0.0.7",
    }
    return audit_entry(9) | known | changes


NONE = {"ak_name": None, "ak_activated_at": None}
BEFORE = [{"ak_name": OLD, "machine_id": A, "bound_at": NOW}]
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], int, str]] = {
    "proven": (keys(), [], 0, "Nothing: its attestation key is proven."),
    "conflict": (keys(), [denied()], 0, "`attestation machine ak-reset 7f3ad3ac --reason WHY`"),
    "settled": (keys(), [denied(timestamp="2026-11-21T03:00:00.000000Z")], 0, "Nothing:"),
    "elsewhere": (keys(), [denied(source_ip="10.9.9.9"), denied(detail="introduce: x")], 0, "Nothing:"),
    "never": (keys(**NONE), [], 1, "Start the agent on the machine"),
    "reset": (keys(**NONE, earlier=BEFORE), [], 1, "Its key was reset"),
    "awaited": (
        keys(**NONE, activations=[{"issued_at": NOW, "expires_at": NOW}]),
        [],
        1,
        "somebody asked",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_says_what_to_do(case: str) -> None:
    """Exit code 0 only where a key is activated."""
    found, audit, code, words = CASES[case]
    done = run(found, audit=audit)
    assert done.exit_code == code, done.output
    assert words in " ".join(done.stdout.split())
    program = json.loads(run(found, "-o", "json", audit=audit).stdout)
    assert words in " ".join(program["what_to_do"])


def test_everything_is_shown() -> None:
    """Names and times of each key, further EKs, what was refused, an alarm."""
    found = keys(earlier=BEFORE, ek_alternatives=[OTHER])
    shown = run(found, audit=[denied()], alarm="somebody else brought its key").stdout
    for words in (
        EK,
        OTHER,
        AK[:40],
        OLD[:40],
        "10.0.0.7: introduce: ak-conflict",
        "somebody else brought its key",
    ):
        assert words in shown
    assert "--action alarm" in shown
    wide = run(found, "-o", "wide").stdout
    assert f"{AK} {NOW}" in wide
    assert f"{OLD} {NOW}" in wide


def test_who_may_not_read_the_log_sees_the_rest() -> None:
    """A viewer's right to machines is enough."""

    def before(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/keys"):
            return httpx.Response(200, json=keys())
        if request.url.path.endswith("/audit"):
            return problem(403, "forbidden", "no")
        return None

    stub = Stub(machines=[machine(A)], before=before)
    done = CliRunner().invoke(cli, ["machine", "ak-activate", A], obj=Session(carrier=stub.carrier))
    assert done.exit_code == 0, done.output
    assert AK[:40] in done.stdout


def test_who_vouches_for_the_key_is_shown() -> None:
    """Whose word it is; or that it counts no more, and why."""
    word = {
        "subject": "attestation key",
        "issuer": "Common Name: Provider",
        "sha256": "ab" * 32,
        "ok": True,
        "reason": "chains to Provider Root",
        "anchor_sha256": "cd" * 32,
        "judged_at": NOW,
    }
    assert (
        "by Common Name: Provider: chains to Provider Root"
        in run(keys(ak_certificate=word), "-o", "csv").stdout
    )
    gone = {**word, "ok": False, "reason": "no issuer is known"}
    assert "by nobody: no issuer is known" in run(keys(ak_certificate=gone), "-o", "csv").stdout
    assert "vouched" not in run(keys()).stdout
