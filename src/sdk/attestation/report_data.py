"""What confidential hardware signs for us: report data, and the names that follow from hardware (CONFIDENTIAL.md §7.2).

The endpoint chooses the mode, never the evidence. All lengths are part of what is hashed, so no two inputs meet.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hashlib
from typing import Final

REPORT_DATA_BYTES: Final = 64
GPU_NONCE_BYTES: Final = 32
FINGERPRINT_BYTES: Final = 48


def lp(data: bytes) -> bytes:
    """Return `u32 BE length ‖ data`."""
    return len(data).to_bytes(4, "big") + data


def report_data(kind: str, nonce: bytes, owner: str, subject_spki: bytes = b"") -> bytes:
    """Return the 64 bytes of mode `itl-v1`.

    Args:
        kind: `sev-snp`, `tdx` or `sgx`.
        nonce: The challenge, 32 bytes; of a run, its run nonce.
        owner: machine_id of a join, the node's UID of a run.
        subject_spki: SubjectPublicKeyInfo, DER, of the key that the evidence vouches for; empty where there is none.
    """
    subject = hashlib.sha384(subject_spki).digest() if subject_spki else b""
    parts = (b"itl-report-data/v1", kind.encode(), nonce, owner.encode(), subject)
    return hashlib.sha512(b"".join(map(lp, parts))).digest()


def quote_binding(
    kind: str, purpose: str, signer_uid: str, nonce: bytes, subject_spki: bytes, *, tpm: bool = False
) -> bytes:
    """Return what evidence of a QuoteAttestation is bound by, `itl-qa-v1` (HSM-AND-KUBERNETES §11).

    64 bytes of SHA-512 for report data, 32 of SHA-256 for the qualifyingData of a TPM.

    Args:
        kind: `evidence.type`.
        purpose: `KeyProvisioning` or `CsrAttestation`.
        signer_uid: UID of the issuer that asks.
        nonce: 32 bytes.
        subject_spki: SubjectPublicKeyInfo, DER, of the bound key.
        tpm: For a TPM.
    """
    subject = hashlib.sha384(subject_spki).digest()
    parts = (
        b"itl-quote-attestation/v1",
        kind.encode(),
        purpose.encode(),
        signer_uid.encode(),
        nonce,
        subject,
    )
    said = b"".join(map(lp, parts))
    return hashlib.sha256(said).digest() if tpm else hashlib.sha512(said).digest()


def gpu_nonce(nonce: bytes) -> bytes:
    """Return the 32 bytes that a GPU is asked with."""
    return hashlib.sha256(lp(b"itl-gpu/v1") + lp(nonce)).digest()


def run_nonce(random: bytes, run_uid: str, caller_nonce: bytes = b"") -> bytes:
    """Return the nonce of a run, which whoever knows `status.challenge.random` computes again."""
    parts = (b"itl-run-challenge/v1", random, run_uid.encode(), caller_nonce)
    return hashlib.sha256(b"".join(map(lp, parts))).digest()


def hardware_fingerprint(kind: str, chip: bytes, guest: bytes, subject_spki: bytes | None = None) -> bytes:
    """Return the 48 bytes that name a confidential machine (PROTOCOL §9).

    Args:
        kind: `sev-snp` or `tdx`.
        chip: CHIP_ID or PPID, as evidence has it.
        guest: HOST_DATA or MRCONFIGID, as evidence has it: what the launcher named the guest.
        subject_spki: SubjectPublicKeyInfo, DER, where neither names the guest: such a machine ends with its boot. It is
            hashed as §9 says, SHA-384.
    """
    parts = [b"itl-hw/v1", kind.encode(), chip, guest]
    if subject_spki is not None:
        parts.append(hashlib.sha384(subject_spki).digest())
    return hashlib.sha384(b"".join(map(lp, parts))).digest()
