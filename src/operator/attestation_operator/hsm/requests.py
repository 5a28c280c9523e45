"""cert-manager's CertificateRequests: what an external issuer does about one (HSM-AND-KUBERNETES §16). Pure.

The contract is that of cert-manager's issuer-lib, rule by rule. A request is answered once: what is True, Failed or
Denied is never touched again. Whether it is approved is for others to say; nothing here does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from attestation.clock import rfc3339
from attestation.errors import (
    AttestationError,
    CertificateNotConformant,
    Forbidden,
    IssuerUnknown,
    KeyUnusable,
    RequestRefused,
    SignatureInvalid,
    SignerUnavailable,
    Unavailable,
)
from attestation.pki.leaf import INVALID, LeafAsked
from attestation.wire import b64encode
from attestation_operator.actions import Action, EmitEvent, SetStatus
from attestation_operator.conditions import said, with_conditions
from attestation_operator.durations import NotADuration, parse_duration
from attestation_operator.hsm.objects import ISSUER_KINDS, MANAGER, READY, condition, instant
from attestation_operator.nodes.objects import decoded
from attestation_operator.objects import CERTIFICATE_REQUEST, GROUP, Key, Raw, Target, clipped

POLL_SECONDS: Final = 1.0
LONGEST_WAIT_SECONDS: Final = 30.0
"""A request that waits is looked at so often at least, however long it waits: a thousand of them are work too."""
MAX_RETRY: Final = timedelta(minutes=1)
INVALID_REQUEST: Final = "InvalidRequest"


class Step(StrEnum):
    """What was done about a request at one look."""

    IGNORED = "ignored"
    DENIED = "denied"
    INITIALIZED = "initialized"
    SIGN = "sign"
    PENDING = "pending"
    FAILED = "failed"
    ISSUED = "issued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A CertificateRequest.

    Args:
        target: Which one, and when it was so.
        issuer: Whom it asks; None where that is none of our kinds.
        created_at: When it was created.
        conditions: All of them.
        spec: As it stands there: it cannot be changed (cert-manager's webhook).
    """

    target: Target
    issuer: Key | None
    created_at: datetime
    conditions: tuple[Raw, ...]
    spec: Raw = field(repr=False)

    @property
    def requester(self) -> str:
        """Who made it, as the webhook of cert-manager stamped it."""
        return str(self.spec.get("username") or "unknown")

    @property
    def asked(self) -> LeafAsked:
        """What it asks for.

        Raises:
            RequestRefused: Its duration is none.
        """
        said_ = self.spec.get("duration")
        try:
            duration = parse_duration(str(said_)) if said_ is not None else None
        except NotADuration as e:
            raise RequestRefused("malformed", str(e)) from e
        return LeafAsked(
            request=decoded(str(self.spec.get("request") or "")),
            usages=tuple(map(str, self.spec.get("usages") or ())),
            is_ca=self.spec.get("isCA") is True,
            duration=duration,
        )

    def has(self, type_: str) -> bool:
        """Whether a condition is True."""
        return (condition({"conditions": self.conditions}, type_) or {}).get("status") == "True"


def read_request(raw: Raw) -> Request:
    """Return what *raw* says."""
    spec, metadata = raw.get("spec") or {}, raw["metadata"]
    ref = spec.get("issuerRef") or {}
    kind = ISSUER_KINDS.get(ref.get("kind") or "") if ref.get("group") == GROUP else None
    issuer = None
    if kind is not None:
        namespace = metadata.get("namespace") if kind.namespaced else None
        issuer = Key(kind=kind, name=str(ref.get("name") or ""), namespace=namespace)
    return Request(
        target=Target.of(CERTIFICATE_REQUEST, raw),
        issuer=issuer,
        created_at=instant(metadata["creationTimestamp"]),
        conditions=tuple((raw.get("status") or {}).get("conditions") or ()),
        spec=spec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Certificates for a request.

    Args:
        certificate: PEM: the leaf first, the highest that is not self-signed last.
        ca: PEM of the CA, as far as it is known.
    """

    certificate: str
    ca: str


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


def reconcile(
    request: Request,
    issuer: Raw | None,
    *,
    at: datetime,
    outcome: Issued | AttestationError | None = None,
    max_retry: timedelta = MAX_RETRY,
) -> Looked:
    """Return what is to be done about a request now.

    Args:
        request: The request.
        issuer: Its issuer, None where there is none.
        at: Now.
        outcome: What came of signing it; None before that was tried.
        max_retry: How long after its creation it is tried again for a reason that nobody knows.
    """
    # 1. Not ours, or answered, or nobody has decided: it is left as it is.
    ready = condition({"conditions": request.conditions}, READY)
    denied = request.has("Denied")
    if request.issuer is None or _is_answered(ready) or not (denied or request.has("Approved")):
        return Looked(step=Step.IGNORED)
    # 2. Denied: its end, told once.
    if denied:
        words = "the request was denied by an approver"
        return _end(request, Step.DENIED, words, at=at, reason="Denied")
    # 3. It is told that somebody works on it, and nothing else at this look.
    if ready is None:
        return _said(
            request, Step.INITIALIZED, said(READY, "Initializing", "seen", true=None), at=at, exact=True
        )
    # 4. An issuer that is as it was judged, and signs.
    if (why := why_not(issuer)) is not None:
        return _pending(request, f"{request.issuer.kind.kind} {request.issuer}: {why}", at=at)
    # 5. Signed, once.
    if outcome is None:
        return Looked(step=Step.SIGN)
    if isinstance(outcome, Issued):
        return _said(
            request,
            Step.ISSUED,
            said(READY, "Issued", "the certificate was issued"),
            at=at,
            more={"certificate": _base64(outcome.certificate), "ca": _base64(outcome.ca)},
        )
    return _failed(request, outcome, at=at, max_retry=max_retry)


def _is_answered(ready: Raw | None) -> bool:
    if ready is None:
        return False
    status, reason = ready.get("status"), ready.get("reason")
    return status == "True" or (status == "False" and reason in ("Failed", "Denied"))


def why_not(issuer: Raw | None) -> str | None:
    """Return why an issuer signs nothing now."""
    if issuer is None:
        return "there is none"
    ready = condition(issuer.get("status") or {}, READY)
    if ready is None:
        return "nobody has looked at it yet"
    if int(ready.get("observedGeneration") or 0) < int(issuer["metadata"].get("generation") or 1):
        return "it was changed, and nobody has looked at it since"
    if ready.get("status") != "True":
        return f"not ready: {ready.get('reason')}"
    if issuer["metadata"].get("deletionTimestamp") is not None:
        return "it is being deleted"
    return None


class Fate(StrEnum):
    """What a failure to sign means for the request."""

    REFUSED = "refused"
    NOT_SIGNED = "not-signed"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"


def fate_of(error: AttestationError) -> Fate:
    """Return what *error* means for the request that was to be signed."""
    # Permanent: the same request is refused tomorrow.
    if isinstance(error, RequestRefused | CertificateNotConformant):
        return Fate.REFUSED
    # Of the issuer: its key does not sign. It says so of itself, and its requests wait.
    # Nor does one that the service does not know, after its database was restored: it is registered again.
    if isinstance(error, KeyUnusable | SignerUnavailable | SignatureInvalid | IssuerUnknown):
        return Fate.NOT_SIGNED
    # Nothing was decided: service or cluster is away, or we lack a right there. It waits as long as that takes.
    return Fate.UNDECIDED if isinstance(error, Unavailable | Forbidden) else Fate.UNKNOWN


def seconds_until_next(waited_seconds: float) -> float:
    """Return after how long to look again at what has waited so long."""
    return min(LONGEST_WAIT_SECONDS, max(POLL_SECONDS, waited_seconds))


def retry_after(created_at: datetime, *, at: datetime, max_retry: timedelta) -> float | None:
    """Return after how many seconds to try again what fails for a reason that nobody knows; None for never.

    Args:
        created_at: Since when it could have been signed.
        at: Now.
        max_retry: How long it is tried.
    """
    spent = (at - created_at).total_seconds()
    left = max_retry.total_seconds() - spent
    return None if left <= 0 else max(POLL_SECONDS, min(spent, left))


def _failed(request: Request, error: AttestationError, *, at: datetime, max_retry: timedelta) -> Looked:
    words = clipped(f"{error.code}: {error}")
    match fate_of(error):
        case Fate.REFUSED:
            if not isinstance(error, RequestRefused):
                return _end(request, Step.FAILED, words, at=at)
            invalid = error.reason in INVALID
            return _end(request, Step.FAILED, f"{error.reason}: {error}", at=at, invalid=invalid)
        case Fate.NOT_SIGNED:
            looked = _pending(request, f"the issuer does not sign: {error.code}", at=at)
            return Looked(step=looked.step, actions=looked.actions, after=looked.after, issuer_fails=True)
        case Fate.UNDECIDED:
            return _pending(request, f"nothing was decided: {error.code}", at=at)
        case Fate.UNKNOWN:
            pass
    # Anything else may pass, but not for ever.
    after = retry_after(request.created_at, at=at, max_retry=max_retry)
    if after is None:
        return _end(request, Step.FAILED, words, at=at)
    looked = _pending(request, words, at=at)
    return Looked(step=looked.step, actions=looked.actions, after=after)


def _pending(request: Request, words: str, *, at: datetime) -> Looked:
    return _said(
        request,
        Step.PENDING,
        said(READY, "Pending", clipped(words), true=False),
        at=at,
        after=seconds_until_next(_waited(request, at)),
        exact=True,
    )


def _waited(request: Request, at: datetime) -> float:
    """Return for how many seconds it has been Pending."""
    ready = condition({"conditions": request.conditions}, READY) or {}
    since = ready.get("lastTransitionTime") if ready.get("reason") == "Pending" else None
    return (at - instant(since)).total_seconds() if since else 0.0


def _end(
    request: Request, step: Step, words: str, *, at: datetime, reason: str = "Failed", invalid: bool = False
) -> Looked:
    words = clipped(words)
    more = [said(INVALID_REQUEST, reason, words)] if invalid else []
    looked = _said(
        request,
        step,
        said(READY, reason, words, true=False),
        *more,
        at=at,
        more={"failureTime": rfc3339(at)},
    )
    event = EmitEvent(target=request.target, action="Sign", reason=reason, note=words, type="Warning")
    return Looked(step=step, actions=(*looked.actions, event))


def _said(
    request: Request,
    step: Step,
    *conditions: Mapping[str, Any],
    at: datetime,
    more: Mapping[str, Any] | None = None,
    after: float | None = None,
    exact: bool = False,
) -> Looked:
    """Return what says our conditions, by server-side apply: those of others are not in it, and stay."""
    types = (READY, INVALID_REQUEST)
    there = [each for each in request.conditions if each.get("type") in types]
    ours = with_conditions(there, conditions, generation=None, at=at)
    if ours == there and not more:
        return Looked(step=step, after=after)
    status = {"conditions": ours, **(more or {})}
    return Looked(
        step=step,
        actions=(SetStatus(target=request.target, manager=MANAGER, status=status, exact=exact),),
        after=after,
    )


def _base64(pem: str) -> str:
    return b64encode(pem.encode())
