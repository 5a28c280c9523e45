"""Several processes, and processes that die: one CA, no serial signed twice, nothing lost (FAULTS R25)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.audit.authority import words_of
from tests.fixtures.both import new_database
from tests.fixtures.effort import often
from tests.fixtures.service import ServiceProcess
from tests.fixtures.softhsm import SoftHSM
from tests.fixtures.stores import NewDatabase

__all__ = ["new_database"]

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = often(12, 50)


def told(*arguments: str, **variables: str) -> list[dict[str, Any]]:
    """Run `tests.fixtures.ca_process` and return the lines that it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))} | variables
    done = subprocess.run(
        [sys.executable, "-m", "tests.fixtures.ca_process", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    # Shown by pytest where a test fails: why a child ended as it did.
    print(done.stderr[-8000:])
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.threat("T99")
@pytest.mark.slow
def test_four_starts_at_once_make_one_ca(tmp_path: Path) -> None:
    """Four processes on an empty folder, again and again: one CA, one key, one entry, and all of them start."""
    rounds = told("starts", str(tmp_path), str(ROUNDS), "4")
    assert len(rounds) == ROUNDS
    for each in rounds:
        assert each["ended"] == [0, 0, 0, 0]
        assert [issuer["state"] for issuer in each["issuers"]] == ["active"]
        assert len(each["keys"]) == 1
        assert [action for action, _ in each["audit"]] == ["ca_created"]


@pytest.mark.softhsm
@pytest.mark.slow
def test_four_starts_at_once_make_one_key_on_a_token(tmp_path: Path, softhsm: SoftHSM) -> None:
    """The token has no lock of its own: the lease sees to it that one process makes the key, and the others find it."""
    rounds = told(
        *("starts", str(tmp_path), "8", "4"),
        CA_KEY=f"pkcs11:token=hsm?module-name=softhsm&pin-source=file:{softhsm.pin_file}",
        CA_MODULES=f"softhsm={softhsm.module}",
    )
    for each in rounds:
        assert each["ended"] == [0, 0, 0, 0]
        assert [issuer["state"] for issuer in each["issuers"]] == ["active"]
    assert softhsm.tool("--list-objects").count("Private Key Object") == len(rounds) == 8


@pytest.mark.threat("T99")
@pytest.mark.slow
def test_eight_workers_have_one_ca(tmp_path: Path, new_database: NewDatabase) -> None:
    """The first start of the service itself, as operators run it, with an encrypted key: all workers show one."""
    (tmp_path / "passphrase").write_text("correct horse battery staple\n")
    service = ServiceProcess(
        directory=tmp_path,
        workers=8,
        environment={"ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(tmp_path / "passphrase")},
        server_url=new_database(),
    )
    service.start()
    try:
        headers = {"Authorization": f"Bearer {service.admin_token}"}
        # A connection of its own each time: the kernel chooses the worker.
        answers = [httpx.get(f"{service.url}/api/v1/ca", headers=headers, timeout=60) for _ in range(24)]
        checked = [
            httpx.get(f"{service.url}/api/v1/ca/check", headers=headers, timeout=60).json()["ok"]
            for _ in range(8)
        ]
        created = httpx.get(
            f"{service.url}/api/v1/audit", headers=headers, params={"action": "ca_created"}, timeout=60
        ).json()["items"]
    finally:
        service.kill()
    issuers = [each.json()["issuers"] for each in answers]
    # Revocation lists are made meanwhile: their number may move, forward, and nothing else.
    numbers = [shown.pop("crl_number") for (shown,) in issuers]
    assert sorted(numbers) == numbers
    assert all(each == issuers[0] for each in issuers)
    assert all(checked)
    assert len(created) == 1
    (key,) = (tmp_path / "ca").glob("itl-*.pem")
    assert b"ENCRYPTED PRIVATE KEY" in key.read_bytes()


@pytest.mark.threat("T101")
def test_a_wrong_passphrase_is_one_clear_line(tmp_path: Path) -> None:
    """The service says what is wrong and does not start; nothing of the passphrase is in its log."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
    environment |= {
        "ITL_DB_URL": f"sqlite:///{tmp_path / 'machines.db'}",
        "ITL_ENROLLMENT_CA_DIR": str(tmp_path / "ca"),
        "ITL_CONFIG_CACHE_DIR": str(tmp_path),
        "ITL_SERVICE_URL": "http://127.0.0.1:8080",
        "ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(tmp_path / "passphrase"),
    }

    def check() -> subprocess.CompletedProcess[str]:
        program = [str(Path(sys.executable).with_name("attestation-service")), "--prepare"]
        return subprocess.run(
            program, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )

    (tmp_path / "passphrase").write_text("the right one\n")
    assert check().returncode == 0
    (tmp_path / "passphrase").write_text("canary-of-a-wrong-one\n")
    refused = check()
    assert refused.returncode == 1
    output = refused.stdout + refused.stderr
    assert "canary" not in output
    (line,) = [line for line in output.splitlines() if "service.unusable" in line]
    assert "passphrase" in json.loads(line)["reason"]
    assert "Traceback" not in output


def deaths(tmp_path: Path, scenario: str) -> list[dict[str, Any]]:
    """Return what was left after each death of *scenario*; the last one lived."""
    lines = told("deaths", str(tmp_path / scenario), scenario)
    ends, left = lines[0::2], lines[1::2]
    assert [end["ended"] for end in ends[:-1]] == [-9] * (len(ends) - 1)
    assert ends[-1]["ended"] == 0
    assert len(ends) == len(left) > 1
    for each in left:
        holds(each)
    return left


def holds(left: dict[str, Any]) -> None:
    """Whatever died: what was signed is known, no serial twice, whatever nobody got is on the list."""
    assert left["health"] == "ok"
    # 1. One signed part per serial, however often somebody began again.
    parts: dict[str, set[str]] = {}
    for each in left["signed"]:
        parts.setdefault(each["serial"], set()).add(each["tbs"])
    assert all(len(found) == 1 for found in parts.values())
    leaves = Counter(each["serial"] for each in left["signed"] if each["profile"] != "ca")
    assert all(count == 1 for count in leaves.values())
    # 2. Every serial that may have been signed is in the log, and decided.
    states = {row["serial"]: row["state"] for row in left["certificates"]}
    assert leaves.keys() <= states.keys()
    assert set(states.values()) <= {"issued", "void", "revoked"}
    ended = {serial for serial, state in states.items() if state in ("void", "revoked")}
    assert ended == set(left["listed"])
    # 3. What was given up is told of.
    voided = [detail for action, detail in left["audit"] if action == "cert_voided"]
    assert len(voided) == sum(state == "void" for state in states.values())
    # 4. One active key of a kind, at most one to come, and no key without a row.
    for algorithm in {issuer["algorithm"] for issuer in left["issuers"]}:
        kind = [issuer["state"] for issuer in left["issuers"] if issuer["algorithm"] == algorithm]
        assert kind.count("active") == 1
        assert kind.count("next") + kind.count("reserved") <= 1
    assert len(left["keys"]) <= len(left["issuers"])


@pytest.mark.threat("T99")
@pytest.mark.slow
def test_a_creation_that_dies_is_finished(tmp_path: Path) -> None:
    """After every commit, key and signature of the first start of a hybrid CA: the next one finishes it."""
    left = deaths(tmp_path, "create")
    assert len(left) >= 10
    for each in left:
        assert [issuer["state"] for issuer in each["issuers"]] == ["active", "active"]
        assert len(each["keys"]) == 2
        assert [action for action, _ in each["audit"] if action == "ca_created"] == ["ca_created"] * 2
    assert any(each["before"] == ["active", "reserved"] for each in left)


@pytest.mark.threat("T100")
@pytest.mark.slow
def test_an_issuance_that_dies_loses_nothing(tmp_path: Path) -> None:
    """Three machines at once, two certificates each: both or none, and the audit knows exactly those."""
    issued: set[str] = set()
    for each in deaths(tmp_path, "issue"):
        by_machine: dict[str, list[str]] = {}
        for row in each["certificates"]:
            by_machine.setdefault(row["machine"], []).append(row["state"])
        assert all(states in (["issued", "issued"], ["void", "void"]) for states in by_machine.values())
        issued = {row["serial"] for row in each["certificates"] if row["state"] == "issued"}
        assert {words_of(detail) for action, detail in each["audit"] if action == "cert_issued"} == issued
    assert len(issued) == 6


@pytest.mark.threat("T102")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "before", "after"),
    [
        ("prepare", ["active"], ["active", "next"]),
        ("activate", ["active", "next"], ["retiring", "active"]),
        ("back", ["active", "next"], ["active", "abandoned"]),
        ("switch-back", ["retiring", "active"], ["active", "retiring"]),
        ("retire", ["retiring", "active"], ["retired", "active"]),
    ],
)
def test_a_step_of_a_rotation_that_dies_was_taken_or_not(
    tmp_path: Path, scenario: str, before: list[str], after: list[str]
) -> None:
    """Never in between: the keys are as they were, or as they should be, with both cross certificates or none."""
    left = deaths(tmp_path, scenario)
    for each in left:
        states = [issuer["state"] for issuer in each["issuers"]]
        assert states in (before, after)
        crosses = [issuer["crosses"] for issuer in each["issuers"]]
        assert crosses == ([1, 1] if {"next", "retiring"} & set(states) else [0] * len(states))
        done = [detail for action, detail in each["audit"] if action == "ca_rotate"]
        assert any(detail.startswith(scenario_step(scenario)) for detail in done) == (states == after)
    assert [issuer["state"] for issuer in left[-1]["issuers"]] == after


def scenario_step(scenario: str) -> str:
    """Return how the audit entry of the step begins."""
    return {"back": "rollback", "switch-back": "rollback"}.get(scenario, scenario) + " ("
