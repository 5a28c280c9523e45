"""What policies expect of a platform with SGX or TDX: blocks `tcb` and `collateral` (CONFIDENTIAL.md §§9.3, 13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from attestation.appraisal.confidential import collateral_rules, demanded, rules
from attestation.endorsements.intel import (
    ROOT_CRL_PATH,
    Status,
    identity_path,
    pck_crl_path,
    tcb_info_path,
)
from attestation.evidence.dcap import Checks, Part, QuoteClaims, Tcb, checks
from attestation.reference import Policy
from attestation.reference.confidential import TcbRules
from attestation.reference.rules import Demand
from attestation.results import Check, Code, Outcome, TrustClaim

_HARDWARE: Final = TrustClaim.HARDWARE
_DEFAULTS: Final = TcbRules()
_OUT_OF_DATE: Final = {
    Status.OUT_OF_DATE: Status.UP_TO_DATE,
    Status.OUT_OF_DATE_CONFIGURATION_NEEDED: Status.CONFIGURATION_NEEDED,
}
"""Status -> what it would be if its firmware were new."""
_WRITTEN: Final = ("no", "one", "two", "three", "four", "five")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The checks that both kinds make, under the names of one."""

    authentic: Checks
    identity: Check
    revocation: Check
    collateral: Check
    tcb: Check
    unsupported: Check
    tcb_date: Check
    evaluation: Check
    advisories: Check
    configuration: Check
    changed: Check
    notes: Check
    test_only: Check

    @property
    def all(self) -> tuple[Check, ...]:
        """Each of them."""
        known = (getattr(self, name) for name in self.__slots__)
        return (*self.authentic.all, *(each for each in known if isinstance(each, Check)))


def judged(tee: str) -> Judged:
    """Return the checks of *tee*, `SGX` or `TDX`."""
    prefix = tee.lower()

    def tcb(name: str, **says: int) -> Check:
        return Check(name=f"{prefix}-{name}", claim=_HARDWARE, code=Code.TCB_NOT_ALLOWED, **says)

    return Judged(
        authentic=checks(tee),
        identity=Check(
            name=f"{prefix}-platform",
            claim=TrustClaim.INSTANCE_IDENTITY,
            if_failed=97,
            if_passed=2,
            code=Code.MACHINE_NOT_ALLOWED,
        ),
        revocation=Check(name=f"{prefix}-revocation", claim=_HARDWARE, code=Code.REVOKED),
        collateral=Check(
            name=f"{prefix}-collateral", claim=_HARDWARE, if_failed=99, code=Code.COLLATERAL_INVALID
        ),
        tcb=tcb("tcb", if_flagged=32),
        unsupported=tcb("tcb-level", if_failed=97),
        tcb_date=tcb("tcb-date"),
        evaluation=tcb("tcb-evaluation"),
        advisories=tcb("advisories"),
        configuration=tcb("platform-configuration"),
        changed=Check(name=f"{prefix}-tcb-changed"),
        notes=Check(name=f"{prefix}-notes"),
        test_only=Check(name=f"{prefix}-test-only", claim=_HARDWARE, if_flagged=32),
    )


def collateral_in_date(claims: QuoteClaims, at: datetime, policy: Policy | None) -> bool:
    """Say whether TCB info and identity are at hand, genuine, and hold at the instant *at*."""
    hours = collateral_rules(policy).max_staleness_hours
    return claims.tcb is not None and not claims.vouched.expired(at, hours)


def judge_vouched(claims: QuoteClaims, at: datetime, policy: Policy | None, names: Judged) -> list[Outcome]:
    """Judge collateral and revocation, also where no policy applies.

    What is missing or has expired leaves the verdict open, and says where it is to be had.

    Args:
        claims: What a quote proves.
        at: The instant to judge at, UTC.
        policy: Its block `collateral` says how long TCB info is believed, and whether lists must be at hand.
        names: The checks.
    """
    vouched, stated = claims.vouched, collateral_rules(policy)
    found: list[Outcome] = []
    if claims.test_only:
        found.append(names.test_only.flagged("TEST ONLY: software made this quote, no processor did"))
    if claims.quote.padding_bytes:
        found.append(names.notes.flagged(f"{claims.quote.padding_bytes} bytes behind the quote were cut off"))
    found += [names.collateral.failed("genuine collateral of this platform", why) for why in vouched.invalid]
    open_ = [f"{name}: not at hand" for name in vouched.missing]
    open_ += vouched.expired(at, stated.max_staleness_hours)
    if open_:
        found.append(
            names.collateral.undecided("; ".join(f"{each}; {_source(each, claims)}" for each in open_))
        )
    if not open_ and not vouched.invalid:
        found.append(names.collateral.passed())
    found += [names.revocation.failed("certificates that are not revoked", why) for why in vouched.revoked]
    lists = [f"{name}: not at hand" for name in vouched.missing_lists] + vouched.expired_lists(at)
    required = stated.require_revocation
    if lists and required.value and not required.report:
        found.append(
            names.revocation.undecided("; ".join(f"{each}; {_source(each, claims)}" for each in lists))
        )
    elif not lists and not vouched.revoked and not vouched.invalid:
        found.append(names.revocation.passed())
    return found


def _source(what: str, claims: QuoteClaims) -> str:
    tee, fmspc = claims_tee(claims), claims.platform.fmspc.hex().upper()
    paths = {
        "TCB info": tcb_info_path(tee, fmspc),
        "QE identity": identity_path(tee),
        "PCK revocation list": pck_crl_path(claims.ca),
        "revocation list of the root": ROOT_CRL_PATH,
    }
    return f"Intel has it at {paths[what.partition(':')[0]]}"


def claims_tee(claims: QuoteClaims) -> str:
    """Return `SGX` or `TDX`."""
    return "TDX" if claims.quote.tee else "SGX"


def judge_tcb(claims: QuoteClaims, at: datetime, policy: Policy, names: Judged) -> list[Outcome]:
    """Judge what the TCB is worth by the block `tcb`; nothing where it cannot be said."""
    stated = rules(policy, "tcb", _DEFAULTS)
    found = _configuration(claims, stated, names)
    tcb = claims.tcb
    if tcb is None or not collateral_in_date(claims, at, policy):
        return found
    found.append(_status(tcb, at, stated, names))
    dates = [part.date for part in tcb.parts if part.date is not None]
    if stated.min_tcb_date is not None and dates:
        oldest, least = min(dates), stated.min_tcb_date
        words = f"a TCB of {least.value:%Y-%m-%d} or later"
        found += demanded(names.tcb_date, least, oldest >= least.value, words, f"{oldest:%Y-%m-%d}")
    number = stated.min_tcb_evaluation_data_number
    if number is not None:
        holds = tcb.evaluation_number >= number.value
        words = f"collateral of assessment {number.value} or later"
        found += demanded(names.evaluation, number, holds, words, str(tcb.evaluation_number))
    rejected = stated.reject_advisories
    if rejected is not None:
        hit = sorted(rejected.value.intersection(tcb.advisories))
        words = f"none of {', '.join(sorted(rejected.value))}"
        found += demanded(names.advisories, rejected, not hit, words, ", ".join(hit))
    return found


def _status(tcb: Tcb, at: datetime, stated: TcbRules, names: Judged) -> Outcome:
    accepted = stated.accepted_status
    expected = f"a TCB that is {' or '.join(sorted(accepted.value))}"
    words = describe(tcb)
    # No policy can accept these: of the first nobody has said anything, of the second Intel says not to.
    if tcb.status is Status.UNSUPPORTED:
        return names.unsupported.failed("a TCB that Intel lists", words)
    if tcb.status is Status.REVOKED:
        return names.tcb.failed(expected, words)
    if tcb.status in accepted.value:
        if tcb.status is Status.UP_TO_DATE:
            return names.tcb.passed(words)
        return names.tcb.flagged(f"accepted by the policy: {words}")
    until = _grace(tcb, stated)
    if until is not None and at <= until and _OUT_OF_DATE[tcb.status] in accepted.value:
        return names.tcb.flagged(f"{words}; accepted until {until:%Y-%m-%d}")
    return names.tcb.told(expected, words, report=accepted.report)


def _grace(tcb: Tcb, stated: TcbRules) -> datetime | None:
    """Return until when what is out of date still counts, as the grace days of each part say; None for never."""
    if tcb.status not in _OUT_OF_DATE:
        return None
    ends = []
    for part in tcb.parts:
        if part.status not in _OUT_OF_DATE:
            continue
        days = stated.qe_grace_days if part is tcb.qe else stated.platform_grace_days
        if days is None or part.overtaken is None:
            return None
        ends.append(part.overtaken + timedelta(days=days.value))
    return min(ends, default=None)


def describe(tcb: Tcb) -> str:
    """Return in words what a TCB is worth: which parts are behind, by how much, and what that leaves open."""
    behind = [_part(part) for part in tcb.parts if part.behind or part.status is Status.UNSUPPORTED]
    dated = f" of {tcb.date:%Y-%m-%d}" if tcb.date is not None else ""
    words = f"{tcb.status}, platform level{dated}" if not behind else f"{tcb.status}: {'; '.join(behind)}"
    if tcb.advisories and not any(part.advisories and part.behind for part in tcb.parts):
        words += f"; {_advisories(tcb.advisories)}"
    return words


def _part(part: Part) -> str:
    if not part.newest:
        return f"{part.name} is of a version that Intel does not list"
    short = f" ({part.found}; newest {part.newest})"
    if part.status is Status.UNSUPPORTED:
        return f"{part.name} is below every level that Intel lists{short}"
    levels = _WRITTEN[part.behind] if part.behind < len(_WRITTEN) else str(part.behind)
    words = f"{part.name} is {levels} level{'' if part.behind == 1 else 's'} behind"
    since = f" since {part.overtaken:%Y-%m}" if part.overtaken is not None else ""
    if part.advisories:
        return f"{words}: {_advisories(part.advisories, since)}{short}"
    return f"{words}{since}{short}"


def _advisories(names: tuple[str, ...], since: str = "") -> str:
    count = f"{len(names)} {'advisory' if len(names) == 1 else 'advisories'}"
    return f"{count}{since}, {', '.join(names)}"


def _configuration(claims: QuoteClaims, stated: TcbRules, names: Judged) -> list[Outcome]:
    """Judge how the platform is configured, which only certificates of servers say."""
    platform = claims.platform
    asked: tuple[tuple[Demand[bool] | None, bool | None, str], ...] = (
        (stated.allow_smt, platform.smt, "SMT"),
        (stated.allow_dynamic_platform, platform.dynamic_platform, "a platform that can be extended"),
        (stated.allow_cached_keys, platform.cached_keys, "cached keys"),
    )
    found: list[Outcome] = []
    for demand, told, words in asked:
        if demand is not None and not demand.value and told is not False:
            shown = words if told else "the PCK certificate does not say"
            found.append(names.configuration.told(f"a platform without {words}", shown, report=demand.report))
    return found


def tcb_state(claims: QuoteClaims) -> dict[str, Any]:
    """Return what is kept of a TCB: what operators look at, and rules may read."""
    platform, tcb = claims.platform, claims.tcb
    state: dict[str, Any] = {
        "ppid": platform.ppid.hex(),
        "fmspc": platform.fmspc.hex(),
        "ca": claims.ca,
        "smt": platform.smt,
        "dynamic_platform": platform.dynamic_platform,
        "cached_keys": platform.cached_keys,
    }
    if tcb is not None:
        state |= {
            "tcb_status": tcb.status.value,
            "tcb_date": f"{tcb.date:%Y-%m-%d}" if tcb.date is not None else None,
            "tcb_evaluation_data_number": tcb.evaluation_number,
            "advisories": list(tcb.advisories),
        }
    return state


def changed(claims: QuoteClaims, before: Mapping[str, Any] | None, names: Judged) -> list[Outcome]:
    """Tell where the same platform has another status than at the last verified evidence, and by which assessment."""
    tcb = claims.tcb
    if tcb is None or before is None or before.get("ppid") != claims.platform.ppid.hex():
        return []
    was = before.get("tcb_status")
    if was is None or was == tcb.status:
        return []
    then = before.get("tcb_evaluation_data_number")
    return [
        names.changed.flagged(
            f"the TCB was {was} by Intel's assessment {then}, is {tcb.status} by assessment {tcb.evaluation_number}"
        )
    ]
