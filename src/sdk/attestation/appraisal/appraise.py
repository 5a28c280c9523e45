"""Judging one machine's evidence: every check is made, every outcome is kept.

The order is TPM.md §5: parse (before we are called), signature, header, challenge, selection, digest, clock,
policy. Evidence that is not authentic proves nothing about the machine: it ends the appraisal with `error`,
and nothing in it may change what is known of the machine. Authentic evidence that is not as expected is a
Failed result, with every check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from attestation.errors import EvidenceRejected
from attestation.evidence import tpm_quote
from attestation.evidence.tpm_quote import QuoteClaims, UnverifiedQuote
from attestation.machines import ClockState, Role
from attestation.reference import Policy
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Undecided,
    Verdict,
    conclude,
)
from attestation.tpm import PCRSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
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
    event_log: object | None
    ima_log: object | None
    ek_certification: object | None


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
    firmware: FirmwareJudge


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """The judgement.

    Args:
        result: Verdict and every check.
        error: Set where the evidence is not authentic: it proves nothing, the sender is refused.
        claims: What the quote proves; None where it is not authentic.
        clock: New clock state, to be stored only with a Verified result.
        rebooted: The TPM was reset since the last verified evidence.
        firmware_changed: The TPM's firmware is another since then.
    """

    result: AttestationResult
    error: EvidenceRejected | None
    claims: QuoteClaims | None
    clock: ClockState | None
    rebooted: bool
    firmware_changed: bool


BOOT_STATE_NOT_APPRAISED: Final = Flagged("boot-state", "boot state not appraised")
_QUOTE: Final = Passed("tpm-quote")


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
        refused = Failed("tpm-quote", "a fresh quote by the activated AK", f"{error.code}: {error}")
        return _appraisal(at, policy, [refused], error=error)
    outcomes: list[Outcome] = [_QUOTE]
    clock = _clock_state(claims)
    outcomes += judge_clock(
        clock, case.clock, safe_required=policy is not None and policy.clock_safe_required
    )
    if policy is None:
        outcomes.append(Undecided("policy", "no policy applies to this machine"))
    elif policy.ref != case.requested_policy:
        # The challenge asked for the PCRs of another policy; a new challenge asks for the right ones.
        outcomes.append(Undecided("policy", f"{policy.ref} replaced {case.requested_policy} meanwhile"))
    elif policy.logs_read or policy.firmware or policy.ek_key_attestation or policy.assurance:
        outcomes.append(Undecided("policy", "this version cannot evaluate every rule of it yet"))
    elif policy.rules:
        outcomes += policy.judge(claims.pcrs.get(policy.bank, {}))
    else:
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
    )


def judge_clock(now: ClockState, before: ClockState | None, *, safe_required: bool) -> list[Outcome]:
    """Compare clock and counters with the last verified evidence (check 15, `attest-clock`; TPM.md §4.2).

    Args:
        now: As quoted now.
        before: As stored; None before the first verified evidence.
        safe_required: The policy refuses an unsafe clock.
    """
    outcomes: list[Outcome] = []
    if not now.safe:
        if safe_required:
            outcomes.append(Failed("clock-safe", "a safe clock", "unsafe: it may have gone back"))
        else:
            outcomes.append(Flagged("clock-safe", "the clock is not safe: it may have gone back"))
    if before is None:
        outcomes.append(_CLOCK)
        return outcomes
    regressed = (now.reset_count, now.restart_count) < (before.reset_count, before.restart_count)
    same_run = (now.reset_count, now.restart_count) == (before.reset_count, before.restart_count)
    if same_run and now.clock_ms < before.clock_ms and now.safe and before.safe:
        regressed = True
    if regressed:
        outcomes.append(
            Failed(
                "clock-regressed",
                f"at least {_clock_words(before)}",
                f"{_clock_words(now)}: an earlier state",
            )
        )
    else:
        outcomes.append(_CLOCK)
    if now.reset_count > before.reset_count:
        outcomes.append(Flagged("reboot", f"resetCount {before.reset_count} -> {now.reset_count}"))
    if now.firmware_version < before.firmware_version:
        outcomes.append(
            Failed(
                "firmware-regressed",
                f"at least {firmware_words(before.firmware_version)}",
                firmware_words(now.firmware_version),
            )
        )
    elif now.firmware_version > before.firmware_version:
        change = f"{firmware_words(before.firmware_version)} -> {firmware_words(now.firmware_version)}"
        outcomes.append(Flagged("firmware-changed", change))
    return outcomes


_CLOCK: Final = Passed("clock")


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
) -> Appraisal:
    verdict = conclude(outcomes)
    result = AttestationResult(
        verdict=verdict,
        at=at,
        policy=policy.ref if policy is not None else None,
        outcomes=tuple(outcomes),
        boot_state_appraised=claims is not None
        and policy is not None
        and bool(policy.compared)
        and verdict is not Verdict.INDETERMINATE,
        pcr_digest=claims.pcr_digest.hex() if claims is not None else None,
    )
    return Appraisal(
        result=result,
        error=error,
        claims=claims,
        clock=clock,
        rebooted=rebooted,
        firmware_changed=firmware_changed,
    )
