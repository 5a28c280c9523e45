"""What checks on confidential hardware mean, in words that an operator understands."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.api import CheckDetail, MachineDetail, ResultDetail
from attestation.appraisal import KINDS
from attestation.client import tee_words as module
from attestation.client.tee_words import is_about_hardware, tee_words
from attestation.client.words import explain
from tests.unit.cli.stub import machine, result

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
NOW = datetime(2026, 11, 23, 4, 10, tzinfo=UTC)


def words(check: str, outcome: str, **said: str) -> tuple[str, str]:
    why, steps = tee_words([CheckDetail(check=check, outcome=outcome, **said)], "7f3ad3ac")  # type: ignore[arg-type]  # one of the words
    return " ".join(why), " ".join(steps)


@pytest.mark.parametrize(
    ("check", "outcome", "means", "step"),
    [
        (
            "snp-debug",
            "failed",
            "SEV-SNP: It is a debug guest: whoever runs the host",
            "without the debug bit",
        ),
        ("tdx-debug", "flagged", "TDX: It is a debug guest", "no secret any more"),
        ("snp-measurement", "failed", "Something else was launched", "measurement of the new one"),
        ("tdx-rtmr1", "failed", "Something else was launched", "into the policy"),
        ("tdx-tcb", "failed", "older than its policy accepts", "install newer firmware"),
        ("tdx-tcb", "flagged", "its policy accepts that", "plan the update"),
        ("snp-provisional-firmware", "failed", "can still take back", "commit the firmware"),
        ("snp-chip", "failed", "another processor", "approve-hardware 7f3ad3ac"),
        ("tdx-platform", "undecided", "No operator has decided yet", "machine get 7f3ad3ac"),
        ("snp-signing-key", "failed", "does not say which processor", "signing_key"),
        ("tdx-collateral", "undecided", "nothing is wrong with the machine", "attestation collateral status"),
        ("snp-vek", "undecided", "not at hand", "attestation collateral status"),
        ("tdx-revocation", "failed", "withdrew a certificate", "machine lock 7f3ad3ac"),
        ("tdx-replay", "failed", "event log is missing, or does not lead", "CCEL"),
        ("gpu-driver", "failed", "GPU: A GPU has another driver", "versions that are right"),
        ("snp-launch", "flagged", "names no measurement", "policy learn --machine 7f3ad3ac"),
        ("snp-test-only", "flagged", "TEST ONLY", "ITL_TEE_TEST_ANCHORS"),
    ],
)
def test_each_topic_says_what_it_means_and_what_to_do(
    check: str, outcome: str, means: str, step: str
) -> None:
    """With what the check itself says."""
    why, steps = words(check, outcome, expected="this", found="that", note="a note")
    assert means in why
    assert step in steps
    assert ("found that, expected this" in why.lower()) is (outcome == "failed")
    assert ("a note" in why.lower()) is (outcome != "failed")


def test_a_topic_is_told_once() -> None:
    """Of several checks and products, digests shortened; what passed is not told."""
    checks = [
        CheckDetail(check="tdx-mrtd", outcome="failed", expected="MRTD " + "ab" * 48, found="cd" * 48),
        CheckDetail(check="tdx-rtmr0", outcome="reported", expected=None, found=None),
        CheckDetail(check="snp-debug", outcome="passed"),
        CheckDetail(check="pcr7", outcome="failed", expected="a", found="b"),
        CheckDetail(check="tdx-notes", outcome="flagged", note="bytes behind the quote were cut off"),
        CheckDetail(check="tdx-collateral", outcome="undecided"),
    ]
    why, steps = tee_words(checks, "m")
    assert (len(why), len(steps)) == (2, 2)
    assert why[0].endswith(
        "Found cdcdcdcdcdcdcdcd…, expected MRTD abababababababab…; found nothing, expected something else."
    )
    assert "tdx-collateral" in why[1].lower()


def test_every_name_is_one_of_a_check() -> None:
    """A topic over a check that nobody makes would never be told."""
    made = {
        check.name.partition("-")[2]
        for kind in KINDS.values()
        for check in kind.checks
        if is_about_hardware(check.name)
    }
    assert {name for topic in module._TOPICS for name in topic.checks} <= made
    assert not is_about_hardware("pcr7")


def told(newest: dict[str, Any] | None = None, **changes: Any) -> str:
    detail = MachineDetail.model_validate(machine(A, **changes))
    found = explain(detail, ResultDetail.model_validate(newest) if newest else None, NOW)
    return "\n".join([found.headline, *found.why, *found.next])


def test_a_machine_is_explained() -> None:
    """With its checks on hardware; a machine without a TPM is not said to have one."""
    check = {"check": "snp-debug", "outcome": "failed", "expected": "no debug guest", "found": "one"}
    assert "whoever runs the host can read its memory" in told(result(A, checks=[check]), ek_source="sev-snp")
    pending = told(ek_source="tdx")
    assert "Its processor vouches for it and for its key" in pending
    assert "approves this processor" in pending
    assert "has never sent evidence" in pending
    assert not re.search(r"\b(TPM|quote)\b", pending.replace("TPM;", "").partition("Assurance")[0])
