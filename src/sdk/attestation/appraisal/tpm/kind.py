"""The kind `tpm`: a quote, the logs that explain it, and what the EK says of the firmware.

The order is TPM.md §5: parse, signature, header, challenge, selection, digest, clock, firmware, event log, policy.
An event log that does not lead to the quote is a failed check, not refused evidence.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attestation.appraisal.kind import Appraisal
from attestation.appraisal.tpm.again import Stored, judge_stored
from attestation.appraisal.tpm.boot import judge_log
from attestation.appraisal.tpm.identity import judge_clock, judge_firmware
from attestation.appraisal.tpm.ima import judge_ima
from attestation.appraisal.tpm.looks_away import looks_away
from attestation.appraisal.tpm.records import Expected, Found, UnverifiedEvidence
from attestation.errors import MalformedEvidence
from attestation.evidence import tpm_quote
from attestation.evidence.event_log import IMA_PCR
from attestation.evidence.tpm_quote import QuoteClaims, UnverifiedQuote
from attestation.machines import ClockState, NodeEvent
from attestation.reference import Policy
from attestation.results import Failed, Outcome, Subject, tpm_checks
from attestation.results.appraised import appraised
from attestation.tpm.hashes import bank_name
from attestation.wire import b64decode

MAX_QUOTE_BYTES: Final = 4096
BOOT_STATE_NOT_APPRAISED: Final = tpm_checks.BOOT_STATE.flagged("boot state not appraised")
_MEMBERS: Final = frozenset({"pcr_quote", "pcr_signature", "pcr_values"})
_BLOCKS: Final = frozenset({"tpm"})
_NOTHING: Final[Mapping[int, bytes]] = {}


class _TPM:
    """The TPM, as an appraisal sees it."""

    name: Final = "tpm"
    check: Final = tpm_checks.QUOTE
    held: Final = tpm_checks.QUOTE.passed()
    expects: Final = "a fresh quote by the activated AK"
    checks: Final = tpm_checks.ALL

    def parse(self, item: object) -> UnverifiedEvidence:
        """Parse the members `pcr_quote`, `pcr_signature` and `pcr_values` of a request.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        if not isinstance(item, Mapping) or item.keys() != _MEMBERS:
            raise MalformedEvidence("a quote has three members: pcr_quote, pcr_signature and pcr_values")
        quote = parse_quote(item["pcr_quote"], item["pcr_signature"])
        return UnverifiedEvidence(quote, tpm_quote.parse_pcr_values(item["pcr_values"]))

    def verify(self, evidence: UnverifiedEvidence, expected: Expected) -> QuoteClaims:
        """Return what the quote proves.

        Raises:
            EvidenceRejected: It is not fresh, or not by the activated AK.
        """
        return tpm_quote.verify(
            evidence.quote,
            challenge=expected.challenge,
            key=tpm_quote.enrolled_key(expected.ak_public, expected.ek_public),
            selection=expected.selection,
            pcr_values=evidence.pcr_values,
        )

    def follow(
        self, claims: QuoteClaims, expected: Expected, policy: Policy | None
    ) -> tuple[Sequence[Outcome], Found]:
        """Compare clock, counters and firmware with those of the last verified evidence."""
        before, clock = expected.clock, _clock_state(claims)
        outcomes = judge_clock(
            clock,
            before,
            safe_required=policy is not None and policy.tpm.clock_safe_required,
            safe_reported=policy is not None and policy.tpm.clock_safe_reported,
        )
        events: tuple[NodeEvent, ...] = ()
        if before is not None and clock.reset_count != before.reset_count:
            events = (NodeEvent.REBOOTED,)
        if before is not None and clock.firmware_version != before.firmware_version:
            events += (NodeEvent.FIRMWARE_CHANGED,)
        return outcomes, Found(claims, clock, events, claims.pcr_digest.hex())

    def judge(
        self, claims: QuoteClaims, evidence: UnverifiedEvidence, expected: Expected, policy: Policy
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare firmware and boot with what the policy expects."""
        rules = policy.tpm
        quoted = claims.pcrs.get(rules.bank, _NOTHING)
        boot: list[Outcome] = []
        if rules.event_log is not None or evidence.event_log is not None:
            boot += judge_log(evidence.event_log, policy, quoted, requested=expected.event_log_requested)[0]
        if rules.ima is not None:
            boot += judge_ima(evidence.ima_log, rules.ima, rules.bank, quoted)
        boot += rules.judge(quoted)
        subjects = appraised(boot, quoted, rules.bank) if rules.appraises_boot else ()
        if not subjects and not any(type(o) is Failed for o in boot):
            boot.append(BOOT_STATE_NOT_APPRAISED)
        return [*judge_firmware(claims, evidence.ek_certification, expected, policy), *boot], subjects

    def answers(self, claims: QuoteClaims | None) -> frozenset[str]:  # noqa: ARG002 -- of every quote the same
        """Return the block `tpm`."""
        return _BLOCKS

    def hardware(self, claims: QuoteClaims) -> None:
        """Return None: a TPM says nothing of a processor."""

    def shown(self, found: Found) -> Mapping[str, object]:
        """Return quoted PCRs by bank and index, and what the quote says of firmware and clock."""
        return {
            "pcrs": {
                bank_name(bank): {str(index): value.hex() for index, value in values.items()}
                for bank, values in found.claims.pcrs.items()
            },
            "firmware_version": f"{found.clock.firmware_version:016x}",
            "reset_count": found.clock.reset_count,
            "restart_count": found.clock.restart_count,
            "clock_safe": found.clock.safe,
        }

    def alike(self, found: Found, policy: Policy) -> str:
        """Return boot, firmware and PCRs; without that of IMA, which every file that is opened first extends."""
        clock, digest = found.clock, found.digest
        if policy.tpm.ima is not None:
            values = found.claims.pcrs.get(policy.tpm.bank, _NOTHING)
            told = b"".join(value for pcr, value in sorted(values.items()) if pcr != IMA_PCR)
            digest = hashlib.sha256(told).hexdigest()
        return f"{clock.reset_count}.{clock.restart_count} {clock.firmware_version:x} {digest}"

    def again(self, kept: Stored, policy: Policy) -> Iterable[Outcome]:
        """Judge firmware and boot of stored evidence."""
        return judge_stored(kept, policy)

    def looks_away(self, policy: Policy) -> tuple[str, ...]:
        """Return what of a boot is not compared, or only reported; in the order of a boot."""
        return looks_away(policy)


TPM: Final = _TPM()


def found_in(appraisal: Appraisal) -> Found:
    """Return what an appraisal of authentic evidence found of the TPM."""
    found = appraisal.found[TPM.name]
    assert isinstance(found, Found)
    return found


def parse_quote(attest: object, signature: object) -> UnverifiedQuote:
    """Parse the base64 of a TPMS_ATTEST and of a TPMT_SIGNATURE, at most 4 KiB each.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    if not isinstance(attest, str) or not isinstance(signature, str):
        raise MalformedEvidence("a quote and its signature are base64 texts")
    return tpm_quote.parse(
        b64decode(attest, "pcr_quote", max_bytes=MAX_QUOTE_BYTES),
        b64decode(signature, "pcr_signature", max_bytes=MAX_QUOTE_BYTES),
    )


def _clock_state(claims: QuoteClaims) -> ClockState:
    return ClockState(
        clock_ms=claims.clock_ms,
        reset_count=claims.reset_count,
        restart_count=claims.restart_count,
        safe=claims.safe,
        firmware_version=claims.firmware_version or 0,
    )
