"""`attestation bundle verify`: an auditor's own verdict, offline, however long ago it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from tests.unit.audit.log_kit import LOG_VKEYS, WITNESS_VKEYS
from tests.unit.cli.test_result import SIGNER as OTHER_SIGNER
from tests.unit.sealing.seal_kit import (
    EVENT,
    EVIDENCE,
    KEY,
    POLICY,
    RESULT,
    SIGNER,
    sealed,
    sealed_as,
    statement,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a good bundle."""
    path = tmp_path / "bundle.intoto.jsonl"
    path.write_bytes(sealed())
    return path


@pytest.fixture
def pinned(tmp_path: Path) -> tuple[str, ...]:
    """Return the option that pins the log."""
    path = tmp_path / "log.vkeys"
    path.write_text("# the log\n" + "".join(f"{key}\n" for key in LOG_VKEYS))
    return ("--vkeys-file", str(path))


def run(file: Path, *arguments: str) -> Result:
    """Verify *file*, without anything that could answer."""
    return CliRunner().invoke(cli, ["bundle", "verify", str(file), *arguments])


def test_it_says_what_was_measured_when_and_by_whom(file: Path, pinned: tuple[str, ...]) -> None:
    """In words for people, under the log's keys alone; whose key it is, they are told too."""
    done = run(file, *pinned)
    assert done.exit_code == 0, done.output
    for words in (
        "VALID",
        "VERIFIED",
        "AttestationVerified",
        "cp-1",
        "prod-1",
        RESULT["machineID"],
        RESULT["policyID"],
        "ab" * 32,
        "application/vnd.itl.tpm-quote",
        "2026-11-21",
        "system:serviceaccount:attestation:controller",
        "itl-attestation-service at https://attest.example",
        "log.example/attestation, entry 5",
        "Ed25519 and ML-DSA-44",
        "not pinned",
    ):
        assert words in done.output, words


def test_programs_get_all_of_it(file: Path, pinned: tuple[str, ...], tmp_path: Path) -> None:
    """As JSON; the service's key may be pinned too."""
    keys = tmp_path / "service.jwks"
    keys.write_text(json.dumps(SIGNER.jwks()))
    done = run(file, *pinned, "--keys", str(keys), "-o", "json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert (said["valid"], said["key_id"], said["key_is_pinned"]) == (True, KEY.key_id, True)
    assert (said["event"]["spec"], said["result"]["spec"]) == (EVENT, RESULT)
    assert said["policy"] == json.loads(POLICY)
    assert [each["size"] for each in said["evidence"]] == [len(data) for _, data in EVIDENCE]
    assert (said["entry_id"], said["signed_at"]) == (5, "2026-11-21T04:00:00.000000Z")


def test_what_proves_nothing_ends_with_one(file: Path, pinned: tuple[str, ...], tmp_path: Path) -> None:
    """Changed, cut off, of another log, by another key: no, and why."""
    data = file.read_bytes()
    changed = data.replace(b'"name":"evidence/1"', b'"name":"evidence/2"')
    assert changed != data
    other = tmp_path / "other.jwks"
    other.write_text(json.dumps(OTHER_SIGNER.jwks()))
    witness = tmp_path / "witness.vkeys"
    witness.write_text(f"{WITNESS_VKEYS[0]}\n")
    assert run(file, *pinned, "--keys", str(other)).exit_code == 1
    assert run(file, "--vkeys-file", str(witness)).exit_code == 1
    for broken in (changed, data[:-1], data[: len(data) // 2], b"", b"{}\n" * 4):
        file.write_bytes(broken)
        done = run(file, *pinned)
        assert (done.exit_code, "VALID" in done.output) == (1, False), done.output


def test_a_verdict_that_is_bad_is_proven_as_well(file: Path, pinned: tuple[str, ...]) -> None:
    """The bundle is what is verified: that a node failed is good evidence of it."""
    checks = [{"id": "pcr4", "outcome": "fail"}]
    file.write_bytes(sealed_as(statement(result={**RESULT, "verdict": "failed", "checks": checks})))
    done = run(file, *pinned)
    assert (done.exit_code, "FAILED" in done.output, "pcr4 fail" in done.output) == (0, True, True)


def test_without_keys_nothing_is_believed(file: Path, tmp_path: Path, pinned: tuple[str, ...]) -> None:
    """There is no way to take the file's own word; what is no key set is said to be none."""
    done = run(file)
    assert (done.exit_code, "--vkeys-file" in done.output) == (2, True)
    (tmp_path / "x").write_text("[]")
    assert run(file, *pinned, "--keys", str(tmp_path / "x")).exit_code == 2


def test_what_was_sealed_is_written_byte_for_byte(
    file: Path, pinned: tuple[str, ...], tmp_path: Path
) -> None:
    """For tools of others; nothing is overwritten, and nothing is written of what proves nothing."""
    folder = tmp_path / "out"
    assert run(file, *pinned, "--extract", str(folder)).exit_code == 0
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == {
        "event.json": statement().subjects[0].content,
        "result.json": statement().subjects[1].content,
        "policy.json": POLICY,
        "evidence-1": EVIDENCE[0][1],
        "evidence-2": EVIDENCE[1][1],
    }
    assert run(file, *pinned, "--extract", str(folder)).exit_code == 5
    file.write_bytes(sealed()[:-1])
    assert run(file, *pinned, "--extract", str(tmp_path / "none")).exit_code == 1
    assert not (tmp_path / "none").exists()
