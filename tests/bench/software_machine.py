"""A machine without a TPM, for load: `attestation_testing` keys, a clock that advances, the challenge it answers.

It measures the service, not a TPM: a software TPM on the same two cores would take most of them. That such
keys cannot be enrolled through the protocol is proven elsewhere; here the rows are written into the store.
"""

from __future__ import annotations

import hashlib
from typing import Final

from attestation.reference import DEFAULT_SELECTION
from attestation.tpm import bank_name
from attestation_testing import SoftwareAK, SoftwareEK

VALUES: Final = {
    bank_name(bank): {i: hashlib.sha256(bytes([i])).digest() for i in pcrs}
    for bank, pcrs in DEFAULT_SELECTION.banks
}


class SoftwareMachine:
    """One machine of the load.

    Args:
        machine_id: UUID text; empty until it is enrolled.
        ek: Its EK.
    """

    __slots__ = ("_clock_ms", "_key", "ak", "challenge", "ek", "ek_fingerprint", "machine_id")

    def __init__(self, machine_id: str, ek: SoftwareEK) -> None:
        self._key = SoftwareAK()
        self.ak = self._key.public
        self.ek = ek
        self.ek_fingerprint = ek.public.fingerprint()
        self.machine_id = machine_id
        self.challenge: tuple[str, bytes] | None = None
        self._clock_ms = 1000

    def quote(self, nonce: bytes) -> tuple[bytes, bytes]:
        """Return a TPMS_ATTEST over `VALUES` for *nonce*, and the TPMT_SIGNATURE."""
        self._clock_ms += 17
        quote = self._key.quote(nonce, DEFAULT_SELECTION, VALUES, clock_ms=self._clock_ms)
        return quote.attest, quote.signature

    def certify(self, name: bytes, qualified_name: bytes, qualifying_data: bytes) -> tuple[bytes, bytes]:
        """Return what TPM2_Certify says of a key, and the AK's signature; see `SoftwareAK.certify`."""
        return self._key.certify(name, qualified_name, qualifying_data)
