"""Policies over boots of real firmware (tests/vectors/eventlog/ovmf): learned, kept, and broken by each change."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from attestation.appraisal.tpm.boot import judge_log
from attestation.appraisal.tpm.ima import judge_ima
from attestation.appraisal.tpm.learn import Capture, learn
from attestation.evidence import event_log, ima_log
from attestation.reference import Policy, parse_policy
from attestation.results import Failed, Passed, Undecided
from tests.vectors.eventlog.ovmf import by_name

BANK = 0x000B


@cache
def capture(name: str) -> Capture:
    boot = by_name[name]
    replayed = event_log.replay(event_log.parse(boot.log), BANK)
    return Capture(machine_id=name, values=boot.quoted("sha256"), replayed=replayed)


@cache
def learned(boot: str) -> Policy:
    return parse_policy(learn([capture(boot)], name="learned").document)


def failing(policy: Policy, boot: str) -> set[str]:
    one = capture(boot)
    outcomes = [
        *judge_log(one.replayed, policy, one.values, requested=True)[0],
        *policy.tpm.judge(one.values),
    ]
    return {o.check for o in outcomes if isinstance(o, Failed | Undecided)}


@pytest.mark.parametrize("boot", ["sb-on", "sb-off", "uki"])
def test_what_was_learned_from_a_boot_holds_for_it(boot: str) -> None:
    """Every rule, also that over Secure Boot and the chain."""
    assert learned(boot).tpm.log_pcrs
    assert failing(learned(boot), boot) == set()


@pytest.mark.parametrize(
    ("boot", "checks"),
    [
        ("sb-on-again", set()),
        ("sb-on-kernel", {"pcr4", "pcr9", "boot-kernels"}),
        ("sb-on-cmdline", {"pcr8", "pcr9", "command-lines"}),
        ("sb-on-initrd", {"pcr9", "boot-initrds"}),
        ("sb-on-dbx", set()),
        ("sb-on-mok", {"pcr14", "secure-boot-authorities"}),
        ("sb-off", {"secure-boot"}),
        ("uki", {"pcr4", "secure-boot-db"}),
    ],
)
def test_a_changed_boot_fails_where_it_changed(boot: str, checks: set[str]) -> None:
    """Under a policy learned from the reference boot."""
    found = failing(learned("sb-on"), boot)
    assert found >= checks
    assert bool(found) == bool(checks)


def test_a_changed_unified_kernel_image() -> None:
    """PCR 4 and 11, and nothing of Secure Boot: it was signed with the same key."""
    found = failing(learned("uki"), "uki-kernel")
    assert found >= {"pcr4", "pcr11"}
    assert not any(check.startswith("secure-boot") for check in found)


def test_a_learned_dbx_is_a_minimum() -> None:
    """A machine with more revocations keeps the rule that was learned from one with fewer, not the other way round."""
    newer: Any = learn([capture("sb-on-dbx")], name="x").document["secure_boot"]
    older: Any = learn([capture("sb-on")], name="x").document["secure_boot"]
    assert newer["dbx_min"] != older["dbx_min"]
    assert "secure-boot-dbx" in failing(learned("sb-on-dbx"), "sb-on")


def test_a_real_measurement_list() -> None:
    """What the kernel measured, allowed by its digests; one digest less, and it is named."""
    one = capture("sb-on-ima")
    log = ima_log.parse(by_name["sb-on-ima"].ima)
    digests = sorted(
        {r.entry.digest for r in log.records if r.entry.digest and r.entry.algorithm == "sha256"}
    )
    document = {
        "format": "itl-tpm-policy/1",
        "name": "ima",
        "version": 1,
        "bank": "sha256",
        "pcrs": {},
        "ima": {"allow": digests},
    }
    rules = parse_policy(document).tpm.ima
    assert rules is not None
    assert isinstance(judge_ima(log, rules, BANK, one.values)[0], Passed)
    fewer = parse_policy({**document, "ima": {"allow": digests[1:]}}).tpm.ima
    assert fewer is not None
    assert isinstance(judge_ima(log, fewer, BANK, one.values)[0], Failed)
