"""What comes of a TPM, what is known and expected of it, and what its evidence tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from attestation.evidence.event_log import ReplayedLog
from attestation.evidence.ima_log import UnverifiedIMALog
from attestation.evidence.tpm_quote import QuoteClaims, UnverifiedQuote
from attestation.machines import ClockState, NodeEvent
from attestation.results import Outcome
from attestation.tpm import PCRSelection


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


class UnverifiedEvidence(NamedTuple):
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
    event_log: ReplayedLog | None = None
    ima_log: UnverifiedIMALog | None = None
    ek_certification: EKCertified | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What we know and expect of the TPM.

    Args:
        ak_public: TPM2B_PUBLIC of the activated AK.
        ek_public: TPM2B_PUBLIC of the EK.
        challenge: The 32 bytes that we issued.
        selection: The PCRs that were requested with it.
        clock: State of clock and counters at the last verified evidence; None before the first.
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
    clock: ClockState | None
    ek_vendor: str | None
    event_log_requested: bool
    ek_certification_requested: bool
    firmware_attested: int | None
    firmware: FirmwareJudge


class Found(NamedTuple):
    """What authentic evidence of a TPM tells.

    Args:
        claims: What the quote proves.
        clock: New clock state, to be stored only with a Verified result.
        events: The TPM was reset, or has another firmware, since the last verified evidence.
        digest: The quoted digest over the PCRs, hex.
        state: None: the clock stands in the machine itself.
    """

    claims: QuoteClaims
    clock: ClockState
    events: tuple[NodeEvent, ...]
    digest: str
    state: None = None
