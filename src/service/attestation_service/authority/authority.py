"""The CAs of the service, owned by the lifespan: they issue, lend their keys to lists and answers, and are watched."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Final, TypeVar

import structlog

from attestation.audit import AuditEvent
from attestation.clock import Clock
from attestation.errors import (
    AttestationError,
    CertificateNotConformant,
    IssuerUnknown,
    KeyNotFound,
    MachineNotAdmitted,
    SignerBusy,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.keys.open import OpenKey
from attestation.store import PUBLISHED, Issuer, IssuerPurpose, Store, Tx
from attestation_service.authority import creation
from attestation_service.authority.creation import Maker
from attestation_service.authority.issuance import (
    Issued,
    Planned,
    Wanted,
    as_issued,
    demand_good_key,
    may_sign,
    reserve,
    sign,
)
from attestation_service.authority.keyring import CACertificate, Keyring, check, validity_problem
from attestation_service.authority.places import current_uri, key_options
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.authority")

T = TypeVar("T")

SIGNING_THREADS: Final = 4
"""More than one: while one waits for a token, another lints. Not many: in software they only take turns."""

MOST_WAITING: Final = 256
"""Signatures that wait at most; beyond it the next is refused at once."""

STALE_AFTER: Final = timedelta(minutes=10)
"""A serial that was reserved so long ago is given up: whoever was signing is gone (HSM-AND-KUBERNETES §7.4)."""

SELF_TEST_EVERY: Final = timedelta(seconds=15)
WARN_EVERY: Final = timedelta(hours=24)
BATCH: Final = 500

START_TRIES: Final = 3
"""How often a start tries what may pass by itself, before it fails."""

_START_AGAIN_SECONDS: Final = 0.5

_ATTEMPTS: Final = 3
"""How often one issuance starts again because another key began to sign in the middle of it."""


class Authority:
    """Every CA of the service.

    Args:
        maker: What this process needs to make and open keys.
        problems: By issuer id, the code of why a key does not answer now.
    """

    def __init__(self, maker: Maker, problems: dict[str, str]) -> None:
        self.maker: Final = maker
        self._settings = maker.settings
        self._store = maker.store
        self._clock = maker.clock
        self._keyring = maker.keyring
        self._threads = ThreadPoolExecutor(SIGNING_THREADS, thread_name_prefix="ca")
        self._waiting = 0
        self._problems = problems
        self._tested_at: datetime | None = None
        self._warned_at: dict[str, datetime] = {}

    # Issuing

    async def issue(
        self,
        wanted: Wanted,
        *,
        at: datetime,
        admit: Callable[[Tx], None],
        conclude: Callable[[Tx, tuple[Issued, ...]], None],
    ) -> tuple[Issued, ...]:
        """Issue a certificate by every key that signs for its profile: all of them or none.

        Two units. In the first *admit* says whether it may be, and the serials are reserved; then everything is linted
        and signed, once, on a thread; in the second the serials must still be reserved, and *conclude* adds what
        belongs to it: audit, event, state. Whoever revokes in between voids the rows, and nobody gets anything.

        Args:
            wanted: What.
            at: Now.
            admit: Raises what refuses; a part of the first unit, so what it did is undone then.
            conclude: A part of the second unit. What it raises voids the serials.

        Raises:
            CANotConfigured: No key signs this.
            CertificateNotConformant: It breaks a rule of its profile; nothing was signed.
            MachineNotAdmitted: The machine was locked, revoked or deleted meanwhile.
            SignerUnavailable: A key cannot sign now.
        """

        def begin(tx: Tx) -> tuple[Planned, ...]:
            admit(tx)
            return reserve(tx, wanted, self._settings, at, self._keyring.certificate)

        planned = await self._store.write(begin)
        for _ in range(_ATTEMPTS):
            try:
                signed = await self.in_thread(functools.partial(self._sign, planned))
                finish = functools.partial(self._finish, wanted, planned, signed, at, conclude)
                outcome = await self._store.write(finish)
            except BaseException as e:
                await self._give_up(planned, e.code if isinstance(e, AttestationError) else type(e).__name__)
                raise
            if isinstance(outcome, _Again):
                planned = outcome.planned
                continue
            if outcome is None:
                raise _withdrawn(wanted)
            return outcome
        await self._give_up(planned, "keys of the CA changed too often")
        raise SignerBusy("keys of the CA changed too often; ask again")

    def _sign(self, planned: Sequence[Planned]) -> tuple[bytes, ...]:
        return tuple(sign(each, self._keyring.get(each.issuer)) for each in planned)

    def _finish(
        self,
        wanted: Wanted,
        planned: tuple[Planned, ...],
        signed: tuple[bytes, ...],
        at: datetime,
        conclude: Callable[[Tx, tuple[Issued, ...]], None],
        tx: Tx,
    ) -> tuple[Issued, ...] | _Again | None:
        """Write down what was signed; None where somebody revoked meanwhile, another plan where the keys changed."""
        rows = [tx.issuances.get(each.serial) for each in planned]
        if any(row is None or row.state != "reserved" for row in rows):
            _void(tx, planned, "withdrawn while it was being signed", at)
            return None
        # Refused while it was being signed: nobody gets it, and what was reserved is void.
        demand_good_key(tx, wanted)
        issuers = [tx.issuers.get(each.issuer.issuer_id) for each in planned]
        good = [issuer for issuer in issuers if issuer is not None and may_sign(issuer, wanted)]
        if len(good) != len(planned):
            # A key that no longer signs shall not: what it signed reaches nobody.
            _void(tx, planned, "another key of the CA began to sign", at)
            return _Again(reserve(tx, wanted, self._settings, at, self._keyring.certificate))
        for each, der in zip(planned, signed, strict=True):
            written = tx.issuances.issued(each.serial, der, at)
            assert written  # this unit saw it reserved
        issued = tuple(map(as_issued, planned, signed, good))
        conclude(tx, issued)
        return issued

    async def _give_up(self, planned: tuple[Planned, ...], why: str) -> None:
        """Void what is still reserved; where that fails too, maintenance does it ten minutes later."""
        at = self._clock.now()
        with contextlib.suppress(AttestationError):
            await self._store.write(lambda tx: _void(tx, planned, f"not issued: {why}", at))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run *work*, which may wait for hardware, on a thread of ours.

        Raises:
            SignerBusy: Too many wait already.
        """
        if self._waiting >= MOST_WAITING:
            raise SignerBusy(f"{self._waiting} signatures are waiting")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    # Keys and certificates for others

    def signing_key(self, issuer_id: str) -> OpenKey:
        """Return the key that signs lists of *issuer_id*. Blocks: call it on a thread (`in_thread`).

        Raises:
            IssuerUnknown: No such key, or one that signs nothing any more.
            KeyUnusable: It cannot be opened.
            SignerUnavailable: Its token or TPM does not answer.
        """
        issuer = self._store.read_sync(lambda tx: tx.issuers.get(issuer_id))
        if issuer is None or issuer.state not in PUBLISHED:
            raise IssuerUnknown(f"no key of a CA called {issuer_id!r} signs lists")
        return self._keyring.get(issuer).key

    def certificate(self, issuer: Issuer) -> CACertificate:
        """Return what is read of the certificate of a key."""
        return self._keyring.certificate(issuer)

    def prove(self, issuer: Issuer) -> None:
        """Open a key that shall sign, and let it sign a test value. Blocks.

        Raises:
            KeyUnusable: It cannot be opened, or is not the key of its certificate.
            SignerUnavailable: Its token or TPM does not answer.
        """
        opened = self._keyring.get(issuer)
        check(opened.key, opened.ca)

    async def bundle(self, purpose: IssuerPurpose = "machine") -> tuple[bytes, ...]:
        """Return the trust bundle, DER: every key that is next, active or retiring, then the cross certificates."""
        return await self._store.read(lambda tx: bundle_of(tx, purpose))

    # Watching

    @property
    def health(self) -> str:
        """`ok`, or the code of what is wrong with a key in use."""
        return next((f"failed: {code}" for code in self._problems.values()), "ok")

    def answers(self, issuer_id: str) -> bool:
        """Return False where a key did not answer when it was tried last."""
        return issuer_id not in self._problems

    async def maintain(self, *, for_all: bool = True) -> None:
        """Try the keys, finish what died halfway; *for_all* void what nobody finished, forget what is long over."""
        at = self._clock.now()
        while for_all and await self._void_stale(at):
            pass
        if self._tested_at is None or at - self._tested_at >= SELF_TEST_EVERY:
            self._tested_at = at
            await self.self_test()
        before = at - timedelta(days=self._settings.certificate_history_days)
        while for_all and await self._store.write(lambda tx: tx.issuances.purge(before, BATCH)) >= BATCH:
            pass
        # Last: a token that makes no keys now holds up nothing else.
        await self.in_thread(functools.partial(creation.ensure, self.maker, coming=True))

    async def self_test(self) -> dict[str, str]:
        """Try every key in use; return the code of what is wrong, by issuer id."""
        issuers = await self._store.read(lambda tx: tx.issuers.all())
        used = [issuer for issuer in issuers if issuer.state in PUBLISHED]
        self._keyring.keep(frozenset(issuer.issuer_id for issuer in used))
        self._problems = await self.in_thread(functools.partial(self._test, used))
        return self._problems

    def _test(self, used: Sequence[Issuer]) -> dict[str, str]:
        found: dict[str, str] = {}
        at = self._clock.now()
        for issuer in used:
            try:
                opened = self._keyring.get(issuer)
                check(opened.key, opened.ca)
            except AttestationError as e:
                found[issuer.issuer_id] = e.code
                log.error("ca.self_test_failed", issuer_id=issuer.issuer_id, code=e.code, reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
            else:
                if not opened.ca.is_valid(at):
                    found[issuer.issuer_id] = CertificateNotConformant.code
                self._warn(issuer, validity_problem(opened.ca, at), at)
        return found

    def _warn(self, issuer: Issuer, problem: str | None, at: datetime) -> None:
        last = self._warned_at.get(issuer.issuer_id)
        if problem is not None and (last is None or at - last >= WARN_EVERY):
            self._warned_at[issuer.issuer_id] = at
            log.warning("ca.validity", issuer_id=issuer.issuer_id, state=issuer.state, problem=problem)

    async def _void_stale(self, at: datetime) -> bool:
        """Void some serials that nobody finished; True if there may be more."""

        def work(tx: Tx) -> int:
            stale = tx.issuances.stale(at - STALE_AFTER, BATCH)
            for each in stale:
                tx.issuances.void(each.serial, "it was not finished", at)
                tx.audit.append(
                    _voided(each.serial, each.issuer_id, each.machine_id, "it was not finished"), at
                )
            return len(stale)

        return await self._store.write(work) >= BATCH

    async def aclose(self) -> None:
        """Close the keys; what is being signed is finished first."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """As `aclose`, for a thread without event loop."""
        self._threads.shutdown()
        self._keyring.close()


class _Again:
    """Other keys sign now: the same once more, under them."""

    __slots__ = ("planned",)

    def __init__(self, planned: tuple[Planned, ...]) -> None:
        self.planned = planned


def bundle_of(tx: Tx, purpose: IssuerPurpose) -> tuple[bytes, ...]:
    """See `Authority.bundle`; a part of the caller's unit."""
    used = [each for each in tx.issuers.all() if each.purpose == purpose and each.state in PUBLISHED]
    own = (each.path[:1] for each in used)
    others = (each.cross_certificates + each.path[1:] for each in used)
    # Keys below one parent share its certificates.
    return tuple(dict.fromkeys(der for found in (*own, *others) for der in found))


def _withdrawn(wanted: Wanted) -> AttestationError:
    if wanted.machine_id is not None:
        return MachineNotAdmitted("the machine was locked, revoked or changed while its certificate was made")
    return SignerUnavailable("the certificate was revoked while it was being signed; ask again")


def _void(tx: Tx, planned: Sequence[Planned], why: str, at: datetime) -> None:
    for each in planned:
        row = tx.issuances.get(each.serial)
        if row is not None and tx.issuances.void(each.serial, why, at):
            tx.audit.append(_voided(row.serial, row.issuer_id, row.machine_id, why), at)


def _voided(serial: str, issuer_id: str, machine_id: str | None, why: str) -> AuditEvent:
    return AuditEvent(
        operator_cn="service",
        action="cert_voided",
        machine_id=machine_id,
        detail=f"serial {serial} of CA {issuer_id}: {why}",
    )


def maker_of(settings: Settings, store: Store, clock: Clock) -> Maker:
    """Return what this process makes and opens keys with.

    Raises:
        KeyURIInvalid: The settings name no place for keys.
    """
    options = key_options(settings)
    keyring = Keyring(options, functools.partial(current_uri, settings))
    return Maker(
        settings=settings,
        store=store,
        clock=clock,
        options=options,
        keyring=keyring,
        owner=secrets.token_hex(16),
    )


def open_authority(settings: Settings, store: Store, clock: Clock) -> Authority:
    """Make or open the CAs of this service. Blocks.

    Where there is a CA and only its device is away, the service starts without its key, and opens it later.

    Raises:
        KeyUnusable: A key cannot be made or opened: `KeyMismatch` and the others.
        SignerUnavailable: There is no CA yet, and the token or TPM does not answer.
        CertificateNotConformant: A stored certificate is none of a CA.
    """
    owner = secrets.token_hex(16)
    for tries_left in reversed(range(START_TRIES)):
        # The same owner throughout: a lease that was taken before is still ours.
        maker = dataclasses.replace(maker_of(settings, store, clock), owner=owner)
        try:
            creation.ensure(maker, coming=False)
            away = creation.prove_active(maker)
        except BaseException as e:
            maker.keyring.close()
            if not isinstance(e, Exception) or not _passes(e) or not tries_left:
                raise
            log.warning("ca.not_open", reason=str(e), tries_left=tries_left)
        else:
            if not any(isinstance(e, _MOMENTARY) for e in away.values()) or not tries_left:
                for issuer_id, error in away.items():
                    log.error("ca.away", issuer_id=issuer_id, code=error.code, reason=str(error))
                return Authority(maker, {issuer_id: error.code for issuer_id, error in away.items()})
            maker.keyring.close()
        time.sleep(_START_AGAIN_SECONDS)
    raise AssertionError("the last try returns or raises")


_MOMENTARY: Final = (TokenAbsent, KeyNotFound)
"""While another process writes to a token, it may look as if key or token were not there."""


def _passes(error: Exception) -> bool:
    return isinstance(error, (SignerUnavailable, *_MOMENTARY)) and type(error) is not SignerBusy
