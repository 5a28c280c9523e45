"""Stored evidence under another policy: what is there is judged, what nobody asked for is undecided."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from attestation.appraisal.again import judge_again
from attestation.appraisal.tpm import TPM
from attestation.appraisal.tpm.again import Stored, judge_stored_list, judge_stored_log
from attestation.evidence import event_log
from attestation.evidence.ima_log import parse
from attestation.machines import Role
from attestation.reference import IDENTITY_ONLY, Policy, parse_policy
from attestation.results import Assurance, Failed, Flagged, Outcome, Passed, Reported, Undecided
from attestation.results.tpm_checks import FIRMWARE_BLOCKLIST
from attestation.tpm import Alg
from attestation_testing.event_logs import BootOptions, boot_log
from attestation_testing.ima_logs import ima_log

GOOD = bytes([1]) * 32


def a_policy(**members: Any) -> Policy:
    """Return a policy that compares PCR 7, unless told otherwise."""
    document: dict[str, Any] = {
        "format": "itl-tpm-policy/1",
        "name": "p",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [GOOD.hex()]}},
    }
    return parse_policy(document | members)


def a_case(**changes: Any) -> Stored:
    """Return what is stored of a machine that holds under `a_policy()`."""
    known = Stored(
        bank=Alg.SHA256,
        values={7: GOOD},
        log_outcomes=None,
        list_outcomes=None,
        ek_vendor=None,
        firmware_version=None,
        clock_safe=None,
        ek_key_attested=False,
        advisories=(),
    )
    return known._replace(**changes)


def told(
    case: Stored, policy: Policy, assurance: Assurance = Assurance.TOFU, role: Role = Role.WORKER_APP
) -> dict[str, type[Outcome]]:
    """Return the kind of every outcome."""
    return {
        outcome.check: type(outcome) for outcome in judge_again({TPM.name: case}, assurance, role, policy)
    }


@pytest.mark.threat("T72")
@pytest.mark.parametrize(
    ("case", "policy", "expected"),
    [
        ({}, {}, {"assurance": Passed, "pcr7": Passed}),
        ({"values": {7: bytes(32)}}, {}, {"assurance": Passed, "pcr7": Failed}),
        ({"values": {7: bytes(32)}}, {"mode": "report"}, {"assurance": Passed, "pcr7": Reported}),
        ({"values": {}}, {}, {"assurance": Passed, "pcr7": Undecided}),
        ({"bank": None, "values": {}}, {}, {"assurance": Passed, "pcrs": Undecided}),
        ({"bank": Alg.SHA384}, {}, {"assurance": Passed, "pcrs": Undecided}),
        (
            {},
            {"pcrs": {"7": {"any_of": [GOOD.hex()]}, "1": {"ignore": "serial numbers"}}},
            {"assurance": Passed, "pcr7": Passed, "pcr1": Flagged},
        ),
    ],
    ids=str,
)
def test_values(case: dict[str, Any], policy: dict[str, Any], expected: dict[str, type[Outcome]]) -> None:
    """Compared where they were quoted; an ignored PCR needs no value."""
    assert told(a_case(**case), a_policy(**policy)) == expected


def test_nothing_is_asked_of_the_boot_state() -> None:
    """The shipped policy judges who vouches for the machine, and no PCR."""
    assert told(a_case(bank=None), IDENTITY_ONLY) == {"assurance": Passed}


def test_the_minimum_of_a_role() -> None:
    """A control plane needs more than a worker, and a policy may demand more of anybody, or only report it."""
    assert told(a_case(), a_policy(), role=Role.CONTROLPLANE)["assurance"] is Failed
    stricter = a_policy(assurance={"minimum": "ek-chain"})
    assert told(a_case(), stricter)["assurance"] is Failed
    assert told(a_case(), stricter, Assurance.EK_CHAIN)["assurance"] is Passed
    reporting = judge_again(
        {TPM.name: a_case()}, Assurance.TOFU, None, a_policy(assurance={"minimum": "ek-chain"}, mode="report")
    )
    assert [type(o) for o in reporting if o.check == "assurance"] == [Passed, Reported]


def test_firmware() -> None:
    """Advisories count without a rule; a rule may ask for a minimum, and for more of the advisories."""
    blocked = FIRMWARE_BLOCKLIST.failed("none", "CVE-2017-15361")
    assert told(a_case(advisories=[blocked]), a_policy())[FIRMWARE_BLOCKLIST.name] is Failed
    lenient = a_policy(firmware={"on_blocklist": "warn"})
    assert told(a_case(advisories=[blocked]), lenient)[FIRMWARE_BLOCKLIST.name] is Flagged
    minimum = a_policy(firmware={"min": {"IFX": "7.63"}})
    for version, expected in ((0x0007_003F_0000_0000, Passed), (0x0007_003E_0000_0000, Failed)):
        case = a_case(ek_vendor="IFX", firmware_version=version)
        assert told(case, minimum)["firmware-minimum"] is expected


def test_the_second_protocol() -> None:
    """Whoever never did it was perhaps never asked."""
    policy = a_policy(ek_key_attestation="required")
    assert told(a_case(ek_key_attested=True), policy)["ek-key-attestation"] is Passed
    assert told(a_case(), policy)["ek-key-attestation"] is Undecided


@pytest.mark.parametrize(
    ("safe", "mode", "expected"),
    [
        (False, "enforce", Failed),
        (False, "report", Reported),
        (True, "enforce", None),
        (None, "enforce", None),
    ],
)
def test_the_clock(safe: bool | None, mode: str, expected: type[Outcome] | None) -> None:
    """Only where the policy asks for a safe one."""
    policy = a_policy(clock={"safe": "required"}, mode=mode)
    assert told(a_case(clock_safe=safe), policy).get("clock-safe") is expected
    assert "clock-safe" not in told(a_case(clock_safe=False), a_policy())


def test_the_event_log() -> None:
    """Judged where it is kept and its PCRs were quoted; undecided where either is missing."""
    policy = a_policy(pcrs={}, secure_boot={"required": True})
    log = boot_log(BootOptions())
    values = log.pcrs()
    replayed = event_log.replay(event_log.parse(log.serialise()), Alg.SHA256)
    good = a_case(values=values, log_outcomes=judge_stored_log(replayed, policy, values))
    assert told(good, policy)["secure-boot"] is Passed
    assert told(good._replace(log_outcomes=None), policy) == {"assurance": Passed, "event-log": Undecided}
    assert told(good._replace(values={4: GOOD}), policy) == {"assurance": Passed, "event-log": Undecided}
    edited = judge_stored_log(replayed, policy, values | {7: bytes(32)})
    assert {o.check: type(o) for o in edited} == {"event-log": Failed, "secure-boot": Failed}


def test_measurement_lists() -> None:
    """Judged where one is kept and PCR 10 was quoted; undecided where either is missing."""
    log = ima_log(boot_log().pcrs(), {"/usr/bin/agent": b"agent"})
    quoted = boot_log().pcrs() | {10: log.pcr10()}
    allowed = a_policy(pcrs={}, ima={"allow": [hashlib.sha256(b"agent").hexdigest()]})
    other = a_policy(pcrs={}, ima={"allow": ["ab" * 32]})
    for policy, expected in ((allowed, Passed), (other, Failed)):
        outcomes = judge_stored_list(parse(log.serialise()), policy, quoted)
        assert told(a_case(values=quoted, list_outcomes=outcomes), policy)["ima"] is expected
        assert told(a_case(values=quoted), policy)["ima"] is Undecided
        assert told(a_case(list_outcomes=outcomes), policy)["ima"] is Undecided
