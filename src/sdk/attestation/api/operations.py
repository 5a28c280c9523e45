"""Each operation of the service, once: what it is on the wire, as `operation` reads it.

The service gives it a handler and says who may ask; a client has it as a method, the command line as a command.
"""

# Longer than 500 lines: each operation once, so that what there is can be read in one place.
# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from attestation import api
from attestation import errors as e
from attestation.api.operation import Operation, operation
from attestation.machines import Role, Status, Trust

PAGE_SIZE: Final = 200
Scope = Literal["fleet", "cluster", "role", "machine"]
MachineSort = Literal[
    "hostname", "-hostname", "status", "-status", "role", "-role", "cluster_id", "-cluster_id",
    "registered_at", "-registered_at", "attested_at", "-attested_at", "last_result_at", "-last_result_at",
    "trust_expires_at", "-trust_expires_at",
]  # fmt: skip
"""What machines are sorted by, with `-` before it downwards; who has no such value comes last both ways."""

# fmt: off
OCTETS: Final = "application/octet-stream"
PEM: Final = "application/x-pem-file"
CRL: Final = "application/pkix-crl"
OCSP: Final = "application/ocsp-response"
ACT: Final = (e.MachineUnknown, e.TransitionForbidden, e.MachineChanged)
GRANT: Final = (*ACT, e.ClusterUnknown, e.AssuranceTooLow, e.EphemeralForbidden, e.NameInUse)
NO_RESULT: Final = (e.MachineUnknown, e.ResultUnknown)
NO_CERTIFICATE: Final = (e.CertificateUnknown, e.TransitionForbidden)
ASSIGNMENT: Final = (e.PolicyUnknown, e.ClusterUnknown, e.PolicyInvalid, e.MachineUnknown, e.RequestInvalid)
PROOF: Final = (e.ProofUnavailable, e.RateLimited, e.Unavailable)
KEPT: Final = (e.ConfigurationsNotKept, e.ConfigurationUnreadable, e.SignerUnavailable)
VERSION: Final = (e.ConfigurationUnknown, *KEPT)
PATCH: Final = (e.MachineUnknown, *VERSION)
LIST: Final = (e.CANotConfigured, e.IssuerUnknown, e.RateLimited, e.SignerBusy, e.SignerUnavailable)
DECIDED: Final = (e.ConsoleCodeUnknown, e.ConsoleCodeDecided, e.ConsoleCodeExpired, e.RateLimited)
CHALLENGED: Final = (e.MachineUnknown, e.ChallengeUnknown, e.ChallengeUsed, e.ChallengeExpired)
REFUSED: Final = (e.MalformedEvidence, e.EvidenceRejected, e.MachineRejected, e.MachineNotAdmitted)
INTRODUCTION: Final = (
    e.MalformedEvidence, e.EKCertificateRejected, e.EKTemplateRejected, e.AKAttributesRejected, e.AKConflict,
    e.EKFingerprintMismatch, e.AlgorithmForbidden, e.RequestInvalid, e.PendingQuotaExceeded, e.RegistrationForbidden,
)


class NodeAPI:
    """What a machine asks (PROTOCOL §§1-6, 8)."""

    @operation("self_register", "POST /self-register", *INTRODUCTION)
    def self_register(self, request: api.IntroduceRequest) -> api.IntroduceResponse:
        """Introduce the TPM (§1)."""

    @operation("register", "POST /register", *INTRODUCTION, e.RegistrationTokenInvalid)
    def register(self, request: api.RegisterRequest) -> api.IntroduceResponse:
        """Introduce the TPM (§1), with a registration token if there is one."""

    @operation("ak_activate", "POST /machines/{machine_id}/ak-activate",
               e.MalformedEvidence, e.ActivationFailed, e.RegistrationTokenInvalid, *CHALLENGED[1:],
               e.AKConflict, e.MachineChanged, e.PendingQuotaExceeded)
    def activate(self, machine_id: str, request: api.ActivateRequest) -> api.ActivateResponse:
        """Prove that the AK lives in the introduced TPM (§2)."""

    @operation("tee_activate", "POST /machines/{machine_id}/tee-activate",
               e.MalformedEvidence, e.EvidenceRejected, e.EphemeralForbidden, e.RegistrationTokenInvalid,
               *CHALLENGED[1:], e.AKConflict, e.MachineChanged, e.PendingQuotaExceeded, e.Unavailable)
    def tee_activate(self, machine_id: str, request: api.TEEActivateRequest) -> api.ActivateResponse:
        """Prove that confidential hardware vouches for the subject key (§9)."""

    @operation("attest_challenge", "GET /attest/challenge", e.MachineUnknown, e.Unavailable)
    def challenge(self, machine_id: str) -> api.QuoteChallenge:
        """Fetch a fresh challenge (§3)."""

    @operation("attest", "POST /attest", *CHALLENGED, e.MachineChanged, e.MalformedEvidence, e.EvidenceRejected,
               e.EKFingerprintMismatch, e.AlgorithmForbidden, e.AKNotActivated, e.MachineRejected, e.AgentTooOld,
               e.EphemeralForbidden, e.RequestInvalid, e.Unavailable)
    def attest(self, request: api.AttestRequest) -> api.AttestResponse:
        """Send a quote (§4). The answer's `action` may not be obeyed, only its verified `directive`."""

    @operation("acknowledge", "POST /machines/{machine_id}/ack", *CHALLENGED, e.MachineChanged, e.MalformedEvidence,
               e.EvidenceRejected, e.AKNotActivated, e.MachineRejected, e.TransitionForbidden, e.Unavailable)
    def ack(self, machine_id: str, request: api.AckRequest) -> api.AckResponse:
        """Acknowledge a directive (§6)."""

    @operation("certificate_challenge", "GET /machines/{machine_id}/challenge", e.MachineUnknown, e.CANotConfigured,
               e.ClusterNotConfigured, e.TPMRequired)
    def certificate_challenge(
        self, machine_id: str, purpose: Literal["certify", "enroll", "node-csr"]
    ) -> api.CertificateChallenge:
        """Fetch a fresh challenge for a certificate (§7): to be given one, to present one, or for Kubernetes."""

    @operation("request_certificate", "POST /machines/{machine_id}/request-cert", *CHALLENGED, *REFUSED,
               e.CSRInvalid, e.AlgorithmForbidden, e.AKNotActivated, e.RequestInvalid, e.MachineChanged, e.NameInUse,
               e.CANotConfigured, e.CertificateNotConformant, e.KeyRefused, e.SignerUnavailable, e.SignerBusy,
               e.TPMRequired)
    def request_certificate(self, machine_id: str, request: api.CertRequest) -> api.CertResponse:
        """Ask for a certificate for a key of the TPM (§8); again, to renew it."""

    @operation("enroll", "POST /machines/enroll", *CHALLENGED, *REFUSED, e.CertificateUntrusted, e.CANotConfigured)
    def enroll(self, request: api.EnrollRequest) -> api.EnrollResponse:
        """Present a certificate with the challenge signed by its key (§9)."""


class ClusterAPI:
    """What controllers of a Kubernetes cluster ask, with the token of their ServiceAccount."""

    @operation("appraise_node_csr", "POST /node-csr/appraise", e.NodeRequestDiffers, e.Unavailable)
    def appraise(self, request: api.NodeCSRRequest) -> api.NodeCSRDecision:
        """Return what is to be done with a certificate request of a node."""

    @operation("sign_node_csr", "POST /node-csr/sign", e.NodeRequestDenied, e.NodeRequestDiffers, e.AlgorithmForbidden,
               e.CANotConfigured, e.CertificateNotConformant, e.KeyRefused, e.SignerUnavailable, e.SignerBusy,
               e.Unavailable)
    def sign(self, request: api.NodeCSRRequest) -> api.NodeCertificate:
        """Return the certificate for a request that was judged good."""

    @operation("list_node_trust", "GET /node-csr/trust", e.RequestInvalid)
    def trust(self, *, page_size: int = PAGE_SIZE) -> Annotated[Iterator[api.NodeTrust], api.NodeTrustPage]:
        """Yield what the machines of the caller's cluster are worth now."""

    @operation("open_run", "PUT /runs/{uid}", e.RunDiffers, e.ChallengeExpired, e.PolicyInvalid, e.RequestInvalid)
    def open_run(self, uid: str, request: api.RunOpen) -> api.RunOpened:
        """Open an attestation run of a node, and its next attempt where the last one ended unanswered."""

    @operation("get_run", "GET /runs/{uid}", e.RunUnknown, e.RunDiffers)
    def run(self, uid: str) -> api.RunDetail:
        """Return what became of an attestation run."""

    @operation("seal_run", "PUT /runs/{uid}/bundle", e.RunUnknown, e.RunDiffers, e.RequestInvalid)
    def seal_run(self, uid: str, request: api.RunSeal) -> api.RunBundle:
        """Have what was judged of a run sealed, and tell how far that is."""

    @operation("get_run_challenge", "GET /runs/{uid}/challenge", e.RunUnknown, e.NodeMismatch, e.ChallengeUsed,
               e.ChallengeExpired)
    def run_challenge(self, uid: str) -> api.RunChallenge:
        """Fetch what the hardware of the caller's node is to sign for a run."""

    @operation("post_run_evidence", "POST /runs/{uid}/evidence", e.RunUnknown, e.NodeMismatch, e.ChallengeUnknown,
               e.ChallengeUsed, e.ChallengeExpired, e.MalformedEvidence, e.MachineChanged, e.SignerUnavailable,
               e.SignerBusy, e.Unavailable)
    def post_run_evidence(self, uid: str, request: api.RunEvidence) -> None:
        """Deliver evidence of the caller's node for a run, or why there is none."""


    # CA keys in hardware of the cluster

    @operation("put_hsm_issuer", "PUT /hsm/issuers/{uid}", e.HSMDiffers, e.MalformedEvidence, e.RequestInvalid)
    def put_hsm_issuer(self, uid: str, request: api.HSMIssuerPut) -> api.HSMIssuer:
        """Register the CA certificate of an issuer whose key is in hardware."""

    @operation("reserve_hsm_certificates", "POST /hsm/issuers/{issuer_id}/certificates", e.IssuerUnknown,
               e.HSMDiffers, e.RequestInvalid)
    def reserve_hsm_certificates(self, issuer_id: str, request: api.HSMReserve) -> api.HSMReserved:
        """Take serial numbers for certificates that are about to be signed."""

    @operation("record_hsm_certificates", "POST /hsm/issuers/{issuer_id}/certificates/issued", e.IssuerUnknown,
               e.HSMDiffers, e.CertificateUnknown, e.MalformedEvidence, e.RequestInvalid)
    def record_hsm_certificates(self, issuer_id: str, request: api.HSMIssued) -> api.HSMRecorded:
        """Write down certificates that were signed, before anybody gets them."""

    @operation("begin_hsm_crl", "GET /hsm/issuers/{issuer_id}/crl", e.IssuerUnknown, e.HSMDiffers, e.RequestInvalid)
    def begin_hsm_crl(self, issuer_id: str) -> api.HSMList:
        """Begin a revocation list of an issuer, where one is due."""

    @operation("put_hsm_crl", "PUT /hsm/issuers/{issuer_id}/crl", e.IssuerUnknown, e.HSMDiffers, e.MalformedEvidence,
               e.RequestInvalid)
    def put_hsm_crl(self, issuer_id: str, request: api.HSMListPut) -> None:
        """Hand in the revocation list that was begun, signed."""

    @operation("get_hsm_responder", "GET /hsm/issuers/{issuer_id}/responder", e.IssuerUnknown, e.SignerUnavailable)
    def hsm_responder(self, issuer_id: str) -> api.HSMResponder:
        """Return what is to be certified, so that the service answers OCSP for an issuer."""

    @operation("put_hsm_responder", "PUT /hsm/issuers/{issuer_id}/responder", e.IssuerUnknown, e.HSMDiffers,
               e.MalformedEvidence, e.RequestInvalid, e.SignerUnavailable)
    def put_hsm_responder(self, issuer_id: str, request: api.HSMResponderPut) -> None:
        """Hand in the certificate of the key that answers OCSP for an issuer."""

    @operation("issue_hsm_nonce", "POST /hsm/nonces")
    def hsm_nonce(self, request: api.HSMNonceRequest) -> api.HSMNonce:
        """Return a fresh nonce for evidence of one issuer."""

    @operation("put_quote_attestation", "PUT /hsm/quote-attestations/{uid}", e.HSMDiffers, e.MalformedEvidence,
               e.ChallengeUnknown, e.ChallengeUsed, e.ChallengeExpired, e.RequestInvalid, e.Unavailable)
    def put_quote_attestation(self, uid: str, request: api.QuoteAttestationPut) -> api.QuoteVerdict:
        """Have the evidence of a QuoteAttestation judged."""

    @operation("add_quote_step", "POST /hsm/quote-attestations/{uid}/steps", e.HSMQuoteUnknown, e.HSMDiffers,
               e.ChallengeUnknown, e.ChallengeUsed, e.ChallengeExpired, e.RequestInvalid)
    def add_quote_step(self, uid: str, request: api.QuoteStep) -> api.QuoteStepRecorded:
        """Write down what became of the key that a QuoteAttestation asked for."""


class PublicAPI:
    """What is asked in another form: a client words each of these requests itself, and reads what comes."""

    fetch_config = Operation(
        "fetch_config", "GET /config/{config_token}", e.ConfigTokenUnknown, e.ConfigTokenConsumed, e.NotAcceptable,
        e.AgentTooOld, e.BaseConfigMissing, e.BaseConfigInvalid, e.ConfigurationUnreadable, e.SignerUnavailable,
        e.Unavailable,
        accept="application/vnd.itl.config.encrypted+json",
    )
    pending_config = Operation("pending_config", "GET /config", e.Unavailable)
    device_page = Operation("device_page", "GET /device", accept="text/plain")
    device_code = Operation("device_code", "POST /device/code")
    device_token = Operation("device_token", "POST /token")
    device_code_v1 = Operation("device_code_v1", "POST /device/code")
    device_token_v1 = Operation("device_token_v1", "POST /token")
    service_keys = Operation("service_keys", "GET /service-keys", e.SignerUnavailable)
    healthz = Operation("healthz", "GET /healthz")
    readyz = Operation("readyz", "GET /readyz")
    active_crl = Operation("pki_active_crl", "GET /pki/crl", *LIST, accept=CRL)
    crl = Operation("pki_crl", "GET /pki/crl/{issuer_id}", *LIST, accept=CRL)
    active_ca = Operation("pki_active_ca", "GET /pki/ca", *LIST[:3], accept=PEM)
    ca = Operation("pki_ca", "GET /pki/ca/{issuer_id}", *LIST[:3], accept="application/pkix-cert")
    ca_bundle = Operation("pki_bundle", "GET /pki/bundle", LIST[0], *LIST[2:], accept=PEM)
    hsm_crl = Operation("pki_hsm_crl", "GET /pki/hsm/{issuer_id}.crl", e.IssuerUnknown, e.RateLimited, e.Unavailable,
                        accept=CRL)
    hsm_ca = Operation("pki_hsm_ca", "GET /pki/hsm/{issuer_id}.crt", e.IssuerUnknown, e.RateLimited,
                       accept="application/pkix-cert")
    acme_directory = Operation("acme_directory", "GET /acme/directory", 404)
    acme_new_nonce = Operation("acme_new_nonce", "HEAD /acme/new-nonce", 404, e.SignerUnavailable)
    acme_get_nonce = Operation("acme_get_nonce", "GET /acme/new-nonce", 404, e.SignerUnavailable)
    acme_new_account = Operation("acme_new_account", "POST /acme/new-account")
    acme_account = Operation("acme_account", "POST /acme/accounts/{account_id}")
    acme_orders = Operation("acme_orders", "POST /acme/accounts/{account_id}/orders")
    acme_key_change = Operation("acme_key_change", "POST /acme/key-change")
    acme_new_order = Operation("acme_new_order", "POST /acme/new-order")
    acme_order = Operation("acme_order", "POST /acme/orders/{order_id}")
    acme_authorization = Operation("acme_authorization", "POST /acme/authorizations/{order_id}")
    acme_challenge = Operation("acme_challenge", "POST /acme/challenges/{order_id}")
    acme_finalize = Operation("acme_finalize", "POST /acme/orders/{order_id}/finalize")
    acme_certificate = Operation("acme_certificate", "POST /acme/certificates/{order_id}/{serial}",
                                 accept="application/pem-certificate-chain")
    acme_revoke = Operation("acme_revoke_cert", "POST /acme/revoke-cert")
    ocsp_post = Operation("pki_ocsp", "POST /pki/ocsp", e.CANotConfigured, accept=OCSP)
    ocsp = Operation("pki_ocsp_get", "GET /pki/ocsp/{request:path}", e.CANotConfigured, accept=OCSP)


class OperatorAPI:
    """What an operator asks (PROTOCOL §7, ITL-REFERENCE §4)."""

    # Machines

    @operation("list_machines", "GET /machines", e.RequestInvalid)
    def machines(
        self, *, status: Status | None = None, role: Role | None = None, cluster_id: str | None = None,
        trust: Trust | None = None, q: str | None = None, labels: str | None = None, ids: str | None = None,
        sort: MachineSort | None = None, page_size: int = PAGE_SIZE,
    ) -> Annotated[Iterator[api.MachineDetail], api.MachinePage]:
        """Yield machines, newest first; pages are fetched as they are needed. *labels*: `rack=4,site`; *ids*: `a,b`."""

    @operation("get_machine", "GET /machines/{machine_id}", e.MachineUnknown)
    def machine(self, machine_id: str) -> api.MachineDetail:
        """Return one machine."""

    @operation("get_machine_keys", "GET /machines/{machine_id}/keys", e.MachineUnknown)
    def machine_keys(self, machine_id: str) -> api.KeysDetail:
        """Return where the activation of a machine's keys stands."""

    @operation("label_machine", "POST /machines/{machine_id}/labels", e.MachineUnknown, e.RequestInvalid)
    def label(self, machine_id: str, request: api.LabelsRequest) -> api.MachineDetail:
        """Write labels on a machine, or take them off; what is not named stays."""

    @operation("import_receipt", "POST /machines/import", e.EKConflict)
    def import_receipt(self, request: api.ReceiptImport) -> api.ImportedMachine:
        """Expect the machine of a receipt; nothing but a proof admits it."""

    @operation("approve_machine", "POST /machines/{machine_id}/approve", *GRANT)
    def approve(self, machine_id: str, request: api.ApproveRequest) -> api.MachineDetail | api.PendingApproval:
        """Admit a pending machine, or vote for it where others must agree."""

    @operation("reject_machine", "POST /machines/{machine_id}/reject", *ACT)
    def reject(self, machine_id: str, reason: str) -> api.MachineDetail:
        """Refuse a pending machine."""

    @operation("lock_machine", "POST /machines/{machine_id}/lock", *ACT)
    def lock(self, machine_id: str, reason: str | None = None) -> api.MachineDetail:
        """Suspend an attested machine."""

    @operation("unlock_machine", "POST /machines/{machine_id}/unlock", *ACT)
    def unlock(self, machine_id: str, reason: str | None = None) -> api.MachineDetail | api.PendingApproval:
        """Let a locked machine attest again, or vote for it where others must agree."""

    @operation("change_role", "POST /machines/{machine_id}/role", *GRANT)
    def change_role(
        self, machine_id: str, request: api.RoleChangeRequest
    ) -> api.MachineDetail | api.PendingApproval:
        """Give an admitted machine another role, or vote for it where others must agree."""

    @operation("revoke_machine", "POST /machines/{machine_id}/revoke", *ACT)
    def revoke(
        self, machine_id: str, *, wipe: bool = False, reason: str | None = None, confirm_name: str | None = None
    ) -> api.MachineDetail:
        """End a machine's admission for good; *wipe* also orders it to erase itself."""

    @operation("replace_machine", "POST /machines/{machine_id}/replace", *GRANT, e.RequestInvalid)
    def replace(self, machine_id: str, request: api.ReplaceRequest) -> api.MachineDetail | api.PendingApproval:
        """Let a machine that waits take the place of this one, or vote for it where others must agree."""

    @operation("reset_ak", "POST /machines/{machine_id}/ak-reset", *ACT)
    def ak_reset(
        self, machine_id: str, reason: str, confirm_name: str | None = None
    ) -> api.MachineDetail | api.PendingApproval:
        """Let the machine activate another attestation key, or vote for it where others must agree."""

    @operation("approve_hardware", "POST /machines/{machine_id}/approve-hardware", *ACT, e.RequestInvalid)
    def approve_hardware(
        self, machine_id: str, reason: str, chip: str | None = None, expected_version: int | None = None
    ) -> api.MachineDetail | api.PendingApproval:
        """Approve the confidential hardware that a machine was seen on last, or vote for it where others must agree."""

    @operation("redeliver_config", "POST /machines/{machine_id}/redeliver", *ACT)
    def redeliver(self, machine_id: str) -> api.MachineDetail | api.PendingApproval:
        """Offer the configuration again at the next attestation, or vote for it where others must agree."""

    @operation("delete_machine", "DELETE /machines/{machine_id}", *ACT)
    def delete_machine(self, machine_id: str, confirm_name: str | None = None) -> None:
        """Delete a rejected or wiped machine; its audit entries stay."""

    @operation("offline_bundle", "POST /machines/{machine_id}/offline-bundle", e.MachineUnknown, e.TransitionForbidden,
               e.RequestInvalid, e.BaseConfigMissing, e.BaseConfigInvalid, e.ConfigurationUnreadable, e.CANotConfigured,
               e.CertificateNotConformant, e.SignerUnavailable, e.SignerBusy, e.Unavailable)
    def offline_bundle(self, machine_id: str) -> api.OfflineBundle | api.PendingApproval:
        """Have a machine's offline bundle made, sealed to its TPM (compatibility), or vote for it."""

    @operation("list_results", "GET /machines/{machine_id}/results", e.MachineUnknown, e.RequestInvalid)
    def results(
        self, machine_id: str, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ResultDetail], api.ResultPage]:
        """Yield the stored attestation results of a machine, newest first."""

    @operation("get_result", "GET /machines/{machine_id}/results/{result_id}", *NO_RESULT)
    def result(self, machine_id: str, result_id: int) -> api.ResultReport:
        """Return one result with what it was judged from, and what explains a change."""

    @operation("get_event_log", "GET /machines/{machine_id}/results/{result_id}/event-log", *NO_RESULT, accept=OCTETS)
    def event_log(self, machine_id: str, result_id: int) -> bytes:
        """Return the boot event log of a result, as the machine sent it: bytes of a stranger."""

    @operation("get_ima_log", "GET /machines/{machine_id}/results/{result_id}/ima-log", *NO_RESULT, accept=OCTETS)
    def ima_log(self, machine_id: str, result_id: int) -> bytes:
        """Return the IMA list of a result, as the machine sent it: bytes of a stranger."""

    @operation("get_result_token", "GET /machines/{machine_id}/results/{result_id}/token", *NO_RESULT,
               accept="application/eat+jwt")
    def result_token(
        self, machine_id: str, result_id: int, *, profile: Literal["draft-04", "veraison-2023"] = "draft-04",
        checks: bool = False,
    ) -> str:
        """Return a result as a signed EAR; *checks* names every check in it, which is not for the machine."""

    @operation("whoami", "GET /whoami")
    def whoami(self) -> api.WhoAmI:
        """Return whom the service takes us for, and what we may."""

    @operation("stats", "GET /stats")
    def stats(self) -> api.Stats:
        """Return how many machines there are by status, role and trust."""

    @operation("attention", "GET /stats/attention")
    def attention(self) -> api.Attention:
        """Return what operators should look at, in numbers."""

    @operation("health_findings", "GET /health/findings", e.Unavailable)
    def health_findings(self) -> api.HealthFindings:
        """Return what a running service finds of itself, and what to do about it."""

    @operation("list_settings", "GET /settings")
    def settings(self) -> api.SettingList:
        """Return the settings of the process that answers; what may hold a secret is not shown."""

    # Dual control

    @operation("list_machine_approvals", "GET /machines/{machine_id}/approvals", e.MachineUnknown, e.RequestInvalid)
    def machine_approvals(
        self, machine_id: str, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ApprovalDetail], api.ApprovalPage]:
        """Yield the votes about a machine, newest first: live, expired, withdrawn and consumed ones."""

    @operation("list_proposals", "GET /approvals", e.RequestInvalid)
    def proposals(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ProposalDetail], api.ProposalPage]:
        """Yield what waits for votes, newest first: about machines, tokens and the allow-list."""

    @operation("get_proposal", "GET /approvals/{proposal_digest}/proposal", e.ApprovalUnknown)
    def proposal(self, proposal_digest: str) -> api.ProposalDetail:
        """Return one proposal that waits for votes, with what was sent with it."""

    @operation("withdraw_approval", "DELETE /approvals/{approval_id}", e.ApprovalUnknown, e.Forbidden)
    def withdraw_approval(self, approval_id: int) -> None:
        """Take back one's own live vote."""

    @operation("object_to_proposal", "POST /approvals/{proposal_digest}/object", e.ApprovalUnknown)
    def object_to_proposal(self, proposal_digest: str, reason: str) -> api.Objected:
        """End every vote for a proposal; one operator is enough, or break-glass."""

    @operation("list_node_csr_decisions", "GET /node-csr/decisions", e.RequestInvalid)
    def node_csr_decisions(
        self, machine_id: str | None = None, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.NodeCSRDecisionDetail], api.NodeCSRDecisionPage]:
        """Yield what was decided of certificate requests of Kubernetes nodes, newest first."""

    @operation("read_run_bundle", "GET /runs/{uid}/bundle", e.RunUnknown, e.RequestInvalid, e.Unavailable,
               accept="application/vnd.dev.sigstore.bundle+dsse")
    def run_bundle(self, uid: str, cluster_id: str | None = None) -> bytes:
        """Return the sealed bundle of an attestation run, which proves itself."""

    # Admission in advance

    @operation("create_registration_token", "POST /registration-tokens", e.NameInUse, e.ClusterUnknown,
               e.RequestInvalid)
    def create_registration_token(
        self, request: api.RegistrationTokenRequest
    ) -> api.RegistrationTokenCreated | api.PendingApproval:
        """Issue a registration token, its secret in this answer only; or vote for it."""

    @operation("list_registration_tokens", "GET /registration-tokens", e.RequestInvalid)
    def registration_tokens(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.RegistrationTokenDetail], api.RegistrationTokenPage]:
        """Yield registration tokens, newest first, without their secrets."""

    @operation("revoke_registration_token", "DELETE /registration-tokens/{token_id}", e.RegistrationTokenUnknown)
    def revoke_registration_token(self, token_id: str) -> None:
        """Make a registration token useless."""

    @operation("list_approval_rules", "GET /approval-rules", e.RequestInvalid)
    def approval_rules(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ApprovalRuleDetail], api.ApprovalRulePage]:
        """Yield the rules by which machines are approved without a person, in the order of their names."""

    @operation("create_approval_rule", "POST /approval-rules", e.AlreadyExists, e.ClusterUnknown, e.RequestInvalid)
    def create_approval_rule(
        self, request: api.ApprovalRuleCreate
    ) -> api.ApprovalRuleDetail | api.PendingApproval:
        """Make a rule, which approves nobody before it is enabled; or vote for it."""

    @operation("try_approval_rule", "GET /approval-rule-trials", e.RequestInvalid)
    def try_approval_rule(
        self, expression: str, *, minimum_assurance: str | None = None, hostname: str | None = None
    ) -> api.ApprovalRuleTried:
        """Return what a rule would approve of the machines that wait; changes nothing."""

    @operation("enable_approval_rule", "POST /approval-rules/{name}/enable", e.ApprovalRuleUnknown, e.RequestInvalid)
    def enable_approval_rule(self, name: str) -> api.ApprovalRuleDetail | api.PendingApproval:
        """Let a rule approve machines from now on; or vote for it."""

    @operation("disable_approval_rule", "POST /approval-rules/{name}/disable", e.ApprovalRuleUnknown)
    def disable_approval_rule(self, name: str) -> api.ApprovalRuleDetail:
        """Let a rule approve nobody any more."""

    @operation("remove_approval_rule", "DELETE /approval-rules/{name}", e.ApprovalRuleUnknown)
    def remove_approval_rule(self, name: str) -> None:
        """Remove a rule; machines that it approved stay."""

    # Consoles

    @operation("list_console_codes", "GET /console-codes", e.RequestInvalid)
    def console_codes(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ConsoleCodeDetail], api.ConsoleCodePage]:
        """Yield codes that machines show on their consoles, newest first."""

    @operation("get_console_code", "GET /console-codes/{code}", e.ConsoleCodeUnknown, e.RateLimited)
    def console_code(self, code: str) -> api.ConsoleCodeShown:
        """Return what is known of the machine that shows a code."""

    @operation("approve_console_code", "POST /console-codes/{code}/approve", *DECIDED)
    def approve_console_code(self, code: str) -> api.ConsoleCodeShown:
        """Say that one stands before the machine that shows a code."""

    @operation("deny_console_code", "POST /console-codes/{code}/deny", *DECIDED)
    def deny_console_code(self, code: str) -> api.ConsoleCodeShown:
        """Refuse a code for good."""

    # ACME

    @operation("make_acme_key", "POST /acme/keys", e.MachineUnknown, e.SignerUnavailable)
    def make_acme_key(self, request: api.ACMEKeyRequest) -> api.ACMEKeyMade:
        """Make a key with which somebody may make one ACME account; it is in this answer only."""

    @operation("list_acme_keys", "GET /acme/keys", e.RequestInvalid)
    def acme_keys(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ACMEKeyDetail], api.ACMEKeyPage]:
        """Yield keys for ACME accounts, newest first, without the keys."""

    @operation("revoke_acme_key", "POST /acme/keys/{key_id}/revoke", e.ACMEUnknown, e.TransitionForbidden)
    def revoke_acme_key(self, key_id: str) -> api.ACMEKeyDetail:
        """Let a key make no account any more."""

    @operation("list_acme_accounts", "GET /acme/accounts", e.RequestInvalid)
    def acme_accounts(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ACMEAccountDetail], api.ACMEAccountPage]:
        """Yield ACME accounts, newest first."""

    @operation("revoke_acme_account", "POST /acme/accounts/{account_id}/revoke", e.ACMEUnknown, e.TransitionForbidden)
    def revoke_acme_account(self, account_id: str, reason: str) -> api.ACMEAccountDetail:
        """End an ACME account for good; its certificates stay."""

    @operation("list_acme_orders", "GET /acme/orders", e.RequestInvalid)
    def acme_orders(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ACMEOrderDetail], api.ACMEOrderPage]:
        """Yield ACME orders, newest first; each goes a day after its end."""

    @operation("issue_image", "POST /images", e.SchematicInvalid, e.RequestInvalid, e.FactoryUnavailable,
               e.FactoryAnswerInvalid, e.SchematicMismatch, e.ClusterUnknown)
    def issue_image(self, request: api.ImageRequest) -> api.ImageDetail:
        """Have the image made that any machine of a role can boot, and learn where it is."""

    @operation("import_allow_list", "POST /allow-list", e.RequestInvalid, e.NameInUse, e.ClusterUnknown)
    def import_allow_list(self, request: api.AllowListImport) -> api.AllowListImported | api.PendingApproval:
        """Admit EKs in advance, all of them or none, or vote for it; at most 10,000 and 1 MiB."""

    @operation("list_allow_list", "GET /allow-list", e.RequestInvalid)
    def allow_list(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.AllowListItem], api.AllowListPage]:
        """Yield allow-list entries in the order of their fingerprints."""

    @operation("remove_from_allow_list", "DELETE /allow-list/{ek_fingerprint}", e.AllowListEntryUnknown)
    def remove_from_allow_list(self, ek_fingerprint: str) -> None:
        """Remove one EK from the allow-list; machines already admitted stay."""

    # Clusters

    @operation("list_clusters", "GET /clusters", e.RequestInvalid)
    def clusters(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.ClusterSummary], api.ClusterPage]:
        """Yield clusters that are declared or that machines are in, in the order of their ids."""

    @operation("create_cluster", "POST /clusters", e.AlreadyExists)
    def create_cluster(self, request: api.ClusterCreate) -> api.ClusterDetail | api.PendingApproval:
        """Declare a cluster; with a version of Talos, or vote for it."""

    @operation("get_cluster", "GET /clusters/{cluster_id}", e.ClusterUnknown)
    def cluster(self, cluster_id: str) -> api.ClusterDetail:
        """Return one cluster."""

    @operation("change_cluster", "POST /clusters/{cluster_id}", e.ClusterUnknown)
    def change_cluster(
        self, cluster_id: str, request: api.ClusterChange
    ) -> api.ClusterDetail | api.PendingApproval:
        """Change what is declared of a cluster; another version of Talos, or vote for it."""

    # Audit

    @operation("list_audit", "GET /audit", e.RequestInvalid)
    def audit(
        self, *, machine_id: str | None = None, action: str | None = None, operator_cn: str | None = None,
        since: datetime | None = None, until: datetime | None = None, text: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Annotated[Iterator[api.AuditEntryDetail], api.AuditPage]:
        """Yield audit entries, newest first; *since* an instant, before *until*, with *text* in them."""

    @operation("verify_audit", "GET /audit/verify")
    def verify_audit(self) -> api.AuditVerification:
        """Let the service walk its whole audit chain."""

    @operation("export_audit", "GET /audit/export", e.Unavailable, accept="application/jsonl")
    def export_audit(self) -> Generator[bytes, None, None]:
        """Yield the whole log in one file, piece by piece (`attestation.audit.export` reads it)."""

    @operation("audit_checkpoint", "GET /audit/checkpoint", e.RateLimited, e.Unavailable, accept="text/plain")
    def audit_checkpoint(self) -> bytes:
        """Return the newest signed checkpoint (`attestation.audit.checkpoint` reads it)."""

    @operation("audit_keys", "GET /audit/keys", e.RateLimited)
    def audit_keys(self) -> api.AuditKeys:
        """Return who signs for the log, as the service says: to be compared before they are believed."""

    @operation("audit_inclusion", "GET /audit/proof/inclusion", *PROOF)
    def audit_inclusion(self, index: int, size: int) -> api.InclusionProof:
        """Return the proof that entry *index* + 1 is in the log of *size* entries."""

    @operation("audit_consistency", "GET /audit/proof/consistency", *PROOF)
    def audit_consistency(self, from_: int, to: int) -> api.ConsistencyProof:
        """Return the proof that the log of *from_* entries is the beginning of that of *to*."""

    @operation("audit_tile", "GET /audit/tile/{path:path}", 404, *PROOF, accept=OCTETS)
    def audit_tile(self, path: str) -> bytes:
        """Return a tile of hashes."""

    @operation("audit_entries_tile", "GET /audit/tile/entries/{path:path}", 404, e.ProofUnavailable, accept=OCTETS)
    def audit_entries_tile(self, path: str) -> bytes:
        """Return a bundle of entries (`attestation.audit.tiles` names and reads it)."""

    # Policies

    @operation("list_policies", "GET /policies")
    def policies(self) -> api.PolicyList:
        """Return all policies and where they apply."""

    @operation("create_policy", "POST /policies", e.PolicyInvalid, e.AlreadyExists)
    def create_policy(self, request: Mapping[str, Any]) -> api.PolicyDetail:
        """Store a policy version, which is immutable from then on."""

    @operation("list_policy_history", "GET /policies/history", e.RequestInvalid)
    def policy_history(
        self, scope: Scope | None = None, subject: str | None = None, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.PolicyChangeDetail], api.PolicyHistoryPage]:
        """Yield what applied where and since when, newest first."""

    @operation("test_policy", "POST /policies/test",
               e.PolicyInvalid, e.PolicyUnknown, e.MachineUnknown, e.RequestInvalid)
    def test_policy(self, request: api.PolicyTestRequest) -> api.PolicyTestPage:
        """Return how the stored evidence of some machines would be judged; the sum of all pages is the answer."""

    @operation("learn_policy", "POST /policies/learn", e.PolicyInvalid, e.MachineUnknown, e.RequestInvalid)
    def learn_policy(self, request: api.PolicyLearnRequest) -> api.LearnedPolicy:
        """Return a policy proposed from what machines proved last; it is stored nowhere."""

    @operation("get_policy_schema", "GET /policies/schema", accept="application/schema+json")
    def policy_schema(self) -> bytes:
        """Return the JSON Schema of a policy document."""

    @operation("get_effective_policy", "GET /machines/{machine_id}/policy", e.MachineUnknown)
    def effective_policy(self, machine_id: str) -> api.EffectivePolicy:
        """Return what a machine is measured against."""

    @operation("get_policy", "GET /policies/{name}/{version}", e.PolicyUnknown)
    def policy(self, name: str, version: int) -> api.PolicyDetail:
        """Return one policy version."""

    @operation("assign_policy", "PUT /policies/assignments/{scope}/{subject}", *ASSIGNMENT)
    def assign_policy(self, scope: Scope, subject: str, policy: str) -> api.PolicyAssignment | api.PendingApproval:
        """Let *policy* (`name@version`) apply there from now on, or vote for it; the fleet's subject is `*`."""

    @operation("unassign_policy", "DELETE /policies/assignments/{scope}/{subject}",
               e.PolicyUnknown, e.MachineUnknown, e.RequestInvalid)
    def unassign_policy(self, scope: Scope, subject: str) -> api.PendingApproval | None:
        """Let the next wider assignment apply there again, or vote for it."""

    @operation("roll_back_policy", "POST /policies/assignments/{scope}/{subject}/rollback", *ASSIGNMENT)
    def roll_back_policy(self, scope: Scope, subject: str) -> api.PolicyAssignment | api.PendingApproval | None:
        """Let what applied there before apply again, or vote for it; None where nothing was assigned before."""

    # Configurations

    @operation("list_configurations", "GET /configurations")
    def configurations(self) -> api.ConfigurationList:
        """Return every version of every base configuration, without texts."""

    @operation("rewrap_configurations", "POST /configurations/rewrap", *KEPT)
    def rewrap_configurations(self) -> api.ConfigurationsRewrapped:
        """Bring every version under the newest key-encryption key."""

    @operation("preview_upgrade", "GET /configurations/{cluster_id}/upgrade", e.RequestInvalid, e.ClusterUnknown, *KEPT)
    def preview_upgrade(self, cluster_id: str, talos: str) -> api.UpgradePreview:
        """Return what an upgrade of Talos would change in what a cluster's machines get."""

    @operation("import_configuration", "POST /configurations/{cluster_id}/{role}/versions",
               e.ClusterUnknown, e.ConfigurationInvalid, e.RequestInvalid, e.AlreadyExists, *KEPT)
    def import_configuration(
        self, cluster_id: str, role: Role, request: api.ConfigurationImport
    ) -> api.ConfigurationDetail:
        """Store a new version of a base configuration, which is not delivered until it is activated."""

    @operation("get_configuration", "GET /configurations/{cluster_id}/{role}/versions/{version}", *VERSION)
    def configuration(self, cluster_id: str, role: Role, version: int) -> api.ConfigurationDetail:
        """Return one version of a base configuration, without its secrets."""

    @operation("diff_configurations", "GET /configurations/{cluster_id}/{role}/diff", *VERSION)
    def diff_configurations(self, cluster_id: str, role: Role, before: int, after: int) -> api.ConfigurationDiff:
        """Return what differs between two versions; that a secret does is told, never the secret."""

    @operation("activate_configuration", "PUT /configurations/{cluster_id}/{role}/active",
               e.ConfigurationInvalid, *VERSION)
    def activate_configuration(
        self, cluster_id: str, role: Role, version: int, reason: str | None = None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let a version be delivered from now on, or vote for it."""

    @operation("roll_back_configuration", "POST /configurations/{cluster_id}/{role}/rollback",
               e.ConfigurationInvalid, *VERSION)
    def roll_back_configuration(
        self, cluster_id: str, role: Role, reason: str | None = None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let the version that was delivered before be delivered again, or vote for it."""

    @operation("list_patches", "GET /machines/{machine_id}/patches", e.MachineUnknown)
    def patches(self, machine_id: str) -> api.ConfigurationList:
        """Return every version of a machine's patch, without texts."""

    @operation("import_patch", "POST /machines/{machine_id}/patches",
               e.MachineUnknown, e.ConfigurationInvalid, e.RequestInvalid, e.AlreadyExists, *KEPT)
    def import_patch(self, machine_id: str, request: api.ConfigurationImport) -> api.ConfigurationDetail:
        """Store a new version of a machine's patch, which is not delivered until it is activated."""

    @operation("diff_patches", "GET /machines/{machine_id}/patches/diff", *PATCH)
    def diff_patches(self, machine_id: str, before: int, after: int) -> api.ConfigurationDiff:
        """Return what differs between two versions of a patch."""

    @operation("get_patch", "GET /machines/{machine_id}/patches/{version}", *PATCH)
    def patch(self, machine_id: str, version: int) -> api.ConfigurationDetail:
        """Return one version of a machine's patch, without its secrets."""

    @operation("activate_patch", "PUT /machines/{machine_id}/patches/active", e.ConfigurationInvalid, *PATCH)
    def activate_patch(
        self, machine_id: str, version: int, reason: str | None = None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let a version of a patch be delivered from now on, or vote for it."""

    @operation("roll_back_patch", "POST /machines/{machine_id}/patches/rollback", e.ConfigurationInvalid, *PATCH)
    def roll_back_patch(
        self, machine_id: str, reason: str | None = None
    ) -> api.ConfigurationDetail | api.PendingApproval:
        """Let the version of a patch that was delivered before be delivered again, or vote for it."""

    @operation("preview_configuration", "GET /machines/{machine_id}/configuration",
               e.MachineUnknown, e.BaseConfigMissing, e.BaseConfigInvalid, *KEPT[1:])
    def preview_configuration(self, machine_id: str) -> api.RenderedConfiguration:
        """Return what a machine would be given now, without its secrets."""

    # Queries

    @operation("query", "POST /query", e.QueryInvalid, e.QueryTimeout, e.QueryFailed, e.QueriesBusy, act=False)
    def query(self, query: str, *, rows: int = 1000, explain: bool = False) -> api.QueryResult:
        """Ask for rows, in the query language."""

    @operation("validate_query", "POST /query/validate", e.QueriesBusy, act=False)
    def validate_query(self, query: str, *, offset: int | None = None) -> api.QueryValidation:
        """Ask whether a text is a query that the caller may ask, and what fits at *offset*."""

    @operation("get_query_schema", "GET /query/schema")
    def query_schema(self) -> api.QuerySchema:
        """Return the tables that the caller may ask, and the words of the language."""

    @operation("list_saved_queries", "GET /query/saved")
    def saved_queries(self, kind: api.SavedKind = "query") -> api.SavedQueryList:
        """Return the caller's queries, or views, and those that others share."""

    @operation(
        "save_query", "PUT /query/saved/{name}", e.QueryInvalid, e.QueriesBusy, e.RequestInvalid, e.AlreadyExists,
        act=False,
    )
    def save_query(
        self, name: str, query: str, *, description: str | None = None, shared: bool = False,
        kind: api.SavedKind = "query",
    ) -> api.SavedQueryDetail:
        """Keep a query of the caller's, or a view of the list of machines, under a name."""

    @operation("delete_query", "DELETE /query/saved/{name}", e.QueryUnknown, act=False)
    def delete_query(self, name: str) -> None:
        """Forget a query or a view of the caller's."""

    @operation("take_over_query", "POST /query/shared/{saved_id}/take-over", e.QueryUnknown, e.AlreadyExists)
    def take_over_query(self, saved_id: int) -> api.SavedQueryDetail:
        """Make a query or a view that somebody shares the caller's own."""

    @operation("delete_shared_query", "DELETE /query/shared/{saved_id}", e.QueryUnknown)
    def delete_shared_query(self, saved_id: int) -> None:
        """Forget a query or a view that somebody shares, whoever keeps it."""

    # Who vouches for TPMs

    @operation("show_trust_bundle", "GET /trust/bundle")
    def trust_bundle(self) -> api.TrustBundleDetail:
        """Return the trust bundle in force."""

    @operation("show_trust_certificate", "GET /trust/certificates/{sha256}", e.TrustCertificateUnknown)
    def trusted_certificate(self, sha256: str) -> api.TrustCertificateDetail:
        """Return one certificate of the bundle."""

    @operation("trust_certificate", "POST /trust/certificates", e.BundleInvalid, e.AlreadyExists)
    def trust_certificate(
        self, certificate: str, *, role: str, vendor: str, reason: str
    ) -> api.TrustCertificateDetail | api.PendingApproval:
        """Trust a CA certificate (base64 of DER or PEM), or vote for it where others must agree."""

    @operation("distrust_certificate", "POST /trust/certificates/{sha256}/distrust",
               e.TrustCertificateUnknown, e.TransitionForbidden)
    def distrust_certificate(self, sha256: str, reason: str) -> api.TrustCertificateDetail:
        """Distrust a certificate at once."""

    @operation("restore_certificate", "POST /trust/certificates/{sha256}/restore",
               e.TrustCertificateUnknown, e.TransitionForbidden)
    def restore_certificate(self, sha256: str, reason: str) -> api.TrustCertificateDetail | api.PendingApproval:
        """Trust a distrusted certificate again, or vote for it where others must agree."""

    @operation("verify_ek_certificate", "POST /trust/verify", e.MalformedEvidence)
    def verify_ek_certificate(self, certificate: str, chain: Sequence[str] = ()) -> api.TrustVerdict:
        """Ask what the bundle says of an EK certificate (base64 of DER or PEM)."""

    @operation("show_endorsement", "GET /machines/{machine_id}/endorsement",
               e.MachineUnknown, e.TrustCertificateUnknown)
    def endorsement(self, machine_id: str) -> api.EndorsementDetail:
        """Return who vouches for the TPM of a machine."""

    @operation("list_unknown_issuers", "GET /trust/unknown-issuers", e.RequestInvalid)
    def unknown_issuers(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.UnknownIssuerDetail], api.UnknownIssuerPage]:
        """Yield issuers that the bundle does not hold, as machines that wait name them, newest machine first."""

    @operation("list_advisories", "GET /trust/advisories")
    def advisories(self) -> api.AdvisoryList:
        """Return the advisories about firmware of TPMs that are in force."""

    # Who vouches for confidential hardware

    @operation("list_collateral", "GET /collateral", e.RequestInvalid)
    def collateral(
        self, *, with_data: bool = False, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.CollateralDetail], api.CollateralPage]:
        """Yield what is kept, by name; with the pieces themselves for an export."""

    @operation("import_collateral", "POST /collateral/import")
    def import_collateral(self, items: Sequence[Mapping[str, str]]) -> api.CollateralImported:
        """Keep collateral that was carried here; each piece is verified."""

    @operation("refresh_collateral", "POST /collateral/refresh")
    def refresh_collateral(self) -> api.CollateralRefreshed:
        """Ask vendors again for what is kept."""

    # The CAs

    @operation("show_ca", "GET /ca", e.CANotConfigured)
    def ca(self) -> api.CADetail:
        """Return every key of the CAs, oldest first."""

    @operation("check_ca", "GET /ca/check", e.CANotConfigured, e.SignerUnavailable)
    def ca_check(self) -> api.CACheck:
        """Let the service try every key of the CAs that is in use."""

    @operation("rotate_ca", "POST /ca/rotation", e.CANotConfigured, e.RotationForbidden, e.AlgorithmForbidden,
               e.RequestInvalid, e.KeyNotFound, e.KeyUnusable, e.SignerUnavailable)
    def rotate_ca(self, request: api.RotationRequest) -> api.CADetail | api.PendingApproval:
        """Take one step of a rotation, or vote for it where others must agree."""

    @operation("request_ca_certificate", "POST /ca/keys/{issuer_id}/csr", e.CANotConfigured, e.IssuerUnknown,
               e.AlgorithmForbidden, e.CertificateNotConformant, e.KeyUnusable, e.SignerUnavailable, e.SignerBusy)
    def request_ca_certificate(self, issuer_id: str, request: api.CALimits) -> api.CACSR:
        """Return a request to a parent for a certificate of a CA key of ours."""

    @operation("import_ca_certificate", "PUT /ca/keys/{issuer_id}/chain", e.CANotConfigured, e.IssuerUnknown,
               e.CAChainInvalid, e.RotationForbidden, e.RequestInvalid)
    def import_ca_certificate(
        self, issuer_id: str, request: api.CAChainImport
    ) -> api.CADetail | api.PendingApproval:
        """Let a parent vouch for a CA key of ours, or vote for it where others must agree."""

    @operation("make_ca_import_key", "POST /ca/import-key", e.CANotConfigured, e.RequestInvalid, e.KeyUnusable,
               e.SignerUnavailable, e.SignerBusy)
    def ca_import_key(self) -> api.CAImportKey:
        """Return the key under which an existing CA's key is wrapped for this service; it is made once."""

    @operation("import_ca_key", "POST /ca/keys", e.CANotConfigured, e.RequestInvalid, e.CAChainInvalid,
               e.AlgorithmForbidden, e.AlreadyExists, e.KeyRefused, e.RotationForbidden,
               e.KeyUnusable, e.SignerUnavailable, e.SignerBusy)
    def import_ca_key(self, request: api.CAKeyImport) -> api.CADetail | api.PendingApproval:
        """Make an existing CA's key the next one of a CA of ours, or vote for it where others must agree."""

    @operation("list_certificates", "GET /ca/certificates", e.CANotConfigured, e.RequestInvalid)
    def certificates(
        self, *, machine_id: str | None = None, state: str | None = None, profile: str | None = None,
        ends_from: datetime | None = None, ends_before: datetime | None = None,
        sort: Literal["not_after"] | None = None, page_size: int = PAGE_SIZE,
    ) -> Annotated[Iterator[api.CertificateDetail], api.CertificatePage]:
        """Yield the issuance log, newest first, or those that end first; pages are fetched as they are needed."""

    @operation("list_machine_certificates", "GET /machines/{machine_id}/certificates", e.MachineUnknown,
               e.RequestInvalid)
    def machine_certificates(
        self, machine_id: str, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.CertificateDetail], api.CertificatePage]:
        """Yield the certificates of one machine, newest first; they outlive its row."""

    @operation("show_certificate", "GET /ca/certificates/{serial}", e.CANotConfigured, e.CertificateUnknown)
    def certificate(self, serial: str) -> api.CertificateDetail:
        """Return one certificate of the issuance log (40 lower-case hex)."""

    @operation("revoke_certificate", "POST /ca/certificates/{serial}/revoke", e.CANotConfigured, *NO_CERTIFICATE)
    def revoke_certificate(
        self, serial: str, request: api.CertificateRevokeRequest | None = None
    ) -> api.CertificateDetail | api.PendingApproval:
        """Revoke one certificate for good, or vote for it where it is a CA's."""

    @operation("list_refused_keys", "GET /ca/refused-keys", e.CANotConfigured, e.RequestInvalid)
    def refused_keys(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.RefusedKeyDetail], api.RefusedKeyPage]:
        """Yield the keys that never get a certificate again, in the order of their digests."""

    @operation("refuse_key", "POST /ca/refused-keys", e.CANotConfigured, e.AlreadyExists, e.TransitionForbidden)
    def refuse_key(self, request: api.RefusedKeyRequest) -> api.RefusedKeyDetail:
        """Let a public key never get a certificate again; those that it has are revoked."""

    # CA keys in hardware of Kubernetes clusters

    @operation("list_hsm_issuers", "GET /hsm/issuers", e.RequestInvalid)
    def hsm_issuers(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.HSMIssuerDetail], api.HSMIssuerPage]:
        """Yield the CA keys in hardware, newest first; pages are fetched as they are needed."""

    @operation("list_hsm_certificates", "GET /hsm/issuers/{issuer_id}/certificates", e.IssuerUnknown, e.RequestInvalid)
    def hsm_certificates(
        self, issuer_id: str, *, state: str | None = None, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.HSMCertificateDetail], api.HSMCertificatePage]:
        """Yield the certificates of one such key, newest first."""

    @operation("revoke_hsm_certificate", "POST /hsm/certificates/{serial}/revoke", *NO_CERTIFICATE)
    def revoke_hsm_certificate(self, serial: str, request: api.HSMRevokeRequest) -> api.HSMCertificateDetail:
        """Revoke one certificate of such a key for good."""

    @operation("list_quote_attestations", "GET /hsm/quote-attestations", e.RequestInvalid)
    def quote_attestations(
        self, *, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.QuoteAttestationDetail], api.QuoteAttestationPage]:
        """Yield QuoteAttestations, newest first."""

    @operation("judge_quote_attestation", "POST /quote-attestations/judge", e.MalformedEvidence, e.RequestInvalid,
               e.Unavailable)
    def judge_quote_attestation(self, request: api.QuoteJudge) -> api.QuoteVerdict:
        """Have an envelope judged, without Kubernetes; nothing is kept of it."""

    # Operators' certificates

    @operation("request_operator_certificate", "POST /operator-certificates", e.CANotConfigured, e.MalformedEvidence,
               e.CSRInvalid, e.RequestInvalid, e.AlgorithmForbidden, e.CertificateNotConformant, e.KeyRefused,
               e.KeyUnusable, e.SignerUnavailable, e.TransitionForbidden, e.BreakGlassCannotVote)
    def request_operator_certificate(
        self, request: api.OperatorCertificateRequest
    ) -> api.OperatorCertificate | api.PendingApproval:
        """Request a client certificate for a person, or vote for it where others must agree."""

    @operation("list_operator_certificates", "GET /operator-certificates", e.RequestInvalid)
    def operator_certificates(
        self, *, state: str | None = None, page_size: int = PAGE_SIZE
    ) -> Annotated[Iterator[api.OperatorCertificateDetail], api.OperatorCertificatePage]:
        """Yield operators' certificates, newest first; pages are fetched as they are needed."""

    @operation("revoke_operator_certificate", "POST /operator-certificates/{serial}/revoke", *NO_CERTIFICATE)
    def revoke_operator_certificate(
        self, serial: str, request: api.CertificateRevokeRequest | None = None
    ) -> api.OperatorCertificateDetail:
        """Take an operator's certificate back, for good and at once."""


class ExtensionAPI:
    """What an operator asks about the extensions of a service, also where none is enabled."""

    @operation("list_extensions", "GET /extensions")
    def extensions(self) -> api.ExtensionList:
        """Return the extensions that are enabled, and what waits for them."""

    @operation("list_dead_letters", "GET /extensions/{name}/dead-letters", e.ExtensionUnknown)
    def dead_letters(self, name: str) -> api.DeadLetterList:
        """Return the newest hundred events that an extension could not handle."""

    @operation("get_dead_letter", "GET /extensions/{name}/dead-letters/{event_id}", e.ExtensionUnknown,
               e.DeadLetterUnknown)
    def dead_letter(self, name: str, event_id: str) -> api.DeadLetter:
        """Return one of them, with what the event says."""

    @operation("retry_dead_letters", "POST /extensions/{name}/retry", e.ExtensionUnknown, e.DeadLetterUnknown)
    def retry_dead_letters(self, name: str, request: api.RetryRequest | None = None) -> api.Retried:
        """Have an extension handle them again: all, or those that are named."""
