"""A CA key comes into being: once, however many processes start together, and whatever dies in between (R25).

    row `reserved`: its name, the URI of its key, a lease     durable
    the key, where the URI points                             made at most once; who finds it opens it
    its certificates, linted, then signed                     nobody has seen them yet
    row `active` or `next`, and the audit entry               one unit

Each step begins with what the one before left behind, so whoever finds a `reserved` row goes on where the last one
stopped. The lease keeps others from the same work while somebody is at it; if two do it nevertheless, they get the same
key, and only one of their certificates is written down.
"""

# Algorithms for: digest
from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import structlog
from cryptography import x509
from cryptography.x509.oid import NameOID

from attestation.audit import AuditEvent
from attestation.clock import Clock
from attestation.errors import AttestationError, KeyNotFound, SignerBusy
from attestation.keys.open import KeyOptions, OpenKey, create_key, is_away
from attestation.pki.content import SERIAL_BYTES, CertificateContent, key_identifier, serial_of, serial_text
from attestation.pki.names import ca_subject, purpose_of
from attestation.pki.profiles import ANY_POLICY, BACKDATE, ProfileName
from attestation.store import Issuance, Issuer, IssuerAlgorithm, IssuerPurpose, Store, Tx
from attestation_service.authority.issuance import sign_content
from attestation_service.authority.keyring import CACertificate, Keyring, Opened, spki
from attestation_service.authority.places import current_uri, kinds, new_key_uri
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.authority")

LEASE: Final = timedelta(seconds=10)
"""How long a key that is being made is left to whoever makes it; renewed while they live."""

PATIENCE_SECONDS: Final = 60.0
"""How long a start waits for a CA that somebody else is making."""

_ASK_AGAIN_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Who makes keys: this process, with what it needs.

    Args:
        settings: Names, validity, places.
        store: Where the rows are.
        clock: What tells the time.
        options: For the key back-ends.
        keyring: The keys that are open.
        owner: Names this process in leases; another one each time.
        making: Held while this process makes a key: leases tell processes apart, not threads.
    """

    settings: Settings
    store: Store
    clock: Clock
    options: KeyOptions
    keyring: Keyring
    owner: str
    making: threading.Lock = field(default_factory=threading.Lock)


def ensure(maker: Maker, *, coming: bool) -> None:
    """Return when every CA has an active key; make what is missing, finish what was begun. Blocks.

    Args:
        maker: This process.
        coming: Also finish next keys that somebody began; a start leaves them to maintenance, because nobody waits
            for them.

    Raises:
        KeyUnusable: A key cannot be made or opened.
        SignerBusy: Somebody else has been making it for a minute.
    """
    for purpose, algorithm in kinds(maker.settings):
        active = maker.store.read_sync(lambda tx: tx.issuers.active(purpose, algorithm))  # noqa: B023 -- asked at once
        if active is None or coming:
            ensure_kind(maker, purpose, algorithm)


def ensure_kind(maker: Maker, purpose: IssuerPurpose, algorithm: IssuerAlgorithm) -> None:
    """As `ensure`, for one CA; also finishes its next key, unless somebody else is at it."""
    with maker.making:
        _ensure(maker, purpose, algorithm)


def _ensure(maker: Maker, purpose: IssuerPurpose, algorithm: IssuerAlgorithm) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        active, coming = maker.store.read_sync(
            lambda tx: (tx.issuers.active(purpose, algorithm), tx.issuers.coming(purpose, algorithm))
        )
        if active is not None and (coming is None or coming.state != "reserved" or _is_leased(coming, maker)):
            return
        if coming is None or not _is_leased(coming, maker):
            mine = maker.store.write_sync(lambda tx: _claim(tx, maker, purpose, algorithm))
            if mine is not None:
                finish(maker, mine)
                continue
        if time.monotonic() > deadline:
            raise SignerBusy(f"another process has been making the {purpose} CA ({algorithm}) for a minute")
        time.sleep(_ASK_AGAIN_SECONDS)


def _is_leased(issuer: Issuer, maker: Maker) -> bool:
    """Return True while somebody else makes it."""
    if issuer.lease_owner == maker.owner or issuer.lease_until is None:
        return False
    return issuer.lease_until > maker.clock.now()


def _claim(tx: Tx, maker: Maker, purpose: IssuerPurpose, algorithm: IssuerAlgorithm) -> Issuer | None:
    """Take the work on the key that is missing or unfinished; None where there is none to take."""
    coming = tx.issuers.coming(purpose, algorithm)
    if coming is None:
        if tx.issuers.active(purpose, algorithm) is not None:
            return None
        return plan(tx, maker, purpose, algorithm)
    return take(tx, maker, coming)


def plan(tx: Tx, maker: Maker, purpose: IssuerPurpose, algorithm: IssuerAlgorithm) -> Issuer:
    """Reserve a key of this kind, with a URI that no key had; a part of the caller's unit."""
    known = tx.issuers.all()
    issuer_id = secrets.token_hex(8)
    # Rising, whatever the clocks of hosts say: the first one has the plain name.
    at = max([maker.clock.now(), *(each.reserved_at + timedelta(microseconds=1) for each in known)])
    reserved = tx.issuers.reserve(
        issuer_id,
        purpose,
        algorithm,
        new_key_uri(maker.settings, purpose, issuer_id, known),
        owner=maker.owner,
        at=at,
        until=at + LEASE,
    )
    found = tx.issuers.get(issuer_id)
    assert reserved  # the caller saw in this unit that none is to come
    assert found is not None
    return found


def take(tx: Tx, maker: Maker, issuer: Issuer) -> Issuer | None:
    """Take the work on a reserved key; None where somebody has it, or it is made."""
    at = maker.clock.now()
    if not tx.issuers.lease(issuer.issuer_id, owner=maker.owner, at=at, until=at + LEASE):
        return None
    return tx.issuers.get(issuer.issuer_id)


def finish(maker: Maker, issuer: Issuer) -> None:
    """Make the key of a reserved row and its certificates, then write them down. Blocks; the lease must be ours.

    Where another key of the kind is active, the new one becomes `next`, and the two certify each other.

    Raises:
        KeyUnusable: A key cannot be made or opened. The row stays for the next try.
    """
    with _leased(maker, issuer):
        key = create_key(current_uri(maker.settings, issuer.key_uri), issuer.algorithm, maker.options)
        try:
            _certify(maker, issuer, key)
        finally:
            key.close()


def _certify(maker: Maker, issuer: Issuer, key: OpenKey) -> None:
    at = maker.clock.now()
    subject = maker.store.read_sync(lambda tx: _subject(tx, issuer, maker.settings))
    content = _own_content(issuer, subject, spki(key.public_key), maker.settings)
    own = sign_content(content, issuer.algorithm, key.private_key, None)
    ca = CACertificate(
        issuer_id=issuer.issuer_id,
        der=own,
        subject=subject,
        public_key=key.public_key,
        key_id=key_identifier(content.spki),
        not_before=content.not_before,
        not_after=content.not_after,
    )
    crosses = _cross(maker, issuer, Opened(key, ca), at)

    def complete(tx: Tx) -> bool:
        active = tx.issuers.active(issuer.purpose, issuer.algorithm)
        joined = crosses.active.issuer_id if crosses is not None else None
        if joined != _to_join(active):
            return False  # another key began to sign meanwhile: certify the two again
        written = tx.issuers.complete(
            issuer.issuer_id,
            "active" if active is None else "next",
            certificate=own,
            spki_sha256=hashlib.sha256(content.spki).hexdigest(),
            key_origin=key.origin,
            at=at,
        )
        if not written:
            return True  # by somebody else
        if crosses is not None:
            crosses.write(tx, at)
        tx.audit.append(_event(issuer, key, active, crosses), at)
        return True

    if maker.store.write_sync(complete):
        log.info("ca.made", issuer_id=issuer.issuer_id, purpose=issuer.purpose, algorithm=issuer.algorithm)


def _event(issuer: Issuer, key: OpenKey, active: Issuer | None, crosses: _Crosses | None) -> AuditEvent:
    told = f"{issuer.purpose} CA {issuer.issuer_id}, {issuer.algorithm}, key {key.uri} ({key.origin})"
    if active is None:
        return AuditEvent(operator_cn="service", action="ca_created", detail=told)
    serials = ", ".join(each.serial for each in crosses.certificates) if crosses is not None else "none"
    return AuditEvent(
        operator_cn="service",
        action="ca_rotate",
        prev_state="reserved",
        new_state="next",
        detail=f"prepared: {told}, beside {active.issuer_id}; cross certificates {serials}",
    )


def _subject(tx: Tx, issuer: Issuer, settings: Settings) -> x509.Name:
    """Return the name of a CA key: the plain one for the first of its purpose, else with its id."""
    same = (each for each in tx.issuers.all() if each.purpose == issuer.purpose)
    is_first = all(issuer.reserved_at <= each.reserved_at for each in same)
    return ca_subject(
        issuer.purpose,
        country=settings.ca_country,
        organization=settings.ca_organization,
        issuer_id=None if is_first else issuer.issuer_id,
    )


def _own_content(
    issuer: Issuer, subject: x509.Name, public_key: bytes, settings: Settings
) -> CertificateContent:
    """Return what a key certifies of itself: after a crash the same again, with the same serial and validity."""
    at = issuer.reserved_at.replace(microsecond=0)
    entropy = hashlib.sha256(b"itl-ca-serial/v1" + bytes.fromhex(issuer.issuer_id) + public_key).digest()
    return CertificateContent(
        profile=ProfileName.CA,
        serial=serial_of(entropy[:SERIAL_BYTES]),
        subject=subject,
        issuer_subject=subject,
        spki=public_key,
        not_before=at - BACKDATE,
        not_after=at + timedelta(days=settings.enrollment_ca_days),
        authority_key_id=key_identifier(public_key),
    )


@dataclass(frozen=True, slots=True)
class _CrossCertificate:
    serial: str
    of: str
    der: bytes


@dataclass(frozen=True, slots=True)
class _Crosses:
    """Two keys that certify each other."""

    active: Issuer
    certificates: tuple[_CrossCertificate, ...]

    def write(self, tx: Tx, at: datetime) -> None:
        """Write both down as issued, each beside the key that it certifies."""
        for each in self.certificates:
            written = tx.issuances.issued(each.serial, each.der, at)
            assert written  # reserved a moment ago by us; only ten minutes void it
            holder = tx.issuers.get(each.of)
            assert holder is not None
            tx.issuers.set_cross_certificates(each.of, (*holder.cross_certificates, each.der))


def _to_join(active: Issuer | None) -> str | None:
    """Return the key with which a new one certifies itself mutually, by its id; None where there is none.

    Keys below a parent are joined by it: their own certificates may leave no room for a CA below them. Nor is one that
    was brought here with another name, or without such room.
    """
    if active is None or active.chain is not None or active.certificate is None:
        return None
    own = x509.load_der_x509_certificate(active.certificate)
    names = [str(each.value) for each in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    length = own.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
    is_ours = len(names) == 1 and purpose_of(names[0]) == active.purpose
    return active.issuer_id if is_ours and (length is None or length > 0) else None


def _cross(maker: Maker, issuer: Issuer, made: Opened, at: datetime) -> _Crosses | None:
    """Let the active key and the new one certify each other; None where no other one is active, or by a parent.

    Their serials are in the issuance log before anything is signed, as those of all certificates.
    """
    active = maker.store.read_sync(lambda tx: tx.issuers.active(issuer.purpose, issuer.algorithm))
    if active is None or active.issuer_id == issuer.issuer_id or _to_join(active) is None:
        return None
    old = maker.keyring.get(active)
    pairs = ((old, made), (made, old))
    contents = [_cross_content(by.ca, of.ca, maker.settings, at) for by, of in pairs]

    def reserve(tx: Tx) -> None:
        for (by, _), content in zip(pairs, contents, strict=True):
            tx.issuances.reserve(_cross_row(by.ca.issuer_id, content, at))

    maker.store.write_sync(reserve)
    signed = [
        sign_content(content, issuer.algorithm, by.key.private_key, by.ca)
        for (by, _), content in zip(pairs, contents, strict=True)
    ]
    return _Crosses(
        active,
        tuple(
            _CrossCertificate(serial_text(content.serial), of.ca.issuer_id, der)
            for (_, of), content, der in zip(pairs, contents, signed, strict=True)
        ),
    )


def _cross_content(
    by: CACertificate, of: CACertificate, settings: Settings, at: datetime
) -> CertificateContent:
    base = f"{settings.revocation_url}/pki"
    return CertificateContent(
        profile=ProfileName.CA_CROSS,
        serial=serial_of(secrets.token_bytes(SERIAL_BYTES)),
        subject=of.subject,
        issuer_subject=by.subject,
        spki=spki(of.public_key),
        not_before=max(at.replace(microsecond=0) - BACKDATE, by.not_before, of.not_before),
        not_after=min(by.not_after, of.not_after),
        authority_key_id=by.key_id,
        policies=(ANY_POLICY,),
        crl_url=f"{base}/crl/{by.issuer_id}",
        ca_url=f"{base}/ca/{by.issuer_id}",
    )


def _cross_row(issuer_id: str, content: CertificateContent, at: datetime) -> Issuance:
    return Issuance(
        serial=serial_text(content.serial),
        issuer_id=issuer_id,
        profile=content.profile_name,
        state="reserved",
        machine_id=None,
        subject=content.subject.rfc4514_string(),
        spki_sha256=hashlib.sha256(content.spki).hexdigest(),
        requester="SYSTEM",
        key_tier=None,
        assurance=None,
        renews=None,
        not_before=content.not_before,
        not_after=content.not_after,
        reserved_at=at,
    )


@contextlib.contextmanager
def _leased(maker: Maker, issuer: Issuer) -> Iterator[None]:
    """Keep the lease while the work lasts: a key of 4096 bits in a slow token takes longer than one lease."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(LEASE.total_seconds() / 3):
            # What fails here the next round tries again; the work itself will tell.
            with contextlib.suppress(AttestationError):
                maker.store.write_sync(lambda tx: take(tx, maker, issuer))

    thread = threading.Thread(target=renew, name="ca-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def prove_active(maker: Maker) -> dict[str, AttestationError]:
    """Open every key that signs now and let it prove itself, so that what is wrong shows at the start. Blocks.

    Returns:
        By issuer id, why a key does not answer now: no reason not to start, machines attest without it.

    Raises:
        KeyUnusable: It cannot be opened, or is not the key of its certificate, and waiting would not change that.
        CertificateNotConformant: Its certificate is none of a CA.
    """
    away: dict[str, AttestationError] = {}
    for purpose, algorithm in kinds(maker.settings):
        active = maker.store.read_sync(lambda tx: tx.issuers.active(purpose, algorithm))  # noqa: B023 -- asked at once
        assert active is not None  # `ensure` made it
        try:
            maker.keyring.get(active)
        except AttestationError as e:
            if isinstance(e, KeyNotFound) and not is_away(active.key_uri, e):
                raise KeyNotFound(
                    f"the key of the {purpose} CA is missing: {e}. It is never made again: put the folder of the keys "
                    "back from your backup. Without it the service starts if it shall have no CA (unset "
                    "ITL_ENROLLMENT_CA_PASSPHRASE_FILE or _KEY); machines then attest, and get no certificates"
                ) from e
            if not is_away(active.key_uri, e):
                raise
            away[active.issuer_id] = e
    return away
