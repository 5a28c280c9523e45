"""One key of a CA after another (HSM-AND-KUBERNETES §8): what each step does, inside the unit of the operator's act.

    prepare ──► next ── activate ──► active ── (activate of the one after) ──► retiring ── retire ──► retired
                  └── rollback ──► abandoned        └──────── rollback ────────┘

A `next` key is in the trust bundle before it signs anything, and it and the active key certify each other: who knows
one of the two verifies what the other signed. A `retiring` key signs lists and answers only. Which states there are at
once is bounded: one that is to come, one that signs, one that ceases; so two cross certificates are always enough.
Where the settings leave an algorithm, its active key signs nothing from then on, and is retired like one that ceased.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from cryptography import x509

from attestation.clock import rfc3339
from attestation.errors import RotationForbidden
from attestation.pki.content import serial_text
from attestation.pki.profiles import ProfileName
from attestation.store import Issuer, IssuerAlgorithm, IssuerPurpose, Tx
from attestation_service.authority import creation
from attestation_service.authority.creation import Maker
from attestation_service.authority.issuance import allowed_lifetime
from attestation_service.authority.places import kinds
from attestation_service.settings import Settings

Step = Literal["prepare", "activate", "rollback", "retire"]

MOST_PUBLISHED: Final = timedelta(hours=24)
"""So long at most a next key waits for relying parties: all of ours fetch the bundle at least once a day."""

AFTER_LAST_END: Final = timedelta(hours=24)
"""So long after the end of its last certificate a retiring key still answers for it."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one CA and algorithm as a unit finds them; what is retired or abandoned does not count."""

    active: Issuer
    coming: Issuer | None
    retiring: Issuer | None
    is_wanted: bool
    """False where the settings have left this algorithm: the active key signs nothing any more."""

    def other(self, step: Step) -> Issuer | None:
        """Return the key that *step* is about besides the active one, or None."""
        match step:
            case "prepare":
                return None
            case "activate":
                return self.coming
            case "rollback":
                return self.coming or self.retiring
            case "retire":
                return self.retiring or (None if self.is_wanted else self.active)

    def will_sign(self, step: Step) -> Issuer | None:
        """Return the key that begins to sign by *step*; None where none does."""
        if step == "activate" and self.coming is not None and self.coming.state == "next":
            return self.coming
        return self.retiring if step == "rollback" and self.coming is None else None


def keys_of(tx: Tx, purpose: IssuerPurpose, algorithm: IssuerAlgorithm, settings: Settings) -> Keys:
    """Return the keys of a CA.

    Raises:
        RotationForbidden: There is no such CA.
    """
    active = tx.issuers.active(purpose, algorithm)
    if active is None:
        raise RotationForbidden(f"there is no {purpose} CA with a key of {algorithm}")
    retiring = [
        each
        for each in tx.issuers.all()
        if (each.purpose, each.algorithm, each.state) == (purpose, algorithm, "retiring")
    ]
    return Keys(
        active,
        tx.issuers.coming(purpose, algorithm),
        retiring[-1] if retiring else None,
        (purpose, algorithm) in kinds(settings),
    )


def activate_from(issuer: Issuer, settings: Settings) -> datetime | None:
    """Return from when on a next key may sign: everybody who renews has fetched the bundle with it by then.

    That is one lifetime of a certificate, and a day at most; None of any other key.
    """
    if issuer.state != "next" or issuer.created_at is None:
        return None
    return issuer.created_at + min(_longest(issuer, settings), MOST_PUBLISHED)


def retire_from(tx: Tx, issuer: Issuer, settings: Settings) -> datetime | None:
    """Return from when on nobody needs a retiring key: a day after its last certificate can have ended.

    Likewise of an active key whose algorithm the settings have left. None of any other key.
    """
    last = tx.issuances.last_end(issuer.issuer_id)
    if issuer.state == "retiring" and issuer.retiring_at is not None:
        ends = issuer.retiring_at + _longest(issuer, settings)
        return max(ends, last or ends) + AFTER_LAST_END
    if issuer.state == "active" and (issuer.purpose, issuer.algorithm) not in kinds(settings):
        return (last or issuer.reserved_at) + AFTER_LAST_END
    return None


def _longest(issuer: Issuer, settings: Settings) -> timedelta:
    profile = ProfileName.OPERATOR if issuer.purpose == "operator" else ProfileName.NODE_CLIENT
    return allowed_lifetime(settings, profile)


def check(tx: Tx, keys: Keys, step: Step, *, force: bool, settings: Settings, at: datetime) -> None:
    """Prove that *step* may be taken now.

    Raises:
        RotationForbidden: Not in this state, or not yet.
    """
    active, coming, retiring = keys.active, keys.coming, keys.retiring
    match step:
        case "prepare":
            if not keys.is_wanted:
                raise RotationForbidden(f"no certificate is issued by {active.algorithm}; see the settings")
            if coming is not None:
                raise RotationForbidden(f"key {coming.issuer_id} is {coming.state} already")
            if retiring is not None:
                raise RotationForbidden(f"key {retiring.issuer_id} is still retiring; retire it first")
        case "activate":
            if coming is None or coming.state != "next":
                raise RotationForbidden("no next key is there; prepare one first")
            if active.chain is not None and coming.chain is None and not force:
                # Who knows the parent alone would believe nothing that the next key signs.
                raise RotationForbidden(
                    f"key {active.issuer_id} is certified by a parent and key {coming.issuer_id} is not; "
                    "import its certificate first, or force it"
                )
            _wait(activate_from(coming, settings), at, force, "relying parties may not know the next key yet")
        case "rollback":
            if coming is None and retiring is None:
                raise RotationForbidden(
                    f"only key {active.issuer_id} is in use; there is nothing to go back to"
                )
        case "retire":
            if (gone := keys.other("retire")) is None:
                raise RotationForbidden("no key is retiring")
            _wait(retire_from(tx, gone, settings), at, force, "certificates of it may be in use")


def _wait(until: datetime | None, at: datetime, force: bool, why: str) -> None:
    if until is not None and at < until and not force:
        raise RotationForbidden(f"{why}: wait until {rfc3339(until)}, or force it")


def take(tx: Tx, maker: Maker, keys: Keys, step: Step, at: datetime) -> str:
    """Take a step that `check` let pass; return what happened, in words for the audit."""
    return _STEPS[step](tx, maker, keys, at)


def _prepare(tx: Tx, maker: Maker, keys: Keys, at: datetime) -> str:  # noqa: ARG001 -- the form of every step
    planned = creation.plan(tx, maker, keys.active.purpose, keys.active.algorithm)
    return f"key {planned.issuer_id} planned beside {keys.active.issuer_id}"


def _activate(tx: Tx, maker: Maker, keys: Keys, at: datetime) -> str:  # noqa: ARG001 -- likewise
    assert keys.coming is not None  # `check` saw it
    _switch(tx, keys.active, keys.coming, "next", at)
    return f"key {keys.coming.issuer_id} signs, {keys.active.issuer_id} is retiring"


def _rollback(tx: Tx, maker: Maker, keys: Keys, at: datetime) -> str:  # noqa: ARG001 -- likewise
    coming, retiring = keys.coming, keys.retiring
    if coming is not None:
        _move(tx, coming, "abandoned", at)
        _forget(tx, keys.active, coming, at)
        return f"key {coming.issuer_id} given up before it signed; {keys.active.issuer_id} goes on"
    assert retiring is not None  # `check` saw one of them
    _switch(tx, keys.active, retiring, "retiring", at)
    return f"key {retiring.issuer_id} signs again, {keys.active.issuer_id} is retiring"


def _retire(tx: Tx, maker: Maker, keys: Keys, at: datetime) -> str:  # noqa: ARG001 -- likewise
    gone = keys.other("retire")
    assert gone is not None  # `check` saw it
    _move(tx, gone, "retired", at)
    if gone.issuer_id == keys.active.issuer_id:
        return f"key {gone.issuer_id} retired; no certificate is issued by {gone.algorithm} any more"
    _forget(tx, keys.active, gone, at)
    return f"key {gone.issuer_id} retired; {keys.active.issuer_id} goes on"


_STEPS: Final[dict[Step, Callable[[Tx, Maker, Keys, datetime], str]]] = {
    "prepare": _prepare,
    "activate": _activate,
    "rollback": _rollback,
    "retire": _retire,
}


def _switch(tx: Tx, active: Issuer, other: Issuer, state: Literal["next", "retiring"], at: datetime) -> None:
    # In this order: two that are active are refused by the database.
    _move(tx, active, "retiring", at)
    moved = tx.issuers.move(other.issuer_id, state, "active", at)
    assert moved  # this unit saw it so


def _move(tx: Tx, issuer: Issuer, state: Literal["retiring", "retired", "abandoned"], at: datetime) -> None:
    moved = tx.issuers.move(issuer.issuer_id, issuer.state, state, at)
    assert moved  # this unit saw it so


def _forget(tx: Tx, kept: Issuer, gone: Issuer, at: datetime) -> None:
    """Take back what the two certified of each other: nobody shall reach *gone* through *kept*, or the other way.

    What *kept* signed is on its revocation list from now on. What *gone* signed ends with it; a key that was given
    up or retired signs no more lists, so that one leaves the bundle only.
    """
    theirs = [der for der in kept.cross_certificates if _issued_by(der, gone)]
    for der in (*gone.cross_certificates, *theirs):
        serial = serial_text(x509.load_der_x509_certificate(der).serial_number)
        if tx.issuances.get(serial) is not None:  # the log forgets what has long ended
            why = f"key {gone.issuer_id} is not used any more"
            tx.issuances.revoke_serial(serial, "cessationOfOperation", why, at)
    left = [der for der in kept.cross_certificates if der not in theirs]
    tx.issuers.set_cross_certificates(kept.issuer_id, left)
    tx.issuers.set_cross_certificates(gone.issuer_id, ())


def _issued_by(der: bytes, issuer: Issuer) -> bool:
    if issuer.certificate is None:
        return False
    own = x509.load_der_x509_certificate(issuer.certificate)
    return x509.load_der_x509_certificate(der).issuer == own.subject
