"""The checks of TPM evidence, and what each says of trust (docs/protocol/results.md)."""

from __future__ import annotations

from typing import Final

from attestation.results.ar4si import TrustClaim
from attestation.results.result import Check

_IDENTITY: Final = TrustClaim.INSTANCE_IDENTITY
_CONFIGURATION: Final = TrustClaim.CONFIGURATION
_EXECUTABLES: Final = TrustClaim.EXECUTABLES
_HARDWARE: Final = TrustClaim.HARDWARE

QUOTE: Final = Check(name="tpm-quote", claim=_IDENTITY, if_failed=99, if_passed=2)
CLOCK: Final = Check(name="clock", claim=_IDENTITY)
CLOCK_SAFE: Final = Check(name="clock-safe", claim=_IDENTITY)
CLOCK_REGRESSED: Final = Check(name="clock-regressed", claim=_IDENTITY)
REBOOT: Final = Check(name="reboot")
EK_KEY: Final = Check(name="ek-key-attestation", claim=_IDENTITY, if_failed=99)

FIRMWARE_BLOCKLIST: Final = Check(name="firmware-blocklist", claim=_HARDWARE, if_flagged=32)
FIRMWARE_NOTE: Final = Check(name="firmware-note", claim=_HARDWARE)
FIRMWARE_MINIMUM: Final = Check(name="firmware-minimum", claim=_HARDWARE)
FIRMWARE_CHANGED: Final = Check(name="firmware-changed", claim=_HARDWARE)
FIRMWARE_REGRESSED: Final = Check(name="firmware-regressed", claim=_HARDWARE)

_CONFIGURATION_PCRS: Final = frozenset({1, 3, 5, 7, 12, 14})
"""Settings, boot order, partition table, Secure Boot, command line of a UKI, MOK ([PFP] 2.3.4; systemd-stub)."""
PCRS: Final = Check(name="pcrs")
PCR: Final = tuple(
    Check(name=f"pcr{i}", claim=_CONFIGURATION, if_failed=96)
    if i in _CONFIGURATION_PCRS
    else Check(name=f"pcr{i}", claim=_EXECUTABLES, if_failed=33)
    for i in range(24)
)
BOOT_STATE: Final = Check(name="boot-state", claim=_EXECUTABLES, if_failed=33)

EVENT_LOG: Final = Check(name="event-log", claim=_EXECUTABLES, if_failed=33)
EVENT_LOG_FINDINGS: Final = Check(name="event-log-findings", claim=_EXECUTABLES, if_failed=33)
LOADERS: Final = Check(name="boot-loaders", claim=_EXECUTABLES, if_failed=33)
KERNELS: Final = Check(name="boot-kernels", claim=_EXECUTABLES, if_failed=33)
INITRDS: Final = Check(name="boot-initrds", claim=_EXECUTABLES, if_failed=33)
COMMAND_LINES: Final = Check(name="command-lines", claim=_CONFIGURATION)
SECURE_BOOT: Final = Check(name="secure-boot", claim=_CONFIGURATION)
SECURE_BOOT_DEBUG: Final = Check(name="secure-boot-debug", claim=_CONFIGURATION)
SECURE_BOOT_DB: Final = Check(name="secure-boot-db", claim=_CONFIGURATION)
SECURE_BOOT_DBX: Final = Check(name="secure-boot-dbx", claim=_CONFIGURATION)
SECURE_BOOT_AUTHORITIES: Final = Check(name="secure-boot-authorities", claim=_CONFIGURATION)
IMA: Final = Check(name="ima", claim=_EXECUTABLES, if_failed=33)
IMA_VIOLATIONS: Final = Check(name="ima-violations", claim=_EXECUTABLES, if_failed=33)

ALL: Final = (
    *(check for check in list(vars().values()) if isinstance(check, Check)),
    *PCR,
)
