"""`attestation machine import`: what is no receipt is refused before any is sent, and each is told of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.cli.stub import Stub, problem
from tests.unit.cli.test_cli import run

EK = "ab" * 48


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def receipt(folder: Path, name: str, **members: Any) -> str:
    """Write a receipt."""
    file = folder / name
    file.write_text(json.dumps({"ek_fingerprint": EK, "install_mode": "offline", **members}))
    return str(file)


def service() -> Stub:
    """Return a service that expects whom it is told of, but for one EK."""

    def answer(request: httpx.Request) -> httpx.Response | None:
        if not request.url.path.endswith("/machines/import"):
            return None
        sent = json.loads(request.content)
        if sent["ek_fingerprint"] != EK:
            return problem(409, "ek-conflict", "another one was faster")
        return httpx.Response(
            200,
            json={
                "result": "would-add" if sent["dry_run"] else "known",
                "machine_id": None if sent["dry_run"] else "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
                "ek_fingerprint": EK,
                "status": "pending_approval",
                "role": None,
                "admitted_in_advance": False,
                "differs": ["hw_serial"],
                "message": "known already",
            },
        )

    found = Stub()
    found.before = answer
    return found


def test_each_receipt_is_imported_by_itself(tmp_path: Path) -> None:
    """What one is refused for is told, and stops no other; exit code 1."""
    files = [receipt(tmp_path, "a.json", ek_fingerprint="cd" * 48), receipt(tmp_path, "b.json")]
    done = run(service(), "machine", "import", *files, "-o", "json")
    assert done.exit_code == 1
    assert [(row["file"], row["result"]) for row in json.loads(done.stdout)] == [
        (files[0], "failed"),
        (files[1], "known"),
    ]
    shown = run(service(), "machine", "import", files[1])
    assert (shown.exit_code, "otherwise: hw_serial" in " ".join(shown.stdout.split())) == (0, True)


def test_a_dry_run_says_so_to_the_service(tmp_path: Path) -> None:
    """The file cannot."""
    stub = service()
    assert run(stub, "machine", "import", receipt(tmp_path, "a.json"), "--dry-run").exit_code == 0
    assert [json.loads(each.content)["dry_run"] for each in stub.requests] == [True]
    assert run(stub, "machine", "import", receipt(tmp_path, "b.json", dry_run=False)).exit_code == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"ek_fingerprint": "ab"}', f'{{"ek_fingerprint": "{EK}", "a": 1}}', " " * 20_000]
)
def test_what_is_no_receipt_is_refused_before_any_is_sent(tmp_path: Path, text: str) -> None:
    """All files are read first, and the one that is wrong is named."""
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    stub = service()
    done = run(stub, "machine", "import", receipt(tmp_path, "good.json"), str(bad))
    assert (done.exit_code, stub.requests) == (2, [])
    assert "bad.json" in done.stderr
