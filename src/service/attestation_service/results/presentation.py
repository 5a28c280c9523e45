"""A stored result with its evidence and its explanation, as operators see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from attestation.api import (
    BootDetail,
    BootItem,
    CheckDetail,
    MeasuredEvent,
    PCRChange,
    ResultDetail,
    ResultReport,
    SecureBootAuthority,
    SecureBootDetail,
    TrustClaimDetail,
)
from attestation.appraisal.tpm.explain import explain, unexplained
from attestation.errors import EventLogRejected, MalformedEvidence
from attestation.evidence import event_log
from attestation.evidence.event_log import Covers, EventLogClaims, Measured, ReplayedLog, SecureBootState
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Undecided,
)
from attestation.results.ar4si import in_words, tier_of
from attestation.results.vector import trust_vector
from attestation.store import StoredResult
from attestation.tpm.hashes import bank_alg

MOST_EVENTS: Final = 1000
"""Events shown; an honest log has fewer, and the whole log has a route of its own."""
_KINDS: Final[Mapping[str, Literal["driver", "boot-loader", "kernel", "image"]]] = {
    "driver": "driver",
    "boot-loader": "boot-loader",
    "kernel": "kernel",
    "image": "image",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of a result.

    Args:
        result: The result.
        event_log: Its event log; None where none is kept.
        ima_log: Its IMA list is kept.
    """

    result: StoredResult
    event_log: bytes | None
    ima_log: bool = False


def result_report(now: Kept, before: Kept | None) -> ResultReport:
    """Return a result with everything it was judged from, and why it is not like the one *before*.

    Args:
        now: The result.
        before: The last Verified one before it, as far as that is kept.
    """
    evidence = now.result.evidence
    claims = _claims(now)
    return ResultReport(
        **dict(result_detail(now.result)),
        assurance=evidence.assurance,
        policy_sha256=evidence.policy_sha256,
        bundle_sha256=evidence.bundle_sha256,
        pcr_bank=evidence.pcr_bank,
        pcr_values={str(pcr): value.hex() for pcr, value in sorted(evidence.pcr_values.items())},
        event_log_sha256=evidence.event_log_sha256,
        event_log_kept=now.event_log is not None,
        ima_log_sha256=evidence.ima_log_sha256,
        ima_log_kept=now.ima_log,
        ek_key_attested=evidence.ek_key_attested,
        compared_with=before.result.result_id if before is not None else None,
        vector=[] if evidence.assurance is None else _vector(now.result.result, evidence.assurance),
        changes=_changes(now, claims, before),
        boot=None if claims is None else _boot(claims),
    )


def _vector(result: AttestationResult, assurance: Assurance) -> list[TrustClaimDetail]:
    return [
        TrustClaimDetail(claim=claim, value=value, tier=tier_of(value), text=in_words(claim, value))
        for claim, value in trust_vector(result, assurance).items()
    ]


def _claims(kept: Kept) -> EventLogClaims | None:
    """Return what the kept log proves of the quoted PCRs; None where there is none, or it proves nothing.

    It was compared when it was judged. That is not believed: database and parser may be others by now.
    """
    evidence = kept.result.evidence
    if kept.event_log is None or evidence.pcr_bank is None:
        return None
    try:
        replayed = event_log.replay(
            event_log.parse(kept.event_log, log_padding=True), bank_alg(evidence.pcr_bank)
        )
    except MalformedEvidence:
        return None
    quoted = dict(evidence.pcr_values)
    while quoted:
        try:
            return event_log.verify(replayed, quoted=quoted)
        except EventLogRejected as e:
            # What software extended after the log ended is not explained by it; the rest is.
            rest = {pcr: value for pcr, value in quoted.items() if pcr not in e.pcrs}
            if len(rest) == len(quoted):
                return None
            quoted = rest
    return None


def _changes(now: Kept, claims: EventLogClaims | None, before: Kept | None) -> list[PCRChange]:
    values = now.result.evidence.pcr_values
    old: Mapping[int, bytes] = before.result.evidence.pcr_values if before is not None else {}
    changed = {pcr for pcr, value in values.items() if pcr in old and old[pcr] != value}
    refused = (_not_as_expected(now.result) & values.keys()) - changed
    told = _explained(claims, _claims(before) if before is not None else None, changed)
    # What is as it was, or was never seen before, differs from nothing; what it is made of can be told.
    told |= _explained(claims, None, refused)
    return [
        PCRChange(
            pcr=pcr,
            before=old[pcr].hex() if pcr in old else None,
            after=values[pcr].hex(),
            text=text,
            entries=list(entries),
        )
        for pcr in sorted(changed | refused)
        for text, entries in told.get(pcr)
        or [(unexplained(pcr, changed, kept=now.event_log is not None), ())]
    ]


def _not_as_expected(result: StoredResult) -> set[int]:
    """Return the PCRs whose value a policy did not accept, by the names of the checks."""
    names = {o.check for o in result.result.outcomes if isinstance(o, (Failed, Reported))}
    return {pcr for pcr in range(24) if f"pcr{pcr}" in names}


def _explained(
    claims: EventLogClaims | None, before: EventLogClaims | None, changed: Collection[int]
) -> dict[int, list[tuple[str, tuple[str, ...]]]]:
    if claims is None:
        return {}
    old: ReplayedLog | None = None
    if before is not None and before.bank == claims.bank:
        old = before.replayed
    found: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
    for explanation in explain(old, claims.replayed, [pcr for pcr in sorted(changed) if pcr in claims.pcrs]):
        found.setdefault(explanation.pcr, []).append((explanation.text, explanation.entries))
    return found


def _boot(claims: EventLogClaims) -> BootDetail:
    events = claims.events
    return BootDetail(
        pcrs=sorted(claims.pcrs),
        findings=[*claims.repairs, *claims.flags],
        secure_boot=_secure_boot(claims.secure_boot) if 7 in claims.pcrs else None,
        items=_items(claims),
        events=[
            MeasuredEvent(
                index=event.index,
                pcr=event.pcr,
                type=event.type_name,
                digest=event.digest.hex(),
                data_checked=event.covers is not Covers.NOTHING,
                text=event.text,
            )
            for event in events[:MOST_EVENTS]
        ],
        events_left_out=max(0, len(events) - MOST_EVENTS),
    )


def _secure_boot(state: SecureBootState) -> SecureBootDetail:
    return SecureBootDetail(
        enabled=state.enabled,
        measured=state.measured,
        debug=state.debug,
        problems=list(state.problems),
        flags=list(state.flags),
        db_entries=len(state.db_sha256),
        dbx_entries=len(state.dbx_sha256),
        authorities=[
            SecureBootAuthority(name=a.name, sha256=a.sha256, subject=a.subject) for a in state.authorities
        ],
        sbat=state.sbat,
    )


def _items(claims: EventLogClaims) -> list[BootItem]:
    items = [
        BootItem(kind=_KINDS[i.kind], pcr=i.pcr, digest=i.digest.hex(), text=i.path or None)
        for i in claims.images[:MOST_EVENTS]
    ]
    measured: tuple[tuple[Literal["command-line", "kernel", "initrd"], tuple[Measured, ...]], ...] = (
        ("command-line", claims.command_lines),
        ("kernel", claims.kernels),
        ("initrd", claims.initrds),
    )
    for kind, found in measured:
        items += [
            BootItem(kind=kind, pcr=m.pcr, digest=m.digest.hex(), text=m.text) for m in found[:MOST_EVENTS]
        ]
    items += [
        BootItem(kind="section", pcr=11, digest=s.digest.hex(), text=s.name)
        for s in claims.uki_sections[:MOST_EVENTS]
    ]
    return items


def result_detail(stored: StoredResult) -> ResultDetail:
    """Return one stored result with every check, expected and found."""
    result = stored.result
    return ResultDetail(
        result_id=stored.result_id,
        machine_id=stored.machine_id,
        at=result.at,
        verdict=result.verdict,
        policy=result.policy,
        boot_state_appraised=list(result.boot_state_appraised),
        pcr_digest=result.pcr_digest,
        checks=[_check(outcome) for outcome in result.outcomes],
    )


def _check(outcome: Outcome) -> CheckDetail:
    match outcome:
        case Passed(check, note):
            return CheckDetail(check=check, outcome="passed", note=note or None)
        case Failed(check, expected, found):
            return CheckDetail(check=check, outcome="failed", expected=expected, found=found)
        case Flagged(check, note):
            return CheckDetail(check=check, outcome="flagged", note=note)
        case Reported(check, expected, found):
            return CheckDetail(check=check, outcome="reported", expected=expected, found=found)
        case Undecided(check, reason):
            return CheckDetail(check=check, outcome="undecided", note=reason)
