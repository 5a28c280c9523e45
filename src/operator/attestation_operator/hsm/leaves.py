"""HsmCertificate: a key that is made on a token, a certificate for it from any issuer, renewed by itself. Pure.

`reconcile` looks at what is known, and names the next question or says what is to be done; questions go to the token
and to the API server. Each request has a number, which is written down before the request is made, and its name and
key follow from it: a process may end anywhere, and two at the same time make one key and one request.

    requestNumber = revision    the certificate in the Secret is that of the newest request
    requestNumber > revision    the newest request is open; with lastFailureTime, it failed
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from attestation.clock import rfc3339
from attestation.errors import (
    AttestationError,
    CertificateUntrusted,
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    RequestRefused,
)
from attestation.wire import b64encode
from attestation_operator.actions import Action, Create, Delete, EmitEvent, Replace, SetStatus
from attestation_operator.conditions import said, with_conditions
from attestation_operator.durations import NotADuration, parse_duration
from attestation_operator.errors import ClusterForbidden
from attestation_operator.hsm.leaf_objects import KEYS_KEPT, Answer, Ask, Case, Leaf, Looked, Seen
from attestation_operator.hsm.leaf_request import (
    Certificate,
    Wanted,
    asked_spki,
    judged,
    pem_of,
    read_chain,
    renewal_time,
    wanted_of,
)
from attestation_operator.hsm.modules import is_ready
from attestation_operator.hsm.objects import (
    AGAIN_SECONDS,
    MANAGER,
    READY,
    condition,
    hold,
    instant,
    is_status,
    let_go,
)
from attestation_operator.nodes.objects import decoded
from attestation_operator.objects import CERTIFICATE_REQUEST, SECRET, Raw, Target, clipped

ISSUING: Final = "Issuing"
LEAF_TYPE: Final = "attestation.itl.io/hsm-certificate"
CHECK_SECONDS: Final = 300.0
"""After so long a key and a Secret that were right are looked at again: nothing tells of either."""
FIRST_PAUSE: Final = timedelta(minutes=5)
LONGEST_PAUSE: Final = timedelta(hours=8)


def reconcile(case: Case) -> Looked:
    """Return what is to be done about an HsmCertificate now, or what must be known first."""
    leaf = case.leaf
    if leaf.deleting:
        return _deleted(case)
    # 1. It waits for us when it is deleted: a key may be made from now on.
    if not leaf.is_held:
        return Looked(actions=(hold(leaf.target, leaf.finalizers),), again=True)
    if condition(leaf.status, READY) is None:
        return _state(case, said(READY, "Initializing", "seen", true=None), again=True)
    if leaf.spec is None:
        return _state(case, _not("Failed", leaf.faults))
    try:
        wanted = wanted_of(leaf.spec)
    except RequestRefused as e:
        return _state(case, _not("Failed", str(e)))
    # 2. A token that its namespace may use, and that signs.
    if (trouble := _without_token(case)) is not None:
        return _state(case, trouble, after=AGAIN_SECONDS)
    # 3. The Secret is ours, or nobody's yet: before anything is made for it.
    secret = case.answers.get(Ask.TLS)
    if secret is None:
        return Looked(ask=Ask.TLS)
    if isinstance(secret, AttestationError):
        return _refused(case, secret)
    if isinstance(secret, Mapping) and not _is_ours(leaf, secret):
        words = f"Secret {leaf.secret} belongs to somebody else, and is not overwritten"
        return _state(case, _not("SecretForeign", words), after=AGAIN_SECONDS, warn="SecretForeign")
    # 4. The newest request, or the first.
    if leaf.number == 0:
        return _next(case)
    if leaf.count("revision") < leaf.number:
        return _issuing(case, wanted)
    return _standing(case, wanted)


def _without_token(case: Case) -> dict[str, Any] | None:
    leaf, module = case.leaf, case.module
    name = leaf.hsm.name
    # Who may not use a token learns no more of it than that there is none.
    if module is None or module.spec is None or not module.is_for(leaf.namespace):
        return _not("Pending", f"no HardwareSecurityModule {name} that this namespace may use")
    return None if is_ready(module) else _not("KeyUnavailable", f"HardwareSecurityModule {name} is not ready")


def _is_ours(leaf: Leaf, secret: Raw) -> bool:
    return leaf.owns(secret) and secret.get("type") == LEAF_TYPE


def _refused(case: Case, error: AttestationError) -> Looked:
    assert isinstance(error, ClusterForbidden)
    return forbidden(case, error)


def forbidden(case: Case, error: ClusterForbidden) -> Looked:
    """Return what says that the API server does not let us: only who grants rights can mend that."""
    words = clipped(f"the controller may not: {error}; hsm.certificates of the chart lists Secrets by name")
    return _state(case, _not("Forbidden", words), after=CHECK_SECONDS, warn="Forbidden")


# The certificate is there.


def _standing(case: Case, wanted: Wanted) -> Looked:
    leaf, secret = case.leaf, case.answers[Ask.TLS]
    assert leaf.spec is not None
    key = case.answers.get(Ask.KEY)
    if key is None:
        return Looked(ask=Ask.KEY)
    if isinstance(key, KeyNotFound):
        # Nobody can use the certificate any more. Another key is another certificate, and nothing else depends on it.
        return _next(
            case, fresh=True, warn=f"the key {leaf.label(leaf.count('keyRevision'))} is not on the token"
        )
    if isinstance(key, AttestationError):
        return _state(case, _trouble(key), after=AGAIN_SECONDS)
    assert isinstance(key, Seen)
    if key.algorithm != leaf.spec.key_type:
        return _next(case, fresh=True)
    # 1. The Secret holds what was issued, for this key, as it is wanted; else it is written anew, or asked for anew.
    certificate = _held(secret, wanted, key)
    if certificate is None:
        return _written_again(case, wanted, key)
    if leaf.status.get("issuedBy") != leaf.issuer:
        return _next(case)
    # 2. In time another is asked for, which needs the time that approvers and issuers take.
    due = renewal_time(certificate, leaf.spec)
    if case.at >= due:
        return _next(case)
    words = f"certificate {certificate.serial_number} until {rfc3339(certificate.not_after)}"
    looked = _state(
        case, said(READY, "Issued", words), said(ISSUING, "Issued", "nothing is asked for", true=False)
    )
    left = (due - case.at).total_seconds()
    return Looked(actions=looked.actions, after=min(CHECK_SECONDS, max(1.0, left)))


def _held(secret: Answer, wanted: Wanted, key: Seen) -> Certificate | None:
    """Return the certificate that the Secret holds, None where it is another than it should be."""
    if not isinstance(secret, Mapping):
        return None
    data = secret.get("data") or {}
    pem = decoded(str(data.get("tls.crt") or "")).decode("utf-8", "replace")
    try:
        certificate = judged(wanted, pem, spki=key.spki)
    except CertificateUntrusted:
        return None
    told = {"tls.crt": certificate.chain, "key-uri": key.uri}
    same = all(data.get(name) == b64encode(text.encode()) for name, text in told.items())
    return certificate if same and data.keys() <= {*told, "ca.crt"} else None


def _written_again(case: Case, wanted: Wanted, key: Seen) -> Looked:
    leaf = case.leaf
    request = case.answers.get(Ask.REQUEST)
    if request is None:
        return Looked(ask=Ask.REQUEST)
    if isinstance(request, AttestationError):
        return _refused(case, request)
    if not isinstance(request, Mapping) or not leaf.owns(request) or not _is_asked(leaf, wanted, request):
        return _next(case)
    try:
        certificate = judged(wanted, _told(request, "certificate"), spki=key.spki)
    except CertificateUntrusted:
        return _next(case)
    return Looked(actions=_filled(case, key, certificate, request), again=True)


# Another is on its way.


def _next(case: Case, *, fresh: bool = False, warn: str = "") -> Looked:
    """Return what writes down the number of the next request; it is made at the next look.

    Args:
        case: What is known.
        fresh: A key that is there no more is not looked for again.
        warn: Why, where somebody should know.
    """
    leaf = case.leaf
    assert leaf.spec is not None
    # What the request before the newest said is of no use any more; the newest stays, for people.
    actions: tuple[Action, ...] = ()
    if leaf.number > 1:
        old = case.answers.get(Ask.OLD_REQUEST)
        if old is None:
            return Looked(ask=Ask.OLD_REQUEST)
        if isinstance(old, Mapping) and leaf.owns(old):
            actions = (Delete(target=Target.of(CERTIFICATE_REQUEST, old)),)
    number, key = leaf.number + 1, leaf.count("keyRevision")
    # A key that was never certified is taken for the next request.
    ended_well = leaf.count("revision") == leaf.number
    if key == 0 or fresh or (ended_well and leaf.spec.key_rotation == "Always"):
        key += 1
    looked = _state(
        case,
        *_ready_while_issuing(case),
        said(ISSUING, "Requested", "a certificate is asked for"),
        found={"requestNumber": number, "requestName": leaf.request(number).name, "keyRevision": key},
        without=("lastFailureTime",),
        again=True,
    )
    if warn:
        event = EmitEvent(
            target=leaf.target, action="Check", reason="KeyGone", note=clipped(warn), type="Warning"
        )
        actions = (*actions, event)
    return Looked(actions=(*actions, *looked.actions), again=True)


def _ready_while_issuing(case: Case) -> tuple[dict[str, Any], ...]:
    """Return what is said of the certificate that is there: it is good until its end."""
    ends = case.leaf.status.get("notAfter")
    if ends is None or not isinstance(case.answers.get(Ask.TLS), Mapping):
        return (_not("Issuing", "there is no certificate yet"),)
    if instant(ends) <= case.at:
        return (_not("Expired", f"the certificate ended at {ends}"),)
    return (said(READY, "Issued", f"certificate {case.leaf.status.get('serialNumber')} until {ends}"),)


def _issuing(case: Case, wanted: Wanted) -> Looked:
    leaf = case.leaf
    # 1. The newest request failed: after a while, or with another spec, there is another.
    if (failed := leaf.status.get("lastFailureTime")) is not None:
        said_of = int((condition(leaf.status, ISSUING) or {}).get("observedGeneration") or 0)
        left = (instant(failed) + pause(leaf.count("failures")) - case.at).total_seconds()
        if left <= 0 or said_of < leaf.generation:
            return _next(case)
        looked = _state(case, *_ready_while_issuing(case))
        return Looked(actions=looked.actions, after=min(left, CHECK_SECONDS))
    request = case.answers.get(Ask.REQUEST)
    if request is None:
        return Looked(ask=Ask.REQUEST)
    if isinstance(request, AttestationError):
        return _refused(case, request)
    # 2. It is made, with its key.
    if not isinstance(request, Mapping):
        return _requested(case, wanted)
    if not leaf.owns(request):
        return _failure(
            case, "RequestForeign", f"CertificateRequest {leaf.request(leaf.number)} is somebody else's"
        )
    # 3. The spec was changed since: it asks for what nobody wants any more.
    if not _is_asked(leaf, wanted, request):
        return _next(case)
    # 4. Whoever approves and issues has answered, or not yet.
    status = request.get("status") or {}
    for type_, reason in (("Denied", "Denied"), ("InvalidRequest", "InvalidRequest")):
        if (found := condition(status, type_)) is not None and found.get("status") == "True":
            return _failure(case, reason, _words(found))
    ready = condition(status, READY) or {}
    if ready.get("status") == "False" and ready.get("reason") in ("Failed", "Denied"):
        return _failure(case, str(ready["reason"]), _words(ready))
    if ready.get("status") != "True":
        words = _words(ready) if ready else "neither approved nor answered yet"
        looked = _state(case, *_ready_while_issuing(case), said(ISSUING, "Pending", words))
        return Looked(actions=looked.actions, after=CHECK_SECONDS)
    return _accepted(case, wanted, request)


def _requested(case: Case, wanted: Wanted) -> Looked:
    leaf = case.leaf
    assert leaf.spec is not None
    key = case.answers.get(Ask.MAKE)
    if key is None:
        return Looked(ask=Ask.MAKE)
    if isinstance(key, KeyMismatch):
        # The key of before has another algorithm than `keyType` has now.
        return _state(case, found={"keyRevision": leaf.count("keyRevision") + 1}, again=True)
    if isinstance(key, AttestationError):
        return _state(case, _trouble(key), after=AGAIN_SECONDS)
    assert isinstance(key, Seen)
    ref, name = leaf.spec.issuer_ref, leaf.request(leaf.number)
    raw = {
        "apiVersion": CERTIFICATE_REQUEST.api_version,
        "kind": CERTIFICATE_REQUEST.kind,
        "metadata": {"name": name.name, "namespace": name.namespace, "ownerReferences": [leaf.owner]},
        "spec": {
            "issuerRef": {"name": ref.name, "kind": ref.kind, "group": ref.group},
            "request": b64encode(key.request),
            "usages": list(wanted.usages),
            "duration": leaf.spec.duration,
            "isCA": False,
        },
    }
    return Looked(actions=(Create(kind=CERTIFICATE_REQUEST, raw=raw),), after=AGAIN_SECONDS)


def _is_asked(leaf: Leaf, wanted: Wanted, request: Raw) -> bool:
    """Return whether a request of ours asks for what is wanted now."""
    assert leaf.spec is not None
    spec, ref = request.get("spec") or {}, leaf.spec.issuer_ref
    try:
        duration = parse_duration(str(spec.get("duration") or ""))
    except NotADuration:
        return False
    return (
        asked_spki(wanted, decoded(str(spec.get("request") or ""))) is not None
        and spec.get("issuerRef") == {"name": ref.name, "kind": ref.kind, "group": ref.group}
        and tuple(spec.get("usages") or ()) == wanted.usages
        and duration == wanted.duration
        and spec.get("isCA") is not True
    )


def _accepted(case: Case, wanted: Wanted, request: Raw) -> Looked:
    leaf = case.leaf
    assert leaf.spec is not None
    key = case.answers.get(Ask.KEY)
    if key is None:
        return Looked(ask=Ask.KEY)
    if isinstance(key, KeyNotFound):
        return _next(case, fresh=True)
    if isinstance(key, AttestationError):
        return _state(case, _trouble(key), after=AGAIN_SECONDS)
    assert isinstance(key, Seen)
    # 1. Of two controllers that raced, one made a key that is there no more: its request is given up.
    if asked_spki(wanted, decoded(str(request["spec"]["request"]))) != key.spki:
        return _next(case)
    # 2. What came back is what was asked for, and somebody can use it.
    try:
        certificate = judged(wanted, _told(request, "certificate"), spki=key.spki)
    except CertificateUntrusted as e:
        return _failure(case, "CertificateMismatch", str(e))
    if not certificate.not_before <= case.at + timedelta(minutes=10) or certificate.not_after <= case.at:
        return _failure(case, "CertificateMismatch", "the certificate is not valid now")
    # 3. Older keys go, but for the one before: until the next renewal it may be in use.
    oldest = leaf.count("keyRevision") - KEYS_KEPT
    if oldest >= 1 and leaf.spec.key_rotation == "Always" and leaf.spec.deletion_policy == "Destroy":
        done = case.answers.get(Ask.RETIRE)
        if done is None:
            return Looked(ask=Ask.RETIRE)
        if isinstance(done, AttestationError):
            return _state(case, _trouble(done), after=AGAIN_SECONDS)
    # 4. The Secret first: who sees the new state finds the certificate there.
    written = _filled(case, key, certificate, request)
    words = f"certificate {certificate.serial_number} until {rfc3339(certificate.not_after)}"
    looked = _state(
        case,
        said(READY, "Issued", words),
        said(ISSUING, "Issued", "nothing is asked for", true=False),
        found={
            "revision": leaf.number,
            "failures": 0,
            "keyURI": key.uri,
            "keyFingerprint": certificate.fingerprint,
            "serialNumber": certificate.serial_number,
            "issuedBy": leaf.issuer,
            "notBefore": rfc3339(certificate.not_before),
            "notAfter": rfc3339(certificate.not_after),
            "renewalTime": rfc3339(renewal_time(certificate, leaf.spec)),
        },
    )
    event = EmitEvent(target=leaf.target, action="Issue", reason="Issued", note=clipped(words))
    return Looked(actions=(*written, *looked.actions, event), again=True)


def _told(request: Raw, member: str) -> str:
    return decoded(str((request.get("status") or {}).get(member) or "")).decode("utf-8", "replace")


def _filled(case: Case, key: Seen, certificate: Certificate, request: Raw) -> tuple[Action, ...]:
    """Return what has the Secret hold the certificate, its CA, and the URI of its key; never a key."""
    leaf, there = case.leaf, case.answers[Ask.TLS]
    data = {"tls.crt": certificate.chain, "key-uri": key.uri}
    try:
        ca = read_chain(_told(request, "ca"))
        data["ca.crt"] = pem_of(ca)
    except CertificateUntrusted:
        pass  # best effort, as of any issuer (§16)
    encoded = {name: b64encode(text.encode()) for name, text in data.items()}
    if isinstance(there, Mapping):
        if there.get("data") == encoded:
            return ()
        return (Replace(target=Target.of(SECRET, there), raw={**there, "data": encoded}),)
    name = leaf.secret
    raw = {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": name.name, "namespace": name.namespace, "ownerReferences": [leaf.owner]},
        "type": LEAF_TYPE,
        "data": encoded,
    }
    return (Create(kind=SECRET, raw=raw),)


def pause(failures: int) -> timedelta:
    """Return how long after so many failures in a row there is no other request."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * float(2 ** max(0, min(failures, 16) - 1)))


def _failure(case: Case, reason: str, words: str) -> Looked:
    """Return what writes down that the newest request brings nothing."""
    leaf = case.leaf
    failures = leaf.count("failures") + 1
    words = clipped(words)
    looked = _state(
        case,
        *_ready_while_issuing(case),
        said(ISSUING, reason, words, true=False),
        found={"failures": failures, "lastFailureTime": rfc3339(case.at)},
    )
    event = EmitEvent(target=leaf.target, action="Issue", reason=reason, note=words, type="Warning")
    return Looked(actions=(*looked.actions, event), again=True)


def _words(found: Raw) -> str:
    return clipped(f"{found.get('reason')}: {found.get('message')}")


# Its end.


def _deleted(case: Case) -> Looked:
    """Deal with the keys, and let the object go; its Secret and its requests go with it."""
    leaf = case.leaf
    if not leaf.is_held:
        return Looked()
    freed = let_go(leaf.target, leaf.finalizers)
    # An object that was never followed has made no key.
    if leaf.spec is None or leaf.spec.deletion_policy == "Retain" or not leaf.count("keyRevision"):
        return Looked(actions=(freed,))
    if case.module is None or case.module.spec is None or not case.module.is_for(leaf.namespace):
        words = "its keys are to be destroyed, and its HardwareSecurityModule is not there"
        return _state(case, _not("KeyUnavailable", words), after=AGAIN_SECONDS)
    done = case.answers.get(Ask.DESTROY)
    if done is None:
        return Looked(ask=Ask.DESTROY)
    if isinstance(done, AttestationError):
        words = f"its keys are to be destroyed: {done}"
        return _state(case, _not(_trouble(done)["reason"], words), after=AGAIN_SECONDS)
    return Looked(actions=(freed,))


def _trouble(error: AttestationError) -> dict[str, Any]:
    reasons = ((KeyAmbiguous, "KeyAmbiguous"), (KeyUnsupported, "KeyUnsupported"), (RequestRefused, "Failed"))
    reason = next((each for type_, each in reasons if isinstance(error, type_)), "KeyUnavailable")
    return _not(reason, str(error))


def _not(reason: str, words: str) -> dict[str, Any]:
    return said(READY, reason, clipped(words), true=False)


def _state(
    case: Case,
    *conditions: Mapping[str, Any],
    found: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
    after: float | None = None,
    again: bool = False,
    warn: str = "",
) -> Looked:
    """Return the status with *conditions* and what was *found*; what stood there stays but *without*.

    It is written if the object is as it was read: of two processes, or of one that was shown an old state, one step is
    taken once.
    """
    leaf = case.leaf
    kept = {
        name: value for name, value in leaf.status.items() if name not in (*without, "conditions", "kopf")
    }
    status = {**kept, "observedGeneration": leaf.generation, **(found or {})}
    ours = [each for each in leaf.status.get("conditions") or () if each.get("type") in (READY, ISSUING)]
    status["conditions"] = with_conditions(ours, conditions, generation=leaf.generation, at=case.at)
    if is_status(leaf.status, status):
        return Looked(after=after)
    actions: tuple[Action, ...] = (SetStatus(target=leaf.target, manager=MANAGER, status=status, exact=True),)
    if warn:
        note = clipped(next(iter(conditions))["message"])
        actions += (EmitEvent(target=leaf.target, action="Check", reason=warn, note=note, type="Warning"),)
    return Looked(actions=actions, after=after, again=again)
