"""HsmIssuer and HsmClusterIssuer: from an object to a CA that signs (HSM-AND-KUBERNETES §14). Pure.

`reconcile` looks at what is known, and names the next question or says what is to be done. Questions (`Ask`) go to the
token or to the service; each may be asked again, and what it makes is looked up first, so a process may end anywhere.
"""

# Algorithms for: cluster-ca-key
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from attestation.api.hsm import HSMIssuer
from attestation.errors import (
    AttestationError,
    CAInvalid,
    KeyNotFound,
    SignerUnavailable,
    Unavailable,
)
from attestation.keys.open import OpenKey
from attestation_operator.actions import (
    Action,
    Create,
    Delete,
    EmitEvent,
    MergeStatus,
    SetStatus,
)
from attestation_operator.conditions import said, with_conditions
from attestation_operator.crds.hsm import P256, Reason
from attestation_operator.errors import EvidenceUnavailable
from attestation_operator.hsm import rotation
from attestation_operator.hsm.authority import (
    Authority,
    authority_of,
    chain_of,
    fingerprint_of,
    pem_of,
    proven_ca,
    renewal_due,
    within,
)
from attestation_operator.hsm.modules import is_ready
from attestation_operator.hsm.objects import (
    AGAIN_SECONDS,
    MANAGER,
    READY,
    Issuer,
    Module,
    condition,
    hold,
    is_status,
    key_reason,
    let_go,
    seconds_of,
)
from attestation_operator.objects import QUOTE_ATTESTATION, Raw, Target, clipped

QUOTES_SECONDS: Final = 1.0
"""After so long it is looked whether QuoteAttestations that were deleted are gone."""
EVIDENCE_SECONDS: Final = 60.0
"""After so long evidence that could not be collected is collected again: each time a program is run."""
WARNED: Final = timedelta(days=30)
"""So long before its end a CA certificate is warned of (§6)."""
ENDS: Final = "CAExpires"
"""Condition: the certificate of the CA ends within that."""


class Ask(StrEnum):
    """What is asked of the token, or of the service."""

    FIND = "find"
    COUNT = "count"
    MAKE = "make"
    SELF_SIGN = "self-sign"
    TEST = "test"
    REGISTER = "register"
    DESTROY = "destroy"
    OFFERED = "offered"
    OFFER = "offer"
    QUOTES = "quotes"
    DESTROY_KEKS = "destroy-keks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotes:
    """QuoteAttestations of an issuer, as the API server shows them: that of its spec as it is, or all of them."""

    found: tuple[Raw, ...]


Answer = OpenKey | bytes | HSMIssuer | bool | int | Quotes | Mapping[str, Any] | AttestationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of an issuer.

    Args:
        issuer: The object.
        module: Its HardwareSecurityModule, None where there is none.
        at: Now.
        answers: What was answered at this look.
        crl_number: Of the newest list that was published, None where nobody knows.
    """

    issuer: Issuer
    module: Module | None
    at: datetime
    answers: Mapping[Ask, Answer] = field(default_factory=dict)
    crl_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What follows.

    Args:
        ask: What must be known first; then nothing else is said.
        actions: What is to be done.
        authority: The CA, where it signs now.
        after: After how many seconds to look again by itself.
        again: Look again at once, at the object as it then is.
    """

    ask: Ask | None = None
    actions: tuple[Action, ...] = ()
    authority: Authority | None = None
    after: float | None = None
    again: bool = False


def reconcile(case: Case) -> Looked:
    """Return what is to be done about an issuer now, or what must be known first."""
    issuer = case.issuer
    if issuer.deleting:
        return _deleted(case)
    # 1. It waits for us when it is deleted: a key may be made from now on.
    if not issuer.is_held:
        return Looked(actions=(hold(issuer.target, issuer.finalizers),), again=True)
    # 2. It is known that we saw it (§16: requests of an issuer without a word of ours wait).
    if condition(issuer.status, READY) is None:
        return _state(case, said(READY, Reason.INITIALIZING, "seen", true=None), again=True)
    if issuer.spec is None:
        return _state(case, _not(Reason.FAILED, issuer.faults))
    # 3. A token that it may use, and that signs.
    if (trouble := _without_token(case)) is not None:
        return _state(case, trouble, after=AGAIN_SECONDS)
    # 4. Its key is there, once.
    key = case.answers.get(Ask.MAKE, case.answers.get(Ask.FIND))
    if key is None:
        return Looked(ask=Ask.FIND)
    if isinstance(key, KeyNotFound) and Ask.MAKE not in case.answers:
        return _without_key(case)
    if isinstance(key, AttestationError):
        return _state(case, _trouble(key), after=AGAIN_SECONDS)
    assert isinstance(key, OpenKey)
    if key.algorithm != issuer.spec.key_type:
        words = f"the key on the token is {key.algorithm}; keyType is {issuer.spec.key_type}"
        return _state(case, _not(Reason.KEY_UNSUPPORTED, words))
    if key.algorithm == "ecdsa-p256" and key.backend != "tpm2":
        return _state(case, _not(Reason.KEY_UNSUPPORTED, P256))
    # 5. Its certificate, which this key proves.
    return _certified(case, key)


def _without_token(case: Case) -> dict[str, Any] | None:
    issuer, module = case.issuer, case.module
    assert issuer.spec is not None
    name = issuer.spec.hsm_ref.name
    # An issuer of a namespace learns no more of a token that is not for it than of one that is not there.
    if module is None or module.spec is None or not module.is_for(issuer.target.namespace):
        return _not(Reason.PENDING, f"no HardwareSecurityModule {name} that this issuer may use")
    if not is_ready(module):
        return _not(Reason.KEY_UNAVAILABLE, f"HardwareSecurityModule {name} is not ready")
    return None


def _without_key(case: Case) -> Looked:
    issuer = case.issuer
    assert issuer.spec is not None
    # A key that was there is not made again: another key is another CA, and the first may come back.
    if (known := issuer.status.get("keyFingerprint")) is not None:
        words = f"the key {known} is not on the token any more"
        return _state(case, _not(Reason.KEY_UNAVAILABLE, words), after=AGAIN_SECONDS)
    if not issuer.has_own_key:
        return _state(
            case, _not(Reason.KEY_UNAVAILABLE, "keyRef names no key on the token"), after=AGAIN_SECONDS
        )
    if issuer.spec.mode == "SelfSigned":
        return _without_room(case) or Looked(ask=Ask.MAKE)
    return _awaiting(case, may_offer=True)


def _awaiting(case: Case, *, may_offer: bool) -> Looked:
    """Ask for the key in a QuoteAttestation, and say how far that is.

    Args:
        case: The issuer.
        may_offer: No key of its label is on the token: one may be asked for.
    """
    offered = case.answers.get(Ask.OFFERED)
    if offered is None:
        return Looked(ask=Ask.OFFERED)
    if isinstance(offered, AttestationError):
        return _state(case, _not(Reason.PENDING, offered.code), after=AGAIN_SECONDS)
    assert isinstance(offered, Quotes)
    if not offered.found:
        if not may_offer:
            words = "a key of this issuer is on the token, and its certificate is not in status.caCertificate"
            return _state(case, _not(Reason.CERTIFICATE_MISMATCH, words), after=AGAIN_SECONDS)
        offer = case.answers.get(Ask.OFFER)
        if offer is None:
            return _without_room(case) or Looked(ask=Ask.OFFER)
        if isinstance(offer, AttestationError):
            return _not_offered(case, offer)
        assert isinstance(offer, Mapping)
        return Looked(actions=(Create(kind=QUOTE_ATTESTATION, raw=offer),), again=True)
    [quote] = offered.found
    target = Target.of(QUOTE_ATTESTATION, quote)
    ref = {"qaRef": {"namespace": target.namespace, "name": target.name}}
    status = quote.get("status") or {}
    ready, loaded = condition(status, READY) or {}, condition(status, "KeyLoaded") or {}
    told = next((each for each in (ready, loaded) if each.get("status") == "False"), None)
    if told is not None:
        return _state(case, _not(str(told["reason"]), str(told["message"])), ref, after=AGAIN_SECONDS)
    words = f"QuoteAttestation {target}: {ready.get('message') or 'made'}"
    return _state(case, _not(Reason.AWAITING_KEY, words), ref, after=AGAIN_SECONDS)


def _not_offered(case: Case, error: AttestationError) -> Looked:
    if isinstance(error, EvidenceUnavailable):
        told = _not(Reason.EVIDENCE_UNAVAILABLE, str(error))
        return _state(case, told, after=EVIDENCE_SECONDS)
    if isinstance(error, Unavailable) and not isinstance(error, SignerUnavailable):
        return _state(
            case, _not(Reason.PENDING, f"it is to ask for its key: {error.code}"), after=AGAIN_SECONDS
        )
    return _state(case, _trouble(error), after=AGAIN_SECONDS)


def _without_room(case: Case) -> Looked | None:
    """Return what follows where no key is made for one more issuer of a namespace, or where it must be counted."""
    assert case.module is not None
    assert case.module.spec is not None
    most, namespace = case.module.spec.max_issuers_per_namespace, case.issuer.target.namespace
    if namespace is None:
        return None
    before = case.answers.get(Ask.COUNT)
    if before is None:
        return Looked(ask=Ask.COUNT)
    if isinstance(before, AttestationError):
        return _state(case, _trouble(before), after=AGAIN_SECONDS)
    assert isinstance(before, int)
    if before < most:
        return None
    words = f"{most} HsmIssuers of namespace {namespace} may have keys on this token, and so many are older"
    return _state(case, _not(Reason.QUOTA_EXCEEDED, words), after=AGAIN_SECONDS)


def _certified(case: Case, key: OpenKey) -> Looked:
    issuer = case.issuer
    assert issuer.spec is not None
    pem, made = issuer.status.get("caCertificate"), case.answers.get(Ask.SELF_SIGN)
    if isinstance(made, AttestationError):
        return _state(case, _trouble(made), after=AGAIN_SECONDS)
    if isinstance(made, bytes):
        pem = pem_of(made)
    is_own = issuer.spec.mode == "SelfSigned"
    try:
        # One by itself that has ended, or not begun, is renewed below, and the key's it is still.
        at = within(pem, case.at) if pem is not None and is_own else case.at
        ca = proven_ca(pem, key, at=at, by_itself=is_own) if pem is not None else None
    except CAInvalid as e:
        return _state(case, _not(Reason.CA_INVALID, str(e)), after=AGAIN_SECONDS)
    if ca is None and pem is None and is_own:
        return Looked(ask=Ask.SELF_SIGN)
    if pem is None and not is_own and issuer.has_own_key:
        # Its QuoteAttestation brings key and certificate, and is between both.
        return _awaiting(case, may_offer=False)
    if ca is None:
        words = "status.caCertificate is not that of the key on the token"
        return _state(case, _not(Reason.CERTIFICATE_MISMATCH, words), after=AGAIN_SECONDS)
    if is_own and made is None and renewal_due(issuer.spec, ca, at=case.at):
        return Looked(ask=Ask.SELF_SIGN)
    # 6. The certificate is written down before anything is signed, and only if the object is as it was read: of two
    # processes, or of one that was shown an old state, only one makes the CA.
    found = {
        "caCertificate": pem,
        "keyFingerprint": fingerprint_of(key),
        "keyOrigin": key.origin,
    }
    if isinstance(made, bytes):
        return Looked(actions=(MergeStatus(target=issuer.target, status=found),), again=True)
    # 7. It signs now.
    tested = case.answers.get(Ask.TEST)
    if tested is None:
        return Looked(ask=Ask.TEST)
    if isinstance(tested, AttestationError):
        return _state(case, _trouble(tested), found, after=AGAIN_SECONDS)
    # 8. The service knows the CA: it keeps what is issued, and serves what is revoked.
    known = case.answers.get(Ask.REGISTER)
    if known is None:
        return Looked(ask=Ask.REGISTER)
    if isinstance(known, AttestationError):
        words = f"the attestation service does not know the CA yet: {known.code}"
        reason = Reason.PENDING if isinstance(known, Unavailable) else Reason.FAILED
        return _state(case, _not(reason, words), found, after=AGAIN_SECONDS)
    assert isinstance(known, HSMIssuer)
    assert case.module is not None
    assert case.module.spec is not None
    found["issuerID"] = known.issuer_id
    # What was published, and not what was begun and may never be.
    if case.crl_number:
        found["crlNumber"] = case.crl_number
    authority = authority_of(issuer.spec, key=key, ca=ca, known=known, chain=chain_of(str(pem)))
    words = f"signs; its CA certificate ends on {ca.not_after:%Y-%m-%d}"
    soon = ca.not_after - case.at <= WARNED
    before = condition(issuer.status, ENDS)
    # One that was renewed says that its end is not near any more; before it ever was, nothing is said.
    ending = [said(ENDS, "Soon" if soon else "NotSoon", words, true=soon)] if soon or before else []
    events: tuple[Action, ...] = ()
    if soon and (before or {}).get("status") != "True":
        note = clipped(words)
        events = (EmitEvent(target=issuer.target, action="Check", reason=ENDS, note=note, type="Warning"),)
    looked = _state(
        case,
        said(READY, Reason.CHECKED, words),
        found,
        after=seconds_of(case.module.spec.health_check.interval),
        beside=ending,
    )
    return Looked(actions=looked.actions + events, authority=authority, after=looked.after)


def _deleted(case: Case) -> Looked:
    """Deal with the key, and let the object go."""
    issuer = case.issuer
    if not issuer.is_held:
        return Looked()
    freed = let_go(issuer.target, issuer.finalizers)
    if (waits := _without_quotes(case)) is not None:
        return waits
    if not issuer.destroys:
        return Looked(actions=(freed,))
    if case.module is None or case.module.spec is None or not case.module.is_for(issuer.target.namespace):
        words = "its key is to be destroyed, and its HardwareSecurityModule is not there"
        return _state(case, _not(Reason.KEY_UNAVAILABLE, words), after=AGAIN_SECONDS)
    done = case.answers.get(Ask.DESTROY)
    if done is None:
        return Looked(ask=Ask.DESTROY)
    if isinstance(done, AttestationError):
        words = f"its key is to be destroyed: {done}"
        return _state(case, _not(key_reason(done), words), after=AGAIN_SECONDS)
    return Looked(actions=(freed,))


def _without_quotes(case: Case) -> Looked | None:
    """Return what must be done before no QuoteAttestation and no key that wraps is left; None where that is so."""
    issuer = case.issuer
    if issuer.spec is None or issuer.spec.mode != "Provisioned":
        return None
    quotes = case.answers.get(Ask.QUOTES)
    if quotes is None:
        return Looked(ask=Ask.QUOTES)
    if isinstance(quotes, AttestationError):
        return _state(case, _not(Reason.PENDING, f"it is to be deleted: {quotes.code}"), after=AGAIN_SECONDS)
    assert isinstance(quotes, Quotes)
    if quotes.found:
        # Each destroys its own key, and tells the service.
        going = [each for each in quotes.found if each["metadata"].get("deletionTimestamp") is None]
        deletes = tuple(Delete(target=Target.of(QUOTE_ATTESTATION, each)) for each in going)
        return Looked(actions=deletes, after=QUOTES_SECONDS)
    if case.module is None or case.module.spec is None:
        return None
    # One that a process made and did not live to ask with.
    destroyed = case.answers.get(Ask.DESTROY_KEKS)
    if destroyed is None:
        return Looked(ask=Ask.DESTROY_KEKS)
    if isinstance(destroyed, AttestationError):
        return _state(case, _trouble(destroyed), after=AGAIN_SECONDS)
    return None


def _trouble(error: AttestationError) -> dict[str, Any]:
    """Return the condition that says what is wrong with a key."""
    return _not(key_reason(error), str(error))


def _not(reason: str, words: str) -> dict[str, Any]:
    return said(READY, reason, clipped(words), true=False)


_KEPT: Final = ("caCertificate", "keyFingerprint", "keyOrigin", "issuerID", "crlNumber", "qaRef", "keys")


def _state(
    case: Case,
    ready: dict[str, Any],
    found: Mapping[str, Any] | None = None,
    *,
    after: float | None = None,
    again: bool = False,
    beside: Sequence[dict[str, Any]] = (),
) -> Looked:
    """Return the status that says *ready*, with what was *found*; what stood there of the CA stays."""
    issuer = case.issuer
    kept = {name: issuer.status[name] for name in _KEPT if issuer.status.get(name) is not None}
    status = {"observedGeneration": issuer.generation, **kept, **(found or {})}
    types = (READY, ENDS, rotation.CURRENT)
    ours = [each for each in issuer.status.get("conditions") or () if each.get("type") in types]
    said_now = [ready, *beside, *rotation.conditions_of(issuer, case.at)]
    status["conditions"] = with_conditions(ours, said_now, generation=issuer.generation, at=case.at)
    if is_status(issuer.status, status):
        return Looked(after=after)
    return Looked(
        actions=(SetStatus(target=issuer.target, manager=MANAGER, status=status),), after=after, again=again
    )
