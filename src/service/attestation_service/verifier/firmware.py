"""Firmware advisories in the service: the shipped list, and the operators' own (docs/evidence/firmware.md)."""

from __future__ import annotations

from attestation.endorsements.firmware import MAX_BYTES, Blocklist, parse_blocklist, shipped_blocklist
from attestation.errors import BundleInvalid
from attestation.machines import Machine
from attestation_service.settings import Settings, SettingsInvalid


def load_advisories(settings: Settings) -> Blocklist:
    """Return the advisories in force.

    Raises:
        SettingsInvalid: ITL_FIRMWARE_BLOCKLIST_FILE cannot be read, or breaks a rule of its format.
    """
    path = settings.firmware_blocklist_file
    if path is None:
        return shipped_blocklist()
    try:
        with path.open("rb") as file:
            own = parse_blocklist(file.read(MAX_BYTES + 1))
    except OSError as e:
        raise SettingsInvalid(f"ITL_FIRMWARE_BLOCKLIST_FILE: {path} cannot be read: {e.strerror}") from e
    except BundleInvalid as e:
        raise SettingsInvalid(f"ITL_FIRMWARE_BLOCKLIST_FILE: {e}") from e
    return shipped_blocklist().joined(own)


def vendor_of(machine: Machine) -> str | None:
    """Return the registered name of the TPM's maker, where its certificate chains to one of that maker's anchors.

    A certificate that nobody vouches for says nothing: whoever made it would choose a maker without advisories.
    """
    certificate = machine.anchor.ek_certificate
    return certificate.manufacturer if certificate is not None and machine.anchor.ek_chain_ok else None
