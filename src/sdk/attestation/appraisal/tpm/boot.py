"""Judging what booted: the event log under the rules of a policy (TPM.md §4.4-4.6, checks 22-28).

A rule rests on digests that led to the quoted PCRs, and on data that such a digest covers; never on the type,
the path or the label of an event, which anybody who can write a log can choose. So a rule that lists digests
closes its PCR: what was extended there beside them is refused, whatever it calls itself. Only separators and
the few texts that every firmware extends may stand there besides, known by their digests too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from attestation.errors import EventLogRejected
from attestation.evidence import event_log
from attestation.evidence.event_log import EventLogClaims, LogEvent, ReplayedLog, SecureBootState
from attestation.reference import BootRules, Demand, Policy, SecureBootRules
from attestation.reference.patterns import CommandPattern, words_of
from attestation.results import Check, Outcome
from attestation.results.tpm_checks import (
    COMMAND_LINES,
    EVENT_LOG,
    EVENT_LOG_FINDINGS,
    INITRDS,
    KERNELS,
    LOADERS,
    PCR,
    SECURE_BOOT,
    SECURE_BOOT_AUTHORITIES,
    SECURE_BOOT_DB,
    SECURE_BOOT_DBX,
    SECURE_BOOT_DEBUG,
)
from attestation.tpm.hashes import hash_new

FIRMWARE_PCRS: Final = range(8)
"""What firmware extends: where a log is sent that no rule reads, it is compared with these."""
_ABSENT: Final = "no event log that leads to the quoted PCRs"
_EXPECTED: Final = "an event log that leads to the quoted PCRs"
_TEXTS: Final = (
    b"Calling EFI Application from Boot Option",
    b"Returning from EFI Application from Boot Option",
    b"Exit Boot Services Invocation",
    b"Exit Boot Services Returned with Success",
    b"Exit Boot Services Returned with Failure",
)
"""Actions that every firmware extends ([PFP] 10.4.4); known by their digests, in whatever event they stand."""
_SEPARATOR: Final = bytes(4)
_SHOWN: Final = 6
_SHOWN_TEXT: Final = 160
_DEBUG: Final = "UEFI Debug Mode"


def judge_log(
    replayed: ReplayedLog | None, policy: Policy, quoted: Mapping[int, bytes], *, requested: bool
) -> tuple[list[Outcome], EventLogClaims | None]:
    """Return the outcomes of the event log and of every rule that reads it, and what it proves.

    Args:
        replayed: The log, replayed in the bank of the policy; None where there is none.
        policy: What is expected.
        quoted: PCR -> verified value, in the bank of the policy.
        requested: The challenge said that the log is required.
    """
    demand = policy.tpm.event_log
    if demand is None:
        return ([], None) if replayed is None else _accepted(replayed, quoted)
    if replayed is None:
        if not requested and not demand.report:
            # Nobody asked for it yet: the next challenge says that it is required.
            return [EVENT_LOG.undecided("the policy needs the event log; it is asked for now")], None
        return _without(policy, EVENT_LOG.told(_EXPECTED, "absent", report=demand.report)), None
    missing = ", ".join(str(pcr) for pcr in policy.tpm.log_pcrs if pcr not in quoted)
    if missing:
        # What was not quoted is covered by no signature; the log could say anything of it.
        unquoted = f"PCR {missing} was not quoted"
        return _without(policy, EVENT_LOG.told(_EXPECTED, unquoted, report=demand.report)), None
    wanted = {pcr: quoted[pcr] for pcr in policy.tpm.log_pcrs}
    try:
        # 24-27. Without this the log is a story: its events may have been edited, left out or made up.
        claims = event_log.verify(replayed, quoted=wanted)
    except EventLogRejected as error:
        return _without(policy, EVENT_LOG.told(_EXPECTED, str(error), report=demand.report)), None
    outcomes: list[Outcome] = [_padding(replayed, policy) or _PASSED]
    outcomes += _flags(claims)
    outcomes += rules(claims, policy)
    return outcomes, claims


_PASSED: Final = EVENT_LOG.passed()


def _accepted(
    replayed: ReplayedLog, quoted: Mapping[int, bytes]
) -> tuple[list[Outcome], EventLogClaims | None]:
    """Judge a log that no rule reads: it explains, or it is flagged. Not to send it would be no worse."""
    wanted = {pcr: quoted[pcr] for pcr in FIRMWARE_PCRS if pcr in quoted}
    try:
        claims = event_log.verify(replayed, quoted=wanted)
    except EventLogRejected as error:
        return [EVENT_LOG.flagged(f"no rule reads it, and it proves nothing: {error}")], None
    return [_PASSED, *_flags(claims)], claims


def _without(policy: Policy, why: Outcome) -> list[Outcome]:
    """Return *why* there is no log to believe, and every rule over it as one that does not hold."""
    return [why, *(check.told(expected, _ABSENT, report=r) for check, expected, r in _wanted(policy))]


def _wanted(policy: Policy) -> list[tuple[Check, str, bool]]:
    """Return check, expectation and mode of every rule over the log."""
    found = [(PCR[r.index], r.expected, r.report) for r in policy.tpm.rules if r.approved is not None]
    if policy.tpm.secure_boot is not None:
        state = policy.tpm.secure_boot
        found.append((SECURE_BOOT, "on" if state.required.value else "known", state.required.report))
        for check, demand in _databases(state):
            found.append((check, "as the policy lists", demand.report))
    if policy.tpm.boot is not None:
        for check, listed in _lists(policy.tpm.boot):
            found.append((check, "only what the policy lists", listed.report))
        lines = policy.tpm.boot.command_lines
        if lines is not None:
            found.append((COMMAND_LINES, "only what the policy lists", lines.report))
    return found


def _databases(rules: SecureBootRules) -> list[tuple[Check, Demand[frozenset[str]]]]:
    named = (
        (SECURE_BOOT_DB, rules.db),
        (SECURE_BOOT_DBX, rules.dbx_min),
        (SECURE_BOOT_AUTHORITIES, rules.authorities),
    )
    return [(check, demand) for check, demand in named if demand is not None]


def _lists(rules: BootRules) -> list[tuple[Check, Demand[frozenset[bytes]]]]:
    named = (
        (LOADERS, rules.loaders),
        (KERNELS, rules.kernels),
        (INITRDS, rules.initrds),
    )
    return [(check, demand) for check, demand in named if demand is not None]


def _padding(replayed: ReplayedLog, policy: Policy) -> Outcome | None:
    """Judge bytes behind the last event: where they are not allowed, this is no log of firmware (option of §4.3)."""
    assert policy.tpm.event_log is not None
    if policy.tpm.log_padding_accepted or not any(f.code == "log-padding" for f in replayed.findings):
        return None
    expected, found = "a log that ends with its last event", "padding behind it; see log_padding"
    return EVENT_LOG.told(expected, found, report=policy.tpm.event_log.report)


def _flags(claims: EventLogClaims) -> list[Outcome]:
    """Return what operators should see of the log and what decides nothing."""
    noticed = (*claims.repairs, *claims.flags)
    if not noticed:
        return []
    more = f" and {len(noticed) - _SHOWN} more" if len(noticed) > _SHOWN else ""
    return [EVENT_LOG_FINDINGS.flagged("; ".join(noticed[:_SHOWN]) + more)]


# ---------------------------------------------------------------- the rules over a log that led to the quote

_KNOWN: Final[dict[tuple[str, int, str], tuple[Outcome, ...]]] = {}
_KNOWN_SIZE: Final = 4096


def rules(claims: EventLogClaims, policy: Policy) -> tuple[Outcome, ...]:
    """Return the outcome of every rule of *policy* over a log that led to the quote.

    A pure function of log, bank and policy, each known by its SHA-256: judged once and remembered. Whether the
    log leads to a quote is not remembered; that it does in every PCR that the policy reads, `judge_log` has seen.
    """
    key = (claims.sha256, claims.bank, policy.sha256)
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _KNOWN_SIZE:
            _KNOWN.clear()
        known = _KNOWN[key] = tuple(_rules(claims, policy))
    return known


def _rules(claims: EventLogClaims, policy: Policy) -> Iterable[Outcome]:
    approved = _Approved(claims, policy)
    for rule in policy.tpm.rules:
        if rule.approved is not None:
            found = _closed(rule.approved, approved, rule.index)
            yield rule.held if found is None else PCR[rule.index].told(_ONLY, found, report=rule.report)
    if policy.tpm.secure_boot is not None:
        yield from _secure_boot(policy.tpm.secure_boot, claims.secure_boot)
    if policy.tpm.boot is not None:
        by_events = {rule.index: rule.report for rule in policy.tpm.rules if rule.approved is not None}
        yield from _boot(policy.tpm.boot, approved, by_events)
        if policy.tpm.boot.command_lines is not None:
            yield _command_lines(
                policy.tpm.boot.command_lines.value, claims, policy.tpm.boot.command_lines.report
            )


class _Approved:
    """What may be in each PCR under a policy, and what is there beside it.

    Args:
        claims: The log.
        policy: The policy.
    """

    def __init__(self, claims: EventLogClaims, policy: Policy) -> None:
        self._claims = claims
        self._constants = constants(claims.bank)
        self._listed: dict[int, set[bytes]] = {
            rule.index: set(rule.approved) for rule in policy.tpm.rules if rule.approved is not None
        }
        boot = policy.tpm.boot
        if boot is not None:
            for demand, pcrs in ((boot.loaders, (4, 9)), (boot.kernels, (4, 9)), (boot.initrds, (9,))):
                for pcr in pcrs if demand is not None else ():
                    assert demand is not None
                    self._listed.setdefault(pcr, set()).update(demand.value)
            if boot.command_lines is not None:
                for line in claims.command_lines:
                    if line.text is not None and _matches(line.text, boot.command_lines.value):
                        self._listed.setdefault(line.pcr, set()).add(line.digest)
        self._events: dict[int, list[LogEvent]] = {}

    def events(self, pcr: int) -> list[LogEvent]:
        """Return what was extended into *pcr*, without what every firmware extends."""
        found = self._events.get(pcr)
        if found is None:
            found = [e for e in self._claims.replayed.events_of(pcr) if e.digest not in self._constants]
            self._events[pcr] = found
        return found

    def strays(self, pcr: int) -> list[LogEvent]:
        """Return what was extended into *pcr* and is not listed."""
        listed = self._listed.get(pcr, set())
        return [event for event in self.events(pcr) if event.digest not in listed]


@lru_cache(maxsize=8)
def constants(bank: int) -> frozenset[bytes]:
    """Return the digests that every firmware extends: of a separator, and of the known actions."""
    return frozenset(hash_new(bank, data).digest() for data in (_SEPARATOR, *_TEXTS))


_ONLY: Final = "only approved events"


def _closed(digests: frozenset[bytes], approved: _Approved, pcr: int) -> str | None:
    """Judge a PCR by its events: at least one of the listed, and nothing beside what is listed; None where it holds."""
    strays = approved.strays(pcr)
    if strays:
        return _words(strays)
    return None if any(event.digest in digests for event in approved.events(pcr)) else "none of them"


def _words(events: Sequence[LogEvent]) -> str:
    shown = [f"{e.digest.hex()} ({e.type_name} {e.text[:_SHOWN_TEXT]})" for e in events[:_SHOWN]]
    more = f" and {len(events) - _SHOWN} more" if len(events) > _SHOWN else ""
    return "not approved: " + ", ".join(shown) + more


def _boot(rules: BootRules, approved: _Approved, by_events: Mapping[int, bool]) -> Iterable[Outcome]:
    """Judge what was started and read. A stray counts against the list of which nothing was found, else the first.

    That decides only how a failure is told: every stray of a closed PCR fails a list, or the rule over the events
    of that PCR.

    Args:
        rules: The lists.
        approved: The events.
        by_events: PCRs with a rule over their events -> whether that is only reported.
    """
    found = {
        check: any(e.digest in demand.value for pcr in _PLACES[check] for e in approved.events(pcr))
        for check, demand in _lists(rules)
    }
    reported = {check: demand.report for check, demand in _lists(rules)}
    blamed: dict[Check, list[LogEvent]] = {check: [] for check in found}
    for pcr, checks in _CLOSED.items():
        stated = [check for check in checks if check in found]
        strays = approved.strays(pcr) if stated else []
        blamable = [check for check in stated if not found[check]]
        told_there = pcr in by_events and (not by_events[pcr] or all(reported[check] for check in stated))
        if not blamable and not told_there:
            blamable = stated[:1]
        for check in blamable:
            blamed[check] += strays
    for check, demand in _lists(rules):
        if found[check] and not blamed[check]:
            yield check.passed()
            continue
        listed = sorted(digest.hex() for digest in demand.value)
        more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        what = _words(blamed[check]) if blamed[check] else "none of them"
        expected = "one of " + ", ".join(listed[:_SHOWN]) + more + ", nothing else"
        yield check.told(expected, what, report=demand.report)


_PLACES: Final = {LOADERS: (4,), KERNELS: (4, 9), INITRDS: (9,)}
"""Where a digest of each list may be found."""
_CLOSED: Final = {4: (LOADERS, KERNELS), 9: (INITRDS, KERNELS)}
"""Which lists close which PCR: nothing may be there that no rule lists."""


def _command_lines(patterns: Sequence[CommandPattern], claims: EventLogClaims, report: bool) -> Outcome:
    """Judge every command line that was measured; one whose text the log does not show could be any."""
    strays = [line for line in claims.command_lines if line.text is None or not _matches(line.text, patterns)]
    if claims.command_lines and not strays:
        return COMMAND_LINES.passed()
    expected = " | ".join(pattern.text for pattern in patterns[:_SHOWN])
    shown = [f"PCR {line.pcr}: {(line.text or '(not shown by the log)')[:_SHOWN_TEXT]}" for line in strays]
    found = ", ".join(shown[:_SHOWN]) or "none"
    return COMMAND_LINES.told(expected, found, report=report)


def _matches(text: str, patterns: Sequence[CommandPattern]) -> bool:
    words = words_of(text)
    return words is not None and any(pattern.matches(words) for pattern in patterns)


def _secure_boot(rules: SecureBootRules, state: SecureBootState) -> Iterable[Outcome]:
    """Judge PCR 7 (check 26)."""
    yield _state(rules, state)
    if state.debug:
        if rules.debug_forbidden.value:
            yield SECURE_BOOT_DEBUG.told("no debugger", _DEBUG, report=rules.debug_forbidden.report)
        else:
            yield SECURE_BOOT_DEBUG.flagged(_DEBUG)
    if rules.db is not None:
        yield _only(SECURE_BOOT_DB, rules.db, state.db_sha256)
    if rules.dbx_min is not None:
        missing = sorted(rules.dbx_min.value - state.dbx_sha256)
        if missing:
            expected = f"all of {len(rules.dbx_min.value)} hashes"
            absent = f"{len(missing)} missing: {_some(missing)}"
            yield SECURE_BOOT_DBX.told(expected, absent, report=rules.dbx_min.report)
        else:
            yield SECURE_BOOT_DBX.passed()
    if rules.authorities is not None:
        found = frozenset(authority.sha256 for authority in state.authorities)
        yield _only(SECURE_BOOT_AUTHORITIES, rules.authorities, found)


def _state(rules: SecureBootRules, state: SecureBootState) -> Outcome:
    """Judge whether it is on. A debugger is judged by a rule of its own, unless it is forbidden anyway."""
    problems = [p for p in state.problems if rules.debug_forbidden.value or _DEBUG not in p]
    off = state.measured == "off" or (rules.empty_is_off and ("SecureBoot", 0) in state.variables)
    if state.measured == "on" and not problems:
        return SECURE_BOOT.passed("on")
    found = "off" if off else "; ".join(problems)
    if rules.required.value:
        return SECURE_BOOT.told("on", found, report=rules.required.report)
    if off:
        return SECURE_BOOT.flagged("off")
    return SECURE_BOOT.told("on or off", found, report=rules.required.report)


def _only(check: Check, demand: Demand[frozenset[str]], found: frozenset[str]) -> Outcome:
    """Judge a list: nothing beside what is allowed, and at least one."""
    strays = sorted(found - demand.value)
    if found and not strays:
        return check.passed()
    words = f"not allowed: {_some(strays)}" if strays else "none"
    return check.told(f"only {_some(sorted(demand.value))}", words, report=demand.report)


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
