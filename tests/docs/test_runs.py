"""docs/protocol/runs.md names the code of each check as results do."""

from __future__ import annotations

import re
from typing import get_args

from attestation.appraisal.appraise import EVIDENCE
from attestation.appraisal.assurance import ASSURANCE, GUEST
from attestation.appraisal.ruled import RULE
from attestation.results import Check, tpm_checks
from attestation.runs import CheckSource
from attestation_service.runs.codes import CODES, MACHINE
from tests.docs.pages import text


def test_each_check_stands_beside_its_code() -> None:
    """Those of TPMs and those of every run; which code a refused quote has, the refusal says."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", text("docs/protocol/runs.md"), flags=re.MULTILINE)
    told = {check: code for code, checks in rows for check in re.findall(r"`([a-z0-9-]+)`", checks)}
    told |= {f"pcr{i}": told["pcr0"] for i in range(24)}
    told[tpm_checks.QUOTE.name] = "signature-invalid"
    named: tuple[Check, ...] = (*tpm_checks.ALL, EVIDENCE, ASSURANCE, GUEST, RULE, MACHINE)
    assert {each.name for each in named} - told.keys() == {"reboot"}
    assert {each.name: CODES[each.name] for each in named if each.name in told} == {
        name: code for name, code in told.items() if name in {each.name for each in named}
    }


def test_each_source_is_explained() -> None:
    """What a check compares with, word by word."""
    _, _, section = text("docs/protocol/runs.md").partition("### Sources")
    assert tuple(re.findall(r"^\| `([a-z]+)` \|", section, flags=re.MULTILINE)) == get_args(CheckSource)
