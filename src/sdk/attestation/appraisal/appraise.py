"""Judging one machine's evidence: every check is made, every outcome is kept.

The order is TPM.md §5: parse (before we are called), signature, header, challenge, selection, digest, clock,
assurance, firmware, event log, policy. Evidence that is not authentic proves nothing about the machine: it ends
the appraisal with `error`, and nothing in it may change what is known of the machine. Authentic evidence that is
not as expected is a Failed result, with every check; so is an event log that does not lead to the quote.
"""

# Algorithms for: tpm-ek
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from cryptography.hazmat.primitives.asymmetric import rsa

from attestation.appraisal.boot import judge_log
from attestation.appraisal.ima import judge_ima
from attestation.errors import EvidenceRejected
from attestation.evidence import tpm_quote
from attestation.evidence.event_log import EventLogClaims, ReplayedLog
from attestation.evidence.ima_log import UnverifiedIMALog
from attestation.evidence.tpm_quote import QuoteClaims, UnverifiedQuote
from attestation.machines import ClockState, Role
from attestation.reference import FirmwareRules, Policy
from attestation.results import (
    Assurance,
    AttestationResult,
    Check,
    Failed,
    Flagged,
    Outcome,
    Subject,
    TrustClaim,
    Verdict,
    conclude,
    tpm_checks,
)
from attestation.results.appraised import appraised
from attestation.tpm import PCRSelection, parse_public


class Evidence(NamedTuple):
    """What the machine sent, parsed but not believed.

    Args:
        quote: The quote.
        pcr_values: The PCR values sent beside it: bank -> index -> digest.
        event_log: The boot event log, replayed in the bank of the policy; None where none was sent or kept.
            Where it comes from does not matter: it counts only as far as it leads to the quoted PCRs.
        ima_log: The IMA measurement list, parsed; None where none was sent or kept.
        ek_certification: What the second protocol proved for this challenge (TPM.md §3.3); None where the
            machine did not answer it.
    """

    quote: UnverifiedQuote
    pcr_values: Mapping[int, Mapping[int, bytes]]
    event_log: ReplayedLog | None
    ima_log: UnverifiedIMALog | None
    ek_certification: EKCertified | None


class EKCertified(Protocol):
    """What the second protocol proved: a statement about this AK, authenticated by the EK for this challenge."""

    @property
    def firmware_version(self) -> int:
        """u64."""
        ...


class FirmwareJudge(Protocol):
    """Judges a TPM's firmware against published advisories; a pure function of its arguments."""

    def __call__(
        self, *, vendor: str | None, version: int | None, ak_is_ecc: bool, rsa_moduli: Sequence[int]
    ) -> Sequence[Outcome]:
        """Return the outcomes of every advisory that applies.

        Args:
            vendor: Registered name of the TPM's manufacturer; None where nobody vouches for one.
            version: u64 firmware version of a verified quote; None where it was not claimed.
            ak_is_ecc: The attestation key is an ECC key.
            rsa_moduli: Moduli of the EK and the AK where they are RSA keys.
        """
        ...


def no_advisories(
    *,
    vendor: str | None,  # noqa: ARG001 -- the Protocol's parameters
    version: int | None,  # noqa: ARG001 -- likewise
    ak_is_ecc: bool,  # noqa: ARG001 -- likewise
    rsa_moduli: Sequence[int],  # noqa: ARG001 -- likewise
) -> Sequence[Outcome]:
    """Judge no firmware: for a service without a list of advisories."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What we know and expect of the machine that sent it.

    Args:
        ak_public: TPM2B_PUBLIC of the activated AK.
        ek_public: TPM2B_PUBLIC of the EK.
        challenge: The 32 bytes that we issued.
        selection: The PCRs that were requested with it.
        requested_policy: `name@version` of the policy in force when the challenge was issued.
        policy: The policy in force now; None where there is none.
        clock: State of clock and counters at the last verified evidence; None before the first.
        assurance: How well the machine's identity is vouched for.
        role: What an operator lets it become; None before the approval.
        ek_vendor: Registered name of the TPM's manufacturer, from a verified chain; None where there is none.
        event_log_requested: The challenge said that the event log is required.
        ek_certification_requested: The challenge asked for the second protocol.
        firmware_attested: u64 firmware version that the second protocol proved last; None where it never did.
        firmware: Judges the TPM's firmware.
    """

    ak_public: bytes
    ek_public: bytes
    challenge: bytes
    selection: PCRSelection
    requested_policy: str
    policy: Policy | None
    clock: ClockState | None
    assurance: Assurance
    role: Role | None
    ek_vendor: str | None
    event_log_requested: bool
    ek_certification_requested: bool
    firmware_attested: int | None
    firmware: FirmwareJudge


class Appraisal(NamedTuple):
    """The judgement.

    Args:
        result: Verdict and every check.
        error: Set where the evidence is not authentic: it proves nothing, the sender is refused.
        claims: What the quote proves; None where it is not authentic.
        clock: New clock state, to be stored only with a Verified result.
        rebooted: The TPM was reset since the last verified evidence.
        firmware_changed: The TPM's firmware is another since then.
        event_log: What the event log proves; None where there is none that leads to the quoted PCRs.
    """

    result: AttestationResult
    error: EvidenceRejected | None
    claims: QuoteClaims | None
    clock: ClockState | None
    rebooted: bool
    firmware_changed: bool
    event_log: EventLogClaims | None


POLICY: Final = Check(name="policy")
ASSURANCE: Final = Check(name="assurance", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97)
BOOT_STATE_NOT_APPRAISED: Final = tpm_checks.BOOT_STATE.flagged("boot state not appraised")
_QUOTE: Final = tpm_checks.QUOTE.passed()
_NOTHING: Final[Mapping[int, bytes]] = {}


def appraise(evidence: Evidence, case: Case, at: datetime) -> Appraisal:
    """Appraise *evidence* for *case* at the instant *at*. Raises nothing that it can express."""
    policy = case.policy
    try:
        claims = tpm_quote.verify(
            evidence.quote,
            challenge=case.challenge,
            key=tpm_quote.enrolled_key(case.ak_public, case.ek_public),
            selection=case.selection,
            pcr_values=evidence.pcr_values,
        )
    except EvidenceRejected as error:
        refused = tpm_checks.QUOTE.failed("a fresh quote by the activated AK", f"{error.code}: {error}")
        return _appraisal(at, policy, [refused], error=error)
    outcomes: list[Outcome] = [_QUOTE]
    event_log: EventLogClaims | None = None
    subjects: tuple[Subject, ...] = ()
    clock = _clock_state(claims)
    outcomes += judge_clock(
        clock,
        case.clock,
        safe_required=policy is not None and policy.clock_safe_required,
        safe_reported=policy is not None and policy.clock_safe_reported,
    )
    if policy is None:
        outcomes.append(POLICY.undecided("no policy applies to this machine"))
    elif policy.ref != case.requested_policy:
        # The challenge asked for the PCRs of another policy; a new challenge asks for the right ones.
        outcomes.append(POLICY.undecided(f"{policy.ref} replaced {case.requested_policy} meanwhile"))
    else:
        outcomes += judge_identity(claims, evidence, case, policy)
        quoted = claims.pcrs.get(policy.bank, _NOTHING)
        before_boot = len(outcomes)
        if policy.event_log is not None or evidence.event_log is not None:
            told_by_log, event_log = judge_log(
                evidence.event_log, policy, quoted, requested=case.event_log_requested
            )
            outcomes += told_by_log
        if policy.ima is not None:
            outcomes += judge_ima(evidence.ima_log, policy.ima, policy.bank, quoted)
        outcomes += policy.judge(quoted)
        of_boot = outcomes[before_boot:]
        if policy.appraises_boot:
            subjects = appraised(of_boot, quoted, policy.bank)
        if not subjects and not any(type(o) is Failed for o in of_boot):
            outcomes.append(BOOT_STATE_NOT_APPRAISED)
    before = case.clock
    return _appraisal(
        at,
        policy,
        outcomes,
        claims=claims,
        clock=clock,
        rebooted=before is not None and clock.reset_count != before.reset_count,
        firmware_changed=before is not None and clock.firmware_version != before.firmware_version,
        event_log=event_log,
        subjects=subjects,
    )


def judge_identity(claims: QuoteClaims, evidence: Evidence, case: Case, policy: Policy) -> Iterable[Outcome]:
    """Judge who vouches for this TPM, and what is known of its firmware (TPM.md §§6, 7)."""
    yield judge_assurance(case.assurance, policy.assurance_minimum(case.role), report=False)
    stated = policy.assurance
    if stated is not None and stated.report:
        yield judge_assurance(case.assurance, stated.level, report=True)
    ak_is_ecc, moduli = keys_of(case.ak_public, case.ek_public)
    version = claims.firmware_version
    found = case.firmware(vendor=case.ek_vendor, version=version, ak_is_ecc=ak_is_ecc, rsa_moduli=moduli)
    rules = policy.firmware
    if rules is None:
        yield from found
    else:
        yield from judge_advisories(found, rules)
        if rules.minimum:
            yield judge_firmware_minimum(rules, case.ek_vendor, version)
    if policy.ek_key_attestation is not None:
        yield _judge_key_attestation(evidence, case, version, report=policy.ek_key_attestation.report)


@lru_cache(maxsize=64)
def judge_assurance(found: Assurance, minimum: Assurance, *, report: bool) -> Outcome:
    """Judge how well a machine is vouched for."""
    if found.level >= minimum.level:
        return ASSURANCE.passed(f"{found}, at least {minimum} needed")
    return ASSURANCE.told(f"at least {minimum}", found.value, report=report)


@lru_cache(maxsize=1024)
def keys_of(ak_public: bytes, ek_public: bytes) -> tuple[bool, tuple[int, ...]]:
    """Return whether the AK is an ECC key, and the moduli of EK and AK where they are RSA keys."""
    areas = [parse_public(ak_public), parse_public(ek_public)]
    keys = [area.key() for area in areas]
    moduli = tuple(key.public_numbers().n for key in keys if isinstance(key, rsa.RSAPublicKey))
    return not isinstance(keys[0], rsa.RSAPublicKey), moduli


def judge_advisories(found: Sequence[Outcome], rules: FirmwareRules) -> Iterable[Outcome]:
    """Return what advisories say as the policy wants it: it may make warnings fail, or failures warn."""
    demand = rules.on_blocklist
    judged = False
    for outcome in found:
        blocklist = outcome.check == _BLOCKLIST.name
        judged = judged or blocklist
        if demand is not None and blocklist:
            if demand.value and isinstance(outcome, Flagged):
                yield _BLOCKLIST.told("no advisory that applies", outcome.note, report=demand.report)
                continue
            if not demand.value and not demand.report and isinstance(outcome, Failed):
                yield _BLOCKLIST.flagged(outcome.found)
                continue
        yield outcome
    if demand is not None and demand.value and not judged:
        # Nobody vouches for a vendor or a version: no advisory could have been found to apply.
        yield _BLOCKLIST.told(_VOUCHED_FOR, "absent", report=demand.report)


def judge_firmware_minimum(rules: FirmwareRules, vendor: str | None, version: int | None) -> Outcome:
    """Judge whether a firmware version (u64) is new enough for its vendor."""
    check = tpm_checks.FIRMWARE_MINIMUM
    if vendor is None or version is None:
        return check.told(_VOUCHED_FOR, "absent", report=all(d.report for d in rules.minimum.values()))
    demand = rules.minimum.get(vendor)
    if demand is None:
        return check.flagged(f"the policy states no minimum for {vendor}")
    words = firmware_words(version)
    lowest = ".".join(map(str, demand.value))
    if version >= int.from_bytes(b"".join(word.to_bytes(2) for word in demand.value)):
        return check.passed(f"{vendor} {words}, at least {lowest} needed")
    return check.told(f"{vendor} at least {lowest}", words, report=demand.report)


def _judge_key_attestation(evidence: Evidence, case: Case, version: int | None, *, report: bool) -> Outcome:
    """Judge whether the EK itself has authenticated the firmware that runs now (TPM.md §3.3)."""
    check = tpm_checks.EK_KEY
    attested = evidence.ek_certification
    proven = case.firmware_attested if attested is None else attested.firmware_version
    if version is not None and proven == version:
        return check.passed(firmware_words(version))
    if attested is None and not case.ek_certification_requested and not report:
        return check.undecided("the policy needs the second protocol; it is asked for now")
    expected = f"firmware {firmware_words(version)}" if version is not None else "a firmware version"
    found = firmware_words(proven) if proven is not None else "absent"
    return check.told(expected + " authenticated by the EK", found, report=report)


def judge_clock(
    now: ClockState, before: ClockState | None, *, safe_required: bool, safe_reported: bool = False
) -> list[Outcome]:
    """Compare clock and counters with the last verified evidence (check 15, `attest-clock`; TPM.md §4.2).

    Args:
        now: As quoted now.
        before: As stored; None before the first verified evidence.
        safe_required: The policy refuses an unsafe clock.
        safe_reported: The policy reports an unsafe clock.
    """
    outcomes: list[Outcome] = []
    if not now.safe:
        if safe_required or safe_reported:
            outcomes.append(unsafe_clock(report=not safe_required))
        else:
            outcomes.append(tpm_checks.CLOCK_SAFE.flagged("the clock is not safe: it may have gone back"))
    if before is None:
        outcomes.append(_CLOCK)
        return outcomes
    regressed = (now.reset_count, now.restart_count) < (before.reset_count, before.restart_count)
    same_run = (now.reset_count, now.restart_count) == (before.reset_count, before.restart_count)
    if same_run and now.clock_ms < before.clock_ms and now.safe and before.safe:
        regressed = True
    if regressed:
        outcomes.append(
            tpm_checks.CLOCK_REGRESSED.failed(
                f"at least {_clock_words(before)}",
                f"{_clock_words(now)}: an earlier state",
            )
        )
    else:
        outcomes.append(_CLOCK)
    if now.reset_count > before.reset_count:
        outcomes.append(tpm_checks.REBOOT.flagged(f"resetCount {before.reset_count} -> {now.reset_count}"))
    if now.firmware_version < before.firmware_version:
        outcomes.append(
            tpm_checks.FIRMWARE_REGRESSED.failed(
                f"at least {firmware_words(before.firmware_version)}",
                firmware_words(now.firmware_version),
            )
        )
    elif now.firmware_version > before.firmware_version:
        change = f"{firmware_words(before.firmware_version)} -> {firmware_words(now.firmware_version)}"
        outcomes.append(tpm_checks.FIRMWARE_CHANGED.flagged(change))
    return outcomes


_CLOCK: Final = tpm_checks.CLOCK.passed()
_BLOCKLIST: Final = tpm_checks.FIRMWARE_BLOCKLIST
_VOUCHED_FOR: Final = "a vendor and a firmware version that are vouched for"


def unsafe_clock(*, report: bool) -> Outcome:
    """Return that the clock is not safe, where a policy demands that it is."""
    return tpm_checks.CLOCK_SAFE.told("a safe clock", "unsafe: it may have gone back", report=report)


def firmware_words(version: int) -> str:
    """Return a u64 firmware version as four decimal words, e.g. `8217.4131.22.13878`."""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))


def _clock_words(state: ClockState) -> str:
    return f"reset {state.reset_count}, restart {state.restart_count}, clock {state.clock_ms} ms"


def _clock_state(claims: QuoteClaims) -> ClockState:
    return ClockState(
        clock_ms=claims.clock_ms,
        reset_count=claims.reset_count,
        restart_count=claims.restart_count,
        safe=claims.safe,
        firmware_version=claims.firmware_version or 0,
    )


def _appraisal(
    at: datetime,
    policy: Policy | None,
    outcomes: list[Outcome],
    *,
    error: EvidenceRejected | None = None,
    claims: QuoteClaims | None = None,
    clock: ClockState | None = None,
    rebooted: bool = False,
    firmware_changed: bool = False,
    event_log: EventLogClaims | None = None,
    subjects: tuple[Subject, ...] = (),
) -> Appraisal:
    verdict = conclude(outcomes)
    result = AttestationResult(
        verdict=verdict,
        at=at,
        policy=policy.ref if policy is not None else None,
        outcomes=tuple(outcomes),
        boot_state_appraised=() if verdict is Verdict.INDETERMINATE else subjects,
        pcr_digest=claims.pcr_digest.hex() if claims is not None else None,
    )
    return Appraisal(
        result=result,
        error=error,
        claims=claims,
        clock=clock,
        rebooted=rebooted,
        firmware_changed=firmware_changed,
        event_log=event_log,
    )


_BY_NAME: Final = {check.name: check for check in (POLICY, ASSURANCE, *tpm_checks.ALL)}


def recalled(outcome: Outcome) -> Outcome:
    """Return an *outcome* that was stored, with what it says of trust: that follows from its check."""
    check = _BY_NAME.get(outcome.check)
    return outcome if check is None else check.again(outcome)
