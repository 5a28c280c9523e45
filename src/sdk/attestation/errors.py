"""Every error of ours, in one tree.

One class per meaning that a caller treats differently; each leaf has a stable `code`, which is API.

    AttestationError
    ├── MalformedEvidence              the bytes cannot be parsed
    │   └── MalformedNote
    ├── NotAuthentic                   the evidence proves nothing
    │   ├── LogRejected                an audit log, or what was said of it, does not verify
    │   │   └── NoteRejected  ProofRejected  LogBroken
    │   ├── EvidenceRejected           a quote, certify or creation statement
    │   │   ├── SignatureInvalid
    │   │   ├── ChallengeMismatch
    │   │   ├── AttestHeaderInvalid
    │   │   ├── SelectionMismatch
    │   │   ├── PCRDigestMismatch
    │   │   ├── KeyCertificationRejected  KeyNotResident
    │   │   └── HardwareEvidenceRejected   a report or quote of confidential hardware, with every check that failed
    │   ├── EventLogRejected  IMALogRejected  ResultTokenRejected  SealRejected
    │   ├── BundleRejected             nobody who may hand this CA key to this hardware did, or not now
    │   ├── EKCertificateRejected
    │   ├── EKTemplateRejected
    │   ├── AKAttributesRejected
    │   ├── AKCertificateRejected      nobody whom we believe vouches for an attestation key
    │   ├── NodeIdentityRejected       a certificate names no node, or not as configured
    │   ├── ActivationFailed
    │   ├── AKNotActivated
    │   ├── RegistrationTokenInvalid  RegistrationForbidden
    │   ├── CertificateUntrusted       a certificate of ours, presented: not ours, expired, revoked, of another
    │   ├── EphemeralForbidden         nothing names this guest beyond its boot, and no rule lets it in
    │   └── MachineRejected  MachineNotAdmitted  NodeRequestDenied
    ├── Unknown                        it does not exist (any more)
    │   ├── ChallengeUnknown  MachineUnknown  ConfigTokenUnknown  RegistrationTokenUnknown
    │   ├── AllowListEntryUnknown  PolicyUnknown  ApprovalUnknown  ClusterUnknown
    │   ├── ResultUnknown  TrustCertificateUnknown  ApprovalRuleUnknown
    │   ├── QueryUnknown               a query that nobody keeps under this name
    │   ├── HSMQuoteUnknown            a QuoteAttestation that no controller of the cluster brought
    │   ├── ACMEUnknown                a key or an account of ACME that is not kept
    │   ├── ConfigurationUnknown       a version of a configuration that is not kept
    │   ├── ConsoleCodeUnknown         no console shows this code
    │   ├── RunUnknown                 an attestation run that no controller of the cluster opened
    │   └── CertificateUnknown  IssuerUnknown  ExtensionUnknown  DeadLetterUnknown
    ├── Conflict                       it exists, but not in a state that allows this
    │   ├── ChallengeUsed  AKConflict  EKConflict  TPMRequired  TransitionForbidden
    │   ├── MachineChanged  AlreadyExists  AssuranceTooLow  RotationForbidden  NameInUse
    │   ├── ActInProgress  AnswerNotKept  ProposalDiffers  ProposalRival
    │   ├── ConsoleCodeDecided         somebody said before what is to become of a code
    │   └── NodeRequestDiffers  RunDiffers  HSMDiffers
    ├── Expired                        it was good once
    │   └── ChallengeExpired  ConfigTokenConsumed  ConsoleCodeExpired
    ├── RequestInvalid                 well-formed, but the values cannot be right
    │   ├── EKFingerprintMismatch  PolicyInvalid  ProofUnavailable
    │   ├── BundleInvalid  CollateralInvalid  ConfigurationInvalid  IdempotencyKeyReused
    │   ├── SchematicInvalid           a schematic of an image may not be made: a secret, one machine, unknown members
    │   ├── BodyTooComplex             more members, or deeper, than any honest body
    │   ├── QueryInvalid               a query breaks the rules of its language, and where
    │   ├── QueryFailed                a query that cannot be computed: a value is too large or out of range
    │   ├── RequestRefused             an issuer in a cluster does not certify what is asked for, and why
    │   └── CAChainInvalid  CSRInvalid  AlgorithmForbidden  KeyRefused  CAInvalid
    ├── RateLimited                    too often; `retry_after_seconds` says when again
    │   └── PendingQuotaExceeded
    ├── NotAcceptable                  the representation asked for is not served
    ├── AgentTooOld                    the machine speaks a protocol that would make it obey others too
    ├── Unauthenticated                who are you
    ├── Forbidden                      you may not
    │   ├── ClientCertificateUntrusted  InsecureTransport  BreakGlassCannotVote  CrossSiteRequest
    │   └── AuthenticationTooOld  NodeMismatch
    ├── Unavailable                    we could not decide or serve now
    │   ├── OperatorAccessNotConfigured  IdentityProviderUnavailable  RevocationUnknown
    │   ├── ClusterNotConfigured
    │   ├── BaseConfigMissing  BaseConfigInvalid  DeadlineExceeded
    │   ├── ConfigurationsNotKept      no key is set under which configurations would be kept
    │   ├── ConfigurationUnreadable    one that is kept cannot be opened, or was not made active here
    │   ├── StoreUnavailable           └── StoreBusy
    │   ├── QueryTimeout  QueriesBusy  a query was not done in time, and was ended; or not begun
    │   ├── CANotConfigured  CertificateNotConformant  ServiceBusy
    │   ├── FactoryUnavailable         the Image Factory does not answer
    │   │   └── FactoryAnswerInvalid   it answers what cannot be understood
    │   │       └── SchematicMismatch  it calls a schematic by another id than it has
    │   ├── EndorsementMissing         what would vouch for hardware is not at hand, or has expired
    │   └── SignerUnavailable          a private key cannot sign now; it may later
    │       └── SignerBusy
    ├── KeyUnusable                    a key URI names no key that we can use; somebody must change something
    │   ├── KeyURIInvalid              └── PINInURI
    │   ├── KeyNotFound  KeyAmbiguous  KeyUnsupported  KeyMismatch  UnwrapFailed
    │   ├── ModuleUnusable             └── ModuleNotListed
    │   └── TokenAbsent  PINRejected
    └── DeviceError                    the TPM or its transport failed
        ├── TPMResponseError
        └── TEEDeviceError             confidential hardware could not be asked

Messages say what was expected and what was found; never a secret, a token or a whole blob.
"""

# Longer than 500 lines: one tree; a reader looks for a code, not for a module.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final


class AttestationError(Exception):
    """Base of all errors of this project."""

    code: ClassVar[str] = "attestation-error"


class MalformedEvidence(AttestationError):
    """The bytes do not have the layout that their kind demands."""

    code = "malformed-evidence"


class MalformedNote(MalformedEvidence):
    """A signed note, checkpoint, verifier key or export of the audit log cannot be read."""

    code = "malformed-note"


class NotAuthentic(AttestationError):
    """The evidence could be read, but it proves nothing."""

    code = "not-authentic"


class EvidenceRejected(NotAuthentic):
    """A signed statement of a TPM was refused. The node learns this code only, operators the subclass."""

    code = "evidence-rejected"


class SignatureInvalid(EvidenceRejected):
    """These bytes were not signed by this key."""

    code = "signature-invalid"


class ChallengeMismatch(EvidenceRejected):
    """The evidence answers another challenge than ours."""

    code = "challenge-mismatch"


class AttestHeaderInvalid(EvidenceRejected):
    """Magic, type or signer of a TPMS_ATTEST is not what this use demands."""

    code = "attest-header-invalid"


class SelectionMismatch(EvidenceRejected):
    """The quote covers other PCRs than those requested."""

    code = "selection-mismatch"


class PCRDigestMismatch(EvidenceRejected):
    """The PCR values sent are not those that were quoted."""

    code = "pcr-digest-mismatch"


class KeyCertificationRejected(EvidenceRejected):
    """A statement that certifies a key is not about this key, or not by the key that should make it."""

    code = "key-certification-rejected"


class HardwareEvidenceRejected(EvidenceRejected):
    """A report or quote of confidential hardware proves nothing.

    Args:
        failed: Every check that failed, `attestation.results.Failed`, in order; at least one.
    """

    code = "hardware-evidence-rejected"

    def __init__(self, failed: Sequence[Any]) -> None:
        super().__init__(
            "; ".join(f"{each.check}: expected {each.expected}, found {each.found}" for each in failed)
        )
        self.failed = tuple(failed)


class KeyNotResident(EvidenceRejected):
    """A certified key is none that its TPM made and never lets go: software, imported, restricted, of another use.

    Args:
        message: What it is, and what was expected.
        computed: What its bytes say that it is, one word, e.g. `certified-external` or `exportable`.
    """

    code = "key-not-resident"

    def __init__(self, message: str, *, computed: str = "") -> None:
        super().__init__(message)
        self.computed = computed


class EventLogRejected(NotAuthentic):
    """An event log does not lead to the PCRs that were quoted.

    Args:
        message: What is wrong with it.
        pcrs: The PCRs that it fails to explain, ascending; empty where it explains none.
    """

    code = "event-log-rejected"

    def __init__(self, message: str, *, pcrs: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.pcrs = pcrs


class IMALogRejected(NotAuthentic):
    """An IMA measurement list does not lead to the PCR 10 that was quoted."""

    code = "ima-log-rejected"


class ResultTokenRejected(NotAuthentic):
    """An attestation result (EAR) does not verify, or breaks a rule of its profile."""

    code = "result-token-rejected"


class SealRejected(NotAuthentic):
    """A sealed bundle proves nothing: its parts do not belong to what was signed and logged."""

    code = "seal-rejected"


class LogRejected(NotAuthentic):
    """An audit log, or what was said of it, does not verify."""

    code = "log-rejected"


class NoteRejected(LogRejected):
    """A signed note lacks a signature that was demanded, or carries a wrong one of a known key."""

    code = "note-rejected"


class ProofRejected(LogRejected):
    """An inclusion or consistency proof does not lead to the root it claims."""

    code = "proof-rejected"


class LogBroken(LogRejected):
    """An entry of an audit log was changed, removed, inserted or moved, or the end is missing.

    Args:
        message: Which entry, and what is wrong with it.
        entry_id: Id of the first entry that does not fit, from 1; None where no single one can be named.
    """

    code = "log-broken"

    def __init__(self, message: str, *, entry_id: int | None = None) -> None:
        super().__init__(message)
        self.entry_id = entry_id


class BundleRejected(NotAuthentic):
    """A bundle with a CA key is not signed by those who may hand it over, or answers another question."""

    code = "bundle-rejected"


class EKCertificateRejected(NotAuthentic):
    """The EK certificate does not meet the TCG profile, or does not belong to the EK."""

    code = "ek-certificate-rejected"


class EKTemplateRejected(NotAuthentic):
    """The EK public area equals none of the TCG templates."""

    code = "ek-template-rejected"


class AKAttributesRejected(NotAuthentic):
    """The attestation key is not a restricted signing key fixed to its TPM."""

    code = "ak-attributes-rejected"


class AKCertificateRejected(NotAuthentic):
    """The certificate of an attestation key does not vouch for the key at hand.

    Args:
        message: The rule that is broken.
        check: Its name, like `ak-cert-path`.
    """

    code = "ak-certificate-rejected"

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check


class NodeIdentityRejected(NotAuthentic):
    """What should name a node does not, or not in the form that was configured.

    Args:
        message: The rule that is broken.
        check: Its name, like `node-identity-layout`.
    """

    code = "node-identity-rejected"

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check


class ActivationFailed(NotAuthentic):
    """The proof of credential activation is wrong."""

    code = "activation-failed"


class AKNotActivated(NotAuthentic):
    """This machine has no activated attestation key."""

    code = "ak-not-activated"


class RegistrationTokenInvalid(NotAuthentic):
    """The registration token is unknown, spent, expired, revoked or for something else."""

    code = "registration-token-invalid"


class RegistrationForbidden(NotAuthentic):
    """Machines may not be introduced from this network."""

    code = "registration-forbidden"


class MachineRejected(NotAuthentic):
    """An operator rejected this machine."""

    code = "machine-rejected"


class MachineNotAdmitted(NotAuthentic):
    """This machine may have no certificate now: not attested, its lease over, locked, revoked, or changed meanwhile."""

    code = "machine-not-admitted"


class NodeRequestDenied(NotAuthentic):
    """A Kubernetes certificate request was judged not good, so nothing is signed for it."""

    code = "node-request-denied"


class CertificateUntrusted(NotAuthentic):
    """A certificate that was presented is not ours, not valid now, revoked, on hold, or of another machine."""

    code = "certificate-untrusted"


class Unknown(AttestationError):
    """What was named does not exist."""

    code = "unknown"


class ChallengeUnknown(Unknown):
    """No such challenge, or not for this machine and purpose."""

    code = "challenge-unknown"


class MachineUnknown(Unknown):
    """No such machine."""

    code = "machine-unknown"


class ConfigTokenUnknown(Unknown):
    """No such config token."""

    code = "config-token-unknown"


class ApprovalRuleUnknown(Unknown):
    """No approval rule is called so."""

    code = "approval-rule-unknown"


class RegistrationTokenUnknown(Unknown):
    """No such registration token."""

    code = "registration-token-unknown"


class AllowListEntryUnknown(Unknown):
    """This EK is not on the allow-list."""

    code = "allow-list-entry-unknown"


class ClusterUnknown(Unknown):
    """No operator declared a cluster of this name, and no machine is in it."""

    code = "cluster-unknown"


class ResultUnknown(Unknown):
    """This machine has no result of that number, or not any more."""

    code = "result-unknown"


class TrustCertificateUnknown(Unknown):
    """No certificate of that SHA-256 is in the trust bundle."""

    code = "trust-certificate-unknown"


class CertificateUnknown(Unknown):
    """We issued no certificate with this serial number."""

    code = "certificate-unknown"


class IssuerUnknown(Unknown):
    """There is no such CA key of ours."""

    code = "issuer-unknown"


class QueryUnknown(Unknown):
    """The caller keeps no query under this name."""

    code = "query-unknown"


class HSMQuoteUnknown(Unknown):
    """No controller of this cluster brought such a QuoteAttestation, or it is kept no longer."""

    code = "hsm-quote-unknown"


class ACMEUnknown(Unknown):
    """There is no such key for ACME accounts, or no such account, or it is kept no longer."""

    code = "acme-unknown"


class ConfigurationUnknown(Unknown):
    """No such version of a base configuration or patch is kept, or none is active."""

    code = "configuration-unknown"


class ConsoleCodeUnknown(Unknown):
    """No machine was given this code for its console, or it is kept no longer."""

    code = "console-code-unknown"


class RunUnknown(Unknown):
    """No controller of this cluster opened such an attestation run, or it is kept no longer."""

    code = "run-unknown"


class ExtensionUnknown(Unknown):
    """No extension of that name is enabled."""

    code = "extension-unknown"


class DeadLetterUnknown(Unknown):
    """The extension gave up no such event, or has it again already."""

    code = "dead-letter-unknown"


class PolicyUnknown(Unknown):
    """No such policy, or nothing is assigned there."""

    code = "policy-unknown"


class ApprovalUnknown(Unknown):
    """No such vote, or it is no longer live."""

    code = "approval-unknown"


class Conflict(AttestationError):
    """What was named exists, but not in a state that allows this."""

    code = "conflict"


class ChallengeUsed(Conflict):
    """The challenge was redeemed before."""

    code = "challenge-used"


class AKConflict(Conflict):
    """Another attestation key is already activated for this EK; only an operator resets it."""

    code = "ak-conflict"


class TPMRequired(Conflict):
    """The machine is known by confidential hardware; what was asked for needs a TPM."""

    code = "tpm-required"


class EphemeralForbidden(NotAuthentic):
    """Nothing names this guest beyond its boot, and no rule lets such machines in."""

    code = "ephemeral-forbidden"


class EKConflict(Conflict):
    """This machine id belongs to another EK."""

    code = "ek-conflict"


class TransitionForbidden(Conflict):
    """The machine's status does not allow this operation."""

    code = "transition-forbidden"


class ConsoleCodeDecided(Conflict):
    """The code was approved or denied before."""

    code = "console-code-decided"


class MachineChanged(Conflict):
    """The machine is no longer what the caller decided about."""

    code = "machine-changed"


class ProposalDiffers(Conflict):
    """What was asked for is not the proposal that the request names; no vote was counted."""

    code = "proposal-differs"


class ProposalRival(Conflict):
    """Another proposal about the same thing waits for votes; this one was not opened."""

    code = "proposal-rival"


class NodeRequestDiffers(Conflict):
    """Another Kubernetes certificate request was decided under this UID."""

    code = "node-request-differs"


class HSMDiffers(Conflict):
    """To the controller of CA keys in hardware: something else is known under this UID or serial number."""

    code = "hsm-differs"


class RunDiffers(Conflict):
    """To a controller of a Kubernetes cluster: another attestation run was opened under this UID."""

    code = "run-differs"


class AlreadyExists(Conflict):
    """Something immutable with this name exists already."""

    code = "already-exists"


class AssuranceTooLow(Conflict):
    """The identity of the machine is not vouched for as well as its role demands."""

    code = "assurance-too-low"


class NameInUse(Conflict):
    """Another machine is called so already, or the service: host names and addresses are unique in a cluster."""

    code = "name-in-use"


class RotationForbidden(Conflict):
    """The CA keys are not in a state that allows this step of a rotation."""

    code = "ca-rotation-forbidden"


class ActInProgress(Conflict):
    """An act with this idempotency key is being carried out; ask again in a moment."""

    code = "act-in-progress"


class AnswerNotKept(Conflict):
    """This act was done before, and not again now; its first answer is not repeated."""

    code = "answer-not-kept"


class Expired(AttestationError):
    """What was named was good once and is no longer."""

    code = "expired"


class ChallengeExpired(Expired):
    """The challenge was not answered in time."""

    code = "challenge-expired"


class ConfigTokenConsumed(Expired):
    """The config token was used, withdrawn or has expired."""

    code = "token-consumed"


class ConsoleCodeExpired(Expired):
    """The code was on a console too long ago; the machine shows another one."""

    code = "console-code-expired"


class RequestInvalid(AttestationError):
    """The request is well-formed, but its values cannot be right."""

    code = "request-invalid"


class IdempotencyKeyReused(RequestInvalid):
    """This idempotency key was given to another request; nothing was done."""

    code = "idempotency-key-reused"


class BodyTooComplex(RequestInvalid):
    """The body has more members, or is nested deeper, than this route reads."""

    code = "body-too-complex"


class QueryInvalid(RequestInvalid):
    """A query is none of its language, or names what its reader may not see.

    Args:
        message: What is wrong.
        line: Where it begins, from 1.
        column: Likewise: the character of that line, from 1.
        length: How many characters it has, at least 1.
        suggestion: What was probably meant.
    """

    code = "query-invalid"

    def __init__(
        self, message: str, *, line: int, column: int, length: int, suggestion: str | None = None
    ) -> None:
        meant = f"; did you mean {suggestion}?" if suggestion else ""
        super().__init__(f"line {line}, column {column}: {message}{meant}")
        self.message, self.line, self.column, self.length = message, line, column, length
        self.suggestion = suggestion


class QueryFailed(RequestInvalid):
    """The query is one, but the database does not compute it: a value is too large, or out of range."""

    code = "query-failed"


class EKFingerprintMismatch(RequestInvalid):
    """The fingerprint sent is not that of the EK sent."""

    code = "ek-fingerprint-mismatch"


class PolicyInvalid(RequestInvalid):
    """The policy document breaks a rule of its format."""

    code = "policy-invalid"


class CollateralInvalid(RequestInvalid):
    """Collateral under a name is not what the name says, or nobody whom we pinned vouches for it."""

    code = "collateral-invalid"


class BundleInvalid(RequestInvalid):
    """A trust bundle, or a certificate for it, breaks a rule of its format."""

    code = "trust-bundle-invalid"


class SchematicInvalid(RequestInvalid):
    """A schematic holds what looks like a secret or like one machine, or what no schematic has."""

    code = "schematic-invalid"


class CAChainInvalid(RequestInvalid):
    """The certificates do not lead from the key of a CA of ours, under its name, to a root."""

    code = "ca-chain-invalid"


class CSRInvalid(RequestInvalid):
    """The certification request is not signed by its key, or its key is none that we certify."""

    code = "csr-invalid"


class RequestRefused(RequestInvalid):
    """An issuer in a cluster does not certify this, and never will: no later try succeeds.

    Args:
        reason: A word of `attestation.pki.leaf.Refusal`.
        message: What was asked for, and what is allowed.
    """

    code = "request-refused"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CAInvalid(RequestInvalid):
    """This certificate is not that of a CA that could issue, or its key is of no kind that issues."""

    code = "ca-invalid"


class KeyRefused(RequestInvalid):
    """This public key never gets a certificate (again): somebody else has, or may have, the private one."""

    code = "key-refused"


class AlgorithmForbidden(RequestInvalid):
    """The policy in force about algorithms (`ITL_CRYPTO_POLICY`) forbids this one."""

    code = "algorithm-forbidden"


class ConfigurationInvalid(RequestInvalid):
    """The machine's version of Talos would refuse this configuration, or nobody could read it."""

    code = "configuration-invalid"


class ProofUnavailable(RequestInvalid):
    """The audit log has no such entry, size or tile."""

    code = "proof-unavailable"


class RateLimited(AttestationError):
    """Too many requests from this address or for this EK.

    Args:
        message: What was limited.
        retry_after_seconds: Whole seconds until a request may succeed, at least 1.
    """

    code = "rate-limited"

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = max(1, retry_after_seconds)


class PendingQuotaExceeded(RateLimited):
    """Too many machines await approval; operators must decide about some first."""

    code = "pending-quota-exceeded"


class NotAcceptable(AttestationError):
    """The representation asked for is not served."""

    code = "not-acceptable"


class AgentTooOld(AttestationError):
    """There is something for the machine to obey, and its request had no nonce that would bind it to this machine."""

    code = "agent-too-old"


class Unauthenticated(AttestationError):
    """No valid operator credential was presented."""

    code = "unauthenticated"


class Forbidden(AttestationError):
    """The operator is known, but may not do this."""

    code = "forbidden"


class ClientCertificateUntrusted(Forbidden):
    """A client certificate was named in a header by somebody who is not a trusted proxy."""

    code = "client-cert-untrusted"


class InsecureTransport(Forbidden):
    """High assurance demands TLS 1.3 with AES-256-GCM, seen by us or asserted by a trusted proxy."""

    code = "high-assurance-required"


class CrossSiteRequest(Forbidden):
    """A browser sent this request for another site than ours."""

    code = "cross-site-request"


class NodeMismatch(Forbidden):
    """The token names another node of the cluster than the attestation run, or none."""

    code = "node-mismatch"


class BreakGlassCannotVote(Forbidden):
    """Break-glass is not a person: it never counts where several must agree."""

    code = "break-glass-cannot-vote"


class AuthenticationTooOld(Forbidden):
    """Who votes must have proved lately who they are; this login is too long ago (ITL_DUAL_CONTROL_AUTH_SECONDS)."""

    code = "authentication-too-old"


class Unavailable(AttestationError):
    """We could not decide or serve now; nothing was released."""

    code = "unavailable"


class EndorsementMissing(Unavailable):
    """What would vouch for hardware is not at hand, or has expired: its evidence can be neither believed nor refused.

    Args:
        undecided: An outcome for each item that is missing, `attestation.results.Undecided`; at least one.
        names: What could be asked for, by its names (`attestation.endorsements.collateral`).
    """

    code = "endorsement-missing"

    def __init__(self, undecided: Sequence[Any], names: Sequence[str] = ()) -> None:
        super().__init__("; ".join(f"{each.check}: {each.reason}" for each in undecided))
        self.undecided = tuple(undecided)
        self.names = tuple(names)


class OperatorAccessNotConfigured(Unavailable):
    """No method by which operators could authenticate is configured."""

    code = "operator-access-not-configured"


class IdentityProviderUnavailable(Unavailable):
    """The identity provider's keys are not known, so nobody's token can be judged."""

    code = "identity-provider-unavailable"


class RevocationUnknown(Unavailable):
    """Nothing up to date says whether operators' certificates were revoked, so none can be judged."""

    code = "revocation-unknown"


class ClusterNotConfigured(Unavailable):
    """Nothing says by which rule requests of nodes of this Kubernetes cluster are judged."""

    code = "cluster-not-configured"


class BaseConfigMissing(Unavailable):
    """There is no base configuration for the machine's role."""

    code = "base-config-missing"


class BaseConfigInvalid(Unavailable):
    """The base configuration for the machine's role cannot be used."""

    code = "base-config-invalid"


class ConfigurationsNotKept(Unavailable):
    """No key-encryption key is set, so this service keeps no configurations: they are files."""

    code = "configurations-not-kept"


class ConfigurationUnreadable(Unavailable):
    """A configuration that is kept cannot be delivered: its key is away, another one, or somebody else wrote it."""

    code = "configuration-unreadable"


class StoreUnavailable(Unavailable):
    """The database did not answer in time."""

    code = "store-unavailable"


class StoreBusy(StoreUnavailable):
    """Another program keeps the database locked: nothing was written, and nothing of this will be."""

    code = "store-busy"


class QueryTimeout(Unavailable):
    """The query was not done in the time that one may take, and was ended."""

    code = "query-timeout"


class QueriesBusy(Unavailable):
    """As many queries as may run at the same time do: this one was not begun."""

    code = "queries-busy"


class DeadlineExceeded(Unavailable):
    """The caller does not wait any more for what waited here: it was not begun, and will not be."""

    code = "deadline-exceeded"


class ServiceBusy(Unavailable):
    """So much is being served for people whom nobody knows that nothing more is begun for them now."""

    code = "service-busy"


class FactoryUnavailable(Unavailable):
    """The Image Factory did not answer, or refused a schematic."""

    code = "factory-unavailable"


class FactoryAnswerInvalid(FactoryUnavailable):
    """The Image Factory answered what cannot be understood, or more than an answer may have."""

    code = "factory-answer-invalid"


class SchematicMismatch(FactoryAnswerInvalid):
    """The Image Factory calls a schematic by another id than its text has: its images may be others than ours."""

    code = "schematic-mismatch"


class CANotConfigured(Unavailable):
    """This service has no CA, so it issues no certificates."""

    code = "ca-not-configured"


class CertificateNotConformant(Unavailable):
    """What we were about to sign breaks a rule of its profile; it was not signed."""

    code = "certificate-not-conformant"


class SignerUnavailable(Unavailable):
    """A private key cannot sign now: its token, TPM or module does not answer. It is tried again by itself."""

    code = "signer-unavailable"


class SignerBusy(SignerUnavailable):
    """Too many signatures are waiting for this key."""

    code = "signer-busy"


class KeyUnusable(AttestationError):
    """A key URI names no key that we can use."""

    code = "key-unusable"


class KeyURIInvalid(KeyUnusable):
    """A key URI breaks the rules of its scheme."""

    code = "key-uri-invalid"


class PINInURI(KeyURIInvalid):
    """A key URI carries its PIN or passphrase; name a file with `pin-source` instead."""

    code = "key-uri-inline-pin"


class KeyNotFound(KeyUnusable):
    """Nothing is where the key URI points."""

    code = "key-not-found"


class KeyAmbiguous(KeyUnusable):
    """Several private keys fit the key URI; it must name one."""

    code = "key-ambiguous"


class KeyUnsupported(KeyUnusable):
    """The key is of a kind, or is asked for an operation, that its back-end or we do not support."""

    code = "key-unsupported"


class KeyMismatch(KeyUnusable):
    """The private key does not belong to the certificate or public key that stands beside it."""

    code = "key-mismatch"


class UnwrapFailed(KeyUnusable):
    """A wrapped key was refused. Neither class nor message says which of its parts, or which check, failed."""

    code = "unwrap-failed"


class ModuleUnusable(KeyUnusable):
    """The PKCS#11 module cannot be loaded, or does not start."""

    code = "module-unusable"


class ModuleNotListed(ModuleUnusable):
    """The settings list no such PKCS#11 module, or several of which the URI names none: only other settings help."""

    code = "module-not-listed"


class TokenAbsent(KeyUnusable):
    """No PKCS#11 token of that label and serial number is there."""

    code = "token-absent"


class PINRejected(KeyUnusable):
    """The PIN or passphrase is wrong, locked or expired; it is not tried again until its source changes."""

    code = "pin-rejected"


DEVICE_FAULTS: Final = frozenset({"absent", "denied", "busy", "no-provider", "malformed", "failed"})
"""Why a device says nothing, in one word; `device-` before it is what a run is told (CONFIDENTIAL.md §5, C13)."""


class DeviceError(AttestationError):
    """The TPM could not be reached, or answered what no TPM may answer.

    Args:
        message: What was asked, and what came.
        fault: One of `DEVICE_FAULTS`; `attestation.device.faults` says which errno is which.
        hint: What to do, for who runs `attestation-agent` on this machine; follows the message.

    Attributes:
        found: The message alone, for who is told the fault beside it, and runs another program.
    """

    code = "device-error"

    def __init__(self, message: str, *, fault: str = "failed", hint: str = "") -> None:
        super().__init__(message + hint)
        self.fault = fault
        self.found = message


class TEEDeviceError(DeviceError):
    """Confidential hardware could not be asked, or answered what it may not answer (CONFIDENTIAL.md §6).

    Args:
        fault: One of `DEVICE_FAULTS`.
        message: What was asked, and what came.
    """

    code = "tee-device-error"

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(f"device-{fault}: {message}", fault=fault)
        self.found = message


class TPMResponseError(DeviceError):
    """The TPM refused a command.

    Args:
        command: Name of the command, e.g. `TPM2_Quote`.
        response_code: The u32 responseCode (TPM 2.0 Part 2, 6.6).
        text: The code in words.
        fault: As of `DeviceError`.
    """

    code = "tpm-response-error"

    def __init__(self, command: str, response_code: int, text: str, *, fault: str = "failed") -> None:
        super().__init__(f"{command}: {text} (0x{response_code:03x})", fault=fault)
        self.command = command
        self.response_code = response_code
