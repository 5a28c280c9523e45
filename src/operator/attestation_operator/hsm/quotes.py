"""QuoteAttestations: from an offer to a CA key on the token, one step at a time (HSM-AND-KUBERNETES §14). Pure.

    Accepted       it is ours: made for this edition of this issuer, about the key that wraps on its token
    Verified       the attestation service judged the evidence; what it could not decide is asked again
    KeyDelivered   a bundle was put into the Secret
    KeyLoaded      the token unwrapped it, and the key is that of the certificate (§13)
    Ready          Unknown while it is going on; True or False is its end, and then the key that wraps is destroyed

`reconcile` says what must be known first (`Ask`), or what is to be done. Each question may be asked again: what was
made is looked up by its label, what the service was told has the entry that it had. So a process may end anywhere.
Of an end its reason is written first, as Ready Unknown; then the key that wraps goes, then the service is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attestation.api.hsm import QuoteStep, QuoteVerdict
from attestation.clock import rfc3339
from attestation.errors import (
    AttestationError,
    BundleRejected,
    CAInvalid,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    HSMDiffers,
    KeyAmbiguous,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    MalformedEvidence,
    RequestInvalid,
)
from attestation.quote import Purpose
from attestation_operator.actions import Action, Delete, MergeStatus
from attestation_operator.conditions import said
from attestation_operator.errors import ClusterForbidden
from attestation_operator.hsm import bundles
from attestation_operator.hsm.authority import pem_of
from attestation_operator.hsm.modules import is_ready
from attestation_operator.hsm.objects import (
    AGAIN_SECONDS,
    READY,
    Absent,
    Issuer,
    condition,
    instant,
    key_reason,
    let_go,
)
from attestation_operator.hsm.offers import KEPT, Quote, asked_of, secret_name
from attestation_operator.hsm.quote_cases import (
    ACCEPTED,
    AWAITING_KEY,
    AWAITING_VERDICT,
    GOING,
    KEY_DELIVERED,
    KEY_LOADED,
    LOADED,
    VERIFIED,
    Ask,
    Case,
    Looked,
    is_true,
    left,
    plain,
    say,
    untold,
    waits,
)
from attestation_operator.objects import SECRET, Raw, Target, clipped

JUDGED_AGAIN_SECONDS: Final = 60.0
"""After so long evidence that could not be judged is judged again."""
LONGEST_SECONDS: Final = 86_400.0
MAX_CLAIMS: Final = 64


def reconcile(case: Case) -> Looked:
    """Return what is to be done about a QuoteAttestation now, or what must be known first."""
    quote = case.quote
    if quote.deleting:
        return _deleted(case)
    ready = condition(quote.status, READY) or {}
    if ready.get("status") in ("True", "False"):
        return _ended(case, ready)
    if ready and ready.get("reason") not in GOING:
        return _end(case, str(ready["reason"]), str(ready.get("message") or ""))
    if not is_true(quote, ACCEPTED):
        return _new(case)
    if not is_true(quote, KEY_LOADED) and (why := _over(case)) is not None:
        return _ends(case, *why)
    if not is_true(quote, VERIFIED):
        return _accepted(case)
    if not is_true(quote, KEY_LOADED):
        return _verified(case)
    return _loaded(case)


def _new(case: Case) -> Looked:
    """Look whether it is ours and can be followed."""
    quote, at = case.quote, case.at
    if quote.spec is None or quote.envelope is None:
        return _refused(case, "SpecInvalid", quote.faults)
    if at >= quote.envelope.expires_at:
        return _refused(case, "Expired", "its time was over when it was first seen")
    if quote.envelope.purpose is Purpose.KEY_PROVISIONING:
        if (why := _not_ours(case)) is not None:
            return _refused(case, *why)
        if (trouble := _without_token(case)) is not None:
            return waits(case, trouble)
        spki = case.answers.get(Ask.KEK)
        if spki is None:
            return Looked(ask=Ask.KEK)
        if isinstance(spki, KeyNotFound | KeyAmbiguous | KeyUnsupported):
            return _refused(case, "KeyMismatch", f"the key that it is about is not on the token: {spki.code}")
        if isinstance(spki, AttestationError):
            return waits(case, f"the token does not answer: {spki.code}")
        if spki != quote.envelope.spki:
            return _refused(case, "KeyMismatch", "it is about another key than that on the token")
    return say(
        case,
        said(ACCEPTED, ACCEPTED, "its evidence is to be judged"),
        said(READY, AWAITING_VERDICT, "its evidence is being judged", true=None),
        again=True,
    )


def _not_ours(case: Case) -> tuple[str, str] | None:
    """Return why it is none that we made for the issuer that it names, as that is now."""
    quote, issuer = case.quote, case.issuer
    assert quote.spec is not None
    signer = quote.spec.signer_ref
    if issuer is None or issuer.deleting or issuer.spec is None or issuer.spec.provisioning is None:
        return "SignerUnknown", f"no {signer.kind} {signer.name} of this UID that waits for a key"
    if case.generation is None:
        return "SignerUnknown", "it is none that this controller made for its issuer"
    asked, wrap, policy = asked_of(issuer), quote.spec.wrap, quote.spec.policy_ref
    assert wrap is not None
    assert quote.spec.secret_ref is not None
    differs = [
        what
        for what, same in (
            ("evidence type", quote.spec.evidence.type == asked.evidence.type),
            ("scheme", quote.spec.binding.scheme == "itl-qa-v1"),
            ("OAEP hash", wrap.oaep_hash == asked.oaep_hash),
            ("Secret", quote.spec.secret_ref.name == secret_name(issuer)),
            (
                "policy",
                (policy and policy.name) == (asked.evidence_policy_ref and asked.evidence_policy_ref.name),
            ),
        )
        if not same
    ]
    if case.generation != issuer.generation or differs:
        return "Superseded", "its issuer was changed since it was made"
    return None


def _over(case: Case) -> tuple[str, str] | None:
    """Return why nothing is accepted for it any more."""
    quote = case.quote
    if quote.envelope is None or quote.spec is None:
        return "SpecInvalid", quote.faults
    if case.at >= quote.envelope.expires_at:
        return "Expired", f"no key was handed over until {rfc3339(quote.envelope.expires_at)}"
    return _not_ours(case) if quote.envelope.purpose is Purpose.KEY_PROVISIONING else None


def _without_token(case: Case) -> str | None:
    if case.module is None or case.module.spec is None:
        return "no HardwareSecurityModule that its issuer may use"
    return None if is_ready(case.module) else "its HardwareSecurityModule is not ready"


def _accepted(case: Case) -> Looked:
    """Have the evidence judged."""
    verdict = case.answers.get(Ask.JUDGE)
    if verdict is None:
        return Looked(ask=Ask.JUDGE)
    if isinstance(verdict, _REFUSED):
        return _ends(
            case,
            "EvidenceFailed",
            f"the attestation service does not judge it: {verdict.code}",
            said(VERIFIED, "EvidenceFailed", verdict.code, true=False),
        )
    if isinstance(verdict, AttestationError):
        return waits(
            case,
            f"the attestation service: {verdict.code}",
            said(VERIFIED, "Pending", f"nothing was decided: {verdict.code}", true=None),
        )
    assert isinstance(verdict, QuoteVerdict)
    found = _found(verdict)
    if verdict.verdict == "indeterminate":
        words = said(VERIFIED, verdict.reason, verdict.message, true=None)
        return say(case, words, found=found, after=min(JUDGED_AGAIN_SECONDS, left(case)))
    if verdict.verdict == "failed":
        words = said(VERIFIED, verdict.reason, verdict.message, true=False)
        return _ends(case, "EvidenceFailed", verdict.message, words, found=found)
    if Ask.TELL_ACCEPTED not in case.answers:
        return Looked(ask=Ask.TELL_ACCEPTED, step=QuoteStep(step="accepted"))
    if (error := untold(case, Ask.TELL_ACCEPTED)) is not None:
        return waits(case, f"the attestation service: {error.code}")
    good = said(VERIFIED, VERIFIED, f"by {verdict.verifier.name} {verdict.verifier.version}")
    assert case.quote.envelope is not None
    if case.quote.envelope.purpose is Purpose.CSR_ATTESTATION:
        return say(case, good, said(READY, VERIFIED, "the evidence is good"), found=found, again=True)
    return say(
        case,
        good,
        said(KEY_DELIVERED, AWAITING_KEY, _where(case), true=False),
        said(READY, AWAITING_KEY, _where(case), true=None),
        found=found,
        again=True,
    )


_REFUSED: Final = (
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    HSMDiffers,
    MalformedEvidence,
    RequestInvalid,
)
"""What the service says of a QuoteAttestation that it will never judge."""


def _found(verdict: QuoteVerdict) -> dict[str, Any]:
    """Return what the status says of a verdict."""
    claims = {
        str(name)[:64]: clipped(str(value))
        for name, value in list(verdict.claims.items())[:MAX_CLAIMS]
        if value is not None
    }
    told = {
        "verdict": verdict.verdict,
        "verifier": {
            "name": verdict.verifier.name,
            "version": verdict.verifier.version,
            "at": rfc3339(verdict.verifier.at),
        },
        "claims": claims,
        "evidenceDigest": verdict.evidence_digest,
        "boundKeyFingerprint": verdict.bound_key_fingerprint,
        "auditEntryHash": verdict.audit_entry_hash,
    }
    return {name: value for name, value in told.items() if value is not None}


def _where(case: Case) -> str:
    spec = case.quote.spec
    assert spec is not None
    assert spec.secret_ref is not None
    return f"no bundle is in the Secret {case.quote.target.namespace}/{spec.secret_ref.name} yet"


def _verified(case: Case) -> Looked:
    """Take the bundle, check it in the order of §13, and have the token unwrap it."""
    quote, issuer = case.quote, case.issuer
    assert quote.envelope is not None
    assert issuer is not None
    secret = case.answers.get(Ask.SECRET)
    if secret is None:
        return Looked(ask=Ask.SECRET)
    if isinstance(secret, ClusterForbidden):
        return waits(case, "the controller may not read the Secret")
    if isinstance(secret, AttestationError):
        return waits(case, f"the Secret: {secret.code}")
    if isinstance(secret, Absent):
        return say(
            case,
            said(KEY_DELIVERED, AWAITING_KEY, _where(case), true=False),
            said(READY, AWAITING_KEY, _where(case), true=None),
            without=KEY_LOADED,
            after=min(AGAIN_SECONDS, left(case)),
        )
    if (trouble := _without_token(case)) is not None:
        return waits(case, trouble)
    assert isinstance(secret, Mapping)
    asked, sha256 = asked_of(issuer), None
    try:
        given = bundles.read_secret(secret)
        sha256 = given.sha256
        signed = bundles.judged(
            given, asked, quote.envelope, qa_uid=quote.target.uid, signer_uid=issuer.uid, at=case.at
        )
    except BundleRejected as e:
        return _rejected(case, sha256, str(e))
    # 3. Once, in the service, whatever follows: of two bundles for one question one is unwrapped.
    spent = case.answers.get(Ask.SPEND)
    if spent is None:
        step = QuoteStep(step="bundle-accepted", bundle_sha256=signed.sha256, signers=signed.signers)
        return Looked(ask=Ask.SPEND, step=step)
    if isinstance(spent, ChallengeUsed | ChallengeExpired):
        return _rejected(case, sha256, f"its nonce is spent or over: {spent.code}")
    if isinstance(spent, AttestationError):
        return waits(case, f"the attestation service: {spent.code}")
    delivered = said(KEY_DELIVERED, "BundleFound", f"bundle {signed.sha256}")
    # 4. The CA that the issuer was promised.
    try:
        bundles.demand_certificate(signed.bundle, asked)
    except BundleRejected as e:
        return _not_loaded(case, delivered, "BundleRejected", str(e))
    # 5. The token opens it, and the key in it is that of the certificate, which is that of a CA.
    loaded = case.answers.get(Ask.LOAD)
    if loaded is None:
        return Looked(ask=Ask.LOAD, bundle=signed)
    if isinstance(loaded, _UNUSABLE):
        return _not_loaded(case, delivered, key_reason(loaded), str(loaded))
    if isinstance(loaded, AttestationError):
        return waits(case, f"the token does not answer: {loaded.code}")
    looked = say(
        case,
        delivered,
        said(KEY_LOADED, LOADED, "the token unwrapped it; the key is that of the certificate"),
        said(READY, LOADED, "the key is on the token", true=None),
        again=True,
    )
    # The certificate stands in the issuer's status before anybody hears that the key is there.
    pem = "".join(map(pem_of, signed.bundle.chain))
    known = () if issuer.status.get("caCertificate") == pem else (_certified(issuer, pem),)
    return Looked(actions=(*known, *looked.actions), again=True)


def _certified(issuer: Issuer, pem: str) -> Action:
    return MergeStatus(target=issuer.target, status={"caCertificate": pem})


_UNUSABLE: Final = (KeyUnusable, CAInvalid)
"""What a bundle ends with at the token; that a token is away is none of it."""


def _rejected(case: Case, sha256: str | None, words: str) -> Looked:
    """Say why a bundle is not accepted; another one may still come."""
    words = plain(f"bundle {sha256[:16]}: {words}" if sha256 is not None else words)
    there = condition(case.quote.status, KEY_LOADED) or {}
    after = min(AGAIN_SECONDS, left(case))
    if (there.get("reason"), there.get("message")) == ("BundleRejected", words):
        return Looked(after=after)
    if Ask.TELL_REJECTED not in case.answers:
        step = QuoteStep(step="bundle-rejected", bundle_sha256=sha256, detail=words)
        return Looked(ask=Ask.TELL_REJECTED, step=step)
    if (error := untold(case, Ask.TELL_REJECTED)) is not None:
        return waits(case, f"the attestation service: {error.code}")
    return say(
        case,
        said(KEY_DELIVERED, "BundleFound", "a bundle is in the Secret"),
        said(KEY_LOADED, "BundleRejected", words, true=False),
        said(READY, AWAITING_KEY, words, true=None),
        after=after,
    )


def _not_loaded(case: Case, delivered: Mapping[str, Any], reason: str, words: str) -> Looked:
    """End with a bundle whose nonce is spent."""
    return _ends(case, reason, words, delivered, said(KEY_LOADED, reason, plain(words), true=False))


def _loaded(case: Case) -> Looked:
    """Let the key sign, destroy what wrapped it, say so, and take the bundle away."""
    if (trouble := _without_token(case)) is not None:
        return waits(case, trouble)
    for ask in (Ask.TEST, Ask.CLEAN):
        answer = case.answers.get(ask)
        if answer is None:
            return Looked(ask=ask)
        if isinstance(answer, AttestationError):
            return waits(case, f"the token: {answer.code}")
    if Ask.TELL_END not in case.answers:
        return Looked(ask=Ask.TELL_END, step=QuoteStep(step="loaded"))
    if (error := untold(case, Ask.TELL_END)) is not None:
        return waits(case, f"the attestation service: {error.code}")
    secret = case.answers.get(Ask.SECRET)
    if secret is None:
        return Looked(ask=Ask.SECRET)
    if isinstance(secret, AttestationError):
        return waits(case, f"the Secret: {secret.code}")
    gone: tuple[Action, ...] = ()
    if isinstance(secret, Mapping) and bundles.is_bundle(secret):
        gone = (Delete(target=Target.of(SECRET, secret)),)
    looked = say(
        case, said(READY, LOADED, "the key is on the token; what wrapped it is destroyed"), again=True
    )
    return Looked(actions=(*gone, *looked.actions), again=True)


# ------------------------------------------------------------ ends


def _refused(case: Case, reason: str, words: str) -> Looked:
    """End with what was not accepted."""
    return _ends(case, reason, words, said(ACCEPTED, reason, plain(words), true=False))


def _ends(
    case: Case,
    reason: str,
    words: str,
    *conditions: Mapping[str, Any],
    found: Mapping[str, Any] | None = None,
) -> Looked:
    """Write down why it ends; then what is left of it is dealt with."""
    return say(case, *conditions, said(READY, reason, plain(words), true=None), found=found, again=True)


def _end(case: Case, reason: str, words: str) -> Looked:
    """Destroy the key that wraps and what was brought in by it, tell the service, and say that it ended."""
    if (first := _cleaned(case)) is not None:
        return first
    if Ask.TELL_END not in case.answers:
        return Looked(ask=Ask.TELL_END, step=_end_step(reason, words))
    if (error := untold(case, Ask.TELL_END)) is not None:
        return waits(case, f"the attestation service: {error.code}", ready=False)
    return say(case, said(READY, reason, words, true=False), again=True)


def _end_step(reason: str, words: str) -> QuoteStep:
    if reason == "Expired":
        return QuoteStep(step="expired")
    return QuoteStep(step="failed", detail=plain(f"{reason}: {words}"))


def _cleaned(case: Case) -> Looked | None:
    """Return what must be done before nothing of it is on the token; None where that is so."""
    # What is none of ours has no key; and where the token is gone, so is what was on it.
    if case.generation is None or case.module is None or case.module.spec is None:
        return None
    answer = case.answers.get(Ask.CLEAN)
    if answer is None:
        return Looked(ask=Ask.CLEAN)
    if isinstance(answer, AttestationError):
        return waits(case, f"what is on the token cannot be destroyed: {answer.code}", ready=False)
    return None


def _ended(case: Case, ready: Raw) -> Looked:
    """Let it be deleted by anybody, and delete it when it was kept long enough."""
    quote = case.quote
    if quote.is_held:
        return _cleaned(case) or Looked(actions=(_freed(quote),), again=True)
    remaining = (instant(str(ready["lastTransitionTime"])) + KEPT - case.at).total_seconds()
    if remaining <= 0:
        return Looked(actions=(Delete(target=quote.target),))
    return Looked(after=min(remaining, LONGEST_SECONDS))


def _deleted(case: Case) -> Looked:
    """Destroy the key that wraps, and let the object go."""
    quote = case.quote
    if not quote.is_held:
        return Looked()
    if (first := _cleaned(case)) is not None:
        return first
    # Told as far as that is possible: without its key nothing is loaded, and its nonce ends by itself.
    if (condition(quote.status, READY) or {}).get("status") not in (
        "True",
        "False",
    ) and Ask.TELL_END not in case.answers:
        return Looked(ask=Ask.TELL_END, step=QuoteStep(step="failed", detail="Deleted"))
    return Looked(actions=(_freed(quote),))


def _freed(quote: Quote) -> Action:
    return let_go(quote.target, quote.finalizers)
