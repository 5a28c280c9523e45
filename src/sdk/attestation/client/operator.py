"""What an operator asks of the service (PROTOCOL §7, ITL-REFERENCE §4)."""

# Longer than 500 lines: one method for each route of the operator API.
from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from attestation import api
from attestation.client.acts import Acts
from attestation.client.connection import (
    Answer,
    Client,
    ClientCertificate,
    HTTPSender,
    is_loopback,
    parse,
    segment,
)
from attestation.client.errors import AnswerInvalid
from attestation.client.record import Record, parse_record
from attestation.client.retries import Retries
from attestation.errors import RequestInvalid
from attestation.machines import Role, Status

if TYPE_CHECKING:
    from pydantic import BaseModel

    from attestation.client.carrier import Carrier

PAGE_SIZE = 200
Scope = Literal["fleet", "cluster", "role", "machine"]
Answered = TypeVar("Answered", bound="BaseModel")


class OperatorClient(Client):
    """The operators' API over HTTP.

    Args:
        url: Address of the service, without `/api/v1`.
        token: The bearer token: visible ASCII without spaces; None with a client certificate.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        client_certificate: Who we are, instead of a token: PEM files of certificate and key.
        allow_plain_http: Send the token without TLS to another computer; anybody on the way can read it.
        retries: When to repeat a request.
        carrier: What carries the requests instead of the network: for tests.
        acts: How acts are named, and who is told of a lost answer; None names them by itself.

    Raises:
        RequestInvalid: The address or the token cannot be used, or the token would travel in the clear.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ca_file: Path | None = None,
        client_certificate: ClientCertificate | None = None,
        allow_plain_http: bool = False,
        retries: Retries | None = None,
        carrier: Carrier | None = None,
        acts: Acts | None = None,
    ) -> None:
        if token is None and client_certificate is None:
            raise RequestInvalid("an operator needs a token or a client certificate")
        # A line break in the token would end the header and begin another one.
        if token is not None and (not token or not all("!" <= character <= "~" for character in token)):
            raise RequestInvalid("the operator token is empty or contains spaces or other unusual characters")
        self.meant: Mapping[str, str] | None = None
        """What gated acts say beside the act; see `agreeing_to` and `beside_others`."""
        self._http = HTTPSender(
            url,
            ca_file=ca_file,
            client_certificate=client_certificate,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            retries=retries or Retries(),
            carrier=carrier,
            acts=acts or Acts(),
        )
        if self._http.url.startswith("http:") and not (allow_plain_http or is_loopback(self._http.url)):
            raise RequestInvalid(
                f"{self._http.url} is not encrypted: the operator token could be read on the way"
            )

    # Machines

    def machines(
        self,
        *,
        status: Status | None = None,
        role: Role | None = None,
        cluster_id: str | None = None,
        q: str | None = None,
        labels: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[api.MachineDetail]:
        """Yield machines, newest first; pages are fetched as they are needed. *labels*: `rack=4,site`."""
        filters = {"status": status, "role": role, "cluster_id": cluster_id, "q": q, "labels": labels}
        return self._pages("/machines", api.MachinePage, filters, page_size)

    def machine_records(
        self,
        *,
        status: Status | None = None,
        role: Role | None = None,
        cluster_id: str | None = None,
        q: str | None = None,
        labels: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[Record]:
        """Yield machines as `machines` does, but as they came: for who must print them at once."""
        filters = {"status": status, "role": role, "cluster_id": cluster_id, "q": q, "labels": labels}
        return self._walk("/machines", _record_page, filters, page_size)

    def machine(self, machine_id: str) -> api.MachineDetail:
        """Return one machine."""
        return self._http.call("GET", _machine(machine_id), api.MachineDetail)

    def machine_keys(self, machine_id: str) -> api.KeysDetail:
        """Return where the activation of a machine's keys stands."""
        return self._http.call("GET", f"{_machine(machine_id)}/keys", api.KeysDetail)

    def label(self, machine_id: str, put: Mapping[str, str], remove: Sequence[str] = ()) -> api.MachineDetail:
        """Write labels on a machine, or take them off; what is not named stays."""
        return self._act(machine_id, "labels", api.LabelsRequest(set=dict(put), remove=list(remove)))

    def approve(
        self, machine_id: str, request: api.ApproveRequest
    ) -> api.MachineDetail | api.PendingApproval:
        """Admit a pending machine, or vote for it where others must agree."""
        return self._gated(f"{_machine(machine_id)}/approve", api.MachineDetail, request)

    def reject(self, machine_id: str, reason: str) -> api.MachineDetail:
        """Refuse a pending machine."""
        return self._act(machine_id, "reject", api.ReasonRequest(reason=reason))

    def lock(self, machine_id: str, reason: str | None = None) -> api.MachineDetail:
        """Suspend an attested machine."""
        return self._act(machine_id, "lock", api.LockRequest(reason=reason))

    def unlock(self, machine_id: str, reason: str | None = None) -> api.MachineDetail | api.PendingApproval:
        """Let a locked machine attest again, or vote for it where others must agree."""
        request = api.LockRequest(reason=reason) if reason is not None else None
        return self._gated(f"{_machine(machine_id)}/unlock", api.MachineDetail, request)

    def change_role(
        self, machine_id: str, request: api.RoleChangeRequest
    ) -> api.MachineDetail | api.PendingApproval:
        """Give an admitted machine another role, or vote for it where others must agree."""
        return self._gated(f"{_machine(machine_id)}/role", api.MachineDetail, request)

    def revoke(self, machine_id: str, *, wipe: bool = False, reason: str | None = None) -> api.MachineDetail:
        """End a machine's admission for good; *wipe* also orders it to erase itself."""
        return self._act(machine_id, "revoke", api.RevokeRequest(wipe=wipe, reason=reason))

    def replace(self, old: str, request: api.ReplaceRequest) -> api.MachineDetail | api.PendingApproval:
        """Let a machine that waits take the place of *old*, or vote for it where others must agree."""
        return self._gated(f"{_machine(old)}/replace", api.MachineDetail, request)

    def ak_reset(self, machine_id: str, reason: str) -> api.MachineDetail | api.PendingApproval:
        """Let the machine activate another attestation key, or vote for it where others must agree."""
        return self._gated(
            f"{_machine(machine_id)}/ak-reset", api.MachineDetail, api.ReasonRequest(reason=reason)
        )

    def redeliver(self, machine_id: str) -> api.MachineDetail | api.PendingApproval:
        """Offer the configuration again at the next attestation, or vote for it where others must agree."""
        return self._gated(f"{_machine(machine_id)}/redeliver", api.MachineDetail, None)

    def delete_machine(self, machine_id: str) -> None:
        """Delete a rejected or wiped machine; its audit entries stay."""
        self._http.send("DELETE", _machine(machine_id))

    def results(self, machine_id: str, *, page_size: int = PAGE_SIZE) -> Iterator[api.ResultDetail]:
        """Yield the stored attestation results of a machine, newest first."""
        return self._pages(f"{_machine(machine_id)}/results", api.ResultPage, {}, page_size)

    def result(self, machine_id: str, result_id: int) -> api.ResultReport:
        """Return one result with what it was judged from, and what explains a change."""
        return self._http.call("GET", f"{_machine(machine_id)}/results/{result_id}", api.ResultReport)

    def event_log(self, machine_id: str, result_id: int) -> bytes:
        """Return the boot event log of a result, as the machine sent it: bytes of a stranger."""
        return self._octets(f"{_machine(machine_id)}/results/{result_id}/event-log")

    def ima_log(self, machine_id: str, result_id: int) -> bytes:
        """Return the IMA list of a result, as the machine sent it: bytes of a stranger."""
        return self._octets(f"{_machine(machine_id)}/results/{result_id}/ima-log")

    def result_token(
        self,
        machine_id: str,
        result_id: int,
        *,
        profile: Literal["draft-04", "veraison-2023"] = "draft-04",
        checks: bool = False,
    ) -> str:
        """Return a result as a signed EAR; *checks* names every check in it, which is not for the machine."""
        answer = self._http.send(
            "GET",
            f"{_machine(machine_id)}/results/{result_id}/token",
            params={"profile": profile, "checks": str(checks).lower()},
            accept="application/eat+jwt",
        )
        try:
            return answer.body.decode("ascii")
        except UnicodeDecodeError as e:
            raise AnswerInvalid("the result token is not text") from e

    def _octets(self, path: str) -> bytes:
        return self._http.send("GET", path, accept="application/octet-stream").body

    def whoami(self) -> api.WhoAmI:
        """Return whom the service takes us for, and what we may."""
        return self._http.call("GET", "/whoami", api.WhoAmI)

    def stats(self) -> api.Stats:
        """Return how many machines there are by status, role and trust."""
        return self._http.call("GET", "/stats", api.Stats)

    def stats_record(self) -> Record:
        """Return the same as `stats`, as it came."""
        return parse_record(self._http.send("GET", "/stats").body, "/stats")

    # Dual control

    def machine_approvals(
        self, machine_id: str, *, page_size: int = PAGE_SIZE
    ) -> Iterator[api.ApprovalDetail]:
        """Yield the votes about a machine, newest first: live, expired, withdrawn and consumed ones."""
        return self._pages(f"{_machine(machine_id)}/approvals", api.ApprovalPage, {}, page_size)

    def proposals(self, *, page_size: int = PAGE_SIZE) -> Iterator[api.ProposalDetail]:
        """Yield what waits for votes, newest first: about machines, tokens and the allow-list."""
        return self._pages("/approvals", api.ProposalPage, {}, page_size)

    def proposal(self, proposal_digest: str) -> api.ProposalDetail:
        """Return one proposal that waits for votes, with what was sent with it."""
        return self._http.call("GET", f"/approvals/{segment(proposal_digest)}/proposal", api.ProposalDetail)

    def agreeing_to(self, proposal_digest: str) -> Self:
        """Return this client, whose gated acts are votes for that proposal or are refused."""
        client = copy.copy(self)
        client.meant = {"proposal": proposal_digest}
        return client

    def beside_others(self) -> Self:
        """Return this client, whose gated acts open proposals although others about the same thing wait."""
        client = copy.copy(self)
        client.meant = {"new_proposal": "true"}
        return client

    def withdraw_approval(self, approval_id: int) -> None:
        """Take back one's own live vote."""
        self._http.send("DELETE", f"/approvals/{approval_id}")

    def object_to_proposal(self, proposal_digest: str, request: api.ReasonRequest) -> api.Objected:
        """End every vote for a proposal; one operator is enough, or break-glass."""
        return self._http.call("POST", f"/approvals/{proposal_digest}/object", api.Objected, body=request)

    # Admission in advance

    def create_registration_token(
        self, request: api.RegistrationTokenRequest
    ) -> api.RegistrationTokenCreated | api.PendingApproval:
        """Issue a registration token, its secret in this answer only; or vote for it."""
        return self._gated("/registration-tokens", api.RegistrationTokenCreated, request)

    def registration_tokens(self, *, page_size: int = PAGE_SIZE) -> Iterator[api.RegistrationTokenDetail]:
        """Yield registration tokens, newest first, without their secrets."""
        return self._pages("/registration-tokens", api.RegistrationTokenPage, {}, page_size)

    def revoke_registration_token(self, token_id: str) -> None:
        """Make a registration token useless."""
        self._http.send("DELETE", f"/registration-tokens/{segment(token_id)}")

    def import_allow_list(
        self, entries: Sequence[api.AllowListEntry]
    ) -> api.AllowListImported | api.PendingApproval:
        """Admit EKs in advance, all of *entries* or none, or vote for it; at most 10,000 and 1 MiB."""
        return self._gated("/allow-list", api.AllowListImported, api.AllowListImport(entries=list(entries)))

    def allow_list(self, *, page_size: int = PAGE_SIZE) -> Iterator[api.AllowListItem]:
        """Yield allow-list entries in the order of their fingerprints."""
        return self._pages("/allow-list", api.AllowListPage, {}, page_size)

    def remove_from_allow_list(self, ek_fingerprint: str) -> None:
        """Remove one EK from the allow-list; machines already admitted stay."""
        self._http.send("DELETE", f"/allow-list/{segment(ek_fingerprint)}")

    # Audit

    def audit(
        self, *, machine_id: str | None = None, action: str | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[api.AuditEntryDetail]:
        """Yield audit entries, newest first."""
        return self._pages("/audit", api.AuditPage, {"machine_id": machine_id, "action": action}, page_size)

    def verify_audit(self) -> api.AuditVerification:
        """Let the service walk its whole audit chain."""
        return self._http.call("GET", "/audit/verify", api.AuditVerification)

    def export_audit(self) -> Generator[bytes, None, None]:
        """Yield the whole log in one file, piece by piece (`attestation.audit.export` reads it)."""
        return self._http.stream("/audit/export", accept="application/jsonl")

    def audit_checkpoint(self) -> bytes:
        """Return the newest signed checkpoint (`attestation.audit.checkpoint` reads it)."""
        return self._http.send("GET", "/audit/checkpoint", accept="text/plain").body

    def audit_keys(self) -> api.AuditKeys:
        """Return who signs for the log, as the service says: to be compared before they are believed."""
        return self._http.call("GET", "/audit/keys", api.AuditKeys)

    def audit_inclusion(self, index: int, size: int) -> api.InclusionProof:
        """Return the proof that entry *index* + 1 is in the log of *size* entries."""
        return self._http.call(
            "GET", "/audit/proof/inclusion", api.InclusionProof, params={"index": index, "size": size}
        )

    def audit_consistency(self, old: int, new: int) -> api.ConsistencyProof:
        """Return the proof that the log of *old* entries is the beginning of that of *new*."""
        return self._http.call(
            "GET", "/audit/proof/consistency", api.ConsistencyProof, params={"from": old, "to": new}
        )

    def audit_entries(self, number: int, width: int) -> bytes:
        """Return the bundle of entries below tile *number*, *width* of them (`attestation.audit.tiles` reads it)."""
        from attestation.audit.tiles import Tile

        path = str(Tile(level=None, number=number, width=width))
        return self._http.send("GET", f"/audit/{path}", accept="application/octet-stream").body

    # Policies

    def policies(self) -> api.PolicyList:
        """Return all policies and where they apply."""
        return self._http.call("GET", "/policies", api.PolicyList)

    def create_policy(self, document: Mapping[str, Any]) -> api.PolicyDetail:
        """Store a policy version, which is immutable from then on."""
        return self._http.call("POST", "/policies", api.PolicyDetail, body=document)

    def policy(self, name: str, version: int) -> api.PolicyDetail:
        """Return one policy version."""
        return self._http.call("GET", f"/policies/{segment(name)}/{version}", api.PolicyDetail)

    def effective_policy(self, machine_id: str) -> api.EffectivePolicy:
        """Return what a machine is measured against."""
        return self._http.call("GET", f"{_machine(machine_id)}/policy", api.EffectivePolicy)

    def try_policy(self, request: api.PolicyTestRequest) -> Iterator[api.PolicyTestPage]:
        """Yield how the fleet's stored evidence would be judged, page by page; their sum is the answer."""
        seen: set[str] = set()
        while True:
            page = self._http.call("POST", "/policies/test", api.PolicyTestPage, body=request)
            yield page
            if page.next_cursor is None:
                return
            if page.next_cursor in seen:
                raise AnswerInvalid("/policies/test: the pages go round in a circle")
            seen.add(page.next_cursor)
            request = request.model_copy(update={"cursor": page.next_cursor})

    def learn_policy(self, request: api.PolicyLearnRequest) -> api.LearnedPolicy:
        """Return a policy proposed from what machines proved last; it is stored nowhere."""
        return self._http.call("POST", "/policies/learn", api.LearnedPolicy, body=request)

    def policy_history(
        self, scope: Scope | None = None, subject: str | None = None, *, page_size: int = PAGE_SIZE
    ) -> Iterator[api.PolicyChangeDetail]:
        """Yield what applied where and since when, newest first."""
        filters = {"scope": scope, "subject": subject}
        return self._pages("/policies/history", api.PolicyHistoryPage, filters, page_size)

    def assign_policy(
        self, scope: Scope, subject: str, policy: str
    ) -> api.PolicyAssignment | api.PendingApproval:
        """Let *policy* (`name@version`) apply there from now on, or vote for it; the fleet's subject is `*`."""
        request = api.PolicyAssignmentRequest(policy=policy)
        return self._gated(_assignment(scope, subject), api.PolicyAssignment, request, method="PUT")

    def unassign_policy(self, scope: Scope, subject: str) -> api.PendingApproval | None:
        """Let the next wider assignment apply there again, or vote for it."""
        return self._http.read("DELETE", _assignment(scope, subject), _vote_or_none, params=self.meant)

    def roll_back_policy(
        self, scope: Scope, subject: str
    ) -> api.PolicyAssignment | api.PendingApproval | None:
        """Let what applied there before apply again, or vote for it; None where nothing was assigned before."""
        return self._http.read(
            "POST",
            f"{_assignment(scope, subject)}/rollback",
            lambda answer: None if answer.status == 204 else _vote_or(answer, api.PolicyAssignment),
            params=self.meant,
        )

    # Who vouches for TPMs

    def trust_bundle(self) -> api.TrustBundleDetail:
        """Return the trust bundle in force."""
        return self._http.call("GET", "/trust/bundle", api.TrustBundleDetail)

    def trust_certificate(
        self, certificate: str, *, role: str, vendor: str, reason: str
    ) -> api.TrustCertificateDetail | api.PendingApproval:
        """Trust a CA certificate (base64 of DER or PEM), or vote for it where others must agree."""
        request = api.TrustCertificateRequest.model_validate(
            {"certificate": certificate, "role": role, "vendor": vendor, "reason": reason}
        )
        return self._gated("/trust/certificates", api.TrustCertificateDetail, request)

    def distrust_certificate(self, sha256: str, reason: str) -> api.TrustCertificateDetail:
        """Distrust a certificate at once."""
        path = f"/trust/certificates/{segment(sha256)}/distrust"
        request = api.TrustReasonRequest(reason=reason)
        return self._http.call("POST", path, api.TrustCertificateDetail, body=request)

    def restore_certificate(
        self, sha256: str, reason: str
    ) -> api.TrustCertificateDetail | api.PendingApproval:
        """Trust a distrusted certificate again, or vote for it where others must agree."""
        path = f"/trust/certificates/{segment(sha256)}/restore"
        return self._gated(path, api.TrustCertificateDetail, api.TrustReasonRequest(reason=reason))

    def verify_ek_certificate(self, certificate: str, chain: Sequence[str] = ()) -> api.TrustVerdict:
        """Ask what the bundle says of an EK certificate (base64 of DER or PEM)."""
        request = api.TrustVerifyRequest(certificate=certificate, chain=list(chain))
        return self._http.call("POST", "/trust/verify", api.TrustVerdict, body=request)

    def endorsement(self, machine_id: str) -> api.EndorsementDetail:
        """Return who vouches for the TPM of a machine."""
        return self._http.call("GET", f"{_machine(machine_id)}/endorsement", api.EndorsementDetail)

    # The CAs

    def ca(self) -> api.CADetail:
        """Return every key of the CAs, oldest first."""
        return self._http.call("GET", "/ca", api.CADetail)

    def ca_check(self) -> api.CACheck:
        """Let the service try every key of the CAs that is in use."""
        return self._http.call("GET", "/ca/check", api.CACheck)

    def rotate_ca(self, request: api.RotationRequest) -> api.CADetail | api.PendingApproval:
        """Take one step of a rotation, or vote for it where others must agree."""
        return self._gated("/ca/rotation", api.CADetail, request)

    def certificates(
        self,
        *,
        machine_id: str | None = None,
        state: str | None = None,
        profile: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[api.CertificateDetail]:
        """Yield the issuance log, newest first; pages are fetched as they are needed."""
        filters = {"machine_id": machine_id, "state": state, "profile": profile}
        return self._pages("/ca/certificates", api.CertificatePage, filters, page_size)

    def machine_certificates(
        self, machine_id: str, *, page_size: int = PAGE_SIZE
    ) -> Iterator[api.CertificateDetail]:
        """Yield the certificates of one machine, newest first; they outlive its row."""
        return self._pages(f"{_machine(machine_id)}/certificates", api.CertificatePage, {}, page_size)

    def offline_bundle(self, machine_id: str) -> api.OfflineBundle | api.PendingApproval:
        """Have a machine's offline bundle made, sealed to its TPM (compatibility), or vote for it."""
        return self._gated(f"{_machine(machine_id)}/offline-bundle", api.OfflineBundle, None)

    def certificate(self, serial: str) -> api.CertificateDetail:
        """Return one certificate of the issuance log (40 lower-case hex)."""
        return self._http.call("GET", f"/ca/certificates/{segment(serial)}", api.CertificateDetail)

    def revoke_certificate(
        self, serial: str, request: api.CertificateRevokeRequest | None = None
    ) -> api.CertificateDetail | api.PendingApproval:
        """Revoke one certificate for good, or vote for it where it is a CA's."""
        path = f"/ca/certificates/{segment(serial)}/revoke"
        return self._gated(path, api.CertificateDetail, request or api.CertificateRevokeRequest())

    def refuse_key(self, request: api.RefusedKeyRequest) -> api.RefusedKeyDetail:
        """Let a public key never get a certificate again; those that it has are revoked."""
        return self._http.call("POST", "/ca/refused-keys", api.RefusedKeyDetail, body=request)

    def refused_keys(self, *, page_size: int = PAGE_SIZE) -> Iterator[api.RefusedKeyDetail]:
        """Yield the keys that never get a certificate again, in the order of their digests."""
        return self._pages("/ca/refused-keys", api.RefusedKeyPage, {}, page_size)

    # Operators' certificates

    def request_operator_certificate(
        self, request: api.OperatorCertificateRequest
    ) -> api.OperatorCertificate | api.PendingApproval:
        """Request a client certificate for a person, or vote for it where others must agree."""
        return self._gated("/operator-certificates", api.OperatorCertificate, request)

    def operator_certificates(
        self, *, state: str | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[api.OperatorCertificateDetail]:
        """Yield operators' certificates, newest first; pages are fetched as they are needed."""
        filters = {"state": state}
        return self._pages("/operator-certificates", api.OperatorCertificatePage, filters, page_size)

    def revoke_operator_certificate(
        self, serial: str, request: api.CertificateRevokeRequest | None = None
    ) -> api.OperatorCertificateDetail:
        """Take an operator's certificate back, for good and at once."""
        path = f"/operator-certificates/{segment(serial)}/revoke"
        body = request or api.CertificateRevokeRequest()
        return self._http.call("POST", path, api.OperatorCertificateDetail, body=body)

    def _act(self, machine_id: str, act: str, request: BaseModel | None) -> api.MachineDetail:
        return self._http.call("POST", f"{_machine(machine_id)}/{act}", api.MachineDetail, body=request)

    def _gated(
        self, path: str, model: type[Answered], body: BaseModel | None, *, method: str = "POST"
    ) -> Answered | api.PendingApproval:
        """Send an act that may be gated by dual control."""
        return self._http.read(
            method, path, lambda answer: _vote_or(answer, model), body=body, params=self.meant
        )

    def _pages(
        self, path: str, model: type[Any], filters: Mapping[str, str | None], page_size: int
    ) -> Iterator[Any]:
        """Yield the items of every page of *path*; *model* is the type of a page."""

        def read(answer: Answer) -> tuple[Sequence[Any], str | None]:
            page = parse(answer, model)
            return page.items, page.next_cursor

        return self._walk(path, read, filters, page_size)

    def _walk(
        self,
        path: str,
        read: Callable[[Answer], tuple[Sequence[Any], str | None]],
        filters: Mapping[str, str | None],
        page_size: int,
    ) -> Iterator[Any]:
        params: dict[str, str | int] = {k: v for k, v in filters.items() if v is not None}
        params["limit"] = page_size
        seen: set[str] = set()
        while True:
            items, cursor = read(self._http.send("GET", path, params=params))
            yield from items
            if cursor is None:
                return
            # Without this, a cursor that points back would keep us here for ever.
            if cursor in seen:
                raise AnswerInvalid(f"{path}: the pages go round in a circle")
            seen.add(cursor)
            params["cursor"] = cursor


def _vote_or(answer: Answer, model: type[Answered]) -> Answered | api.PendingApproval:
    """Read the answer to a gated act: 202 is a vote, everything else its result."""
    return parse(answer, api.PendingApproval) if answer.status == 202 else parse(answer, model)


def _vote_or_none(answer: Answer) -> api.PendingApproval | None:
    """Read the answer to a gated act that answers nothing."""
    return parse(answer, api.PendingApproval) if answer.status == 202 else None


def _record_page(answer: Answer) -> tuple[Sequence[Record], str | None]:
    page = parse_record(answer.body, "the answer")
    return page.records("items"), page.optional_text("next_cursor")


def _machine(machine_id: str) -> str:
    return f"/machines/{segment(machine_id)}"


def _assignment(scope: Scope, subject: str) -> str:
    return f"/policies/assignments/{scope}/{segment(subject)}"
