"""Parts of a machine in an EAR: each with a vector of its own, none better than the whole (CONFIDENTIAL.md §12.1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.appraisal import KINDS
from attestation.results import (
    Assurance,
    AttestationResult,
    Check,
    Outcome,
    Passed,
    Subject,
    TrustClaim,
    Verdict,
    conclude,
)
from attestation.results.ear import ear_claims, parse_ear
from attestation.results.submods import part_of, parts_of
from attestation.results.tpm_checks import QUOTE

AT = datetime(2026, 11, 23, tzinfo=UTC)
SNP = Check(name="snp-report", claim=TrustClaim.HARDWARE, if_failed=99, if_passed=2)
LAUNCH = Check(name="snp-measurement", claim=TrustClaim.EXECUTABLES, if_failed=33, if_passed=3)
GPU = Check(name="gpu-report", claim=TrustClaim.HARDWARE, if_failed=99, if_passed=2)
RULE = Check(name="rule", claim=TrustClaim.CONFIGURATION, if_failed=96)


def result(*outcomes: Outcome, appraised: tuple[Subject, ...] = ()) -> AttestationResult:
    return AttestationResult(
        verdict=conclude(outcomes),
        at=AT,
        policy="p@1",
        outcomes=outcomes,
        boot_state_appraised=appraised,
        pcr_digest="ab" * 32,
    )


def submods(found: AttestationResult, **more: Any) -> dict[str, Any]:
    claims = ear_claims(
        found,
        machine_id="m",
        ek_fingerprint="ab" * 48,
        assurance=Assurance.EK_CHAIN,
        nonce="A" * 44,
        issuer="https://verifier.example",
        expires_at=AT + timedelta(minutes=5),
        build="1",
        **more,
    )
    assert parse_ear(claims).status
    told: dict[str, Any] = claims["submods"]
    return told


def test_every_check_belongs_to_one_part() -> None:
    """Those of kinds to the part of their evidence."""
    parts = {"tpm": "tpm", "gpu": "gpu0"}
    for name, kind in KINDS.items():
        for check in kind.checks:
            assert part_of(check.name) == parts.get(name, "cpu0"), check.name
    assert {part_of(name) for name in ("policy", "assurance", "evidence", "rule", "guest-name")} == {None}


def test_each_part_has_its_own_claims() -> None:
    """And only them; what speaks of the machine counts in each."""
    appraised = (Subject.FIRMWARE, Subject.LAUNCH)
    found = result(
        QUOTE.passed(), SNP.passed(), LAUNCH.passed(), GPU.passed(), RULE.passed("a"), appraised=appraised
    )
    told = submods(found)
    assert list(told) == ["tpm", "cpu0", "gpu0"]
    vectors = {part: each["ear_trustworthiness_vector"] for part, each in told.items()}
    assert vectors == {
        "tpm": {"instance-identity": 2, "hardware": 2},
        "cpu0": {"executables": 3, "hardware": 2},
        "gpu0": {"hardware": 2},
    }
    boots = {part: each["ear_verifier_claims"]["boot_state_appraised"] for part, each in told.items()}
    assert boots == {"tpm": ["firmware"], "cpu0": ["launch"], "gpu0": []}
    assert "ek_fingerprint" in told["tpm"]["ear_attester_claims"]
    assert told["cpu0"]["ear_attester_claims"].keys() == {"ueid"}
    assert {each["ear_status"] for each in told.values()} == {"affirming"}


@pytest.mark.parametrize("failing", ["tpm", "cpu0", "gpu0", "rule"])
def test_no_part_is_better_than_the_whole(failing: str) -> None:
    """Whoever reads one of them is not misled."""
    checks = {"tpm": QUOTE, "cpu0": SNP, "gpu0": GPU, "rule": RULE}
    outcomes = [c.failed("a", "b") if name == failing else c.passed() for name, c in checks.items()]
    told = submods(result(*outcomes))
    assert {each["ear_status"] for each in told.values()} == {"contraindicated"}
    assert {each["ear_verifier_claims"]["verdict"] for each in told.values()} == {"Failed"}


def test_a_machine_without_a_tpm() -> None:
    """Has no such part; the vendor's chain of a TPM says nothing of a processor."""
    told = submods(result(LAUNCH.passed()))
    assert list(told) == ["cpu0"]
    assert told["cpu0"]["ear_trustworthiness_vector"] == {"executables": 3}


def test_where_nothing_was_seen() -> None:
    """It is the TPM's part that says so."""
    found = result(Passed("policy"))
    assert list(parts_of(found)) == ["tpm"]
    assert found.verdict is Verdict.VERIFIED


def test_operators_are_told_the_code() -> None:
    """Of a check that did not pass, where it has one."""
    found = result(SNP.failed("a", "b"), GPU.passed(), LAUNCH.failed("a", "b"))
    told = submods(found, tell_checks=True, codes={"snp-report": "report-invalid", "gpu-report": "x"})
    assert told["cpu0"]["ear_verifier_claims"]["checks"] == [
        {"code": "snp-report", "outcome": "failed", "reason": "report-invalid"},
        {"code": "snp-measurement", "outcome": "failed"},
    ]
    assert told["gpu0"]["ear_verifier_claims"]["checks"] == [{"code": "gpu-report", "outcome": "passed"}]


def test_whether_a_guest_can_be_debugged() -> None:
    """It says so of itself; where nothing was seen of it, and of a TPM, nothing is said."""
    for kind in ("sev_snp", "tdx", "sgx"):
        checks = {check.name.partition("-")[2]: check for check in KINDS[kind].checks}
        memory, debug = checks["memory"], checks["debug"]
        for told, status in (
            ([memory.passed()], "disabled-since-boot"),
            ([debug.flagged("accepted")], "enabled"),
            ([memory.failed("no", "yes"), debug.failed("no", "yes")], "enabled"),
            ([debug.told("no", "yes", report=True), memory.told("no", "yes", report=True)], "enabled"),
            ([], None),
        ):
            found = submods(result(SNP.passed(), QUOTE.passed(), *told))
            assert found["cpu0"]["ear_attester_claims"].get("dbgstat") == status
            assert "dbgstat" not in found["tpm"]["ear_attester_claims"]
