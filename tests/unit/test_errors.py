"""One tree of errors, drawn once, with a stable code at every leaf."""

from __future__ import annotations

import inspect
import re

import pytest

from attestation import errors
from attestation.errors import AttestationError, DeviceError, RateLimited, TEEDeviceError, TPMResponseError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, AttestationError)]
CODES = {
    "AKAttributesRejected": "ak-attributes-rejected",
    "AKCertificateRejected": "ak-certificate-rejected",
    "AKConflict": "ak-conflict",
    "AKNotActivated": "ak-not-activated",
    "ActInProgress": "act-in-progress",
    "ActivationFailed": "activation-failed",
    "AgentTooOld": "agent-too-old",
    "AlgorithmForbidden": "algorithm-forbidden",
    "AllowListEntryUnknown": "allow-list-entry-unknown",
    "AlreadyExists": "already-exists",
    "AnswerNotKept": "answer-not-kept",
    "ApprovalRuleUnknown": "approval-rule-unknown",
    "ApprovalUnknown": "approval-unknown",
    "AssuranceTooLow": "assurance-too-low",
    "AttestHeaderInvalid": "attest-header-invalid",
    "AttestationError": "attestation-error",
    "AuthenticationTooOld": "authentication-too-old",
    "BaseConfigInvalid": "base-config-invalid",
    "BaseConfigMissing": "base-config-missing",
    "SchematicInvalid": "schematic-invalid",
    "FactoryUnavailable": "factory-unavailable",
    "FactoryAnswerInvalid": "factory-answer-invalid",
    "SchematicMismatch": "schematic-mismatch",
    "BodyTooComplex": "body-too-complex",
    "BreakGlassCannotVote": "break-glass-cannot-vote",
    "BundleInvalid": "trust-bundle-invalid",
    "CANotConfigured": "ca-not-configured",
    "CAChainInvalid": "ca-chain-invalid",
    "CSRInvalid": "csr-invalid",
    "BundleRejected": "bundle-rejected",
    "CAInvalid": "ca-invalid",
    "RequestRefused": "request-refused",
    "CertificateNotConformant": "certificate-not-conformant",
    "CertificateUnknown": "certificate-unknown",
    "CertificateUntrusted": "certificate-untrusted",
    "ChallengeExpired": "challenge-expired",
    "ChallengeMismatch": "challenge-mismatch",
    "ChallengeUnknown": "challenge-unknown",
    "ChallengeUsed": "challenge-used",
    "ClientCertificateUntrusted": "client-cert-untrusted",
    "ClusterNotConfigured": "cluster-not-configured",
    "ClusterUnknown": "cluster-unknown",
    "CollateralInvalid": "collateral-invalid",
    "ConfigurationInvalid": "configuration-invalid",
    "ConfigurationUnknown": "configuration-unknown",
    "ConfigurationUnreadable": "configuration-unreadable",
    "ConfigurationsNotKept": "configurations-not-kept",
    "ConfigTokenConsumed": "token-consumed",
    "ConfigTokenUnknown": "config-token-unknown",
    "Conflict": "conflict",
    "CrossSiteRequest": "cross-site-request",
    "DeadLetterUnknown": "dead-letter-unknown",
    "DeadlineExceeded": "deadline-exceeded",
    "DeviceError": "device-error",
    "EKCertificateRejected": "ek-certificate-rejected",
    "EKConflict": "ek-conflict",
    "EKFingerprintMismatch": "ek-fingerprint-mismatch",
    "EKTemplateRejected": "ek-template-rejected",
    "EndorsementMissing": "endorsement-missing",
    "EphemeralForbidden": "ephemeral-forbidden",
    "EventLogRejected": "event-log-rejected",
    "EvidenceRejected": "evidence-rejected",
    "Expired": "expired",
    "ExtensionUnknown": "extension-unknown",
    "Forbidden": "forbidden",
    "HardwareEvidenceRejected": "hardware-evidence-rejected",
    "IMALogRejected": "ima-log-rejected",
    "IdempotencyKeyReused": "idempotency-key-reused",
    "IdentityProviderUnavailable": "identity-provider-unavailable",
    "InsecureTransport": "high-assurance-required",
    "IssuerUnknown": "issuer-unknown",
    "KeyAmbiguous": "key-ambiguous",
    "KeyCertificationRejected": "key-certification-rejected",
    "KeyMismatch": "key-mismatch",
    "KeyNotFound": "key-not-found",
    "KeyNotResident": "key-not-resident",
    "KeyRefused": "key-refused",
    "KeyURIInvalid": "key-uri-invalid",
    "KeyUnsupported": "key-unsupported",
    "KeyUnusable": "key-unusable",
    "LogBroken": "log-broken",
    "LogRejected": "log-rejected",
    "MachineChanged": "machine-changed",
    "MachineNotAdmitted": "machine-not-admitted",
    "MachineRejected": "machine-rejected",
    "MachineUnknown": "machine-unknown",
    "MalformedEvidence": "malformed-evidence",
    "MalformedNote": "malformed-note",
    "ModuleNotListed": "module-not-listed",
    "ModuleUnusable": "module-unusable",
    "NameInUse": "name-in-use",
    "NodeIdentityRejected": "node-identity-rejected",
    "NodeRequestDenied": "node-request-denied",
    "NodeMismatch": "node-mismatch",
    "NodeRequestDiffers": "node-request-differs",
    "NotAcceptable": "not-acceptable",
    "NotAuthentic": "not-authentic",
    "NoteRejected": "note-rejected",
    "OperatorAccessNotConfigured": "operator-access-not-configured",
    "PCRDigestMismatch": "pcr-digest-mismatch",
    "PINInURI": "key-uri-inline-pin",
    "PINRejected": "pin-rejected",
    "PendingQuotaExceeded": "pending-quota-exceeded",
    "PolicyInvalid": "policy-invalid",
    "PolicyUnknown": "policy-unknown",
    "ProofRejected": "proof-rejected",
    "ProofUnavailable": "proof-unavailable",
    "ProposalDiffers": "proposal-differs",
    "ProposalRival": "proposal-rival",
    "QueriesBusy": "queries-busy",
    "QueryFailed": "query-failed",
    "QueryTimeout": "query-timeout",
    "QueryUnknown": "query-unknown",
    "RateLimited": "rate-limited",
    "RegistrationForbidden": "registration-forbidden",
    "RegistrationTokenInvalid": "registration-token-invalid",
    "RegistrationTokenUnknown": "registration-token-unknown",
    "QueryInvalid": "query-invalid",
    "RequestInvalid": "request-invalid",
    "ResultTokenRejected": "result-token-rejected",
    "ResultUnknown": "result-unknown",
    "RevocationUnknown": "revocation-unknown",
    "RotationForbidden": "ca-rotation-forbidden",
    "RunDiffers": "run-differs",
    "HSMDiffers": "hsm-differs",
    "ACMEUnknown": "acme-unknown",
    "ConsoleCodeDecided": "console-code-decided",
    "ConsoleCodeExpired": "console-code-expired",
    "ConsoleCodeUnknown": "console-code-unknown",
    "HSMQuoteUnknown": "hsm-quote-unknown",
    "RunUnknown": "run-unknown",
    "SealRejected": "seal-rejected",
    "SelectionMismatch": "selection-mismatch",
    "ServiceBusy": "service-busy",
    "SignatureInvalid": "signature-invalid",
    "SignerBusy": "signer-busy",
    "SignerUnavailable": "signer-unavailable",
    "StoreBusy": "store-busy",
    "StoreUnavailable": "store-unavailable",
    "TEEDeviceError": "tee-device-error",
    "TPMRequired": "tpm-required",
    "TPMResponseError": "tpm-response-error",
    "TokenAbsent": "token-absent",
    "TransitionForbidden": "transition-forbidden",
    "TrustCertificateUnknown": "trust-certificate-unknown",
    "Unauthenticated": "unauthenticated",
    "Unavailable": "unavailable",
    "Unknown": "unknown",
    "UnwrapFailed": "unwrap-failed",
}


def test_codes_are_api() -> None:
    """No code is renamed, and none is forgotten here: callers compare them."""
    found = {c.__name__: c.code for c in CLASSES}
    assert {name: found.get(name) for name in CODES} == CODES
    assert found.keys() == CODES.keys()


def test_every_code_is_its_own() -> None:
    """One class per meaning, one code per class."""
    assert len({c.code for c in CLASSES}) == len(CLASSES)
    assert all("code" in vars(c) for c in CLASSES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", c.code) for c in CLASSES)


def test_the_drawn_tree_is_the_tree() -> None:
    """Every class stands in the module docstring, and nothing else does."""
    assert errors.__doc__
    drawing = errors.__doc__[errors.__doc__.index("    AttestationError") :]
    drawn = {
        word
        for line in drawing.splitlines()
        for word in re.findall(r"\b[A-Z]\w+", re.split(r"\s{2,}[a-z]", line)[0])
    }
    assert {c.__name__ for c in CLASSES} <= drawn
    assert drawn - {c.__name__ for c in CLASSES} <= {"Messages"}


def test_retry_after_is_at_least_a_second() -> None:
    """A limited caller is never told to come back at once."""
    for given, told in ((0, 1), (-5, 1), (1, 1), (90, 90)):
        assert RateLimited("slow down", retry_after_seconds=given).retry_after_seconds == told


def test_hardware_says_how_it_failed() -> None:
    """In one word of a closed list, before the text."""
    told = TEEDeviceError("absent", "no such device")
    assert (told.fault, str(told), told.found) == (
        "absent",
        "device-absent: no such device",
        "no such device",
    )
    tpm = DeviceError("no such TPM", fault="absent", hint=". Load its driver")
    assert (str(tpm), tpm.found) == ("no such TPM. Load its driver", "no such TPM")


@pytest.mark.parametrize("meant", [None, "Machines"])
def test_a_query_is_refused_with_its_place(meant: str | None) -> None:
    """Line, column, how long it is, and what was probably meant."""
    told = errors.QueryInvalid("unknown table", line=2, column=3, length=8, suggestion=meant)
    assert (told.message, told.line, told.column, told.length) == ("unknown table", 2, 3, 8)
    assert told.suggestion == meant
    words = "; did you mean Machines?" if meant else ""
    assert str(told) == f"line 2, column 3: unknown table{words}"


def test_a_refused_command_says_which_and_why() -> None:
    """Name, words and number."""
    error = TPMResponseError("TPM2_Quote", 0x921, "authorisations are locked out")
    assert str(error) == "TPM2_Quote: authorisations are locked out (0x921)"
    assert (error.command, error.response_code) == ("TPM2_Quote", 0x921)


@pytest.mark.parametrize("error", CLASSES, ids=lambda c: c.__name__)
def test_every_error_says_what_it_means(error: type[AttestationError]) -> None:
    """Its own docstring, not its parent's."""
    assert error.__doc__
    assert error.__doc__ not in {base.__doc__ for base in error.__mro__[1:]}
