"""IMA lists under the allow list of a policy: what is not listed fails, and so does a list of another boot."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from attestation.appraisal.tpm.ima import judge_ima
from attestation.evidence.ima_log import UnverifiedIMALog, parse
from attestation.reference import IMARules, parse_policy
from attestation.results import Failed, Flagged, Outcome, Passed, Reported
from attestation_testing.event_logs import boot_log
from attestation_testing.ima_logs import IMALog, ima_log

BANK = 0x000B
PCRS = boot_log().pcrs()
FILES = {"/usr/bin/agent": b"agent", "/usr/bin/sh": b"shell", "/tmp/scratch 1": b"anything"}
ALLOWED = [hashlib.sha256(FILES[path]).hexdigest() for path in ("/usr/bin/agent", "/usr/bin/sh")]
EXPECTED = "an IMA list that leads to the quoted PCR 10"


def rules(mode: str = "enforce", **members: Any) -> IMARules:
    found = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "ima",
            "version": 1,
            "bank": "sha256",
            "mode": mode,
            "pcrs": {},
            "ima": {"allow": ALLOWED, "exclude": ["/tmp/*"]} | members,
        }
    ).tpm.ima
    assert found is not None
    return found


def judged(log: IMALog, applied: IMARules | None = None, **quoted: bytes) -> list[Outcome]:
    values = {**PCRS, 10: log.pcr10()} | {int(name[3:]): value for name, value in quoted.items()}
    return judge_ima(parse(log.serialise()), applied or rules(), BANK, values)


def test_only_files_of_the_list() -> None:
    """By digest, whatever the path; paths that are excluded may hold anything."""
    assert judged(ima_log(PCRS, FILES)) == [Passed("ima", "4 measurements")]
    moved = {"/opt/agent": b"agent"}
    assert judged(ima_log(PCRS, moved)) == [Passed("ima", "2 measurements")]


def test_a_file_that_is_not_listed() -> None:
    """Its path and digest are told; of many, six and a number. Under report it is reported."""
    evil = ima_log(PCRS, {"/usr/bin/agent": b"another agent"})
    (found,) = judged(evil)
    digest = hashlib.sha256(b"another agent").hexdigest()
    assert found == Failed(
        "ima", "only files of the allow list", f"not allowed: /usr/bin/agent sha256:{digest}"
    )
    assert isinstance(judged(evil, rules("report"))[0], Reported)
    (many,) = judged(ima_log(PCRS, {f"/bin/{n}": b"%d" % n for n in range(8)}))
    assert isinstance(many, Failed)
    assert many.found.endswith("and 2 more")


def test_exclusion_is_of_whole_paths() -> None:
    """A pattern that does not match excludes nothing."""
    for path in ("/usr/tmp/x", "/tmpx", "/tm"):
        assert isinstance(judged(ima_log(PCRS, {path: b"x"}))[0], Failed), path


def test_violations() -> None:
    """A file that changed while it was measured fails unless the policy flags it; no path excuses it."""
    log = ima_log(PCRS, FILES, violations=["/tmp/scratch 1"])
    found = judged(log)
    assert [type(o) for o in found] == [Passed, Failed]
    assert (found[1].check, getattr(found[1], "found", "")) == ("ima-violations", "/tmp/scratch 1")
    assert [type(o) for o in judged(log, rules(violations="flag"))] == [Passed, Flagged]
    assert [type(o) for o in judged(log, rules("report"))] == [Passed, Reported]


@pytest.mark.parametrize("mode", ["enforce", "report"])
def test_a_list_that_does_not_lead_to_the_quote(mode: str) -> None:
    """None, none quoted, another PCR 10, another boot: nothing of it is believed."""
    kind = Failed if mode == "enforce" else Reported
    log = ima_log(PCRS, FILES)
    nothing: UnverifiedIMALog | None = None
    quoted = {**PCRS, 10: log.pcr10()}
    assert judge_ima(nothing, rules(mode), BANK, quoted) == [kind("ima", EXPECTED, "absent")]
    del quoted[10]
    assert judge_ima(parse(log.serialise()), rules(mode), BANK, quoted) == [kind("ima", EXPECTED, "absent")]
    for other in ({"pcr10": bytes(32)}, {"pcr4": bytes(32)}):
        (found,) = judged(log, rules(mode), **other)
        assert (type(found), found.check) == (kind, "ima")


def test_a_boot_aggregate_that_was_not_compared_must_be_listed() -> None:
    """Where PCR 0-9 were not quoted its digest could be of any boot."""
    log = ima_log(PCRS, {})
    found = judge_ima(parse(log.serialise()), rules(), BANK, {10: log.pcr10()})
    assert isinstance(found[0], Failed)
    assert "boot_aggregate" in found[0].found
