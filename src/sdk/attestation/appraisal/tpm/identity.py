"""Judging clock, counters and firmware of a TPM (TPM.md §§4.2, 6, 7)."""

# Algorithms for: tpm-ek
from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa

from attestation.appraisal.tpm.records import EKCertified, Expected
from attestation.evidence.tpm_quote import QuoteClaims
from attestation.machines import ClockState
from attestation.reference import FirmwareRules, Policy
from attestation.results import Failed, Flagged, Outcome, tpm_checks
from attestation.tpm import parse_public

_CLOCK: Final = tpm_checks.CLOCK.passed()
_BLOCKLIST: Final = tpm_checks.FIRMWARE_BLOCKLIST
_VOUCHED_FOR: Final = "a vendor and a firmware version that are vouched for"


def judge_firmware(
    claims: QuoteClaims, attested: EKCertified | None, expected: Expected, policy: Policy
) -> Iterable[Outcome]:
    """Judge what is known of the firmware of this TPM (TPM.md §7)."""
    ak_is_ecc, moduli = keys_of(expected.ak_public, expected.ek_public)
    version = claims.firmware_version
    found = expected.firmware(
        vendor=expected.ek_vendor, version=version, ak_is_ecc=ak_is_ecc, rsa_moduli=moduli
    )
    rules = policy.tpm.firmware
    if rules is None:
        yield from found
    else:
        yield from judge_advisories(found, rules)
        if rules.minimum:
            yield judge_firmware_minimum(rules, expected.ek_vendor, version)
    if policy.tpm.ek_key_attestation is not None:
        yield _judge_key_attestation(attested, expected, version, report=policy.tpm.ek_key_attestation.report)


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


def _judge_key_attestation(
    attested: EKCertified | None, expected: Expected, version: int | None, *, report: bool
) -> Outcome:
    """Judge whether the EK itself has authenticated the firmware that runs now (TPM.md §3.3)."""
    check = tpm_checks.EK_KEY
    proven = expected.firmware_attested if attested is None else attested.firmware_version
    if version is not None and proven == version:
        return check.passed(firmware_words(version))
    if attested is None and not expected.ek_certification_requested and not report:
        return check.undecided("the policy needs the second protocol; it is asked for now")
    wanted = f"firmware {firmware_words(version)}" if version is not None else "a firmware version"
    found = firmware_words(proven) if proven is not None else "absent"
    return check.told(wanted + " authenticated by the EK", found, report=report)


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


def unsafe_clock(*, report: bool) -> Outcome:
    """Return that the clock is not safe, where a policy demands that it is."""
    return tpm_checks.CLOCK_SAFE.told("a safe clock", "unsafe: it may have gone back", report=report)


def firmware_words(version: int) -> str:
    """Return a u64 firmware version as four decimal words, e.g. `8217.4131.22.13878`."""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))


def _clock_words(state: ClockState) -> str:
    return f"reset {state.reset_count}, restart {state.restart_count}, clock {state.clock_ms} ms"
