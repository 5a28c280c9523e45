"""Kubernetes' own CertificateSigningRequests to HsmClusterIssuers (HSM-AND-KUBERNETES §16, §21). Pure.

The signer is `hsmclusterissuers.attestation.itl.io/<name>`; issuers in namespaces have none, for a request has no
namespace. An API server takes a certificate for any request, an unapproved one too, so the approval is looked at here;
whether to approve is for others to say. Annotations are never read: they can change after the approval.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from attestation.errors import AttestationError, RequestRefused
from attestation.pki.leaf import LeafAsked
from attestation.wire import b64encode
from attestation_operator.actions import Action, EmitEvent, SetStatus
from attestation_operator.hsm.objects import MANAGER
from attestation_operator.hsm.requests import (
    MAX_RETRY,
    Fate,
    Issued,
    fate_of,
    retry_after,
    seconds_until_next,
    why_not,
)
from attestation_operator.nodes.objects import SigningRequest, decoded
from attestation_operator.objects import GROUP, HSM_CLUSTER_ISSUER, Key, Raw, clipped

SIGNER_PREFIX: Final = f"{HSM_CLUSTER_ISSUER.plural}.{GROUP}/"


class Step(StrEnum):
    """What was done about a request at one look."""

    NOT_OURS = "not-ours"
    SKIPPED = "skipped"
    SIGN = "sign"
    WAITING = "waiting"
    FAILED = "failed"
    ISSUED = "issued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What follows.

    Args:
        step: What was done.
        actions: What is to be done.
        after: After how many seconds to look again by itself.
        issuer_fails: The issuer must be looked at: its key does not sign.
    """

    step: Step
    actions: tuple[Action, ...] = ()
    after: float | None = None
    issuer_fails: bool = False


def issuer_of(csr: SigningRequest) -> Key | None:
    """Return the issuer that a request asks; None where that is none of ours."""
    name = csr.signer_name.removeprefix(SIGNER_PREFIX)
    if not name or name == csr.signer_name:
        return None
    return Key(kind=HSM_CLUSTER_ISSUER, name=name)


def asked_of(csr: SigningRequest) -> LeafAsked:
    """Return what a request asks for: never a CA, for the API has no word for it.

    `expirationSeconds` is honoured or refused; where there is none (an API server before 1.22 drops it) the issuer's
    own longest holds, at most 90 days.
    """
    seconds = csr.expiration_seconds
    return LeafAsked(
        request=decoded(csr.request),
        usages=csr.usages,
        is_ca=False,
        duration=None if seconds is None else timedelta(seconds=seconds),
    )


def reconcile(
    csr: SigningRequest,
    issuer: Raw | None,
    *,
    at: datetime,
    outcome: Issued | AttestationError | None = None,
    max_retry: timedelta = MAX_RETRY,
) -> Looked:
    """Return what is to be done about a request now.

    Args:
        csr: The request.
        issuer: Its issuer, None where there is none.
        at: Now.
        outcome: What came of signing it; None before that was tried.
        max_retry: How long after its approval it is tried again for a reason that nobody knows.
    """
    # 1. Ours alone.
    key = issuer_of(csr)
    if key is None:
        return Looked(step=Step.NOT_OURS)
    # 2. Approved, not denied, not failed, not answered. The API server would take a certificate all the same.
    if not csr.awaits_certificate:
        return Looked(step=Step.SKIPPED)
    # 3. An issuer that is as it was judged, and signs.
    if (why := why_not(issuer)) is not None:
        return _waiting(csr, f"{key.kind.kind} {key}: {why}", at=at)
    # 4. Signed, once. A certificate cannot be taken back: it is written if the request is as it was judged.
    if outcome is None:
        return Looked(step=Step.SIGN)
    if isinstance(outcome, Issued):
        certificate = b64encode(outcome.certificate.encode())
        return Looked(
            step=Step.ISSUED,
            actions=(
                SetStatus(
                    target=csr.target, manager=MANAGER, status={"certificate": certificate}, exact=True
                ),
                EmitEvent(target=csr.target, action="Sign", reason="Issued", note="certificate issued"),
            ),
        )
    return _not_signed(csr, outcome, at=at, max_retry=max_retry)


def _not_signed(
    csr: SigningRequest, error: AttestationError, *, at: datetime, max_retry: timedelta
) -> Looked:
    words = clipped(f"{error.code}: {error}")
    match fate_of(error):
        case Fate.REFUSED:
            if isinstance(error, RequestRefused):
                words = clipped(f"{error.reason}: {error}")
            return _failed(csr, "SignerValidationFailure", words)
        case Fate.NOT_SIGNED:
            looked = _waiting(csr, f"the issuer does not sign: {error.code}", at=at)
            return Looked(step=looked.step, actions=looked.actions, after=looked.after, issuer_fails=True)
        case Fate.UNDECIDED:
            return _waiting(csr, f"nothing was decided: {error.code}", at=at)
        case Fate.UNKNOWN:
            after = retry_after(_approved_at(csr), at=at, max_retry=max_retry)
            return _failed(csr, "IssuanceFailed", words) if after is None else _waiting(csr, words, at=at)


def _approved_at(csr: SigningRequest) -> datetime:
    """Return since when it could have been signed: an approval may take a person days."""
    said = [each.get("lastUpdateTime") for each in csr.conditions if each.get("type") == "Approved"]
    return max([csr.created_at, *(datetime.fromisoformat(each) for each in said if each)])


def _waiting(csr: SigningRequest, words: str, *, at: datetime) -> Looked:
    """Return what leaves the request as it is: a condition of ours would change nothing for who waits."""
    waited = (at - _approved_at(csr)).total_seconds()
    event = EmitEvent(target=csr.target, action="Sign", reason="Pending", note=clipped(words))
    return Looked(
        step=Step.WAITING,
        actions=(event,),
        after=seconds_until_next(waited),
    )


def _failed(csr: SigningRequest, reason: str, words: str) -> Looked:
    """Return what ends the request: by server-side apply, what others say of it stays."""
    ours = {"type": "Failed", "status": "True", "reason": reason, "message": words}
    return Looked(
        step=Step.FAILED,
        actions=(
            SetStatus(target=csr.target, manager=MANAGER, status={"conditions": [ours]}, exact=True),
            EmitEvent(target=csr.target, action="Sign", reason=reason, note=words, type="Warning"),
        ),
    )
