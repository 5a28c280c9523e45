"""Judging stored evidence of a TPM under a policy that was not in force when it came.

What a rule needs and nobody asked for then, because another policy was in force, is undecided: it says nothing about
the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from attestation.appraisal.tpm.boot import judge_log
from attestation.appraisal.tpm.identity import judge_advisories, judge_firmware_minimum, unsafe_clock
from attestation.appraisal.tpm.ima import judge_ima
from attestation.evidence import ima_log
from attestation.evidence.event_log import ReplayedLog
from attestation.evidence.ima_log import UnverifiedIMALog
from attestation.reference import Policy
from attestation.results import Outcome
from attestation.results.tpm_checks import EK_KEY, EVENT_LOG, IMA, PCR, PCRS
from attestation.tpm.hashes import bank_name

NOT_QUOTED: Final = "not quoted with the stored evidence"
NOT_ASKED: Final = "not asked for with the stored evidence"


class Stored(NamedTuple):
    """What is stored of a machine's TPM.

    Attributes:
        bank: TPM_ALG_ID of the bank that was quoted; None where none was.
        values: PCR -> quoted value.
        log_outcomes: What the rules over the log stored with it say (`judge_stored_log`); None where none is kept.
        list_outcomes: Likewise over the IMA list (`judge_stored_list`).
        ek_vendor: Registered name of the TPM's manufacturer, from a verified chain; None where there is none.
        firmware_version: u64 of its last quote; None where it was not claimed.
        clock_safe: The TPM called its clock safe then; None where that is not known.
        ek_key_attested: The EK itself vouched for the firmware then.
        advisories: The outcomes of every advisory about its firmware.
    """

    bank: int | None
    values: Mapping[int, bytes]
    log_outcomes: Sequence[Outcome] | None
    list_outcomes: Sequence[Outcome] | None
    ek_vendor: str | None
    firmware_version: int | None
    clock_safe: bool | None
    ek_key_attested: bool
    advisories: Sequence[Outcome]


def judge_stored(kept: Stored, policy: Policy) -> Iterable[Outcome]:
    """Return the outcome of every rule over a TPM for what is *kept* of one."""
    yield from _identity(kept, policy)
    yield from _boot(kept, policy)


def judge_stored_log(
    replayed: ReplayedLog, policy: Policy, quoted: Mapping[int, bytes]
) -> tuple[Outcome, ...]:
    """Return the outcome of every rule over an event log.

    A pure function of log, policy and the values of `policy.tpm.log_pcrs`: many machines have the same of all three.
    """
    return tuple(judge_log(replayed, policy, quoted, requested=True)[0])


def judge_stored_list(
    log: UnverifiedIMALog, policy: Policy, quoted: Mapping[int, bytes]
) -> tuple[Outcome, ...]:
    """Return the outcome of every rule over an IMA list; *policy* has one."""
    assert policy.tpm.ima is not None
    return tuple(judge_ima(log, policy.tpm.ima, policy.tpm.bank, quoted))


def _identity(kept: Stored, policy: Policy) -> Iterable[Outcome]:
    rules = policy.tpm.firmware
    if rules is None:
        yield from kept.advisories
    else:
        yield from judge_advisories(kept.advisories, rules)
        if rules.minimum:
            yield judge_firmware_minimum(rules, kept.ek_vendor, kept.firmware_version)
    if policy.tpm.ek_key_attestation is not None:
        yield EK_KEY.passed() if kept.ek_key_attested else EK_KEY.undecided(NOT_ASKED)
    if kept.clock_safe is False and (policy.tpm.clock_safe_required or policy.tpm.clock_safe_reported):
        yield unsafe_clock(report=policy.tpm.clock_safe_reported)


def _boot(kept: Stored, policy: Policy) -> Iterable[Outcome]:
    if not (policy.tpm.rules or policy.tpm.logs_read):
        return
    if kept.bank != policy.tpm.bank:
        yield PCRS.undecided(f"the bank {bank_name(policy.tpm.bank)} was {NOT_QUOTED}")
        return
    for rule in policy.tpm.by_value:
        if rule.any_of is None or rule.index in kept.values:
            yield rule.judge(kept.values.get(rule.index))
        else:
            yield PCR[rule.index].undecided(f"it was {NOT_QUOTED}")
    if policy.tpm.event_log is not None:
        unread = [str(pcr) for pcr in policy.tpm.log_pcrs if pcr not in kept.values]
        if unread:
            yield EVENT_LOG.undecided(f"PCR {', '.join(unread)}: {NOT_QUOTED}")
        elif kept.log_outcomes is None:
            yield EVENT_LOG.undecided(NOT_ASKED)
        else:
            yield from kept.log_outcomes
    if policy.tpm.ima is not None:
        if ima_log.PCR not in kept.values:
            yield IMA.undecided(f"PCR {ima_log.PCR}: {NOT_QUOTED}")
        elif kept.list_outcomes is None:
            yield IMA.undecided(NOT_ASKED)
        else:
            yield from kept.list_outcomes
