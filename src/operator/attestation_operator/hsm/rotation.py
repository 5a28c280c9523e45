"""One key of an issuer after another (HSM-AND-KUBERNETES §8, docs/adr/0195). Pure.

    spec.rotation.key + 1 ──► Next ── publishedFor ──► Active ── (the one after) ──► Retiring ── last certificate + 24 h
                                                         ▲                              │                    │
                                                         └──── spec.rotation.key back ──┘                    ▼
                                                                                                          Retired

A Next key is shown before it signs, and certified by the one that signs, where that may certify CAs. A Retiring key
signs lists and responders alone. There is one of each at most, and no number is used twice.

As in `issuers`, `plan` names the next question or says what is to be done; what a question makes is looked up first,
and each step is written down only where the object is as it was read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.clock import rfc3339
from attestation.errors import AttestationError
from attestation.keys.open import OpenKey
from attestation.pki.external import IssuingCA
from attestation_operator.actions import Action, EmitEvent, MergeStatus
from attestation_operator.conditions import said
from attestation_operator.crds.hsm import KeyState
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.authority import fingerprint_of, pem_of
from attestation_operator.hsm.objects import Issuer, instant, label_of
from attestation_operator.objects import Raw, clipped

CURRENT: Final = "KeyCurrent"
"""Condition: the key that is wanted is the one that signs."""
AFTER_LAST_END: Final = timedelta(hours=24)
"""So long after the end of its last certificate a Retiring key still answers for it."""
MOST_REMEMBERED: Final = 16
"""Of Retired keys so many are told of, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKey:
    """A key of an issuer, as its status tells.

    Args:
        number: Its number, from 1; its label on the token follows from it.
        state: What it does.
        since: Since when.
        certificate: By itself, PEM; None of a Retired one.
        cross: By the key before it, PEM; None where there is none.
        fingerprint: SHA-256 of its SubjectPublicKeyInfo, hex.
        origin: Where it was made.
        issuer_id: How the service calls it; None before it signed anything.
        crl_number: Of its newest list, when it ceased to sign.
    """

    number: int
    state: KeyState
    since: datetime
    certificate: str | None
    cross: str | None = None
    fingerprint: str | None = None
    origin: str | None = None
    issuer_id: str | None = None
    crl_number: int | None = None

    @property
    def raw(self) -> Raw:
        """As the status has it."""
        told = {
            "number": self.number,
            "state": str(self.state),
            "since": rfc3339(self.since),
            "caCertificate": self.certificate,
            "crossCertificate": self.cross,
            "keyFingerprint": self.fingerprint,
            "keyOrigin": self.origin,
            "issuerID": self.issuer_id,
            "crlNumber": self.crl_number,
        }
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The keys of an issuer, by what they do."""

    active: HeldKey
    coming: HeldKey | None
    retiring: HeldKey | None
    retired: tuple[HeldKey, ...]

    @property
    def all(self) -> tuple[HeldKey, ...]:
        """Every one, by number."""
        there = (self.active, self.coming, self.retiring, *self.retired)
        return tuple(sorted((each for each in there if each is not None), key=lambda each: each.number))

    @property
    def following(self) -> int:
        """The number that the next new key has."""
        return self.all[-1].number + 1

    def numbered(self, number: int) -> HeldKey | None:
        """Return the key of a number that signs, or did or will."""
        there = (self.active, self.coming, self.retiring)
        return next((each for each in there if each is not None and each.number == number), None)


def held_of(issuer: Issuer, at: datetime) -> Held:
    """Return the keys of an issuer; one that was never rotated has the first."""
    told = [_read(each) for each in issuer.status.get("keys") or ()]
    by_state = {each.state: each for each in told}
    status = issuer.status
    # What signs stands in the status itself, too, and there it is proven by the key: nothing else of it is believed.
    active = replace(
        by_state.get(KeyState.ACTIVE, HeldKey(number=1, state=KeyState.ACTIVE, since=at, certificate=None)),
        certificate=status.get("caCertificate"),
        fingerprint=status.get("keyFingerprint"),
        origin=status.get("keyOrigin"),
        issuer_id=status.get("issuerID"),
        crl_number=status.get("crlNumber"),
    )
    return Held(
        active=active,
        coming=by_state.get(KeyState.NEXT),
        retiring=by_state.get(KeyState.RETIRING),
        retired=tuple(each for each in told if each.state is KeyState.RETIRED)[-MOST_REMEMBERED:],
    )


def _read(raw: Raw) -> HeldKey:
    return HeldKey(
        number=int(raw["number"]),
        state=KeyState(raw["state"]),
        since=instant(raw["since"]),
        certificate=raw.get("caCertificate"),
        cross=raw.get("crossCertificate"),
        fingerprint=raw.get("keyFingerprint"),
        origin=raw.get("keyOrigin"),
        issuer_id=raw.get("issuerID"),
        crl_number=raw.get("crlNumber"),
    )


def labels_of(issuer: Issuer, at: datetime) -> tuple[str, ...]:
    """Return the label of every key that may have been made for an issuer, also one that was not written down."""
    last = held_of(issuer, at).following
    return tuple(label_of(issuer.uid, number) for number in range(1, last + 1))


def refusal(issuer: Issuer, held: Held) -> str | None:
    """Return why the number that is wanted cannot be had; None where it can."""
    assert issuer.spec is not None
    wanted = issuer.spec.rotation.key
    if held.numbered(wanted) is not None:
        return None
    if held.coming is not None:
        return f"key {held.coming.number} is to come: say {held.coming.number}, or {held.active.number}"
    if held.retiring is not None:
        return f"key {held.retiring.number} is still retiring; say {held.active.number}, or go back to it"
    if wanted != held.following:
        return f"key {held.active.number} signs, and the next one is {held.following}, not {wanted}"
    return None


def conditions_of(issuer: Issuer, at: datetime) -> list[dict[str, Any]]:
    """Return the condition of an issuer whose keys change, or did."""
    spec = issuer.spec
    if spec is None or (spec.rotation.key == 1 and not issuer.status.get("keys")):
        return []
    held, wanted = held_of(issuer, at), spec.rotation.key
    signs = f"key {held.active.number} signs"
    if (words := refusal(issuer, held)) is not None:
        return [said(CURRENT, "Refused", clipped(words), true=False)]
    if wanted == held.active.number:
        if held.retiring is None:
            return [said(CURRENT, "Current", signs)]
        words = f"{signs}; key {held.retiring.number} answers for its certificates until the last has ended"
        return [said(CURRENT, "Retiring", words)]
    coming = held.coming
    if coming is None or coming.number != wanted:
        return [said(CURRENT, "Making", f"{signs}; key {wanted} is to follow", true=False)]
    words = f"{signs}; key {wanted} is published and signs from {rfc3339(_signs_from(issuer, coming))}"
    if coming.cross is None:
        words = f"{words}. pathLen is 0, so nothing joins them: who does not trust it by then refuses what it signs"
    return [said(CURRENT, "Published", words, true=False)]


def _signs_from(issuer: Issuer, coming: HeldKey) -> datetime:
    assert issuer.spec is not None
    return coming.since + parse_duration(issuer.spec.rotation.published_for)


class Ask(StrEnum):
    """What is asked of the token or the service."""

    MAKE = "make"
    SELF_SIGN = "self-sign"
    CROSS = "cross"
    TEST = "test"
    LAST_END = "last-end"
    DESTROY = "destroy"


Answer = OpenKey | bytes | datetime | bool | AttestationError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of an issuer that signs.

    Args:
        issuer: The object.
        ca: The CA that signs.
        at: Now.
        answers: What was answered at this look.
    """

    issuer: Issuer
    ca: IssuingCA
    at: datetime
    answers: Mapping[Ask, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What follows.

    Args:
        ask: What must be known first; then nothing else is said.
        number: The key that it is about.
        actions: What is to be done; then the object is looked at anew.
        error: What hinders the next step now.
    """

    ask: Ask | None = None
    number: int = 0
    actions: tuple[Action, ...] = ()
    error: AttestationError | None = None


def plan(case: Case) -> Turn:
    """Return what is to be done about the keys of an issuer now, or what must be known first."""
    issuer = case.issuer
    assert issuer.spec is not None
    held, wanted = held_of(issuer, case.at), issuer.spec.rotation.key
    other = held.numbered(wanted)
    # 1. A key that nobody goes back to ends when nobody needs it, whatever else is wanted.
    if held.retiring is not None and other is not held.retiring:
        turn = _retired(case, held, held.retiring)
        if turn != Turn():
            return turn
    if other is held.active or refusal(issuer, held) is not None:
        return Turn()
    # 2. A new key: made and published, and nothing else yet.
    if other is None:
        return _published(case, held, wanted)
    # 3. One that everybody had the time to learn of, or that everybody knew: it signs from now on.
    if other is held.coming and case.at < _signs_from(issuer, other):
        return Turn()
    return _switched(case, held, other)


def _published(case: Case, held: Held, number: int) -> Turn:
    issuer, answers = case.issuer, case.answers
    for ask in (Ask.MAKE, Ask.SELF_SIGN, *((Ask.CROSS,) if may_cross(case.ca) else ())):
        if ask not in answers:
            return Turn(ask=ask, number=number)
        if isinstance(error := answers[ask], AttestationError):
            return Turn(error=error)
    key, made, cross = answers[Ask.MAKE], answers[Ask.SELF_SIGN], answers.get(Ask.CROSS)
    assert isinstance(key, OpenKey)
    assert isinstance(made, bytes)
    coming = HeldKey(
        number=number,
        state=KeyState.NEXT,
        since=case.at,
        certificate=pem_of(made),
        cross=pem_of(cross) if isinstance(cross, bytes) else None,
        fingerprint=fingerprint_of(key),
        origin=key.origin,
    )
    until = rfc3339(_signs_from(issuer, coming))
    words = f"key {number} is made and published; it signs from {until}"
    return Turn(actions=_written(issuer, replace(held, coming=coming), "KeyPublished", words))


def _switched(case: Case, held: Held, other: HeldKey) -> Turn:
    # The key that is to sign proves itself first: after the switch it would be too late.
    tested = case.answers.get(Ask.TEST)
    if tested is None:
        return Turn(ask=Ask.TEST, number=other.number)
    if isinstance(tested, AttestationError):
        return Turn(error=tested)
    after = replace(
        held,
        active=replace(other, state=KeyState.ACTIVE, since=case.at),
        coming=None if other is held.coming else held.coming,
        retiring=replace(held.active, state=KeyState.RETIRING, since=case.at),
    )
    words = f"key {other.number} signs; key {held.active.number} is retiring"
    signs = {
        "caCertificate": other.certificate,
        "keyFingerprint": other.fingerprint,
        "keyOrigin": other.origin,
        "issuerID": other.issuer_id,
        "crlNumber": other.crl_number,
    }
    return Turn(actions=_written(case.issuer, after, "KeySwitched", words, signs))


def _retired(case: Case, held: Held, gone: HeldKey) -> Turn:
    issuer = case.issuer
    assert issuer.spec is not None
    # Whatever the log says: nothing that was issued in the last moment before the switch has ended before that.
    if case.at < gone.since + parse_duration(issuer.spec.policy.max_duration) + AFTER_LAST_END:
        return Turn()
    if Ask.LAST_END not in case.answers:
        return Turn(ask=Ask.LAST_END, number=gone.number)
    last = case.answers[Ask.LAST_END]
    if isinstance(last, AttestationError):
        return Turn(error=last)
    if not isinstance(last, datetime) or case.at < last + AFTER_LAST_END:
        return Turn()
    words = f"key {gone.number} is retired: its last certificate ended; it stays on the token"
    if issuer.spec.deletion_policy == "Destroy":
        if Ask.DESTROY not in case.answers:
            return Turn(ask=Ask.DESTROY, number=gone.number)
        if isinstance(error := case.answers[Ask.DESTROY], AttestationError):
            return Turn(error=error)
        words = f"key {gone.number} is retired and destroyed: its last certificate ended"
    after = replace(
        held,
        active=replace(held.active, cross=None),
        retiring=None,
        retired=(
            *held.retired,
            replace(gone, state=KeyState.RETIRED, since=case.at, certificate=None, cross=None),
        ),
    )
    return Turn(actions=_written(issuer, after, "KeyRetired", words))


def _written(
    issuer: Issuer, held: Held, reason: str, words: str, more: Mapping[str, Any] | None = None
) -> tuple[Action, ...]:
    status = {"keys": [each.raw for each in held.all], **(more or {})}
    return (
        MergeStatus(target=issuer.target, status=status),
        EmitEvent(target=issuer.target, action="Rotate", reason=reason, note=clipped(words)),
    )


def may_cross(ca: IssuingCA) -> bool:
    """Whether a CA may certify another one: its path length leaves room for it."""
    return ca.path_length is None or ca.path_length > 0


def cross_uid(issuer: Issuer, number: int) -> str:
    """Return by what the log knows the request for the cross certificate of a key: the same each time."""
    return str(uuid.uuid5(_CROSSES, f"{issuer.uid} {number}"))


_CROSSES: Final = uuid.UUID("6b0d6a52-6d0c-5c43-9f83-2f4f5f8f0d11")


def cross_duration(issuer: Issuer) -> timedelta:
    """Return how long a cross certificate lives: as long as anybody may know the key before it alone, and no longer.

    It is one of the certificates that the key before answers for, so it must not keep that from being retired.
    """
    assert issuer.spec is not None
    spec = issuer.spec
    return (
        parse_duration(spec.rotation.published_for)
        + parse_duration(spec.policy.max_duration)
        + AFTER_LAST_END
    )


def proven_cross(pem: str, *, of: IssuingCA, by: IssuingCA, at: datetime) -> bytes | None:
    """Return the cross certificate of *pem*, DER; None where it is not that of *of* by *by*, or has ended.

    It stands in a status, which others may write.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem.encode())
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(by.certificate))
        same = certificate.public_key() == of.public_key and certificate.subject == of.subject
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return None
    return certificate.public_bytes(Encoding.DER) if same and at <= certificate.not_valid_after_utc else None
