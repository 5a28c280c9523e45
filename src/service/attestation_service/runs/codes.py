"""What a failed check of a run is called to machines (CONFIDENTIAL §12.4): by its own code, or by what it is about.

The checks of a TPM carry no codes of their own: docs/protocol/results.md tells them apart by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.appraisal import KINDS
from attestation.appraisal.appraise import EVIDENCE, POLICY
from attestation.appraisal.assurance import ASSURANCE, GUEST
from attestation.appraisal.ruled import RULE
from attestation.errors import (
    AttestHeaderInvalid,
    ChallengeMismatch,
    EvidenceRejected,
    PCRDigestMismatch,
    SelectionMismatch,
    SignatureInvalid,
)
from attestation.results import Check, Code, TrustClaim
from attestation.results import tpm_checks as tpm
from attestation.runs import CheckSource

MACHINE: Final = Check(
    name="machine", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=97, code=Code.MACHINE_NOT_ALLOWED
)
"""The node is a machine that operators admitted."""
REFERENCE: Final = Check(name="reference", claim=TrustClaim.EXECUTABLES)
"""A reference value was compared. It fails never: what does not match fails by its own check."""

_OF_TPM: Final[Mapping[Code, tuple[Check, ...]]] = {
    Code.SIGNATURE_INVALID: (tpm.QUOTE,),
    Code.BINDING_MISMATCH: (tpm.CLOCK, tpm.CLOCK_SAFE, tpm.CLOCK_REGRESSED, tpm.EK_KEY),
    Code.TCB_NOT_ALLOWED: (
        tpm.FIRMWARE_BLOCKLIST,
        tpm.FIRMWARE_MINIMUM,
        tpm.FIRMWARE_REGRESSED,
        tpm.FIRMWARE_CHANGED,
        tpm.FIRMWARE_NOTE,
    ),
    Code.REPLAY_MISMATCH: (tpm.EVENT_LOG,),
    Code.LOG_INVALID: (tpm.EVENT_LOG_FINDINGS, tpm.IMA_VIOLATIONS),
    Code.GUEST_POLICY: (tpm.SECURE_BOOT, tpm.SECURE_BOOT_DEBUG),
    Code.REFERENCE_MISMATCH: (
        *tpm.PCR,
        tpm.PCRS,
        tpm.BOOT_STATE,
        tpm.LOADERS,
        tpm.KERNELS,
        tpm.INITRDS,
        tpm.COMMAND_LINES,
        tpm.SECURE_BOOT_DB,
        tpm.SECURE_BOOT_DBX,
        tpm.SECURE_BOOT_AUTHORITIES,
        tpm.IMA,
    ),
    Code.MACHINE_NOT_ALLOWED: (ASSURANCE, GUEST),
    Code.ENVELOPE_INVALID: (EVIDENCE,),
}

CODES: Final[Mapping[str, str]] = {
    **{check.name: code.value for code, checks in _OF_TPM.items() for check in checks},
    **{
        check.name: check.code.value
        for check in (RULE, MACHINE, *(check for kind in KINDS.values() for check in kind.checks))
        if check.code is not None
    },
}
"""Name of a check -> what its failure is called."""

_BY_CODE: Final[Mapping[str, CheckSource]] = {
    Code.ENVELOPE_INVALID: "request",
    Code.REPORT_INVALID: "request",
    Code.BINDING_MISMATCH: "challenge",
    Code.MACHINE_NOT_ALLOWED: "machine",
    Code.SIGNATURE_INVALID: "vendor",
    Code.CHAIN_INVALID: "vendor",
    Code.REVOKED: "vendor",
    Code.COLLATERAL_UNAVAILABLE: "vendor",
    Code.COLLATERAL_INVALID: "vendor",
    Code.PLATFORM_UNSUPPORTED: "vendor",
    Code.TCB_NOT_ALLOWED: "policy",
    Code.GUEST_POLICY: "policy",
    Code.REFERENCE_MISMATCH: "policy",
    Code.REPLAY_MISMATCH: "evidence",
    Code.LOG_INVALID: "evidence",
}
"""What a check compares with, where its code says it."""
_BY_NAME: Final[Mapping[CheckSource, tuple[str, ...]]] = {
    "machine": (
        *(
            each.name
            for each in (tpm.QUOTE, tpm.CLOCK, tpm.CLOCK_SAFE, tpm.CLOCK_REGRESSED, tpm.REBOOT, tpm.EK_KEY)
        ),
        *(each.name for each in (tpm.FIRMWARE_REGRESSED, tpm.FIRMWARE_CHANGED)),
        *("snp-tcb-regressed", "tdx-tcb-changed"),
    ),
    "policy": (REFERENCE.name, POLICY.name, ASSURANCE.name, "snp-allowed-chips", "tdx-accepted-platforms"),
    "vendor": ("tdx-tcb", "tdx-module"),
    "evidence": ("snp-tcb-order", "snp-notes", "tdx-notes"),
    "service": (tpm.FIRMWARE_BLOCKLIST.name, tpm.FIRMWARE_NOTE.name, "snp-test-only", "tdx-test-only"),
}
"""The others."""

SOURCES: Final[Mapping[str, CheckSource]] = {
    **{check: _BY_CODE[code] for check, code in CODES.items() if code in _BY_CODE},
    **{name: source for source, names in _BY_NAME.items() for name in names},
}
"""Name of a check of a run -> what it compares with."""

_OF_REFUSALS: Final[Mapping[type[EvidenceRejected], Code]] = {
    SignatureInvalid: Code.SIGNATURE_INVALID,
    ChallengeMismatch: Code.BINDING_MISMATCH,
    AttestHeaderInvalid: Code.REPORT_INVALID,
    SelectionMismatch: Code.REPORT_INVALID,
    PCRDigestMismatch: Code.REPLAY_MISMATCH,
}


def code_of_refusal(error: EvidenceRejected | None, check: str, *, foreign: bool) -> str | None:
    """Return what the refusal of a quote of a TPM is called; None for another check, whose own code says it.

    Args:
        error: The refusal, or None.
        check: Name of the check that failed.
        foreign: The quote names another key than that of the machine.
    """
    if error is None or check != tpm.QUOTE.name:
        return None
    if foreign and isinstance(error, SignatureInvalid):
        return Code.MACHINE_NOT_ALLOWED.value
    return _OF_REFUSALS.get(type(error), Code.SIGNATURE_INVALID).value


def source_of(check: str, refused: str | None) -> CheckSource | None:
    """Return what a check compared evidence with: who says what is expected.

    Args:
        check: Its name.
        refused: What `code_of_refusal` said: a quote is compared with the machine's key, and with what it answers.
    """
    if refused in (None, Code.SIGNATURE_INVALID.value, Code.MACHINE_NOT_ALLOWED.value):
        return SOURCES.get(check)
    return _BY_CODE[Code(refused)]
