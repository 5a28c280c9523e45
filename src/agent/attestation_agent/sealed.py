"""Configurations, and secrets: opened in the TPM."""

from __future__ import annotations

from attestation.api import ConfigEnvelope
from attestation.envelope import Envelope, open_envelope
from attestation.errors import EvidenceRejected, MalformedEvidence, TPMResponseError
from attestation.wire import b64decode
from attestation_agent.edge import TPM
from attestation_agent.exits import ConfigNotOpened


def opened(tpm: TPM, envelope: ConfigEnvelope, *, machine_id: str) -> bytes:
    """Return the plaintext, checked against its digest before it leaves `open_envelope`.

    Raises:
        ConfigNotOpened: It is not for this TPM and this machine, or was changed.
        DeviceError: The TPM failed.
    """
    try:
        sealed = Envelope(
            machine_id=envelope.machine_id,
            token_id=envelope.token_id,
            credential_blob=b64decode(envelope.credential_blob or "", "credential_blob"),
            encrypted_secret=b64decode(envelope.encrypted_secret or "", "encrypted_secret"),
            iv=b64decode(envelope.iv, "iv"),
            ciphertext=b64decode(envelope.ciphertext, "ciphertext", max_bytes=2 << 20),
            config_sha256=envelope.config_sha256,
        )
        key = tpm.activate(sealed.credential_blob, sealed.encrypted_secret)
        return open_envelope(sealed, key, machine_id=machine_id)
    except (MalformedEvidence, EvidenceRejected, TPMResponseError) as e:
        raise ConfigNotOpened(f"the configuration does not open in this TPM: {e}") from e
