"""Configurations: opened in the TPM, written whole, given to the apply command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attestation.api import ConfigEnvelope
from attestation.envelope import Envelope, open_envelope
from attestation.errors import EvidenceRejected, MalformedEvidence, TPMResponseError
from attestation.wire import b64decode
from attestation_agent.commands import Outcome
from attestation_agent.edge import TPM
from attestation_agent.exits import ApplyFailed, ConfigNotOpened
from attestation_agent.files import write_atomically


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


def applied(
    config: bytes, path: Path, command: tuple[str, ...], run: Callable[[tuple[str, ...]], Outcome]
) -> None:
    """Write *config* to *path* and run *command* with it, where there is one.

    Raises:
        ApplyFailed: Either of them failed.
    """
    try:
        write_atomically(path, config)
    except OSError as e:
        raise ApplyFailed(f"{path}: {e.strerror}") from e
    if command:
        outcome = run((*command, str(path)))
        if not outcome.ok:
            raise ApplyFailed(f"apply command: {outcome.text}")
