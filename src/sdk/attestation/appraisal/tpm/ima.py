"""Judging what the kernel measured while it ran: an IMA list under the allow list of a policy (TPM.md §4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.errors import IMALogRejected
from attestation.evidence import ima_log
from attestation.evidence.ima_log import IMAEntry, IMALogClaims, UnverifiedIMALog
from attestation.reference import IMARules
from attestation.results import Outcome
from attestation.results.tpm_checks import IMA, IMA_VIOLATIONS

_EXPECTED: Final = "an IMA list that leads to the quoted PCR 10"
_SHOWN: Final = 6


def judge_ima(
    log: UnverifiedIMALog | None, rules: IMARules, bank: int, quoted: Mapping[int, bytes]
) -> list[Outcome]:
    """Return the outcomes of the list.

    Args:
        log: As sent; None where none was.
        rules: What may be in it.
        bank: TPM_ALG_ID of the bank of the policy.
        quoted: PCR -> verified value in that bank; 0-9 are compared with the boot aggregate.
    """
    report = rules.allow.report
    if log is None or ima_log.PCR not in quoted:
        return [IMA.told(_EXPECTED, "absent", report=report)]
    try:
        # Without this the list is a story, and one of an earlier boot as good as one of this.
        claims = ima_log.verify(log, bank=bank, quoted_pcr10=quoted[ima_log.PCR], quoted=quoted)
    except IMALogRejected as error:
        return [IMA.told(_EXPECTED, str(error), report=report)]
    strays = [entry for number, entry in enumerate(claims.entries) if _is_stray(entry, number, claims, rules)]
    outcomes: list[Outcome]
    if strays:
        found = _words([f"{e.path} {e.algorithm}:{e.digest}" for e in strays])
        outcomes = [IMA.told("only files of the allow list", f"not allowed: {found}", report=report)]
    else:
        outcomes = [IMA.passed(f"{len(claims.entries)} measurements")]
    if claims.violations:
        # Nothing is measured of a violation but that it happened: no path excuses it.
        found = _words([entry.path for entry in claims.violations])
        if rules.violations_fail.value:
            expected = "no file that changed while it was measured"
            outcomes.append(IMA_VIOLATIONS.told(expected, found, report=rules.violations_fail.report))
        else:
            outcomes.append(IMA_VIOLATIONS.flagged(f"changed while they were measured: {found}"))
    return outcomes


def _is_stray(entry: IMAEntry, number: int, claims: IMALogClaims, rules: IMARules) -> bool:
    """True for a file that is neither allowed nor excluded; the boot aggregate is known by the quote."""
    if entry.violation or entry.digest in rules.allow.value:
        return False
    if number == 0 and claims.boot_aggregate_checked:
        return False
    return not any(pattern.matches(entry.path) for pattern in rules.exclude)


def _words(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
